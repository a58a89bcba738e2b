#include "text/tag.h"

static const struct {
    enum tag tag;
    const char *text;
} table[] = {
    {TAG_THINK, "<think>"},
    {TAG_THINK_END, "</think>"},
    {TAG_CALL, "<tool_call>"},
    {TAG_CALL_END, "</tool_call>"},
    {TAG_FUNCTION, "<function="},
    {TAG_FUNCTION_NAME, "<function name="},
    {TAG_FUNCTION_END, "</function>"},
    {TAG_PARAMETER, "<parameter="},
    {TAG_PARAMETER_NAME, "<parameter name="},
    {TAG_PARAMETER_END, "</parameter>"},
};

enum tag tag_feed(struct tag_match *m, uint32_t wanted, char c)
{
    uint32_t before = m->n ? m->live : wanted, live = 0;
    for (unsigned i = 0; i < sizeof table / sizeof *table; i++) {
        if (!(before & table[i].tag) || table[i].text[m->n] != c)
            continue;
        if (!table[i].text[m->n + 1]) {
            *m = (struct tag_match){0};
            return table[i].tag;
        }
        live |= table[i].tag;
    }
    if (!live) {
        *m = (struct tag_match){0};
        return TAG_NO;
    }
    m->live = live;
    m->n++;
    return TAG_MORE;
}

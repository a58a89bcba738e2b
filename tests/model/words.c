#include "words.h"

void words_put(struct buf *text, int32_t which, int32_t n)
{
    static const char *const word[] = {" the", " a", " of", " and"};
    buf_puts(text, "a");
    for (int32_t i = 1; i < n; i++)
        buf_puts(text, word[(i * (which + 3) + i / 7 + which) % 4]);
}

char *words_said(lathe_request *r, lathe_event *last)
{
    struct buf said;
    buf_init(&said, 1 << 20);
    do {
        lathe_request_next(r, -1, last);
        if (last->type == LATHE_EVENT_TEXT)
            buf_append(&said, last->text, last->n_text);
        else if (last->type == LATHE_EVENT_TOKEN)
            buf_printf(&said, "[%d %.9g]", (int)last->token.id, (double)last->token.logprob);
    } while (last->type != LATHE_EVENT_FINISH);
    lathe_request_close(r);
    (void)buf_str(&said);
    return said.data;
}

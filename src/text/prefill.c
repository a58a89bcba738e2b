#include "text/prefill.h"

#include <stdlib.h>
#include <string.h>

enum { PREFILL_LIMIT = 1 << 28 };

static const char think_begin[] = "<think>\n", think_end[] = "\n</think>\n\n";

/* ---- The message ---------------------------------------------------------------------------- */

static lathe_status append_parts(struct buf *out, const struct json_doc *d, const json_t *parts,
                                 size_t at, lathe_error *err)
{
    for (size_t k = 0; k < json_array_size(parts); k++) {
        size_t n;
        const char *s = json_text(d, json_object_get(json_array_get(parts, k), "text"), &n);
        if (!s)
            return fail(err, LATHE_E_UNSUPPORTED,
                        "messages[%zu].content[%zu]: only text can be continued", at, k);
        buf_append(out, s, n);
    }
    return LATHE_OK;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* The next token begins with the blanks. */
static void trim_end(struct buf *b)
{
    while (b->len && is_blank(b->data[b->len - 1]))
        b->data[--b->len] = 0;
}

static lathe_status read_message(struct prefill *p, const struct json_doc *d, const json_t *m,
                                 size_t at, lathe_error *err)
{
    const json_t *content = json_object_get(m, "content");
    size_t n, from = 0;
    const char *role = json_text(d, json_object_get(m, "role"), &n);
    if (!role || strcmp(role, "assistant") != 0)
        return fail(err, LATHE_E_ARGUMENT,
                    "messages[%zu].role: only a message of the assistant can be continued", at);
    if (json_array_size(json_object_get(m, "tool_calls")))
        return fail(err, LATHE_E_ARGUMENT,
                    "messages[%zu].tool_calls: a message with calls cannot be continued", at);
    const char *s = json_text(d, json_object_get(m, "reasoning_content"), &n);
    while (s && from < n && s[from] == '\n')
        from++;
    if (s)
        buf_append(&p->reasoning, s + from, n - from);
    s = json_text(d, content, &n);
    if (s)
        buf_append(&p->text, s, n);
    else if (content && !json_is_null(content) && !json_is_array(content))
        return fail(err, LATHE_E_ARGUMENT, "messages[%zu].content: expected a string or an array",
                    at);
    lathe_status st = append_parts(&p->text, d, content, at, err);
    st = st ? st : buf_check(&p->text, "messages", err);
    st = st ? st : buf_check(&p->reasoning, "messages", err);
    trim_end(&p->text);
    trim_end(&p->reasoning);
    return st;
}

lathe_status prefill_take(struct prefill *p, struct json_doc *messages, lathe_error *err)
{
    size_t n = json_array_size(messages->root);
    buf_init(&p->reasoning, PREFILL_LIMIT);
    buf_init(&p->text, PREFILL_LIMIT);
    if (n == 0)
        return fail(err, LATHE_E_ARGUMENT, "messages: there is no message to continue");
    lathe_status st = read_message(p, messages, json_array_get(messages->root, n - 1), n - 1, err);
    if (!st && json_array_remove(messages->root, n - 1) != 0)
        st = fail_memory(err, n);
    return st;
}

void prefill_release(struct prefill *p)
{
    buf_release(&p->reasoning);
    buf_release(&p->text);
}

/* ---- The prompt ----------------------------------------------------------------------------- */

/* At `at`, which moves behind it. */
static lathe_status insert(struct rendering *t, size_t *at, const char *s, size_t n,
                           unsigned char from, lathe_error *err)
{
    if (n == 0)
        return LATHE_OK;
    char *text = realloc(t->text, t->n + n + 1);
    if (!text)
        return fail_memory(err, t->n + n + 1);
    t->text = text;
    unsigned char *origin = realloc(t->origin, t->n + n);
    if (!origin)
        return fail_memory(err, t->n + n);
    t->origin = origin;
    memmove(text + *at + n, text + *at, t->n - *at + 1);
    memmove(origin + *at + n, origin + *at, t->n - *at);
    memcpy(text + *at, s, n);
    memset(origin + *at, from, n);
    t->n += n;
    *at += n;
    return LATHE_OK;
}

/* Where the reasoning of a closed block at the text's end belongs; 0: there is no such block. */
static size_t inside_closed(const struct rendering *t)
{
    size_t n = strlen(think_begin) + strlen(think_end);
    if (t->n < n || memcmp(t->text + t->n - n, think_begin, strlen(think_begin)) != 0 ||
        memcmp(t->text + t->n - strlen(think_end), think_end, strlen(think_end)) != 0)
        return 0;
    return t->n - strlen(think_end);
}

lathe_status prefill_put(const struct prefill *p, struct rendering *t, bool is_open,
                         unsigned char from, lathe_error *err)
{
    size_t at = is_open ? t->n : inside_closed(t);
    lathe_status st = LATHE_OK;
    if (p->reasoning.len && at == 0)
        return fail(err, LATHE_E_UNSUPPORTED,
                    "messages: the template has no place for the reasoning of a message that is "
                    "continued");
    if (p->reasoning.len)
        st = insert(t, &at, p->reasoning.data, p->reasoning.len, from, err);
    at = t->n;
    if (is_open && p->text.len && !st)
        st = insert(t, &at, think_end, strlen(think_end), 0, err);
    if (p->text.len && !st)
        st = insert(t, &at, p->text.data, p->text.len, from, err);
    return st;
}

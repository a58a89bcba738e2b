/* A body of Responses as a conversation. */
#include <string.h>

#include "openai_responses.h"
#include "state.h"

enum { TEXT_LIMIT = 1 << 28 };

/* ---- tool_choice ---------------------------------------------------------------------------- */

static bool read_named_choice(const struct fields *f, const struct toolbox *tools, const json_t *v)
{
    size_t n;
    const char *type = json_text(&f->doc, json_object_get(v, "type"), &n);
    const char *name = json_text(&f->doc, json_object_get(v, "name"), &n);
    bool is_named = type && (strcmp(type, "function") == 0 || strcmp(type, "custom") == 0);
    if (is_named && name && !toolbox_find(tools, name))
        return refuse_field(f->failure, BAD_VALUE, "tool_choice.name",
                            "tool_choice.name: '%.60s' is none of the tools", name);
    return refuse_field(f->failure, UNSUPPORTED_VALUE, "tool_choice",
                        "tool_choice: only \"auto\" and \"none\" are supported");
}

static bool read_tool_choice(const struct fields *f, struct generation *g,
                             const struct toolbox *tools)
{
    const json_t *v = field_value(f, "tool_choice");
    bool parallel = true;
    int64_t most = 0;
    size_t n;
    if (!field_bool(f, "parallel_tool_calls", &parallel) ||
        !field_int(f, "max_tool_calls", &most, 1, INT32_MAX))
        return false;
    g->options.max_calls = parallel ? (int32_t)most : 1;
    if (json_is_object(v))
        return read_named_choice(f, tools, v);
    const char *s = v ? json_text(&f->doc, v, &n) : "auto";
    if (!s)
        return field_is_no(f, "tool_choice", "a word or an object", v);
    if (strcmp(s, "none") == 0) {
        g->no_calls = true;
    } else if (strcmp(s, "required") == 0) {
        return refuse_field(f->failure, tools->n ? UNSUPPORTED_VALUE : BAD_VALUE, "tool_choice",
                            "tool_choice: required %s",
                            tools->n ? "is not supported, only \"auto\" and \"none\""
                                     : "needs tools");
    } else if (strcmp(s, "auto") != 0) {
        return refuse_field(f->failure, BAD_VALUE, "tool_choice",
                            "tool_choice: '%.40s' is none of auto, none, required", s);
    }
    return true;
}

/* ---- The conversation ----------------------------------------------------------------------- */

/* Through the chat form, which puts results in the order of their calls. */
static bool read_input(struct exchange *x, const struct fields *f, struct generation *g,
                       struct responses_request *q)
{
    struct buf text;
    buf_init(&text, TEXT_LIMIT);
    buf_puts(&text, "{\"messages\": ");
    size_t head = text.len;
    bool ok = responses_input(x, f, q, &text);
    bool is_empty = text.len == head + 1;
    buf_puts(&text, "]}");
    if (ok && is_empty)
        ok = refuse_field(f->failure, BAD_VALUE, "input", "input has nothing in it to render");
    ok = ok && chat_written(f, &g->chat, &text, "input");
    buf_release(&text);
    return ok;
}

static bool read_previous(struct exchange *x, const struct fields *f, struct responses_request *q)
{
    const char *id = NULL;
    size_t n;
    if (!field_text(f, "previous_response_id", &id, &n))
        return false;
    q->previous = id ? store_find(x->server->store, &x->owner, id) : NULL;
    return !id || q->previous ||
           refuse_field(f->failure, PREVIOUS_NOT_FOUND, "previous_response_id",
                        "previous_response_id: no response '%.60s' is stored; send the whole input",
                        id);
}

bool responses_conversation(struct exchange *x, const struct fields *f, struct generation *g,
                            struct responses_request *q)
{
    struct chat *c = &g->chat;
    struct toolbox *t = &q->tools;
    lathe_error err;
    *q = (struct responses_request){.previous = NULL};
    buf_init(&q->input, TEXT_LIMIT);
    for (int i = 0; i < N_ECHOES; i++)
        buf_init(&q->echo[i], TEXT_LIMIT);
    buf_init(&c->messages, TEXT_LIMIT);
    buf_init(&c->tools, TEXT_LIMIT);
    buf_init(&c->kwargs, TEXT_LIMIT);
    c->conversation.late_system = LATHE_LATE_SYSTEM_INLINE;
    if (!toolbox_init(t, &g->arena, f->failure) ||
        !field_bool(f, "strict_custom", &t->strict_custom) || !chat_thinking(f, c) ||
        !toolbox_read(t, x, f) || !read_previous(x, f, q) || !read_input(x, f, g, q))
        return false;
    buf_putc(&t->listed, ']');
    buf_putc(&t->callable, ']');
    if (buf_check(&c->messages, "input", &err) || buf_check(&q->input, "input", &err) ||
        buf_check(&t->listed, "tools", &err) || buf_check(&t->callable, "tools", &err) ||
        buf_check(&c->kwargs, "chat_template_kwargs", &err))
        return refuse_status(f->failure, &err);
    c->n_tools = t->n_listed;
    c->conversation.messages = buf_str(&c->messages);
    c->conversation.tools = t->n_listed ? buf_str(&t->listed) : NULL;
    c->conversation.callable_tools = t->n > t->n_listed ? buf_str(&t->callable) : NULL;
    c->conversation.kwargs = c->kwargs.len ? buf_str(&c->kwargs) : NULL;
    return read_tool_choice(f, g, t);
}

void responses_request_release(struct responses_request *q, struct store *store)
{
    store_drop(store, q->previous);
    toolbox_release(&q->tools);
    buf_release(&q->input);
    for (int i = 0; i < N_ECHOES; i++)
        buf_release(&q->echo[i]);
    q->previous = NULL;
}

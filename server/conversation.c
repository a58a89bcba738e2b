#include "conversation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hosted.h"

#include "state.h"
#include "writer.h"

enum { TEXT_LIMIT = 1 << 28 };

const char *const conversation_fields[] = {"messages",
                                           "tools",
                                           "chat_template_kwargs",
                                           "enable_thinking",
                                           "thinking",
                                           "think",
                                           "reasoning",
                                           "reasoning_effort",
                                           "thinking_budget",
                                           "reasoning_budget",
                                           "thinking_token_budget",
                                           "thinking_budget_tokens",
                                           "preserve_thinking"};
const size_t n_conversation_fields = sizeof conversation_fields / sizeof *conversation_fields;

/* ---- Messages ------------------------------------------------------------------------------- */

const char *writer_text(const struct writer *w, const json_t *object, const char *name, size_t *n)
{
    return json_text(w->d, json_object_get(object, name), n);
}

bool writer_is(const struct writer *w, const json_t *object, const char *name, const char *word)
{
    size_t n;
    const char *s = writer_text(w, object, name, &n);
    return s && strcmp(s, word) == 0;
}

void writer_key(const struct writer *w, const char *name)
{
    buf_printf(w->out, ", \"%s\": ", name);
}

/* A part of a message. A refusal is its text; the renderer judges the rest. */
static void put_part(const struct writer *w, const json_t *part)
{
    size_t n;
    const char *s =
        writer_is(w, part, "type", "refusal") ? writer_text(w, part, "refusal", &n) : NULL;
    if (!s) {
        json_print(w->out, w->d, part);
        return;
    }
    buf_puts(w->out, "{\"type\": \"text\", \"text\": ");
    json_print_string(w->out, s, n);
    buf_putc(w->out, '}');
}

/* Objects that say what they are. */
bool json_is_parts(const json_t *v)
{
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!json_is_string(json_object_get(json_array_get(v, i), "type")))
            return false;
    return json_is_array(v);
}

bool put_result_json(struct buf *out, const struct json_doc *d, const json_t *content)
{
    size_t n;
    struct buf text;
    if (!content || json_is_null(content) || json_text(d, content, &n) || json_is_parts(content))
        return false;
    buf_init(&text, TEXT_LIMIT);
    json_print(&text, d, content);
    json_escape(out, buf_str(&text), text.len);
    buf_inherit(out, &text);
    buf_release(&text);
    return true;
}

void writer_content(const struct writer *w, const json_t *content, bool is_tool)
{
    size_t n;
    if (json_is_parts(content)) {
        buf_putc(w->out, '[');
        for (size_t i = 0; i < json_array_size(content); i++) {
            if (i)
                buf_puts(w->out, ", ");
            put_part(w, json_array_get(content, i));
        }
        buf_putc(w->out, ']');
    } else if (is_tool && !json_text(w->d, content, &n)) {
        buf_putc(w->out, '"');
        (void)put_result_json(w->out, w->d, content);
        buf_putc(w->out, '"');
    } else if (content) {
        json_print(w->out, w->d, content);
    } else {
        buf_puts(w->out, "null");
    }
}

static void put_message(const struct writer *w, const json_t *m)
{
    const json_t *role = json_object_get(m, "role");
    buf_puts(w->out, "{\"role\": ");
    if (role)
        json_print(w->out, w->d, role);
    else
        buf_puts(w->out, "null");
    if (writer_is(w, m, "role", "assistant")) {
        writer_assistant(w, m);
    } else {
        writer_key(w, "content");
        writer_content(w, json_object_get(m, "content"), writer_is(w, m, "role", "tool"));
    }
    buf_putc(w->out, '}');
}

/* ---- The order of tool results -------------------------------------------------------------- */

struct result {
    const json_t *message;
    size_t call, at; /* which call it answers, and its place in the list */
};

static int by_call(const void *a, const void *b)
{
    const struct result *p = a, *q = b;
    return p->call != q->call ? (p->call < q->call ? -1 : 1) : (p->at > q->at) - (p->at < q->at);
}

/* The calls of an assistant's message, ids to indices, of which the first counts; NULL: out of memory. */
static json_t *index_calls(const struct writer *w, const json_t *m)
{
    const json_t *calls = json_object_get(m, "tool_calls");
    json_t *index = json_object();
    for (size_t i = 0; index && i < json_array_size(calls); i++) {
        size_t n;
        const char *id = writer_text(w, json_array_get(calls, i), "id", &n);
        if (!id || json_object_get(index, id))
            continue;
        if (json_object_set_new_nocheck(index, id, json_integer((json_int_t)i)) != 0) {
            json_decref(index);
            index = NULL;
        }
    }
    return index;
}

/* The results list[from..to) of assistant message m into the order of its calls: the template pairs them by order
 * alone. Results of unknown calls keep their places. */
static bool sort_results(const struct writer *w, const json_t *m, const json_t **list, size_t from,
                         size_t to)
{
    if (to - from < 2)
        return true;
    json_t *index = index_calls(w, m);
    struct result *result = malloc((to - from) * sizeof *result);
    size_t *place = malloc((to - from) * sizeof *place), n = 0; /* [n], that results are in */
    for (size_t i = from; index && result && place && i < to; i++) {
        size_t n_id;
        const char *id = writer_text(w, list[i], "tool_call_id", &n_id);
        const json_t *call = id ? json_object_get(index, id) : NULL;
        if (!call)
            continue;
        place[n] = i;
        result[n++] = (struct result){list[i], (size_t)json_integer_value(call), i};
    }
    bool ok = index && place && result;
    if (ok)
        qsort(result, n, sizeof *result, by_call);
    for (size_t i = 0; ok && i < n; i++)
        list[place[i]] = result[i].message;
    json_decref(index);
    free(result);
    free(place);
    return ok;
}

/* The known tokens of turns, for the engine. */
static bool list_turns(struct chat *c)
{
    if (c->n_carried == 0)
        return true;
    c->turn = calloc(c->n_carried, sizeof *c->turn);
    for (size_t i = 0; c->turn && i < c->n_carried; i++)
        c->turn[i] = (lathe_turn){c->carried[i].message, c->carried[i].carried.id,
                                  c->carried[i].carried.n_id};
    c->conversation.turn = c->turn;
    c->conversation.n_turns = c->turn ? c->n_carried : 0;
    return c->turn != NULL;
}

/* Members of an assistant's message that say what it was, in forms that are not read. */
static bool check_assistant(const struct fields *f, size_t i, const json_t *m)
{
    static const struct {
        const char *name, *instead;
    } rows[] = {{"function_call", "use tool_calls"},
                {"audio", "audio is not kept; send its transcript as content"}};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        const json_t *v = json_object_get(m, rows[k].name);
        char param[60];
        (void)snprintf(param, sizeof param, "messages[%zu].%s", i, rows[k].name);
        if (v && !json_is_null(v))
            return refuse_field(f->failure, UNSUPPORTED_FIELD, param, "%s is not supported: %s",
                                param, rows[k].instead);
    }
    return true;
}

static bool put_messages(const struct fields *f, struct chat *c, bool reads_carriers)
{
    const json_t *array = NULL;
    struct writer w = {.d = &f->doc,
                       .out = &c->messages,
                       .server = f->server,
                       .chat = c,
                       .reads_carriers = reads_carriers};
    struct answers_prefix prefix = {0};
    if (!field_limited(f, "messages", &array, LIMIT_MESSAGES))
        return false;
    if (!array)
        return refuse_field(f->failure, MISSING_FIELD, "messages", "messages is missing");
    size_t n = json_array_size(array);
    if (n == 0)
        return refuse_field(f->failure, BAD_VALUE, "messages", "messages is empty");
    const json_t **list = malloc(n * sizeof *list);
    if (!list)
        return refuse(f->failure, INTERNAL, "out of memory");
    bool ok = true;
    for (size_t i = 0; i < n && ok; i++) {
        char param[40];
        list[i] = json_array_get(array, i);
        (void)snprintf(param, sizeof param, "messages[%zu]", i);
        if (!json_is_object(list[i]))
            ok = refuse_field(f->failure, BAD_TYPE, param, "%s: expected an object, found %s",
                              param, json_kind(list[i]));
        else if (writer_is(&w, list[i], "role", "assistant"))
            ok = check_assistant(f, i, list[i]);
    }
    for (size_t i = 0; i < n && ok; i++) {
        size_t to = i + 1;
        if (!writer_is(&w, list[i], "role", "assistant"))
            continue;
        while (to < n && writer_is(&w, list[to], "role", "tool"))
            to++;
        ok = sort_results(&w, list[i], list, i + 1, to) ||
             refuse(f->failure, INTERNAL, "out of memory");
    }
    w.prefix = &prefix;
    w.list = list;
    w.n = n;
    buf_putc(&c->messages, '[');
    for (w.i = 0; w.i < n && ok; w.i++) {
        c->messages_at = c->messages.len;
        if (w.i)
            buf_puts(&c->messages, ", ");
        put_message(&w, list[w.i]);
    }
    buf_putc(&c->messages, ']');
    c->ends_with_assistant = ok && writer_is(&w, list[n - 1], "role", "assistant");
    free(list);
    answers_prefix_release(&prefix);
    return ok && (list_turns(c) || refuse(f->failure, INTERNAL, "out of memory"));
}

bool chat_messages(const struct fields *f, struct chat *c)
{
    return put_messages(f, c, true);
}

bool chat_written(const struct fields *f, struct chat *c, const struct buf *text, const char *what)
{
    struct fields form = {
        .path = "", .failure = f->failure, .watch = f->watch, .server = f->server};
    lathe_error err;
    if (buf_check(text, what, &err) || json_read_watched(&form.doc, buf_str(text), text->len,
                                                         &json_limits_request, f->watch, &err))
        return refuse_status(f->failure, &err);
    form.object = form.doc.root;
    bool ok = chat_messages(&form, c);
    json_release(&form.doc);
    return ok;
}

/* ---- Tools ---------------------------------------------------------------------------------- */

static bool put_tool(const struct fields *f, struct buf *out, size_t i, const json_t *tool)
{
    json_t *function = json_object_get(tool, "function");
    struct writer w = {.d = &f->doc, .out = out};
    char param[48];
    (void)snprintf(param, sizeof param, "tools[%zu].type", i);
    if (json_object_get(tool, "type") && !writer_is(&w, tool, "type", "function"))
        return refuse_field(f->failure, UNSUPPORTED_VALUE, param,
                            "%s: only \"function\" is supported", param);
    const json_t *parameters = json_object_get(function, "parameters");
    if (json_is_object(function) && (!parameters || json_is_null(parameters)) &&
        json_object_set_new(function, "parameters",
                            json_pack("{s:s,s:{}}", "type", "object", "properties")) != 0)
        return refuse(f->failure, INTERNAL, "out of memory");
    json_print(out, &f->doc, tool);
    return true;
}

static bool read_tools(const struct fields *f, struct chat *c)
{
    const json_t *array = NULL;
    if (!field_limited(f, "tools", &array, LIMIT_TOOLS))
        return false;
    buf_putc(&c->tools, '[');
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *tool = json_array_get(array, i);
        size_t n;
        const char *type = json_text(&f->doc, json_object_get(tool, "type"), &n);
        if (type && tool_is_hosted(type))
            continue;
        if (c->n_tools++)
            buf_puts(&c->tools, ", ");
        if (!put_tool(f, &c->tools, i, json_array_get(array, i)))
            return false;
    }
    buf_putc(&c->tools, ']');
    return true;
}

/* ---- The whole ------------------------------------------------------------------------------ */

bool chat_read(const struct fields *f, struct chat *c)
{
    lathe_error err;
    *c = (struct chat){0};
    buf_init(&c->messages, TEXT_LIMIT);
    buf_init(&c->tools, TEXT_LIMIT);
    buf_init(&c->kwargs, TEXT_LIMIT);
    if (!chat_thinking(f, c) || !put_messages(f, c, false) || !read_tools(f, c))
        return false;
    if (buf_check(&c->messages, "messages", &err) || buf_check(&c->tools, "tools", &err) ||
        buf_check(&c->kwargs, "chat_template_kwargs", &err))
        return refuse_status(f->failure, &err);
    c->conversation.messages = buf_str(&c->messages);
    c->conversation.tools = c->n_tools ? buf_str(&c->tools) : NULL;
    c->conversation.kwargs = c->kwargs.len ? buf_str(&c->kwargs) : NULL;
    return true;
}

void chat_release(struct chat *c)
{
    buf_release(&c->messages);
    buf_release(&c->tools);
    buf_release(&c->kwargs);
    buf_release(&c->callable);
    for (size_t i = 0; i < c->n_carried; i++)
        carried_release(&c->carried[i].carried);
    free(c->carried);
    free(c->turn);
}

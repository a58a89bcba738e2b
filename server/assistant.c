/* An assistant's message that comes back. */
#include <stdlib.h>
#include <string.h>

#include "recall.h"
#include "state.h"
#include "writer.h"

enum { TEXT_LIMIT = 1 << 28 };

static struct answers *answers_of(const struct writer *w)
{
    return w->server ? w->server->answers : NULL;
}

static void put_reasoning(const struct writer *w, const char *s, size_t n)
{
    writer_key(w, "reasoning_content");
    json_print_string(w->out, s, n);
}

/* ---- Calls ---------------------------------------------------------------------------------- */

struct call {
    const char *id, *name; /* "" where there is none */
    const json_t *arguments;
};

static struct call call_of(const struct writer *w, const json_t *call)
{
    const json_t *function = json_object_get(call, "function");
    const json_t *in = json_is_object(function) ? function : call;
    size_t n;
    const char *id = writer_text(w, call, "id", &n), *name = writer_text(w, in, "name", &n);
    return (struct call){id ? id : "", name ? name : "", json_object_get(in, "arguments")};
}

/* Among the messages up to the assistant's next. *results: the ids of the calls that they answer, made once. */
static bool has_result(const struct writer *w, json_t **results, const char *id)
{
    size_t i = *results ? w->n : w->i + 1, n;
    *results = *results ? *results : json_object();
    w->out->no_memory |= !*results;
    for (; i < w->n && !writer_is(w, w->list[i], "role", "assistant"); i++) {
        const char *own = writer_is(w, w->list[i], "role", "tool")
                              ? writer_text(w, w->list[i], "tool_call_id", &n)
                              : NULL;
        if (own)
            w->out->no_memory |= json_object_set_new_nocheck(*results, own, json_true()) != 0;
    }
    return json_object_get(*results, id) != NULL;
}

/* Is it the beginning of an object, from a stream that was cut off? */
static bool is_cut(const struct writer *w, const json_t *arguments)
{
    size_t n;
    const char *s = json_text(w->d, arguments, &n);
    struct json_doc d;
    if (!s || s[strspn(s, " \t\r\n")] != '{')
        return false;
    bool cut = json_read(&d, s, n, &json_limits_request, NULL) != LATHE_OK;
    json_release(&d);
    return cut;
}

/* A call of another server, cut off, and without a result: it is shown as text. */
static bool is_text(const struct writer *w, json_t **results, const json_t *call)
{
    struct call c = call_of(w, call);
    return is_cut(w, c.arguments) && !answers_call(answers_of(w), c.id, c.name, NULL, NULL) &&
           !has_result(w, results, c.id);
}

/* [name: arguments], of all such calls. */
static void collect_texts(const struct writer *w, json_t **results, const json_t *calls,
                          struct buf *out)
{
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i);
        if (!is_text(w, results, call))
            continue;
        struct call c = call_of(w, call);
        size_t n;
        buf_printf(out, "[%s: %s]", c.name, json_text(w->d, c.arguments, &n));
    }
}

/* A call of this server, with its arguments spelled as they were. */
static bool put_known(const struct writer *w, const json_t *call)
{
    struct call c = call_of(w, call);
    struct buf known, spelled;
    buf_init(&known, TEXT_LIMIT);
    buf_init(&spelled, TEXT_LIMIT);
    bool ok = answers_call(answers_of(w), c.id, c.name, &known, NULL) && !known.no_memory;
    if (ok) {
        enum recalled how = recall_judge(w->d, c.arguments, buf_str(&known), known.len);
        ok = (how == RECALL_SAME ||
              (how == RECALL_CUT && !w->server->options.no_repair_arguments)) &&
             recall_arguments(&spelled, buf_str(&known), known.len);
    }
    buf_release(&known);
    if (ok) {
        buf_puts(w->out, "{\"id\": ");
        json_print_string(w->out, c.id, strlen(c.id));
        buf_puts(w->out, ", \"type\": \"function\", \"function\": {\"name\": ");
        json_print_string(w->out, c.name, strlen(c.name));
        buf_puts(w->out, ", \"arguments\": ");
        buf_append_all(w->out, &spelled);
        buf_release(&spelled);
        buf_puts(w->out, "}}");
    }
    buf_release(&spelled);
    return ok;
}

static void put_calls(const struct writer *w, json_t **results, const json_t *calls)
{
    bool any = false;
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i);
        if (is_text(w, results, call))
            continue;
        if (any)
            buf_puts(w->out, ", ");
        else
            writer_key(w, "tool_calls");
        if (!any)
            buf_putc(w->out, '[');
        any = true;
        if (!put_known(w, call))
            json_print(w->out, w->d, call);
    }
    if (any)
        buf_putc(w->out, ']');
}

/* ---- Reasoning ------------------------------------------------------------------------------ */

/* The texts of reasoning_details, joined. */
static void collect_details(const struct writer *w, const json_t *m, struct buf *out)
{
    const json_t *list = json_object_get(m, "reasoning_details");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        size_t n;
        const char *s =
            writer_is(w, v, "type", "reasoning.text") ? writer_text(w, v, "text", &n) : NULL;
        if (s)
            buf_append(out, s, n);
    }
}

/* The first field that says something: clients send the same text under two names. False if there is none at all. */
static bool collect_given(const struct writer *w, const json_t *m, struct buf *out)
{
    static const char *const name[] = {"reasoning_content", "reasoning", "thinking"};
    bool is_given = false;
    for (size_t i = 0; i < sizeof name / sizeof *name && out->len == 0; i++) {
        size_t n;
        const char *s = writer_text(w, m, name[i], &n);
        is_given |= s != NULL;
        if (s)
            buf_append(out, s, n);
    }
    if (out->len == 0)
        collect_details(w, m, out);
    return is_given || out->len > 0;
}

/* Notes what a turn was sampled as; without memory it is tokenised. */
static void note_turn(const struct writer *w, struct carried *carried)
{
    struct chat *c = w->chat;
    if (carried->n_id == 0 || c->n_carried == c->cap_carried) {
        size_t cap = c->cap_carried ? 2 * c->cap_carried : 8;
        struct carried_turn *more = carried->n_id ? realloc(c->carried, cap * sizeof *more) : NULL;
        if (!more) {
            carried_release(carried);
            return;
        }
        c->carried = more;
        c->cap_carried = cap;
    }
    c->carried[c->n_carried++] = (struct carried_turn){w->i, *carried};
    *carried = (struct carried){0};
}

/* The reasoning that the client carries, unless it also says another. */
static bool put_carried(const struct writer *w, const json_t *m, const struct buf *given)
{
    struct carried carried;
    size_t n;
    const char *s = w->reads_carriers ? writer_text(w, m, "carrier", &n) : NULL;
    if (!s || !carrier_read(s, n, &w->chat->carried_bytes, &carried))
        return false;
    bool fits = carried.n &&
                (given->len == 0 ||
                 (given->len == carried.n && memcmp(given->data, carried.text, carried.n) == 0));
    if (fits) {
        put_reasoning(w, carried.text, carried.n);
        note_turn(w, &carried);
    }
    carried_release(&carried);
    return fits;
}

/* The text of a content. */
static void collect_content(const struct writer *w, const json_t *content, struct buf *out)
{
    size_t n;
    const char *s = json_text(w->d, content, &n);
    if (s)
        buf_append(out, s, n);
    for (size_t i = 0; i < json_array_size(content); i++) {
        s = writer_text(w, json_array_get(content, i), "text", &n);
        if (s)
            buf_append(out, s, n);
    }
}

/* Reasoning that was left out: of a turn whose calls were made here, or of one without calls whose reasoning was not sent
 * and that follows the same messages. is_given: as an empty text, on purpose. */
static bool put_remembered(const struct writer *w, const json_t *content, const json_t *calls,
                           bool is_given)
{
    struct answers *m = answers_of(w);
    size_t n_calls = json_array_size(calls), before = w->chat->messages_at;
    struct buf text, reasoning;
    if (!m || w->server->options.no_restore_reasoning ||
        w->chat->conversation.preserve_thinking == LATHE_OFF || (is_given && !n_calls))
        return false;
    buf_init(&text, TEXT_LIMIT);
    buf_init(&reasoning, TEXT_LIMIT);
    bool found = false;
    for (size_t i = 0; i < n_calls && !found; i++) {
        struct call c = call_of(w, json_array_get(calls, i));
        found = answers_call(m, c.id, c.name, NULL, &reasoning);
    }
    if (n_calls == 0) {
        unsigned char key[ANSWERS_KEY];
        collect_content(w, content, &text);
        found = answers_key(w->prefix, buf_str(w->out), before, buf_str(&text), text.len, key) &&
                answers_reasoning(m, key, &reasoning);
    }
    found = found && reasoning.len && !reasoning.no_memory;
    if (found)
        put_reasoning(w, buf_str(&reasoning), reasoning.len);
    buf_release(&text);
    buf_release(&reasoning);
    return found;
}

/* Content that holds its own <think> block, from clients that flatten reasoning into text. */
static bool put_split(const struct writer *w, const char *s, size_t n)
{
    static const char begin[] = "<think>", end[] = "</think>";
    size_t head = strlen(begin);
    const char *close = n > head && memcmp(s, begin, head) == 0 ? strstr(s + head, end) : NULL;
    if (!close)
        return false;
    const char *from = s + head, *to = close, *rest = close + strlen(end);
    while (from < to && *from == '\n')
        from++;
    while (to > from && to[-1] == '\n')
        to--;
    while (*rest == '\n')
        rest++;
    put_reasoning(w, from, (size_t)(to - from));
    writer_key(w, "content");
    json_print_string(w->out, rest, n - (size_t)(rest - s));
    return true;
}

/* ---- The message ---------------------------------------------------------------------------- */

/* With what is shown of calls behind it. */
static void put_content(const struct writer *w, const json_t *content, const struct buf *behind)
{
    size_t n;
    const char *s = json_text(w->d, content, &n);
    writer_key(w, "content");
    if (behind->len == 0) {
        writer_content(w, content, false);
    } else if (json_is_array(content)) {
        buf_putc(w->out, '[');
        for (size_t i = 0; i < json_array_size(content); i++) {
            json_print(w->out, w->d, json_array_get(content, i));
            buf_puts(w->out, ", ");
        }
        buf_puts(w->out, "{\"type\": \"text\", \"text\": ");
        json_print_string(w->out, buf_str(behind), behind->len);
        buf_puts(w->out, "}]");
    } else {
        buf_putc(w->out, '"');
        json_escape(w->out, s ? s : "", s ? n : 0);
        buf_puts(w->out, s && n ? "\\n\\n" : "");
        json_escape(w->out, buf_str(behind), behind->len);
        buf_putc(w->out, '"');
    }
}

void writer_assistant(const struct writer *w, const json_t *m)
{
    const json_t *content = json_object_get(m, "content"),
                 *calls = json_object_get(m, "tool_calls");
    struct buf given, texts;
    json_t *results = NULL;
    size_t n, n_refusal = 0;
    buf_init(&given, TEXT_LIMIT);
    buf_init(&texts, TEXT_LIMIT);
    bool is_given = collect_given(w, m, &given), done = put_carried(w, m, &given);
    const char *s = json_text(w->d, content, &n);
    const char *refusal = writer_text(w, m, "refusal", &n_refusal);
    bool may_split = s && !is_given && !done && !(w->server && w->server->options.keep_think_tags);
    collect_texts(w, &results, calls, &texts);
    if (!done && given.len) {
        put_reasoning(w, buf_str(&given), given.len);
        done = true;
    }
    if (!may_split || !put_split(w, s, n)) {
        if (!done && !put_remembered(w, content, calls, is_given) && is_given)
            put_reasoning(w, "", 0);
        if (refusal && n_refusal && (!content || json_is_null(content))) {
            writer_key(w, "content");
            json_print_string(w->out, refusal, n_refusal);
        } else {
            put_content(w, content, &texts);
        }
    }
    if (json_is_array(calls)) {
        put_calls(w, &results, calls);
    } else if (calls && !json_is_null(calls)) {
        writer_key(w, "tool_calls");
        json_print(w->out, w->d, calls);
    }
    buf_inherit(w->out, &given);
    buf_inherit(w->out, &texts);
    buf_release(&given);
    buf_release(&texts);
    json_decref(results);
}

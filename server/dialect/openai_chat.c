/* POST /v1/chat/completions. */
#include <stdio.h>
#include <string.h>

#include "dialects.h"
#include "openai.h"
#include "state.h"

/* ---- State of a reply ----------------------------------------------------------------------- */

struct chat_state {
    const struct server *server;
    char id[40];
    int64_t created;
    const char *model; /* as the client named it */
    bool stream, include_usage, hide_reasoning;
    bool tag_reasoning; /* it is text, between tags */
    bool in_tags;
    int32_t n_calls, n_cached;
    /* The reply in one piece. */
    struct buf content, reasoning, calls;
    const char *const *warning;
    size_t n_warnings;
};

enum { MESSAGE_LIMIT = 256 << 20 };

/* ---- The request ---------------------------------------------------------------------------- */

static const char *const own_fields[] = {"include_reasoning",   "reasoning_format", "tool_choice",
                                         "parallel_tool_calls", "response_format",  "modalities"};
enum { N_OWN = sizeof own_fields / sizeof *own_fields, MAX_OWN = N_OWN + 32 };

static bool check_fields(struct exchange *x, const struct fields *f)
{
    const char *own[MAX_OWN];
    size_t n = 0;
    for (size_t i = 0; i < N_OWN; i++)
        own[n++] = own_fields[i];
    for (size_t i = 0; i < n_conversation_fields; i++)
        own[n++] = conversation_fields[i];
    return openai_fields(x, f, own, n);
}

static bool has_tool(const struct fields *f, const char *name)
{
    const json_t *tools = field_value(f, "tools");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        size_t n;
        const char *s = json_text(&f->doc, json_object_get(function, "name"), &n);
        if (s && strcmp(s, name) == 0)
            return true;
    }
    return false;
}

static bool read_named_choice(const struct fields *f, const json_t *v)
{
    const json_t *function = json_object_get(v, "function");
    size_t n;
    const char *type = json_text(&f->doc, json_object_get(v, "type"), &n);
    const char *name = json_text(&f->doc, json_object_get(function, "name"), &n);
    if (type && strcmp(type, "function") == 0 && name && !has_tool(f, name))
        return refuse_field(f->failure, BAD_VALUE, "tool_choice.function.name",
                            "tool_choice.function.name: '%.60s' is none of the tools", name);
    return refuse_field(f->failure, UNSUPPORTED_VALUE, "tool_choice",
                        "tool_choice: only \"auto\" and \"none\" are supported");
}

static bool read_tool_choice(const struct fields *f, struct generation *g)
{
    const json_t *v = field_value(f, "tool_choice");
    bool parallel = true;
    size_t n;
    if (!field_bool(f, "parallel_tool_calls", &parallel))
        return false;
    g->options.max_calls = parallel ? 0 : 1;
    if (json_is_object(v))
        return read_named_choice(f, v);
    const char *s = v ? json_text(&f->doc, v, &n) : "auto";
    if (!s)
        return field_is_no(f, "tool_choice", "a word or an object", v);
    if (strcmp(s, "none") == 0)
        g->chat.conversation.tools = NULL;
    else if (strcmp(s, "required") == 0 && g->chat.n_tools)
        return refuse_field(f->failure, UNSUPPORTED_VALUE, "tool_choice",
                            "tool_choice: required is not supported, only \"auto\" and \"none\"");
    else if (strcmp(s, "required") == 0)
        return refuse_field(f->failure, BAD_VALUE, "tool_choice",
                            "tool_choice is required, and there are no tools");
    else if (strcmp(s, "auto") != 0)
        return refuse_field(f->failure, BAD_VALUE, "tool_choice",
                            "tool_choice: '%.40s' is none of auto, none, required", s);
    return true;
}

static bool read_formats(const struct fields *f, struct chat_state *s)
{
    struct fields format;
    const char *type = "text", *reasoning = "auto";
    const json_t *modalities = field_value(f, "modalities");
    bool include = true, exclude = false;
    struct fields r;
    size_t n;
    if (!fields_inner(f, "response_format", "response_format.", &format) ||
        !field_text(&format, "type", &type, &n) || !field_bool(f, "include_reasoning", &include) ||
        !fields_inner(f, "reasoning", "reasoning.", &r) || !field_bool(&r, "exclude", &exclude) ||
        !field_text(f, "reasoning_format", &reasoning, &n))
        return false;
    if (strcmp(type, "text") != 0)
        return refuse_field(f->failure, UNSUPPORTED_VALUE, "response_format.type",
                            "response_format.type: '%.40s' is not supported, only text", type);
    s->tag_reasoning = strcmp(reasoning, "none") == 0;
    if (!s->tag_reasoning && strcmp(reasoning, "auto") != 0 && strcmp(reasoning, "deepseek") != 0)
        return refuse_field(f->failure, UNSUPPORTED_VALUE, "reasoning_format",
                            "reasoning_format: '%.40s' is not supported, only auto, deepseek and "
                            "none",
                            reasoning);
    const char *only = json_text(&f->doc, json_array_get(modalities, 0), &n);
    if (modalities && (json_array_size(modalities) != 1 || !only || strcmp(only, "text") != 0))
        return refuse_field(f->failure, UNSUPPORTED_VALUE, "modalities",
                            "modalities: only [\"text\"] is supported");
    s->hide_reasoning = !include || exclude;
    return true;
}

static bool warn_of_strict_tools(struct exchange *x, const struct fields *f)
{
    const json_t *tools = field_value(f, "tools");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        if (!json_is_true(json_object_get(function, "strict")))
            continue;
        buf_puts(&x->warnings, "strict of tools is best effort: arguments are not bound to the "
                               "schema");
        break;
    }
    return true;
}

static bool read_request(struct exchange *x, const struct fields *f, struct generation *g,
                         struct chat_state *s)
{
    const char *model = x->server->model;
    size_t n = strlen(model);
    if (!chat_read(f, &g->chat) || !check_fields(x, f) || !field_text(f, "model", &model, &n))
        return false;
    if (g->chat.ends_with_assistant)
        return refuse_field(&x->failure, UNSUPPORTED_VALUE, "messages",
                            "messages: the last one is the assistant's, and continuing it is not "
                            "supported");
    generation_defaults(x, g);
    s->model = arena_strndup(&g->arena, model, n);
    (void)snprintf(x->record.model, sizeof x->record.model, "%.*s", (int)(n < 120 ? n : 120),
                   model);
    if (!s->model)
        return refuse(&x->failure, INTERNAL, "out of memory");
    return openai_stream(x, f, g, &s->include_usage) && sampling_read(f, g) &&
           read_tool_choice(f, g) && read_formats(f, s) && warn_of_strict_tools(x, f);
}

static bool parse(struct exchange *x, const struct fields *f, struct generation *g, void **state)
{
    struct chat_state *s = arena_calloc(&g->arena, 1, sizeof *s);
    if (!s)
        return refuse(&x->failure, INTERNAL, "out of memory");
    *state = s;
    buf_init(&s->content, MESSAGE_LIMIT);
    buf_init(&s->reasoning, MESSAGE_LIMIT);
    buf_init(&s->calls, MESSAGE_LIMIT);
    s->server = x->server;
    s->created = server_now(x->server);
    memcpy(s->id, "chatcmpl-", 9);
    server_id(x->server, s->id + 9);
    if (!read_request(x, f, g, s))
        return false;
    s->stream = g->stream;
    if (x->warnings.len) {
        const char **w = arena_alloc(&g->arena, sizeof *w);
        if (!w)
            return refuse(&x->failure, INTERNAL, "out of memory");
        *w = buf_str(&x->warnings);
        s->warning = w;
        s->n_warnings = 1;
    }
    return true;
}

/* ---- Pieces of JSON ------------------------------------------------------------------------- */

static void put_head(struct buf *out, const struct chat_state *s, const char *object)
{
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", s->id, object,
               (long long)s->created);
    openai_string(out, s->model);
    buf_printf(out, ",\"system_fingerprint\":\"%s\"", s->server->fingerprint);
}

/* ---- The stream ----------------------------------------------------------------------------- */

static void begin_chunk(struct buf *out, const struct chat_state *s)
{
    buf_puts(out, "data: ");
    put_head(out, s, "chat.completion.chunk");
    buf_puts(out, ",\"choices\":[");
}

static void end_chunk(struct buf *out, const struct chat_state *s)
{
    buf_printf(out, "]%s}\n\n", s->include_usage ? ",\"usage\":null" : "");
}

static void begin_delta(struct buf *out, const struct chat_state *s)
{
    begin_chunk(out, s);
    buf_puts(out, "{\"index\":0,\"delta\":{");
}

static void end_delta(struct buf *out, const struct chat_state *s)
{
    buf_puts(out, "},\"logprobs\":null,\"finish_reason\":null}");
    end_chunk(out, s);
}

static void head(struct buf *out, void *state, const lathe_usage *known)
{
    (void)known;
    begin_delta(out, state);
    buf_puts(out, "\"role\":\"assistant\",\"content\":\"\"");
    end_delta(out, state);
}

static void put_content_delta(struct buf *out, const struct chat_state *s, const char *text,
                              size_t n)
{
    begin_delta(out, s);
    buf_puts(out, "\"content\":");
    json_print_string(out, text, n);
    end_delta(out, s);
}

/* Reasoning under its name, or names. */
static void put_reasoning(struct buf *out, const struct chat_state *s, const char *text, size_t n)
{
    int field = (int)s->server->options.reasoning_field;
    if (field & FIELD_REASONING_CONTENT) {
        buf_puts(out, "\"reasoning_content\":");
        json_print_string(out, text, n);
    }
    if (field & FIELD_REASONING) {
        buf_puts(out, field & FIELD_REASONING_CONTENT ? ",\"reasoning\":" : "\"reasoning\":");
        json_print_string(out, text, n);
    }
}

static void put_call_head(struct buf *out, const lathe_event *ev)
{
    buf_puts(out, "\"id\":");
    openai_string(out, ev->call_id);
    buf_puts(out, ",\"type\":\"function\",\"function\":{\"name\":");
    openai_string(out, ev->name);
    buf_puts(out, ",\"arguments\":\"");
}

static void stream_event(struct buf *out, struct chat_state *s, const lathe_event *ev)
{
    if (ev->type == LATHE_EVENT_REASONING) {
        begin_delta(out, s);
        put_reasoning(out, s, ev->text, ev->n_text);
        end_delta(out, s);
    }
    if (ev->type == LATHE_EVENT_TEXT)
        put_content_delta(out, s, ev->text, ev->n_text);
    if (ev->type == LATHE_EVENT_CALL_BEGIN || ev->type == LATHE_EVENT_CALL_ARGS) {
        begin_delta(out, s);
        buf_printf(out, "\"tool_calls\":[{\"index\":%d,", (int)ev->index);
        if (ev->type == LATHE_EVENT_CALL_BEGIN)
            put_call_head(out, ev);
        else
            buf_puts(out, "\"function\":{\"arguments\":\"");
        if (ev->type == LATHE_EVENT_CALL_ARGS)
            json_escape(out, ev->text, ev->n_text);
        buf_puts(out, "\"}}]");
        end_delta(out, s);
    }
    if (ev->type == LATHE_EVENT_ACCEPTED)
        s->n_cached = ev->usage.cached_tokens;
    if (ev->type == LATHE_EVENT_PROGRESS) {
        begin_chunk(out, s);
        buf_printf(out,
                   "],\"prompt_progress\":{\"total\":%d,\"cache\":%d,\"processed\":%d,"
                   "\"time_ms\":%.0f}%s}\n\n",
                   (int)ev->total, (int)s->n_cached, (int)ev->done, ev->usage.prefill_ms,
                   s->include_usage ? ",\"usage\":null" : "");
    }
}

/* ---- The reply in one piece ----------------------------------------------------------------- */

static void fold_event(struct chat_state *s, const lathe_event *ev)
{
    if (ev->type == LATHE_EVENT_REASONING)
        buf_append(&s->reasoning, ev->text, ev->n_text);
    if (ev->type == LATHE_EVENT_TEXT)
        buf_append(&s->content, ev->text, ev->n_text);
    if (ev->type == LATHE_EVENT_CALL_BEGIN) {
        buf_puts(&s->calls, s->n_calls++ ? "\"}},{" : "{");
        put_call_head(&s->calls, ev);
    }
    if (ev->type == LATHE_EVENT_CALL_ARGS)
        json_escape(&s->calls, ev->text, ev->n_text);
}

static void put_message(struct buf *out, const struct chat_state *s)
{
    buf_puts(out, "{\"role\":\"assistant\",\"content\":");
    if (s->content.len || !s->n_calls)
        json_print_string(out, buf_str(&s->content), s->content.len);
    else
        buf_puts(out, "null");
    if (s->reasoning.len) {
        buf_putc(out, ',');
        put_reasoning(out, s, buf_str(&s->reasoning), s->reasoning.len);
    }
    if (s->n_calls) {
        buf_puts(out, ",\"tool_calls\":[");
        buf_append(out, buf_str(&s->calls), s->calls.len);
        buf_puts(out, "\"}}]");
    }
    buf_puts(out, ",\"refusal\":null}");
    out->over |= s->content.over || s->reasoning.over || s->calls.over;
    out->no_memory |= s->content.no_memory || s->reasoning.no_memory || s->calls.no_memory;
}

static void put_reply(struct buf *out, const struct chat_state *s, const lathe_event *last)
{
    put_head(out, s, "chat.completion");
    buf_puts(out, ",\"service_tier\":\"default\",\"choices\":[{\"index\":0,\"message\":");
    put_message(out, s);
    buf_printf(out, ",\"logprobs\":null,\"finish_reason\":\"%s\",\"stop_reason\":",
               openai_finish(last->finish));
    openai_stop_reason(out, last);
    buf_puts(out, "}],\"usage\":");
    openai_usage(out, &last->usage);
    openai_timings(out, s->server, &last->usage);
    for (size_t i = 0; i < s->n_warnings; i++) {
        buf_puts(out, i ? "," : ",\"warnings\":[");
        openai_string(out, s->warning[i]);
    }
    buf_puts(out, s->n_warnings ? "]}" : "}");
}

/* ---- The dialect ---------------------------------------------------------------------------- */

static void show(struct buf *out, struct chat_state *s, const lathe_event *ev)
{
    if (s->stream)
        stream_event(out, s, ev);
    else
        fold_event(s, ev);
}

static void show_text(struct buf *out, struct chat_state *s, const char *text, size_t n)
{
    lathe_event ev = {.type = LATHE_EVENT_TEXT, .text = text, .n_text = n};
    show(out, s, &ev);
}

/* Reasoning as text between its tags; there are none around nothing. */
static void show_tagged(struct buf *out, struct chat_state *s, const lathe_event *ev)
{
    static const char begin[] = "<think>\n", end[] = "\n</think>\n\n";
    bool is_end = ev->type == LATHE_EVENT_REASONING_END;
    if (!is_end && !s->in_tags)
        show_text(out, s, begin, strlen(begin));
    if (is_end && s->in_tags)
        show_text(out, s, end, strlen(end));
    if (!is_end)
        show_text(out, s, ev->text, ev->n_text);
    s->in_tags = !is_end;
}

static void event(struct buf *out, void *state, const lathe_event *ev)
{
    struct chat_state *s = state;
    bool is_reasoning = ev->type == LATHE_EVENT_REASONING || ev->type == LATHE_EVENT_REASONING_END;
    if (is_reasoning && s->hide_reasoning)
        return;
    if (is_reasoning && s->tag_reasoning)
        show_tagged(out, s, ev);
    else
        show(out, s, ev);
}

static void finish(struct buf *out, void *state, const lathe_event *last)
{
    const struct chat_state *s = state;
    if (!s->stream) {
        put_reply(out, s, last);
        return;
    }
    begin_chunk(out, s);
    buf_printf(out,
               "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"%s\","
               "\"stop_reason\":",
               openai_finish(last->finish));
    openai_stop_reason(out, last);
    buf_puts(out, "}]");
    openai_timings(out, s->server, &last->usage);
    buf_puts(out, s->include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
    if (s->include_usage) {
        begin_chunk(out, s);
        buf_puts(out, "],\"usage\":");
        openai_usage(out, &last->usage);
        buf_puts(out, "}\n\n");
    }
    buf_puts(out, "data: [DONE]\n\n");
}

static void release(void *state)
{
    struct chat_state *s = state;
    if (!s)
        return;
    buf_release(&s->content);
    buf_release(&s->reasoning);
    buf_release(&s->calls);
}

static const struct dialect dialect = {"chat",       parse,  head,    event, openai_keepalive,
                                       openai_error, finish, release, NULL};

void chat_completions(struct exchange *x)
{
    generate(x, &dialect);
}

/* The same body, read and rendered alike, and counted. */
void chat_input_tokens(struct exchange *x)
{
    size_t n;
    if (generate_count(x, &dialect, &n))
        buf_printf(&x->reply, "{\"object\":\"response.input_tokens\",\"input_tokens\":%zu}", n);
}

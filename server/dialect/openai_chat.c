/* POST /v1/chat/completions. */
#include <stdio.h>
#include <string.h>

#include "dialects.h"
#include "hosted.h"
#include "openai.h"
#include "state.h"
#include "thinking.h"
#include "token.h"

/* ---- State of a reply ----------------------------------------------------------------------- */

struct chat_choice {
    int32_t n_calls;
    bool in_tags;      /* of reasoning that is shown as text */
    lathe_usage usage; /* as far as it is */
    /* Of tokens that are not in a chunk yet, or all in a reply in one piece. */
    struct buf logprobs, ids;
    /* The reply in one piece. */
    struct buf content, reasoning, calls, finish;
};

struct chat_state {
    const struct server *server;
    char id[40];
    struct buf head; /* what every object begins with */
    bool stream, hide_reasoning;
    bool tag_reasoning; /* it is text, between tags */
    struct openai_wish wish;
    struct chat_choice *choice; /* [n] */
    int32_t n, at;              /* at: the one that events are about */
    struct buf prompt_ids;
    struct buf echo; /* what the client gave of the answer, if it wants that back */
    const char *const *warning;
    size_t n_warnings;
};

enum { MESSAGE_LIMIT = 256 << 20 };

/* ---- The request ---------------------------------------------------------------------------- */

static const char *const own_fields[] = {
    "include_reasoning",      "reasoning_format",     "tool_choice",
    "parallel_tool_calls",    "modalities",           "top_logprobs",
    "continue_final_message", "add_generation_prompt"};

static bool check_fields(struct exchange *x, const struct fields *f)
{
    struct known_fields known = {.n = 0};
    known_add(&known, own_fields, sizeof own_fields / sizeof *own_fields);
    known_add(&known, openai_wish_fields, N_WISH_FIELDS);
    known_add(&known, conversation_fields, n_conversation_fields);
    return openai_fields(x, f, &known) && thinking_unknown(f, x, false) &&
           reasoning_unknown(f, x, false);
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
        g->no_calls = true;
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
    const char *reasoning = "auto";
    const json_t *modalities = field_value(f, "modalities");
    bool include = true, exclude = false;
    struct fields r;
    size_t n;
    if (!field_bool(f, "include_reasoning", &include) ||
        !fields_inner(f, "reasoning", "reasoning.", &r) || !field_bool(&r, "exclude", &exclude) ||
        !field_text(f, "reasoning_format", &reasoning, &n))
        return false;
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

static bool warn_of_tools(struct exchange *x, const struct fields *f)
{
    tools_ignore_hosted(x, f);
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

/* Whether the answer goes on with the last message. */
static bool read_prefill(struct exchange *x, const struct fields *f, struct chat *c)
{
    bool goes_on = false, begins = true;
    bool is_said =
        field_value(f, "continue_final_message") || field_value(f, "add_generation_prompt");
    if (!field_bool(f, "continue_final_message", &goes_on) ||
        !field_bool(f, "add_generation_prompt", &begins))
        return false;
    if (goes_on && begins && field_value(f, "add_generation_prompt"))
        return refuse_field(&x->failure, BAD_VALUE, "continue_final_message",
                            "continue_final_message and add_generation_prompt cannot both be true");
    c->conversation.continue_last =
        is_said ? goes_on || !begins : c->ends_with_assistant && !x->server->options.no_prefill;
    return !c->conversation.continue_last || c->ends_with_assistant ||
           refuse_field(&x->failure, BAD_VALUE, "messages",
                        "messages: the last one is not the assistant's, so there is nothing to "
                        "continue");
}

/* The text of the message that the answer goes on with. */
static bool read_echo(const struct fields *f, const struct chat *c, struct chat_state *s)
{
    struct json_doc d = {0};
    lathe_error err;
    bool echo = false;
    size_t n;
    if (!field_bool(f, "echo", &echo))
        return false;
    if (!echo || !c->conversation.continue_last)
        return true;
    lathe_status st =
        json_read(&d, buf_str(&c->messages), c->messages.len, &json_limits_request, &err);
    const json_t *m = json_array_get(d.root, json_array_size(d.root) - 1);
    const json_t *content = json_object_get(m, "content");
    const char *text = json_text(&d, content, &n);
    if (text)
        buf_append(&s->echo, text, n);
    for (size_t i = 0; i < json_array_size(content); i++) {
        text = json_text(&d, json_object_get(json_array_get(content, i), "text"), &n);
        if (text)
            buf_append(&s->echo, text, n);
    }
    /* The prompt leaves the blanks at its end out. */
    while (s->echo.len && strchr(" \t\r\n", s->echo.data[s->echo.len - 1]))
        s->echo.data[--s->echo.len] = 0;
    json_release(&d);
    st = st ? st : buf_check(&s->echo, "messages", &err);
    return !st || refuse_status(f->failure, &err);
}

static bool read_logprobs(const struct fields *f, struct openai_wish *w)
{
    bool wanted = false;
    int64_t n = 0;
    if (!field_bool(f, "logprobs", &wanted) || !field_int(f, "top_logprobs", &n, 0, 20))
        return false;
    if (n > 0 && !wanted)
        return refuse_field(f->failure, BAD_VALUE, "top_logprobs",
                            "top_logprobs needs logprobs: true");
    w->n_top = wanted ? (int32_t)n : -1;
    return true;
}

static bool make_choices(struct exchange *x, struct generation *g, struct chat_state *s)
{
    struct chat_choice *choice = arena_calloc(&g->arena, (size_t)g->n, sizeof *choice);
    if (!choice)
        return refuse(&x->failure, INTERNAL, "out of memory");
    for (int32_t i = 0; i < g->n; i++) {
        buf_init(&choice[i].logprobs, MESSAGE_LIMIT);
        buf_init(&choice[i].ids, MESSAGE_LIMIT);
        buf_init(&choice[i].content, MESSAGE_LIMIT);
        buf_init(&choice[i].reasoning, MESSAGE_LIMIT);
        buf_init(&choice[i].calls, MESSAGE_LIMIT);
        buf_init(&choice[i].finish, MESSAGE_LIMIT);
    }
    s->choice = choice;
    s->n = g->n;
    return true;
}

static bool read_request(struct exchange *x, const struct fields *f, struct generation *g,
                         struct chat_state *s)
{
    const char *model = x->server->model;
    size_t n = strlen(model);
    if (!chat_read(f, &g->chat) || !check_fields(x, f) || !field_text(f, "model", &model, &n))
        return false;
    generation_defaults(x, g);
    (void)snprintf(x->record.model, sizeof x->record.model, "%.*s", (int)(n < 120 ? n : 120),
                   model);
    if (!read_prefill(x, f, &g->chat) || !openai_wishes(x, f, g, &s->wish) ||
        !read_logprobs(f, &s->wish) || !sampling_read(f, g) || !read_tool_choice(f, g) ||
        !read_formats(f, s) || !read_echo(f, &g->chat, s) || !make_choices(x, g, s))
        return false;
    openai_ask_tokens(&s->wish, g);
    openai_head(&s->head, x->server, s->id, g->stream ? "chat.completion.chunk" : "chat.completion",
                model, n);
    g->hides_reasoning = s->hide_reasoning;
    return warn_of_tools(x, f);
}

static bool parse(struct exchange *x, const struct fields *f, struct generation *g, void **state)
{
    struct chat_state *s = arena_calloc(&g->arena, 1, sizeof *s);
    if (!s)
        return refuse(&x->failure, INTERNAL, "out of memory");
    *state = s;
    buf_init(&s->prompt_ids, MESSAGE_LIMIT);
    buf_init(&s->echo, MESSAGE_LIMIT);
    s->server = x->server;
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

/* The members of a choice that are of its tokens. */
static void put_tokens(struct buf *out, const struct chat_state *s, const struct chat_choice *c)
{
    if (c->logprobs.len || (s->wish.n_top >= 0 && !s->stream)) {
        buf_puts(out, ",\"logprobs\":{\"content\":[");
        buf_append(out, buf_str(&c->logprobs), c->logprobs.len);
        buf_puts(out, "],\"refusal\":null}");
    } else {
        buf_puts(out, ",\"logprobs\":null");
    }
    if (s->wish.ids) {
        buf_puts(out, ",\"token_ids\":[");
        buf_append(out, buf_str(&c->ids), c->ids.len);
        buf_putc(out, ']');
    }
}

static void put_prompt_ids(struct buf *out, const struct chat_state *s)
{
    if (!s->wish.ids)
        return;
    buf_puts(out, ",\"prompt_token_ids\":[");
    buf_append(out, buf_str(&s->prompt_ids), s->prompt_ids.len);
    buf_putc(out, ']');
}

/* Of all choices so far; the prompt counts once. */
static lathe_usage usage_so_far(const struct chat_state *s)
{
    lathe_usage u = s->choice[0].usage;
    for (int32_t i = 1; i < s->n; i++) {
        u.completion_tokens += s->choice[i].usage.completion_tokens;
        u.reasoning_tokens += s->choice[i].usage.reasoning_tokens;
    }
    return u;
}

static void note_token(struct chat_state *s, const lathe_event *ev)
{
    struct chat_choice *c = &s->choice[s->at];
    c->usage.completion_tokens = ev->usage.completion_tokens;
    c->usage.reasoning_tokens = ev->usage.reasoning_tokens;
    c->usage.prefill_ms = ev->usage.prefill_ms;
    c->usage.decode_ms = ev->usage.decode_ms;
    c->usage.spec = ev->usage.spec;
    if (ev->token.is_end)
        return;
    if (s->wish.ids)
        token_id(&c->ids, ev->token.id);
    if (s->wish.n_top >= 0)
        openai_put_token(&c->logprobs, lathe_engine_text(s->server->engine), &ev->token,
                         s->wish.n_top);
}

/* ---- The stream ----------------------------------------------------------------------------- */

static void begin_chunk(struct buf *out, const struct chat_state *s)
{
    buf_puts(out, "data: ");
    buf_append_all(out, &s->head);
    buf_puts(out, ",\"choices\":[");
}

/* What stands behind the choices. */
static void end_members(struct buf *out, const struct chat_state *s)
{
    lathe_usage u;
    if (s->wish.usage_per_chunk)
        u = usage_so_far(s);
    openai_end_chunk(out, &s->wish, s->wish.usage_per_chunk ? &u : NULL);
}

static void begin_delta(struct buf *out, const struct chat_state *s)
{
    begin_chunk(out, s);
    buf_puts(out, "{\"index\":");
    buf_put_int(out, s->at);
    buf_puts(out, ",\"delta\":{");
}

/* Of one choice, of which nothing more follows in this chunk. */
static void end_choice(struct buf *out, const struct chat_state *s)
{
    struct chat_choice *c = &s->choice[s->at];
    buf_putc(out, '}');
    put_tokens(out, s, c);
    buf_clear(&c->logprobs);
    buf_clear(&c->ids);
}

static void end_delta(struct buf *out, const struct chat_state *s)
{
    end_choice(out, s);
    buf_puts(out, ",\"finish_reason\":null}]");
    if (s->wish.timings_per_chunk)
        openai_timings(out, s->server, &s->choice[s->at].usage);
    end_members(out, s);
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

static void end_plain(struct buf *out)
{
    buf_puts(out, "},\"logprobs\":null,\"finish_reason\":null}]");
}

/* Nothing that the model said is in it. */
static void head(struct buf *out, void *state, const lathe_usage *known)
{
    struct chat_state *s = state;
    int32_t at = s->at;
    (void)known;
    for (s->at = 0; s->at < s->n; s->at++) {
        begin_delta(out, s);
        buf_puts(out, "\"role\":\"assistant\",\"content\":\"\"");
        end_plain(out);
        if (s->at == 0)
            put_prompt_ids(out, s);
        end_members(out, s);
        if (s->echo.len == 0)
            continue;
        begin_delta(out, s);
        buf_puts(out, "\"content\":");
        json_print_string(out, buf_str(&s->echo), s->echo.len);
        end_plain(out);
        end_members(out, s);
    }
    s->at = at;
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
        buf_puts(out, "\"tool_calls\":[{\"index\":");
        buf_put_int(out, ev->index);
        buf_putc(out, ',');
        if (ev->type == LATHE_EVENT_CALL_BEGIN)
            put_call_head(out, ev);
        else
            buf_puts(out, "\"function\":{\"arguments\":\"");
        if (ev->type == LATHE_EVENT_CALL_ARGS)
            json_escape(out, ev->text, ev->n_text);
        buf_puts(out, "\"}}]");
        end_delta(out, s);
    }
    if (ev->type == LATHE_EVENT_PROGRESS) {
        begin_chunk(out, s);
        buf_printf(out,
                   "],\"prompt_progress\":{\"total\":%d,\"cache\":%d,\"processed\":%d,"
                   "\"time_ms\":%.0f}",
                   (int)ev->total, (int)s->choice[s->at].usage.cached_tokens, (int)ev->done,
                   ev->usage.prefill_ms);
        end_members(out, s);
    }
    if (ev->type == LATHE_EVENT_FINISH) {
        begin_delta(out, s);
        end_choice(out, s);
        buf_printf(out, ",\"finish_reason\":\"%s\",\"stop_reason\":", openai_finish(ev->finish));
        openai_stop_reason(out, ev, &s->wish);
        buf_puts(out, "}]");
        openai_timings(out, s->server, &ev->usage);
        end_members(out, s);
    }
}

/* ---- The reply in one piece ----------------------------------------------------------------- */

static void fold_event(const struct chat_state *s, const lathe_event *ev)
{
    struct chat_choice *c = &s->choice[s->at];
    if (ev->type == LATHE_EVENT_REASONING)
        buf_append(&c->reasoning, ev->text, ev->n_text);
    if (ev->type == LATHE_EVENT_TEXT)
        buf_append(&c->content, ev->text, ev->n_text);
    if (ev->type == LATHE_EVENT_CALL_BEGIN) {
        buf_puts(&c->calls, c->n_calls++ ? "\"}},{" : "{");
        put_call_head(&c->calls, ev);
    }
    if (ev->type == LATHE_EVENT_CALL_ARGS)
        json_escape(&c->calls, ev->text, ev->n_text);
    if (ev->type == LATHE_EVENT_FINISH) {
        buf_printf(&c->finish,
                   ",\"finish_reason\":\"%s\",\"stop_reason\":", openai_finish(ev->finish));
        openai_stop_reason(&c->finish, ev, &s->wish);
    }
}

static void put_message(struct buf *out, const struct chat_state *s, const struct chat_choice *c)
{
    const struct buf *kept[] = {&c->content, &c->reasoning, &c->calls,
                                &c->finish,  &c->logprobs,  &c->ids};
    buf_puts(out, "{\"role\":\"assistant\",\"content\":");
    if (c->content.len || s->echo.len || !c->n_calls) {
        buf_putc(out, '"');
        json_escape(out, buf_str(&s->echo), s->echo.len);
        json_escape(out, buf_str(&c->content), c->content.len);
        buf_putc(out, '"');
    } else {
        buf_puts(out, "null");
    }
    if (c->reasoning.len) {
        buf_putc(out, ',');
        put_reasoning(out, s, buf_str(&c->reasoning), c->reasoning.len);
    }
    if (c->n_calls) {
        buf_puts(out, ",\"tool_calls\":[");
        buf_append(out, buf_str(&c->calls), c->calls.len);
        buf_puts(out, "\"}}]");
    }
    buf_puts(out, ",\"refusal\":null}");
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        buf_inherit(out, kept[i]);
    }
}

static void put_reply(struct buf *out, const struct chat_state *s, const lathe_event *last)
{
    buf_append_all(out, &s->head);
    buf_puts(out, ",\"service_tier\":\"default\"");
    put_prompt_ids(out, s);
    buf_puts(out, ",\"choices\":[");
    for (int32_t i = 0; i < s->n; i++) {
        const struct chat_choice *c = &s->choice[i];
        buf_printf(out, "%s{\"index\":%d,\"message\":", i ? "," : "", (int)i);
        put_message(out, s, c);
        put_tokens(out, s, c);
        buf_append(out, buf_str(&c->finish), c->finish.len);
        buf_putc(out, '}');
    }
    buf_puts(out, "],\"usage\":");
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
    bool is_end = ev->type == LATHE_EVENT_REASONING_END, *in_tags = &s->choice[s->at].in_tags;
    if (!is_end && !*in_tags)
        show_text(out, s, begin, strlen(begin));
    if (is_end && *in_tags)
        show_text(out, s, end, strlen(end));
    if (!is_end)
        show_text(out, s, ev->text, ev->n_text);
    *in_tags = !is_end;
}

static void choose(void *state, int32_t choice, const lathe_request *request)
{
    struct chat_state *s = state;
    s->at = choice;
    if (!s->wish.ids || s->prompt_ids.len)
        return;
    const int32_t *id = lathe_request_prompt(request);
    for (int32_t i = 0; i < lathe_request_prompt_tokens(request); i++)
        token_id(&s->prompt_ids, id[i]);
}

static void event(struct buf *out, void *state, const lathe_event *ev)
{
    struct chat_state *s = state;
    bool is_reasoning = ev->type == LATHE_EVENT_REASONING || ev->type == LATHE_EVENT_REASONING_END;
    if (ev->type == LATHE_EVENT_ACCEPTED || ev->type == LATHE_EVENT_FINISH)
        s->choice[s->at].usage = ev->usage;
    if (is_reasoning && s->hide_reasoning)
        return;
    if (ev->type == LATHE_EVENT_TOKEN)
        note_token(s, ev);
    else if (is_reasoning && s->tag_reasoning)
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
    if (s->wish.include_usage) {
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
    for (int32_t i = 0; i < s->n; i++) {
        struct chat_choice *c = &s->choice[i];
        struct buf *kept[] = {&c->logprobs,  &c->ids,   &c->content,
                              &c->reasoning, &c->calls, &c->finish};
        for (size_t k = 0; k < sizeof kept / sizeof *kept; k++)
            buf_release(kept[k]);
    }
    buf_release(&s->prompt_ids);
    buf_release(&s->echo);
    buf_release(&s->head);
}

const struct dialect chat_dialect = {"chat",       parse,  head,    event,  openai_keepalive,
                                     openai_error, finish, release, choose, NULL};

void chat_completions(struct exchange *x)
{
    generate(x, &chat_dialect);
}

/* The same body, read and rendered alike, and counted. */
void chat_input_tokens(struct exchange *x)
{
    size_t n;
    if (generate_count(x, &chat_dialect, &n))
        buf_printf(&x->reply, "{\"object\":\"response.input_tokens\",\"input_tokens\":%zu}", n);
}

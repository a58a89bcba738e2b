/* POST /v1/messages and /v1/messages/count_tokens. */
#include "anthropic.h"

#include <stdio.h>
#include <string.h>

#include "dialects.h"
#include "state.h"
#include "thinking.h"
#include "unsupported.h"

enum { MESSAGE_LIMIT = 256 << 20 };

enum block { NO_BLOCK, THINKING_BLOCK, TEXT_BLOCK, TOOL_BLOCK };

struct messages_state {
    char id[40];
    const char *request_id; /* of the exchange */
    const char *model;      /* as the client named it */
    bool stream;
    bool knows_context_stop; /* as the exchange says */
    bool is_empty;           /* a limit of 0 tokens: only the prompt is read */
    bool show_thinking;      /* the client asked for it */
    bool omit_thinking;      /* its blocks are sent without their text */
    bool asked_for_edits;    /* of the context: the answer says that there were none */
    enum block open;
    int32_t index;        /* of the block that is open, or comes next */
    struct buf content;   /* of a reply in one piece: its blocks */
    struct buf piece;     /* what the open block has */
    struct buf signature; /* of the thinking block */
};

/* ---- The request ---------------------------------------------------------------------------- */

static const char *const read_fields[] = {"model",
                                          "messages",
                                          "system",
                                          "tools",
                                          "tool_choice",
                                          "thinking",
                                          "output_config",
                                          "stream",
                                          "max_tokens",
                                          "temperature",
                                          "top_p",
                                          "top_k",
                                          "stop_sequences",
                                          "stop",
                                          "stop_token_ids",
                                          "min_p",
                                          "presence_penalty",
                                          "frequency_penalty",
                                          "repetition_penalty",
                                          "repeat_penalty",
                                          "seed",
                                          "ignore_eos",
                                          "min_tokens",
                                          "max_completion_tokens",
                                          "n_predict",
                                          "logit_bias",
                                          "cache_prompt",
                                          "cache_salt",
                                          "include_stop_str_in_output",
                                          "chat_template_kwargs",
                                          "preserve_thinking",
                                          "thinking_budget",
                                          "thinking_token_budget",
                                          "reasoning_budget",
                                          "thinking_budget_tokens",
                                          "container",
                                          "mcp_servers",
                                          "output_format",
                                          "thread"};

static const struct hint hints[] = {
    {"cache_control", HINT_OBJECT},      {"metadata", HINT_OBJECT},
    {"service_tier", HINT_TEXT},         {"speed", HINT_TEXT},
    {"inference_geo", HINT_TEXT},        {"diagnostics", HINT_OBJECT},
    {"context_management", HINT_OBJECT}, {"priority", HINT_WHOLE}};

static const struct neutral_field one_answer[] = {
    {"n", "1"}, {"best_of", "1"}, {"logprobs", "false"}, {"top_logprobs", "0"}};

/* Members of objects, and hints among them. */
static bool check_members(struct exchange *x, const struct fields *f)
{
    static const char *const of_output[] = {"effort", "format"}, *const of_choice[] = {
                                                                     "type", "name",
                                                                     "disable_parallel_tool_use"};
    struct fields metadata, output;
    const char *user;
    size_t n;
    return fields_inner(f, "metadata", "metadata.", &metadata) &&
           field_text(&metadata, "user_id", &user, &n) && thinking_unknown(f, x, true) &&
           inner_unknown(f, x, "output_config", "output_config.", of_output, 2) &&
           inner_unknown(f, x, "tool_choice", "tool_choice.", of_choice, 3) &&
           fields_inner(f, "output_config", "output_config.", &output) &&
           format_read(&output, x, "format") && format_read(f, x, "output_format");
}

static bool check_fields(struct exchange *x, const struct fields *f)
{
    const json_t *servers = field_value(f, "mcp_servers");
    struct known_fields known = {.n = 0};
    if (field_value(f, "thread"))
        return refuse_field(&x->failure, THREAD_UNSUPPORTED, "thread",
                            "thread is not supported; send the full history");
    if (field_value(f, "container"))
        return refuse_field(&x->failure, UNSUPPORTED_FIELD, "container",
                            "container: only null is supported; give tools that the client runs");
    if (servers && !(json_is_array(servers) && json_array_size(servers) == 0))
        return refuse_field(&x->failure, UNSUPPORTED_FIELD, "mcp_servers",
                            "mcp_servers is not supported; give tools");
    known_add(&known, read_fields, sizeof read_fields / sizeof *read_fields);
    return unsupported_read(f, x, &known) &&
           hints_read(f, hints, sizeof hints / sizeof *hints, &known) &&
           neutral_read(f, one_answer, 4, &known) && check_members(x, f) &&
           fields_unknown(f, x, known.name, known.n);
}

static bool parse(struct exchange *x, const struct fields *f, struct generation *g, void **state)
{
    struct messages_state *s = arena_calloc(&g->arena, 1, sizeof *s);
    const char *model = x->server->model;
    size_t n = strlen(model);
    if (!s)
        return refuse(&x->failure, INTERNAL, "out of memory");
    *state = s;
    buf_init(&s->content, MESSAGE_LIMIT);
    buf_init(&s->piece, MESSAGE_LIMIT);
    buf_init(&s->signature, 2 * CARRIER_MAX);
    memcpy(s->id, "msg_", 4);
    server_id(x->server, s->id + 4);
    s->request_id = x->id;
    s->asked_for_edits = field_value(f, "context_management") != NULL;
    if (!check_fields(x, f) || !field_text(f, "model", &model, &n) ||
        !field_bool(f, "stream", &g->stream) || !anthropic_conversation(x, f, g))
        return false;
    generation_defaults(x, g);
    s->show_thinking = g->chat.asks_to_think;
    s->omit_thinking = g->chat.omits_thinking;
    g->hides_reasoning = !s->show_thinking;
    s->stream = g->stream;
    g->may_be_empty = true;
    s->model = arena_strndup(&g->arena, model, n);
    (void)snprintf(x->record.model, sizeof x->record.model, "%.*s", (int)(n < 120 ? n : 120),
                   model);
    if (!sampling_read(f, g))
        return false;
    s->is_empty = g->is_empty;
    s->knows_context_stop = x->knows_context_stop;
    return s->model || refuse(&x->failure, INTERNAL, "out of memory");
}

/* ---- Pieces of JSON ------------------------------------------------------------------------- */

static void put_usage(struct buf *out, const lathe_usage *u, int32_t output)
{
    buf_printf(out,
               "{\"input_tokens\":%d,\"cache_creation_input_tokens\":0,"
               "\"cache_read_input_tokens\":%d,\"cache_creation\":{\"ephemeral_5m_input_tokens\":0,"
               "\"ephemeral_1h_input_tokens\":0},\"output_tokens\":%d,\"output_tokens_details\":{"
               "\"thinking_tokens\":%d},\"service_tier\":\"standard\"}",
               (int)(u->prompt_tokens - u->cached_tokens), (int)u->cached_tokens, (int)output,
               (int)u->reasoning_tokens);
}

static void put_message_head(struct buf *out, const struct messages_state *s)
{
    buf_printf(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", s->id);
    json_print_string(out, s->model, strlen(s->model));
    buf_puts(out, ",\"content\":[");
}

static const char *stop_word(const struct messages_state *s, lathe_finish finish)
{
    if (finish == LATHE_FINISH_CONTEXT && s->knows_context_stop)
        return "model_context_window_exceeded";
    return finish == LATHE_FINISH_LENGTH || finish == LATHE_FINISH_CONTEXT ? "max_tokens"
           : finish == LATHE_FINISH_CALLS                                  ? "tool_use"
           : finish == LATHE_FINISH_STOP_STRING                            ? "stop_sequence"
                                                                           : "end_turn";
}

static void put_stop(struct buf *out, const struct messages_state *s, const lathe_event *last)
{
    buf_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", stop_word(s, last->finish));
    if (last->finish == LATHE_FINISH_STOP_STRING && last->text)
        json_print_string(out, last->text, last->n_text);
    else
        buf_puts(out, "null");
    buf_puts(out, ",\"stop_details\":null");
}

/* Calls are named call_ by the engine and toolu_ here. */
static void put_call_id(struct buf *out, const lathe_event *ev)
{
    const char *id = strncmp(ev->call_id, "call_", 5) == 0 ? ev->call_id + 5 : ev->call_id;
    buf_puts(out, "\"toolu_");
    json_escape(out, id, strlen(id));
    buf_putc(out, '"');
}

/* ---- Blocks --------------------------------------------------------------------------------- */

/* Clients keep a thinking block only with a signature: it carries the reasoning, and what it was sampled as. */
static void sign(struct messages_state *s, const lathe_event *ev)
{
    buf_clear(&s->signature);
    carrier_put(&s->signature, ev->text ? ev->text : "", ev->n_text, ev->id, ev->n_id);
}

static void begin_event(struct buf *out, const struct messages_state *s, const char *type)
{
    buf_puts(out, "event: ");
    buf_puts(out, type);
    buf_puts(out, "\ndata: {\"type\":\"");
    buf_puts(out, type);
    buf_puts(out, "\",\"index\":");
    buf_put_int(out, s->index);
}

static void close_block(struct buf *out, struct messages_state *s)
{
    if (s->open == NO_BLOCK)
        return;
    if (s->open == THINKING_BLOCK && s->signature.len == 0) /* it has no end */
        carrier_put(&s->signature, "", 0, NULL, 0);
    if (s->stream) {
        if (s->open == THINKING_BLOCK) {
            begin_event(out, s, "content_block_delta");
            buf_printf(out, ",\"delta\":{\"type\":\"signature_delta\",\"signature\":\"%s\"}}\n\n",
                       buf_str(&s->signature));
        }
        begin_event(out, s, "content_block_stop");
        buf_puts(out, "}\n\n");
    } else if (s->open == TOOL_BLOCK) {
        /* An input is an object. Of one that was cut off nothing is shown: a part that was made whole could be acted on. */
        struct json_doc d;
        bool whole = !json_read(&d, buf_str(&s->piece), s->piece.len, &json_limits_request, NULL);
        json_release(&d);
        buf_puts(&s->content, whole ? buf_str(&s->piece) : "{}");
        buf_putc(&s->content, '}');
    } else {
        json_print_string(&s->content, buf_str(&s->piece), s->piece.len);
        if (s->open == THINKING_BLOCK)
            buf_printf(&s->content, ",\"signature\":\"%s\"}", buf_str(&s->signature));
        else
            buf_puts(&s->content, ",\"citations\":null}");
    }
    buf_clear(&s->piece);
    s->open = NO_BLOCK;
    s->index++;
}

/* ev: CALL_BEGIN where it is a call. */
static void open_block(struct buf *out, struct messages_state *s, enum block b,
                       const lathe_event *ev)
{
    if (s->open == b && b != TOOL_BLOCK)
        return;
    close_block(out, s);
    s->open = b;
    struct buf *to = s->stream ? out : &s->content;
    if (s->stream) {
        begin_event(out, s, "content_block_start");
        buf_puts(out, ",\"content_block\":");
    } else if (s->index) {
        buf_putc(to, ',');
    }
    if (b == TOOL_BLOCK) {
        buf_puts(to, "{\"type\":\"tool_use\",\"id\":");
        put_call_id(to, ev);
        buf_puts(to, ",\"name\":");
        json_print_string(to, ev->name, strlen(ev->name));
        buf_puts(to, ",\"input\":");
    } else {
        buf_puts(to, b == TEXT_BLOCK ? "{\"type\":\"text\",\"text\":"
                                     : "{\"type\":\"thinking\",\"thinking\":");
    }
    if (s->stream)
        buf_puts(out, b == TOOL_BLOCK   ? "{}}}\n\n"
                      : b == TEXT_BLOCK ? "\"\"}}\n\n"
                                        : "\"\",\"signature\":\"\"}}\n\n");
}

static void put_piece(struct buf *out, struct messages_state *s, const char *type, const char *name,
                      const lathe_event *ev)
{
    if (!s->stream) {
        buf_append(&s->piece, ev->text, ev->n_text);
        return;
    }
    begin_event(out, s, "content_block_delta");
    buf_puts(out, ",\"delta\":{\"type\":\"");
    buf_puts(out, type);
    buf_puts(out, "\",\"");
    buf_puts(out, name);
    buf_puts(out, "\":");
    json_print_string(out, ev->text, ev->n_text);
    buf_puts(out, "}}\n\n");
}

/* ---- The dialect ---------------------------------------------------------------------------- */

static void head(struct buf *out, void *state, const lathe_usage *known)
{
    const struct messages_state *s = state;
    buf_puts(out, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":");
    put_message_head(out, s);
    buf_puts(out, "],\"stop_reason\":null,\"stop_sequence\":null,\"stop_details\":null,"
                  "\"container\":null,\"usage\":");
    put_usage(out, known, 1);
    buf_puts(out, "}}\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\n");
}

static void event(struct buf *out, void *state, const lathe_event *ev)
{
    struct messages_state *s = state;
    if (s->is_empty)
        return;
    if (ev->type == LATHE_EVENT_REASONING && s->show_thinking) {
        open_block(out, s, THINKING_BLOCK, NULL);
        if (!s->omit_thinking)
            put_piece(out, s, "thinking_delta", "thinking", ev);
    } else if (ev->type == LATHE_EVENT_TEXT) {
        open_block(out, s, TEXT_BLOCK, NULL);
        put_piece(out, s, "text_delta", "text", ev);
    } else if (ev->type == LATHE_EVENT_CALL_BEGIN) {
        open_block(out, s, TOOL_BLOCK, ev);
    } else if (ev->type == LATHE_EVENT_CALL_ARGS) {
        put_piece(out, s, "input_json_delta", "partial_json", ev);
    } else if (ev->type == LATHE_EVENT_REASONING_END || ev->type == LATHE_EVENT_CALL_END) {
        if (ev->type == LATHE_EVENT_REASONING_END && s->open == THINKING_BLOCK)
            sign(s, ev);
        close_block(out, s);
    }
}

static void keepalive(struct buf *out, void *state)
{
    (void)state;
    buf_puts(out, "event: ping\ndata: {\"type\":\"ping\"}\n\n");
}

static void error(struct buf *out, void *state, const struct failure *f, const lathe_usage *usage)
{
    (void)usage;
    struct failure shown = *f;
    const struct messages_state *s = state;
    /* In the middle of a stream clients retry overloaded_error alone. */
    if (failure_http(f->condition) >= 429)
        shown.condition = DRAINING;
    buf_puts(out, "event: error\ndata: ");
    failure_print(out, &shown, SHAPE_ANTHROPIC, s->request_id);
    buf_puts(out, "\n\n");
}

static void finish(struct buf *out, void *state, const lathe_event *all)
{
    struct messages_state *s = state;
    lathe_event shown = *all;
    const lathe_event *last = &shown;
    if (s->is_empty) {
        shown.finish = LATHE_FINISH_LENGTH;
        shown.usage.completion_tokens = shown.usage.reasoning_tokens = 0;
    }
    int32_t n = last->usage.completion_tokens;
    const char *edits = s->asked_for_edits ? ",\"context_management\":{\"applied_edits\":[]}" : "";
    close_block(out, s);
    if (!s->stream) {
        put_message_head(out, s);
        buf_append(out, buf_str(&s->content), s->content.len);
        buf_puts(out, "],");
        put_stop(out, s, last);
        buf_puts(out, ",\"container\":null,\"usage\":");
        put_usage(out, &last->usage, n);
        buf_printf(out, "%s}", edits);
        buf_inherit(out, &s->content);
        buf_inherit(out, &s->piece);
        return;
    }
    buf_puts(out, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{");
    put_stop(out, s, last);
    buf_puts(out, "},\"usage\":");
    put_usage(out, &last->usage, n > 0 ? n : 1);
    buf_printf(out, "%s}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", edits);
}

static void release(void *state)
{
    struct messages_state *s = state;
    if (!s)
        return;
    buf_release(&s->content);
    buf_release(&s->piece);
    buf_release(&s->signature);
}

const struct dialect messages_dialect = {"messages", parse,  head,    event, keepalive,
                                         error,      finish, release, NULL,  NULL};

void messages(struct exchange *x)
{
    generate(x, &messages_dialect);
}

/* The same body, read and rendered alike, and counted. */
void messages_count_tokens(struct exchange *x)
{
    size_t n;
    if (generate_count(x, &messages_dialect, &n))
        buf_printf(&x->reply, "{\"input_tokens\":%zu}", n);
}

/* POST /v1/responses: the reply and its events. The object of the last event is the reply in one piece. */
#include <stdio.h>
#include <string.h>

#include "custom_input.h"
#include "dialects.h"
#include "openai.h"
#include "openai_responses.h"
#include "state.h"

enum { OUTPUT_LIMIT = 512 << 20, ITEM_LIMIT = 256 << 20 };

/* ---- State of a reply ----------------------------------------------------------------------- */

enum item_kind { NO_ITEM, REASONING, MESSAGE, FUNCTION_CALL, CUSTOM_CALL, SEARCH_CALL };

/* The item that is being written. */
struct item {
    enum item_kind kind;
    char id[STORED_ID];
    struct buf text;      /* or arguments, or a custom call's input */
    struct buf logprobs;  /* of a message's tokens */
    struct buf carrier;   /* of reasoning that has ended */
    struct buf arguments; /* of a custom call, as the model gave them */
    struct custom_input input;
    struct buf call_id, name; /* as the client knows it */
    const char *space;        /* namespace; NULL: none */
};

struct responses_state {
    struct server *server;
    struct owner owner;
    struct responses_request request;
    char id[STORED_ID];
    int64_t created;
    bool stream;
    int64_t n_events, n_items;
    struct item item;
    struct buf tokens; /* log-probabilities of those whose text is not shown yet */
    struct buf output; /* the items that are over: a JSON array, still open */
};

static bool parse(struct exchange *x, const struct fields *f, struct generation *g, void **state)
{
    struct responses_state *s = arena_calloc(&g->arena, 1, sizeof *s);
    if (!s)
        return refuse(&x->failure, INTERNAL, "out of memory");
    *state = s;
    s->server = x->server;
    s->owner = x->owner;
    buf_init(&s->output, OUTPUT_LIMIT);
    buf_init(&s->item.text, ITEM_LIMIT);
    buf_init(&s->item.logprobs, ITEM_LIMIT);
    buf_init(&s->tokens, ITEM_LIMIT);
    buf_init(&s->item.carrier, 2 * CARRIER_MAX);
    buf_init(&s->item.arguments, ITEM_LIMIT);
    buf_init(&s->item.call_id, ITEM_LIMIT);
    buf_init(&s->item.name, ITEM_LIMIT);
    buf_putc(&s->output, '[');
    s->created = server_now(x->server);
    memcpy(s->id, "resp_", 5);
    server_id(x->server, s->id + 5);
    if (!responses_read(x, f, g, &s->request))
        return false;
    if (s->request.store)
        (void)snprintf(x->response_id, sizeof x->response_id, "%s", s->id);
    s->stream = g->stream;
    return true;
}

/* ---- Items ---------------------------------------------------------------------------------- */

static void put_buf(struct buf *out, const struct buf *b)
{
    json_print_string(out, buf_str(b), b->len);
    out->over |= b->over;
    out->no_memory |= b->no_memory;
}

static void put_logprobs(struct buf *out, const struct buf *entries)
{
    buf_puts(out, ",\"logprobs\":[");
    buf_append(out, buf_str(entries), entries->len);
    buf_putc(out, ']');
    out->over |= entries->over;
    out->no_memory |= entries->no_memory;
}

/* A part of a message or of reasoning, with its text or without. */
static void put_part(struct buf *out, const char *type, const struct item *i, bool is_new)
{
    static const struct buf none;
    buf_printf(out, "{\"type\":\"%s\",\"text\":", type);
    put_buf(out, is_new ? &none : &i->text);
    if (i->kind == MESSAGE) {
        buf_puts(out, ",\"annotations\":[]");
        put_logprobs(out, is_new ? &none : &i->logprobs);
    }
    buf_putc(out, '}');
}

static void put_reasoning_item(struct buf *out, const struct responses_state *s, bool is_new)
{
    buf_puts(out, ",\"summary\":[");
    if (s->request.show_summary && !is_new)
        put_part(out, "summary_text", &s->item, false);
    buf_putc(out, ']');
    if (s->request.show_content) {
        buf_puts(out, ",\"content\":[");
        if (!is_new)
            put_part(out, "reasoning_text", &s->item, false);
        buf_putc(out, ']');
    }
    if (s->item.carrier.len)
        buf_printf(out, ",\"encrypted_content\":\"%s\"", buf_str(&s->item.carrier));
    else
        buf_puts(out, ",\"encrypted_content\":null");
}

/* Its arguments are an object; a call that was cut off has none. */
static void put_search_item(struct buf *out, const struct responses_state *s, const char *status)
{
    buf_puts(out, ",\"execution\":\"client\",\"arguments\":");
    buf_puts(out, strcmp(status, "completed") == 0 ? buf_str(&s->item.text) : "{}");
}

static void put_item(struct buf *out, const struct responses_state *s, const char *status)
{
    static const char *const type[] = {[REASONING] = "reasoning",
                                       [MESSAGE] = "message",
                                       [FUNCTION_CALL] = "function_call",
                                       [CUSTOM_CALL] = "custom_tool_call",
                                       [SEARCH_CALL] = "tool_search_call"};
    const struct item *i = &s->item;
    bool is_new = strcmp(status, "in_progress") == 0;
    buf_printf(out, "{\"type\":\"%s\",\"id\":\"%s\"", type[i->kind], i->id);
    if (i->kind >= FUNCTION_CALL) {
        buf_puts(out, ",\"call_id\":");
        put_buf(out, &i->call_id);
    }
    buf_printf(out, ",\"status\":\"%s\"", status);
    if (i->kind == FUNCTION_CALL || i->kind == CUSTOM_CALL) {
        buf_puts(out, ",\"name\":");
        put_buf(out, &i->name);
        buf_puts(out, i->kind == FUNCTION_CALL ? ",\"arguments\":" : ",\"input\":");
        if (is_new)
            buf_puts(out, "\"\"");
        else
            put_buf(out, &i->text);
    }
    if (i->kind >= FUNCTION_CALL && i->space) {
        buf_puts(out, ",\"namespace\":");
        openai_string(out, i->space);
    }
    if (i->kind == REASONING)
        put_reasoning_item(out, s, is_new);
    if (i->kind == SEARCH_CALL)
        put_search_item(out, s, status);
    if (i->kind == MESSAGE) {
        buf_puts(out, ",\"role\":\"assistant\",\"content\":[");
        if (!is_new)
            put_part(out, "output_text", i, false);
        buf_putc(out, ']');
    }
    buf_putc(out, '}');
}

/* ---- The response --------------------------------------------------------------------------- */

static void put_usage(struct buf *out, const lathe_usage *u)
{
    buf_printf(out,
               "{\"input_tokens\":%d,\"input_tokens_details\":{\"cached_tokens\":%d},"
               "\"output_tokens\":%d,\"output_tokens_details\":{\"reasoning_tokens\":%d},"
               "\"total_tokens\":%d}",
               (int)u->prompt_tokens, (int)u->cached_tokens, (int)u->completion_tokens,
               (int)u->reasoning_tokens, (int)(u->prompt_tokens + u->completion_tokens));
}

/* The words of response.failed: clients try some of them again. */
static const char *failed_code(enum condition c)
{
    switch (c) {
    case PROMPT_TOO_LONG:
        return "context_length_exceeded";
    case BAD_VALUE:
    case UNSUPPORTED_VALUE:
        return "invalid_prompt";
    case QUEUE_FULL:
    case QUEUE_TIMEOUT:
        return "rate_limit_exceeded";
    case LOADING:
    case DRAINING:
        return "server_is_overloaded";
    default:
        return "server_error";
    }
}

static void put_failure(struct buf *out, const struct failure *f)
{
    /* A name cut at the array's end may be no UTF-8. */
    lathe_error text;
    if (!f) {
        buf_puts(out, "null");
        return;
    }
    (void)fail(&text, LATHE_OK, "%s", f->message);
    buf_printf(out, "{\"code\":\"%s\",\"message\":", failed_code(f->condition));
    openai_string(out, text.message);
    buf_putc(out, '}');
}

/* With usage or a failure the response is over; without both it is the first events' one, without what is long.
 * *output_at: where the items begin, which end with the next bracket's end. */
static void put_response(struct buf *out, const struct responses_state *s, const char *status,
                         const lathe_usage *usage, const struct failure *f, size_t *output_at,
                         size_t *n_output)
{
    const struct buf *echo = s->request.echo;
    bool is_over = usage || f;
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"completed_at\":",
               s->id, (long long)s->created);
    if (strcmp(status, "completed") == 0)
        buf_printf(out, "%lld", (long long)server_now(s->server));
    else
        buf_puts(out, "null");
    buf_printf(out, ",\"status\":\"%s\",\"background\":false,\"error\":", status);
    put_failure(out, f);
    buf_printf(out, ",\"incomplete_details\":%s,\"instructions\":%s%s,\"output\":",
               strcmp(status, "incomplete") == 0 ? "{\"reason\":\"max_output_tokens\"}" : "null",
               is_over ? buf_str(&echo[ECHO_INSTRUCTIONS]) : "null",
               buf_str(&echo[ECHO_BEFORE_OUTPUT]));
    size_t at = out->len;
    if (is_over)
        buf_append(out, buf_str(&s->output), s->output.len);
    else
        buf_putc(out, '[');
    buf_putc(out, ']');
    out->over |= s->output.over;
    out->no_memory |= s->output.no_memory;
    if (output_at) {
        *output_at = at;
        *n_output = out->len - at;
    }
    buf_puts(out, buf_str(&echo[ECHO_BEFORE_TOOLS]));
    buf_puts(out, ",\"tools\":");
    buf_puts(out, is_over ? buf_str(&echo[ECHO_TOOLS]) : "[]");
    buf_puts(out, buf_str(&echo[ECHO_BEFORE_USAGE]));
    buf_puts(out, ",\"usage\":");
    if (usage)
        put_usage(out, usage);
    else
        buf_puts(out, "null");
    buf_puts(out, buf_str(&echo[ECHO_END]));
    buf_putc(out, '}');
}

/* ---- Events --------------------------------------------------------------------------------- */

static void begin_event(struct buf *out, struct responses_state *s, const char *type)
{
    buf_puts(out, "event: ");
    buf_puts(out, type);
    buf_puts(out, "\ndata: {\"type\":\"");
    buf_puts(out, type);
    buf_puts(out, "\",\"sequence_number\":");
    buf_put_int(out, s->n_events++);
}

static void end_event(struct buf *out)
{
    buf_puts(out, "}\n\n");
}

static void response_event(struct buf *out, struct responses_state *s, const char *type)
{
    begin_event(out, s, type);
    buf_puts(out, ",\"response\":");
    put_response(out, s, "in_progress", NULL, NULL, NULL, NULL);
    end_event(out);
}

static void head(struct buf *out, void *state, const lathe_usage *known)
{
    (void)known;
    response_event(out, state, "response.created");
    response_event(out, state, "response.in_progress");
}

/* A comment would not keep Codex from giving up. */
static void keepalive(struct buf *out, void *state)
{
    response_event(out, state, "response.in_progress");
}

static void item_event(struct buf *out, struct responses_state *s, const char *type,
                       const char *status)
{
    if (!s->stream)
        return;
    begin_event(out, s, type);
    buf_printf(out, ",\"output_index\":%lld,\"item\":", (long long)s->n_items);
    put_item(out, s, status);
    end_event(out);
}

/* An event of the open item, with `index` as its part's number; the caller adds members and ends it. */
static void begin_part_event(struct buf *out, struct responses_state *s, const char *type,
                             const char *index)
{
    begin_event(out, s, type);
    buf_puts(out, ",\"item_id\":\"");
    buf_puts(out, s->item.id);
    buf_puts(out, "\",\"output_index\":");
    buf_put_int(out, s->n_items);
    if (!index)
        return;
    buf_puts(out, ",\"");
    buf_puts(out, index);
    buf_puts(out, "\":0");
}

/* Where an item's text goes: a summary, raw reasoning, or a message. */
struct channel {
    const char *part;              /* type of the part */
    const char *index;             /* its number's name */
    const char *added, *done;      /* events of the part */
    const char *delta, *text_done; /* and of its text */
};
static const struct channel channel_summary = {"summary_text",
                                               "summary_index",
                                               "response.reasoning_summary_part.added",
                                               "response.reasoning_summary_part.done",
                                               "response.reasoning_summary_text.delta",
                                               "response.reasoning_summary_text.done"};
static const struct channel channel_reasoning = {"reasoning_text",
                                                 "content_index",
                                                 "response.content_part.added",
                                                 "response.content_part.done",
                                                 "response.reasoning_text.delta",
                                                 "response.reasoning_text.done"};
static const struct channel channel_message = {"output_text",
                                               "content_index",
                                               "response.content_part.added",
                                               "response.content_part.done",
                                               "response.output_text.delta",
                                               "response.output_text.done"};

/* Those of the open item; ends with NULL. */
static void channels(const struct responses_state *s, const struct channel *out[3])
{
    int n = 0;
    if (s->item.kind == REASONING && s->request.show_summary)
        out[n++] = &channel_summary;
    if (s->item.kind == REASONING && s->request.show_content)
        out[n++] = &channel_reasoning;
    if (s->item.kind == MESSAGE)
        out[n++] = &channel_message;
    out[n] = NULL;
}

static void part_event(struct buf *out, struct responses_state *s, const struct channel *c,
                       bool is_new)
{
    begin_part_event(out, s, is_new ? c->added : c->done, c->index);
    buf_puts(out, ",\"part\":");
    put_part(out, c->part, &s->item, is_new);
    end_event(out);
}

/* ---- The open item -------------------------------------------------------------------------- */

static void open_item(struct buf *out, struct responses_state *s, enum item_kind kind)
{
    static const char *const prefix[] = {[REASONING] = "rs_",
                                         [MESSAGE] = "msg_",
                                         [FUNCTION_CALL] = "fc_",
                                         [CUSTOM_CALL] = "ctc_",
                                         [SEARCH_CALL] = "tsc_"};
    struct item *i = &s->item;
    const struct channel *c[3];
    i->kind = kind;
    buf_clear(&i->text);
    buf_clear(&i->logprobs);
    buf_clear(&i->arguments);
    buf_clear(&i->carrier);
    i->input = (struct custom_input){0};
    (void)snprintf(i->id, sizeof i->id, "%s", prefix[kind]);
    server_id(s->server, i->id + strlen(prefix[kind]));
    item_event(out, s, "response.output_item.added", "in_progress");
    channels(s, c);
    for (int k = 0; s->stream && c[k]; k++)
        part_event(out, s, c[k], true);
}

/* A piece of the item's text. */
static void add_text(struct buf *out, struct responses_state *s, const char *text, size_t n)
{
    const struct channel *c[3];
    buf_append(&s->item.text, text, n);
    if (!s->stream || n == 0)
        return;
    channels(s, c);
    for (int k = 0; c[k]; k++) {
        begin_part_event(out, s, c[k]->delta, c[k]->index);
        buf_puts(out, ",\"delta\":");
        json_print_string(out, text, n);
        if (s->item.kind == MESSAGE)
            put_logprobs(out, &s->tokens);
        end_event(out);
    }
    if (s->item.kind != FUNCTION_CALL && s->item.kind != CUSTOM_CALL)
        return;
    begin_part_event(out, s,
                     s->item.kind == FUNCTION_CALL ? "response.function_call_arguments.delta"
                                                   : "response.custom_tool_call_input.delta",
                     NULL);
    buf_puts(out, ",\"delta\":");
    json_print_string(out, text, n);
    end_event(out);
}

static void text_done_events(struct buf *out, struct responses_state *s)
{
    const struct item *i = &s->item;
    const struct channel *c[3];
    channels(s, c);
    for (int k = 0; c[k]; k++) {
        begin_part_event(out, s, c[k]->text_done, c[k]->index);
        buf_puts(out, ",\"text\":");
        put_buf(out, &i->text);
        if (i->kind == MESSAGE)
            put_logprobs(out, &i->logprobs);
        end_event(out);
        part_event(out, s, c[k], false);
    }
    if (i->kind == FUNCTION_CALL) {
        begin_part_event(out, s, "response.function_call_arguments.done", NULL);
        buf_puts(out, ",\"name\":");
        put_buf(out, &i->name);
        buf_puts(out, ",\"arguments\":");
        put_buf(out, &i->text);
        end_event(out);
    }
    if (i->kind == CUSTOM_CALL) {
        begin_part_event(out, s, "response.custom_tool_call_input.done", NULL);
        buf_puts(out, ",\"input\":");
        put_buf(out, &i->text);
        end_event(out);
    }
}

static void keep_item(struct responses_state *s, const char *status)
{
    buf_puts(&s->output, s->n_items ? "," : "");
    put_item(&s->output, s, status);
    s->n_items++;
    s->item.kind = NO_ITEM;
}

/* Clients run a call at its "done" event without looking at its status. Arguments that were cut off are no JSON, which
 * keeps them from running a half of it; other calls that were cut off get no such event. */
static void close_item(struct buf *out, struct responses_state *s, const char *status)
{
    bool is_whole = strcmp(status, "completed") == 0;
    bool is_told = is_whole || (s->item.kind != CUSTOM_CALL && s->item.kind != SEARCH_CALL);
    if (s->item.kind == NO_ITEM)
        return;
    if (s->stream && is_told) {
        text_done_events(out, s);
        item_event(out, s, "response.output_item.done", status);
    }
    keep_item(s, status);
}

/* ---- From the engine's events --------------------------------------------------------------- */

/* The tokens of a piece of a message. */
static void keep_tokens(struct responses_state *s)
{
    struct buf *all = &s->item.logprobs;
    if (s->tokens.len && all->len)
        buf_putc(all, ',');
    buf_append(all, buf_str(&s->tokens), s->tokens.len);
    all->over |= s->tokens.over;
    all->no_memory |= s->tokens.no_memory;
}

static void begin_call(struct buf *out, struct responses_state *s, const lathe_event *ev)
{
    const struct named_tool *t = toolbox_find(&s->request.tools, ev->name);
    struct item *i = &s->item;
    buf_clear(&i->call_id);
    buf_clear(&i->name);
    buf_puts(&i->call_id, ev->call_id);
    buf_puts(&i->name, t ? t->name : ev->name);
    i->space = t ? t->space : NULL;
    open_item(out, s,
              !t                       ? FUNCTION_CALL
              : t->kind == TOOL_CUSTOM ? CUSTOM_CALL
              : t->kind == TOOL_SEARCH ? SEARCH_CALL
                                       : FUNCTION_CALL);
}

static void add_arguments(struct buf *out, struct responses_state *s, const lathe_event *ev)
{
    struct item *i = &s->item;
    if (i->kind != CUSTOM_CALL) {
        add_text(out, s, ev->text, ev->n_text);
        return;
    }
    struct buf piece;
    buf_init(&piece, ITEM_LIMIT);
    buf_append(&i->arguments, ev->text, ev->n_text);
    custom_input_feed(&i->input, ev->text, ev->n_text, &piece);
    add_text(out, s, buf_str(&piece), piece.len);
    i->text.over |= piece.over || i->arguments.over;
    i->text.no_memory |= piece.no_memory || i->arguments.no_memory;
    buf_release(&piece);
}

/* A model that named its parameter otherwise: all it gave is the input. */
static void end_call(struct buf *out, struct responses_state *s)
{
    const struct buf *given = &s->item.arguments;
    if (s->item.kind == CUSTOM_CALL && !s->item.input.is_found && strcmp(buf_str(given), "{}") != 0)
        add_text(out, s, buf_str(given), given->len);
    close_item(out, s, "completed");
}

/* Reasoning that ends is over with what follows it: at a limit it is the item that was cut off. */
static void event(struct buf *out, void *state, const lathe_event *ev)
{
    struct responses_state *s = state;
    enum item_kind kind = s->item.kind;
    switch (ev->type) {
    case LATHE_EVENT_REASONING:
        if (kind != REASONING)
            open_item(out, s, REASONING);
        add_text(out, s, ev->text, ev->n_text);
        break;
    case LATHE_EVENT_REASONING_END:
        if (kind == REASONING && s->request.carries)
            carrier_put(&s->item.carrier, ev->text ? ev->text : "", ev->n_text, ev->id, ev->n_id);
        break;
    case LATHE_EVENT_TEXT:
        if (kind != MESSAGE) {
            close_item(out, s, "completed");
            open_item(out, s, MESSAGE);
        }
        add_text(out, s, ev->text, ev->n_text);
        keep_tokens(s);
        break;
    case LATHE_EVENT_TOKEN:
        if (!ev->token.is_end)
            openai_put_token(&s->tokens, lathe_engine_text(s->server->engine), &ev->token,
                             s->request.n_top);
        return;
    case LATHE_EVENT_CALL_BEGIN:
        close_item(out, s, "completed");
        begin_call(out, s, ev);
        break;
    case LATHE_EVENT_CALL_ARGS:
        add_arguments(out, s, ev);
        break;
    case LATHE_EVENT_CALL_END:
        end_call(out, s);
        break;
    default:
        break;
    }
    /* Those of text alone are shown. */
    buf_clear(&s->tokens);
}

/* ---- The end -------------------------------------------------------------------------------- */

/* For GET, and for requests that go on from it. A response that cannot be kept is not found then. */
static void keep(const struct responses_state *s, const char *object, size_t n, size_t output_at,
                 size_t n_output)
{
    const struct responses_request *q = &s->request;
    struct stored r = {.owner = s->owner,
                       .input = buf_str(&q->input),
                       .n_input = q->input.len,
                       .object = object,
                       .n_object = n,
                       .output_at = output_at,
                       .n_output = n_output,
                       .previous = q->previous};
    lathe_error err;
    memcpy(r.id, s->id, sizeof r.id);
    if (q->store)
        (void)store_put(s->server->store, &r, &err);
}

static void error(struct buf *out, void *state, const struct failure *f, const lathe_usage *usage)
{
    struct responses_state *s = state;
    if (s->item.kind != NO_ITEM)
        keep_item(s, "incomplete");
    begin_event(out, s, "response.failed");
    buf_puts(out, ",\"response\":");
    put_response(out, s, "failed", usage, f, NULL, NULL);
    end_event(out);
}

static void finish(struct buf *out, void *state, const lathe_event *last)
{
    struct responses_state *s = state;
    bool is_cut = last->finish == LATHE_FINISH_LENGTH || last->finish == LATHE_FINISH_CONTEXT;
    const char *status = is_cut ? "incomplete" : "completed";
    size_t output_at, n_output;
    if (s->item.kind == NO_ITEM && s->n_items == 0)
        open_item(out, s, MESSAGE);
    close_item(out, s, status);
    if (s->stream) {
        begin_event(out, s, is_cut ? "response.incomplete" : "response.completed");
        buf_puts(out, ",\"response\":");
    }
    size_t at = out->len;
    put_response(out, s, status, &last->usage, NULL, &output_at, &n_output);
    if (!out->over && !out->no_memory)
        keep(s, out->data + at, out->len - at, output_at - at, n_output);
    if (s->stream)
        end_event(out);
}

static void release(void *state)
{
    struct responses_state *s = state;
    if (!s)
        return;
    responses_request_release(&s->request, s->server->store);
    buf_release(&s->output);
    buf_release(&s->tokens);
    buf_release(&s->item.text);
    buf_release(&s->item.logprobs);
    buf_release(&s->item.carrier);
    buf_release(&s->item.arguments);
    buf_release(&s->item.call_id);
    buf_release(&s->item.name);
}

const struct dialect responses_dialect = {.name = "responses",
                                          .parse = parse,
                                          .head = head,
                                          .event = event,
                                          .keepalive = keepalive,
                                          .error = error,
                                          .finish = finish,
                                          .release = release,
                                          .prompt = "input"};

void responses(struct exchange *x)
{
    generate(x, &responses_dialect);
}

void responses_input_tokens(struct exchange *x)
{
    size_t n;
    if (generate_count(x, &responses_dialect, &n))
        buf_printf(&x->reply, "{\"object\":\"response.input_tokens\",\"input_tokens\":%zu}", n);
}

/* sem_clockwait is an extension of the C library. */
#define _GNU_SOURCE
#include "generate.h"

#include <errno.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "answers.h"
#include "base/clock.h"
#include "log.h"
#include "metrics.h"
#include "served.h"
#include "session.h"
#include "state.h"
#include "trace.h"

enum {
    ARENA_LIMIT = 64 << 20,
    COUNT_ARENA = 16 << 20,
    PIECE_LIMIT = 64 << 20,
    WAIT_MS = 100,  /* for an event, before the client is looked at */
    PROBE_MS = 300, /* of silence, before a client that shut its side is sent something */
    HELD_TOKENS = 32,
    MAX_TOP = 20,         /* alternatives beside a token */
    HEAD_MS = 5000,       /* from then on a stream has its head, and no status any more */
    KEEPALIVE_MS = 10000, /* of silence on a stream */
};

/* Rung by the engine when a request has an event. A semaphore: one system call to wait and one to wake, where a condition
 * variable needs a third. */
struct bell {
    sem_t stroke;
    _Atomic(bool) is_rung; /* since the events were last looked at */
};

/* Tokens whose piece is not known yet. */
struct held {
    lathe_event ev[HELD_TOKENS];
    lathe_candidate top[HELD_TOKENS][MAX_TOP];
    int32_t n;
};

struct run {
    struct exchange *x;
    const struct dialect *d;
    void *state;
    struct generation g;
    lathe_request **request;     /* [n_choices], of which n_begun; closed at the end */
    bool *is_over;               /* [n_choices] */
    struct recording *recording; /* [n_choices] */
    int32_t choice;              /* whose events are taken */
    int32_t n_choices, n_begun, n_over;
    struct trace_run *trace; /* NULL: none */
    struct work *work;       /* [n_choices] */
    double *moved_ms;        /* [n_choices]: when the last piece came; 0: none */
    bool has_moved;          /* a piece came */
    struct bell bell;
    struct buf out;    /* of a stream, until it is written */
    lathe_event piece; /* type and index of what `text` holds; NONE: nothing. The rest is zero */
    struct buf text;
    struct held held;
    /* Milliseconds. now: when what has come was looked for; step: the last one with a piece, 0: none; wrote: to the client;
     * looked: at the client. */
    double now_ms, started_ms, step_ms, wrote_ms, looked_ms;
    bool is_accepted;   /* by a slot */
    lathe_usage known;  /* of the prompt */
    lathe_event last;   /* the finish of the choice that ended last; its usage is that of all */
    bool is_gone;       /* the client */
    struct failure why; /* of what the server ended itself */
};

/* ---- The bell ------------------------------------------------------------------------------- */

static void bell_open(struct bell *b)
{
    (void)sem_init(&b->stroke, 0, 0);
    atomic_init(&b->is_rung, false);
}

static void bell_close(struct bell *b)
{
    (void)sem_destroy(&b->stroke);
}

/* The bell outlives this: requests are closed before it. */
static void ring(void *ctx)
{
    struct bell *b = ctx;
    if (!atomic_exchange(&b->is_rung, true))
        (void)sem_post(&b->stroke);
}

/* Until it was rung since the last time, or until then, in milliseconds of the monotonic clock. */
static void bell_wait(struct bell *b, double until_ms)
{
    struct timespec until = {.tv_sec = (time_t)(until_ms / 1e3)};
    until.tv_nsec = (long)((until_ms - (double)until.tv_sec * 1e3) * 1e6);
    while (sem_clockwait(&b->stroke, CLOCK_MONOTONIC, &until) != 0 && errno == EINTR)
        continue;
    /* Before the events are looked at: one that comes later rings again. */
    atomic_store(&b->is_rung, false);
}

/* ---- Output --------------------------------------------------------------------------------- */

/* Where the dialect writes: a reply in one piece is made in x->reply. */
static struct buf *output(struct run *r)
{
    return r->g.stream ? &r->out : &r->x->reply;
}

static void begin(struct run *r)
{
    if (stream_begun(r->x))
        return;
    r->x->type = r->g.stream ? "text/event-stream; charset=utf-8" : NULL;
    stream_begin(r->x);
    if (r->g.stream)
        r->d->head(&r->out, r->state, &r->known);
}

static void cancel_all(struct run *r)
{
    for (int32_t i = 0; i < r->n_begun; i++)
        lathe_request_cancel(r->request[i]);
}

static void give_up(struct run *r)
{
    r->is_gone = true;
    cancel_all(r);
}

static void write_out(struct run *r)
{
    if (!r->g.stream || r->out.len == 0 || r->is_gone)
        return;
    begin(r);
    r->wrote_ms = r->now_ms;
    if (!stream_write(r->x, &r->out))
        give_up(r);
}

/* Blanks before JSON are JSON. */
static void keep_alive(struct run *r)
{
    begin(r);
    if (r->g.stream)
        r->d->keepalive(&r->out, r->state);
    else
        buf_putc(&r->out, '\n');
    r->wrote_ms = r->now_ms;
    if (!stream_write(r->x, &r->out))
        give_up(r);
}

/* ---- Events --------------------------------------------------------------------------------- */

static void show(struct run *r, const lathe_event *ev)
{
    if (r->g.stream && !r->is_gone)
        begin(r);
    r->d->event(output(r), r->state, ev);
}

static void flush_piece(struct run *r)
{
    if (r->piece.type == LATHE_EVENT_NONE)
        return;
    r->piece.text = buf_str(&r->text);
    r->piece.n_text = r->text.len;
    show(r, &r->piece);
    r->piece.type = LATHE_EVENT_NONE;
    buf_clear(&r->text);
}

/* Shows the tokens that are held: they belong to what is shown next. */
static void release_tokens(struct run *r)
{
    for (int32_t i = 0; i < r->held.n; i++)
        r->d->event(output(r), r->state, &r->held.ev[i]);
    r->held.n = 0;
}

static void flush_all(struct run *r)
{
    flush_piece(r);
    release_tokens(r);
}

static void hold_token(struct run *r, const lathe_event *ev)
{
    struct held *h = &r->held;
    if (h->n == HELD_TOKENS)
        flush_all(r);
    lathe_token_info *token = &h->ev[h->n].token;
    h->ev[h->n] = *ev;
    token->n_top = token->n_top < MAX_TOP ? token->n_top : MAX_TOP;
    if (token->n_top > 0)
        memcpy(h->top[h->n], ev->token.top, (size_t)token->n_top * sizeof *h->top[0]);
    token->top = h->top[h->n++];
}

static void take_piece(struct run *r, const lathe_event *ev)
{
    if (ev->n_text == 0)
        return;
    r->has_moved = true;
    if (r->piece.type != ev->type || r->piece.index != ev->index)
        flush_piece(r);
    release_tokens(r);
    r->piece.type = ev->type;
    r->piece.index = ev->index;
    buf_append(&r->text, ev->text, ev->n_text);
}

static void take_event(struct run *r, const lathe_event *ev)
{
    switch (ev->type) {
    case LATHE_EVENT_ACCEPTED:
        if (!r->is_accepted)
            r->known = ev->usage;
        r->is_accepted = true;
        r->d->event(output(r), r->state, ev);
        return;
    case LATHE_EVENT_TOKEN:
        hold_token(r, ev);
        return;
    case LATHE_EVENT_REASONING:
    case LATHE_EVENT_TEXT:
    case LATHE_EVENT_CALL_ARGS:
        take_piece(r, ev);
        return;
    case LATHE_EVENT_PROGRESS:
        if (!r->g.show_progress)
            return;
        break;
    case LATHE_EVENT_REASONING_END:
    case LATHE_EVENT_CALL_BEGIN:
        break;
    case LATHE_EVENT_CALL_END:
        r->x->record.n_calls++;
        break;
    case LATHE_EVENT_NONE:
    case LATHE_EVENT_FINISH:
        return;
    }
    flush_all(r);
    lathe_event timed = *ev;
    if (ev->type == LATHE_EVENT_REASONING_END) {
        timed.text = buf_str(&r->recording[r->choice].reasoning);
        timed.n_text = r->recording[r->choice].reasoning.len;
    }
    timed.usage.prefill_ms = r->now_ms - r->started_ms;
    show(r, &timed);
}

/* ---- The end -------------------------------------------------------------------------------- */

static void add_spec(lathe_spec_stats *sum, const lathe_spec_stats *s)
{
    sum->rounds += s->rounds;
    sum->drafted += s->drafted;
    sum->accepted += s->accepted;
    for (int32_t i = 0; i < LATHE_MAX_DRAFT; i++) {
        sum->drafted_at[i] += s->drafted_at[i];
        sum->accepted_at[i] += s->accepted_at[i];
    }
    for (int32_t i = 0; i <= LATHE_MAX_DRAFT; i++)
        sum->histogram[i] += s->histogram[i];
    sum->draft_ms += s->draft_ms;
    sum->verify_ms += s->verify_ms;
    sum->commit_ms += s->commit_ms;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* A prompt counts once, whatever the number of its answers; choices run at the same time. */
static void add_usage(lathe_usage *sum, const lathe_usage *u, bool is_first_of_prompt)
{
    if (is_first_of_prompt) {
        sum->prompt_tokens += u->prompt_tokens;
        sum->cached_tokens += u->cached_tokens;
        sum->common_tokens += u->common_tokens;
        sum->miss = u->miss;
    }
    sum->completion_tokens += u->completion_tokens;
    sum->reasoning_tokens += u->reasoning_tokens;
    sum->forced_tokens += u->forced_tokens;
    sum->repaired_calls += u->repaired_calls;
    sum->unparsed_calls += u->unparsed_calls;
    sum->queue_ms = larger(sum->queue_ms, u->queue_ms);
    sum->prefill_ms = larger(sum->prefill_ms, u->prefill_ms);
    sum->decode_ms = larger(sum->decode_ms, u->decode_ms);
    add_spec(&sum->spec, &u->spec);
}

static void note_failure(struct run *r, const lathe_error *err)
{
    if (err->status == LATHE_E_DEVICE)
        server_note_failure(r->x->server, err);
}

static bool judge(struct run *r, const lathe_event *last)
{
    if (r->why.condition != FINE)
        return false;
    if (last->finish == LATHE_FINISH_ERROR) {
        note_failure(r, &last->error);
        return refuse_status(&r->why, &last->error);
    }
    if (last->finish == LATHE_FINISH_CANCELLED)
        return refuse(&r->why, DRAINING, "the server is shutting down");
    return true;
}

/* For the next request of this conversation. */
static void remember(struct run *r, int32_t choice)
{
    const struct recording *a = &r->recording[choice];
    const struct buf *messages = &r->g.chat.messages;
    unsigned char key[ANSWERS_KEY];
    bool is_hidden = r->g.options.conversation && messages->len && a->n_calls == 0 &&
                     r->g.hides_reasoning && a->reasoning.len &&
                     !r->x->server->options.no_restore_reasoning;
    struct answers_prefix prefix = {0};
    if (is_hidden)
        is_hidden = answers_key(&prefix, messages->data, messages->len - 1, buf_str(&a->text),
                                a->text.len, key);
    answers_prefix_release(&prefix);
    answers_keep(r->x->server->answers, a, is_hidden ? key : NULL);
}

/* What one choice comes to; a failure ends the others. */
static void end_choice(struct run *r, int32_t choice, const lathe_event *ev)
{
    lathe_usage sum = r->last.usage;
    if (r->g.show_stop && ev->finish == LATHE_FINISH_STOP_STRING && ev->text) {
        lathe_event stop = {.type = LATHE_EVENT_TEXT, .text = ev->text, .n_text = ev->n_text};
        take_piece(r, &stop);
    }
    flush_all(r);
    if (ev->finish != LATHE_FINISH_ERROR)
        remember(r, choice);
    r->is_over[choice] = true;
    r->n_over++;
    add_usage(&sum, &ev->usage, r->g.n <= 1 || choice % r->g.n == 0);
    r->last = *ev;
    r->last.usage = sum;
    if (r->is_gone)
        return;
    if (judge(r, ev))
        r->d->event(output(r), r->state, ev);
    else
        cancel_all(r);
}

static void finish(struct run *r)
{
    lathe_error err;
    r->x->record.finish = r->last.finish;
    r->x->record.usage = r->last.usage;
    r->x->record.is_gone = r->is_gone;
    r->x->record.phase = r->n_begun == 0     ? RUN_PROMPT
                         : !r->is_accepted   ? RUN_QUEUED
                         : r->step_ms == 0.0 ? RUN_PREFILL
                                             : RUN_DECODE;
    if (r->is_gone) {
        (void)refuse(&r->x->failure, CLIENT_GONE, "the client has gone");
        stream_break(r->x);
        return;
    }
    if (r->why.condition == FINE &&
        (buf_check(&r->out, "the answer", &err) || buf_check(&r->text, "the answer", &err)))
        (void)refuse_status(&r->why, &err);
    bool ok = r->why.condition == FINE;
    if (!ok) {
        r->x->record.finish = LATHE_FINISH_ERROR;
        r->x->failure = r->why;
    }
    if (!ok && !stream_begun(r->x)) {
        buf_clear(&r->x->reply);
        return;
    }
    if (!ok && !r->g.stream) {
        stream_break(r->x); /* under a status of 200 the error would be read as an answer */
        return;
    }
    if (r->g.stream)
        begin(r);
    if (ok)
        r->d->finish(output(r), r->state, &r->last);
    else
        r->d->error(output(r), r->state, &r->why,
                    r->is_accepted && r->n_over ? &r->last.usage : NULL);
    if (stream_begun(r->x))
        (void)stream_write(r->x, output(r));
}

/* ---- Between events ------------------------------------------------------------------------- */

/* Not at every token: that would be a system call each. */
static void watch_peer(struct run *r)
{
    if (r->now_ms - r->looked_ms < WAIT_MS)
        return;
    r->looked_ms = r->now_ms;
    enum peer peer = stream_peer(r->x);
    if (peer == PEER_GONE) {
        give_up(r);
    } else if (peer == PEER_HALF_CLOSED && r->now_ms - r->wrote_ms > PROBE_MS) {
        keep_alive(r);
    }
}

static void end_with(struct run *r, enum condition c, const char *what)
{
    (void)refuse(&r->why, c, "%s", what);
    cancel_all(r);
}

/* Is the server's time, or the request's, over? */
static bool watch_end(struct run *r)
{
    const struct server_options *o = &r->x->server->options;
    if (r->why.condition != FINE)
        return true;
    if (stream_must_end(r->x))
        end_with(r, DRAINING, "the server is shutting down");
    else if (o->request_timeout_s && r->now_ms - r->started_ms > o->request_timeout_s * 1e3)
        end_with(r, DEADLINE, "the request took too long");
    return r->why.condition != FINE;
}

static void watch_time(struct run *r)
{
    const struct server_options *o = &r->x->server->options;
    double age = r->now_ms - r->started_ms;
    if (watch_end(r))
        return;
    if (o->queue_timeout_s && !r->is_accepted && age > o->queue_timeout_s * 1e3)
        end_with(r, QUEUE_TIMEOUT, "the request waited too long for a slot");
    else if (r->g.stream && !stream_begun(r->x) && age > HEAD_MS)
        begin(r);
    else if (stream_begun(r->x)
                 ? r->now_ms - r->wrote_ms > KEEPALIVE_MS
                 : !r->g.stream && o->json_keepalive_s && age > o->json_keepalive_s * 1e3)
        keep_alive(r);
}

/* While a prompt is made, which may take seconds: of a client that has gone, or that took too long, nobody wants it. */
static bool leave(void *ctx)
{
    struct run *r = ctx;
    r->now_ms = clock_ms();
    if (!r->is_gone)
        watch_peer(r);
    return r->is_gone || watch_end(r);
}

/* ---- Choices -------------------------------------------------------------------------------- */

/* That of answer i: the sign stays, and -1 stays random and is none that was given. */
static int64_t seed_of(int64_t seed, int32_t i)
{
    uint64_t sum = (uint64_t)seed + (uint64_t)i;
    if (seed >= 0)
        return (int64_t)(sum & (uint64_t)INT64_MAX);
    /* Of what is below -1, 2^63 - 1 seeds: the next after -2 is the least. */
    if (seed < -1 && (int64_t)sum >= -1)
        sum += (uint64_t)INT64_MIN + 1;
    return seed == -1 ? -1 : (int64_t)sum;
}

/* The options of one. */
static lathe_request_options options_of(struct run *r, int32_t choice)
{
    const struct generation *g = &r->g;
    lathe_request_options o = g->options;
    int32_t n = g->n > 1 ? g->n : 1;
    if (g->prompt) {
        o.token = g->prompt[choice / n].id;
        o.n_token = g->prompt[choice / n].n;
    }
    o.sampling.seed = seed_of(o.sampling.seed, choice % n);
    if (trace_wants_tokens(r->trace) && o.n_logprobs < 0)
        o.n_logprobs = 0;
    if (choice % n == 0)
        o.n_same = n - 1;
    else
        o.same_prompt = lathe_request_number(r->request[choice - choice % n]);
    o.is_background = r->x->record.is_background;
    o.priority = r->x->record.priority;
    o.session = session_number(r->x->record.session);
    o.notify = ring;
    o.notify_ctx = &r->bell;
    return o;
}

/* As many as slots run at once. The first one is refused where the engine has no room, later ones wait for it. */
static void begin_choices(struct run *r)
{
    lathe_error err;
    while (r->n_begun < r->n_choices && r->n_begun - r->n_over < r->x->server->options.n_slots &&
           r->why.condition == FINE && !r->is_gone) {
        lathe_request_options o = options_of(r, r->n_begun);
        lathe_request **request = &r->request[r->n_begun];
        lathe_status st = lathe_request_submit(r->x->server->engine, &o, request, &err);
        if (st == LATHE_E_BUSY && r->n_begun > 0)
            return;
        if (st) {
            note_failure(r, &err);
            if (!r->is_gone && r->why.condition == FINE)
                (void)refuse_status(&r->why, &err);
            cancel_all(r);
            return;
        }
        r->work[r->n_begun] = (struct work){
            .number = lathe_request_number(*request), .x = r->x, .dialect = r->d->name};
        served_begin(r->x->server->served, &r->work[r->n_begun]);
        trace_prompt(r->trace, r->n_begun, *request);
        if (r->n_begun++ == 0)
            r->known.prompt_tokens = lathe_request_prompt_tokens(*request);
        if (r->d->choose)
            r->d->choose(r->state, r->n_begun - 1, *request);
    }
}

/* A sampled token that nobody else has asked for. */
static bool is_for_trace(const struct run *r, int32_t choice, const lathe_event *ev)
{
    return ev->type == LATHE_EVENT_TOKEN && r->g.options.n_logprobs < 0 &&
           ev->token.position >= lathe_request_prompt_tokens(r->request[choice]);
}

/* What a choice has now. */
static void drain(struct run *r, int32_t choice)
{
    lathe_event ev;
    r->choice = choice;
    lathe_request_next(r->request[choice], 0, &ev);
    if (ev.type != LATHE_EVENT_NONE && r->d->choose)
        r->d->choose(r->state, choice, r->request[choice]);
    while (ev.type != LATHE_EVENT_NONE) {
        trace_event(r->trace, choice, &ev);
        if (ev.type == LATHE_EVENT_FINISH) {
            end_choice(r, choice, &ev);
            return;
        }
        if (r->g.options.conversation)
            recording_take(&r->recording[choice], &ev);
        if (!is_for_trace(r, choice, &ev))
            take_event(r, &ev);
        lathe_request_next(r->request[choice], 0, &ev);
    }
    flush_all(r);
}

/* Times of the steps that gave a choice something, for the metrics. */
static void note_step(struct run *r, int32_t choice)
{
    struct metrics *m = r->x->server->metrics;
    if (!r->has_moved)
        return;
    if (r->step_ms == 0)
        metrics_first(m, (r->now_ms - r->started_ms) * 1e-3);
    if (r->moved_ms[choice] > 0)
        metrics_next(m, (r->now_ms - r->moved_ms[choice]) * 1e-3);
    r->step_ms = r->moved_ms[choice] = r->now_ms;
    r->has_moved = false;
}

static bool is_going_on(const struct run *r)
{
    bool may_begin = r->why.condition == FINE && !r->is_gone && r->n_begun < r->n_choices;
    return r->n_over < r->n_begun || may_begin;
}

static void follow(struct run *r)
{
    begin_choices(r);
    if (r->n_begun == 0 && !r->is_gone && !stream_begun(r->x)) {
        r->x->failure = r->why;
        return;
    }
    r->x->record.dialect = r->d->name;
    for (;;) {
        r->now_ms = clock_ms();
        for (int32_t i = 0; i < r->n_begun; i++)
            if (!r->is_over[i]) {
                drain(r, i);
                note_step(r, i);
            }
        if (!is_going_on(r))
            break;
        write_out(r);
        if (!r->is_gone) {
            watch_peer(r);
            watch_time(r);
            write_out(r);
        }
        begin_choices(r);
        bell_wait(&r->bell, r->now_ms + WAIT_MS);
    }
    finish(r);
}

static bool make_room(struct run *r)
{
    size_t n = (r->g.n > 1 ? (size_t)r->g.n : 1) * (r->g.prompt ? r->g.n_prompts : 1);
    r->request = arena_calloc(&r->g.arena, n, sizeof *r->request);
    r->is_over = arena_calloc(&r->g.arena, n, sizeof *r->is_over);
    r->work = arena_calloc(&r->g.arena, n, sizeof *r->work);
    r->recording = arena_calloc(&r->g.arena, n, sizeof *r->recording);
    r->moved_ms = arena_calloc(&r->g.arena, n, sizeof *r->moved_ms);
    if (!r->request || !r->is_over || !r->work || !r->recording || !r->moved_ms)
        return refuse(&r->x->failure, INTERNAL, "out of memory");
    r->n_choices = (int32_t)n;
    for (size_t i = 0; i < n; i++)
        recording_init(&r->recording[i]);
    return true;
}

static bool check_model(struct exchange *x)
{
    struct server *s = x->server;
    if (!x->record.model[0] || server_has_model(s, x->record.model))
        return true;
    if (!s->options.strict_model) {
        log_new(s, "the model name", x->record.model);
        return true;
    }
    return refuse_field(&x->failure, MODEL_NOT_FOUND, "model", "there is no model %.120s, only %s",
                        x->record.model, s->model);
}

/* Bans the token that a call begins with. */
static bool forbid_calls(struct exchange *x, struct generation *g)
{
    static const char begin[] = "<tool_call>";
    lathe_sampling *sampling = &g->options.sampling;
    lathe_logit_bias *bias = arena_alloc(&g->arena, (sampling->n_bias + 1) * sizeof *bias);
    lathe_tokens t = {0};
    lathe_error err;
    if (!bias)
        return refuse(&x->failure, INTERNAL, "out of memory");
    if (lathe_tokenize(lathe_engine_text(x->server->engine), begin, strlen(begin), true, &t, &err))
        return refuse_status(&x->failure, &err);
    if (sampling->n_bias)
        memcpy(bias, sampling->bias, sampling->n_bias * sizeof *bias);
    if (t.n == 1) {
        bias[sampling->n_bias++] = (lathe_logit_bias){t.id[0], -100};
        sampling->bias = bias;
    }
    lathe_tokens_release(&t);
    return true;
}

/* What the server's options say about a request, in place of what it does not say, or of a dialect's own. */
static bool apply_options(struct exchange *x, struct generation *g)
{
    const struct server_options *o = &x->server->options;
    lathe_conversation *c = &g->chat.conversation;
    if (g->options.max_tokens == -1 && o->default_max_tokens)
        g->options.max_tokens = o->default_max_tokens;
    if (g->options.max_calls == 0)
        g->options.max_calls = o->max_calls;
    if (o->late_system >= 0)
        c->late_system = (lathe_late_system)o->late_system;
    if (!g->no_calls || (!c->tools && !c->callable_tools))
        return true;
    c->callable_tools = o->keep_unused_tools ? "[]" : NULL;
    if (o->keep_unused_tools)
        return forbid_calls(x, g);
    c->tools = NULL;
    return true;
}

/* f is closed by the caller. */
static bool read_fields(struct exchange *x, const struct dialect *d, const struct fields *f,
                        struct generation *g, void **state)
{
    session_of_body(f, x->record.session);
    priority_of_body(f, &x->record);
    trace_fields(x, f);
    return d->parse(x, f, g, state) && check_model(x) && apply_options(x, g);
}

static bool parse(struct run *r)
{
    struct fields f;
    bool ok = fields_open(&f, r->x) && read_fields(r->x, r->d, &f, &r->g, &r->state);
    fields_close(&f);
    return ok;
}

static void name_prompt(struct failure *f, const struct dialect *d)
{
    if (d->prompt && strncmp(f->param, "messages", 8) == 0)
        (void)snprintf(f->param, sizeof f->param, "%s", d->prompt);
}

void generate(struct exchange *x, const struct dialect *d)
{
    struct run *r = calloc(1, sizeof *r);
    if (!r) {
        (void)refuse(&x->failure, INTERNAL, "out of memory");
        return;
    }
    r->x = x;
    r->d = d;
    r->started_ms = r->wrote_ms = clock_ms();
    bell_open(&r->bell);
    arena_init(&r->g.arena, ARENA_LIMIT);
    buf_init(&r->out, PIECE_LIMIT);
    buf_init(&r->text, PIECE_LIMIT);
    if (parse(r) && make_room(r)) {
        r->g.chat.conversation.leave = leave;
        r->g.chat.conversation.leave_ctx = r;
        r->trace = trace_begin(x, r->n_choices);
        follow(r);
        trace_end(r->trace, x);
    }
    for (int32_t i = 0; i < r->n_begun; i++) {
        served_end(x->server->served, &r->work[i]);
        lathe_request_close(r->request[i]);
    }
    for (int32_t i = 0; i < r->n_choices; i++)
        recording_release(&r->recording[i]);
    bell_close(&r->bell);
    name_prompt(&x->failure, d);
    d->release(r->state);
    chat_release(&r->g.chat);
    buf_release(&r->out);
    buf_release(&r->text);
    arena_release(&r->g.arena);
    free(r);
}

void generation_defaults(const struct exchange *x, struct generation *g)
{
    const struct thinking_options *o = &x->server->options.thinking;
    int32_t max_calls = g->options.max_calls;
    lathe_request_options_init(lathe_engine_text(x->server->engine), g->chat.thinks, &g->options);
    g->options.max_calls = max_calls;
    g->options.conversation = &g->chat.conversation;
    g->options.think_budget = g->chat.thinks ? g->chat.budget : -1;
    g->options.budget_message = o->budget_message;
    g->options.end_in_think = o->end_in_think;
}

bool generate_render(struct exchange *x, const struct dialect *d, const struct fields *f,
                     bool without_answer, lathe_prompt *out)
{
    struct generation g = {0};
    void *state = NULL;
    lathe_error err;
    arena_init(&g.arena, COUNT_ARENA);
    bool ok = read_fields(x, d, f, &g, &state);
    if (ok && without_answer) {
        g.chat.conversation.no_generation_prompt = true;
        g.chat.conversation.continue_last = false;
    }
    g.chat.conversation.leave = x->watch.leave;
    g.chat.conversation.leave_ctx = x->watch.ctx;
    if (ok && lathe_engine_render(x->server->engine, g.options.conversation, out, &err))
        ok = refuse_status(&x->failure, &err);
    name_prompt(&x->failure, d);
    x->response_id[0] = 0; /* nothing is answered */
    d->release(state);
    chat_release(&g.chat);
    arena_release(&g.arena);
    return ok;
}

bool generate_count(struct exchange *x, const struct dialect *d, size_t *n)
{
    struct fields f;
    lathe_prompt prompt = {0};
    bool ok = fields_open(&f, x) && generate_render(x, d, &f, false, &prompt);
    *n = prompt.tokens.n;
    lathe_prompt_release(&prompt);
    fields_close(&f);
    return ok;
}

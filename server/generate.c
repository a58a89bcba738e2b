#include "generate.h"

#include <string.h>
#include <time.h>

#include "state.h"

enum {
    ARENA_LIMIT = 64 << 20,
    COUNT_ARENA = 16 << 20,
    PIECE_LIMIT = 64 << 20,
    WAIT_MS = 100,        /* for an event, before the client is looked at */
    HEAD_MS = 5000,       /* from then on a stream has its head, and no status any more */
    KEEPALIVE_MS = 10000, /* of silence on a stream */
};

struct run {
    struct exchange *x;
    const struct dialect *d;
    void *state;
    struct generation g;
    lathe_request *request;
    struct buf out;    /* of a stream, until it is written */
    lathe_event piece; /* type and index of what `text` holds; NONE: nothing */
    struct buf text;
    int64_t started_ms, moved_ms;
    bool is_accepted;   /* by a slot */
    lathe_usage known;  /* of the prompt */
    bool is_probed;     /* something was written to a half-closed connection */
    bool is_gone;       /* the client */
    struct failure why; /* of what the server ended itself */
};

static int64_t now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
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

static void give_up(struct run *r)
{
    r->is_gone = true;
    lathe_request_cancel(r->request);
}

static void write_out(struct run *r)
{
    if (!r->g.stream || r->out.len == 0 || r->is_gone)
        return;
    begin(r);
    r->moved_ms = now_ms();
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
    r->moved_ms = now_ms();
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
    lathe_event ev = r->piece;
    if (ev.type == LATHE_EVENT_NONE)
        return;
    ev.text = buf_str(&r->text);
    ev.n_text = r->text.len;
    r->piece.type = LATHE_EVENT_NONE;
    show(r, &ev);
    buf_clear(&r->text);
}

static void take_event(struct run *r, const lathe_event *ev)
{
    switch (ev->type) {
    case LATHE_EVENT_ACCEPTED:
        r->is_accepted = true;
        r->known = ev->usage;
        r->d->event(output(r), r->state, ev);
        return;
    case LATHE_EVENT_REASONING:
    case LATHE_EVENT_TEXT:
    case LATHE_EVENT_CALL_ARGS:
        if (ev->n_text == 0)
            return;
        if (r->piece.type != ev->type || r->piece.index != ev->index) {
            flush_piece(r);
            r->piece = (lathe_event){.type = ev->type, .index = ev->index};
        }
        buf_append(&r->text, ev->text, ev->n_text);
        return;
    case LATHE_EVENT_PROGRESS:
        if (!r->g.show_progress)
            return;
        break;
    case LATHE_EVENT_REASONING_END:
    case LATHE_EVENT_CALL_BEGIN:
    case LATHE_EVENT_CALL_END:
        break;
    case LATHE_EVENT_NONE:
    case LATHE_EVENT_TOKEN:
    case LATHE_EVENT_FINISH:
        return;
    }
    flush_piece(r);
    lathe_event timed = *ev;
    timed.usage.prefill_ms = (double)(now_ms() - r->started_ms);
    show(r, &timed);
}

static bool judge(struct run *r, const lathe_event *last)
{
    lathe_error err;
    if (r->why.condition != FINE)
        return false;
    if (last->finish == LATHE_FINISH_ERROR)
        return refuse_status(&r->why, &last->error);
    if (last->finish == LATHE_FINISH_CANCELLED)
        return refuse(&r->why, DRAINING, "the server is shutting down");
    if (buf_check(&r->out, "the answer", &err) || buf_check(&r->text, "the answer", &err))
        return refuse_status(&r->why, &err);
    return true;
}

static void note_failure(struct run *r, const lathe_error *err)
{
    if (err->status == LATHE_E_DEVICE)
        atomic_store(&r->x->server->has_failed, true);
}

static void finish(struct run *r, const lathe_event *last)
{
    flush_piece(r);
    if (last->finish == LATHE_FINISH_ERROR)
        note_failure(r, &last->error);
    r->x->record.finish = last->finish;
    r->x->record.usage = last->usage;
    r->x->record.is_gone = r->is_gone;
    if (r->is_gone) {
        stream_break(r->x);
        return;
    }
    bool ok = judge(r, last);
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
        r->d->finish(output(r), r->state, last);
    else
        r->d->error(output(r), r->state, &r->why);
    if (stream_begun(r->x))
        (void)stream_write(r->x, output(r));
}

/* ---- Between events ------------------------------------------------------------------------- */

static void watch_peer(struct run *r)
{
    enum peer peer = stream_peer(r->x);
    if (peer == PEER_GONE) {
        give_up(r);
    } else if (peer == PEER_HALF_CLOSED && !r->is_probed) {
        r->is_probed = true;
        keep_alive(r);
    }
}

static void end_with(struct run *r, enum condition c, const char *what)
{
    if (refuse(&r->why, c, "%s", what))
        return;
    lathe_request_cancel(r->request);
}

static void watch_time(struct run *r)
{
    const struct server_options *o = &r->x->server->options;
    int64_t now = now_ms(), age = now - r->started_ms;
    if (r->why.condition != FINE)
        return;
    if (stream_must_end(r->x))
        end_with(r, DRAINING, "the server is shutting down");
    else if (o->queue_timeout_s && !r->is_accepted && age > (int64_t)o->queue_timeout_s * 1000)
        end_with(r, QUEUE_TIMEOUT, "the request waited too long for a slot");
    else if (o->request_timeout_s && age > (int64_t)o->request_timeout_s * 1000)
        end_with(r, DEADLINE, "the request took too long");
    else if (r->g.stream && !stream_begun(r->x) && age > HEAD_MS)
        begin(r);
    else if (stream_begun(r->x)
                 ? now - r->moved_ms > KEEPALIVE_MS
                 : !r->g.stream && o->json_keepalive_s && age > (int64_t)o->json_keepalive_s * 1000)
        keep_alive(r);
}

static void follow(struct run *r)
{
    lathe_event ev;
    for (;;) {
        lathe_request_next(r->request, WAIT_MS, &ev);
        while (ev.type != LATHE_EVENT_NONE) {
            if (ev.type == LATHE_EVENT_FINISH) {
                finish(r, &ev);
                return;
            }
            take_event(r, &ev);
            lathe_request_next(r->request, 0, &ev);
        }
        flush_piece(r);
        write_out(r);
        if (r->is_gone)
            continue;
        watch_peer(r);
        watch_time(r);
        write_out(r);
    }
}

static bool check_model(struct exchange *x)
{
    const struct server *s = x->server;
    if (!s->options.strict_model || server_has_model(s, x->record.model))
        return true;
    return refuse_field(&x->failure, MODEL_NOT_FOUND, "model", "there is no model %.120s, only %s",
                        x->record.model, s->model);
}

static bool parse(struct run *r)
{
    struct fields f;
    bool ok = fields_open(&f, r->x) && r->d->parse(r->x, &f, &r->g, &r->state) && check_model(r->x);
    fields_close(&f);
    if (ok && r->g.options.max_tokens == -1 && r->x->server->options.default_max_tokens)
        r->g.options.max_tokens = r->x->server->options.default_max_tokens;
    return ok;
}

void generate(struct exchange *x, const struct dialect *d)
{
    struct run r = {.x = x, .d = d};
    lathe_error err;
    r.started_ms = r.moved_ms = now_ms();
    arena_init(&r.g.arena, ARENA_LIMIT);
    buf_init(&r.out, PIECE_LIMIT);
    buf_init(&r.text, PIECE_LIMIT);
    if (parse(&r)) {
        if (lathe_request_submit(x->server->engine, &r.g.options, &r.request, &err)) {
            (void)refuse_status(&x->failure, &err);
            note_failure(&r, &err);
        } else {
            x->record.dialect = d->name;
            r.known.prompt_tokens = lathe_request_prompt_tokens(r.request);
            follow(&r);
        }
        lathe_request_close(r.request);
    }
    d->release(r.state);
    chat_release(&r.g.chat);
    buf_release(&r.out);
    buf_release(&r.text);
    arena_release(&r.g.arena);
}

bool generate_count(struct exchange *x, const struct dialect *d, size_t *n)
{
    struct generation g = {0};
    struct fields f;
    void *state = NULL;
    lathe_prompt prompt = {0};
    lathe_error err;
    bool done = false;
    arena_init(&g.arena, COUNT_ARENA);
    if (fields_open(&f, x) && d->parse(x, &f, &g, &state) && check_model(x)) {
        done = !lathe_render(lathe_engine_text(x->server->engine), g.options.conversation, &prompt,
                             &err);
        if (!done)
            (void)refuse_status(&x->failure, &err);
    }
    *n = prompt.tokens.n;
    lathe_prompt_release(&prompt);
    fields_close(&f);
    d->release(state);
    chat_release(&g.chat);
    arena_release(&g.arena);
    return done;
}

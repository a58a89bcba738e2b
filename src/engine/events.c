#include "engine/events.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What stands in the buffers: this, the ids of tokens, the strings with a NUL behind each, then the candidates, all
 * padded to 16 bytes. */
struct record {
    lathe_event_type type;
    int32_t index, done, total;
    int32_t prompt_tokens, cached_tokens;
    int32_t completion_tokens, reasoning_tokens, drafted, accepted;
    int32_t token_id, token_position, n_top;
    float logprob;
    double prefill_ms, decode_ms;
    bool is_end;
    uint32_t n_id;                      /* tokens */
    uint32_t n_text, n_call_id, n_name; /* bytes with the NUL; 0: NULL */
    uint32_t bytes;                     /* of the whole record */
};

/* Room for a burst of ordinary events without growing. */
enum { EVENTS_RESERVE = 16 << 10 };
/* Above this one push fails: a single event never comes near it. */
enum { EVENTS_LIMIT = 256 << 20 };

lathe_status events_init(struct events *q, lathe_error *err)
{
    *q = (struct events){0};
    pthread_condattr_t attr;
    if (pthread_mutex_init(&q->lock, NULL) != 0 || pthread_condattr_init(&attr) != 0)
        return fail_memory(err, sizeof *q);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    int e = pthread_cond_init(&q->ready, &attr);
    pthread_condattr_destroy(&attr);
    buf_init(&q->incoming, EVENTS_LIMIT);
    buf_init(&q->reading, EVENTS_LIMIT);
    q->top = malloc(EVENTS_MAX_TOP * sizeof *q->top);
    if (e || !q->top)
        return fail_memory(err, EVENTS_MAX_TOP * sizeof *q->top);
    static const char blank[EVENTS_RESERVE];
    struct buf *both[] = {&q->incoming, &q->reading};
    for (int i = 0; i < 2; i++) {
        buf_append(both[i], blank, sizeof blank);
        lathe_status st = buf_check(both[i], "event queue", err);
        if (st)
            return st;
        buf_clear(both[i]);
    }
    return LATHE_OK;
}

void events_release(struct events *q)
{
    if (!q->incoming.limit) /* never initialised */
        return;
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->ready);
    buf_release(&q->incoming);
    buf_release(&q->reading);
    free(q->top);
    free(q->last_text);
}

static uint32_t size_of(const char *s)
{
    return s ? (uint32_t)strlen(s) + 1 : 0;
}

void events_push(struct events *q, const lathe_event *ev)
{
    struct record r = {
        .type = ev->type,
        .index = ev->index,
        .done = ev->done,
        .total = ev->total,
        .prompt_tokens = ev->usage.prompt_tokens,
        .cached_tokens = ev->usage.cached_tokens,
        .completion_tokens = ev->usage.completion_tokens,
        .reasoning_tokens = ev->usage.reasoning_tokens,
        .drafted = ev->usage.spec.drafted,
        .accepted = ev->usage.spec.accepted,
        .prefill_ms = ev->usage.prefill_ms,
        .decode_ms = ev->usage.decode_ms,
        .is_end = ev->token.is_end,
        .token_id = ev->token.id,
        .token_position = ev->token.position,
        .n_top = ev->token.n_top,
        .logprob = ev->token.logprob,
        .n_id = (uint32_t)ev->n_id,
        .n_text = ev->text ? (uint32_t)ev->n_text + 1 : 0,
        .n_call_id = size_of(ev->call_id),
        .n_name = size_of(ev->name),
    };
    size_t top_bytes = (size_t)r.n_top * sizeof(lathe_candidate);
    size_t id_bytes = (size_t)r.n_id * sizeof *ev->id;
    size_t bytes = sizeof r + id_bytes + r.n_text + r.n_call_id + r.n_name + top_bytes;
    static const char zero[16];
    size_t pad = (16 - bytes % 16) % 16;
    r.bytes = (uint32_t)(bytes + pad);

    pthread_mutex_lock(&q->lock);
    if (!q->finished) {
        struct buf *b = &q->incoming;
        buf_append(b, &r, sizeof r);
        if (id_bytes)
            buf_append(b, ev->id, id_bytes);
        if (r.n_text) {
            buf_append(b, ev->text, ev->n_text);
            buf_putc(b, 0);
        }
        if (r.n_call_id)
            buf_append(b, ev->call_id, r.n_call_id);
        if (r.n_name)
            buf_append(b, ev->name, r.n_name);
        if (top_bytes)
            buf_append(b, ev->token.top, top_bytes);
        buf_append(b, zero, pad);
        if (!q->held)
            pthread_cond_signal(&q->ready);
    }
    bool held = q->held;
    pthread_mutex_unlock(&q->lock);
    if (q->notify && !held)
        q->notify(q->notify_ctx);
}

void events_hold(struct events *q)
{
    pthread_mutex_lock(&q->lock);
    q->held = true;
    pthread_mutex_unlock(&q->lock);
}

void events_show(struct events *q)
{
    pthread_mutex_lock(&q->lock);
    q->held = false;
    bool any = q->incoming.len > 0;
    pthread_cond_signal(&q->ready);
    pthread_mutex_unlock(&q->lock);
    if (q->notify && any)
        q->notify(q->notify_ctx);
}

void events_finish(struct events *q, const lathe_event *ev)
{
    pthread_mutex_lock(&q->lock);
    if (!q->finished) {
        q->last = *ev;
        q->last.type = LATHE_EVENT_FINISH;
        if (ev->text)
            q->last_text = strdup(ev->text); /* without memory the finish has no text */
        q->last.text = q->last_text;
        q->last.n_text = q->last_text ? strlen(q->last_text) : 0;
        q->finished = true;
        pthread_cond_signal(&q->ready);
    }
    pthread_mutex_unlock(&q->lock);
    if (q->notify)
        q->notify(q->notify_ctx);
}

lathe_status events_check(struct events *q, lathe_error *err)
{
    pthread_mutex_lock(&q->lock);
    lathe_status st = buf_check(&q->incoming, "event queue", err);
    pthread_mutex_unlock(&q->lock);
    return st;
}

bool events_full(struct events *q)
{
    pthread_mutex_lock(&q->lock);
    bool full = q->incoming.len > EVENTS_HIGH_WATER;
    pthread_mutex_unlock(&q->lock);
    return full;
}

/* Takes the record at q->at out of the reader's buffer. */
static void read_record(struct events *q, lathe_event *out)
{
    struct record r;
    const char *p = q->reading.data + q->at;
    memcpy(&r, p, sizeof r);
    q->at += r.bytes;
    p += sizeof r;
    const int32_t *id = r.n_id ? (const void *)p : NULL;
    p += (size_t)r.n_id * sizeof *id;
    *out = (lathe_event){
        .type = r.type,
        .index = r.index,
        .id = id,
        .n_id = r.n_id,
        .done = r.done,
        .total = r.total,
        .usage = {.prompt_tokens = r.prompt_tokens,
                  .cached_tokens = r.cached_tokens,
                  .completion_tokens = r.completion_tokens,
                  .reasoning_tokens = r.reasoning_tokens,
                  .prefill_ms = r.prefill_ms,
                  .decode_ms = r.decode_ms,
                  .spec = {.drafted = r.drafted, .accepted = r.accepted}},
        .text = r.n_text ? p : NULL,
        .n_text = r.n_text ? r.n_text - 1 : 0,
        .call_id = r.n_call_id ? p + r.n_text : NULL,
        .name = r.n_name ? p + r.n_text + r.n_call_id : NULL,
    };
    p += r.n_text + r.n_call_id + r.n_name;
    if (r.n_top)
        memcpy(q->top, p, (size_t)r.n_top * sizeof *q->top);
    out->token = (lathe_token_info){
        .id = r.token_id,
        .position = r.token_position,
        .logprob = r.logprob,
        .top = q->top,
        .n_top = r.n_top,
        .is_end = r.is_end,
    };
}

static struct timespec deadline_in(int32_t ms)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += ms / 1000;
    t.tv_nsec += ms % 1000 * 1000000L;
    if (t.tv_nsec >= 1000000000L) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000L;
    }
    return t;
}

bool events_next(struct events *q, int32_t timeout_ms, lathe_event *out)
{
    struct timespec until;
    if (q->at < q->reading.len) {
        read_record(q, out);
        return false;
    }
    *out = (lathe_event){.type = LATHE_EVENT_NONE};
    if (q->delivered)
        return false;
    if (timeout_ms > 0)
        until = deadline_in(timeout_ms);
    pthread_mutex_lock(&q->lock);
    while ((q->incoming.len == 0 || q->held) && !q->finished && timeout_ms != 0) {
        int e = timeout_ms < 0 ? pthread_cond_wait(&q->ready, &q->lock)
                               : pthread_cond_timedwait(&q->ready, &q->lock, &until);
        if (e == ETIMEDOUT)
            break;
    }
    /* A buffer that failed holds a torn record at its end, and the request ends by itself. */
    bool torn = q->incoming.over || q->incoming.no_memory;
    bool was_full = q->incoming.len > EVENTS_HIGH_WATER;
    if (q->incoming.len && !q->held && !torn) {
        struct buf swap = q->reading;
        q->reading = q->incoming;
        q->incoming = swap;
        buf_clear(&q->incoming);
        q->at = 0;
    } else if (q->finished) {
        *out = q->last;
        q->delivered = true;
    }
    pthread_mutex_unlock(&q->lock);
    if (q->at < q->reading.len && out->type == LATHE_EVENT_NONE)
        read_record(q, out);
    return was_full;
}

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "engine/engine.h"

void scheduler_detach(struct lathe_engine *e, lathe_request *r)
{
    pthread_mutex_lock(&e->lock);
    r->is_attached = false;
    e->n_attached--;
    pthread_cond_broadcast(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

/* Tokens that a slot's sequence and a prompt of the same salt begin with. */
static int32_t common(const struct slot *s, const lathe_request *r)
{
    int32_t n = s->n_committed < r->n_prompt ? s->n_committed : r->n_prompt, i = 0;
    if (strcmp(s->cache_salt, r->cache_salt) != 0)
        return 0;
    while (i < n && s->token[i] == r->prompt[i])
        i++;
    return i;
}

/* What of it the state of the slot can be used for: all of its tokens or nothing, since a recurrent state cannot
 * be cut back; and the prompt's last token is always computed, for its logits. */
static int32_t reusable(const struct slot *s, const lathe_request *r, int32_t n_common)
{
    return r->reuse_prefix && n_common < r->n_prompt && n_common == s->n_committed ? n_common : 0;
}

/* What slots hold of a prompt. */
struct held_prefix {
    int32_t n;    /* tokens, of the slot that has most */
    bool is_busy; /* that one */
    bool any;     /* any slot holds anything */
};

static void note_prefix(struct held_prefix *p, const struct slot *s, int32_t n_common)
{
    p->any |= s->n_committed > 0;
    if (n_common <= p->n)
        return;
    p->n = n_common;
    p->is_busy = s->request != NULL;
}

/* Fills in what the prompt shares with what slots hold, and why not more of it is reused than n_cached tokens. */
static void explain_reuse(lathe_request *r, const struct held_prefix *p, int32_t n_cached)
{
    r->usage.cached_tokens = n_cached;
    r->usage.common_tokens = p->n;
    r->usage.miss = !r->reuse_prefix               ? LATHE_MISS_OFF
                    : n_cached == p->n && p->n > 0 ? LATHE_MISS_NONE
                    : !p->any                      ? LATHE_MISS_COLD
                    : p->is_busy                   ? LATHE_MISS_OCCUPIED
                                                   : LATHE_MISS_DIFFERS;
}

/* Of two free slots whose states serve a request alike: is what a holds the smaller loss? Nothing, what the background left, what
 * the request's own conversation left behind, the fewest tokens. */
static bool is_smaller_loss(const struct slot *a, const struct slot *b, const lathe_request *r)
{
    bool own_a = r->session && a->session == r->session,
         own_b = r->session && b->session == r->session;
    if ((a->n_committed == 0) != (b->n_committed == 0))
        return a->n_committed == 0;
    if (a->is_background != b->is_background)
        return a->is_background;
    if (own_a != own_b && !r->is_background)
        return own_a;
    return a->n_committed < b->n_committed;
}

/* The slot that reads the same prompt for another request, and has not read all of it. */
static struct slot *leader_of(struct lathe_engine *e, const lathe_request *r)
{
    for (int32_t i = 0; i < e->options.n_slots && r->same_prompt; i++) {
        struct slot *s = &e->slots[i];
        const lathe_request *other = s->request;
        if (s->phase == SLOT_PREFILL && other->number == r->same_prompt && !other->score &&
            other->n_prompt == r->n_prompt && r->n_prompt_logprobs < 0 &&
            strcmp(other->cache_salt, r->cache_salt) == 0 &&
            memcmp(other->prompt, r->prompt, (size_t)r->n_prompt * sizeof *r->prompt) == 0)
            return s->leader ? s->leader : s;
    }
    return NULL;
}

/* Gives a request the free slot whose state serves it best. */
static void admit(struct lathe_engine *e, lathe_request *r)
{
    struct slot *best = NULL;
    struct held_prefix held = {.n = 0};
    int32_t best_n = -1;
    for (int32_t i = 0; i < e->options.n_slots; i++) {
        struct slot *s = &e->slots[i];
        int32_t n_common = common(s, r);
        note_prefix(&held, s, n_common);
        if (s->phase != SLOT_FREE)
            continue;
        int32_t n = reusable(s, r, n_common);
        if (!best || n > best_n || (n == best_n && is_smaller_loss(s, best, r))) {
            best = s;
            best_n = n;
        }
    }
    explain_reuse(r, &held, best_n);
    if (best_n == 0 && best->n_committed > 0)
        slot_wipe(e, best);
    best->leader = leader_of(e, r);
    best->request = r;
    best->phase = SLOT_PREFILL;
    memcpy(best->cache_salt, r->cache_salt, sizeof best->cache_salt);
    best->is_background = r->is_background;
    best->session = r->session;
    r->started_ms = clock_ms();
    r->usage.queue_ms = r->started_ms - r->submitted_ms;
    r->usage.prompt_tokens = r->n_prompt;
    adapt_init(&r->adapt, &e->spec.all);
    e->activity.now.closed_for_budget += closing_is_on(&r->closing); /* it is 0 */
    e->activity.now.prompt_tokens += (uint64_t)r->n_prompt;
    e->activity.now.cached_tokens += (uint64_t)best_n;
    lathe_event ev = {.type = LATHE_EVENT_ACCEPTED, .usage = r->usage};
    events_push(&r->events, &ev);
}

/* The next slot that has prompt to read, in turn; NULL if none has. */
static struct slot *next_prefill(struct lathe_engine *e)
{
    int32_t n = e->options.n_slots;
    for (int32_t i = 1; i <= n; i++) {
        int32_t at = (e->last_prefill + i) % n;
        if (e->slots[at].phase == SLOT_PREFILL && !e->slots[at].leader) {
            e->last_prefill = at;
            return &e->slots[at];
        }
    }
    return NULL;
}

/* Does a go before b? */
static bool goes_before(const lathe_request *a, const lathe_request *b)
{
    if (a->is_background != b->is_background)
        return b->is_background;
    return a->priority != b->priority ? a->priority < b->priority : a->number < b->number;
}

void queue_add(struct lathe_engine *e, lathe_request *r)
{
    lathe_request **at = &e->queue;
    while (*at && goes_before(*at, r))
        at = &(*at)->next;
    r->next = *at;
    *at = r;
    e->n_queued++;
    e->n_queued_background += r->is_background;
}

bool queue_has(const struct lathe_engine *e, uint64_t number)
{
    const lathe_request *r = e->queue;
    while (r && r->number != number)
        r = r->next;
    return r != NULL;
}

/* With the lock: takes out the one at a place of the queue, NULL if there is none. */
static lathe_request *queue_take(struct lathe_engine *e, lathe_request **at)
{
    lathe_request *r = *at;
    if (r) {
        *at = r->next;
        e->n_queued--;
        e->n_queued_background -= r->is_background;
    }
    return r;
}

static int32_t count_free_slots(const struct lathe_engine *e)
{
    int32_t n = 0;
    for (int32_t i = 0; i < e->options.n_slots; i++)
        n += e->slots[i].phase == SLOT_FREE;
    return n;
}

/* With the lock: one that was cancelled is waited for no more. */
static void queue_forgo(struct lathe_engine *e, const lathe_request *r)
{
    for (lathe_request *q = e->queue; q; q = q->next)
        q->n_same -= q->number == r->same_prompt;
}

/* With the lock: where in the queue the first one stands that names the number; else the place behind all. */
static lathe_request **queue_find_same(struct lathe_engine *e, uint64_t number)
{
    lathe_request **at = &e->queue;
    while (*at && (*at)->same_prompt != number)
        at = &(*at)->next;
    return at;
}

/* With the lock: does it wait for others, or with one that waits? */
static bool is_early(const struct lathe_engine *e, const lathe_request *r)
{
    int32_t n = 0;
    for (const lathe_request *q = e->queue; q; q = q->next) {
        n += q->same_prompt == r->number;
        if (r->same_prompt == q->number)
            return true;
    }
    return n < r->n_same;
}

/* With the lock: may a request go before one that waits for more slots than are free? Only its equals, and no more than there are
 * slots, since each makes it wait for one more to end. */
static bool may_pass(const struct lathe_engine *e, const lathe_request *r,
                     const lathe_request *waiting)
{
    return r->is_background == waiting->is_background && r->priority == waiting->priority &&
           waiting->n_passed < e->options.n_slots;
}

/* With the lock: the place in the queue of the next request that there are slots for; NULL: none. */
static lathe_request **queue_find_next(struct lathe_engine *e)
{
    const lathe_request *waiting = NULL; /* the first that waits for slots: it was passed most */
    int32_t n_free = count_free_slots(e);
    for (lathe_request **at = &e->queue; *at && n_free > 0; at = &(*at)->next) {
        if (is_early(e, *at))
            continue;
        if (waiting && !may_pass(e, *at, waiting))
            return NULL;
        if (n_free > (*at)->n_same)
            return at;
        waiting = waiting ? waiting : *at;
    }
    return NULL;
}

/* The next request that there are slots for; NULL: none. */
static lathe_request *next_request(struct lathe_engine *e)
{
    lathe_request *r = NULL;
    pthread_mutex_lock(&e->lock);
    lathe_request **at = queue_find_next(e);
    if (at) {
        for (lathe_request *q = e->queue; q != *at; q = q->next)
            q->n_passed += !is_early(e, q);
        r = queue_take(e, at);
    }
    pthread_mutex_unlock(&e->lock);
    return r;
}

/* The next of those that have the prompt of one that was just admitted. */
static lathe_request *next_same(struct lathe_engine *e, const lathe_request *r)
{
    pthread_mutex_lock(&e->lock);
    lathe_request *same = queue_take(e, queue_find_same(e, r->number));
    pthread_mutex_unlock(&e->lock);
    return same;
}

/* Takes cancelled requests out of the queue, wherever they stand in it; all of them, with an error if there is
 * one, where the engine's work ends. */
static void drop_queued(struct lathe_engine *e, bool all, const lathe_error *err)
{
    for (;;) {
        pthread_mutex_lock(&e->lock);
        lathe_request **at = &e->queue;
        while (*at && !all && !atomic_load(&(*at)->cancelled))
            at = &(*at)->next;
        lathe_request *r = queue_take(e, at);
        if (r)
            queue_forgo(e, r);
        pthread_mutex_unlock(&e->lock);
        if (!r)
            return;
        request_finish(r, err ? LATHE_FINISH_ERROR : LATHE_FINISH_CANCELLED, NULL, err);
        scheduler_detach(e, r);
    }
}

/* Slots whose request is cancelled, or all; `but` aside, which may be NULL. */
static void cancel_slots(struct lathe_engine *e, bool all, const struct slot *but)
{
    for (int32_t i = 0; i < e->options.n_slots; i++) {
        struct slot *s = &e->slots[i];
        if (!s->request || s == but || !(all || atomic_load(&s->request->cancelled)))
            continue;
        if (s->request->score) {
            slot_wipe(e, s); /* the drafter has not seen it */
            slot_finish(e, s, LATHE_FINISH_CANCELLED, NULL, NULL);
        } else {
            slot_conclude(e, s, LATHE_FINISH_CANCELLED);
        }
    }
}

static bool is_stopping(struct lathe_engine *e)
{
    pthread_mutex_lock(&e->lock);
    bool stopping = e->stopping;
    pthread_mutex_unlock(&e->lock);
    return stopping;
}

bool scheduler_leaves(void *engine)
{
    struct lathe_engine *e = engine;
    const struct batch *b = &e->step.batch;
    uint32_t n = atomic_load(&e->n_cancels);
    if (n == e->n_seen_cancels)
        return false;
    e->n_seen_cancels = n;
    bool stopping = is_stopping(e), wanted = false;
    struct slot *prompt = b->phase == PHASE_PREFILL ? &e->slots[b->seq[0].slot] : NULL;
    drop_queued(e, stopping, NULL);
    cancel_slots(e, stopping, prompt);
    if (prompt)
        return stopping || atomic_load(&prompt->request->cancelled);
    for (int32_t i = 0; i < b->n_seqs; i++)
        wanted |= e->slots[b->seq[i].slot].request != NULL;
    return b->phase == PHASE_VERIFY && !wanted;
}

/* After the device failed: what runs and what waits ends with that; nothing is admitted any more. */
static void fail_all(struct lathe_engine *e)
{
    drop_queued(e, true, &e->failure);
    for (int32_t i = 0; i < e->options.n_slots; i++)
        if (e->slots[i].request)
            slot_finish(e, &e->slots[i], LATHE_FINISH_ERROR, NULL, &e->failure);
}

static bool forget(struct lathe_engine *e, int32_t slot)
{
    struct slot *s = &e->slots[slot];
    if (s->request)
        return false;
    slot_wipe(e, s);
    s->info = (lathe_slot_info){0};
    return true;
}

/* What lathe_engine_forget waits for. */
static void forget_slots(struct lathe_engine *e)
{
    pthread_mutex_lock(&e->lock);
    struct forget *f = e->forget;
    e->forget = NULL;
    pthread_mutex_unlock(&e->lock);
    while (f) {
        struct forget *next = f->next;
        for (int32_t i = 0; i < e->options.n_slots && !e->failure.status; i++)
            if (f->slot == i)
                f->is_busy = !forget(e, i);
            else if (f->slot < 0)
                (void)forget(e, i);
        activity_publish(e);
        pthread_mutex_lock(&e->lock);
        f->is_done = true;
        pthread_cond_broadcast(&e->wake);
        pthread_mutex_unlock(&e->lock);
        f = next;
    }
}

lathe_status lathe_engine_forget(lathe_engine *e, int32_t slot, lathe_error *err)
{
    struct forget f = {.slot = slot};
    if (slot < -1 || slot >= e->options.n_slots)
        return fail(err, LATHE_E_ARGUMENT, "there is no slot %d, only 0 to %d", slot,
                    e->options.n_slots - 1);
    pthread_mutex_lock(&e->lock);
    f.next = e->forget;
    e->forget = &f;
    e->kicked = true;
    pthread_cond_broadcast(&e->wake);
    while (!f.is_done)
        pthread_cond_wait(&e->wake, &e->lock);
    pthread_mutex_unlock(&e->lock);
    if (f.is_busy)
        return fail(err, LATHE_E_BUSY, "slot %d runs a request", slot);
    return LATHE_OK;
}

void scheduler_kick(struct lathe_engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->kicked = true;
    pthread_cond_broadcast(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

void scheduler_cancel(struct lathe_engine *e)
{
    atomic_fetch_add(&e->n_cancels, 1);
    scheduler_kick(e);
}

void *scheduler_main(void *arg)
{
    struct lathe_engine *e = arg;
    bool idle = true;
    for (;;) {
        activity_publish(e);
        pthread_mutex_lock(&e->lock);
        e->resting = idle;
        while (idle && !e->kicked && !e->stopping)
            pthread_cond_wait(&e->wake, &e->lock);
        e->resting = false;
        e->kicked = false;
        bool stopping = e->stopping;
        pthread_mutex_unlock(&e->lock);

        drop_queued(e, stopping, NULL);
        cancel_slots(e, stopping, NULL);
        forget_slots(e);
        if (stopping)
            return NULL;
        if (e->failure.status) { /* only this thread writes it */
            fail_all(e);
            idle = true;
            continue;
        }
        for (lathe_request *r; (r = next_request(e));) {
            admit(e, r);
            for (int32_t i = 0; i < r->n_same; i++) {
                lathe_request *same = next_same(e, r);
                if (same)
                    admit(e, same);
            }
            activity_publish(e);
        }
        struct slot *s = next_prefill(e);
        if (s)
            prefill_step(e, s);
        idle = !decode_round(e) && !s;
    }
}

#include "engine/activity.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/histogram.h"
#include "engine/engine.h"

static lathe_histogram seconds(void)
{
    return (lathe_histogram){.bound = histogram_seconds, .n_bounds = HISTOGRAM_SECONDS};
}

lathe_status activity_open(struct activity *a, int32_t n_slots, lathe_error *err)
{
    size_t n = (size_t)n_slots;
    for (int i = 0; i < LATHE_STEP_KINDS; i++)
        a->now.step_seconds[i] = seconds();
    a->now.step_rows = (lathe_histogram){.bound = histogram_tokens, .n_bounds = HISTOGRAM_TOKENS};
    a->shown = a->now;
    a->slot = calloc(n, sizeof *a->slot);
    a->has_lock = a->slot && pthread_mutex_init(&a->lock, NULL) == 0;
    return a->has_lock ? LATHE_OK : fail_memory(err, n * sizeof *a->slot);
}

void activity_close(struct activity *a)
{
    if (a->has_lock)
        pthread_mutex_destroy(&a->lock);
    free(a->slot);
    *a = (struct activity){0};
}

void activity_step(struct activity *a, lathe_step_kind kind, int32_t n_rows, double ms)
{
    histogram_add(&a->now.step_seconds[kind], ms * 1e-3);
    histogram_add(&a->now.step_rows, n_rows);
}

void activity_round(struct activity *a, int32_t n_draft, int32_t n_accepted)
{
    lathe_activity *c = &a->now;
    c->rounds++;
    c->drafted += (uint64_t)n_draft;
    c->accepted += (uint64_t)n_accepted;
    c->histogram[n_accepted]++;
    for (int32_t i = 0; i < n_draft; i++) {
        c->drafted_at[i]++;
        c->accepted_at[i] += i < n_accepted;
    }
}

/* Of a slot that has a request; of a free one what its last request left. */
static lathe_slot_info look(const struct slot *s, double now)
{
    lathe_slot_info i = s->info;
    const lathe_request *r = s->request;
    i.phase = s->phase == SLOT_PREFILL  ? LATHE_SLOT_PREFILL
              : s->phase == SLOT_DECODE ? LATHE_SLOT_DECODE
                                        : LATHE_SLOT_FREE;
    i.n_held = s->n_committed;
    i.idle_ms = r ? 0 : s->freed_ms; /* the moment, until it is asked for */
    if (!r)
        return i;
    i.request = r->number;
    i.is_background = r->is_background;
    i.n_prompt = r->n_prompt;
    i.n_cached = r->usage.cached_tokens;
    i.n_decoded = r->usage.completion_tokens;
    i.n_reasoning = r->usage.reasoning_tokens;
    i.drafted = r->usage.spec.drafted;
    i.accepted = r->usage.spec.accepted;
    i.prefill_ms = (r->first_ms > 0 ? r->first_ms : now) - r->started_ms;
    i.decode_ms = r->first_ms > 0 ? now - r->first_ms : 0;
    return i;
}

void activity_end(struct slot *s)
{
    double now = clock_ms();
    s->info = look(s, now);
    s->freed_ms = now;
}

void activity_publish(struct lathe_engine *e)
{
    struct activity *a = &e->activity;
    lathe_activity *c = &a->now;
    const struct kv_cache *kv = &e->state.kv;
    double now = clock_ms();
    c->n_running_background = 0;
    c->n_prefill = c->n_decode = c->n_pages_running = c->n_pages_idle = 0;
    c->kv_page = KV_PAGE;
    c->n_pages = kv->n_pages;
    c->failure = e->failure.status ? e->failure.message : NULL; /* only this thread writes it */
    pthread_mutex_lock(&a->lock);
    for (int32_t i = 0; i < e->options.n_slots; i++) {
        const struct slot *s = &e->slots[i];
        a->slot[i] = look(s, now);
        c->n_prefill += s->phase == SLOT_PREFILL;
        c->n_decode += s->phase == SLOT_DECODE;
        c->n_running_background += s->request && s->request->is_background;
        *(s->request ? &c->n_pages_running : &c->n_pages_idle) += kv->n_used[i];
    }
    a->shown = *c;
    pthread_mutex_unlock(&a->lock);
}

void lathe_engine_activity(const lathe_engine *e, lathe_activity *out, lathe_slot_info *slot,
                           int32_t n_slots)
{
    /* Of an engine that is otherwise not changed. */
    union {
        const lathe_engine *in;
        lathe_engine *out;
    } mine = {e};
    struct activity *a = &mine.out->activity;
    int32_t n = n_slots < e->options.n_slots ? n_slots : e->options.n_slots;
    pthread_mutex_lock(&a->lock);
    *out = a->shown;
    if (n > 0)
        memcpy(slot, a->slot, (size_t)n * sizeof *slot);
    pthread_mutex_unlock(&a->lock);
    for (int32_t i = 0; i < n; i++)
        slot[i].idle_ms = slot[i].idle_ms > 0 ? clock_ms() - slot[i].idle_ms : 0;
    out->n_queued = atomic_load(&e->n_queued);
    out->n_queued_background = atomic_load(&e->n_queued_background);
}

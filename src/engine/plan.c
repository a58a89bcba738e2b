#include "engine/plan.h"

#include <string.h>

#include "base/size.h"
#include "engine/engine.h"

struct state_options plan_state_options(const struct lathe_engine *e)
{
    const lathe_engine_options *o = &e->options;
    return (struct state_options){
        .act = engine_dtype(o->activations),
        .kv = engine_dtype(o->kv),
        .n_slots = o->n_slots + STEP_SHADOW_SLOTS,
        .n_ctx = o->n_ctx,
        .n_verify = e->spec.ops ? o->n_slots * (1 + e->spec.draft_k) : 1,
        /* For prompts that are left, and rounds of the device that say too much: ahead.c. */
        .has_spare = e->backend->watch || (e->spec.ops && e->spec.ops->ready && !e->spec.law),
    };
}

struct step_options plan_step_options(struct lathe_engine *e)
{
    const lathe_engine_options *o = &e->options;
    int32_t rows = o->n_slots * (1 + e->spec.draft_k); /* of a round */
    return (struct step_options){
        .model = &e->model,
        .state = &e->state,
        .backend = e->backend,
        .stream = e->stream,
        .max_rows = o->prefill_chunk > rows ? o->prefill_chunk : rows,
        .max_seqs = o->n_slots,
        .tap = e->spec.info.tap,
        .n_taps = e->spec.info.n_taps,
        .ids = &e->ids,
    };
}

static size_t taken(const struct memory *m)
{
    const struct backend *backend = m->cache.backend;
    return m->weights.used + m->cache.used + m->workspace.used + backend->own_bytes +
           backend->driver_bytes + (backend->is_host ? m->host : 0);
}

/* The plan at e->options.n_ctx. */
static lathe_status measure(struct lathe_engine *e, struct memory *m, lathe_error *err)
{
    struct state_options so = plan_state_options(e);
    lathe_memory_plan *p = &e->plan;
    memory_measure(m, e->backend, e->stream);
    model_place(m, &e->model);
    p->weights = m->weights.used;

    state_close(&e->state);
    lathe_status st = state_open(&e->state, &e->model.dims, &so, &m->cache, err);
    if (st)
        return st;
    uint64_t record = record_bytes(&e->state.recurrent.shape, so.n_verify);
    p->kv_per_token = kv_cache_bytes_per_token(&e->state.kv.shape);
    struct recurrent_shape slots = e->state.recurrent.shape;
    size_t with_spare = recurrent_bytes(&slots);
    slots.n_slots = so.n_slots;
    p->recurrent = recurrent_bytes(&slots);
    size_t spare = with_spare - p->recurrent;
    p->kv = m->cache.used - with_spare - record;
    if (!e->spec.ops)
        p->recurrent += record;

    struct step_options step = plan_step_options(e);
    size_t workspace;
    void *none;
    st = step_plan(&step, &workspace, NULL, err);
    if (!st)
        st = region_take(&m->workspace, &none, workspace, err);
    if (st)
        return st;
    p->workspace = m->workspace.used + e->backend->own_bytes + spare;
    p->driver = e->backend->driver_bytes;

    size_t before = taken(m);
    if (e->spec.ops)
        st = e->spec.ops->place(e->spec.drafter, e->options.n_ctx, m, err);
    p->drafter = taken(m) - before + (e->spec.ops ? record : 0);
    p->total = taken(m);
    p->mapped = e->backend->is_host ? m->weights.used : 0;
    p->n_ctx = e->options.n_ctx;
    p->n_slots = e->options.n_slots;
    return st;
}

/* What the machine has, and what of it stays free for the system's own needs and for others. */
static void find_room(struct lathe_engine *e)
{
    enum { HEAD_ROOM = 512 << 20 };
    lathe_memory_plan *p = &e->plan;
    size_t total, room;
    e->backend->room(e->stream, &total, &room);
    p->device_total = total;
    p->device_free = room;
    p->head_room = total / 16 < HEAD_ROOM ? total / 16 : HEAD_ROOM;
    (void)snprintf(p->device, sizeof p->device, "%s %s", e->backend->name,
                   e->backend->isa(e->stream));
}

/* Bytes that may be taken; the most there is where that is not known. */
static uint64_t unused(const lathe_memory_plan *p)
{
    if (p->device_total == 0)
        return UINT64_MAX;
    return p->device_free > p->head_room ? p->device_free - p->head_room : 0;
}

/* Mapped weights may be read from the disk again and again, so that a context that was asked for is not refused
 * for them; one that is chosen here leaves them room, if they have any. */
static bool fits(const struct lathe_engine *e, bool chosen)
{
    const lathe_memory_plan *p = &e->plan;
    uint64_t take = p->total - p->mapped, room = unused(p);
    if ((e->options.memory && take > e->options.memory) || take > room)
        return false;
    return !chosen || p->mapped > room || p->total <= room;
}

/* The plan at another context, whose prompts come in chunks of at most `chunk` rows. */
static lathe_status measure_at(struct lathe_engine *e, struct memory *m, int32_t chunk,
                               int32_t n_ctx, lathe_error *err)
{
    e->options.n_ctx = n_ctx;
    e->options.prefill_chunk = chunk < n_ctx ? chunk : n_ctx;
    return measure(e, m, err);
}

/* The largest context that fits, 0 if none does. Whole pages of the KV cache are tried. */
static lathe_status largest(struct lathe_engine *e, struct memory *m, int32_t chunk, int32_t *n_ctx,
                            lathe_error *err)
{
    int32_t most = e->model.dims.max_position, low = 0, high = (most - 1) / KV_PAGE + 1;
    /* low pages fit, more than high do not; the first try is the most */
    for (int32_t at = high; low < high; at = low + (high - low + 1) / 2) {
        int64_t n = (int64_t)at * KV_PAGE;
        lathe_status st = measure_at(e, m, chunk, n < most ? (int32_t)n : most, err);
        bool too_large = st == LATHE_E_LIMIT || st == LATHE_E_MEMORY;
        if (st && !too_large)
            return st;
        if (!st && fits(e, true))
            low = at;
        else
            high = at - 1;
    }
    int64_t n = (int64_t)low * KV_PAGE;
    *n_ctx = n < most ? (int32_t)n : most;
    return LATHE_OK;
}

static lathe_status refuse(const struct lathe_engine *e, int32_t largest_ctx, lathe_error *err)
{
    const lathe_memory_plan *p = &e->plan;
    char take[32], weights[32], kv[32], recurrent[32], drafter[32], workspace[32],
        driver[48] = "", room[32], total[32], head[32], limit[64] = "",
        larger[64] = "; no context fits";
    size_text(take, p->total - p->mapped);
    size_text(weights, p->weights);
    size_text(kv, p->kv);
    size_text(recurrent, p->recurrent);
    size_text(drafter, p->drafter);
    size_text(workspace, p->workspace);
    size_text(room, p->device_free);
    size_text(total, p->device_total);
    size_text(head, p->head_room);
    if (p->driver) {
        char text[32];
        size_text(text, p->driver);
        (void)snprintf(driver, sizeof driver, ", driver %s", text);
    }
    if (e->options.memory) {
        char text[32];
        size_text(text, e->options.memory);
        (void)snprintf(limit, sizeof limit, ", and it may take %s", text);
    }
    if (largest_ctx)
        (void)snprintf(larger, sizeof larger, "; a context of %d would fit", largest_ctx);
    return fail(err, LATHE_E_MEMORY,
                "a context of %d in %d slot%s takes %s of the memory of %s (weights %s%s, KV cache "
                "%s, recurrent state %s, drafter %s, workspace %s%s); %s of %s are free, of "
                "which %s stay so%s%s",
                p->n_ctx, p->n_slots, p->n_slots == 1 ? "" : "s", take, p->device, weights,
                p->mapped ? " beside it, mapped" : "", kv, recurrent, drafter, workspace, driver,
                room, total, head, limit, larger);
}

lathe_status plan_make(struct lathe_engine *e, struct memory *m, lathe_error *err)
{
    int32_t wanted = e->options.n_ctx, chunk = e->options.prefill_chunk, best;
    find_room(e);
    if (wanted != LATHE_CTX_AUTO) {
        lathe_status st = measure_at(e, m, chunk, wanted, err);
        if (st || fits(e, false))
            return st;
    }
    lathe_status st = largest(e, m, chunk, &best, err);
    if (st)
        return st;
    if (wanted == LATHE_CTX_AUTO) {
        st = measure_at(e, m, chunk, best ? best : KV_PAGE, err);
        return st || best ? st : refuse(e, 0, err);
    }
    st = measure_at(e, m, chunk, wanted, err);
    return st ? st : refuse(e, best, err);
}

#include "rig.h"

#include "device.h"
#include "test.h"

void rig_open(struct rig *r, const struct rig_options *o)
{
    lathe_error err;
    *r = (struct rig){.backend = o->backend};
    if (!r->backend)
        r->backend = o->isa ? &backend_cpu : test_backend();
    CHECK_OK(model_open(&r->model, o->dir, &err), &err);
    CHECK_OK(pool_open(&r->pool, o->n_threads ? o->n_threads : 2, false, &err), &err);
    CHECK_OK(r->backend->open(&r->stream, r->pool, o->isa, &err), &err);
    memory_loose(&r->memory, r->backend, r->stream);
    model_place(&r->memory, &r->model);
    CHECK_OK(memory_load(&r->memory, r->pool, NULL, NULL, &err), &err);
    struct state_options so = {
        .act = o->act,
        .kv = o->kv,
        .n_slots = (o->n_slots ? o->n_slots : 1) + STEP_SHADOW_SLOTS,
        .n_ctx = o->n_ctx ? o->n_ctx : 1024,
        .n_verify = 64,
    };
    CHECK_OK(state_open(&r->state, &r->model.dims, &so, &r->memory.cache, &err), &err);
    struct step_options to = {
        .model = &r->model,
        .state = &r->state,
        .backend = r->backend,
        .stream = r->stream,
        .max_rows = o->max_rows ? o->max_rows : so.n_ctx,
        .max_seqs = so.n_slots - STEP_SHADOW_SLOTS,
        .tap = o->tap,
        .n_taps = o->n_taps,
    };
    CHECK_OK(step_open(&r->step, &to, &r->memory.workspace, &err), &err);
}

void rig_close(struct rig *r)
{
    step_close(&r->step);
    state_close(&r->state);
    memory_close(&r->memory);
    r->backend->close(r->stream);
    pool_close(r->pool);
    model_close(&r->model);
}

void rig_run(struct rig *r, enum phase phase, int32_t slot, int32_t pos, const int32_t *token,
             int32_t n)
{
    lathe_error err;
    step_begin(&r->step, phase);
    step_add(&r->step, slot, pos, token, n);
    CHECK_OK(step_run(&r->step, &err), &err);
}

const float *rig_logits(struct rig *r, int32_t row)
{
    lathe_error err;
    CHECK_OK(step_logits(&r->step, &row, 1, &err), &err);
    return r->step.logits.data;
}

void rig_reset(struct rig *r, int32_t slot)
{
    state_reset(&r->state, slot);
}

int32_t argmax(const float *x, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

double relative_difference(const float *a, const float *b, int64_t n)
{
    double worst = 0, scale = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]);
        if (isnan(d))
            return INFINITY;
        worst = d > worst ? d : worst;
        scale = fabs((double)b[i]) > scale ? fabs((double)b[i]) : scale;
    }
    return worst / scale;
}

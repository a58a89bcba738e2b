#include "spec/dflash.h"

#include <math.h>
#include <stdlib.h>

/* ---- Opening ------------------------------------------------------------------------------- */

static void rope_init(struct drafter *d)
{
    const struct dims *c = &d->config.dims;
    rope_axes(d->rope_axis, c->rotary_dims / 2, c->mrope_section);
    d->rope = (struct rope){
        .dims = c->rotary_dims,
        .inv_freq = c->inv_freq,
        .axis = d->rope_axis,
        .scale = c->rope_scale,
    };
}

/* DSpark's factor in pair scores. */
static lathe_status place_ones(struct drafter *d, struct region *r, lathe_error *err)
{
    size_t n = (size_t)d->o.n_slots * (size_t)d->max_draft * (size_t)d->config.rank;
    void *memory;
    lathe_status st = region_take(r, &memory, n * sizeof *d->ones, err);
    if (st || r->measuring || n == 0)
        return st;
    d->ones = memory;
    float *one = malloc(n * sizeof *one);
    if (!one)
        return fail_memory(err, n * sizeof *one);
    for (size_t i = 0; i < n; i++)
        one[i] = 1;
    d->o.backend->copy_in(d->o.stream, d->ones, one, n * sizeof *one);
    st = d->o.backend->wait(d->o.stream, err);
    free(one);
    return st;
}

/* Where a walk's results go if the host cannot read them in place. */
static lathe_status open_host(struct drafter *d, lathe_error *err)
{
    const struct dflash_config *c = &d->config;
    size_t n = (size_t)d->o.n_slots, n_rows = n * (size_t)d->max_draft;
    size_t k = (size_t)c->n_candidates;
    void *p = NULL;
    if (c->kind == DFLASH_PLAIN) {
        size_t bytes = n_rows * (size_t)c->dims.vocab * sizeof *d->host_logits;
        lathe_status st = d->o.backend->alloc_host(d->o.stream, &p, bytes, err);
        d->host_logits = p;
        return st;
    }
    size_t bytes = n_rows * (k + k * k) * sizeof *d->host_table;
    lathe_status st = d->o.backend->alloc_host(d->o.stream, &p, bytes, err);
    d->host_table = p;
    return st;
}

static lathe_status open_arrays(struct drafter *d, lathe_error *err)
{
    int32_t block_rows = d->o.n_slots * d->config.block;
    d->max_rows = d->o.max_rows > block_rows ? d->o.max_rows : block_rows;
    size_t n = (size_t)d->max_rows, n_slots = (size_t)d->o.n_slots;
    size_t vocab = (size_t)d->config.dims.vocab;
    d->row = malloc(n * sizeof *d->row);
    d->prev = calloc(n_slots, sizeof *d->prev);
    d->survival = malloc(n_slots * sizeof *d->survival);
    d->candidate_row = malloc(vocab * sizeof *d->candidate_row);
    d->host_confidence = malloc(n_slots * sizeof *d->host_confidence);
    if (!d->row || !d->prev || !d->survival || !d->candidate_row || !d->host_confidence)
        return fail_memory(err, n * sizeof *d->row + vocab * sizeof *d->candidate_row);
    for (size_t i = 0; i < vocab; i++)
        d->candidate_row[i] = -INFINITY;
    return batch_store_open(&d->store, n, n_slots, err);
}

/* Rows that are appended at once: no more are committed than the context has. */
static int32_t append_rows(const struct drafter *d)
{
    return d->o.max_rows < d->o.n_ctx ? d->o.max_rows : d->o.n_ctx;
}

/* The peak of appending n rows of one slot. */
static lathe_status plan_append(struct drafter *d, int32_t n, size_t *peak, lathe_error *err)
{
    struct exec x;
    exec_plan(&x, d->o.backend, d->o.stream, NULL);
    batch_begin(&d->batch, &d->store, PHASE_DECODE);
    batch_add(&d->batch, &d->store, 0, 0, NULL, n);
    int64_t width = (int64_t)d->config.n_taps * d->config.dims.hidden;
    dflash_append(&x, d, tensor_2d(NULL, d->o.act, n, width), &d->batch);
    *peak = x.peak > *peak ? x.peak : *peak;
    return exec_end(&x, err);
}

/* Blocks of n slots, and the choice of `most` drafts for each. */
static void run_blocks(struct exec *x, struct drafter *d, struct draft_request *r, int32_t n,
                       int32_t most)
{
    size_t mark = exec_push(x);
    struct tensor h = exec_tmp(x, d->o.act, d->batch.n_rows, d->config.dims.hidden);
    dflash_block(x, d, h, &d->batch);
    dflash_walk(x, d, h, r, n, most);
    exec_pop(x, mark);
}

static lathe_status plan_blocks(struct drafter *d, int32_t n, int32_t most, size_t *peak,
                                lathe_error *err)
{
    struct exec x;
    exec_plan(&x, d->o.backend, d->o.stream, NULL);
    batch_begin(&d->batch, &d->store, PHASE_DECODE);
    for (int32_t i = 0; i < n; i++)
        batch_add(&d->batch, &d->store, i, 0, NULL, d->config.block);
    run_blocks(&x, d, NULL, n, most);
    *peak = x.peak > *peak ? x.peak : *peak;
    return exec_end(&x, err);
}

static lathe_status place_workspace(struct drafter *d, struct region *r, lathe_error *err)
{
    lathe_status st = LATHE_OK;
    size_t peak = 0;
    /* Kernels choose their scratch by the number of rows: the small counts are planned one by one. */
    for (int32_t n = 1; n <= 64 && n <= append_rows(d) && !st; n++)
        st = plan_append(d, n, &peak, err);
    if (!st)
        st = plan_append(d, append_rows(d), &peak, err);
    for (int32_t n = 1; n <= d->o.n_slots && !st; n++)
        for (int32_t most = 1; most <= d->max_draft && !st; most++)
            st = plan_blocks(d, n, most, &peak, err);
    void *memory = NULL;
    if (!st)
        st = region_take(r, &memory, peak, err);
    exec_init(&d->x, d->o.backend, d->o.stream, memory, peak);
    return st;
}

static void dflash_close(struct drafter *d)
{
    if (!d)
        return;
    dflash_context_close(&d->context);
    dflash_weights_close(&d->weights);
    free(d->row);
    batch_store_close(&d->store);
    free(d->prev);
    free(d->survival);
    free(d->candidate_row);
    free(d->host_confidence);
    void *const host[] = {d->host_logits, d->host_table};
    for (int i = 0; i < 2; i++)
        if (host[i])
            d->o.backend->free_host(d->o.stream, host[i]);
    free(d);
}

static lathe_status open_parts(struct drafter *d, lathe_error *err)
{
    struct dflash_config *c = &d->config;
    lathe_status st = dflash_config_read(c, d->o.dir, err);
    if (!st) {
        st = dflash_config_fits(c, &d->o.model->dims, err);
        if (st)
            error_context(err, "drafter %s", d->o.dir);
    }
    if (!st)
        st = dflash_weights_open(&d->weights, c, d->o.dir, err);
    if (st)
        return st;
    d->embed_tokens =
        d->weights.embed_tokens.rows ? &d->weights.embed_tokens : &d->o.model->embed_tokens;
    d->lm_head = d->weights.lm_head.rows ? &d->weights.lm_head : &d->o.model->lm_head;
    d->max_draft = c->block - c->first_row;
    if (d->max_draft > SPEC_MAX_DRAFT)
        d->max_draft = SPEC_MAX_DRAFT;
    rope_init(d);
    return open_arrays(d, err);
}

static lathe_status dflash_open(struct drafter **out, const struct drafter_options *o,
                                lathe_error *err)
{
    *out = NULL;
    if (!o->dir)
        return fail(err, LATHE_E_ARGUMENT, "a block drafter needs a checkpoint of its own");
    struct drafter *d = calloc(1, sizeof *d);
    if (!d)
        return fail_memory(err, sizeof *d);
    d->o = *o;
    if (d->o.kv == DT_F8_E4M3)
        d->o.kv = DT_BF16; /* rings are small: the codes would save little */
    lathe_status st = open_parts(d, err);
    if (st) {
        dflash_close(d);
        return st;
    }
    d->o.dir = NULL; /* the caller's, and not needed any more */
    *out = d;
    return LATHE_OK;
}

static lathe_status dflash_place(struct drafter *d, int32_t n_ctx, struct memory *m,
                                 lathe_error *err)
{
    d->o.n_ctx = n_ctx;
    dflash_weights_place(&d->weights, &d->config, m);
    dflash_context_close(&d->context); /* of what was measured before */
    lathe_status st = dflash_context_open(&d->context, &d->config, &d->o, n_ctx, &m->cache, err);
    if (!st)
        st = place_workspace(d, &m->workspace, err);
    if (!st)
        st = place_ones(d, &m->workspace, err);
    if (!st && !m->cache.measuring && !d->o.backend->is_host)
        st = open_host(d, err);
    if (st)
        error_context(err, "drafter dflash2");
    return st;
}

static void dflash_info(const struct drafter *d, struct drafter_info *out)
{
    enum { USUAL = 7 }; /* what DFlash2 has; later ones of a longer block are seldom accepted */
    *out = (struct drafter_info){
        .max_draft = d->max_draft,
        .usual_draft = d->max_draft < USUAL ? d->max_draft : USUAL,
        .max_from[DRAFT_MODEL] = d->max_draft,
        .usual_from[DRAFT_MODEL] = d->max_draft < USUAL ? d->max_draft : USUAL,
        .n_taps = d->config.n_taps,
        .tap = d->config.tap,
        .has_law = true,
    };
}

/* ---- Rounds -------------------------------------------------------------------------------- */

/* Positions that no later row can see are not computed: what all rings would drop again. */
static int32_t rows_to_skip(const struct drafter *d, int32_t n)
{
    int64_t longest = 0;
    for (int32_t i = 0; i < d->config.dims.n_layers; i++) {
        int64_t size = d->context.ring[i].k.dim[1];
        longest = size > longest ? size : longest;
    }
    return n > longest ? n - (int32_t)longest : 0;
}

static lathe_status check_slot(const struct drafter *d, int32_t slot, int32_t pos, lathe_error *err)
{
    if (slot < 0 || slot >= d->o.n_slots)
        return fail(err, LATHE_E_ARGUMENT, "slot %d, expected 0 to %d", slot, d->o.n_slots - 1);
    if (pos != d->context.frontier[slot])
        return fail(err, LATHE_E_ARGUMENT,
                    "slot %d: position %d, but the drafter has been told of %d positions", slot,
                    pos, d->context.frontier[slot]);
    return LATHE_OK;
}

static lathe_status dflash_committed(struct drafter *d, const struct committed *c, lathe_error *err)
{
    lathe_status st = check_slot(d, c->slot, c->pos, err);
    if (!st && c->n > d->o.n_ctx - c->pos)
        st = fail(err, LATHE_E_CONTEXT, "%d positions, the context has %d", c->pos + c->n,
                  d->o.n_ctx);
    for (int32_t i = rows_to_skip(d, c->n); i < c->n && !st; i += append_rows(d)) {
        int32_t n = c->n - i < append_rows(d) ? c->n - i : append_rows(d);
        batch_begin(&d->batch, &d->store, PHASE_DECODE);
        batch_add(&d->batch, &d->store, c->slot, c->pos + i, NULL, n);
        exec_begin(&d->x);
        dflash_append(&d->x, d, tensor_rows(c->feature, i, n), &d->batch);
        st = exec_end(&d->x, err);
    }
    if (!st)
        d->context.frontier[c->slot] = c->pos + c->n;
    return st;
}

static lathe_status dflash_propose(struct drafter *d, struct draft_request *r, int32_t n,
                                   lathe_error *err)
{
    int32_t token[DFLASH_MAX_BLOCK], most = 0;
    for (int32_t i = 1; i < d->config.block; i++)
        token[i] = d->config.mask_token;
    batch_begin(&d->batch, &d->store, PHASE_DECODE);
    for (int32_t j = 0; j < n; j++) {
        lathe_status st = check_slot(d, r[j].slot, r[j].pos, err);
        if (st)
            return st;
        r[j].n = 0;
        r[j].most = r[j].most < d->max_draft ? r[j].most : d->max_draft;
        most = r[j].most > most ? r[j].most : most;
        token[0] = r[j].anchor;
        batch_add(&d->batch, &d->store, r[j].slot, r[j].pos, token, d->config.block);
    }
    if (most < 1)
        return LATHE_OK;
    exec_begin(&d->x);
    run_blocks(&d->x, d, r, n, most);
    return exec_end(&d->x, err);
}

/* ---- Rounds of a resident sequence --------------------------------------------------------------- */

static bool dflash_ready(struct drafter *d, struct resident *r, int32_t most, struct home *home)
{
    const struct dflash_config *c = &d->config;
    struct dflash_context *x = &d->context;
    if (c->kind != DFLASH_SELECTOR || c->has_confidence || c->block > RESIDENT_ROWS ||
        most > 1 + d->max_draft || x->frontier[r->block.slot] != r->block.pos)
        return false;
    r->block.n_rows = c->block;
    for (int32_t i = 1; i < c->block; i++)
        r->block_token[i] = c->mask_token;
    dflash_context_send(x);
    size_t n = (size_t)c->dims.n_layers * (size_t)x->n_slots;
    *home = (struct home){x->first, x->device_first, n * sizeof *x->first};
    return true;
}

static lathe_status dflash_reach(struct drafter *d, int32_t slot, int32_t end_pos, lathe_error *err)
{
    (void)d, (void)slot, (void)end_pos, (void)err;
    return LATHE_OK;
}

static lathe_status dflash_draft(struct drafter *d, const struct resident *r,
                                 struct resident *there, int32_t n_rows, int32_t n_best,
                                 const struct history *h, const struct round_rows *last,
                                 int32_t end_pos, lathe_error *err)
{
    (void)n_best; /* all of a step's candidates are at hand */
    struct batch kept, block;
    struct tensor anchor = tensor_2d(&there->token[0], DT_I32, 1, 1);
    resident_kept(&kept, r, end_pos);
    resident_block(&block, r, end_pos);
    exec_begin(&d->x);
    if (kept.n_rows > 0)
        dflash_append(&d->x, d, tensor_rows(last->feature, 0, kept.n_rows), &kept);
    if (n_rows > 1) {
        struct tensor rows = exec_tmp(&d->x, d->o.act, block.n_rows, d->config.dims.hidden);
        dflash_block(&d->x, d, rows, &block);
        dflash_walk_there(&d->x, d, rows, anchor, tensor_1d(&there->token[1], DT_I32, n_rows - 1),
                          there, h);
    }
    return exec_end(&d->x, err);
}

static void dflash_followed(struct drafter *d, const struct committed *c)
{
    d->context.frontier[c->slot] = c->pos + c->n;
}

static void dflash_rewind(struct drafter *d, int32_t slot, int32_t n)
{
    dflash_context_rewind(&d->context, slot, n);
}

static lathe_status dflash_save(const struct drafter *d, int32_t slot, struct buf *out,
                                lathe_error *err)
{
    return dflash_context_save(&d->context, slot, out, err);
}

static lathe_status dflash_load(struct drafter *d, int32_t slot, const void *bytes, size_t n,
                                lathe_error *err)
{
    return dflash_context_load(&d->context, slot, bytes, n, err);
}

const struct drafter_ops drafter_dflash2 = {
    .name = "dflash2",
    .open = dflash_open,
    .place = dflash_place,
    .close = dflash_close,
    .info = dflash_info,
    .committed = dflash_committed,
    .propose = dflash_propose,
    .ready = dflash_ready,
    .reach = dflash_reach,
    .draft = dflash_draft,
    .followed = dflash_followed,
    .rewind = dflash_rewind,
    .save = dflash_save,
    .load = dflash_load,
};

#include "engine/step.h"

#include <assert.h>
#include <stdlib.h>

static int32_t logit_rows(const struct step_options *o)
{
    int32_t n = o->max_rows < STEP_LOGIT_ROWS ? o->max_rows : STEP_LOGIT_ROWS;
    int32_t least = o->max_seqs > o->state->record.n_rows ? o->max_seqs : o->state->record.n_rows;
    return n > least ? n : least;
}

/* The buffers beside the workspace, with no data. */
static void shape_outputs(struct step *s)
{
    const struct dims *d = &s->o.model->dims;
    s->hidden = tensor_2d(NULL, s->o.state->act, s->o.max_rows, d->hidden);
    s->feature = tensor_2d(NULL, s->o.state->act, s->o.max_rows, (int64_t)s->o.n_taps * d->hidden);
    s->logits = tensor_2d(NULL, DT_F32, logit_rows(&s->o), d->vocab);
    s->shadow = tensor_2d(NULL, s->o.state->act, STEP_SHADOW_SLOTS * 16, d->hidden);
}

static struct feature_taps taps_of(const struct step *s, int32_t n_rows)
{
    return (struct feature_taps){s->o.n_taps, s->o.tap, tensor_rows(s->feature, 0, n_rows)};
}

static size_t history_bytes(const struct step *s)
{
    return sizeof(struct penalties) + 2 * (size_t)s->logits.dim[1] * sizeof(int32_t);
}

/* One that lies there. */
static struct history history_at(const struct step *s, void *memory)
{
    struct penalties *p = memory;
    int32_t *seen = (int32_t *)(p + 1);
    return (struct history){p, seen, seen + s->logits.dim[1]};
}

static size_t output_bytes(const struct step *s)
{
    return tensor_room(&s->hidden) + tensor_room(&s->feature) + tensor_room(&s->logits) +
           tensor_room(&s->shadow) + sizeof(struct resident) + history_bytes(s);
}

/* The peak of a step of n rows, the head's projection included. */
static lathe_status plan_rows(const struct step *s, int32_t n, enum phase phase, size_t *peak,
                              struct buf *listing, lathe_error *err)
{
    struct batch_seq seq = {0, 0, n, 0};
    struct batch b = {.phase = phase, .n_rows = n, .n_seqs = 1, .seq = &seq};
    struct exec x;
    exec_plan(&x, s->o.backend, s->o.stream, listing);
    int32_t n_logits = n < s->logits.dim[0] ? n : (int32_t)s->logits.dim[0];
    static const int32_t no_rows[1];
    struct feature_taps taps = taps_of(s, n);
    forward(&x, s->o.model, s->o.state, &b, &taps, tensor_rows(s->hidden, 0, n));
    struct tensor head = tensor_rows(s->logits, 0, n_logits);
    struct best_rows best = {0};
    forward_logits(&x, s->o.model, head, s->hidden, no_rows);
    if (s->o.ids)
        best_rows_find(&x, &best, head, s->o.ids, SAMPLE_MAX_BEST);
    lathe_status st = exec_end(&x, err);
    if (x.peak > *peak)
        *peak = x.peak;
    return st;
}

static lathe_status run_round(const struct step *s, struct exec *x, int32_t n, int32_t n_best,
                              int32_t end_pos, lathe_error *err)
{
    const struct resident *r = s->resident_host;
    struct resident *there = s->resident; /* NULL while planning */
    struct batch b;
    resident_batch(&b, r, n, end_pos);
    struct tensor hidden = tensor_rows(s->hidden, 0, b.n_rows);
    struct tensor head = tensor_rows(s->head, 0, b.n_rows);
    struct tensor logit = tensor_2d(there ? there->logit : NULL, DT_F32, b.n_rows, 1);
    struct tensor best = tensor_2d(there ? there->best : NULL, DT_I32, b.n_rows, 1);
    struct feature_taps taps = taps_of(s, b.n_rows);
    forward(x, s->o.model, s->o.state, &b, &taps, hidden);
    forward_logits(x, s->o.model, head, hidden, NULL);
    op_penalise(x, head, 0, there, &s->history);
    if (n_best == 1) {
        op_top_k(x, logit, best, head, id_set_pairs(s->o.ids), s->o.ids->n_ranges);
    } else {
        struct tensor value = exec_tmp(x, DT_F32, b.n_rows, n_best);
        struct tensor id = exec_tmp(x, DT_I32, b.n_rows, n_best);
        op_top_k(x, value, id, head, id_set_pairs(s->o.ids), s->o.ids->n_ranges);
        op_choose(x, tensor_1d(best.data, DT_I32, b.n_rows), value, id, head,
                  id_set_pairs(s->o.ids), s->o.ids->n_ranges, 0, -1, there);
    }
    op_advance(x, there, n, &s->history, s->report);
    return exec_end(x, err);
}

static lathe_status plan_round(const struct step *s, int32_t n, int32_t n_best, size_t *peak,
                               lathe_error *err)
{
    struct resident r = resident_at(0, 0, 0);
    struct step planned = *s;
    struct exec x;
    planned.resident_host = &r;
    planned.head = s->logits;
    exec_plan(&x, s->o.backend, s->o.stream, NULL);
    lathe_status st = run_round(&planned, &x, n, n_best, 0, err);
    *peak = x.peak > *peak ? x.peak : *peak;
    return st;
}

/* Rows of a round that step_round may be called for. */
static int32_t round_rows(const struct step_options *o)
{
    int32_t n = o->state->record.n_rows;
    return !o->ids ? 0 : n < RESIDENT_ROWS ? n : RESIDENT_ROWS;
}

static lathe_status plan(const struct step *s, size_t *peak, struct buf *listing, lathe_error *err)
{
    /* Kernels choose their scratch by the number of rows: the small counts are planned one by one. */
    lathe_status st = LATHE_OK;
    *peak = 0;
    for (int32_t n = 1; n <= 64 && n < s->o.max_rows && !st; n++)
        st = plan_rows(s, n, PHASE_DECODE, peak, NULL, err);
    for (int32_t n = 1; n <= round_rows(&s->o) && !st; n++) {
        st = plan_round(s, n, 1, peak, err);
        if (!st)
            st = plan_round(s, n, RESIDENT_BEST, peak, err);
    }
    return st ? st : plan_rows(s, s->o.max_rows, PHASE_PREFILL, peak, listing, err);
}

lathe_status step_plan(const struct step_options *o, size_t *bytes, struct buf *listing,
                       lathe_error *err)
{
    struct step s = {.o = *o};
    shape_outputs(&s);
    lathe_status st = plan(&s, bytes, listing, err);
    *bytes += output_bytes(&s);
    return st;
}

static lathe_status open_rounds(struct step *s, lathe_error *err)
{
    const struct backend *b = s->o.backend;
    void *report;
    lathe_status st = b->alloc_host(s->o.stream, &report, ROUND_REPORTS * sizeof *s->report, err);
    if (st)
        return st;
    s->report = report;
    s->history = s->history_host = history_at(s, s->resident + 1);
    s->resident_host = s->resident;
    if (b->is_host)
        return LATHE_OK;
    size_t bytes = sizeof *s->resident + history_bytes(s);
    s->resident_host = calloc(1, bytes);
    s->history_host = history_at(s, s->resident_host + 1);
    return s->resident_host ? LATHE_OK : fail_memory(err, bytes);
}

lathe_status step_open(struct step *s, const struct step_options *o, struct region *workspace,
                       lathe_error *err)
{
    *s = (struct step){.o = *o};
    shape_outputs(s);
    lathe_status st = plan(s, &s->workspace_bytes, NULL, err);
    size_t outputs = output_bytes(s);
    if (!st)
        st = region_take(workspace, &s->workspace, s->workspace_bytes + outputs, err);
    if (st) {
        step_close(s);
        return st;
    }
    s->hidden.data = (unsigned char *)s->workspace + s->workspace_bytes;
    s->feature.data = (unsigned char *)s->hidden.data + tensor_room(&s->hidden);
    s->head = s->logits;
    s->head.data = (unsigned char *)s->feature.data + tensor_room(&s->feature);
    s->shadow.data = (unsigned char *)s->head.data + tensor_room(&s->head);
    s->resident = (void *)((unsigned char *)s->shadow.data + tensor_room(&s->shadow));
    s->logits.data = s->head.data;
    if (!o->backend->is_host)
        st = o->backend->alloc_host(o->stream, &s->logits.data, tensor_room(&s->logits), err);
    if (!st)
        st = best_rows_open(&s->best, o->backend, o->stream, logit_rows(o), err);
    if (!st)
        st = open_rounds(s, err);
    if (st) {
        step_close(s);
        return st;
    }
    size_t n = (size_t)o->max_rows, n_seqs = (size_t)o->max_seqs;
    s->row = malloc(n * sizeof *s->row);
    s->kept = malloc(n_seqs * sizeof *s->kept);
    st = s->row && s->kept ? batch_store_open(&s->store, n, n_seqs, err)
                           : fail_memory(err, n * sizeof *s->row);
    if (st) {
        step_close(s);
        return st;
    }
    exec_init(&s->x, o->backend, o->stream, s->workspace, s->workspace_bytes);
    return LATHE_OK;
}

void step_close(struct step *s)
{
    if (s->logits.data && s->logits.data != s->head.data)
        s->o.backend->free_host(s->o.stream, s->logits.data);
    best_rows_close(&s->best, s->o.backend, s->o.stream);
    if (s->report)
        s->o.backend->free_host(s->o.stream, s->report);
    if (s->resident_host != s->resident)
        free(s->resident_host);
    batch_store_close(&s->store);
    free(s->row);
    free(s->kept);
    *s = (struct step){0};
}

void step_begin(struct step *s, enum phase phase)
{
    batch_begin(&s->batch, &s->store, phase);
}

void step_add(struct step *s, int32_t slot, int32_t pos, const int32_t *token, int32_t n)
{
    batch_add(&s->batch, &s->store, slot, pos, token, n);
}

lathe_status step_run(struct step *s, lathe_error *err)
{
    const struct batch *b = &s->batch;
    if (b->phase == PHASE_VERIFY && b->n_rows > s->o.state->record.n_rows)
        return fail(err, LATHE_E_LIMIT, "a verify batch of %d rows, at most %d", b->n_rows,
                    s->o.state->record.n_rows);
    for (int32_t i = 0; i < b->n_seqs; i++) {
        const struct batch_seq *q = &b->seq[i];
        lathe_status st = kv_cache_reserve(&s->o.state->kv, q->slot, q->pos + q->n_rows, err);
        if (st)
            return st;
    }
    exec_begin(&s->x);
    struct feature_taps taps = taps_of(s, b->n_rows);
    forward(&s->x, s->o.model, s->o.state, b, &taps, tensor_rows(s->hidden, 0, b->n_rows));
    return exec_end(&s->x, err);
}

static lathe_status fold(struct step *s, const struct batch_seq *seq, int32_t n_seqs,
                         const int32_t *before, lathe_error *err)
{
    exec_begin(&s->x);
    forward_commit(&s->x, s->o.model, s->o.state, seq, n_seqs, before);
    return exec_end(&s->x, err);
}

void step_place(struct step *s, const struct resident *r, int32_t most,
                const struct sampler *sampler)
{
    const struct backend *b = s->o.backend;
    const struct history *host = &s->history_host, *there = &s->history;
    *s->resident_host = *r;
    *host->p = (struct penalties){.n_seen = -1};
    if (sampler)
        sampler_history(sampler, host);
    if (b->is_host)
        return;
    size_t n_vocab = (size_t)s->logits.dim[1], n_seen = (size_t)host->p->n_seen;
    b->copy_in(s->o.stream, s->resident, r, sizeof *r);
    b->copy_in(s->o.stream, there->p, host->p, sizeof *host->p);
    if (host->p->n_seen > 0)
        b->copy_in(s->o.stream, there->seen, host->seen, n_seen * sizeof *host->seen);
    if (host->p->n_seen >= 0)
        b->copy_in(s->o.stream, there->times, host->times, n_vocab * sizeof *host->times);
    s->resident_host->keep.n_rows = s->resident_host->behind.n_rows = most;
}

lathe_status step_round(struct step *s, int32_t n, int32_t n_best, int32_t end_pos,
                        lathe_error *err)
{
    exec_begin(&s->x);
    return run_round(s, &s->x, n, n_best, end_pos, err);
}

#ifdef LATHE_DEBUG
/* One sequence's commit, beside decoding its rows, which are the batch's `rows`, in the shadow slot, which sees the same
 * pages. */
static lathe_status fold_checked(struct step *s, const struct batch_seq *seq,
                                 const struct batch *rows, const int32_t *before, lathe_error *err)
{
    struct state *state = s->o.state;
    int32_t shadow = state->kv.shape.n_slots - 1, n = seq->n_rows;
    int32_t slot[16];
    assert(n <= 16);
    for (int32_t i = 0; i < n; i++)
        slot[i] = shadow;
    state_alias(state, shadow, seq->slot);
    struct batch_seq one = {shadow, 0, n, seq->pos};
    struct batch b = {
        .phase = PHASE_DECODE,
        .n_rows = n,
        .n_seqs = 1,
        .token = rows->token + seq->first_row,
        .slot = slot,
        .pos = rows->pos + seq->first_row,
        .rope_pos = rows->rope_pos + seq->first_row,
        .seq = &one,
    };
    exec_begin(&s->x);
    forward(&s->x, s->o.model, state, &b, NULL, tensor_rows(s->shadow, 0, n));
    lathe_status st = exec_end(&s->x, err);
    if (!st)
        st = fold(s, seq, 1, before, err);
    assert(st || state_same(state, shadow, seq->slot));
    return st;
}

lathe_status step_commit(struct step *s, const struct batch_seq *seq, int32_t n_seqs,
                         lathe_error *err)
{
    lathe_status st = LATHE_OK;
    for (int32_t i = 0; i < n_seqs && !st; i++)
        st = fold_checked(s, &seq[i], &s->batch, NULL, err);
    return st;
}

/* Where the host knows what was kept. */
lathe_status step_fold(struct step *s, lathe_error *err)
{
    const struct resident *r = s->resident_host;
    struct batch kept;
    resident_kept(&kept, r, 0);
    if (!s->o.backend->is_host || kept.n_rows == 0)
        return fold(s, &r->keep, 1, &r->before, err);
    return fold_checked(s, &r->keep, &kept, &r->before, err);
}
#else
lathe_status step_commit(struct step *s, const struct batch_seq *seq, int32_t n_seqs,
                         lathe_error *err)
{
    return fold(s, seq, n_seqs, NULL, err);
}

lathe_status step_fold(struct step *s, lathe_error *err)
{
    const struct resident *r = s->resident_host;
    return fold(s, &r->keep, 1, &r->before, err);
}
#endif

lathe_status step_logits(struct step *s, const int32_t *row, int32_t n, lathe_error *err)
{
    struct tensor head = tensor_rows(s->head, 0, n);
    exec_begin(&s->x);
    forward_logits(&s->x, s->o.model, head, row ? s->hidden : tensor_rows(s->hidden, 0, n), row);
    (void)exec_fetch(&s->x, &head, s->logits.data);
    s->best.n = 0;
    return exec_end(&s->x, err);
}

lathe_status step_best(struct step *s, const int32_t *row, int32_t n, int32_t n_best,
                       lathe_error *err)
{
    struct tensor head = tensor_rows(s->head, 0, n);
    exec_begin(&s->x);
    forward_logits(&s->x, s->o.model, head, row ? s->hidden : tensor_rows(s->hidden, 0, n), row);
    best_rows_find(&s->x, &s->best, head, s->o.ids, n_best);
    return exec_end(&s->x, err);
}

lathe_status step_fetch(struct step *s, int32_t i, lathe_error *err)
{
    struct tensor one = tensor_rows(s->head, i, 1);
    exec_begin(&s->x);
    (void)exec_fetch(&s->x, &one, tensor_at(&s->logits, i));
    return exec_end(&s->x, err);
}

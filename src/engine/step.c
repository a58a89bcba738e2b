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

static size_t output_bytes(const struct step *s)
{
    return tensor_room(&s->hidden) + tensor_room(&s->feature) + tensor_room(&s->logits) +
           tensor_room(&s->shadow);
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

static lathe_status plan(const struct step *s, size_t *peak, struct buf *listing, lathe_error *err)
{
    /* Kernels choose their scratch by the number of rows: the small counts are planned one by one. */
    lathe_status st = LATHE_OK;
    *peak = 0;
    for (int32_t n = 1; n <= 64 && n < s->o.max_rows && !st; n++)
        st = plan_rows(s, n, PHASE_DECODE, peak, NULL, err);
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
    s->logits.data = s->head.data;
    if (!o->backend->is_host)
        st = o->backend->alloc_host(o->stream, &s->logits.data, tensor_room(&s->logits), err);
    if (!st)
        st = best_rows_open(&s->best, o->backend, o->stream, logit_rows(o), err);
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
                         lathe_error *err)
{
    exec_begin(&s->x);
    forward_commit(&s->x, s->o.model, s->o.state, seq, n_seqs);
    return exec_end(&s->x, err);
}

#ifdef LATHE_DEBUG
/* One sequence's commit, beside decoding its rows in the shadow slot, which sees the same pages. */
static lathe_status fold_checked(struct step *s, const struct batch_seq *seq, lathe_error *err)
{
    struct state *state = s->o.state;
    int32_t shadow = state->recurrent.shape.n_slots - 1, n = seq->n_rows;
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
        .token = s->store.token + seq->first_row,
        .slot = slot,
        .pos = s->store.pos + seq->first_row,
        .rope_pos = (const int32_t(*)[3])(s->store.rope_pos + seq->first_row),
        .seq = &one,
    };
    exec_begin(&s->x);
    forward(&s->x, s->o.model, state, &b, NULL, tensor_rows(s->shadow, 0, n));
    lathe_status st = exec_end(&s->x, err);
    if (!st)
        st = fold(s, seq, 1, err);
    assert(st || state_same(state, shadow, seq->slot));
    return st;
}

lathe_status step_commit(struct step *s, const struct batch_seq *seq, int32_t n_seqs,
                         lathe_error *err)
{
    lathe_status st = LATHE_OK;
    for (int32_t i = 0; i < n_seqs && !st; i++)
        st = fold_checked(s, &seq[i], err);
    return st;
}
#else
lathe_status step_commit(struct step *s, const struct batch_seq *seq, int32_t n_seqs,
                         lathe_error *err)
{
    return fold(s, seq, n_seqs, err);
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

#include <stdlib.h>

#include "op/run.h"

lathe_status batch_store_open(struct batch_store *m, size_t max_rows, size_t max_seqs,
                              lathe_error *err)
{
    *m = (struct batch_store){
        .token = calloc(max_rows, sizeof *m->token),
        .slot = calloc(max_rows, sizeof *m->slot),
        .pos = calloc(max_rows, sizeof *m->pos),
        .rope_pos = calloc(max_rows, sizeof *m->rope_pos),
        .seq = calloc(max_seqs, sizeof *m->seq),
    };
    if (m->token && m->slot && m->pos && m->rope_pos && m->seq)
        return LATHE_OK;
    batch_store_close(m);
    return fail_memory(err, max_rows * sizeof *m->rope_pos);
}

void batch_store_close(struct batch_store *m)
{
    free(m->token);
    free(m->slot);
    free(m->pos);
    free(m->rope_pos);
    free(m->seq);
    *m = (struct batch_store){0};
}

void batch_begin(struct batch *b, const struct batch_store *m, enum phase phase)
{
    *b = (struct batch){
        .phase = phase,
        .token = m->token,
        .slot = m->slot,
        .pos = m->pos,
        .rope_pos = (const int32_t(*)[3])m->rope_pos,
        .seq = m->seq,
    };
}

void batch_add(struct batch *b, const struct batch_store *m, int32_t slot, int32_t pos,
               const int32_t *token, int32_t n)
{
    m->seq[b->n_seqs++] = (struct batch_seq){slot, b->n_rows, n, pos};
    for (int32_t i = 0; i < n; i++) {
        int32_t t = b->n_rows++;
        m->token[t] = token ? token[i] : 0;
        m->slot[t] = slot;
        m->pos[t] = pos + i;
        for (int axis = 0; axis < 3; axis++)
            m->rope_pos[t][axis] = pos + i;
    }
}

bool batch_fits(const struct batch *b, int64_t n_slots)
{
    int64_t row = 0;
    for (int32_t i = 0; i < b->n_seqs; i++) {
        const struct batch_seq *s = &b->seq[i];
        if (s->slot < 0 || s->slot >= n_slots || s->first_row != row || s->n_rows < 1 || s->pos < 0)
            return false;
        row += s->n_rows;
    }
    return row == b->n_rows;
}

static bool planes_agree(const struct tensor *k, const struct tensor *v)
{
    if (k->n_dims != 4 || v->n_dims != 4 || k->dtype != v->dtype || k->stride < tensor_row(k) ||
        v->stride < tensor_row(v))
        return false;
    for (int i = 0; i < 4; i++)
        if (k->dim[i] != v->dim[i] || k->dim[i] < 1)
            return false;
    return true;
}

bool kv_pages_agree(const struct kv_pages *kv)
{
    bool can_hold = is_act(kv->k.dtype) || kv->k.dtype == DT_F8_E4M3;
    return can_hold && planes_agree(&kv->k, &kv->v) && kv->pages_per_slot >= 1;
}

bool kv_ring_agrees(const struct kv_ring *ring)
{
    return is_act(ring->k.dtype) && planes_agree(&ring->k, &ring->v);
}

bool kv_pages_hold(const struct kv_pages *kv, const struct batch *b)
{
    int64_t page = kv->k.dim[1];
    if (!batch_fits(b, INT32_MAX))
        return false;
    for (int32_t i = 0; i < b->n_seqs; i++) {
        const struct batch_seq *s = &b->seq[i];
        int64_t last = ((int64_t)s->pos + s->n_rows - 1) / page;
        if (last >= kv->pages_per_slot)
            return false;
        for (int64_t p = 0; p <= last; p++) {
            int32_t at = kv->page_table[(int64_t)s->slot * kv->pages_per_slot + p];
            if (at < 0 || at >= kv->k.dim[0])
                return false;
        }
    }
    return true;
}

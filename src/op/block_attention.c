#include "op/run.h"

/* Does the ring hold what each sequence's first row, which sees furthest back, sees? */
static bool holds(const struct kv_ring *ring, int32_t window, const struct batch *b)
{
    if (!batch_fits(b, ring->k.dim[0]))
        return false;
    for (int32_t i = 0; i < b->n_seqs; i++) {
        const struct batch_seq *s = &b->seq[i];
        int64_t oldest = (int64_t)s->pos - window + 1, first = ring->first[s->slot];
        if (first < 0 || s->pos - (oldest > first ? oldest : first) > ring->k.dim[1])
            return false;
    }
    return true;
}

void op_block_attention(struct exec *x, struct tensor o, struct tensor q,
                        const struct kv_ring *ring, struct tensor k, struct tensor v,
                        int32_t window, float scale, const struct batch *b)
{
    OP_BEGIN(x);
    OP_REQUIRE(x, "block_attention", kv_ring_agrees(ring) && ring->k.dim[3] <= OP_MAX_HEAD);
    int64_t T = b->n_rows, width = ring->k.dim[2] * ring->k.dim[3];
    OP_REQUIRE(x, "block_attention", is_act(q.dtype) && is_matrix(&q, q.dtype, T, q.dim[1]));
    OP_REQUIRE(x, "block_attention", q.dim[1] > 0 && q.dim[1] % width == 0);
    OP_REQUIRE(x, "block_attention", q.dim[1] / width <= OP_MAX_GROUP);
    OP_REQUIRE(x, "block_attention", is_matrix(&k, q.dtype, T, width));
    OP_REQUIRE(x, "block_attention", is_matrix(&v, q.dtype, T, width));
    OP_REQUIRE(x, "block_attention", is_matrix(&o, q.dtype, T, q.dim[1]) && window >= 1);
    OP_REQUIRE(x, "block_attention", x->planning || holds(ring, window, b));
    struct block_attention_args a = {o, q, k, v, ring, window, scale, b, {0}};
    size_t mark = exec_push(x), scratch = x->backend->block_attention_scratch(x->stream, &a);
    a.scratch = exec_tmp(x, DT_U8, 1, (int64_t)scratch);
    OP_BEGIN(x);
    OP_RUN(x, block_attention, &a, &o, dtype_name(ring->k.dtype));
    exec_pop(x, mark);
}

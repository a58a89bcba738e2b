#include "op/run.h"

void op_ring_append(struct exec *x, const struct kv_ring *ring, struct tensor k, struct tensor v,
                    const struct batch *b)
{
    OP_BEGIN(x);
    OP_REQUIRE(x, "ring_append", kv_ring_agrees(ring));
    int64_t width = ring->k.dim[2] * ring->k.dim[3];
    OP_REQUIRE(x, "ring_append", is_act(k.dtype) && is_matrix(&k, k.dtype, b->n_rows, width));
    OP_REQUIRE(x, "ring_append", is_matrix(&v, k.dtype, b->n_rows, width));
    OP_REQUIRE(x, "ring_append", x->planning || batch_fits(b, ring->k.dim[0]));
    struct ring_append_args a = {ring, k, v, b};
    OP_RUN(x, ring_append, &a, &ring->k, "");
}

#include "op/run.h"

static void check(struct exec *x, const struct kv_ring *ring, const struct tensor *k,
                  const struct tensor *v, const struct batch *b)
{
    OP_BEGIN(x);
    OP_REQUIRE(x, "ring_append", kv_ring_agrees(ring));
    int64_t width = ring->k.dim[2] * ring->k.dim[3];
    OP_REQUIRE(x, "ring_append", is_act(k->dtype) && is_matrix(k, k->dtype, b->n_rows, width));
    OP_REQUIRE(x, "ring_append", is_matrix(v, k->dtype, b->n_rows, width));
    OP_REQUIRE(x, "ring_append", x->planning || batch_fits(b, ring->k.dim[0]));
}

void op_ring_append(struct exec *x, const struct kv_ring *ring, struct tensor k, struct tensor v,
                    const struct batch *b)
{
    check(x, ring, &k, &v, b);
    OP_BEGIN(x);
    struct ring_append_args a = {ring, k, v, b};
    OP_RUN(x, ring_append, &a, &ring->k, "");
}

void op_ring_rows(struct exec *x, int32_t n, const struct ring_rows *rows, float eps,
                  const struct rope *rope, const struct batch *b)
{
    struct ring_rows_args a = {rows, n, eps, rope, b};
    if (!x->planning && x->backend->ring_rows) {
        for (int32_t i = 0; i < n; i++) {
            const struct ring_rows *r = &rows[i];
            check(x, r->ring, &r->k, &r->v, b);
            OP_BEGIN(x);
            OP_REQUIRE(x, "ring_rows", is_vector(&r->k_norm, DT_F32, r->ring->k.dim[3]));
        }
        if (op_joined(x, "ring_rows", x->backend->ring_rows(x->stream, &a)))
            return;
    }
    for (int32_t i = 0; i < n; i++) {
        const struct ring_rows *r = &rows[i];
        struct tensor none = tensor_cols(r->k, 0, 0);
        op_qk_norm_rope(x, none, r->k, none, r->k_norm, r->k_norm, (int32_t)r->ring->k.dim[3], eps,
                        rope, b);
        op_ring_append(x, r->ring, r->k, r->v, b);
    }
}

#include "op/run.h"

void op_kv_append(struct exec *x, const struct kv_pages *kv, struct tensor k, struct tensor v,
                  const struct batch *b)
{
    OP_BEGIN(x);
    OP_REQUIRE(x, "kv_append", kv_pages_agree(kv));
    int64_t width = kv->k.dim[2] * kv->k.dim[3];
    OP_REQUIRE(x, "kv_append", is_act(k.dtype) && is_matrix(&k, k.dtype, b->n_rows, width));
    OP_REQUIRE(x, "kv_append", is_matrix(&v, k.dtype, b->n_rows, width));
    OP_REQUIRE(x, "kv_append", x->planning || kv_pages_hold(kv, b));
    struct kv_append_args a = {kv, k, v, b};
    OP_RUN(x, kv_append, &a, &kv->k, "");
}

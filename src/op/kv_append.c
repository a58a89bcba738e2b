#include "op/run.h"

void kv_append_check(struct exec *x, const struct kv_append_args *a)
{
    OP_BEGIN(x);
    OP_REQUIRE(x, "kv_append", kv_pages_agree(a->kv));
    int64_t width = a->kv->k.dim[2] * a->kv->k.dim[3], T = a->b->n_rows;
    OP_REQUIRE(x, "kv_append", is_act(a->k.dtype) && is_matrix(&a->k, a->k.dtype, T, width));
    OP_REQUIRE(x, "kv_append", is_matrix(&a->v, a->k.dtype, T, width));
    OP_REQUIRE(x, "kv_append", x->planning || kv_pages_hold(a->kv, a->b));
}

void op_kv_append(struct exec *x, const struct kv_pages *kv, struct tensor k, struct tensor v,
                  const struct batch *b)
{
    struct kv_append_args a = {kv, k, v, b};
    kv_append_check(x, &a);
    OP_BEGIN(x);
    OP_RUN(x, kv_append, &a, &kv->k, "");
}

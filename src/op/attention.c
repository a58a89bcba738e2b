#include "op/run.h"

void op_attention(struct exec *x, struct tensor o, struct tensor q, const struct kv_pages *kv,
                  float scale, const struct batch *b)
{
    OP_BEGIN(x);
    OP_REQUIRE(x, "attention", kv_pages_agree(kv) && kv->k.dim[3] <= OP_MAX_HEAD);
    OP_REQUIRE(x, "attention", is_act(q.dtype) && is_matrix(&q, q.dtype, b->n_rows, q.dim[1]));
    OP_REQUIRE(x, "attention", q.dim[1] > 0 && q.dim[1] % (kv->k.dim[2] * kv->k.dim[3]) == 0);
    OP_REQUIRE(x, "attention", q.dim[1] / (kv->k.dim[2] * kv->k.dim[3]) <= OP_MAX_GROUP);
    OP_REQUIRE(x, "attention", is_matrix(&o, DT_F32, b->n_rows, q.dim[1]));
    OP_REQUIRE(x, "attention", x->planning || kv_pages_hold(kv, b));
    struct attention_args a = {.o = o, .q = q, .kv = kv, .scale = scale, .b = b};
    size_t mark = exec_push(x), scratch = x->backend->attention_scratch(x->stream, &a);
    a.scratch = exec_tmp(x, DT_U8, 1, (int64_t)scratch);
    OP_BEGIN(x);
    OP_RUN(x, attention, &a, &o, dtype_name(kv->k.dtype));
    exec_pop(x, mark);
}

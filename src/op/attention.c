#include "op/run.h"

static void check(struct exec *x, const struct attention_args *a)
{
    OP_BEGIN(x);
    const struct tensor *q = &a->q, *k = &a->kv->k;
    OP_REQUIRE(x, "attention", kv_pages_agree(a->kv) && k->dim[3] <= OP_MAX_HEAD);
    OP_REQUIRE(x, "attention", is_act(q->dtype) && is_matrix(q, q->dtype, a->b->n_rows, q->dim[1]));
    OP_REQUIRE(x, "attention", q->dim[1] > 0 && q->dim[1] % (k->dim[2] * k->dim[3]) == 0);
    OP_REQUIRE(x, "attention", q->dim[1] / (k->dim[2] * k->dim[3]) <= OP_MAX_GROUP);
    OP_REQUIRE(x, "attention", x->planning || kv_pages_hold(a->kv, a->b));
}

static void check_gate(struct exec *x, const struct attention_gate_args *a)
{
    OP_BEGIN(x);
    const struct tensor *y = &a->y;
    OP_REQUIRE(x, "attention_gate", y->n_dims == 2 && y->dim[0] >= 1 && is_act(y->dtype));
    OP_REQUIRE(x, "attention_gate", a->head_dim >= 1 && y->dim[1] > 0);
    OP_REQUIRE(x, "attention_gate", y->dim[1] % a->head_dim == 0);
    OP_REQUIRE(x, "attention_gate", is_matrix(y, y->dtype, y->dim[0], y->dim[1]));
    OP_REQUIRE(x, "attention_gate", is_matrix(&a->qg, y->dtype, y->dim[0], 2 * y->dim[1]));
}

static struct tensor scratch_of(struct exec *x, const struct attention_args *a)
{
    return exec_tmp(x, DT_U8, 1, (int64_t)x->backend->attention_scratch(x->stream, a));
}

void op_attention(struct exec *x, struct tensor o, struct tensor q, const struct kv_pages *kv,
                  float scale, const struct batch *b)
{
    struct attention_args a = {.o = o, .q = q, .kv = kv, .scale = scale, .b = b};
    size_t mark = exec_push(x);
    check(x, &a);
    OP_BEGIN(x);
    OP_REQUIRE(x, "attention", is_matrix(&o, DT_F32, q.dim[0], q.dim[1]));
    a.scratch = scratch_of(x, &a);
    OP_BEGIN(x);
    OP_RUN(x, attention, &a, &o, dtype_name(kv->k.dtype));
    exec_pop(x, mark);
}

void op_attention_gate(struct exec *x, struct tensor y, struct tensor o, struct tensor qg,
                       int32_t head_dim)
{
    struct attention_gate_args a = {y, o, qg, head_dim};
    check_gate(x, &a);
    OP_BEGIN(x);
    OP_REQUIRE(x, "attention_gate", is_matrix(&o, DT_F32, y.dim[0], y.dim[1]));
    OP_RUN(x, attention_gate, &a, &y, "");
}

void op_gated_attention(struct exec *x, struct tensor y, struct tensor q, struct tensor qg,
                        const struct kv_pages *kv, float scale, const struct batch *b)
{
    int32_t head_dim = (int32_t)kv->k.dim[3];
    size_t mark = exec_push(x);
    if (!x->backend->gated_attention) {
        struct tensor o = exec_tmp(x, DT_F32, q.dim[0], q.dim[1]);
        op_attention(x, o, q, kv, scale, b);
        op_attention_gate(x, y, o, qg, head_dim);
        exec_pop(x, mark);
        return;
    }
    struct gated_attention_args a = {
        .attention = {.q = q, .kv = kv, .scale = scale, .b = b},
        .gate = {.y = y, .qg = qg, .head_dim = head_dim},
    };
    check(x, &a.attention);
    check_gate(x, &a.gate);
    OP_BEGIN(x);
    OP_REQUIRE(x, "gated_attention", is_matrix(&y, q.dtype, q.dim[0], q.dim[1]));
    a.attention.scratch = scratch_of(x, &a.attention);
    OP_BEGIN(x);
    OP_RUN(x, gated_attention, &a, &y, dtype_name(kv->k.dtype));
    exec_pop(x, mark);
}

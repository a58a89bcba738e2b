#include "op/run.h"

void op_gated_delta_rule(struct exec *x, struct tensor o, struct tensor qkv, struct tensor g,
                         struct tensor beta, struct tensor S, const struct gdn_heads *heads,
                         const struct batch *b)
{
    OP_BEGIN(x);
    int64_t n_k = heads->n_k_heads, n_v = heads->n_v_heads, dk = heads->dk, dv = heads->dv;
    OP_REQUIRE(x, "gated_delta_rule", n_k >= 1 && n_v >= 1 && n_v % n_k == 0);
    OP_REQUIRE(x, "gated_delta_rule", dk >= 1 && dv >= 1 && dk <= OP_MAX_HEAD && dv <= OP_MAX_HEAD);
    OP_REQUIRE(x, "gated_delta_rule", is_act(qkv.dtype));
    OP_REQUIRE(x, "gated_delta_rule",
               is_matrix(&qkv, qkv.dtype, b->n_rows, 2 * n_k * dk + n_v * dv));
    OP_REQUIRE(x, "gated_delta_rule", is_matrix(&o, DT_F32, b->n_rows, n_v * dv));
    OP_REQUIRE(x, "gated_delta_rule", is_matrix(&g, DT_F32, b->n_rows, n_v));
    OP_REQUIRE(x, "gated_delta_rule", is_matrix(&beta, DT_F32, b->n_rows, n_v));
    OP_REQUIRE(x, "gated_delta_rule", S.n_dims == 4 && S.dtype == DT_F32 && S.dim[1] == n_v);
    OP_REQUIRE(x, "gated_delta_rule", S.dim[2] == dk && S.dim[3] == dv);
    OP_REQUIRE(x, "gated_delta_rule", x->planning || batch_fits(b, S.dim[0]));
    struct gated_delta_rule_args a = {
        .o = o, .qkv = qkv, .g = g, .beta = beta, .S = S, .heads = *heads, .b = b};
    size_t mark = exec_push(x);
    if (x->backend->gated_delta_rule_scratch)
        a.scratch =
            exec_tmp(x, DT_U8, 1, (int64_t)x->backend->gated_delta_rule_scratch(x->stream, &a));
    OP_BEGIN(x);
    OP_RUN(x, gated_delta_rule, &a, &o, "");
    exec_pop(x, mark);
}

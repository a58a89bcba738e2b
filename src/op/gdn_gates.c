#include "op/run.h"

void op_gdn_gates(struct exec *x, struct tensor g, struct tensor beta, struct tensor u,
                  const struct weight *in_proj_a, const struct weight *in_proj_b,
                  struct tensor A_log, struct tensor dt_bias)
{
    OP_BEGIN(x);
    int64_t n = in_proj_a->rows;
    OP_REQUIRE(x, "gdn_gates", u.n_dims == 2 && u.dim[0] >= 1 && is_act(u.dtype));
    OP_REQUIRE(x, "gdn_gates", u.dim[1] == in_proj_a->cols && u.stride >= u.dim[1]);
    OP_REQUIRE(x, "gdn_gates", in_proj_b->rows == n && in_proj_b->cols == in_proj_a->cols);
    OP_REQUIRE(x, "gdn_gates", is_matrix(&g, DT_F32, u.dim[0], n));
    OP_REQUIRE(x, "gdn_gates", is_matrix(&beta, DT_F32, u.dim[0], n));
    OP_REQUIRE(x, "gdn_gates", is_vector(&A_log, DT_F32, n) && is_vector(&dt_bias, DT_F32, n));
    const struct weight *both[] = {in_proj_a, in_proj_b};
    for (int i = 0; i < 2; i++)
        if (!x->backend->has_linear(both[i]->format, u.dtype)) {
            exec_fail(x, LATHE_E_UNSUPPORTED,
                      "backend %s has no gdn_gates of %s weights with %s rows", x->backend->name,
                      weight_formats[both[i]->format].name, dtype_name(u.dtype));
            return;
        }
    struct gdn_gates_args a = {.g = g,
                               .beta = beta,
                               .u = u,
                               .in_proj_a = in_proj_a,
                               .in_proj_b = in_proj_b,
                               .A_log = A_log,
                               .dt_bias = dt_bias};
    size_t mark = exec_push(x), scratch = x->backend->gdn_gates_scratch(x->stream, &a);
    a.scratch = exec_tmp(x, DT_U8, 1, (int64_t)scratch);
    OP_BEGIN(x);
    OP_RUN(x, gdn_gates, &a, &g, weight_formats[in_proj_a->format].name);
    exec_pop(x, mark);
}

#include "op/run.h"

void op_qk_norm_rope(struct exec *x, struct tensor q, struct tensor k, struct tensor qg,
                     struct tensor q_norm, struct tensor k_norm, int32_t head_dim, float eps,
                     const struct rope *rope, const struct batch *b)
{
    OP_BEGIN(x);
    OP_REQUIRE(x, "qk_norm_rope", head_dim >= 1 && head_dim <= OP_MAX_HEAD);
    OP_REQUIRE(x, "qk_norm_rope", is_act(q.dtype) && q.dim[1] % head_dim == 0);
    OP_REQUIRE(x, "qk_norm_rope", is_matrix(&q, q.dtype, b->n_rows, q.dim[1]));
    OP_REQUIRE(x, "qk_norm_rope", is_matrix(&qg, q.dtype, b->n_rows, qg.dim[1]));
    OP_REQUIRE(x, "qk_norm_rope", qg.dim[1] == q.dim[1] || qg.dim[1] == 2 * q.dim[1]);
    OP_REQUIRE(x, "qk_norm_rope", is_matrix(&k, q.dtype, b->n_rows, k.dim[1]));
    OP_REQUIRE(x, "qk_norm_rope", k.dim[1] % head_dim == 0 && k.dim[1] > 0);
    OP_REQUIRE(x, "qk_norm_rope", is_vector(&q_norm, DT_F32, head_dim));
    OP_REQUIRE(x, "qk_norm_rope", is_vector(&k_norm, DT_F32, head_dim));
    OP_REQUIRE(x, "qk_norm_rope", rope->dims >= 0 && rope->dims % 2 == 0 && rope->dims <= head_dim);
    for (int32_t i = 0; i < rope->dims / 2; i++)
        OP_REQUIRE(x, "qk_norm_rope", rope->axis[i] < 3);
    struct qk_norm_rope_args a = {q, k, qg, q_norm, k_norm, head_dim, eps, rope, b};
    OP_RUN(x, qk_norm_rope, &a, &q, "");
}

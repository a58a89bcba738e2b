#include "op/run.h"

void op_pair_scores(struct exec *x, struct tensor y, struct tensor u, struct tensor id,
                    const int32_t *prev, struct tensor g, const struct weight *A,
                    const struct weight *B)
{
    OP_BEGIN(x);
    OP_REQUIRE(x, "pair_scores", y.n_dims == 2 && y.dim[0] >= 1 && y.dim[1] >= 1);
    int64_t T = y.dim[0], k = y.dim[1];
    OP_REQUIRE(x, "pair_scores", is_matrix(&y, DT_F32, T, k) && is_matrix(&u, DT_F32, T, k));
    OP_REQUIRE(x, "pair_scores", is_matrix(&id, DT_I32, T, k));
    OP_REQUIRE(x, "pair_scores", A->cols >= 1 && A->cols <= OP_MAX_RANK && B->cols == A->cols);
    OP_REQUIRE(x, "pair_scores", is_matrix(&g, DT_F32, T, A->cols));
    for (int64_t t = 0; t < T && !x->planning; t++) {
        OP_REQUIRE(x, "pair_scores", prev[t] >= 0 && prev[t] < A->rows);
        for (int64_t c = 0; c < k && x->backend->is_host; c++) { /* else the kernel sees to ids */
            int32_t i = ((const int32_t *)tensor_at(&id, t))[c];
            OP_REQUIRE(x, "pair_scores", i >= -1 && i < B->rows);
        }
    }
    struct pair_scores_args a = {y, u, id, g, prev, A, B};
    OP_RUN(x, pair_scores, &a, &y, weight_formats[A->format].name);
}

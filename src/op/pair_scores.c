#include "op/run.h"

/* Are all of them -1 or a row of the table? */
static bool are_rows(const struct tensor *id, const struct weight *table)
{
    for (int64_t t = 0; t < id->dim[0]; t++)
        for (int64_t i = 0; i < id->dim[1]; i++) {
            int32_t row = ((const int32_t *)tensor_at(id, t))[i];
            if (row < -1 || row >= table->rows)
                return false;
        }
    return true;
}

void op_pair_scores(struct exec *x, struct tensor y, struct tensor u, struct tensor prev,
                    struct tensor id, struct tensor g, const struct weight *A,
                    const struct weight *B)
{
    OP_BEGIN(x);
    OP_REQUIRE(x, "pair_scores", u.n_dims == 2 && u.dim[0] >= 1 && u.dim[1] >= 1);
    OP_REQUIRE(x, "pair_scores", prev.n_dims == 2 && prev.dim[1] >= 1);
    int64_t T = u.dim[0], k = u.dim[1], m = prev.dim[1];
    OP_REQUIRE(x, "pair_scores", is_matrix(&y, DT_F32, T, m * k) && is_matrix(&u, DT_F32, T, k));
    OP_REQUIRE(x, "pair_scores", is_matrix(&prev, DT_I32, T, m) && is_matrix(&id, DT_I32, T, k));
    OP_REQUIRE(x, "pair_scores", A->cols >= 1 && A->cols <= OP_MAX_RANK && B->cols == A->cols);
    OP_REQUIRE(x, "pair_scores", is_matrix(&g, DT_F32, T, A->cols));
    if (x->backend->is_host && !x->planning) /* else the kernel sees to ids */
        OP_REQUIRE(x, "pair_scores", are_rows(&prev, A) && are_rows(&id, B));
    struct pair_scores_args a = {y, u, prev, id, g, A, B};
    OP_RUN(x, pair_scores, &a, &y, weight_formats[A->format].name);
}

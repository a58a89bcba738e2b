#include "op/run.h"

void op_top_k(struct exec *x, struct tensor value, struct tensor id, struct tensor logits,
              const int32_t (*range)[2], int32_t n_ranges)
{
    OP_BEGIN(x);
    OP_REQUIRE(x, "top_k", value.n_dims == 2 && value.dim[0] >= 1 && value.dim[1] >= 1);
    int64_t T = value.dim[0], k = value.dim[1], end = 0;
    OP_REQUIRE(x, "top_k", is_matrix(&value, DT_F32, T, k) && is_matrix(&id, DT_I32, T, k));
    OP_REQUIRE(x, "top_k", is_matrix(&logits, DT_F32, T, logits.dim[1]));
    for (int32_t i = 0; i < n_ranges; i++) {
        OP_REQUIRE(x, "top_k", range[i][0] >= end && range[i][0] <= range[i][1]);
        end = range[i][1];
    }
    OP_REQUIRE(x, "top_k", end <= logits.dim[1]);
    struct top_k_args a = {
        .value = value, .id = id, .logits = logits, .range = range, .n_ranges = n_ranges};
    size_t mark = exec_push(x), scratch = x->backend->top_k_scratch(x->stream, &a);
    a.scratch = exec_tmp(x, DT_U8, 1, (int64_t)scratch);
    OP_BEGIN(x);
    OP_RUN(x, top_k, &a, &value, "");
    exec_pop(x, mark);
}

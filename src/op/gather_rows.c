#include "op/run.h"

void op_gather_rows(struct exec *x, struct tensor y, struct tensor in, const int32_t *row)
{
    OP_BEGIN(x);
    OP_REQUIRE(x, "gather_rows", in.n_dims == 2 && in.dim[0] >= 1 && in.stride >= in.dim[1]);
    OP_REQUIRE(x, "gather_rows", y.n_dims == 2 && y.dim[0] >= 1);
    OP_REQUIRE(x, "gather_rows", is_matrix(&y, in.dtype, y.dim[0], in.dim[1]));
    OP_REQUIRE(x, "gather_rows", row || y.dim[0] == in.dim[0]);
    if (row && !x->planning)
        for (int64_t i = 0; i < y.dim[0]; i++)
            OP_REQUIRE(x, "gather_rows", row[i] >= 0 && row[i] < in.dim[0]);
    struct gather_rows_args a = {y, in, row};
    OP_RUN(x, gather_rows, &a, &y, "");
}

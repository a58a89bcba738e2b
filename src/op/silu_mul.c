#include "op/run.h"

void op_silu_mul(struct exec *x, struct tensor y, struct tensor gate, struct tensor up)
{
    OP_BEGIN(x);
    OP_REQUIRE(x, "silu_mul", y.n_dims == 2 && y.dim[0] >= 1 && is_act(y.dtype));
    OP_REQUIRE(x, "silu_mul", is_matrix(&y, y.dtype, y.dim[0], y.dim[1]));
    OP_REQUIRE(x, "silu_mul", is_matrix(&gate, y.dtype, y.dim[0], y.dim[1]));
    OP_REQUIRE(x, "silu_mul", is_matrix(&up, y.dtype, y.dim[0], y.dim[1]));
    struct silu_mul_args a = {y, gate, up};
    OP_RUN(x, silu_mul, &a, &y, "");
}

#include "op/run.h"

void op_rmsnorm_gated(struct exec *x, struct tensor y, struct tensor o, struct tensor z,
                      struct tensor w, float eps)
{
    OP_BEGIN(x);
    OP_REQUIRE(x, "rmsnorm_gated", y.n_dims == 2 && y.dim[0] >= 1 && is_act(y.dtype));
    OP_REQUIRE(x, "rmsnorm_gated", is_matrix(&y, y.dtype, y.dim[0], y.dim[1]));
    OP_REQUIRE(x, "rmsnorm_gated", is_matrix(&z, y.dtype, y.dim[0], y.dim[1]));
    OP_REQUIRE(x, "rmsnorm_gated", is_matrix(&o, DT_F32, y.dim[0], y.dim[1]));
    OP_REQUIRE(x, "rmsnorm_gated", w.n_dims == 1 && w.dtype == DT_F32 && w.dim[0] >= 1);
    OP_REQUIRE(x, "rmsnorm_gated", w.dim[0] <= OP_MAX_HEAD && y.dim[1] % w.dim[0] == 0);
    struct rmsnorm_gated_args a = {y, o, z, w, eps};
    OP_RUN(x, rmsnorm_gated, &a, &y, "");
}

#include "op/run.h"

void op_rmsnorm(struct exec *x, struct tensor y, struct tensor in, struct tensor w, float eps)
{
    OP_BEGIN(x);
    OP_REQUIRE(x, "rmsnorm", in.n_dims == 2 && in.dim[0] >= 1 && in.dim[1] >= 1);
    OP_REQUIRE(x, "rmsnorm", is_act(in.dtype) && in.stride >= in.dim[1]);
    OP_REQUIRE(x, "rmsnorm", is_matrix(&y, in.dtype, in.dim[0], in.dim[1]));
    OP_REQUIRE(x, "rmsnorm", is_vector(&w, DT_F32, in.dim[1]));
    struct rmsnorm_args a = {y, in, w, eps};
    OP_RUN(x, rmsnorm, &a, &y, "");
}

struct normed normed_tmp(struct exec *x, struct tensor h, float eps)
{
    int64_t T = h.dim[0], n = h.dim[1];
    return (struct normed){.h = h,
                           .u = exec_tmp(x, h.dtype, T, n),
                           .squares = exec_tmp(x, DT_F32, T, (n + OP_NORM_PART - 1) / OP_NORM_PART),
                           .eps = eps};
}

void op_norm(struct exec *x, struct normed *n, struct tensor w)
{
    n->w = w;
    n->unscaled = false;
    op_rmsnorm(x, n->u, n->h, w, n->eps);
}

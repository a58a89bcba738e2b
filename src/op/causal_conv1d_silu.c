#include "op/run.h"

void op_causal_conv1d_silu(struct exec *x, struct tensor y, struct tensor in, struct tensor w,
                           struct tensor tail, const struct batch *b)
{
    OP_BEGIN(x);
    OP_REQUIRE(x, "causal_conv1d_silu", in.n_dims == 2 && is_act(in.dtype) && in.dim[1] >= 1);
    int64_t channels = in.dim[1];
    OP_REQUIRE(x, "causal_conv1d_silu", is_matrix(&in, in.dtype, b->n_rows, channels));
    OP_REQUIRE(x, "causal_conv1d_silu", is_matrix(&y, in.dtype, b->n_rows, channels));
    OP_REQUIRE(x, "causal_conv1d_silu", x->planning || y.data != in.data);
    OP_REQUIRE(x, "causal_conv1d_silu", is_matrix(&w, DT_F32, channels, w.dim[1]));
    OP_REQUIRE(x, "causal_conv1d_silu", w.dim[1] >= 2 && w.dim[1] <= OP_MAX_TAPS);
    OP_REQUIRE(x, "causal_conv1d_silu", tail.n_dims == 3 && tail.dtype == in.dtype);
    OP_REQUIRE(x, "causal_conv1d_silu", tail.dim[1] == w.dim[1] - 1 && tail.dim[2] == channels);
    OP_REQUIRE(x, "causal_conv1d_silu", x->planning || batch_fits(b, tail.dim[0]));
    struct causal_conv1d_silu_args a = {y, in, w, tail, b};
    OP_RUN(x, causal_conv1d_silu, &a, &y, "");
}

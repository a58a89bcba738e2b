#include "op/run.h"

static void block_conv(struct exec *x, struct tensor y, struct tensor in, struct tensor base,
                       struct tensor delta, int32_t block, bool add)
{
    OP_BEGIN(x);
    OP_REQUIRE(x, "block_conv", in.n_dims == 2 && in.dim[0] >= 1 && is_act(in.dtype));
    int64_t T = in.dim[0], n = in.dim[1];
    OP_REQUIRE(x, "block_conv", is_matrix(&in, in.dtype, T, n) && is_matrix(&y, in.dtype, T, n));
    OP_REQUIRE(x, "block_conv", base.dim[0] >= 1 && base.dim[0] <= OP_MAX_TAPS);
    OP_REQUIRE(x, "block_conv", is_matrix(&base, DT_F32, base.dim[0], n));
    OP_REQUIRE(x, "block_conv", delta.dim[1] >= base.dim[0] && delta.dim[1] % base.dim[0] == 0);
    OP_REQUIRE(x, "block_conv", n % (delta.dim[1] / base.dim[0]) == 0);
    OP_REQUIRE(x, "block_conv", is_matrix(&delta, DT_F32, T, delta.dim[1]));
    OP_REQUIRE(x, "block_conv", block >= 1 && T % block == 0);
    struct block_conv_args a = {y, in, base, delta, block, add};
    OP_RUN(x, block_conv, &a, &y, add ? "add" : "");
}

void op_block_conv(struct exec *x, struct tensor y, struct tensor in, struct tensor base,
                   struct tensor delta, int32_t block)
{
    block_conv(x, y, in, base, delta, block, false);
}

void op_block_conv_add(struct exec *x, struct tensor h, struct tensor in, struct tensor base,
                       struct tensor delta, int32_t block)
{
    block_conv(x, h, in, base, delta, block, true);
}

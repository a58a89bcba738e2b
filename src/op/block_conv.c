#include "op/run.h"

static void check(struct exec *x, const struct block_conv_args *a)
{
    OP_BEGIN(x);
    const struct tensor *in = &a->in, *base = &a->base, *delta = &a->delta;
    OP_REQUIRE(x, "block_conv", in->n_dims == 2 && in->dim[0] >= 1 && is_act(in->dtype));
    int64_t T = in->dim[0], n = in->dim[1];
    OP_REQUIRE(x, "block_conv",
               is_matrix(in, in->dtype, T, n) && is_matrix(&a->y, in->dtype, T, n));
    OP_REQUIRE(x, "block_conv", base->dim[0] >= 1 && base->dim[0] <= OP_MAX_TAPS);
    OP_REQUIRE(x, "block_conv", is_matrix(base, DT_F32, base->dim[0], n));
    OP_REQUIRE(x, "block_conv", delta->dim[1] >= base->dim[0] && delta->dim[1] % base->dim[0] == 0);
    OP_REQUIRE(x, "block_conv", n % (delta->dim[1] / base->dim[0]) == 0);
    OP_REQUIRE(x, "block_conv", is_matrix(delta, DT_F32, T, delta->dim[1]));
    OP_REQUIRE(x, "block_conv", a->block >= 1 && T % a->block == 0);
}

static void block_conv(struct exec *x, const struct block_conv_args *a)
{
    check(x, a);
    OP_BEGIN(x);
    OP_RUN(x, block_conv, a, &a->y, a->add ? "add" : "");
}

void op_block_conv(struct exec *x, struct tensor y, struct tensor in, struct tensor base,
                   struct tensor delta, int32_t block)
{
    block_conv(x, &(struct block_conv_args){y, in, base, delta, block, false});
}

void op_block_conv_add(struct exec *x, struct tensor h, struct tensor in, struct tensor base,
                       struct tensor delta, int32_t block)
{
    block_conv(x, &(struct block_conv_args){h, in, base, delta, block, true});
}

void op_block_conv_add_norm(struct exec *x, struct tensor h, struct tensor u, struct tensor in,
                            struct tensor base, struct tensor delta, int32_t block,
                            struct tensor norm, float eps)
{
    struct block_conv_add_norm_args a = {{h, in, base, delta, block, true}, u, norm, eps};
    if (!x->planning && x->backend->block_conv_add_norm) {
        check(x, &a.conv);
        OP_BEGIN(x);
        OP_REQUIRE(x, "block_conv_add_norm", is_matrix(&u, h.dtype, h.dim[0], h.dim[1]));
        OP_REQUIRE(x, "block_conv_add_norm", is_vector(&norm, DT_F32, h.dim[1]));
        if (op_joined(x, "block_conv_add_norm", x->backend->block_conv_add_norm(x->stream, &a)))
            return;
    }
    op_block_conv_add(x, h, in, base, delta, block);
    op_rmsnorm(x, u, h, norm, eps);
}

void op_block_conv_made(struct exec *x, struct tensor y, struct tensor delta, struct tensor in,
                        const struct weight *w, struct tensor base, int32_t block)
{
    struct block_conv_made_args a = {y, delta, in, w, base, block};
    struct tensor half = tensor_cols(delta, 0, delta.dim[1] / 2);
    if (!x->planning && x->backend->block_conv_made) {
        check(x, &(struct block_conv_args){y, in, base, half, block, false});
        OP_BEGIN(x);
        OP_REQUIRE(x, "block_conv_made", w->rows == delta.dim[1] && w->cols == in.dim[1]);
        if (op_joined(x, "block_conv_made", x->backend->block_conv_made(x->stream, &a)))
            return;
    }
    op_linear(x, delta, in, w);
    op_block_conv(x, y, in, base, half, block);
}

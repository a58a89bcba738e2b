/* The convolution over the rows of a block. A thread takes eight neighbouring columns of a row; bound by the
 * latency of a launch and its reads. */
#include "op/cuda/cuda.cuh"
#include "op/cuda/pack.cuh"

enum { THREADS = 128 };

struct block_conv {
    void *y;
    const void *in;
    const float *base, *delta;
    int64_t y_stride, in_stride, base_stride, delta_stride, n;
    int32_t taps, groups, width, block; /* width: columns of a group */
    unsigned blocks_per_row;
};

template <typename T, bool ADD>
static __global__ void __launch_bounds__(THREADS) block_conv_row(struct block_conv a)
{
    begin_kernel();
    int64_t t = blockIdx.x / a.blocks_per_row;
    int64_t c = ((int64_t)(blockIdx.x % a.blocks_per_row) * THREADS + threadIdx.x) * PACK;
    if (c >= a.n)
        return;
    int64_t left = a.n - c;
    T *y = (T *)a.y + t * a.y_stride;
    float sum[PACK];
    int group[PACK];
    pack<T, PACK> h;
    if (ADD)
        h = load_pack<PACK>((const T *)y + c, left, is_wide(y));
#pragma unroll
    for (int i = 0; i < PACK; i++) {
        sum[i] = ADD ? h[i] : 0.0f;
        group[i] = i < left ? (int)(c + i) / a.width : 0;
    }
    int32_t before = (int32_t)(t % a.block); /* rows of the block above this one */
    for (int32_t j = 0; j < a.taps && j <= before; j++) {
        const T *in = (const T *)a.in + (t - j) * a.in_stride;
        const float *base = a.base + j * a.base_stride;
        const float *delta = a.delta + t * a.delta_stride + (int64_t)j * a.groups;
        pack<T, PACK> x = load_pack<PACK>(in + c, left, is_wide(in));
        pack<float, PACK> w = load_pack<PACK>(base + c, left, is_wide(base));
#pragma unroll
        for (int i = 0; i < PACK; i++)
            sum[i] = fmaf(w[i] + delta[group[i]], x[i], sum[i]);
    }
    store_pack<PACK>(y + c, sum, left, is_wide(y));
}

extern "C" lathe_status cuda_block_conv(void *stream, const struct block_conv_args *a,
                                        lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    int32_t taps = (int32_t)a->base.dim[0], groups = (int32_t)(a->delta.dim[1] / taps);
    int64_t n = a->y.dim[1];
    int per_row = cuda_blocks(n, THREADS * PACK), blocks = (int)a->y.dim[0] * per_row;
    struct block_conv p = {
        .y = a->y.data,
        .in = a->in.data,
        .base = (const float *)a->base.data,
        .delta = (const float *)a->delta.data,
        .y_stride = a->y.stride,
        .in_stride = a->in.stride,
        .base_stride = a->base.stride,
        .delta_stride = a->delta.stride,
        .n = n,
        .taps = taps,
        .groups = groups,
        .width = (int32_t)(n / groups),
        .block = a->block,
        .blocks_per_row = (unsigned)per_row,
    };
    if (blocks > 0)
        WITH_ACT(a->y.dtype, T, {
            if (a->add)
                launch_next(c, block_conv_row<T, true>, blocks, THREADS, 0, p);
            else
                launch_next(c, block_conv_row<T, false>, blocks, THREADS, 0, p);
        });
    return cuda_launched(c, err);
}

/* The convolution over the rows of a block. A thread takes eight neighbouring columns of a row; bound by the
 * latency of a launch and its reads. */
#include "op/cuda/copies.cuh"
#include "op/cuda/cuda.cuh"
#include "op/cuda/mma.cuh"
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

/* Columns [c, c + PACK) of row t, of which `left` are there, added to what sum holds. */
template <typename T>
__device__ __forceinline__ void add_taps(float (&sum)[PACK], const struct block_conv &a, int64_t t,
                                         int64_t c, int64_t left)
{
    int group[PACK];
#pragma unroll
    for (int i = 0; i < PACK; i++)
        group[i] = i < left ? (int)(c + i) / a.width : 0;
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
}

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
    pack<T, PACK> h;
    if (ADD)
        h = load_pack<PACK>((const T *)y + c, left, is_wide(y));
#pragma unroll
    for (int i = 0; i < PACK; i++)
        sum[i] = ADD ? h[i] : 0.0f;
    add_taps<T>(sum, a, t, c, left);
    store_pack<PACK>(y + c, sum, left, is_wide(y));
}

/* ---- Added to a row, and its norm ------------------------------------------------------------------ */

enum { NORM_PACKS = 2, NORM_THREADS = 512 }; /* packs of a thread; threads, at most */

/* A block a row, whose columns are multiples of PACK. The sum of squares is in the order of rmsnorm_row, so that the
 * bits are those of the two kernels. */
static __global__ void __launch_bounds__(NORM_THREADS)
    block_conv_add_norm(struct block_conv a, bf16 *u, int64_t u_stride, const float *w, float eps)
{
    pack<float, PACK> weight[NORM_PACKS];
    pack<bf16, PACK> v[NORM_PACKS];
    int64_t t = blockIdx.x;
    bf16 *y = (bf16 *)a.y + t * a.y_stride, *to = u + t * u_stride;
#pragma unroll
    for (int j = 0; j < NORM_PACKS; j++) {
        int64_t c = (threadIdx.x + (int64_t)j * blockDim.x) * PACK;
        weight[j] = load_pack<PACK>(w + c, a.n - c, true);
    }
    begin_kernel();
#pragma unroll
    for (int j = 0; j < NORM_PACKS; j++) {
        int64_t c = (threadIdx.x + (int64_t)j * blockDim.x) * PACK;
        v[j] = load_pack<PACK>((const bf16 *)y + c, a.n - c, true);
    }
#pragma unroll
    for (int j = 0; j < NORM_PACKS; j++) {
        int64_t c = (threadIdx.x + (int64_t)j * blockDim.x) * PACK;
        float sum[PACK];
        if (c >= a.n)
            continue;
#pragma unroll
        for (int i = 0; i < PACK; i++)
            sum[i] = v[j][i];
        add_taps<bf16>(sum, a, t, c, PACK);
#pragma unroll
        for (int i = 0; i < PACK / 2; i++) {
            __nv_bfloat162 p = __floats2bfloat162_rn(sum[2 * i], sum[2 * i + 1]);
            v[j].w[i] = *(const uint32_t *)&p;
        }
        *(uint4 *)(y + c) = make_uint4(v[j].w[0], v[j].w[1], v[j].w[2], v[j].w[3]);
    }
    float scale = rms_scale_of<true>(v, a.n, eps);
#pragma unroll
    for (int j = 0; j < NORM_PACKS; j++) {
        int64_t c = (threadIdx.x + (int64_t)j * blockDim.x) * PACK;
        float out[PACK];
        if (c >= a.n)
            continue;
#pragma unroll
        for (int i = 0; i < PACK; i++)
            out[i] = v[j][i] * scale * weight[j][i];
        store_pack<PACK>(to + c, out, PACK, true);
    }
}

/* ---- With the product that makes its kernels -------------------------------------------------------- */

enum {
    MADE_WARPS = 8,
    MADE_ROWS = 8,   /* of activations, at most */
    MADE_GROUPS = 8, /* of a block, with both their taps: the rows of a product of tensor cores */
    UNIT = 128,
    MOST_UNITS = 5,  /* of a warp */
    UNIT_PIECES = 4, /* 16 bytes that a lane has of a row of a unit */
};

struct conv_product {
    const unsigned char *w; /* [2 * 2 * groups, n] */
    int64_t row_bytes;
    const bf16 *in;
    bf16 *y;
    float *delta;
    const float *base;
    int64_t in_stride, y_stride, delta_stride, base_stride;
    int32_t T, n, groups, width, block;
};

/* Two taps; n a multiple of UNIT, at most MADE_WARPS * MOST_UNITS of them; T <= MADE_ROWS; groups a multiple of
 * MADE_GROUPS, their width of 4; all 16-byte aligned. blockIdx.x: MADE_GROUPS groups, y: their first two rows of w, which the
 * convolution takes, or the other two, which go to delta. Sums are those of linear_mma, in its order. The weights are in
 * registers before the kernel in front has ended: bound by latency. */
static __global__ void __launch_bounds__(32 * MADE_WARPS, 1)
    block_conv_product(struct conv_product a)
{
    extern __shared__ uint4 in[]; /* [MOST_UNITS * UNIT_PIECES, threads]: what each has copied */
    __shared__ float part[MADE_WARPS][2 * MADE_GROUPS][MADE_ROWS];
    __shared__ float made[2 * MADE_GROUPS][MADE_ROWS];
    int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, quad = lane % 4;
    int32_t first = (int32_t)blockIdx.x * MADE_GROUPS,
            row = (int32_t)blockIdx.y * 2 * a.groups + first;
    int32_t n_units = a.n / UNIT;
    uint4 w[MOST_UNITS][2][UNIT_PIECES];
    const unsigned char *from = a.w + (row + g) * a.row_bytes + quad * (UNIT_PIECES * 16);
    int64_t tap = a.groups * a.row_bytes;
#pragma unroll
    for (int i = 0; i < MOST_UNITS; i++)
        if (warp + i * MADE_WARPS < n_units)
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int k = 0; k < UNIT_PIECES; k++)
                    w[i][h][k] =
                        load16_stream(from + h * tap + (warp + i * MADE_WARPS) * (UNIT * 2) + k * 16);
    begin_kernel();

    const bf16 *x = a.in + (g < a.T ? g : 0) * a.in_stride + quad * (UNIT / 4);
#pragma unroll
    for (int i = 0; i < MOST_UNITS; i++)
        if (warp + i * MADE_WARPS < n_units)
#pragma unroll
            for (int k = 0; k < UNIT_PIECES; k++)
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                                 (uint32_t)__cvta_generic_to_shared(
                                     &in[(i * UNIT_PIECES + k) * (32 * MADE_WARPS) + tid])),
                             "l"(x + (warp + i * MADE_WARPS) * UNIT + k * 8), "r"(g < a.T ? 16 : 0)
                             : "memory");
    copies_commit();
    copies_wait<0>();
    float acc[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < MOST_UNITS; i++)
        if (warp + i * MADE_WARPS < n_units)
#pragma unroll
            for (int k = 0; k < UNIT_PIECES; k++) {
                uint4 v = in[(i * UNIT_PIECES + k) * (32 * MADE_WARPS) + tid];
                uint4 c0 = w[i][0][k], c1 = w[i][1][k];
                uint32_t lo[4] = {c0.x, c1.x, c0.y, c1.y}, hi[4] = {c0.z, c1.z, c0.w, c1.w};
                mma_bf16(acc, lo, v.x, v.y);
                mma_bf16(acc, hi, v.z, v.w);
            }
#pragma unroll
    for (int i = 0; i < 4; i++)
        part[warp][g + 8 * (i / 2)][quad * 2 + i % 2] = acc[i];
    __syncthreads();
    if (tid < 2 * MADE_GROUPS * MADE_ROWS) {
        int r = tid % (2 * MADE_GROUPS), t = tid / (2 * MADE_GROUPS);
        float sum = part[0][r][t];
#pragma unroll
        for (int k = 1; k < MADE_WARPS; k++)
            sum += part[k][r][t];
        made[r][t] = sum;
        if (blockIdx.y > 0 && t < a.T)
            a.delta[t * a.delta_stride + row + r / MADE_GROUPS * a.groups + r % MADE_GROUPS] = sum;
    }
    if (blockIdx.y > 0)
        return;
    __syncthreads();
    int32_t fours = MADE_GROUPS * a.width / 4;
    for (int32_t i = tid; i < a.T * fours; i += 32 * MADE_WARPS) {
        int32_t t = i / fours, c = i % fours * 4, group = c / a.width;
        float sum[4] = {0, 0, 0, 0};
#pragma unroll
        for (int j = 0; j < 2; j++) {
            if (j > t % a.block)
                continue;
            int64_t col = (int64_t)first * a.width + c;
            pack<bf16, 4> v = load_pack<4>(a.in + (t - j) * a.in_stride + col, 4, true);
            pack<float, 4> b = load_pack<4>(a.base + j * a.base_stride + col, 4, true);
#pragma unroll
            for (int k = 0; k < 4; k++)
                sum[k] = fmaf(b[k] + made[j * MADE_GROUPS + group][t], v[k], sum[k]);
        }
        store_pack<4>(a.y + t * a.y_stride + (int64_t)first * a.width + c, sum, 4, true);
    }
}

/* ---- Host side -------------------------------------------------------------------------------------- */

static struct block_conv conv_of(const struct block_conv_args *a)
{
    int32_t taps = (int32_t)a->base.dim[0], groups = (int32_t)(a->delta.dim[1] / taps);
    struct block_conv p = {
        .y = a->y.data,
        .in = a->in.data,
        .base = (const float *)a->base.data,
        .delta = (const float *)a->delta.data,
        .y_stride = a->y.stride,
        .in_stride = a->in.stride,
        .base_stride = a->base.stride,
        .delta_stride = a->delta.stride,
        .n = a->y.dim[1],
        .taps = taps,
        .groups = groups,
        .width = (int32_t)(a->y.dim[1] / groups),
        .block = a->block,
    };
    return p;
}

extern "C" lathe_status cuda_block_conv(void *stream, const struct block_conv_args *a,
                                        lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    struct block_conv p = conv_of(a);
    p.blocks_per_row = (unsigned)cuda_blocks(p.n, THREADS * PACK);
    int blocks = (int)(a->y.dim[0] * p.blocks_per_row);
    if (blocks > 0)
        WITH_ACT(a->y.dtype, T, {
            if (a->add)
                launch_next(c, block_conv_row<T, true>, blocks, THREADS, 0, p);
            else
                launch_next(c, block_conv_row<T, false>, blocks, THREADS, 0, p);
        });
    return cuda_launched(c, err);
}

/* Rows that rmsnorm has in two packs a thread. */
extern "C" bool cuda_block_conv_add_norm(void *stream, const struct block_conv_add_norm_args *a)
{
    struct gpu *c = cuda_of(stream);
    int64_t n = a->u.dim[1], packs = n / PACK;
    const struct block_conv_args *conv = &a->conv;
    if (a->u.dtype != DT_BF16 || n % PACK || packs <= NORM_THREADS / 2 ||
        packs > NORM_PACKS * NORM_THREADS || !rows_aligned(conv->y.data, conv->y.stride, 2) ||
        !rows_aligned(a->u.data, a->u.stride, 2) || !is_wide(a->w.data))
        return false;
    launch_next(c, block_conv_add_norm, (unsigned)a->u.dim[0], cuda_blocks(packs, 64) * 32, 0,
                conv_of(conv), (bf16 *)a->u.data, a->u.stride, (const float *)a->w.data, a->eps);
    return true;
}

extern "C" bool cuda_block_conv_made(void *stream, const struct block_conv_made_args *a)
{
    enum { SHARED = MOST_UNITS * UNIT_PIECES * 32 * MADE_WARPS * 16 };
    struct gpu *c = cuda_of(stream);
    int64_t n = a->in.dim[1], T = a->in.dim[0], groups = a->w->rows / 4;
    if (c->sm < 90 || a->in.dtype != DT_BF16 || a->w->format != WF_BF16 || a->base.dim[0] != 2 ||
        T > MADE_ROWS || n % UNIT || n > MADE_WARPS * MOST_UNITS * UNIT || groups % MADE_GROUPS ||
        n / groups % 4 || !rows_aligned(a->w->codes.data, a->w->codes.stride, 2) ||
        !rows_aligned(a->in.data, a->in.stride, 2) || !rows_aligned(a->y.data, a->y.stride, 2) ||
        !rows_aligned(a->base.data, a->base.stride, 4))
        return false;
    struct conv_product p = {
        .w = (const unsigned char *)a->w->codes.data,
        .row_bytes = a->w->codes.stride * 2,
        .in = (const bf16 *)a->in.data,
        .y = (bf16 *)a->y.data,
        .delta = (float *)a->delta.data,
        .base = (const float *)a->base.data,
        .in_stride = a->in.stride,
        .y_stride = a->y.stride,
        .delta_stride = a->delta.stride,
        .base_stride = a->base.stride,
        .T = (int32_t)T,
        .n = (int32_t)n,
        .groups = (int32_t)groups,
        .width = (int32_t)(n / groups),
        .block = a->block,
    };
    (void)cudaFuncSetAttribute(block_conv_product, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               SHARED);
    launch_next(c, block_conv_product, dim3((unsigned)(groups / MADE_GROUPS), 2), 32 * MADE_WARPS,
                SHARED, p);
    return true;
}

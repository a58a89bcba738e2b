/* y = W x and y += W x.
 *
 * linear_mma: BF16 rows times BF16, FP8 or NVFP4 weights, read once for up to 16 rows, on tensor cores.
 * linear_any: everything else.
 * Which of them computes a matrix depends on the matrix and on the activations' dtype only, so a row's bits
 * never depend on how many rows there are. */
#include <cooperative_groups.h>

#include "op/cuda/cuda.cuh"
#include "op/cuda/mma.cuh"
#include "op/cuda/weight.cuh"

/* ---- Tensor cores -------------------------------------------------------------------------------- */

/* A tile is 16 weight rows. Of UNIT columns a lane of the mma's four takes UNIT / 4 neighbours, in the weights
 * and in the activations alike: which of the product's k a column stands for is free, so codes are decoded where
 * 16-byte loads leave them. */
enum { UNIT = 128, LANE_COLS = UNIT / 4, WARPS = 8, WORKERS = 2, THREADS = 32 * WARPS * WORKERS };

struct mma_args {
    const unsigned char *codes; /* rows of row_bytes, 16-byte aligned */
    uint32_t row_bytes;
    const unsigned char *scales; /* as in struct weight */
    uint32_t scale_stride;       /* elements */
    float global;
    int64_t rows, cols;
    const bf16 *in;
    int64_t in_stride;
    void *y;
    int64_t y_stride;
    float *partial; /* [parts, T, rows] */
    int32_t T;
    bool scales_f32, y_f32, add;
};

/* Bytes of a unit that one lane reads of one row. */
template <weight_format_id F> __host__ __device__ constexpr int lane_bytes()
{
    return F == WF_NVFP4 ? LANE_COLS / 2 : F == WF_BF16 ? LANE_COLS * 2 : LANE_COLS;
}

/* Four FP8 codes to pairs (0, 2) and (1, 3), exactly. */
__device__ __forceinline__ void decode_fp8(uint32_t c, uint32_t &even, uint32_t &odd)
{
    const uint32_t up = 0x7B807B80u; /* 2^120: the exponents' biases differ by 120 */
    even = mul_bf16x2(((c << 4) & 0x07F007F0u) | ((c << 8) & 0x80008000u), up);
    odd = mul_bf16x2(((c >> 4) & 0x07F007F0u) | (c & 0x80008000u), up);
}

/* Codes I and I + 4 of the eight in c times the scale s (twice), both scaled: see nvfp4_scale. */
template <int I> __device__ __forceinline__ uint32_t decode_e2m1(uint32_t c, uint32_t s)
{
    uint32_t m = I < 2 ? c << (6 - 4 * I) : c >> (4 * I - 6);
    return mul_bf16x2((m & 0x01C001C0u) | ((c << (12 - 4 * I)) & 0x80008000u), s);
}

/* Two E4M3 scales times 2^118, each as a BF16 pair. E2M1 codes are decoded 2^126 too small: the product, exact
 * in BF16, is that of code and scale times 2^-8. */
enum { NVFP4_SHIFT = 8 };
__device__ __forceinline__ void nvfp4_scales(uint32_t codes, uint32_t s[2])
{
    float2 v;
#if __CUDA_ARCH__ >= 890
    uint32_t h;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(h) : "h"((uint16_t)codes));
    v = __half22float2(*(const __half2 *)&h);
    v.x *= 0x1p118f;
    v.y *= 0x1p118f;
#else
    /* as F32 bits, 2^-120 too small */
    v.x = __uint_as_float((codes & 0x80u) << 24 | (codes & 0x7Fu) << 20) * 0x1p119f * 0x1p119f;
    v.y = __uint_as_float((codes & 0x8000u) << 16 | (codes & 0x7F00u) << 12) * 0x1p119f * 0x1p119f;
#endif
    __nv_bfloat162 a = __float2bfloat162_rn(v.x), b = __float2bfloat162_rn(v.y);
    s[0] = *(const uint32_t *)&a;
    s[1] = *(const uint32_t *)&b;
}

/* Bits of 0x80808080 where a byte is an E4M3 NaN. */
__device__ __forceinline__ uint32_t e4m3_nan(uint32_t c)
{
    return (c & 0x7F7F7F7Fu) + 0x01010101u;
}

__device__ __forceinline__ uint4 load16_stream(const unsigned char *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* What one lane reads of a unit: the codes and scales of rows g and g + 8 of a tile. */
template <weight_format_id F> struct lane_codes {
    uint4 v[2][lane_bytes<F>() / 16];
    uint32_t scale[2]; /* NVFP4: two codes */
};

/* From byte `at` of the codes and element `scale_at` of the scales on. */
template <weight_format_id F>
__device__ __forceinline__ void load_unit(lane_codes<F> &w, const mma_args &a, uint32_t at,
                                          uint32_t scale_at)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const unsigned char *p = a.codes + (at + 8 * h * a.row_bytes);
#pragma unroll
        for (int i = 0; i < lane_bytes<F>() / 16; i++)
            w.v[h][i] = load16_stream(p + 16 * i);
        if (F == WF_NVFP4)
            w.scale[h] = *(const uint16_t *)(a.scales + (scale_at + 8 * h * a.scale_stride));
    }
}

/* LANE_COLS activations of one row, paired as the codes are decoded: see pair_up. */
struct lane_in {
    uint32_t v[LANE_COLS / 2];
};

/* acc += the unit's products, in two chains; nan[h] collects e4m3_nan of row g + 8 h. */
template <weight_format_id F>
__device__ __forceinline__ void multiply(float acc[2][4], const lane_codes<F> &w, const lane_in &x,
                                         uint32_t nan[2])
{
    const uint32_t *c0 = (const uint32_t *)&w.v[0][0], *c1 = (const uint32_t *)&w.v[1][0];
    if (F == WF_NVFP4) {
        uint32_t s[2][2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            nan[h] |= e4m3_nan(w.scale[h]);
            nvfp4_scales(w.scale[h], s[h]);
        }
#pragma unroll
        for (int i = 0; i < LANE_COLS / 8; i++) {
            uint32_t s0 = s[0][i / 2], s1 = s[1][i / 2];
            uint32_t lo[4] = {decode_e2m1<0>(c0[i], s0), decode_e2m1<0>(c1[i], s1),
                              decode_e2m1<1>(c0[i], s0), decode_e2m1<1>(c1[i], s1)};
            uint32_t hi[4] = {decode_e2m1<2>(c0[i], s0), decode_e2m1<2>(c1[i], s1),
                              decode_e2m1<3>(c0[i], s0), decode_e2m1<3>(c1[i], s1)};
            const uint32_t *v = x.v + 4 * i;
            mma_bf16(acc[0], lo, v[0], v[1]);
            mma_bf16(acc[1], hi, v[2], v[3]);
        }
    } else if (F == WF_BF16) {
#pragma unroll
        for (int i = 0; i < LANE_COLS / 4; i++) {
            uint32_t m[4] = {c0[2 * i], c1[2 * i], c0[2 * i + 1], c1[2 * i + 1]};
            mma_bf16(acc[i % 2], m, x.v[2 * i], x.v[2 * i + 1]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < LANE_COLS / 4; i++) {
            uint32_t m[4];
            nan[0] |= e4m3_nan(c0[i]);
            nan[1] |= e4m3_nan(c1[i]);
            decode_fp8(c0[i], m[0], m[2]);
            decode_fp8(c1[i], m[1], m[3]);
            mma_bf16(acc[i % 2], m, x.v[2 * i], x.v[2 * i + 1]);
        }
    }
}

__device__ __forceinline__ float scale_of(const mma_args &a, int64_t i)
{
    return a.scales_f32 ? ((const float *)a.scales)[i] : to_float(((const bf16 *)a.scales)[i]);
}

/* Eight neighbouring activations in the pairs that decoding leaves. */
template <weight_format_id F> __device__ __forceinline__ uint4 pair_up(uint4 v)
{
    if (F == WF_BF16)
        return v;
    if (F == WF_NVFP4) /* 0 4, 1 5, 2 6, 3 7 */
        return make_uint4(__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632),
                          __byte_perm(v.y, v.w, 0x5410), __byte_perm(v.y, v.w, 0x7632));
    /* 0 2, 1 3, 4 6, 5 7 */
    return make_uint4(__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.x, v.y, 0x7632),
                      __byte_perm(v.z, v.w, 0x5410), __byte_perm(v.z, v.w, 0x7632));
}

__device__ __forceinline__ uint4 load_in(const bf16 *p, bool aligned)
{
    if (aligned)
        return *(const uint4 *)p;
    const unsigned short *h = (const unsigned short *)p;
    return make_uint4(h[0] | (uint32_t)h[1] << 16, h[2] | (uint32_t)h[3] << 16,
                      h[4] | (uint32_t)h[5] << 16, h[6] | (uint32_t)h[7] << 16);
}

/* The activations of a part's columns for eight rows, as the lanes read them: of unit u, piece i (columns
 * 8 i .. 8 i + 7 of a lane's 32), row n and lane q, 16 bytes at ((4 u + i) * 8 + n) * 4 + q. A warp takes a
 * piece of a unit at a time: its reads are half lines, its writes in order. */
template <weight_format_id F>
__device__ __forceinline__ void stage_in(uint4 *to, const mma_args &a, int64_t col0, int n_units,
                                         int32_t t0)
{
    constexpr int N = 5; /* reads on their way */
    bool aligned = (uintptr_t)a.in % 16 == 0 && a.in_stride % 8 == 0;
    int n = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    bool there = t0 + n < a.T;
    const bf16 *p = a.in + (t0 + n) * a.in_stride + col0 + q * LANE_COLS;
    for (int i = threadIdx.x / 32; i < 4 * n_units; i += N * THREADS / 32) {
        uint4 v[N];
#pragma unroll
        for (int k = 0; k < N; k++) {
            int piece = i + k * (THREADS / 32);
            v[k] = make_uint4(0, 0, 0, 0);
            if (there && piece < 4 * n_units)
                v[k] = load_in(p + piece / 4 * UNIT + piece % 4 * 8, aligned);
        }
#pragma unroll
        for (int k = 0; k < N; k++) {
            int piece = i + k * (THREADS / 32);
            if (piece < 4 * n_units)
                to[piece * 32 + threadIdx.x % 32] = pair_up<F>(v[k]);
        }
    }
}

/* The value of one row for one activation row from its sum. */
template <weight_format_id F>
__device__ __forceinline__ void finish(const mma_args &a, float sum, int64_t row, int32_t t,
                                       bool is_nan)
{
    if (F == WF_NVFP4)
        sum *= (float)(1 << NVFP4_SHIFT) * a.global;
    else if (F == WF_FP8_TENSOR)
        sum *= a.global;
    else if (F == WF_FP8_ROW)
        sum *= scale_of(a, row);
    if (is_nan)
        sum = __int_as_float(0x7FC00000);
    if (a.y_f32) {
        ((float *)a.y)[t * a.y_stride + row] = sum;
    } else {
        bf16 *y = (bf16 *)a.y + t * a.y_stride + row;
        *y = from_float<bf16>(a.add ? to_float(*y) + sum : sum);
    }
}

/* Units that a lane has on their way, in registers. */
template <weight_format_id F> __host__ __device__ constexpr int depth_of()
{
    return F == WF_NVFP4 ? 4 : F == WF_BF16 ? 2 : 3;
}

/* blockIdx: x and the worker share the tiles, y is the part of the columns, z a group of eight activation
 * rows. A worker is WARPS warps, which take turns over the units of its tile; their loads run ahead over the
 * ends of tiles. Sums: inside the tensor core, over a warp's units in order, its two chains, over the warps in
 * order, over the parts in order. With several parts the launch is cooperative.
 * Bound by the weights' bytes from one row to eight. */
template <weight_format_id F> __global__ void __launch_bounds__(THREADS, 1) linear_mma(mma_args a)
{
    constexpr int DEPTH = depth_of<F>();
    extern __shared__ uint4 in[];
    __shared__ float part[2][WORKERS][WARPS][16][8];
    __shared__ int bad[2][WORKERS][16]; /* the last tile, plus 1, with a NaN in this row */
    int lane = threadIdx.x % 32, g = lane / 4, quad = lane % 4;
    int worker = threadIdx.x / (32 * WARPS), warp = threadIdx.x / 32 % WARPS;
    int r = threadIdx.x % 16, c = threadIdx.x % (32 * WARPS) / 16; /* of a tile's results */
    int32_t t = (int32_t)blockIdx.z * 8 + c;
    int n_units = (int)(a.cols / UNIT), parts = (int)gridDim.y;
    int first_unit = n_units * (int)blockIdx.y / parts;
    int part_units = n_units * ((int)blockIdx.y + 1) / parts - first_unit;
    int n_workers = (int)gridDim.x * WORKERS, n_tiles = (int)(a.rows / 16);
    int first_tile = (int)blockIdx.x * WORKERS + worker, buffer = 0;
    int turns =
        (part_units - warp + WARPS - 1) / WARPS; /* this warp's units of a tile; 0 for some */

    /* Slot d holds the unit of turn s + d; what follows in the slot is that of turn s + DEPTH + d, or of the
     * next tile's turn d. */
    lane_codes<F> w[DEPTH];
    uint32_t at = ((uint32_t)first_tile * 16 + g) * a.row_bytes +
                  ((uint32_t)(first_unit + warp) * 4 + quad) * lane_bytes<F>();
    uint32_t scale_at = ((uint32_t)first_tile * 16 + g) * a.scale_stride +
                        (uint32_t)(first_unit + warp) * 8 + quad * 2;
    const uint32_t step = WARPS * 4 * lane_bytes<F>(), scale_step = WARPS * 8;
    const uint32_t tile_step = (uint32_t)n_workers * 16 * a.row_bytes;
    const uint32_t scale_tile_step = (uint32_t)n_workers * 16 * a.scale_stride;
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
        if (first_tile < n_tiles && d < turns)
            load_unit<F>(w[d], a, at + d * step, scale_at + d * scale_step);
    stage_in<F>(in, a, (int64_t)first_unit * UNIT, part_units, (int32_t)blockIdx.z * 8);
    if (threadIdx.x < 2 * WORKERS * 16)
        (&bad[0][0][0])[threadIdx.x] = 0;
    __syncthreads();

    for (int tile = first_tile; tile < n_tiles; tile += n_workers, buffer ^= 1) {
        float acc[2][4] = {};
        uint32_t nan[2] = {0, 0};
        const uint4 *x_at = in + (warp * 4 * 8 + g) * 4 + quad;
        for (int s = 0; s < turns; s += DEPTH) {
#pragma unroll
            for (int d = 0; d < DEPTH; d++) {
                if (s + d >= turns)
                    break;
                lane_codes<F> now = w[d];
                lane_in x;
                if (s + DEPTH + d < turns)
                    load_unit<F>(w[d], a, at + (s + DEPTH + d) * step,
                                 scale_at + (s + DEPTH + d) * scale_step);
                else if (tile + n_workers < n_tiles)
                    load_unit<F>(w[d], a, at + tile_step + d * step,
                                 scale_at + scale_tile_step + d * scale_step);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    *(uint4 *)&x.v[4 * i] = x_at[i * 32];
                x_at += WARPS * 4 * 32;
                if (F == WF_FP8_BLOCK) {
                    float one[2][4] = {};
                    multiply<F>(one, now, x, nan);
                    float scale = scale_of(a, tile * 16 / 128 * (int64_t)a.scale_stride +
                                                  first_unit + warp + (s + d) * WARPS);
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        acc[0][i] = fmaf(scale, one[0][i] + one[1][i], acc[0][i]);
                } else {
                    multiply<F>(acc, now, x, nan);
                }
            }
        }
        at += tile_step;
        scale_at += scale_tile_step;

        /* The buffer is written again two tiles later, behind the next tile's barrier. */
#pragma unroll
        for (int i = 0; i < 4; i++)
            part[buffer][worker][warp][g + 8 * (i / 2)][quad * 2 + i % 2] = acc[0][i] + acc[1][i];
        if (F != WF_BF16)
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (nan[h] & (F == WF_NVFP4 ? 0x8080u : 0x80808080u))
                    bad[buffer][worker][g + 8 * h] = tile + 1;
        asm volatile("bar.sync %0, %1;" ::"r"(worker + 1), "n"(32 * WARPS) : "memory");
        if (c < 8 && t < a.T) {
            int64_t row = (int64_t)tile * 16 + r;
            bool is_nan = bad[buffer][worker][r] == tile + 1;
            float sum = part[buffer][worker][0][r][c];
#pragma unroll
            for (int k = 1; k < WARPS; k++)
                sum += part[buffer][worker][k][r][c];
            if (parts == 1)
                finish<F>(a, sum, row, t, is_nan);
            else
                a.partial[((int64_t)blockIdx.y * a.T + t) * a.rows + row] =
                    is_nan ? __int_as_float(0x7FC00000) : sum;
        }
    }
    if (parts == 1)
        return;
    cooperative_groups::this_grid().sync();
    int64_t n = (int64_t)a.T * a.rows;
    int64_t block = (int64_t)(blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int64_t n_blocks = (int64_t)gridDim.x * gridDim.y * gridDim.z;
    for (int64_t i = block * THREADS + threadIdx.x; i < n; i += n_blocks * THREADS) {
        float sum = __ldcg(a.partial + i);
        for (int k = 1; k < parts; k++)
            sum += __ldcg(a.partial + k * n + i);
        finish<F>(a, sum, i % a.rows, (int32_t)(i / a.rows), false);
    }
}

static bool is_aligned(const void *p, size_t to)
{
    return (uintptr_t)p % to == 0;
}

/* May linear_mma have this matrix, if its planes are aligned? */
static bool fits_mma(const struct weight *w)
{
    if (w->rows % 16 || w->cols % UNIT ||
        (double)w->rows * (double)w->codes.stride * (double)dtype_size(w->codes.dtype) > 4e9)
        return false; /* offsets are 32 bits */
    switch (w->format) {
    case WF_BF16:
        return w->codes.stride % 8 == 0;
    case WF_NVFP4:
        return w->codes.stride % 16 == 0 && w->scales.stride % 4 == 0;
    case WF_FP8_TENSOR:
    case WF_FP8_ROW:
    case WF_FP8_BLOCK:
        return w->codes.stride % 16 == 0;
    default:
        return false;
    }
}

static bool has_mma(const struct weight *w)
{
    return fits_mma(w) && is_aligned(w->codes.data, 16) && is_aligned(w->scales.data, 4);
}

/* How a matrix is divided; a matter of the matrix and the device only. */
struct mma_plan {
    int parts, blocks; /* gridDim.y and x */
    size_t shared_bytes;
};

/* As few parts of the columns as let the activations of one lie in shared memory: parts wait for each
 * other. */
static mma_plan plan_mma(const struct gpu *c, const struct weight *w)
{
    enum { PER_UNIT = 128 * sizeof(uint4), FIXED = 18 << 10 }; /* FIXED: the kernel's own */
    int n_units = (int)(w->cols / UNIT), n_tiles = (int)(w->rows / 16);
    int most = (int)((c->shared_bytes - FIXED) / PER_UNIT);
    mma_plan p;
    p.parts = (n_units + most - 1) / most;
    most = (n_units + p.parts - 1) / p.parts;
    p.blocks = c->n_sms / p.parts > 0 ? c->n_sms / p.parts : 1;
    if (p.blocks > (n_tiles + WORKERS - 1) / WORKERS)
        p.blocks = (n_tiles + WORKERS - 1) / WORKERS;
    p.shared_bytes = (size_t)most * PER_UNIT;
    return p;
}

static size_t partial_bytes(const mma_plan &p, const linear_args *l)
{
    return p.parts == 1
               ? 0
               : (size_t)p.parts * (size_t)l->in.dim[0] * (size_t)l->w->rows * sizeof(float);
}

template <weight_format_id F> static void launch_mma(struct gpu *c, const linear_args *l)
{
    static bool is_set;
    if (!is_set && cudaFuncSetAttribute(linear_mma<F>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        (int)(c->shared_bytes - (18 << 10))))
        return; /* cuda_launched tells */
    is_set = true;
    const struct weight *w = l->w;
    mma_plan p = plan_mma(c, w);
    mma_args a = {
        .codes = (const unsigned char *)w->codes.data,
        .row_bytes = (uint32_t)(w->codes.stride * (F == WF_BF16 ? 2 : 1)),
        .scales = (const unsigned char *)w->scales.data,
        .scale_stride = (uint32_t)w->scales.stride,
        .global = w->global,
        .rows = w->rows,
        .cols = w->cols,
        .in = (const bf16 *)l->in.data,
        .in_stride = l->in.stride,
        .y = l->y.data,
        .y_stride = l->y.stride,
        .partial = (float *)l->scratch.data,
        .T = (int32_t)l->in.dim[0],
        .scales_f32 = w->scales.dtype == DT_F32,
        .y_f32 = l->y.dtype == DT_F32,
        .add = l->add,
    };
    /* Blocks that wait for each other must all be there at once. */
    int32_t at_once = p.parts > 1 ? 8 : a.T;
    for (int32_t t = 0; t < l->in.dim[0]; t += at_once) {
        a.T = (int32_t)(l->in.dim[0] - t < at_once ? l->in.dim[0] - t : at_once);
        dim3 grid((unsigned)p.blocks, (unsigned)p.parts, (unsigned)cuda_blocks(a.T, 8));
        void *args[] = {&a};
        if (p.parts > 1)
            (void)cudaLaunchCooperativeKernel((const void *)linear_mma<F>, grid, dim3(THREADS),
                                              args, p.shared_bytes, c->stream);
        else
            linear_mma<F><<<grid, THREADS, p.shared_bytes, c->stream>>>(a);
        a.in += at_once * a.in_stride;
        a.y = (char *)a.y + at_once * a.y_stride * (a.y_f32 ? 4 : 2);
    }
}

/* ---- Anything ------------------------------------------------------------------------------------ */

/* A warp computes one weight row for ROWS activation rows. */
template <weight_format_id F, typename X, typename Y, bool ADD, int ROWS>
__global__ void linear_any(device_weight w, tensor in, tensor y)
{
    int64_t r = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    int64_t t0 = (int64_t)blockIdx.y * ROWS, T = in.dim[0];
    if (r >= w.rows)
        return;
    float acc[ROWS] = {};
    for (int64_t c = lane; c < w.cols; c += 32) {
        float v = weight_at<F>(w, r, c);
#pragma unroll
        for (int k = 0; k < ROWS; k++)
            if (t0 + k < T)
                acc[k] = fmaf(v, to_float(((const X *)in.data)[(t0 + k) * in.stride + c]), acc[k]);
    }
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
        float sum = warp_sum(acc[k]);
        if (lane == 0 && t0 + k < T) {
            Y *p = (Y *)y.data + (t0 + k) * y.stride + r;
            *p = from_float<Y>(ADD ? to_float(*p) + sum : sum);
        }
    }
}

template <weight_format_id F, typename X, typename Y, bool ADD>
static void launch_any2(struct gpu *c, const linear_args *a)
{
    enum { ROWS = 8, PER_BLOCK = 4 };
    dim3 grid((unsigned)cuda_blocks(a->w->rows, PER_BLOCK),
              (unsigned)cuda_blocks(a->in.dim[0], ROWS));
    linear_any<F, X, Y, ADD, ROWS>
        <<<grid, 32 * PER_BLOCK, 0, c->stream>>>(device_weight_of(a->w), a->in, a->y);
}

template <weight_format_id F> static void launch_any(struct gpu *c, const linear_args *a)
{
    if (a->in.dtype == DT_F32 && a->add)
        launch_any2<F, float, float, true>(c, a);
    else if (a->in.dtype == DT_F32)
        launch_any2<F, float, float, false>(c, a);
    else if (a->add)
        launch_any2<F, bf16, bf16, true>(c, a);
    else if (a->y.dtype == DT_F32)
        launch_any2<F, bf16, float, false>(c, a);
    else
        launch_any2<F, bf16, bf16, false>(c, a);
}

extern "C" size_t cuda_linear_scratch(const void *stream, const struct linear_args *a)
{
    /* Planned before the matrix is where it will be. */
    if (a->in.dtype == DT_F32 || !fits_mma(a->w))
        return 0;
    return partial_bytes(plan_mma((const struct gpu *)stream, a->w), a);
}

extern "C" lathe_status cuda_linear(void *stream, const struct linear_args *a, lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    if (a->in.dtype == DT_BF16 && has_mma(a->w)) {
        switch (a->w->format) {
        case WF_BF16:
            launch_mma<WF_BF16>(c, a);
            break;
        case WF_FP8_TENSOR:
            launch_mma<WF_FP8_TENSOR>(c, a);
            break;
        case WF_FP8_ROW:
            launch_mma<WF_FP8_ROW>(c, a);
            break;
        case WF_FP8_BLOCK:
            launch_mma<WF_FP8_BLOCK>(c, a);
            break;
        default:
            launch_mma<WF_NVFP4>(c, a);
        }
        return cuda_launched(c, err);
    }
    switch (a->w->format) {
#define ANY(upper, lower)                                                                          \
    case WF_##upper:                                                                               \
        launch_any<WF_##upper>(c, a);                                                              \
        break;
        WEIGHT_FORMATS(ANY)
#undef ANY
    default:
        return fail(err, LATHE_E_UNSUPPORTED, "a weight format without a kernel");
    }
    return cuda_launched(c, err);
}

/* Tiled matrices: their order, and y = W x for few rows.
 *
 * A file's rows are wide apart: a warp that takes 16 of them touches 16 lines where four would hold what it
 * reads, and the codes' bits lie far from where BF16 has them. Matrices that only linear reads are therefore
 * put in another order once, when they are loaded (tiles.cuh). Their values stay. */
#include "op/cuda/cuda.cuh"
#include "op/cuda/tiles.cuh"

/* ---- Order --------------------------------------------------------------------------------------- */

/* One word a thread. src holds whole strips as in the file, dst is their place. */
__global__ void arrange_fp8(uint32_t *dst, const uint32_t *src, int64_t cols, int64_t n_words)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n_words)
        dst[fp8_place(i * 4 / cols, i * 4 % cols, cols) / 4] = fp8_arrange(src[i]);
}

__global__ void arrange_e2m1(uint32_t *dst, const uint32_t *src, int64_t cols, int64_t n_words)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n_words)
        dst[e2m1_place(i * 8 / cols, i * 8 % cols, cols) / 4] = e2m1_arrange(src[i]);
}

/* One scale a thread, behind arrange_e2m1. There is no scale 0: the block's codes are 0 instead. */
__global__ void arrange_scales(uint8_t *dst, unsigned char *codes, const uint8_t *src, int64_t cols,
                               int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    int64_t row = i / (cols / 16), block = i % (cols / 16);
    dst[nvfp4_scale_place(row, block, cols)] = (uint8_t)scale_arrange(src[i]);
    if (src[i] == 0)
        for (int c = 0; c < 16; c += 8)
            *(uint32_t *)(codes + e2m1_place(row, block * 16 + c, cols)) = 0;
}

/* Is there a NaN among E4M3 codes, or, of scales, a negative one? One word a thread. */
__global__ void find_nan(const uint32_t *src, int64_t n_words, bool scales, int *found)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n_words)
        return;
    uint32_t w = src[i];
    if ((((w & 0x7F7F7F7Fu) + 0x01010101u) | (scales ? w : 0)) & 0x80808080u)
        *found = 1;
}

/* ---- Products ------------------------------------------------------------------------------------ */

/* A block computes one strip for 8 * GROUPS activation rows. Its WARPS warps take turns over the units, and a warp
 * holds AHEAD units of codes in registers, which it begins to load before the kernels in front of it have
 * ended: weights never change. Sums: inside the tensor core, over a warp's units in order, over the warps in
 * order. */
enum { WARPS = 8 };

enum { MOST_PARTS = 3 };
struct tiled_part {
    const unsigned char *codes;
    const uint2 *scales;      /* NVFP4 */
    const void *row_scales;   /* FP8_ROW, FP8_BLOCK */
    int64_t row_scale_stride; /* FP8_BLOCK: elements */
    void *y;
    int64_t y_stride;
    float global;
    int32_t first; /* block of its first strip */
    bool scales_f32, y_f32, add;
};
/* The two small products of the gates of the same activations: BF16 weights [n_heads, cols], a block a row of both. */
struct gate_rows {
    const bf16 *w[2]; /* in_proj_a, in_proj_b */
    int64_t w_stride[2];
    float *y[2]; /* g, beta */
    int64_t y_stride[2];
    const float *A_log, *dt_bias;
    int32_t n_heads; /* 0: there are none */
};

/* Matrices of one format that share their activations. */
struct tiled_args {
    tiled_part part[MOST_PARTS];
    const bf16 *in;
    int64_t in_stride;
    int32_t units, strips, T; /* strips of all parts */
    gate_rows gate;           /* of the first blocks */
};

template <weight_format_id F> __host__ __device__ constexpr int pieces()
{
    return F == WF_NVFP4 ? 2 : 4;
}

/* What one lane takes of a unit. */
template <weight_format_id F> struct lane_codes {
    uint4 v[pieces<F>()];
    uint2 scale; /* NVFP4 */
};

__device__ __forceinline__ uint4 load_once(const uint4 *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
__device__ __forceinline__ uint2 load_once(const uint2 *p)
{
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(p));
    return v;
}

/* Of the strip whose codes and scales these are. */
template <weight_format_id F>
__device__ __forceinline__ void load_codes(lane_codes<F> &w, const uint4 *codes,
                                           const uint2 *scales, int32_t unit, int lane)
{
#pragma unroll
    for (int i = 0; i < pieces<F>(); i++)
        w.v[i] = load_once(codes + (unit * pieces<F>() + i) * 32 + lane);
    if (F == WF_NVFP4)
        w.scale = load_once(scales + unit * 16 + lane / 4 * 2 + lane % 4 / 2);
}

/* Activations of columns 32 j + 8 q + 0..7 of a unit. */
template <bool ALIGNED> __device__ __forceinline__ uint4 load_in(const bf16 *p, bool there)
{
    uint4 v = {0, 0, 0, 0};
    if (!there)
        return v;
    if (ALIGNED)
        return *(const uint4 *)p;
    const unsigned short *s = (const unsigned short *)p;
    v.x = s[0] | (uint32_t)s[1] << 16;
    v.y = s[2] | (uint32_t)s[3] << 16;
    v.z = s[4] | (uint32_t)s[5] << 16;
    v.w = s[6] | (uint32_t)s[7] << 16;
    return v;
}

/* acc += the products of a unit. */
template <weight_format_id F, int GROUPS, int J>
__device__ __forceinline__ void multiply_quarter(float acc[GROUPS][4], const lane_codes<F> &w,
                                                 const uint4 *x)
{
    if (F == WF_NVFP4) {
        const uint32_t *c0 = (const uint32_t *)&w.v[0], *c1 = (const uint32_t *)&w.v[1];
        uint32_t s0 = scale_pair(w.scale.x, J), s1 = scale_pair(w.scale.y, J);
        uint32_t a[4] = {e2m1_pair<0>(c0[J], s0), e2m1_pair<0>(c1[J], s1), e2m1_pair<1>(c0[J], s0),
                         e2m1_pair<1>(c1[J], s1)};
        uint32_t b[4] = {e2m1_pair<2>(c0[J], s0), e2m1_pair<2>(c1[J], s1), e2m1_pair<3>(c0[J], s0),
                         e2m1_pair<3>(c1[J], s1)};
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
            mma_bf16(acc[n], a, x[n].x, x[n].y);
            mma_bf16(acc[n], b, x[n].z, x[n].w);
        }
    } else {
        const uint32_t *c0 = (const uint32_t *)&w.v[J / 2], *c1 = (const uint32_t *)&w.v[2 + J / 2];
        uint32_t a[4], b[4];
        fp8_pairs(c0[J % 2 * 2], a[0], a[2]);
        fp8_pairs(c1[J % 2 * 2], a[1], a[3]);
        fp8_pairs(c0[J % 2 * 2 + 1], b[0], b[2]);
        fp8_pairs(c1[J % 2 * 2 + 1], b[1], b[3]);
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
            mma_bf16(acc[n], a, x[n].x, x[n].y);
            mma_bf16(acc[n], b, x[n].z, x[n].w);
        }
    }
}

template <weight_format_id F, int GROUPS>
__device__ __forceinline__ void multiply(float acc[GROUPS][4], const lane_codes<F> &w,
                                         const uint4 x[4][GROUPS])
{
    multiply_quarter<F, GROUPS, 0>(acc, w, x[0]);
    multiply_quarter<F, GROUPS, 1>(acc, w, x[1]);
    multiply_quarter<F, GROUPS, 2>(acc, w, x[2]);
    multiply_quarter<F, GROUPS, 3>(acc, w, x[3]);
}

/* The product of row `row`, from its sum. */
template <weight_format_id F>
__device__ __forceinline__ float finished(const tiled_part &p, float sum, int64_t row)
{
    if (F == WF_NVFP4)
        return sum * ((float)(1 << NVFP4_SHIFT) * p.global);
    if (F == WF_FP8_TENSOR)
        return sum * p.global;
    return F == WF_FP8_ROW ? sum * scale_at(p.row_scales, p.scales_f32, row) : sum;
}

/* Output `i` of both gates for 8 * GROUPS rows. A thread has every 32 * WARPS-th pack of eight columns; sums: over its
 * packs, the lanes, the warps, each in order. Bound by latency, while other blocks stream their weights. */
template <int GROUPS>
__device__ __forceinline__ void gate_row(const tiled_args &a, int32_t i, int32_t t0)
{
    __shared__ float part[WARPS][GROUPS * 8];
    int32_t which = i / a.gate.n_heads, head = i % a.gate.n_heads, cols = a.units * UNIT_COLS;
    const bf16 *w = a.gate.w[which] + head * a.gate.w_stride[which];
    float acc[GROUPS * 8] = {};
    begin_kernel();
    for (int32_t c = (int32_t)threadIdx.x * 8; c < cols; c += 32 * WARPS * 8) {
        uint4 v = *(const uint4 *)(w + c);
        const uint32_t by[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int t = 0; t < GROUPS * 8; t++) {
            uint4 u = load_in<true>(a.in + (t0 + t) * a.in_stride + c, t0 + t < a.T);
            const uint32_t x[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
            for (int k = 0; k < 4; k++) {
                acc[t] = fmaf(__uint_as_float(by[k] << 16), __uint_as_float(x[k] << 16), acc[t]);
                acc[t] = fmaf(__uint_as_float(by[k] & 0xFFFF0000u),
                              __uint_as_float(x[k] & 0xFFFF0000u), acc[t]);
            }
        }
    }
#pragma unroll
    for (int t = 0; t < GROUPS * 8; t++) {
        float sum = warp_sum(acc[t]);
        if (threadIdx.x % 32 == 0)
            part[threadIdx.x / 32][t] = sum;
    }
    __syncthreads();
    int32_t t = (int32_t)threadIdx.x;
    if (t >= GROUPS * 8 || t0 + t >= a.T)
        return;
    float x = part[0][t];
#pragma unroll
    for (int k = 1; k < WARPS; k++)
        x += part[k][t];
    a.gate.y[which][(t0 + t) * a.gate.y_stride[which] + head] =
        gdn_gate(which, x, a.gate.A_log, a.gate.dt_bias, head);
}

/* T <= 8: GROUPS 1; T <= 16: 2; more: blockIdx.y. AHEAD units a warp and the blocks that fit a multiprocessor
 * together keep some 80 KB on their way. Bound by the weights' bytes; NVFP4 at eight rows nearly by instructions:
 * 11 shifts and masks and 4 products for eight codes.
 *
 * GATED: a block has the same strip of the first two parts, and y of the first is silu(gate) * up of these. */
template <weight_format_id F, int GROUPS, int AHEAD, int BLOCKS, bool GATED, bool ALIGNED,
          bool GATES>
__global__ void __launch_bounds__(32 * WARPS, BLOCKS) linear_tiled(tiled_args a)
{
    enum { MATRICES = GATED ? 2 : 1 };
    __shared__ float part[MATRICES][WARPS][STRIP_ROWS][GROUPS * 8];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, quad = lane % 4;
    int32_t block = (int32_t)blockIdx.x, t0 = (int32_t)blockIdx.y * GROUPS * 8;
    if (GATES) {
        block -= 2 * a.gate.n_heads;
        if (block < 0) {
            gate_row<GROUPS>(a, block + 2 * a.gate.n_heads, t0);
            return;
        }
    }
    int32_t at = GATED ? 0 : (block >= a.part[1].first) + (block >= a.part[2].first);
    int32_t strip = block - a.part[at].first;
    const uint4 *codes[MATRICES];
    const uint2 *scales[MATRICES];
    lane_codes<F> w[AHEAD][MATRICES];
    float acc[MATRICES][GROUPS][4] = {};

#pragma unroll
    for (int m = 0; m < MATRICES; m++) {
        int64_t first = (int64_t)strip * a.units;
        codes[m] = (const uint4 *)a.part[at + m].codes + first * (pieces<F>() * 32);
        scales[m] = a.part[at + m].scales + first * 16;
    }
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
#pragma unroll
        for (int m = 0; m < MATRICES; m++)
            if (warp + i * WARPS < a.units)
                load_codes<F>(w[i][m], codes[m], scales[m], warp + i * WARPS, lane);
    begin_kernel();

    const bf16 *in[GROUPS];
#pragma unroll
    for (int n = 0; n < GROUPS; n++)
        in[n] = a.in + (t0 + n * 8 + g) * a.in_stride + quad * 8;
    for (int32_t u0 = warp; u0 < a.units; u0 += AHEAD * WARPS) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int32_t u = u0 + i * WARPS;
            if (u >= a.units)
                break;
            uint4 x[4][GROUPS];
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int n = 0; n < GROUPS; n++)
                    x[j][n] =
                        load_in<ALIGNED>(in[n] + u * UNIT_COLS + j * 32, t0 + n * 8 + g < a.T);
#pragma unroll
            for (int m = 0; m < MATRICES; m++) {
                const tiled_part &p = a.part[at + m];
                if (F == WF_FP8_BLOCK) {
                    float one[GROUPS][4] = {};
                    multiply<F, GROUPS>(one, w[i][m], x);
                    float s = scale_at(p.row_scales, p.scales_f32,
                                       strip * STRIP_ROWS / 128 * p.row_scale_stride + u);
#pragma unroll
                    for (int n = 0; n < GROUPS; n++)
#pragma unroll
                        for (int k = 0; k < 4; k++)
                            acc[m][n][k] = fmaf(s, one[n][k], acc[m][n][k]);
                } else {
                    multiply<F, GROUPS>(acc[m], w[i][m], x);
                }
                if (u + AHEAD * WARPS < a.units)
                    load_codes<F>(w[i][m], codes[m], scales[m], u + AHEAD * WARPS, lane);
            }
        }
    }

#pragma unroll
    for (int m = 0; m < MATRICES; m++)
#pragma unroll
        for (int n = 0; n < GROUPS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                part[m][warp][g + 8 * (i / 2)][n * 8 + quad * 2 + i % 2] = acc[m][n][i];
    __syncthreads();
    for (int i = threadIdx.x; i < STRIP_ROWS * GROUPS * 8; i += 32 * WARPS) {
        int r = i % STRIP_ROWS, c = i / STRIP_ROWS;
        int64_t row = (int64_t)strip * STRIP_ROWS + r;
        int32_t t = t0 + c;
        if (t >= a.T)
            continue;
        float y[MATRICES];
#pragma unroll
        for (int m = 0; m < MATRICES; m++) {
            float sum = part[m][0][r][c];
#pragma unroll
            for (int k = 1; k < WARPS; k++)
                sum += part[m][k][r][c];
            y[m] = finished<F>(a.part[at + m], sum, row);
        }
        const tiled_part &p = a.part[at];
        bf16 *to = (bf16 *)p.y + t * p.y_stride + row;
        if (GATED)
            *to = from_float<bf16>(silu(to_float(from_float<bf16>(y[0]))) *
                                   to_float(from_float<bf16>(y[MATRICES - 1])));
        else if (p.y_f32)
            ((float *)p.y)[t * p.y_stride + row] = y[0];
        else
            *to = from_float<bf16>(p.add ? to_float(*to) + y[0] : y[0]);
    }
}

/* ---- Host side --------------------------------------------------------------------------------- */

template <weight_format_id F, int GROUPS, int AHEAD, int BLOCKS, bool GATED>
static void launch(struct gpu *c, const tiled_args &a)
{
    dim3 grid((unsigned)(a.strips + 2 * a.gate.n_heads), (unsigned)cuda_blocks(a.T, 8 * GROUPS));
    if (!GATED && a.gate.n_heads > 0)
        launch_next(c, linear_tiled<F, GROUPS, AHEAD, BLOCKS, false, true, true>, grid, 32 * WARPS,
                    0, a);
    else if (rows_aligned(a.in, a.in_stride, 2))
        launch_next(c, linear_tiled<F, GROUPS, AHEAD, BLOCKS, GATED, true, false>, grid, 32 * WARPS,
                    0, a);
    else
        launch_next(c, linear_tiled<F, GROUPS, AHEAD, BLOCKS, GATED, false, false>, grid,
                    32 * WARPS, 0, a);
}

template <weight_format_id F>
static void launch_format(struct gpu *c, const tiled_args &a, bool gated)
{
    enum { AHEAD = F == WF_NVFP4 ? 3 : 2 };
    if (gated && a.T <= 8)
        launch<F, 1, AHEAD, 2, true>(c, a);
    else if (gated)
        launch<F, 2, AHEAD - 1, 2, true>(c, a);
    else if (a.T <= 8)
        launch<F, 1, AHEAD, 3, false>(c, a);
    else
        launch<F, 2, AHEAD, 2, false>(c, a);
}

static void launch_parts(struct gpu *c, const struct linear_args *l, int n, bool gated,
                         const gate_rows *gate)
{
    tiled_args a = {
        .in = (const bf16 *)l->in.data,
        .in_stride = l->in.stride,
        .units = (int32_t)(l->w->cols / UNIT_COLS),
        .T = (int32_t)l->in.dim[0],
    };
    for (int i = 0; i < MOST_PARTS; i++) {
        a.part[i].first = INT32_MAX;
        if (i >= n)
            continue;
        const struct weight *w = l[i].w;
        a.part[i] = {
            .codes = (const unsigned char *)w->codes.data,
            .scales = (const uint2 *)w->scales.data,
            .row_scales = w->scales.data,
            .row_scale_stride = w->scales.stride,
            .y = l[i].y.data,
            .y_stride = l[i].y.stride,
            .global = w->global,
            .first = a.strips,
            .scales_f32 = w->scales.dtype == DT_F32,
            .y_f32 = l[i].y.dtype == DT_F32,
            .add = l[i].add,
        };
        a.strips += (int32_t)(w->rows / STRIP_ROWS);
    }
    if (gated)
        a.strips /= 2;
    if (gate)
        a.gate = *gate;
    switch (l->w->format) {
    case WF_NVFP4:
        launch_format<WF_NVFP4>(c, a, gated);
        break;
    case WF_FP8_ROW:
        launch_format<WF_FP8_ROW>(c, a, gated);
        break;
    case WF_FP8_BLOCK:
        launch_format<WF_FP8_BLOCK>(c, a, gated);
        break;
    default:
        launch_format<WF_FP8_TENSOR>(c, a, gated);
    }
}

extern "C" lathe_status cuda_linear_tiled(struct gpu *c, const struct linear_args *a,
                                          lathe_error *err)
{
    launch_parts(c, a, 1, false, NULL);
    return cuda_launched(c, err);
}

/* Can these products of one input be made by one launch? */
static bool go_together(const struct gpu *c, const struct linear_args *a, int n)
{
    if (n > MOST_PARTS || a->in.dtype != DT_BF16)
        return false;
    for (int i = 0; i < n; i++)
        if (!a[i].w->tiled || a[i].w->format != a->w->format || cuda_linear_prefill_takes(c, &a[i]))
            return false;
    return true;
}

extern "C" bool cuda_linears(void *stream, const struct linear_args *a, int n)
{
    struct gpu *c = cuda_of(stream);
    if (!go_together(c, a, n))
        return false;
    launch_parts(c, a, n, false, NULL);
    return true;
}

/* The gates' arithmetic is that of these kernels in DECODE and VERIFY, whatever the rows' alignment: rows that may not be
 * read in whole packs are refused in no batch of an engine, whose activations are its own. */
extern "C" bool cuda_linears_gates(void *stream, const struct linear_args *a, int n,
                                   const struct gdn_gates_args *g)
{
    struct gpu *c = cuda_of(stream);
    const struct weight *w[2] = {g->in_proj_a, g->in_proj_b};
    const struct tensor *y[2] = {&g->g, &g->beta};
    gate_rows gate = {};
    if (!go_together(c, a, n) || !rows_aligned(a->in.data, a->in.stride, 2))
        return false;
    for (int i = 0; i < 2; i++) {
        if (w[i]->format != WF_BF16 || !rows_aligned(w[i]->codes.data, w[i]->codes.stride, 2))
            return false;
        gate.w[i] = (const bf16 *)w[i]->codes.data;
        gate.w_stride[i] = w[i]->codes.stride;
        gate.y[i] = (float *)y[i]->data;
        gate.y_stride[i] = y[i]->stride;
    }
    gate.A_log = (const float *)g->A_log.data;
    gate.dt_bias = (const float *)g->dt_bias.data;
    gate.n_heads = (int32_t)w[0]->rows;
    launch_parts(c, a, n, false, &gate);
    return true;
}

extern "C" bool cuda_linear_silu_mul(void *stream, const struct linear_args a[2])
{
    struct gpu *c = cuda_of(stream);
    if (!go_together(c, a, 2))
        return false;
    launch_parts(c, a, 2, true, NULL);
    return true;
}

/* Bytes of the scratch that strips are arranged from, and columns of which a strip fits. */
enum { ARRANGE = CUDA_RING - 256, MOST_COLS = ARRANGE / STRIP_ROWS };

static bool can_tile(const struct weight *w)
{
    bool fp8 = w->format == WF_FP8_ROW || w->format == WF_FP8_BLOCK || w->format == WF_FP8_TENSOR;
    if ((!fp8 && w->format != WF_NVFP4) || w->rows % STRIP_ROWS || w->cols % UNIT_COLS ||
        w->cols > MOST_COLS || (uintptr_t)w->codes.data % 16)
        return false;
    if (fp8)
        return w->codes.stride == w->cols &&
               (!w->scales.data || (uintptr_t)w->scales.data % dtype_size(w->scales.dtype) == 0);
    return w->codes.stride == w->cols / 2 && w->scales.stride == w->cols / 16 &&
           (uintptr_t)w->scales.data % 8 == 0;
}

static void arrange(struct gpu *c, struct weight *w, unsigned char *from)
{
    bool fp8 = w->format != WF_NVFP4;
    unsigned char *codes = (unsigned char *)w->codes.data,
                  *scales = (unsigned char *)w->scales.data;
    int64_t row = fp8 ? w->cols : w->cols / 2, most = ARRANGE / row / STRIP_ROWS * STRIP_ROWS;
    for (int64_t r = 0; r < w->rows; r += most) {
        int64_t n = w->rows - r < most ? w->rows - r : most, bytes = n * row;
        cudaMemcpyAsync(from, codes + r * row, (size_t)bytes, cudaMemcpyDefault, c->stream);
        unsigned blocks = (unsigned)cuda_blocks(bytes / 4, 256);
        if (fp8)
            arrange_fp8<<<blocks, 256, 0, c->stream>>>((uint32_t *)(codes + r * row),
                                                       (const uint32_t *)from, w->cols, bytes / 4);
        else
            arrange_e2m1<<<blocks, 256, 0, c->stream>>>((uint32_t *)(codes + r * row),
                                                        (const uint32_t *)from, w->cols, bytes / 4);
    }
    row = w->cols / 16, most = ARRANGE / row / STRIP_ROWS * STRIP_ROWS;
    for (int64_t r = 0; !fp8 && r < w->rows; r += most) {
        int64_t n = w->rows - r < most ? w->rows - r : most, bytes = n * row;
        cudaMemcpyAsync(from, scales + r * row, (size_t)bytes, cudaMemcpyDefault, c->stream);
        arrange_scales<<<(unsigned)cuda_blocks(bytes, 256), 256, 0, c->stream>>>(
            scales + r * row, codes + r * row * 8, from, w->cols, bytes);
    }
    w->tiled = true;
}

extern "C" lathe_status cuda_arrange(void *stream, struct weight *const *w, size_t n,
                                     lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    unsigned char *from = cuda_scratch(c);
    int *found = (int *)(from + ARRANGE), host;
    for (size_t i = 0; i < n && from; i++) {
        if (!can_tile(w[i]))
            continue;
        const struct tensor *t = w[i]->format == WF_NVFP4 ? &w[i]->scales : &w[i]->codes;
        int64_t words = tensor_elements(t) / 4;
        host = 0;
        cudaMemsetAsync(found, 0, sizeof *found, c->stream);
        find_nan<<<(unsigned)cuda_blocks(words, 256), 256, 0, c->stream>>>(
            (const uint32_t *)t->data, words, w[i]->format == WF_NVFP4, found);
        cudaMemcpyAsync(&host, found, sizeof host, cudaMemcpyDeviceToHost, c->stream);
        cudaStreamSynchronize(c->stream);
        if (!host)
            arrange(c, w[i], from);
    }
    return backend_cuda.wait(stream, err);
}

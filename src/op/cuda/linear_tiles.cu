/* Tiled matrices: their order, and y = W x for few rows.
 *
 * A file's rows are wide apart: a warp that takes 16 of them touches 16 lines where four would hold what it
 * reads, and the codes' bits lie far from where BF16 has them. Matrices that only linear reads are therefore
 * put in another order once, when they are loaded (tiles.cuh). Their values stay. */
#include "op/cuda/copies.cuh"
#include "op/cuda/cuda.cuh"
#include "op/cuda/pack.cuh"
#include "op/cuda/tiles.cuh"

/* ---- Order --------------------------------------------------------------------------------------- */

/* One word a thread. src holds whole strips as in the file, dst is their place. */
__global__ void arrange_fp8(uint32_t *dst, const uint32_t *src, int64_t cols, int64_t n_words)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n_words)
        dst[fp8_place(i * 4 / cols, i * 4 % cols, cols) / 4] = fp8_arrange(src[i]);
}

/* Two words a thread, of rows g and g + 8. */
__global__ void arrange_e2m1(unsigned char *dst, const uint32_t *src, int64_t cols, int64_t n_words)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, row_words = cols / 8;
    if (i >= n_words / 2)
        return;
    int64_t row = i / row_words / 8 * STRIP_ROWS + i / row_words % 8, word = i % row_words;
    const uint32_t from[2] = {src[row * row_words + word], src[(row + 8) * row_words + word]};
    uint32_t to[2], *at = (uint32_t *)(dst + e2m1_place(row, word * 8, cols));
    e2m1_arrange(from, to);
    at[0] = to[0];
    at[E2M1_LOWER] = to[1];
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
    if (src[i] != 0)
        return;
    uint32_t mask[2];
    e2m1_bits((int)(row / 8 % 2), mask);
    for (int c = 0; c < 16; c += 8) {
        uint32_t *at = (uint32_t *)(codes + e2m1_place(row & ~(int64_t)8, block * 16 + c, cols));
        atomicAnd(at, ~mask[0]); /* row g + 8 has bits there too */
        atomicAnd(at + E2M1_LOWER, ~mask[1]);
    }
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

/* Blocks stay: block b computes strips b, b + gridDim.x ... for 8 * GROUPS activation rows. Its WARPS warps take turns over
 * a strip's units. A warp copies what it will need of its next AHEAD units into shared memory, past the end of a strip
 * into the next one, and begins before the kernels in front have ended: weights never change. Only that warp reads these
 * bytes, so that no barrier of the block is needed. L1 is the activations', which a multiprocessor reads again for each
 * strip, 80 KB for eight rows of 5120 columns: what is copied goes past it, and shared memory is spared. Sums: inside the
 * tensor core, over a warp's units in order, over two warps, HALF apart, over these pairs in order. */
enum { WARPS = 8, HALF = WARPS / 2, THREADS = 32 * WARPS };

enum { MOST_PARTS = 3, SCALE_PIECES = STRIP_ROWS * UNIT_COLS / 16 / 16 }; /* 16 bytes, of a unit */
struct tiled_part {
    const unsigned char *codes;
    const uint4 *scales;      /* NVFP4 */
    const void *row_scales;   /* FP8_ROW, FP8_BLOCK */
    int64_t row_scale_stride; /* FP8_BLOCK: elements */
    void *y;
    int64_t y_stride;
    float global;
    int32_t first; /* of its strips among those of all parts */
    bool scales_f32, y_f32, add;
};
/* The two small products of the gates of the same activations: BF16 weights [n_heads, cols]. The last blocks, which have the
 * fewest strips, take a row each. */
struct gate_rows {
    const bf16 *w[2]; /* in_proj_a, in_proj_b */
    int64_t w_stride[2];
    float *y[2]; /* g, beta */
    int64_t y_stride[2];
    const float *A_log, *dt_bias;
    int32_t n_heads; /* 0: there are none */
};

/* A row's sum of squares, in parts that are added in order; one that F32 does not hold is that of h times 2^-64, and
 * negative. */
struct row_squares {
    float *p; /* NULL: there is none */
    int64_t stride;
};
/* The norm of a sum that was added to: u = h * w, with the squares of each strip's 16 values. */
struct next_norm {
    const float *w;
    bf16 *u;
    int64_t u_stride;
    row_squares squares;
};

/* Matrices of one format that share their activations. */
struct tiled_args {
    tiled_part part[MOST_PARTS];
    const bf16 *in;
    int64_t in_stride;
    int32_t units, strips, T; /* strips of all parts */
    gate_rows gate;
    row_squares in_squares; /* `in` is to be multiplied by the rows' scales */
    float eps;
    next_norm norm;
};

/* What a lane takes of a unit: pieces of 16 bytes of codes. */
template <weight_format_id F> __host__ __device__ constexpr int pieces()
{
    return F == WF_NVFP4 ? 2 : 4;
}
/* Of 16 bytes, in the place of a unit of one or two matrices: codes, and NVFP4's scales. */
template <weight_format_id F, bool GATED> __host__ __device__ constexpr int slot_pieces()
{
    return (GATED ? 2 : 1) * (pieces<F>() * THREADS + (F == WF_NVFP4 ? WARPS * SCALE_PIECES : 0));
}

__device__ __forceinline__ void copy16(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from)
                 : "memory");
}

/* Activations of columns 32 j + 8 q + 0..7 of a unit. */
template <bool ALIGNED> __device__ __forceinline__ uint4 load_in(const bf16 *p)
{
    if (ALIGNED)
        return *(const uint4 *)p;
    uint4 v;
    const unsigned short *s = (const unsigned short *)p;
    v.x = s[0] | (uint32_t)s[1] << 16;
    v.y = s[2] | (uint32_t)s[3] << 16;
    v.z = s[4] | (uint32_t)s[5] << 16;
    v.w = s[6] | (uint32_t)s[7] << 16;
    return v;
}

/* sum += the products of columns 32 j and on of a unit, whose codes of rows g and g + 8 begin at c0 and c1. */
template <weight_format_id F, int GROUPS>
__device__ __forceinline__ void multiply_quarter(float sum[GROUPS][4], const uint32_t *c0,
                                                 const uint32_t *c1, const four_scales s[2],
                                                 const int j, const uint4 x[GROUPS])
{
    uint32_t a[4], b[4];
    if (F == WF_NVFP4) {
        e2m1_pairs(c0[0], c1[0], scale_pair(s[0], j), scale_pair(s[1], j), a, b);
    } else {
        fp8_pairs(c0[0], a[0], a[2]);
        fp8_pairs(c1[0], a[1], a[3]);
        fp8_pairs(c0[1], b[0], b[2]);
        fp8_pairs(c1[1], b[1], b[3]);
    }
#pragma unroll
    for (int n = 0; n < GROUPS; n++) {
        mma_bf16(sum[n], a, x[n].x, x[n].y);
        mma_bf16(sum[n], b, x[n].z, x[n].w);
    }
}

/* N words of a lane's row of a unit, which begins at piece `from` and goes on THREADS pieces further: all of them, or half h. */
template <int N> __device__ __forceinline__ void load_words(uint32_t *to, const uint4 *from, int h)
{
    if (N == 2)
        *(uint2 *)to = ((const uint2 *)from)[h];
    else if (N == 4)
        *(uint4 *)to = from[h * THREADS];
    else {
        *(uint4 *)to = from[0];
        *(uint4 *)(to + N / 2) = from[THREADS];
    }
}

/* What the sum of row `row` is multiplied by. */
template <weight_format_id F>
__device__ __forceinline__ float scale_of_sum(const tiled_part &p, int64_t row)
{
    if (F == WF_NVFP4)
        return (float)(1 << NVFP4_SHIFT) * p.global;
    if (F == WF_FP8_TENSOR)
        return p.global;
    return F == WF_FP8_ROW ? scale_at(p.row_scales, p.scales_f32, row) : 1.0f;
}

/* A row's scale from n parts of its squares, n a multiple of 8, by a warp. */
__device__ __forceinline__ float row_scale_of(const float *part, int32_t n, float eps)
{
    enum { AT_ONCE = 3 };
    float sum = 0;
    bool held = true;
    for (int32_t i = threadIdx.x % 32; i < n / 4; i += 32 * AT_ONCE) {
        float4 v[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            v[j] = i + 32 * j < n / 4 ? ((const float4 *)part)[i + 32 * j] : float4{0, 0, 0, 0};
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            held &= fminf(fminf(v[j].x, v[j].y), fminf(v[j].z, v[j].w)) >= 0;
            sum += (v[j].x + v[j].y) + (v[j].z + v[j].w);
        }
    }
    sum = warp_sum(sum);
    if (__all_sync(0xffffffffu, held && is_held(sum)))
        return rms_scale(sum, (int64_t)n * STRIP_ROWS, eps);
    sum = 0;
    for (int32_t i = threadIdx.x % 32; i < n; i += 32)
        sum += part[i] < 0 ? -part[i] : part[i] * 0x1p-128f;
    return 0x1p-64f / sqrtf(warp_sum(sum) / (float)(n * STRIP_ROWS));
}

/* What rows t0 and on of unscaled activations are multiplied by, for 8 * GROUPS of them. */
template <int GROUPS>
__device__ __forceinline__ void row_scales(const tiled_args &a, int32_t t0, float *scale)
{
    for (int32_t t = threadIdx.x / 32; t < GROUPS * 8 && t0 + t < a.T; t += WARPS) {
        float x = row_scale_of(a.in_squares.p + (t0 + t) * a.in_squares.stride,
                               a.units * (UNIT_COLS / STRIP_ROWS), a.eps);
        if (threadIdx.x % 32 == 0)
            scale[t] = x;
    }
}

/* u and the squares of a value of h, by the 16 threads of a strip's rows together. */
__device__ __forceinline__ void put_norm(const next_norm &norm, int32_t strip, int64_t y_row,
                                         int64_t t, float h, float w)
{
    const unsigned half = 0xFFFFu << (threadIdx.x & 16);
    auto sum_of = [&](float x) {
        x *= x;
#pragma unroll
        for (int i = STRIP_ROWS / 2; i > 0; i >>= 1)
            x += __shfl_xor_sync(half, x, i);
        return x;
    };
    norm.u[t * norm.u_stride + y_row] = from_float<bf16>(h * w);
    float sum = sum_of(h);
    if (!is_held(sum)) /* for all 16 */
        sum = -sum_of(h * 0x1p-64f);
    if (threadIdx.x % STRIP_ROWS == 0)
        norm.squares.p[t * norm.squares.stride + strip] = sum;
}

/* Output `i` of both gates for 8 * GROUPS rows. A thread has every THREADS-th pack of eight columns; sums: over its packs,
 * the lanes, the warps, each in order. Bound by latency, while weights are on their way. */
template <int GROUPS>
__device__ __forceinline__ void gate_row(const tiled_args &a, int32_t i, int32_t t0,
                                         const float *scale)
{
    __shared__ float part[WARPS][GROUPS * 8];
    int32_t which = i / a.gate.n_heads, head = i % a.gate.n_heads, cols = a.units * UNIT_COLS;
    const bf16 *w = a.gate.w[which] + head * a.gate.w_stride[which];
    float acc[GROUPS * 8] = {};
    for (int32_t c = (int32_t)threadIdx.x * 8; c < cols; c += THREADS * 8) {
        uint4 v = *(const uint4 *)(w + c);
        const uint32_t by[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int t = 0; t < GROUPS * 8; t++) {
            int32_t row = t0 + t < a.T ? t0 + t : a.T - 1;
            uint4 u = load_in<true>(a.in + row * a.in_stride + c);
            const uint32_t x[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
            for (int k = 0; k < 4; k++) {
                acc[t] = fmaf(__uint_as_float(by[k] << 16), __uint_as_float(x[k] << 16), acc[t]);
                acc[t] = fmaf(__uint_as_float(by[k] & 0xFFFF0000u),
                              __uint_as_float(x[k] & 0xFFFF0000u), acc[t]);
            }
        }
    }
    __syncthreads(); /* part of the row before */
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
    if (a.in_squares.p)
        x *= scale[t];
    a.gate.y[which][(t0 + t) * a.gate.y_stride[which] + head] =
        gdn_gate(which, x, a.gate.A_log, a.gate.dt_bias, head);
}

/* Do blocks have half of a unit's activations in registers at a time? Three blocks of a multiprocessor then have the
 * registers for 16 rows. */
__host__ __device__ constexpr bool is_halved(int groups, int blocks)
{
    return groups == 2 && blocks == 3;
}

/* Places for the sums of a row of W: with one more than there are, rows are read from different banks. */
template <int GROUPS> constexpr int SUM_ROW = GROUPS * 8 + 1;

template <int GROUPS, bool GATED> __host__ __device__ constexpr int sums_bytes()
{
    return (GATED ? 2 : 1) * HALF * STRIP_ROWS * SUM_ROW<GROUPS> * (int)sizeof(float);
}

/* T <= 8: GROUPS 1; T <= 16: 2; more: blockIdx.y. Of a row that is not there a column of sums is reckoned from another
 * row, and left. Bound by the weights' bytes, and for NVFP4 nearly by instructions: eight codes cost 8 shifts and
 * masks, 4 products and 2 for their scale, of which a multiprocessor does masks at half rate.
 *
 * GATED: a block has the same strip of the first two parts, and y of the first is silu(gate) * up of these. */
template <weight_format_id F, int GROUPS, int AHEAD, int BLOCKS, bool GATED, bool ALIGNED,
          bool GATES>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    linear_tiled(const __grid_constant__ tiled_args a)
{
    enum { MATRICES = GATED ? 2 : 1, N = pieces<F>(), SLOT = slot_pieces<F, GATED>() };
    enum { HALVES = is_halved(GROUPS, BLOCKS) ? 2 : 1, QUARTERS = 4 / HALVES };
    enum { WORDS = F == WF_NVFP4 ? 1 : 2 }; /* of codes, that a lane has of a row in a quarter */
    __shared__ float part[MATRICES][HALF][STRIP_ROWS][SUM_ROW<GROUPS>];
    __shared__ float row_scale[GROUPS * 8]; /* of unscaled activations */
    extern __shared__ uint4 ring[];
    static_assert(sizeof part == sums_bytes<GROUPS, GATED>(), "");
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, quad = lane % 4;
    int32_t t0 = (int32_t)blockIdx.y * GROUPS * 8, step = (int32_t)gridDim.x;
    const int32_t mine = (a.units - warp + WARPS - 1) / WARPS; /* units of a strip */
    auto part_of = [&](int32_t strip) {
        return GATED ? 0 : (strip >= a.part[1].first) + (strip >= a.part[2].first);
    };

    /* Next to be copied: unit warp + WARPS * (mine - left) of the strip `ahead`. */
    int32_t ahead = mine > 0 ? (int32_t)blockIdx.x : a.strips, left = mine;
    const uint4 *codes[MATRICES];
    const uint4 *scales; /* of the first matrix in lanes 0..7, of the second in 8..15 */
    uint32_t at_codes = warp * N * 32 + lane;
    uint32_t at_scales = warp * SCALE_PIECES + lane % SCALE_PIECES;
    auto point = [&]() {
        int32_t at = part_of(ahead);
        int64_t first = (int64_t)(ahead - a.part[at].first) * a.units;
#pragma unroll
        for (int m = 0; m < MATRICES; m++)
            codes[m] = (const uint4 *)a.part[at + m].codes + first * (N * 32);
        scales = a.part[at + (GATED && lane >= SCALE_PIECES)].scales + first * SCALE_PIECES;
    };
    auto copy_next = [&](uint4 *to) {
        if (ahead < a.strips) {
#pragma unroll
            for (int m = 0; m < MATRICES; m++)
#pragma unroll
                for (int i = 0; i < N; i++)
                    copy16(to + (m * N + i) * THREADS + threadIdx.x, codes[m] + at_codes + i * 32);
            if (F == WF_NVFP4 && lane < MATRICES * SCALE_PIECES)
                copy16(to + MATRICES * N * THREADS + warp * (MATRICES * SCALE_PIECES) + lane,
                       scales + at_scales);
            at_codes += WARPS * N * 32;
            at_scales += WARPS * SCALE_PIECES;
            if (--left == 0) {
                ahead += step;
                left = mine;
                at_codes -= mine * (WARPS * N * 32);
                at_scales -= mine * (WARPS * SCALE_PIECES);
                if (ahead < a.strips)
                    point();
            }
        }
        copies_commit();
    };
    if (ahead < a.strips)
        point();
    for (int i = 0; i < AHEAD; i++)
        copy_next(ring + i * SLOT);
    begin_kernel();
    const bf16 *row[GROUPS];
#pragma unroll
    for (int n = 0; n < GROUPS; n++) {
        int32_t t = t0 + n * 8 + g;
        row[n] = a.in + (t < a.T ? t : a.T - 1) * a.in_stride + quad * 8 + warp * UNIT_COLS;
    }
    if (a.in_squares.p)
        row_scales<GROUPS>(a, t0, row_scale); /* there behind the next barrier */
    if (GATES)
        for (int32_t i = step - 1 - (int32_t)blockIdx.x; i < 2 * a.gate.n_heads; i += step)
            gate_row<GROUPS>(a, i, t0, row_scale);

    /* The thread's own output of a strip, if it has one. */
    const int32_t r = threadIdx.x % STRIP_ROWS, c = threadIdx.x / STRIP_ROWS, t = t0 + c;
    const bool has_output = c < GROUPS * 8 && t < a.T;
    static_assert(STRIP_ROWS * GROUPS * 8 <= THREADS, "");

    uint4 *here = ring;
    for (int32_t strip = (int32_t)blockIdx.x; strip < a.strips; strip += step) {
        int32_t at = part_of(strip), own = strip - a.part[at].first;
        float acc[MATRICES][GROUPS][4] = {}, by[MATRICES], old = 0, w = 0;
        if (has_output) {
            const tiled_part &p = a.part[at];
            const int64_t y_row = (int64_t)own * STRIP_ROWS + r;
#pragma unroll
            for (int m = 0; m < MATRICES; m++)
                by[m] = scale_of_sum<F>(a.part[at + m], y_row);
            if (!GATED && p.add)
                old = to_float(((const bf16 *)p.y)[t * p.y_stride + y_row]);
            if (!GATED && a.norm.u)
                w = a.norm.w[y_row];
        }
#pragma unroll 1
        for (int32_t k = 0; k < mine; k++) {
            float block_sum[MATRICES][GROUPS][4] = {}; /* FP8_BLOCK: of the unit */
#pragma unroll
            for (int h = 0; h < HALVES; h++) {
                uint4 x[QUARTERS][GROUPS];
#pragma unroll
                for (int n = 0; n < GROUPS; n++)
#pragma unroll
                    for (int j = 0; j < QUARTERS; j++)
                        x[j][n] = load_in<ALIGNED>(row[n] + (h * QUARTERS + j) * 32);
                if (h == 0) {
                    copies_wait<AHEAD - 1>();
                    if (F == WF_NVFP4)
                        __syncwarp(); /* other lanes' copies of scales are there */
                }
#pragma unroll
                for (int m = 0; m < MATRICES; m++) {
                    /* Codes of rows g and g + 8, WORDS for each quarter. */
                    uint32_t word[2][QUARTERS * WORDS];
                    four_scales s[2];
#pragma unroll
                    for (int i = 0; i < 2; i++)
                        load_words<QUARTERS * WORDS>(
                            word[i], here + (m * N + i * (N / 2)) * THREADS + threadIdx.x, h);
                    if (F == WF_NVFP4) {
                        const uint4 *of_unit =
                            here + MATRICES * N * THREADS + (warp * MATRICES + m) * SCALE_PIECES;
                        uint2 v = ((const uint2 *)of_unit)[2 * g + quad / 2];
                        s[0] = scales_of(v.x);
                        s[1] = scales_of(v.y);
                    }
#pragma unroll
                    for (int j = 0; j < QUARTERS; j++)
                        multiply_quarter<F, GROUPS>(F == WF_FP8_BLOCK ? block_sum[m] : acc[m],
                                                    &word[0][j * WORDS], &word[1][j * WORDS], s,
                                                    h * QUARTERS + j, x[j]);
                }
            }
#pragma unroll
            for (int n = 0; n < GROUPS; n++)
                row[n] += WARPS * UNIT_COLS;
#pragma unroll
            for (int m = 0; m < MATRICES && F == WF_FP8_BLOCK; m++) {
                const tiled_part &q = a.part[at + m];
                float block =
                    scale_at(q.row_scales, q.scales_f32,
                             own * STRIP_ROWS / 128 * q.row_scale_stride + warp + k * WARPS);
#pragma unroll
                for (int n = 0; n < GROUPS; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        acc[m][n][i] = fmaf(block, block_sum[m][n][i], acc[m][n][i]);
            }
            if (F == WF_NVFP4)
                __syncwarp(); /* all have read the scales */
            copy_next(here);
            here += SLOT;
            if (here == ring + AHEAD * SLOT)
                here = ring;
        }
#pragma unroll
        for (int n = 0; n < GROUPS; n++)
            row[n] -= mine * (WARPS * UNIT_COLS);
        if (strip != (int32_t)blockIdx.x)
            __syncthreads(); /* the sums of the strip before are read */
        auto each_part = [&](auto use) {
#pragma unroll
            for (int m = 0; m < MATRICES; m++)
#pragma unroll
                for (int n = 0; n < GROUPS; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        use(part[m][warp % HALF][g + 8 * (i / 2)][n * 8 + quad * 2 + i % 2],
                            acc[m][n][i]);
        };
        if (warp >= HALF)
            each_part([](float &p, float x) { p = x; });
        __syncthreads();
        if (warp < HALF)
            each_part([](float &p, float x) { p = x + p; });
        __syncthreads();
        if (!has_output)
            continue;
        float y[MATRICES];
#pragma unroll
        for (int m = 0; m < MATRICES; m++) {
            float sum = part[m][0][r][c];
#pragma unroll
            for (int k = 1; k < HALF; k++)
                sum += part[m][k][r][c];
            y[m] = sum * by[m];
            if (a.in_squares.p)
                y[m] *= row_scale[c];
        }
        asm volatile("" : "+r"(own)); /* places are reckoned again, not kept through the loop */
        const tiled_part &p = a.part[at];
        const int64_t y_row = (int64_t)own * STRIP_ROWS + r;
        bf16 *to = (bf16 *)p.y + t * p.y_stride + y_row;
        if (GATED)
            *to = from_float<bf16>(silu(to_float(from_float<bf16>(y[0]))) *
                                   to_float(from_float<bf16>(y[MATRICES - 1])));
        else if (p.y_f32)
            ((float *)p.y)[t * p.y_stride + y_row] = y[0];
        else {
            bf16 h = from_float<bf16>(p.add ? old + y[0] : y[0]);
            *to = h;
            if (a.norm.u)
                put_norm(a.norm, own, y_row, t, to_float(h), w);
        }
    }
}

/* ---- Host side --------------------------------------------------------------------------------- */

/* Bytes of shared memory of a block: what it copies, and the rest. */
template <weight_format_id F, int AHEAD, bool GATED>
constexpr int RING_BYTES = slot_pieces<F, GATED>() * AHEAD * 16;
template <int GROUPS, bool GATED>
constexpr int SUMS_BYTES = sums_bytes<GROUPS, GATED>() +
                           (GATED ? 0 : WARPS * GROUPS * 8 * 4) + /* and the gates' */
                           GROUPS * 8 * 4;

/* Blocks of a multiprocessor that have the memory. */
template <weight_format_id F, int GROUPS, int AHEAD, bool GATED>
static int blocks_with_room(const struct gpu *c)
{
    return c->shared_per_sm /
           (RING_BYTES<F, AHEAD, GATED> + SUMS_BYTES<GROUPS, GATED> + SHARED_OF_SYSTEM);
}

template <weight_format_id F, int GROUPS, int AHEAD, int BLOCKS, bool GATED>
static void launch(struct gpu *c, const tiled_args &a)
{
    enum { RING = RING_BYTES<F, AHEAD, GATED>, SUMS = SUMS_BYTES<GROUPS, GATED> };
    int blocks = blocks_with_room<F, GROUPS, AHEAD, GATED>(c);
    blocks = blocks < 1 ? 1 : blocks < BLOCKS ? blocks : BLOCKS;
    int most = c->n_sms * blocks;
    dim3 grid((unsigned)(a.strips < most ? a.strips : most),
              (unsigned)cuda_blocks(a.T, 8 * GROUPS));
    auto go = [&](void (*kernel)(tiled_args)) {
        prefer_shared(c, kernel, RING, SUMS, blocks);
        launch_next(c, kernel, grid, THREADS, RING, a);
    };
    if constexpr (!GATED && !is_halved(GROUPS, BLOCKS))
        if (a.gate.n_heads > 0)
            return go(linear_tiled<F, GROUPS, AHEAD, BLOCKS, false, true, true>);
    if (rows_aligned(a.in, a.in_stride, 2))
        go(linear_tiled<F, GROUPS, AHEAD, BLOCKS, GATED, true, false>);
    else
        go(linear_tiled<F, GROUPS, AHEAD, BLOCKS, GATED, false, false>);
}

template <weight_format_id F>
static void launch_format(struct gpu *c, const tiled_args &a, bool gated)
{
    enum { NVFP4 = F == WF_NVFP4, AHEAD = NVFP4 ? 3 : 2 };
    /* Up to 16 rows: where a third block gives each one strip it is worth halves, and else it is not. */
    const bool takes_three = a.T <= 16 && a.gate.n_heads == 0 && a.strips > 2 * c->n_sms &&
                             a.strips <= 3 * c->n_sms &&
                             blocks_with_room<F, 2, AHEAD, false>(c) >= 3;
    if (gated && a.T <= 8)
        launch<F, 1, 2, NVFP4 ? 3 : 2, true>(c, a);
    else if (gated)
        launch<F, 2, 2, 2, true>(c, a);
    else if (a.T <= 8)
        launch<F, 1, AHEAD, 3, false>(c, a);
    else if (takes_three)
        launch<F, 2, AHEAD, 3, false>(c, a);
    else
        launch<F, 2, AHEAD, 2, false>(c, a);
}

static_assert((int)OP_NORM_PART == (int)STRIP_ROWS, "a strip makes one part");
static row_squares squares_of(const struct normed *n)
{
    return {(float *)n->squares.data, n->squares.stride};
}

static void launch_parts(struct gpu *c, const struct linear_args *l, int n, bool gated,
                         const gate_rows *gate, const struct normed *norm)
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
            .scales = (const uint4 *)w->scales.data,
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
    if (l->of) {
        a.in_squares = squares_of(l->of);
        a.eps = l->of->eps;
    }
    if (norm)
        a.norm = {(const float *)norm->w.data, (bf16 *)norm->u.data, norm->u.stride,
                  squares_of(norm)};
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
    launch_parts(c, a, 1, false, NULL, NULL);
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
    if (cuda_linears_rows(c, a, n))
        return true;
    if (!go_together(c, a, n))
        return false;
    launch_parts(c, a, n, false, NULL, NULL);
    return true;
}

extern "C" bool cuda_linear_add_norm(void *stream, const struct linear_args *a,
                                     const struct normed *n)
{
    struct gpu *c = cuda_of(stream);
    if (!go_together(c, a, 1) || !rows_aligned(n->squares.data, n->squares.stride, 4))
        return false;
    launch_parts(c, a, 1, false, NULL, n);
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
    launch_parts(c, a, n, false, &gate, NULL);
    return true;
}

extern "C" bool cuda_linear_silu_mul(void *stream, const struct linear_args a[2])
{
    struct gpu *c = cuda_of(stream);
    if (!go_together(c, a, 2))
        return false;
    launch_parts(c, a, 2, true, NULL, NULL);
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
           (uintptr_t)w->scales.data % 16 == 0;
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
            arrange_e2m1<<<blocks, 256, 0, c->stream>>>(codes + r * row, (const uint32_t *)from,
                                                        w->cols, bytes / 4);
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
    cuda_linear_rows_open(c);
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

/* y = W x and y += W x for the rows of a prompt: W is expanded to BF16, a panel of rows at a time, and multiplied
 * on cuBLASLt's tensor cores.
 *
 * What is expanded is exact: code words, or for NVFP4 their products with the block's scale. The other scales
 * multiply the sums, in F32: one of the whole matrix in the product itself, those of rows in `finish`. Scales of FP8
 * blocks would have to change within a sum: there the scaled weight is two BF16 numbers, its rounded value and the
 * rounded rest, and the product is taken twice.
 *
 * Sums that are added to y go through `finish` too: cuBLASLt would round them before it adds.
 *
 * Few rows by tiled matrices are of linear_wgmma.cu where that gives the same bits.
 *
 * Panels, and how a product is computed, depend on the matrix, on y's dtype and on whether it is added to. Rows
 * fewer than GEMM_LEAST_ROWS, and rows that lie where cuBLASLt cannot reach them, go through copies. */
#include "op/cuda/cuda.cuh"
#include "op/cuda/decode.cuh"
#include "op/cuda/tiles.cuh"
extern "C" {
#include "op/cuda/gemm.h"
}

enum {
    LEAST_WEIGHTS = 1 << 20,
    PANEL_BYTES = 192 << 20,
    PANEL_ROWS = 128, /* panels are multiples of it: whole scale blocks */
};

/* ---- Expansion ----------------------------------------------------------------------------------- */

struct expand_args {
    const unsigned char *codes; /* of the panel's first row; rows of row_bytes, 16-byte aligned */
    int64_t row_bytes;
    const unsigned char
        *scales;          /* NVFP4: of the panel's first row; FP8_BLOCK: of its first block */
    int64_t scale_stride; /* elements */
    bool scales_f32;
    uint32_t row_units, n_units; /* of 8 columns */
    uint4 *out;                  /* [rows, cols] BF16 */
};

/* Eight neighbouring weights, as they lie. */
template <weight_format_id F> struct eight_codes {
    uint32_t c[F == WF_NVFP4 ? 1 : 2];
    uint32_t nvfp4_scale;
    float scale;
};

template <weight_format_id F>
__device__ __forceinline__ void load_unit(eight_codes<F> &u, const expand_args &a, uint32_t row,
                                          uint32_t unit)
{
    const unsigned char *p = a.codes + row * a.row_bytes;
    if (F == WF_NVFP4) {
        u.c[0] = ((const uint32_t *)p)[unit];
        u.nvfp4_scale = a.scales[row * a.scale_stride + unit / 2];
    } else {
        uint2 v = ((const uint2 *)p)[unit];
        u.c[0] = v.x, u.c[F == WF_NVFP4 ? 0 : 1] = v.y;
        if (F == WF_FP8_BLOCK)
            u.scale = scale_at(a.scales, a.scales_f32, row / 128 * a.scale_stride + unit / 16);
    }
}

/* Words of columns (0, 1), (2, 3) ... NVFP4 is 2^-NVFP4_SHIFT of its value. */
template <weight_format_id F, bool REST, bool TILED>
__device__ __forceinline__ uint4 expand_unit(const eight_codes<F> &u)
{
    uint32_t w[4];
    if (F == WF_NVFP4) {
        uint32_t s[2];
        nvfp4_scales(u.nvfp4_scale, s);
        if ((u.nvfp4_scale & 0x7F) == 0x7F)
            s[0] = 0x7FC07FC0u;
        uint32_t p[4] = {decode_e2m1<0>(u.c[0], s[0]), decode_e2m1<1>(u.c[0], s[0]),
                         decode_e2m1<2>(u.c[0], s[0]), decode_e2m1<3>(u.c[0], s[0])};
        w[0] = __byte_perm(p[0], p[1], 0x5410);
        w[1] = __byte_perm(p[2], p[3], 0x5410);
        w[2] = __byte_perm(p[0], p[1], 0x7632);
        w[3] = __byte_perm(p[2], p[3], 0x7632);
        return make_uint4(w[0], w[1], w[2], w[3]);
    }
    const uint32_t c[2] = {u.c[0], u.c[F == WF_NVFP4 ? 0 : 1]};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t even, odd;
        if (TILED) {
            fp8_pairs(c[i], w[2 * i], w[2 * i + 1]);
            continue;
        }
        decode_fp8(c[i], even, odd);
        w[2 * i] = __byte_perm(even, odd, 0x5410);
        w[2 * i + 1] = __byte_perm(even, odd, 0x7632);
    }
    if (F == WF_FP8_BLOCK)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float x = __uint_as_float(w[i] << 16) * u.scale;
            float y = __uint_as_float(w[i] & 0xFFFF0000u) * u.scale;
            __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
            if (REST)
                v = __floats2bfloat162_rn(x - __low2float(v), y - __high2float(v));
            w[i] = *(const uint32_t *)&v;
        }
    if (!TILED && (e4m3_nan(c[0]) | e4m3_nan(c[1])) & 0x80808080u)
#pragma unroll
        for (int i = 0; i < 8; i++)
            if ((c[i / 4] >> (i % 4 * 8) & 0x7F) == 0x7F)
                w[i / 2] |= i % 2 ? 0x7FC00000u : 0x7FC0u;
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* A block expands THREADS * UNITS units. Bound by memory: for a weight 2 bytes are written, and 0.56 or 1 read. */
enum { THREADS = 256, UNITS = 4 };
template <weight_format_id F, bool REST>
__global__ void __launch_bounds__(THREADS) expand(expand_args a)
{
    begin_kernel();
    uint32_t first = blockIdx.x * (THREADS * UNITS) + threadIdx.x;
    uint32_t row = first / a.row_units, unit = first % a.row_units;
    eight_codes<F> u[UNITS];
#pragma unroll
    for (int k = 0; k < UNITS; k++) {
        if (first + k * THREADS < a.n_units)
            load_unit<F>(u[k], a, row, unit);
        for (unit += THREADS; unit >= a.row_units; unit -= a.row_units)
            row++;
    }
#pragma unroll
    for (int k = 0; k < UNITS; k++)
        if (first + k * THREADS < a.n_units)
            a.out[first + k * THREADS] = expand_unit<F, REST, false>(u[k]);
}

/* The same of a tiled matrix. A warp takes a unit of a strip; its lanes read as those of linear_tiles.cu do, and write
 * 64 neighbouring bytes to each of eight rows at once. */
template <weight_format_id F, bool REST>
__global__ void __launch_bounds__(THREADS) expand_tiled(expand_args a)
{
    enum { PIECES = F == WF_NVFP4 ? 2 : 4 }; /* of 16 bytes, a lane's */
    begin_kernel();
    uint32_t warp = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    uint32_t strip_units = a.row_units / (UNIT_COLS / 8);
    uint32_t strip = warp / strip_units, unit = warp % strip_units;
    uint32_t lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    if (warp >= a.n_units / (STRIP_ROWS * UNIT_COLS / 8))
        return;
    const uint4 *p =
        (const uint4 *)(a.codes + strip * (STRIP_ROWS * a.row_bytes)) + unit * (PIECES * 32) + lane;
    uint4 v[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; i++)
        v[i] = p[32 * i];
    uint4 *out = a.out + (strip * STRIP_ROWS + g) * a.row_units + unit * (UNIT_COLS / 8) + q;
    if (F == WF_NVFP4) {
        const unsigned char *scales = a.scales + strip * (STRIP_ROWS * a.scale_stride);
        uint2 s = ((const uint2 *)scales)[unit * (UNIT_COLS / 8) + 2 * g + q / 2];
        const uint32_t *w0 = (const uint32_t *)&v[0], *w1 = (const uint32_t *)&v[1];
        four_scales s0 = scales_of(s.x), s1 = scales_of(s.y);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t x[4], y[4];
            e2m1_pairs(w0[j], w1[j], scale_pair(s0, j), scale_pair(s1, j), x, y);
            out[4 * j] = make_uint4(x[0], x[2], y[0], y[2]);
            out[8 * a.row_units + 4 * j] = make_uint4(x[1], x[3], y[1], y[3]);
        }
        return;
    }
    eight_codes<F> u;
    if (F == WF_FP8_BLOCK)
        u.scale =
            scale_at(a.scales, a.scales_f32, strip / (128 / STRIP_ROWS) * a.scale_stride + unit);
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const uint32_t w[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
#pragma unroll
        for (int k = 0; k < 2; k++) {
            u.c[0] = w[2 * k], u.c[F == WF_NVFP4 ? 0 : 1] = w[2 * k + 1];
            out[8 * (i / 2) * a.row_units + 8 * (i % 2) + 4 * k] = expand_unit<F, REST, true>(u);
        }
    }
}

/* ---- Rows ---------------------------------------------------------------------------------------- */

/* Copies `rows` rows; those from there to rows_to become zero. X is what has the size of an element. */
template <typename X>
__global__ void copy_rows(X *to, int64_t to_stride, const X *from, int64_t from_stride,
                          int32_t rows, int32_t rows_to, int64_t cols)
{
    begin_kernel();
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c < cols)
        for (int32_t t = (int32_t)blockIdx.y; t < rows_to; t += (int32_t)gridDim.y)
            to[t * to_stride + c] = t < rows ? from[t * from_stride + c] : X(0);
}

static void launch_copy(struct gpu *c, size_t size, void *to, int64_t to_stride, const void *from,
                        int64_t from_stride, int64_t rows, int64_t rows_to, int64_t cols)
{
    enum { THREADS = 256 };
    dim3 grid((unsigned)cuda_blocks(cols, THREADS), rows_to < 65535 ? (unsigned)rows_to : 65535);
    if (size == 2)
        launch_next(c, copy_rows<uint16_t>, grid, THREADS, 0, (uint16_t *)to, to_stride,
                    (const uint16_t *)from, from_stride, (int32_t)rows, (int32_t)rows_to, cols);
    else
        launch_next(c, copy_rows<uint32_t>, grid, THREADS, 0, (uint32_t *)to, to_stride,
                    (const uint32_t *)from, from_stride, (int32_t)rows, (int32_t)rows_to, cols);
}

struct finish_args {
    const float *sum; /* [T, n] */
    const unsigned char *scales;
    bool has_scales, scales_f32, wide; /* wide: four of y can be accessed at once */
    void *y;
    int64_t y_stride, n;
    int32_t T;
};

/* y = sums times their rows' scales, added to what is there. A thread has four columns of every gridDim.y-th row. */
template <typename Y, bool ADD> __global__ void finish(finish_args a)
{
    begin_kernel();
    int64_t c = 4 * ((int64_t)blockIdx.x * blockDim.x + threadIdx.x);
    if (c >= a.n)
        return;
    float s[4] = {1, 1, 1, 1};
    if (a.has_scales)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[i] = scale_at(a.scales, a.scales_f32, c + i);
    for (int32_t t = (int32_t)blockIdx.y; t < a.T; t += (int32_t)gridDim.y) {
        struct alignas(4 * sizeof(Y)) four {
            Y v[4];
        } f;
        Y *y = (Y *)a.y + t * a.y_stride + c;
        float4 sum = *(const float4 *)(a.sum + t * a.n + c);
        float x[4] = {sum.x * s[0], sum.y * s[1], sum.z * s[2], sum.w * s[3]};
        if (ADD) {
            if (a.wide)
                f = *(const four *)y;
            else
#pragma unroll
                for (int i = 0; i < 4; i++)
                    f.v[i] = y[i];
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[i] = to_float(f.v[i]) + x[i];
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            f.v[i] = from_float<Y>(x[i]);
        if (a.wide)
            *(four *)y = f;
        else
#pragma unroll
            for (int i = 0; i < 4; i++)
                y[i] = f.v[i];
    }
}

/* ---- What and where ------------------------------------------------------------------------------ */

/* Large enough to be worth an expansion, and of a shape that kernels and cuBLASLt can read. */
static bool has_shape(const struct weight *w)
{
    if (w->rows % 16 || w->cols % 128 || w->rows * w->cols < LEAST_WEIGHTS)
        return false;
    switch (w->format) {
    case WF_BF16:
        return w->codes.stride % 8 == 0;
    case WF_FP8_TENSOR:
    case WF_FP8_ROW:
    case WF_FP8_BLOCK:
    case WF_NVFP4:
        return w->codes.stride % 16 == 0;
    default:
        return false;
    }
}

static bool lies_well(const struct weight *w)
{
    return is_aligned(w->codes.data, 16) &&
           (!w->scales.data || is_aligned(w->scales.data, dtype_size(w->scales.dtype)));
}

/* Are sums F32 in scratch before they become y? */
static bool has_finish(const struct linear_args *a)
{
    return a->w->format == WF_FP8_ROW || a->w->format == WF_FP8_BLOCK || a->add;
}

/* Rows of W that are expanded together. */
static int64_t panel_of(const struct weight *w)
{
    int64_t most = PANEL_BYTES / (2 * w->cols), n;
    if (w->format == WF_BF16 || w->rows <= most)
        return w->rows;
    n = most < PANEL_ROWS ? cuda_blocks(w->rows, PANEL_ROWS) : cuda_blocks(w->rows, most);
    return (int64_t)cuda_blocks(cuda_blocks(w->rows, n), PANEL_ROWS) * PANEL_ROWS;
}

/* May cuBLASLt read or write the rows where they are? */
static bool is_reachable(const struct tensor *t)
{
    return rows_aligned(t->data, t->stride, dtype_size(t->dtype));
}

/* Bytes of scratch, in this order. The copies of x and of a panel's y are those of GEMM_LEAST_ROWS even where there are
 * more rows and no copies: fewer rows never need more. Views are copied, or might be: where they begin is not known
 * while planning. */
struct parts {
    size_t panel, x, y;
};
static struct parts parts_of(const struct linear_args *a)
{
    const struct weight *w = a->w;
    int64_t T = a->in.dim[0], most = T > GEMM_LEAST_ROWS ? T : GEMM_LEAST_ROWS, n = panel_of(w);
    bool x_dense = a->in.stride == w->cols && is_reachable(&a->in);
    bool y_dense = a->y.stride == w->rows && is_reachable(&a->y);
    size_t size = has_finish(a) ? sizeof(float) : dtype_size(a->y.dtype);
    struct parts p = {
        .panel = w->format == WF_BF16 ? 0 : (size_t)(n * w->cols) * sizeof(bf16),
        .x = (size_t)((x_dense ? GEMM_LEAST_ROWS : most) * w->cols) * sizeof(bf16),
        .y = (size_t)((y_dense && !has_finish(a) ? GEMM_LEAST_ROWS : most) * n) * size,
    };
    return p;
}

static bool is_prompt(const struct gpu *c, const struct linear_args *a)
{
    return c->gemm && a->phase == PHASE_PREFILL && a->in.dtype == DT_BF16 && has_shape(a->w);
}

extern "C" size_t cuda_linear_prefill_scratch(const struct gpu *c, const struct linear_args *a)
{
    size_t quantised = cuda_linear_quantised_scratch(c, a);
    if (!is_prompt(c, a))
        return quantised;
    struct parts p = parts_of(a);
    return p.panel + p.x + p.y > quantised ? p.panel + p.x + p.y : quantised;
}

extern "C" bool cuda_linear_prefill_takes(const struct gpu *c, const struct linear_args *a)
{
    if (cuda_linear_quantised_takes(c, a))
        return true;
    if (!is_prompt(c, a) || !lies_well(a->w))
        return false;
    int64_t n = panel_of(a->w), last = a->w->rows % n;
    bool f32 = has_finish(a) || a->y.dtype == DT_F32;
    return gemm_has(c->gemm, {.n = n, .k = a->w->cols, .d_f32 = f32}) &&
           (last == 0 || gemm_has(c->gemm, {.n = last, .k = a->w->cols, .d_f32 = f32}));
}

/* Do the kernels for few rows take it, and give the bits of this one? */
extern "C" bool cuda_linear_prefill_by_rows(const struct gpu *c, const struct linear_args *a)
{
    if (cuda_linear_quantised_takes(c, a) || !cuda_linear_rows_takes(c, a) || !is_prompt(c, a) ||
        !lies_well(a->w))
        return false;
    int64_t n = panel_of(a->w), last = a->w->rows % n;
    bool f32 = has_finish(a) || a->y.dtype == DT_F32;
    return gemm_family(c->gemm, {.n = n, .k = a->w->cols, .d_f32 = f32}) == c->rows_family &&
           (last == 0 ||
            gemm_family(c->gemm, {.n = last, .k = a->w->cols, .d_f32 = f32}) == c->rows_family);
}

/* ---- The product --------------------------------------------------------------------------------- */

template <weight_format_id F, bool REST>
static void launch_expand(struct gpu *c, const struct weight *w, int64_t row, int64_t n, void *out)
{
    int64_t scales = F == WF_NVFP4 ? row * w->scales.stride : row / 128 * w->scales.stride;
    expand_args a = {
        .codes = (const unsigned char *)w->codes.data + row * w->codes.stride,
        .row_bytes = w->codes.stride,
        .scales = F == WF_NVFP4 || F == WF_FP8_BLOCK
                      ? (const unsigned char *)w->scales.data +
                            (size_t)scales * dtype_size(w->scales.dtype)
                      : NULL,
        .scale_stride = w->scales.stride,
        .scales_f32 = w->scales.dtype == DT_F32,
        .row_units = (uint32_t)(w->cols / 8),
        .n_units = (uint32_t)(n * w->cols / 8),
        .out = (uint4 *)out,
    };
    if (w->tiled)
        launch_next(c, expand_tiled<F, REST>,
                    (unsigned)cuda_blocks(a.n_units / (STRIP_ROWS * UNIT_COLS / 8), THREADS / 32),
                    THREADS, 0, a);
    else
        launch_next(c, expand<F, REST>, (unsigned)cuda_blocks(a.n_units, THREADS * UNITS), THREADS,
                    0, a);
}

static void launch_expansion(struct gpu *c, const struct weight *w, int64_t row, int64_t n,
                             void *out)
{
    if (w->format == WF_NVFP4)
        launch_expand<WF_NVFP4, false>(c, w, row, n, out);
    else if (w->format == WF_FP8_BLOCK)
        launch_expand<WF_FP8_BLOCK, false>(c, w, row, n, out);
    else
        launch_expand<WF_FP8_TENSOR, false>(c, w, row, n, out); /* FP8_ROW's codes are the same */
}

static float alpha_of(const struct weight *w)
{
    return w->format == WF_NVFP4        ? w->global * (float)(1 << NVFP4_SHIFT)
           : w->format == WF_FP8_TENSOR ? w->global
                                        : 1.0f;
}

static void launch_finish(struct gpu *c, const struct linear_args *a, const void *sum, int64_t row,
                          int64_t n)
{
    enum { THREADS = 128, ROWS = 8 };
    const struct weight *w = a->w;
    bool has_scales = w->format == WF_FP8_ROW;
    size_t scale = dtype_size(w->scales.dtype), size = dtype_size(a->y.dtype);
    finish_args f = {
        .sum = (const float *)sum,
        .scales = has_scales ? (const unsigned char *)w->scales.data + (size_t)row * scale : NULL,
        .has_scales = has_scales,
        .scales_f32 = w->scales.dtype == DT_F32,
        .wide = is_reachable(&a->y),
        .y = (unsigned char *)a->y.data + (size_t)row * size,
        .y_stride = a->y.stride,
        .n = n,
        .T = (int32_t)a->in.dim[0],
    };
    int blocks = cuda_blocks(f.T, ROWS);
    dim3 grid((unsigned)cuda_blocks(n, 4 * THREADS), blocks < 65535 ? (unsigned)blocks : 65535);
    if (a->y.dtype == DT_F32)
        launch_next(c, finish<float, false>, grid, THREADS, 0, f);
    else if (a->add)
        launch_next(c, finish<bf16, true>, grid, THREADS, 0, f);
    else
        launch_next(c, finish<bf16, false>, grid, THREADS, 0, f);
}

/* Rows [row, row + n) of W: y's columns of that number. */
static lathe_status multiply_panel(struct gpu *c, const struct linear_args *a, struct gemm_args g,
                                   int64_t row, unsigned char *panel, unsigned char *y_copy,
                                   lathe_error *err)
{
    const struct weight *w = a->w;
    int64_t T = a->in.dim[0];
    size_t size = dtype_size(a->y.dtype);
    unsigned char *y = (unsigned char *)a->y.data + (size_t)row * size;
    bool finishes = has_finish(a), copies = !finishes && (g.T != T || !is_reachable(&a->y));
    if (w->format == WF_BF16) {
        g.w = (const unsigned char *)w->codes.data + (size_t)(row * w->codes.stride) * sizeof(bf16);
        g.ldw = w->codes.stride;
    } else {
        launch_expansion(c, w, row, g.shape.n, panel);
        g.w = panel;
        g.ldw = w->cols;
    }
    g.d = finishes || copies ? y_copy : y;
    g.ldd = finishes || copies ? g.shape.n : a->y.stride;
    g.alpha = alpha_of(w);
    g.beta = 0.0f;
    lathe_status st = gemm(c, &g, err);
    if (!st && w->format == WF_FP8_BLOCK) {
        launch_expand<WF_FP8_BLOCK, true>(c, w, row, g.shape.n, panel);
        g.beta = 1.0f;
        st = gemm(c, &g, err);
    }
    if (!st && finishes)
        launch_finish(c, a, y_copy, row, g.shape.n);
    else if (!st && copies)
        launch_copy(c, size, y, a->y.stride, y_copy, g.shape.n, T, T, g.shape.n);
    return st;
}

extern "C" lathe_status cuda_linear_prefill(struct gpu *c, const struct linear_args *a,
                                            lathe_error *err)
{
    if (cuda_linear_quantised_takes(c, a))
        return cuda_linear_quantised(c, a, err);
    if (cuda_linear_prefill_by_rows(c, a))
        return cuda_linear_rows(c, a, err);
    const struct weight *w = a->w;
    struct parts p = parts_of(a);
    unsigned char *panel = (unsigned char *)a->scratch.data, *x = panel + p.panel;
    int64_t T = a->in.dim[0], n = panel_of(w);
    struct gemm_args g = {
        .shape = {.k = w->cols, .d_f32 = has_finish(a) || a->y.dtype == DT_F32},
        .x = a->in.data,
        .ldx = a->in.stride,
        .T = T > GEMM_LEAST_ROWS ? T : GEMM_LEAST_ROWS,
    };
    if (g.T != T || !is_reachable(&a->in)) {
        launch_copy(c, sizeof(bf16), x, g.shape.k, a->in.data, a->in.stride, T, g.T, g.shape.k);
        g.x = x;
        g.ldx = g.shape.k;
    }
    for (int64_t row = 0; row < w->rows; row += n) {
        g.shape.n = w->rows - row < n ? w->rows - row : n;
        lathe_status st = multiply_panel(c, a, g, row, panel, x + p.x, err);
        if (st) {
            lathe_status why = cuda_launched(c, err); /* an earlier call, if it was one */
            return why ? why : st;
        }
    }
    return cuda_launched(c, err);
}

/* y = W x and y += W x for the rows of a prompt, in E4M3: FP8 matrices by rows that are quantised, on cuBLASLt's tensor
 * cores. Taken where prompt_math asks for it, of any size; what it means is said there (backend.h).
 *
 * The product is of code words, and its sums are F32; `scale_sums` makes y of them with the scales of rows of x and of
 * W. A tiled matrix goes back to the order of rows first, a panel at a time. Rows fewer than LEAST_ROWS are filled up
 * with zeros. */
#include "op/cuda/cuda.cuh"
#include "op/cuda/decode.cuh"
#include "op/cuda/tiles.cuh"
extern "C" {
#include "op/cuda/gemm.h"
}

enum {
    LEAST_ROWS = 128,
    PANEL_BYTES = 96 << 20,
    PANEL_ROWS = 128, /* panels are multiples of it */
};

/* ---- Rows to E4M3 -------------------------------------------------------------------------------- */

/* Eight numbers from p on; wide: p is 16-byte aligned. */
__device__ __forceinline__ void load_eight(float x[8], const bf16 *p, bool wide)
{
    struct alignas(16) eight {
        bf16 v[8];
    } e;
    if (wide)
        e = *(const eight *)p;
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] = to_float(wide ? e.v[i] : p[i]);
}

/* A block has a row, of a multiple of 8 columns; those from T on are zeros. Bound by memory: the row is read twice, the
 * second time from a cache. */
enum { ROW_THREADS = 256 };
__global__ void __launch_bounds__(ROW_THREADS)
    quantise_rows(uint2 *code, float *scale, const bf16 *in, int64_t stride, int32_t T,
                  int32_t cols, bool wide)
{
    __shared__ float part[ROW_THREADS / 32];
    begin_kernel();
    int64_t t = blockIdx.x;
    const bf16 *row = in + t * stride;
    float most = 0, x[8];
    code += t * (cols / 8);
    for (int32_t c = (int32_t)threadIdx.x; t < T && c < cols / 8; c += ROW_THREADS) {
        load_eight(x, row + 8 * c, wide);
#pragma unroll
        for (int i = 0; i < 8; i++)
            most = fmaxf(most, fabsf(x[i])); /* of a NaN and a number, the number */
    }
    most = warp_max(most);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = most;
    __syncthreads();
    most = warp_max(part[threadIdx.x % (ROW_THREADS / 32)]);
    float s = most > 0 ? most / 448.0f : 1.0f;
    if (threadIdx.x == 0)
        scale[t] = s;
    for (int32_t c = (int32_t)threadIdx.x; c < cols / 8; c += ROW_THREADS) {
        uint32_t w[2] = {};
        if (t < T) {
            load_eight(x, row + 8 * c, wide);
#pragma unroll
            for (int i = 0; i < 8; i++)
                w[i / 4] |= (uint32_t)from_float<e4m3>(x[i] / s).code << i % 4 * 8;
        }
        code[c] = make_uint2(w[0], w[1]);
    }
}

/* ---- Tiles to rows ------------------------------------------------------------------------------- */

/* A thread makes 16 columns of a row; neighbouring threads those of a tile's unit, whose words they all use. Bound by
 * memory, a byte read and a byte written a weight. */
enum { TILE_THREADS = 256, PIECES = STRIP_ROWS * UNIT_COLS / 16 };
__global__ void __launch_bounds__(TILE_THREADS)
    rows_of_tiles(uint4 *out, const unsigned char *codes, int64_t cols, int64_t n_pieces)
{
    begin_kernel();
    int64_t i = (int64_t)blockIdx.x * TILE_THREADS + threadIdx.x;
    if (i >= n_pieces)
        return;
    int64_t unit = i / PIECES, units = cols / UNIT_COLS;
    int piece = (int)(i % PIECES);
    int64_t row = unit / units * STRIP_ROWS + piece / (UNIT_COLS / 16);
    int64_t col = unit % units * UNIT_COLS + piece % (UNIT_COLS / 16) * 16;
    uint32_t w[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t v = *(const uint32_t *)(codes + fp8_place(row, col + 4 * k, cols));
        w[k] = fp8_code(v, 0) | fp8_code(v, 1) << 8 | fp8_code(v, 2) << 16 | fp8_code(v, 3) << 24;
    }
    out[(row * cols + col) / 16] = make_uint4(w[0], w[1], w[2], w[3]);
}

/* ---- Sums to y ----------------------------------------------------------------------------------- */

struct sums_args {
    const float *sum, *x_scale;  /* [T, n], [T] */
    const unsigned char *scales; /* of W's rows; NULL: 1 */
    bool scales_f32, wide;       /* wide: four of y can be accessed at once */
    void *y;
    int64_t y_stride, n;
    int32_t T;
};

/* A thread has four columns of every gridDim.y-th row. */
template <typename Y, bool ADD> __global__ void scale_sums(sums_args a)
{
    begin_kernel();
    int64_t c = 4 * ((int64_t)blockIdx.x * blockDim.x + threadIdx.x);
    if (c >= a.n)
        return;
    float s[4] = {1, 1, 1, 1};
    if (a.scales)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[i] = scale_at(a.scales, a.scales_f32, c + i);
    for (int32_t t = (int32_t)blockIdx.y; t < a.T; t += (int32_t)gridDim.y) {
        struct alignas(4 * sizeof(Y)) four {
            Y v[4];
        } f;
        Y *y = (Y *)a.y + t * a.y_stride + c;
        float4 sum = *(const float4 *)(a.sum + t * a.n + c);
        float x[4] = {sum.x, sum.y, sum.z, sum.w}, of_row = a.x_scale[t];
        if (ADD && a.wide)
            f = *(const four *)y;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] = x[i] * of_row * s[i];
            if (ADD)
                x[i] += to_float(a.wide ? f.v[i] : y[i]);
            f.v[i] = from_float<Y>(x[i]);
        }
        if (a.wide)
            *(four *)y = f;
        else
#pragma unroll
            for (int i = 0; i < 4; i++)
                y[i] = f.v[i];
    }
}

/* ---- What and where ------------------------------------------------------------------------------ */

/* By shapes alone. */
static bool is_wanted(const struct gpu *c, const struct linear_args *a)
{
    const struct weight *w = a->w;
    return c->prompt_math == PROMPT_FP8 && a->phase == PHASE_PREFILL && a->in.dtype == DT_BF16 &&
           (w->format == WF_FP8_ROW || w->format == WF_FP8_TENSOR) && w->rows % 16 == 0 &&
           w->cols % 16 == 0 && w->codes.stride % 16 == 0;
}

static int64_t panel_of(const struct weight *w)
{
    int64_t most = PANEL_BYTES / w->cols;
    if (w->rows <= most)
        return w->rows;
    int64_t n = most < PANEL_ROWS ? cuda_blocks(w->rows, PANEL_ROWS) : cuda_blocks(w->rows, most);
    return (int64_t)cuda_blocks(cuda_blocks(w->rows, n), PANEL_ROWS) * PANEL_ROWS;
}

/* Bytes of scratch, in this order, each part a multiple of 16. */
struct parts {
    size_t panel, code, scale, sum;
};
static struct parts parts_of(const struct linear_args *a)
{
    int64_t T = a->in.dim[0], most = T > LEAST_ROWS ? T : LEAST_ROWS, n = panel_of(a->w);
    most = (most + 3) / 4 * 4;
    struct parts p = {
        .panel = (size_t)(n * a->w->cols),
        .code = (size_t)(most * a->w->cols),
        .scale = (size_t)most * sizeof(float),
        .sum = (size_t)(most * n) * sizeof(float),
    };
    return p;
}

static struct gemm_shape shape_of(const struct weight *w, int64_t n)
{
    return {.n = n, .k = w->cols, .e4m3 = true, .d_f32 = true};
}

extern "C" size_t cuda_linear_quantised_scratch(const struct gpu *c, const struct linear_args *a)
{
    if (!is_wanted(c, a))
        return 0;
    struct parts p = parts_of(a);
    return p.panel + p.code + p.scale + p.sum;
}

extern "C" bool cuda_linear_quantised_takes(const struct gpu *c, const struct linear_args *a)
{
    const struct weight *w = a->w;
    if (!is_wanted(c, a) || !is_aligned(w->codes.data, 16) ||
        (w->scales.data && !is_aligned(w->scales.data, dtype_size(w->scales.dtype))))
        return false;
    int64_t n = panel_of(w), last = w->rows % n;
    return gemm_has(c->gemm, shape_of(w, n)) && (last == 0 || gemm_has(c->gemm, shape_of(w, last)));
}

/* ---- The product --------------------------------------------------------------------------------- */

static void launch_sums(struct gpu *c, const struct linear_args *a, const float *sum,
                        const float *x_scale, int64_t row, int64_t n)
{
    enum { THREADS = 128, ROWS = 8 };
    const struct weight *w = a->w;
    size_t scale = dtype_size(w->scales.dtype), size = dtype_size(a->y.dtype);
    sums_args s = {
        .sum = sum,
        .x_scale = x_scale,
        .scales = w->format == WF_FP8_ROW
                      ? (const unsigned char *)w->scales.data + (size_t)row * scale
                      : NULL,
        .scales_f32 = w->scales.dtype == DT_F32,
        .wide = rows_aligned(a->y.data, a->y.stride, size),
        .y = (unsigned char *)a->y.data + (size_t)row * size,
        .y_stride = a->y.stride,
        .n = n,
        .T = (int32_t)a->in.dim[0],
    };
    int blocks = cuda_blocks(s.T, ROWS);
    dim3 grid((unsigned)cuda_blocks(n, 4 * THREADS), blocks < 65535 ? (unsigned)blocks : 65535);
    if (a->y.dtype == DT_F32)
        launch_next(c, scale_sums<float, false>, grid, THREADS, 0, s);
    else if (a->add)
        launch_next(c, scale_sums<bf16, true>, grid, THREADS, 0, s);
    else
        launch_next(c, scale_sums<bf16, false>, grid, THREADS, 0, s);
}

extern "C" lathe_status cuda_linear_quantised(struct gpu *c, const struct linear_args *a,
                                              lathe_error *err)
{
    const struct weight *w = a->w;
    struct parts p = parts_of(a);
    unsigned char *panel = (unsigned char *)a->scratch.data, *code = panel + p.panel;
    float *scale = (float *)(code + p.code), *sum = (float *)(code + p.code + p.scale);
    int64_t T = a->in.dim[0], n = panel_of(w);
    struct gemm_args g = {
        .x = code,
        .d = sum,
        .ldx = w->cols,
        .T = T > LEAST_ROWS ? T : LEAST_ROWS,
        .alpha = w->format == WF_FP8_TENSOR ? w->global : 1.0f,
    };
    launch_next(c, quantise_rows, (unsigned)g.T, ROW_THREADS, 0, (uint2 *)code, scale,
                (const bf16 *)a->in.data, a->in.stride, (int32_t)T, (int32_t)w->cols,
                rows_aligned(a->in.data, a->in.stride, sizeof(bf16)));
    for (int64_t row = 0; row < w->rows; row += n) {
        const unsigned char *codes = (const unsigned char *)w->codes.data + row * w->codes.stride;
        g.shape = shape_of(w, w->rows - row < n ? w->rows - row : n);
        g.w = codes;
        g.ldw = w->codes.stride;
        g.ldd = g.shape.n;
        if (w->tiled) {
            int64_t pieces = g.shape.n * w->cols / 16;
            launch_next(c, rows_of_tiles, (unsigned)cuda_blocks(pieces, TILE_THREADS), TILE_THREADS,
                        0, (uint4 *)panel, codes, w->cols, pieces);
            g.w = panel;
        }
        lathe_status st = gemm(c, &g, err);
        if (st) {
            lathe_status why = cuda_launched(c, err); /* an earlier call, if it was one */
            return why ? why : st;
        }
        launch_sums(c, a, sum, scale, row, g.shape.n);
    }
    return cuda_launched(c, err);
}

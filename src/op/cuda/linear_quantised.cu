/* y = W x and y += W x for the rows of a prompt that are quantised: FP8 matrices by rows of E4M3, NVFP4 ones by rows of
 * NVFP4, on cuBLASLt's tensor cores. Taken where prompt_math asks for it, of any size; what it means is said there
 * (backend.h).
 *
 * The product is of code words and the scales of blocks, and its sums are F32; `scale_sums` makes y of them with the
 * scales of rows of x and of W. A tiled matrix goes back to the order of rows first, a panel at a time. Rows fewer than
 * GEMM_LEAST_ROWS are filled up with zeros.
 *
 * The product of NVFP4 is built, never run. */
#include "op/cuda/cuda.cuh"
#include "op/cuda/decode.cuh"
#include "op/cuda/weight.cuh"
extern "C" {
#include "op/cuda/gemm.h"
#include "op/cuda/quantised.h"
}

enum {
    PANEL_BYTES = 96 << 20,
    PANEL_ROWS = 128, /* panels are multiples of it */
};

/* ---- Rows ---------------------------------------------------------------------------------------- */

enum { ROW_THREADS = 256 };

/* Of a block of ROW_THREADS. */
__device__ __forceinline__ float block_max(float x)
{
    __shared__ float part[ROW_THREADS / 32];
    x = warp_max(x);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_max(part[threadIdx.x % (ROW_THREADS / 32)]);
}

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
__global__ void __launch_bounds__(ROW_THREADS)
    e4m3_rows(uint2 *code, float *scale, const bf16 *in, int64_t stride, int32_t T, int32_t cols,
              bool wide)
{
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
    most = block_max(most);
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

/* The E2M1 code nearest to x, ties to the even one; 6 beyond. */
__device__ __forceinline__ uint32_t e2m1_of(float x)
{
    float a = fabsf(x);
    uint32_t code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) +
                    (a >= 3.5f) + (a > 5.0f);
    return code | __float_as_uint(x) >> 28 & 8;
}

/* The same in NVFP4, of a multiple of 64 columns; rows from T on have codes up to `rows`, and scales up to the grid's end.
 * A thread has whole blocks of 16. One that is not finite gets NaN as its scale, which E2M1 cannot say. */
__global__ void __launch_bounds__(ROW_THREADS)
    nvfp4_rows(uint2 *code, uint8_t *block_scale, float *scale, const bf16 *in, int64_t stride,
               int32_t T, int32_t rows, int32_t cols, bool wide)
{
    begin_kernel();
    int64_t t = blockIdx.x;
    const bf16 *row = in + t * stride;
    float most = 0, x[16];
    for (int32_t b = (int32_t)threadIdx.x; t < T && b < cols / 16; b += ROW_THREADS) {
        load_eight(x, row + 16 * b, wide);
        load_eight(x + 8, row + 16 * b + 8, wide);
#pragma unroll
        for (int i = 0; i < 16; i++)
            most = fmaxf(most, fabsf(x[i]));
    }
    most = block_max(most);
    float s = most > 0 ? most / (6.0f * 448.0f) : 1.0f;
    if (threadIdx.x == 0 && t < rows)
        scale[t] = s;
    for (int32_t b = (int32_t)threadIdx.x; b < cols / 16; b += ROW_THREADS) {
        uint32_t w[2] = {};
        uint8_t d = 0;
        if (t < T) {
            load_eight(x, row + 16 * b, wide);
            load_eight(x + 8, row + 16 * b + 8, wide);
            bool finite = true;
            most = 0;
#pragma unroll
            for (int i = 0; i < 16; i++) {
                most = fmaxf(most, fabsf(x[i]));
                finite = finite && isfinite(x[i]);
            }
            d = finite ? from_float<e4m3>(most / 6.0f / s).code : 0x7F;
            float step = e4m3_to_float(d) * s;
#pragma unroll
            for (int i = 0; i < 16; i++)
                w[i / 8] |= (step > 0 ? e2m1_of(x[i] / step) : 0) << i % 8 * 4;
        }
        if (t < rows)
            code[t * (cols / 16) + b] = make_uint2(w[0], w[1]);
        block_scale[gemm_scale_place(t, b, cols)] = d;
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

/* The same of NVFP4, with its scales to where cuBLASLt has them: a thread makes a block of 16. */
__global__ void __launch_bounds__(TILE_THREADS)
    nvfp4_of_tiles(uint2 *out, uint8_t *scale, const device_weight w, int64_t first,
                   int64_t n_blocks)
{
    begin_kernel();
    int64_t i = (int64_t)blockIdx.x * TILE_THREADS + threadIdx.x;
    if (i >= n_blocks)
        return;
    int64_t row = i / (w.cols / 16), block = i % (w.cols / 16);
    uint32_t v[2] = {};
#pragma unroll
    for (int c = 0; c < 16; c++)
        v[c / 8] |= nvfp4_code(w, first + row, 16 * block + c) << c % 8 * 4;
    out[i] = make_uint2(v[0], v[1]);
    scale[gemm_scale_place(row, block, w.cols)] =
        from_float<e4m3>(nvfp4_scale(w, first + row, block)).code;
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

/* The elements of a product that is wanted, by shapes alone; GEMM_BF16: none. */
static enum gemm_type type_of(const struct gpu *c, const struct linear_args *a)
{
    const struct weight *w = a->w;
    if (c->prompt_math == PROMPT_ACT || a->phase != PHASE_PREFILL || a->in.dtype != DT_BF16 ||
        w->rows % 16 || w->cols % 16 || w->codes.stride % 16)
        return GEMM_BF16;
    if (w->format == WF_NVFP4)
        return c->prompt_math == PROMPT_NVFP4 && w->cols % 64 == 0 ? GEMM_NVFP4 : GEMM_BF16;
    return w->format == WF_FP8_ROW || w->format == WF_FP8_TENSOR ? GEMM_E4M3 : GEMM_BF16;
}

static int64_t panel_of(const struct weight *w)
{
    int64_t most = PANEL_BYTES / w->cols;
    if (w->rows <= most)
        return w->rows;
    int64_t n = most < PANEL_ROWS ? cuda_blocks(w->rows, PANEL_ROWS) : cuda_blocks(w->rows, most);
    return (int64_t)cuda_blocks(cuda_blocks(w->rows, n), PANEL_ROWS) * PANEL_ROWS;
}

/* Bytes of scratch, in this order, each part a multiple of 16: codes of W and of x and the scales of their blocks, the
 * scales of x's rows, sums. */
struct parts {
    size_t w, w_scale, x, x_scale, scale, sum;
};
static struct parts parts_of(enum gemm_type type, const struct linear_args *a)
{
    int64_t T = a->in.dim[0], most = T > GEMM_LEAST_ROWS ? T : GEMM_LEAST_ROWS, n = panel_of(a->w);
    int64_t k = a->w->cols, row = type == GEMM_NVFP4 ? k / 2 : k;
    most = (most + 3) / 4 * 4;
    struct parts p = {
        .w = (size_t)(n * row),
        .w_scale = type == GEMM_NVFP4 ? (size_t)gemm_scale_bytes(n, k) : 0,
        .x = (size_t)(most * row),
        .x_scale = type == GEMM_NVFP4 ? (size_t)gemm_scale_bytes(most, k) : 0,
        .scale = (size_t)most * sizeof(float),
        .sum = (size_t)(most * n) * sizeof(float),
    };
    return p;
}

static struct gemm_shape shape_of(enum gemm_type type, const struct weight *w, int64_t n)
{
    return {.n = n, .k = w->cols, .type = type, .d_f32 = true};
}

extern "C" size_t cuda_linear_quantised_scratch(const struct gpu *c, const struct linear_args *a)
{
    enum gemm_type type = type_of(c, a);
    if (type == GEMM_BF16)
        return 0;
    struct parts p = parts_of(type, a);
    return p.w + p.w_scale + p.x + p.x_scale + p.scale + p.sum;
}

extern "C" bool cuda_linear_quantised_takes(const struct gpu *c, const struct linear_args *a)
{
    const struct weight *w = a->w;
    enum gemm_type type = type_of(c, a);
    if (type == GEMM_BF16 || !is_aligned(w->codes.data, 16) ||
        (w->scales.data && !is_aligned(w->scales.data, dtype_size(w->scales.dtype))))
        return false;
    /* Scales of blocks have no sign and no NaN where the matrix is tiled; else they may have. */
    if (type == GEMM_NVFP4 && !w->tiled)
        return false;
    int64_t n = panel_of(w), last = w->rows % n;
    return gemm_has(c->gemm, shape_of(type, w, n)) &&
           (last == 0 || gemm_has(c->gemm, shape_of(type, w, last)));
}

/* ---- The product --------------------------------------------------------------------------------- */

extern "C" void cuda_e4m3_rows(struct gpu *c, const struct tensor *in, int64_t rows, void *code,
                               float *scale)
{
    launch_next(c, e4m3_rows, (unsigned)rows, ROW_THREADS, 0, (uint2 *)code, scale,
                (const bf16 *)in->data, in->stride, (int32_t)in->dim[0], (int32_t)in->dim[1],
                rows_aligned(in->data, in->stride, sizeof(bf16)));
}

extern "C" void cuda_nvfp4_rows(struct gpu *c, const struct tensor *in, int64_t rows, void *code,
                                void *block_scale, float *scale)
{
    launch_next(c, nvfp4_rows, (unsigned)cuda_blocks(rows, 128) * 128, ROW_THREADS, 0,
                (uint2 *)code, (uint8_t *)block_scale, scale, (const bf16 *)in->data, in->stride,
                (int32_t)in->dim[0], (int32_t)rows, (int32_t)in->dim[1],
                rows_aligned(in->data, in->stride, sizeof(bf16)));
}

extern "C" void cuda_nvfp4_of_tiles(struct gpu *c, const struct weight *w, int64_t row, int64_t n,
                                    void *code, void *block_scale)
{
    int64_t blocks = n * w->cols / 16;
    launch_next(c, nvfp4_of_tiles, (unsigned)cuda_blocks(blocks, TILE_THREADS), TILE_THREADS, 0,
                (uint2 *)code, (uint8_t *)block_scale, device_weight_of(w), row, blocks);
}

static void launch_rows_of_tiles(struct gpu *c, const struct weight *w, int64_t row, int64_t n,
                                 void *code)
{
    int64_t pieces = n * w->cols / 16;
    launch_next(c, rows_of_tiles, (unsigned)cuda_blocks(pieces, TILE_THREADS), TILE_THREADS, 0,
                (uint4 *)code, (const unsigned char *)w->codes.data + row * w->cols, w->cols,
                pieces);
}

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
    enum gemm_type type = type_of(c, a);
    struct parts p = parts_of(type, a);
    unsigned char *panel = (unsigned char *)a->scratch.data, *panel_scale = panel + p.w;
    unsigned char *x = panel_scale + p.w_scale, *x_scale = x + p.x;
    float *scale = (float *)(x_scale + p.x_scale), *sum = (float *)(x_scale + p.x_scale + p.scale);
    int64_t T = a->in.dim[0], n = panel_of(w);
    struct gemm_args g = {
        .x = x,
        .w_scale = panel_scale,
        .x_scale = x_scale,
        .d = sum,
        .ldx = w->cols,
        .T = T > GEMM_LEAST_ROWS ? T : GEMM_LEAST_ROWS,
        .alpha = w->format == WF_FP8_ROW ? 1.0f : w->global,
    };
    if (type == GEMM_NVFP4)
        cuda_nvfp4_rows(c, &a->in, g.T, x, x_scale, scale);
    else
        cuda_e4m3_rows(c, &a->in, g.T, x, scale);
    for (int64_t row = 0; row < w->rows; row += n) {
        g.shape = shape_of(type, w, w->rows - row < n ? w->rows - row : n);
        g.w = panel;
        g.ldw = w->cols;
        g.ldd = g.shape.n;
        if (type == GEMM_NVFP4) {
            cuda_nvfp4_of_tiles(c, w, row, g.shape.n, panel, panel_scale);
        } else if (w->tiled) {
            launch_rows_of_tiles(c, w, row, g.shape.n, panel);
        } else {
            g.w = (const unsigned char *)w->codes.data + row * w->codes.stride;
            g.ldw = w->codes.stride;
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

/* y = W x and y += W x.
 *
 * linear_mma: BF16 rows times BF16 weights, and FP8 or NVFP4 that are not tiled, read once for up to 16 rows, on
 * tensor cores. Tiled matrices are of linear_tiles.cu.
 * linear_any: everything else; but large matrices times BF16 rows of a prompt are of linear_prefill.cu.
 * Which of them computes a matrix depends on the matrix, the phase, the dtypes and whether y is added to, so a row's
 * bits never depend on how many rows there are. */
#include "op/cuda/cuda.cuh"
#include "op/cuda/decode.cuh"
#include "op/cuda/mma.cuh"
#include "op/cuda/pack.cuh"
#include "op/cuda/weight.cuh"

/* ---- Tensor cores -------------------------------------------------------------------------------- */

/* A block computes 16 * TILES weight rows for 8 * GROUPS activation rows; its WARPS warps take turns over the
 * columns, UNIT at a time. Of a unit a lane of the mma's four takes UNIT / 4 neighbouring columns, in
 * the weights and in the activations alike: which of the product's k a column stands for is free, so codes are
 * decoded where 16-byte loads leave them. Sums: inside the tensor core, over a warp's units in order, over the
 * warps in order. */
enum { UNIT = 128, LANE_COLS = UNIT / 4, WARPS = 8 };

struct mma_args {
    const unsigned char *codes; /* rows of row_bytes, 16-byte aligned */
    int64_t row_bytes;
    const unsigned char *scales; /* as in struct weight */
    int64_t scale_stride;        /* elements */
    float global;
    int64_t rows, cols;
    const bf16 *in;
    int64_t in_stride;
    void *y;
    int64_t y_stride;
    int32_t T;
    bool scales_f32, y_f32, add;
};

/* Bytes of a unit that one lane reads of one row. */
template <weight_format_id F> __host__ __device__ constexpr int lane_bytes()
{
    return F == WF_NVFP4 ? LANE_COLS / 2 : F == WF_BF16 ? LANE_COLS * 2 : LANE_COLS;
}

/* LANE_COLS activations of one row, as they lie. */
struct lane_in {
    uint32_t v[LANE_COLS / 2];
};
template <bool ALIGNED>
__device__ __forceinline__ void load_in(lane_in &x, const bf16 *p, bool there)
{
    if (!there) {
#pragma unroll
        for (int i = 0; i < LANE_COLS / 2; i++)
            x.v[i] = 0;
    } else if (ALIGNED) {
#pragma unroll
        for (int i = 0; i < LANE_COLS / 8; i++) {
            uint4 v = ((const uint4 *)p)[i];
            x.v[4 * i] = v.x, x.v[4 * i + 1] = v.y, x.v[4 * i + 2] = v.z, x.v[4 * i + 3] = v.w;
        }
    } else {
        const unsigned short *q = (const unsigned short *)p;
#pragma unroll
        for (int i = 0; i < LANE_COLS / 2; i++)
            x.v[i] = (uint32_t)q[2 * i] | (uint32_t)q[2 * i + 1] << 16;
    }
}

/* The codes and scales of one unit for rows g and g + 8 of a tile. */
template <weight_format_id F> struct lane_codes {
    uint4 v[2][lane_bytes<F>() / 16];
    uint32_t scale[2]; /* NVFP4: two codes */
};
template <weight_format_id F>
__device__ __forceinline__ void load_codes(lane_codes<F> &w, const mma_args &a, int64_t row,
                                           int64_t unit, int quad)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const unsigned char *p =
            a.codes + (row + 8 * h) * a.row_bytes + (unit * 4 + quad) * lane_bytes<F>();
#pragma unroll
        for (int i = 0; i < lane_bytes<F>() / 16; i++)
            w.v[h][i] = load16_stream(p + 16 * i);
        if (F == WF_NVFP4)
            w.scale[h] = *(const uint16_t *)(a.scales + (row + 8 * h) * a.scale_stride +
                                             (unit * 4 + quad) * 2);
    }
}

/* acc += the unit's products; nan[h] collects e4m3_nan of row g + 8 h. */
template <weight_format_id F, int GROUPS>
__device__ __forceinline__ void multiply(float acc[GROUPS][4], const lane_codes<F> &w,
                                         const lane_in *x, uint32_t nan[2])
{
    if (F == WF_NVFP4) {
        uint32_t s[2][2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            nan[h] |= e4m3_nan(w.scale[h]);
            nvfp4_scales(w.scale[h], s[h]);
        }
        const uint32_t *c0 = (const uint32_t *)&w.v[0][0], *c1 = (const uint32_t *)&w.v[1][0];
#pragma unroll
        for (int i = 0; i < LANE_COLS / 8; i++) {
            uint32_t s0 = s[0][i / 2], s1 = s[1][i / 2];
            uint32_t lo[4] = {decode_e2m1<0>(c0[i], s0), decode_e2m1<0>(c1[i], s1),
                              decode_e2m1<1>(c0[i], s0), decode_e2m1<1>(c1[i], s1)};
            uint32_t hi[4] = {decode_e2m1<2>(c0[i], s0), decode_e2m1<2>(c1[i], s1),
                              decode_e2m1<3>(c0[i], s0), decode_e2m1<3>(c1[i], s1)};
#pragma unroll
            for (int n = 0; n < GROUPS; n++) {
                const uint32_t *v = x[n].v + 4 * i; /* columns 0 1 | 2 3 | 4 5 | 6 7 */
                mma_bf16(acc[n], lo, __byte_perm(v[0], v[2], 0x5410),
                         __byte_perm(v[0], v[2], 0x7632));
                mma_bf16(acc[n], hi, __byte_perm(v[1], v[3], 0x5410),
                         __byte_perm(v[1], v[3], 0x7632));
            }
        }
    } else if (F == WF_BF16) {
        const uint32_t *c0 = (const uint32_t *)&w.v[0][0], *c1 = (const uint32_t *)&w.v[1][0];
#pragma unroll
        for (int i = 0; i < LANE_COLS / 4; i++) {
            uint32_t m[4] = {c0[2 * i], c1[2 * i], c0[2 * i + 1], c1[2 * i + 1]};
#pragma unroll
            for (int n = 0; n < GROUPS; n++)
                mma_bf16(acc[n], m, x[n].v[2 * i], x[n].v[2 * i + 1]);
        }
    } else {
        const uint32_t *c0 = (const uint32_t *)&w.v[0][0], *c1 = (const uint32_t *)&w.v[1][0];
#pragma unroll
        for (int i = 0; i < LANE_COLS / 4; i++) {
            uint32_t m[4];
            nan[0] |= e4m3_nan(c0[i]);
            nan[1] |= e4m3_nan(c1[i]);
            decode_fp8(c0[i], m[0], m[2]);
            decode_fp8(c1[i], m[1], m[3]);
#pragma unroll
            for (int n = 0; n < GROUPS; n++)
                mma_bf16(acc[n], m, __byte_perm(x[n].v[2 * i], x[n].v[2 * i + 1], 0x5410),
                         __byte_perm(x[n].v[2 * i], x[n].v[2 * i + 1], 0x7632));
        }
    }
}

/* T <= 8: GROUPS 1; T <= 16: 2; more: blockIdx.y. Bound by the weights' bytes. */
template <weight_format_id F, int TILES, int GROUPS, bool ALIGNED>
__global__ void __launch_bounds__(32 * WARPS) linear_mma(mma_args a)
{
    __shared__ float part[WARPS][TILES * 16][GROUPS * 8];
    __shared__ uint32_t bad[TILES * 16];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, quad = lane % 4;
    int64_t row0 = (int64_t)blockIdx.x * TILES * 16, n_units = a.cols / UNIT;
    int32_t t0 = (int32_t)blockIdx.y * GROUPS * 8;
    float acc[TILES][GROUPS][4] = {};
    uint32_t nan[TILES][2] = {};
    if (threadIdx.x < TILES * 16)
        bad[threadIdx.x] = 0;

    begin_kernel();
    for (int64_t u = warp; u < n_units; u += WARPS) {
        lane_codes<F> w[TILES];
        lane_in x[GROUPS];
#pragma unroll
        for (int m = 0; m < TILES; m++)
            load_codes<F>(w[m], a, row0 + m * 16 + g, u, quad);
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
            int32_t t = t0 + n * 8 + g;
            load_in<ALIGNED>(x[n], a.in + t * a.in_stride + u * UNIT + quad * LANE_COLS, t < a.T);
        }
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            if (F == WF_FP8_BLOCK) {
                float one[GROUPS][4] = {};
                multiply<F, GROUPS>(one, w[m], x, nan[m]);
                float s =
                    scale_at(a.scales, a.scales_f32, (row0 + m * 16) / 128 * a.scale_stride + u);
#pragma unroll
                for (int n = 0; n < GROUPS; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        acc[m][n][i] = fmaf(s, one[n][i], acc[m][n][i]);
            } else {
                multiply<F, GROUPS>(acc[m], w[m], x, nan[m]);
            }
        }
    }

#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int n = 0; n < GROUPS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                part[warp][m * 16 + g + 8 * (i / 2)][n * 8 + quad * 2 + i % 2] = acc[m][n][i];
    __syncthreads();
    if (F != WF_BF16)
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (nan[m][h] & (F == WF_NVFP4 ? 0x8080u : 0x80808080u))
                    bad[m * 16 + g + 8 * h] = 1;
    __syncthreads();

    for (int i = threadIdx.x; i < TILES * 16 * GROUPS * 8; i += 32 * WARPS) {
        int r = i % (TILES * 16), c = i / (TILES * 16);
        int64_t row = row0 + r;
        int32_t t = t0 + c;
        if (t >= a.T)
            continue;
        float sum = part[0][r][c];
#pragma unroll
        for (int k = 1; k < WARPS; k++)
            sum += part[k][r][c];
        if (F == WF_NVFP4)
            sum *= (float)(1 << NVFP4_SHIFT) * a.global;
        else if (F == WF_FP8_TENSOR)
            sum *= a.global;
        else if (F == WF_FP8_ROW)
            sum *= scale_at(a.scales, a.scales_f32, row);
        if (bad[r])
            sum = __int_as_float(0x7FC00000);
        if (a.y_f32) {
            ((float *)a.y)[t * a.y_stride + row] = sum;
        } else {
            bf16 *y = (bf16 *)a.y + t * a.y_stride + row;
            *y = from_float<bf16>(a.add ? to_float(*y) + sum : sum);
        }
    }
}

static bool has_mma(const struct weight *w)
{
    if (w->rows % 16 || w->cols % UNIT || !is_aligned(w->codes.data, 16))
        return false;
    switch (w->format) {
    case WF_BF16:
        return w->codes.stride % 8 == 0;
    case WF_NVFP4:
        return w->codes.stride % 16 == 0 && w->scales.stride % 2 == 0 &&
               is_aligned(w->scales.data, 2);
    case WF_FP8_ROW:
    case WF_FP8_BLOCK:
        return w->codes.stride % 16 == 0 && is_aligned(w->scales.data, dtype_size(w->scales.dtype));
    case WF_FP8_TENSOR:
        return w->codes.stride % 16 == 0;
    default:
        return false;
    }
}

template <weight_format_id F, int TILES, int GROUPS>
static void launch_tiles(struct gpu *c, const mma_args &a)
{
    dim3 grid((unsigned)(a.rows / (16 * TILES)), (unsigned)cuda_blocks(a.T, 8 * GROUPS));
    if (rows_aligned(a.in, a.in_stride, 2))
        launch_next(c, linear_mma<F, TILES, GROUPS, true>, grid, 32 * WARPS, 0, a);
    else
        launch_next(c, linear_mma<F, TILES, GROUPS, false>, grid, 32 * WARPS, 0, a);
}

template <weight_format_id F> static void launch_mma(struct gpu *c, const linear_args *l)
{
    const struct weight *w = l->w;
    mma_args a = {
        .codes = (const unsigned char *)w->codes.data,
        .row_bytes = w->codes.stride * (F == WF_BF16 ? 2 : 1),
        .scales = (const unsigned char *)w->scales.data,
        .scale_stride = w->scales.stride,
        .global = w->global,
        .rows = w->rows,
        .cols = w->cols,
        .in = (const bf16 *)l->in.data,
        .in_stride = l->in.stride,
        .y = l->y.data,
        .y_stride = l->y.stride,
        .T = (int32_t)l->in.dim[0],
        .scales_f32 = w->scales.dtype == DT_F32,
        .y_f32 = l->y.dtype == DT_F32,
        .add = l->add,
    };
    /* Wide tiles read the activations less often, but need enough of them to fill the device. */
    bool wide = w->rows % 32 == 0 && w->rows / 32 >= 2 * c->n_sms;
    if (wide && a.T <= 8)
        launch_tiles<F, 2, 1>(c, a);
    else if (wide)
        launch_tiles<F, 2, 2>(c, a);
    else if (a.T <= 8)
        launch_tiles<F, 1, 1>(c, a);
    else
        launch_tiles<F, 1, 2>(c, a);
}

/* ---- Anything ------------------------------------------------------------------------------------ */

/* A warp computes one weight row for ROWS activation rows. */
template <weight_format_id F, typename X, typename Y, bool ADD, int ROWS>
__global__ void linear_any(device_weight w, tensor in, tensor y)
{
    begin_kernel();
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
    launch_next(c, linear_any<F, X, Y, ADD, ROWS>, grid, 32 * PER_BLOCK, 0, device_weight_of(a->w),
                a->in, a->y);
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
    return cuda_linear_prefill_scratch((const struct gpu *)stream, a);
}

extern "C" lathe_status cuda_linear(void *stream, const struct linear_args *a, lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    if (cuda_linear_prefill_takes(c, a))
        return cuda_linear_prefill(c, a, err);
    if (a->w->tiled && a->in.dtype == DT_BF16)
        return cuda_linear_tiled(c, a, err);
    bool mma = a->in.dtype == DT_BF16 && has_mma(a->w);
    switch (a->w->format) {
    case WF_F32:
        launch_any<WF_F32>(c, a);
        break;
    case WF_F16:
        launch_any<WF_F16>(c, a);
        break;
#define EITHER(F)                                                                                  \
    case F:                                                                                        \
        if (mma)                                                                                   \
            launch_mma<F>(c, a);                                                                   \
        else                                                                                       \
            launch_any<F>(c, a);                                                                   \
        break;
        EITHER(WF_BF16)
        EITHER(WF_FP8_TENSOR)
        EITHER(WF_FP8_ROW)
        EITHER(WF_FP8_BLOCK)
        EITHER(WF_NVFP4)
#undef EITHER
    default:
        return fail(err, LATHE_E_UNSUPPORTED, "a weight format without a kernel");
    }
    return cuda_launched(c, err);
}

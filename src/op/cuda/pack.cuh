/* Neighbouring values of a row: loaded together, kept as they lie in memory until they are used, so that
 * several loads are under way at once. Which values a thread gets never depends on alignment. */
#ifndef LATHE_OP_CUDA_PACK_CUH
#define LATHE_OP_CUDA_PACK_CUH

#include "op/cuda/cuda.cuh"
#include "op/cuda/weight.cuh"

enum { PACK = 8 }; /* values that a thread works on at once */

/* N values of 16 or 32 bits. */
template <typename T, int N> struct pack {
    uint32_t w[N * sizeof(T) / 4];
    __device__ __forceinline__ float operator[](int i) const
    {
        if (sizeof(T) == 4)
            return __uint_as_float(w[i]);
        return __uint_as_float(i % 2 ? w[i / 2] & 0xFFFF0000u : w[i / 2] << 16);
    }
};

/* May packs that start at multiples of N from p be accessed at once? */
static __host__ __device__ __forceinline__ bool is_wide(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

template <int BYTES> __device__ __forceinline__ void load_words(uint32_t *w, const void *p)
{
    static_assert(BYTES == 4 || BYTES == 8 || BYTES % 16 == 0, "an access of 4, 8 or 16 bytes");
    if (BYTES == 4) {
        w[0] = *(const uint32_t *)p;
    } else if (BYTES == 8) {
        uint2 v = *(const uint2 *)p;
        w[0] = v.x, w[1] = v.y;
    } else {
#pragma unroll
        for (int i = 0; i < BYTES / 16; i++) {
            uint4 v = ((const uint4 *)p)[i];
            w[4 * i] = v.x, w[4 * i + 1] = v.y, w[4 * i + 2] = v.z, w[4 * i + 3] = v.w;
        }
    }
}

/* 16 bytes of weights that are read once. */
__device__ __forceinline__ uint4 load16_stream(const unsigned char *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* The first `left` of N values at p, 0 for the others. */
template <int N, typename T>
__device__ __forceinline__ pack<T, N> load_pack(const T *p, int64_t left, bool wide)
{
    pack<T, N> x;
    if (wide && left >= N) {
        load_words<N * sizeof(T)>(x.w, p);
        return x;
    }
#pragma unroll
    for (int i = 0; i < (int)(N * sizeof(T) / 4); i++)
        x.w[i] = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (i < left) {
            if (sizeof(T) == 4)
                x.w[i] = ((const uint32_t *)p)[i];
            else
                x.w[i / 2] |= (uint32_t)((const uint16_t *)p)[i] << 16 * (i % 2);
        }
    return x;
}

/* Stores the first `left` of N values, rounded. */
template <int N, typename T>
__device__ __forceinline__ void store_pack(T *p, const float (&x)[N], int64_t left, bool wide)
{
    if (!wide || left < N) {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (i < left)
                p[i] = from_float<T>(x[i]);
        return;
    }
    uint32_t w[N * sizeof(T) / 4];
    if (sizeof(T) == 4) {
#pragma unroll
        for (int i = 0; i < N; i++)
            w[i] = __float_as_uint(x[i]);
    } else {
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            __nv_bfloat162 v = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
            w[i] = *(const uint32_t *)&v;
        }
    }
    if (N * sizeof(T) == 8) {
        *(uint2 *)p = make_uint2(w[0], w[1]);
    } else {
#pragma unroll
        for (int i = 0; i < (int)(N * sizeof(T) / 16); i++)
            ((uint4 *)p)[i] = make_uint4(w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]);
    }
}

/* ---- Weights ------------------------------------------------------------------------------------- */

/* May weight_pack read eight codes at once, anywhere? */
static inline bool weight_is_wide(const struct device_weight *w, enum weight_format_id format)
{
    size_t size = format == WF_F32 ? 4 : format == WF_BF16 || format == WF_F16 ? 2 : 1;
    size_t bytes = format == WF_NVFP4 ? PACK / 2 : PACK * size; /* of a pack */
    size_t unit = bytes < 16 ? bytes : 16;
    return !w->tiled && w->is_even && w->cols % PACK == 0 && (uintptr_t)w->codes % unit == 0 &&
           (size_t)w->stride * size % unit == 0;
}

/* W[row, col .. col + 8), col a multiple of 8; 0 beyond the last column. The same values whether WIDE or
 * not. */
template <weight_format_id F, bool WIDE>
__device__ __forceinline__ void weight_pack(float (&x)[PACK], const device_weight &w, int64_t row,
                                            int64_t col)
{
    if (!WIDE) {
#pragma unroll
        for (int i = 0; i < PACK; i++)
            x[i] = col + i < w.cols ? weight_at<F>(w, row, col + i) : 0.0f;
        return;
    }
    const uint8_t *codes = (const uint8_t *)w.codes;
    int64_t at = row * w.stride + (F == WF_NVFP4 ? col / 2 : col);
    if (F == WF_F32) {
        pack<float, PACK> v;
        load_words<PACK * 4>(v.w, codes + 4 * at);
#pragma unroll
        for (int i = 0; i < PACK; i++)
            x[i] = v[i];
    } else if (F == WF_BF16) {
        pack<bf16, PACK> v;
        load_words<PACK * 2>(v.w, codes + 2 * at);
#pragma unroll
        for (int i = 0; i < PACK; i++)
            x[i] = v[i];
    } else if (F == WF_F16) {
        uint32_t v[PACK / 2];
        load_words<PACK * 2>(v, codes + 2 * at);
#pragma unroll
        for (int i = 0; i < PACK; i++)
            x[i] = __half2float(__ushort_as_half((unsigned short)(v[i / 2] >> 16 * (i % 2))));
    } else if (F == WF_NVFP4) {
        uint32_t v;
        load_words<PACK / 2>(&v, codes + at);
        float s = e4m3_to_float(((const uint8_t *)w.scales)[row * w.scale_stride + col / 16]);
        s *= w.global;
#pragma unroll
        for (int i = 0; i < PACK; i++)
            x[i] = e2m1_to_float(v >> 4 * i & 15) * s;
    } else {
        uint32_t v[PACK / 4];
        load_words<PACK>(v, codes + at);
        float s = F == WF_FP8_TENSOR ? w.global
                  : F == WF_FP8_ROW  ? weight_scale(w, row)
                                     : weight_scale(w, row / 128 * w.scale_stride + col / 128);
#pragma unroll
        for (int i = 0; i < PACK; i++)
            x[i] = e4m3_to_float((uint8_t)(v[i / 4] >> 8 * (i % 4))) * s;
    }
}

/* Runs its last argument with F the constant of a weight format. */
#define WITH_FORMAT(format, F, ...)                                                                \
    do {                                                                                           \
        switch (format) {                                                                          \
            FORMAT_CASES(F, __VA_ARGS__)                                                           \
        default:                                                                                   \
            break;                                                                                 \
        }                                                                                          \
    } while (0)
#define FORMAT_CASE(id, F, ...)                                                                    \
    case id: {                                                                                     \
        constexpr weight_format_id F = id;                                                         \
        __VA_ARGS__;                                                                               \
        break;                                                                                     \
    }
#define FORMAT_CASES(F, ...)                                                                       \
    FORMAT_CASE(WF_F32, F, __VA_ARGS__)                                                            \
    FORMAT_CASE(WF_BF16, F, __VA_ARGS__)                                                           \
    FORMAT_CASE(WF_F16, F, __VA_ARGS__)                                                            \
    FORMAT_CASE(WF_FP8_TENSOR, F, __VA_ARGS__)                                                     \
    FORMAT_CASE(WF_FP8_ROW, F, __VA_ARGS__)                                                        \
    FORMAT_CASE(WF_FP8_BLOCK, F, __VA_ARGS__)                                                      \
    FORMAT_CASE(WF_NVFP4, F, __VA_ARGS__)

/* ---- Sums of squares ------------------------------------------------------------------------------ */

/* 1 / sqrt(sum / n + eps). */
__device__ __forceinline__ float rms_scale(float sum, int64_t n, float eps)
{
    return 1.0f / sqrtf(sum / (float)n + eps);
}
/* The same from a sum that F32 does not hold. */
__device__ __forceinline__ float rms_scale(double sum, int64_t n, float eps)
{
    return (float)(1.0 / sqrt(sum / (double)n + (double)eps));
}
__device__ __forceinline__ bool is_held(float sum)
{
    return sum <= 3.402823466e+38f; /* not if NaN */
}
/* Of the values that a warp, or a BLOCK, holds together. Sums that F32 does not hold are taken in double. */
template <bool BLOCK, typename T, int P, int N>
__device__ __forceinline__ float rms_scale_of(const pack<T, P> (&v)[N], int64_t n, float eps)
{
    float sum = 0;
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int i = 0; i < P; i++)
            sum = fmaf(v[j][i], v[j][i], sum);
    sum = BLOCK ? block_sum(sum) : warp_sum(sum);
    if (is_held(sum))
        return rms_scale(sum, n, eps);
    double all = 0;
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int i = 0; i < P; i++)
            all += (double)v[j][i] * (double)v[j][i];
    return rms_scale(BLOCK ? block_sum(all) : warp_sum(all), n, eps);
}

#endif

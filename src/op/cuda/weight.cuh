/* Single entries of a weight of any format: what quant/ defines, on the device. */
#ifndef LATHE_OP_CUDA_WEIGHT_CUH
#define LATHE_OP_CUDA_WEIGHT_CUH

#include "op/cuda/cuda.cuh"
#include "op/cuda/tiles.cuh"

struct device_weight {
    const void *codes, *scales;
    int64_t stride, scale_stride; /* elements */
    int64_t rows, cols;
    float global;
    bool scales_f32; /* else BF16; NVFP4's are E4M3 */
    bool is_even;    /* codes and scales are aligned to their size */
    bool tiled;
};

static inline struct device_weight device_weight_of(const struct weight *w)
{
    struct device_weight d = {
        .codes = w->codes.data,
        .scales = w->scales.data,
        .stride = w->codes.stride,
        .scale_stride = w->scales.stride,
        .rows = w->rows,
        .cols = w->cols,
        .global = w->global,
        .scales_f32 = w->scales.dtype == DT_F32,
        .is_even =
            (uintptr_t)w->codes.data % dtype_size(w->codes.dtype) == 0 &&
            (!w->scales.data || (uintptr_t)w->scales.data % dtype_size(w->scales.dtype) == 0),
        .tiled = w->tiled,
    };
    return d;
}

/* Little-endian, at any address. */
__device__ __forceinline__ uint32_t load_u16(const void *p, bool is_even)
{
    if (is_even)
        return *(const uint16_t *)p;
    const uint8_t *b = (const uint8_t *)p;
    return b[0] | (uint32_t)b[1] << 8;
}
__device__ __forceinline__ uint32_t load_u32(const void *p, bool is_even)
{
    if (is_even)
        return *(const uint32_t *)p;
    const uint8_t *b = (const uint8_t *)p;
    return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

__device__ __forceinline__ float weight_scale(const device_weight &w, int64_t i)
{
    return w.scales_f32
               ? __uint_as_float(load_u32((const uint8_t *)w.scales + 4 * i, w.is_even))
               : __uint_as_float(load_u16((const uint8_t *)w.scales + 2 * i, w.is_even) << 16);
}

__device__ __forceinline__ float e2m1_to_float(uint32_t code)
{
    /* 0, 0.5, 1, 1.5, 2, 3, 4, 6 */
    float v = (code & 6) ? (float)((2 + (code & 1)) << ((code >> 1 & 3))) * 0.25f
                         : (float)(code & 1) * 0.5f;
    return code & 8 ? -v : v;
}

__device__ __forceinline__ float fp8_at(const device_weight &w, int64_t row, int64_t col)
{
    const uint8_t *p = (const uint8_t *)w.codes;
    if (!w.tiled)
        return e4m3_to_float(p[row * w.stride + col]);
    uint32_t word = *(const uint32_t *)(p + fp8_place(row, col, w.cols));
    return e4m3_to_float((uint8_t)fp8_code(word, (int)(col % 4)));
}

__device__ __forceinline__ uint32_t nvfp4_code(const device_weight &w, int64_t row, int64_t col)
{
    const uint8_t *p = (const uint8_t *)w.codes;
    if (!w.tiled)
        return p[row * w.stride + col / 2] >> col % 2 * 4 & 15;
    const uint32_t *word = (const uint32_t *)(p + e2m1_place(row & ~(int64_t)8, col, w.cols));
    const uint32_t both[2] = {word[0], word[E2M1_LOWER]};
    return e2m1_code(both, (int)(row / 8 % 2), (int)(col % 8));
}
/* Of columns 16 block and on. */
__device__ __forceinline__ float nvfp4_scale(const device_weight &w, int64_t row, int64_t block)
{
    const uint8_t *s = (const uint8_t *)w.scales;
    if (!w.tiled)
        return e4m3_to_float(s[row * w.scale_stride + block]);
    return scale_value(s[nvfp4_scale_place(row, block, w.cols)]);
}
__device__ __forceinline__ float nvfp4_at(const device_weight &w, int64_t row, int64_t col)
{
    return e2m1_to_float(nvfp4_code(w, row, col)) * (nvfp4_scale(w, row, col / 16) * w.global);
}

template <weight_format_id F>
__device__ __forceinline__ float weight_at(const device_weight &w, int64_t row, int64_t col)
{
    const uint8_t *p = (const uint8_t *)w.codes;
    int64_t i = row * w.stride + col;
    switch (F) {
    case WF_F32:
        return __uint_as_float(load_u32(p + 4 * i, w.is_even));
    case WF_BF16:
        return __uint_as_float(load_u16(p + 2 * i, w.is_even) << 16);
    case WF_F16:
        return __half2float(__ushort_as_half((unsigned short)load_u16(p + 2 * i, w.is_even)));
    case WF_FP8_TENSOR:
        return fp8_at(w, row, col) * w.global;
    case WF_FP8_ROW:
        return fp8_at(w, row, col) * weight_scale(w, row);
    case WF_FP8_BLOCK:
        return fp8_at(w, row, col) * weight_scale(w, row / 128 * w.scale_stride + col / 128);
    default:
        return nvfp4_at(w, row, col);
    }
}

#endif

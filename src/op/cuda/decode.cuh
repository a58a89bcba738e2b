/* Code words to BF16 pairs, several at once and exactly. NaN codes are not seen: callers look for them. */
#ifndef LATHE_OP_CUDA_DECODE_CUH
#define LATHE_OP_CUDA_DECODE_CUH

#include "op/cuda/cuda.cuh"
#include "op/cuda/mma.cuh"

/* Four FP8 codes to pairs (0, 2) and (1, 3), exactly. */
__device__ __forceinline__ void decode_fp8(uint32_t c, uint32_t &even, uint32_t &odd)
{
    const uint32_t up = 0x7B807B80u; /* 2^120: the exponents' biases differ by 120 */
    even = mul_bf16x2(((c << 4) & 0x07F007F0u) | ((c << 8) & 0x80008000u), up);
    odd = mul_bf16x2(((c >> 4) & 0x07F007F0u) | (c & 0x80008000u), up);
}

/* Codes I and I + 4 of the eight in c times the scale s (twice), both scaled: see nvfp4_scales. */
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

/* Scale i of rows or of blocks. */
__device__ __forceinline__ float scale_at(const void *scales, bool is_f32, int64_t i)
{
    return is_f32 ? ((const float *)scales)[i] : to_float(((const bf16 *)scales)[i]);
}

#endif

/* A vector of floats for the inner loops, which are written once and compiled for each instruction
 * set: 16 lanes with AVX-512, 8 with AVX2, else 4 (SSE2, NEON, or what the compiler makes of it).
 * Multiply-add is fused where the instruction set has it. */
#ifndef LATHE_OP_CPU_SIMD_H
#define LATHE_OP_CPU_SIMD_H

#include <string.h>

#include "op/cpu/unroll.h"
#include "tensor/number.h"
#include "tensor/tensor.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX2__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef uint32_t vu __attribute__((vector_size(LANES * 4)));
typedef uint16_t vh __attribute__((vector_size(LANES * 2)));
typedef uint8_t vb __attribute__((vector_size(LANES)));
typedef uint16_t vw __attribute__((vector_size(LANES * 4))); /* twice as many lanes */
typedef uint8_t vwb __attribute__((vector_size(LANES * 2)));
typedef float v4 __attribute__((vector_size(16)));

INLINE vf v_set(float x)
{
    return x - (vf){0}; /* not +: -0 + 0 is 0 */
}

INLINE vf v_fma(vf a, vf b, vf c) /* a * b + c */
{
#if defined(__AVX512F__)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

/* Lanes of a where the mask (of a comparison) is set, else of b. */
INLINE vf v_pick(vi mask, vf a, vf b)
{
    return (vf)(((vi)a & mask) | ((vi)b & ~mask));
}

/* The larger; b where either is NaN. */
INLINE vf v_max(vf a, vf b)
{
    return v_pick(a > b, a, b);
}

/* The sums of four vectors' lanes, side by side; each in the same order, whatever the other three are. */
INLINE v4 v_sum4(vf a, vf b, vf c, vf d)
{
#if defined(__AVX512F__) || defined(__AVX2__)
#if defined(                                                                                       \
    __AVX512F__) /* within each quarter, lanes 0 + 2 and 1 + 3 of two vectors, then of four */
    vf ab =
        (vf)_mm512_unpacklo_ps((__m512)a, (__m512)b) + (vf)_mm512_unpackhi_ps((__m512)a, (__m512)b);
    vf cd =
        (vf)_mm512_unpacklo_ps((__m512)c, (__m512)d) + (vf)_mm512_unpackhi_ps((__m512)c, (__m512)d);
    vf all = (vf)_mm512_shuffle_ps((__m512)ab, (__m512)cd, 0x44) +
             (vf)_mm512_shuffle_ps((__m512)ab, (__m512)cd, 0xEE);
    __m256 half = _mm512_castps512_ps256((__m512)all) + _mm512_extractf32x8_ps((__m512)all, 1);
#else
    vf ab =
        (vf)_mm256_unpacklo_ps((__m256)a, (__m256)b) + (vf)_mm256_unpackhi_ps((__m256)a, (__m256)b);
    vf cd =
        (vf)_mm256_unpacklo_ps((__m256)c, (__m256)d) + (vf)_mm256_unpackhi_ps((__m256)c, (__m256)d);
    vf half = (vf)_mm256_shuffle_ps((__m256)ab, (__m256)cd, 0x44) +
              (vf)_mm256_shuffle_ps((__m256)ab, (__m256)cd, 0xEE);
#endif
    return (v4)_mm256_castps256_ps128((__m256)half) + (v4)_mm256_extractf128_ps((__m256)half, 1);
#elif defined(__aarch64__)
    return (v4)vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d));
#else
    return (v4){(a[0] + a[2]) + (a[1] + a[3]), (b[0] + b[2]) + (b[1] + b[3]),
                (c[0] + c[2]) + (c[1] + c[3]), (d[0] + d[2]) + (d[1] + d[3])};
#endif
}

INLINE float v_sum(vf a)
{
    return v_sum4(a, a, a, a)[0];
}

INLINE vf v_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void v_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

INLINE vf v_from_bf16(vh h)
{
    return (vf)(__builtin_convertvector(h, vu) << 16);
}

/* As bf16_from_f32. */
INLINE vh v_to_bf16(vf v)
{
    vu u = (vu)v, nan = (vu)(v != v);
    vu rounded = (u + 0x7FFF + (u >> 16 & 1)) >> 16, quiet = u >> 16 | 0x40;
    return __builtin_convertvector((rounded & ~nan) | (quiet & nan), vh);
}

/* As e4m3_from_f32. */
INLINE vb v_to_e4m3(vf v)
{
    vu u = (vu)v, a = u & 0x7FFFFFFF, sign = u >> 24 & 0x80;
    vu code = (a - (120u << 23) + 0x7FFFF + (a >> 20 & 1)) >> 20;
    vu units = (vu)((vf)a + v_set(0x1p14f)) & 15; /* of 2^-9, rounded by the sum */
    vu is_small = (vu)(a < 0x3C800000), is_large = (vu)(a >= 0x43E00000);
    code = (units & is_small) | (code & ~is_small);
    code = (is_large & 0x7E) | (code & ~is_large);
    return __builtin_convertvector(code | ((vu)(a > 0x7F800000) & 1) | sign, vb);
}

/* The BF16 values of E4M3 codes, each in a word. */
INLINE vw v_bf16_from_e4m3(vw code)
{
    vw rest = code & 0x7F, sign = (code & 0x80) << 8;
    /* Below 8 it counts in 2^-9: the exponent is that of the highest bit. */
    vw two = (vw)(rest < 2), four = (vw)(rest < 4), eight = (vw)(rest < 8);
    vw least = (vw)(rest == 1) & 0x3B00;
    vw small = (((rest << 6) + 0x3B00) & four) | (((rest << 5) + 0x3B80) & ~four);
    small = (least & two) | (small & ~two);
    vw value = (small & eight) | (((rest << 4) + 0x3C00) & ~eight);
    vw nan = (vw)(rest == 0x7F) & 0x7FC0;
    return value | nan | sign;
}

/* n <= LANES values of dtype BF16 or F32 from index i; the other lanes are 0. */
INLINE vf v_get(const void *p, int64_t i, int64_t n, enum dtype dtype)
{
    if (dtype == DT_F32) {
        const float *f = (const float *)p + i;
        vf v = {0};
        if (n == LANES)
            return v_load(f);
        memcpy(&v, f, (size_t)n * sizeof *f);
        return v;
    }
    const uint16_t *b = (const uint16_t *)p + i;
    vh h = {0};
    if (n == LANES)
        memcpy(&h, b, sizeof h);
    else
        memcpy(&h, b, (size_t)n * sizeof *b);
    return v_from_bf16(h);
}

INLINE void v_put(void *p, int64_t i, int64_t n, enum dtype dtype, vf v)
{
    if (dtype == DT_F32) {
        float *f = (float *)p + i;
        if (n == LANES)
            v_store(f, v);
        else
            memcpy(f, &v, (size_t)n * sizeof *f);
        return;
    }
    uint16_t *b = (uint16_t *)p + i;
    vh h = v_to_bf16(v);
    if (n == LANES)
        memcpy(b, &h, sizeof h);
    else
        memcpy(b, &h, (size_t)n * sizeof *b);
}

/* Lanes left of n from i, at most LANES. */
INLINE int64_t v_left(int64_t n, int64_t i)
{
    return n - i < LANES ? n - i : LANES;
}

/* e^x within 2 ulp; 0 below -104, infinity above 88.73, NaN for NaN. x = n ln 2 + r, |r| <= ln 2 / 2;
 * e^r by its Taylor polynomial of degree 7 (remainder below 2^-27); times 2^n in two steps, so that
 * results near both ends of the range come out right. */
INLINE vf v_exp(vf x)
{
    const vf shift = v_set(0x1.8p23f); /* adding it rounds to an integer, kept in the low bits */
    x = v_pick(x > v_set(89), v_set(89), x);
    x = v_pick(x < v_set(-105), v_set(-105), x);
    vf magic = v_fma(x, v_set(1.44269504f), shift), n = magic - shift;
    vf r = v_fma(n, v_set(-0x1.62ep-1f), x); /* ln 2 = 0x1.62ep-1 + 0x1.0bfbe8p-15 */
    r = v_fma(n, v_set(-0x1.0bfbe8p-15f), r);
    vf p = v_set(1.f / 5040);
    p = v_fma(p, r, v_set(1.f / 720));
    p = v_fma(p, r, v_set(1.f / 120));
    p = v_fma(p, r, v_set(1.f / 24));
    p = v_fma(p, r, v_set(1.f / 6));
    p = v_fma(p, r, v_set(0.5f));
    p = v_fma(p, r, v_set(1));
    p = v_fma(p, r, v_set(1));
    vi e = (vi)((vu)magic - (vu)shift);
    vi half = e >> 1;
    vf two_half = (vf)((vu)(half + 127) << 23), two_rest = (vf)((vu)(e - half + 127) << 23);
    return p * two_half * two_rest;
}

INLINE vf v_sigmoid(vf x)
{
    return v_set(1) / (v_set(1) + v_exp(-x));
}

INLINE vf v_silu(vf x)
{
    return x / (v_set(1) + v_exp(-x));
}

#endif

/* Every format and both activation dtypes with AVX-512: in F32, sixteen lanes in one register. */
#include <immintrin.h>

#include "op/cpu/linear.h"
#include "op/cpu/unroll.h"
#include "quant/parts.h"
#include "tensor/number.h"

enum { ROWS = 4, XS = 4 };

struct lanes {
    __m512 v;
};

INLINE struct lanes lanes_load(const float *p)
{
    return (struct lanes){_mm512_load_ps(p)};
}

INLINE void lanes_store(float *p, struct lanes a)
{
    _mm512_store_ps(p, a.v);
}

INLINE struct lanes lanes_fma(struct lanes a, struct lanes b, struct lanes c)
{
    return (struct lanes){_mm512_fmadd_ps(a.v, b.v, c.v)};
}

/* The first n of 16 columns. */
INLINE __mmask16 first(int64_t n)
{
    return (__mmask16)(n >= 16 ? 0xFFFF : (1u << n) - 1);
}

static void nvfp4_row(float *dst, const struct weight *w, int64_t row, int64_t col, int64_t n)
{
    const uint8_t *code = (const uint8_t *)w->codes.data + row * w->codes.stride + col / 2;
    const uint8_t *scale = (const uint8_t *)w->scales.data + row * w->scales.stride + col / 16;
    const __m512 value =
        _mm512_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6);
    for (int64_t i = 0; i < n; i += 16, code += 8, scale++) {
        __m128i b = _mm_loadl_epi64((const __m128i *)(const void *)code);
        /* Lookups take the low four bits of each index. */
        __m512i c = _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(b, _mm_srli_epi16(b, 4)));
        __m512 s = _mm512_set1_ps(e4m3_value[*scale] * w->global);
        _mm512_store_ps(dst + i, _mm512_mul_ps(_mm512_permutexvar_ps(c, value), s));
    }
}

/* n columns that share one scale. E4M3: exponent and mantissa at their place in an F32 whose exponent
 * bias is 120 too small; the product puts that right for subnormal codes as well. */
static void fp8_run(float *dst, const uint8_t *code, int64_t n, float scale)
{
    const __m512 s = _mm512_set1_ps(scale), bias = _mm512_set1_ps(0x1p120f);
    const __m512i low = _mm512_set1_epi32(0x7F), nan = _mm512_set1_epi32(0x7FC00000);
    for (int64_t i = 0; i < n; i += 16) {
        __mmask16 m = first(n - i);
        __m512i c = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(m, code + i));
        __m512i magnitude = _mm512_and_si512(c, low);
        __m512i sign = _mm512_slli_epi32(_mm512_andnot_si512(low, c), 24);
        __m512i v = _mm512_castps_si512(
            _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(magnitude, 20)), bias));
        v = _mm512_mask_mov_epi32(v, _mm512_cmpeq_epi32_mask(magnitude, low), nan);
        v = _mm512_or_si512(v, sign);
        _mm512_mask_storeu_ps(dst + i, m, _mm512_mul_ps(_mm512_castsi512_ps(v), s));
    }
}

static void bf16_row(float *dst, const uint8_t *src, int64_t n)
{
    for (int64_t i = 0; i < n; i += 16) {
        __mmask16 m = first(n - i);
        __m512i v = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, src + 2 * i));
        _mm512_mask_storeu_epi32(dst + i, m, _mm512_slli_epi32(v, 16));
    }
}

static void f16_row(float *dst, const uint8_t *src, int64_t n)
{
    for (int64_t i = 0; i < n; i += 16) {
        __mmask16 m = first(n - i);
        _mm512_mask_storeu_ps(dst + i, m,
                              _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, src + 2 * i)));
    }
}

#include "op/cpu/decode_row.h"
#include "op/cpu/linear_f32.h"

void linear_avx512(struct linear_kernels *k)
{
    decoded_fill(k);
}

/* Every format and both activation dtypes with AVX2 and FMA: in F32, sixteen lanes in two registers. */
#include <immintrin.h>

#include "op/cpu/linear.h"
#include "op/cpu/unroll.h"
#include "quant/parts.h"
#include "tensor/number.h"

enum { ROWS = 3, XS = 2 }; /* 12 of the 16 registers are sums */

struct lanes {
    __m256 v[2];
};

INLINE struct lanes lanes_load(const float *p)
{
    return (struct lanes){{_mm256_load_ps(p), _mm256_load_ps(p + 8)}};
}

INLINE void lanes_store(float *p, struct lanes a)
{
    _mm256_store_ps(p, a.v[0]);
    _mm256_store_ps(p + 8, a.v[1]);
}

INLINE struct lanes lanes_fma(struct lanes a, struct lanes b, struct lanes c)
{
    return (struct lanes){
        {_mm256_fmadd_ps(a.v[0], b.v[0], c.v[0]), _mm256_fmadd_ps(a.v[1], b.v[1], c.v[1])}};
}

/* E4M3: exponent and mantissa at their place in an F32 whose exponent bias is 120 too small; the
 * product puts that right for subnormal codes as well. */
INLINE __m256 e4m3_8(const uint8_t *p)
{
    __m256i c = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
    __m256i magnitude = _mm256_and_si256(c, _mm256_set1_epi32(0x7F));
    __m256i sign = _mm256_slli_epi32(_mm256_andnot_si256(_mm256_set1_epi32(0x7F), c), 24);
    __m256i nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7F));
    __m256 v = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(magnitude, 20)),
                             _mm256_set1_ps(0x1p120f));
    v = _mm256_or_ps(v, _mm256_castsi256_ps(sign));
    return _mm256_or_ps(v,
                        _mm256_castsi256_ps(_mm256_and_si256(nan, _mm256_set1_epi32(0x7FC00000))));
}

/* Eight E2M1 codes, one a byte. */
INLINE __m256 e2m1_8(__m128i codes)
{
    const __m256 value = _mm256_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6);
    __m256i c = _mm256_cvtepu8_epi32(codes);
    __m256i sign = _mm256_slli_epi32(_mm256_and_si256(c, _mm256_set1_epi32(8)), 28);
    return _mm256_xor_ps(_mm256_permutevar8x32_ps(value, c), _mm256_castsi256_ps(sign));
}

static void nvfp4_row(float *dst, const struct weight *w, int64_t row, int64_t col, int64_t n)
{
    const uint8_t *code = (const uint8_t *)w->codes.data + row * w->codes.stride + col / 2;
    const uint8_t *scale = (const uint8_t *)w->scales.data + row * w->scales.stride + col / 16;
    const __m128i nibble = _mm_set1_epi8(15);
    for (int64_t i = 0; i < n; i += 16, code += 8, scale++) {
        __m128i b = _mm_loadl_epi64((const __m128i *)(const void *)code);
        __m128i c = _mm_unpacklo_epi8(_mm_and_si128(b, nibble),
                                      _mm_and_si128(_mm_srli_epi16(b, 4), nibble));
        __m256 s = _mm256_set1_ps(e4m3_value[*scale] * w->global);
        _mm256_store_ps(dst + i, _mm256_mul_ps(e2m1_8(c), s));
        _mm256_store_ps(dst + i + 8, _mm256_mul_ps(e2m1_8(_mm_unpackhi_epi64(c, c)), s));
    }
}

/* Columns [col, col + n) that share one scale. */
static void fp8_run(float *dst, const uint8_t *code, int64_t n, float scale)
{
    const __m256 s = _mm256_set1_ps(scale);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_mul_ps(e4m3_8(code + i), s));
    for (; i < n; i++)
        dst[i] = e4m3_value[code[i]] * scale;
}

static void bf16_row(float *dst, const uint8_t *src, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(src + 2 * i));
        _mm256_storeu_si256((__m256i *)(void *)(dst + i),
                            _mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
    }
    to_f32(dst + i, src + 2 * i, DT_BF16, n - i);
}

static void f16_row(float *dst, const unsigned char *src, int64_t n)
{
    to_f32(dst, src, DT_F16, n);
}

#include "op/cpu/decode_row.h"
#include "op/cpu/linear_f32.h"

void linear_avx2(struct linear_kernels *k)
{
    decoded_fill(k);
}

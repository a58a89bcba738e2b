/* NVFP4 weights times BF16 activations with BF16 dot products.
 *
 * A group is 256 columns: 128 bytes of codes, 16 scales. Its two registers of codes are split so that
 * 32-bit lane j holds half of block j: eight E2M1 codes of one scale. A 16-bit lookup, which sees the
 * low four bits of its index, turns the codes at bits 0 and 16 of every lane into BF16, exactly; shifts
 * by 4, 8 and 12 bring up the others. Eight dot products sum the sixteen columns of each block, then one
 * multiplication with the sixteen scales adds them to the lanes. Activations lie in the same order:
 *
 *   dot d = 0..7, lane j: columns 16 j + 8 (d / 4) + d % 4 and the one 4 further
 *
 * 26 operations on registers a group and row besides the dot products: behind memory at one row,
 * in their shadow at eight. */
#include <math.h>
#include <string.h>

#include "op/cpu/linear_avx512bf16.h"

enum { GROUP = 256, BLOCK = 16 };

void nvfp4_pack_bf16(void *dst, size_t step, const void *src, enum dtype act, int64_t n)
{
    (void)act;
    /* Per register (two blocks): 32-bit pairs in dot order, the two blocks side by side. */
    const __m512i order =
        _mm512_set_epi16(31, 27, 15, 11, 30, 26, 14, 10, 29, 25, 13, 9, 28, 24, 12, 8, 23, 19, 7, 3,
                         22, 18, 6, 2, 21, 17, 5, 1, 20, 16, 4, 0);
    const uint16_t *x = src;
    uint16_t tail[GROUP];
    unsigned char *y = dst;
    for (int64_t k = 0; k < n; k += GROUP, x += GROUP, y += 8 * step) {
        if (n - k < GROUP) {
            memset(tail, 0, sizeof tail);
            memcpy(tail, x, (size_t)(n - k) * 2);
            x = tail;
        }
        /* An 8 x 8 transposition of 64-bit pairs: blocks by dots to dots by blocks. */
        __m512i z[8], u[8];
        UNROLL
        for (int i = 0; i < 8; i++)
            z[i] = _mm512_permutexvar_epi16(order, load_512(x + 32 * i));
        UNROLL
        for (int i = 0; i < 8; i += 2) {
            u[i] = _mm512_unpacklo_epi64(z[i], z[i + 1]);
            u[i + 1] = _mm512_unpackhi_epi64(z[i], z[i + 1]);
        }
        UNROLL
        for (int i = 0; i < 2; i++) {
            __m512i a = _mm512_shuffle_i64x2(u[i], u[i + 2], 0x88);
            __m512i b = _mm512_shuffle_i64x2(u[i], u[i + 2], 0xDD);
            __m512i c = _mm512_shuffle_i64x2(u[i + 4], u[i + 6], 0x88);
            __m512i d = _mm512_shuffle_i64x2(u[i + 4], u[i + 6], 0xDD);
            _mm512_store_si512(y + step * (size_t)i, _mm512_shuffle_i64x2(a, c, 0x88));
            _mm512_store_si512(y + step * (size_t)(i + 2), _mm512_shuffle_i64x2(b, d, 0x88));
            _mm512_store_si512(y + step * (size_t)(i + 4), _mm512_shuffle_i64x2(a, c, 0xDD));
            _mm512_store_si512(y + step * (size_t)(i + 6), _mm512_shuffle_i64x2(b, d, 0xDD));
        }
    }
}

/* Sixteen E4M3 scales, NaN codes as 480. Exponent and mantissa go to their place in an F32 whose exponent
 * bias is 120 too small; the product puts that right for subnormal codes as well. The constants are kept
 * out of registers, where the sums are. */
INLINE __m512 scales(const uint8_t *p)
{
    static const uint32_t constant[] = {0x87F00000, 0x7B800000 /* 2^120 */};
    const uint32_t *c = constant;
    __asm__("" : "+r"(c));
    __m512i bits = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    bits = _mm512_and_si512(_mm512_slli_epi32(bits, 20), _mm512_set1_epi32((int)c[0]));
    __m512 bias = _mm512_castsi512_ps(_mm512_set1_epi32((int)c[1]));
    return _mm512_mul_ps(_mm512_castsi512_ps(bits), bias);
}

/* Is there a NaN among n scales? */
static bool has_nan(const uint8_t *p, int64_t n)
{
    const __m512i sign = _mm512_set1_epi8(-128), nan = _mm512_set1_epi8(-1);
    __mmask64 any = 0;
    for (; n > 0; n -= 64, p += 64) {
        __mmask64 m = n < 64 ? ((__mmask64)1 << n) - 1 : ~(__mmask64)0;
        any |= _mm512_cmpeq_epi8_mask(_mm512_or_si512(_mm512_maskz_loadu_epi8(m, p), sign), nan);
    }
    return any != 0;
}

INLINE void rows(const struct span *t, int32_t i, int32_t end, const int nr, const int nx)
{
    const __m512i even =
        _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    /* The E2M1 values as BF16, for both states of the fifth index bit. */
    const __m512i value = _mm512_broadcast_i64x4(_mm256_set_epi16(
        (short)0xC0C0, (short)0xC080, (short)0xC040, (short)0xC000, (short)0xBFC0, (short)0xBF80,
        (short)0xBF00, (short)0x8000, 0x40C0, 0x4080, 0x4040, 0x4000, 0x3FC0, 0x3F80, 0x3F00, 0));
    const int64_t code_stride = t->code_stride, scale_stride = t->scale_stride;
    _Alignas(64) float nowhere[SUMS];
    float *acc = nowhere; /* where s goes, and what it is added to */
    const float *from = zeros;
    struct sums s;
    __m512 f[4] = {0};
    sums_zero(&s, nr, nx);
    for (; i < end; i += nr) {
        const uint8_t *code = t->code + i * code_stride, *scale = t->scale + i * scale_stride;
        uintptr_t next_code = span_ahead(t->code, t->next_code, code_stride, i, t->n_rows);
        uintptr_t next_scale = span_ahead(t->scale, t->next_scale, scale_stride, i, t->n_rows);
        const unsigned char *x = t->x, *x_end = x + t->n_groups * 8 * nx * LINEAR_UNIT;
        float *row_acc = t->acc + i * nx * LINEAR_LANES;
        const float *row_from = t->begin ? zeros : row_acc;
        do {
            __m512i half[2][4], v[4], v1[4];
            UNROLL
            for (int r = 0; r < nr; r++) {
                const uint8_t *p = code + r * code_stride;
                __m512i a = load_512(p), b = load_512(p + 64);
                half[0][r] = _mm512_permutex2var_epi32(a, even, b);
                half[1][r] = _mm512_permutex2var_epi32(a, odd, b);
                v[r] = _mm512_permutexvar_epi16(half[0][r], value);
                v1[r] = _mm512_permutexvar_epi16(_mm512_srli_epi16(half[0][r], 4), value);
                prefetch(next_code, r * code_stride);
                prefetch(next_code, r * code_stride + 64);
                prefetch(next_scale, r * scale_stride);
            }
            sums_scale_turn(acc, from, &s, f, v, v1, x, nr, nx);
            acc = row_acc;
            from = row_from;
            row_from = row_acc;
            UNROLL
            for (int r = 0; r < nr; r++)
                f[r] = scales(scale + r * scale_stride);
            UNROLL
            for (int d = 2; d < 8; d++) {
                UNROLL
                for (int r = 0; r < nr; r++) {
                    __m512i h = half[d / 4][r];
                    v[r] = _mm512_permutexvar_epi16(
                        d % 4 ? _mm512_srli_epi16(h, (unsigned)(4 * (d % 4))) : h, value);
                }
                sums_dot(&s, v, x, d, nr, nx);
            }
            x += 8 * nx * LINEAR_UNIT;
            code += GROUP / 2;
            scale += GROUP / BLOCK;
            next_code += GROUP / 2;
            next_scale += GROUP / BLOCK;
        } while (x != x_end);
    }
    sums_scale_store(acc, from, &s, f, nr, nx);
}

static void run(const struct span *s, int32_t nx)
{
    SPAN_RUN(rows, s, nx);
}

/* Whatever the activations, a NaN scale makes its row NaN. */
static void spread_nan(const struct linear_tile *t, const struct span *s)
{
    for (int32_t r = 0; r < t->n_rows; r++)
        if (has_nan(s->scale + r * s->scale_stride, (t->k1 - t->k0) / BLOCK))
            for (int32_t i = 0; i < t->n_x * LINEAR_LANES; i++)
                t->acc[r * t->n_x * LINEAR_LANES + i] = NAN;
}

void nvfp4_tile_bf16(const struct linear_tile *t)
{
    const struct tensor *codes = &t->w->codes, *scale = &t->w->scales;
    int64_t n = t->k1 - t->k0, rest = n % GROUP;
    struct span s = {
        .code = (const uint8_t *)codes->data + t->row * codes->stride + t->k0 / 2,
        .code_stride = codes->stride,
        .scale = (const uint8_t *)scale->data + t->row * scale->stride + t->k0 / BLOCK,
        .scale_stride = scale->stride,
        .next_code = t->next_code,
        .next_scale = t->next_scale,
        .begin = t->k0 == 0,
        .n_groups = n / GROUP,
        .n_rows = t->n_rows,
        .x = t->x,
        .acc = t->acc,
    };
    const struct span whole = s;
    if (s.n_groups)
        run(&s, t->n_x);
    if (rest) {
        struct tail tail;
        span_tail(&s, &tail, 8 * t->n_x * LINEAR_UNIT, GROUP / 2, rest / 2, rest / BLOCK);
        run(&s, t->n_x);
    }
    spread_nan(t, &whole);
}

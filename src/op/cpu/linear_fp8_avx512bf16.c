/* E4M3 weights times BF16 activations with BF16 dot products.
 *
 * Every E4M3 value is a BF16 value. A code is looked up twice, for the high and the low byte, in
 * tables of 128 (a lookup sees the low seven bits of its index); the sign joins the high byte, and
 * interleaving the two gives BF16. Subnormal codes become normal numbers, 7F and FF NaN.
 *
 * A group is 256 columns. Register i = 0..3 takes columns [32 i, 32 i + 32) in its low half and those
 * 128 further in its high half, so that with 128-column scales one multiplication applies two of them
 * after eight dot products. Interleaving takes the first and the last 8 columns of every 16 apart;
 * activations lie in that order. */
#include <string.h>

#include "op/cpu/linear_avx512bf16.h"
#include "quant/parts.h"

enum { GROUP = 256, BLOCK = 128 };

void fp8_pack_bf16(void *dst, size_t step, const void *src, enum dtype act, int64_t n)
{
    (void)act;
    const uint16_t *x = src;
    uint16_t tail[GROUP];
    unsigned char *y = dst;
    for (int64_t k = 0; k < n; k += GROUP, x += GROUP, y += 8 * step) {
        if (n - k < GROUP) {
            memset(tail, 0, sizeof tail);
            memcpy(tail, x, (size_t)(n - k) * 2);
            x = tail;
        }
        UNROLL
        for (int i = 0; i < 4; i++) {
            __m512i a = load_512(x + 32 * i), b = load_512(x + BLOCK + 32 * i);
            _mm512_store_si512(y + step * (size_t)(2 * i), _mm512_shuffle_i64x2(a, b, 0x88));
            _mm512_store_si512(y + step * (size_t)(2 * i + 1), _mm512_shuffle_i64x2(a, b, 0xDD));
        }
    }
}

/* BF16 of the codes 0..127, high and low bytes. */
#define BITS(c)                                                                                    \
    ((c) == 0x7F ? 0x7FC0                                                                          \
     : (c) >= 8  ? ((c) << 4) + (120 << 7)                                                         \
     : (c) >= 4  ? (120 << 7) + (((c)&3) << 5)                                                     \
     : (c) >= 2  ? (119 << 7) + (((c)&1) << 6)                                                     \
     : (c) == 1  ? 118 << 7                                                                        \
                 : 0)
#define HIGH(c)   (uint8_t)(BITS(c) >> 8)
#define LOW(c)    (uint8_t)(BITS(c) & 255)
#define T4(f, c)  f(c), f((c) + 1), f((c) + 2), f((c) + 3)
#define T16(f, c) T4(f, c), T4(f, (c) + 4), T4(f, (c) + 8), T4(f, (c) + 12)
#define T64(f, c) T16(f, c), T16(f, (c) + 16), T16(f, (c) + 32), T16(f, (c) + 48)
static const _Alignas(64) uint8_t high_byte[128] = {T64(HIGH, 0), T64(HIGH, 64)};
static const _Alignas(64) uint8_t low_byte[128] = {T64(LOW, 0), T64(LOW, 64)};

/* Scales of columns col and col + 128, in eight lanes each. */
INLINE __m512 block_scales(const struct weight *w, int64_t row, int64_t col)
{
    int64_t i = row / BLOCK * w->scales.stride + col / BLOCK;
    float a = scale_load(&w->scales, i),
          b = col + BLOCK < w->cols ? scale_load(&w->scales, i + 1) : 0;
    return _mm512_mask_mov_ps(_mm512_set1_ps(a), 0xFF00, _mm512_set1_ps(b));
}

INLINE void rows(const struct linear_tile *t, int32_t i, const int nr, const int nx,
                 const bool blocks)
{
    const __m512i high0 = load_512(high_byte), high1 = load_512(high_byte + 64);
    const __m512i low0 = load_512(low_byte), low1 = load_512(low_byte + 64);
    const __m512i sign = _mm512_set1_epi8(-128);
    uint8_t tail[4][GROUP];
    struct sums s;
    const uint8_t *code[4];
    const unsigned char *x = t->x;
    float *acc = tile_acc(t, i);
    int64_t n = t->k1 - t->k0;
    UNROLL
    for (int r = 0; r < nr; r++)
        code[r] = (const uint8_t *)t->w->codes.data + (t->row + i + r) * t->w->codes.stride + t->k0;
    if (!blocks)
        sums_load(&s, acc, nr, nx);
    for (int64_t k = 0; k < n; k += GROUP, x += 8 * nx * LINEAR_UNIT) {
        if (__builtin_expect(n - k < GROUP, 0))
            for (int r = 0; r < nr; r++) {
                memset(tail[r], 0, sizeof tail[r]);
                code[r] = memcpy(tail[r], code[r], (size_t)(n - k));
            }
        if (blocks)
            sums_zero(&s, nr, nx);
        UNROLL
        for (int d = 0; d < 4; d++) {
            __m512i first[4], last[4];
            UNROLL
            for (int r = 0; r < nr; r++) {
                const uint8_t *p = code[r] + 32 * d;
                __m512i c =
                    _mm512_inserti64x4(_mm512_castsi256_si512(load_256(p)), load_256(p + BLOCK), 1);
                __m512i high = _mm512_permutex2var_epi8(high0, c, high1);
                __m512i low = _mm512_permutex2var_epi8(low0, c, low1);
                high = _mm512_ternarylogic_epi32(high, c, sign, 0xF8); /* high | (c & sign) */
                first[r] = _mm512_unpacklo_epi8(low, high);
                last[r] = _mm512_unpackhi_epi8(low, high);
                prefetch(code[r] + 64 * d, t->ahead);
            }
            sums_dot(&s, first, x, 2 * d, nr, nx);
            sums_dot(&s, last, x, 2 * d + 1, nr, nx);
        }
        UNROLL
        for (int r = 0; r < nr; r++) {
            code[r] += GROUP;
            if (blocks)
                sums_scale(acc, &s, block_scales(t->w, t->row + i + r, t->k0 + k), r, nx);
        }
    }
    if (!blocks)
        sums_store(acc, &s, nr, nx);
}

INLINE void plain_rows(const struct linear_tile *t, int32_t i, const int nr, const int nx)
{
    rows(t, i, nr, nx, false);
}

INLINE void block_rows(const struct linear_tile *t, int32_t i, const int nr, const int nx)
{
    rows(t, i, nr, nx, true);
}

void fp8_tile_bf16(const struct linear_tile *t)
{
    BF16_TILE(plain_rows, t);
}

void fp8_block_tile_bf16(const struct linear_tile *t)
{
    BF16_TILE(block_rows, t);
}

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

struct tables {
    __m512i high0, high1, low0, low1, sign;
};

INLINE struct tables tables(void)
{
    return (struct tables){load_512(high_byte), load_512(high_byte + 64), load_512(low_byte),
                           load_512(low_byte + 64), _mm512_set1_epi8(-128)};
}

/* Register i of a group: *first holds columns 0..7, 16..23 ..., *last the others. */
INLINE void decode(__m512i *first, __m512i *last, const uint8_t *group, const int i,
                   const struct tables *t)
{
    const uint8_t *p = group + 32 * i;
    __m512i c = _mm512_inserti64x4(_mm512_castsi256_si512(load_256(p)), load_256(p + BLOCK), 1);
    __m512i high = _mm512_permutex2var_epi8(t->high0, c, t->high1);
    __m512i low = _mm512_permutex2var_epi8(t->low0, c, t->low1);
    high = _mm512_ternarylogic_epi32(high, c, t->sign, 0xF8); /* high | (c & sign) */
    *first = _mm512_unpacklo_epi8(low, high);
    *last = _mm512_unpackhi_epi8(low, high);
}

INLINE void decode_rows(__m512i *first, __m512i *last, const uint8_t *code, int64_t stride,
                        const int d, uintptr_t next, const struct tables *t, const int nr)
{
    UNROLL
    for (int r = 0; r < nr; r++) {
        decode(&first[r], &last[r], code + r * stride, d, t);
        prefetch(next, r * stride + 64 * d);
    }
}

INLINE void plain_rows(const struct span *t, int32_t i, int32_t end, const int nr, const int nx)
{
    const struct tables tab = tables();
    const int64_t stride = t->code_stride;
    _Alignas(64) float nowhere[SUMS];
    float *acc = nowhere;
    struct sums s;
    sums_zero(&s, nr, nx);
    for (; i < end; i += nr) {
        const uint8_t *code = t->code + i * stride;
        uintptr_t next = span_ahead(t->code, t->next_code, stride, i, t->n_rows);
        const unsigned char *x = t->x, *x_end = x + t->n_groups * 8 * nx * LINEAR_UNIT;
        float *row_acc = t->acc + i * nx * LINEAR_LANES;
        const float *from = t->begin ? zeros : row_acc;
        do {
            UNROLL
            for (int d = 0; d < 4; d++) {
                __m512i first[4], last[4];
                decode_rows(first, last, code, stride, d, next, &tab, nr);
                if (d == 0 && acc != row_acc) {
                    sums_turn(acc, &s, from, first, x, nr, nx);
                    acc = row_acc;
                } else {
                    sums_dot(&s, first, x, 2 * d, nr, nx);
                }
                sums_dot(&s, last, x, 2 * d + 1, nr, nx);
            }
            x += 8 * nx * LINEAR_UNIT;
            code += GROUP;
            next += GROUP;
        } while (x != x_end);
    }
    sums_store(acc, &s, nr, nx);
}

/* The two scales of a group, in eight lanes each. */
INLINE __m512 pair(const uint8_t *scale)
{
    float a, b;
    memcpy(&a, scale, sizeof a);
    memcpy(&b, scale + sizeof a, sizeof b);
    return _mm512_mask_mov_ps(_mm512_set1_ps(a), 0xFF00, _mm512_set1_ps(b));
}

/* The rows share their scales: two floats a group. */
INLINE void block_rows(const struct span *t, int32_t i, int32_t end, const int nr, const int nx)
{
    const struct tables tab = tables();
    const int64_t stride = t->code_stride;
    _Alignas(64) float nowhere[SUMS];
    float *acc = nowhere; /* where s goes, and what it is added to */
    const float *from = zeros;
    struct sums s;
    __m512 f[4] = {0};
    sums_zero(&s, nr, nx);
    for (; i < end; i += nr) {
        const uint8_t *code = t->code + i * stride, *scale = t->scale;
        uintptr_t next = span_ahead(t->code, t->next_code, stride, i, t->n_rows);
        const unsigned char *x = t->x, *x_end = x + t->n_groups * 8 * nx * LINEAR_UNIT;
        float *row_acc = t->acc + i * nx * LINEAR_LANES;
        const float *row_from = t->begin ? zeros : row_acc;
        do {
            UNROLL
            for (int d = 0; d < 4; d++) {
                __m512i first[4], last[4];
                decode_rows(first, last, code, stride, d, next, &tab, nr);
                if (d == 0) {
                    sums_scale_turn(acc, from, &s, f, first, last, x, nr, nx);
                } else {
                    sums_dot(&s, first, x, 2 * d, nr, nx);
                    sums_dot(&s, last, x, 2 * d + 1, nr, nx);
                }
            }
            acc = row_acc;
            from = row_from;
            row_from = row_acc;
            UNROLL
            for (int r = 0; r < nr; r++)
                f[r] = pair(scale);
            x += 8 * nx * LINEAR_UNIT;
            code += GROUP;
            next += GROUP;
            scale += 2 * sizeof(float);
        } while (x != x_end);
    }
    sums_scale_store(acc, from, &s, f, nr, nx);
}

static void run(const struct span *s, int32_t nx, bool blocks)
{
    if (blocks)
        SPAN_RUN(block_rows, s, nx);
    else
        SPAN_RUN(plain_rows, s, nx);
}

static struct span span_of(const struct linear_tile *t)
{
    return (struct span){
        .code = (const uint8_t *)t->w->codes.data + t->row * t->w->codes.stride + t->k0,
        .code_stride = t->w->codes.stride,
        .next_code = t->next_code,
        .begin = t->k0 == 0,
        .n_groups = (t->k1 - t->k0) / GROUP,
        .n_rows = t->n_rows,
        .x = t->x,
        .acc = t->acc,
    };
}

void fp8_tile_bf16(const struct linear_tile *t)
{
    int64_t rest = (t->k1 - t->k0) % GROUP;
    struct span s = span_of(t);
    if (s.n_groups)
        run(&s, t->n_x, false);
    if (rest) {
        struct tail tail;
        span_tail(&s, &tail, 8 * t->n_x * LINEAR_UNIT, GROUP, rest, 0);
        run(&s, t->n_x, false);
    }
}

/* Rows of one block of rows. */
static void block_tile(const struct linear_tile *t)
{
    _Alignas(8) float scale[BF16_MAX_COLS / BLOCK + 1];
    int64_t rest = (t->k1 - t->k0) % GROUP, n = (t->k1 - t->k0 + BLOCK - 1) / BLOCK;
    const struct tensor *scales = &t->w->scales;
    to_f32(scale,
           (const unsigned char *)scales->data +
               (size_t)(t->row / BLOCK * scales->stride + t->k0 / BLOCK) *
                   dtype_size(scales->dtype),
           scales->dtype, n);
    scale[n] = 0; /* of the absent second half of a last group */
    struct span s = span_of(t);
    s.scale = (const uint8_t *)scale;
    if (s.n_groups)
        run(&s, t->n_x, true);
    if (rest) {
        struct tail tail;
        const uint8_t *last = s.scale + s.n_groups * 2 * (int64_t)sizeof(float);
        span_tail(&s, &tail, 8 * t->n_x * LINEAR_UNIT, GROUP, rest, 0);
        s.scale = last;
        run(&s, t->n_x, true);
    }
}

void fp8_block_tile_bf16(const struct linear_tile *t)
{
    for (int32_t i = 0; i < t->n_rows;) {
        struct linear_tile part = *t;
        part.row = t->row + i;
        part.acc = t->acc + (int64_t)i * t->n_x * LINEAR_LANES;
        int64_t left = BLOCK - part.row % BLOCK;
        part.n_rows = t->n_rows - i < left ? t->n_rows - i : (int32_t)left;
        block_tile(&part);
        i += part.n_rows;
    }
}

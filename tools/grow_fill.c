/* Rows of grown tensors. Random numbers are a function of the tensor's name and the place in it (splitmix64 as
 * a counter), so that threads and chunks do not matter.
 *
 * Random code words look like a trained matrix's: normally distributed, in E4M3 the largest of a row near
 * 448, in E2M1 the largest of a block near 6. With the scales made here a row of 5120 has a length of 2 to 4,
 * so that what it computes is of an ordinary size. */
#include <math.h>

#include "grow.h"
#include "tensor/number.h"

static unsigned char e4m3_code[256]; /* of a random byte */
static unsigned char e2m1_pair[256]; /* of two random nibbles */

/* x with P(normal < x) = p. */
static double normal_quantile(double p)
{
    double lo = -9, hi = 9;
    for (int i = 0; i < 60; i++) {
        double mid = (lo + hi) / 2;
        if (erfc(-mid / sqrt(2)) / 2 < p)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

void fill_init(void)
{
    unsigned char nibble[16];
    double top = normal_quantile(255.5 / 256), top4 = normal_quantile(15.5 / 16);
    for (int i = 0; i < 256; i++)
        e4m3_code[i] = e4m3_from_f32((float)(448 / top * normal_quantile((i + .5) / 256)));
    for (int i = 0; i < 16; i++)
        nibble[i] = e2m1_from_f32((float)(6 / top4 * normal_quantile((i + .5) / 16)));
    for (int i = 0; i < 256; i++)
        e2m1_pair[i] = (unsigned char)(nibble[i & 15] | nibble[i >> 4] << 4);
}

static inline uint64_t random_word(uint64_t key, uint64_t i)
{
    uint64_t z = key + i * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* How eight random bytes become bytes of a tensor. */
struct style {
    const unsigned char *table; /* for every byte, or NULL: */
    uint64_t keep, set;         /* (word & keep) | set */
};

static struct style style_of(const struct grown *t)
{
    bool wide = t->dtype == DT_F32;
    switch (t->plane) {
    case PLANE_E4M3:
        return (struct style){.table = e4m3_code};
    case PLANE_E2M1:
        return (struct style){.table = e2m1_pair};
    case PLANE_BLOCK_SCALE: /* 32 to 60: E4M3 codes 60 to 67 */
        return (struct style){.keep = 0x0707070707070707u, .set = 0x6060606060606060u};
    case PLANE_ROW_SCALE: /* 2^-13 to 2^-12 */
        return wide ? (struct style){.keep = 0x007FFFFF007FFFFFu, .set = 0x3900000039000000u}
                    : (struct style){.keep = 0x007F007F007F007Fu, .set = 0x3900390039003900u};
    default: /* 2^-7 to 2^-3, either sign */
        return wide ? (struct style){.keep = 0x81FFFFFF81FFFFFFu, .set = 0x3C0000003C000000u}
                    : (struct style){.keep = 0x81FF81FF81FF81FFu, .set = 0x3C003C003C003C00u};
    }
}

static inline uint64_t styled_word(const struct style *s, uint64_t key, uint64_t i)
{
    uint64_t w = random_word(key, i);
    if (!s->table)
        return (w & s->keep) | s->set;
    uint64_t out = 0;
    for (int b = 0; b < 64; b += 8)
        out |= (uint64_t)s->table[w >> b & 0xFF] << b;
    return out;
}

/* Bytes [at, at + n) of the tensor. Words are little-endian wherever this runs: byte k of a word is bits 8 k
 * and up. */
static void fill_random(unsigned char *out, const struct grown *t, int64_t at, int64_t n)
{
    struct style s = style_of(t);
    while (n > 0) {
        uint64_t w = styled_word(&s, t->key, (uint64_t)at / 8);
        int skip = (int)(at % 8);
        int64_t k = 8 - skip < n ? 8 - skip : n;
        for (int64_t i = 0; i < k; i++)
            out[i] = (unsigned char)(w >> 8 * (skip + i));
        out += k;
        at += k;
        n -= k;
        if (n < 8)
            continue;
        for (; n >= 8; n -= 8, at += 8, out += 8) {
            w = styled_word(&s, t->key, (uint64_t)at / 8);
            memcpy(out, &w, 8);
        }
    }
}

/* Numbers that are zero. Codes under a scale that is zero are as random as any. */
static void fill_zero(unsigned char *out, const struct grown *t, bool is_whole_row, int64_t at,
                      int64_t n)
{
    if (t->plane == PLANE_E2M1 || (t->plane == PLANE_E4M3 && is_whole_row))
        fill_random(out, t, at, n);
    else
        memset(out, 0, (size_t)n);
}

static void carry_row(unsigned char *out, const struct grown *t, const unsigned char *row,
                      int64_t at)
{
    const struct axis *a = &t->cols;
    for (int32_t p = 0; p < a->n; p++) {
        int64_t from = a->from[p], to = a->to[p];
        memcpy(out, row, (size_t)from);
        if (a->beyond == BEYOND_TILE)
            for (int64_t i = from; i < to; i += from)
                memcpy(out + i, row, (size_t)(to - i < from ? to - i : from));
        else if (a->beyond == BEYOND_ZERO)
            fill_zero(out + from, t, false, at + from, to - from);
        else
            fill_random(out + from, t, at + from, to - from);
        row += from;
        out += to;
        at += to;
    }
}

/* nano's row that stands at this one, or -1. */
static int64_t source_row(const struct axis *a, int64_t r)
{
    int64_t first = 0;
    for (int32_t p = 0; p < a->n; first += a->from[p], r -= a->to[p++])
        if (r < a->to[p])
            return a->beyond == BEYOND_TILE ? first + r % a->from[p]
                   : r < a->from[p]         ? first + r
                                            : -1;
    return -1;
}

void grown_rows(unsigned char *out, const struct grown *t, int64_t row, int64_t n)
{
    int64_t source_bytes = 0;
    for (int32_t p = 0; p < t->cols.n; p++)
        source_bytes += t->cols.from[p];
    for (int64_t r = row; r < row + n; r++, out += t->row_bytes) {
        int64_t s = t->is_carried ? source_row(&t->rows, r) : -1, at = r * t->row_bytes;
        if (s >= 0)
            carry_row(out, t, t->source + s * source_bytes, at);
        else if (t->rows.beyond == BEYOND_ZERO)
            fill_zero(out, t, true, at, t->row_bytes);
        else
            fill_random(out, t, at, t->row_bytes);
    }
}

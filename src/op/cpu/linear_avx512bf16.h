/* What the kernels over BF16 dot products share. Activations are BF16, packed so that a weight
 * register as it leaves the decoder meets its activations in one aligned load. */
#ifndef LATHE_OP_CPU_LINEAR_AVX512BF16_H
#define LATHE_OP_CPU_LINEAR_AVX512BF16_H

#include <immintrin.h>

#include "op/cpu/linear.h"
#include "op/cpu/unroll.h"

enum {
    BF16_MAX_X = 8,
    BF16_MAX_COLS = 8192,
    BF16_MAX_BYTES = 16384, /* half of the first-level cache */
};

/* Whole groups of the rows of a tile. */
struct span {
    const uint8_t *code, *scale;       /* of the first row */
    int64_t code_stride, scale_stride; /* bytes from row to row */
    int64_t n_groups;                  /* >= 1 */
    uintptr_t next_code, next_scale;   /* to be prefetched; 0 for none */
    bool begin;                        /* sums begin at 0, not at acc */
    int32_t n_rows;
    const unsigned char *x; /* [n_groups][units of a group][nx][LINEAR_UNIT] */
    float *acc;             /* [n_rows][nx][LINEAR_LANES] */
};

/* The columns behind the last whole group, padded with zeros. */
struct tail {
    uint8_t code[LINEAR_MAX_ROWS][256], scale[LINEAR_MAX_ROWS][16];
};
/* Turns s, which has been worked off, into its tail: one group. code_bytes and scale_bytes of a row are
 * left; zero codes and zero scales are 0. */
void span_tail(struct span *s, struct tail *t, int64_t x_bytes, int64_t group_bytes,
               int64_t code_bytes, int64_t scale_bytes);
/* What is prefetched while row i is worked on: the row AHEAD further, where that leaves the span the next
 * one's; nothing new if there is none. */
enum { AHEAD = 16 };

INLINE uintptr_t span_ahead(const uint8_t *now, uintptr_t next, int64_t stride, int32_t i,
                            int32_t n_rows)
{
    int32_t row = i + (n_rows < AHEAD ? n_rows : AHEAD);
    uintptr_t p = (uintptr_t)now;
    if (row >= n_rows && next) {
        p = next;
        row -= n_rows;
    }
    return p + (uintptr_t)(row * stride);
}

/* The inner loop of a format, rows(span, i, end, nr, nx), takes rows [i, end), nr at a time, with all nx
 * activation rows. Sixteen sums or a few less advance together: enough to hide the latency of a dot
 * product, few enough to stay in registers. nr and nx are constants once it is inlined. */
#define SPAN_ROWS(rows, s, nr, nx)                                                                 \
    do {                                                                                           \
        int32_t whole_ = (s)->n_rows / (nr) * (nr);                                                \
        if (whole_)                                                                                \
            rows(s, 0, whole_, nr, nx);                                                            \
        if (whole_ < (s)->n_rows)                                                                  \
            rows(s, whole_, (s)->n_rows, 1, nx);                                                   \
    } while (0)

#define SPAN_RUN(rows, s, nx)                                                                      \
    do {                                                                                           \
        switch (nx) {                                                                              \
        case 1:                                                                                    \
            SPAN_ROWS(rows, s, 4, 1);                                                              \
            break;                                                                                 \
        case 2:                                                                                    \
            SPAN_ROWS(rows, s, 4, 2);                                                              \
            break;                                                                                 \
        case 3:                                                                                    \
            SPAN_ROWS(rows, s, 3, 3);                                                              \
            break;                                                                                 \
        case 4:                                                                                    \
            SPAN_ROWS(rows, s, 2, 4);                                                              \
            break;                                                                                 \
        case 5:                                                                                    \
            SPAN_ROWS(rows, s, 2, 5);                                                              \
            break;                                                                                 \
        case 6:                                                                                    \
            SPAN_ROWS(rows, s, 2, 6);                                                              \
            break;                                                                                 \
        case 7:                                                                                    \
            SPAN_ROWS(rows, s, 2, 7);                                                              \
            break;                                                                                 \
        default:                                                                                   \
            SPAN_ROWS(rows, s, 2, 8);                                                              \
        }                                                                                          \
    } while (0)

INLINE __m512i load_512(const void *p)
{
    return _mm512_loadu_si512(p);
}

INLINE __m256i load_256(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

INLINE __m512bh load_x(const unsigned char *x, const int unit)
{
    return ((const __m512bh *)(const void *)x)[unit];
}

/* The line at p + bytes, which may lie behind the matrix, into the second-level cache. */
INLINE void prefetch(uintptr_t p, int64_t bytes)
{
    _mm_prefetch((const char *)(p + (uintptr_t)bytes), _MM_HINT_T1);
}

/* The sums of up to four weight rows, in registers. */
struct sums {
    __m512 v[4][BF16_MAX_X];
};

INLINE void sums_zero(struct sums *s, const int nr, const int nx)
{
    UNROLL
    for (int r = 0; r < nr; r++) {
        UNROLL
        for (int j = 0; j < nx; j++)
            s->v[r][j] = _mm512_setzero_ps();
    }
}

enum { SUMS = 16 * LINEAR_LANES }; /* floats of the most sums that advance together */
/* What sums begin at. */
static const _Alignas(64) float zeros[SUMS];

/* s += w[r] . x for every pair, x being unit i of each row. */
INLINE void sums_dot(struct sums *s, const __m512i *w, const unsigned char *x, const int i,
                     const int nr, const int nx)
{
    UNROLL
    for (int j = 0; j < nx; j++) {
        __m512bh b = load_x(x, i * nx + j);
        UNROLL
        for (int r = 0; r < nr; r++)
            s->v[r][j] = _mm512_dpbf16_ps(s->v[r][j], (__m512bh)w[r], b);
    }
}

/* Sixteen stores in a row cost a quarter of a kernel's speed on Zen 4. So where one chain of sums ends and
 * the next begins, each store stands beside arithmetic: the first dot products of the next chain, with
 * unit 0 of x. The barriers keep compilers from collecting the stores. A kernel's first turn ends a chain
 * of zeros, which goes nowhere. */

/* acc = s; s = from + w[r] . x */
INLINE void sums_turn(float *acc, struct sums *s, const float *from, const __m512i *w,
                      const unsigned char *x, const int nr, const int nx)
{
    UNROLL
    for (int j = 0; j < nx; j++) {
        __m512bh b = load_x(x, j);
        UNROLL
        for (int r = 0; r < nr; r++) {
            const int i = (r * nx + j) * LINEAR_LANES;
            _mm512_store_ps(acc + i, s->v[r][j]);
            s->v[r][j] = _mm512_dpbf16_ps(_mm512_load_ps(from + i), (__m512bh)w[r], b);
        }
        __asm__ volatile("" ::: "memory");
    }
}

INLINE void sums_store(float *acc, const struct sums *s, const int nr, const int nx)
{
    UNROLL
    for (int r = 0; r < nr; r++) {
        UNROLL
        for (int j = 0; j < nx; j++)
            _mm512_store_ps(acc + (r * nx + j) * LINEAR_LANES, s->v[r][j]);
    }
}

/* acc = from + f[r] * s; s = w[r] . x with unit 0, then += w1[r] . x with unit 1: the second products keep
 * the stores, of which one takes two cycles, further apart. */
INLINE void sums_scale_turn(float *acc, const float *from, struct sums *s, const __m512 *f,
                            const __m512i *w, const __m512i *w1, const unsigned char *x,
                            const int nr, const int nx)
{
    UNROLL
    for (int j = 0; j <= nx; j++) {
        if (j < nx) {
            __m512bh b = load_x(x, j);
            UNROLL
            for (int r = 0; r < nr; r++) {
                const int i = (r * nx + j) * LINEAR_LANES;
                __m512 v = _mm512_fmadd_ps(s->v[r][j], f[r], _mm512_load_ps(from + i));
                _mm512_store_ps(acc + i, v);
                s->v[r][j] = _mm512_dpbf16_ps(_mm512_setzero_ps(), (__m512bh)w[r], b);
            }
        }
        if (j > 0) {
            __m512bh b = load_x(x, nx + j - 1);
            UNROLL
            for (int r = 0; r < nr; r++)
                s->v[r][j - 1] = _mm512_dpbf16_ps(s->v[r][j - 1], (__m512bh)w1[r], b);
        }
        __asm__ volatile("" ::: "memory");
    }
}

INLINE void sums_scale_store(float *acc, const float *from, const struct sums *s, const __m512 *f,
                             const int nr, const int nx)
{
    UNROLL
    for (int r = 0; r < nr; r++) {
        UNROLL
        for (int j = 0; j < nx; j++) {
            const int i = (r * nx + j) * LINEAR_LANES;
            __m512 v = _mm512_fmadd_ps(s->v[r][j], f[r], _mm512_load_ps(from + i));
            _mm512_store_ps(acc + i, v);
        }
    }
}

void bf16_tile_bf16(const struct linear_tile *t);
void bf16_pack_bf16(void *dst, size_t step, const void *src, enum dtype act, int64_t n);
void fp8_tile_bf16(const struct linear_tile *t);
void fp8_block_tile_bf16(const struct linear_tile *t);
void fp8_pack_bf16(void *dst, size_t step, const void *src, enum dtype act, int64_t n);
void nvfp4_tile_bf16(const struct linear_tile *t);
void nvfp4_pack_bf16(void *dst, size_t step, const void *src, enum dtype act, int64_t n);

#endif

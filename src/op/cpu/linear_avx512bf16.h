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
    int64_t n_groups;
    int64_t code_ahead, scale_ahead; /* bytes to what is to be prefetched */
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

/* The inner loop of a format, rows(span, i, nr, nx), takes rows [i, i + nr) with all nx activation
 * rows. Sixteen sums or a few less advance together: enough to hide the latency of a dot product,
 * few enough to stay in registers. nr and nx are constants once it is inlined. */
#define SPAN_ROWS(rows, s, nr, nx)                                                                 \
    do {                                                                                           \
        int32_t i_ = 0;                                                                            \
        for (; i_ + (nr) <= (s)->n_rows; i_ += (nr))                                               \
            rows(s, i_, nr, nx);                                                                   \
        for (; i_ < (s)->n_rows; i_++)                                                             \
            rows(s, i_, 1, nx);                                                                    \
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

/* Into the second-level cache; the address may lie behind the matrix. */
INLINE void prefetch(const void *p, int64_t bytes)
{
    _mm_prefetch((const char *)((uintptr_t)p + (uintptr_t)bytes), _MM_HINT_T1);
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

INLINE void sums_load(struct sums *s, const float *acc, const int nr, const int nx)
{
    UNROLL
    for (int r = 0; r < nr; r++) {
        UNROLL
        for (int j = 0; j < nx; j++)
            s->v[r][j] = _mm512_load_ps(acc + (r * nx + j) * LINEAR_LANES);
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

/* acc[r] += f[r] * s[r] */
INLINE void sums_scale(float *acc, const struct sums *s, const __m512 *f, const int nr,
                       const int nx)
{
    UNROLL
    for (int r = 0; r < nr; r++) {
        UNROLL
        for (int j = 0; j < nx; j++) {
            float *p = acc + (r * nx + j) * LINEAR_LANES;
            _mm512_store_ps(p, _mm512_fmadd_ps(s->v[r][j], f[r], _mm512_load_ps(p)));
        }
    }
}

/* s += w[r] . x for every pair, x being unit i of each row. */
INLINE void sums_dot(struct sums *s, const __m512i *w, const unsigned char *x, const int i,
                     const int nr, const int nx)
{
    UNROLL
    for (int j = 0; j < nx; j++) {
        __m512bh b = ((const __m512bh *)(const void *)x)[i * nx + j];
        UNROLL
        for (int r = 0; r < nr; r++)
            s->v[r][j] = _mm512_dpbf16_ps(s->v[r][j], (__m512bh)w[r], b);
    }
}

/* The first dot products of a group: as sums_dot with unit 0 after sums_scale and sums_zero, taken
 * apart so that every store stands between arithmetic. Sixteen stores in a row cost a quarter of the
 * kernel's speed on Zen 4; the barrier keeps compilers from collecting them. */
INLINE void sums_next(float *acc, struct sums *s, const __m512 *f, const __m512i *w,
                      const unsigned char *x, const int nr, const int nx)
{
    UNROLL
    for (int j = 0; j < nx; j++) {
        __m512bh b = ((const __m512bh *)(const void *)x)[j];
        UNROLL
        for (int r = 0; r < nr; r++) {
            float *p = acc + (r * nx + j) * LINEAR_LANES;
            _mm512_store_ps(p, _mm512_fmadd_ps(s->v[r][j], f[r], _mm512_load_ps(p)));
            s->v[r][j] = _mm512_dpbf16_ps(_mm512_setzero_ps(), (__m512bh)w[r], b);
        }
        __asm__ volatile("" ::: "memory");
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

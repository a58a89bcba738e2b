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

/* The inner loop of a format: weight rows [i, i + nr) of the tile with all its nx activation rows. nr
 * and nx are constants once it is inlined. */
#define BF16_ROWS(rows, t, nr, nx)                                                                 \
    do {                                                                                           \
        int32_t i_ = 0;                                                                            \
        for (; i_ + (nr) <= (t)->n_rows; i_ += (nr))                                               \
            rows(t, i_, nr, nx);                                                                   \
        for (; i_ < (t)->n_rows; i_++)                                                             \
            rows(t, i_, 1, nx);                                                                    \
    } while (0)

/* Sixteen sums or fewer advance together: enough to hide the latency of a dot product, few enough
 * to stay in registers. */
#define BF16_TILE(rows, t)                                                                         \
    do {                                                                                           \
        switch ((t)->n_x) {                                                                        \
        case 1:                                                                                    \
            BF16_ROWS(rows, t, 4, 1);                                                              \
            break;                                                                                 \
        case 2:                                                                                    \
            BF16_ROWS(rows, t, 4, 2);                                                              \
            break;                                                                                 \
        case 3:                                                                                    \
            BF16_ROWS(rows, t, 4, 3);                                                              \
            break;                                                                                 \
        case 4:                                                                                    \
            BF16_ROWS(rows, t, 4, 4);                                                              \
            break;                                                                                 \
        case 5:                                                                                    \
            BF16_ROWS(rows, t, 2, 5);                                                              \
            break;                                                                                 \
        case 6:                                                                                    \
            BF16_ROWS(rows, t, 2, 6);                                                              \
            break;                                                                                 \
        case 7:                                                                                    \
            BF16_ROWS(rows, t, 2, 7);                                                              \
            break;                                                                                 \
        default:                                                                                   \
            BF16_ROWS(rows, t, 2, 8);                                                              \
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

INLINE float *tile_acc(const struct linear_tile *t, int32_t row)
{
    return t->acc + (size_t)row * (size_t)t->n_x * LINEAR_LANES;
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

/* acc += f * s for row r. */
INLINE void sums_scale(float *acc, const struct sums *s, __m512 f, const int r, const int nx)
{
    UNROLL
    for (int j = 0; j < nx; j++) {
        float *p = acc + (r * nx + j) * LINEAR_LANES;
        _mm512_store_ps(p, _mm512_fmadd_ps(s->v[r][j], f, _mm512_load_ps(p)));
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

void bf16_tile_bf16(const struct linear_tile *t);
void bf16_pack_bf16(void *dst, size_t step, const void *src, enum dtype act, int64_t n);
void fp8_tile_bf16(const struct linear_tile *t);
void fp8_block_tile_bf16(const struct linear_tile *t);
void fp8_pack_bf16(void *dst, size_t step, const void *src, enum dtype act, int64_t n);
void nvfp4_tile_bf16(const struct linear_tile *t);
void nvfp4_pack_bf16(void *dst, size_t step, const void *src, enum dtype act, int64_t n);

#endif

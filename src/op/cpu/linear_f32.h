/* The kernels that multiply in F32: weights are decoded to floats a few rows and 512 columns at a
 * time, then every pair of rows runs along the columns in sixteen lanes. A template: an instruction
 * set's file defines, before including it,
 *
 *   struct lanes                                    sixteen floats in registers
 *   lanes_load(p), lanes_store(p, v)                p aligned to 64 bytes
 *   lanes_fma(a, b, c)                              a * b + c
 *   ROWS, XS                                        weight and activation rows of the inner loop
 *   decode_row(dst, w, row, col, n)                 as weight_format.unpack */
#ifndef LATHE_OP_CPU_LINEAR_F32_H
#define LATHE_OP_CPU_LINEAR_F32_H

#include <string.h>

#include "op/cpu/linear.h"
#include "tensor/number.h"

enum {
    F32_COLS = 512,
    F32_MAX_X = 32, /* a decoded weight serves this many rows */
};

static void decoded_pack(void *dst, size_t step, const void *src, enum dtype act, int64_t n)
{
    const unsigned char *x = src;
    unsigned char *y = dst;
    for (int64_t k = 0; k < n; k += LINEAR_LANES, y += step) {
        int64_t m = n - k < LINEAR_LANES ? n - k : LINEAR_LANES;
        to_f32((float *)(void *)y, x, act, m);
        memset(y + m * 4, 0, (size_t)(LINEAR_LANES - m) * 4);
        x += (size_t)m * dtype_size(act);
    }
}

/* acc[r][t] += w[r] * x[t] over n columns, a multiple of 16. A row of sums is `stride` floats long, and
 * so is a unit of activations. nr and nx are constants once it is inlined. */
INLINE void decoded_dots(float *acc, const float *w, const float *x, int64_t stride, int64_t n,
                         const int nr, const int nx)
{
    struct lanes s[ROWS][XS];
    UNROLL
    for (int r = 0; r < nr; r++) {
        UNROLL
        for (int t = 0; t < nx; t++)
            s[r][t] = lanes_load(acc + r * stride + t * LINEAR_LANES);
    }
    for (int64_t k = 0; k < n; k += LINEAR_LANES, x += stride) {
        struct lanes a[ROWS];
        UNROLL
        for (int r = 0; r < nr; r++)
            a[r] = lanes_load(w + r * F32_COLS + k);
        UNROLL
        for (int t = 0; t < nx; t++) {
            struct lanes b = lanes_load(x + t * LINEAR_LANES);
            UNROLL
            for (int r = 0; r < nr; r++)
                s[r][t] = lanes_fma(a[r], b, s[r][t]);
        }
    }
    UNROLL
    for (int r = 0; r < nr; r++) {
        UNROLL
        for (int t = 0; t < nx; t++)
            lanes_store(acc + r * stride + t * LINEAR_LANES, s[r][t]);
    }
}

static void decoded_tile(const struct linear_tile *t)
{
    _Alignas(64) float w[ROWS][F32_COLS];
    int64_t n = t->k1 - t->k0, padded = (n + LINEAR_LANES - 1) / LINEAR_LANES * LINEAR_LANES;
    int64_t stride = (int64_t)t->n_x * LINEAR_LANES;
    for (int32_t r = 0; r < t->n_rows; r += ROWS) {
        int32_t nr = t->n_rows - r < ROWS ? t->n_rows - r : ROWS;
        for (int32_t i = 0; i < nr; i++) {
            decode_row(w[i], t->w, t->row + r + i, t->k0, n);
            memset(w[i] + n, 0, (size_t)(padded - n) * sizeof(float));
        }
        float *acc = t->acc + r * stride;
        if (t->k0 == 0)
            memset(acc, 0, (size_t)(nr * stride) * sizeof *acc);
        const float *x = t->x;
        int32_t i = 0;
        if (nr == ROWS)
            for (; i + XS <= t->n_x; i += XS)
                decoded_dots(acc + i * LINEAR_LANES, w[0], x + i * LINEAR_LANES, stride, padded,
                             ROWS, XS);
        for (; i < t->n_x; i++)
            for (int32_t j = 0; j < nr; j++)
                decoded_dots(acc + j * stride + i * LINEAR_LANES, w[j], x + i * LINEAR_LANES,
                             stride, padded, 1, 1);
    }
}

static void decoded_store(void *y, enum dtype dtype, bool add, const float *scale, const float *acc,
                          int64_t stride, int32_t n)
{
    float *f = y, s[8];
    uint16_t *h = y;
    for (int32_t i = 0; i < n; i++, acc += stride) {
        for (int l = 0; l < 8; l++)
            s[l] = acc[l] + acc[l + 8];
        for (int l = 0; l < 4; l++)
            s[l] += s[l + 4];
        float sum = ((s[0] + s[2]) + (s[1] + s[3])) * scale[i];
        if (dtype == DT_F32)
            f[i] = add ? f[i] + sum : sum;
        else
            h[i] = bf16_from_f32(add ? bf16_to_f32(h[i]) + sum : sum);
    }
}

static void decoded_fill(struct linear_kernels *k)
{
    const struct linear_kernel f32 = {
        .group = LINEAR_LANES,
        .max_x = F32_MAX_X,
        .max_cols = F32_COLS, /* a multiple of 128: decode_row may count on it */
        .max_bytes = F32_MAX_X * F32_COLS * sizeof(float),
        .packed = DT_F32,
        .pack = decoded_pack,
        .tile = decoded_tile,
        .store = decoded_store,
    };
    for (int f = 0; f < WF_COUNT; f++)
        k->bf16[f] = k->f32[f] = f32;
}

#endif

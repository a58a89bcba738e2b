/* Products with weight matrices on the CPU.
 *
 * Every result, one weight row times one activation row, is a chain of its own: sixteen F32 lanes run
 * along the columns in a fixed order, and are added up once at the end, by halves. Tiles of rows only
 * decide which chains advance together, so a result does not depend on them, nor on the threads.
 *
 * Activations are packed once a call into the order in which a kernel decodes its weights. Weights
 * are decoded where they lie, a few registers or one small tile at a time. */
#ifndef LATHE_OP_CPU_LINEAR_H
#define LATHE_OP_CPU_LINEAR_H

#include "op/cpu/isa.h"
#include "quant/formats.h"
#include "tensor/tensor.h"

enum {
    LINEAR_LANES = 16,
    LINEAR_TILE_ROWS = 32, /* weight rows of a panel: one call of tile */
    LINEAR_TILE_X = 8,     /* activation rows of a call */
};

/* acc[r][t][:] += W[row + r, k0 .. k1) * x[t, k0 .. k1) */
struct linear_tile {
    const struct weight *w;
    int64_t row;    /* of w: the first */
    int32_t n_rows; /* 1..LINEAR_TILE_ROWS */
    int32_t n_x;    /* 1..LINEAR_TILE_X */
    int64_t k0, k1; /* columns: whole groups, or to the end of the row */
    const void *x;  /* packed rows, from column 0 */
    size_t x_bytes; /* from one packed row to the next */
    float *acc;     /* [n_rows][n_x][LINEAR_LANES], 64-byte aligned */
    float *decoded; /* [LINEAR_TILE_ROWS][k1 - k0] where the kernel asks for it */
    int64_t ahead;  /* bytes from a row's codes to those that will be needed next; 0 for none */
};

struct linear_kernel {
    int32_t group;      /* columns that are decoded together; packed rows are whole groups */
    enum dtype packed;  /* of packed activations */
    int32_t max_cols;   /* of one tile call; 0 for any */
    bool needs_decoded; /* linear_tile.decoded is used */
    /* One row of n activations of dtype act, padded with zeros to whole groups. */
    void (*pack)(void *dst, const void *src, enum dtype act, int64_t n);
    void (*tile)(const struct linear_tile *t);
    /* out[i] = the sum of the lanes at acc + i * stride, by halves: i and i + 8, then + 4, 2, 1. */
    void (*reduce)(float *out, const float *acc, int64_t stride, int32_t n);
};

/* By format and activation dtype: [0] BF16, [1] F32. */
struct linear_kernels {
    struct linear_kernel of[WF_COUNT][2];
};

void linear_kernels_select(struct linear_kernels *k, enum cpu_isa isa);

#endif

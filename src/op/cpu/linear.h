/* Products with weight matrices on the CPU.
 *
 * Every result, one weight row times one activation row, is a chain of its own: sixteen F32 lanes run
 * along the columns in a fixed order, and are added up once at the end, by halves. Tiles only decide
 * which chains advance together, so a result depends neither on them nor on the threads.
 *
 * Activations are packed once a call, into the order in which a kernel decodes its weights. Weights
 * are decoded where they lie, a few registers or one small buffer at a time. */
#ifndef LATHE_OP_CPU_LINEAR_H
#define LATHE_OP_CPU_LINEAR_H

#include "op/cpu/isa.h"
#include "quant/formats.h"
#include "tensor/tensor.h"

enum {
    LINEAR_LANES = 16,
    LINEAR_MAX_ROWS = 64, /* weight rows of one tile */
    LINEAR_UNIT = 64,     /* bytes of packed activations: what a kernel loads at once */
};

/* acc[r][t][:] += W[row + r, k0 .. k1) * x[t, k0 .. k1); where k0 is 0, acc[r][t][:] = */
struct linear_tile {
    const struct weight *w;
    int64_t row;    /* of w: the first */
    int32_t n_rows; /* 1..LINEAR_MAX_ROWS */
    int32_t n_x;    /* 1..the kernel's max_x */
    int64_t k0, k1; /* columns: whole groups, or to the end of the row */
    const void *x;  /* packed, from column k0: [unit][n_x][LINEAR_UNIT], whole groups */
    float *acc;     /* [n_rows][n_x][LINEAR_LANES]; like x aligned to 64 bytes */
    /* Addresses of the codes and scales that follow, to be prefetched: the same rows' next columns, or
     * the rows after these. 0 for none. They may lie behind the matrix. */
    uintptr_t next_code, next_scale;
};

struct linear_kernel {
    int32_t group;     /* columns that are decoded together */
    int32_t max_x;     /* activation rows of one tile */
    int32_t max_cols;  /* of one tile */
    int32_t max_bytes; /* of packed activations of one tile */
    enum dtype packed; /* of packed activations */
    bool raw;          /* sums lack the row's scale and w->global */
    /* n activations of dtype act, padded with zeros to whole groups, in units `step` bytes apart. */
    void (*pack)(void *dst, size_t step, const void *src, enum dtype act, int64_t n);
    void (*tile)(const struct linear_tile *t);
    /* y[i] = (add ? y[i] : 0) + scale[i] * the sum of the lanes at acc + i * stride, rounded once to
     * BF16 or F32. Lanes are added by halves: i and i + 8, then + 4, + 2, + 1. n <= LINEAR_MAX_ROWS. */
    void (*store)(void *y, enum dtype dtype, bool add, const float *scale, const float *acc,
                  int64_t stride, int32_t n);
};

struct linear_kernels {
    struct linear_kernel bf16[WF_COUNT], f32[WF_COUNT]; /* by activation dtype */
};

void linear_kernels_select(struct linear_kernels *k, enum cpu_isa isa);

/* The kernels of each instruction set fill in what they have. */
void linear_generic(struct linear_kernels *k);
void linear_avx2(struct linear_kernels *k);
void linear_avx512(struct linear_kernels *k);
void linear_avx512bf16(struct linear_kernels *k);
void linear_neon(struct linear_kernels *k);

#endif

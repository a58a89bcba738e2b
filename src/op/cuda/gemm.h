/* Products of large matrices through cuBLASLt, a row's bits the same whatever the number of rows. */
#ifndef LATHE_OP_CUDA_GEMM_H
#define LATHE_OP_CUDA_GEMM_H

#include "op/cuda/cuda.h"

/* Elements of x and w. NVFP4 is E2M1, two in a byte, with an E4M3 scale for 16 of a row: that of row r and columns
 * 16 b and on at gemm_scale_place(r, b, k). */
enum gemm_type { GEMM_BF16, GEMM_E4M3, GEMM_NVFP4 };

/* A product's rows, at least: who has fewer fills them up. */
enum { GEMM_LEAST_ROWS = 128 };

/* What makes one product another to cuBLASLt, beside its number of rows. */
struct gemm_shape {
    int64_t n, k;
    enum gemm_type type;
    bool d_f32; /* else BF16 */
};

/* d [T, n] = alpha * x [T, k] w [n, k]^T + beta * d, sums in F32. All of them begin at multiples of 16 bytes, and their
 * rows are multiples of 16 bytes apart. */
struct gemm_args {
    struct gemm_shape shape;
    const void *w, *x;
    const void *w_scale, *x_scale; /* NVFP4; else NULL */
    void *d;
    int64_t ldw, ldx, ldd; /* elements from row to row */
    int64_t T;
    float alpha, beta;
};

/* Scales lie in tiles of 128 rows and 4 blocks, tile after tile along the rows; in a tile, those of every 32nd row are
 * neighbours. k is a multiple of 64. Those of rows beyond the last have room, and do not matter. */
#ifdef __CUDACC__
#define GEMM_DEVICE __host__ __device__
#else
#define GEMM_DEVICE
#endif
GEMM_DEVICE static inline int64_t gemm_scale_place(int64_t row, int64_t block, int64_t k)
{
    return (row / 128 * (k / 64) + block / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 +
           block % 4;
}
GEMM_DEVICE static inline int64_t gemm_scale_bytes(int64_t rows, int64_t k)
{
    return (rows + 127) / 128 * 128 * (k / 16);
}

/* NULL, after a warning, where there is no cuBLASLt to load. */
struct gemm *gemm_open(void);
void gemm_close(struct gemm *g);
/* Is there an algorithm for matrices of this shape that adds in one order? NULL has none. */
bool gemm_has(struct gemm *g, struct gemm_shape shape);
/* Which family of algorithms serves the shape: those of one add in one way. Negative where there is none. */
int gemm_family(struct gemm *g, struct gemm_shape shape);
/* Of a shape that gemm_has. */
lathe_status gemm(struct gpu *c, const struct gemm_args *a, lathe_error *err);

#endif

/* Products of large matrices through cuBLASLt, a row's bits the same whatever the number of rows. */
#ifndef LATHE_OP_CUDA_GEMM_H
#define LATHE_OP_CUDA_GEMM_H

#include "op/cuda/cuda.h"

/* What makes one product another to cuBLASLt, beside its number of rows. */
struct gemm_shape {
    int64_t n, k;
    bool e4m3;  /* the elements of x and w, else BF16 */
    bool d_f32; /* else BF16 */
};

/* d [T, n] = alpha * x [T, k] w [n, k]^T + beta * d, sums in F32. All of them begin at multiples of 16 bytes, and their
 * rows are multiples of 16 bytes apart. */
struct gemm_args {
    struct gemm_shape shape;
    const void *w, *x;
    void *d;
    int64_t ldw, ldx, ldd; /* elements from row to row */
    int64_t T;
    float alpha, beta;
};

/* NULL, after a warning, where there is no cuBLASLt to load. */
struct gemm *gemm_open(void);
void gemm_close(struct gemm *g);
/* Is there an algorithm for matrices of this shape that adds in one order? NULL has none. */
bool gemm_has(struct gemm *g, struct gemm_shape shape);
/* Of a shape that gemm_has. */
lathe_status gemm(struct gpu *c, const struct gemm_args *a, lathe_error *err);

#endif

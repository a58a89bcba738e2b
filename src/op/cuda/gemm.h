/* Products of large BF16 matrices through cuBLASLt, a row's bits the same whatever the number of rows. */
#ifndef LATHE_OP_CUDA_GEMM_H
#define LATHE_OP_CUDA_GEMM_H

#include "op/cuda/cuda.h"

/* d [T, n] = alpha * x [T, k] w [n, k]^T + beta * d. Rows of BF16, sums in F32; d BF16 or F32. All of them begin at
 * multiples of 16 bytes and are multiples of 16 bytes apart. */
struct gemm_args {
    const void *w, *x;
    void *d;
    int64_t ldw, ldx, ldd; /* elements from row to row */
    int64_t n, k, T;
    bool d_f32;
    float alpha, beta;
};

/* NULL, after a warning, where there is no cuBLASLt to load. */
struct gemm *gemm_open(void);
void gemm_close(struct gemm *g);
/* Is there an algorithm for matrices of this shape that adds in one order? NULL has none. */
bool gemm_has(struct gemm *g, int64_t n, int64_t k, bool d_f32);
/* Of a shape that gemm_has. */
lathe_status gemm(struct gpu *c, const struct gemm_args *a, lathe_error *err);

#endif

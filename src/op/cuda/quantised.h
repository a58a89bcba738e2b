/* The parts of products of quantised rows (linear_quantised.cu). What fails is reported by cuda_launched. */
#ifndef LATHE_OP_CUDA_QUANTISED_H
#define LATHE_OP_CUDA_QUANTISED_H

#include "op/cuda/cuda.h"

/* Rows of BF16 to E4M3 [rows, cols] and their scales [rows]; those from in's last to `rows` are zeros. cols is a multiple
 * of 8. */
void cuda_e4m3_rows(struct gpu *c, const struct tensor *in, int64_t rows, void *code, float *scale);
/* The same to NVFP4, with scales of blocks [gemm_scale_bytes(rows, cols)]. cols is a multiple of 64. */
void cuda_nvfp4_rows(struct gpu *c, const struct tensor *in, int64_t rows, void *code,
                     void *block_scale, float *scale);
/* Rows [row, row + n) of a tiled NVFP4 matrix, as gemm takes them. */
void cuda_nvfp4_of_tiles(struct gpu *c, const struct weight *w, int64_t row, int64_t n, void *code,
                         void *block_scale);

#endif

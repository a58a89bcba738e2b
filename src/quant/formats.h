/* Weight formats: how a matrix lies in the checkpoint. The code words stay where they are, in the
 * mapped file, and kernels read them there; or a backend copies them and may arrange the copy. One file per format defines its layout and its meaning. */
#ifndef LATHE_QUANT_FORMATS_H
#define LATHE_QUANT_FORMATS_H

#include <stdbool.h>

#include "base/error.h"
#include "tensor/tensor.h"

/* name, file and function prefix */
#define WEIGHT_FORMATS(X)                                                                          \
    X(F32, f32)                                                                                    \
    X(BF16, bf16)                                                                                  \
    X(F16, f16)                                                                                    \
    X(FP8_TENSOR, fp8_tensor)                                                                      \
    X(FP8_ROW, fp8_row)                                                                            \
    X(FP8_BLOCK, fp8_block)                                                                        \
    X(NVFP4, nvfp4)

enum weight_format_id {
#define X(upper, lower) WF_##upper,
    WEIGHT_FORMATS(X)
#undef X
        WF_COUNT,
};

/* A matrix W [rows, cols], y = W x. */
struct weight {
    enum weight_format_id format;
    int64_t rows, cols;
    struct tensor codes;  /* as stored: [rows, cols], for NVFP4 U8 [rows, cols / 2] */
    struct tensor scales; /* FP8_ROW: BF16 or F32 [rows]; FP8_BLOCK: BF16 or F32
                             [ceil(rows / 128), ceil(cols / 128)]; NVFP4: F8_E4M3 [rows, cols / 16];
                             no data for the others */
    float global; /* multiplier of all: FP8_TENSOR's scale, NVFP4's second-level scale (where the
                     file stores a divisor, its reciprocal); 1 for the others */
    /* A backend's arrange put codes and scales into an order of its own, which its linear reads. */
    bool tiled;
};

struct weight_format {
    const char *name;
    /* Shapes and dtypes of codes and scales for rows x cols (scales_dtype picks where two are
     * allowed), data NULL. Refuses sizes the format cannot hold, with the reason. */
    lathe_status (*layout)(struct weight *w, int64_t rows, int64_t cols, enum dtype scales_dtype,
                           lathe_error *err);
    /* Encodes rows [row, row + n) of the float matrix src [n, cols] into w, whose codes and scales
     * are writable memory; w->global must be set before. For FP8_BLOCK row and n are multiples of
     * 128, or reach the last row. For tests, tools and generated models. */
    void (*pack)(const struct weight *w, const float *src, int64_t row, int64_t n);
    /* W[row, col .. col + n) as float, n values: this defines the format. col and n are multiples of
     * 16, or reach the end of the row. */
    void (*unpack)(float *dst, const struct weight *w, int64_t row, int64_t col, int64_t n);
};

extern const struct weight_format weight_formats[WF_COUNT];

/* Each format's own file. */
#define X(upper, lower)                                                                            \
    lathe_status lower##_layout(struct weight *w, int64_t rows, int64_t cols,                      \
                                enum dtype scales_dtype, lathe_error *err);                        \
    void lower##_pack(const struct weight *w, const float *src, int64_t row, int64_t n);           \
    void lower##_unpack(float *dst, const struct weight *w, int64_t row, int64_t col, int64_t n);
WEIGHT_FORMATS(X)
#undef X

/* The `global` that lets pack represent a matrix with this largest magnitude; 1 where the format
 * has none. */
float weight_global_for(enum weight_format_id format, float amax);
/* Bytes of codes and scales. */
size_t weight_bytes(const struct weight *w);
/* Is every scale finite, and `global` finite and positive? The message names row or block. */
lathe_status weight_check_scales(const struct weight *w, lathe_error *err);
/* Finds the first entry whose value is NaN or infinite; false if there is none. Reads everything. */
bool weight_find_nonfinite(const struct weight *w, int64_t *row, int64_t *col);

#endif

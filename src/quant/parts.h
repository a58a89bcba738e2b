/* What the format files share: size checks, scales at any alignment, magnitudes. */
#ifndef LATHE_QUANT_PARTS_H
#define LATHE_QUANT_PARTS_H

#include <math.h>

#include "quant/formats.h"

/* Fills format, sizes and codes [rows, code_cols] of w, no scales, global 1. Refuses sizes that are
 * not in 1..2^31 - 1, which also keeps every index product below 2^62. */
lathe_status weight_init(struct weight *w, enum weight_format_id format, int64_t rows, int64_t cols,
                         enum dtype codes, int64_t code_cols, lathe_error *err);
/* Refuses scales that are neither BF16 nor F32. */
lathe_status weight_check_scales_dtype(enum weight_format_id format, enum dtype dtype,
                                       lathe_error *err);

/* Address of the code of row r, column c; for formats with whole-byte codes. */
static inline const unsigned char *code_at(const struct weight *w, int64_t r, int64_t c)
{
    return (const unsigned char *)w->codes.data +
           (size_t)(r * w->codes.stride + c) * dtype_size(w->codes.dtype);
}

/* Scale i of a dense plane of BF16 or F32. */
static inline float scale_load(const struct tensor *scales, int64_t i)
{
    float f;
    size_t size = dtype_size(scales->dtype);
    to_f32(&f, (const unsigned char *)scales->data + (size_t)i * size, scales->dtype, 1);
    return f;
}

/* Stores s rounded to the plane's dtype and returns what was stored. */
static inline float scale_store(const struct tensor *scales, int64_t i, float s)
{
    size_t size = dtype_size(scales->dtype);
    from_f32((unsigned char *)scales->data + (size_t)i * size, scales->dtype, &s, 1);
    return scale_load(scales, i);
}

/* The larger of m and |x|; NaN stays. */
static inline float amax_of(float m, float x)
{
    float a = fabsf(x);
    return a > m || isnan(a) ? a : m;
}

#endif

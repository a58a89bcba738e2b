/* F32: plain numbers.
 *
 *   codes   F32 [rows, cols], little-endian
 *   W[r, c] = codes[r, c]
 *
 * Example: 00 00 80 3F is 1. */
#include "quant/parts.h"

lathe_status f32_layout(struct weight *w, int64_t rows, int64_t cols, enum dtype scales_dtype,
                        lathe_error *err)
{
    (void)scales_dtype;
    return weight_init(w, WF_F32, rows, cols, DT_F32, cols, err);
}

void f32_pack(const struct weight *w, const float *src, int64_t row, int64_t n)
{
    for (int64_t r = 0; r < n; r++)
        from_f32(tensor_at(&w->codes, row + r), DT_F32, src + r * w->cols, w->cols);
}

void f32_unpack(float *dst, const struct weight *w, int64_t row, int64_t col, int64_t n)
{
    to_f32(dst, code_at(w, row, col), DT_F32, n);
}

/* F16: IEEE half precision: 1 sign, 5 exponent, 10 mantissa bits.
 *
 *   codes   F16 [rows, cols], little-endian
 *   W[r, c] = codes[r, c]
 *
 * Example: 00 3C is 1, 01 00 is 2^-24. */
#include "quant/parts.h"

lathe_status f16_layout(struct weight *w, int64_t rows, int64_t cols, enum dtype scales_dtype,
                        lathe_error *err)
{
    (void)scales_dtype;
    return weight_init(w, WF_F16, rows, cols, DT_F16, cols, err);
}

void f16_pack(const struct weight *w, const float *src, int64_t row, int64_t n)
{
    for (int64_t r = 0; r < n; r++)
        from_f32(tensor_at(&w->codes, row + r), DT_F16, src + r * w->cols, w->cols);
}

void f16_unpack(float *dst, const struct weight *w, int64_t row, int64_t col, int64_t n)
{
    to_f32(dst, code_at(w, row, col), DT_F16, n);
}

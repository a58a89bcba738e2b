/* BF16: the upper half of an F32.
 *
 *   codes   BF16 [rows, cols], little-endian
 *   W[r, c] = codes[r, c]
 *
 * Example: 80 3F is 1, C0 BF is -1.5. */
#include "quant/parts.h"

lathe_status bf16_layout(struct weight *w, int64_t rows, int64_t cols, enum dtype scales_dtype,
                         lathe_error *err)
{
    (void)scales_dtype;
    return weight_init(w, WF_BF16, rows, cols, DT_BF16, cols, err);
}

void bf16_pack(const struct weight *w, const float *src, int64_t row, int64_t n)
{
    for (int64_t r = 0; r < n; r++)
        from_f32(tensor_at(&w->codes, row + r), DT_BF16, src + r * w->cols, w->cols);
}

void bf16_unpack(float *dst, const struct weight *w, int64_t row, int64_t col, int64_t n)
{
    to_f32(dst, code_at(w, row, col), DT_BF16, n);
}

/* FP8_TENSOR: E4M3 codes with one scale for the whole matrix (ModelOpt).
 *
 *   X.weight         F8_E4M3 [rows, cols]   codes
 *   X.weight_scale   one F32 or BF16        global, a multiplier
 *   W[r, c] = e4m3(codes[r, c]) * global
 *
 * Example: code 40 (2), scale 0.25: 0.5. */
#include "quant/parts.h"
#include "tensor/number.h"

lathe_status fp8_tensor_layout(struct weight *w, int64_t rows, int64_t cols,
                               enum dtype scales_dtype, lathe_error *err)
{
    (void)scales_dtype;
    return weight_init(w, WF_FP8_TENSOR, rows, cols, DT_F8_E4M3, cols, err);
}

void fp8_tensor_pack(const struct weight *w, const float *src, int64_t row, int64_t n)
{
    for (int64_t r = 0; r < n; r++) {
        uint8_t *code = tensor_at(&w->codes, row + r);
        for (int64_t c = 0; c < w->cols; c++)
            code[c] = e4m3_from_f32(src[r * w->cols + c] / w->global);
    }
}

void fp8_tensor_unpack(float *dst, const struct weight *w, int64_t row, int64_t col, int64_t n)
{
    const uint8_t *code = code_at(w, row, col);
    float s = w->global;
    for (int64_t i = 0; i < n; i++)
        dst[i] = e4m3_value[code[i]] * s;
}

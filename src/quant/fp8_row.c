/* FP8_ROW: E4M3 codes with one scale a row (compressed-tensors, strategy "channel").
 *
 *   X.weight         F8_E4M3 [rows, cols]      codes
 *   X.weight_scale   BF16 or F32 [rows, 1]     scales, multipliers
 *   W[r, c] = e4m3(codes[r, c]) * scales[r]
 *
 * Example: code 40 (2), BF16 scale 80 3E (0.25): 0.5. */
#include "quant/parts.h"
#include "tensor/number.h"

lathe_status fp8_row_layout(struct weight *w, int64_t rows, int64_t cols, enum dtype scales_dtype,
                            lathe_error *err)
{
    lathe_status st = weight_init(w, WF_FP8_ROW, rows, cols, DT_F8_E4M3, cols, err);
    if (!st)
        st = weight_check_scales_dtype(WF_FP8_ROW, scales_dtype, err);
    if (!st)
        w->scales = tensor_1d(NULL, scales_dtype, rows);
    return st;
}

void fp8_row_pack(const struct weight *w, const float *src, int64_t row, int64_t n)
{
    for (int64_t r = 0; r < n; r++) {
        const float *x = src + r * w->cols;
        float amax = 0;
        for (int64_t c = 0; c < w->cols; c++)
            amax = amax_of(amax, x[c]);
        /* Codes are made for the scale as it is stored, after its own rounding. */
        float s = scale_store(&w->scales, row + r, weight_global_for(WF_FP8_ROW, amax));
        uint8_t *code = tensor_at(&w->codes, row + r);
        for (int64_t c = 0; c < w->cols; c++)
            code[c] = e4m3_from_f32(x[c] / s);
    }
}

void fp8_row_unpack(float *dst, const struct weight *w, int64_t row, int64_t col, int64_t n)
{
    const uint8_t *code = code_at(w, row, col);
    float s = scale_load(&w->scales, row);
    for (int64_t i = 0; i < n; i++)
        dst[i] = e4m3_value[code[i]] * s;
}

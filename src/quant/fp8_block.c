/* FP8_BLOCK: E4M3 codes with one scale a block of 128 x 128 (Qwen's own FP8 files).
 *
 *   X.weight             F8_E4M3 [rows, cols]                                codes
 *   X.weight_scale_inv   BF16 or F32 [ceil(rows / 128), ceil(cols / 128)]    scales, multipliers
 *   W[r, c] = e4m3(codes[r, c]) * scales[r / 128, c / 128]
 *
 * Despite its name the scale is multiplied. Blocks at the right and lower edge may be partial.
 * Example: 200 columns, row 130: columns 0..127 take scales[1, 0], 128..199 take scales[1, 1]; code
 * 40 (2) with BF16 scale 80 3E (0.25) is 0.5. */
#include "quant/parts.h"
#include "tensor/number.h"

enum { BLOCK = 128 };

lathe_status fp8_block_layout(struct weight *w, int64_t rows, int64_t cols, enum dtype scales_dtype,
                              lathe_error *err)
{
    lathe_status st = weight_init(w, WF_FP8_BLOCK, rows, cols, DT_F8_E4M3, cols, err);
    if (!st)
        st = weight_check_scales_dtype(WF_FP8_BLOCK, scales_dtype, err);
    if (!st)
        w->scales =
            tensor_2d(NULL, scales_dtype, (rows + BLOCK - 1) / BLOCK, (cols + BLOCK - 1) / BLOCK);
    return st;
}

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

void fp8_block_pack(const struct weight *w, const float *src, int64_t row, int64_t n)
{
    int64_t cols = w->cols;
    for (int64_t r0 = 0; r0 < n; r0 += BLOCK) {
        int64_t r1 = min64(r0 + BLOCK, n);
        for (int64_t c0 = 0; c0 < cols; c0 += BLOCK) {
            int64_t c1 = min64(c0 + BLOCK, cols);
            float amax = 0;
            for (int64_t r = r0; r < r1; r++)
                for (int64_t c = c0; c < c1; c++)
                    amax = amax_of(amax, src[r * cols + c]);
            int64_t i = (row + r0) / BLOCK * w->scales.stride + c0 / BLOCK;
            float s = scale_store(&w->scales, i, weight_global_for(WF_FP8_BLOCK, amax));
            for (int64_t r = r0; r < r1; r++) {
                uint8_t *code = tensor_at(&w->codes, row + r);
                for (int64_t c = c0; c < c1; c++)
                    code[c] = e4m3_from_f32(src[r * cols + c] / s);
            }
        }
    }
}

void fp8_block_unpack(float *dst, const struct weight *w, int64_t row, int64_t col, int64_t n)
{
    const uint8_t *code = code_at(w, row, col);
    int64_t scale_row = row / BLOCK * w->scales.stride;
    for (int64_t i = 0; i < n;) {
        int64_t end = min64(n, i + BLOCK - (col + i) % BLOCK);
        float s = scale_load(&w->scales, scale_row + (col + i) / BLOCK);
        for (; i < end; i++)
            dst[i] = e4m3_value[code[i]] * s;
    }
}

/* decode_row by format, of the rows of one that an instruction set's file defines before including this:
 *
 *   nvfp4_row(dst, w, row, col, n), bf16_row(dst, src, n), f16_row(dst, src, n)
 *   fp8_run(dst, src, n, scale)                     codes of one scale */
#ifndef LATHE_OP_CPU_DECODE_ROW_H
#define LATHE_OP_CPU_DECODE_ROW_H

#include "op/cpu/linear.h"

static void decode_row(float *dst, const struct weight *w, int64_t row, int64_t col, int64_t n)
{
    switch (w->format) {
    case WF_NVFP4:
        nvfp4_row(dst, w, row, col, n);
        break;
    case WF_BF16:
        bf16_row(dst, code_at(w, row, col), n);
        break;
    case WF_F16:
        f16_row(dst, code_at(w, row, col), n);
        break;
    case WF_FP8_TENSOR:
        fp8_run(dst, code_at(w, row, col), n, w->global);
        break;
    case WF_FP8_ROW:
        fp8_run(dst, code_at(w, row, col), n, scale_load(&w->scales, row));
        break;
    case WF_FP8_BLOCK: /* col is a multiple of 128: tiles are */
        for (int64_t i = 0; i < n; i += 128)
            fp8_run(dst + i, code_at(w, row, col + i), n - i < 128 ? n - i : 128,
                    scale_load(&w->scales, row / 128 * w->scales.stride + (col + i) / 128));
        break;
    default:
        weight_formats[w->format].unpack(dst, w, row, col, n);
    }
}

#endif

/* NVFP4: E2M1 codes, one E4M3 scale for 16 neighbours of a row, one F32 scale for the matrix.
 *
 *   compressed-tensors            ModelOpt
 *   X.weight_packed               X.weight           U8 [rows, cols / 2]         codes
 *   X.weight_scale                X.weight_scale     F8_E4M3 [rows, cols / 16]   scales
 *   X.weight_global_scale [1]     X.weight_scale_2   F32                         global
 *
 * Byte k of a row holds element 2k in its low and 2k + 1 in its high four bits. `global` is a
 * multiplier: ModelOpt's number as it is, the reciprocal of compressed-tensors', which divides.
 *
 *   W[r, c] = e2m1(code) * (e4m3(scales[r, c / 16]) * global)
 *
 * Example: bytes 21 43 65 07 A9 CB ED 8F, scale 40 (2), global 0.25 (a stored divisor of 4):
 *   .25 .5 .75 1 1.5 2 3 0 -.25 -.5 -.75 -1 -1.5 -2 -3 -0 */
#include <string.h>

#include "quant/parts.h"
#include "tensor/number.h"

enum { BLOCK = 16 };

/* The two values of a byte, low code first. */
struct pair {
    float v[2];
};
#define V(c)                                                                                       \
    (((c)&8 ? -1.f : 1.f) *                                                                        \
     (((c)&6) ? (float)(2 + ((c)&1)) * (float)(1 << ((c) >> 1 & 3)) / 4 : (float)((c)&1) / 2))
#define P1(b)                                                                                      \
    {                                                                                              \
        {                                                                                          \
            V((b)&15), V((b) >> 4)                                                                 \
        }                                                                                          \
    }
#define P4(b)  P1(b), P1((b) + 1), P1((b) + 2), P1((b) + 3)
#define P16(b) P4(b), P4((b) + 4), P4((b) + 8), P4((b) + 12)
#define P64(b) P16(b), P16((b) + 16), P16((b) + 32), P16((b) + 48)
static const struct pair pairs[256] = {P64(0), P64(64), P64(128), P64(192)};

lathe_status nvfp4_layout(struct weight *w, int64_t rows, int64_t cols, enum dtype scales_dtype,
                          lathe_error *err)
{
    (void)scales_dtype;
    lathe_status st = weight_init(w, WF_NVFP4, rows, cols, DT_U8, cols / 2, err);
    if (st)
        return st;
    if (cols % BLOCK)
        return fail(err, LATHE_E_FORMAT,
                    "nvfp4: %lld columns, expected a multiple of 16 (one scale for 16)",
                    (long long)cols);
    w->scales = tensor_2d(NULL, DT_F8_E4M3, rows, cols / BLOCK);
    return LATHE_OK;
}

/* compressed-tensors' quantiser: a block whose scale would round to 0 takes 0.125. */
void nvfp4_pack(const struct weight *w, const float *src, int64_t row, int64_t n)
{
    for (int64_t r = 0; r < n; r++) {
        uint8_t *code = tensor_at(&w->codes, row + r), *scale = tensor_at(&w->scales, row + r);
        for (int64_t b = 0; b < w->cols / BLOCK; b++) {
            const float *x = src + r * w->cols + b * BLOCK;
            float amax = 0;
            for (int i = 0; i < BLOCK; i++)
                amax = amax_of(amax, x[i]);
            /* Neither level can hold infinity: such a block becomes NaN, which is seen. */
            uint8_t s = e4m3_from_f32(isfinite(amax) ? amax / 6 / w->global : NAN);
            scale[b] = s ? s : e4m3_from_f32(.125f);
            float step = e4m3_value[scale[b]] * w->global;
            for (int i = 0; i < BLOCK; i += 2)
                code[b * BLOCK / 2 + i / 2] =
                    (uint8_t)(e2m1_from_f32(x[i] / step) | e2m1_from_f32(x[i + 1] / step) << 4);
        }
    }
}

void nvfp4_unpack(float *dst, const struct weight *w, int64_t row, int64_t col, int64_t n)
{
    const uint8_t *code = (const uint8_t *)w->codes.data + row * w->codes.stride + col / 2;
    const uint8_t *scale = (const uint8_t *)w->scales.data + row * w->scales.stride + col / BLOCK;
    float global = w->global;
    for (int64_t b = 0; b < n / BLOCK; b++, dst += BLOCK, code += BLOCK / 2) {
        float s = e4m3_value[scale[b]] * global;
        for (int i = 0; i < BLOCK / 2; i++) {
            struct pair p = pairs[code[i]];
            dst[2 * i] = p.v[0] * s;
            dst[2 * i + 1] = p.v[1] * s;
        }
    }
}

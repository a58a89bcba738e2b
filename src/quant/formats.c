#include "quant/formats.h"

#include <float.h>
#include <string.h>

#include "quant/parts.h"
#include "tensor/number.h"

const struct weight_format weight_formats[WF_COUNT] = {
#define X(upper, lower) [WF_##upper] = {#lower, lower##_layout, lower##_pack, lower##_unpack},
    WEIGHT_FORMATS(X)
#undef X
};

lathe_status weight_init(struct weight *w, enum weight_format_id format, int64_t rows, int64_t cols,
                         enum dtype codes, int64_t code_cols, lathe_error *err)
{
    if (rows < 1 || cols < 1 || rows > INT32_MAX || cols > INT32_MAX)
        return fail(err, LATHE_E_FORMAT, "%s: a matrix of %lld x %lld, sizes must be 1 to %d",
                    weight_formats[format].name, (long long)rows, (long long)cols, INT32_MAX);
    *w = (struct weight){
        .format = format,
        .rows = rows,
        .cols = cols,
        .codes = tensor_2d(NULL, codes, rows, code_cols),
        .global = 1,
    };
    return LATHE_OK;
}

lathe_status weight_check_scales_dtype(enum weight_format_id format, enum dtype dtype,
                                       lathe_error *err)
{
    if (dtype != DT_BF16 && dtype != DT_F32)
        return fail(err, LATHE_E_FORMAT, "%s: scales of %s, expected BF16 or F32",
                    weight_formats[format].name, dtype_name(dtype));
    return LATHE_OK;
}

float weight_global_for(enum weight_format_id format, float amax)
{
    float largest; /* that codes and block scales reach with a global of 1 */
    switch (format) {
    case WF_FP8_TENSOR:
    case WF_FP8_ROW:
    case WF_FP8_BLOCK:
        largest = 448;
        break;
    case WF_NVFP4:
        largest = 448 * 6;
        break;
    default:
        return 1;
    }
    if (amax == 0)
        return 1;
    float global = amax / largest;
    return global < FLT_MIN ? FLT_MIN
                            : global; /* a subnormal one would lose the codes' precision */
}

size_t weight_bytes(const struct weight *w)
{
    size_t n = (size_t)tensor_elements(&w->codes) * dtype_size(w->codes.dtype);
    if (w->scales.n_dims)
        n += (size_t)tensor_elements(&w->scales) * dtype_size(w->scales.dtype);
    return n;
}

/* Index of the first NaN of n E4M3 codes, or n. */
static int64_t find_e4m3_nan(const unsigned char *p, int64_t n)
{
    enum { STEP = 256 };
    for (int64_t i = 0; i < n; i += STEP) {
        int64_t end = n - i < STEP ? n : i + STEP;
        unsigned any = 0;
        for (int64_t k = i; k < end; k++)
            any |= (p[k] & 0x7F) == 0x7F;
        for (int64_t k = i; any && k < end; k++)
            if ((p[k] & 0x7F) == 0x7F)
                return k;
    }
    return n;
}

lathe_status weight_check_scales(const struct weight *w, lathe_error *err)
{
    if (!isfinite(w->global) || w->global <= 0)
        return fail(err, LATHE_E_NUMERIC, "the scale of the matrix is %g, expected > 0",
                    (double)w->global);
    if (!w->scales.data)
        return LATHE_OK;
    int64_t n_rows = w->scales.dim[0], n = tensor_row(&w->scales);
    for (int64_t r = 0; r < n_rows; r++)
        for (int64_t c = 0; c < n; c++) {
            const unsigned char *p = tensor_at(&w->scales, r);
            if (w->scales.dtype == DT_F8_E4M3 && (c = find_e4m3_nan(p, n)) == n)
                break;
            float s;
            to_f32(&s, p + (size_t)c * dtype_size(w->scales.dtype), w->scales.dtype, 1);
            if (isfinite(s))
                continue;
            if (w->format == WF_FP8_ROW)
                return fail(err, LATHE_E_NUMERIC, "the scale of row %lld is %g", (long long)r,
                            (double)s);
            return fail(err, LATHE_E_NUMERIC, "the scale of block [%lld, %lld] is %g", (long long)r,
                        (long long)c, (double)s);
        }
    return LATHE_OK;
}

bool weight_find_nonfinite(const struct weight *w, int64_t *row, int64_t *col)
{
    enum { STEP = 512 };
    float x[STEP];
    for (int64_t r = 0; r < w->rows; r++)
        for (int64_t c = 0; c < w->cols; c += STEP) {
            int64_t n = w->cols - c < STEP ? w->cols - c : STEP;
            weight_formats[w->format].unpack(x, w, r, c, n);
            float zero = 0; /* becomes NaN if any value is not finite */
            for (int64_t i = 0; i < n; i++)
                zero += x[i] * 0;
            if (zero == 0)
                continue;
            for (int64_t i = 0; i < n; i++)
                if (!isfinite(x[i])) {
                    *row = r;
                    *col = c + i;
                    return true;
                }
        }
    return false;
}

#include "op/ref/ref.h"

#include <stdlib.h>

double ref_dot(const struct weight *w, int64_t r, const struct tensor *in, int64_t t)
{
    enum { STEP = 256 };
    float row[STEP];
    double sum = 0;
    for (int64_t c = 0; c < w->cols; c += STEP) {
        int64_t n = w->cols - c < STEP ? w->cols - c : STEP;
        weight_formats[w->format].unpack(row, w, r, c, n);
        for (int64_t i = 0; i < n; i++)
            sum += (double)row[i] * get(in, t, c + i);
    }
    return sum;
}

/* Row t of in as E4M3, times what is returned. */
static float to_e4m3(const struct tensor *in, int64_t t, float *row)
{
    float most = 0;
    for (int64_t c = 0; c < in->dim[1]; c++)
        most = fmaxf(most, fabsf((float)get(in, t, c)));
    float scale = most > 0 ? most / 448 : 1;
    for (int64_t c = 0; c < in->dim[1]; c++)
        row[c] = e4m3_to_f32(e4m3_from_f32((float)get(in, t, c) / scale));
    return scale;
}

/* The same in NVFP4: codes times the scales of their blocks. */
static float to_nvfp4(const struct tensor *in, int64_t t, float *row)
{
    enum { BLOCK = 16 };
    float most = 0;
    for (int64_t c = 0; c < in->dim[1]; c++)
        most = fmaxf(most, fabsf((float)get(in, t, c)));
    float scale = most > 0 ? most / (6 * 448) : 1;
    for (int64_t b = 0; b < in->dim[1]; b += BLOCK) {
        bool finite = true;
        most = 0;
        for (int64_t c = b; c < b + BLOCK; c++) {
            most = fmaxf(most, fabsf((float)get(in, t, c)));
            finite = finite && isfinite(get(in, t, c));
        }
        float d = finite ? e4m3_to_f32(e4m3_from_f32(most / 6 / scale)) : NAN, step = d * scale;
        for (int64_t c = b; c < b + BLOCK; c++)
            row[c] = step > 0 ? d * e2m1_to_f32(e2m1_from_f32((float)get(in, t, c) / step)) : 0 * d;
    }
    return scale;
}

/* How the rows are quantised; NULL: not at all. */
static float (*quantiser(const struct ref *x, const struct linear_args *a))(const struct tensor *,
                                                                            int64_t, float *)
{
    enum weight_format_id format = a->w->format;
    if (x->prompt_math == PROMPT_ACT || a->phase != PHASE_PREFILL || a->in.dtype != DT_BF16)
        return NULL;
    if (format == WF_NVFP4)
        return x->prompt_math == PROMPT_NVFP4 ? to_nvfp4 : NULL;
    return format == WF_FP8_ROW || format == WF_FP8_TENSOR ? to_e4m3 : NULL;
}

lathe_status ref_linear(void *stream, const struct linear_args *a, lathe_error *err)
{
    float (*quantise)(const struct tensor *, int64_t, float *) = quantiser(stream, a);
    size_t bytes = (size_t)a->w->cols * sizeof(float);
    float *row = quantise ? malloc(bytes) : NULL;
    if (quantise && !row)
        return fail_memory(err, bytes);
    struct tensor codes = tensor_2d(row, DT_F32, 1, a->w->cols);
    for (int64_t t = 0; t < a->in.dim[0]; t++) {
        double scale = quantise ? (double)quantise(&a->in, t, row) : 1;
        for (int64_t r = 0; r < a->w->rows; r++) {
            double sum =
                quantise ? scale * ref_dot(a->w, r, &codes, 0) : ref_dot(a->w, r, &a->in, t);
            put(&a->y, t, r, a->add ? get(&a->y, t, r) + sum : sum);
        }
    }
    free(row);
    return LATHE_OK;
}

lathe_status ref_gdn_gates(void *stream, const struct gdn_gates_args *a, lathe_error *err)
{
    (void)stream, (void)err;
    for (int64_t t = 0; t < a->u.dim[0]; t++)
        for (int64_t j = 0; j < a->in_proj_a->rows; j++) {
            double x = ref_dot(a->in_proj_a, j, &a->u, t) + get(&a->dt_bias, 0, j);
            double softplus = x > 20 ? x : log1p(exp(x));
            put(&a->g, t, j, -exp(get(&a->A_log, 0, j)) * softplus);
            put(&a->beta, t, j, sigmoid(ref_dot(a->in_proj_b, j, &a->u, t)));
        }
    return LATHE_OK;
}

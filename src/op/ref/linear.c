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

/* Are the rows quantised? */
static bool is_fp8(const struct ref *x, const struct linear_args *a)
{
    return x->prompt_math == PROMPT_FP8 && a->phase == PHASE_PREFILL && a->in.dtype == DT_BF16 &&
           (a->w->format == WF_FP8_ROW || a->w->format == WF_FP8_TENSOR);
}

/* Row t of in as E4M3 times what is returned. */
static float quantise(const struct tensor *in, int64_t t, float *row)
{
    float most = 0;
    for (int64_t c = 0; c < in->dim[1]; c++)
        most = fmaxf(most, fabsf((float)get(in, t, c)));
    float scale = most > 0 ? most / 448.0f : 1.0f;
    for (int64_t c = 0; c < in->dim[1]; c++)
        row[c] = e4m3_to_f32(e4m3_from_f32((float)get(in, t, c) / scale));
    return scale;
}

lathe_status ref_linear(void *stream, const struct linear_args *a, lathe_error *err)
{
    bool fp8 = is_fp8(stream, a);
    size_t bytes = (size_t)a->w->cols * sizeof(float);
    float *row = fp8 ? malloc(bytes) : NULL;
    if (fp8 && !row)
        return fail_memory(err, bytes);
    struct tensor codes = tensor_2d(row, DT_F32, 1, a->w->cols);
    for (int64_t t = 0; t < a->in.dim[0]; t++) {
        double scale = fp8 ? (double)quantise(&a->in, t, row) : 1;
        for (int64_t r = 0; r < a->w->rows; r++) {
            double sum = fp8 ? scale * ref_dot(a->w, r, &codes, 0) : ref_dot(a->w, r, &a->in, t);
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

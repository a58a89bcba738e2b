#include "op/ref/ref.h"

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

lathe_status ref_linear(void *stream, const struct linear_args *a, lathe_error *err)
{
    (void)stream, (void)err;
    for (int64_t t = 0; t < a->in.dim[0]; t++)
        for (int64_t r = 0; r < a->w->rows; r++) {
            double sum = ref_dot(a->w, r, &a->in, t);
            put(&a->y, t, r, a->add ? get(&a->y, t, r) + sum : sum);
        }
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

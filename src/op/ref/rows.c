/* The operators that work on each row alone. */
#include <string.h>

#include "op/ref/ref.h"

lathe_status ref_embed(void *stream, const struct embed_args *a, lathe_error *err)
{
    (void)stream, (void)err;
    enum { STEP = 256 };
    float row[STEP];
    for (int64_t t = 0; t < a->y.dim[0]; t++)
        for (int64_t c = 0; c < a->table->cols; c += STEP) {
            int64_t n = a->table->cols - c < STEP ? a->table->cols - c : STEP;
            weight_formats[a->table->format].unpack(row, a->table, a->token[t], c, n);
            for (int64_t i = 0; i < n; i++)
                put(&a->y, t, c + i, row[i]);
        }
    return LATHE_OK;
}

lathe_status ref_rmsnorm(void *stream, const struct rmsnorm_args *a, lathe_error *err)
{
    (void)stream, (void)err;
    int64_t n = a->in.dim[1];
    for (int64_t t = 0; t < a->in.dim[0]; t++) {
        double sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += get(&a->in, t, i) * get(&a->in, t, i);
        double scale = 1 / sqrt(sum / (double)n + (double)a->eps);
        for (int64_t i = 0; i < n; i++)
            put(&a->y, t, i, get(&a->in, t, i) * scale * get(&a->w, 0, i));
    }
    return LATHE_OK;
}

lathe_status ref_rmsnorm_gated(void *stream, const struct rmsnorm_gated_args *a, lathe_error *err)
{
    (void)stream, (void)err;
    int64_t dv = a->w.dim[0];
    for (int64_t t = 0; t < a->y.dim[0]; t++)
        for (int64_t first = 0; first < a->y.dim[1]; first += dv) {
            double sum = 0;
            for (int64_t i = 0; i < dv; i++)
                sum += get(&a->o, t, first + i) * get(&a->o, t, first + i);
            double scale = 1 / sqrt(sum / (double)dv + (double)a->eps);
            for (int64_t i = 0; i < dv; i++)
                put(&a->y, t, first + i,
                    get(&a->o, t, first + i) * scale * get(&a->w, 0, i) *
                        silu(get(&a->z, t, first + i)));
        }
    return LATHE_OK;
}

lathe_status ref_silu_mul(void *stream, const struct silu_mul_args *a, lathe_error *err)
{
    (void)stream, (void)err;
    for (int64_t t = 0; t < a->y.dim[0]; t++)
        for (int64_t i = 0; i < a->y.dim[1]; i++)
            put(&a->y, t, i, silu(get(&a->gate, t, i)) * get(&a->up, t, i));
    return LATHE_OK;
}

lathe_status ref_gather_rows(void *stream, const struct gather_rows_args *a, lathe_error *err)
{
    (void)stream, (void)err;
    for (int64_t i = 0; i < a->y.dim[0]; i++)
        memcpy(tensor_at(&a->y, i), tensor_at(&a->in, a->row ? a->row[i] : i),
               (size_t)a->y.dim[1] * dtype_size(a->y.dtype));
    return LATHE_OK;
}

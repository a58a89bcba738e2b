/* The operators that work on each row alone: rows, or parts of them, shared between threads. */
#include <string.h>

#include "op/cpu/cpu.h"

/* What a thread's function gets. */
struct job {
    const struct cpu *cpu;
    const void *args;
};

static void embed(void *ctx, int32_t thread, int32_t n_threads)
{
    enum { STEP = 512 };
    const struct job *j = ctx;
    const struct embed_args *a = j->args;
    const struct weight *w = a->table;
    float values[STEP];
    int64_t begin, end;
    pool_share(a->y.dim[0], 1, thread, n_threads, &begin, &end);
    for (int64_t t = begin; t < end; t++)
        for (int64_t c = 0; c < w->cols; c += STEP) {
            int64_t n = w->cols - c < STEP ? w->cols - c : STEP;
            unsigned char *y = tensor_at(&a->y, t);
            weight_formats[w->format].unpack(values, w, a->token[t], c, n);
            j->cpu->kernels.convert(y + (size_t)c * dtype_size(a->y.dtype), a->y.dtype, values,
                                    DT_F32, n);
        }
}

lathe_status cpu_embed(void *stream, const struct embed_args *a, lathe_error *err)
{
    (void)err;
    struct job j = {cpu_of(stream), a};
    cpu_run(j.cpu, tensor_elements(&a->y), embed, &j);
    return LATHE_OK;
}

static void rmsnorm(void *ctx, int32_t thread, int32_t n_threads)
{
    const struct job *j = ctx;
    const struct rmsnorm_args *a = j->args;
    int64_t begin, end;
    pool_share(a->y.dim[0], 1, thread, n_threads, &begin, &end);
    for (int64_t t = begin; t < end; t++)
        j->cpu->kernels.rmsnorm(tensor_at(&a->y, t), tensor_at(&a->in, t), a->w.data, a->y.dim[1],
                                a->eps, a->y.dtype);
}

lathe_status cpu_rmsnorm(void *stream, const struct rmsnorm_args *a, lathe_error *err)
{
    (void)err;
    struct job j = {cpu_of(stream), a};
    cpu_run(j.cpu, a->y.dim[0] > 1 ? tensor_elements(&a->y) : 0, rmsnorm, &j);
    return LATHE_OK;
}

static void rmsnorm_gated(void *ctx, int32_t thread, int32_t n_threads)
{
    const struct job *j = ctx;
    const struct rmsnorm_gated_args *a = j->args;
    int64_t dv = a->w.dim[0], heads = a->y.dim[1] / dv, begin, end;
    size_t act = dtype_size(a->y.dtype);
    pool_share(a->y.dim[0] * heads, 1, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int64_t t = i / heads;
        size_t at = (size_t)(i % heads * dv);
        j->cpu->kernels.rmsnorm_gated((unsigned char *)tensor_at(&a->y, t) + at * act,
                                      (const float *)tensor_at(&a->o, t) + at,
                                      (const unsigned char *)tensor_at(&a->z, t) + at * act,
                                      a->w.data, dv, a->eps, a->y.dtype);
    }
}

lathe_status cpu_rmsnorm_gated(void *stream, const struct rmsnorm_gated_args *a, lathe_error *err)
{
    (void)err;
    struct job j = {cpu_of(stream), a};
    cpu_run(j.cpu, tensor_elements(&a->y), rmsnorm_gated, &j);
    return LATHE_OK;
}

/* Elementwise operators are cut into pieces of this many values of one row: whole cache lines. */
enum { PIECE = 1024 };

/* Piece i of all: row *t, columns [*c, *c + *n). */
static void piece_at(int64_t i, int64_t cols, int64_t *t, int64_t *c, int64_t *n)
{
    int64_t per_row = (cols + PIECE - 1) / PIECE;
    *t = i / per_row;
    *c = i % per_row * PIECE;
    *n = cols - *c < PIECE ? cols - *c : PIECE;
}

static int64_t pieces(const struct tensor *y)
{
    return y->dim[0] * ((y->dim[1] + PIECE - 1) / PIECE);
}

static void silu_mul(void *ctx, int32_t thread, int32_t n_threads)
{
    const struct job *j = ctx;
    const struct silu_mul_args *a = j->args;
    size_t act = dtype_size(a->y.dtype);
    int64_t begin, end, t, c, n;
    pool_share(pieces(&a->y), 1, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        piece_at(i, a->y.dim[1], &t, &c, &n);
        j->cpu->kernels.silu_mul((unsigned char *)tensor_at(&a->y, t) + (size_t)c * act,
                                 (const unsigned char *)tensor_at(&a->gate, t) + (size_t)c * act,
                                 (const unsigned char *)tensor_at(&a->up, t) + (size_t)c * act, n,
                                 a->y.dtype);
    }
}

lathe_status cpu_silu_mul(void *stream, const struct silu_mul_args *a, lathe_error *err)
{
    (void)err;
    struct job j = {cpu_of(stream), a};
    cpu_run(j.cpu, tensor_elements(&a->y), silu_mul, &j);
    return LATHE_OK;
}

static void attention_gate(void *ctx, int32_t thread, int32_t n_threads)
{
    const struct job *j = ctx;
    const struct attention_gate_args *a = j->args;
    int64_t d = a->head_dim, heads = a->y.dim[1] / d, begin, end;
    size_t act = dtype_size(a->y.dtype);
    pool_share(a->y.dim[0] * heads, 1, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int64_t t = i / heads;
        size_t head = (size_t)(i % heads), n = (size_t)d;
        j->cpu->kernels.sigmoid_mul(
            (unsigned char *)tensor_at(&a->y, t) + head * n * act,
            (const float *)tensor_at(&a->o, t) + head * n,
            (const unsigned char *)tensor_at(&a->qg, t) + (2 * head + 1) * n * act, d, a->y.dtype);
    }
}

lathe_status cpu_attention_gate(void *stream, const struct attention_gate_args *a, lathe_error *err)
{
    (void)err;
    struct job j = {cpu_of(stream), a};
    cpu_run(j.cpu, tensor_elements(&a->y), attention_gate, &j);
    return LATHE_OK;
}

lathe_status cpu_gather_rows(void *stream, const struct gather_rows_args *a, lathe_error *err)
{
    (void)stream, (void)err;
    for (int64_t i = 0; i < a->y.dim[0]; i++)
        memcpy(tensor_at(&a->y, i), tensor_at(&a->in, a->row ? a->row[i] : i),
               (size_t)a->y.dim[1] * dtype_size(a->y.dtype));
    return LATHE_OK;
}

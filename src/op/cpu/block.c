/* The block drafters' operators but attention: rows shared between threads. */
#include <math.h>
#include <string.h>

#include "op/cpu/cpu.h"

struct job {
    const struct cpu *cpu;
    const void *args;
};

static void conv_rows(void *ctx, int32_t thread, int32_t n_threads)
{
    const struct job *j = ctx;
    const struct block_conv_args *a = j->args;
    int64_t taps = a->base.dim[0], begin, end;
    struct block_conv_row row = {
        .base = a->base.data,
        .n = a->y.dim[1],
        .groups = a->delta.dim[1] / taps,
        .add = a->add,
        .act = a->y.dtype,
    };
    pool_share(a->y.dim[0], 1, thread, n_threads, &begin, &end);
    for (int64_t t = begin; t < end; t++) {
        row.y = tensor_at(&a->y, t);
        row.delta = tensor_at(&a->delta, t);
        row.taps = taps <= t % a->block ? taps : t % a->block + 1;
        for (int64_t k = 0; k < row.taps; k++)
            row.in[k] = tensor_at(&a->in, t - k);
        j->cpu->kernels.block_conv(&row);
    }
}

lathe_status cpu_block_conv(void *stream, const struct block_conv_args *a, lathe_error *err)
{
    (void)err;
    struct job j = {cpu_of(stream), a};
    cpu_run(j.cpu, tensor_elements(&a->y), conv_rows, &j);
    return LATHE_OK;
}

static void append_rows(void *ctx, int32_t thread, int32_t n_threads)
{
    const struct job *j = ctx;
    const struct ring_append_args *a = j->args;
    const struct tensor *k = &a->ring->k, *v = &a->ring->v;
    int64_t size = k->dim[1], width = a->k.dim[1];
    size_t row_bytes = (size_t)width * dtype_size(k->dtype);
    for (int32_t s = 0; s < a->b->n_seqs; s++) {
        const struct batch_seq *seq = &a->b->seq[s];
        int64_t skip = seq->n_rows > size ? seq->n_rows - size : 0, begin, end;
        pool_share(seq->n_rows - skip, 1, thread, n_threads, &begin, &end);
        for (int64_t i = begin + skip; i < end + skip; i++) {
            size_t at = (size_t)((seq->pos + i) % size) * row_bytes;
            int64_t t = seq->first_row + i;
            j->cpu->kernels.convert((unsigned char *)tensor_at(k, seq->slot) + at, k->dtype,
                                    tensor_at(&a->k, t), a->k.dtype, width);
            j->cpu->kernels.convert((unsigned char *)tensor_at(v, seq->slot) + at, v->dtype,
                                    tensor_at(&a->v, t), a->v.dtype, width);
        }
    }
}

lathe_status cpu_ring_append(void *stream, const struct ring_append_args *a, lathe_error *err)
{
    (void)err;
    struct job j = {cpu_of(stream), a};
    cpu_run(j.cpu, tensor_elements(&a->k), append_rows, &j);
    return LATHE_OK;
}

/* Puts (x, i) into its place among the n best, all of lower columns: at the end of its equals. */
static int64_t insert(float *value, int32_t *id, int64_t n, int64_t k, float x, int32_t i)
{
    int64_t lo = 0, hi = n;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (value[mid] >= x || isnan(value[mid]))
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == k)
        return n;
    int64_t moved = (n < k ? n : k - 1) - lo;
    memmove(value + lo + 1, value + lo, (size_t)moved * sizeof *value);
    memmove(id + lo + 1, id + lo, (size_t)moved * sizeof *id);
    value[lo] = x;
    id[lo] = i;
    return n < k ? n + 1 : n;
}

static void top_k_rows(void *ctx, int32_t thread, int32_t n_threads)
{
    const struct job *j = ctx;
    const struct top_k_args *a = j->args;
    int64_t k = a->value.dim[1], begin, end;
    pool_share(a->value.dim[0], 1, thread, n_threads, &begin, &end);
    for (int64_t t = begin; t < end; t++) {
        const float *x = tensor_at(&a->logits, t);
        float *value = tensor_at(&a->value, t);
        int32_t *id = tensor_at(&a->id, t);
        int64_t n = 0;
        for (int32_t r = 0; r < a->n_ranges; r++)
            for (int64_t i = a->range[r][0];; i++) {
                float bound = n < k ? -INFINITY : value[k - 1];
                i = j->cpu->kernels.first_above(x, i, a->range[r][1], bound);
                if (i >= a->range[r][1])
                    break;
                n = insert(value, id, n, k, x[i], (int32_t)i);
            }
        for (; n < k; n++) {
            value[n] = -INFINITY;
            id[n] = -1;
        }
    }
}

lathe_status cpu_top_k(void *stream, const struct top_k_args *a, lathe_error *err)
{
    (void)err;
    struct job j = {cpu_of(stream), a};
    cpu_run(j.cpu, tensor_elements(&a->logits), top_k_rows, &j);
    return LATHE_OK;
}

size_t cpu_top_k_scratch(const void *stream, const struct top_k_args *a)
{
    (void)stream, (void)a;
    return 0;
}

/* A token before and its row's candidates at a time. */
static void score_pairs(void *ctx, int32_t thread, int32_t n_threads)
{
    const struct job *j = ctx;
    const struct pair_scores_args *a = j->args;
    int64_t rank = a->A->cols, m = a->prev.dim[1], k = a->u.dim[1], begin, end;
    float A[OP_MAX_RANK], B[OP_MAX_RANK];
    pool_share(a->u.dim[0] * m, 1, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int64_t t = i / m;
        const float *u = tensor_at(&a->u, t), *g = tensor_at(&a->g, t);
        const int32_t *id = tensor_at(&a->id, t);
        int32_t prev = ((const int32_t *)tensor_at(&a->prev, t))[i % m];
        float *y = (float *)tensor_at(&a->y, t) + i % m * k;
        if (prev >= 0)
            weight_formats[a->A->format].unpack(A, a->A, prev, 0, rank);
        for (int64_t r = 0; r < rank && prev >= 0; r++)
            A[r] *= g[r];
        for (int64_t c = 0; c < k; c++) {
            if (prev < 0 || id[c] < 0) {
                y[c] = -INFINITY;
                continue;
            }
            weight_formats[a->B->format].unpack(B, a->B, id[c], 0, rank);
            y[c] = u[c] + j->cpu->kernels.dot(A, B, rank);
        }
    }
}

lathe_status cpu_pair_scores(void *stream, const struct pair_scores_args *a, lathe_error *err)
{
    (void)err;
    struct job j = {cpu_of(stream), a};
    /* A product of two values from cache is a fraction of the work that other operators do on one. */
    cpu_run(j.cpu, tensor_elements(&a->y) * a->A->cols / 8, score_pairs, &j);
    return LATHE_OK;
}

#include "op/ref/ref.h"

/* Normalises n values of row t of `in` from column `from` into row t of `out` at column `to`, then
 * rotates. The angle is the contract's F32 product; its sine and cosine are exact. */
static void norm_rope(const struct qk_norm_rope_args *a, const struct tensor *out, int64_t to,
                      const struct tensor *in, int64_t from, const struct tensor *w, int64_t t)
{
    const struct rope *rope = a->rope;
    int64_t n = a->head_dim, half = rope->dims / 2;
    double x[OP_MAX_HEAD], sum = 0;
    for (int64_t i = 0; i < n; i++) {
        x[i] = get(in, t, from + i);
        sum += x[i] * x[i];
    }
    double scale = 1 / sqrt(sum / (double)n + (double)a->eps);
    for (int64_t i = 0; i < n; i++)
        x[i] *= scale * get(w, 0, i);
    for (int64_t i = 0; i < half; i++) {
        float angle = (float)a->b->rope_pos[t][rope->axis[i]] * rope->inv_freq[i];
        double c = cos(angle) * (double)rope->scale, s = sin(angle) * (double)rope->scale;
        double first = x[i], second = x[i + half];
        x[i] = first * c - second * s;
        x[i + half] = second * c + first * s;
    }
    for (int64_t i = 0; i < n; i++)
        put(out, t, to + i, x[i]);
}

lathe_status ref_qk_norm_rope(void *stream, const struct qk_norm_rope_args *a, lathe_error *err)
{
    (void)stream, (void)err;
    int64_t d = a->head_dim, n = a->q.dim[1] / d;
    for (int64_t t = 0; t < a->q.dim[0]; t++) {
        for (int64_t h = 0; h < n; h++)
            norm_rope(a, &a->q, h * d, &a->qg, h * (a->qg.dim[1] / n), &a->q_norm, t);
        for (int64_t h = 0; h < a->k.dim[1] / d; h++)
            norm_rope(a, &a->k, h * d, &a->k, h * d, &a->k_norm, t);
    }
    return LATHE_OK;
}

/* Row of a plane seen as [n_pages * page, n_kv_heads * head_dim] that holds a slot's position. */
static struct tensor flat(const struct tensor *plane)
{
    struct tensor t = *plane;
    t.n_dims = 2;
    t.dim[0] = plane->dim[0] * plane->dim[1];
    t.dim[1] = plane->dim[2] * plane->dim[3];
    t.dim[2] = t.dim[3] = 1;
    t.stride = t.dim[1];
    return t;
}

static int64_t kv_row(const struct kv_pages *kv, int32_t slot, int64_t pos)
{
    int64_t page = kv->k.dim[1];
    return kv->page_table[(int64_t)slot * kv->pages_per_slot + pos / page] * page + pos % page;
}

lathe_status ref_kv_append(void *stream, const struct kv_append_args *a, lathe_error *err)
{
    (void)stream, (void)err;
    struct tensor keys = flat(&a->kv->k), values = flat(&a->kv->v);
    for (int64_t t = 0; t < a->k.dim[0]; t++) {
        int64_t row = kv_row(a->kv, a->b->slot[t], a->b->pos[t]);
        for (int64_t i = 0; i < a->k.dim[1]; i++) {
            put(&keys, row, i, get(&a->k, t, i));
            put(&values, row, i, get(&a->v, t, i));
        }
    }
    return LATHE_OK;
}

/* One row and query head: the scores are computed twice, first for their maximum. */
static void attend(const struct attention_args *a, int64_t t, int64_t head)
{
    struct tensor keys = flat(&a->kv->k), values = flat(&a->kv->v);
    int64_t d = a->kv->k.dim[3], group = a->q.dim[1] / d / a->kv->k.dim[2];
    int64_t from = head * d, kv_from = head / group * d;
    double max = -INFINITY, sum = 0, o[OP_MAX_HEAD] = {0};
    for (int pass = 0; pass < 2; pass++)
        for (int64_t s = 0; s <= a->b->pos[t]; s++) {
            int64_t row = kv_row(a->kv, a->b->slot[t], s);
            double score = 0;
            for (int64_t i = 0; i < d; i++)
                score += get(&a->q, t, from + i) * get(&keys, row, kv_from + i);
            score *= (double)a->scale;
            if (pass == 0) {
                max = score > max || isnan(score) ? score : max;
                continue;
            }
            double p = exp(score - max);
            sum += p;
            for (int64_t i = 0; i < d; i++)
                o[i] += p * get(&values, row, kv_from + i);
        }
    for (int64_t i = 0; i < d; i++)
        put(&a->o, t, from + i, o[i] / sum);
}

lathe_status ref_attention(void *stream, const struct attention_args *a, lathe_error *err)
{
    (void)stream, (void)err;
    for (int64_t t = 0; t < a->q.dim[0]; t++)
        for (int64_t head = 0; head < a->q.dim[1] / a->kv->k.dim[3]; head++)
            attend(a, t, head);
    return LATHE_OK;
}

lathe_status ref_attention_gate(void *stream, const struct attention_gate_args *a, lathe_error *err)
{
    (void)stream, (void)err;
    int64_t d = a->head_dim;
    for (int64_t t = 0; t < a->y.dim[0]; t++)
        for (int64_t i = 0; i < a->y.dim[1]; i++) {
            double gate = get(&a->qg, t, i / d * 2 * d + d + i % d);
            put(&a->y, t, i, get(&a->o, t, i) * sigmoid(gate));
        }
    return LATHE_OK;
}

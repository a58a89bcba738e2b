/* The operators of block drafters. */
#include "op/ref/ref.h"

lathe_status ref_block_conv(void *stream, const struct block_conv_args *a, lathe_error *err)
{
    (void)stream, (void)err;
    int64_t taps = a->base.dim[0], groups = a->delta.dim[1] / taps, n = a->y.dim[1];
    for (int64_t t = 0; t < a->y.dim[0]; t++)
        for (int64_t c = 0; c < n; c++) {
            double sum = a->add ? get(&a->y, t, c) : 0;
            for (int64_t j = 0; j < taps && j <= t % a->block; j++)
                sum += (get(&a->base, j, c) + get(&a->delta, t, j * groups + c / (n / groups))) *
                       get(&a->in, t - j, c);
            put(&a->y, t, c, sum);
        }
    return LATHE_OK;
}

/* A plane seen as [n_slots * size, n_kv_heads * head_dim]. */
static struct tensor flat(const struct tensor *plane)
{
    struct tensor t = tensor_2d(plane->data, plane->dtype, plane->dim[0] * plane->dim[1],
                                plane->dim[2] * plane->dim[3]);
    return t;
}

static int64_t ring_row(const struct kv_ring *ring, int32_t slot, int64_t pos)
{
    return slot * ring->k.dim[1] + pos % ring->k.dim[1];
}

lathe_status ref_ring_append(void *stream, const struct ring_append_args *a, lathe_error *err)
{
    (void)stream, (void)err;
    struct tensor keys = flat(&a->ring->k), values = flat(&a->ring->v);
    for (int32_t s = 0; s < a->b->n_seqs;
         s++) /* in order: the later of two rows in one place stays */
        for (int32_t i = 0; i < a->b->seq[s].n_rows; i++) {
            const struct batch_seq *seq = &a->b->seq[s];
            int64_t row = ring_row(a->ring, seq->slot, (int64_t)seq->pos + i);
            for (int64_t c = 0; c < a->k.dim[1]; c++) {
                put(&keys, row, c, get(&a->k, seq->first_row + i, c));
                put(&values, row, c, get(&a->v, seq->first_row + i, c));
            }
        }
    return LATHE_OK;
}

/* One row and query head: the scores are computed twice, first for their maximum. */
static void attend(const struct block_attention_args *a, const struct batch_seq *seq, int64_t r,
                   int64_t head)
{
    struct tensor ring_keys = flat(&a->ring->k), ring_values = flat(&a->ring->v);
    int64_t d = a->ring->k.dim[3], group = a->q.dim[1] / d / a->ring->k.dim[2];
    int64_t from = head * d, kv_from = head / group * d, t = seq->first_row + r;
    int64_t pos = (int64_t)seq->pos + r;
    double max = -INFINITY, sum = 0, o[OP_MAX_HEAD] = {0};
    for (int pass = 0; pass < 2; pass++)
        for (int64_t s = a->ring->first[seq->slot]; s < (int64_t)seq->pos + seq->n_rows; s++) {
            if (s - pos >= a->window || pos - s >= a->window)
                continue;
            bool own = s >= seq->pos;
            const struct tensor *keys = own ? &a->k : &ring_keys;
            const struct tensor *values = own ? &a->v : &ring_values;
            int64_t row = own ? seq->first_row + s - seq->pos : ring_row(a->ring, seq->slot, s);
            double score = 0;
            for (int64_t i = 0; i < d; i++)
                score += get(&a->q, t, from + i) * get(keys, row, kv_from + i);
            score *= (double)a->scale;
            if (pass == 0) {
                max = score > max || isnan(score) ? score : max;
                continue;
            }
            double p = exp(score - max);
            sum += p;
            for (int64_t i = 0; i < d; i++)
                o[i] += p * get(values, row, kv_from + i);
        }
    for (int64_t i = 0; i < d; i++)
        put(&a->o, t, from + i, o[i] / sum);
}

lathe_status ref_block_attention(void *stream, const struct block_attention_args *a,
                                 lathe_error *err)
{
    (void)stream, (void)err;
    for (int32_t s = 0; s < a->b->n_seqs; s++)
        for (int64_t r = 0; r < a->b->seq[s].n_rows; r++)
            for (int64_t head = 0; head < a->q.dim[1] / a->ring->k.dim[3]; head++)
                attend(a, &a->b->seq[s], r, head);
    return LATHE_OK;
}

/* Is column i better than column j of row t? */
static bool better(const struct tensor *logits, int64_t t, int64_t i, int64_t j)
{
    double a = get(logits, t, i), b = get(logits, t, j);
    if (isnan(a) || isnan(b))
        return isnan(a) && (!isnan(b) || i < j);
    return a > b || (a == b && i < j);
}

lathe_status ref_top_k(void *stream, const struct top_k_args *a, lathe_error *err)
{
    (void)stream, (void)err;
    for (int64_t t = 0; t < a->value.dim[0]; t++) {
        int32_t *id = tensor_at(&a->id, t), last = -1;
        for (int64_t k = 0; k < a->value.dim[1]; k++) {
            int32_t best = -1; /* of those worse than the last one */
            for (int32_t r = 0; r < a->n_ranges; r++)
                for (int32_t i = a->range[r][0]; i < a->range[r][1]; i++)
                    if (get(&a->logits, t, i) != -INFINITY &&
                        (last < 0 || better(&a->logits, t, last, i)) && i != last &&
                        (best < 0 || better(&a->logits, t, i, best)))
                        best = i;
            id[k] = k > 0 && last < 0 ? -1 : best;
            last = id[k];
            put(&a->value, t, k, id[k] < 0 ? -INFINITY : get(&a->logits, t, id[k]));
        }
    }
    return LATHE_OK;
}

/* u[t,c] + sum_r A[prev,r] * g[t,r] * B[id[t,c],r] */
static double pair_score(const struct pair_scores_args *a, int64_t t, int32_t prev, int64_t c)
{
    float A[OP_MAX_RANK], B[OP_MAX_RANK];
    int64_t rank = a->A->cols;
    int32_t id = ((const int32_t *)tensor_at(&a->id, t))[c];
    if (prev < 0 || id < 0)
        return -INFINITY;
    weight_formats[a->A->format].unpack(A, a->A, prev, 0, rank);
    weight_formats[a->B->format].unpack(B, a->B, id, 0, rank);
    double sum = get(&a->u, t, c);
    for (int64_t r = 0; r < rank; r++)
        sum += (double)A[r] * get(&a->g, t, r) * (double)B[r];
    return sum;
}

lathe_status ref_pair_scores(void *stream, const struct pair_scores_args *a, lathe_error *err)
{
    (void)stream, (void)err;
    int64_t k = a->u.dim[1];
    for (int64_t t = 0; t < a->u.dim[0]; t++)
        for (int64_t i = 0; i < a->y.dim[1]; i++) {
            int32_t prev = ((const int32_t *)tensor_at(&a->prev, t))[i / k];
            put(&a->y, t, i, pair_score(a, t, prev, i % k));
        }
    return LATHE_OK;
}

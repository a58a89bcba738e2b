/* The two operators with a state. State is F32 (or act) in memory after every row, so that a sequence
 * cut into batches anywhere gives the same bits. */
#include "op/host.h"
#include "op/ref/ref.h"

lathe_status ref_causal_conv1d_silu(void *stream, const struct causal_conv1d_silu_args *a,
                                    lathe_error *err)
{
    (void)stream, (void)err;
    int64_t taps = a->w.dim[1];
    for (int32_t i = 0; i < a->b->n_seqs; i++) {
        const struct batch_seq *s = &a->b->seq[i];
        struct tensor tail = tensor_2d(tensor_at(&a->tail, s->slot), a->tail.dtype, taps - 1,
                                       a->tail.dim[2]); /* [taps - 1, channels] */
        for (int64_t c = 0; c < a->y.dim[1]; c++) {
            double window[OP_MAX_TAPS]; /* the last taps inputs */
            for (int64_t j = 0; j < taps - 1; j++)
                window[j + 1] = get(&tail, j, c);
            for (int64_t t = s->first_row; t < s->first_row + s->n_rows; t++) {
                double sum = 0;
                for (int64_t j = 0; j < taps; j++) {
                    window[j] = j + 1 < taps ? window[j + 1] : get(&a->in, t, c);
                    sum += get(&a->w, c, j) * window[j];
                }
                put(&a->y, t, c, silu(sum));
            }
            if (a->b->phase != PHASE_VERIFY)
                for (int64_t j = 0; j < taps - 1; j++)
                    put(&tail, j, c, window[j + 1]);
        }
    }
    return LATHE_OK;
}

static double inv_norm(const struct tensor *t, int64_t row, int64_t first, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += get(t, row, first + i) * get(t, row, first + i);
    return 1 / sqrt(sum + 1e-6);
}

/* Columns of S do not meet: column c of v head j over one sequence's rows. */
static void delta_column(const struct gated_delta_rule_args *a, const struct batch_seq *s,
                         int64_t j, int64_t c, bool store)
{
    int64_t dk = a->heads.dk, dv = a->heads.dv, n_k = a->heads.n_k_heads;
    int64_t k_head = j / (a->heads.n_v_heads / n_k);
    int64_t q_at = k_head * dk, k_at = (n_k + k_head) * dk, v_at = 2 * n_k * dk + j * dv + c;
    float *S = (float *)tensor_at(&a->S, s->slot) + j * dk * dv + c;
    float col[OP_MAX_HEAD];
    for (int64_t i = 0; i < dk; i++)
        col[i] = S[i * dv];
    for (int64_t t = s->first_row; t < s->first_row + s->n_rows; t++) {
        double decay = exp(get(&a->g, t, j)), kv = 0, o = 0;
        double k_scale = inv_norm(&a->qkv, t, k_at, dk);
        double q_scale = inv_norm(&a->qkv, t, q_at, dk) / sqrt((double)dk);
        for (int64_t i = 0; i < dk; i++)
            kv += decay * (double)col[i] * get(&a->qkv, t, k_at + i) * k_scale;
        double d = get(&a->beta, t, j) * (get(&a->qkv, t, v_at) - kv);
        for (int64_t i = 0; i < dk; i++) {
            double x = decay * (double)col[i] + get(&a->qkv, t, k_at + i) * k_scale * d;
            o += x * get(&a->qkv, t, q_at + i) * q_scale;
            col[i] = (float)x;
        }
        if (a->o.data)
            put(&a->o, t, j * dv + c, o);
    }
    if (store)
        for (int64_t i = 0; i < dk; i++)
            S[i * dv] = col[i];
}

lathe_status ref_gated_delta_rule(void *stream, const struct gated_delta_rule_args *a,
                                  lathe_error *err)
{
    (void)stream, (void)err;
    for (int32_t i = 0; i < a->b->n_seqs; i++)
        for (int64_t j = 0; j < a->heads.n_v_heads; j++)
            for (int64_t c = 0; c < a->heads.dv; c++)
                delta_column(a, &a->b->seq[i], j, c, a->b->phase != PHASE_VERIFY);
    return LATHE_OK;
}

lathe_status ref_gated_delta_fold(void *stream, const struct gated_delta_fold_args *a,
                                  lathe_error *err)
{
    (void)stream, (void)err;
    host_keep_before(a->S, &a->layers, a->seq);
    for (int32_t l = 0; l < a->layers.n; l++) {
        size_t state = (size_t)l * a->layers.state_step, record = (size_t)l * a->layers.record_step;
        struct gated_delta_rule_args rule = {.qkv = tensor_after(a->qkv, record),
                                             .g = tensor_after(a->g, record),
                                             .beta = tensor_after(a->beta, record),
                                             .S = tensor_after(a->S, state),
                                             .heads = a->heads};
        for (int32_t i = 0; i < a->n_seqs; i++)
            for (int64_t j = 0; j < a->heads.n_v_heads; j++)
                for (int64_t c = 0; c < a->heads.dv; c++)
                    delta_column(&rule, &a->seq[i], j, c, true);
    }
    return LATHE_OK;
}

static void fold_tail(const struct tensor *tails, const struct tensor *in,
                      const struct batch_seq *s)
{
    int64_t history = tails->dim[1];
    struct tensor tail = tensor_2d(tensor_at(tails, s->slot), tails->dtype, history,
                                   tails->dim[2]); /* [taps - 1, channels] */
    for (int64_t c = 0; c < in->dim[1]; c++)
        for (int64_t j = 0; j < history; j++) {
            int64_t from = s->n_rows + j - history; /* row, or if negative a place in the tail */
            put(&tail, j, c,
                from >= 0 ? get(in, s->first_row + from, c) : get(&tail, history + from, c));
        }
}

lathe_status ref_conv_fold(void *stream, const struct conv_fold_args *a, lathe_error *err)
{
    (void)stream, (void)err;
    host_keep_before(a->tail, &a->layers, a->seq);
    for (int32_t l = 0; l < a->layers.n; l++) {
        struct tensor tail = tensor_after(a->tail, (size_t)l * a->layers.state_step);
        struct tensor in = tensor_after(a->in, (size_t)l * a->layers.record_step);
        for (int32_t i = 0; i < a->n_seqs; i++)
            fold_tail(&tail, &in, &a->seq[i]);
    }
    return LATHE_OK;
}

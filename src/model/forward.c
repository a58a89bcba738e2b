#include "model/forward.h"

#include <math.h>

/* Gated DeltaNet mixer:  h += out_proj(norm(delta_rule(conv(in_proj(norm(h))))) * silu(z))
 *   n     h [T, hidden] act and its norm before; after, by the weights `next`
 *   tail  [n_slots, taps - 1, conv_dim] act, S [n_slots, n_v_heads, dk, dv] F32: advanced by the rows,
 *         or left alone and the steps' inputs put in `record` where the batch verifies
 *   g = -exp(A_log) * softplus(a + dt_bias),  beta = sigmoid(b)
 * From Qwen3_5GatedDeltaNet in transformers. */
static void gdn_mixer(struct exec *x, const struct dims *d, const struct layer *l, struct normed *n,
                      struct tensor next, const struct batch *b, struct tensor tail,
                      struct tensor S, const struct record_layer *record)
{
    const struct gdn_layer *w = &l->gdn;
    enum dtype act = n->h.dtype;
    int64_t T = b->n_rows;
    size_t mark = exec_push(x);
    struct record_layer r; /* q | k | v before and after the convolution, log decay g <= 0, beta */
    if (record)
        r = *record;
    else
        r = (struct record_layer){.mixed = exec_tmp(x, act, T, d->conv_dim),
                                  .qkv = exec_tmp(x, act, T, d->conv_dim),
                                  .g = exec_tmp(x, DT_F32, T, d->n_v_heads),
                                  .beta = exec_tmp(x, DT_F32, T, d->n_v_heads)};
    struct tensor z = exec_tmp(x, act, T, d->v_dim);
    struct gdn_projected p = {.mixed = r.mixed, .z = z, .g = r.g, .beta = r.beta};
    struct gdn_inputs in = {&w->in_proj_qkv, &w->in_proj_z, &w->in_proj_a,
                            &w->in_proj_b,   w->A_log,      w->dt_bias};
    struct gdn_heads heads = {d->n_k_heads, d->n_v_heads, d->dk, d->dv};

    op_gdn_project(x, &p, n, &in);
    op_gdn_mix(x, z, r.qkv, &p, w->conv1d, w->norm, d->rms_eps, tail, S, &heads, b); /* over z */
    op_linear_add_norm(x, n, z, &w->out_proj, next);
    exec_pop(x, mark);
}

/* Gated attention:  h += o_proj(attention(rope(norm(q)), rope(norm(k)), v) * sigmoid(gate))
 *   n   h [T, hidden] act and its norm before; after, by the weights `next`
 *   kv  pages of this layer; the rows' keys and values are appended before any row attends
 * From Qwen3_5Attention in transformers. */
void attn_mixer(struct exec *x, const struct dims *d, const struct layer *l, struct normed *n,
                struct tensor next, const struct batch *b, const struct kv_pages *kv,
                const struct rope *rope)
{
    enum dtype act = n->h.dtype;
    const struct attn_layer *w = &l->attn;
    int64_t T = b->n_rows, q_dim = (int64_t)d->n_heads * d->head_dim;
    int64_t kv_dim = (int64_t)d->n_kv_heads * d->head_dim;
    size_t mark = exec_push(x);
    struct tensor qg = exec_tmp(x, act, T, 2 * q_dim); /* per head: query, then gate */
    struct tensor q = exec_tmp(x, act, T, q_dim);
    struct tensor k = exec_tmp(x, act, T, kv_dim);
    struct tensor v = exec_tmp(x, act, T, kv_dim);

    op_linears(x, 3, (struct tensor[]){qg, k, v}, n,
               (const struct weight *[]){&w->q_proj, &w->k_proj, &w->v_proj});
    op_qk_norm_rope_append(x, q, k, qg, w->q_norm, w->k_norm, d->head_dim, d->rms_eps, rope, kv, v,
                           b);
    op_gated_attention(x, q, q, qg, kv, 1.0f / sqrtf((float)d->head_dim), b); /* over q */
    op_linear_add_norm(x, n, q, &w->o_proj, next);
    exec_pop(x, mark);
}

/* h += down_proj(silu(gate_proj(norm(h))) * up_proj(norm(h)))
 * next NULL: no norm is made of the result. */
void mlp(struct exec *x, const struct dims *d, const struct layer *l, struct normed *n,
         const struct tensor *next)
{
    size_t mark = exec_push(x);
    struct tensor y = exec_tmp(x, n->h.dtype, n->h.dim[0], d->mlp);

    op_linear_silu_mul(x, y, n, &l->mlp.gate_proj, &l->mlp.up_proj);
    if (next)
        op_linear_add_norm(x, n, y, &l->mlp.down_proj, *next);
    else
        op_linear_add(x, n->h, y, &l->mlp.down_proj);
    exec_pop(x, mark);
}

/* Copies the residual stream after layer i to its place in the features, if it has one. */
static void tap_feature(struct exec *x, const struct feature_taps *taps, int32_t i, struct tensor h)
{
    for (int32_t k = 0; k < taps->n; k++)
        if (taps->layer[k] == i)
            op_gather_rows(x, tensor_cols(taps->feature, k * h.dim[1], h.dim[1]), h, NULL);
}

void forward(struct exec *x, const struct model *m, struct state *s, const struct batch *b,
             const struct feature_taps *taps, struct tensor hidden)
{
    const struct dims *d = &m->dims;
    size_t mark = exec_push(x);
    enum phase outside = exec_phase(x, b->phase);
    struct tensor h = exec_tmp(x, s->act, b->n_rows, d->hidden); /* the residual stream */
    struct normed n = normed_tmp(x, h, d->rms_eps);
    int32_t n_attn = 0, n_gdn = 0;

    op_embed(x, h, &m->embed_tokens, b->token);
    op_norm(x, &n, m->layers[0].input_layernorm);
    for (int32_t i = 0; i < d->n_layers; i++) {
        const struct layer *l = &m->layers[i];
        exec_tap(x, "layer", i, &h);
        if (l->is_full_attention) {
            struct kv_pages kv = kv_cache_layer(&s->kv, n_attn++);
            attn_mixer(x, d, l, &n, l->post_attention_layernorm, b, &kv, &s->rope);
        } else {
            struct tensor tail = recurrent_tail(&s->recurrent, n_gdn);
            struct tensor S = recurrent_S(&s->recurrent, n_gdn);
            struct record_layer record = record_at(&s->record, n_gdn++, b->n_rows);
            gdn_mixer(x, d, l, &n, l->post_attention_layernorm, b, tail, S,
                      b->phase == PHASE_VERIFY ? &record : NULL);
        }
        mlp(x, d, l, &n, i + 1 < d->n_layers ? &l[1].input_layernorm : NULL);
        if (taps)
            tap_feature(x, taps, i, h);
    }
    op_rmsnorm(x, hidden, h, m->norm, d->rms_eps);
    exec_tap(x, "final", -1, &hidden);
    exec_phase(x, outside);
    exec_pop(x, mark);
}

void forward_commit(struct exec *x, const struct model *m, struct state *s,
                    const struct batch_seq *seq, int32_t n_seqs, const int32_t *before)
{
    const struct dims *d = &m->dims;
    struct gdn_heads heads = {d->n_k_heads, d->n_v_heads, d->dk, d->dv};
    struct fold_layers layers = {s->recurrent.shape.n_layers, recurrent_step(&s->recurrent),
                                 record_step(&s->record), before};
    struct record_layer r = record_at(&s->record, 0, s->record.n_rows);
    if (layers.n == 0)
        return;
    op_conv_fold(x, recurrent_tail(&s->recurrent, 0), r.mixed, &layers, seq, n_seqs);
    op_gated_delta_fold(x, recurrent_S(&s->recurrent, 0), r.qkv, r.g, r.beta, &heads, &layers, seq,
                        n_seqs);
}

void forward_logits(struct exec *x, const struct model *m, struct tensor logits,
                    struct tensor hidden, const int32_t *row)
{
    size_t mark = exec_push(x);
    struct tensor u = hidden;
    if (row) {
        u = exec_tmp(x, hidden.dtype, logits.dim[0], m->dims.hidden);
        op_gather_rows(x, u, hidden, row);
    }
    op_linear(x, logits, u, &m->lm_head);
    exec_pop(x, mark);
}

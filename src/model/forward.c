#include "model/forward.h"

#include <math.h>

/* Gated DeltaNet mixer:  h += out_proj(norm(delta_rule(conv(in_proj(norm(h))))) * silu(z))
 *   h     [T, hidden] act
 *   tail  [n_slots, taps - 1, conv_dim] act, S [n_slots, n_v_heads, dk, dv] F32: advanced by the rows,
 *         or left alone where the batch verifies
 *   g = -exp(A_log) * softplus(a + dt_bias),  beta = sigmoid(b)
 * From Qwen3_5GatedDeltaNet in transformers. */
static void gdn_mixer(struct exec *x, const struct dims *d, const struct layer *l, struct tensor h,
                      const struct batch *b, struct tensor tail, struct tensor S)
{
    const struct gdn_layer *w = &l->gdn;
    int64_t T = b->n_rows;
    size_t mark = exec_push(x);
    struct tensor u = exec_tmp(x, h.dtype, T, d->hidden);
    struct tensor mixed =
        exec_tmp(x, h.dtype, T, d->conv_dim);                 /* q | k | v before the convolution */
    struct tensor qkv = exec_tmp(x, h.dtype, T, d->conv_dim); /* and after it */
    struct tensor z = exec_tmp(x, h.dtype, T, d->v_dim);
    struct tensor g = exec_tmp(x, DT_F32, T, d->n_v_heads); /* log decay, <= 0 */
    struct tensor beta = exec_tmp(x, DT_F32, T, d->n_v_heads);
    struct tensor o = exec_tmp(x, DT_F32, T, d->v_dim); /* rounded once, after the gated norm */
    struct gdn_heads heads = {d->n_k_heads, d->n_v_heads, d->dk, d->dv};

    op_rmsnorm(x, u, h, l->input_layernorm, d->rms_eps);
    op_linear(x, mixed, u, &w->in_proj_qkv);
    op_linear(x, z, u, &w->in_proj_z);
    op_gdn_gates(x, g, beta, u, &w->in_proj_a, &w->in_proj_b, w->A_log, w->dt_bias);
    op_causal_conv1d_silu(x, qkv, mixed, w->conv1d, tail, b);
    op_gated_delta_rule(x, o, qkv, g, beta, S, &heads, b);
    op_rmsnorm_gated(x, z, o, z, w->norm, d->rms_eps); /* F32 in, act out, over z */
    op_linear_add(x, h, z, &w->out_proj);
    exec_pop(x, mark);
}

/* Gated attention:  h += o_proj(attention(rope(norm(q)), rope(norm(k)), v) * sigmoid(gate))
 *   h   [T, hidden] act
 *   kv  pages of this layer; the rows' keys and values are appended before any row attends
 * From Qwen3_5Attention in transformers. */
static void attn_mixer(struct exec *x, const struct dims *d, const struct layer *l, struct tensor h,
                       const struct batch *b, const struct kv_pages *kv, const struct rope *rope)
{
    const struct attn_layer *w = &l->attn;
    int64_t T = b->n_rows, q_dim = (int64_t)d->n_heads * d->head_dim;
    int64_t kv_dim = (int64_t)d->n_kv_heads * d->head_dim;
    size_t mark = exec_push(x);
    struct tensor u = exec_tmp(x, h.dtype, T, d->hidden);
    struct tensor qg = exec_tmp(x, h.dtype, T, 2 * q_dim); /* per head: query, then gate */
    struct tensor q = exec_tmp(x, h.dtype, T, q_dim);
    struct tensor k = exec_tmp(x, h.dtype, T, kv_dim);
    struct tensor v = exec_tmp(x, h.dtype, T, kv_dim);
    struct tensor o = exec_tmp(x, DT_F32, T, q_dim);

    op_rmsnorm(x, u, h, l->input_layernorm, d->rms_eps);
    op_linear(x, qg, u, &w->q_proj);
    op_linear(x, k, u, &w->k_proj);
    op_linear(x, v, u, &w->v_proj);
    op_qk_norm_rope(x, q, k, qg, w->q_norm, w->k_norm, d->head_dim, d->rms_eps, rope, b);
    op_kv_append(x, kv, k, v, b);
    op_attention(x, o, q, kv, 1.0f / sqrtf((float)d->head_dim), b);
    op_attention_gate(x, q, o, qg, d->head_dim); /* rounded once, over q */
    op_linear_add(x, h, q, &w->o_proj);
    exec_pop(x, mark);
}

/* h += down_proj(silu(gate_proj(norm(h))) * up_proj(norm(h))) */
static void mlp(struct exec *x, const struct dims *d, const struct layer *l, struct tensor h)
{
    int64_t T = h.dim[0];
    size_t mark = exec_push(x);
    struct tensor u = exec_tmp(x, h.dtype, T, d->hidden);
    struct tensor gate = exec_tmp(x, h.dtype, T, d->mlp);
    struct tensor up = exec_tmp(x, h.dtype, T, d->mlp);

    op_rmsnorm(x, u, h, l->post_attention_layernorm, d->rms_eps);
    op_linear(x, gate, u, &l->mlp.gate_proj);
    op_linear(x, up, u, &l->mlp.up_proj);
    op_silu_mul(x, gate, gate, up);
    op_linear_add(x, h, gate, &l->mlp.down_proj);
    exec_pop(x, mark);
}

void forward(struct exec *x, const struct model *m, struct state *s, const struct batch *b,
             struct tensor hidden)
{
    const struct dims *d = &m->dims;
    size_t mark = exec_push(x);
    struct tensor h = exec_tmp(x, s->act, b->n_rows, d->hidden); /* the residual stream */
    int32_t n_attn = 0, n_gdn = 0;

    op_embed(x, h, &m->embed_tokens, b->token);
    for (int32_t i = 0; i < d->n_layers; i++) {
        const struct layer *l = &m->layers[i];
        exec_tap(x, "layer", i, &h);
        if (l->is_full_attention) {
            struct kv_pages kv = kv_cache_layer(&s->kv, n_attn++);
            attn_mixer(x, d, l, h, b, &kv, &s->rope);
        } else {
            struct tensor tail = recurrent_tail(&s->recurrent, n_gdn);
            struct tensor S = recurrent_S(&s->recurrent, n_gdn++);
            gdn_mixer(x, d, l, h, b, tail, S);
        }
        mlp(x, d, l, h);
    }
    op_rmsnorm(x, hidden, h, m->norm, d->rms_eps);
    exec_tap(x, "final", -1, &hidden);
    exec_pop(x, mark);
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

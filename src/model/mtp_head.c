#include "model/forward.h"

/* u = fc [norm(embed(x)) | norm(h)]
 *   u, hidden [T, hidden] act
 * From the public vLLM and transformers implementations of Qwen3.5's head: the embedding comes first. */
static void fuse(struct exec *x, const struct model *m, const struct batch *b, struct tensor hidden,
                 struct tensor u)
{
    const struct dims *d = &m->dims;
    size_t mark = exec_push(x);
    struct tensor pair = exec_tmp(x, hidden.dtype, b->n_rows, 2 * (int64_t)d->hidden);
    struct tensor e = tensor_cols(pair, 0, d->hidden);
    struct tensor g = tensor_cols(pair, d->hidden, d->hidden);

    op_embed(x, e, &m->embed_tokens, b->token);
    op_rmsnorm(x, e, e, m->mtp.pre_fc_norm_embedding, d->rms_eps);
    op_rmsnorm(x, g, hidden, m->mtp.pre_fc_norm_hidden, d->rms_eps);
    op_linear(x, u, pair, &m->mtp.fc);
    exec_pop(x, mark);
}

void mtp_step(struct exec *x, const struct model *m, const struct batch *b,
              const struct kv_pages *kv, const struct rope *rope, struct tensor hidden,
              struct tensor s)
{
    const struct dims *d = &m->dims;
    size_t mark = exec_push(x);
    enum phase outside = exec_phase(x, b->phase);
    const struct layer *l = &m->mtp.layer;
    struct tensor u = exec_tmp(x, hidden.dtype, b->n_rows, d->hidden); /* the residual stream */
    struct normed n = normed_tmp(x, u, d->rms_eps);

    fuse(x, m, b, hidden, u);
    op_norm(x, &n, l->input_layernorm);
    attn_mixer(x, d, l, &n, l->post_attention_layernorm, b, kv, rope);
    mlp(x, d, l, &n, NULL);
    op_rmsnorm(x, s, u, m->mtp.norm, d->rms_eps);
    exec_phase(x, outside);
    exec_pop(x, mark);
}

void mtp_context(struct exec *x, const struct model *m, const struct batch *b,
                 const struct kv_pages *kv, const struct rope *rope, struct tensor hidden)
{
    const struct dims *d = &m->dims;
    const struct layer *l = &m->mtp.layer;
    int64_t T = b->n_rows, kv_dim = (int64_t)d->n_kv_heads * d->head_dim;
    size_t mark = exec_push(x);
    enum phase outside = exec_phase(x, b->phase);
    struct tensor u = exec_tmp(x, hidden.dtype, T, d->hidden);
    struct tensor k = exec_tmp(x, hidden.dtype, T, kv_dim);
    struct tensor v = exec_tmp(x, hidden.dtype, T, kv_dim);
    struct tensor q = exec_tmp(x, hidden.dtype, T, 0); /* nobody asks */

    fuse(x, m, b, hidden, u);
    op_rmsnorm(x, u, u, l->input_layernorm, d->rms_eps);
    struct normed n = normed_already(u);
    op_linears(x, 2, (struct tensor[]){k, v}, &n,
               (const struct weight *[]){&l->attn.k_proj, &l->attn.v_proj});
    op_qk_norm_rope_append(x, q, k, q, l->attn.q_norm, l->attn.k_norm, d->head_dim, d->rms_eps,
                           rope, kv, v, b);
    exec_phase(x, outside);
    exec_pop(x, mark);
}

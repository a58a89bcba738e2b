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
    struct tensor u = exec_tmp(x, hidden.dtype, b->n_rows, d->hidden); /* the residual stream */

    fuse(x, m, b, hidden, u);
    attn_mixer(x, d, &m->mtp.layer, u, b, kv, rope);
    mlp(x, d, &m->mtp.layer, u);
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
    op_linears(x, 2, (struct tensor[]){k, v}, u,
               (const struct weight *[]){&l->attn.k_proj, &l->attn.v_proj});
    op_qk_norm_rope_append(x, q, k, q, l->attn.q_norm, l->attn.k_norm, d->head_dim, d->rms_eps,
                           rope, kv, v, b);
    exec_phase(x, outside);
    exec_pop(x, mark);
}

/* The schedules of a block drafter: features to context, anchor and masks to hidden states. */
#include <math.h>

#include "spec/dflash.h"

/* Context of committed rows. All layers read the same fused features; no layer runs over them:
 *   t = norm(fc(feature)),  K_i = rope(norm(k_proj_i t)),  V_i = v_proj_i t */
void dflash_append(struct exec *x, const struct drafter *d, struct tensor feature,
                   const struct batch *b)
{
    enum { AT_ONCE = 8, FEW = 64 };
    const struct dims *c = &d->config.dims;
    int64_t T = b->n_rows, kv_dim = (int64_t)c->n_kv_heads * c->head_dim;
    int32_t most = T <= FEW ? AT_ONCE : 1; /* layers at once: few rows are bound by launches */
    size_t mark = exec_push(x);
    enum phase outside = exec_phase(x, b->phase);
    struct tensor t = exec_tmp(x, feature.dtype, T, c->hidden);

    op_linear(x, t, feature, &d->weights.fc);
    op_rmsnorm(x, t, t, d->weights.hidden_norm, c->rms_eps);
    struct normed fused = normed_already(t);
    for (int32_t first = 0; first < c->n_layers; first += most) {
        int32_t n = c->n_layers - first < most ? c->n_layers - first : most;
        size_t these = exec_push(x);
        struct ring_rows rows[AT_ONCE];
        for (int32_t i = 0; i < n; i++) {
            const struct dflash_layer *l = &d->weights.layers[first + i];
            rows[i] = (struct ring_rows){.k = exec_tmp(x, feature.dtype, T, kv_dim),
                                         .v = exec_tmp(x, feature.dtype, T, kv_dim),
                                         .k_norm = l->k_norm,
                                         .ring = &d->context.ring[first + i]};
            op_linears(x, 2, (struct tensor[]){rows[i].k, rows[i].v}, &fused,
                       (const struct weight *[]){&l->k_proj, &l->v_proj});
        }
        op_ring_rows(x, n, rows, c->rms_eps, &d->rope, b);
        for (int32_t i = 0; i < n; i++) {
            exec_tap(x, "context_k", first + i, &rows[i].k);
            exec_tap(x, "context_v", first + i, &rows[i].v);
        }
        exec_pop(x, these);
    }
    exec_phase(x, outside);
    exec_pop(x, mark);
}

/* What a half layer reads and how its result is added, with or without the convolution around it:
 *   in:  y = conv_0(u),  out:  h += conv_1(o), both with kernels made of u;  then u = norm(h) for what follows
 *   delta [T, 2 * taps * groups] F32 */
static struct tensor prepare(struct exec *x, const struct drafter *d, const struct dflash_conv *w,
                             struct tensor delta, struct tensor y, struct tensor u)
{
    const struct dflash_config *c = &d->config;
    if (c->kind != DFLASH_SELECTOR)
        return u;
    op_block_conv_made(x, y, delta, u, &w->kernel_projection,
                       tensor_rows(w->base_kernel, 0, c->conv_taps), c->block);
    return y;
}

static void finish(struct exec *x, const struct drafter *d, const struct dflash_conv *w,
                   struct tensor delta, struct tensor h, struct tensor u, struct tensor y,
                   struct tensor o, const struct weight *proj, struct tensor next)
{
    const struct dflash_config *c = &d->config;
    if (c->kind != DFLASH_SELECTOR) {
        op_linear_add(x, h, o, proj);
        op_rmsnorm(x, u, h, next, c->dims.rms_eps);
        return;
    }
    op_linear(x, y, o, proj);
    op_block_conv_add_norm(x, h, u, y, tensor_rows(w->base_kernel, c->conv_taps, c->conv_taps),
                           tensor_cols(delta, delta.dim[1] / 2, delta.dim[1] / 2), c->block, next,
                           c->dims.rms_eps);
}

/* delta of a half layer; nothing without convolutions. */
static struct tensor delta_of(struct exec *x, const struct dflash_config *c, int64_t T)
{
    int64_t n = c->kind == DFLASH_SELECTOR
                    ? (int64_t)2 * c->conv_taps * (c->dims.hidden / c->conv_group)
                    : 0;
    return exec_tmp(x, DT_F32, T, n);
}

/* u is h's norm before; after, by the weights `next`. */
static void attention(struct exec *x, const struct drafter *d, int32_t i, struct tensor h,
                      struct tensor u, struct tensor next, const struct batch *b)
{
    const struct dims *c = &d->config.dims;
    const struct dflash_layer *l = &d->weights.layers[i];
    int64_t T = b->n_rows, q_dim = (int64_t)c->n_heads * c->head_dim;
    int64_t kv_dim = (int64_t)c->n_kv_heads * c->head_dim;
    size_t mark = exec_push(x);
    struct tensor y = exec_tmp(x, h.dtype, T, c->hidden);
    struct tensor q = exec_tmp(x, h.dtype, T, q_dim);
    struct tensor k = exec_tmp(x, h.dtype, T, kv_dim);
    struct tensor v = exec_tmp(x, h.dtype, T, kv_dim);
    struct tensor o = exec_tmp(x, h.dtype, T, q_dim);
    struct tensor delta = delta_of(x, &d->config, T);
    int32_t window = c->is_full_attention[i] ? INT32_MAX : d->config.window;

    struct normed in = normed_already(prepare(x, d, &l->attention_conv, delta, y, u));
    op_linears(x, 3, (struct tensor[]){q, k, v}, &in,
               (const struct weight *[]){&l->q_proj, &l->k_proj, &l->v_proj});
    op_qk_norm_rope(x, q, k, q, l->q_norm, l->k_norm, c->head_dim, c->rms_eps, &d->rope, b);
    op_block_attention(x, o, q, &d->context.ring[i], k, v, window, 1.0f / sqrtf((float)c->head_dim),
                       b);
    finish(x, d, &l->attention_conv, delta, h, u, y, o, &l->o_proj, next);
    exec_pop(x, mark);
}

/* u is h's norm before; after, `to` is that by the weights `next`, and may be h. */
static void mlp_half(struct exec *x, const struct drafter *d, int32_t i, struct tensor h,
                     struct tensor u, struct tensor to, struct tensor next)
{
    const struct dims *c = &d->config.dims;
    const struct dflash_layer *l = &d->weights.layers[i];
    int64_t T = h.dim[0];
    size_t mark = exec_push(x);
    struct tensor y = exec_tmp(x, h.dtype, T, c->hidden);
    struct tensor gated = exec_tmp(x, h.dtype, T, c->mlp);
    struct tensor delta = delta_of(x, &d->config, T);

    struct normed in = normed_already(prepare(x, d, &l->mlp_conv, delta, y, u));
    op_linear_silu_mul(x, gated, &in, &l->mlp.gate_proj, &l->mlp.up_proj);
    finish(x, d, &l->mlp_conv, delta, h, to, y, gated, &l->mlp.down_proj, next);
    exec_pop(x, mark);
}

void dflash_block(struct exec *x, const struct drafter *d, struct tensor h, const struct batch *b)
{
    const struct dims *c = &d->config.dims;
    enum phase outside = exec_phase(x, b->phase);
    size_t mark = exec_push(x);
    struct tensor u = exec_tmp(x, h.dtype, h.dim[0], c->hidden);
    op_embed(x, h, d->embed_tokens, b->token);
    op_rmsnorm(x, u, h, d->weights.layers[0].input_layernorm, c->rms_eps);
    for (int32_t i = 0; i < c->n_layers; i++) {
        const struct dflash_layer *l = &d->weights.layers[i];
        bool is_last = i + 1 == c->n_layers;
        attention(x, d, i, h, u, l->post_attention_layernorm, b);
        mlp_half(x, d, i, h, u, is_last ? h : u, is_last ? d->weights.norm : l[1].input_layernorm);
    }
    exec_tap(x, "block_hidden", -1, &h);
    exec_phase(x, outside);
    exec_pop(x, mark);
}

#include "engine/model_info.h"

/* What a decoded token reads: entries of the model, and bytes in the checkpoint's formats. */
struct tally {
    uint64_t parameters, bytes;
};

static void add_matrix(struct tally *t, const struct weight *w)
{
    t->parameters += (uint64_t)(w->rows * w->cols);
    t->bytes += weight_bytes(w);
}

static void add_vector(struct tally *t, const struct tensor *v)
{
    t->parameters += (uint64_t)tensor_elements(v);
    t->bytes += (uint64_t)tensor_elements(v) * dtype_size(v->dtype);
}

static void add_layer(struct tally *t, const struct layer *l)
{
    add_vector(t, &l->input_layernorm);
    add_vector(t, &l->post_attention_layernorm);
    if (l->is_full_attention) {
        const struct attn_layer *w = &l->attn;
        add_matrix(t, &w->q_proj);
        add_matrix(t, &w->k_proj);
        add_matrix(t, &w->v_proj);
        add_matrix(t, &w->o_proj);
        add_vector(t, &w->q_norm);
        add_vector(t, &w->k_norm);
    } else {
        const struct gdn_layer *w = &l->gdn;
        add_matrix(t, &w->in_proj_qkv);
        add_matrix(t, &w->in_proj_z);
        add_matrix(t, &w->in_proj_a);
        add_matrix(t, &w->in_proj_b);
        add_matrix(t, &w->out_proj);
        add_vector(t, &w->conv1d);
        add_vector(t, &w->A_log);
        add_vector(t, &w->dt_bias);
        add_vector(t, &w->norm);
    }
    add_matrix(t, &l->mlp.gate_proj);
    add_matrix(t, &l->mlp.up_proj);
    add_matrix(t, &l->mlp.down_proj);
}

void model_info(const struct model *m, lathe_model_info *out)
{
    const struct dims *d = &m->dims;
    struct tally t = {0};
    int32_t n_full = 0;
    for (int32_t i = 0; i < d->n_layers; i++) {
        add_layer(&t, &m->layers[i]);
        n_full += m->layers[i].is_full_attention;
    }
    add_vector(&t, &m->norm);
    add_matrix(&t, &m->lm_head);
    t.bytes += weight_bytes(&m->embed_tokens) / (uint64_t)d->vocab; /* one row of it */
    if (!d->tied_head)
        t.parameters += (uint64_t)(m->embed_tokens.rows * m->embed_tokens.cols);
    *out = (lathe_model_info){
        .hidden = d->hidden,
        .n_layers = d->n_layers,
        .n_full_attention = n_full,
        .intermediate = d->mlp,
        .vocab = d->vocab,
        .n_heads = d->n_heads,
        .n_kv_heads = d->n_kv_heads,
        .head_dim = d->head_dim,
        .rotary_dims = d->rotary_dims,
        .gdn_k_heads = d->n_k_heads,
        .gdn_v_heads = d->n_v_heads,
        .gdn_k_dim = d->dk,
        .gdn_v_dim = d->dv,
        .conv_taps = d->conv_taps,
        .max_context = d->max_position,
        .tied_head = d->tied_head,
        .has_mtp = d->has_mtp,
        .has_vision = d->vision_depth > 0,
        .parameters = t.parameters,
        .bytes_per_token = t.bytes,
    };
}

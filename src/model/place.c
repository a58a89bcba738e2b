#include "model/place.h"

enum { ALIGN = 256 };

void place_tensor(struct placer *p, struct tensor *t)
{
    if (!t->data)
        return;
    size_t bytes = (size_t)tensor_elements(t) * dtype_size(t->dtype);
    if (p->memory) {
        unsigned char *at = p->memory + p->used;
        p->backend->copy_in(p->stream, at, t->data, bytes);
        t->data = at;
    }
    p->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (p->memory && p->progress)
        p->progress(p->progress_ctx, "loading", p->used, p->total);
}

void place_weight(struct placer *p, struct weight *w)
{
    place_tensor(p, &w->codes);
    place_tensor(p, &w->scales);
}

lathe_status placer_open(struct placer *p, const struct backend *backend, void *stream,
                         void (*walk)(struct placer *p, void *what), void *what, lathe_error *err)
{
    void *memory;
    p->backend = backend;
    p->stream = stream;
    p->memory = NULL;
    p->used = 0;
    if (backend->is_host)
        return LATHE_OK;
    walk(p, what);
    p->total = p->used;
    lathe_status st = backend->alloc(stream, &memory, p->total, err);
    if (st) {
        error_context(err, "weights");
        return st;
    }
    p->memory = memory;
    p->used = 0;
    walk(p, what);
    return backend->wait(stream, err);
}

void placer_close(struct placer *p)
{
    if (p->memory)
        p->backend->free(p->stream, p->memory);
    *p = (struct placer){0};
}

static void place_mlp(struct placer *p, struct mlp *m)
{
    place_weight(p, &m->gate_proj);
    place_weight(p, &m->up_proj);
    place_weight(p, &m->down_proj);
}

static void place_layer(struct placer *p, struct layer *l)
{
    place_tensor(p, &l->input_layernorm);
    place_tensor(p, &l->post_attention_layernorm);
    if (l->is_full_attention) {
        place_weight(p, &l->attn.q_proj);
        place_weight(p, &l->attn.k_proj);
        place_weight(p, &l->attn.v_proj);
        place_weight(p, &l->attn.o_proj);
        place_tensor(p, &l->attn.q_norm);
        place_tensor(p, &l->attn.k_norm);
    } else {
        place_weight(p, &l->gdn.in_proj_qkv);
        place_weight(p, &l->gdn.in_proj_z);
        place_weight(p, &l->gdn.in_proj_a);
        place_weight(p, &l->gdn.in_proj_b);
        place_tensor(p, &l->gdn.conv1d);
        place_tensor(p, &l->gdn.A_log);
        place_tensor(p, &l->gdn.dt_bias);
        place_tensor(p, &l->gdn.norm);
        place_weight(p, &l->gdn.out_proj);
    }
    place_mlp(p, &l->mlp);
}

void model_place(struct placer *p, void *model)
{
    struct model *m = model;
    place_weight(p, &m->embed_tokens);
    if (m->dims.tied_head)
        m->lm_head = m->embed_tokens;
    else
        place_weight(p, &m->lm_head);
    place_tensor(p, &m->norm);
    for (int32_t i = 0; i < m->dims.n_layers; i++)
        place_layer(p, &m->layers[i]);
    if (m->dims.has_mtp) {
        place_weight(p, &m->mtp.fc);
        place_tensor(p, &m->mtp.pre_fc_norm_embedding);
        place_tensor(p, &m->mtp.pre_fc_norm_hidden);
        place_tensor(p, &m->mtp.norm);
        place_layer(p, &m->mtp.layer);
    }
}

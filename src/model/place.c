#include "model/place.h"

void place_weight(struct memory *m, struct weight *w)
{
    memory_weight(m, &w->codes);
    memory_weight(m, &w->scales);
}

static void place_mlp(struct memory *p, struct mlp *m)
{
    memory_matrix(p, &m->gate_proj);
    memory_matrix(p, &m->up_proj);
    memory_matrix(p, &m->down_proj);
}

static void place_layer(struct memory *p, struct layer *l)
{
    memory_weight(p, &l->input_layernorm);
    memory_weight(p, &l->post_attention_layernorm);
    if (l->is_full_attention) {
        memory_matrix(p, &l->attn.q_proj);
        memory_matrix(p, &l->attn.k_proj);
        memory_matrix(p, &l->attn.v_proj);
        memory_matrix(p, &l->attn.o_proj);
        memory_weight(p, &l->attn.q_norm);
        memory_weight(p, &l->attn.k_norm);
    } else {
        memory_matrix(p, &l->gdn.in_proj_qkv);
        memory_matrix(p, &l->gdn.in_proj_z);
        place_weight(p, &l->gdn.in_proj_a);
        place_weight(p, &l->gdn.in_proj_b);
        memory_weight(p, &l->gdn.conv1d);
        memory_weight(p, &l->gdn.A_log);
        memory_weight(p, &l->gdn.dt_bias);
        memory_weight(p, &l->gdn.norm);
        memory_matrix(p, &l->gdn.out_proj);
    }
    place_mlp(p, &l->mlp);
}

void model_place(struct memory *p, struct model *m)
{
    place_weight(p, &m->embed_tokens);
    if (m->dims.tied_head)
        m->lm_head = m->embed_tokens;
    else
        memory_matrix(p, &m->lm_head);
    memory_weight(p, &m->norm);
    for (int32_t i = 0; i < m->dims.n_layers; i++)
        place_layer(p, &m->layers[i]);
    if (m->dims.has_mtp) {
        memory_matrix(p, &m->mtp.fc);
        memory_weight(p, &m->mtp.pre_fc_norm_embedding);
        memory_weight(p, &m->mtp.pre_fc_norm_hidden);
        memory_weight(p, &m->mtp.norm);
        place_layer(p, &m->mtp.layer);
    }
}

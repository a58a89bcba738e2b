#include "model/bind.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "model/declared.h"

static void bind_mlp(struct binder *b, struct mlp *w, const char *layer)
{
    const struct dims *d = &b->m->dims;
    char base[MAX_NAME];
    (void)snprintf(base, sizeof base, "%s.mlp", layer);
    struct part parts[] = {{&w->gate_proj, "gate_proj", d->mlp}, {&w->up_proj, "up_proj", d->mlp}};
    bind_parts(b, parts, 2, base, "gate_up_proj", d->hidden);
    (void)snprintf(base, sizeof base, "%s.mlp.down_proj", layer);
    bind_matrix(b, &w->down_proj, base, d->hidden, d->mlp);
}

static void bind_attention(struct binder *b, struct attn_layer *w, const char *layer)
{
    const struct dims *d = &b->m->dims;
    char base[MAX_NAME], proj[MAX_NAME + 8];
    int64_t kv = (int64_t)d->n_kv_heads * d->head_dim, q = (int64_t)d->n_heads * d->head_dim;
    (void)snprintf(base, sizeof base, "%s.self_attn", layer);
    struct part parts[] = {
        {&w->q_proj, "q_proj", 2 * q}, {&w->k_proj, "k_proj", kv}, {&w->v_proj, "v_proj", kv}};
    bind_parts(b, parts, 3, base, "qkv_proj", d->hidden);
    bind_norm(b, &w->q_norm, base, "q_norm.weight", d->head_dim);
    bind_norm(b, &w->k_norm, base, "k_norm.weight", d->head_dim);
    (void)snprintf(proj, sizeof proj, "%s.o_proj", base);
    bind_matrix(b, &w->o_proj, proj, d->hidden, q);
    /* Scales of an FP8 cache; the cache is wider than that. */
    static const char *const unneeded[] = {"q_scale", "k_scale", "v_scale", "k_proj.k_scale",
                                           "v_proj.v_scale"};
    for (size_t i = 0; i < sizeof unneeded / sizeof *unneeded; i++)
        (void)names_take(b, base, unneeded[i]);
}

static void bind_gdn(struct binder *b, struct gdn_layer *w, const char *layer)
{
    const struct dims *d = &b->m->dims;
    char base[MAX_NAME], proj[MAX_NAME + 16];
    (void)snprintf(base, sizeof base, "%s.linear_attn", layer);
    const struct {
        struct weight *weight;
        const char *name;
        int64_t rows, cols;
    } matrices[] = {
        {&w->in_proj_qkv, "in_proj_qkv", d->conv_dim, d->hidden},
        {&w->in_proj_z, "in_proj_z", d->v_dim, d->hidden},
        {&w->in_proj_a, "in_proj_a", d->n_v_heads, d->hidden},
        {&w->in_proj_b, "in_proj_b", d->n_v_heads, d->hidden},
        {&w->out_proj, "out_proj", d->hidden, d->v_dim},
    };
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
        (void)snprintf(proj, sizeof proj, "%s.%s", base, matrices[i].name);
        bind_matrix(b, matrices[i].weight, proj, matrices[i].rows, matrices[i].cols);
    }
    bind_vector(b, &w->conv1d, base, "conv1d.weight", d->conv_dim, d->conv_taps);
    bind_vector(b, &w->A_log, base, "A_log", d->n_v_heads, 0);
    bind_vector(b, &w->dt_bias, base, "dt_bias", d->n_v_heads, 0);
    bind_vector(b, &w->norm, base, "norm.weight", d->dv, 0);
}

static void bind_layer(struct binder *b, struct layer *l, const char *name, bool is_full_attention)
{
    const struct dims *d = &b->m->dims;
    l->is_full_attention = is_full_attention;
    bind_norm(b, &l->input_layernorm, name, "input_layernorm.weight", d->hidden);
    bind_norm(b, &l->post_attention_layernorm, name, "post_attention_layernorm.weight", d->hidden);
    if (is_full_attention)
        bind_attention(b, &l->attn, name);
    else
        bind_gdn(b, &l->gdn, name);
    bind_mlp(b, &l->mlp, name);
}

static void bind_text(struct binder *b)
{
    struct model *m = b->m;
    struct dims *d = &m->dims;
    bind_matrix(b, &m->embed_tokens, "embed_tokens", d->vocab, d->hidden);
    bind_norm(b, &m->norm, "norm.weight", NULL, d->hidden);
    for (int32_t i = 0; i < d->n_layers; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "layers.%d", i);
        bind_layer(b, &m->layers[i], name, d->is_full_attention[i]);
    }
    if (d->tied_head && names_has_prefix(b, "lm_head.")) {
        log_warn("config.json ties lm_head to the embedding, but the files have an lm_head, which "
                 "is used");
        d->tied_head = false;
    }
    if (d->tied_head)
        m->lm_head = m->embed_tokens;
    else
        bind_matrix(b, &m->lm_head, "lm_head", d->vocab, d->hidden);
}

/* The draft head is optional: text is the same without it. */
static void bind_mtp(struct binder *b)
{
    struct dims *d = &b->m->dims;
    struct mtp_head *w = &b->m->mtp;
    bool is_there = names_has_prefix(b, "mtp.");
    if (d->has_mtp && !is_there) {
        log_warn("config.json declares a draft head (mtp), but the files have none: it is off");
        d->has_mtp = false;
    } else if (!d->has_mtp && is_there) {
        log_warn("the files have a draft head (mtp) that config.json does not declare: it is off");
        names_ignore_prefix(b, "mtp.");
    }
    if (!d->has_mtp)
        return;
    bind_matrix(b, &w->fc, "mtp.fc", d->hidden, 2 * (int64_t)d->hidden);
    bind_norm(b, &w->pre_fc_norm_embedding, "mtp.pre_fc_norm_embedding.weight", NULL, d->hidden);
    bind_norm(b, &w->pre_fc_norm_hidden, "mtp.pre_fc_norm_hidden.weight", NULL, d->hidden);
    bind_norm(b, &w->norm, "mtp.norm.weight", NULL, d->hidden);
    bind_layer(b, &w->layer, "mtp.layers.0", true);
}

static int by_place(const void *a, const void *b)
{
    const struct bound *x = a, *y = b;
    if (x->tensor != y->tensor) /* elements of one array */
        return x->tensor < y->tensor ? -1 : 1;
    return strcmp(x->module.name, y->module.name);
}

static void list_modules(struct binder *b)
{
    struct model *m = b->m;
    m->modules = arena_calloc(&m->arena, b->n_bound, sizeof *m->modules);
    struct weight *weights = arena_calloc(&m->arena, b->n_bound, sizeof *weights);
    if (!m->modules || !weights) {
        problem_memory(b, b->n_bound * (sizeof *m->modules + sizeof *weights));
        return;
    }
    if (b->n_bound)
        qsort(b->bound, b->n_bound, sizeof *b->bound, by_place);
    for (size_t i = 0; i < b->n_bound; i++) {
        weights[i] = *b->bound[i].module.weight;
        m->modules[i] = (struct module){b->bound[i].module.name, &weights[i]};
    }
    m->n_modules = b->n_bound;
}

/* One warning where config.json says other formats than the tensors have. */
static lathe_status compare_formats(const struct model *m, const char *dir, lathe_error *err)
{
    struct declared *d;
    lathe_status st = declared_open(&d, dir, err);
    if (st)
        return st;
    for (size_t i = 0; i < m->n_modules; i++)
        declared_compare(d, m->modules[i].name, m->modules[i].weight->format);
    declared_close(d);
    return LATHE_OK;
}

static lathe_status bind_all(struct model *m, lathe_error *err)
{
    struct binder b;
    lathe_status st = names_open(&b, m->files, &m->arena, err);
    if (!st) {
        b.m = m;
        names_ignore_prefix(&b, "visual.");
        bind_text(&b);
        bind_mtp(&b);
        names_check_unused(&b);
        list_modules(&b);
        st = problems_check(&b, err);
    }
    names_close(&b);
    return st;
}

lathe_status model_open(struct model *m, const char *dir, lathe_error *err)
{
    *m = (struct model){0};
    lathe_status st = dims_read(&m->dims, dir, err);
    if (!st)
        st = checkpoint_open(&m->files, dir, err);
    if (st) {
        model_close(m);
        return st;
    }
    arena_init(&m->arena, SIZE_MAX);
    size_t n = (size_t)m->dims.n_layers;
    m->layers = arena_calloc(&m->arena, n, sizeof *m->layers);
    st = m->layers ? bind_all(m, err) : fail_memory(err, n * sizeof *m->layers);
    if (!st)
        st = compare_formats(m, dir, err);
    if (st) {
        error_context(err, "loading %s", dir);
        model_close(m);
    }
    return st;
}

void model_close(struct model *m)
{
    checkpoint_close(m->files);
    arena_release(&m->arena);
    *m = (struct model){0};
}

bool model_find_nonfinite(const struct model *m, char *what, size_t n)
{
    for (size_t i = 0; i < m->n_modules; i++) {
        int64_t row, col;
        if (!weight_find_nonfinite(m->modules[i].weight, &row, &col))
            continue;
        (void)snprintf(what, n, "tensor %s: row %lld, column %lld", m->modules[i].name,
                       (long long)row, (long long)col);
        return true;
    }
    return false;
}

#include <math.h>
#include <stdio.h>

#include "base/log.h"
#include "model/bind.h"
#include "model/declared.h"
#include "spec/dflash.h"

static double mean(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i];
    return sum / (double)n;
}

static void bind_conv(struct binder *b, const struct dflash_config *c, struct dflash_conv *w,
                      const char *layer, const char *name)
{
    char base[MAX_NAME];
    int32_t hidden = c->dims.hidden, taps = c->conv_taps;
    (void)snprintf(base, sizeof base, "%s.%s", layer, name);
    bind_stack(b, &w->base_kernel, base, "base_kernel", 2, taps, hidden);
    (void)snprintf(base, sizeof base, "%s.%s.kernel_projection", layer, name);
    bind_matrix(b, &w->kernel_projection, base, (int64_t)2 * taps * (hidden / c->conv_group),
                hidden);
    const float *k = w->base_kernel.data;
    if (!k)
        return;
    /* Training starts from the identity and stays near it; elsewhere the order of the dimensions is not the
     * one meant. */
    for (int side = 0; side < 2; side++) {
        double now = mean(k + side * taps * hidden, hidden);
        double before = mean(k + (side * taps + 1) * hidden, hidden);
        if (fabs(now - 1) > 0.5 || fabs(before) > 0.5)
            log_warn(
                "drafter %s.%s.base_kernel: mean of the taps %.3g and %.3g, expected about 1 and 0",
                layer, name, now, before);
    }
}

static void bind_layer(struct binder *b, const struct dflash_config *c, struct dflash_layer *w,
                       int32_t i)
{
    const struct dims *d = &c->dims;
    int64_t q = (int64_t)d->n_heads * d->head_dim, kv = (int64_t)d->n_kv_heads * d->head_dim;
    char layer[32], base[64];
    (void)snprintf(layer, sizeof layer, "layers.%d", i);
    bind_vector(b, &w->input_layernorm, layer, "input_layernorm.weight", d->hidden, 0);
    bind_vector(b, &w->post_attention_layernorm, layer, "post_attention_layernorm.weight",
                d->hidden, 0);
    (void)snprintf(base, sizeof base, "%s.self_attn", layer);
    struct part qkv[] = {
        {&w->q_proj, "q_proj", q}, {&w->k_proj, "k_proj", kv}, {&w->v_proj, "v_proj", kv}};
    bind_parts(b, qkv, 3, base, "qkv_proj", d->hidden);
    bind_vector(b, &w->q_norm, base, "q_norm.weight", d->head_dim, 0);
    bind_vector(b, &w->k_norm, base, "k_norm.weight", d->head_dim, 0);
    (void)snprintf(base, sizeof base, "%s.self_attn.o_proj", layer);
    bind_matrix(b, &w->o_proj, base, d->hidden, q);
    (void)snprintf(base, sizeof base, "%s.mlp", layer);
    struct part gate_up[] = {{&w->mlp.gate_proj, "gate_proj", d->mlp},
                             {&w->mlp.up_proj, "up_proj", d->mlp}};
    bind_parts(b, gate_up, 2, base, "gate_up_proj", d->hidden);
    (void)snprintf(base, sizeof base, "%s.mlp.down_proj", layer);
    bind_matrix(b, &w->mlp.down_proj, base, d->hidden, d->mlp);
    if (c->kind == DFLASH_SELECTOR) {
        bind_conv(b, c, &w->attention_conv, layer, "attention_conv");
        bind_conv(b, c, &w->mlp_conv, layer, "mlp_conv");
    }
}

static void bind_confidence(struct binder *b, struct dflash_config *c, struct dflash_weights *w)
{
    bool is_there = names_has_prefix(b, "confidence_head.");
    if (!c->has_confidence)
        names_ignore_prefix(b, "confidence_head.");
    c->has_confidence = c->has_confidence && is_there;
    if (!c->has_confidence)
        return;
    bind_matrix(b, &w->confidence, "confidence_head.proj", 1,
                (int64_t)c->dims.hidden + (c->confidence_sees_token ? c->rank : 0));
    struct tensor bias = {0};
    bind_vector(b, &bias, "confidence_head.proj", "bias", 1, 0);
    w->confidence_bias = bias.data ? *(const float *)bias.data : 0;
}

static void bind_all(struct binder *b, struct dflash_config *c, struct dflash_weights *w)
{
    const struct dims *d = &c->dims;
    bind_matrix(b, &w->fc, "fc", d->hidden, (int64_t)c->n_taps * d->hidden);
    bind_vector(b, &w->hidden_norm, "hidden_norm.weight", NULL, d->hidden, 0);
    bind_vector(b, &w->norm, "norm.weight", NULL, d->hidden, 0);
    for (int32_t i = 0; i < d->n_layers; i++)
        bind_layer(b, c, &w->layers[i], i);
    if (c->kind == DFLASH_SELECTOR) {
        bind_parameter(b, &w->before, "candidate_selector.predecessor_codebook", d->vocab, c->rank);
        bind_parameter(b, &w->after, "candidate_selector.successor_codebook", d->vocab, c->rank);
        bind_matrix(b, &w->hidden_projection, "candidate_selector.hidden_projection", c->rank,
                    d->hidden);
    } else if (c->kind == DFLASH_MARKOV) {
        bind_matrix(b, &w->before, "markov_head.markov_w1", d->vocab, c->rank);
        bind_matrix(b, &w->after, "markov_head.markov_w2", d->vocab, c->rank);
        bind_confidence(b, c, w);
    }
    if (names_has(b, "embed_tokens", "weight"))
        bind_matrix(b, &w->embed_tokens, "embed_tokens", d->vocab, d->hidden);
    if (names_has(b, "lm_head", "weight"))
        bind_matrix(b, &w->lm_head, "lm_head", d->vocab, d->hidden);
    names_check_unused(b);
}

/* One warning where config.json says other formats than the tensors have. */
static lathe_status compare_formats(const struct binder *b, const char *dir, lathe_error *err)
{
    struct declared *d;
    lathe_status st = declared_open(&d, dir, err);
    if (st)
        return st;
    for (size_t i = 0; i < b->n_bound; i++)
        declared_compare(d, b->bound[i].module.name, b->bound[i].module.weight->format);
    declared_close(d);
    return LATHE_OK;
}

lathe_status dflash_weights_open(struct dflash_weights *w, struct dflash_config *c, const char *dir,
                                 lathe_error *err)
{
    struct binder b;
    size_t n = (size_t)c->dims.n_layers;
    *w = (struct dflash_weights){0};
    lathe_status st = checkpoint_open(&w->files, dir, err);
    if (st)
        return st;
    arena_init(&w->arena, SIZE_MAX);
    w->layers = arena_calloc(&w->arena, n, sizeof *w->layers);
    if (!w->layers)
        st = fail_memory(err, n * sizeof *w->layers);
    if (!st) {
        st = names_open(&b, w->files, &w->arena, err);
        if (!st) {
            bind_all(&b, c, w);
            st = problems_check(&b, err);
            if (!st)
                st = compare_formats(&b, dir, err);
        }
        names_close(&b);
    }
    if (st) {
        error_context(err, "loading %s", dir);
        dflash_weights_close(w);
    }
    return st;
}

static void place_conv(struct memory *p, struct dflash_conv *w)
{
    memory_weight(p, &w->base_kernel);
    memory_matrix(p, &w->kernel_projection);
}

void dflash_weights_place(struct dflash_weights *w, const struct dflash_config *c, struct memory *p)
{
    memory_matrix(p, &w->fc);
    memory_weight(p, &w->hidden_norm);
    memory_weight(p, &w->norm);
    memory_matrix(p, &w->hidden_projection);
    place_weight(p, &w->before);
    place_weight(p, &w->after);
    place_weight(p, &w->confidence);
    place_weight(p, &w->embed_tokens);
    memory_matrix(p, &w->lm_head);
    for (int32_t i = 0; i < c->dims.n_layers; i++) {
        struct dflash_layer *l = &w->layers[i];
        memory_weight(p, &l->input_layernorm);
        memory_weight(p, &l->post_attention_layernorm);
        memory_matrix(p, &l->q_proj);
        memory_matrix(p, &l->k_proj);
        memory_matrix(p, &l->v_proj);
        memory_matrix(p, &l->o_proj);
        memory_weight(p, &l->q_norm);
        memory_weight(p, &l->k_norm);
        memory_matrix(p, &l->mlp.gate_proj);
        memory_matrix(p, &l->mlp.up_proj);
        memory_matrix(p, &l->mlp.down_proj);
        place_conv(p, &l->attention_conv);
        place_conv(p, &l->mlp_conv);
    }
}

void dflash_weights_close(struct dflash_weights *w)
{
    checkpoint_close(w->files);
    arena_release(&w->arena);
    *w = (struct dflash_weights){0};
}

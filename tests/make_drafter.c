#include "make_drafter.h"

#include <sys/stat.h>

#include "base/buf.h"

void drafter_spec_init(struct drafter_spec *s, const char *architecture)
{
    bool dflash2 = strcmp(architecture, "DFlash2DraftModel") == 0;
    bool dspark = strcmp(architecture, "DSparkDraftModel") == 0;
    *s = (struct drafter_spec){
        .seed = 1,
        .architecture = architecture,
        .vocab = 512,
        .hidden = 64,
        .mlp = 96,
        .n_layers = 2,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 16,
        .layer_types = "ss",
        .window = 12,
        .block = dflash2  ? 8
                 : dspark ? 7
                          : 16,
        .mask_token = 500,
        .n_target_layers = 4,
        .n_taps = 3,
        .tap = {0, 1, 3},
        .conv_group = 16,
        .rank = 8,
        .n_candidates = 4,
        .rope_theta = 1e4,
        .has_confidence = dspark,
        .confidence_sees_token = true,
        .dtype = DT_BF16,
        .std = 0.12,
    };
}

struct maker {
    const struct drafter_spec *s;
    struct out_file *f;
};

static struct rng rng_for(const struct maker *k, const char *name)
{
    uint64_t h = 0xCBF29CE484222325u ^ k->s->seed; /* FNV-1a */
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001B3u;
    return (struct rng){h};
}

static void add(const struct maker *k, const char *name, double mean, double std, int32_t n_dims,
                int64_t d0, int64_t d1, int64_t d2)
{
    struct rng r = rng_for(k, name);
    int64_t dims[] = {d0, d1, d2}, n = 1;
    for (int32_t i = 0; i < n_dims; i++)
        n *= dims[i];
    float *x = malloc((size_t)n * sizeof *x);
    void *data = malloc((size_t)n * sizeof *x);
    CHECK(x && data);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(mean + std * rng_normal(&r));
    from_f32(data, k->s->dtype, x, n);
    out_add(k->f, name, k->s->dtype, n_dims, dims, data);
    free(x);
    free(data);
}

static void add_matrix(const struct maker *k, const char *layer, const char *name, int64_t rows,
                       int64_t cols)
{
    char full[128];
    snprintf(full, sizeof full, "%s%s", layer, name);
    add(k, full, 0, k->s->std, 2, rows, cols, 0);
}

static void add_norm(const struct maker *k, const char *layer, const char *name, int64_t n)
{
    char full[128];
    snprintf(full, sizeof full, "%s%s", layer, name);
    add(k, full, 1, 0.1, 1, n, 0, 0);
}

/* Base kernels [2, 2, hidden] of about (1, 0), as training leaves them. */
static void add_conv(const struct maker *k, const char *layer, const char *name)
{
    const struct drafter_spec *s = k->s;
    char full[128];
    snprintf(full, sizeof full, "%s%s.base_kernel", layer, name);
    add(k, full, 0, s->identity ? 0 : 0.2, 3, 2, 2, s->hidden);
    struct out_tensor *t = out_find(k->f, full);
    for (int64_t i = 0; i < (int64_t)4 * s->hidden; i++) {
        unsigned char *at = t->data + (size_t)i * dtype_size(s->dtype);
        float x;
        to_f32(&x, at, s->dtype, 1);
        x += i / s->hidden % 2 == 0;
        from_f32(at, s->dtype, &x, 1);
    }
    snprintf(full, sizeof full, "%s%s.kernel_projection.weight", layer, name);
    add(k, full, 0, s->identity ? 0 : 0.03, 2, (int64_t)4 * (s->hidden / s->conv_group), s->hidden,
        0);
}

static bool is(const struct drafter_spec *s, const char *architecture)
{
    return strcmp(s->architecture, architecture) == 0;
}

void drafter_tensors(struct out_file *f, const struct drafter_spec *s)
{
    struct maker k = {s, f};
    int64_t q = (int64_t)s->n_heads * s->head_dim, kv = (int64_t)s->n_kv_heads * s->head_dim;
    *f = (struct out_file){0};
    add_matrix(&k, "", "fc.weight", s->hidden, (int64_t)s->n_taps * s->hidden);
    add_norm(&k, "", "hidden_norm.weight", s->hidden);
    add_norm(&k, "", "norm.weight", s->hidden);
    for (int32_t i = 0; i < s->n_layers; i++) {
        char layer[32];
        snprintf(layer, sizeof layer, "layers.%d.", i);
        add_norm(&k, layer, "input_layernorm.weight", s->hidden);
        add_norm(&k, layer, "post_attention_layernorm.weight", s->hidden);
        add_matrix(&k, layer, "self_attn.q_proj.weight", q, s->hidden);
        add_matrix(&k, layer, "self_attn.k_proj.weight", kv, s->hidden);
        add_matrix(&k, layer, "self_attn.v_proj.weight", kv, s->hidden);
        add_matrix(&k, layer, "self_attn.o_proj.weight", s->hidden, q);
        add_norm(&k, layer, "self_attn.q_norm.weight", s->head_dim);
        add_norm(&k, layer, "self_attn.k_norm.weight", s->head_dim);
        add_matrix(&k, layer, "mlp.gate_proj.weight", s->mlp, s->hidden);
        add_matrix(&k, layer, "mlp.up_proj.weight", s->mlp, s->hidden);
        add_matrix(&k, layer, "mlp.down_proj.weight", s->hidden, s->mlp);
        if (is(s, "DFlash2DraftModel")) {
            add_conv(&k, layer, "attention_conv");
            add_conv(&k, layer, "mlp_conv");
        }
    }
    if (is(s, "DFlash2DraftModel")) {
        add(&k, "candidate_selector.predecessor_codebook", 0, 1, 2, s->vocab, s->rank, 0);
        add(&k, "candidate_selector.successor_codebook", 0, s->no_successor ? 0 : 1, 2, s->vocab,
            s->rank, 0);
        add_matrix(&k, "", "candidate_selector.hidden_projection.weight", s->rank, s->hidden);
    }
    if (is(s, "DSparkDraftModel")) {
        add(&k, "markov_head.markov_w1.weight", 0, 1, 2, s->vocab, s->rank, 0);
        add(&k, "markov_head.markov_w2.weight", 0, 0.5, 2, s->vocab, s->rank, 0);
        if (s->has_confidence) {
            add_matrix(&k, "", "confidence_head.proj.weight", 1,
                       s->hidden + (s->confidence_sees_token ? s->rank : 0));
            add(&k, "confidence_head.proj.bias", 1, 0.1, 1, 1, 0, 0);
        }
    }
    if (s->own_embed)
        add_matrix(&k, "", "embed_tokens.weight", s->vocab, s->hidden);
    if (s->own_head)
        add_matrix(&k, "", "lm_head.weight", s->vocab, s->hidden);
}

static void print_block(struct buf *b, const struct drafter_spec *s)
{
    buf_printf(b, "%s\"block_size\": %d, \"mask_token_id\": %d, \"target_layer_ids\": [",
               s->flat ? ", " : ", \"dflash_config\": {", s->block, s->mask_token);
    for (int32_t i = 0; i < s->n_taps; i++)
        buf_printf(b, "%s%d", i ? ", " : "", s->tap[i]);
    buf_putc(b, ']');
    if (is(s, "DFlash2DraftModel"))
        buf_printf(b,
                   ", \"conv_kernel_size\": 2, \"conv_group_size\": %d, \"selector_rank\": %d, "
                   "\"selector_top_k\": %d",
                   s->conv_group, s->rank, s->n_candidates);
    if (is(s, "DSparkDraftModel"))
        buf_printf(b,
                   ", \"markov_rank\": %d, \"markov_head_type\": \"vanilla\", "
                   "\"enable_confidence_head\": %s, \"confidence_head_with_markov\": %s, "
                   "\"sample_from_anchor\": %s",
                   s->rank, s->has_confidence ? "true" : "false",
                   s->confidence_sees_token ? "true" : "false",
                   s->next_row_only ? "false" : "true");
    if (!s->flat)
        buf_putc(b, '}');
}

char *drafter_config(const struct drafter_spec *s)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    buf_printf(
        &b,
        "{\"architectures\": [\"%s\"], \"model_type\": \"qwen3\", \"vocab_size\": %d, "
        "\"hidden_size\": %d, \"intermediate_size\": %d, \"num_hidden_layers\": %d, "
        "\"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": %d, "
        "\"rms_norm_eps\": 1e-06, \"hidden_act\": \"silu\", \"attention_bias\": false, "
        "\"is_causal\": false, \"num_target_layers\": %d, \"max_position_embeddings\": 32768, "
        "\"layer_types\": [",
        s->architecture, s->vocab, s->hidden, s->mlp, s->n_layers, s->n_heads, s->n_kv_heads,
        s->head_dim, s->n_target_layers);
    for (int32_t i = 0; i < s->n_layers; i++)
        buf_printf(&b, "%s\"%s_attention\"", i ? ", " : "",
                   s->layer_types[i] == 's' ? "sliding" : "full");
    buf_printf(&b, "], \"sliding_window\": %d, \"rope_parameters\": {\"rope_theta\": %.17g, ",
               s->window, s->rope_theta);
    if (s->yarn_factor > 0)
        buf_printf(
            &b,
            "\"factor\": %.17g, \"original_max_position_embeddings\": %d, \"beta_fast\": 32, "
            "\"beta_slow\": 1, ",
            s->yarn_factor, s->original_max_position);
    buf_printf(&b, "\"rope_type\": \"%s\"}", s->yarn_factor > 0 ? "yarn" : "default");
    print_block(&b, s);
    buf_printf(&b, "%s}\n", s->extra ? s->extra : "");
    CHECK(!buf_check(&b, "config", NULL));
    return b.data;
}

void drafter_files(const char *dir, const struct drafter_spec *s, const struct out_file *f)
{
    char path[1200], *config = drafter_config(s);
    (void)mkdir(dir, 0755);
    snprintf(path, sizeof path, "%s/config.json", dir);
    test_write(path, config, strlen(config));
    free(config);
    out_write_shards(f, 1, dir);
}

void make_drafter(const char *dir, const struct drafter_spec *s)
{
    struct out_file f;
    drafter_tensors(&f, s);
    drafter_files(dir, s, &f);
    out_release(&f);
}

#include "make_model.h"

#include <sys/stat.h>

#include "base/buf.h"

void model_spec_init(struct model_spec *s)
{
    *s = (struct model_spec){
        .seed = 1,
        .vocab = 512,
        .hidden = 64,
        .mlp = 128,
        .n_layers = 4,
        .full_attention_interval = 4,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 32,
        .n_k_heads = 2,
        .n_v_heads = 6,
        .dk = 16,
        .dv = 16,
        .conv_taps = 4,
        .rope_theta = 1e7,
        .partial_rotary_factor = 0.25,
        .mrope_section = {2, 1, 1},
        .max_position = 262144,
        .has_mtp = true,
        .embed_format = WF_BF16,
        .head_format = WF_BF16,
        .attn_format = WF_BF16,
        .mlp_format = WF_BF16,
        .mtp_format = WF_BF16,
        .gdn_format = WF_BF16,
        .gate_format = WF_BF16,
        .scales = DT_BF16,
        .vectors = DT_BF16,
        .std = 0.06,
        .prefix = "model.language_model.",
    };
}

struct maker {
    const struct model_spec *s;
    struct out_file *f;
};

static struct rng rng_for(const struct maker *k, const char *name)
{
    uint64_t h = 0xCBF29CE484222325u ^ k->s->seed; /* FNV-1a */
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001B3u;
    return (struct rng){h};
}

/* Layer tensors are called "layers.0.x" for the generator and prefix + "layers.0.x" in the file. */
static void full_name(const struct maker *k, const char *name, char out[256])
{
    bool top = strncmp(name, "mtp.", 4) == 0 || strncmp(name, "lm_head", 7) == 0;
    snprintf(out, 256, "%s%s", top ? "" : k->s->prefix, name);
}

static void add(const struct maker *k, const char *base, const char *suffix, enum dtype dtype,
                int32_t n_dims, int64_t d0, int64_t d1, int64_t d2, const void *data)
{
    char name[256], full[512];
    full_name(k, base, name);
    snprintf(full, sizeof full, "%s%s", name, suffix);
    int64_t dims[] = {d0, d1, d2};
    out_add(k->f, full, dtype, n_dims, dims, data);
}

static void add_scalar(const struct maker *k, const char *base, const char *suffix, bool brackets,
                       float x)
{
    add(k, base, suffix, DT_F32, brackets, 1, 0, 0, &x);
}

/* The tensors of a packed matrix, as the format's makers name them. */
static void add_packed(const struct maker *k, const char *base, const struct weight *w)
{
    const struct tensor *c = &w->codes, *s = &w->scales;
    bool ct = w->format == WF_NVFP4 && !k->s->modelopt;
    add(k, base, ct ? ".weight_packed" : ".weight", c->dtype, 2, c->dim[0], c->dim[1], 0, c->data);
    switch (w->format) {
    case WF_FP8_TENSOR:
        add_scalar(k, base, ".weight_scale", false, w->global);
        add_scalar(k, base, ".input_scale", false, 0.125f);
        break;
    case WF_FP8_ROW:
        add(k, base, ".weight_scale", s->dtype, 2, s->dim[0], 1, 0, s->data);
        break;
    case WF_FP8_BLOCK:
        add(k, base, ".weight_scale_inv", s->dtype, 2, s->dim[0], s->dim[1], 0, s->data);
        break;
    case WF_NVFP4:
        add(k, base, ".weight_scale", s->dtype, 2, s->dim[0], s->dim[1], 0, s->data);
        add_scalar(k, base, ct ? ".weight_global_scale" : ".weight_scale_2", ct,
                   ct ? 1 / w->global : w->global);
        add_scalar(k, base, ct ? ".input_global_scale" : ".input_scale", ct, ct ? 8 : 0.125f);
        break;
    default:
        break;
    }
}

static void add_matrix(const struct maker *k, const char *base, enum weight_format_id format,
                       int64_t rows, int64_t cols)
{
    struct rng rng = rng_for(k, base);
    struct weight w;
    lathe_error e;
    size_t n = (size_t)(rows * cols);
    float *x = malloc(n * sizeof *x), amax = 0;
    CHECK(x);
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)(rng_normal(&rng) * k->s->std);
        amax = fmaxf(amax, fabsf(x[i]));
    }
    CHECK_OK(weight_formats[format].layout(&w, rows, cols, k->s->scales, &e), &e);
    w.codes.data = malloc((size_t)tensor_elements(&w.codes) * dtype_size(w.codes.dtype));
    if (w.scales.n_dims)
        w.scales.data = malloc((size_t)tensor_elements(&w.scales) * dtype_size(w.scales.dtype));
    CHECK(w.codes.data && (w.scales.data || !w.scales.n_dims));
    /* The same multiplier whether a file stores it or its reciprocal. */
    w.global = 1 / (1 / weight_global_for(format, amax));
    weight_formats[format].pack(&w, x, 0, rows);
    if (k->s->expand) {
        for (int64_t r = 0; r < rows; r++)
            weight_formats[format].unpack(x + r * cols, &w, r, 0, cols);
        add(k, base, ".weight", DT_F32, 2, rows, cols, 0, x);
    } else {
        add_packed(k, base, &w);
    }
    free(w.codes.data);
    free(w.scales.data);
    free(x);
}

enum kind { NORM, GATED_NORM, CONV, A_LOG, DT_BIAS };

static void add_vector(const struct maker *k, const char *name, enum kind kind, int64_t n,
                       int64_t taps)
{
    struct rng rng = rng_for(k, name);
    enum dtype dtype = k->s->vectors;
    int64_t total = n * (taps ? taps : 1);
    float *x = malloc((size_t)total * sizeof *x);
    void *data = malloc((size_t)total * sizeof *x);
    CHECK(x && data);
    for (int64_t i = 0; i < total; i++) {
        double v = 0;
        switch (kind) {
        case NORM:
            v = 0.1 * rng_normal(&rng);
            break;
        case GATED_NORM:
            v = 1 + 0.1 * rng_normal(&rng);
            break;
        case CONV:
            v = 0.4 * rng_normal(&rng);
            break;
        case A_LOG:
            v = log(1 + 15 * rng_unit(&rng));
            break;
        case DT_BIAS:
            v = 4 * rng_unit(&rng) - 2;
            break;
        }
        x[i] = (float)v;
    }
    from_f32(data, dtype, x, total);
    add(k, name, "", dtype, taps ? 3 : 1, n, 1, taps, data);
    free(x);
    free(data);
}

static bool is_full(const struct model_spec *s, int32_t i)
{
    return s->layer_types ? s->layer_types[i] == 'f' : (i + 1) % s->full_attention_interval == 0;
}

static void add_attention(const struct maker *k, const char *layer, enum weight_format_id format)
{
    const struct model_spec *s = k->s;
    int64_t q = (int64_t)s->n_heads * s->head_dim, kv = (int64_t)s->n_kv_heads * s->head_dim;
    char name[160];
    snprintf(name, sizeof name, "%s.self_attn.q_proj", layer);
    add_matrix(k, name, format, 2 * q, s->hidden);
    snprintf(name, sizeof name, "%s.self_attn.k_proj", layer);
    add_matrix(k, name, format, kv, s->hidden);
    snprintf(name, sizeof name, "%s.self_attn.v_proj", layer);
    add_matrix(k, name, format, kv, s->hidden);
    snprintf(name, sizeof name, "%s.self_attn.o_proj", layer);
    add_matrix(k, name, format, s->hidden, q);
    snprintf(name, sizeof name, "%s.self_attn.q_norm.weight", layer);
    add_vector(k, name, NORM, s->head_dim, 0);
    snprintf(name, sizeof name, "%s.self_attn.k_norm.weight", layer);
    add_vector(k, name, NORM, s->head_dim, 0);
}

static void add_gdn(const struct maker *k, const char *layer)
{
    const struct model_spec *s = k->s;
    int64_t qk = (int64_t)s->n_k_heads * s->dk, v = (int64_t)s->n_v_heads * s->dv;
    char name[160];
    snprintf(name, sizeof name, "%s.linear_attn.in_proj_qkv", layer);
    add_matrix(k, name, s->gdn_format, 2 * qk + v, s->hidden);
    snprintf(name, sizeof name, "%s.linear_attn.in_proj_z", layer);
    add_matrix(k, name, s->gdn_format, v, s->hidden);
    snprintf(name, sizeof name, "%s.linear_attn.in_proj_a", layer);
    add_matrix(k, name, s->gate_format, s->n_v_heads, s->hidden);
    snprintf(name, sizeof name, "%s.linear_attn.in_proj_b", layer);
    add_matrix(k, name, s->gate_format, s->n_v_heads, s->hidden);
    snprintf(name, sizeof name, "%s.linear_attn.out_proj", layer);
    add_matrix(k, name, s->gdn_format, s->hidden, v);
    snprintf(name, sizeof name, "%s.linear_attn.conv1d.weight", layer);
    add_vector(k, name, CONV, 2 * qk + v, s->conv_taps);
    snprintf(name, sizeof name, "%s.linear_attn.A_log", layer);
    add_vector(k, name, A_LOG, s->n_v_heads, 0);
    snprintf(name, sizeof name, "%s.linear_attn.dt_bias", layer);
    add_vector(k, name, DT_BIAS, s->n_v_heads, 0);
    snprintf(name, sizeof name, "%s.linear_attn.norm.weight", layer);
    add_vector(k, name, GATED_NORM, s->dv, 0);
}

static void add_layer(const struct maker *k, const char *layer, bool full,
                      enum weight_format_id attn, enum weight_format_id mlp)
{
    const struct model_spec *s = k->s;
    char name[160];
    snprintf(name, sizeof name, "%s.input_layernorm.weight", layer);
    add_vector(k, name, NORM, s->hidden, 0);
    if (full)
        add_attention(k, layer, attn);
    else
        add_gdn(k, layer);
    snprintf(name, sizeof name, "%s.post_attention_layernorm.weight", layer);
    add_vector(k, name, NORM, s->hidden, 0);
    snprintf(name, sizeof name, "%s.mlp.gate_proj", layer);
    add_matrix(k, name, mlp, s->mlp, s->hidden);
    snprintf(name, sizeof name, "%s.mlp.up_proj", layer);
    add_matrix(k, name, mlp, s->mlp, s->hidden);
    snprintf(name, sizeof name, "%s.mlp.down_proj", layer);
    add_matrix(k, name, mlp, s->hidden, s->mlp);
}

void make_tensors(struct out_file *f, const struct model_spec *s)
{
    struct maker k = {s, f};
    *f = (struct out_file){0};
    add_matrix(&k, "embed_tokens", s->embed_format, s->vocab, s->hidden);
    for (int32_t i = 0; i < s->n_layers; i++) {
        char name[32];
        snprintf(name, sizeof name, "layers.%d", i);
        add_layer(&k, name, is_full(s, i), s->attn_format, s->mlp_format);
    }
    add_vector(&k, "norm.weight", NORM, s->hidden, 0);
    if (!s->tied_head)
        add_matrix(&k, "lm_head", s->head_format, s->vocab, s->hidden);
    if (!s->has_mtp)
        return;
    add_matrix(&k, "mtp.fc", WF_BF16, s->hidden, 2 * (int64_t)s->hidden);
    add_vector(&k, "mtp.pre_fc_norm_embedding.weight", NORM, s->hidden, 0);
    add_vector(&k, "mtp.pre_fc_norm_hidden.weight", NORM, s->hidden, 0);
    add_vector(&k, "mtp.norm.weight", NORM, s->hidden, 0);
    add_layer(&k, "mtp.layers.0", true, s->mtp_format, s->mtp_format);
}

static void print_rope(struct buf *b, const struct model_spec *s)
{
    const int32_t *m = s->mrope_section;
    if (!s->old_rope)
        buf_printf(b, ", \"rope_parameters\": {\"rope_type\": \"%s\"",
                   s->yarn_factor > 0 ? "yarn" : "default");
    buf_printf(b, ", \"rope_theta\": %.17g, \"partial_rotary_factor\": %.17g", s->rope_theta,
               s->partial_rotary_factor);
    if (m[0] + m[1] + m[2])
        buf_printf(b, ", \"mrope_section\": [%d, %d, %d]", m[0], m[1], m[2]);
    if (s->yarn_factor > 0) {
        if (s->old_rope)
            buf_puts(b, ", \"rope_scaling\": {\"type\": \"yarn\"");
        buf_printf(b, ", \"factor\": %.17g, \"original_max_position_embeddings\": %d%s",
                   s->yarn_factor, s->original_max_position, s->old_rope ? "}" : "");
    }
    if (!s->old_rope)
        buf_putc(b, '}');
}

static void print_config(struct buf *b, const struct model_spec *s)
{
    const char *open = s->text_only ? "" : "\"text_config\": {\"model_type\": \"qwen3_5_text\", ";
    buf_printf(b,
               "{\"architectures\": [\"%s\"], \"model_type\": \"%s\", %s\"vocab_size\": %d, "
               "\"hidden_size\": %d, \"intermediate_size\": %d, \"num_hidden_layers\": %d, "
               "\"full_attention_interval\": %d, ",
               s->text_only ? "Qwen3_5ForCausalLM" : "Qwen3_5ForConditionalGeneration",
               s->text_only ? "qwen3_5_text" : "qwen3_5", open, s->vocab, s->hidden, s->mlp,
               s->n_layers, s->full_attention_interval);
    if (s->layer_types) {
        buf_puts(b, "\"layer_types\": [");
        for (int32_t i = 0; i < s->n_layers; i++)
            buf_printf(b, "%s\"%s_attention\"", i ? ", " : "", is_full(s, i) ? "full" : "linear");
        buf_puts(b, "], ");
    }
    buf_printf(b,
               "\"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": %d, "
               "\"attn_output_gate\": true, \"attention_bias\": false, \"hidden_act\": \"silu\", "
               "\"rms_norm_eps\": 1e-06, \"linear_num_key_heads\": %d, "
               "\"linear_num_value_heads\": %d, \"linear_key_head_dim\": %d, "
               "\"linear_value_head_dim\": %d, \"linear_conv_kernel_dim\": %d, "
               "\"max_position_embeddings\": %d, \"mtp_num_hidden_layers\": %d, "
               "\"tie_word_embeddings\": %s",
               s->n_heads, s->n_kv_heads, s->head_dim, s->n_k_heads, s->n_v_heads, s->dk, s->dv,
               s->conv_taps, s->max_position, s->has_mtp ? 1 : 0, s->tied_head ? "true" : "false");
    print_rope(b, s);
    buf_printf(b, "%s%s%s}\n", s->text_extra ? s->text_extra : "", s->text_only ? "" : "}",
               s->top_extra ? s->top_extra : "");
}

static void copy_text_files(const char *dir)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json",
                                        "chat_template.jinja", "generation_config.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char from[128], to[1200];
        size_t n;
        snprintf(from, sizeof from, "models/nano/%s", names[i]);
        snprintf(to, sizeof to, "%s/%s", dir, names[i]);
        char *data = test_read(test_path(from), &n);
        test_write(to, data, n);
        free(data);
    }
}

void make_files(const char *dir, const struct model_spec *s, const struct out_file *f)
{
    char path[1200];
    struct buf config;
    buf_init(&config, 1 << 20);
    (void)mkdir(dir, 0755);
    print_config(&config, s);
    CHECK(!buf_check(&config, "config", NULL));
    snprintf(path, sizeof path, "%s/config.json", dir);
    test_write(path, config.data, config.len);
    buf_release(&config);
    out_write_shards(f, s->n_shards, dir);
    if (s->tokenizer)
        copy_text_files(dir);
}

void make_model(const char *dir, const struct model_spec *s)
{
    struct out_file f;
    make_tensors(&f, s);
    make_files(dir, s, &f);
    out_release(&f);
}

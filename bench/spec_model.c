#include "spec_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "random.h"

static const struct dims dims_27b = {
    .vocab = 248320,
    .hidden = 5120,
    .mlp = 17408,
    .n_layers = SPEC_LAYERS,
    .rms_eps = 1e-6f,
    .n_heads = 24,
    .n_kv_heads = 4,
    .head_dim = 256,
    .n_k_heads = 16,
    .n_v_heads = 48,
    .dk = 128,
    .dv = 128,
    .conv_taps = 4,
    .k_dim = 2048,
    .v_dim = 6144,
    .conv_dim = 10240,
    .rotary_dims = 64,
    .mrope_section = {11, 11, 10},
    .rope_scale = 1,
    .max_position = 262144,
    .is_full_attention = {[SPEC_LAYERS - 1] = true},
    .tied_head = true,
    .has_mtp = true,
};

/* ---- The target ---------------------------------------------------------------------------- */

static struct weight matrix(enum weight_format_id format, int64_t rows, int64_t cols)
{
    struct weight w = random_weight(format, rows, cols);
    settle(&w);
    return w;
}

static struct tensor filled(int64_t n, float x)
{
    struct tensor t = tensor_1d(memory((size_t)n * sizeof x), DT_F32, n);
    for (int64_t i = 0; i < n; i++)
        ((float *)t.data)[i] = x;
    return t;
}

static struct attn_layer attn_layer(const struct dims *d)
{
    int64_t q = (int64_t)d->n_heads * d->head_dim, kv = (int64_t)d->n_kv_heads * d->head_dim;
    return (struct attn_layer){
        .q_proj = matrix(WF_FP8_ROW, 2 * q, d->hidden),
        .k_proj = matrix(WF_FP8_ROW, kv, d->hidden),
        .v_proj = matrix(WF_FP8_ROW, kv, d->hidden),
        .o_proj = matrix(WF_FP8_ROW, d->hidden, q),
        .q_norm = filled(d->head_dim, 1),
        .k_norm = filled(d->head_dim, 1),
    };
}

static struct gdn_layer gdn_layer(const struct dims *d)
{
    return (struct gdn_layer){
        .in_proj_qkv = matrix(WF_FP8_ROW, d->conv_dim, d->hidden),
        .in_proj_z = matrix(WF_FP8_ROW, d->v_dim, d->hidden),
        .in_proj_a = matrix(WF_BF16, d->n_v_heads, d->hidden),
        .in_proj_b = matrix(WF_BF16, d->n_v_heads, d->hidden),
        .conv1d = numbers(DT_F32, d->conv_dim, d->conv_taps),
        .A_log = filled(d->n_v_heads, -3), /* decays by about 0.97 a token */
        .dt_bias = numbers_1d(d->n_v_heads),
        .norm = filled(d->dv, 1),
        .out_proj = matrix(WF_FP8_ROW, d->hidden, d->v_dim),
    };
}

static void fill_layer(struct layer *l, const struct dims *d, bool attention,
                       enum weight_format_id mlp)
{
    l->is_full_attention = attention;
    l->input_layernorm = filled(d->hidden, 1);
    l->post_attention_layernorm = filled(d->hidden, 1);
    if (attention)
        l->attn = attn_layer(d);
    else
        l->gdn = gdn_layer(d);
    l->mlp.gate_proj = matrix(mlp, d->mlp, d->hidden);
    l->mlp.up_proj = matrix(mlp, d->mlp, d->hidden);
    l->mlp.down_proj = matrix(mlp, d->hidden, d->mlp);
}

void spec_model(struct model *m)
{
    *m = (struct model){.dims = dims_27b};
    struct dims *d = &m->dims;
    for (int32_t i = 0; i < d->rotary_dims / 2; i++)
        d->inv_freq[i] = (float)pow(1e7, -2. * i / d->rotary_dims);
    m->lm_head = m->embed_tokens = matrix(WF_FP8_ROW, d->vocab, d->hidden);
    m->norm = filled(d->hidden, 1);
    m->layers = memory(SPEC_LAYERS * sizeof *m->layers);
    for (int32_t i = 0; i < SPEC_LAYERS; i++)
        fill_layer(&m->layers[i], d, d->is_full_attention[i], WF_NVFP4);
    m->mtp.fc = matrix(WF_BF16, d->hidden, 2 * (int64_t)d->hidden);
    m->mtp.pre_fc_norm_embedding = filled(d->hidden, 1);
    m->mtp.pre_fc_norm_hidden = filled(d->hidden, 1);
    m->mtp.norm = filled(d->hidden, 1);
    fill_layer(&m->mtp.layer, d, true, WF_FP8_ROW);
}

/* ---- The drafter's files ------------------------------------------------------------------- */

enum {
    DRAFT_LAYERS = 5,
    DRAFT_Q = 4096, /* 32 heads of 128 */
    DRAFT_KV = 1024,
    DRAFT_RANK = 256,
    DRAFT_TAPS = 5,
    CONV_ROWS = 4 * 5120 / 16,
    CHUNK = 1 << 20,
};

static const char drafter_config[] =
    "{\"architectures\": [\"DFlash2DraftModel\"], \"model_type\": \"qwen3\", \"hidden_size\": "
    "5120, "
    "\"intermediate_size\": 17408, \"num_hidden_layers\": 5, \"num_attention_heads\": 32, "
    "\"num_key_value_heads\": 8, \"head_dim\": 128, \"vocab_size\": 248320, \"rms_norm_eps\": "
    "1e-06, "
    "\"hidden_act\": \"silu\", \"attention_bias\": false, \"is_causal\": false, \"layer_types\": "
    "[\"sliding_attention\", \"sliding_attention\", \"sliding_attention\", \"sliding_attention\", "
    "\"sliding_attention\"], \"sliding_window\": 2048, \"use_sliding_window\": true, "
    "\"max_window_layers\": 5, \"num_target_layers\": 64, \"max_position_embeddings\": 262144, "
    "\"rope_parameters\": {\"rope_theta\": 10000000, \"rope_type\": \"default\"}, "
    "\"dflash_config\": {\"block_size\": 8, \"mask_token_id\": 248070, \"target_layer_ids\": "
    "[5, 19, 33, 47, 61], \"conv_kernel_size\": 2, \"conv_group_size\": 16, \"selector_rank\": "
    "256, "
    "\"selector_top_k\": 16}}\n";

enum fill { FILL_CODES, FILL_BF16, FILL_SCALE, FILL_ONE, FILL_ZERO, FILL_COUNT };

/* Goes over the tensors twice: for the header, then for the data. */
struct writer {
    FILE *file;
    bool is_header;
    uint64_t at;                     /* bytes of data so far */
    unsigned char *fill[FILL_COUNT]; /* [CHUNK] of each */
};

static void put(struct writer *w, enum fill fill, uint64_t bytes)
{
    w->at += bytes;
    for (uint64_t n; !w->is_header && bytes > 0; bytes -= n) {
        n = bytes < CHUNK ? bytes : CHUNK;
        fwrite(w->fill[fill], 1, n, w->file);
    }
}

static void entry(struct writer *w, const char *layer, const char *name, const char *dtype,
                  const char *shape, uint64_t bytes)
{
    if (w->is_header)
        fprintf(w->file,
                "%s\"%s%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%llu,%llu]}",
                w->at ? "," : "{", layer, name, dtype, shape, (unsigned long long)w->at,
                (unsigned long long)(w->at + bytes));
}

static void add_bf16(struct writer *w, const char *layer, const char *name, int64_t rows,
                     int64_t cols)
{
    char shape[48];
    uint64_t bytes = 2 * (uint64_t)(rows * cols);
    snprintf(shape, sizeof shape, "%lld,%lld", (long long)rows, (long long)cols);
    entry(w, layer, name, "BF16", shape, bytes);
    put(w, FILL_BF16, bytes);
}

static void add_fp8(struct writer *w, const char *layer, const char *name, int64_t rows,
                    int64_t cols)
{
    char full[64], shape[48];
    snprintf(full, sizeof full, "%s.weight", name);
    snprintf(shape, sizeof shape, "%lld,%lld", (long long)rows, (long long)cols);
    entry(w, layer, full, "F8_E4M3", shape, (uint64_t)(rows * cols));
    put(w, FILL_CODES, (uint64_t)(rows * cols));
    snprintf(full, sizeof full, "%s.weight_scale", name);
    snprintf(shape, sizeof shape, "%lld,1", (long long)rows);
    entry(w, layer, full, "BF16", shape, 2 * (uint64_t)rows);
    put(w, FILL_SCALE, 2 * (uint64_t)rows);
}

static void add_norm(struct writer *w, const char *layer, const char *name, int64_t n)
{
    char shape[24];
    snprintf(shape, sizeof shape, "%lld", (long long)n);
    entry(w, layer, name, "BF16", shape, 2 * (uint64_t)n);
    put(w, FILL_ONE, 2 * (uint64_t)n);
}

/* The identity, before and after a half layer. */
static void add_kernels(struct writer *w, const char *layer, const char *name)
{
    uint64_t row = 2 * (uint64_t)dims_27b.hidden;
    entry(w, layer, name, "BF16", "2,2,5120", 4 * row);
    for (int i = 0; i < 4; i++)
        put(w, i % 2 ? FILL_ZERO : FILL_ONE, row);
}

static void add_layer(struct writer *w, const char *layer)
{
    int64_t hidden = dims_27b.hidden, mlp = dims_27b.mlp;
    add_norm(w, layer, "input_layernorm.weight", hidden);
    add_norm(w, layer, "post_attention_layernorm.weight", hidden);
    add_fp8(w, layer, "self_attn.q_proj", DRAFT_Q, hidden);
    add_fp8(w, layer, "self_attn.k_proj", DRAFT_KV, hidden);
    add_fp8(w, layer, "self_attn.v_proj", DRAFT_KV, hidden);
    add_fp8(w, layer, "self_attn.o_proj", hidden, DRAFT_Q);
    add_norm(w, layer, "self_attn.q_norm.weight", 128);
    add_norm(w, layer, "self_attn.k_norm.weight", 128);
    add_fp8(w, layer, "mlp.gate_proj", mlp, hidden);
    add_fp8(w, layer, "mlp.up_proj", mlp, hidden);
    add_fp8(w, layer, "mlp.down_proj", hidden, mlp);
    add_kernels(w, layer, "attention_conv.base_kernel");
    add_bf16(w, layer, "attention_conv.kernel_projection.weight", CONV_ROWS, hidden);
    add_kernels(w, layer, "mlp_conv.base_kernel");
    add_bf16(w, layer, "mlp_conv.kernel_projection.weight", CONV_ROWS, hidden);
}

static void add_all(struct writer *w)
{
    int64_t hidden = dims_27b.hidden, vocab = dims_27b.vocab;
    w->at = 0;
    add_fp8(w, "", "fc", hidden, DRAFT_TAPS * hidden);
    add_norm(w, "", "hidden_norm.weight", hidden);
    add_norm(w, "", "norm.weight", hidden);
    for (int i = 0; i < DRAFT_LAYERS; i++) {
        char layer[16];
        snprintf(layer, sizeof layer, "layers.%d.", i);
        add_layer(w, layer);
    }
    add_bf16(w, "", "candidate_selector.predecessor_codebook", vocab, DRAFT_RANK);
    add_bf16(w, "", "candidate_selector.successor_codebook", vocab, DRAFT_RANK);
    add_bf16(w, "", "candidate_selector.hidden_projection.weight", DRAFT_RANK, hidden);
}

/* A length that the header gets filled up to with spaces, as readers allow. */
enum { HEADER = 32768 };

static void write_tensors(FILE *file)
{
    struct writer w = {.file = file};
    struct tensor one = zeros(DT_BF16, 1, CHUNK / 2), scale = zeros(DT_BF16, 1, CHUNK / 2);
    for (int64_t i = 0; i < CHUNK / 2; i++) {
        from_f32((uint16_t *)one.data + i, DT_BF16, &(float){1}, 1);
        from_f32((uint16_t *)scale.data + i, DT_BF16, &(float){0.02f}, 1);
    }
    w.fill[FILL_CODES] = random_weight(WF_FP8_ROW, 1, CHUNK).codes.data;
    w.fill[FILL_BF16] = random_weight(WF_BF16, 1, CHUNK / 2).codes.data;
    w.fill[FILL_SCALE] = scale.data;
    w.fill[FILL_ONE] = one.data;
    w.fill[FILL_ZERO] = zeros(DT_BF16, 1, CHUNK / 2).data;
    fwrite((const unsigned char[8]){HEADER & 255, HEADER >> 8}, 1, 8, file);
    w.is_header = true;
    add_all(&w);
    fputc('}', file);
    for (long at = ftell(file); at < 8 + HEADER; at++)
        fputc(' ', file);
    w.is_header = false;
    add_all(&w);
}

static void name_in(char path[4096], const char *dir, const char *name)
{
    snprintf(path, 4096, "%s/%s", dir, name);
}

static bool write_file(const char *dir, const char *name, void (*fill)(FILE *file))
{
    char path[4096];
    name_in(path, dir, name);
    FILE *file = fopen(path, "wb");
    if (!file)
        return false;
    fill(file);
    bool ok = !ferror(file);
    return fclose(file) == 0 && ok;
}

static void write_config(FILE *file)
{
    fputs(drafter_config, file);
}

lathe_status spec_drafter_write(char *dir, size_t size, const char *parent, lathe_error *err)
{
    int n = snprintf(dir, size, "%s/lathe-spec-XXXXXX", parent);
    if (n < 0 || (size_t)n >= size || !mkdtemp(dir))
        return fail(err, LATHE_E_IO, "no folder could be made in %s", parent);
    if (write_file(dir, "config.json", write_config) &&
        write_file(dir, "model.safetensors", write_tensors))
        return LATHE_OK;
    spec_drafter_remove(dir);
    return fail(err, LATHE_E_IO, "a drafter of 2.1 GB could not be written to %s", parent);
}

void spec_drafter_remove(const char *dir)
{
    char path[4096];
    name_in(path, dir, "config.json");
    unlink(path);
    name_in(path, dir, "model.safetensors");
    unlink(path);
    rmdir(dir);
}

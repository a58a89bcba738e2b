/* Checkpoints of block drafters that are read, and those that are refused: configuration, fit to the
 * target, tensors. */
#include "draft_rig.h"
#include "make_model.h"
#include "test.h"

#include "base/log.h"

static int n_warnings;
static char warning[512];

static void note(void *ctx, lathe_log_level level, const char *line)
{
    (void)ctx;
    n_warnings += level == LATHE_LOG_WARN;
    snprintf(warning, sizeof warning, "%s", line);
}

/* ---- config.json ----------------------------------------------------------------------------- */

/* The generated configuration with `from` replaced by `to`, which must occur. */
static lathe_status parse(struct dflash_config *c, const struct drafter_spec *s, const char *from,
                          const char *to, lathe_error *err)
{
    char *text = drafter_config(s), edited[4096];
    char *at = from ? strstr(text, from) : text;
    if (!at)
        FAIL("no %s in %s", from, text);
    snprintf(edited, sizeof edited, "%.*s%s%s", (int)(at - text), text, to ? to : "",
             at + (from ? strlen(from) : 0));
    free(text);
    return dflash_config_parse(c, edited, strlen(edited), err);
}

TEST(the_shipped_configuration)
{
    struct dflash_config c;
    lathe_error err;
    CHECK_OK(dflash_config_read(&c, test_path("models/nano-dflash2"), &err), &err);
    CHECK(c.kind == DFLASH_SELECTOR);
    CHECK_INT(c.block, 8);
    CHECK_INT(c.first_row, 1);
    CHECK_INT(c.window, 512);
    CHECK_INT(c.mask_token, 8186);
    CHECK_INT(c.n_target_layers, 8);
    CHECK_INT(c.n_taps, 5);
    CHECK_INT(c.tap[4], 7);
    CHECK_INT(c.conv_group, 16);
    CHECK_INT(c.rank, 64);
    CHECK_INT(c.n_candidates, 16);
    CHECK_INT(c.dims.rotary_dims, 128); /* whole heads, not the target's quarter */
    CHECK(fabsf(c.dims.inv_freq[63] - powf(1e7f, -63.f / 64)) < 1e-10f);
    for (int i = 0; i < 5; i++)
        CHECK(!c.dims.is_full_attention[i]);
}

TEST(kinds)
{
    static const struct {
        const char *architecture;
        enum dflash_kind kind;
        int32_t first_row;
    } kinds[] = {{"DFlash2DraftModel", DFLASH_SELECTOR, 1},
                 {"DFlashDraftModel", DFLASH_PLAIN, 1},
                 {"DSparkDraftModel", DFLASH_MARKOV, 0}};
    for (size_t i = 0; i < 3; i++)
        for (int flat = 0; flat < 2; flat++) {
            struct dflash_config c;
            struct drafter_spec s;
            lathe_error err;
            drafter_spec_init(&s, kinds[i].architecture);
            s.flat = flat;
            CHECK_OK(parse(&c, &s, NULL, NULL, &err), &err);
            CHECK(c.kind == kinds[i].kind);
            CHECK_INT(c.first_row, kinds[i].first_row);
            CHECK_INT(c.block, s.block);
        }
}

/* The formulas of YaRN at the published drafter's numbers. */
TEST(yarn)
{
    struct dflash_config c;
    struct drafter_spec s;
    lathe_error err;
    drafter_spec_init(&s, "DSparkDraftModel");
    s.head_dim = 128;
    s.rope_theta = 1e7;
    s.yarn_factor = 32;
    s.original_max_position = 8192;
    CHECK_OK(parse(&c, &s, NULL, NULL, &err), &err);
    CHECK(fabs((double)c.dims.rope_scale - 1.34657) < 1e-5);
    for (int j = 0; j < 64; j++) {
        double r = fmin(fmax((j - 14) / 15., 0), 1), want = pow(1e7, -j / 64.) * (1 - r + r / 32);
        if (fabs((double)c.dims.inv_freq[j] - want) > 1e-6 * want)
            FAIL("frequency %d is %.9g, expected %.9g", j, (double)c.dims.inv_freq[j], want);
    }
}

TEST(configurations_that_are_refused)
{
    static const struct {
        const char *from, *to;
        lathe_status status;
        const char *says;
    } edits[] = {
        {"\"DFlash2DraftModel\"", "\"Qwen3ForCausalLM\"", LATHE_E_UNSUPPORTED,
         "architectures \"Qwen3ForCausalLM\""},
        {"\"architectures\"", "\"arch\"", LATHE_E_UNSUPPORTED, "architectures \"missing\""},
        {"\"is_causal\": false", "\"is_causal\": true", LATHE_E_UNSUPPORTED, "is_causal true"},
        {"\"is_causal\": false, ", "", LATHE_E_FORMAT, "is_causal: missing"},
        {"\"rope_theta\": 10000, ", "", LATHE_E_FORMAT, "rope_parameters.rope_theta: missing"},
        {"\"model_type\": \"qwen3\"", "\"model_type\": \"llama\"", LATHE_E_UNSUPPORTED, "llama"},
        {"\"attention_bias\": false", "\"attention_bias\": true", LATHE_E_UNSUPPORTED,
         "attention_bias true"},
        {"\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", LATHE_E_UNSUPPORTED, "gelu"},
        {"\"hidden_size\": 64, ", "", LATHE_E_FORMAT, "hidden_size: missing"},
        {"\"sliding_window\": 12, ", "", LATHE_E_FORMAT, "sliding_window: missing"},
        {"\"sliding_attention\", \"sliding", "\"sliding", LATHE_E_FORMAT,
         "layer_types: 1 entries, expected num_hidden_layers, 2"},
        {"\"sliding_attention\"", "\"linear_attention\"", LATHE_E_UNSUPPORTED,
         "layer_types[0]: \"linear_attention\""},
        {"\"block_size\": 8", "\"block_size\": 1", LATHE_E_FORMAT,
         "block_size: 1, expected 2 to 64"},
        {"\"block_size\": 8, ", "", LATHE_E_FORMAT, "block_size: missing"},
        {"\"mask_token_id\": 500", "\"mask_token_id\": 512", LATHE_E_FORMAT,
         "mask_token_id: 512, expected 0 to 511"},
        {"[0, 1, 3]", "[]", LATHE_E_FORMAT, "target_layer_ids: an array of 0 entries"},
        {"[0, 1, 3]", "[0, 3, 1]", LATHE_E_UNSUPPORTED, "target_layer_ids: 1 after 3"},
        {"[0, 1, 3]", "[-1, 1, 3]", LATHE_E_FORMAT, "target_layer_ids: -1"},
        {"[0, 1, 3]", "[0, \"1\", 3]", LATHE_E_FORMAT, "target_layer_ids: a string"},
        {"\"sliding_window\": 12", "\"block_size\": 16, \"sliding_window\": 12", LATHE_E_FORMAT,
         "block_size and dflash_config.block_size differ"},
        {"\"block_size\": 8", "\"sliding_window\": 24, \"block_size\": 8", LATHE_E_FORMAT,
         "sliding_window and dflash_config.sliding_window differ"},
        {"\"sliding_window\": 12", "\"use_sliding_window\": false, \"sliding_window\": 12",
         LATHE_E_FORMAT, "use_sliding_window: false, but layer_types has sliding layers"},
        {"\"sliding_window\": 12", "\"sliding_window\": 0", LATHE_E_FORMAT, "sliding_window: 0"},
        {"\"conv_kernel_size\": 2", "\"conv_kernel_size\": 3", LATHE_E_FORMAT,
         "conv_kernel_size: 3"},
        {"\"conv_group_size\": 16", "\"conv_group_size\": 48", LATHE_E_FORMAT,
         "hidden_size: 64, expected a multiple of conv_group_size, 48"},
        {"\"selector_rank\": 8, ", "", LATHE_E_FORMAT, "selector_rank: missing"},
        {"\"selector_top_k\": 4", "\"selector_top_k\": 0", LATHE_E_FORMAT, "selector_top_k: 0"},
        {"\"block_size\"", "\"final_logit_softcapping\": 30, \"block_size\"", LATHE_E_UNSUPPORTED,
         "final_logit_softcapping"},
        {"\"block_size\"", "\"output_multiplier\": 0.5, \"block_size\"", LATHE_E_UNSUPPORTED,
         "output_multiplier is not supported, only 1"},
        {"\"block_size\"", "\"input_embedding_scale\": 8, \"block_size\"", LATHE_E_UNSUPPORTED,
         "input_embedding_scale"},
    };
    struct drafter_spec s;
    struct dflash_config c;
    lathe_error err;
    drafter_spec_init(&s, "DFlash2DraftModel");
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++)
        CHECK_ERR(parse(&c, &s, edits[i].from, edits[i].to, &err), &err, edits[i].status,
                  edits[i].says);
    drafter_spec_init(&s, "DSparkDraftModel");
    CHECK_ERR(parse(&c, &s, "\"vanilla\"", "\"gated\"", &err), &err, LATHE_E_UNSUPPORTED,
              "markov_head_type \"gated\"");
    CHECK_ERR(dflash_config_parse(&c, "[]", 2, &err), &err, LATHE_E_FORMAT, "an array");
}

/* Without windows the reference's default is not in doubt; with them it is. */
TEST(older_configurations_without_causality)
{
    struct drafter_spec s;
    struct dflash_config c;
    lathe_error err;
    drafter_spec_init(&s, "DFlashDraftModel");
    CHECK_ERR(parse(&c, &s, "\"is_causal\": false, ", "", &err), &err, LATHE_E_FORMAT,
              "is_causal: missing");
    s.extra = ", \"rope_theta\": 10000";
    s.layer_types = "ff";
    CHECK_OK(parse(&c, &s, "\"is_causal\": false, ", "", &err), &err);
    CHECK_OK(parse(&c, &s, "\"rope_theta\": 10000, ", "", &err), &err);
    CHECK_INT(c.window, 0);
    CHECK(c.dims.is_full_attention[0] && c.dims.is_full_attention[1]);
}

/* ---- The target ------------------------------------------------------------------------------ */

static lathe_status open_files(const struct drafter_spec *s, const struct out_file *f,
                               lathe_error *err)
{
    static int n;
    char target[1100], dir[1100], name[32];
    struct model_spec m;
    struct model model;
    struct id_set ids;
    struct sample_scratch scratch;
    struct drafter *d;
    void *stream;
    snprintf(target, sizeof target, "%s", test_tmp("target"));
    snprintf(name, sizeof name, "refused-%d", n++);
    snprintf(dir, sizeof dir, "%s", test_tmp(name));
    model_spec_init(&m);
    make_model(target, &m);
    drafter_files(dir, s, f);
    CHECK_OK(model_open(&model, target, err), err);
    CHECK_OK(id_set_init(&ids, m.vocab, NULL, err), err);
    CHECK_OK(sample_scratch_init(&scratch, m.vocab, err), err);
    CHECK_OK(backend_cpu.open(&stream, NULL, NULL, err), err);
    struct drafter_options o = {
        .model = &model,
        .backend = &backend_cpu,
        .stream = stream,
        .ids = &ids,
        .scratch = &scratch,
        .act = DT_BF16,
        .kv = DT_BF16,
        .n_slots = 1,
        .n_ctx = 64,
        .max_rows = 16,
        .dir = dir,
    };
    n_warnings = 0;
    lathe_log_set(note, NULL);
    lathe_status st = drafter_dflash2.open(&d, &o, err);
    lathe_log_set(NULL, NULL);
    CHECK((st != LATHE_OK) == (d == NULL));
    drafter_dflash2.close(d);
    backend_cpu.close(stream);
    sample_scratch_release(&scratch);
    id_set_release(&ids);
    model_close(&model);
    return st;
}

TEST(targets_that_do_not_fit)
{
    struct drafter_spec s;
    struct out_file f;
    lathe_error err;
    struct dims target = {.vocab = 512, .hidden = 64, .n_layers = 4};
    struct dflash_config c;
    static const struct {
        int32_t vocab, hidden, layers, last_tap;
        const char *says;
    } cases[] = {
        {480, 64, 4, 3, "vocab_size is 480, the model's 512"},
        {512, 80, 4, 3, "hidden_size is 80, the model's 64"},
        {512, 64, 5, 3, "num_target_layers is 5, the model's 4"},
        {512, 64, 4, 4, "it reads layer 4, the model has 4 layers"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        drafter_spec_init(&s, "DFlash2DraftModel");
        s.mask_token = 1;
        s.vocab = cases[i].vocab;
        s.hidden = cases[i].hidden;
        s.n_target_layers = cases[i].layers;
        s.tap[2] = cases[i].last_tap;
        CHECK_OK(parse(&c, &s, NULL, NULL, &err), &err);
        CHECK_ERR(dflash_config_fits(&c, &target, &err), &err, LATHE_E_ARGUMENT, cases[i].says);
        drafter_tensors(&f, &s);
        CHECK_ERR(open_files(&s, &f, &err), &err, LATHE_E_ARGUMENT, cases[i].says);
        out_release(&f);
    }
}

/* ---- Tensors --------------------------------------------------------------------------------- */

/* All 3 + 11 or 15 a layer, and the selector's 3: none may be missing, none may be left. */
TEST(every_tensor_has_its_place)
{
    struct drafter_spec s;
    struct out_file f;
    lathe_error err;
    drafter_spec_init(&s, "DFlash2DraftModel");
    drafter_tensors(&f, &s);
    CHECK_INT(f.n, 6 + 15 * 2);
    CHECK_OK(open_files(&s, &f, &err), &err);
    CHECK_INT(n_warnings, 0);
    for (size_t i = 0; i < f.n; i++) {
        struct out_file one;
        char name[128];
        drafter_tensors(&one, &s);
        snprintf(name, sizeof name, "%s", one.tensors[i].name);
        out_remove(&one, name);
        CHECK_ERR(open_files(&s, &one, &err), &err, LATHE_E_FORMAT, name);
        CHECK(strstr(err.message, "is missing"));
        out_release(&one);
    }
    out_rename(&f, "norm.weight", "norm2.weight");
    CHECK_ERR(open_files(&s, &f, &err), &err, LATHE_E_FORMAT,
              "tensor norm2.weight in model.safetensors has no place");
    out_release(&f);
}

/* A DFlash2 file that says it is a DFlash would lose its convolutions and its selector. */
TEST(the_wrong_kind)
{
    struct drafter_spec s, t;
    struct out_file f;
    lathe_error err;
    drafter_spec_init(&s, "DFlash2DraftModel");
    drafter_spec_init(&t, "DFlashDraftModel");
    drafter_tensors(&f, &s);
    CHECK_ERR(open_files(&t, &f, &err), &err, LATHE_E_FORMAT, "attention_conv.base_kernel");
    out_release(&f);
    drafter_tensors(&f, &t);
    CHECK_ERR(open_files(&s, &f, &err), &err, LATHE_E_FORMAT,
              "tensor layers.0.attention_conv.base_kernel is missing");
    out_release(&f);
}

TEST(tensors_that_are_refused)
{
    static const struct {
        const char *name;
        int64_t rows, cols; /* a matrix of zeros instead */
        const char *says;
    } shapes[] = {
        {"fc.weight", 64, 128, "fc.weight in model.safetensors: BF16 [64, 128], expected"},
        {"candidate_selector.successor_codebook", 512, 9, "BF16 [512, 9], expected BF16 [512, 8]"},
        {"layers.1.attention_conv.base_kernel", 4, 64, "expected F32 or BF16 [2, 2, 64]"},
        {"layers.0.mlp_conv.kernel_projection.weight", 8, 64, "expected BF16 [16, 64]"},
        {"layers.0.self_attn.q_norm.weight", 1, 16, "expected F32 or BF16 [16]"},
    };
    struct drafter_spec s;
    struct out_file f;
    lathe_error err;
    drafter_spec_init(&s, "DFlash2DraftModel");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        drafter_tensors(&f, &s);
        out_remove(&f, shapes[i].name);
        int64_t dims[] = {shapes[i].rows, shapes[i].cols};
        out_add(&f, shapes[i].name, DT_BF16, 2, dims, NULL);
        CHECK_ERR(open_files(&s, &f, &err), &err, LATHE_E_FORMAT, shapes[i].says);
        out_release(&f);
    }
    drafter_tensors(&f, &s);
    ((uint16_t *)(void *)out_find(&f, "hidden_norm.weight")->data)[3] = 0x7FC0;
    CHECK_ERR(open_files(&s, &f, &err), &err, LATHE_E_NUMERIC, "hidden_norm.weight");
    out_release(&f);
}

/* Kernels far from (1, 0) are no error, but what a wrong order of dimensions looks like. */
TEST(kernels_in_another_order_are_noticed)
{
    struct drafter_spec s;
    struct out_file f;
    lathe_error err;
    drafter_spec_init(&s, "DFlash2DraftModel");
    drafter_tensors(&f, &s);
    uint16_t *k = (uint16_t *)(void *)out_find(&f, "layers.0.mlp_conv.base_kernel")->data;
    for (int i = 0; i < 64; i++) { /* taps and sides exchanged */
        uint16_t t = k[64 + i];
        k[64 + i] = k[128 + i];
        k[128 + i] = t;
    }
    CHECK_OK(open_files(&s, &f, &err), &err);
    CHECK_INT(n_warnings, 2); /* both sides */
    CHECK(strstr(warning, "layers.0.mlp_conv.base_kernel"));
    out_release(&f);
}

TEST(formats_that_config_does_not_say)
{
    struct drafter_spec s;
    struct out_file f;
    lathe_error err;
    drafter_spec_init(&s, "DFlash2DraftModel");
    drafter_tensors(&f, &s);
    s.extra = ", \"quantization_config\": {\"quant_method\": \"compressed-tensors\", "
              "\"config_groups\": {\"a\": "
              "{\"format\": \"float-quantized\", \"targets\": [\"fc\"]}}}";
    CHECK_OK(open_files(&s, &f, &err), &err);
    CHECK_INT(n_warnings, 1);
    CHECK(strstr(warning,
                 "/config.json: quantization_config says that fc is FP8, its tensors are bf16"));
    out_release(&f);
}

/* What a DSpark file may leave out or bring along. */
TEST(optional_tensors)
{
    struct drafter_spec s;
    struct out_file f;
    lathe_error err;
    drafter_spec_init(&s, "DSparkDraftModel");
    s.layer_types = "ff";
    drafter_tensors(&f, &s);
    out_remove(&f, "confidence_head.proj.weight");
    out_remove(&f, "confidence_head.proj.bias");
    CHECK_OK(open_files(&s, &f, &err), &err); /* declared, and not there */
    out_release(&f);
    drafter_tensors(&f, &s);
    s.has_confidence = false;
    CHECK_OK(open_files(&s, &f, &err), &err); /* there, and not declared */
    out_release(&f);
    s.own_embed = s.own_head = true;
    drafter_tensors(&f, &s);
    CHECK_OK(open_files(&s, &f, &err), &err);
    out_release(&f);
}

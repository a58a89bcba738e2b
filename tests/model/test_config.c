/* config.json: the sizes it gives, in its several spellings, and what is refused. */
#include <sys/stat.h>

#include "make_model.h"
#include "model/model.h"
#include "test.h"

static int n_warnings;
static char warning[512];

static void count_warning(void *ctx, lathe_log_level level, const char *line)
{
    (void)ctx;
    n_warnings += level == LATHE_LOG_WARN;
    snprintf(warning, sizeof warning, "%s", line);
}

/* dims of a spec, from config.json alone. */
static lathe_status read_spec(struct dims *d, const struct model_spec *s, lathe_error *err)
{
    static int n;
    char name[32];
    struct out_file none = {0};
    snprintf(name, sizeof name, "config-%d", n++);
    const char *dir = test_tmp(name);
    make_files(dir, s, &none);
    n_warnings = 0;
    warning[0] = 0;
    lathe_log_set(count_warning, NULL);
    lathe_status st = dims_read(d, dir, err);
    lathe_log_set(NULL, NULL);
    return st;
}

TEST(nano)
{
    struct dims d;
    lathe_error e;
    CHECK_OK(dims_read(&d, test_path("models/nano"), &e), &e);
    CHECK_INT(d.vocab, 8192);
    CHECK_INT(d.hidden, 320);
    CHECK_INT(d.mlp, 1088);
    CHECK_INT(d.n_layers, 8);
    CHECK_INT(d.n_heads, 6);
    CHECK_INT(d.n_kv_heads, 1);
    CHECK_INT(d.head_dim, 256);
    CHECK_INT(d.n_k_heads, 2);
    CHECK_INT(d.n_v_heads, 6);
    CHECK_INT(d.k_dim, 256);
    CHECK_INT(d.v_dim, 768);
    CHECK_INT(d.conv_dim, 1280);
    CHECK_INT(d.conv_taps, 4);
    CHECK_INT(d.rotary_dims, 64);
    CHECK_INT(d.max_position, 32768);
    CHECK_INT(d.vision_depth, 2);
    CHECK(d.rms_eps == 1e-6f && d.rope_scale == 1 && d.has_mtp && !d.tied_head);
    for (int i = 0; i < 8; i++)
        CHECK_INT(d.is_full_attention[i], i == 3 || i == 7);
    CHECK(d.mrope_section[0] == 11 && d.mrope_section[1] == 11 && d.mrope_section[2] == 10);
    CHECK(d.inv_freq[0] == 1);
    CHECK(fabs((double)d.inv_freq[31] / 1.6548170999431815e-07 - 1) < 1e-6);
}

/* A spelling must not change the numbers. */
static void check_same(const struct model_spec *s, const struct dims *want)
{
    struct dims d;
    lathe_error e;
    CHECK_OK(read_spec(&d, s, &e), &e);
    CHECK_INT(n_warnings, 0);
    CHECK(memcmp(&d, want, sizeof d) == 0);
}

TEST(spellings_of_the_same_sizes)
{
    struct model_spec s;
    struct dims d;
    lathe_error e;
    model_spec_init(&s);
    CHECK_OK(read_spec(&d, &s, &e), &e);
    CHECK_INT(d.rotary_dims, 8);
    CHECK_INT(d.conv_dim, 2 * 32 + 96);
    CHECK_INT(d.max_position, 262144);
    s.layer_types = "lllf";
    check_same(&s, &d);
    s.text_only = true;
    check_same(&s, &d);
    s.old_rope = true;
    check_same(&s, &d);
    s.text_only = false;
    check_same(&s, &d);
    s.text_extra = ", \"rope_scaling\": {\"type\": \"default\"}";
    check_same(&s, &d);
    s.text_extra = ", \"rope_scaling\": null, \"output_gate_type\": \"swish\"";
    check_same(&s, &d);
}

TEST(case_tiny_model)
{
    struct dims d;
    lathe_error e;
    size_t n;
    char *text = test_read(test_path("tests/cases/tiny_model.json"), &n);
    const char *dir = test_tmp("tiny");
    char path[1200];
    CHECK(mkdir(dir, 0755) == 0);
    snprintf(path, sizeof path, "%s/config.json", dir);
    test_write(path, text, n);
    free(text);
    CHECK_OK(dims_read(&d, dir, &e), &e);
    CHECK_INT(d.hidden, 64);
    CHECK_INT(d.rotary_dims, 8);
    CHECK_INT(d.mrope_section[0], 2);
    CHECK(d.is_full_attention[3] && !d.is_full_attention[2] && d.has_mtp && !d.vision_depth);
}

TEST(layer_types_decide)
{
    struct model_spec s;
    struct dims d;
    lathe_error e;
    model_spec_init(&s);
    s.layer_types = "fllf";
    CHECK_OK(read_spec(&d, &s, &e), &e);
    CHECK(d.is_full_attention[0] && !d.is_full_attention[1] && d.is_full_attention[3]);
    CHECK_INT(n_warnings, 1);
    CHECK(strstr(warning,
                 "layer_types[0] is full attention, full_attention_interval, 4, says otherwise"));
    s.layer_types = NULL;
    s.full_attention_interval = 2;
    CHECK_OK(read_spec(&d, &s, &e), &e);
    CHECK(!d.is_full_attention[0] && d.is_full_attention[1] && d.is_full_attention[3]);
}

/* Factor 4 over 262144 positions of the 27B; values by the formula of model.md section 1.4 in
 * Python's doubles. */
static void check_yarn(const struct dims *d)
{
    static const struct {
        int i;
        double want;
    } values[] = {
        {0, 1.0},
        {1, 0.6042963902381329},
        {14, 0.0008659643233600654}, /* the ramp begins */
        {15, 0.0004742398226801046},
        {17, 0.0001373497450760004},
        {20, 1.8449222025000472e-05},
        {22, 3.84981631514873e-06}, /* and ends: a quarter from here on */
        {31, 4.1370427498579534e-08},
    };
    for (size_t k = 0; k < sizeof values / sizeof *values; k++)
        if (!(fabs((double)d->inv_freq[values[k].i] / values[k].want - 1) < 1e-6))
            FAIL("inv_freq[%d] = %.9g, expected %.9g", values[k].i,
                 (double)d->inv_freq[values[k].i], values[k].want);
}

TEST(yarn)
{
    struct model_spec s;
    struct dims d;
    lathe_error e;
    model_spec_init(&s);
    s.head_dim = 256;
    s.mrope_section[0] = s.mrope_section[1] = 11;
    s.mrope_section[2] = 10;
    s.yarn_factor = 4;
    s.original_max_position = 262144;
    for (int old = 0; old < 2; old++) {
        s.old_rope = old;
        CHECK_OK(read_spec(&d, &s, &e), &e);
        CHECK_INT(d.max_position, 4 * 262144);
        CHECK(fabs((double)d.rope_scale - 1.1386294361119891) < 1e-7);
        check_yarn(&d);
    }
    s.old_rope = false;
    s.yarn_factor = 1; /* changes nothing */
    CHECK_OK(read_spec(&d, &s, &e), &e);
    struct dims plain;
    s.yarn_factor = 0;
    CHECK_OK(read_spec(&plain, &s, &e), &e);
    CHECK(memcmp(&d, &plain, sizeof d) == 0);
}

static void check_refused(const char *text_extra, lathe_status status, const char *says)
{
    struct model_spec s;
    struct dims d;
    lathe_error e = {0};
    model_spec_init(&s);
    s.text_extra = text_extra; /* of equal keys the last one counts */
    lathe_status st = read_spec(&d, &s, &e);
    if (st != status || !strstr(e.message, says) ||
        !strstr(e.message, "/config.json: text_config."))
        FAIL("%s: status %d, \"%s\"; expected status %d with \"%s\"", text_extra, (int)st,
             e.message, (int)status, says);
}

TEST(kinds_and_ranges)
{
    static const struct {
        const char *extra, *says;
    } cases[] = {
        {"\"hidden_size\": \"64\"", "hidden_size: a string, expected an integer of 1 to"},
        {"\"hidden_size\": 64.0", "hidden_size: a number, expected an integer"},
        {"\"hidden_size\": null", "hidden_size: missing"},
        {"\"hidden_size\": 0", "hidden_size: 0, expected 1 to"},
        {"\"hidden_size\": -64", "hidden_size: -64"},
        {"\"hidden_size\": 99999999999999999999", "hidden_size: "},
        {"\"vocab_size\": 4294967296", "vocab_size: 4294967296, expected 1 to"},
        {"\"intermediate_size\": []", "intermediate_size: an array"},
        {"\"num_hidden_layers\": 513", "num_hidden_layers: 513, expected 1 to 512"},
        {"\"num_attention_heads\": 5", "num_attention_heads: 5, expected a multiple of num_key_"},
        {"\"num_key_value_heads\": 0", "num_key_value_heads: 0"},
        {"\"head_dim\": 100000", "head_dim: 100000"},
        {"\"linear_num_value_heads\": 7",
         "linear_num_value_heads: 7, expected a multiple of linear"},
        {"\"linear_key_head_dim\": true", "linear_key_head_dim: true"},
        {"\"linear_conv_kernel_dim\": 1", "linear_conv_kernel_dim: 1, expected 2 to 8"},
        {"\"rms_norm_eps\": \"1e-6\"", "rms_norm_eps: a string, expected a number"},
        {"\"rms_norm_eps\": -1", "rms_norm_eps: -1"},
        {"\"rms_norm_eps\": 0", "rms_norm_eps: 0, expected 1e-12 to 1"},
        {"\"rms_norm_eps\": -1e-6", "rms_norm_eps: -1e-06"},
        {"\"rms_norm_eps\": 1e-300", "rms_norm_eps: 1e-300"},
        {"\"max_position_embeddings\": 0", "max_position_embeddings: 0"},
        {"\"linear_num_key_heads\": 0", "linear_num_key_heads: 0"},
        {"\"linear_value_head_dim\": -16", "linear_value_head_dim: -16"},
        {"\"head_dim\": 0", "head_dim: 0"},
        {"\"num_attention_heads\": 0", "num_attention_heads: 0"},
        {"\"num_experts\": -1", "num_experts: -1"},
        {"\"full_attention_interval\": 0", "full_attention_interval: 0"},
        {"\"layer_types\": [\"linear_attention\"]", "layer_types: 1 entries, expected num_hidden"},
        {"\"layer_types\": 4", "layer_types: 0 entries"},
        {"\"tie_word_embeddings\": 1", "tie_word_embeddings: an integer, expected true or false"},
        {"\"mtp_num_hidden_layers\": -1", "mtp_num_hidden_layers: -1"},
        {"\"rope_parameters\": 18446744073709551615",
         "rope_parameters: a number out of range, expected an object"},
        {"\"rope_parameters\": []", "rope_parameters: an array, expected an object"},
        {"\"rope_parameters\": {\"rope_theta\": 0}", "rope_parameters.rope_theta: 0"},
        {"\"rope_parameters\": {\"rope_theta\": -1e7}", "rope_parameters.rope_theta: -1e+07"},
        {"\"rope_parameters\": {}", "rope_parameters.rope_theta: missing"},
        {"\"rope_parameters\": null", "rope_parameters.rope_theta: missing"},
        {"\"rope_parameters\": {\"rope_theta\": 1e7, \"partial_rotary_factor\": 0}",
         "rope_parameters.partial_rotary_factor: 0 of head_dim 32"},
        {"\"rope_parameters\": {\"rope_theta\": 1e7, \"partial_rotary_factor\": -0.25}",
         "rope_parameters.partial_rotary_factor: -0.25"},
        {"\"rope_parameters\": {\"rope_theta\": 10000000, \"rope_type\": 3}",
         "rope_parameters.rope_type: an integer"},
        {"\"rope_parameters\": {\"rope_theta\": 10000000, \"mrope_section\": [2, 1]}",
         "mrope_section: expected three"},
        {"\"rope_parameters\": {\"rope_theta\": 10000000, \"rope_type\": \"yarn\"}",
         "original_max_position_embeddings: missing"},
        {"\"rope_parameters\": {\"rope_theta\": 10000000, \"rope_type\": \"yarn\", "
         "\"original_max_position_embeddings\": 9}",
         "rope_parameters.factor: missing"},
        {"\"rope_parameters\": {\"rope_theta\": 10000000, \"rope_type\": \"yarn\", \"factor\": "
         "0.5, "
         "\"original_max_position_embeddings\": 9}",
         "rope_parameters.factor: 0.5"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char extra[300];
        snprintf(extra, sizeof extra, ", %s", cases[i].extra);
        check_refused(extra, LATHE_E_FORMAT, cases[i].says);
    }
}

TEST(what_is_not_built)
{
    static const struct {
        const char *extra, *says;
    } cases[] = {
        {"\"hidden_act\": \"gelu\"", "hidden_act \"gelu\" is not supported, only \"silu\""},
        {"\"attention_bias\": true", "attention_bias true is not supported, only false"},
        {"\"attn_output_gate\": false", "attn_output_gate false is not supported, only true"},
        {"\"output_gate_type\": \"sigmoid\"", "output_gate_type \"sigmoid\""},
        {"\"mamba_ssm_dtype\": \"bfloat16\"",
         "mamba_ssm_dtype \"bfloat16\" is not supported, only \"float32\""},
        {"\"model_type\": \"llama\"", "model_type \"llama\" is not supported"},
        {"\"num_experts\": 256", "num_experts is not supported"},
        {"\"layer_types\": [\"full_attention\", \"sliding_attention\", \"full_attention\", "
         "\"full_attention\"]",
         "layer_types[1]: \"sliding_attention\" is not supported"},
        {"\"rope_parameters\": {\"rope_theta\": 10000000, \"rope_type\": \"longrope\"}",
         "rope_type \"longrope\""},
        {"\"rope_parameters\": {\"rope_theta\": 10000000, \"mrope_interleaved\": false, "
         "\"mrope_section\": [2, 1, 1]}",
         "rope_parameters.mrope_interleaved false"},
        {"\"rope_parameters\": {\"rope_theta\": 10000000, \"rope_type\": \"yarn\", \"factor\": 4, "
         "\"mscale\": 1, "
         "\"original_max_position_embeddings\": 9}",
         "rope_parameters.mscale is not supported"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char extra[300];
        snprintf(extra, sizeof extra, ", %s", cases[i].extra);
        check_refused(extra, LATHE_E_UNSUPPORTED, cases[i].says);
    }
}

static void check_top(const char *top_extra, const char *says)
{
    struct model_spec s;
    struct dims d;
    lathe_error e = {0};
    model_spec_init(&s);
    s.top_extra = top_extra;
    lathe_status st = read_spec(&d, &s, &e);
    if (*says ? !st || !strstr(e.message, says) : st != LATHE_OK)
        FAIL("%s: \"%s\", expected \"%s\"", top_extra, e.message, says);
}

TEST(top_level_members)
{
    check_top(", \"text_config\": 3", "text_config: an integer, expected an object");
    check_top(", \"model_type\": \"qwen3_vl\"", "model_type \"qwen3_vl\"");
    check_top(", \"vision_config\": []", "vision_config: an array");
    check_top(", \"vision_config\": {\"depth\": -1}", "vision_config.depth: -1");
    check_top(", \"quantization_config\": \"fp8\"", "quantization_config: a string");
    check_top(", \"quantization_config\": {\"transform_config\": {\"a\": {}}}", "transform_config");
    check_top(", \"quantization_config\": {\"weight_block_size\": [64, 64]}", "weight_block_size");
    check_top(", \"quantization_config\": {\"weight_block_size\": [128, 128], "
              "\"transform_config\": {}}",
              "");
}

TEST(tied_head_at_either_level)
{
    struct model_spec s;
    struct dims d;
    lathe_error e;
    model_spec_init(&s);
    s.tied_head = true;
    CHECK_OK(read_spec(&d, &s, &e), &e);
    CHECK(d.tied_head);
    s.text_extra = ", \"tie_word_embeddings\": null";
    CHECK_OK(read_spec(&d, &s, &e), &e);
    CHECK(!d.tied_head);
    s.top_extra = ", \"tie_word_embeddings\": true";
    CHECK_OK(read_spec(&d, &s, &e), &e);
    CHECK(d.tied_head);
}

TEST(draft_heads_that_are_left_out)
{
    struct model_spec s;
    struct dims d;
    lathe_error e;
    model_spec_init(&s);
    s.text_extra = ", \"mtp_num_hidden_layers\": 2";
    CHECK_OK(read_spec(&d, &s, &e), &e);
    CHECK(!d.has_mtp && n_warnings == 1 && strstr(warning, "2 layers"));
    s.text_extra = ", \"mtp_use_dedicated_embeddings\": true";
    CHECK_OK(read_spec(&d, &s, &e), &e);
    CHECK(!d.has_mtp && n_warnings == 1 && strstr(warning, "embedding"));
}

TEST(files_that_are_no_config)
{
    struct dims d;
    lathe_error e;
    char path[1200];
    const char *dir = test_tmp("no-config");
    CHECK(mkdir(dir, 0755) == 0);
    CHECK_ERR(dims_read(&d, dir, &e), &e, LATHE_E_IO, "config.json");
    snprintf(path, sizeof path, "%s/config.json", dir);
    test_write(path, "", 0);
    CHECK_ERR(dims_read(&d, dir, &e), &e, LATHE_E_FORMAT, "config.json");
    test_write(path, "[1]", 3);
    CHECK_ERR(dims_read(&d, dir, &e), &e, LATHE_E_FORMAT, "an array, expected an object");
    test_write(path, "{}", 2);
    CHECK_ERR(dims_read(&d, dir, &e), &e, LATHE_E_FORMAT, "vocab_size: missing");
    test_write(path, "{\"vocab_size\": 1,}", 17);
    CHECK_ERR(dims_read(&d, dir, &e), &e, LATHE_E_FORMAT, "config.json");
}

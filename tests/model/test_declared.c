/* quantization_config beside tensors of another format: one warning a model, which names a matrix, and the
 * tensors are used. */
#include "open_model.h"
#include "test.h"

#include "base/buf.h"

/* Opens the small model with its MLP in NVFP4, attention and GDN in FP8, the rest in BF16. */
static void open_with(const char *config, bool text_only)
{
    struct model_spec s;
    struct model m;
    lathe_error e;
    char extra[3000];
    model_spec_init(&s);
    s.mlp_format = WF_NVFP4;
    s.attn_format = s.gdn_format = WF_FP8_ROW;
    s.text_only = text_only;
    if (text_only)
        s.prefix = "model.";
    snprintf(extra, sizeof extra, ", \"quantization_config\": %s", config);
    s.top_extra = extra;
    CHECK_OK(open_spec(&m, &s, &e), &e);
    CHECK_INT(m.layers[0].mlp.up_proj.format, WF_NVFP4);
    model_close(&m);
}

static void agrees(const char *config)
{
    for (int text_only = 0; text_only < 2; text_only++) {
        open_with(config, text_only);
        if (n_warnings)
            FAIL("%s: %s", config, warning);
    }
}

static void differs(const char *config, const char *says)
{
    open_with(config, false);
    if (n_warnings != 1 || !strstr(warning, says))
        FAIL("%s: %d warnings, \"%s\", expected \"%s\"", config, n_warnings, warning, says);
}

#define FP8(targets)                                                                               \
    "{\"format\": \"float-quantized\", \"weights\": {\"num_bits\": 8, \"type\": \"float\"}, "      \
    "\"targets\": [" targets "]}"
#define NVFP4(targets)                                                                             \
    "{\"weights\": {\"num_bits\": 4, \"type\": \"float\"}, \"targets\": [" targets "]}"
#define COMPRESSED(groups, ignore)                                                                 \
    "{\"quant_method\": \"compressed-tensors\", \"config_groups\": {" groups                       \
    "}, \"ignore\": [" ignore "]}"
#define MIXERS                                                                                     \
    "\"re:.*self_attn\\\\.(q|k|v|o)_proj$\", "                                                     \
    "\"re:.*linear_attn\\\\.(in_proj_qkv|in_proj_z|out_proj)$\""
#define MLPS  "\"re:.*mlp\\\\.(gate|up|down)_proj$\""
#define GATES "\"re:.*in_proj_[ab]$\""

TEST(compressed_tensors)
{
    agrees(COMPRESSED("\"a\": " FP8(MIXERS) ", \"b\": " NVFP4(MLPS), "\"re:^mtp.*\""));
    /* Groups overlap: one that is right is enough. What is ignored is plain. */
    agrees(COMPRESSED("\"a\": " FP8("\"Linear\"") ", \"b\": " NVFP4(MLPS),
                      GATES ", \"lm_head\", \"re:mtp\""));
    /* Exact names with another prefix than the tensors'. */
    agrees(COMPRESSED("\"a\": " FP8(MIXERS) ", \"b\": " NVFP4(MLPS) ", \"c\": " FP8(
                          "\"model.layers.0.linear_attn.in_proj_a\""),
                      "\"language_model.model.layers.0.linear_attn.in_proj_a\", \"re:mtp\""));
    differs(COMPRESSED("\"a\": " FP8(MIXERS) ", \"b\": " FP8(MLPS), "\"re:mtp\""),
            "quantization_config says that " P "layers.0.mlp.");
    CHECK(strstr(warning,
                 "_proj is FP8, its tensors are nvfp4 (and 11 more differ): the tensors are"));
    differs(COMPRESSED("\"a\": " FP8(MIXERS) ", \"b\": " NVFP4(MLPS),
                       "\"re:mtp\", \"" P "layers.3.self_attn.q_proj\""),
            P "layers.3.self_attn.q_proj is plain, its tensors are fp8_row: the tensors are used");
    differs(COMPRESSED("\"a\": " FP8("\"lm_head\", " MIXERS) ", \"b\": " NVFP4(MLPS), "\"re:mtp\""),
            "lm_head is FP8, its tensors are bf16:");
    differs(COMPRESSED("\"b\": " NVFP4(MLPS), "\"re:mtp\""),
            "is plain, its tensors are fp8_row (and ");
}

TEST(blocks_of_fp8)
{
    struct model_spec s;
    struct model m;
    lathe_error e;
    model_spec_init(&s);
    s.mlp_format = s.attn_format = s.gdn_format = s.mtp_format = WF_FP8_BLOCK;
    s.top_extra =
        ", \"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128], "
        "\"modules_to_not_convert\": [\"lm_head\", \"in_proj_a\", \"in_proj_b\", \"mtp.fc\", "
        "\"visual\"]}";
    CHECK_OK(open_spec(&m, &s, &e), &e);
    if (n_warnings && !strstr(warning, "mtp.fc"))
        FAIL("%s", warning);
    model_close(&m);
    differs("{\"quant_method\": \"fp8\"}", "is FP8, its tensors are ");
}

/* The model with the MLP in NVFP4 alone, or with `mixed` as above. */
static void open_modelopt(const char *config, bool mixed)
{
    struct model_spec s;
    struct model m;
    lathe_error e;
    char extra[8000];
    model_spec_init(&s);
    s.mlp_format = WF_NVFP4;
    s.modelopt = true;
    if (mixed)
        s.attn_format = s.gdn_format = WF_FP8_TENSOR;
    snprintf(extra, sizeof extra, ", \"quantization_config\": %s", config);
    s.top_extra = extra;
    CHECK_OK(open_spec(&m, &s, &e), &e);
    model_close(&m);
}

TEST(modelopt)
{
    struct buf b;
    open_modelopt(
        "{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\", \"ignore\": [\"*attn*\", "
        "\"lm_head\", \"mtp*\"]}",
        false);
    CHECK_STR(warning, "");
    open_modelopt(
        "{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\", \"exclude_modules\": "
        "[\"*attn*\", \"mtp*\"]}",
        false);
    CHECK_INT(n_warnings, 1);
    CHECK(
        strstr(warning, "says that lm_head is NVFP4, its tensors are bf16: the tensors are used"));

    buf_init(&b, 1 << 16);
    buf_puts(&b, "{\"quant_method\": \"modelopt\", \"quant_algo\": \"MIXED_PRECISION\", "
                 "\"quantized_layers\": {\"x\": 5");
    static const char *const fp8[] = {"linear_attn.in_proj_qkv", "linear_attn.in_proj_z",
                                      "linear_attn.out_proj",    "self_attn.q_proj",
                                      "self_attn.k_proj",        "self_attn.v_proj",
                                      "self_attn.o_proj"};
    static const char *const nvfp4[] = {"gate_proj", "up_proj", "down_proj"};
    for (int layer = 0; layer < 4; layer++) {
        for (int i = 0; i < 7; i++)
            buf_printf(&b, ", \"language_model.layers.%d.%s\": {\"quant_algo\": \"FP8\"}", layer,
                       fp8[i]);
        for (int i = 0; i < 3; i++)
            buf_printf(&b, ", \"language_model.layers.%d.mlp.%s\": {\"quant_algo\": \"%s\"}", layer,
                       nvfp4[i], "W4A16_NVFP4");
    }
    buf_puts(&b, "}}");
    open_modelopt(buf_str(&b), true);
    CHECK_STR(warning, "");
    open_modelopt(buf_str(&b), false);
    CHECK_INT(n_warnings, 1);
    CHECK(strstr(warning, "is FP8, its tensors are bf16 (and 12 more differ)"));
    buf_release(&b);
}

/* Many expressions, stars and backtracking: done in a moment, and nothing is said. */
TEST(patterns_that_take_long)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    buf_puts(&b,
             "{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"a\": {\"format\": "
             "\"float-quantized\", \"targets\": [\"Linear\"");
    for (int i = 0; i < 65; i++)
        buf_puts(&b, ", \"re:(.*)*(.*)*(.*)*x$\"");
    buf_puts(&b, "]}}}");
    open_modelopt(buf_str(&b), false);
    CHECK_STR(warning, "");
    buf_clear(&b);
    buf_puts(&b,
             "{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\", \"ignore\": [\"*attn*\", "
             "\"lm_head\", \"mtp*\", \"");
    for (int i = 0; i < 500; i++)
        buf_puts(&b, "*l");
    buf_puts(&b, "?!\"]}");
    open_modelopt(buf_str(&b), false);
    CHECK_STR(warning, "");
    buf_release(&b);
}

/* What is not known says nothing; expressions that are wrong or without end are about nothing. */
TEST(words_that_are_not_known)
{
    static const char *const configs[] = {
        "{}",
        "{\"quant_method\": 5}",
        "{\"quant_method\": \"awq\"}",
        "{\"quant_method\": \"compressed-tensors\"}",
        "{\"quant_method\": \"compressed-tensors\", \"config_groups\": []}",
        "{\"quant_method\": \"modelopt\", \"quant_algo\": \"INT4_AWQ\"}",
        "{\"quant_method\": \"modelopt\", \"quant_algo\": \"MIXED_PRECISION\"}",
        "{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"a\": {\"weights\": "
        "{\"num_bits\": "
        "4, \"type\": \"int\"}, \"targets\": [\"Linear\"]}}}",
    };
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++)
        agrees(configs[i]);
    agrees(COMPRESSED("\"a\": " FP8(MIXERS) ", \"b\": " NVFP4(MLPS),
                      "\"re:mtp\", \"re:(\", 5, \"\", \"re:(.*)*(.*)*(.*)*(.*)*x$\""));
}

/* Small random checkpoints of any shape and mix of formats, for tests that load a model.
 *
 *     struct model_spec s;
 *     model_spec_init(&s);
 *     s.mlp_format = WF_NVFP4;
 *     make_model(test_tmp("nvfp4"), &s);
 *
 * A tensor's numbers depend on the seed and its name only: two specs that differ in file layout,
 * prefix or names hold the same model, and one with `expand` holds the numbers that the code words
 * of the other mean, as F32. Failures end the test. */
#ifndef LATHE_TESTS_MAKE_MODEL_H
#define LATHE_TESTS_MAKE_MODEL_H

#include "quant/formats.h"
#include "write_safetensors.h"

struct model_spec {
    uint64_t seed;
    int32_t vocab, hidden, mlp, n_layers;
    int32_t full_attention_interval;
    const char *layer_types; /* one letter a layer, 'l'inear or 'f'ull; NULL: by the interval */
    int32_t n_heads, n_kv_heads, head_dim;
    int32_t n_k_heads, n_v_heads, dk, dv, conv_taps;
    double rope_theta, partial_rotary_factor;
    int32_t mrope_section[3];      /* all 0: no such member */
    double yarn_factor;            /* 0: plain */
    int32_t original_max_position; /* of YaRN */
    int32_t max_position;
    bool tied_head, has_mtp;

    enum weight_format_id embed_format, head_format, attn_format, mlp_format, mtp_format;
    enum weight_format_id gdn_format;  /* in_proj_qkv, in_proj_z, out_proj */
    enum weight_format_id gate_format; /* in_proj_a, in_proj_b */
    enum dtype scales;                 /* of FP8 rows and blocks: DT_BF16 or DT_F32 */
    enum dtype vectors;                /* norms and the like: DT_BF16, DT_F16 or DT_F32 */
    bool modelopt;                     /* NVFP4 by ModelOpt's names */
    bool expand;                       /* matrices as F32, after rounding to their formats */
    double std;                        /* of the matrices */

    const char *prefix; /* of text tensors: "model.language_model." */
    bool text_only;     /* config members at the top level */
    bool old_rope;      /* rope_theta and so on beside each other, no rope_parameters */
    int32_t n_shards;   /* 0 and 1: model.safetensors */
    bool tokenizer;     /* also copies models/nano's tokenizer and template; vocab must be 8192 */
    const char *top_extra;  /* further members of config.json, ", \"a\": 1", or NULL */
    const char *text_extra; /* the same inside text_config */
};

/* The sizes of tests/cases/tiny_model.json, everything BF16, one file. */
void model_spec_init(struct model_spec *s);
/* Creates the folder and writes the checkpoint into it. */
void make_model(const char *dir, const struct model_spec *s);

/* The two halves, for tests that spoil something in between. */
void make_tensors(struct out_file *f, const struct model_spec *s);
void make_files(const char *dir, const struct model_spec *s, const struct out_file *f);

#endif

/* Small random checkpoints of block drafters, as make_model.h has them for targets: a tensor's numbers
 * depend on the seed and its name only. Failures end the test. */
#ifndef LATHE_TESTS_MAKE_DRAFTER_H
#define LATHE_TESTS_MAKE_DRAFTER_H

#include "write_safetensors.h"

struct drafter_spec {
    uint64_t seed;
    const char *architecture; /* "DFlash2DraftModel", "DFlashDraftModel", "DSparkDraftModel" */
    int32_t vocab, hidden, mlp, n_layers, n_heads, n_kv_heads, head_dim;
    const char *layer_types; /* one letter a layer, 's'liding or 'f'ull */
    int32_t window, block, mask_token, n_target_layers;
    int32_t n_taps, tap[8];
    int32_t conv_group, rank, n_candidates;
    double rope_theta, yarn_factor;                            /* 0: no YaRN */
    int32_t original_max_position;                             /* of YaRN */
    bool has_confidence, confidence_sees_token, next_row_only; /* next_row_only: rows predict
                                                                  themselves, not the next token */
    bool own_embed, own_head;
    bool identity;     /* convolutions do nothing */
    bool no_successor; /* the second codebook is zero */
    bool flat;         /* what dflash_config holds lies at the top level */
    enum dtype dtype;  /* of all tensors: DT_BF16 or DT_F32 */
    double std;        /* of the matrices */
    const char *extra; /* further members of config.json, ", \"a\": 1", or NULL */
};

/* hidden 64, 2 layers of 4/2 heads of 16, window 12, for make_model.h's target: DFlash2 with a block of 8,
 * DFlash with one of 16, or DSpark with 7. */
void drafter_spec_init(struct drafter_spec *s, const char *architecture);
void drafter_tensors(struct out_file *f, const struct drafter_spec *s);
/* config.json's text: a heap string. */
char *drafter_config(const struct drafter_spec *s);
/* Creates the folder and writes the files into it. */
void drafter_files(const char *dir, const struct drafter_spec *s, const struct out_file *f);
void make_drafter(const char *dir, const struct drafter_spec *s);

#endif

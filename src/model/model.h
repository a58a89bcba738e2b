/* The model: its sizes, and its tensors by role. Names are the checkpoint's. Sizes of the 27B are
 * given as examples. Norms are what is multiplied: 1 + w where the checkpoint stores w zero-centred (all
 * but the gated norm of linear_attn). */
#ifndef LATHE_MODEL_MODEL_H
#define LATHE_MODEL_MODEL_H

#include "base/arena.h"
#include "base/error.h"
#include "container/safetensors.h"
#include "quant/formats.h"
#include "tensor/tensor.h"

enum { MAX_LAYERS = 512, MAX_ROTARY_PAIRS = 256 };

/* Every number comes from config.json (text_config, or the top level of a text-only export). */
struct dims {
    int32_t vocab;    /* rows of the vocabulary matrices: 248320, padding rows included */
    int32_t hidden;   /* 5120 */
    int32_t mlp;      /* 17408 */
    int32_t n_layers; /* 64 */
    float rms_eps;

    /* full attention */
    int32_t n_heads, n_kv_heads, head_dim; /* 24, 4, 256 */

    /* Gated DeltaNet */
    int32_t n_k_heads, n_v_heads; /* 16, 48 */
    int32_t dk, dv;               /* 128, 128: width of a key and of a value head */
    int32_t conv_taps;            /* 4 */
    int32_t k_dim, v_dim;         /* 2048 = n_k_heads * dk, 6144 = n_v_heads * dv */
    int32_t conv_dim;             /* 10240 = k_dim + k_dim + v_dim: channels q | k | v */

    /* rotary */
    int32_t rotary_dims;              /* 64 */
    int32_t mrope_section[3];         /* 11, 11, 10; 0, 0, 0 where plain */
    float inv_freq[MAX_ROTARY_PAIRS]; /* [rotary_dims / 2], YaRN applied */
    float rope_scale;                 /* cos and sin are multiplied by it; 1 without YaRN */
    int32_t max_position;             /* 262144, or YaRN's extended range */

    bool is_full_attention[MAX_LAYERS];
    bool tied_head;
    bool has_mtp;         /* the configuration declares a head and its tensors are there */
    int32_t vision_depth; /* 0: no vision tower */
};

struct mlp {
    struct weight gate_proj, up_proj; /* [mlp, hidden] */
    struct weight down_proj;          /* [hidden, mlp] */
};

struct attn_layer {
    struct weight
        q_proj; /* [n_heads * 2 * head_dim, hidden]: per head query rows, then gate rows */
    struct weight k_proj, v_proj; /* [n_kv_heads * head_dim, hidden] */
    struct weight o_proj;         /* [hidden, n_heads * head_dim] */
    struct tensor q_norm, k_norm; /* F32 [head_dim] */
};

struct gdn_layer {
    struct weight in_proj_qkv;          /* [conv_dim, hidden]: q, k, v rows, head-major */
    struct weight in_proj_z;            /* [v_dim, hidden] */
    struct weight in_proj_a, in_proj_b; /* [n_v_heads, hidden] */
    struct tensor conv1d;               /* F32 [conv_dim, conv_taps] */
    struct tensor A_log, dt_bias;       /* F32 [n_v_heads] */
    struct tensor norm;                 /* F32 [dv] */
    struct weight out_proj;             /* [hidden, v_dim] */
};

struct layer {
    bool is_full_attention;
    struct tensor input_layernorm, post_attention_layernorm; /* F32 [hidden] */
    union {
        struct attn_layer attn;
        struct gdn_layer gdn;
    };
    struct mlp mlp;
};

/* The multi-token prediction head: one full-attention layer over [embedding | hidden]. */
struct mtp_head {
    struct weight fc;                                              /* [hidden, 2 * hidden] */
    struct tensor pre_fc_norm_embedding, pre_fc_norm_hidden, norm; /* F32 [hidden] */
    struct layer layer;
};

/* One matrix under the name the checkpoint gives it, for listings and for the search of a NaN. */
struct module {
    const char *name;            /* without ".weight" */
    const struct weight *weight; /* as it lies in the files, wherever the model's own is */
};

struct model {
    struct dims dims;
    struct checkpoint *files;   /* owned: the mapped shards that everything below points into */
    struct arena arena;         /* owned: the small vectors expanded to F32, and names */
    struct weight embed_tokens; /* [vocab, hidden] */
    struct weight lm_head;      /* the same matrix where tied */
    struct tensor norm;         /* F32 [hidden] */
    struct layer *layers;       /* [n_layers] */
    struct mtp_head mtp;        /* meaningful if dims.has_mtp */
    struct module *modules;     /* [n_modules], file order */
    size_t n_modules;
};

/* Reads config.json, maps the files, binds every tensor by name, checks shapes, dtypes and scales,
 * and reports all problems at once. Warnings (declared parts that are absent) go to the log. *m
 * points into itself: it stays where it is until model_close. */
lathe_status model_open(struct model *m, const char *dir, lathe_error *err);
/* No-op on a zeroed struct. */
void model_close(struct model *m);

/* Only config.json, for plans and listings. */
lathe_status dims_read(struct dims *d, const char *dir, lathe_error *err);
/* The same from the n bytes of its text. */
lathe_status dims_parse(struct dims *d, const char *s, size_t n, lathe_error *err);

/* Names the first weight entry that is NaN or infinite, "tensor X: row r, column c", if there is
 * one: why logits are not finite. Reads all weights. */
bool model_find_nonfinite(const struct model *m, char *what, size_t n);

#endif

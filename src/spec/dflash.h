/* Block drafters: a small model that sees hidden states of the target and fills a block of mask tokens
 * behind the anchor in one pass. Three kinds share the layers and the context, and differ in how a token
 * is chosen from a row:
 *
 *   DFlash     of the row's logits
 *   DFlash2    of 16 candidates, scored with the token before by a low-rank product; convolutions within
 *              the block before and after each half of a layer
 *   DSpark     of candidates, scored with the token before by a low-rank bias; a row predicts the token
 *              behind its own; a confidence may end the chain
 *
 * The context of a layer are keys and values of the committed positions, made from the target's features
 * and nothing else, in a ring. */
#ifndef LATHE_SPEC_DFLASH_H
#define LATHE_SPEC_DFLASH_H

#include "model/forward.h"
#include "model/place.h"
#include "spec/drafter.h"

enum {
    DFLASH_MAX_BLOCK = 64,
    DFLASH_MAX_TAPS = 64,
    DFLASH_MAX_CANDIDATES = 256,
};

enum dflash_kind { DFLASH_PLAIN, DFLASH_SELECTOR, DFLASH_MARKOV }; /* DFlash, DFlash2, DSpark */

/* config.json. Numbers of the 27B's DFlash2 as examples. */
struct dflash_config {
    enum dflash_kind kind;
    /* vocab, hidden, mlp, n_layers, heads and rotary fields; is_full_attention as opposed to sliding */
    struct dims dims;
    int32_t window; /* 2048, of the sliding layers: |distance| < window is seen */
    int32_t block;  /* 8: the anchor and 7 masks */
    int32_t
        first_row; /* the row that predicts the first draft: 1, or 0 where rows predict the next */
    int32_t mask_token;                   /* 248070 */
    int32_t n_target_layers;              /* 64; 0: not said */
    int32_t n_taps, tap[DFLASH_MAX_TAPS]; /* 5, 19, 33, 47, 61 */
    int32_t conv_taps, conv_group;        /* 2, 16; DFlash2 only */
    int32_t rank;                         /* 256; 0 without a selector or Markov head */
    int32_t n_candidates;                 /* 16 */
    bool has_confidence, confidence_sees_token;
};

/* Reads DIR/config.json, or its n bytes. */
lathe_status dflash_config_read(struct dflash_config *c, const char *dir, lathe_error *err);
lathe_status dflash_config_parse(struct dflash_config *c, const char *s, size_t n,
                                 lathe_error *err);
/* Refuses a drafter made for another target with both numbers. */
lathe_status dflash_config_fits(const struct dflash_config *c, const struct dims *target,
                                lathe_error *err);

struct dflash_conv {
    struct tensor base_kernel;       /* F32 [2 * taps, hidden]: before, then after the half layer */
    struct weight kernel_projection; /* [2 * taps * groups, hidden], in that order */
};

struct dflash_layer {
    struct tensor input_layernorm, post_attention_layernorm; /* F32 [hidden], plain */
    struct weight q_proj, k_proj, v_proj, o_proj;
    struct tensor q_norm, k_norm; /* F32 [head_dim] */
    struct mlp mlp;
    struct dflash_conv attention_conv, mlp_conv; /* DFlash2 only */
};

struct dflash_weights {
    struct checkpoint *files;        /* owned */
    struct arena arena;              /* owned */
    struct weight fc;                /* [hidden, n_taps * hidden] */
    struct tensor hidden_norm, norm; /* F32 [hidden] */
    struct dflash_layer *layers;
    struct weight hidden_projection; /* [rank, hidden]; DFlash2 only */
    struct weight before,
        after;                /* [vocab, rank]: codebooks of the token before and the candidate */
    struct weight confidence; /* [1, hidden (+ rank)] */
    float confidence_bias;
    struct weight embed_tokens, lm_head; /* no rows: the target's serve */
};

/* Binds DIR's tensors. c->has_confidence becomes what the files have. */
lathe_status dflash_weights_open(struct dflash_weights *w, struct dflash_config *c, const char *dir,
                                 lathe_error *err);
void dflash_weights_place(struct dflash_weights *w, const struct dflash_config *c,
                          struct memory *m);
void dflash_weights_close(struct dflash_weights *w); /* no-op on a zeroed struct */

/* What the slots remember: per layer a ring, of `window` positions in sliding layers (one more than any
 * row sees, so that a power of two stays one), of all positions in the others. */
struct dflash_context {
    const struct dflash_config *c; /* borrowed, as are backend and stream */
    const struct backend *backend;
    void *stream;
    struct kv_ring *ring;  /* [n_layers] */
    int32_t *first;        /* [n_layers, n_slots]: rings' first positions */
    int32_t *device_first; /* the same in the backend's memory, as of dflash_context_send */
    int32_t *frontier;     /* [n_slots]: positions below it are there, or out of the window */
    int32_t n_slots, n_ctx;
    enum dtype kv;
};

/* Its rings are the region's. While that measures, they have shapes and no memory. */
lathe_status dflash_context_open(struct dflash_context *x, const struct dflash_config *c,
                                 const struct drafter_options *o, int32_t n_ctx,
                                 struct region *cache, lathe_error *err);
void dflash_context_close(struct dflash_context *x); /* no-op on a zeroed struct */
void dflash_context_send(const struct dflash_context *x);
void dflash_context_rewind(struct dflash_context *x, int32_t slot, int32_t n);
lathe_status dflash_context_save(const struct dflash_context *x, int32_t slot, struct buf *out,
                                 lathe_error *err);
lathe_status dflash_context_load(struct dflash_context *x, int32_t slot, const void *bytes,
                                 size_t n, lathe_error *err);

struct drafter {
    struct drafter_options o;
    struct dflash_config config;
    struct dflash_weights weights;
    const struct weight *embed_tokens, *lm_head; /* the drafter's own or the target's */
    struct rope rope;
    uint8_t rope_axis[MAX_ROTARY_PAIRS];
    struct dflash_context context;
    struct exec x;
    int32_t max_draft;
    bool has_warned;  /* of scores that are not finite */
    int32_t max_rows; /* of a batch: the larger of o.max_rows and n_slots * block */
    int32_t *row;     /* [max_rows] */
    struct batch_store store;
    struct batch batch;
    int32_t *prev;        /* [n_slots]: the token before, in a walk */
    float *survival;      /* [n_slots]: product of a chain's confidences */
    float *candidate_row; /* [vocab]: -infinity but for the candidates at hand */
    float *ones; /* [n_slots * max_draft, rank] backend memory: DSpark's factor in pair scores */
    /* What a walk reads of the backend's results; NULL where it reads them in place. */
    float *host_logits; /* [n_slots * max_draft, vocab]; DFlash only */
    /* [n_slots * max_draft, n_candidates * (1 + n_candidates)], as the walk has it */
    int32_t *host_table;
    float *host_confidence; /* [n_slots], always there */
};

/* Appends the batch's rows to the rings: feature [T, n_taps * hidden] act.
 * exec_tap: "context_k", "context_v" of each layer. */
void dflash_append(struct exec *x, const struct drafter *d, struct tensor feature,
                   const struct batch *b);
/* Runs blocks, one a sequence of b, through the layers: h [T, hidden] act, after the final norm.
 * exec_tap: "block_hidden". */
void dflash_block(struct exec *x, const struct drafter *d, struct tensor h, const struct batch *b);
/* Chooses the drafts of n requests, whose blocks' rows are those of h in order, `most` at most each.
 * While planning, r is not looked at. exec_tap: "cand_logits" and "cand_ids" of all steps,
 * "selector_scores" of step i as layer i, a request at a time. */
void dflash_walk(struct exec *x, struct drafter *d, struct tensor h, struct draft_request *r,
                 int32_t n, int32_t most);
/* The best drafts behind anchor [1, 1] I32 of the block whose rows are h, without a look at them: token [most] I32. With
 * a selector, and no confidence that may end a chain. */
void dflash_walk_there(struct exec *x, struct drafter *d, struct tensor h, struct tensor anchor,
                       struct tensor token, const struct resident *r,
                       const struct history *history);

#endif

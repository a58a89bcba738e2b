/* The schedule: tokens to hidden states to logits. One for prefill, decode and verification; the batch
 * says which. */
#ifndef LATHE_MODEL_FORWARD_H
#define LATHE_MODEL_FORWARD_H

#include "cache/kv.h"
#include "cache/record.h"
#include "cache/recurrent.h"
#include "model/model.h"
#include "op/op.h"

/* What the slots remember, and the dtype between operators. */
struct state {
    enum dtype act; /* DT_BF16 or DT_F32 */
    struct kv_cache kv;
    struct recurrent recurrent;
    struct record record; /* of the last verify batch */
    struct rope rope;
    uint8_t rope_axis[MAX_ROTARY_PAIRS];
};

struct state_options {
    enum dtype act, kv;
    int32_t n_slots, n_ctx;
    bool has_spare; /* a recurrent state more, behind those of the slots, without keys and values */
    int32_t n_verify; /* rows a verify batch may have; 0: no verify batches */
};

/* Hidden states that a drafter reads: the residual stream after each of n layers, side by side. */
struct feature_taps {
    int32_t n;
    const int32_t *layer;  /* [n], ascending, of [0, n_layers) */
    struct tensor feature; /* [T, n * hidden] act */
};

struct kv_shape state_kv_shape(const struct dims *d, const struct state_options *o);
struct recurrent_shape state_recurrent_shape(const struct dims *d, const struct state_options *o);
/* Its memory is that of the region `cache`. While that measures, the state has shapes and no memory: for
 * planning. */
lathe_status state_open(struct state *s, const struct dims *d, const struct state_options *o,
                        struct region *cache, lathe_error *err);
void state_close(struct state *s); /* no-op on a zeroed struct */
/* Makes a slot that of an empty sequence. */
void state_reset(struct state *s, int32_t slot);
/* The spare recurrent state as a slot of it; -1: there is none. */
int32_t state_spare(const struct state *s);
/* `to` gets a copy of the recurrent state of `from`, but not of what the backend keeps to go on with a prompt. */
void state_copy(struct state *s, int32_t to, int32_t from);
/* Makes the spare state all that the slot's is. */
void state_keep(struct state *s, int32_t slot);
/* Makes the slot again that of its first n tokens, where the spare state is what state_keep made it then. */
void state_take_back(struct state *s, int32_t slot, int32_t n);
/* For checks: `to` gets a copy of the recurrent state of `from` and sees its pages; no pages are its own. */
void state_alias(struct state *s, int32_t to, int32_t from);
/* Are the recurrent states of two slots the same bits? */
bool state_same(const struct state *s, int32_t a, int32_t b);

/* Runs b's rows through all layers and the final norm: hidden [T, hidden] act, what the head (and the
 * MTP head) reads. In PREFILL and DECODE each sequence's state advances by its rows; in VERIFY it stays and
 * s->record is filled. The KV pages of the rows' positions must be reserved. `taps` may be NULL.
 * exec_tap: "layer" i = the residual stream before layer i; "final". */
void forward(struct exec *x, const struct model *m, struct state *s, const struct batch *b,
             const struct feature_taps *taps, struct tensor hidden);

/* Commits rows of the last verify batch: every GDN layer's state advances by the first n_rows rows of each
 * sequence of `seq`, to the bits that decoding them would have left. Sequences that keep nothing are not
 * listed. Keys and values lie in their pages already. `before` as in struct fold_layers. */
void forward_commit(struct exec *x, const struct model *m, struct state *s,
                    const struct batch_seq *seq, int32_t n_seqs, const int32_t *before);

/* logits [n, vocab] F32 of the given rows of `hidden` (row NULL: all of them, n = T), with the arithmetic of
 * decoding whatever the phase they came from. */
void forward_logits(struct exec *x, const struct model *m, struct tensor logits,
                    struct tensor hidden, const int32_t *row);

/* The parts of a full-attention layer, for heads and drafters that have one: each reads the norm of n's rows, adds to
 * the rows, h [T, hidden] act, and makes their norm by the weights `next`; none, where that is NULL. `kv` are the
 * layer's own pages. */
void attn_mixer(struct exec *x, const struct dims *d, const struct layer *l, struct normed *n,
                struct tensor next, const struct batch *b, const struct kv_pages *kv,
                const struct rope *rope);
void mlp(struct exec *x, const struct dims *d, const struct layer *l, struct normed *n,
         const struct tensor *next);

/* mtp_head.c: the multi-token prediction head. Row t of its batch pairs the hidden state h_t of the target
 * with the token x_{t + 1}: b->token holds x_{t + 1}, b->pos t, hidden [T, hidden] act h_t, and `kv` are the
 * pages of the head's own layer.
 * mtp_step: s [T, hidden] act, from which forward_logits gives the law of x_{t + 2}, and which stands for
 * h_{t + 1} where the next row is drafted. It may be `hidden`.
 * mtp_context: only what later rows attend to, the rows' keys and values, with the same bits. */
void mtp_step(struct exec *x, const struct model *m, const struct batch *b,
              const struct kv_pages *kv, const struct rope *rope, struct tensor hidden,
              struct tensor s);
void mtp_context(struct exec *x, const struct model *m, const struct batch *b,
                 const struct kv_pages *kv, const struct rope *rope, struct tensor hidden);

/* Which position axis each rotary frequency follows: the interleaved map of mrope sections
 * [time, height, width]; all time where the sections are zero. */
void rope_axes(uint8_t *axis, int32_t n_pairs, const int32_t section[3]);

#endif

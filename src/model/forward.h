/* The schedule: tokens to hidden states to logits. One for prefill, decode and verification; the batch
 * says which. */
#ifndef LATHE_MODEL_FORWARD_H
#define LATHE_MODEL_FORWARD_H

#include "cache/kv.h"
#include "cache/recurrent.h"
#include "model/model.h"
#include "op/op.h"

/* What the slots remember, and the dtype between operators. */
struct state {
    enum dtype act; /* DT_BF16 or DT_F32 */
    struct kv_cache kv;
    struct recurrent recurrent;
    struct rope rope;
    uint8_t rope_axis[MAX_ROTARY_PAIRS];
};

struct state_options {
    enum dtype act, kv;
    int32_t n_slots, n_ctx;
};

struct kv_shape state_kv_shape(const struct dims *d, const struct state_options *o);
struct recurrent_shape state_recurrent_shape(const struct dims *d, const struct state_options *o);
lathe_status state_open(struct state *s, const struct dims *d, const struct state_options *o,
                        const struct backend *backend, void *stream, lathe_error *err);
/* A state without memory, for planning. */
void state_plan(struct state *s, const struct dims *d, const struct state_options *o);
void state_close(struct state *s); /* no-op on a zeroed struct */
/* Makes a slot that of an empty sequence. */
void state_reset(struct state *s, int32_t slot);

/* Runs b's rows through all layers and the final norm: hidden [T, hidden] act, what the head (and the
 * MTP head) reads. In PREFILL and DECODE each sequence's state advances by its rows; the KV pages of its
 * positions must be reserved. Taps: "layer" i = the residual stream before layer i; "final". */
void forward(struct exec *x, const struct model *m, struct state *s, const struct batch *b,
             struct tensor hidden);

/* logits [n, vocab] F32 of the given rows of `hidden` (row NULL: all of them, n = T). */
void forward_logits(struct exec *x, const struct model *m, struct tensor logits,
                    struct tensor hidden, const int32_t *row);

/* Which position axis each rotary frequency follows: the interleaved map of mrope sections
 * [time, height, width]; all time where the sections are zero. */
void rope_axes(uint8_t *axis, int32_t n_pairs, const int32_t section[3]);

#endif

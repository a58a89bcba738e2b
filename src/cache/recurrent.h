/* What the Gated DeltaNet layers remember of each slot: the matrix S and the convolution's tail. The
 * size does not depend on the context, and a state cannot be cut back: only reset, copied, advanced. */
#ifndef LATHE_CACHE_RECURRENT_H
#define LATHE_CACHE_RECURRENT_H

#include "op/memory.h"

struct recurrent_shape {
    int32_t n_layers; /* Gated DeltaNet layers */
    int32_t n_slots;
    int32_t conv_dim, conv_taps;
    struct gdn_heads heads;
    enum dtype act;    /* of the tails */
    size_t room_bytes; /* behind each S: the backend's, set by recurrent_open */
};

struct recurrent {
    struct recurrent_shape shape;
    const struct backend *backend;
    void *stream;
    unsigned char *data; /* backend memory: per layer S of all slots, then the tails of all slots */
};

size_t recurrent_bytes(const struct recurrent_shape *s);
/* All slots fresh. The memory is the region's; none while that measures. */
lathe_status recurrent_open(struct recurrent *r, const struct recurrent_shape *s,
                            struct region *region, lathe_error *err);
/* Makes the slot that of an empty sequence. */
void recurrent_reset(struct recurrent *r, int32_t slot);

/* Makes the state of `to` that of `from`, bit by bit. with_room: what the backend keeps of a prompt, too; else that of `to`
 * stays. */
void recurrent_copy(struct recurrent *r, int32_t to, int32_t from, bool with_room);

/* Layer i: S [n_slots, n_v_heads, dk, dv] F32, with the backend's room behind each slot's, and tail
 * [n_slots, taps - 1, conv_dim] act. */
struct tensor recurrent_S(const struct recurrent *r, int32_t i);
struct tensor recurrent_tail(const struct recurrent *r, int32_t i);
/* Bytes from S, or the tail, of one layer to that of the next. */
size_t recurrent_step(const struct recurrent *r);

#endif

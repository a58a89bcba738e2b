/* What a verify batch leaves behind instead of a changed state: the inputs of the recurrent layers' steps,
 * row by row, from which op_gated_delta_fold and op_conv_fold redo the accepted ones. Valid until the
 * next verify batch. */
#ifndef LATHE_CACHE_RECORD_H
#define LATHE_CACHE_RECORD_H

#include "cache/recurrent.h"

struct record {
    struct recurrent_shape shape;
    int32_t n_rows;      /* a verify batch has at most; 0: none may be run */
    unsigned char *data; /* backend memory, layer by layer */
};

/* One layer's part, T rows each. */
struct record_layer {
    struct tensor mixed; /* [T, conv_dim] act: inputs of the convolution */
    struct tensor qkv;   /* [T, conv_dim] act: its outputs */
    struct tensor g;     /* [T, n_v_heads] F32 */
    struct tensor beta;  /* [T, n_v_heads] F32 */
};

size_t record_bytes(const struct recurrent_shape *s, int32_t n_rows);
/* The memory is the region's; none while that measures. */
lathe_status record_open(struct record *r, const struct recurrent_shape *s, int32_t n_rows,
                         struct region *region, lathe_error *err);
/* Bytes from a part of one layer to that of the next. */
size_t record_step(const struct record *r);
struct record_layer record_at(const struct record *r, int32_t layer, int32_t T);

#endif

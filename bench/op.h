/* bench/op's parts: a file for each kind of operator. */
#ifndef LATHE_BENCH_OP_H
#define LATHE_BENCH_OP_H

#include "bench.h"
#include "op/backend.h"
#include "op/op.h"
#include "random.h"

struct options {
    const char *op, *format, *shape, *isa;
    int64_t rows;
    int32_t n_threads;
    enum dtype act;
    double seconds;
    bool pin;
};

struct run {
    const struct options *o;
    struct bench *bench;
    struct exec exec;
    bool has_dots; /* the instruction set in use multiplies BF16 */
};

enum {
    HIDDEN = 5120, /* of the 27B model, like all that follows */
    INTERMEDIATE = 17408,
    HEADS = 24,
    KV_HEADS = 4,
    HEAD_DIM = 256,
    GDN_K_HEADS = 16,
    GDN_V_HEADS = 48,
    GDN_DIM = 128,
    CONV_DIM = (2 * GDN_K_HEADS + GDN_V_HEADS) * GDN_DIM,
    TAPS = 4,
    COPY_BYTES = 128 << 20, /* copies together: four times a large last-level cache */
    MAX_ROWS = 4096,
};

/* The row counts to time: the one asked for, or `usual`, n of them. Returns how many. */
int row_counts(const struct run *r, int64_t *rows, const int64_t *usual, int n);

/* A batch of one sequence. */
struct sequence {
    struct batch b;
    struct batch_seq seq;
    int32_t token[MAX_ROWS], slot[MAX_ROWS], pos[MAX_ROWS], rope_pos[MAX_ROWS][3];
};
void sequence_init(struct sequence *s, enum phase phase, int32_t slot, int32_t pos, int32_t n_rows);

/* op_linear.c */
void bench_linear(struct run *r);
void bench_gdn_gates(struct run *r);
/* op_rows.c */
void bench_embed(struct run *r);
void bench_rmsnorm(struct run *r);
void bench_silu_mul(struct run *r);
void bench_attention_gate(struct run *r);
void bench_rmsnorm_gated(struct run *r);
void bench_gather_rows(struct run *r);
/* op_sequence.c */
void bench_qk_norm_rope(struct run *r);
void bench_kv_append(struct run *r);
void bench_attention(struct run *r);
void bench_causal_conv1d_silu(struct run *r);
void bench_gated_delta_rule(struct run *r);
void bench_gated_delta_fold(struct run *r);
void bench_conv_fold(struct run *r);
/* op_block.c */
void bench_block_conv(struct run *r);
void bench_ring_append(struct run *r);
void bench_block_attention(struct run *r);
void bench_top_k(struct run *r);
void bench_pair_scores(struct run *r);

#endif

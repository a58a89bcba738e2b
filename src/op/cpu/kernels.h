/* The inner loops of all operators but linear, for one instruction set. Each is written once, in
 * loops_*.h over the vectors of simd.h, and compiled by kernels_<isa>.c. `act` and `kv` are BF16 or
 * F32. What a loop computes for a row never depends on how many rows it is given. */
#ifndef LATHE_OP_CPU_KERNELS_H
#define LATHE_OP_CPU_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "op/cpu/isa.h"
#include "op/op.h"
#include "tensor/tensor.h"

enum {
    ATTENTION_TILE = 64,   /* keys: the step of the online softmax */
    ATTENTION_SPLIT = 256, /* keys: what is summed by itself, at absolute positions */
    DELTA_COLS = 32, /* columns of S that are worked on at once: 16 KiB at dk 128, half of L1 */
};

/* Queries that share the keys of one tile. They are of one kv head and all see all n_keys. */
struct attention_tile {
    const void *const *q;     /* [n_q] rows of head_dim, act */
    const void *const *key;   /* [n_keys] rows of head_dim */
    const void *const *value; /* the same */
    /* Memory wanted next, prefetched as the keys and values of the first queries are read: a row's
     * length for each row, ahead_stride bytes apart, ahead_size bytes a dim. NULL for none. */
    const unsigned char *ahead_key, *ahead_value;
    size_t ahead_stride, ahead_size;
    int64_t n_q, n_keys, head_dim;
    float scale;
    float *p;   /* [n_q, ATTENTION_TILE] scratch: scores, then weights */
    float *max; /* [n_q] of the scores so far, -infinity at first */
    float *sum; /* [n_q] of exp(score - max) */
    float *o;   /* [n_q, head_dim]: sum of exp(score - max) * value */
    enum dtype act, kv;
};

/* n_rows steps of the delta rule on DELTA_COLS or fewer columns of one head. */
struct delta_block {
    float *S; /* [dk, DELTA_COLS], aligned to 64; columns from n_cols on are 0 */
    int64_t dk, n_cols, n_rows;
    const float *q, *k; /* [n_rows, dk], normalised */
    const float *decay; /* [n_rows]: exp(g) */
    const float *beta;  /* [n_rows] */
    const void *v;      /* act, v_stride from row to row */
    int64_t v_stride;
    float *o; /* NULL: not wanted, and q is not read */
    int64_t o_stride;
    enum dtype act;
};

/* One row of a convolution within a block. */
struct block_conv_row {
    void *y;                     /* [n] act */
    const void *in[OP_MAX_TAPS]; /* [taps] rows of n act: this one, the one before ... */
    const float *base;           /* [all taps, n] */
    const float *delta;          /* [all taps, groups] */
    int64_t taps, n, groups;
    bool add; /* to what is in y */
    enum dtype act;
};

struct cpu_kernels {
    /* From BF16 or F32 to them or to E4M3; from E4M3 to BF16. */
    void (*convert)(void *dst, enum dtype to, const void *src, enum dtype from, int64_t n);
    void (*rmsnorm)(void *y, const void *x, const float *w, int64_t n, float eps, enum dtype act);
    void (*rmsnorm_gated)(void *y, const float *o, const void *z, const float *w, int64_t n,
                          float eps, enum dtype act);
    /* The norm, then the rotation of `half` pairs, of one head. */
    void (*norm_rope)(void *y, const void *x, const float *w, int64_t n, float eps,
                      const float *cosine, const float *sine, int64_t half, enum dtype act);
    void (*silu_mul)(void *y, const void *gate, const void *up, int64_t n, enum dtype act);
    /* y = o * sigmoid(gate) */
    void (*sigmoid_mul)(void *y, const float *o, const void *gate, int64_t n, enum dtype act);
    /* y[c] = silu(sum_j w[j * n + c] * in[j][c]) */
    void (*conv1d_silu)(void *y, const void *const *in, const float *w, int64_t taps, int64_t n,
                        enum dtype act);
    /* y = x * factor / sqrt(sum(x^2) + 1e-6) */
    void (*l2norm)(float *y, const void *x, int64_t n, double factor, enum dtype act);
    void (*delta_rows)(const struct delta_block *b);
    void (*attention_tile)(const struct attention_tile *t);
    /* Adds the softmax sums (max, sum, o) over later keys to those in *all_max, *all_sum, all_o. */
    void (*attention_merge)(float *all_max, float *all_sum, float *all_o, float max, float sum,
                            const float *o, int64_t n);
    /* o /= sum */
    void (*attention_finish)(float *o, float sum, int64_t n);
    void (*block_conv)(const struct block_conv_row *b);
    /* The first index from i on with x > bound; n if there is none. */
    int64_t (*first_above)(const float *x, int64_t i, int64_t n, float bound);
    float (*dot)(const float *a, const float *b, int64_t n);
};

void cpu_kernels_select(struct cpu_kernels *k, enum cpu_isa isa);

/* kernels_<isa>.c */
void cpu_kernels_generic(struct cpu_kernels *k);
void cpu_kernels_avx2(struct cpu_kernels *k);
void cpu_kernels_avx512(struct cpu_kernels *k);
void cpu_kernels_avx512bf16(struct cpu_kernels *k);
void cpu_kernels_neon(struct cpu_kernels *k);

#endif

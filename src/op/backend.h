/* What a backend provides: memory, and one function per operator. op/<name>.c has checked the operands
 * before an entry is called; the arguments' meaning is the contract in op.h. */
#ifndef LATHE_OP_BACKEND_H
#define LATHE_OP_BACKEND_H

#include "base/error.h"
#include "base/thread.h"
#include "op/batch.h"
#include "op/op.h"

struct embed_args {
    struct tensor y;
    const struct weight *table;
    const int32_t *token;
};
struct rmsnorm_args {
    struct tensor y, in, w;
    float eps;
};
struct linear_args {
    struct tensor y, in;
    const struct weight *w;
    const struct normed *of; /* `in` is u of it, unscaled; NULL: `in` is what it is */
    bool add;                /* op_linear_add */
    enum phase phase;        /* whose arithmetic the rows get */
    struct tensor scratch;   /* U8 [linear_scratch()] */
};
struct silu_mul_args {
    struct tensor y, gate, up;
};
struct qk_norm_rope_args {
    struct tensor q, k, qg, q_norm, k_norm;
    int32_t head_dim;
    float eps;
    const struct rope *rope;
    const struct batch *b;
};
struct kv_append_args {
    const struct kv_pages *kv;
    struct tensor k, v;
    const struct batch *b;
};
struct attention_args {
    struct tensor o, q;
    const struct kv_pages *kv;
    float scale;
    const struct batch *b;
    struct tensor scratch; /* U8 [attention_scratch()] */
};
struct attention_gate_args {
    struct tensor y, o, qg;
    int32_t head_dim;
};
struct qk_norm_rope_append_args {
    struct qk_norm_rope_args norm_rope;
    struct kv_append_args append; /* the same k */
};
struct gated_attention_args {
    struct attention_args attention; /* without o */
    struct attention_gate_args gate; /* likewise */
};
struct gdn_gates_args {
    struct tensor g, beta, u;
    const struct weight *in_proj_a, *in_proj_b;
    struct tensor A_log, dt_bias;
    struct tensor scratch; /* U8 [gdn_gates_scratch()] */
};
struct causal_conv1d_silu_args {
    struct tensor y, in, w, tail;
    const struct batch *b;
};
struct gated_delta_rule_args {
    struct tensor o, qkv, g, beta, S;
    struct gdn_heads heads;
    const struct batch *b;
    struct tensor scratch; /* U8 [gated_delta_rule_scratch()] */
};
struct gated_delta_fold_args {
    struct tensor S, qkv, g, beta;
    struct gdn_heads heads;
    struct fold_layers layers;
    const struct batch_seq *seq;
    int32_t n_seqs;
};
struct conv_fold_args {
    struct tensor tail, in;
    struct fold_layers layers;
    const struct batch_seq *seq;
    int32_t n_seqs;
};
struct rmsnorm_gated_args {
    struct tensor y, o, z, w;
    float eps;
};
struct gdn_mix_args {
    struct tensor y, qkv;
    const struct gdn_projected *in;
    struct tensor conv, norm;
    float eps;
    struct tensor tail, S;
    struct gdn_heads heads;
    const struct batch *b;
};
struct gather_rows_args {
    struct tensor y, in;
    const int32_t *row;
};
struct block_conv_args {
    struct tensor y, in, base, delta;
    int32_t block;
    bool add; /* op_block_conv_add */
};
struct block_conv_add_norm_args {
    struct block_conv_args conv;
    struct tensor u, w;
    float eps;
};
struct block_conv_made_args {
    struct tensor y, delta, in;
    const struct weight *w;
    struct tensor base;
    int32_t block;
};
struct ring_append_args {
    const struct kv_ring *ring;
    struct tensor k, v;
    const struct batch *b;
};
struct ring_rows_args {
    const struct ring_rows *rows; /* [n] */
    int32_t n;
    float eps;
    const struct rope *rope;
    const struct batch *b;
};
struct block_attention_args {
    struct tensor o, q, k, v;
    const struct kv_ring *ring;
    int32_t window;
    float scale;
    const struct batch *b;
    struct tensor scratch; /* U8 [block_attention_scratch()] */
};
struct top_k_args {
    struct tensor value, id, logits;
    const int32_t (*range)[2];
    int32_t n_ranges;
    struct tensor scratch; /* U8 [top_k_scratch()] */
};
struct pair_scores_args {
    struct tensor y, u, prev, id, g;
    const struct weight *A, *B;
};
struct penalise_args {
    struct tensor logits;
    int32_t first;
    const struct resident *r;
    const struct history *h;
};
struct walk_args {
    struct tensor token, id, score;
    const struct resident *r;
    const struct history *h;
};
enum { CHOOSE_COLUMNS = 4096, CHOOSE_PART = 16 }; /* of a part, and its bytes of scratch */
struct choose_args {
    struct tensor token, value, id, logits;
    const int32_t (*range)[2];
    int32_t n_ranges;
    struct tensor scratch; /* U8, CHOOSE_PART for each row and CHOOSE_COLUMNS columns of it */
    int32_t first, none;
    const struct resident *r;
};
struct advance_args {
    struct resident *r;
    int32_t n_rows;
    const struct history *h;
    struct round_report *report;
};

/* What linear multiplies a prompt's rows in. */
enum prompt_math {
    PROMPT_ACT, /* in the activations' dtype */
    /* BF16 rows by FP8 matrices whose scales are of rows or of the whole: in[t,c] becomes s[t] * e4m3(in[t,c] / s[t]),
     * s[t] = max_c |in[t,c]| / 448, or 1 where that is 0 */
    PROMPT_FP8,
    /* The same, and BF16 rows by NVFP4 matrices that `arrange` has put in order:
     * in[t,c] becomes s[t] * d[t,b] * e2m1(in[t,c] / (s[t] * d[t,b])), b = c / 16,
     * s[t] = max_c |in[t,c]| / 2688, or 1 where that is 0, d[t,b] = e4m3(max_b |in[t,c]| / 6 / s[t]), 0 where that is 0 */
    PROMPT_NVFP4,
};

/* Weights to be had at `to`, or, where that is NULL, read where they are. */
struct load {
    void *to;         /* memory of the backend */
    const void *from; /* mapped */
    size_t bytes;
};

/* Bytes of the host whose like the backend's memory has. */
enum { MAX_HOMES = 2 };
struct home {
    const void *host, *device;
    size_t bytes;
};

/* name; the struct is <name>_args */
#define OPERATORS(X)                                                                               \
    X(embed)                                                                                       \
    X(rmsnorm)                                                                                     \
    X(linear)                                                                                      \
    X(silu_mul)                                                                                    \
    X(qk_norm_rope)                                                                                \
    X(kv_append)                                                                                   \
    X(attention)                                                                                   \
    X(attention_gate)                                                                              \
    X(gdn_gates)                                                                                   \
    X(causal_conv1d_silu)                                                                          \
    X(gated_delta_rule)                                                                            \
    X(gated_delta_fold)                                                                            \
    X(conv_fold)                                                                                   \
    X(rmsnorm_gated)                                                                               \
    X(gather_rows)                                                                                 \
    X(block_conv)                                                                                  \
    X(ring_append)                                                                                 \
    X(block_attention)                                                                             \
    X(top_k)                                                                                       \
    X(pair_scores)                                                                                 \
    X(penalise)                                                                                    \
    X(walk)                                                                                        \
    X(choose)                                                                                      \
    X(advance)

struct backend {
    const char *name;

    /* `isa` caps the instruction set ("generic", "avx2", ...), NULL takes the best; an unknown name or
     * one this processor lacks is refused with those it has. `pool` outlives the stream. LATHE_E_UNSUPPORTED: there is no such
     * device, and not one that fails. */
    lathe_status (*open)(void **stream, struct pool *pool, const char *isa, lathe_error *err);
    void (*close)(void *stream);
    /* The instruction set in use, for listings. */
    const char *(*isa)(const void *stream);
    /* Zeroed memory of the backend, 64-byte aligned. */
    lathe_status (*alloc)(void *stream, void **p, size_t bytes, lathe_error *err);
    void (*free)(void *stream, void *p);
    /* Bytes of that memory that a stream has for itself, from its first alloc on. */
    size_t own_bytes;
    /* An allowance for what the driver takes of that memory, and no alloc: code of kernels, captured schedules, buffers
     * of libraries. */
    size_t driver_bytes;
    /* Bytes of that memory in all, and free now; 0 where it is not known. */
    void (*room)(void *stream, size_t *total, size_t *room);
    /* Copies or reads n loads with all threads of the pool (NULL: the caller's); complete on return. Reports
     * "loading" from the caller's thread, and ends if the rest is not wanted; `progress` may be NULL. */
    lathe_status (*load)(void *stream, struct pool *pool, const struct load *load, size_t n,
                         lathe_progress_fn progress, void *progress_ctx, lathe_error *err);
    /* Memory as from alloc, but of the host: copies reach it fastest, and operators may read and write it. */
    lathe_status (*alloc_host)(void *stream, void **p, size_t bytes, lathe_error *err);
    void (*free_host)(void *stream, void *p);
    /* Is memory from alloc the host's own? If not, host code reaches it through copies only. */
    bool is_host;
    /* In order with the operators. copy_in may return before it is done, but has read `src`. What
     * fails is reported by the next call that returns a status. */
    void (*zero)(void *stream, void *p, size_t bytes);
    void (*copy)(void *stream, void *dst, const void *src, size_t bytes);
    void (*copy_in)(void *stream, void *dst, const void *src, size_t bytes);
    /* Complete on return, and so is all work before it. */
    lathe_status (*copy_out)(void *stream, void *dst, const void *src, size_t bytes,
                             lathe_error *err);
    lathe_status (*wait)(void *stream, lathe_error *err);
    /* Work may be left half done: from here on `leave` is asked now and then, on the thread that calls operators, between
     * them and inside those that take long, whether nobody wants the rest. Once it has said so it is not asked again, is_left
     * is true, and what operators wrote since is undefined. leave NULL: no more, and is_left is false. NULL, both: what
     * was begun is done. */
    void (*watch)(void *stream, bool (*leave)(void *ctx), void *ctx);
    bool (*is_left)(void *stream);
    /* A schedule that is run again and again: between capture and captured its operators are noted, not run; replay runs
     * them in one go. Where they are given an array of the host that lies in one of n homes, n <= MAX_HOMES, a batch of
     * one sequence or a small table, it is the device's that counts when they run. *graph, NULL after a
     * failure, is valid until it is released. NULL, all four: there is no such thing. */
    lathe_status (*capture)(void *stream, const struct home *home, int n, lathe_error *err);
    lathe_status (*captured)(void *stream, void **graph, lathe_error *err);
    lathe_status (*replay)(void *stream, void *graph, lathe_error *err);
    void (*release)(void *stream, void *graph); /* NULL is allowed */
    /* Notes the end of the work so far as i, of [0, ROUND_REPORTS); waits for what was noted last as i. NULL, both: work
     * is done when the call that asks for it returns. */
    void (*mark)(void *stream, int i);
    lathe_status (*await)(void *stream, int i, lathe_error *err);
    /* The device's own stream, for clocks; NULL on the host. */
    void *(*native)(void *stream);
    /* Puts codes and scales of matrices that only linear reads in the order of its kernels, where it has one that
     * suits them; values stay, words need not. Their memory is the backend's own. NULL: there is no such
     * order. */
    lathe_status (*arrange)(void *stream, struct weight *const *w, size_t n, lathe_error *err);
    /* Makes n products of one input at once, if it can; the first one's scratch is that of all, as large as any of them
     * needs. `joined` then says what failed. NULL: it never can. */
    bool (*linears)(void *stream, const struct linear_args *a, int n);
    /* The same, without scratch, for y = silu(gate) * up of two products of one size, y being the first's. */
    bool (*linear_silu_mul)(void *stream, const struct linear_args a[2]);
    /* The same for a product that is added to n->h; u and squares, but not w, are there then, and u is unscaled. */
    bool (*linear_add_norm)(void *stream, const struct linear_args *a, const struct normed *n);
    /* Two operators at once. NULL: they are run one after the other. */
    lathe_status (*qk_norm_rope_append)(void *stream, const struct qk_norm_rope_append_args *a,
                                        lathe_error *err);
    lathe_status (*gated_attention)(void *stream, const struct gated_attention_args *a,
                                    lathe_error *err);
    /* linears, and the gates of the same input. NULL: it never can. */
    bool (*linears_gates)(void *stream, const struct linear_args *a, int n,
                          const struct gdn_gates_args *gates);
    /* The operators of op_gdn_mix in one. NULL: it never can. */
    bool (*gdn_mix)(void *stream, const struct gdn_mix_args *a);
    /* The operators of op_block_conv_add_norm, and of op_block_conv_made, in one. NULL: it never can. */
    bool (*block_conv_add_norm)(void *stream, const struct block_conv_add_norm_args *a);
    bool (*block_conv_made)(void *stream, const struct block_conv_made_args *a);
    /* op_ring_rows of all in one. NULL: it never can. */
    bool (*ring_rows)(void *stream, const struct ring_rows_args *a);
    /* How it went, after one of those that return a bool returned true. */
    lathe_status (*joined)(void *stream, lathe_error *err);
    /* PROMPT_ACT at the start; the device may lack the others. NULL: there is nothing else. */
    lathe_status (*set_prompt_math)(void *stream, enum prompt_math math, lathe_error *err);
    /* Rows of a prompt that one pass takes best. */
    int32_t prompt_rows;
    /* Bytes, a multiple of 16, that gated_delta_rule wants behind each slot's S: what it has to know of a prompt to go on with it
     * where it was cut. Zero for an empty sequence; without them a prompt is computed in another way. NULL: none. */
    size_t (*delta_room)(const void *stream, const struct gdn_heads *heads, enum dtype act);
    /* May this backend multiply by a weight of this format with these activations? */
    bool (*has_linear)(enum weight_format_id format, enum dtype act);

    /* Bytes of scratch an operator needs; 0 is allowed. Depend on shapes only, not on data. */
    size_t (*linear_scratch)(const void *stream, const struct linear_args *a);
    size_t (*gdn_gates_scratch)(const void *stream, const struct gdn_gates_args *a);
    size_t (*gated_delta_rule_scratch)(const void *stream, const struct gated_delta_rule_args *a);
    size_t (*attention_scratch)(const void *stream, const struct attention_args *a);
    size_t (*block_attention_scratch)(const void *stream, const struct block_attention_args *a);
    size_t (*top_k_scratch)(const void *stream, const struct top_k_args *a);

#define X(name) lathe_status (*name)(void *stream, const struct name##_args *a, lathe_error *err);
    OPERATORS(X)
#undef X
};

extern const struct backend backend_ref; /* each formula in double; one thread */
extern const struct backend backend_cpu;
#ifdef LATHE_CUDA
extern const struct backend backend_cuda;
#endif

#endif

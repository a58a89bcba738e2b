/* Every operator's contract: what it computes, over which shapes, what may alias, what state changes.
 *
 * Common to all:
 *  - T, the number of rows, is any positive number. Row t of a result depends on row t of the inputs
 *    (and on its sequence's state) only: not on T, on the other rows, or on the thread count; the same
 *    row gives the same bits in any batch of the same phase.
 *  - "act" is the activation dtype, BF16 or F32: the dtype of the tensors marked so, which must
 *    agree. Sums are in F32 or wider; a result is rounded once, when it is stored.
 *  - NaN and infinity follow IEEE 754 through a row and reach no other row or slot.
 *  - Inputs may be views of columns (stride > row); weights are read where the checkpoint has them.
 *  - Inputs are unchanged; outputs alias nothing unless the contract says so. Small vectors are F32.
 * Calls go through `struct exec`, which keeps the first failure and makes later calls no-ops. */
#ifndef LATHE_OP_OP_H
#define LATHE_OP_OP_H

#include "op/batch.h"
#include "op/exec.h"
#include "op/resident.h"
#include "quant/formats.h"
#include "tensor/tensor.h"

enum {
    OP_MAX_HEAD = 512,  /* head_dim, dk, dv */
    OP_MAX_TAPS = 8,    /* of the convolutions */
    OP_MAX_GROUP = 64,  /* query heads that share a kv head */
    OP_MAX_RANK = 1024, /* of a candidate selector */
    OP_NORM_PART =
        16, /* values whose squares are added first, where a norm's scale is left to products */
};

/* y[t,:] = table[token[t],:].  y [T, hidden] act; table any format; tokens in [0, table.rows). */
void op_embed(struct exec *x, struct tensor y, const struct weight *table, const int32_t *token);

/* y[t,:] = x[t,:] * rsqrt(mean_i(x[t,i]^2) + eps) * w[:]
 *   y, in [T, n] act, may be the same tensor;  w [n] F32: for the target's norms, which checkpoints store
 *   zero-centred, 1 + what is stored. From Qwen3_5RMSNorm. */
void op_rmsnorm(struct exec *x, struct tensor y, struct tensor in, struct tensor w, float eps);

/* Rows and what op_rmsnorm makes of them. A backend may leave a row's scale to the products of u; where one of these
 * cannot multiply by it, u is scaled first. */
struct normed {
    struct tensor h;       /* [T, n] act */
    struct tensor u;       /* [T, n] act */
    struct tensor squares; /* F32 [T, n / OP_NORM_PART], a backend's own: what scales are made of */
    struct tensor w;       /* F32 [n] */
    float eps;
    bool
        unscaled; /* u is h * w, and its row t is still to be multiplied by rsqrt(mean_i(h[t,i]^2) + eps) */
};
/* Of rows h, without a norm yet; its arrays are temporaries of x. */
struct normed normed_tmp(struct exec *x, struct tensor h, float eps);
/* Of rows that are what they are. */
static inline struct normed normed_already(struct tensor u)
{
    return (struct normed){.u = u};
}
/* u = op_rmsnorm(h, w) */
void op_norm(struct exec *x, struct normed *n, struct tensor w);

/* y[t,r] = sum_c W[r,c] * in[t,c]
 *   in [T, cols] act;  y [T, rows] act or F32;  W any format. The rows' phase is that of exec_phase. */
void op_linear(struct exec *x, struct tensor y, struct tensor in, const struct weight *w);

/* op_linear of n <= 4 matrices with one input, where a backend can in one go. */
void op_linears(struct exec *x, int n, const struct tensor *y, struct normed *in,
                const struct weight *const *w);

/* y = silu(gate in) * (up in), what op_linear twice and op_silu_mul give, where a backend can in one go.
 *   y [T, rows] act; gate and up of one size. */
void op_linear_silu_mul(struct exec *x, struct tensor y, struct normed *in,
                        const struct weight *gate, const struct weight *up);

/* h[t,r] += sum_c W[r,c] * in[t,c], the sum in F32 and rounded once.  h [T, rows] act. */
void op_linear_add(struct exec *x, struct tensor h, struct tensor in, const struct weight *w);

/* The same to n's rows, and then op_norm of them, where a backend can in one go. */
void op_linear_add_norm(struct exec *x, struct normed *n, struct tensor in, const struct weight *w,
                        struct tensor norm);

/* y[t,i] = silu(gate[t,i]) * up[t,i],  silu(x) = x / (1 + exp(-x)).
 *   y, gate, up [T, n] act; y may be gate or up. */
void op_silu_mul(struct exec *x, struct tensor y, struct tensor gate, struct tensor up);

/* The rotary embedding of some leading dims of every head (NeoX pairing: i with i + dims / 2) over
 * three position axes. */
struct rope {
    int32_t dims;          /* even, <= head_dim; the others pass unchanged */
    const float *inv_freq; /* [dims / 2] */
    const uint8_t *axis;   /* [dims / 2]: 0 time, 1 height, 2 width */
    float scale;           /* cos and sin are multiplied by it (YaRN); 1 otherwise */
};

/* Per head: normalise as op_rmsnorm over head_dim, then rotate.
 *   q [T, n_heads * head_dim] act: from qg [T, n_heads * 2 * head_dim] act, the first head_dim of each
 *     head's 2 * head_dim (the rest is the output gate, not touched); or from qg [T, n_heads * head_dim],
 *     which may be q itself. No heads at all are allowed: then only k is worked on
 *   k [T, n_kv_heads * head_dim] act, in place
 *   angle a_i = rope_pos[t][axis[i]] * inv_freq[i] in F32; sin and cos in F32.
 *   From Qwen3_5Attention. */
void op_qk_norm_rope(struct exec *x, struct tensor q, struct tensor k, struct tensor qg,
                     struct tensor q_norm, struct tensor k_norm, int32_t head_dim, float eps,
                     const struct rope *rope, const struct batch *b);

/* One layer's keys and values in fixed blocks of positions. In E4M3 a code is the number itself, with no
 * scale: keys are normalised, values about as large. */
struct kv_pages {
    struct tensor k, v;        /* [n_pages, page, n_kv_heads, head_dim] BF16, F32 or E4M3 */
    const int32_t *page_table; /* [n_slots, pages_per_slot]: page of positions [i * page, ...) */
    int32_t pages_per_slot;
    const int32_t *device_table; /* the same in the backend's memory */
};

/* Rounds k and v [T, n_kv_heads * head_dim] act to the cache's dtype and writes them at each row's
 * (slot, pos). To E4M3: nearest, ties to even; what is beyond 448, infinity too, becomes 448 with its sign;
 * NaN stays NaN. Runs in every phase: what lies at or above a sequence's frontier is garbage by
 * contract and is written before it is read. */
void op_kv_append(struct exec *x, const struct kv_pages *kv, struct tensor k, struct tensor v,
                  const struct batch *b);

/* op_qk_norm_rope, then op_kv_append of k and v, where a backend can in one go. */
void op_qk_norm_rope_append(struct exec *x, struct tensor q, struct tensor k, struct tensor qg,
                            struct tensor q_norm, struct tensor k_norm, int32_t head_dim, float eps,
                            const struct rope *rope, const struct kv_pages *kv, struct tensor v,
                            const struct batch *b);

/* o[t,n,:] = sum_s p[s] * v[s, n / group,:],  p = softmax_s(q[t,n] . k[s, n / group] * scale), over
 * s = 0 .. pos[t] of the row's slot, group = n_heads / n_kv_heads.
 *   q [T, n_heads * head_dim] act;  o [T, n_heads * head_dim] F32.
 *   Where s is split depends on pos[t] alone; splits are merged in ascending order. */
void op_attention(struct exec *x, struct tensor o, struct tensor q, const struct kv_pages *kv,
                  float scale, const struct batch *b);

/* y[t, n * head_dim + d] = o[t, n * head_dim + d] * sigmoid(qg[t, n * 2 * head_dim + head_dim + d]):
 * the output gate that q_proj computes beside each query.
 *   y [T, n_heads * head_dim] act;  o the same shape, F32;  qg [T, n_heads * 2 * head_dim] act. */
void op_attention_gate(struct exec *x, struct tensor y, struct tensor o, struct tensor qg,
                       int32_t head_dim);

/* y = what op_attention_gate makes of op_attention's result and of qg, where a backend can in one go.
 *   y [T, n_heads * head_dim] act, may be q. */
void op_gated_attention(struct exec *x, struct tensor y, struct tensor q, struct tensor qg,
                        const struct kv_pages *kv, float scale, const struct batch *b);

/* g = -exp(A_log) * softplus(in_proj_a u + dt_bias),  beta = sigmoid(in_proj_b u)
 *   softplus(x) = x if x > 20, else log(1 + exp(x))
 *   g, beta [T, n_v_heads] F32;  u [T, hidden] act;  A_log, dt_bias F32 [n_v_heads].
 *   The two products are not rounded before use. From Qwen3_5GatedDeltaNet. */
void op_gdn_gates(struct exec *x, struct tensor g, struct tensor beta, struct tensor u,
                  const struct weight *in_proj_a, const struct weight *in_proj_b,
                  struct tensor A_log, struct tensor dt_bias);

/* y[t,c] = silu(sum_j w[c,j] * in[t - (taps - 1) + j, c]): causal, depthwise. Before a sequence's first
 * row stand the taps - 1 inputs of its tail, oldest first.
 *   y, in [T, channels] act, not the same;  w F32 [channels, taps]
 *   tail [n_slots, taps - 1, channels] act: zero for a fresh sequence. In PREFILL and DECODE each
 *     sequence's tail becomes its last taps - 1 inputs; in VERIFY it is left alone.
 *   Sum in F32, ascending j. */
void op_causal_conv1d_silu(struct exec *x, struct tensor y, struct tensor in, struct tensor w,
                           struct tensor tail, const struct batch *b);

struct gdn_heads {
    int32_t n_k_heads, n_v_heads; /* v head j uses k head j / (n_v_heads / n_k_heads) */
    int32_t dk, dv;
};

/* The gated delta rule, one step a row. Per v head, all in F32:
 *   k^ = k * rsqrt(sum(k^2) + 1e-6),  q^ = q * rsqrt(sum(q^2) + 1e-6) / sqrt(dk)
 *   S = exp(g) * S;  d = beta * (v - S^T k^);  S = S + k^ d^T;  o = S^T q^
 *   o [T, n_v_heads * dv] F32
 *   qkv [T, n_k_heads * dk | n_k_heads * dk | n_v_heads * dv] act: q, k, v after the convolution
 *   g, beta [T, n_v_heads] F32
 *   S [n_slots, n_v_heads, dk, dv] F32: zero for a fresh sequence. Advanced by each sequence's rows in
 *     PREFILL and DECODE; in VERIFY read, and left alone. Where there is room behind each slot's (delta_room of
 *     backend.h), PREFILL may add in another order than the other phases.
 *   From Qwen3_5GatedDeltaNet; any split of a sequence into batches of a phase gives the same bits. */
void op_gated_delta_rule(struct exec *x, struct tensor o, struct tensor qkv, struct tensor g,
                         struct tensor beta, struct tensor S, const struct gdn_heads *heads,
                         const struct batch *b);

/* Layers whose states lie evenly apart, and what was recorded of them too: bytes from one layer's to the
 * next's, multiples of 16. `before`: of a fold of one sequence, the slot that gets a copy of its state as it was, if the
 * fold has rows; -1 or NULL: none does. */
struct fold_layers {
    int32_t n;
    size_t state_step, record_step;
    const int32_t *before;
};

/* The commit of a verify batch, in all layers: advances S by the first n_rows rows of each sequence, which
 * may be fewer than were verified, or none, with the arithmetic of op_gated_delta_rule: the same bits as if those
 * rows had been decoded. S and the recorded qkv, g and beta are the first layer's. `seq` [n_seqs] gives
 * slots and rows; no slot occurs twice. */
void op_gated_delta_fold(struct exec *x, struct tensor S, struct tensor qkv, struct tensor g,
                         struct tensor beta, const struct gdn_heads *heads,
                         const struct fold_layers *layers, const struct batch_seq *seq,
                         int32_t n_seqs);

/* The same for the convolution: the tail of each sequence becomes the last taps - 1 of its old tail and
 * its first n_rows recorded inputs.  tail [n_slots, taps - 1, channels], in [T, channels] act, both the
 * first layer's. */
void op_conv_fold(struct exec *x, struct tensor tail, struct tensor in,
                  const struct fold_layers *layers, const struct batch_seq *seq, int32_t n_seqs);

/* y[t,j,:] = o * rsqrt(mean(o^2) + eps) * w[:] * silu(z[t,j,:]) over each head's dv values.
 *   o [T, n_v_heads * dv] F32;  y, z [T, n_v_heads * dv] act, may be the same;  w F32 [dv], plain. */
void op_rmsnorm_gated(struct exec *x, struct tensor y, struct tensor o, struct tensor z,
                      struct tensor w, float eps);

/* What a Gated DeltaNet layer makes of its rows before their order matters. */
struct gdn_projected {
    struct tensor mixed;   /* [T, n_k_heads * dk | n_k_heads * dk | n_v_heads * dv] act: q, k, v */
    struct tensor z;       /* [T, n_v_heads * dv] act: the output's gate */
    struct tensor g, beta; /* [T, n_v_heads] F32 */
};
struct gdn_inputs {
    const struct weight *in_proj_qkv, *in_proj_z, *in_proj_a, *in_proj_b;
    struct tensor A_log, dt_bias; /* F32 [n_v_heads] */
};

/* Of rows `in`: mixed and z as op_linears, g and beta as op_gdn_gates give them, where a backend can in one go. */
void op_gdn_project(struct exec *x, const struct gdn_projected *out, struct normed *in,
                    const struct gdn_inputs *w);

/* y = op_rmsnorm_gated(op_gated_delta_rule(op_causal_conv1d_silu(mixed)), z), where a backend can in one go;
 * tail and S advance as these operators say.
 *   y [T, n_v_heads * dv] act, may be z;  conv F32 [channels, taps], norm F32 [dv]
 *   qkv, of mixed's shape and not mixed: the rows after the convolution in VERIFY, undefined in other
 *   phases. */
void op_gdn_mix(struct exec *x, struct tensor y, struct tensor qkv, const struct gdn_projected *in,
                struct tensor conv, struct tensor norm, float eps, struct tensor tail,
                struct tensor S, const struct gdn_heads *heads, const struct batch *b);

/* A convolution over the rows of a block, its kernel the sum of a fixed one and one computed for the row:
 *   y[t,c] = sum_j (base[j,c] + delta[t, j * groups + c / (n / groups)]) * in[t - j, c]
 * over the taps j = 0, 1 ... that reach no row before t's block; rows [i * block, (i + 1) * block) are a
 * block, T a multiple of it.
 *   y, in [T, n] act, not the same;  base [taps, n] F32;  delta [T, taps * groups] F32
 *   From GroupedDynamicConv in DFlash2. */
void op_block_conv(struct exec *x, struct tensor y, struct tensor in, struct tensor base,
                   struct tensor delta, int32_t block);

/* The same sum added to h [T, n] act, rounded once. */
void op_block_conv_add(struct exec *x, struct tensor h, struct tensor in, struct tensor base,
                       struct tensor delta, int32_t block);

/* op_block_conv_add, and then u = op_rmsnorm(h, norm), where a backend can in one go.
 *   u [T, n] act, may be h: then the sum is lost. */
void op_block_conv_add_norm(struct exec *x, struct tensor h, struct tensor u, struct tensor in,
                            struct tensor base, struct tensor delta, int32_t block,
                            struct tensor norm, float eps);

/* delta = op_linear(in, w), and y = op_block_conv(in) by the first half of its columns, where a backend can in one go.
 *   w [2 * taps * groups, n];  delta [T, 2 * taps * groups] F32, whose first half is undefined behind it. */
void op_block_conv_made(struct exec *x, struct tensor y, struct tensor delta, struct tensor in,
                        const struct weight *w, struct tensor base, int32_t block);

/* One layer's keys and values of the last positions of each slot: position p lies in row p % size. */
struct kv_ring {
    struct tensor k, v;   /* [n_slots, size, n_kv_heads, head_dim] BF16 or F32 */
    const int32_t *first; /* [n_slots]: earlier positions are not there */
};

/* Rounds k and v [T, n_kv_heads * head_dim] act to the ring's dtype and writes them at each row's slot and
 * position. Of a sequence with more rows than the ring has, the last `size` are written. */
void op_ring_append(struct exec *x, const struct kv_ring *ring, struct tensor k, struct tensor v,
                    const struct batch *b);

/* Rows of one layer for its ring. */
struct ring_rows {
    struct tensor k, v;   /* [T, n_kv_heads * head_dim] act */
    struct tensor k_norm; /* F32 [head_dim] */
    const struct kv_ring *ring;
};
/* op_qk_norm_rope of k, without queries, and op_ring_append, for each of n layers, where a backend can in one go. */
void op_ring_rows(struct exec *x, int32_t n, const struct ring_rows *rows, float eps,
                  const struct rope *rope, const struct batch *b);

/* Attention of blocks: each sequence of b is one, its rows at positions pos, pos + 1 ... see what the ring
 * holds before pos and all rows of the block, later ones too:
 *   o[t,n,:] = sum_s p[s] * v_s[n / group,:],  p = softmax_s(q[t,n] . k_s[n / group] * scale)
 *   over positions s with |s - pos[t]| < window, s >= first[slot]: those before the block from the ring,
 *   in ascending order, then the block's own rows from k and v
 *   q, o [T, n_heads * head_dim] act;  k, v [T, n_kv_heads * head_dim] act
 *   window INT32_MAX: all positions. The ring holds every position that is seen. */
void op_block_attention(struct exec *x, struct tensor o, struct tensor q,
                        const struct kv_ring *ring, struct tensor k, struct tensor v,
                        int32_t window, float scale, const struct batch *b);

/* The k best of each row: the larger value first, of equal values the lower column. NaN is larger than all
 * numbers and equal to itself, so that the first value tells whether a row has one. -infinity is never among
 * them; where fewer are left than k, the last have id -1 and value -infinity.
 *   value [T, k] F32, id [T, k] I32;  logits [T, n] F32
 *   Only columns in [range[i][0], range[i][1]) count; ranges ascend and lie apart. */
void op_top_k(struct exec *x, struct tensor value, struct tensor id, struct tensor logits,
              const int32_t (*range)[2], int32_t n_ranges);

/* Every pair of a token before and a candidate:
 *   y[t, p * k + c] = u[t,c] + sum_r A[prev[t,p],r] * g[t,r] * B[id[t,c],r],
 * and -infinity where prev or id is -1.
 *   y [T, m * k] F32;  u [T, k] F32;  prev [T, m], id [T, k] I32;  g [T, rank] F32;  A, B [.., rank] any
 *   format; rank <= OP_MAX_RANK. From the candidate selector of DFlash2. */
void op_pair_scores(struct exec *x, struct tensor y, struct tensor u, struct tensor prev,
                    struct tensor id, struct tensor g, const struct weight *A,
                    const struct weight *B);

/* logits [T, n] F32, row j: the logits of ids of the history and of r->token[1 .. first + j], which count as if they were
 * in it, with their penalties. first + T <= RESIDENT_ROWS. */
void op_penalise(struct exec *x, struct tensor logits, int32_t first, const struct resident *r,
                 const struct history *h);

/* A path through candidates: token[i] is chosen by r->choice among the ids id[i,:], whose logits are the scores behind
 * token[i - 1], score[i, p * k + c] with p the place of token[i - 1] in id[i - 1,:]; of the first row p = 0. Scores have the
 * penalties of the history and of token[0 .. i); those that are not finite are no candidates. Where there is none, and
 * from there on, token[i] = 0. The token is that of position r->pos[1 + i] + 1.
 *   token [n] I32;  id [n, k] I32, -1 where there is no candidate;  score [n, k * k] F32; n < RESIDENT_ROWS,
 *   k <= CHOICE_MOST. */
void op_walk(struct exec *x, struct tensor token, struct tensor id, struct tensor score,
             const struct resident *r, const struct history *h);

/* token[t] is chosen by r->choice among the ids id[t,:] with the logits value[t,:], which are what op_top_k with these ranges
 * makes of logits[t,:]; where k > 1 and CHOICE_IS_WHOLE, among all ids of the ranges. `none` where the first logit is NaN or
 * +infinity, or there is no id. The token is that of position r->pos[1 + first + t] + 1.
 *   token [T] I32;  value [T, k], logits [T, n] F32;  id [T, k] I32; first + T <= RESIDENT_ROWS, k <= CHOICE_MOST. */
void op_choose(struct exec *x, struct tensor token, struct tensor value, struct tensor id,
               struct tensor logits, const int32_t (*range)[2], int32_t n_ranges, int32_t first,
               int32_t none, const struct resident *r);

/* The end of a round of T = n_rows rows. best[j] of logit[j] is the token behind row j, decided if
 * it is an id and its logit a number that is not infinity. Rows are judged in order as long as they are decided; row
 * j + 1 if best[j] is its token and none of `stop`. With n the rows that were judged and decided, `left` at most,
 *   keep = seq[T] with n rows, behind the same one position earlier,  kept_token, kept_pos and kept_rope_pos = token,
 *   pos and rope_pos,  report = best[0 .. n);  then
 *   token[0] = block_token[0] = best[n - 1],  pos, rope_pos and the positions of seq, one and block n more
 *   best[0 .. n) are of the history, and `left` is n less, if it was not INT32_MAX
 * where n = 0 keep and behind have no rows and all else stays what it was. n_rounds is one more, the report that of place
 * n_rounds % ROUND_REPORTS before.
 *   r is the backend's memory, report [ROUND_REPORTS] from alloc_host. */
void op_advance(struct exec *x, struct resident *r, int32_t n_rows, const struct history *h,
                struct round_report *report);

/* y[i,:] = in[row[i],:].  y [n, cols] and in [T, cols] of the same dtype; y may be columns of a wider
 * tensor. row NULL: all rows in order, n = T. */
void op_gather_rows(struct exec *x, struct tensor y, struct tensor in, const int32_t *row);

#endif

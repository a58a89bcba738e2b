#include <math.h>
#include <string.h>

#include "op/cpu/cpu.h"
#include "op/host.h"

enum { ROWS = 16 }; /* whose queries and keys are normalised at once: 16 KiB at dk 128 */

/* The rule and the fold: the fold has no output, a verify batch does not store S. */
struct job {
    const struct cpu *cpu;
    struct tensor S, qkv, g, beta, o; /* o.data NULL: none wanted */
    struct gdn_heads heads;
    const struct batch_seq *seq;
    int32_t n_seqs;
    bool store;
    int64_t col_blocks; /* of a head */
};

static const void *qkv_at(const struct job *a, int64_t t, int64_t c)
{
    return (const unsigned char *)tensor_at(&a->qkv, t) + (size_t)c * dtype_size(a->qkv.dtype);
}

/* Columns [c, c + n) of head j of one sequence, from its first row to its last. They are copied side
 * by side, so that they stay in L1 while the rows pass: where they lie, they would all fall into a few
 * of its sets. */
static void columns(const struct job *a, const struct batch_seq *s, int64_t j, int64_t c, int64_t n)
{
    const struct cpu_kernels *kernels = &a->cpu->kernels;
    int64_t dk = a->heads.dk, dv = a->heads.dv, n_k = a->heads.n_k_heads;
    int64_t k_head = j / (a->heads.n_v_heads / n_k);
    int64_t q_at = k_head * dk, k_at = (n_k + k_head) * dk, v_at = 2 * n_k * dk + j * dv + c;
    float *S = (float *)tensor_at(&a->S, s->slot) + j * dk * dv + c;
    float block[OP_MAX_HEAD * DELTA_COLS] __attribute__((aligned(64)));
    float q[ROWS * OP_MAX_HEAD], k[ROWS * OP_MAX_HEAD], decay[ROWS], beta[ROWS];

    for (int64_t i = 0; i < dk; i++) {
        float *to = block + i * DELTA_COLS;
        memcpy(to, S + i * dv, (size_t)n * sizeof *S);
        for (int64_t later = c == 0 ? n : dv; later < dv; later += 16) /* in the order of memory */
            __builtin_prefetch(S + i * dv + later, 1, 2);
        memset(to + n, 0, (size_t)(DELTA_COLS - n) * sizeof *S);
    }
    for (int64_t first = 0; first < s->n_rows; first += ROWS) {
        int64_t t0 = s->first_row + first, n_rows = s->n_rows - first;
        if (n_rows > ROWS)
            n_rows = ROWS;
        for (int64_t i = 0; i < n_rows; i++) {
            if (a->o.data)
                kernels->l2norm(q + i * dk, qkv_at(a, t0 + i, q_at), dk, 1 / sqrt((double)dk),
                                a->qkv.dtype);
            kernels->l2norm(k + i * dk, qkv_at(a, t0 + i, k_at), dk, 1, a->qkv.dtype);
            decay[i] = expf(((const float *)tensor_at(&a->g, t0 + i))[j]);
            beta[i] = ((const float *)tensor_at(&a->beta, t0 + i))[j];
        }
        struct delta_block b = {
            .S = block,
            .dk = dk,
            .n_cols = n,
            .n_rows = n_rows,
            .q = q,
            .k = k,
            .decay = decay,
            .beta = beta,
            .v = qkv_at(a, t0, v_at),
            .v_stride = a->qkv.stride,
            .o = a->o.data ? (float *)tensor_at(&a->o, t0) + j * dv + c : NULL,
            .o_stride = a->o.stride,
            .act = a->qkv.dtype,
        };
        kernels->delta_rows(&b);
    }
    if (a->store)
        for (int64_t i = 0; i < dk; i++)
            memcpy(S + i * dv, block + i * DELTA_COLS, (size_t)n * sizeof *S);
}

static void share(void *ctx, int32_t thread, int32_t n_threads)
{
    const struct job *a = ctx;
    int64_t per_seq = a->heads.n_v_heads * a->col_blocks, begin, end;
    pool_share(a->n_seqs * per_seq, 1, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int64_t c = i % a->col_blocks * DELTA_COLS, left = a->heads.dv - c;
        columns(a, &a->seq[i / per_seq], i % per_seq / a->col_blocks, c,
                left < DELTA_COLS ? left : DELTA_COLS);
    }
}

static void run(struct job *j)
{
    j->col_blocks = (j->heads.dv + DELTA_COLS - 1) / DELTA_COLS;
    cpu_run(j->cpu, (int64_t)j->n_seqs * j->heads.n_v_heads * j->heads.dk * j->heads.dv, share, j);
}

lathe_status cpu_gated_delta_rule(void *stream, const struct gated_delta_rule_args *a,
                                  lathe_error *err)
{
    (void)err;
    struct job j = {.cpu = cpu_of(stream),
                    .S = a->S,
                    .qkv = a->qkv,
                    .g = a->g,
                    .beta = a->beta,
                    .o = a->o,
                    .heads = a->heads,
                    .seq = a->b->seq,
                    .n_seqs = a->b->n_seqs,
                    .store = a->b->phase != PHASE_VERIFY};
    run(&j);
    return LATHE_OK;
}

lathe_status cpu_gated_delta_fold(void *stream, const struct gated_delta_fold_args *a,
                                  lathe_error *err)
{
    (void)err;
    host_keep_before(a->S, &a->layers, a->seq);
    for (int32_t l = 0; l < a->layers.n; l++) {
        size_t record = (size_t)l * a->layers.record_step;
        struct job j = {.cpu = cpu_of(stream),
                        .S = tensor_after(a->S, (size_t)l * a->layers.state_step),
                        .qkv = tensor_after(a->qkv, record),
                        .g = tensor_after(a->g, record),
                        .beta = tensor_after(a->beta, record),
                        .heads = a->heads,
                        .seq = a->seq,
                        .n_seqs = a->n_seqs,
                        .store = true};
        run(&j);
    }
    return LATHE_OK;
}

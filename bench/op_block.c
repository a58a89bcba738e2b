/* Operators of block drafters, at the shapes of the 27B's. */
#include <stdio.h>
#include <stdlib.h>

#include "op.h"

enum {
    BLOCK = 8,
    GROUPS = HIDDEN / 16,
    DRAFT_HEADS = 32,
    DRAFT_KV_HEADS = 8,
    DRAFT_DIM = 128,
    KV = DRAFT_KV_HEADS * DRAFT_DIM,
    VOCAB = 248320,
    CANDIDATES = 16,
    RANK = 256,
    CODES = 32768, /* rows of a codebook, of VOCAB: beyond every cache */
};

struct block {
    struct run *run;
    struct tensor a, b, c, d, e;
    struct weight before, after;
    struct kv_ring ring;
    struct sequence seq;
    int64_t n_slots;
    int32_t first[64], window;
};

/* ---- Convolution ---------------------------------------------------------------------------- */

static void call_conv(void *ctx, int64_t i)
{
    struct block *x = ctx;
    (void)i;
    exec_begin(&x->run->exec);
    op_block_conv_add(&x->run->exec, x->a, x->b, x->c, x->d, BLOCK);
}

void bench_block_conv(struct run *r)
{
    static const int64_t usual[] = {8, 64};
    int64_t count[2];
    for (int i = 0, n = row_counts(r, count, usual, 2); i < n; i++) {
        int64_t T = (count[i] + BLOCK - 1) / BLOCK * BLOCK;
        struct block *x = memory(sizeof *x);
        x->run = r;
        x->a = numbers(r->o->act, T, HIDDEN);
        x->b = numbers(r->o->act, T, HIDDEN);
        x->c = numbers(DT_F32, 2, HIDDEN);
        x->d = numbers(DT_F32, T, 2 * GROUPS);
        struct bench_case c = {
            .op = "block_conv",
            .what = dtype_name(r->o->act),
            .shape = "5120",
            .rows = T,
            .bytes = (double)T * (3. * HIDDEN * (double)dtype_size(r->o->act) + 8. * GROUPS),
            .ops = (double)T * 6 * HIDDEN,
            .n_calls = 64,
            .call = call_conv,
            .ctx = x,
        };
        bench_run(r->bench, &c, r->o->seconds);
        release_memory();
    }
}

/* ---- Ring ------------------------------------------------------------------------------------ */

static struct block *make_ring(struct run *r, int64_t n_slots, int64_t window, int32_t pos,
                               int64_t T)
{
    struct block *x = memory(sizeof *x);
    x->run = r;
    x->n_slots = n_slots;
    x->window = (int32_t)window;
    struct tensor k = numbers(DT_BF16, n_slots * window, KV);
    struct tensor v = numbers(DT_BF16, n_slots * window, KV);
    x->ring = (struct kv_ring){
        tensor_4d(k.data, DT_BF16, n_slots, window, DRAFT_KV_HEADS, DRAFT_DIM),
        tensor_4d(v.data, DT_BF16, n_slots, window, DRAFT_KV_HEADS, DRAFT_DIM), x->first};
    x->a = numbers(r->o->act, T, DRAFT_HEADS * DRAFT_DIM);
    x->b = numbers(r->o->act, T, KV);
    x->c = numbers(r->o->act, T, KV);
    x->d = zeros(r->o->act, T, DRAFT_HEADS * DRAFT_DIM);
    sequence_init(&x->seq, PHASE_DECODE, 0, pos, (int32_t)T);
    return x;
}

static void call_append(void *ctx, int64_t i)
{
    struct block *x = ctx;
    (void)i;
    exec_begin(&x->run->exec);
    op_ring_append(&x->run->exec, &x->ring, x->b, x->c, &x->seq.b);
}

void bench_ring_append(struct run *r)
{
    static const int64_t usual[] = {1, 8, 512};
    int64_t count[3];
    for (int i = 0, n = row_counts(r, count, usual, 3); i < n; i++) {
        struct bench_case c = {
            .op = "ring_append",
            .what = "BF16 KV",
            .shape = "8x128",
            .rows = count[i],
            .bytes = (double)count[i] * 2 * KV * (2. + (double)dtype_size(r->o->act)),
            .n_calls = 64,
            .call = call_append,
            .ctx = make_ring(r, 1, 2048, 5000, count[i]),
        };
        bench_run(r->bench, &c, r->o->seconds);
        release_memory();
    }
}

static void call_attention(void *ctx, int64_t i)
{
    struct block *x = ctx;
    x->seq.seq.slot = (int32_t)(i % x->n_slots);
    exec_begin(&x->run->exec);
    op_block_attention(&x->run->exec, x->d, x->a, &x->ring, x->b, x->c, x->window, 0.088f,
                       &x->seq.b);
}

void bench_block_attention(struct run *r)
{
    static const int64_t window[] = {512, 2048, 4096};
    for (int i = 0; i < 3; i++) {
        double bytes = (double)window[i] * KV * 4;
        int64_t n_slots = COPY_BYTES / (int64_t)bytes + 1;
        char shape[32];
        snprintf(shape, sizeof shape, "window %lld", (long long)window[i]);
        struct bench_case c = {
            .op = "block_attention",
            .what = "BF16 KV",
            .shape = shape,
            .rows = BLOCK,
            .bytes = bytes,
            .ops = 4. * DRAFT_HEADS * DRAFT_DIM * BLOCK * (double)window[i],
            .dots = r->has_dots && r->o->act == DT_BF16,
            .n_calls = n_slots,
            .call = call_attention,
            .ctx = make_ring(r, n_slots, window[i], 9000, BLOCK),
        };
        bench_run(r->bench, &c, r->o->seconds);
        release_memory();
    }
}

/* ---- Candidates ------------------------------------------------------------------------------ */

static void call_top_k(void *ctx, int64_t i)
{
    static const int32_t range[][2] = {{0, VOCAB - 243}};
    struct block *x = ctx;
    (void)i;
    exec_begin(&x->run->exec);
    op_top_k(&x->run->exec, x->b, x->c, x->a, range, 1);
}

void bench_top_k(struct run *r)
{
    static const int64_t usual[] = {7, 56};
    int64_t count[2];
    for (int i = 0, n = row_counts(r, count, usual, 2); i < n; i++) {
        struct block *x = memory(sizeof *x);
        x->run = r;
        x->a = numbers(DT_F32, count[i], VOCAB);
        x->b = zeros(DT_F32, count[i], CANDIDATES);
        x->c = zeros(DT_F32, count[i], CANDIDATES);
        x->c.dtype = DT_I32;
        struct bench_case c = {
            .op = "top_k",
            .what = "16",
            .shape = "248320",
            .rows = count[i],
            .bytes = (double)count[i] * VOCAB * 4,
            .ops = (double)count[i] * VOCAB,
            .n_calls = 4,
            .call = call_top_k,
            .ctx = x,
        };
        bench_run(r->bench, &c, r->o->seconds);
        release_memory();
    }
}

static void call_scores(void *ctx, int64_t i)
{
    struct block *x = ctx;
    int32_t *id = x->d.data;
    for (int64_t k = 0; k < x->d.dim[0] * CANDIDATES; k++)
        id[k] = (int32_t)((uint32_t)(k + 4096 * i) * 2654435761u % CODES);
    exec_begin(&x->run->exec);
    op_pair_scores(&x->run->exec, x->a, x->b, x->d, x->d, x->c, &x->before, &x->after);
}

void bench_pair_scores(struct run *r)
{
    static const int64_t usual[] = {1, 8};
    int64_t count[2];
    for (int i = 0, n = row_counts(r, count, usual, 2); i < n; i++) {
        struct block *x = memory(sizeof *x);
        x->run = r;
        x->before = random_weight(WF_BF16, CODES, RANK);
        x->after = random_weight(WF_BF16, CODES, RANK);
        x->a = zeros(DT_F32, count[i], CANDIDATES * CANDIDATES);
        x->b = numbers(DT_F32, count[i], CANDIDATES);
        x->c = numbers(DT_F32, count[i], RANK);
        x->d = zeros(DT_F32, count[i], CANDIDATES);
        x->d.dtype = DT_I32;
        struct bench_case c = {
            .op = "pair_scores",
            .what = "BF16",
            .shape = "rank 256",
            .rows = count[i],
            .bytes = (double)count[i] * 2 * CANDIDATES * RANK * 2,
            .ops = (double)count[i] * CANDIDATES * CANDIDATES * RANK * 2,
            .n_calls = 256,
            .call = call_scores,
            .ctx = x,
        };
        bench_run(r->bench, &c, r->o->seconds);
        release_memory();
    }
}

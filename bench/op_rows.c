/* Operators that work row by row. Their operands usually come from the operator before, out of a cache:
 * the floor, which counts them as moved from and to memory, is there for comparison. */
#include <stdlib.h>

#include "op.h"

struct rows {
    struct run *run;
    struct tensor a, b, c, w;
    struct weight table;
    int32_t index[MAX_ROWS];
};

/* Times `call` for the usual row counts; a row moves `bytes` and takes `ops`. */
static void time_rows(struct run *r, const char *op, const char *shape, double bytes, double ops,
                      void (*make)(struct rows *x, int64_t T), void (*call)(void *ctx, int64_t i))
{
    static const int64_t usual[] = {1, 8, 512};
    int64_t count[3];
    for (int i = 0, n = row_counts(r, count, usual, 3); i < n; i++) {
        int64_t T = count[i];
        struct rows *x = memory(sizeof *x);
        x->run = r;
        make(x, T);
        struct bench_case c = {
            .op = op,
            .what = dtype_name(r->o->act),
            .shape = shape,
            .rows = T,
            .bytes = bytes * (double)T,
            .ops = ops * (double)T,
            .n_calls = T > 64 ? 8 : 256,
            .call = call,
            .ctx = x,
        };
        bench_run(r->bench, &c, r->o->seconds);
        release_memory();
    }
}

static double act_bytes(const struct run *r)
{
    return (double)dtype_size(r->o->act);
}

static void make_embed(struct rows *x, int64_t T)
{
    enum { VOCAB = 32768 }; /* of 248320: beyond every cache */
    x->table = random_weight(WF_BF16, VOCAB, HIDDEN);
    x->a = zeros(x->run->o->act, T, HIDDEN);
    for (int i = 0; i < MAX_ROWS; i++)
        x->index[i] = (int32_t)((uint32_t)i * 2654435761u % VOCAB);
}

static void call_embed(void *ctx, int64_t i)
{
    struct rows *x = ctx;
    exec_begin(&x->run->exec);
    op_embed(&x->run->exec, x->a, &x->table, x->index + i * x->a.dim[0] % (MAX_ROWS - 512));
}

void bench_embed(struct run *r)
{
    time_rows(r, "embed", "5120", HIDDEN * (2 + act_bytes(r)), 0, make_embed, call_embed);
}

static void make_rmsnorm(struct rows *x, int64_t T)
{
    x->a = numbers(x->run->o->act, T, HIDDEN);
    x->b = zeros(x->run->o->act, T, HIDDEN);
    x->w = numbers_1d(HIDDEN);
}

static void call_rmsnorm(void *ctx, int64_t i)
{
    struct rows *x = ctx;
    (void)i;
    exec_begin(&x->run->exec);
    op_rmsnorm(&x->run->exec, x->b, x->a, x->w, 1e-6f);
}

void bench_rmsnorm(struct run *r)
{
    time_rows(r, "rmsnorm", "5120", HIDDEN * 2 * act_bytes(r), 4. * HIDDEN, make_rmsnorm,
              call_rmsnorm);
}

static void make_silu_mul(struct rows *x, int64_t T)
{
    x->a = numbers(x->run->o->act, T, INTERMEDIATE);
    x->b = numbers(x->run->o->act, T, INTERMEDIATE);
    x->c = zeros(x->run->o->act, T, INTERMEDIATE);
}

static void call_silu_mul(void *ctx, int64_t i)
{
    struct rows *x = ctx;
    (void)i;
    exec_begin(&x->run->exec);
    op_silu_mul(&x->run->exec, x->c, x->a, x->b);
}

void bench_silu_mul(struct run *r)
{
    time_rows(r, "silu_mul", "17408", INTERMEDIATE * 3 * act_bytes(r), 20. * INTERMEDIATE,
              make_silu_mul, call_silu_mul);
}

static void make_attention_gate(struct rows *x, int64_t T)
{
    x->a = numbers(DT_F32, T, HEADS * HEAD_DIM);
    x->b = numbers(x->run->o->act, T, 2 * HEADS * HEAD_DIM);
    x->c = zeros(x->run->o->act, T, HEADS * HEAD_DIM);
}

static void call_attention_gate(void *ctx, int64_t i)
{
    struct rows *x = ctx;
    (void)i;
    exec_begin(&x->run->exec);
    op_attention_gate(&x->run->exec, x->c, x->a, x->b, HEAD_DIM);
}

void bench_attention_gate(struct run *r)
{
    time_rows(r, "attention_gate", "24x256", HEADS * HEAD_DIM * (4 + 2 * act_bytes(r)),
              20. * HEADS * HEAD_DIM, make_attention_gate, call_attention_gate);
}

static void make_rmsnorm_gated(struct rows *x, int64_t T)
{
    x->a = numbers(DT_F32, T, GDN_V_HEADS * GDN_DIM);
    x->b = numbers(x->run->o->act, T, GDN_V_HEADS * GDN_DIM);
    x->c = zeros(x->run->o->act, T, GDN_V_HEADS * GDN_DIM);
    x->w = numbers_1d(GDN_DIM);
}

static void call_rmsnorm_gated(void *ctx, int64_t i)
{
    struct rows *x = ctx;
    (void)i;
    exec_begin(&x->run->exec);
    op_rmsnorm_gated(&x->run->exec, x->c, x->a, x->b, x->w, 1e-6f);
}

void bench_rmsnorm_gated(struct run *r)
{
    time_rows(r, "rmsnorm_gated", "48x128", GDN_V_HEADS * GDN_DIM * (4 + 2 * act_bytes(r)),
              24. * GDN_V_HEADS * GDN_DIM, make_rmsnorm_gated, call_rmsnorm_gated);
}

static void make_gather(struct rows *x, int64_t T)
{
    x->a = numbers(x->run->o->act, T, HIDDEN);
    x->b = zeros(x->run->o->act, T, HIDDEN);
    for (int64_t t = 0; t < T; t++)
        x->index[t] = (int32_t)(T - 1 - t);
}

static void call_gather(void *ctx, int64_t i)
{
    struct rows *x = ctx;
    (void)i;
    exec_begin(&x->run->exec);
    op_gather_rows(&x->run->exec, x->b, x->a, x->index);
}

void bench_gather_rows(struct run *r)
{
    time_rows(r, "gather_rows", "5120", HIDDEN * 2 * act_bytes(r), 0, make_gather, call_gather);
}

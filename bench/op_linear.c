/* Products with weight matrices. The floor counts the weights' bytes and two operations a product. */
#include <stdio.h>
#include <string.h>

#include "op.h"

struct linear {
    struct run *run;
    struct weight *w;
    int64_t n_copies;
    struct tensor in, y;
};

static void call_linear(void *ctx, int64_t i)
{
    struct linear *c = ctx;
    exec_begin(&c->run->exec);
    op_linear(&c->run->exec, c->y, c->in, &c->w[i % c->n_copies]);
}

static void linear(struct run *r, enum weight_format_id format, int64_t rows, int64_t cols)
{
    static const int64_t usual[] = {1, 8, 512};
    const struct options *o = r->o;
    char shape[32];
    snprintf(shape, sizeof shape, "%lldx%lld", (long long)rows, (long long)cols);
    if (o->shape && strcmp(o->shape, shape) != 0)
        return;
    struct weight first = random_weight(format, rows, cols);
    int64_t n_copies = COPY_BYTES / (int64_t)weight_bytes(&first) + 1, count[3];
    struct weight *w = memory((size_t)n_copies * sizeof *w);
    w[0] = first;
    for (int64_t i = 1; i < n_copies; i++)
        w[i] = random_weight(format, rows, cols);
    for (int i = 0, n = row_counts(r, count, usual, 3); i < n; i++) {
        int64_t T = count[i];
        struct linear ctx = {r, w, n_copies, numbers(o->act, T, cols), zeros(o->act, T, rows)};
        struct bench_case c = {
            .op = "linear",
            .what = weight_formats[format].name,
            .shape = shape,
            .rows = T,
            .bytes = (double)weight_bytes(&first),
            .ops = 2. * (double)T * (double)rows * (double)cols,
            .dots = r->has_dots && o->act == DT_BF16,
            .n_calls = T > 64 ? 1 : n_copies,
            .call = call_linear,
            .ctx = &ctx,
        };
        bench_run(r->bench, &c, o->seconds);
    }
    release_memory();
}

void bench_linear(struct run *r)
{
    static const int64_t shape[][2] = {
        {INTERMEDIATE, HIDDEN},          /* gate, up */
        {HIDDEN, INTERMEDIATE},          /* down */
        {CONV_DIM, HIDDEN},              /* in_proj_qkv */
        {GDN_V_HEADS * GDN_DIM, HIDDEN}, /* in_proj_z */
        {HIDDEN, GDN_V_HEADS * GDN_DIM}, /* out_proj, o_proj */
        {2 * HEADS * HEAD_DIM, HIDDEN},  /* q_proj */
        {KV_HEADS * HEAD_DIM, HIDDEN},   /* k_proj, v_proj */
    };
    for (int f = 0; f < WF_COUNT; f++) {
        bool wanted = f == WF_NVFP4 || f == WF_FP8_ROW || f == WF_BF16;
        if (r->o->format)
            wanted = strcmp(r->o->format, weight_formats[f].name) == 0;
        for (size_t i = 0; wanted && i < sizeof shape / sizeof shape[0]; i++)
            linear(r, (enum weight_format_id)f, shape[i][0], shape[i][1]);
    }
}

struct gates {
    struct run *run;
    struct weight *w;
    int64_t n_copies;
    struct tensor u, g, beta, A_log, dt_bias;
};

static void call_gates(void *ctx, int64_t i)
{
    struct gates *c = ctx;
    const struct weight *w = &c->w[2 * (i % c->n_copies)];
    exec_begin(&c->run->exec);
    op_gdn_gates(&c->run->exec, c->g, c->beta, c->u, w, w + 1, c->A_log, c->dt_bias);
}

void bench_gdn_gates(struct run *r)
{
    static const int64_t usual[] = {1, 8, 512};
    enum { COPIES = 256 }; /* 252 MB */
    int64_t count[3];
    struct weight *w = memory(2 * COPIES * sizeof *w);
    for (int i = 0; i < 2 * COPIES; i++)
        w[i] = random_weight(WF_BF16, GDN_V_HEADS, HIDDEN);
    for (int i = 0, n = row_counts(r, count, usual, 3); i < n; i++) {
        int64_t T = count[i];
        struct gates ctx = {
            .run = r,
            .w = w,
            .n_copies = COPIES,
            .u = numbers(r->o->act, T, HIDDEN),
            .g = zeros(DT_F32, T, GDN_V_HEADS),
            .beta = zeros(DT_F32, T, GDN_V_HEADS),
            .A_log = numbers_1d(GDN_V_HEADS),
            .dt_bias = numbers_1d(GDN_V_HEADS),
        };
        struct bench_case c = {
            .op = "gdn_gates",
            .what = "bf16",
            .shape = "2x48x5120",
            .rows = T,
            .bytes = 2 * (double)weight_bytes(&w[0]),
            .ops = 4. * (double)T * GDN_V_HEADS * HIDDEN,
            .dots = r->has_dots && r->o->act == DT_BF16,
            .n_calls = T > 64 ? 8 : COPIES,
            .call = call_gates,
            .ctx = &ctx,
        };
        bench_run(r->bench, &c, r->o->seconds);
    }
    release_memory();
}

/* Operators that know sequences: positions, the key-value cache, and recurrent state. The floor counts the
 * state and the cache as moved from and to memory. */
#include <stdio.h>
#include <string.h>

#include "op.h"

void sequence_init(struct sequence *s, enum phase phase, int32_t slot, int32_t pos, int32_t n_rows)
{
    *s = (struct sequence){0};
    struct batch_store store = {s->token, s->slot, s->pos, s->rope_pos, &s->seq};
    batch_begin(&s->b, &store, phase);
    batch_add(&s->b, &store, slot, pos, NULL, n_rows);
}

enum {
    PAGE = 64,
    LAYERS = 48, /* with recurrent state: one slot stands for one layer's */
};

struct cache {
    struct run *run;
    struct kv_pages kv;
    int32_t *page_table;
    struct tensor q, k, v, o;
    struct sequence *seq; /* one a slot */
    int64_t n_slots;
};

/* `n_slots` sequences that end with T rows at position pos, their keys and values BF16 or E4M3. */
static struct cache *make_cache(struct run *r, enum dtype kv, int64_t n_slots, int64_t pos,
                                int64_t T)
{
    struct cache *c = memory(sizeof *c);
    int64_t pages = (pos + T + PAGE - 1) / PAGE;
    *c = (struct cache){.run = r, .n_slots = n_slots};
    size_t bytes = (size_t)(n_slots * pages * PAGE) * KV_HEADS * HEAD_DIM * dtype_size(kv);
    c->kv.k = tensor_4d(random_bytes(bytes), kv, n_slots * pages, PAGE, KV_HEADS, HEAD_DIM);
    c->kv.v = c->kv.k;
    c->kv.v.data = random_bytes(bytes);
    uint16_t *plane[] = {c->kv.k.data, c->kv.v.data};
    uint16_t keep = kv == DT_BF16 ? 0x83FF : 0xBFBF; /* about 2^-7 .. 2: with NaN nowhere */
    for (int i = 0; i < 2; i++)
        for (size_t j = 0; j < bytes / 2; j++)
            plane[i][j] = (uint16_t)((plane[i][j] & keep) | (kv == DT_BF16 ? 0x3C00 : 0));
    c->page_table = memory((size_t)(n_slots * pages) * sizeof *c->page_table);
    for (int64_t i = 0; i < n_slots * pages; i++)
        c->page_table[i] = (int32_t)i;
    c->kv.page_table = c->kv.device_table = c->page_table;
    c->kv.pages_per_slot = (int32_t)pages;
    c->q = numbers(r->o->act, T, HEADS * HEAD_DIM);
    c->k = numbers(r->o->act, T, KV_HEADS * HEAD_DIM);
    c->v = numbers(r->o->act, T, KV_HEADS * HEAD_DIM);
    c->o = zeros(DT_F32, T, HEADS * HEAD_DIM);
    c->seq = memory((size_t)n_slots * sizeof *c->seq);
    for (int64_t i = 0; i < n_slots; i++)
        sequence_init(&c->seq[i], PHASE_DECODE, (int32_t)i, (int32_t)pos, (int32_t)T);
    return c;
}

static void call_attention(void *ctx, int64_t i)
{
    struct cache *c = ctx;
    exec_begin(&c->run->exec);
    op_attention(&c->run->exec, c->o, c->q, &c->kv, 1.f / 16, &c->seq[i % c->n_slots].b);
}

void bench_attention(struct run *r)
{
    static const int64_t usual[] = {1, 8, 512}, context[] = {1024, 8192, 32768};
    int64_t count[3];
    for (int i = 0, n = row_counts(r, count, usual, 3); i < n; i++)
        for (int k = 0; k < 6; k++) {
            enum dtype kv = k < 3 ? DT_BF16 : DT_F8_E4M3;
            int64_t T = count[i], ctx = context[k % 3], pos = ctx - T, n_slots;
            double bytes = (double)ctx * KV_HEADS * HEAD_DIM * 2 * (double)dtype_size(kv);
            if (T > 64 && ctx > 8192)
                continue; /* seconds a call */
            char shape[32];
            snprintf(shape, sizeof shape, "context %lld", (long long)ctx);
            n_slots = COPY_BYTES / (int64_t)bytes + 1;
            struct bench_case c = {
                .op = "attention",
                .what = kv == DT_BF16 ? "BF16 KV" : "FP8 KV",
                .shape = shape,
                .rows = T,
                .bytes = bytes,
                .ops = 4. * HEADS * HEAD_DIM * (double)T * ((double)pos + (double)(T + 1) / 2),
                .dots = r->has_dots && r->o->act == DT_BF16,
                .n_calls = T > 64 ? 1 : n_slots,
                .call = call_attention,
                .ctx = make_cache(r, kv, n_slots, pos, T),
            };
            bench_run(r->bench, &c, r->o->seconds);
            release_memory();
        }
}

static void call_append(void *ctx, int64_t i)
{
    struct cache *c = ctx;
    exec_begin(&c->run->exec);
    op_kv_append(&c->run->exec, &c->kv, c->k, c->v, &c->seq[i % c->n_slots].b);
}

void bench_kv_append(struct run *r)
{
    static const int64_t usual[] = {1, 8, 512};
    int64_t count[3];
    for (int i = 0, n = row_counts(r, count, usual, 3); i < n; i++) {
        struct bench_case c = {
            .op = "kv_append",
            .what = "BF16 KV",
            .shape = "4x256",
            .rows = count[i],
            .bytes =
                (double)count[i] * 2 * KV_HEADS * HEAD_DIM * (2. + (double)dtype_size(r->o->act)),
            .n_calls = 64,
            .call = call_append,
            .ctx = make_cache(r, DT_BF16, 16, 1024, count[i]),
        };
        bench_run(r->bench, &c, r->o->seconds);
        release_memory();
    }
}

struct rotary {
    struct run *run;
    struct tensor q, k, qg, q_norm, k_norm;
    float inv_freq[32];
    uint8_t axis[32];
    struct rope rope;
    struct sequence seq;
};

static void call_rope(void *ctx, int64_t i)
{
    struct rotary *x = ctx;
    (void)i;
    exec_begin(&x->run->exec);
    op_qk_norm_rope(&x->run->exec, x->q, x->k, x->qg, x->q_norm, x->k_norm, HEAD_DIM, 1e-6f,
                    &x->rope, &x->seq.b);
}

void bench_qk_norm_rope(struct run *r)
{
    static const int64_t usual[] = {1, 8, 512};
    int64_t count[3];
    for (int i = 0, n = row_counts(r, count, usual, 3); i < n; i++) {
        int64_t T = count[i];
        struct rotary *x = memory(sizeof *x);
        *x = (struct rotary){
            .run = r,
            .q = zeros(r->o->act, T, HEADS * HEAD_DIM),
            .k = numbers(r->o->act, T, KV_HEADS * HEAD_DIM),
            .qg = numbers(r->o->act, T, 2 * HEADS * HEAD_DIM),
            .q_norm = numbers_1d(HEAD_DIM),
            .k_norm = numbers_1d(HEAD_DIM),
            .rope = {.dims = 64, .inv_freq = x->inv_freq, .axis = x->axis, .scale = 1},
        };
        for (int k = 0; k < 32; k++)
            x->inv_freq[k] = 1.f / (float)(1 << (k / 2));
        sequence_init(&x->seq, PHASE_DECODE, 0, 1024, (int32_t)T);
        struct bench_case c = {
            .op = "qk_norm_rope",
            .what = dtype_name(r->o->act),
            .shape = "(24+4)x256",
            .rows = T,
            .bytes = (double)T * 2 * (HEADS + KV_HEADS) * HEAD_DIM * (double)dtype_size(r->o->act),
            .ops = (double)T * 6 * (HEADS + KV_HEADS) * HEAD_DIM,
            .n_calls = T > 64 ? 8 : 256,
            .call = call_rope,
            .ctx = x,
        };
        bench_run(r->bench, &c, r->o->seconds);
        release_memory();
    }
}

/* What a recurrent layer's operators work on; a slot a layer. */
struct recurrent {
    struct run *run;
    struct tensor qkv, y, w, tail, o, g, beta, S;
    struct gdn_heads heads;
    struct sequence seq[LAYERS];
};

static struct recurrent *make_recurrent(struct run *r, enum phase phase, int64_t T)
{
    struct recurrent *x = memory(sizeof *x);
    x->run = r;
    x->heads = (struct gdn_heads){GDN_K_HEADS, GDN_V_HEADS, GDN_DIM, GDN_DIM};
    x->qkv = numbers(r->o->act, T, CONV_DIM);
    x->y = zeros(r->o->act, T, CONV_DIM);
    x->w = numbers(DT_F32, CONV_DIM, TAPS);
    x->o = zeros(DT_F32, T, GDN_V_HEADS * GDN_DIM);
    x->g = numbers(DT_F32, T, GDN_V_HEADS);
    x->beta = numbers(DT_F32, T, GDN_V_HEADS);
    float *g = x->g.data, *beta = x->beta.data;
    for (int64_t i = 0; i < T * GDN_V_HEADS; i++) {
        g[i] = -0.1f * (g[i] + 1);
        beta[i] = 0.5f * (beta[i] + 1);
    }
    x->tail = tensor_3d(zeros(r->o->act, LAYERS * (TAPS - 1), CONV_DIM).data, r->o->act, LAYERS,
                        TAPS - 1, CONV_DIM);
    x->S = tensor_4d(zeros(DT_F32, LAYERS * GDN_V_HEADS * GDN_DIM, GDN_DIM).data, DT_F32, LAYERS,
                     GDN_V_HEADS, GDN_DIM, GDN_DIM);
    for (int i = 0; i < LAYERS; i++)
        sequence_init(&x->seq[i], phase, i, 1024, (int32_t)T);
    return x;
}

static void time_recurrent(struct run *r, const char *op, const char *shape, enum phase phase,
                           double bytes, double row_bytes, double row_ops,
                           void (*call)(void *ctx, int64_t i))
{
    static const int64_t usual[] = {1, 8, 64, 512};
    int64_t count[4];
    for (int i = 0, n = row_counts(r, count, usual, phase == PHASE_VERIFY ? 2 : 4); i < n; i++) {
        struct bench_case c = {
            .op = op,
            .what = phase == PHASE_VERIFY ? "verify" : dtype_name(r->o->act),
            .shape = shape,
            .rows = count[i],
            .bytes = bytes + row_bytes * (double)count[i],
            .ops = row_ops * (double)count[i],
            .n_calls = count[i] > 8 ? 8 : LAYERS,
            .call = call,
            .ctx = make_recurrent(r, phase, count[i]),
        };
        bench_run(r->bench, &c, r->o->seconds);
        release_memory();
    }
}

static void call_conv(void *ctx, int64_t i)
{
    struct recurrent *x = ctx;
    exec_begin(&x->run->exec);
    op_causal_conv1d_silu(&x->run->exec, x->y, x->qkv, x->w, x->tail, &x->seq[i % LAYERS].b);
}

void bench_causal_conv1d_silu(struct run *r)
{
    double act = (double)dtype_size(r->o->act);
    time_recurrent(r, "causal_conv1d_silu", "10240x4", PHASE_DECODE,
                   CONV_DIM * (4. * TAPS + 2 * act * (TAPS - 1)), CONV_DIM * 2 * act,
                   CONV_DIM * (2. * TAPS + 18), call_conv);
}

static void call_delta(void *ctx, int64_t i)
{
    struct recurrent *x = ctx;
    exec_begin(&x->run->exec);
    op_gated_delta_rule(&x->run->exec, x->o, x->qkv, x->g, x->beta, x->S, &x->heads,
                        &x->seq[i % LAYERS].b);
}

void bench_gated_delta_rule(struct run *r)
{
    double S = GDN_V_HEADS * GDN_DIM * GDN_DIM, row = CONV_DIM * (double)dtype_size(r->o->act);
    row += GDN_V_HEADS * GDN_DIM * 4.;
    time_recurrent(r, "gated_delta_rule", "48x128x128", PHASE_DECODE, S * 8, row, S * 7,
                   call_delta);
    time_recurrent(r, "gated_delta_rule", "48x128x128", PHASE_VERIFY, S * 4, row, S * 7,
                   call_delta);
}

static const struct fold_layers one_layer = {.n = 1};

static void call_fold(void *ctx, int64_t i)
{
    struct recurrent *x = ctx;
    exec_begin(&x->run->exec);
    op_gated_delta_fold(&x->run->exec, x->S, x->qkv, x->g, x->beta, &x->heads, &one_layer,
                        &x->seq[i % LAYERS].seq, 1);
}

void bench_gated_delta_fold(struct run *r)
{
    double S = GDN_V_HEADS * GDN_DIM * GDN_DIM, row = CONV_DIM * (double)dtype_size(r->o->act);
    time_recurrent(r, "gated_delta_fold", "48x128x128", PHASE_VERIFY, S * 8, row, S * 5, call_fold);
}

static void call_conv_fold(void *ctx, int64_t i)
{
    struct recurrent *x = ctx;
    exec_begin(&x->run->exec);
    op_conv_fold(&x->run->exec, x->tail, x->qkv, &one_layer, &x->seq[i % LAYERS].seq, 1);
}

void bench_conv_fold(struct run *r)
{
    double tail = CONV_DIM * (TAPS - 1) * (double)dtype_size(r->o->act);
    time_recurrent(r, "conv_fold", "10240x3", PHASE_VERIFY, tail * 2, 0, 0, call_conv_fold);
}

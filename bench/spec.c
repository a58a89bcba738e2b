/* bench/spec: what a round of speculation consists of, each part beside what the machine can do at best.
 *
 *   spec [--model nano|27b] [--context N] [--threads N] [--seconds S] [--tmp DIR] [--cpu-time]
 *
 * nano is models/nano and models/nano-dflash2 as they are. The 27B is random code words in memory, 4 layers of
 * its 64: what they take counts 16 times. --cpu-time is for one thread on a busy machine. docs/performance.md explains the columns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "engine/step.h"
#include "random.h"
#include "spec/dflash.h"
#include "spec_model.h"

enum {
    MAX_VERIFY = 16,
    MAX_SAMPLES = 200,
    FEED = 256, /* rows of the context that a drafter is told at once */
};

struct options {
    bool is_27b, cpu_time;
    int32_t context, n_threads;
    double seconds;
    const char *tmp;
};

/* What moves from memory, and arithmetic, of one call. */
struct cost {
    double bytes, ops;
};

/* One row of the table: parts that are timed apart and count several times. */
enum { MAX_PARTS = 2 };
struct line {
    const char *step;
    int32_t rows;
    int32_t n_parts;
    struct bench_case part[MAX_PARTS];
    double times[MAX_PARTS];
};

struct spec {
    const struct options *o;
    struct pool *pool;
    void *stream;
    struct bench *bench;
    bool has_dots;
    struct model model;
    struct model full; /* the same with all the layers that a drafter expects */
    int32_t n_slots;   /* each with a state of its own: together that of all layers */
    double scale;      /* layers of the model that one here stands for */
    struct state state;
    struct step step;
    struct id_set ids;
    struct sample_scratch scratch;
    struct sampler *sampler;
    int32_t *history; /* [context + 1] */
    /* Of the case at hand. */
    int32_t token[MAX_VERIFY], row[MAX_VERIFY], rows;
    const struct drafter_ops *ops;
    struct drafter *drafter;
    struct memory taken;
    struct tensor hidden, feature; /* [FEED, ...] random */
};

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "spec: %s\n", what);
    exit(1);
}

static void check(lathe_status st, const lathe_error *err)
{
    if (st)
        die(err->message);
}

/* ---- Timing -------------------------------------------------------------------------------- */

static void header(void)
{
    printf("%-16s %4s %9s %9s | %9s %9s | %9s %9s | %6s %6s\n", "step", "rows", "ms", "floor ms",
           "GB", "GFLOP", "read GB/s", "GFLOP/s", "of", "median");
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void keep(struct bench_peak *best, const struct bench_peak *now)
{
    best->read = now->read > best->read ? now->read : best->read;
    best->dot = now->dot > best->dot ? now->dot : best->dot;
    best->fma = now->fma > best->fma ? now->fma : best->fma;
}

static double seconds_of(const struct bench_case *c)
{
    double start = bench_now();
    for (int64_t i = 0; i < c->n_calls; i++)
        c->call(c->ctx, i);
    return (bench_now() - start) / (double)c->n_calls;
}

/* Best of each part, probes between them; prints the sum and returns it in seconds. */
static double run(struct spec *s, const struct line *l)
{
    struct bench_peak peak = {0};
    double best[MAX_PARTS], share[MAX_SAMPLES], begin = bench_now();
    int n = 0;
    for (int i = 0; i < l->n_parts; i++) {
        best[i] = 1e30;
        l->part[i].call(l->part[i].ctx, 0); /* brings code and pages in */
    }
    while (n < MAX_SAMPLES && (n < 3 || bench_now() - begin < s->o->seconds)) {
        double total = 0, least = 0;
        for (int i = 0; i < l->n_parts; i++) {
            struct bench_peak now = {0};
            bench_probe(s->bench, &now);
            double t = seconds_of(&l->part[i]);
            bench_probe(s->bench, &now);
            best[i] = t < best[i] ? t : best[i];
            total += l->times[i] * t;
            least += l->times[i] * bench_floor(&l->part[i], &now);
            keep(&peak, &now);
        }
        share[n++] = least / total;
    }
    double total = 0, least = 0, bytes = 0, ops = 0;
    for (int i = 0; i < l->n_parts; i++) {
        total += l->times[i] * best[i];
        least += l->times[i] * bench_floor(&l->part[i], &peak);
        bytes += l->times[i] * l->part[i].bytes;
        ops += l->times[i] * l->part[i].ops;
    }
    qsort(share, (size_t)n, sizeof *share, ascending);
    printf("%-16s %4d %9.3f %9.3f | %9.4f %9.3f | %9.1f %9.1f | %5.1f%% %5.1f%%\n", l->step,
           l->rows, total * 1e3, least * 1e3, bytes * 1e-9, ops * 1e-9, peak.read * 1e-9,
           (l->part[0].dots ? peak.dot : peak.fma) * 1e-9, 100 * least / total, 100 * share[n / 2]);
    fflush(stdout);
    return total;
}

static struct bench_case part(struct spec *s, struct cost c, bool dots, int64_t n_calls,
                              void (*call)(void *ctx, int64_t i))
{
    return (struct bench_case){.bytes = c.bytes,
                               .ops = c.ops,
                               .dots = dots && s->has_dots,
                               .n_calls = n_calls,
                               .call = call,
                               .ctx = s};
}

/* ---- Costs --------------------------------------------------------------------------------- */

static void add(struct cost *c, const struct weight *w, double rows)
{
    c->bytes += (double)weight_bytes(w);
    c->ops += 2 * rows * (double)w->rows * (double)w->cols;
}

static void add_mlp(struct cost *c, const struct mlp *m, double rows)
{
    add(c, &m->gate_proj, rows);
    add(c, &m->up_proj, rows);
    add(c, &m->down_proj, rows);
}

/* Matrices, and the keys and values of `context` positions. */
static void add_attention(struct cost *c, const struct dims *d, const struct attn_layer *l,
                          double rows, double context)
{
    add(c, &l->q_proj, rows);
    add(c, &l->k_proj, rows);
    add(c, &l->v_proj, rows);
    add(c, &l->o_proj, rows);
    c->bytes += context * 4 * d->n_kv_heads * d->head_dim;
    c->ops += context * 4 * rows * d->n_heads * d->head_dim;
}

static double state_values(const struct dims *d)
{
    return (double)d->n_v_heads * d->dk * d->dv;
}

/* All layers once; S is read and not written. */
static struct cost cost_layers(const struct spec *s, double rows)
{
    const struct dims *d = &s->model.dims;
    struct cost c = {0};
    for (int32_t i = 0; i < d->n_layers; i++) {
        const struct layer *l = &s->model.layers[i];
        if (l->is_full_attention) {
            add_attention(&c, d, &l->attn, rows, s->o->context);
        } else {
            add(&c, &l->gdn.in_proj_qkv, rows);
            add(&c, &l->gdn.in_proj_z, rows);
            add(&c, &l->gdn.in_proj_a, rows);
            add(&c, &l->gdn.in_proj_b, rows);
            add(&c, &l->gdn.out_proj, rows);
            c.bytes += state_values(d) * 4;
            c.ops += state_values(d) * 7 * rows;
        }
        add_mlp(&c, &l->mlp, rows);
    }
    return c;
}

static struct cost cost_head(const struct spec *s, double rows)
{
    struct cost c = {0};
    add(&c, &s->model.lm_head, rows);
    return c;
}

/* S and the tails are read and written, the rows' records read. */
static struct cost cost_commit(const struct spec *s, double rows)
{
    const struct dims *d = &s->model.dims;
    double n = s->state.recurrent.shape.n_layers, tail = 2. * d->conv_dim * (d->conv_taps - 1);
    double row = 2. * (d->k_dim + d->v_dim) + 8. * d->n_v_heads;
    return (struct cost){n * (state_values(d) * 8 + 2 * tail + rows * row),
                         n * state_values(d) * 5 * rows};
}

static struct cost cost_mtp(const struct spec *s, double drafts)
{
    struct cost c = cost_head(s, 1);
    const struct mtp_head *m = &s->model.mtp;
    add(&c, &m->fc, 1);
    add_attention(&c, &s->model.dims, &m->layer.attn, 1, s->o->context);
    add_mlp(&c, &m->layer.mlp, 1);
    return (struct cost){c.bytes * drafts, c.ops * drafts};
}

static struct cost cost_mtp_context(const struct spec *s, double rows)
{
    struct cost c = {0};
    const struct mtp_head *m = &s->model.mtp;
    add(&c, &m->fc, rows);
    add(&c, &m->layer.attn.k_proj, rows);
    add(&c, &m->layer.attn.v_proj, rows);
    return c;
}

/* The block of 8, whatever is wanted of it; 7 rows meet the head. */
static struct cost cost_dflash(const struct spec *s, double drafts)
{
    const struct dflash_config *k = &s->drafter->config;
    double rows = k->block, seen = s->o->context < k->window ? s->o->context : k->window;
    struct cost c = cost_head(s, drafts);
    for (int32_t i = 0; i < k->dims.n_layers; i++) {
        const struct dflash_layer *l = &s->drafter->weights.layers[i];
        add(&c, &l->q_proj, rows);
        add(&c, &l->k_proj, rows);
        add(&c, &l->v_proj, rows);
        add(&c, &l->o_proj, rows);
        add(&c, &l->attention_conv.kernel_projection, rows);
        add(&c, &l->mlp_conv.kernel_projection, rows);
        add_mlp(&c, &l->mlp, rows);
        c.bytes += seen * 4 * k->dims.n_kv_heads * k->dims.head_dim;
        c.ops += seen * 4 * rows * k->dims.n_heads * k->dims.head_dim;
    }
    add(&c, &s->drafter->weights.hidden_projection, drafts);
    return c;
}

static struct cost cost_dflash_context(const struct spec *s, double rows)
{
    struct cost c = {0};
    add(&c, &s->drafter->weights.fc, rows);
    for (int32_t i = 0; i < s->drafter->config.dims.n_layers; i++) {
        add(&c, &s->drafter->weights.layers[i].k_proj, rows);
        add(&c, &s->drafter->weights.layers[i].v_proj, rows);
    }
    return c;
}

/* ---- The target's steps --------------------------------------------------------------------- */

static void call_layers(void *ctx, int64_t i)
{
    struct spec *s = ctx;
    lathe_error err;
    step_begin(&s->step, PHASE_VERIFY);
    step_add(&s->step, (int32_t)i % s->n_slots, s->o->context, s->token, s->rows);
    check(step_run(&s->step, &err), &err);
}

static void call_head(void *ctx, int64_t i)
{
    struct spec *s = ctx;
    lathe_error err;
    (void)i;
    check(step_logits(&s->step, s->row, s->rows, &err), &err);
}

static void call_commit(void *ctx, int64_t i)
{
    struct spec *s = ctx;
    lathe_error err;
    struct batch_seq seq = {(int32_t)i % s->n_slots, 0, s->rows, s->o->context};
    check(step_commit(&s->step, &seq, 1, &err), &err);
}

static double time_verify(struct spec *s, int32_t rows)
{
    int64_t n = s->o->is_27b ? 1 : 16;
    s->rows = rows;
    struct line l = {.step = "verify", .rows = rows, .n_parts = 2, .times = {s->scale, 1}};
    l.part[0] = part(s, cost_layers(s, rows), true, n, call_layers);
    l.part[1] = part(s, cost_head(s, rows), true, n, call_head);
    return run(s, &l);
}

/* A pass over all slots: every state comes from memory, as it does after a verify. */
static double time_commit(struct spec *s, int32_t rows)
{
    s->rows = rows;
    struct line l = {.step = "commit", .rows = rows, .n_parts = 1, .times = {s->scale}};
    l.part[0] = part(s, cost_commit(s, rows), false, s->n_slots, call_commit);
    return run(s, &l);
}

/* ---- The drafters --------------------------------------------------------------------------- */

static void feed(struct spec *s, int32_t pos, int32_t n)
{
    lathe_error err;
    struct committed c = {
        .slot = 0,
        .pos = pos,
        .n = n,
        .token = s->history + pos,
        .hidden = tensor_rows(s->hidden, 0, n),
        .feature = tensor_rows(s->feature, 0, n),
    };
    check(s->ops->committed(s->drafter, &c, &err), &err);
}

static void call_propose(void *ctx, int64_t i)
{
    struct spec *s = ctx;
    lathe_error err;
    (void)i;
    struct draft_request r = {
        .slot = 0,
        .pos = s->o->context,
        .anchor = s->token[0],
        .most = s->rows,
        .sampler = s->sampler,
        .history = s->history,
    };
    check(s->ops->propose(s->drafter, &r, 1, &err), &err);
    if (r.n != s->rows)
        die("a drafter gave less than was asked for");
}

static void call_committed(void *ctx, int64_t i)
{
    struct spec *s = ctx;
    (void)i;
    feed(s, s->o->context, s->rows);
    s->ops->rewind(s->drafter, 0, s->o->context);
}

static double time_propose(struct spec *s, const char *step, struct cost c, int32_t drafts)
{
    s->rows = drafts;
    struct line l = {.step = step, .rows = drafts, .n_parts = 1, .times = {1}};
    l.part[0] = part(s, c, true, s->o->is_27b ? 1 : 16, call_propose);
    return run(s, &l);
}

static double time_committed(struct spec *s, const char *step, struct cost c, int32_t rows)
{
    s->rows = rows;
    struct line l = {.step = step, .rows = rows, .n_parts = 1, .times = {1}};
    l.part[0] = part(s, c, true, s->o->is_27b ? 1 : 16, call_committed);
    return run(s, &l);
}

/* Opens a drafter and tells it of `context` tokens. */
static void open_drafter(struct spec *s, const struct drafter_ops *ops, const char *dir,
                         int32_t n_taps)
{
    lathe_error err;
    struct drafter_options o = {
        .model = &s->full,
        .backend = &backend_cpu,
        .stream = s->stream,
        .ids = &s->ids,
        .scratch = &s->scratch,
        .act = DT_BF16,
        .kv = DT_BF16,
        .n_slots = 1,
        .n_ctx = s->o->context + 64,
        .max_rows = FEED,
        .dir = dir,
    };
    s->ops = ops;
    check(drafter_open(ops, &s->drafter, &o, &s->taken, &err), &err);
    s->feature = numbers(DT_BF16, FEED, (int64_t)n_taps * s->model.dims.hidden);
    for (int32_t pos = 0; pos < s->o->context; pos += FEED)
        feed(s, pos, s->o->context - pos < FEED ? s->o->context - pos : FEED);
}

/* ---- Opening -------------------------------------------------------------------------------- */

/* Keys and values of small numbers: pages that nothing has written to would come from no memory at all. */
static void fill_cache(struct kv_cache *kv)
{
    for (int32_t i = 0; i < kv->shape.n_layers; i++) {
        struct kv_pages p = kv_cache_layer(kv, i);
        int64_t n = tensor_elements(&p.k);
        struct weight random = random_weight(WF_BF16, 1, n);
        memcpy(p.k.data, random.codes.data, (size_t)n * 2);
        memcpy(p.v.data, random.codes.data, (size_t)n * 2);
    }
}

static void open_target(struct spec *s)
{
    const struct dims *d = &s->model.dims;
    lathe_error err;
    struct state_options so = {
        .act = DT_BF16,
        .kv = DT_BF16,
        .n_slots = s->n_slots + STEP_SHADOW_SLOTS,
        .n_ctx = s->o->context + 64,
        .n_verify = MAX_VERIFY,
    };
    check(state_open(&s->state, d, &so, &s->taken.cache, &err), &err);
    fill_cache(&s->state.kv);
    struct step_options to = {
        .model = &s->model,
        .state = &s->state,
        .backend = &backend_cpu,
        .stream = s->stream,
        .max_rows = MAX_VERIFY,
        .max_seqs = 1,
    };
    check(step_open(&s->step, &to, &s->taken.workspace, &err), &err);
}

static void open_sampling(struct spec *s)
{
    int32_t vocab = s->model.dims.vocab;
    lathe_error err;
    size_t n = (size_t)vocab / 64 + 1;
    uint64_t *all = memory(n * sizeof *all);
    memset(all, 0, n * sizeof *all);
    for (int32_t i = 0; i < vocab; i++)
        all[i / 64] |= (uint64_t)1 << i % 64;
    check(id_set_init(&s->ids, vocab, all, &err), &err);
    check(sample_scratch_init(&s->scratch, vocab, &err), &err);
    s->history = memory((size_t)(s->o->context + 64) * sizeof *s->history);
    for (int32_t i = 0; i < s->o->context + 64; i++)
        s->history[i] = (int32_t)((int64_t)(i + 1) * 7919 % vocab);
    for (int32_t i = 0; i < MAX_VERIFY; i++) {
        s->token[i] = s->history[i];
        s->row[i] = i;
    }
    lathe_sampling greedy = {.top_p = 1, .repetition_penalty = 1, .seed = 1};
    struct sampler_options o = {
        .sampling = &greedy, .ids = &s->ids, .prompt = s->history, .n_prompt = s->o->context};
    check(sampler_open(&s->sampler, &o, &err), &err);
    s->hidden = numbers(DT_BF16, FEED, s->model.dims.hidden);
}

static void open_all(struct spec *s)
{
    lathe_error err;
    check(pool_open(&s->pool, s->o->n_threads, false, &err), &err);
    check(backend_cpu.open(&s->stream, s->pool, NULL, &err), &err);
    s->has_dots = strcmp(backend_cpu.isa(s->stream), "avx512bf16") == 0;
    s->bench = bench_open(s->pool);
    if (!s->bench)
        die("out of memory");
    memory_loose(&s->taken, &backend_cpu, s->stream);
    s->n_slots = 1;
    s->scale = 1;
    if (s->o->is_27b) {
        s->n_slots = SPEC_ALL_LAYERS / SPEC_LAYERS;
        s->scale = (double)SPEC_ALL_LAYERS / SPEC_LAYERS;
        spec_model(&s->model);
    } else {
        check(model_open(&s->model, "models/nano", &err), &err);
    }
    s->full = s->model;
    if (s->o->is_27b)
        s->full.dims.n_layers = SPEC_ALL_LAYERS;
    open_target(s);
    open_sampling(s);
}

static void close_all(struct spec *s)
{
    step_close(&s->step);
    state_close(&s->state);
    memory_close(&s->taken);
    sampler_close(s->sampler);
    sample_scratch_release(&s->scratch);
    id_set_release(&s->ids);
    if (!s->o->is_27b)
        model_close(&s->model);
    bench_close(s->bench);
    backend_cpu.close(s->stream);
    pool_close(s->pool);
    release_memory();
}

/* ---- The table ------------------------------------------------------------------------------ */

/* DFlash2 after the target; returns draft and catch-up of its round. */
static double time_dflash(struct spec *s)
{
    char dir[1024] = "models/nano-dflash2";
    lathe_error err;
    if (s->o->is_27b && spec_drafter_write(dir, sizeof dir, s->o->tmp, &err)) {
        printf("dflash2: left out: %s\n", err.message);
        return 0;
    }
    open_drafter(s, &drafter_dflash2, dir, 5);
    if (s->o->is_27b)
        spec_drafter_remove(dir);
    int32_t most = s->drafter->max_draft;
    double t = time_propose(s, "draft dflash2", cost_dflash(s, most), most);
    t += time_committed(s, "context dflash2", cost_dflash_context(s, 4), 4);
    time_committed(s, "context dflash2", cost_dflash_context(s, 8), 8);
    s->ops->close(s->drafter);
    return t;
}

static double time_mtp(struct spec *s)
{
    double t = 0;
    open_drafter(s, &drafter_mtp, NULL, 0);
    for (int32_t k = 1; k <= 8; k = k == 1 ? 3 : k + 5) {
        double now = time_propose(s, "draft mtp", cost_mtp(s, k), k);
        t = k == 3 ? now : t;
    }
    t += time_committed(s, "context mtp", cost_mtp_context(s, 4), 4);
    s->ops->close(s->drafter);
    return t;
}

static void table(struct spec *s)
{
    double verify[MAX_VERIFY + 1], commit[MAX_VERIFY + 1] = {0};
    header();
    for (int32_t rows = 1; rows <= MAX_VERIFY; rows++)
        verify[rows] = time_verify(s, rows);
    for (int32_t rows = 1; rows <= MAX_VERIFY; rows *= 2)
        commit[rows] = time_commit(s, rows);
    double mtp = time_mtp(s), dflash = time_dflash(s);
    printf("\ncommit of 8 rows / verify of 8 rows: %.2f%%\n", 100 * commit[8] / verify[8]);
    printf("commit of 1 row / verify of 8 rows: %.2f%%\n", 100 * commit[1] / verify[8]);
    printf("a round in verifies of one row: mtp K=3 %.2f",
           (mtp + verify[4] + commit[4]) / verify[1]);
    if (dflash > 0)
        printf(", dflash2 K=7 %.2f", (dflash + verify[8] + commit[4]) / verify[1]);
    printf(" (4 rows kept)\n");
}

static _Noreturn void usage(void)
{
    fprintf(stderr, "usage: spec [--model nano|27b] [--context N] [--threads N] [--seconds S]\n"
                    "            [--tmp DIR] [--cpu-time]\n");
    exit(2);
}

static struct options parse(int argc, char **argv)
{
    struct options o = {.is_27b = true, .context = 1024, .seconds = 1, .tmp = "/dev/shm"};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--cpu-time") == 0) {
            o.cpu_time = true;
            o.n_threads = 1;
            continue;
        }
        const char *name = argv[i], *value = i + 1 < argc ? argv[++i] : NULL;
        if (!value)
            usage();
        if (strcmp(name, "--model") == 0 && strcmp(value, "nano") == 0)
            o.is_27b = false;
        else if (strcmp(name, "--model") == 0 && strcmp(value, "27b") == 0)
            o.is_27b = true;
        else if (strcmp(name, "--context") == 0)
            o.context = atoi(value);
        else if (strcmp(name, "--threads") == 0)
            o.n_threads = atoi(value);
        else if (strcmp(name, "--seconds") == 0)
            o.seconds = atof(value);
        else if (strcmp(name, "--tmp") == 0)
            o.tmp = value;
        else
            usage();
    }
    if (o.context < 64 || o.context > 32768 || (o.cpu_time && o.n_threads != 1))
        usage();
    return o;
}

int main(int argc, char **argv)
{
    struct options o = parse(argc, argv);
    static struct spec s;
    s.o = &o;
    if (o.cpu_time)
        bench_use_cpu_time();
    open_all(&s);
    printf("%s, %d positions before the rows, %d threads, %s, bf16 activations%s\n",
           o.is_27b ? "27B" : "nano", o.context, pool_threads(s.pool), backend_cpu.isa(s.stream),
           o.cpu_time ? ", processor time" : "");
    if (o.is_27b)
        printf(
            "verify: %d layers (3 GDN, 1 attention) times %.0f, and the head; commit: 3 GDN layers "
            "times %.0f, over %d states;\nmtp and dflash2 whole; random code words\n",
            SPEC_LAYERS, s.scale, s.scale, s.n_slots);
    table(&s);
    close_all(&s);
    return 0;
}

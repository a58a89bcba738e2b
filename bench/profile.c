/* Where a step's time goes on the GPU: each operator of one pass over a model, or of a drafter's proposal, by its
 * own clock.
 *   profile -m DIR [--rows 1,8] [--ctx 0,32768] [--phase verify|decode|prefill|draft]
 *           [--kv bf16|fp8] [--prefill-math bf16|fp8|nvfp4] [--spec mtp|dflash2] [--draft-model DIR]
 * In phase draft, rows are drafts, --spec tells the drafter, and --draft-model a checkpoint of its own. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "bench.h"
#include "engine/engine.h"
#include "model/place.h"

enum {
    MAX_CALLS = 8192,
    MAX_LINES = 256,
    MAX_ROWS = 65536,
    MAX_CTX = 8 * MAX_ROWS,
    MAX_NUMBERS = 16, /* of an option */
};

static struct call {
    cudaEvent_t begin, end;
    char name[64];
    double flops; /* of a product of matrices; 0 for others */
} call[MAX_CALLS];
static int n_calls;
static cudaStream_t raw; /* the backend's own: events of the default one would wait for all */

static void note(const char *name, const struct tensor *out, const struct weight *w)
{
    struct call *c = &call[n_calls];
    c->flops = w ? 2.0 * (double)out->dim[0] * (double)w->rows * (double)w->cols : 0;
    if (w)
        (void)snprintf(c->name, sizeof c->name, "%s %s [%lld, %lld]", name,
                       weight_formats[w->format].name, (long long)w->rows, (long long)w->cols);
    else
        (void)snprintf(c->name, sizeof c->name, "%s [%lld]", name, (long long)tensor_row(out));
}

#define TIMED(op, out, weight)                                                                     \
    static lathe_status timed_##op(void *stream, const struct op##_args *a, lathe_error *err)      \
    {                                                                                              \
        note(#op, &(out), weight);                                                                 \
        (void)cudaEventRecord(call[n_calls].begin, raw);                                           \
        lathe_status st = backend_cuda.op(stream, a, err);                                         \
        (void)cudaEventRecord(call[n_calls].end, raw);                                             \
        if (n_calls + 1 < MAX_CALLS)                                                               \
            n_calls++;                                                                             \
        return st;                                                                                 \
    }
TIMED(embed, a->y, NULL)
TIMED(rmsnorm, a->y, NULL)
TIMED(linear, a->y, a->w)
TIMED(silu_mul, a->y, NULL)
TIMED(qk_norm_rope, a->q, NULL)
TIMED(qk_norm_rope_append, a->norm_rope.q, NULL)
TIMED(gated_attention, a->gate.y, NULL)
TIMED(gdn_gates, a->g, NULL)
TIMED(causal_conv1d_silu, a->y, NULL)
TIMED(gated_delta_rule, a->o, NULL)
TIMED(rmsnorm_gated, a->y, NULL)
TIMED(gather_rows, a->y, NULL)
TIMED(block_conv, a->y, NULL)
TIMED(block_attention, a->o, NULL)
TIMED(top_k, a->value, NULL)
TIMED(pair_scores, a->y, NULL)

/* What the host waits for. */
static int n_fetches;
static size_t fetched_bytes;
static lathe_status counted_copy_out(void *stream, void *dst, const void *src, size_t bytes,
                                     lathe_error *err)
{
    n_fetches++;
    fetched_bytes += bytes;
    return backend_cuda.copy_out(stream, dst, src, bytes, err);
}

/* Launches that serve several operators, if they do; of matrices noted as one of all their rows. */
static bool end_joint(bool done)
{
    (void)cudaEventRecord(call[n_calls].end, raw);
    if (done && n_calls + 1 < MAX_CALLS)
        n_calls++;
    return done;
}

static void begin_joint(const char *name, const struct linear_args *a, int n)
{
    struct weight all = *a->w;
    for (int i = 1; i < n; i++)
        all.rows += a[i].w->rows;
    note(name, &a->y, &all);
    (void)cudaEventRecord(call[n_calls].begin, raw);
}

static bool timed_linears(void *stream, const struct linear_args *a, int n)
{
    begin_joint("linears", a, n);
    return end_joint(backend_cuda.linears(stream, a, n));
}

static bool timed_linear_silu_mul(void *stream, const struct linear_args a[2])
{
    begin_joint("linear_silu_mul", a, 2);
    return end_joint(backend_cuda.linear_silu_mul(stream, a));
}

static bool timed_linear_add_norm(void *stream, const struct linear_args *a, const struct normed *n)
{
    begin_joint("linear_add_norm", a, 1);
    return end_joint(backend_cuda.linear_add_norm(stream, a, n));
}

static bool timed_linears_gates(void *stream, const struct linear_args *a, int n,
                                const struct gdn_gates_args *gates)
{
    begin_joint("linears_gates", a, n);
    return end_joint(backend_cuda.linears_gates(stream, a, n, gates));
}

static bool timed_gdn_mix(void *stream, const struct gdn_mix_args *a)
{
    note("gdn_mix", &a->y, NULL);
    (void)cudaEventRecord(call[n_calls].begin, raw);
    return end_joint(backend_cuda.gdn_mix(stream, a));
}

static bool timed_block_conv_add_norm(void *stream, const struct block_conv_add_norm_args *a)
{
    note("block_conv_add_norm", &a->u, NULL);
    (void)cudaEventRecord(call[n_calls].begin, raw);
    return end_joint(backend_cuda.block_conv_add_norm(stream, a));
}

static bool timed_block_conv_made(void *stream, const struct block_conv_made_args *a)
{
    note("block_conv_made", &a->delta, a->w);
    (void)cudaEventRecord(call[n_calls].begin, raw);
    return end_joint(backend_cuda.block_conv_made(stream, a));
}

static bool timed_ring_rows(void *stream, const struct ring_rows_args *a)
{
    note("ring_rows", &a->rows->k, NULL);
    (void)cudaEventRecord(call[n_calls].begin, raw);
    return end_joint(backend_cuda.ring_rows(stream, a));
}

struct line {
    char name[64];
    double ms, flops;
    int n;
};

static int by_time(const void *a, const void *b)
{
    const struct line *x = a, *y = b;
    return x->ms < y->ms ? 1 : -1;
}

static void print_lines(int repeats)
{
    static struct line line[MAX_LINES];
    int n = 0;
    double total = 0;
    for (int i = 0; i < n_calls; i++) {
        float ms = 0;
        (void)cudaEventElapsedTime(&ms, call[i].begin, call[i].end);
        int k = 0;
        while (k < n && strcmp(line[k].name, call[i].name) != 0)
            k++;
        if (k == MAX_LINES)
            continue;
        if (k == n) {
            line[n] = (struct line){0};
            memcpy(line[n++].name, call[i].name, sizeof line[0].name);
        }
        line[k].ms += (double)ms;
        line[k].flops += call[i].flops;
        line[k].n++;
        total += (double)ms;
    }
    qsort(line, (size_t)n, sizeof *line, by_time);
    for (int k = 0; k < n; k++) {
        printf("  %-44s %4d calls %8.1f us each %8.3f ms", line[k].name, line[k].n / repeats,
               1e3 * line[k].ms / line[k].n, line[k].ms / repeats);
        if (line[k].flops > 0)
            printf(" %6.1f TFLOP/s", line[k].flops / line[k].ms / 1e9);
        printf("\n");
    }
    printf("  %-44s %34.3f ms\n", "sum", total / repeats);
}

struct opened {
    struct model model;
    struct memory memory;
    struct state state;
    struct step step;
    struct id_set ids; /* all */
    void *stream;
};

static void print_log(void *ctx, lathe_log_level level, const char *line)
{
    (void)ctx, (void)level;
    fprintf(stderr, "profile: %s\n", line);
}

static void must(lathe_status st, const lathe_error *err)
{
    if (st) {
        fprintf(stderr, "profile: %s\n", err->message);
        exit(1);
    }
}

static void add_rows(struct opened *o, enum phase phase, int32_t pos, int32_t rows)
{
    static int32_t token[MAX_ROWS];
    for (int32_t i = 0; i < rows; i++)
        token[i] = 17 + (i * 131) % 4000;
    step_begin(&o->step, phase);
    step_add(&o->step, 0, pos, token, rows);
}

static void run(struct opened *o, enum phase phase, int32_t pos, int32_t rows)
{
    lathe_error err;
    add_rows(o, phase, pos, rows);
    must(step_run(&o->step, &err), &err);
    if (phase != PHASE_PREFILL)
        must(step_best(&o->step, NULL, rows, 1, &err), &err);
}

/* The backend whose operators are timed. */
static struct backend timed_backend(void)
{
    struct backend timed = backend_cuda;
#define USE(op) timed.op = timed_##op
    USE(embed), USE(rmsnorm), USE(linear), USE(silu_mul), USE(qk_norm_rope);
    USE(qk_norm_rope_append), USE(gated_attention), USE(gdn_gates), USE(causal_conv1d_silu);
    USE(gated_delta_rule), USE(rmsnorm_gated), USE(gather_rows), USE(block_conv);
    USE(block_attention), USE(top_k), USE(pair_scores);
    timed.linears = timed_linears;
    timed.linear_silu_mul = timed_linear_silu_mul;
    timed.linear_add_norm = timed_linear_add_norm;
    timed.linears_gates = timed_linears_gates;
    timed.gdn_mix = timed_gdn_mix;
    timed.ring_rows = timed_ring_rows;
    timed.block_conv_add_norm = timed_block_conv_add_norm;
    timed.block_conv_made = timed_block_conv_made;
    timed.copy_out = counted_copy_out;
    return timed;
}

static void profile(struct opened *o, enum phase phase, int32_t pos, int32_t rows)
{
    enum { REPEATS = 5, TIMES = 30 };
    lathe_error err;
    struct backend timed = timed_backend();
    int times = phase == PHASE_PREFILL ? 3 : TIMES;
    for (int i = 0; i < 3; i++)
        run(o, phase, pos, rows);
    must(backend_cuda.wait(o->stream, &err), &err);
    double began = clock_ms();
    for (int i = 0; i < times; i++)
        run(o, phase, pos, rows);
    must(backend_cuda.wait(o->stream, &err), &err);
    double wall = (clock_ms() - began) / times;
    n_calls = 0;
    o->step.x.backend = &timed;
    for (int i = 0; i < REPEATS; i++)
        run(o, phase, pos, rows);
    must(backend_cuda.wait(o->stream, &err), &err);
    o->step.x.backend = &backend_cuda;
    printf("%d rows at %d: %.3f ms a pass\n", rows, pos, wall);
    print_lines(REPEATS);
}

/* A drafter over the model, and a request that it drafts for. Its backend is timed while `now` is that. */
struct drafting {
    const struct drafter_ops *ops;
    struct drafter *d;
    struct drafter_info info;
    struct backend now;
    struct sample_scratch scratch;
    struct sampler *sampler;
    int32_t n; /* tokens it has been told of */
};

static void draft_open(struct drafting *g, struct opened *o, const char *spec, const char *dir,
                       int32_t n_ctx, enum dtype kv)
{
    static const lathe_sampling greedy = {.top_p = 1, .repetition_penalty = 1};
    lathe_error err;
    int32_t vocab = o->model.dims.vocab;
    *g = (struct drafting){.ops = drafter_named(spec), .now = backend_cuda};
    if (!g->ops) {
        char names[128];
        drafter_names(names, sizeof names);
        fprintf(stderr, "profile: there is no drafter %s; there are %s\n", spec, names);
        exit(2);
    }
    must(sample_scratch_init(&g->scratch, vocab, &err), &err);
    struct sampler_options so = {.sampling = &greedy, .ids = &o->ids};
    must(sampler_open(&g->sampler, &so, &err), &err);
    struct drafter_options d = {.model = &o->model,
                                .backend = &g->now,
                                .stream = o->stream,
                                .ids = &o->ids,
                                .scratch = &g->scratch,
                                .act = DT_BF16,
                                .kv = kv,
                                .n_slots = 1,
                                .n_ctx = n_ctx,
                                .max_rows = 512,
                                .dir = dir};
    must(drafter_open(g->ops, &g->d, &d, &o->memory, &err), &err);
    g->ops->info(g->d, &g->info);
}

/* Tells it of rows of zeros, up to n tokens. */
static void draft_feed(struct drafting *g, struct opened *o, int32_t n)
{
    enum { ROWS = 512 };
    static int32_t token[ROWS];
    lathe_error err;
    void *memory;
    int64_t width = o->model.dims.hidden * (int64_t)(1 + g->info.n_taps);
    must(backend_cuda.alloc(o->stream, &memory, (size_t)width * ROWS * 2, &err), &err);
    while (g->n < n) {
        int32_t k = n - g->n < ROWS ? n - g->n : ROWS;
        struct committed c = {.slot = 0,
                              .pos = g->n,
                              .n = k,
                              .token = token,
                              .hidden = tensor_2d(memory, DT_BF16, k, o->model.dims.hidden),
                              .feature = tensor_2d(memory, DT_BF16, k,
                                                   o->model.dims.hidden * (int64_t)g->info.n_taps)};
        must(g->ops->committed(g->d, &c, &err), &err);
        g->n += k;
    }
    must(backend_cuda.wait(o->stream, &err), &err);
    backend_cuda.free(o->stream, memory);
}

static int32_t draft_run(struct drafting *g, int32_t most)
{
    static int32_t history[MAX_CTX + 1];
    lathe_error err;
    struct draft_request r = {
        .pos = g->n, .anchor = 17, .most = most, .sampler = g->sampler, .history = history};
    must(g->ops->propose(g->d, &r, 1, &err), &err);
    return r.n;
}

static void profile_draft(struct drafting *g, struct opened *o, int32_t most)
{
    enum { REPEATS = 5, TIMES = 30 };
    lathe_error err;
    int32_t n = 0;
    for (int i = 0; i < 3; i++)
        n = draft_run(g, most);
    must(backend_cuda.wait(o->stream, &err), &err);
    double began = clock_ms();
    for (int i = 0; i < TIMES; i++)
        (void)draft_run(g, most);
    must(backend_cuda.wait(o->stream, &err), &err);
    double wall = (clock_ms() - began) / TIMES;
    n_calls = n_fetches = 0;
    fetched_bytes = 0;
    g->now = timed_backend();
    for (int i = 0; i < REPEATS; i++)
        (void)draft_run(g, most);
    must(backend_cuda.wait(o->stream, &err), &err);
    g->now = backend_cuda;
    printf("%d drafts of %s at %d: %.3f ms a proposal, %d operators, %d waits for %zu bytes\n", n,
           g->ops->name, g->n, wall, n_calls / REPEATS, n_fetches / REPEATS,
           fetched_bytes / REPEATS);
    print_lines(REPEATS);
}

/* The numbers of an option's value, each from low to high, into out [MAX_NUMBERS]; how many, or 0 and a message. */
static int numbers(const char *option, const char *value, int32_t low, int32_t high, int32_t *out)
{
    const char *s = value;
    for (int n = 0; n < MAX_NUMBERS; s++) {
        char *end;
        long x = strtol(s, &end, 10);
        if (end == s || (*end && *end != ',') || x < low || x > high)
            break;
        out[n++] = (int32_t)x;
        s = end;
        if (!*s)
            return n;
    }
    fprintf(stderr,
            "profile: %s is \"%s\", expected up to %d numbers from %d to %d with commas between\n",
            option, value, MAX_NUMBERS, low, high);
    return 0;
}

/* Is the value of an option one of these words, which end with NULL? */
static bool is_word(const char *option, const char *value, const char *const *words)
{
    for (int i = 0; words[i]; i++)
        if (strcmp(value, words[i]) == 0)
            return true;
    fprintf(stderr, "profile: %s is \"%s\", expected", option, value);
    for (int i = 0; words[i]; i++)
        fprintf(stderr, "%s %s", i ? "," : "", words[i]);
    fprintf(stderr, "\n");
    return false;
}

int main(int argc, char **argv)
{
    static const char *const phases[] = {"verify", "decode", "prefill", "draft", NULL};
    static const char *const kvs[] = {"bf16", "fp8", NULL};
    static const char *const maths[] = {"bf16", "fp8", "nvfp4", NULL};
    const char *dir = "models/nano", *rows = "1,8", *ctx = "0", *phase = "verify", *kv = "bf16";
    const char *math = "bf16";
    const char *spec = "dflash2", *draft_dir = NULL;
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc) {
            fprintf(stderr, "profile: %s: a value is missing\n", argv[i]);
            return 2;
        } else if (strcmp(argv[i], "-m") == 0)
            dir = argv[i + 1];
        else if (strcmp(argv[i], "--rows") == 0)
            rows = argv[i + 1];
        else if (strcmp(argv[i], "--ctx") == 0)
            ctx = argv[i + 1];
        else if (strcmp(argv[i], "--phase") == 0)
            phase = argv[i + 1];
        else if (strcmp(argv[i], "--kv") == 0)
            kv = argv[i + 1];
        else if (strcmp(argv[i], "--prefill-math") == 0)
            math = argv[i + 1];
        else if (strcmp(argv[i], "--spec") == 0)
            spec = argv[i + 1];
        else if (strcmp(argv[i], "--draft-model") == 0)
            draft_dir = argv[i + 1];
        else {
            fprintf(stderr,
                    "profile: %s: expected -m, --rows, --ctx, --phase, --kv, --prefill-math, "
                    "--spec, --draft-model\n",
                    argv[i]);
            return 2;
        }
    }
    if (!is_word("--phase", phase, phases) || !is_word("--kv", kv, kvs) ||
        !is_word("--prefill-math", math, maths))
        return 2;
    static struct opened o;
    lathe_error err;
    int32_t T[MAX_NUMBERS], at[MAX_NUMBERS], most = 16, last = 0;
    int n_T = numbers("--rows", rows, 1, MAX_ROWS, T), n_at = numbers("--ctx", ctx, 0, MAX_CTX, at);
    if (!n_T || !n_at)
        return 2;
    for (int i = 0; i < n_T; i++)
        most = T[i] > most ? T[i] : most;
    for (int i = 0; i < n_at; i++)
        last = at[i] > last ? at[i] : last;
    enum phase p = strcmp(phase, "decode") == 0    ? PHASE_DECODE
                   : strcmp(phase, "prefill") == 0 ? PHASE_PREFILL
                                                   : PHASE_VERIFY;
    lathe_log_set(print_log, NULL);
    must(model_open(&o.model, dir, &err), &err);
    must(backend_cuda.open(&o.stream, NULL, NULL, &err), &err);
    must(backend_cuda.set_prompt_math(o.stream,
                                      strcmp(math, "fp8") == 0     ? PROMPT_FP8
                                      : strcmp(math, "nvfp4") == 0 ? PROMPT_NVFP4
                                                                   : PROMPT_ACT,
                                      &err),
         &err);
    raw = backend_cuda.native(o.stream);
    memory_loose(&o.memory, &backend_cuda, o.stream);
    model_place(&o.memory, &o.model);
    must(memory_load(&o.memory, NULL, NULL, NULL, &err), &err);
    struct state_options so = {.act = DT_BF16,
                               .kv = strcmp(kv, "fp8") == 0 ? DT_F8_E4M3 : DT_BF16,
                               .n_slots = 1 + STEP_SHADOW_SLOTS,
                               .n_ctx = last + most + 64,
                               .n_verify = p == PHASE_VERIFY ? most : 16};
    must(state_open(&o.state, &o.model.dims, &so, &o.memory.cache, &err), &err);
    struct step_options to = {.model = &o.model,
                              .state = &o.state,
                              .backend = &backend_cuda,
                              .stream = o.stream,
                              .max_rows = most,
                              .max_seqs = 1,
                              .ids = &o.ids};
    must(id_set_init(&o.ids, o.model.dims.vocab, NULL, &err), &err);
    must(step_open(&o.step, &to, &o.memory.workspace, &err), &err);
    for (int i = 0; i < MAX_CALLS; i++) {
        (void)cudaEventCreate(&call[i].begin);
        (void)cudaEventCreate(&call[i].end);
    }
    if (strcmp(phase, "draft") == 0) {
        static struct drafting g;
        draft_open(&g, &o, spec, draft_dir, last + most + 64, so.kv);
        for (int i = 0; i < n_at; i++) { /* ascending */
            draft_feed(&g, &o, at[i] > 0 ? at[i] : 1);
            for (int k = 0; k < n_T; k++)
                profile_draft(&g, &o, T[k]);
        }
        return 0;
    }
    for (int i = 0; i < n_at; i++)
        for (int k = 0; k < n_T; k++)
            profile(&o, p, at[i], T[k]);
    return 0;
}

#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "random.h"

enum {
    READ_BYTES = 256 << 20, /* eight times a large last-level cache */
    ROUNDS = 100000,        /* of an arithmetic probe: half a millisecond */
    MAX_SAMPLES = 400,
};

struct bench {
    struct pool *pool;
    uint64_t *memory;
    volatile uint64_t sink;
    double ops[POOL_MAX_THREADS];
};

static clockid_t time_source = CLOCK_MONOTONIC;

void bench_use_cpu_time(void)
{
    time_source = CLOCK_PROCESS_CPUTIME_ID;
}

double bench_now(void)
{
    struct timespec t;
    clock_gettime(time_source, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct bench *bench_open(struct pool *pool)
{
    struct bench *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    b->pool = pool;
    b->memory = large_pages(READ_BYTES);
    if (!b->memory) {
        free(b);
        return NULL;
    }
    memset(b->memory, 1, READ_BYTES);
    return b;
}

void bench_close(struct bench *b)
{
    if (b)
        free(b->memory);
    free(b);
}

static void read_part(void *ctx, int32_t thread, int32_t n_threads)
{
    struct bench *b = ctx;
    int64_t i, end;
    pool_share(READ_BYTES / 8, 64, thread, n_threads, &i, &end);
    uint64_t s[16] = {0};
    for (; i < end; i += 16)
        for (int j = 0; j < 16; j++)
            s[j] ^= b->memory[i + j];
    uint64_t all = 0;
    for (int j = 0; j < 16; j++)
        all ^= s[j];
    if (all == 42)
        b->sink = all;
}

static bool has_dots(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512bf16") > 0;
#else
    return false;
#endif
}

static float probe_fma(int64_t n, double *ops)
{
    float s[64] = {0};
    for (int64_t k = 0; k < n; k++)
        for (int i = 0; i < 64; i++)
            s[i] = s[i] * 0.5f + 1;
    for (int i = 1; i < 64; i++)
        s[0] += s[i];
    *ops = (double)n * 128;
    return s[0];
}

static void dot_part(void *ctx, int32_t thread, int32_t n_threads)
{
    struct bench *b = ctx;
    (void)n_threads;
    float x = 0;
#if defined(__x86_64__)
    x = probe_dot_avx512bf16(ROUNDS, &b->ops[thread]);
#endif
    if (x < 0)
        b->sink = 1;
}

static void fma_part(void *ctx, int32_t thread, int32_t n_threads)
{
    struct bench *b = ctx;
    (void)n_threads;
    float x;
#if defined(__x86_64__)
    if (has_dots())
        x = probe_fma_avx512bf16(ROUNDS, &b->ops[thread]);
    else
#endif
        x = probe_fma(ROUNDS, &b->ops[thread]);
    if (x < 0)
        b->sink = 1;
}

static double rate(struct bench *b, void (*fn)(void *, int32_t, int32_t))
{
    double start = bench_now(), ops = 0;
    pool_run(b->pool, fn, b);
    double seconds = bench_now() - start;
    for (int32_t i = 0; i < pool_threads(b->pool); i++)
        ops += b->ops[i];
    return ops / seconds;
}

static void keep(double *best, double value)
{
    if (*best < value)
        *best = value;
}

void bench_probe(struct bench *b, struct bench_peak *best)
{
    double start = bench_now();
    pool_run(b->pool, read_part, b);
    keep(&best->read, READ_BYTES / (bench_now() - start));
    if (has_dots())
        keep(&best->dot, rate(b, dot_part));
    keep(&best->fma, rate(b, fma_part));
}

void bench_header(void)
{
    printf("%-20s %-10s %-15s %4s %10s %8s %9s | %9s %9s | %6s %6s\n", "operator", "format",
           "shape", "rows", "time us", "GB/s", "GFLOP/s", "read GB/s", "peak", "of", "median");
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_floor(const struct bench_case *c, const struct bench_peak *p)
{
    double memory = c->bytes / p->read, arithmetic = c->ops / (c->dots ? p->dot : p->fma);
    return memory > arithmetic ? memory : arithmetic;
}

void bench_run(struct bench *b, const struct bench_case *c, double seconds)
{
    struct bench_peak peak = {0};
    double best = 1e30, share[MAX_SAMPLES], begin = bench_now();
    int n = 0;
    for (int64_t i = 0; i < c->n_calls && i < 2; i++) /* brings code and pages in */
        c->call(c->ctx, i);
    while (n < MAX_SAMPLES && (n < 3 || bench_now() - begin < seconds)) {
        struct bench_peak now = {0};
        bench_probe(b, &now);
        double start = bench_now();
        for (int64_t i = 0; i < c->n_calls; i++)
            c->call(c->ctx, i);
        double t = (bench_now() - start) / (double)c->n_calls;
        bench_probe(b, &now);
        if (best > t)
            best = t;
        keep(&peak.read, now.read);
        keep(&peak.dot, now.dot);
        keep(&peak.fma, now.fma);
        share[n++] = bench_floor(c, &now) / t;
    }
    qsort(share, (size_t)n, sizeof *share, ascending);
    printf("%-20s %-10s %-15s %4lld %10.1f %8.1f %9.1f | %9.1f %9.1f | %5.1f%% %5.1f%%\n", c->op,
           c->what, c->shape, (long long)c->rows, best * 1e6, c->bytes / best * 1e-9,
           c->ops / best * 1e-9, peak.read * 1e-9, (c->dots ? peak.dot : peak.fma) * 1e-9,
           100 * bench_floor(c, &peak) / best, 100 * share[n / 2]);
    fflush(stdout);
}

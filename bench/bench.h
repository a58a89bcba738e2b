/* What the benchmarks share: a clock, and what this machine can do at most, measured beside every
 * case because memory bandwidth drifts within minutes on a shared host. */
#ifndef LATHE_BENCH_BENCH_H
#define LATHE_BENCH_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/thread.h"

double bench_now(void); /* seconds */
/* From now on processor time is counted, which other processes take less from. For one thread only: the
 * sum over threads is not the time that passes. */
void bench_use_cpu_time(void);

/* What all threads of a pool reach together. */
struct bench_peak {
    double read; /* bytes a second from memory, by plain loads */
    double dot;  /* operations a second in BF16 dot products; 0 where there are none */
    double fma;  /* operations a second in F32 multiply-adds */
};

struct bench;
/* NULL if memory is short. */
struct bench *bench_open(struct pool *pool);
void bench_close(struct bench *b);

/* One probe of each, a few milliseconds; keeps the larger of the old and the new value. */
void bench_probe(struct bench *b, struct bench_peak *best);

struct bench_case {
    const char *op, *what, *shape; /* what: the format, or what else distinguishes it */
    int64_t rows;
    double bytes, ops; /* of one call: what moves from or to memory, and arithmetic */
    bool dots;         /* BF16 dot products bound it, else F32 multiply-adds */
    int64_t n_calls;   /* that are timed together */
    void (*call)(void *ctx, int64_t i);
    void *ctx;
};

/* Seconds that one call takes at least: the larger of bytes over read bandwidth and operations over peak. */
double bench_floor(const struct bench_case *c, const struct bench_peak *p);

/* Times the case for about `seconds`, probes between, and prints one line: the best time, with the best
 * of the probes, and the share of the floor, which is the larger of bytes over read bandwidth and
 * operations over peak. The last figure is the median of the shares against the probes just before and
 * after each timing. */
void bench_run(struct bench *b, const struct bench_case *c, double seconds);
void bench_header(void);

/* probe_<isa>.c: n rounds of arithmetic; what comes back is of no use, and the operations are
 * returned through *ops. */
float probe_dot_avx512bf16(int64_t n, double *ops);
float probe_fma_avx512bf16(int64_t n, double *ops);

#endif

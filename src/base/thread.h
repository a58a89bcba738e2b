/* One pool of worker threads for the whole engine: fork, work, join. */
#ifndef LATHE_BASE_THREAD_H
#define LATHE_BASE_THREAD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

enum { POOL_MAX_THREADS = 256 };

struct pool;

/* n_threads includes the caller of pool_run; 0 takes what the process may run on. With `pin` thread
 * i stays on the i-th allowed processor. */
lathe_status pool_open(struct pool **p, int32_t n_threads, bool pin, lathe_error *err);
void pool_close(struct pool *p); /* NULL is allowed */
int32_t pool_threads(const struct pool *p);

/* Calls fn(ctx, thread, n_threads) once on every thread, the caller being thread 0, and returns
 * when all are done. One pool_run at a time; allocates nothing. p may be NULL: one thread. */
void pool_run(struct pool *p, void (*fn)(void *ctx, int32_t thread, int32_t n_threads), void *ctx);

/* The part of n items, in whole multiples of `grain`, that thread i of n_threads takes:
 * [*begin, *end), empty if there is none. */
void pool_share(int64_t n, int64_t grain, int32_t thread, int32_t n_threads, int64_t *begin,
                int64_t *end);

/* Processors this process may run on. */
int32_t cpu_count(void);

#endif

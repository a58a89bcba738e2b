#define _GNU_SOURCE
#include "base/thread.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A waiter spins this often before it sleeps: about 20 us, longer than the gap between two operators
 * of a step, short enough that an idle engine and a busy neighbour do not fight for a core. */
enum { SPIN = 2000 };

struct worker {
    struct pool *pool;
    pthread_t thread;
    int32_t index;
};

struct pool {
    int32_t n_threads;
    bool pin;
    atomic_uint epoch;  /* advances with every pool_run; workers wait on it */
    atomic_int running; /* workers not yet done; the caller waits on it */
    atomic_bool stop;
    void (*fn)(void *ctx, int32_t thread, int32_t n_threads);
    void *ctx;
    struct worker worker[];
};

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex_wait(void *word, int value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(void *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void pin_to(int32_t index)
{
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return;
    int32_t n = CPU_COUNT(&all), want = index % (n > 0 ? n : 1);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET((size_t)cpu, &all) && want-- == 0) {
            CPU_ZERO(&one);
            CPU_SET((size_t)cpu, &one);
            pthread_setaffinity_np(pthread_self(), sizeof one, &one);
            return;
        }
}

static void *work(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    unsigned seen = 0;
    if (p->pin)
        pin_to(w->index);
    for (;;) {
        int spins = 0;
        while (atomic_load_explicit(&p->epoch, memory_order_acquire) == seen) {
            if (++spins < SPIN)
                relax();
            else
                futex_wait(&p->epoch, (int)seen);
        }
        seen++;
        if (atomic_load(&p->stop))
            return NULL;
        p->fn(p->ctx, w->index, p->n_threads);
        if (atomic_fetch_sub_explicit(&p->running, 1, memory_order_acq_rel) == 1)
            futex_wake(&p->running);
    }
}

int32_t cpu_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    int n = CPU_COUNT(&set);
    return n < 1 ? 1 : n > POOL_MAX_THREADS ? POOL_MAX_THREADS : n;
}

static void stop_workers(struct pool *p, int32_t started)
{
    atomic_store(&p->stop, true);
    atomic_fetch_add_explicit(&p->epoch, 1, memory_order_release);
    futex_wake(&p->epoch);
    for (int32_t i = 1; i < started; i++)
        pthread_join(p->worker[i].thread, NULL);
}

lathe_status pool_open(struct pool **out, int32_t n_threads, bool pin, lathe_error *err)
{
    *out = NULL;
    if (n_threads == 0)
        n_threads = cpu_count();
    if (n_threads < 1 || n_threads > POOL_MAX_THREADS)
        return fail(err, LATHE_E_ARGUMENT, "%d threads, expected 1 to %d", n_threads,
                    POOL_MAX_THREADS);
    size_t bytes = sizeof(struct pool) + (size_t)n_threads * sizeof(struct worker);
    struct pool *p = calloc(1, bytes);
    if (!p)
        return fail_memory(err, bytes);
    p->n_threads = n_threads;
    p->pin = pin;
    for (int32_t i = 1; i < n_threads; i++) {
        p->worker[i] = (struct worker){.pool = p, .index = i};
        int e = pthread_create(&p->worker[i].thread, NULL, work, &p->worker[i]);
        if (e) {
            stop_workers(p, i);
            free(p);
            return fail(err, LATHE_E_MEMORY, "cannot start thread %d of %d", i, n_threads);
        }
    }
    *out = p;
    return LATHE_OK;
}

void pool_close(struct pool *p)
{
    if (!p)
        return;
    stop_workers(p, p->n_threads);
    free(p);
}

int32_t pool_threads(const struct pool *p)
{
    return p ? p->n_threads : 1;
}

void pool_run(struct pool *p, void (*fn)(void *ctx, int32_t thread, int32_t n_threads), void *ctx)
{
    if (!p || p->n_threads == 1) {
        fn(ctx, 0, 1);
        return;
    }
    p->fn = fn;
    p->ctx = ctx;
    atomic_store_explicit(&p->running, p->n_threads - 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->epoch, 1, memory_order_release);
    futex_wake(&p->epoch);
    fn(ctx, 0, p->n_threads);
    int spins = 0, left;
    while ((left = atomic_load_explicit(&p->running, memory_order_acquire)) != 0) {
        if (++spins < SPIN)
            relax();
        else
            futex_wait(&p->running, left);
    }
}

void pool_share(int64_t n, int64_t grain, int32_t thread, int32_t n_threads, int64_t *begin,
                int64_t *end)
{
    int64_t units = (n + grain - 1) / grain;
    int64_t b = units * thread / n_threads * grain, e = units * (thread + 1) / n_threads * grain;
    *begin = b < n ? b : n;
    *end = e < n ? e : n;
}

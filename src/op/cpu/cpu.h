/* The CPU backend's inside: the stream (threads and chosen kernels) that every entry gets. */
#ifndef LATHE_OP_CPU_CPU_H
#define LATHE_OP_CPU_CPU_H

#include <stdatomic.h>

#include "base/thread.h"
#include "op/backend.h"
#include "op/cpu/isa.h"
#include "op/cpu/kernels.h"
#include "op/cpu/linear.h"

/* backend.watch */
struct cpu_watch {
    bool (*leave)(void *ctx); /* NULL: nobody asks */
    void *ctx;
    _Atomic(bool) left;
};

struct cpu {
    struct pool *pool; /* borrowed */
    struct cpu_watch *watch;
    enum cpu_isa isa;
    struct cpu_kernels kernels;
    struct linear_kernels linear;
};

enum {
    /* Below this many values, waking the other threads costs more than their help gives. */
    CPU_SMALL = 16384,
};

static inline struct cpu *cpu_of(void *stream)
{
    return stream;
}

/* Calls fn on all threads if there are n_values worth the trouble, else on this one. */
static inline void cpu_run(const struct cpu *c, int64_t n_values,
                           void (*fn)(void *ctx, int32_t thread, int32_t n_threads), void *ctx)
{
    if (n_values < CPU_SMALL)
        fn(ctx, 0, 1);
    else
        pool_run(c->pool, fn, ctx);
}

/* Asked by all threads of an operator that takes long, every few milliseconds: true: it may return at once. */
static inline bool cpu_is_left(const struct cpu *c, int32_t thread)
{
    struct cpu_watch *w = c->watch;
    bool left = atomic_load_explicit(&w->left, memory_order_relaxed);
    if (!left && thread == 0 && w->leave && w->leave(w->ctx)) {
        atomic_store_explicit(&w->left, true, memory_order_relaxed);
        left = true;
    }
    return left;
}

/* One function per operator, the entries of backend_cpu. */
#define X(name)                                                                                    \
    lathe_status cpu_##name(void *stream, const struct name##_args *a, lathe_error *err);
OPERATORS(X)
#undef X
size_t cpu_linear_scratch(const void *stream, const struct linear_args *a);
size_t cpu_gdn_gates_scratch(const void *stream, const struct gdn_gates_args *a);
size_t cpu_attention_scratch(const void *stream, const struct attention_args *a);
size_t cpu_block_attention_scratch(const void *stream, const struct block_attention_args *a);
size_t cpu_top_k_scratch(const void *stream, const struct top_k_args *a);
bool cpu_has_linear(enum weight_format_id format, enum dtype act);

#endif

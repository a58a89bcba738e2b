/* The CPU backend's inside: the stream (threads and chosen kernels) that every entry gets. */
#ifndef LATHE_OP_CPU_CPU_H
#define LATHE_OP_CPU_CPU_H

#include "base/thread.h"
#include "op/backend.h"
#include "op/cpu/isa.h"
#include "op/cpu/kernels.h"
#include "op/cpu/linear.h"

struct cpu {
    struct pool *pool; /* borrowed */
    enum cpu_isa isa;
    struct cpu_kernels kernels;
    struct linear_kernels linear;
};

static inline struct cpu *cpu_of(void *stream)
{
    return stream;
}

/* One function per operator, the entries of backend_cpu. */
#define X(name)                                                                                    \
    lathe_status cpu_##name(void *stream, const struct name##_args *a, lathe_error *err);
OPERATORS(X)
#undef X
size_t cpu_linear_scratch(const void *stream, const struct linear_args *a);
size_t cpu_gdn_gates_scratch(const void *stream, const struct gdn_gates_args *a);
size_t cpu_attention_scratch(const void *stream, const struct attention_args *a);
bool cpu_has_linear(enum weight_format_id format, enum dtype act);

#endif

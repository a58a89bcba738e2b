#include "op/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "op/host.h"

static const char *const isa_name[] = {
    [ISA_GENERIC] = "generic",       [ISA_AVX2] = "avx2", [ISA_AVX512] = "avx512",
    [ISA_AVX512BF16] = "avx512bf16", [ISA_NEON] = "neon",
};

#if defined(__x86_64__)
/* Register states that the operating system saves: XCR0. */
static uint64_t saved_states(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static bool has(uint32_t word, uint32_t bits)
{
    return (word & bits) == bits;
}

static enum cpu_isa best_isa(void)
{
    enum { SAVES_AVX = 0x6, SAVES_AVX512 = 0xE6 };
    uint32_t a, b, c, d, b7, c7, d7;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C))
        return ISA_GENERIC;
    uint64_t saved = saved_states();
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7) || !has(b7, bit_AVX2) ||
        (saved & SAVES_AVX) != SAVES_AVX)
        return ISA_GENERIC;
    if (!has(b7, bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ) ||
        (saved & SAVES_AVX512) != SAVES_AVX512)
        return ISA_AVX2;
    if (!has(c7, bit_AVX512VBMI) || !__get_cpuid_count(7, 1, &a, &b, &c, &d) ||
        !has(a, bit_AVX512BF16))
        return ISA_AVX512;
    return ISA_AVX512BF16;
}

static bool includes(enum cpu_isa best, enum cpu_isa isa)
{
    return isa <= best;
}
#else
static enum cpu_isa best_isa(void)
{
#if defined(__aarch64__)
    return ISA_NEON;
#else
    return ISA_GENERIC;
#endif
}

static bool includes(enum cpu_isa best, enum cpu_isa isa)
{
    return isa == best || isa == ISA_GENERIC;
}
#endif

static lathe_status choose_isa(enum cpu_isa *isa, const char *name, lathe_error *err)
{
    const int n = (int)(sizeof isa_name / sizeof isa_name[0]);
    char known[128] = "";
    enum cpu_isa best = best_isa();
    *isa = best;
    if (!name)
        return LATHE_OK;
    for (int i = 0; i < n; i++) {
        if (!includes(best, (enum cpu_isa)i))
            continue;
        if (strcmp(name, isa_name[i]) == 0) {
            *isa = (enum cpu_isa)i;
            return LATHE_OK;
        }
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", isa_name[i]);
    }
    return fail(err, LATHE_E_ARGUMENT, "instruction set \"%s\": this processor has %s", name,
                known);
}

void cpu_kernels_select(struct cpu_kernels *k, enum cpu_isa isa)
{
    switch (isa) {
#if defined(__x86_64__)
    case ISA_AVX512BF16:
        cpu_kernels_avx512bf16(k);
        break;
    case ISA_AVX512:
        cpu_kernels_avx512(k);
        break;
    case ISA_AVX2:
        cpu_kernels_avx2(k);
        break;
#elif defined(__aarch64__)
    case ISA_NEON:
        cpu_kernels_neon(k);
        break;
#endif
    default:
        cpu_kernels_generic(k);
        break;
    }
}

static lathe_status open_stream(void **stream, struct pool *pool, const char *isa, lathe_error *err)
{
    *stream = NULL;
    enum cpu_isa chosen;
    lathe_status st = choose_isa(&chosen, isa, err);
    if (st)
        return st;
    struct {
        struct cpu cpu;
        struct cpu_watch watch;
    } *both = calloc(1, sizeof *both);
    if (!both)
        return fail_memory(err, sizeof *both);
    struct cpu *c = &both->cpu;
    c->watch = &both->watch;
    c->pool = pool;
    c->isa = chosen;
    cpu_kernels_select(&c->kernels, chosen);
    linear_kernels_select(&c->linear, chosen);
    *stream = c;
    return LATHE_OK;
}

static void close_stream(void *stream)
{
    free(stream);
}

static const char *isa_of(const void *stream)
{
    const struct cpu *c = stream;
    return isa_name[c->isa];
}

static void watch(void *stream, bool (*leave)(void *ctx), void *ctx)
{
    struct cpu_watch *w = cpu_of(stream)->watch;
    w->leave = leave;
    w->ctx = ctx;
    atomic_store(&w->left, false);
}

static bool is_left(void *stream)
{
    return cpu_is_left(cpu_of(stream), 0);
}

const struct backend backend_cpu = {.name = "cpu",
                                    .open = open_stream,
                                    .close = close_stream,
                                    .isa = isa_of,
                                    HOST_MEMORY,
                                    .watch = watch,
                                    .is_left = is_left,
                                    .prompt_rows = 512,
                                    .has_linear = cpu_has_linear,
                                    .linear_scratch = cpu_linear_scratch,
                                    .gdn_gates_scratch = cpu_gdn_gates_scratch,
                                    .attention_scratch = cpu_attention_scratch,
                                    .block_attention_scratch = cpu_block_attention_scratch,
                                    .top_k_scratch = cpu_top_k_scratch,
#define X(name) .name = cpu_##name,
                                    OPERATORS(X)
#undef X
};

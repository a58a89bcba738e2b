/* Full unrolling of the short loops that index registers. */
#ifndef LATHE_OP_CPU_UNROLL_H
#define LATHE_OP_CPU_UNROLL_H

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define INLINE static inline __attribute__((always_inline))

#endif

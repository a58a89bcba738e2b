/* Hopper's products of a warpgroup, 64 rows, asynchronous, and the barriers that go with them. d [64, 64] of four
 * consecutive warps is as four of mma.cuh below each other, d[4 j ..] being columns 8 j .. 8 j + 7, and so is a factor
 * in registers. Code for compute capability 9.0a only.
 *
 * Factors in shared memory lie in panels of 64 columns: a row is 128 bytes, of which piece c of 16 lies at c ^ row % 8;
 * panels are 1024-byte aligned. See panel_at. */
#ifndef LATHE_OP_CUDA_WGMMA_CUH
#define LATHE_OP_CUDA_WGMMA_CUH

#include "op/cuda/cuda.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WGMMA 1
#else
#define HAS_WGMMA 0
#endif

/* Byte of piece c (of 8) of a row of a panel. */
__device__ __forceinline__ int panel_at(int row, int c)
{
    return row * 128 + ((c ^ row) & 7) * 16;
}

#if HAS_WGMMA

/* Factors in shared memory are named by descriptors: the constant upper half says 128-byte rows so swizzled and 1024 bytes
 * from eight rows to the next eight; the lower is the address, / 16: of rows x 16 columns where columns are summed over, + 2
 * for the next 16; of 16 rows x 64 columns where rows are, + 128 for the next 16. */
__device__ __forceinline__ uint32_t panel_descriptor(uint32_t address)
{
    return 1024u >> 4 << 16 | address >> 4;
}
/* The same in every lane of a warp. */
__device__ __forceinline__ uint32_t uniform(uint32_t x)
{
    return __shfl_sync(0xffffffffu, x, 0);
}

__device__ __forceinline__ void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

#define D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D32(d)   D4(d, 0), D4(d, 4), D4(d, 8), D4(d, 12), D4(d, 16), D4(d, 20), D4(d, 24), D4(d, 28)
#define N4(d, i) "=f"(d[i]), "=f"(d[i + 1]), "=f"(d[i + 2]), "=f"(d[i + 3])
#define N32(d)   N4(d, 0), N4(d, 4), N4(d, 8), N4(d, 12), N4(d, 16), N4(d, 20), N4(d, 24), N4(d, 28)
#define R32                                                                                        \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "  \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"

/* All but the last N groups are done; d, which one of those that are has written, can be read. */
template <int N> __device__ __forceinline__ void wgmma_wait(float (&d)[32])
{
    asm volatile("wgmma.wait_group.sync.aligned %32;" : D32(d) : "n"(N) : "memory");
}
/* d is written by what was waited for: nothing that reads it goes before this. */
__device__ __forceinline__ void wgmma_done(float (&d)[32])
{
    asm volatile("" : D32(d)::"memory");
}
__device__ __forceinline__ void wgmma_done(uint32_t (&a)[4])
{
    asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
}
template <int M> __device__ __forceinline__ void wgmma_done(float (&d)[M])
{
#pragma unroll
    for (int i = 0; i < M; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}
template <int N> __device__ __forceinline__ void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* d = a b or, if ADD, d += a b: a [64, 16] and b [64, 16] of panels, b's rows the columns of d (wgmma_rows);
 * a in registers and b [16, 64] of a panel (wgmma_columns, where d is an operand in either case, so that it stays in
 * the registers it has). */
#define UPPER ((uint64_t)(1u << 30 | 1024 >> 4) << 32)
#define WGMMA(TYPE, NAME)                                                                          \
    template <bool ADD>                                                                            \
    __device__ __forceinline__ void wgmma_rows(float(&d)[32], uint32_t a, uint32_t b, NAME)        \
    {                                                                                              \
        if (ADD)                                                                                   \
            asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " " R32       \
                         ", %32, %33, 1, 1, 1, 0, 0;"                                              \
                         : D32(d)                                                                  \
                         : "l"(UPPER | a), "l"(UPPER | b));                                        \
        else                                                                                       \
            asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " " R32       \
                         ", %32, %33, 0, 1, 1, 0, 0;"                                              \
                         : N32(d)                                                                  \
                         : "l"(UPPER | a), "l"(UPPER | b));                                        \
    }                                                                                              \
    template <bool ADD>                                                                            \
    __device__ __forceinline__ void wgmma_columns(float(&d)[32], const uint32_t(&a)[4],            \
                                                  uint32_t b, NAME)                                \
    {                                                                                              \
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " " R32           \
                     ", {%32, %33, %34, %35}, %36, %37, 1, 1, 1;"                                  \
                     : D32(d)                                                                      \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(UPPER | b), "n"(ADD));      \
    }
WGMMA("bf16", bf16)
WGMMA("f16", __half)
#undef WGMMA

/* The same for 8 NT columns: d [64, 8 NT], a in registers, and b's 8 NT rows the columns of d. */
#define R1 "%0, %1, %2, %3"
#define R2 R1 ", %4, %5, %6, %7"
#define R3 R2 ", %8, %9, %10, %11"
#define R4 R3 ", %12, %13, %14, %15"
#define R6 R4 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define R8 R6 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define R16                                                                                        \
    R8 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, "   \
       "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define D1(d) D4(d, 0)
#define D2(d) D1(d), D4(d, 4)
#define D3(d) D2(d), D4(d, 8)
#define DF(d) D3(d), D4(d, 12)
#define D6(d) DF(d), D4(d, 16), D4(d, 20)
#define D8(d) D6(d), D4(d, 24), D4(d, 28)
#define D16(d)                                                                                     \
    D8(d), D4(d, 32), D4(d, 36), D4(d, 40), D4(d, 44), D4(d, 48), D4(d, 52), D4(d, 56), D4(d, 60)
#define WGMMA_FEW(NT, N, R, D, A, B, TYPE, NAME)                                                   \
    template <bool ADD>                                                                            \
    __device__ __forceinline__ void wgmma_few(float(&d)[NT * 4], const uint32_t(&a)[4],            \
                                              uint32_t b, NAME)                                    \
    {                                                                                              \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE " {" R         \
                     "}, {" A "}, " B ", 1, 1, 0;"                                                 \
                     : D(d)                                                                        \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(UPPER | b), "n"(ADD));      \
    }
#define WGMMA_FEW_ALL(TYPE, NAME)                                                                  \
    WGMMA_FEW(1, "8", R1, D1, "%4, %5, %6, %7", "%8, %9", TYPE, NAME)                              \
    WGMMA_FEW(2, "16", R2, D2, "%8, %9, %10, %11", "%12, %13", TYPE, NAME)                         \
    WGMMA_FEW(3, "24", R3, D3, "%12, %13, %14, %15", "%16, %17", TYPE, NAME)                       \
    WGMMA_FEW(4, "32", R4, DF, "%16, %17, %18, %19", "%20, %21", TYPE, NAME)                       \
    WGMMA_FEW(6, "48", R6, D6, "%24, %25, %26, %27", "%28, %29", TYPE, NAME)                       \
    WGMMA_FEW(8, "64", R8, D8, "%32, %33, %34, %35", "%36, %37", TYPE, NAME)                       \
    WGMMA_FEW(16, "128", R16, D16, "%64, %65, %66, %67", "%68, %69", TYPE, NAME)
WGMMA_FEW_ALL("bf16", bf16)
WGMMA_FEW_ALL("f16", __half)
#undef WGMMA_FEW_ALL
#undef WGMMA_FEW
#undef R1
#undef R2
#undef R3
#undef R4
#undef R6
#undef R8
#undef R16
#undef D1
#undef D2
#undef D3
#undef DF
#undef D6
#undef D8
#undef D16
#undef UPPER
#undef D4
#undef D32
#undef N4
#undef N32
#undef R32

/* ---- Barriers in shared memory -------------------------------------------------------------------- */

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* Waits until the phase of this parity is over. */
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n\t.reg .pred done;\n"
                 "wait:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
                 "@!done bra wait;\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
/* What this thread wrote to shared memory is there for wgmma of who waits for its next arrival. */
__device__ __forceinline__ void wgmma_publish(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* The registers of a thread from now on: every warp of its warpgroup does this. */
template <int N> __device__ __forceinline__ void take_registers(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void leave_registers(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
#endif

/* Hardware barriers: `threads` in all, those that only arrive do not wait. */
__device__ __forceinline__ void named_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/* named_sync; is x true of any of them? */
__device__ __forceinline__ bool named_any(int id, int threads, bool x)
{
    uint32_t any;
    asm volatile("{\n\t.reg .pred p, q;\n\tsetp.ne.u32 p, %1, 0;\n\t"
                 "barrier.red.or.pred q, %2, %3, p;\n\tselp.u32 %0, 1, 0, q;\n}"
                 : "=r"(any)
                 : "r"((uint32_t)x), "r"(id), "r"(threads)
                 : "memory");
    return any;
}

#endif

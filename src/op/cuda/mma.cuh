/* Tensor-core products of BF16 and F16 with F32 sums, and arithmetic on pairs. */
#ifndef LATHE_OP_CUDA_MMA_CUH
#define LATHE_OP_CUDA_MMA_CUH

#include <stdint.h>

/* d [16, 8] += a [16, 16] b [16, 8]. With g = lane / 4, q = lane % 4:
 *   a: (g; 2q, 2q + 1), (g + 8; the same), (g; 2q + 8, 2q + 9), (g + 8; the same)
 *   b: (2q, 2q + 1; g), (2q + 8, 2q + 9; g)     d: (g; 2q, 2q + 1), (g + 8; the same) */
__device__ __forceinline__ void mma_bf16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_f16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two products, each rounded once. */
__device__ __forceinline__ uint32_t mul_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t d;
    const uint32_t zero = 0x80008000u; /* -0: adds nothing, whatever the sign */
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(zero));
    return d;
}

#endif

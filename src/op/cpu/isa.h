/* The instruction sets for which the CPU backend has kernels. */
#ifndef LATHE_OP_CPU_ISA_H
#define LATHE_OP_CPU_ISA_H

/* In ascending order; a level includes those before it on the same architecture. */
enum cpu_isa {
    ISA_GENERIC,
    ISA_AVX2,       /* with FMA and F16C */
    ISA_AVX512,     /* F, BW, VL, DQ */
    ISA_AVX512BF16, /* and VBMI, BF16 dot products */
    ISA_NEON,
};

#endif

#define KERNELS_FILL cpu_kernels_avx512bf16
#include "op/cpu/loops.h"

#define KERNELS_FILL cpu_kernels_avx512
#include "op/cpu/loops.h"

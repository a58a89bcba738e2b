#define KERNELS_FILL cpu_kernels_avx2
#include "op/cpu/loops.h"

#define KERNELS_FILL cpu_kernels_neon
#include "op/cpu/loops.h"

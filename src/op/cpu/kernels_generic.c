#define KERNELS_FILL cpu_kernels_generic
#include "op/cpu/loops.h"

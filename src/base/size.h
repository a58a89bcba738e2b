/* Sizes for people. */
#ifndef LATHE_BASE_SIZE_H
#define LATHE_BASE_SIZE_H

#include <stdint.h>

/* "27.9 MB" and the like, decimal. */
void size_text(char out[32], uint64_t bytes);

#endif

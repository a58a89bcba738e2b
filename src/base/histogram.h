/* Counting values by size, in the public struct: bounds that suit times and numbers of tokens. */
#ifndef LATHE_BASE_HISTOGRAM_H
#define LATHE_BASE_HISTOGRAM_H

#include "lathe/lathe.h"

enum { HISTOGRAM_SECONDS = 18, HISTOGRAM_TOKENS = 19 };
extern const double histogram_seconds[HISTOGRAM_SECONDS]; /* 1 ms to 600 s */
extern const double histogram_tokens[HISTOGRAM_TOKENS];   /* 1 to 262144 */

/* The first bound that is not below the value; n if all are. */
int32_t histogram_bucket(const double *bound, int32_t n, double value);
void histogram_add(lathe_histogram *h, double value);

#endif

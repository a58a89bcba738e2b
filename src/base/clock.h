/* The monotonic clock. */
#ifndef LATHE_BASE_CLOCK_H
#define LATHE_BASE_CLOCK_H

#include <stdint.h>

/* Milliseconds. */
double clock_ms(void);
static inline int64_t clock_whole_ms(void)
{
    return (int64_t)clock_ms();
}

#endif

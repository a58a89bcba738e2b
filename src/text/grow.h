/* Growable arrays of this unit. */
#ifndef LATHE_TEXT_GROW_H
#define LATHE_TEXT_GROW_H

#include <stdint.h>
#include <stdlib.h>

/* Room for `need` items of `size` bytes in an array of *cap items, at least doubling it. NULL if
 * memory runs out; the old array is then still there. need > 0. */
static inline void *grow(void *array, size_t *cap, size_t need, size_t size)
{
    if (need <= *cap)
        return array;
    size_t n = *cap < need / 2 ? need : *cap > SIZE_MAX / 2 ? need : *cap * 2;
    if (n < need)
        n = need;
    if (n < 16)
        n = 16;
    if (n > SIZE_MAX / size)
        return NULL;
    void *p = realloc(array, n * size);
    if (p)
        *cap = n;
    return p;
}

#endif

/* Arrays that grow. */
#ifndef LATHE_BASE_ARRAY_H
#define LATHE_BASE_ARRAY_H

#include <stddef.h>

#include "base/error.h"

/* Room for element n of an array that has room for *room elements of `size` bytes, doubling it if need be: the
 * array, moved or not. NULL is LATHE_E_MEMORY, and the array stays as it was. */
void *array_room(void *array, size_t n, size_t *room, size_t size, lathe_error *err);

#endif

#include "base/array.h"

#include <stdlib.h>

void *array_room(void *array, size_t n, size_t *room, size_t size, lathe_error *err)
{
    if (n < *room)
        return array;
    size_t more = *room ? 2 * *room : 64;
    void *p = realloc(array, more * size);
    if (p)
        *room = more;
    else
        (void)fail_memory(err, more * size);
    return p;
}

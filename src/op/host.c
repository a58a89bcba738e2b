#include "op/host.h"

#include <stdlib.h>
#include <string.h>

lathe_status host_alloc(void *stream, void **p, size_t bytes, lathe_error *err)
{
    (void)stream;
    *p = NULL;
    if (bytes > SIZE_MAX - 64)
        return fail_memory(err, bytes);
    size_t whole = (bytes + 63) & ~(size_t)63;
    if (posix_memalign(p, 64, whole ? whole : 64) != 0) {
        *p = NULL;
        return fail_memory(err, bytes);
    }
    memset(*p, 0, whole);
    return LATHE_OK;
}

void host_free(void *stream, void *p)
{
    (void)stream;
    free(p);
}

void host_zero(void *stream, void *p, size_t bytes)
{
    (void)stream;
    memset(p, 0, bytes);
}

void host_copy(void *stream, void *dst, const void *src, size_t bytes)
{
    (void)stream;
    memcpy(dst, src, bytes);
}

lathe_status host_copy_out(void *stream, void *dst, const void *src, size_t bytes, lathe_error *err)
{
    (void)stream, (void)err;
    memcpy(dst, src, bytes);
    return LATHE_OK;
}

lathe_status host_wait(void *stream, lathe_error *err)
{
    (void)stream, (void)err;
    return LATHE_OK;
}

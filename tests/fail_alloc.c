#include "fail_alloc.h"

#include <jansson.h>
#include <stdlib.h>

/* The linker's --wrap sends malloc to __wrap_malloc and __real_malloc to malloc. */
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

static size_t countdown; /* 0: not armed */
static bool happened;

static bool fails(void)
{
    if (countdown == 0 || --countdown > 0)
        return false;
    happened = true;
    return true;
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

/* Before anything is read: jansson is a library of its own, which --wrap does not reach. */
__attribute__((constructor)) static void wrap_jansson(void)
{
    json_set_alloc_funcs(malloc, free);
}

void fail_alloc_arm(size_t nth)
{
    countdown = nth;
    happened = false;
}

bool fail_alloc_disarm(void)
{
    countdown = 0;
    return happened;
}

/* A bump allocator with one lifetime: everything in it is freed together. Not thread-safe. */
#ifndef LATHE_BASE_ARENA_H
#define LATHE_BASE_ARENA_H

#include <stddef.h>

struct arena_block;
struct arena {
    struct arena_block *head;
    size_t used;  /* bytes handed out */
    size_t limit; /* of `used`; fixed at init */
};

void arena_init(struct arena *a, size_t limit_bytes);
void arena_release(struct arena *a);

/* Uninitialised, aligned to 16; NULL when memory or the limit is exhausted. bytes 0 is allowed. */
void *arena_alloc(struct arena *a, size_t bytes);
/* n * size bytes, zeroed; NULL also when the product overflows. */
void *arena_calloc(struct arena *a, size_t n, size_t size);
/* A copy of s[0..n) with a NUL behind it. */
char *arena_strndup(struct arena *a, const char *s, size_t n);

#endif

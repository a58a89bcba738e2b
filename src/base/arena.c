#include "base/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 64 << 10 };

struct arena_block {
    struct arena_block *next;
    size_t used, cap;
    _Alignas(16) char data[];
};

void arena_init(struct arena *a, size_t limit_bytes)
{
    *a = (struct arena){.limit = limit_bytes};
}

void arena_release(struct arena *a)
{
    for (struct arena_block *b = a->head, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    a->head = NULL;
    a->used = 0;
}

void *arena_alloc(struct arena *a, size_t bytes)
{
    if (bytes > SIZE_MAX - 15)
        return NULL;
    bytes = (bytes + 15) & ~(size_t)15;
    if (bytes > a->limit - a->used)
        return NULL;
    struct arena_block *b = a->head;
    if (!b || b->cap - b->used < bytes) {
        size_t cap = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        if (cap > SIZE_MAX - sizeof *b)
            return NULL;
        b = malloc(sizeof *b + cap);
        if (!b)
            return NULL;
        *b = (struct arena_block){.next = a->head, .cap = cap};
        a->head = b;
    }
    void *p = b->data + b->used;
    b->used += bytes;
    a->used += bytes;
    return p;
}

void *arena_calloc(struct arena *a, size_t n, size_t size)
{
    if (size && n > SIZE_MAX / size)
        return NULL;
    void *p = arena_alloc(a, n * size);
    if (p)
        memset(p, 0, n * size);
    return p;
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    char *p = n < SIZE_MAX ? arena_alloc(a, n + 1) : NULL;
    if (p) {
        if (n)
            memcpy(p, s, n);
        p[n] = 0;
    }
    return p;
}

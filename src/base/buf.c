#include "base/buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buf_init(struct buf *b, size_t limit_bytes)
{
    *b = (struct buf){.limit = limit_bytes};
}

void buf_release(struct buf *b)
{
    free(b->data);
    buf_init(b, b->limit);
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    if (b->data)
        b->data[0] = 0;
    b->over = b->no_memory = false;
}

/* Room for n more bytes and a NUL. */
static bool reserve(struct buf *b, size_t n)
{
    if (b->over || b->no_memory)
        return false;
    if (n > b->limit - b->len) {
        b->over = true;
        return false;
    }
    size_t need = b->len + n + 1;
    if (need <= b->cap)
        return true;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < need)
        cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    char *p = realloc(b->data, cap);
    if (!p) {
        b->no_memory = true;
        return false;
    }
    b->data = p;
    b->cap = cap;
    return true;
}

void buf_append(struct buf *b, const void *bytes, size_t n)
{
    if (!reserve(b, n))
        return;
    if (n)
        memcpy(b->data + b->len, bytes, n);
    b->len += n;
    b->data[b->len] = 0;
}

void *buf_grow(struct buf *b, size_t n)
{
    if (!reserve(b, n))
        return NULL;
    void *room = b->data + b->len;
    b->len += n;
    b->data[b->len] = 0;
    return room;
}

void buf_puts(struct buf *b, const char *s)
{
    buf_append(b, s, strlen(s));
}

void buf_putc(struct buf *b, char c)
{
    buf_append(b, &c, 1);
}

void buf_put_int(struct buf *b, int64_t n)
{
    char text[20];
    size_t at = sizeof text;
    uint64_t left = n < 0 ? 0 - (uint64_t)n : (uint64_t)n;
    do
        text[--at] = (char)('0' + left % 10);
    while (left /= 10);
    if (n < 0)
        text[--at] = '-';
    buf_append(b, text + at, sizeof text - at);
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    size_t room = b->data && !b->over && !b->no_memory ? b->cap - b->len : 0;
    va_start(ap, fmt);
    int n = vsnprintf(room ? b->data + b->len : NULL, room, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < room && (size_t)n <= b->limit - b->len) {
        b->len += (size_t)n;
        return;
    }
    if (room)
        b->data[b->len] = 0; /* what fitted is taken back */
    if (n < 0 || !reserve(b, (size_t)n))
        return;
    va_start(ap, fmt);
    (void)vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
}

void buf_inherit(struct buf *b, const struct buf *from)
{
    b->over |= from->over;
    b->no_memory |= from->no_memory;
}

void buf_append_all(struct buf *b, const struct buf *from)
{
    buf_append(b, buf_str(from), from->len);
    buf_inherit(b, from);
}

const char *buf_str(const struct buf *b)
{
    return b->data ? b->data : "";
}

lathe_status buf_check(const struct buf *b, const char *what, lathe_error *err)
{
    if (b->over)
        return fail(err, LATHE_E_LIMIT, "%s: larger than %zu bytes", what, b->limit);
    if (b->no_memory)
        return fail(err, LATHE_E_MEMORY, "%s: out of memory at %zu bytes", what, b->len);
    return LATHE_OK;
}

/* A growing byte string with a maximum from birth. A failed append (memory or limit) is remembered
 * and makes every later one a no-op, so writers read straight and check once with buf_check. */
#ifndef LATHE_BASE_BUF_H
#define LATHE_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct buf {
    char *data; /* NUL behind data[len - 1]; NULL while nothing was appended */
    size_t len, cap;
    size_t limit;   /* of len */
    bool over;      /* an append went over the limit */
    bool no_memory; /* an append ran out of memory */
};

void buf_init(struct buf *b, size_t limit_bytes);
void buf_release(struct buf *b);
/* Empties it; memory and limit stay, the remembered failure goes. */
void buf_clear(struct buf *b);

void buf_append(struct buf *b, const void *bytes, size_t n);
/* Room for n more bytes, which the caller fills; NULL as after a failed buf_append. */
void *buf_grow(struct buf *b, size_t n);
void buf_puts(struct buf *b, const char *s);
void buf_putc(struct buf *b, char c);
/* In decimal: where buf_printf would be much of the work. */
void buf_put_int(struct buf *b, int64_t n);
void buf_printf(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Remembers what `from` failed at: b is made of it. */
void buf_inherit(struct buf *b, const struct buf *from);
/* The contents of `from`, and what it failed at. */
void buf_append_all(struct buf *b, const struct buf *from);

/* The contents as a C string, "" if empty; valid until the next call on b. */
const char *buf_str(const struct buf *b);
/* Success, or the remembered failure with `what` named: "reply: larger than 1048576 bytes". */
lathe_status buf_check(const struct buf *b, const char *what, lathe_error *err);

#endif

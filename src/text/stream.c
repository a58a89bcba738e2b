#include "text/stream.h"

#include <string.h>

#include "base/utf8.h"

static const char replacement[] = "\xEF\xBF\xBD";

/* Appends what is certain of bytes[0..n); returns how many bytes are left, 0..3. */
static size_t decode(const char *bytes, size_t n, struct buf *out)
{
    while (n) {
        size_t valid = utf8_valid_prefix(bytes, n);
        buf_append(out, bytes, valid);
        bytes += valid;
        n -= valid;
        if (n == 0 || utf8_incomplete_tail(bytes, n) == n)
            break;
        size_t bad = utf8_maximal_subpart(bytes, n);
        buf_puts(out, replacement);
        bytes += bad;
        n -= bad;
    }
    return n;
}

void stream_feed(struct stream *s, const char *bytes, size_t n, struct buf *out)
{
    while (s->n && n) {
        s->tail[s->n++] = *bytes++;
        n--;
        size_t left = decode(s->tail, s->n, out);
        memmove(s->tail, s->tail + s->n - left, left);
        s->n = left;
    }
    if (s->n)
        return;
    s->n = decode(bytes, n, out);
    memcpy(s->tail, bytes + n - s->n, s->n);
}

void stream_finish(struct stream *s, struct buf *out)
{
    if (s->n)
        buf_puts(out, replacement);
    s->n = 0;
}

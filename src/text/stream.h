/* The streaming detokeniser's last step: bytes of tokens in, whole characters out. A token may end
 * inside a character; its bytes are kept until the rest comes. Bytes that can begin no character are
 * replaced by U+FFFD, one for each maximal subpart, so that the pieces joined equal the decoding of
 * the whole at once. */
#ifndef LATHE_TEXT_STREAM_H
#define LATHE_TEXT_STREAM_H

#include "base/buf.h"

struct stream {   /* all zero at the start */
    char tail[4]; /* [n]: an incomplete character */
    size_t n;
};

/* Appends the longest text that is certain. */
void stream_feed(struct stream *s, const char *bytes, size_t n, struct buf *out);
/* The end: what is left becomes U+FFFD. The stream can be used again. */
void stream_finish(struct stream *s, struct buf *out);

#endif

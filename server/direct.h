/* Chunks of a reply (RFC 9112) that are written to its socket at once, by whoever has them. The library sends the head and
 * the last chunk; between them, while it holds the connection suspended and has nothing to send, this does without waking its
 * thread for every token. */
#ifndef LATHE_SERVER_DIRECT_H
#define LATHE_SERVER_DIRECT_H

#include "base/buf.h"

struct direct {
    struct buf frame; /* the chunk that is on its way; empty: none */
    size_t n_sent;    /* of it */
};
void direct_init(struct direct *d);
void direct_release(struct direct *d);

/* Is a chunk on its way? Nothing else may be written meanwhile. */
bool direct_is_torn(const struct direct *d);
/* Sends n > 0 bytes as a chunk, as far as the socket takes it without waiting. False if it is closed, or memory is short. */
bool direct_write(struct direct *d, int fd, const char *bytes, size_t n);
/* Goes on with the chunk that is on its way. */
bool direct_flush(struct direct *d, int fd);

#endif

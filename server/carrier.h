/* Reasoning that a client carries for the server and sends back byte for byte: Anthropic's signatures and OpenAI's
 * encrypted_content. It survives a restart of the server, and a client that shows no reasoning.
 *
 *     "l1." base64url(zstd(payload)) "." base64url(the first 16 bytes of the SHA-256 of what zstd made)
 *
 *     payload   bytes
 *     0         flags: 0
 *     1         n, bytes of the reasoning, little-endian as all numbers
 *     5         the reasoning, UTF-8
 *     5 + n     the tokens that it was sampled as, 4 bytes each, to the end
 *
 * There is no key: a client may write any history as it is. The hash is against damage. */
#ifndef LATHE_SERVER_CARRIER_H
#define LATHE_SERVER_CARRIER_H

#include <stdint.h>

#include "base/buf.h"

enum {
    CARRIER_MAX = 1 << 20, /* bytes of one; its payload may have 8 times as many */
    CARRIED_MAX =
        64
        << 20, /* of all payloads of a conversation: some hundred bytes can unpack to megabytes */
};

/* Appends one. What does not fit is left out: the tokens first, then all. */
void carrier_put(struct buf *out, const char *text, size_t n, const int32_t *id, size_t n_id);

struct carried {
    char *text; /* [n], NUL-terminated, heap, as is id */
    size_t n;
    int32_t *id; /* [n_id] */
    size_t n_id;
};
/* False if it is none, or damaged, or CARRIED_MAX is used up; *out is then empty. *used counts the bytes of payloads that were
 * unpacked for one conversation, from 0. Released by carried_release. */
bool carrier_read(const char *s, size_t n, size_t *used, struct carried *out);
void carried_release(struct carried *c);

#endif

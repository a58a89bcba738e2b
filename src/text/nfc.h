/* Canonical composition (Unicode NFC) that remembers where each byte came from. Time is linear in the
 * text whatever it holds; utf8proc supplies the data (decompositions, classes, composites), but not
 * the ordering of marks, which it does in quadratic time. */
#ifndef LATHE_TEXT_NFC_H
#define LATHE_TEXT_NFC_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct nfc_item;

struct nfc {
    const char *s; /* [n]: the result; the input itself if that was in NFC already */
    size_t n;
    /* [n]: for each byte, the first byte of the input character that its character came from; NULL
     * if the result is the input. Where characters were composed it is the first of them. */
    const uint32_t *origin;

    /* Workspace, kept between calls. */
    char *out;
    uint32_t *map;
    size_t n_out, cap_out, cap_map;
    struct nfc_item *item, *sorted;
    size_t cap_item, cap_sorted;
};

/* A zeroed struct is ready for use. The input must be valid UTF-8 of less than 2^31 bytes, and stay
 * until the result is no longer needed; the result is valid until the next call. */
lathe_status nfc_apply(struct nfc *w, const char *s, size_t n, lathe_error *err);
void nfc_release(struct nfc *w);

#endif

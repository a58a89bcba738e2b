/* Stop strings in a text that arrives in pieces. Only a tail that is a proper prefix of some stop
 * string is held back. The match that is complete first wins, of several that end together the
 * longest. */
#ifndef LATHE_TEXT_STOP_H
#define LATHE_TEXT_STOP_H

#include "base/buf.h"
#include "base/error.h"

enum { STOP_MAX_STRINGS = 32, STOP_MAX_BYTES = 1024 };

struct stop_string {
    char *s; /* [n], NUL-terminated */
    size_t n;
    size_t *border; /* [n + 1]: length of the longest proper border of s[0..i) */
    size_t matched; /* the longest suffix of the text that is a prefix of s */
};

struct stops {                  /* all zero: no stop strings */
    struct stop_string *string; /* [n] */
    size_t n;
    size_t held;               /* the greatest `matched` */
    char tail[STOP_MAX_BYTES]; /* [held] */
    bool starts[256];          /* a stop string starts with this byte */
};

/* Copies n strings of 1..1024 bytes of UTF-8. *st is released by stops_release also after a
 * failure. */
lathe_status stops_init(struct stops *st, const char *const *string, size_t n, lathe_error *err);
void stops_release(struct stops *st);

/* Appends what of the text is certain to `out`; returns the stop string that ended it, or NULL. A
 * match is ignored unless `is_armed`. */
const char *stops_feed(struct stops *st, const char *s, size_t n, bool is_armed, struct buf *out);
/* No more text comes: releases the held tail. */
void stops_flush(struct stops *st, struct buf *out);

#endif

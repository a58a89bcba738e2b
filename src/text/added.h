/* The added tokens of a tokenizer and where their spellings occur in a text. */
#ifndef LATHE_TEXT_ADDED_H
#define LATHE_TEXT_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { ADDED_MAX_BYTES = 256 }; /* of one spelling: bounds the work at one place of a text */

struct added_token {
    const char *content; /* [n] bytes, NUL behind them */
    uint32_t n;
    int32_t id;
};

struct added_tokens {
    struct added_token *token; /* [n], ascending by content once sorted */
    size_t n, cap;
    bool first[256]; /* bytes with which a spelling begins */
};

/* `content` is borrowed. Finding needs added_sort after the last one. */
lathe_status added_append(struct added_tokens *a, const struct added_token *t, lathe_error *err);
void added_sort(struct added_tokens *a);
void added_release(struct added_tokens *a);

/* The longest spelling at s[0..n), all of whose bytes have trusted[i] != 0 (NULL: all have); NULL if
 * there is none. */
const struct added_token *added_match(const struct added_tokens *a, const char *s, size_t n,
                                      const unsigned char *trusted);
/* The token with exactly this spelling. */
const struct added_token *added_find(const struct added_tokens *a, const char *s, size_t n);

#endif

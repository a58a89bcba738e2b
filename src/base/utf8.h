/* UTF-8: strict decoding (no surrogates, no overlong forms, nothing above U+10FFFF). */
#ifndef LATHE_BASE_UTF8_H
#define LATHE_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length 1..4 of the character at s[0..n), its code point in *cp; 0 if it is invalid or cut. */
int32_t utf8_decode(const char *s, size_t n, uint32_t *cp);

/* The same for text that is known to be valid; reads at least one byte, *cp is a scalar value. */
static inline int32_t utf8_next(const char *str, uint32_t *cp)
{
    const unsigned char *s = (const unsigned char *)str;
    if (s[0] < 0x80) {
        *cp = s[0];
        return 1;
    }
    if (s[0] < 0xE0) {
        *cp = (s[0] & 0x1Fu) << 6 | (s[1] & 0x3Fu);
        return 2;
    }
    if (s[0] < 0xF0) {
        *cp = (s[0] & 0x0Fu) << 12 | (s[1] & 0x3Fu) << 6 | (s[2] & 0x3Fu);
        return 3;
    }
    *cp = (s[0] & 0x07u) << 18 | (s[1] & 0x3Fu) << 12 | (s[2] & 0x3Fu) << 6 | (s[3] & 0x3Fu);
    return 4;
}

/* Writes 1..4 bytes and returns how many; cp must be a scalar value. */
int32_t utf8_encode(uint32_t cp, char out[4]);

/* Bytes of the longest valid prefix; n when all of it is valid. */
size_t utf8_valid_prefix(const char *s, size_t n);

/* Bytes (0..3) at the end of s[0..n) that begin a character which more bytes could complete. */
size_t utf8_incomplete_tail(const char *s, size_t n);

/* Length (1..3) of the maximal subpart at s, for which one U+FFFD is written when s[0..n) begins
 * with no valid character (Unicode, "U+FFFD Substitution of Maximal Subparts"). */
size_t utf8_maximal_subpart(const char *s, size_t n);

#endif

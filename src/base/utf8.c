#include "base/utf8.h"

/* How many bytes of s[0..n) fit a well-formed sequence (table 3-7 of the Unicode standard), and in
 * *need how long the sequence would be; *need is 0 if s[0] begins none. */
static size_t matched(const unsigned char *s, size_t n, size_t *need)
{
    unsigned char c = s[0], lo = 0x80, hi = 0xBF;
    if (c < 0x80) {
        *need = 1;
        return 1;
    }
    if (c >= 0xC2 && c <= 0xDF) {
        *need = 2;
    } else if (c >= 0xE0 && c <= 0xEF) {
        *need = 3;
        lo = c == 0xE0 ? 0xA0 : 0x80;
        hi = c == 0xED ? 0x9F : 0xBF;
    } else if (c >= 0xF0 && c <= 0xF4) {
        *need = 4;
        lo = c == 0xF0 ? 0x90 : 0x80;
        hi = c == 0xF4 ? 0x8F : 0xBF;
    } else {
        *need = 0;
        return 0;
    }
    size_t i = 1;
    while (i < *need && i < n && s[i] >= lo && s[i] <= hi) {
        i++;
        lo = 0x80;
        hi = 0xBF;
    }
    return i;
}

int32_t utf8_decode(const char *str, size_t n, uint32_t *cp)
{
    const unsigned char *s = (const unsigned char *)str;
    size_t need;
    if (n == 0 || matched(s, n, &need) != need || need == 0)
        return 0;
    uint32_t v = need == 1 ? s[0] : s[0] & (0x7Fu >> need);
    for (size_t i = 1; i < need; i++)
        v = v << 6 | (s[i] & 0x3F);
    *cp = v;
    return (int32_t)need;
}

int32_t utf8_encode(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

size_t utf8_valid_prefix(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint32_t cp;
        int32_t len = utf8_decode(s + i, n - i, &cp);
        if (len == 0)
            break;
        i += (size_t)len;
    }
    return i;
}

size_t utf8_incomplete_tail(const char *str, size_t n)
{
    const unsigned char *s = (const unsigned char *)str;
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char c = s[n - back];
        if (c < 0x80)
            return 0;
        if (c >= 0xC0) {
            size_t need;
            size_t got = matched(s + n - back, back, &need);
            return need > back && got == back ? back : 0;
        }
    }
    return 0;
}

size_t utf8_maximal_subpart(const char *s, size_t n)
{
    size_t need;
    size_t got = matched((const unsigned char *)s, n, &need);
    return got ? got : 1;
}

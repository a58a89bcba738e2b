#include "text/nfc.h"

#include <stdbool.h>
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "text/grow.h"

struct nfc_item { /* one character of a segment, decomposed or composed again */
    uint32_t cp;
    uint16_t ccc; /* canonical combining class; 0: a starter */
    uint16_t
        taken; /* input characters that begin in it: 0 for all but the first of a decomposition */
};

enum { NO_ROOM = -1 };

/* Can cp neither compose with what stands before it nor be reordered? Then the text can be cut before
 * it. Marks and conjoining jamo cannot; all that Unicode composes backwards is among them. */
static bool is_boundary(uint32_t cp)
{
    if (cp < 0x300 || (cp >= 0x3400 && cp < 0xA000))
        return true;
    if (cp >= 0x1160 && cp < 0x1200)
        return false;
    if (cp >= 0x16D40 && cp < 0x16D80) /* Kirat Rai composes letters */
        return false;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
        return false;
    default:
        return true;
    }
}

/* Does NFC leave cp alone when it stands by itself? False is a "perhaps not". */
static bool is_stable(uint32_t cp)
{
    if (cp < 0x300 || (cp >= 0x3400 && cp < 0xA000) || (cp >= 0xAC00 && cp < 0xD7A4))
        return true;
    utf8proc_int32_t part[8];
    int last = 0;
    return utf8proc_decompose_char((utf8proc_int32_t)cp, part, 8,
                                   UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &last) == 1 &&
           part[0] == (utf8proc_int32_t)cp;
}

/* The primary composite of two characters, 0 if there is none. */
static uint32_t compose(uint32_t a, uint32_t b)
{
    if (b < 0x300 || b == 0x11A7) /* utf8proc takes U+11A7 for a final consonant and drops it */
        return 0;
    utf8proc_int32_t pair[3] = {(utf8proc_int32_t)a, (utf8proc_int32_t)b, 0};
    return utf8proc_normalize_utf32(pair, 2, UTF8PROC_STABLE | UTF8PROC_COMPOSE) == 1
               ? (uint32_t)pair[0]
               : 0;
}

/* Decomposes the characters of s[0..n) into w->item; the number of items, or NO_ROOM. */
static ptrdiff_t decompose(struct nfc *w, const char *s, size_t n)
{
    size_t k = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += (size_t)utf8_next(s + i, &cp);
        utf8proc_int32_t part[8];
        int last = 0;
        utf8proc_ssize_t m = utf8proc_decompose_char((utf8proc_int32_t)cp, part, 8,
                                                     UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &last);
        if (m < 1 || m > 8) {
            part[0] = (utf8proc_int32_t)cp;
            m = 1;
        }
        struct nfc_item *p = grow(w->item, &w->cap_item, k + 8, sizeof *p);
        if (!p)
            return NO_ROOM;
        w->item = p;
        for (utf8proc_ssize_t j = 0; j < m; j++)
            p[k++] = (struct nfc_item){
                .cp = (uint32_t)part[j],
                .ccc = (uint16_t)utf8proc_get_property(part[j])->combining_class,
                .taken = j == 0,
            };
    }
    return (ptrdiff_t)k;
}

/* Stable order of v[0..n) by class: insertion for the few marks of real text, counting beyond. */
static bool order_run(struct nfc *w, struct nfc_item *v, size_t n)
{
    size_t i = 1;
    while (i < n && v[i - 1].ccc <= v[i].ccc)
        i++;
    if (i == n)
        return true;
    if (n <= 32) {
        for (; i < n; i++) {
            struct nfc_item x = v[i];
            size_t j = i;
            for (; j > 0 && v[j - 1].ccc > x.ccc; j--)
                v[j] = v[j - 1];
            v[j] = x;
        }
        return true;
    }
    struct nfc_item *p = grow(w->sorted, &w->cap_sorted, n, sizeof *p);
    if (!p)
        return false;
    w->sorted = p;
    size_t start[257] = {0}; /* a combining class is at most 254 */
    for (i = 0; i < n; i++)
        start[(v[i].ccc & 255) + 1]++;
    for (i = 1; i < 257; i++)
        start[i] += start[i - 1];
    for (i = 0; i < n; i++)
        p[start[v[i].ccc & 255]++] = v[i];
    memcpy(v, p, n * sizeof *v);
    return true;
}

static bool order(struct nfc *w, size_t n)
{
    for (size_t i = 0, j; i < n; i = j) {
        for (j = i; j < n && w->item[j].ccc != 0;)
            j++;
        if (j - i > 1 && !order_run(w, w->item + i, j - i))
            return false;
        j += j < n;
    }
    return true;
}

/* Composes v[0..n) in place and returns the new length. */
static size_t recompose(struct nfc_item *v, size_t n)
{
    size_t out = 0, starter = 0;
    bool has_starter = false;
    for (size_t i = 0; i < n; i++) {
        struct nfc_item c = v[i];
        /* Blocked by a character in between of the same or a higher class. */
        if (has_starter && (out == starter + 1 || v[out - 1].ccc < c.ccc)) {
            uint32_t cp = compose(v[starter].cp, c.cp);
            if (cp) {
                v[starter].cp = cp;
                v[starter].taken = (uint16_t)(v[starter].taken + c.taken);
                continue;
            }
        }
        if (c.ccc == 0) {
            starter = out;
            has_starter = true;
        }
        v[out++] = c;
    }
    return out;
}

/* Are the items the characters of s[0..n), each its own? */
static bool is_same(const struct nfc_item *v, size_t n_items, const char *s, size_t n)
{
    size_t i = 0, k = 0;
    for (; i < n && k < n_items; k++) {
        uint32_t cp;
        i += (size_t)utf8_next(s + i, &cp);
        if (cp != v[k].cp || v[k].taken != 1)
            return false;
    }
    return i == n && k == n_items;
}

static bool reserve(struct nfc *w, size_t more)
{
    size_t need = w->n_out + more;
    char *o = grow(w->out, &w->cap_out, need, 1);
    if (o)
        w->out = o;
    uint32_t *m = grow(w->map, &w->cap_map, need, sizeof *m);
    if (m)
        w->map = m;
    return o && m;
}

/* Appends s[from..to) unchanged. */
static bool copy(struct nfc *w, const char *s, size_t from, size_t to)
{
    if (from == to)
        return true;
    if (!reserve(w, to - from))
        return false;
    memcpy(w->out + w->n_out, s + from, to - from);
    uint32_t first = (uint32_t)from;
    for (size_t i = from; i < to; i++) {
        if (((unsigned char)s[i] & 0xC0) != 0x80)
            first = (uint32_t)i;
        w->map[w->n_out++] = first;
    }
    return true;
}

/* Appends n items that stand for the segment at s[at..). An item in which no input character begins
 * shares the origin of the character before. */
static bool emit(struct nfc *w, size_t n, const char *s, size_t at)
{
    if (!reserve(w, n * 4))
        return false;
    size_t before = at;
    while (before > 0 && ((unsigned char)s[--before] & 0xC0) == 0x80)
        continue;
    for (size_t k = 0; k < n; k++) {
        uint32_t origin = (uint32_t)(w->item[k].taken ? at : before);
        for (uint32_t j = 0; j < w->item[k].taken; j++) {
            uint32_t cp;
            before = at;
            at += (size_t)utf8_next(s + at, &cp);
        }
        int32_t m = utf8_encode(w->item[k].cp, w->out + w->n_out);
        while (m-- > 0)
            w->map[w->n_out++] = origin;
    }
    return true;
}

lathe_status nfc_apply(struct nfc *w, const char *s, size_t n, lathe_error *err)
{
    size_t copied = 0; /* s[0..copied) is in the output */
    bool changed = false;
    w->n_out = 0;
    for (size_t i = 0, j; i < n; i = j) {
        uint32_t first, cp;
        j = i + (size_t)utf8_next(s + i, &first);
        size_t head = j;
        while (j < n) {
            int32_t len = utf8_next(s + j, &cp);
            if (is_boundary(cp))
                break;
            j += (size_t)len;
        }
        if (j == head && is_stable(first))
            continue;
        ptrdiff_t k = decompose(w, s + i, j - i);
        if (k == NO_ROOM || !order(w, (size_t)k))
            return fail_memory(err, (j - i) * sizeof *w->item);
        size_t m = recompose(w->item, (size_t)k);
        if (is_same(w->item, m, s + i, j - i))
            continue;
        if (!copy(w, s, copied, i) || !emit(w, m, s, i))
            return fail_memory(err, w->n_out);
        copied = j;
        changed = true;
    }
    if (changed && !copy(w, s, copied, n))
        return fail_memory(err, n);
    w->s = changed ? w->out : s;
    w->n = changed ? w->n_out : n;
    w->origin = changed ? w->map : NULL;
    return LATHE_OK;
}

void nfc_release(struct nfc *w)
{
    free(w->out);
    free(w->map);
    free(w->item);
    free(w->sorted);
    *w = (struct nfc){0};
}

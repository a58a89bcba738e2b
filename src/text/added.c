#include "text/added.h"

#include <stdlib.h>
#include <string.h>

#include "text/grow.h"

lathe_status added_append(struct added_tokens *a, const struct added_token *t, lathe_error *err)
{
    struct added_token *p = grow(a->token, &a->cap, a->n + 1, sizeof *p);
    if (!p)
        return fail_memory(err, (a->n + 1) * sizeof *p);
    a->token = p;
    p[a->n++] = *t;
    a->first[(unsigned char)t->content[0]] = true;
    return LATHE_OK;
}

static int compare(const void *pa, const void *pb)
{
    const struct added_token *a = pa, *b = pb;
    int c = memcmp(a->content, b->content, a->n < b->n ? a->n : b->n);
    return c ? c : (a->n > b->n) - (a->n < b->n);
}

void added_sort(struct added_tokens *a)
{
    if (a->n)
        qsort(a->token, a->n, sizeof *a->token, compare);
}

void added_release(struct added_tokens *a)
{
    free(a->token);
    *a = (struct added_tokens){0};
}

/* Byte `at` of a spelling, -1 behind its end, as the order of spellings has it. */
static int byte_at(const struct added_token *t, size_t at)
{
    return at < t->n ? (unsigned char)t->content[at] : -1;
}

/* The first of token[lo..hi), which agree before byte `at`, whose byte `at` is not below c. */
static size_t lower_bound(const struct added_tokens *a, size_t lo, size_t hi, size_t at, int c)
{
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (byte_at(&a->token[mid], at) < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

const struct added_token *added_match(const struct added_tokens *a, const char *s, size_t n,
                                      const unsigned char *trusted)
{
    if (n == 0 || !a->first[(unsigned char)s[0]])
        return NULL;
    const struct added_token *best = NULL;
    size_t lo = 0, hi = a->n; /* the spellings that begin with s[0..i) */
    for (size_t i = 0; lo < hi; i++) {
        if (a->token[lo].n == i && i > 0)
            best = &a->token[lo];
        if (i == n || (trusted && !trusted[i]))
            break;
        int c = (unsigned char)s[i];
        lo = lower_bound(a, lo, hi, i, c);
        hi = lower_bound(a, lo, hi, i, c + 1);
    }
    return best;
}

const struct added_token *added_find(const struct added_tokens *a, const char *s, size_t n)
{
    const struct added_token *t = added_match(a, s, n, NULL);
    return t && t->n == n ? t : NULL;
}

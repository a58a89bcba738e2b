#include "text/stop.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

static lathe_status add(struct stop_string *q, const char *s, lathe_error *err)
{
    size_t n = strlen(s);
    if (n == 0)
        return fail(err, LATHE_E_ARGUMENT, "an empty stop string");
    if (n > STOP_MAX_BYTES)
        return fail(err, LATHE_E_ARGUMENT, "a stop string of %zu bytes, the limit is %d", n,
                    STOP_MAX_BYTES);
    if (utf8_valid_prefix(s, n) != n)
        return fail(err, LATHE_E_ARGUMENT, "a stop string is not UTF-8 at byte %zu",
                    utf8_valid_prefix(s, n));
    q->s = malloc(n + 1);
    q->border = calloc(n + 1, sizeof *q->border);
    if (!q->s || !q->border)
        return fail_memory(err, (n + 1) * sizeof *q->border);
    memcpy(q->s, s, n + 1);
    q->n = n;
    for (size_t i = 1, k = 0; i < n; i++) {
        while (k && s[i] != s[k])
            k = q->border[k];
        k += s[i] == s[k];
        q->border[i + 1] = k;
    }
    return LATHE_OK;
}

lathe_status stops_init(struct stops *st, const char *const *string, size_t n, lathe_error *err)
{
    memset(st, 0, sizeof *st);
    if (n == 0)
        return LATHE_OK;
    if (n > STOP_MAX_STRINGS)
        return fail(err, LATHE_E_ARGUMENT, "%zu stop strings, the limit is %d", n,
                    STOP_MAX_STRINGS);
    st->string = calloc(n, sizeof *st->string);
    if (!st->string)
        return fail_memory(err, n * sizeof *st->string);
    st->n = n;
    for (size_t i = 0; i < n; i++) {
        lathe_status status = add(&st->string[i], string[i], err);
        if (status)
            return status;
        st->starts[(unsigned char)string[i][0]] = true;
    }
    return LATHE_OK;
}

void stops_release(struct stops *st)
{
    for (size_t i = 0; i < st->n; i++) {
        free(st->string[i].s);
        free(st->string[i].border);
    }
    free(st->string);
    memset(st, 0, sizeof *st);
}

/* One byte on; the longest stop string that is now complete, or NULL. */
static struct stop_string *advance(struct stops *st, char c)
{
    struct stop_string *found = NULL;
    st->held = 0;
    for (size_t i = 0; i < st->n; i++) {
        struct stop_string *q = &st->string[i];
        size_t k = q->matched;
        while (k && (k == q->n || q->s[k] != c))
            k = q->border[k];
        k += q->s[k] == c;
        q->matched = k;
        if (k == q->n) {
            if (!found || q->n > found->n)
                found = q;
            k = q->border[k]; /* what is held if the match does not count */
        }
        if (k > st->held)
            st->held = k;
    }
    return found;
}

const char *stops_feed(struct stops *st, const char *s, size_t n, bool is_armed, struct buf *out)
{
    if (st->n == 0) {
        buf_append(out, s, n);
        return NULL;
    }
    size_t i = 0;
    struct stop_string *found = NULL;
    buf_append(out, st->tail, st->held);
    while (i < n && !found) {
        if (st->held == 0) {
            while (i < n && !st->starts[(unsigned char)s[i]])
                i++;
            if (i == n)
                break;
        }
        found = advance(st, s[i++]);
        if (!is_armed)
            found = NULL;
    }
    buf_append(out, s, i);
    if (out->over || out->no_memory)
        return NULL;
    size_t cut = found ? found->n : st->held;
    out->len -= cut;
    if (found)
        st->held = 0;
    else
        memcpy(st->tail, out->data + out->len, cut);
    if (out->data)
        out->data[out->len] = 0;
    return found ? found->s : NULL;
}

void stops_flush(struct stops *st, struct buf *out)
{
    buf_append(out, st->tail, st->held);
    st->held = 0;
    for (size_t i = 0; i < st->n; i++)
        st->string[i].matched = 0;
}

#include "recall.h"

#include <string.h>

enum { TEXT_LIMIT = 1 << 28 };

/* ---- Equal values --------------------------------------------------------------------------- */

static bool is_same(const struct json_doc *da, const json_t *a, const struct json_doc *db,
                    const json_t *b);

static bool is_same_object(const struct json_doc *da, const json_t *a, const struct json_doc *db,
                           const json_t *b)
{
    json_t *tree = json_members(a);
    if (json_object_size(a) != json_object_size(b))
        return false;
    for (void *it = json_object_iter(tree); it; it = json_object_iter_next(tree, it))
        if (!is_same(da, json_object_iter_value(it), db,
                     json_object_get(b, json_object_iter_key(it))))
            return false;
    return true;
}

static bool is_same_number(const struct json_doc *da, const json_t *a, const struct json_doc *db,
                           const json_t *b)
{
    const char *big_a = json_big_integer(da, a), *big_b = json_big_integer(db, b);
    if (big_a || big_b)
        return big_a && big_b && strcmp(big_a, big_b) == 0;
    if (json_is_integer(a) && json_is_integer(b))
        return json_integer_value(a) == json_integer_value(b);
    return json_is_number(a) && json_is_number(b) && json_number_value(a) == json_number_value(b);
}

/* JSON values alike: 5 and 5.0 are, whatever the order of members. Trees are as deep as json_read lets them be. */
static bool is_same(const struct json_doc *da, const json_t *a, const struct json_doc *db,
                    const json_t *b)
{
    size_t n_a, n_b;
    const char *s = json_text(da, a, &n_a), *t = json_text(db, b, &n_b);
    if (s || t)
        return s && t && n_a == n_b && memcmp(s, t, n_a) == 0;
    if (json_is_object(a))
        return json_is_object(b) && is_same_object(da, a, db, b);
    if (json_is_array(a)) {
        bool ok = json_is_array(b) && json_array_size(a) == json_array_size(b);
        for (size_t i = 0; ok && i < json_array_size(a); i++)
            ok = is_same(da, json_array_get(a, i), db, json_array_get(b, i));
        return ok;
    }
    if (json_is_number(a) || json_is_number(b) || json_big_integer(da, a))
        return is_same_number(da, a, db, b);
    return a && b && json_typeof(a) == json_typeof(b);
}

static bool read_object(struct json_doc *d, const char *s, size_t n)
{
    bool ok = !json_read(d, s, n, &json_limits_request, NULL) && json_is_object(d->root);
    if (!ok)
        json_release(d);
    return ok;
}

enum recalled recall_judge(const struct json_doc *d, const json_t *sent, const char *known,
                           size_t n_known)
{
    struct json_doc own = {0}, text = {0};
    size_t n;
    const char *s = json_text(d, sent, &n);
    bool is_cut = !read_object(&own, known, n_known);
    enum recalled how = RECALL_OTHER;
    if (s && strspn(s, " \t\r\n") == n)
        how = !is_cut && json_object_size(own.root) == 0 ? RECALL_SAME : RECALL_OTHER;
    else if (s && json_read(&text, s, n, &json_limits_request, NULL))
        how = is_cut ? RECALL_CUT : RECALL_OTHER;
    else if (!is_cut && is_same(s ? &text : d, s ? text.root : sent, &own, own.root))
        how = RECALL_SAME;
    json_release(&own);
    json_release(&text);
    return how;
}

/* ---- Spelling ------------------------------------------------------------------------------- */

static size_t skip_blanks(const char *s, size_t i)
{
    return i + strspn(s + i, " \t\r\n");
}

/* Behind the string that begins at s[i]. */
static size_t skip_string(const char *s, size_t i)
{
    for (i++; s[i] != '"'; i++)
        i += s[i] == '\\';
    return i + 1;
}

/* Behind the value that begins at s[i]. */
static size_t skip_value(const char *s, size_t i)
{
    int depth = 0;
    if (s[i] == '"')
        return skip_string(s, i);
    for (;; i++) {
        if (s[i] == '"')
            i = skip_string(s, i);
        if (depth == 0 && strchr(",} \t\r\n", s[i]))
            return i;
        depth += (s[i] == '{' || s[i] == '[') - (s[i] == '}' || s[i] == ']');
        if (depth == 0 && (s[i] == '}' || s[i] == ']'))
            return i + 1;
    }
}

/* The members of s, which is the text of an object. */
static void put_members(struct buf *out, const char *s)
{
    size_t i = skip_blanks(s, 0) + 1;
    bool any = false;
    buf_putc(out, '{');
    for (i = skip_blanks(s, i); s[i] != '}'; i = skip_blanks(s, i)) {
        size_t key = i, behind_key = skip_string(s, i);
        size_t value = skip_blanks(s, skip_blanks(s, behind_key) + 1), end = skip_value(s, value);
        if (any)
            buf_puts(out, ", ");
        any = true;
        buf_append(out, s + key, behind_key - key);
        buf_puts(out, ": ");
        if (s[value] == '"')
            buf_append(out, s + value, end - value);
        else
            json_print_string(out, s + value, end - value);
        i = skip_blanks(s, end);
        i += s[i] == ',';
    }
    buf_putc(out, '}');
}

bool recall_arguments(struct buf *out, const char *known, size_t n_known)
{
    /* Pieces end between characters of a string, before a string's quotes, or before a value. */
    static const char *const closing[] = {"", "\"}", "}", "\"\"}"};
    bool done = false;
    if (n_known == 0)
        known = "{";
    for (size_t i = 0; i < sizeof closing / sizeof *closing && !done; i++) {
        struct json_doc d;
        struct buf whole;
        buf_init(&whole, TEXT_LIMIT);
        buf_printf(&whole, "%s%s", known, closing[i]);
        done = !whole.over && !whole.no_memory && read_object(&d, buf_str(&whole), whole.len);
        if (done) {
            put_members(out, buf_str(&whole));
            json_release(&d);
        }
        buf_release(&whole);
    }
    return done;
}

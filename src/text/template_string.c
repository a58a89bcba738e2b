#include "text/template_string.h"

#include <string.h>

#include "base/utf8.h"

/* ---- Building ------------------------------------------------------------------------------ */

/* Room behind a string that came from a builder or a concatenation. A string that ends where the
 * used part ends can grow in place; the shorter one stays as it is. */
struct string_home {
    char *s;
    unsigned char *map; /* NULL: all of one origin */
    size_t used, cap;
};

void builder_init(struct builder *b, struct run *r)
{
    *b = (struct builder){.r = r};
}

static bool builder_reserve(struct builder *b, size_t n, bool map)
{
    struct run *r = b->r;
    if (b->is_output) {
        if (n > r->limits.output_bytes - r->out_bytes)
            return run_error(r, "the text is longer than the limit of %zu bytes",
                             r->limits.output_bytes);
        r->out_bytes += n;
    }
    if (n <= b->cap - b->n && (!map || b->map))
        return true;
    if (n > SIZE_MAX / 4 - b->n)
        return run_error(r, "a string of more than %zu bytes", SIZE_MAX / 4);
    size_t cap = b->cap;
    if (n > b->cap - b->n) {
        cap = b->n + n;
        cap += b->n ? cap / 2 : 0;
        char *s = run_alloc(r, cap);
        if (!s)
            return false;
        if (b->n)
            memcpy(s, b->s, b->n);
        b->s = s;
    }
    if (b->map || map) {
        unsigned char *m = run_alloc(r, cap);
        if (!m)
            return false;
        if (b->map)
            memcpy(m, b->map, b->n);
        else
            memset(m, b->origin, b->n);
        b->map = m;
    }
    b->cap = cap;
    return true;
}

bool builder_put(struct builder *b, const char *s, size_t n, unsigned char origin)
{
    if (n == 0)
        return b->r->status == LATHE_OK;
    if (!run_bytes(b->r, n))
        return false;
    if (b->n == 0)
        b->origin = origin;
    if (!builder_reserve(b, n, origin != b->origin))
        return false;
    memcpy(b->s + b->n, s, n);
    if (b->map)
        memset(b->map + b->n, origin, n);
    b->n += n;
    return true;
}

bool builder_puts(struct builder *b, const char *s, unsigned char origin)
{
    return builder_put(b, s, strlen(s), origin);
}

bool builder_put_part(struct builder *b, const struct string *s, size_t from, size_t to)
{
    size_t n = to - from;
    if (!s->map)
        return builder_put(b, s->s + from, n, s->origin);
    if (n == 0)
        return b->r->status == LATHE_OK;
    if (!run_bytes(b->r, n) || !builder_reserve(b, n, true))
        return false;
    memcpy(b->s + b->n, s->s + from, n);
    memcpy(b->map + b->n, s->map + from, n);
    b->n += n;
    return true;
}

bool builder_put_string(struct builder *b, const struct string *s)
{
    return builder_put_part(b, s, 0, s->n);
}

bool builder_string(struct builder *b, struct value *out)
{
    struct run *r = b->r;
    if (r->status)
        return false;
    struct string *str = run_alloc(r, sizeof *str);
    if (!str)
        return false;
    *str = (struct string){.s = b->s ? b->s : "", .map = b->map, .n = b->n, .origin = b->origin};
    if (b->n) {
        str->home = run_alloc(r, sizeof *str->home);
        if (!str->home)
            return false;
        *str->home = (struct string_home){b->s, b->map, b->n, b->cap};
    }
    *out = value_string(str);
    builder_init(b, r);
    return true;
}

bool value_to_string(struct run *r, struct value v, const struct string **s)
{
    if (v.type == V_STRING) {
        *s = v.u.string;
        return true;
    }
    struct builder b;
    struct value out;
    builder_init(&b, r);
    if (!print_value(&b, v) || !builder_string(&b, &out))
        return false;
    *s = out.u.string;
    return true;
}

/* ---- Parts and joins ----------------------------------------------------------------------- */

static struct string *string_copy(struct run *r, const struct string *s)
{
    struct string *c = run_alloc(r, sizeof *c);
    if (c)
        *c = *s;
    return c;
}

bool string_part(struct run *r, const struct string *s, size_t from, size_t to, struct value *out)
{
    if (from == 0 && to == s->n) {
        *out = value_string(s);
        return true;
    }
    struct string *p = string_copy(r, s);
    if (!p)
        return false;
    p->s += from;
    p->n = to - from;
    p->map = s->map ? s->map + from : NULL;
    *out = value_string(p);
    return true;
}

bool string_concat(struct run *r, const struct string *a, const struct string *b, struct value *out)
{
    if (a->n == 0 || b->n == 0) {
        *out = value_string(a->n ? a : b);
        return true;
    }
    if (!run_bytes(r, 32 + b->n))
        return false;
    if (a->n > SIZE_MAX / 4 - b->n)
        return run_error(r, "a string of more than %zu bytes", SIZE_MAX / 4);
    size_t n = a->n + b->n;
    bool mixed = a->map || b->map || a->origin != b->origin;
    struct string_home *home = a->home;
    bool at_end = home && a->s + a->n == home->s + home->used;
    if (!at_end || home->cap - home->used < b->n || (mixed && !home->map)) {
        size_t cap = at_end ? n + n / 2 + 16 : n;
        home = run_alloc(r, sizeof *home);
        char *s = home ? run_alloc(r, cap) : NULL;
        unsigned char *map = s && mixed ? run_alloc(r, cap) : NULL;
        if (!s || (mixed && !map) || !run_bytes(r, a->n))
            return false;
        memcpy(s, a->s, a->n);
        if (map && a->map)
            memcpy(map, a->map, a->n);
        else if (map)
            memset(map, a->origin, a->n);
        *home = (struct string_home){s, map, a->n, cap};
    }
    memcpy(home->s + home->used, b->s, b->n);
    if (home->map && b->map)
        memcpy(home->map + home->used, b->map, b->n);
    else if (home->map)
        memset(home->map + home->used, b->origin, b->n);
    struct string *str = run_alloc(r, sizeof *str);
    if (!str)
        return false;
    size_t from = home->used - a->n;
    *str = (struct string){.s = home->s + from,
                           .map = home->map ? home->map + from : NULL,
                           .n = n,
                           .home = home,
                           .origin = a->origin};
    home->used += b->n;
    *out = value_string(str);
    return true;
}

bool string_mark(struct run *r, struct value *v)
{
    if (v->u.string->is_markup)
        return true;
    struct string *c = string_copy(r, v->u.string);
    if (!c)
        return false;
    c->is_markup = true;
    *v = value_string(c);
    return true;
}

bool string_add(struct run *r, const struct string *a, const struct string *b, struct value *out)
{
    if (!a->is_markup && !b->is_markup)
        return string_concat(r, a, b, out);
    struct value x, y;
    return string_escape(r, value_string(a), &x) && string_escape(r, value_string(b), &y) &&
           string_concat(r, x.u.string, y.u.string, out) && string_mark(r, out);
}

bool string_repeat(struct run *r, const struct string *s, int64_t times, struct value *out)
{
    struct builder b;
    builder_init(&b, r);
    if (times > 0 && s->n > 0) {
        if ((uint64_t)times > SIZE_MAX / 4 / s->n)
            return run_error(r, "a string of more than %zu bytes", SIZE_MAX / 4);
        /* The room is taken at once; the limits answer before any copying. */
        if (!run_steps(r, (size_t)times) || !builder_reserve(&b, s->n * (size_t)times, s->map))
            return false;
        for (int64_t i = 0; i < times; i++)
            if (!builder_put_string(&b, s))
                return false;
    }
    return builder_string(&b, out) && (!s->is_markup || string_mark(r, out));
}

bool string_escape(struct run *r, struct value v, struct value *out)
{
    const struct string *s;
    if (!value_to_string(r, v, &s))
        return false;
    if (s->is_markup) {
        *out = value_string(s);
        return true;
    }
    struct builder b;
    builder_init(&b, r);
    size_t from = 0;
    for (size_t i = 0; i < s->n; i++) {
        const char *entity;
        switch (s->s[i]) {
        case '&':
            entity = "&amp;";
            break;
        case '<':
            entity = "&lt;";
            break;
        case '>':
            entity = "&gt;";
            break;
        case '\'':
            entity = "&#39;";
            break;
        case '"':
            entity = "&#34;";
            break;
        default:
            continue;
        }
        unsigned char origin = s->map ? s->map[i] : s->origin;
        if (!builder_put_part(&b, s, from, i) || !builder_puts(&b, entity, origin))
            return false;
        from = i + 1;
    }
    return builder_put_part(&b, s, from, s->n) && builder_string(&b, out) && string_mark(r, out);
}

/* ---- Comparing ----------------------------------------------------------------------------- */

bool string_equal(const struct string *a, const struct string *b)
{
    return a == b || (a->n == b->n && memcmp(a->s, b->s, a->n) == 0);
}

bool string_is(const struct string *s, const char *text)
{
    size_t n = strlen(text);
    return s->n == n && memcmp(s->s, text, n) == 0;
}

/* By code point, which is the order of UTF-8 bytes too. */
int string_compare(const struct string *a, const struct string *b)
{
    size_t n = a->n < b->n ? a->n : b->n;
    int c = n ? memcmp(a->s, b->s, n) : 0;
    return c ? (c < 0 ? -1 : 1) : a->n < b->n ? -1 : a->n > b->n;
}

uint32_t string_hash(const struct string *s)
{
    uint64_t h = 0xCBF29CE484222325u; /* FNV-1a */
    for (size_t i = 0; i < s->n; i++)
        h = (h ^ (unsigned char)s->s[i]) * 0x100000001B3u;
    return (uint32_t)(h ^ h >> 32);
}

bool string_has_prefix(const struct string *s, const struct string *prefix)
{
    return s->n >= prefix->n && memcmp(s->s, prefix->s, prefix->n) == 0;
}

bool string_has_suffix(const struct string *s, const struct string *suffix)
{
    return s->n >= suffix->n && memcmp(s->s + s->n - suffix->n, suffix->s, suffix->n) == 0;
}

/* A hostile pair of strings makes every candidate a long comparison: each one takes steps. */
static bool candidate(struct run *r, const char *s, const struct string *what)
{
    return run_steps(r, what->n / 32) && memcmp(s, what->s, what->n) == 0;
}

size_t string_find(struct run *r, const struct string *s, const struct string *what, size_t from)
{
    if (what->n == 0)
        return from <= s->n ? from : SIZE_MAX;
    while (from <= s->n && s->n - from >= what->n && !r->status) {
        const char *p = memchr(s->s + from, what->s[0], s->n - from - what->n + 1);
        if (!p)
            break;
        from = (size_t)(p - s->s);
        if (candidate(r, p, what))
            return from;
        from++;
    }
    return SIZE_MAX;
}

size_t string_rfind(struct run *r, const struct string *s, const struct string *what, size_t to)
{
    if (what->n > s->n)
        return SIZE_MAX;
    size_t i = to < s->n - what->n ? to : s->n - what->n;
    for (;; i--) {
        if (what->n == 0 || (s->s[i] == what->s[0] && candidate(r, s->s + i, what)))
            return i;
        if (i == 0 || r->status)
            return SIZE_MAX;
    }
}

/* ---- Code points --------------------------------------------------------------------------- */

static bool is_lead(char c)
{
    return ((unsigned char)c & 0xC0) != 0x80;
}

size_t string_length(const struct string *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++)
        n += is_lead(s->s[i]);
    return n;
}

size_t string_offset(const struct string *s, size_t i)
{
    size_t at = 0;
    for (; at < s->n; at++)
        if (is_lead(s->s[at]) && i-- == 0)
            break;
    return at;
}

bool string_chars(struct run *r, const struct string *s, const struct value **item, size_t *n)
{
    struct string *plain = string_copy(r, s); /* characters of Markup are not Markup */
    if (!plain)
        return false;
    plain->is_markup = false;
    s = plain;
    *n = string_length(s);
    struct value *a = run_array(r, *n, sizeof *a);
    if (!a || !run_steps(r, *n))
        return false;
    size_t at = 0;
    for (size_t i = 0; i < *n; i++) {
        size_t to = at + 1;
        while (to < s->n && !is_lead(s->s[to]))
            to++;
        if (!string_part(r, s, at, to, &a[i]))
            return false;
        at = to;
    }
    *item = a;
    return true;
}

bool string_slice(struct run *r, const struct string *s, int64_t start, int64_t stop, int64_t step,
                  struct value *out)
{
    if (!run_bytes(r, 2 * s->n))
        return false;
    if (step == 1) {
        size_t from = string_offset(s, (size_t)start);
        size_t to = stop > start ? string_offset(s, (size_t)stop) : from;
        return string_part(r, s, from, to, out);
    }
    size_t length = string_length(s);
    size_t *at = run_array(r, length + 1, sizeof *at); /* byte offsets */
    if (!at || !run_steps(r, length / 4))
        return false;
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++)
        if (is_lead(s->s[i]))
            at[n++] = i;
    at[n] = s->n;
    struct builder b;
    builder_init(&b, r);
    for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step)
        if (!builder_put_part(&b, s, at[i], at[i + 1]))
            return false;
    return builder_string(&b, out) && (!s->is_markup || string_mark(r, out));
}

/* ---- Blanks -------------------------------------------------------------------------------- */

size_t blank_at(const char *s, size_t n)
{
    uint32_t c;
    if (n == 0)
        return 0;
    if ((unsigned char)s[0] < 0x80)
        return (s[0] >= 0x09 && s[0] <= 0x0D) || (s[0] >= 0x1C && s[0] <= 0x20);
    int32_t len = utf8_decode(s, n, &c);
    bool blank = c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
                 c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
    return len > 0 && blank ? (size_t)len : 0;
}

size_t blank_before(const char *s, size_t n)
{
    size_t from = n;
    while (from > 0) {
        from--;
        if (is_lead(s[from]))
            break;
    }
    return from < n && blank_at(s + from, n - from) == n - from ? n - from : 0;
}

/* Is the character s[from..to) one of chars? */
static bool among(const struct string *s, size_t from, size_t to, const struct string *chars)
{
    size_t n = to - from;
    for (size_t i = 0; i + n <= chars->n; i++)
        if (memcmp(chars->s + i, s->s + from, n) == 0)
            return true;
    return false;
}

bool string_strip(struct run *r, const struct string *s, const struct string *chars,
                  enum strip_side side, struct value *out)
{
    size_t from = 0, to = s->n;
    while (side & STRIP_LEFT && from < to) {
        size_t next = from + 1;
        while (next < to && !is_lead(s->s[next]))
            next++;
        if (chars ? !among(s, from, next, chars) : !blank_at(s->s + from, to - from))
            break;
        if (chars && !run_bytes(r, 32 + chars->n))
            return false;
        from = next;
    }
    while (side & STRIP_RIGHT && to > from) {
        size_t last = to - 1;
        while (last > from && !is_lead(s->s[last]))
            last--;
        if (chars ? !among(s, last, to, chars) : !blank_at(s->s + last, to - last))
            break;
        if (chars && !run_bytes(r, 32 + chars->n))
            return false;
        to = last;
    }
    return run_bytes(r, from + (s->n - to)) && string_part(r, s, from, to, out);
}

/* ---- Splitting ----------------------------------------------------------------------------- */

struct parts {
    struct run *r;
    struct value *item;
    size_t n, cap;
};

static bool add_part(struct parts *p, const struct string *s, size_t from, size_t to)
{
    if (p->n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 4;
        struct value *item = run_array(p->r, cap, sizeof *item);
        if (!item)
            return false;
        if (p->n)
            memcpy(item, p->item, p->n * sizeof *item);
        p->item = item;
        p->cap = cap;
    }
    return run_steps(p->r, 1) && string_part(p->r, s, from, to, &p->item[p->n++]);
}

static void reverse_parts(struct parts *p)
{
    for (size_t i = 0; i < p->n / 2; i++) {
        struct value v = p->item[i];
        p->item[i] = p->item[p->n - 1 - i];
        p->item[p->n - 1 - i] = v;
    }
}

static bool split_blanks(struct parts *p, const struct string *s, int64_t max)
{
    size_t at = 0;
    for (;;) {
        size_t len;
        while (at < s->n && (len = blank_at(s->s + at, s->n - at)))
            at += len;
        if (at == s->n)
            return true;
        if (max >= 0 && (int64_t)p->n == max)
            break;
        size_t from = at;
        while (at < s->n && !blank_at(s->s + at, s->n - at))
            at++;
        if (!add_part(p, s, from, at))
            return false;
    }
    return add_part(p, s, at, s->n);
}

static bool rsplit_blanks(struct parts *p, const struct string *s, int64_t max)
{
    size_t to = s->n;
    for (;;) {
        size_t len;
        while (to > 0 && (len = blank_before(s->s, to)))
            to -= len;
        if (to == 0)
            return true;
        if (max >= 0 && (int64_t)p->n == max)
            break;
        size_t from = to;
        while (from > 0 && !blank_before(s->s, from)) {
            from--;
            while (from > 0 && !is_lead(s->s[from]))
                from--;
        }
        if (!add_part(p, s, from, to))
            return false;
        to = from;
    }
    return add_part(p, s, 0, to);
}

bool string_split(struct run *r, const struct string *s, const struct string *separator,
                  int64_t max, bool from_right, struct value *out)
{
    struct parts p = {.r = r};
    if (!run_bytes(r, 2 * s->n))
        return false;
    if (!separator) {
        if (from_right ? !rsplit_blanks(&p, s, max) : !split_blanks(&p, s, max))
            return false;
    } else if (separator->n == 0) {
        return run_error(r, "empty separator");
    } else if (from_right) {
        size_t to = s->n, at;
        while ((max < 0 || (int64_t)p.n < max) && to >= separator->n &&
               (at = string_rfind(r, s, separator, to - separator->n)) != SIZE_MAX) {
            if (!add_part(&p, s, at + separator->n, to))
                return false;
            to = at;
        }
        if (!add_part(&p, s, 0, to))
            return false;
    } else {
        size_t from = 0, at;
        while ((max < 0 || (int64_t)p.n < max) &&
               (at = string_find(r, s, separator, from)) != SIZE_MAX) {
            if (!add_part(&p, s, from, at))
                return false;
            from = at + separator->n;
        }
        if (!add_part(&p, s, from, s->n))
            return false;
    }
    if (from_right)
        reverse_parts(&p);
    return value_list(r, V_LIST, p.item, p.n, s->origin, out);
}

/* Length of the line boundary at s[0..n), 0 if there is none. */
static size_t line_end(const char *s, size_t n)
{
    uint32_t c;
    if (n >= 2 && s[0] == '\r' && s[1] == '\n')
        return 2;
    int32_t len = utf8_decode(s, n, &c);
    if (len == 0)
        return 0;
    bool is_end = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                  c == 0x2028 || c == 0x2029;
    return is_end ? (size_t)len : 0;
}

bool string_splitlines(struct run *r, const struct string *s, bool keep_ends, struct value *out)
{
    struct parts p = {.r = r};
    if (!run_bytes(r, 2 * s->n))
        return false;
    size_t from = 0, at = 0;
    while (at < s->n) {
        size_t len = line_end(s->s + at, s->n - at);
        if (len && !add_part(&p, s, from, keep_ends ? at + len : at))
            return false;
        at += len ? len : 1;
        from = len ? at : from;
    }
    if (from < s->n && !add_part(&p, s, from, s->n))
        return false;
    return value_list(r, V_LIST, p.item, p.n, s->origin, out);
}

/* ---- Replacing and joining ----------------------------------------------------------------- */

bool string_replace(struct run *r, const struct string *s, const struct string *old,
                    const struct string *with, int64_t max, struct value *out)
{
    struct builder b;
    builder_init(&b, r);
    if (!run_bytes(r, s->n))
        return false;
    size_t from = 0;
    int64_t done = 0;
    if (old->n == 0) {
        /* Between all characters, and at both ends. */
        for (; max < 0 || done < max; done++) {
            if (!builder_put_string(&b, with) || !run_steps(r, 1))
                return false;
            if (from == s->n)
                break;
            size_t to = from + 1;
            while (to < s->n && !is_lead(s->s[to]))
                to++;
            if (!builder_put_part(&b, s, from, to))
                return false;
            from = to;
        }
    } else {
        size_t at;
        for (; (max < 0 || done < max) && (at = string_find(r, s, old, from)) != SIZE_MAX; done++) {
            if (!builder_put_part(&b, s, from, at) || !builder_put_string(&b, with) ||
                !run_steps(r, 1))
                return false;
            from = at + old->n;
        }
        if (done == 0) {
            *out = value_string(s);
            return true;
        }
    }
    return builder_put_part(&b, s, from, s->n) && builder_string(&b, out);
}

bool string_join(struct run *r, const struct string *separator, const struct value *item, size_t n,
                 bool is_strict, struct value *out)
{
    struct builder b;
    builder_init(&b, r);
    for (size_t i = 0; i < n; i++) {
        if (is_strict && item[i].type != V_STRING)
            return run_error(r, "sequence item %zu: expected str instance, %s found", i,
                             value_type_name(item[i]));
        if ((i && !builder_put_string(&b, separator)) || !print_value(&b, item[i]) ||
            !run_steps(r, 1))
            return false;
    }
    return builder_string(&b, out);
}

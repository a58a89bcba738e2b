#include "base/json.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/utf8.h"

/* json_read is two passes. The scan walks the text once with a stack of bits, checks grammar, UTF-8
 * and limits, and writes the copy that jansson then reads. What jansson refuses or what is better
 * kept out of the tree goes to the side table: the copy holds a reference, a string of U+FFFF and the
 * entry's number. A string of the text that begins with U+FFFF becomes an entry itself, so the two
 * cannot be confused. jansson sees only what it accepts, so its one way to fail is memory. */

enum {
    MAX_DEPTH = 1024,   /* of any limits: jansson recurses when it reads and frees */
    LONG_STRING = 4096, /* decoded bytes; longer string values go to the side table */
    OFTEN = 64 << 10,   /* bytes between two looks at a watch: about a millisecond */
};

const struct json_limits json_limits_request = {
    .bytes = 256u << 20, .string = 256u << 20, .values = 1000000, .depth = 128};
const struct json_limits json_limits_model = {
    .bytes = 128u << 20, .string = 32u << 20, .values = 4000000, .depth = 64};

struct side_entry {
    size_t at, n; /* in side.bytes; a NUL follows */
    bool is_integer;
};

struct json_side {
    struct buf bytes;
    struct side_entry *entry; /* [n] */
    size_t n, cap;
};

static const char mark[] = "\xEF\xBF\xBF"; /* U+FFFF */

struct scan {
    const char *s;
    size_t n, at;
    const struct json_limits *limits;
    int64_t n_values;
    int32_t depth;
    unsigned char in_object[MAX_DEPTH / 8]; /* a bit a level: object or array */
    struct buf *copy;
    struct json_side *side;
    struct watch *watch; /* may be NULL */
    lathe_error *err;
};

/* ---- Errors: every message ends with the place -------------------------------------------- */

static lathe_status place(struct scan *c, size_t at, lathe_status st)
{
    size_t line = 1, column = 1;
    for (size_t i = 0; i < at && i < c->n; i++) {
        if (c->s[i] == '\n') {
            line++;
            column = 1;
        } else if (((unsigned char)c->s[i] & 0xC0) != 0x80) {
            column++;
        }
    }
    error_context(c->err, "byte %zu (line %zu, column %zu)", at, line, column);
    return st;
}

static lathe_status unexpected(struct scan *c, const char *expected)
{
    lathe_status st;
    if (c->at >= c->n)
        st = fail(c->err, LATHE_E_FORMAT, "the text ends, expected %s", expected);
    else if (c->s[c->at] > 0x20 && c->s[c->at] < 0x7F)
        st = fail(c->err, LATHE_E_FORMAT, "found '%c', expected %s", c->s[c->at], expected);
    else
        st = fail(c->err, LATHE_E_FORMAT, "found byte 0x%02X, expected %s",
                  (unsigned)(unsigned char)c->s[c->at], expected);
    return place(c, c->at, st);
}

/* Behind a limit that `option` sets. */
static lathe_status over(struct scan *c, size_t at, const char *option)
{
    lathe_error limit = *c->err;
    if (option)
        (void)fail(c->err, LATHE_E_LIMIT, "%s (%s)", limit.message, option);
    return place(c, at, LATHE_E_LIMIT);
}

/* ---- The side table ------------------------------------------------------------------------ */

static lathe_status side_add(struct json_side *side, size_t at, bool is_integer, lathe_error *err)
{
    buf_append(&side->bytes, "", 1);
    lathe_status st = buf_check(&side->bytes, "JSON side table", err);
    if (st)
        return st;
    if (side->n == side->cap) {
        size_t cap = side->cap ? side->cap * 2 : 16;
        struct side_entry *p = realloc(side->entry, cap * sizeof *p);
        if (!p)
            return fail_memory(err, cap * sizeof *p);
        side->entry = p;
        side->cap = cap;
    }
    side->entry[side->n++] = (struct side_entry){at, side->bytes.len - 1 - at, is_integer};
    return LATHE_OK;
}

static void side_free(struct json_side *side)
{
    if (!side)
        return;
    buf_release(&side->bytes);
    free(side->entry);
    free(side);
}

/* The entry that a string of the tree refers to, or NULL. */
static const struct side_entry *side_find(const struct json_doc *d, const json_t *v)
{
    if (!json_is_string(v) || !d || !d->side)
        return NULL;
    const char *s = json_string_value(v);
    size_t n = json_string_length(v), i = 0;
    if (n < 4 || n > 3 + 9 || memcmp(s, mark, 3) != 0)
        return NULL;
    for (size_t k = 3; k < n; k++) {
        if (s[k] < '0' || s[k] > '9')
            return NULL;
        i = i * 10 + (size_t)(s[k] - '0');
    }
    return i < d->side->n ? &d->side->entry[i] : NULL;
}

/* ---- Strings -------------------------------------------------------------------------------- */

static int32_t hex4(const char *s)
{
    int32_t v = 0;
    for (int i = 0; i < 4; i++) {
        char c = s[i];
        int32_t digit;
        if (c >= '0' && c <= '9')
            digit = c - '0';
        else if (c >= 'a' && c <= 'f')
            digit = c - 'a' + 10;
        else if (c >= 'A' && c <= 'F')
            digit = c - 'A' + 10;
        else
            return -1;
        v = v << 4 | digit;
    }
    return v;
}

/* One character of a string: how many bytes spell it, its code point, and whether the spelling is a
 * lone surrogate, for which cp is U+FFFD. 0 bytes: the spelling is invalid. */
static size_t string_char(const char *s, size_t n, uint32_t *cp, bool *is_lone)
{
    *is_lone = false;
    if (s[0] != '\\')
        return (unsigned char)s[0] < 0x20 ? 0 : (size_t)utf8_decode(s, n, cp);
    if (n < 2)
        return 0;
    static const char name[] = "\"\\/bfnrt", value[] = "\"\\/\b\f\n\r\t";
    const char *p = s[1] ? strchr(name, s[1]) : NULL;
    if (p) {
        *cp = (unsigned char)value[p - name];
        return 2;
    }
    int32_t v = s[1] == 'u' && n >= 6 ? hex4(s + 2) : -1;
    if (v < 0)
        return 0;
    *cp = (uint32_t)v;
    if (v < 0xD800 || v > 0xDFFF)
        return 6;
    if (v < 0xDC00 && n >= 12 && s[6] == '\\' && s[7] == 'u') {
        int32_t low = hex4(s + 8);
        if (low >= 0xDC00 && low <= 0xDFFF) {
            *cp = 0x10000u + ((uint32_t)(v - 0xD800) << 10) + (uint32_t)(low - 0xDC00);
            return 12;
        }
    }
    *is_lone = true;
    *cp = 0xFFFD;
    return 6;
}

static size_t utf8_size(uint32_t cp)
{
    return cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
}

static lathe_status bad_string(struct scan *c, size_t at)
{
    unsigned char b = (unsigned char)c->s[at];
    lathe_status st;
    if (b == '\\')
        st = fail(c->err, LATHE_E_FORMAT, "invalid escape in a string");
    else if (b < 0x20)
        st = fail(c->err, LATHE_E_FORMAT, "raw control byte 0x%02X in a string", (unsigned)b);
    else
        st = fail(c->err, LATHE_E_FORMAT, "invalid UTF-8 (byte 0x%02X) in a string", (unsigned)b);
    return place(c, at, st);
}

/* The string s[from..to), without quotes, decoded behind side->bytes. */
static void decode_string(struct json_side *side, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t plain = i;
        while (plain < n && s[plain] != '\\')
            plain++;
        buf_append(&side->bytes, s + i, plain - i);
        i = plain;
        if (i < n) {
            uint32_t cp;
            bool is_lone;
            char out[4];
            i += string_char(s + i, n - i, &cp, &is_lone);
            buf_append(&side->bytes, out, (size_t)utf8_encode(cp, out));
        }
    }
}

/* The same without the decoding, lone surrogates replaced. */
static void copy_string(struct buf *copy, const char *s, size_t n)
{
    size_t from = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        bool is_lone = false;
        size_t len = s[i] == '\\' ? string_char(s + i, n - i, &cp, &is_lone) : 1;
        if (is_lone) {
            buf_append(copy, s + from, i - from);
            buf_puts(copy, "\xEF\xBF\xBD");
            from = i + len;
        }
        i += len;
    }
    buf_append(copy, s + from, n - from);
}

static lathe_status scan_string(struct scan *c, bool is_key)
{
    size_t open = c->at, i = open + 1, decoded = 0;
    uint32_t first = 0;
    bool any_lone = false;
    for (;;) {
        uint32_t cp;
        bool is_lone;
        if (i >= c->n) {
            fail(c->err, LATHE_E_FORMAT, "a string is not closed");
            return place(c, open, LATHE_E_FORMAT);
        }
        if (c->s[i] == '"')
            break;
        size_t len = string_char(c->s + i, c->n - i, &cp, &is_lone);
        if (len == 0)
            return bad_string(c, i);
        if (cp == 0 && is_key) {
            fail(c->err, LATHE_E_FORMAT, "U+0000 in an object key");
            return place(c, i, LATHE_E_FORMAT);
        }
        any_lone |= is_lone;
        if (i == open + 1)
            first = cp;
        i += len;
        decoded += utf8_size(cp);
        if (decoded > c->limits->string) {
            fail(c->err, LATHE_E_LIMIT, "a string is longer than the limit of %zu bytes",
                 c->limits->string);
            return over(c, open, c->limits->string_option);
        }
    }
    const char *body = c->s + open + 1;
    size_t n = i - open - 1;
    c->at = i + 1;
    buf_putc(c->copy, '"');
    if (!is_key && (decoded > LONG_STRING || first == 0xFFFF)) {
        size_t at = c->side->bytes.len;
        decode_string(c->side, body, n);
        buf_printf(c->copy, "%s%zu", mark, c->side->n);
        lathe_status st = side_add(c->side, at, false, c->err);
        if (st)
            return st;
    } else if (any_lone) {
        copy_string(c->copy, body, n);
    } else {
        buf_append(c->copy, body, n);
    }
    buf_putc(c->copy, '"');
    return LATHE_OK;
}

/* ---- Numbers and words ---------------------------------------------------------------------- */

static bool digit_at(const struct scan *c, size_t i)
{
    return i < c->n && c->s[i] >= '0' && c->s[i] <= '9';
}

/* Does the real s[0..n) round to infinity? Only near the edge strtod decides, on digits without a
 * point: the locale may have another one. */
static lathe_status check_range(struct scan *c, const char *s, size_t n)
{
    struct buf digits;
    int64_t exponent = 0, point = 0; /* value = 0.DIGITS * 10^(point + exponent) */
    bool after_point = false, is_negative = false, over = false;
    size_t i = s[0] == '-' ? 1 : 0;
    buf_init(&digits, n + 32);
    for (; i < n && s[i] != 'e' && s[i] != 'E'; i++) {
        if (s[i] == '.') {
            after_point = true;
        } else if (digits.len || s[i] != '0') {
            buf_putc(&digits, s[i]);
            point += !after_point;
        } else {
            point -= after_point;
        }
    }
    if (i < n)
        is_negative = s[++i] == '-';
    for (; i < n; i++)
        if (s[i] >= '0' && s[i] <= '9' && exponent < INT64_C(1) << 40)
            exponent = exponent * 10 + (s[i] - '0');
    if (is_negative)
        exponent = -exponent;
    if (digits.len && point + exponent >= 309) {
        over = point + exponent > 309;
        if (!over) {
            buf_printf(&digits, "e%lld", 309 - (long long)digits.len);
            over = strtod(buf_str(&digits), NULL) > 1.7976931348623157e308;
        }
    }
    lathe_status st = buf_check(&digits, "number", c->err);
    buf_release(&digits);
    if (!st && over)
        st = fail(c->err, LATHE_E_FORMAT, "a number overflows a double");
    return st;
}

/* Beyond int64? s[0..n) is an integer without leading zeros. */
static bool is_big(const char *s, size_t n)
{
    bool is_negative = s[0] == '-';
    if (is_negative) {
        s++;
        n--;
    }
    return n > 19 ||
           (n == 19 &&
            memcmp(s, is_negative ? "9223372036854775808" : "9223372036854775807", 19) > 0);
}

static lathe_status scan_number(struct scan *c)
{
    size_t from = c->at, i = from;
    bool is_real = false;
    if (c->s[i] == '-')
        i++;
    c->at = i;
    if (!digit_at(c, i))
        return unexpected(c, "a digit");
    if (c->s[i] == '0')
        i++;
    else
        while (digit_at(c, i))
            i++;
    if (i < c->n && c->s[i] == '.') {
        is_real = true;
        c->at = ++i;
        if (!digit_at(c, i))
            return unexpected(c, "a digit");
        while (digit_at(c, i))
            i++;
    }
    if (i < c->n && (c->s[i] == 'e' || c->s[i] == 'E')) {
        is_real = true;
        i++;
        if (i < c->n && (c->s[i] == '+' || c->s[i] == '-'))
            i++;
        c->at = i;
        if (!digit_at(c, i))
            return unexpected(c, "a digit");
        while (digit_at(c, i))
            i++;
    }
    c->at = i;
    const char *s = c->s + from;
    size_t n = i - from;
    if (is_real) {
        lathe_status st = n > 4 ? check_range(c, s, n) : LATHE_OK;
        if (st)
            return place(c, from, st);
    } else if (is_big(s, n)) {
        size_t at = c->side->bytes.len;
        buf_append(&c->side->bytes, s, n);
        buf_printf(c->copy, "\"%s%zu\"", mark, c->side->n);
        return side_add(c->side, at, true, c->err);
    }
    buf_append(c->copy, s, n);
    return LATHE_OK;
}

static lathe_status scan_word(struct scan *c, const char *word)
{
    size_t n = strlen(word);
    if (c->n - c->at < n || memcmp(c->s + c->at, word, n) != 0)
        return unexpected(c, "a value");
    buf_append(c->copy, word, n);
    c->at += n;
    return LATHE_OK;
}

/* ---- The scan ------------------------------------------------------------------------------- */

static void skip_blanks(struct scan *c)
{
    while (c->at < c->n && (c->s[c->at] == ' ' || c->s[c->at] == '\n' || c->s[c->at] == '\r' ||
                            c->s[c->at] == '\t'))
        c->at++;
}

static bool take(struct scan *c, char wanted)
{
    if (c->at >= c->n || c->s[c->at] != wanted)
        return false;
    c->at++;
    buf_putc(c->copy, wanted);
    return true;
}

static bool in_object(const struct scan *c)
{
    int32_t i = c->depth - 1;
    return c->in_object[i / 8] >> (i % 8) & 1;
}

static lathe_status descend(struct scan *c)
{
    int32_t limit = c->limits->depth < MAX_DEPTH ? c->limits->depth : MAX_DEPTH;
    bool is_object = c->s[c->at] == '{';
    if (c->depth >= limit) {
        fail(c->err, LATHE_E_LIMIT, "nested deeper than the limit of %d levels", (int)limit);
        return over(c, c->at, c->limits->depth_option);
    }
    int32_t i = c->depth++;
    unsigned char bit = (unsigned char)(1u << (i % 8));
    c->in_object[i / 8] = (unsigned char)((c->in_object[i / 8] & ~bit) | (is_object ? bit : 0));
    take(c, c->s[c->at]);
    skip_blanks(c);
    return LATHE_OK;
}

static lathe_status scan_key(struct scan *c)
{
    skip_blanks(c);
    if (c->at >= c->n || c->s[c->at] != '"')
        return unexpected(c, "a key");
    lathe_status st = scan_string(c, true);
    if (st)
        return st;
    skip_blanks(c);
    return take(c, ':') ? LATHE_OK : unexpected(c, "':'");
}

/* A scalar, or the opening of a container; *opened says which. */
static lathe_status scan_value(struct scan *c, bool *opened)
{
    *opened = false;
    skip_blanks(c);
    if (c->n_values++ >= c->limits->values) {
        fail(c->err, LATHE_E_LIMIT, "more than the limit of %lld values",
             (long long)c->limits->values);
        return over(c, c->at, c->limits->values_option);
    }
    switch (c->at < c->n ? c->s[c->at] : 0) {
    case '{':
    case '[':
        *opened = true;
        return descend(c);
    case '"':
        return scan_string(c, false);
    case 't':
        return scan_word(c, "true");
    case 'f':
        return scan_word(c, "false");
    case 'n':
        return scan_word(c, "null");
    default:
        if (digit_at(c, c->at) || (c->at < c->n && c->s[c->at] == '-'))
            return scan_number(c);
        return unexpected(c, "a value");
    }
}

/* After a value: closes what ends here, then takes the comma before the next member. */
static lathe_status scan_after(struct scan *c)
{
    while (c->depth > 0) {
        skip_blanks(c);
        if (take(c, in_object(c) ? '}' : ']')) {
            c->depth--;
            continue;
        }
        if (!take(c, ','))
            return unexpected(c, in_object(c) ? "',' or '}'" : "',' or ']'");
        return in_object(c) ? scan_key(c) : LATHE_OK;
    }
    return LATHE_OK;
}

static lathe_status scan(struct scan *c)
{
    if (c->n >= 3 && memcmp(c->s, "\xEF\xBB\xBF", 3) == 0)
        c->at = 3;
    do {
        bool opened;
        size_t from = c->at;
        lathe_status st = scan_value(c, &opened);
        if (!st && opened && take(c, in_object(c) ? '}' : ']'))
            c->depth--, opened = false;
        if (!st)
            st = !opened ? scan_after(c) : in_object(c) ? scan_key(c) : LATHE_OK;
        st = st ? st : watch_work(c->watch, c->at - from, OFTEN, c->err);
        if (st)
            return st;
    } while (c->depth > 0);
    skip_blanks(c);
    return c->at == c->n ? LATHE_OK : unexpected(c, "the end of the text");
}

/* ---- Reading -------------------------------------------------------------------------------- */

/* jansson 2.14 goes on with a token cut short when its buffer cannot grow (lex_save), so a failed
 * allocation is noted here, whatever the parser makes of it. */
static _Thread_local bool tree_no_memory;
static json_malloc_t tree_malloc;
static pthread_once_t tree_once = PTHREAD_ONCE_INIT;

static void *noting_malloc(size_t n)
{
    void *p = tree_malloc(n);
    if (!p)
        tree_no_memory = true;
    return p;
}

static void note_failures(void)
{
    json_free_t free_fn;
    json_get_alloc_funcs(&tree_malloc, &free_fn);
    json_set_alloc_funcs(noting_malloc, free_fn);
}

/* The copy, as jansson asks for it. */
struct feed {
    const char *s;
    size_t n;
    struct watch *watch;
    lathe_status st;
    lathe_error *err;
};

static size_t feed_some(void *to, size_t room, void *data)
{
    struct feed *f = data;
    size_t n = f->n < room ? f->n : room;
    f->st = watch_work(f->watch, n, OFTEN, f->err);
    if (f->st)
        return 0; /* the end of the text, as jansson sees it */
    memcpy(to, f->s, n);
    f->s += n;
    f->n -= n;
    return n;
}

static lathe_status build_tree(struct json_doc *d, const struct scan *c)
{
    struct feed f = {buf_str(c->copy), c->copy->len, c->watch, LATHE_OK, c->err};
    (void)pthread_once(&tree_once, note_failures);
    tree_no_memory = false;
    d->root = json_load_callback(feed_some, &f, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (tree_no_memory || f.st) {
        json_decref(d->root);
        d->root = NULL;
    }
    return f.st      ? f.st
           : d->root ? LATHE_OK
                     : fail(c->err, LATHE_E_MEMORY,
                            "out of memory building the tree of %zu bytes of JSON", c->n);
}

lathe_status json_read_watched(struct json_doc *d, const char *s, size_t n,
                               const struct json_limits *limits, struct watch *watch,
                               lathe_error *err)
{
    *d = (struct json_doc){0};
    if (n > limits->bytes)
        return fail(err, LATHE_E_LIMIT, "%zu bytes of JSON, the limit is %zu", n, limits->bytes);
    struct json_side *side = calloc(1, sizeof *side);
    if (!side)
        return fail_memory(err, sizeof *side);
    /* A reference has at most 9 bytes more than what it stands for, which has at least 6 with its
     * comma; an entry at most one more than its source. */
    struct buf copy;
    buf_init(&copy, n * 3 + 64);
    buf_init(&side->bytes, n * 2 + 64);
    struct scan c = {
        .s = s, .n = n, .limits = limits, .copy = &copy, .side = side, .watch = watch, .err = err};
    lathe_status st = scan(&c);
    if (!st)
        st = buf_check(&copy, "JSON text", err);
    if (!st)
        st = build_tree(d, &c);
    buf_release(&copy);
    if (st)
        side_free(side);
    else
        d->side = side;
    return st;
}

lathe_status json_read(struct json_doc *d, const char *s, size_t n,
                       const struct json_limits *limits, lathe_error *err)
{
    return json_read_watched(d, s, n, limits, NULL, err);
}

lathe_status json_read_file(struct json_doc *d, const char *path, const struct json_limits *limits,
                            lathe_error *err)
{
    struct file f = {0};
    *d = (struct json_doc){0};
    lathe_status st = file_map(&f, path, err);
    if (st)
        return st;
    st = json_read(d, f.data ? (const char *)f.data : "", f.size, limits, err);
    file_unmap(&f);
    if (st)
        error_context(err, "%s", path);
    return st;
}

void json_release(struct json_doc *d)
{
    json_decref(d->root);
    side_free(d->side);
    *d = (struct json_doc){0};
}

const char *json_text(const struct json_doc *d, const json_t *v, size_t *n)
{
    const struct side_entry *e = side_find(d, v);
    if (e) {
        *n = e->n;
        return e->is_integer ? NULL : d->side->bytes.data + e->at;
    }
    *n = json_string_length(v);
    return json_string_value(v);
}

const char *json_big_integer(const struct json_doc *d, const json_t *v)
{
    const struct side_entry *e = side_find(d, v);
    return e && e->is_integer ? d->side->bytes.data + e->at : NULL;
}

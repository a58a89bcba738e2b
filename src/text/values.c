#include "text/values.h"

#include <math.h>
#include <string.h>

/* 262144: no context holds more tokens, and a value takes at least one. 127: the arguments' object is
 * around it, and when they come back in a request they may be 128 deep. */
const struct json_limits json_limits_value = {
    .bytes = 32u << 20, .string = 32u << 20, .values = 262144, .depth = 127};

struct parameter parameter_of(const struct toolset *ts, const char *tool, const json_t *schema)
{
    return (struct parameter){
        .tools = ts,
        .tool = tool,
        .schema = schema,
        .types = schema ? schema_types(ts, tool, schema) : TYPE_STRING,
    };
}

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_word(const char *s, size_t n, const char *word)
{
    return n == strlen(word) && memcmp(s, word, n) == 0;
}

/* Could s[0..n) still become `word`, with blanks behind it? */
static bool may_become(const char *s, size_t n, const char *word)
{
    size_t len = strlen(word);
    if (memcmp(s, word, n < len ? n : len) != 0)
        return false;
    for (size_t i = len; i < n; i++)
        if (!is_blank(s[i]))
            return false;
    return true;
}

bool value_is_string(const struct parameter *p, const char *s, size_t n)
{
    unsigned set = p->types & ~(unsigned)TYPE_NULL;
    if (p->types == TYPE_STRING)
        return true;
    if (set & ~(unsigned)TYPE_STRING)
        return false;
    while (n && is_blank(*s))
        s++, n--;
    if (n == 0 || (set == 0 && (*s == '{' || *s == '[')))
        return false;
    return !(p->types & TYPE_NULL) || (!may_become(s, n, "null") && !may_become(s, n, "None"));
}

static unsigned type_of(const struct json_doc *d)
{
    switch (json_typeof(d->root)) {
    case JSON_OBJECT:
        return TYPE_OBJECT;
    case JSON_ARRAY:
        return TYPE_ARRAY;
    case JSON_STRING:
        return json_big_integer(d, d->root) ? TYPE_INTEGER | TYPE_NUMBER : 0;
    case JSON_INTEGER:
        return TYPE_INTEGER | TYPE_NUMBER;
    case JSON_REAL:
        return json_real_value(d->root) == floor(json_real_value(d->root))
                   ? TYPE_INTEGER | TYPE_NUMBER
                   : TYPE_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE:
        return TYPE_BOOLEAN;
    default:
        return 0;
    }
}

/* Whether t[0..n) is JSON of a type in `set`; strings and null never are. */
static lathe_status is_json(const char *t, size_t n, unsigned set, bool *yes, lathe_error *err)
{
    struct json_doc d;
    lathe_error ignored;
    *yes = false;
    if (n == 0 || t[0] == '\xEF') /* a byte order mark, which json_read skips */
        return LATHE_OK;
    lathe_status st = json_read(&d, t, n, &json_limits_value, &ignored);
    if (!st)
        *yes = type_of(&d) & set;
    json_release(&d);
    if (st == LATHE_E_MEMORY)
        return fail(err, st, "%s", ignored.message);
    return LATHE_OK;
}

lathe_status value_print(struct buf *out, const struct parameter *p, const char *s, size_t n,
                         lathe_error *err)
{
    const char *t = s;
    size_t n_t = n;
    while (n_t && is_blank(*t))
        t++, n_t--;
    while (n_t && is_blank(t[n_t - 1]))
        n_t--;

    unsigned set = p->types & ~(unsigned)TYPE_NULL;
    if ((p->types & TYPE_NULL) && (is_word(t, n_t, "null") || is_word(t, n_t, "None"))) {
        buf_puts(out, "null");
        return LATHE_OK;
    }
    unsigned wanted = set ? set & ~(unsigned)TYPE_STRING : TYPE_OBJECT | TYPE_ARRAY;
    bool has_string = set & TYPE_STRING, yes = false;
    if (wanted && !(has_string && schema_lists(p->tools, p->tool, p->schema, s, n))) {
        if ((wanted & TYPE_BOOLEAN) && (is_word(t, n_t, "True") || is_word(t, n_t, "False"))) {
            buf_puts(out, t[0] == 'T' ? "true" : "false");
            return LATHE_OK;
        }
        lathe_status st = is_json(t, n_t, wanted, &yes, err);
        if (st)
            return st;
    }
    if (yes)
        buf_append(out, t, n_t);
    else
        json_print_string(out, s, n);
    return LATHE_OK;
}

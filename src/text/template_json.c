/* JSON: trees to values, and json.dumps(ensure_ascii=False) of values. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/template_string.h"

/* ---- From JSON ----------------------------------------------------------------------------- */

static bool from_json(struct run *r, const struct json_doc *d, json_t *v, unsigned char origin,
                      struct value *out)
{
    size_t n, i;
    const char *key;
    json_t *member;
    *out = (struct value){.type = V_NONE, .origin = origin};
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        if (!value_dict(r, json_object_size(v), origin, out))
            return false;
        json_object_foreach(v, key, member)
        {
            struct value k, x;
            if (!value_text(r, key, strlen(key), origin, &k) ||
                !value_from_json(r, d, member, origin, &x) || !dict_set(r, out->u.dict, k, x))
                return false;
        }
        return true;
    case JSON_ARRAY: {
        n = json_array_size(v);
        struct value *item = run_array(r, n, sizeof *item);
        if (!item)
            return false;
        json_array_foreach(v, i, member)
        {
            if (!value_from_json(r, d, member, origin, &item[i]))
                return false;
        }
        return value_list(r, V_LIST, item, n, origin, out);
    }
    case JSON_STRING: {
        const char *s = json_text(d, v, &n);
        if (s)
            return value_text(r, s, n, origin, out);
        *out = (struct value){.type = V_BIG, .origin = origin, .u.digits = json_big_integer(d, v)};
        return true;
    }
    case JSON_INTEGER:
        *out = value_int(json_integer_value(v), origin);
        return true;
    case JSON_REAL:
        *out = value_float(json_real_value(v), origin);
        return true;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = value_bool(json_is_true(v), origin);
        return true;
    case JSON_NULL:
        return true;
    }
    return true;
}

bool value_from_json(struct run *r, const struct json_doc *d, const json_t *v, unsigned char origin,
                     struct value *out)
{
    /* jansson's iteration takes its objects without const, and changes nothing. */
    json_t *tree = json_members(v);
    bool ok = run_enter(r) && from_json(r, d, tree, origin, out);
    run_leave(r);
    return ok;
}

/* ---- To JSON ------------------------------------------------------------------------------- */

static bool put_string(struct builder *b, const struct string *s, bool is_ascii)
{
    unsigned char around = s->map ? 0 : s->origin;
    if (!builder_puts(b, "\"", around))
        return false;
    size_t from = 0, i = 0;
    while (i < s->n) {
        unsigned char c = (unsigned char)s->s[i];
        if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x7F || !is_ascii)) {
            i++;
            continue;
        }
        char text[16];
        size_t len = 1;
        static const char name[] = "\b\f\n\r\t\"\\", letter[] = "bfnrt\"\\";
        const char *p = c ? strchr(name, c) : NULL;
        if (p) {
            (void)snprintf(text, sizeof text, "\\%c", letter[p - name]);
        } else if (c < 0x80) {
            (void)snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
        } else {
            uint32_t cp = 0xFFFD;
            int32_t n = utf8_decode(s->s + i, s->n - i, &cp);
            len = n > 0 ? (size_t)n : 1;
            if (cp < 0x10000)
                (void)snprintf(text, sizeof text, "\\u%04" PRIx32, cp);
            else
                (void)snprintf(text, sizeof text, "\\u%04" PRIx32 "\\u%04" PRIx32,
                               0xD800 + ((cp - 0x10000) >> 10), 0xDC00 + ((cp - 0x10000) & 0x3FF));
        }
        if (!builder_put_part(b, s, from, i) ||
            !builder_puts(b, text, s->map ? s->map[i] : s->origin))
            return false;
        i += len;
        from = i;
    }
    return builder_put_part(b, s, from, s->n) && builder_puts(b, "\"", around);
}

struct writer {
    struct run *r;
    struct builder *b;
    const struct json_style *style;
    const struct string *indent;     /* NULL: all on one line */
    const struct string *item, *key; /* separators */
};

static bool put_break(struct writer *w, int32_t level, unsigned char origin)
{
    if (!w->indent)
        return true;
    if (!builder_puts(w->b, "\n", origin))
        return false;
    for (int32_t i = 0; i < level; i++)
        if (!builder_put(w->b, w->indent->s, w->indent->n, origin))
            return false;
    return true;
}

static bool put_scalar(struct writer *w, struct value v)
{
    char text[40];
    switch ((enum value_type)v.type) {
    case V_NONE:
        return builder_puts(w->b, "null", v.origin);
    case V_BOOL:
        return builder_puts(w->b, v.u.b ? "true" : "false", v.origin);
    case V_STRING:
        return put_string(w->b, v.u.string, w->style->is_ascii);
    case V_FLOAT:
        if (isnan(v.u.f) || isinf(v.u.f))
            return builder_puts(w->b,
                                isnan(v.u.f) ? "NaN"
                                : v.u.f > 0  ? "Infinity"
                                             : "-Infinity",
                                v.origin);
        return real_text(w->r, v.u.f, text) && builder_puts(w->b, text, v.origin);
    default:
        return print_value(w->b, v);
    }
}

/* A key: strings, numbers, booleans and none, all as strings. */
static bool put_key(struct writer *w, struct value key)
{
    if (key.type == V_STRING)
        return put_scalar(w, key);
    if (key.type != V_NONE && !value_is_number(key))
        return run_error(w->r, "keys must be str, int, float, bool or None, not %s",
                         value_type_name(key));
    return builder_puts(w->b, "\"", key.origin) && put_scalar(w, key) &&
           builder_puts(w->b, "\"", key.origin);
}

static bool put(struct writer *w, struct value v, int32_t level);

/* The separator of the default style belongs to the value's punctuation. */
static bool put_separator(struct writer *w, const struct string *s, unsigned char origin)
{
    return builder_put(w->b, s->s, s->n, origin);
}

static bool sorted_entries(struct writer *w, const struct dict *d, const struct entry **out)
{
    *out = d->entry;
    if (!w->style->is_sorted || d->n < 2)
        return true;
    struct entry *e = run_array(w->r, d->n, sizeof *e);
    if (!e)
        return false;
    for (size_t i = 0; i < d->n; i++) {
        size_t at = i;
        for (; at > 0; at--) {
            int order;
            if (!value_compare(w->r, "<", d->entry[i].key, e[at - 1].key, &order))
                return false;
            if (order >= 0)
                break;
            e[at] = e[at - 1];
        }
        e[at] = d->entry[i];
    }
    *out = e;
    return true;
}

static bool put_dict(struct writer *w, const struct dict *d, unsigned char origin, int32_t level)
{
    const struct entry *e;
    if (d->n == 0)
        return builder_puts(w->b, "{}", origin);
    if (!sorted_entries(w, d, &e) || !builder_puts(w->b, "{", origin))
        return false;
    for (size_t i = 0; i < d->n; i++)
        if ((i && !put_separator(w, w->item, origin)) || !put_break(w, level + 1, origin) ||
            !put_key(w, e[i].key) || !put_separator(w, w->key, origin) ||
            !put(w, e[i].value, level + 1))
            return false;
    return put_break(w, level, origin) && builder_puts(w->b, "}", origin);
}

static bool put_list(struct writer *w, const struct list *l, unsigned char origin, int32_t level)
{
    if (l->n == 0)
        return builder_puts(w->b, "[]", origin);
    if (!builder_puts(w->b, "[", origin))
        return false;
    for (size_t i = 0; i < l->n; i++)
        if ((i && !put_separator(w, w->item, origin)) || !put_break(w, level + 1, origin) ||
            !put(w, l->item[i], level + 1))
            return false;
    return put_break(w, level, origin) && builder_puts(w->b, "]", origin);
}

static bool put(struct writer *w, struct value v, int32_t level)
{
    bool ok = run_enter(w->r) && run_steps(w->r, 1);
    if (!ok)
        ;
    else if (v.type == V_DICT)
        ok = put_dict(w, v.u.dict, v.origin, level);
    else if (v.type == V_LIST || v.type == V_TUPLE)
        ok = put_list(w, v.u.list, v.origin, level);
    else if (v.type == V_NONE || v.type == V_STRING || value_is_number(v))
        ok = put_scalar(w, v);
    else
        ok = run_error(w->r, "Object of type %s is not JSON serializable", value_type_name(v));
    run_leave(w->r);
    return ok;
}

bool value_to_json(struct run *r, struct value v, const struct json_style *style,
                   struct builder *out)
{
    static const struct string comma = {.s = ", ", .n = 2}, comma_only = {.s = ",", .n = 1},
                               colon = {.s = ": ", .n = 2};
    struct writer w = {.r = r, .b = out, .style = style, .item = &comma, .key = &colon};
    struct value pad = style->indent;
    if (pad.type == V_STRING) {
        w.indent = pad.u.string;
    } else if (pad.type != V_MISSING && pad.type != V_NONE) {
        int64_t n;
        struct value blanks;
        static const struct string blank = {.s = " ", .n = 1};
        if (!value_expect_integer(r, pad, "tojson: indent", &n))
            return false;
        if (n > 1000)
            return run_error(r, "tojson: indent of more than 1000");
        if (!string_repeat(r, &blank, n, &blanks))
            return false;
        w.indent = blanks.u.string;
    }
    if (w.indent)
        w.item = &comma_only;
    if (style->item_separator.type == V_STRING)
        w.item = style->item_separator.u.string;
    if (style->key_separator.type == V_STRING)
        w.key = style->key_separator.u.string;
    return put(&w, v, 0);
}

/* Filters over one value: text, numbers, defaults, JSON. And the search over all filters. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/template_string.h"

#define UNUSED(x) (void)(x)

/* An argument that may be left out or none. */
static bool is_given(struct value v)
{
    return v.type != V_MISSING && v.type != V_NONE;
}

/* ---- Text ---------------------------------------------------------------------------------- */

static bool case_filter(struct run *r, struct value self, enum letter_case to, struct value *out)
{
    const struct string *s;
    return value_to_string(r, self, &s) && string_case(r, s, to, out);
}

static bool filter_upper(struct run *r, struct value self, const struct value *a,
                         const struct args *raw, struct value *out)
{
    UNUSED(a), UNUSED(raw);
    return case_filter(r, self, CASE_UPPER, out);
}

static bool filter_lower(struct run *r, struct value self, const struct value *a,
                         const struct args *raw, struct value *out)
{
    UNUSED(a), UNUSED(raw);
    return case_filter(r, self, CASE_LOWER, out);
}

static bool filter_capitalize(struct run *r, struct value self, const struct value *a,
                              const struct args *raw, struct value *out)
{
    UNUSED(a), UNUSED(raw);
    return case_filter(r, self, CASE_CAPITAL, out);
}

static bool filter_title(struct run *r, struct value self, const struct value *a,
                         const struct args *raw, struct value *out)
{
    UNUSED(a), UNUSED(raw);
    const struct string *s;
    return value_to_string(r, self, &s) && string_title_words(r, s, out);
}

static bool filter_trim(struct run *r, struct value self, const struct value *a,
                        const struct args *raw, struct value *out)
{
    UNUSED(raw);
    const struct string *s, *chars = NULL;
    if (is_given(a[0]) && !value_expect_string(r, a[0], "trim", &chars))
        return false;
    return value_to_string(r, self, &s) && string_strip(r, s, chars, STRIP_BOTH, out);
}

static bool filter_string(struct run *r, struct value self, const struct value *a,
                          const struct args *raw, struct value *out)
{
    UNUSED(a), UNUSED(raw);
    const struct string *s;
    if (!value_to_string(r, self, &s))
        return false;
    *out = value_string(s);
    return true;
}

static bool filter_safe(struct run *r, struct value self, const struct value *a,
                        const struct args *raw, struct value *out)
{
    UNUSED(a), UNUSED(raw);
    const struct string *s;
    if (!value_to_string(r, self, &s))
        return false;
    *out = value_string(s);
    return string_mark(r, out);
}

static bool filter_escape(struct run *r, struct value self, const struct value *a,
                          const struct args *raw, struct value *out)
{
    UNUSED(a), UNUSED(raw);
    return string_escape(r, self, out);
}

static bool filter_forceescape(struct run *r, struct value self, const struct value *a,
                               const struct args *raw, struct value *out)
{
    UNUSED(a), UNUSED(raw);
    const struct string *s;
    if (!value_to_string(r, self, &s))
        return false;
    struct string plain = *s;
    plain.is_markup = false;
    return string_escape(r, value_string(&plain), out);
}

static bool filter_replace(struct run *r, struct value self, const struct value *a,
                           const struct args *raw, struct value *out)
{
    UNUSED(raw);
    const struct string *s, *old, *with;
    int64_t max = -1;
    if (is_given(a[2]) && !value_expect_integer(r, a[2], "replace: count", &max))
        return false;
    return value_to_string(r, self, &s) && value_to_string(r, a[0], &old) &&
           value_to_string(r, a[1], &with) && string_replace(r, s, old, with, max, out);
}

/* Python's quirk: a newline is added before the lines are split. */
static bool filter_indent(struct run *r, struct value self, const struct value *a,
                          const struct args *raw, struct value *out)
{
    UNUSED(raw);
    static const struct string newline = {.s = "\n", .n = 1}, blank = {.s = " ", .n = 1};
    const struct string *s;
    struct value pad, lines;
    int64_t width = 4;
    if (!value_expect_string(r, self, "indent", &s))
        return false;
    if (a[0].type == V_STRING) {
        pad = a[0];
    } else {
        if (a[0].type != V_MISSING && !value_expect_integer(r, a[0], "indent: width", &width))
            return false;
        if (!string_repeat(r, &blank, width, &pad))
            return false;
    }
    bool first = value_truth(a[1]), blanks = value_truth(a[2]);
    if (!string_concat(r, s, &newline, &lines) ||
        !string_splitlines(r, lines.u.string, false, &lines))
        return false;
    struct builder b;
    builder_init(&b, r);
    const struct list *l = lines.u.list;
    for (size_t i = 0; i < l->n; i++) {
        const struct string *line = l->item[i].u.string;
        bool indented = i ? blanks || line->n > 0 : first;
        if ((i && !builder_put(&b, "\n", 1, 0)) ||
            (indented && !builder_put_string(&b, pad.u.string)) || !builder_put_string(&b, line))
            return false;
    }
    return builder_string(&b, out) && (!s->is_markup || string_mark(r, out));
}

static bool filter_center(struct run *r, struct value self, const struct value *a,
                          const struct args *raw, struct value *out)
{
    UNUSED(raw);
    const struct string *s;
    int64_t width = 80;
    if (!value_to_string(r, self, &s) ||
        (a[0].type != V_MISSING && !value_expect_integer(r, a[0], "center", &width)))
        return false;
    static const struct string blank = {.s = " ", .n = 1};
    int64_t pad = width - (int64_t)string_length(s);
    if (pad <= 0) {
        *out = value_string(s);
        return true;
    }
    /* str.center puts the odd blank on the left only where the width is odd too. */
    int64_t left = pad / 2 + (pad & width & 1);
    struct value l, right;
    return string_repeat(r, &blank, left, &l) && string_repeat(r, &blank, pad - left, &right) &&
           string_concat(r, l.u.string, s, &l) && string_concat(r, l.u.string, right.u.string, out);
}

static bool filter_truncate(struct run *r, struct value self, const struct value *a,
                            const struct args *raw, struct value *out)
{
    UNUSED(raw);
    static const struct string dots = {.s = "...", .n = 3}, blank = {.s = " ", .n = 1};
    const struct string *s, *end = &dots;
    int64_t length = 255, leeway = 5;
    size_t n;
    if ((a[0].type != V_MISSING && !value_expect_integer(r, a[0], "truncate", &length)) ||
        (a[2].type != V_MISSING && !value_expect_string(r, a[2], "truncate: end", &end)) ||
        (is_given(a[3]) && !value_expect_integer(r, a[3], "truncate: leeway", &leeway)))
        return false;
    int64_t n_end = (int64_t)string_length(end);
    if (length < n_end || leeway < 0)
        return run_error(r, "truncate: the length must not be below the end's, nor leeway below 0");
    if (!value_length(r, self, &n))
        return false;
    if (n <= (uint64_t)length + (uint64_t)leeway) { /* short lists pass too */
        *out = self;
        return true;
    }
    struct value cut;
    if (!value_expect_string(r, self, "truncate", &s) ||
        !string_part(r, s, 0, string_offset(s, (size_t)(length - n_end)), &cut))
        return false;
    size_t at = value_truth(a[1]) ? SIZE_MAX : string_rfind(r, cut.u.string, &blank, SIZE_MAX);
    if (at != SIZE_MAX && !string_part(r, s, 0, at, &cut))
        return false;
    return string_add(r, cut.u.string, end, out);
}

static bool filter_wordcount(struct run *r, struct value self, const struct value *a,
                             const struct args *raw, struct value *out)
{
    UNUSED(a), UNUSED(raw);
    const struct string *s;
    const struct value *c;
    size_t n;
    if (!value_to_string(r, self, &s) || !string_chars(r, s, &c, &n))
        return false;
    int64_t words = 0;
    bool inside = false;
    for (size_t i = 0; i < n; i++) {
        const struct string *k = c[i].u.string;
        bool is_word = string_is_all(k, CLASS_ALNUM) || k->s[0] == '_';
        words += is_word && !inside;
        inside = is_word;
    }
    *out = value_int(words, s->origin);
    return true;
}

static bool filter_format(struct run *r, struct value self, const struct value *a,
                          const struct args *raw, struct value *out)
{
    UNUSED(a);
    const struct string *s;
    struct value values;
    if (raw->n && raw->n_keyword)
        return run_error(r, "can't handle positional and keyword arguments at the same time");
    if (!value_to_string(r, self, &s))
        return false;
    if (raw->n_keyword) {
        if (!value_dict(r, raw->n_keyword, 0, &values))
            return false;
        for (size_t i = 0; i < raw->n_keyword; i++)
            if (!dict_set(r, values.u.dict, value_string(raw->keyword[i].name),
                          raw->keyword[i].value))
                return false;
    } else if (!value_list(r, V_TUPLE, raw->pos, raw->n, 0, &values)) {
        return false;
    }
    return string_percent(r, s, values, out);
}

/* ---- Values -------------------------------------------------------------------------------- */

static bool filter_default(struct run *r, struct value self, const struct value *a,
                           const struct args *raw, struct value *out)
{
    UNUSED(raw);
    if (self.type != V_UNDEFINED && (!value_truth(a[1]) || value_truth(self))) {
        *out = self;
        return true;
    }
    *out = a[0];
    return a[0].type != V_MISSING || value_text(r, "", 0, 0, out);
}

static bool filter_attr(struct run *r, struct value self, const struct value *a,
                        const struct args *raw, struct value *out)
{
    UNUSED(raw);
    const struct string *name;
    if (!value_expect_string(r, a[0], "attr", &name))
        return false;
    bool is_unsafe = false;
    if (self.type == V_DICT && !method_find(self, name, &is_unsafe) && !is_unsafe) {
        *out = value_undefined(r, self, a[0]);
        return r->status == LATHE_OK;
    }
    return value_attribute(r, self, name, out);
}

static bool filter_tojson(struct run *r, struct value self, const struct value *a,
                          const struct args *raw, struct value *out)
{
    UNUSED(raw);
    struct json_style style = {
        .is_ascii = value_truth(a[0]), .indent = a[1], .is_sorted = value_truth(a[3])};
    if (is_given(a[2])) {
        const struct value *item;
        size_t n;
        if (!value_items(r, a[2], &item, &n))
            return false;
        if (n != 2 || item[0].type != V_STRING || item[1].type != V_STRING)
            return run_error(r, "tojson: separators must be two strings");
        style.item_separator = item[0];
        style.key_separator = item[1];
    }
    struct builder b;
    builder_init(&b, r);
    return value_to_json(r, self, &style, &b) && builder_string(&b, out);
}

/* ---- Numbers ------------------------------------------------------------------------------- */

static bool filter_abs(struct run *r, struct value self, const struct value *a,
                       const struct args *raw, struct value *out)
{
    UNUSED(a), UNUSED(raw);
    bool negative = self.type == V_FLOAT ? signbit(self.u.f) != 0
                    : self.type == V_BIG ? self.u.digits[0] == '-'
                                         : value_is_integer(self) && value_integer(self) < 0;
    if (!value_is_number(self))
        return run_error(r, "bad operand type for abs(): '%s'", value_type_name(self));
    return negative ? value_negate(r, self, out) : value_plus(r, self, out);
}

/* int(x) of a float. */
static bool truncated(struct run *r, double x, unsigned char origin, bool *valid, struct value *out)
{
    *valid = !isnan(x);
    if (isinf(x))
        return run_error(r, "cannot convert float infinity to integer");
    if (*valid && !(fabs(x) < 0x1p63))
        return run_error(r, "an integer beyond 64 bits");
    if (*valid)
        *out = value_int((int64_t)x, origin);
    return true;
}

static bool filter_int(struct run *r, struct value self, const struct value *a,
                       const struct args *raw, struct value *out)
{
    UNUSED(raw);
    int64_t base = 10;
    bool valid = false;
    double x;
    if (a[1].type != V_MISSING && !value_expect_integer(r, a[1], "int: base", &base))
        return false;
    if (self.type == V_UNDEFINED)
        return value_use_undefined(r, self);
    if (self.type == V_BIG) {
        *out = self;
        return true;
    }
    if (value_is_integer(self)) {
        *out = value_int(value_integer(self), self.origin);
        return true;
    }
    if (self.type == V_FLOAT && !truncated(r, self.u.f, self.origin, &valid, out))
        return false;
    if (self.type == V_STRING) {
        /* A base that int() refuses is a ValueError, which gives the default too. */
        if ((base == 0 || (base >= 2 && base <= 36)) &&
            !parse_integer(r, self.u.string, base, &valid, out))
            return false;
        if (!valid && parse_real(self.u.string, &x) &&
            !truncated(r, x, self.u.string->origin, &valid, out))
            return false;
    }
    if (!valid)
        *out = a[0].type == V_MISSING ? value_int(0, 0) : a[0];
    return true;
}

static bool filter_float(struct run *r, struct value self, const struct value *a,
                         const struct args *raw, struct value *out)
{
    UNUSED(raw);
    double x;
    if (self.type == V_UNDEFINED)
        return value_use_undefined(r, self);
    if (value_is_number(self))
        *out = value_float(value_real(self), self.origin);
    else if (self.type == V_STRING && parse_real(self.u.string, &x))
        *out = value_float(x, self.u.string->origin);
    else
        *out = a[0].type == V_MISSING ? value_float(0, 0) : a[0];
    return true;
}

/* round() to even on the decimal digits of the exact value, as Python and printf do it. */
static double round_half_even(double x, int64_t precision)
{
    char text[400];
    if (!isfinite(x) || precision > 300)
        return x;
    if (precision < -308)
        return copysign(0, x);
    if (precision < 0) {
        double scale = pow(10, (double)-precision), whole = nearbyint(x / scale);
        return whole * scale;
    }
    if (fabs(x) >= 1e60)
        return x;
    (void)snprintf(text, sizeof text, "%.*f", (int)precision, x);
    return strtod(text, NULL);
}

static bool round_integer(struct run *r, struct value v, int64_t precision, struct value *out)
{
    int64_t i = value_integer(v), scale = 1;
    if (precision < -18) {
        *out = value_int(0, v.origin);
        return true;
    }
    for (int64_t k = precision; k < 0; k++)
        scale *= 10;
    int64_t rest = i % scale, down = i - rest;
    int64_t half = rest < 0 ? -rest : rest, step = rest < 0 ? -scale : scale;
    bool up = half > scale - half || (half == scale - half && scale > 1 && (down / scale) & 1);
    if (up && __builtin_add_overflow(down, step, &down))
        return run_error(r, "an integer beyond 64 bits");
    *out = value_int(down, v.origin);
    return true;
}

static bool filter_round(struct run *r, struct value self, const struct value *a,
                         const struct args *raw, struct value *out)
{
    UNUSED(raw);
    int64_t precision = 0;
    const struct string *method = NULL;
    if ((a[0].type != V_MISSING && !value_expect_integer(r, a[0], "round", &precision)) ||
        (a[1].type != V_MISSING && !value_expect_string(r, a[1], "round: method", &method)))
        return false;
    bool ceiling = method && string_is(method, "ceil");
    bool common = !method || string_is(method, "common");
    if (!common && !ceiling && !string_is(method, "floor"))
        return run_error(r, "method must be common, ceil or floor");
    if (self.type == V_UNDEFINED)
        return value_use_undefined(r, self);
    if (!value_is_number(self) || self.type == V_BIG)
        return run_error(r, "type %s doesn't define __round__ method", value_type_name(self));
    if (common && value_is_integer(self))
        return round_integer(r, self, precision, out);
    if (common) {
        *out = value_float(round_half_even(self.u.f, precision), self.origin);
        return true;
    }
    double scale = pow(10, (double)precision), x = value_real(self) * scale;
    if (!isfinite(x))
        return run_error(r, "cannot convert float %s to integer", isnan(x) ? "NaN" : "infinity");
    x = ceiling ? ceil(x) : floor(x);
    /* An integer in Python, which has no negative zero. */
    *out = value_float((x == 0 ? 0 : x) / scale, self.origin);
    return true;
}

/* ---- The tables ---------------------------------------------------------------------------- */

const struct builtin filters_text[] = {
    {"abs", "", filter_abs, false},
    {"attr", "name", filter_attr, false},
    {"capitalize", "", filter_capitalize, false},
    {"center", "width?", filter_center, false},
    {"d", "default_value? boolean?", filter_default, false},
    {"default", "default_value? boolean?", filter_default, false},
    {"e", "", filter_escape, false},
    {"escape", "", filter_escape, false},
    {"float", "default?", filter_float, false},
    {"forceescape", "", filter_forceescape, false},
    {"format", "*", filter_format, false},
    {"indent", "width? first? blank?", filter_indent, false},
    {"int", "default? base?", filter_int, false},
    {"lower", "", filter_lower, false},
    {"replace", "old new count?", filter_replace, false},
    {"round", "precision? method?", filter_round, false},
    {"safe", "", filter_safe, false},
    {"string", "", filter_string, false},
    {"title", "", filter_title, false},
    {"tojson", "ensure_ascii? indent? separators? sort_keys?", filter_tojson, false},
    {"trim", "chars?", filter_trim, false},
    {"truncate", "length? killwords? end? leeway?", filter_truncate, false},
    {"upper", "", filter_upper, false},
    {"wordcount", "", filter_wordcount, false},
    {0},
};

const struct builtin *filter_find(const char *name, size_t n)
{
    const struct builtin *const tables[] = {filters_text, filters_sequence};
    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++)
        for (const struct builtin *b = tables[t]; b->name; b++)
            if (strlen(b->name) == n && memcmp(b->name, name, n) == 0)
                return b;
    return NULL;
}

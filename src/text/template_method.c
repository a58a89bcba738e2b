/* Methods of strings, lists, dicts and loops. Methods that would change a list or a dict are known
 * and refused, as jinja2's immutable sandbox does. */
#include <math.h>
#include <string.h>

#include "text/template_string.h"

#define UNUSED(x) (void)(x)

/* ---- str: search --------------------------------------------------------------------------- */

/* The part of s between two optional indices, as a slice has them; *skipped counts the code points
 * before it. False in *inside where start lies beyond the end: nothing is found there, not even "". */
static bool window(struct run *r, const struct string *s, struct value start, struct value stop,
                   const struct string **part, size_t *skipped, bool *inside)
{
    struct value none = {0}, v;
    *part = s;
    *skipped = 0;
    *inside = true;
    if (start.type == V_MISSING && stop.type == V_MISSING)
        return true;
    if (!value_slice(r, value_string(s), start, stop, none, &v))
        return false;
    *part = v.u.string;
    if (start.type == V_MISSING || start.type == V_NONE)
        return true;
    int64_t n = (int64_t)string_length(s), i = value_integer(start);
    i = i < 0 ? (i + n < 0 ? 0 : i + n) : i;
    *inside = i <= n;
    *skipped = (size_t)(i < n ? i : n);
    return true;
}

static bool search(struct run *r, struct value self, const struct value *a, bool last,
                   const char *method, bool must, struct value *out)
{
    const struct string *what, *part;
    size_t skipped;
    bool inside;
    if (!value_expect_string(r, a[0], method, &what) ||
        !window(r, self.u.string, a[1], a[2], &part, &skipped, &inside) || !run_bytes(r, part->n))
        return false;
    size_t at = !inside ? SIZE_MAX
                : last  ? string_rfind(r, part, what, SIZE_MAX)
                        : string_find(r, part, what, 0);
    if (r->status)
        return false;
    if (at == SIZE_MAX) {
        if (must)
            return run_error(r, "substring not found");
        *out = value_int(-1, self.u.string->origin);
        return true;
    }
    struct string before = {.s = part->s, .n = at};
    *out = value_int((int64_t)(skipped + string_length(&before)), self.u.string->origin);
    return true;
}

#define METHOD(name)                                                                               \
    static bool name(struct run *r, struct value self, const struct value *a,                      \
                     const struct args *raw, struct value *out)

METHOD(str_find)
{
    UNUSED(raw);
    return search(r, self, a, false, "find", false, out);
}

METHOD(str_rfind)
{
    UNUSED(raw);
    return search(r, self, a, true, "rfind", false, out);
}

METHOD(str_index)
{
    UNUSED(raw);
    return search(r, self, a, false, "index", true, out);
}

METHOD(str_rindex)
{
    UNUSED(raw);
    return search(r, self, a, true, "rindex", true, out);
}

METHOD(str_count)
{
    UNUSED(raw);
    const struct string *what, *part;
    size_t skipped, at = 0;
    bool inside;
    int64_t n = 0;
    if (!value_expect_string(r, a[0], "count", &what) ||
        !window(r, self.u.string, a[1], a[2], &part, &skipped, &inside) || !run_bytes(r, part->n))
        return false;
    if (what->n == 0)
        n = inside ? (int64_t)string_length(part) + 1 : 0;
    else
        for (; (at = string_find(r, part, what, at)) != SIZE_MAX; at += what->n)
            n++;
    *out = value_int(n, self.u.string->origin);
    return r->status == LATHE_OK;
}

static bool affix(struct run *r, struct value self, const struct value *a, bool at_end,
                  struct value *out)
{
    const struct value *item = &a[0];
    const struct string *part, *what;
    size_t n = 1, skipped;
    bool inside, holds = false;
    if (a[0].type == V_TUPLE) {
        item = a[0].u.list->item;
        n = a[0].u.list->n;
    }
    if (!window(r, self.u.string, a[1], a[2], &part, &skipped, &inside))
        return false;
    for (size_t i = 0; i < n && !holds; i++) {
        if (!value_expect_string(r, item[i], at_end ? "endswith" : "startswith", &what) ||
            !run_bytes(r, what->n))
            return false;
        holds = inside && (at_end ? string_has_suffix(part, what) : string_has_prefix(part, what));
    }
    *out = value_bool(holds, 0);
    return true;
}

METHOD(str_startswith)
{
    UNUSED(raw);
    return affix(r, self, a, false, out);
}

METHOD(str_endswith)
{
    UNUSED(raw);
    return affix(r, self, a, true, out);
}

/* ---- str: parts ---------------------------------------------------------------------------- */

static bool strip(struct run *r, struct value self, const struct value *a, enum strip_side side,
                  struct value *out)
{
    const struct string *chars = NULL;
    if (a[0].type != V_MISSING && a[0].type != V_NONE &&
        !value_expect_string(r, a[0], "strip", &chars))
        return false;
    return string_strip(r, self.u.string, chars, side, out);
}

METHOD(str_strip)
{
    UNUSED(raw);
    return strip(r, self, a, STRIP_BOTH, out);
}

METHOD(str_lstrip)
{
    UNUSED(raw);
    return strip(r, self, a, STRIP_LEFT, out);
}

METHOD(str_rstrip)
{
    UNUSED(raw);
    return strip(r, self, a, STRIP_RIGHT, out);
}

static bool split(struct run *r, struct value self, const struct value *a, bool from_right,
                  struct value *out)
{
    const struct string *separator = NULL;
    int64_t max = -1;
    if ((a[0].type != V_MISSING && a[0].type != V_NONE &&
         !value_expect_string(r, a[0], "split", &separator)) ||
        (a[1].type != V_MISSING && !value_expect_integer(r, a[1], "split: maxsplit", &max)))
        return false;
    return string_split(r, self.u.string, separator, max, from_right, out);
}

METHOD(str_split)
{
    UNUSED(raw);
    return split(r, self, a, false, out);
}

METHOD(str_rsplit)
{
    UNUSED(raw);
    return split(r, self, a, true, out);
}

METHOD(str_splitlines)
{
    UNUSED(raw);
    return string_splitlines(r, self.u.string, value_truth(a[0]), out);
}

static bool partition(struct run *r, struct value self, const struct value *a, bool last,
                      struct value *out)
{
    const struct string *s = self.u.string, *what;
    if (!value_expect_string(r, a[0], "partition", &what) || !run_bytes(r, s->n))
        return false;
    if (what->n == 0)
        return run_error(r, "empty separator");
    size_t at = last ? string_rfind(r, s, what, SIZE_MAX) : string_find(r, s, what, 0);
    struct value *v = run_array(r, 3, sizeof *v);
    if (!v || r->status)
        return false;
    size_t from = at, to = at + what->n;
    if (at == SIZE_MAX)
        from = to = last ? 0 : s->n;
    if (!string_part(r, s, 0, from, &v[0]) || !string_part(r, s, from, to, &v[1]) ||
        !string_part(r, s, to, s->n, &v[2]))
        return false;
    return value_list(r, V_TUPLE, v, 3, s->origin, out);
}

METHOD(str_partition)
{
    UNUSED(raw);
    return partition(r, self, a, false, out);
}

METHOD(str_rpartition)
{
    UNUSED(raw);
    return partition(r, self, a, true, out);
}

METHOD(str_removeprefix)
{
    UNUSED(raw);
    const struct string *s = self.u.string, *what;
    if (!value_expect_string(r, a[0], "removeprefix", &what))
        return false;
    return string_part(r, s, string_has_prefix(s, what) ? what->n : 0, s->n, out);
}

METHOD(str_removesuffix)
{
    UNUSED(raw);
    const struct string *s = self.u.string, *what;
    if (!value_expect_string(r, a[0], "removesuffix", &what))
        return false;
    return string_part(r, s, 0, string_has_suffix(s, what) ? s->n - what->n : s->n, out);
}

/* ---- str: new strings ---------------------------------------------------------------------- */

METHOD(str_replace)
{
    UNUSED(raw);
    const struct string *old, *with;
    int64_t max = -1;
    if (!value_expect_string(r, a[0], "replace", &old) ||
        !value_expect_string(r, a[1], "replace", &with) ||
        (a[2].type != V_MISSING && !value_expect_integer(r, a[2], "replace: count", &max)))
        return false;
    return string_replace(r, self.u.string, old, with, max, out);
}

METHOD(str_join)
{
    UNUSED(raw);
    const struct value *item;
    size_t n;
    if (!value_items(r, a[0], &item, &n))
        return false;
    if (!self.u.string->is_markup)
        return string_join(r, self.u.string, item, n, true, out);
    struct value *escaped = run_array(r, n, sizeof *escaped);
    if (!escaped)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!string_escape(r, item[i], &escaped[i]))
            return false;
    return string_join(r, self.u.string, escaped, n, true, out) && string_mark(r, out);
}

METHOD(str_upper)
{
    UNUSED(a), UNUSED(raw);
    return string_case(r, self.u.string, CASE_UPPER, out);
}

METHOD(str_lower)
{
    UNUSED(a), UNUSED(raw);
    return string_case(r, self.u.string, CASE_LOWER, out);
}

METHOD(str_title)
{
    UNUSED(a), UNUSED(raw);
    return string_case(r, self.u.string, CASE_TITLE, out);
}

METHOD(str_capitalize)
{
    UNUSED(a), UNUSED(raw);
    return string_case(r, self.u.string, CASE_CAPITAL, out);
}

METHOD(str_swapcase)
{
    UNUSED(a), UNUSED(raw);
    return string_case(r, self.u.string, CASE_SWAP, out);
}

/* Pads to the width; the share of the left side is in `left` of the missing. */
static bool pad(struct run *r, struct value self, const struct value *a, char side,
                struct value *out)
{
    static const struct string blank = {.s = " ", .n = 1};
    const struct string *fill = &blank, *s = self.u.string;
    int64_t width;
    if (!value_expect_integer(r, a[0], "width", &width) ||
        (a[1].type != V_MISSING && !value_expect_string(r, a[1], "fill", &fill)))
        return false;
    struct value escaped;
    if (s->is_markup) {
        if (!string_escape(r, value_string(fill), &escaped))
            return false;
        fill = escaped.u.string;
    }
    if (string_length(fill) != 1)
        return run_error(r, "The fill character must be exactly one character long");
    int64_t missing = width - (int64_t)string_length(s);
    if (missing <= 0) {
        *out = self;
        return true;
    }
    int64_t left = side == '<' ? 0 : side == '>' ? missing : missing / 2 + (missing & width & 1);
    struct value l, rest;
    return string_repeat(r, fill, left, &l) && string_repeat(r, fill, missing - left, &rest) &&
           string_concat(r, l.u.string, s, &l) && string_concat(r, l.u.string, rest.u.string, out);
}

METHOD(str_ljust)
{
    UNUSED(raw);
    return pad(r, self, a, '<', out);
}

METHOD(str_rjust)
{
    UNUSED(raw);
    return pad(r, self, a, '>', out);
}

METHOD(str_center)
{
    UNUSED(raw);
    return pad(r, self, a, '^', out);
}

METHOD(str_zfill)
{
    UNUSED(raw);
    static const struct string zero = {.s = "0", .n = 1};
    const struct string *s = self.u.string;
    int64_t width;
    if (!value_expect_integer(r, a[0], "zfill", &width))
        return false;
    size_t sign = s->n && (s->s[0] == '-' || s->s[0] == '+');
    struct value zeros, head, tail;
    return string_repeat(r, &zero, width - (int64_t)string_length(s), &zeros) &&
           string_part(r, s, 0, sign, &head) && string_part(r, s, sign, s->n, &tail) &&
           string_concat(r, head.u.string, zeros.u.string, &head) &&
           string_concat(r, head.u.string, tail.u.string, out);
}

METHOD(str_format)
{
    UNUSED(a);
    return string_format(r, self.u.string, raw, out);
}

/* ---- str: questions ------------------------------------------------------------------------ */

static bool all(struct run *r, struct value self, enum character_class k, struct value *out)
{
    *out = value_bool(string_is_all(self.u.string, k), 0);
    return run_steps(r, self.u.string->n / 8);
}

#define CLASS_METHOD(name, k)                                                                      \
    METHOD(name)                                                                                   \
    {                                                                                              \
        UNUSED(a), UNUSED(raw);                                                                    \
        return all(r, self, k, out);                                                               \
    }

CLASS_METHOD(str_isalpha, CLASS_ALPHA)
CLASS_METHOD(str_isdigit, CLASS_DIGIT)
CLASS_METHOD(str_isdecimal, CLASS_DECIMAL)
CLASS_METHOD(str_isnumeric, CLASS_NUMERIC)
CLASS_METHOD(str_isalnum, CLASS_ALNUM)
CLASS_METHOD(str_isspace, CLASS_SPACE)
CLASS_METHOD(str_isprintable, CLASS_PRINTABLE)

#define CASED_METHOD(name, as)                                                                     \
    METHOD(name)                                                                                   \
    {                                                                                              \
        UNUSED(a), UNUSED(raw);                                                                    \
        *out = value_bool(string_is_cased(self.u.string, as), 0);                                  \
        return run_steps(r, self.u.string->n / 8);                                                 \
    }

CASED_METHOD(str_islower, CASE_LOWER)
CASED_METHOD(str_isupper, CASE_UPPER)
CASED_METHOD(str_istitle, CASE_TITLE)

METHOD(str_isascii)
{
    UNUSED(a), UNUSED(raw);
    const struct string *s = self.u.string;
    bool ascii = true;
    for (size_t i = 0; i < s->n; i++)
        ascii = ascii && (unsigned char)s->s[i] < 0x80;
    *out = value_bool(ascii, 0);
    return run_bytes(r, s->n);
}

/* ---- list and tuple ------------------------------------------------------------------------ */

METHOD(list_index)
{
    UNUSED(raw);
    struct value none = {0}, part = self;
    const struct value *item;
    int64_t from = 0;
    size_t n;
    if (a[1].type != V_MISSING) {
        if (!value_length(r, self, &n) || !value_expect_integer(r, a[1], "index", &from) ||
            !value_slice(r, self, a[1], a[2], none, &part))
            return false;
        from = from < 0 ? (from + (int64_t)n < 0 ? 0 : from + (int64_t)n) : from;
    }
    if (!value_items(r, part, &item, &n))
        return false;
    for (size_t i = 0; i < n; i++) {
        bool equal;
        if (!value_equal(r, item[i], a[0], &equal))
            return false;
        if (equal) {
            *out = value_int(from + (int64_t)i, self.origin);
            return true;
        }
    }
    return run_error(r, "the value is not in the list");
}

METHOD(list_count)
{
    UNUSED(raw);
    const struct value *item;
    int64_t count = 0;
    size_t n;
    if (!value_items(r, self, &item, &n))
        return false;
    for (size_t i = 0; i < n; i++) {
        bool equal;
        if (!value_equal(r, item[i], a[0], &equal))
            return false;
        count += equal;
    }
    *out = value_int(count, self.origin);
    return true;
}

METHOD(same)
{
    UNUSED(r), UNUSED(a), UNUSED(raw);
    *out = self;
    return true;
}

/* ---- dict ---------------------------------------------------------------------------------- */

METHOD(dict_get_item)
{
    UNUSED(raw);
    const struct value *found;
    if (!dict_find(r, self.u.dict, a[0], &found))
        return false;
    *out = found ? *found : a[1].type == V_MISSING ? value_none() : a[1];
    return true;
}

static bool view(struct run *r, struct value self, enum view_of of, struct value *out)
{
    struct view *v = run_alloc(r, sizeof *v);
    if (!v)
        return false;
    v->dict = self.u.dict;
    v->of = of;
    *out = (struct value){.type = V_VIEW, .origin = self.origin, .u.view = v};
    return true;
}

METHOD(dict_items)
{
    UNUSED(a), UNUSED(raw);
    return view(r, self, VIEW_ITEMS, out);
}

METHOD(dict_keys)
{
    UNUSED(a), UNUSED(raw);
    return view(r, self, VIEW_KEYS, out);
}

METHOD(dict_values)
{
    UNUSED(a), UNUSED(raw);
    return view(r, self, VIEW_VALUES, out);
}

/* ---- The rest ------------------------------------------------------------------------------ */

METHOD(float_is_integer)
{
    UNUSED(r), UNUSED(a), UNUSED(raw);
    *out = value_bool(isfinite(self.u.f) && self.u.f == floor(self.u.f), 0);
    return true;
}

METHOD(loop_cycle_items)
{
    UNUSED(a);
    return loop_cycle(r, self.u.loop, raw, out);
}

METHOD(loop_is_changed)
{
    UNUSED(a);
    return loop_changed(r, self.u.loop, raw, out);
}

METHOD(cycler_next)
{
    UNUSED(r), UNUSED(a), UNUSED(raw);
    struct cycler *c = self.u.cycler;
    *out = c->item[c->at];
    c->at = (c->at + 1) % c->n;
    return true;
}

METHOD(cycler_reset)
{
    UNUSED(r), UNUSED(a), UNUSED(raw);
    self.u.cycler->at = 0;
    *out = value_none();
    return true;
}

/* fn NULL: refused by the sandbox. */
static const struct builtin str_methods[] = {
    {"capitalize", "", str_capitalize, false},
    {"center", "width fill?", str_center, false},
    {"count", "sub start? end?", str_count, false},
    {"endswith", "suffix start? end?", str_endswith, false},
    {"find", "sub start? end?", str_find, false},
    {"format", "*", str_format, false},
    {"index", "sub start? end?", str_index, false},
    {"isalnum", "", str_isalnum, false},
    {"isalpha", "", str_isalpha, false},
    {"isascii", "", str_isascii, false},
    {"isdecimal", "", str_isdecimal, false},
    {"isdigit", "", str_isdigit, false},
    {"islower", "", str_islower, false},
    {"isnumeric", "", str_isnumeric, false},
    {"isprintable", "", str_isprintable, false},
    {"isspace", "", str_isspace, false},
    {"istitle", "", str_istitle, false},
    {"isupper", "", str_isupper, false},
    {"join", "iterable", str_join, false},
    {"ljust", "width fill?", str_ljust, false},
    {"lower", "", str_lower, false},
    {"lstrip", "chars?", str_lstrip, false},
    {"partition", "sep", str_partition, false},
    {"removeprefix", "prefix", str_removeprefix, false},
    {"removesuffix", "suffix", str_removesuffix, false},
    {"replace", "old new count?", str_replace, false},
    {"rfind", "sub start? end?", str_rfind, false},
    {"rindex", "sub start? end?", str_rindex, false},
    {"rjust", "width fill?", str_rjust, false},
    {"rpartition", "sep", str_rpartition, false},
    {"rsplit", "sep? maxsplit?", str_rsplit, false},
    {"rstrip", "chars?", str_rstrip, false},
    {"split", "sep? maxsplit?", str_split, false},
    {"splitlines", "keepends?", str_splitlines, false},
    {"startswith", "prefix start? end?", str_startswith, false},
    {"strip", "chars?", str_strip, false},
    {"swapcase", "", str_swapcase, false},
    {"title", "", str_title, false},
    {"upper", "", str_upper, false},
    {"zfill", "width", str_zfill, false},
    {0},
};
static const struct builtin list_methods[] = {
    {"append", "*", NULL, false}, {"clear", "*", NULL, false},
    {"copy", "", same, false},    {"count", "value", list_count, false},
    {"extend", "*", NULL, false}, {"index", "value start? stop?", list_index, false},
    {"insert", "*", NULL, false}, {"pop", "*", NULL, false},
    {"remove", "*", NULL, false}, {"reverse", "*", NULL, false},
    {"sort", "*", NULL, false},   {0},
};
static const struct builtin tuple_methods[] = {
    {"count", "value", list_count, false},
    {"index", "value start? stop?", list_index, false},
    {0},
};
static const struct builtin dict_methods[] = {
    {"clear", "*", NULL, false},
    {"copy", "", same, false},
    {"get", "key default?", dict_get_item, false},
    {"items", "", dict_items, false},
    {"keys", "", dict_keys, false},
    {"pop", "*", NULL, false},
    {"popitem", "*", NULL, false},
    {"setdefault", "*", NULL, false},
    {"update", "*", NULL, false},
    {"values", "", dict_values, false},
    {0},
};
static const struct builtin float_methods[] = {{"is_integer", "", float_is_integer, false}, {0}};
static const struct builtin loop_methods[] = {
    {"changed", "*", loop_is_changed, false}, {"cycle", "*", loop_cycle_items, false}, {0}};
static const struct builtin cycler_methods[] = {
    {"next", "", cycler_next, false}, {"reset", "", cycler_reset, false}, {0}};

const struct builtin *method_find(struct value self, const struct string *name, bool *is_unsafe)
{
    const struct builtin *b;
    *is_unsafe = false;
    switch ((enum value_type)self.type) {
    case V_STRING:
        b = str_methods;
        break;
    case V_LIST:
        b = list_methods;
        break;
    case V_TUPLE:
    case V_RANGE:
        b = tuple_methods;
        break;
    case V_DICT:
        b = dict_methods;
        break;
    case V_FLOAT:
        b = float_methods;
        break;
    case V_LOOP:
        b = loop_methods;
        break;
    case V_CYCLER:
        b = cycler_methods;
        break;
    default:
        return NULL;
    }
    for (; b->name; b++) {
        if (string_is(name, b->name)) {
            *is_unsafe = !b->fn;
            return b->fn ? b : NULL;
        }
    }
    return NULL;
}

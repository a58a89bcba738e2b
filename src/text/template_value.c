#include "text/template_value.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/template_string.h"

enum { WATCH_STEPS = 16384 /* about a millisecond */ };

/* ---- The run ------------------------------------------------------------------------------- */

void template_limits_init(struct template_limits *limits, size_t input_bytes)
{
    /* A turn's text is copied a few times on its way to the output, each byte with its origin; a
     * small value costs about 100 bytes. */
    size_t per_byte = 24, most = SIZE_MAX / 2 / per_byte;
    size_t bytes = input_bytes < most ? input_bytes : most;
    *limits = (struct template_limits){
        .memory_bytes = ((size_t)256 << 20) + per_byte * bytes,
        .output_bytes = ((size_t)16 << 20) + 4 * bytes,
        .steps = 20000000 + 16 * (int64_t)bytes,
        .depth = 1000, /* a level takes about 1 KiB of stack */
        .now = time(NULL),
    };
}

void run_open(struct run *r, const struct template_limits *limits, lathe_error *err)
{
    *r = (struct run){.limits = *limits, .err = err};
    arena_init(&r->arena, limits->memory_bytes);
}

void run_close(struct run *r)
{
    arena_release(&r->arena);
}

PRINTF_LIKE(3, 0)
static bool fail_with(struct run *r, lathe_status status, const char *fmt, va_list ap)
{
    if (r->status)
        return false;
    r->status = status;
    char text[sizeof((lathe_error *)0)->message];
    (void)vsnprintf(text, sizeof text, fmt, ap);
    if (r->line)
        (void)fail(r->err, status, "line %d: %s", (int)r->line, text);
    else
        (void)fail(r->err, status, "%s", text);
    return false;
}

bool run_fail(struct run *r, lathe_status status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)fail_with(r, status, fmt, ap);
    va_end(ap);
    return false;
}

bool run_error(struct run *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)fail_with(r, LATHE_E_TEMPLATE, fmt, ap);
    va_end(ap);
    return false;
}

void *run_alloc(struct run *r, size_t bytes)
{
    void *p = arena_alloc(&r->arena, bytes);
    if (p)
        return p;
    if (bytes > r->arena.limit || r->arena.used > r->arena.limit - bytes ||
        r->arena.limit - r->arena.used - bytes < 16)
        (void)run_error(r, "the template needs more than its limit of %zu bytes of memory",
                        r->arena.limit);
    else
        (void)run_fail(r, LATHE_E_MEMORY, "out of memory (%zu bytes)", bytes);
    return NULL;
}

void *run_array(struct run *r, size_t n, size_t size)
{
    return run_alloc(r, size && n > SIZE_MAX / size ? SIZE_MAX : n * size);
}

bool run_steps(struct run *r, size_t n)
{
    if (r->status)
        return false;
    if (n > INT64_MAX || (int64_t)n > r->limits.steps - r->steps)
        return run_error(r, "the template takes more than its limit of %lld steps",
                         (long long)r->limits.steps);
    r->steps += (int64_t)n;
    if (watch_work(r->limits.watch, n, WATCH_STEPS, NULL))
        return run_fail(r, LATHE_E_CANCELLED, "nobody wants the text any more");
    return true;
}

bool run_bytes(struct run *r, size_t n)
{
    return run_steps(r, n / 32);
}

bool run_enter(struct run *r)
{
    r->depth++;
    if (r->depth > r->limits.depth)
        return run_error(r, "nested deeper than the limit of %d levels", (int)r->limits.depth);
    return r->status == LATHE_OK;
}

void run_leave(struct run *r)
{
    r->depth--;
}

/* ---- Making values ------------------------------------------------------------------------- */

struct value value_none(void)
{
    return (struct value){.type = V_NONE};
}

struct value value_bool(bool b, unsigned char origin)
{
    return (struct value){.type = V_BOOL, .origin = origin, .u.b = b};
}

struct value value_int(int64_t i, unsigned char origin)
{
    return (struct value){.type = V_INT, .origin = origin, .u.i = i};
}

struct value value_float(double f, unsigned char origin)
{
    return (struct value){.type = V_FLOAT, .origin = origin, .u.f = f};
}

struct value value_string(const struct string *s)
{
    return (struct value){.type = V_STRING, .u.string = s};
}

struct value value_undefined_hint(struct run *r, const char *hint)
{
    struct undefined *u = run_alloc(r, sizeof *u);
    if (u)
        *u = (struct undefined){.hint = hint};
    return (struct value){.type = V_UNDEFINED, .u.undefined = u};
}

struct value value_undefined(struct run *r, struct value owner, struct value name)
{
    struct undefined *u = run_alloc(r, sizeof *u);
    struct value v = {.type = V_UNDEFINED, .u.undefined = u};
    if (!u)
        return v;
    *u = (struct undefined){.owner = owner.type ? value_type_name(owner) : NULL};
    if (name.type == V_STRING) {
        u->name = name.u.string;
    } else {
        u->is_element = true;
        if (value_is_number(name))
            (void)value_to_string(r, name, &u->name);
    }
    return v;
}

bool value_use_undefined(struct run *r, struct value v)
{
    const struct undefined *u = v.u.undefined;
    if (!u || (!u->hint && !u->name && !u->owner))
        return run_error(r, "an undefined value is used");
    if (u->hint)
        return run_error(r, "%s", u->hint);
    int n = u->name ? u->name->n < 200 ? (int)u->name->n : 200 : 1;
    const char *name = u->name ? u->name->s : "?";
    if (!u->owner)
        return run_error(r, "'%.*s' is undefined", n, name);
    if (u->is_element)
        return run_error(r, "%s object has no element %.*s", u->owner, n, name);
    return run_error(r, "'%s object' has no attribute '%.*s'", u->owner, n, name);
}

bool value_text(struct run *r, const char *s, size_t n, unsigned char origin, struct value *out)
{
    struct string *str = run_alloc(r, sizeof *str);
    if (!str)
        return false;
    *str = (struct string){.s = s, .n = n, .origin = origin};
    *out = value_string(str);
    return true;
}

bool value_list(struct run *r, enum value_type type, const struct value *item, size_t n,
                unsigned char origin, struct value *out)
{
    struct list *l = run_alloc(r, sizeof *l);
    if (!l)
        return false;
    *l = (struct list){.item = item, .n = n};
    *out = (struct value){.type = (unsigned char)type, .origin = origin, .u.list = l};
    return true;
}

bool value_pair(struct run *r, struct value a, struct value b, struct value *out)
{
    struct value *item = run_array(r, 2, sizeof *item);
    if (!item)
        return false;
    item[0] = a;
    item[1] = b;
    return value_list(r, V_TUPLE, item, 2, 0, out);
}

bool value_generator(struct run *r, const struct value *item, size_t n, struct value *out)
{
    struct generator *g = run_alloc(r, sizeof *g);
    if (!g)
        return false;
    *g = (struct generator){.item = item, .n = n};
    *out = (struct value){.type = V_GENERATOR, .u.generator = g};
    return true;
}

/* ---- Asking values ------------------------------------------------------------------------- */

const char *value_type_name(struct value v)
{
    static const char *const name[] = {
        [V_MISSING] = "missing",
        [V_UNDEFINED] = "Undefined",
        [V_NONE] = "NoneType",
        [V_BOOL] = "bool",
        [V_INT] = "int",
        [V_BIG] = "int",
        [V_FLOAT] = "float",
        [V_STRING] = "str",
        [V_LIST] = "list",
        [V_TUPLE] = "tuple",
        [V_DICT] = "dict",
        [V_VIEW] = "dict view",
        [V_RANGE] = "range",
        [V_GENERATOR] = "generator",
        [V_NAMESPACE] = "Namespace",
        [V_LOOP] = "LoopContext",
        [V_MACRO] = "Macro",
        [V_FUNCTION] = "function",
        [V_METHOD] = "method",
        [V_CYCLER] = "Cycler",
        [V_JOINER] = "Joiner",
    };
    return v.type == V_STRING && v.u.string->is_markup ? "Markup" : name[v.type];
}

bool value_truth(struct value v)
{
    switch ((enum value_type)v.type) {
    case V_MISSING:
    case V_UNDEFINED:
    case V_NONE:
        return false;
    case V_BOOL:
        return v.u.b;
    case V_INT:
        return v.u.i != 0;
    case V_FLOAT:
        return v.u.f != 0;
    case V_STRING:
        return v.u.string->n > 0;
    case V_LIST:
    case V_TUPLE:
        return v.u.list->n > 0;
    case V_DICT:
        return v.u.dict->n > 0;
    case V_VIEW:
        return v.u.view->dict->n > 0;
    case V_RANGE:
        return v.u.range->n > 0;
    case V_LOOP:
    case V_BIG:
    case V_GENERATOR:
    case V_NAMESPACE:
    case V_MACRO:
    case V_FUNCTION:
    case V_METHOD:
    case V_CYCLER:
    case V_JOINER:
        break;
    }
    return true;
}

bool value_is_integer(struct value v)
{
    return v.type == V_INT || v.type == V_BOOL;
}

bool value_is_number(struct value v)
{
    return v.type >= V_BOOL && v.type <= V_FLOAT;
}

int64_t value_integer(struct value v)
{
    return v.type == V_BOOL ? v.u.b : v.u.i;
}

double value_real(struct value v)
{
    if (v.type == V_FLOAT)
        return v.u.f;
    if (v.type == V_BIG)
        return strtod(v.u.digits, NULL);
    return (double)value_integer(v);
}

static int compare_digits(const char *a, const char *b)
{
    bool minus = *a == '-';
    if (minus != (*b == '-'))
        return minus ? -1 : 1;
    size_t n = strlen(a), m = strlen(b);
    int c = n != m ? (n < m ? -1 : 1) : strcmp(a, b);
    return minus ? -c : c;
}

/* 2 if one of them is NaN. */
static int compare_numbers(struct value a, struct value b)
{
    if (value_is_integer(a) && value_is_integer(b)) {
        int64_t x = value_integer(a), y = value_integer(b);
        return x < y ? -1 : x > y;
    }
    if (a.type == V_BIG && b.type == V_BIG)
        return compare_digits(a.u.digits, b.u.digits);
    if (a.type == V_BIG && b.type != V_FLOAT)
        return a.u.digits[0] == '-' ? -1 : 1;
    if (b.type == V_BIG && a.type != V_FLOAT)
        return b.u.digits[0] == '-' ? 1 : -1;
    if (value_is_integer(a) && b.type == V_FLOAT && fabs(b.u.f) < 0x1p63 && b.u.f == trunc(b.u.f)) {
        int64_t x = value_integer(a), y = (int64_t)b.u.f;
        return x < y ? -1 : x > y;
    }
    if (value_is_integer(b) && a.type == V_FLOAT) {
        int c = compare_numbers(b, a);
        return c == 2 ? 2 : -c;
    }
    double x = value_real(a), y = value_real(b);
    return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
}

static bool equal_lists(struct run *r, const struct list *a, const struct list *b, bool *equal)
{
    *equal = a->n == b->n;
    for (size_t i = 0; *equal && i < a->n; i++)
        if (!value_equal(r, a->item[i], b->item[i], equal))
            return false;
    return true;
}

static bool equal_dicts(struct run *r, const struct dict *a, const struct dict *b, bool *equal)
{
    *equal = a->n == b->n;
    for (size_t i = 0; *equal && i < a->n; i++) {
        const struct value *v;
        if (!dict_find(r, b, a->entry[i].key, &v))
            return false;
        *equal = v != NULL;
        if (v && !value_equal(r, a->entry[i].value, *v, equal))
            return false;
    }
    return true;
}

static bool equal_inner(struct run *r, struct value a, struct value b, bool *equal)
{
    *equal = false;
    if (value_is_number(a) && value_is_number(b)) {
        *equal = compare_numbers(a, b) == 0;
        return true;
    }
    if (a.type != b.type)
        return true;
    switch ((enum value_type)a.type) {
    case V_MISSING:
    case V_UNDEFINED:
    case V_NONE:
        *equal = true;
        return true;
    case V_STRING:
        if (a.u.string->n == b.u.string->n && !run_bytes(r, a.u.string->n))
            return false;
        *equal = string_equal(a.u.string, b.u.string);
        return true;
    case V_LIST:
    case V_TUPLE:
        return equal_lists(r, a.u.list, b.u.list, equal);
    case V_DICT:
        return equal_dicts(r, a.u.dict, b.u.dict, equal);
    case V_RANGE:
        *equal = a.u.range->n == b.u.range->n &&
                 (a.u.range->n == 0 || (a.u.range->start == b.u.range->start &&
                                        (a.u.range->n == 1 || a.u.range->step == b.u.range->step)));
        return true;
    case V_VIEW: {
        /* keys() and items() compare as sets; values() only with itself. */
        const struct view *x = a.u.view, *y = b.u.view;
        *equal = x == y;
        if (*equal || x->of != y->of || x->of == VIEW_VALUES || x->dict->n != y->dict->n)
            return true;
        if (x->of == VIEW_ITEMS)
            return equal_dicts(r, x->dict, y->dict, equal);
        *equal = true;
        for (size_t i = 0; *equal && i < x->dict->n; i++) {
            const struct value *v;
            if (!dict_find(r, y->dict, x->dict->entry[i].key, &v))
                return false;
            *equal = v != NULL;
        }
        return true;
    }
    case V_METHOD:
        *equal = a.u.method->builtin == b.u.method->builtin &&
                 a.u.method->self.u.string == b.u.method->self.u.string;
        return true;
    default: /* identity */
        *equal = a.u.string == b.u.string;
        return true;
    }
}

bool value_equal(struct run *r, struct value a, struct value b, bool *equal)
{
    bool ok = run_enter(r) && run_steps(r, 1) && equal_inner(r, a, b, equal);
    run_leave(r);
    return ok;
}

static bool compare_inner(struct run *r, const char *op, struct value a, struct value b, int *order)
{
    if (value_is_number(a) && value_is_number(b)) {
        *order = compare_numbers(a, b);
        return true;
    }
    if (a.type == V_STRING && b.type == V_STRING) {
        *order = string_compare(a.u.string, b.u.string);
        return run_bytes(r, a.u.string->n);
    }
    if (a.type == b.type && (a.type == V_LIST || a.type == V_TUPLE)) {
        const struct list *x = a.u.list, *y = b.u.list;
        for (size_t i = 0; i < x->n && i < y->n; i++) {
            bool equal;
            if (!value_equal(r, x->item[i], y->item[i], &equal))
                return false;
            if (!equal)
                return value_compare(r, op, x->item[i], y->item[i], order);
        }
        *order = x->n < y->n ? -1 : x->n > y->n;
        return true;
    }
    if (a.type == V_UNDEFINED)
        return value_use_undefined(r, a);
    if (b.type == V_UNDEFINED)
        return value_use_undefined(r, b);
    return run_error(r, "'%s' not supported between instances of '%s' and '%s'", op,
                     value_type_name(a), value_type_name(b));
}

bool value_compare(struct run *r, const char *op, struct value a, struct value b, int *order)
{
    bool ok = run_enter(r) && run_steps(r, 1) && compare_inner(r, op, a, b, order);
    run_leave(r);
    return ok;
}

bool value_contains(struct run *r, struct value c, struct value item, bool *found)
{
    *found = false;
    if (c.type == V_STRING) {
        if (item.type == V_UNDEFINED)
            return run_error(r, "'in <string>' requires string as left operand, not Undefined");
        if (item.type != V_STRING)
            return run_error(r, "'in <string>' requires string as left operand, not %s",
                             value_type_name(item));
        *found = string_find(r, c.u.string, item.u.string, 0) != SIZE_MAX;
        return run_bytes(r, c.u.string->n);
    }
    if (c.type == V_DICT || (c.type == V_VIEW && c.u.view->of == VIEW_KEYS)) {
        const struct value *v;
        if (!dict_find(r, c.type == V_DICT ? c.u.dict : c.u.view->dict, item, &v))
            return false;
        *found = v != NULL;
        return true;
    }
    if (!value_is_iterable(c))
        return run_error(r, "argument of type '%s' is not iterable", value_type_name(c));
    const struct value *v;
    size_t n;
    if (!value_items(r, c, &v, &n))
        return false;
    for (size_t i = 0; i < n && !*found; i++)
        if (!value_equal(r, item, v[i], found))
            return false;
    return true;
}

bool value_has_length(struct value v)
{
    return v.type == V_UNDEFINED || (v.type >= V_STRING && v.type <= V_RANGE) || v.type == V_LOOP;
}

bool value_length(struct run *r, struct value v, size_t *n)
{
    *n = 0;
    switch ((enum value_type)v.type) {
    case V_UNDEFINED:
        return true;
    case V_STRING:
        *n = string_length(v.u.string);
        return run_bytes(r, v.u.string->n);
    case V_LIST:
    case V_TUPLE:
        *n = v.u.list->n;
        return true;
    case V_DICT:
        *n = v.u.dict->n;
        return true;
    case V_VIEW:
        *n = v.u.view->dict->n;
        return true;
    case V_RANGE:
        *n = v.u.range->n;
        return true;
    case V_LOOP:
        return loop_length(r, v.u.loop, n);
    default:
        return run_error(r, "object of type '%s' has no len()", value_type_name(v));
    }
}

bool value_is_iterable(struct value v)
{
    return v.type == V_UNDEFINED || (v.type >= V_STRING && v.type <= V_GENERATOR);
}

bool value_items(struct run *r, struct value v, const struct value **item, size_t *n)
{
    *item = NULL;
    *n = 0;
    struct value *a;
    switch ((enum value_type)v.type) {
    case V_UNDEFINED:
        return true;
    case V_STRING:
        return string_chars(r, v.u.string, item, n);
    case V_LIST:
    case V_TUPLE:
        *item = v.u.list->item;
        *n = v.u.list->n;
        return run_steps(r, *n / 4);
    case V_GENERATOR:
        if (!generator_start(r, v.u.generator))
            return false;
        *n = v.u.generator->n - v.u.generator->at;
        *item = *n ? v.u.generator->item + v.u.generator->at : NULL;
        v.u.generator->at = v.u.generator->n;
        return run_steps(r, *n / 4);
    case V_DICT:
    case V_VIEW: {
        const struct dict *d = v.type == V_DICT ? v.u.dict : v.u.view->dict;
        enum view_of of = v.type == V_DICT ? VIEW_KEYS : v.u.view->of;
        a = run_array(r, d->n, sizeof *a);
        if (!a || !run_steps(r, d->n / 4))
            return false;
        for (size_t i = 0; i < d->n; i++) {
            if (of == VIEW_ITEMS) {
                if (!value_pair(r, d->entry[i].key, d->entry[i].value, &a[i]))
                    return false;
            } else {
                a[i] = of == VIEW_KEYS ? d->entry[i].key : d->entry[i].value;
            }
        }
        *item = a;
        *n = d->n;
        return true;
    }
    case V_RANGE: {
        const struct range *g = v.u.range;
        a = run_array(r, g->n, sizeof *a);
        if (!a || !run_steps(r, g->n / 4))
            return false;
        for (size_t i = 0; i < g->n; i++)
            a[i] = value_int(g->start + (int64_t)i * g->step, v.origin);
        *item = a;
        *n = g->n;
        return true;
    }
    default:
        return run_error(r, "'%s' object is not iterable", value_type_name(v));
    }
}

bool value_expect_integer(struct run *r, struct value v, const char *what, int64_t *i)
{
    if (v.type == V_UNDEFINED)
        return value_use_undefined(r, v);
    if (v.type == V_BIG)
        return run_error(r, "%s: %.40s is beyond 64 bits", what, v.u.digits);
    if (!value_is_integer(v))
        return run_error(r, "%s: '%s' object cannot be interpreted as an integer", what,
                         value_type_name(v));
    *i = value_integer(v);
    return true;
}

bool value_expect_string(struct run *r, struct value v, const char *what, const struct string **s)
{
    if (v.type == V_UNDEFINED)
        return value_use_undefined(r, v);
    if (v.type != V_STRING)
        return run_error(r, "%s: a str is needed, not '%s'", what, value_type_name(v));
    *s = v.u.string;
    return true;
}

/* ---- Attributes and elements --------------------------------------------------------------- */

bool value_attribute(struct run *r, struct value v, const struct string *name, struct value *out)
{
    if (v.type == V_UNDEFINED)
        return value_use_undefined(r, v);
    bool known = false, is_unsafe = false;
    switch ((enum value_type)v.type) {
    case V_NAMESPACE: {
        const struct value *found = dict_get(v.u.dict, name);
        if (found) {
            *out = *found;
            return true;
        }
        break;
    }
    case V_LOOP:
        if (!loop_attribute(r, v.u.loop, name, &known, out))
            return false;
        break;
    case V_TUPLE:
        if (v.u.list->is_group && (string_is(name, "grouper") || string_is(name, "list"))) {
            *out = v.u.list->item[string_is(name, "list")];
            known = true;
        }
        break;
    case V_CYCLER:
        if (string_is(name, "current")) {
            *out = v.u.cycler->item[v.u.cycler->at];
            known = true;
        }
        break;
    default:
        break;
    }
    if (known)
        return true;
    const struct builtin *b = method_find(v, name, &is_unsafe);
    if (b) {
        struct method *m = run_alloc(r, sizeof *m);
        if (!m)
            return false;
        *m = (struct method){v, b};
        *out = (struct value){.type = V_METHOD, .u.method = m};
        return true;
    }
    if (is_unsafe || (name->n >= 2 && name->s[0] == '_' && name->s[1] == '_')) {
        size_t size = name->n + 100;
        char *hint = run_alloc(r, size);
        if (!hint)
            return false;
        (void)snprintf(hint, size, "access to attribute '%.*s' of '%s' object is unsafe",
                       (int)(name->n < 200 ? name->n : 200), name->s, value_type_name(v));
        *out = value_undefined_hint(r, hint);
        return r->status == LATHE_OK;
    }
    if (v.type == V_DICT) {
        const struct value *found = dict_get(v.u.dict, name);
        if (found) {
            *out = *found;
            return true;
        }
    }
    *out = value_undefined(r, v, value_string(name));
    return r->status == LATHE_OK;
}

bool value_element(struct run *r, struct value v, struct value key, struct value *out)
{
    if (v.type == V_UNDEFINED)
        return value_use_undefined(r, v);
    if (v.type == V_DICT) {
        const struct value *found = NULL;
        bool hashable = key.type != V_LIST && key.type != V_DICT;
        if (hashable && !dict_find(r, v.u.dict, key, &found))
            return false;
        if (found) {
            *out = *found;
            return true;
        }
    }
    if (value_is_integer(key)) {
        int64_t i = value_integer(key);
        size_t n;
        switch ((enum value_type)v.type) {
        case V_LIST:
        case V_TUPLE:
            n = v.u.list->n;
            i += i < 0 ? (int64_t)n : 0;
            if (i < 0 || (size_t)i >= n)
                break;
            *out = v.u.list->item[i];
            return true;
        case V_RANGE:
            n = v.u.range->n;
            i += i < 0 ? (int64_t)n : 0;
            if (i < 0 || (size_t)i >= n)
                break;
            *out = value_int(v.u.range->start + i * v.u.range->step, v.origin);
            return true;
        case V_STRING: {
            const struct string *s = v.u.string;
            if (!run_bytes(r, s->n))
                return false;
            i += i < 0 ? (int64_t)string_length(s) : 0;
            size_t from = i < 0 ? s->n : string_offset(s, (size_t)i);
            if (from >= s->n)
                break;
            size_t to = from + 1;
            while (to < s->n && ((unsigned char)s->s[to] & 0xC0) == 0x80)
                to++;
            return string_part(r, s, from, to, out);
        }
        default:
            break;
        }
    }
    if (key.type == V_STRING) {
        /* The attribute, but not back to the element. */
        if (v.type != V_DICT)
            return value_attribute(r, v, key.u.string, out);
        bool is_unsafe = false;
        if (method_find(v, key.u.string, &is_unsafe) || is_unsafe)
            return value_attribute(r, v, key.u.string, out);
    }
    *out = value_undefined(r, v, key);
    return r->status == LATHE_OK;
}

/* A slice bound: clamped into [0, n], or [-1, n - 1] when walking down. */
static bool slice_bound(struct run *r, struct value v, int64_t n, bool down, int64_t unset,
                        int64_t *out)
{
    if (v.type == V_MISSING || v.type == V_NONE) {
        *out = unset;
        return true;
    }
    if (v.type == V_UNDEFINED || !value_is_integer(v))
        return run_error(r, "slice indices must be integers or None");
    int64_t i = value_integer(v);
    if (i < 0)
        i = i < -n ? (down ? -1 : 0) : i + n;
    else if (i >= n)
        i = down ? n - 1 : n;
    *out = i;
    return true;
}

bool value_slice(struct run *r, struct value v, struct value start, struct value stop,
                 struct value step, struct value *out)
{
    if (v.type == V_UNDEFINED)
        return value_use_undefined(r, v);
    if (v.type != V_STRING && v.type != V_LIST && v.type != V_TUPLE && v.type != V_RANGE) {
        return run_error(r, "'%s' object has no slices", value_type_name(v));
    }
    size_t length;
    if (!value_length(r, v, &length))
        return false;
    int64_t n = (int64_t)length, by = 1, from, to;
    if (step.type != V_MISSING && step.type != V_NONE) {
        if (!value_is_integer(step))
            return run_error(r, "slice indices must be integers or None");
        by = value_integer(step);
        if (by == 0)
            return run_error(r, "slice step cannot be zero");
    }
    bool down = by < 0;
    if (!slice_bound(r, start, n, down, down ? n - 1 : 0, &from) ||
        !slice_bound(r, stop, n, down, down ? -1 : n, &to))
        return false;
    if (by > n)
        by = n + 1;
    if (by < -n)
        by = -n - 1;
    if (v.type == V_STRING)
        return string_slice(r, v.u.string, from, to, by, out);
    size_t count = 0;
    if (!down && from < to)
        count = (size_t)((to - from - 1) / by + 1);
    if (down && from > to)
        count = (size_t)((from - to - 1) / -by + 1);
    if (v.type == V_RANGE) {
        struct range *g = run_alloc(r, sizeof *g);
        if (!g)
            return false;
        const struct range *x = v.u.range;
        *g =
            (struct range){x->start + from * x->step, x->start + to * x->step, x->step * by, count};
        *out = (struct value){.type = V_RANGE, .origin = v.origin, .u.range = g};
        return true;
    }
    const struct value *item = v.u.list->item;
    if (by == 1)
        return value_list(r, (enum value_type)v.type, item ? item + from : NULL, count, v.origin,
                          out);
    struct value *a = run_array(r, count, sizeof *a);
    if (!a || !run_steps(r, count / 4))
        return false;
    for (size_t i = 0; i < count; i++)
        a[i] = item[from + (int64_t)i * by];
    return value_list(r, (enum value_type)v.type, a, count, v.origin, out);
}

/* ---- Lists --------------------------------------------------------------------------------- */

/* Room behind the items of a list that came from a concatenation, so that a template that appends
 * in a loop copies each item a bounded number of times. */
struct list_home {
    struct value *item;
    size_t used, cap;
};

bool list_concat(struct run *r, struct value a, struct value b, struct value *out)
{
    const struct list *x = a.u.list, *y = b.u.list;
    if (!run_steps(r, 1 + y->n / 4))
        return false;
    if (x->n > SIZE_MAX / 64 - y->n)
        return run_error(r, "a list of more than %zu items", SIZE_MAX / 64);
    size_t n = x->n + y->n;
    struct list_home *home = x->home;
    bool at_end = home && x->item + x->n == home->item + home->used;
    if (!at_end || home->cap - home->used < y->n) {
        size_t cap = at_end ? n + n / 2 + 4 : n;
        home = run_alloc(r, sizeof *home);
        struct value *item = home ? run_array(r, cap, sizeof *item) : NULL;
        if (!item || !run_steps(r, x->n / 4))
            return false;
        *home = (struct list_home){item, x->n, cap};
        if (x->n)
            memcpy(item, x->item, x->n * sizeof *item);
    }
    if (y->n)
        memcpy(home->item + home->used, y->item, y->n * sizeof *y->item);
    struct list *l = run_alloc(r, sizeof *l);
    if (!l)
        return false;
    *l = (struct list){.item = home->item + home->used - x->n, .n = n, .home = home};
    home->used += y->n;
    *out = (struct value){
        .type = a.type, .origin = a.origin > b.origin ? a.origin : b.origin, .u.list = l};
    return true;
}

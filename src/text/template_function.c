/* Global functions. */
#include <string.h>
#include <time.h>

#include "text/template_string.h"

#define UNUSED(x) (void)(x)

enum { MAX_RANGE = 100000 }; /* as jinja2's sandbox */

static bool call_range(struct run *r, struct value self, const struct value *a,
                       const struct args *raw, struct value *out)
{
    UNUSED(self), UNUSED(raw);
    int64_t start = 0, stop, step = 1;
    if (!value_expect_integer(r, a[0], "range", &stop))
        return false;
    if (a[1].type != V_MISSING) {
        start = stop;
        if (!value_expect_integer(r, a[1], "range", &stop))
            return false;
    }
    if (a[2].type != V_MISSING && !value_expect_integer(r, a[2], "range", &step))
        return false;
    if (step == 0)
        return run_error(r, "range() arg 3 must not be zero");
    /* Unsigned: the distance may not fit a signed integer. */
    uint64_t distance = 0, by = step > 0 ? (uint64_t)step : 0 - (uint64_t)step, n = 0;
    if (step > 0 ? start < stop : start > stop) {
        distance = step > 0 ? (uint64_t)stop - (uint64_t)start : (uint64_t)start - (uint64_t)stop;
        n = (distance - 1) / by + 1;
    }
    if (n > MAX_RANGE)
        return run_error(r, "Range too big. The sandbox blocks ranges larger than %d.", MAX_RANGE);
    struct range *g = run_alloc(r, sizeof *g);
    if (!g)
        return false;
    *g = (struct range){start, stop, step, (size_t)n};
    unsigned char origin = a[0].origin > a[1].origin ? a[0].origin : a[1].origin;
    *out = (struct value){.type = V_RANGE, .origin = origin, .u.range = g};
    return true;
}

/* dict(mapping or pairs, name=value ...) */
static bool call_dict(struct run *r, struct value self, const struct value *a,
                      const struct args *raw, struct value *out)
{
    UNUSED(self), UNUSED(a);
    if (raw->n > 1)
        return run_error(r, "dict expected at most 1 argument, got %zu", raw->n);
    if (!value_dict(r, raw->n_keyword, 0, out))
        return false;
    struct dict *d = out->u.dict;
    if (raw->n && raw->pos[0].type == V_DICT) {
        const struct dict *from = raw->pos[0].u.dict;
        for (size_t i = 0; i < from->n; i++)
            if (!dict_set(r, d, from->entry[i].key, from->entry[i].value))
                return false;
    } else if (raw->n) {
        const struct value *item, *pair;
        size_t n, two;
        if (!value_items(r, raw->pos[0], &item, &n))
            return false;
        for (size_t i = 0; i < n; i++) {
            if (!value_items(r, item[i], &pair, &two))
                return false;
            if (two != 2)
                return run_error(r,
                                 "dictionary update sequence element #%zu has length %zu; "
                                 "2 is required",
                                 i, two);
            if (!dict_set(r, d, pair[0], pair[1]))
                return false;
        }
    }
    for (size_t i = 0; i < raw->n_keyword; i++)
        if (!dict_set(r, d, value_string(raw->keyword[i].name), raw->keyword[i].value))
            return false;
    return true;
}

static bool call_namespace(struct run *r, struct value self, const struct value *a,
                           const struct args *raw, struct value *out)
{
    if (!call_dict(r, self, a, raw, out))
        return false;
    out->type = V_NAMESPACE;
    return true;
}

static bool call_raise_exception(struct run *r, struct value self, const struct value *a,
                                 const struct args *raw, struct value *out)
{
    UNUSED(self), UNUSED(raw), UNUSED(out);
    const struct string *s;
    if (!value_to_string(r, a[0], &s))
        return false;
    r->is_raised = true;
    return run_error(r, "%.*s", (int)(s->n < 900 ? s->n : 900), s->s);
}

static bool call_strftime_now(struct run *r, struct value self, const struct value *a,
                              const struct args *raw, struct value *out)
{
    UNUSED(self), UNUSED(raw);
    const struct string *s;
    struct tm now;
    char format[256], text[1024];
    if (!value_expect_string(r, a[0], "strftime_now", &s))
        return false;
    if (s->n >= sizeof format || memchr(s->s, 0, s->n))
        return run_error(r, "strftime_now: a format of at most %zu bytes is needed",
                         sizeof format - 1);
    memcpy(format, s->s, s->n);
    format[s->n] = 0;
    if (!localtime_r(&r->limits.now, &now))
        return run_error(r, "strftime_now: no local time");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t n = strftime(text, sizeof text, format, &now);
#pragma GCC diagnostic pop
    if (n == 0 && s->n)
        return run_error(r, "strftime_now: the format gives no text of at most %zu bytes",
                         sizeof text - 1);
    struct builder b;
    builder_init(&b, r);
    return builder_put(&b, text, n, s->origin) && builder_string(&b, out);
}

static bool call_cycler(struct run *r, struct value self, const struct value *a,
                        const struct args *raw, struct value *out)
{
    UNUSED(self), UNUSED(a);
    if (raw->n == 0 || raw->n_keyword)
        return run_error(r, "at least one item has to be provided");
    struct cycler *c = run_alloc(r, sizeof *c);
    struct value *item = run_array(r, raw->n, sizeof *item);
    if (!c || !item)
        return false;
    memcpy(item, raw->pos, raw->n * sizeof *item);
    *c = (struct cycler){item, raw->n, 0};
    *out = (struct value){.type = V_CYCLER, .u.cycler = c};
    return true;
}

static bool call_joiner(struct run *r, struct value self, const struct value *a,
                        const struct args *raw, struct value *out)
{
    UNUSED(self), UNUSED(raw);
    struct joiner *j = run_alloc(r, sizeof *j);
    if (!j)
        return false;
    *j = (struct joiner){.separator = a[0]};
    if (a[0].type == V_MISSING && !value_text(r, ", ", 2, 0, &j->separator))
        return false;
    *out = (struct value){.type = V_JOINER, .u.joiner = j};
    return true;
}

static const struct builtin functions[] = {
    {"range", "start stop? step?", call_range, false},
    {"dict", "*", call_dict, false},
    {"namespace", "*", call_namespace, false},
    {"raise_exception", "message", call_raise_exception, false},
    {"strftime_now", "format", call_strftime_now, false},
    {"cycler", "*", call_cycler, false},
    {"joiner", "sep?", call_joiner, false},
};

const char *const function_names[] = {"range",        "dict",   "namespace", "raise_exception",
                                      "strftime_now", "cycler", "joiner",    NULL};

const struct builtin *function_find(const char *name)
{
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++)
        if (strcmp(functions[i].name, name) == 0)
            return &functions[i];
    return NULL;
}

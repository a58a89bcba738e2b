#include "model/fields.h"

#include <math.h>
#include <string.h>

const char *field_kind(const struct json_doc *doc, const json_t *v)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",        [JSON_NULL] = "null",
    };
    if (json_big_integer(doc, v))
        return "a number out of range";
    return v ? names[json_typeof(v)] : "missing";
}

json_t *field_get(const struct reader *r, const char *name)
{
    json_t *v = json_object_get(r->obj, name);
    return json_is_null(v) ? NULL : v;
}

void check_range(struct reader *r, const char *name, const json_t *v, int64_t min, int64_t max,
                 int32_t *out)
{
    if (*r->st)
        return;
    if (!json_is_integer(v)) {
        *r->st = fail(r->err, LATHE_E_FORMAT, "%s%s: %s, expected an integer of %lld to %lld",
                      r->where, name, field_kind(r->doc, v), (long long)min, (long long)max);
        return;
    }
    json_int_t i = json_integer_value(v);
    if (i < min || i > max)
        *r->st = fail(r->err, LATHE_E_FORMAT, "%s%s: %lld, expected %lld to %lld", r->where, name,
                      (long long)i, (long long)min, (long long)max);
    else
        *out = (int32_t)i;
}

int32_t need_int(struct reader *r, const char *name, int64_t min, int64_t max)
{
    int32_t n = (int32_t)min;
    check_range(r, name, field_get(r, name), min, max, &n);
    return n;
}

int32_t opt_int(struct reader *r, const char *name, int64_t min, int64_t max, int32_t other)
{
    return field_get(r, name) ? need_int(r, name, min, max) : other;
}

double opt_real(struct reader *r, const char *name, double min, double max, double other)
{
    json_t *v = field_get(r, name);
    if (*r->st || !v)
        return other;
    double x = json_is_number(v) ? json_number_value(v) : NAN;
    if (x >= min && x <= max)
        return x;
    if (json_is_number(v))
        *r->st = fail(r->err, LATHE_E_FORMAT, "%s%s: %g, expected %g to %g", r->where, name, x, min,
                      max);
    else
        *r->st = fail(r->err, LATHE_E_FORMAT, "%s%s: %s, expected a number of %g to %g", r->where,
                      name, field_kind(r->doc, v), min, max);
    return other;
}

bool opt_bool(struct reader *r, const char *name, bool other)
{
    json_t *v = field_get(r, name);
    if (*r->st || !v)
        return other;
    if (!json_is_boolean(v))
        *r->st = fail(r->err, LATHE_E_FORMAT, "%s%s: %s, expected true or false", r->where, name,
                      field_kind(r->doc, v));
    return json_is_true(v);
}

const char *opt_string(struct reader *r, const char *name, const char *other)
{
    json_t *v = field_get(r, name);
    size_t n;
    if (*r->st || !v)
        return other;
    const char *s = json_text(r->doc, v, &n);
    if (!s)
        *r->st = fail(r->err, LATHE_E_FORMAT, "%s%s: %s, expected a string", r->where, name,
                      field_kind(r->doc, v));
    return s ? s : other;
}

json_t *opt_object(struct reader *r, const char *name)
{
    json_t *v = field_get(r, name);
    if (*r->st || !v)
        return NULL;
    if (!json_is_object(v))
        *r->st = fail(r->err, LATHE_E_FORMAT, "%s%s: %s, expected an object", r->where, name,
                      field_kind(r->doc, v));
    return v;
}

void only_string(struct reader *r, const char *name, const char *a, const char *b)
{
    const char *s = opt_string(r, name, a);
    if (!*r->st && strcmp(s, a) != 0 && strcmp(s, b) != 0)
        *r->st = fail(r->err, LATHE_E_UNSUPPORTED, "%s%s \"%.64s\" is not supported, only \"%s\"",
                      r->where, name, s, a);
}

void only_bool(struct reader *r, const char *name, bool value)
{
    if (opt_bool(r, name, value) != value && !*r->st)
        *r->st = fail(r->err, LATHE_E_UNSUPPORTED, "%s%s %s is not supported, only %s", r->where,
                      name, value ? "false" : "true", value ? "true" : "false");
}

void refuse_member(struct reader *r, const char *name)
{
    if (!*r->st && field_get(r, name))
        *r->st = fail(r->err, LATHE_E_UNSUPPORTED, "%s%s is not supported", r->where, name);
}

void check_multiple(struct reader *r, const char *a, int32_t n, const char *b, int32_t m)
{
    if (!*r->st && n % m)
        *r->st = fail(r->err, LATHE_E_FORMAT, "%s%s: %d, expected a multiple of %s, %d", r->where,
                      a, n, b, m);
}

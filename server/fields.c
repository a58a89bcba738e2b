#include "fields.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "log.h"
#include "state.h"

const char *json_kind(const json_t *v)
{
    static const char *const name[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "a number", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null",
    };
    return v ? name[json_typeof(v)] : "nothing";
}

bool fields_open(struct fields *f, struct exchange *x)
{
    lathe_error err;
    *f = (struct fields){
        .path = "", .failure = &x->failure, .watch = &x->watch, .server = x->server};
    struct json_limits limits = limits_json(&x->server->options.limits);
    lathe_status st =
        json_read_watched(&f->doc, buf_str(&x->body), x->body.len, &limits, f->watch, &err);
    if (st == LATHE_E_MEMORY || st == LATHE_E_CANCELLED)
        return refuse_status(&x->failure, &err);
    if (st)
        return refuse(&x->failure, BAD_JSON, "the body is no JSON that is read here: %s",
                      err.message);
    if (!json_is_object(f->doc.root))
        return refuse(&x->failure, BAD_JSON, "the body is %s, expected a JSON object",
                      json_kind(f->doc.root));
    f->object = f->doc.root;
    return true;
}

void fields_close(struct fields *f)
{
    json_release(&f->doc);
}

bool fields_inner(const struct fields *f, const char *name, const char *path, struct fields *out)
{
    const json_t *v = field_value(f, name);
    *out = *f;
    out->path = path;
    out->object = v;
    return !v || json_is_object(v) || field_is_no(f, name, "an object", v);
}

const json_t *field_value(const struct fields *f, const char *name)
{
    const json_t *v = json_object_get(f->object, name);
    return json_is_null(v) ? NULL : v;
}

bool field_is_no(const struct fields *f, const char *name, const char *expected, const json_t *v)
{
    char param[160];
    (void)snprintf(param, sizeof param, "%s%s", f->path, name);
    return refuse_field(f->failure, BAD_TYPE, param, "%s: expected %s, found %s", param, expected,
                        json_big_integer(&f->doc, v) ? "a number" : json_kind(v));
}

bool field_text(const struct fields *f, const char *name, const char **out, size_t *n)
{
    const json_t *v = field_value(f, name);
    if (!v)
        return true;
    const char *s = json_text(&f->doc, v, n);
    if (!s)
        return field_is_no(f, name, "a string", v);
    *out = s;
    return true;
}

bool field_bool(const struct fields *f, const char *name, bool *out)
{
    const json_t *v = field_value(f, name);
    if (v && !json_is_boolean(v))
        return field_is_no(f, name, "true or false", v);
    if (v)
        *out = json_is_true(v);
    return true;
}

bool json_whole(const json_t *v, int64_t *out)
{
    double x = json_is_real(v) ? json_real_value(v) : 0.5;
    if (json_is_integer(v))
        *out = json_integer_value(v);
    else if (x == floor(x) && fabs(x) <= 9007199254740992.0)
        *out = (int64_t)x;
    else
        return false;
    return true;
}

bool field_int(const struct fields *f, const char *name, int64_t *out, int64_t low, int64_t high)
{
    const json_t *v = field_value(f, name);
    char param[160];
    int64_t x;
    if (!v)
        return true;
    (void)snprintf(param, sizeof param, "%s%s", f->path, name);
    const char *digits = json_big_integer(&f->doc, v);
    char spelled[24];
    if (!digits && !json_whole(v, &x))
        return field_is_no(f, name, "a whole number", v);
    if (!digits && x >= low && x <= high) {
        *out = x;
        return true;
    }
    if (!digits)
        (void)snprintf(spelled, sizeof spelled, "%lld", (long long)x);
    if (high == INT32_MAX || (high == INT64_MAX && !digits))
        return refuse_field(f->failure, BAD_VALUE, param, "%s is %.40s, expected %lld or more",
                            param, digits ? digits : spelled, (long long)low);
    return refuse_field(f->failure, BAD_VALUE, param, "%s is %.40s, expected %lld to %lld", param,
                        digits ? digits : spelled, (long long)low, (long long)high);
}

bool field_real(const struct fields *f, const char *name, double *out, double low, double high)
{
    const json_t *v = field_value(f, name);
    char param[160];
    if (!v)
        return true;
    if (!json_is_number(v) && !json_big_integer(&f->doc, v))
        return field_is_no(f, name, "a number", v);
    double x = json_is_number(v) ? json_number_value(v) : INFINITY;
    (void)snprintf(param, sizeof param, "%s%s", f->path, name);
    if (!(x >= low && x <= high))
        return refuse_field(f->failure, BAD_VALUE, param, "%s is %g, expected %g to %g", param, x,
                            low, high);
    *out = x;
    return true;
}

/* `option` sets the most; NULL: none does. */
static bool array_up_to(const struct fields *f, const char *name, const json_t **out, size_t most,
                        const char *option)
{
    const json_t *v = field_value(f, name);
    char param[160];
    if (!v)
        return true;
    if (!json_is_array(v))
        return field_is_no(f, name, "an array", v);
    (void)snprintf(param, sizeof param, "%s%s", f->path, name);
    if (json_array_size(v) > most)
        return refuse_field(f->failure, BAD_VALUE, param, "%s has %zu entries, at most %zu%s%s%s",
                            param, json_array_size(v), most, option ? "; " : "",
                            option ? option : "", option ? " sets the limit" : "");
    *out = v;
    return true;
}

bool field_array(const struct fields *f, const char *name, const json_t **out, size_t most)
{
    return array_up_to(f, name, out, most, NULL);
}

bool field_limited(const struct fields *f, const char *name, const json_t **out,
                   enum server_limit most)
{
    struct limits limits;
    limits_init(&limits);
    const struct limits *l = f->server ? &f->server->options.limits : &limits;
    return array_up_to(f, name, out, (size_t)l->of[most], limit_rows[most].option);
}

static bool is_plain(const char *s)
{
    return *s &&
           s[strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")] == 0;
}

static void note_unknown(const struct fields *f, struct exchange *x, const char *key)
{
    char name[160];
    (void)snprintf(name, sizeof name, "%s%s", f->path, key);
    /* A request of many cannot make the log forget the names of others. */
    if (x->n_unknown++ < MAX_LISTED_NAMES)
        log_new(x->server, "unknown field", name);
    if (!is_plain(key) || x->n_listed >= MAX_LISTED_NAMES ||
        x->unknown.len + strlen(f->path) + strlen(key) + 2 > MAX_LISTED_BYTES)
        return;
    buf_printf(&x->unknown, "%s%s%s", x->n_listed++ ? ", " : "", f->path, key);
}

bool fields_unknown(const struct fields *f, struct exchange *x, const char *const *known, size_t n)
{
    json_t *tree = json_members(f->object);
    for (void *it = json_object_iter(tree); it; it = json_object_iter_next(tree, it)) {
        const char *key = json_object_iter_key(it);
        size_t i = 0;
        while (i < n && strcmp(key, known[i]) != 0)
            i++;
        if (i < n)
            continue;
        if (x->server->options.unknown_is_error) {
            char param[160];
            (void)snprintf(param, sizeof param, "%s%s", f->path, key);
            return refuse_field(&x->failure, UNSUPPORTED_FIELD, param,
                                "%.120s is no field of this route", param);
        }
        note_unknown(f, x, key);
    }
    return true;
}

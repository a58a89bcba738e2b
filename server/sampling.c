/* Sampling, limits and stop conditions of a body. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generate.h"

enum { MAX_STOPS = 32, MAX_STOP_BYTES = 1024, MAX_BIASES = 1024, MAX_SALT_BYTES = 256 };

static bool read_float(const struct fields *f, const char *name, float *out, double low,
                       double high)
{
    double x = (double)*out;
    if (!field_real(f, name, &x, low, high))
        return false;
    *out = (float)x;
    return true;
}

static bool read_int32(const struct fields *f, const char *name, int32_t *out, int64_t low)
{
    int64_t x = *out;
    if (!field_int(f, name, &x, low, INT32_MAX))
        return false;
    *out = (int32_t)x;
    return true;
}

static bool no_memory(const struct fields *f)
{
    return refuse(f->failure, INTERNAL, "out of memory");
}

/* A string, or an array of strings. */
static bool read_stops(const struct fields *f, const char *name, struct generation *g)
{
    const json_t *v = field_value(f, name);
    size_t n = json_is_array(v) ? json_array_size(v) : v ? 1 : 0;
    char param[64];
    if (n > MAX_STOPS)
        return refuse_field(f->failure, BAD_VALUE, name, "%s has %zu strings, at most %d", name, n,
                            MAX_STOPS);
    const char **stop = arena_calloc(&g->arena, n + 1, sizeof *stop);
    if (!stop)
        return no_memory(f);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(v) ? json_array_get(v, i) : v;
        size_t len;
        const char *s = json_text(&f->doc, item, &len);
        (void)snprintf(param, sizeof param, json_is_array(v) ? "%s[%zu]" : "%s", name, i);
        if (!s)
            return refuse_field(f->failure, BAD_TYPE, param, "%s: expected a string%s, found %s",
                                param, json_is_array(v) ? "" : " or an array of strings",
                                json_kind(item));
        if (len < 1 || len > MAX_STOP_BYTES || strlen(s) != len)
            return refuse_field(f->failure, BAD_VALUE, param,
                                "%s has %zu bytes, expected 1 to %d without NUL", param, len,
                                MAX_STOP_BYTES);
        stop[i] = arena_strndup(&g->arena, s, len);
        if (!stop[i])
            return no_memory(f);
    }
    if (n) {
        g->options.stop = stop;
        g->options.n_stop = n;
    }
    return true;
}

static bool read_stop_ids(const struct fields *f, struct generation *g)
{
    const json_t *array = NULL;
    if (!field_array(f, "stop_token_ids", &array, MAX_STOPS))
        return false;
    size_t n = json_array_size(array);
    int32_t *id = arena_calloc(&g->arena, n + 1, sizeof *id);
    if (!id)
        return no_memory(f);
    for (size_t i = 0; i < n; i++) {
        int64_t x;
        char param[40];
        (void)snprintf(param, sizeof param, "stop_token_ids[%zu]", i);
        if (!json_whole(json_array_get(array, i), &x))
            return refuse_field(f->failure, BAD_TYPE, param, "%s: expected a token's id", param);
        id[i] = x >= 0 && x <= INT32_MAX ? (int32_t)x : -1;
    }
    g->options.stop_id = id;
    g->options.n_stop_id = n;
    return true;
}

static bool add_bias(const struct fields *f, lathe_logit_bias *b, int64_t id, const json_t *v,
                     const char *param)
{
    if (id < 0 || id > INT32_MAX)
        return refuse_field(f->failure, BAD_VALUE, param, "%s: expected a token's id", param);
    double bias = json_number_value(v);
    if (!json_is_number(v))
        return refuse_field(f->failure, BAD_TYPE, param, "%s: expected a number, found %s", param,
                            json_kind(v));
    if (!(bias >= -100 && bias <= 100))
        return refuse_field(f->failure, BAD_VALUE, param, "%s is %g, expected -100 to 100", param,
                            bias);
    *b = (lathe_logit_bias){(int32_t)id, (float)bias};
    return true;
}

/* {"ID": BIAS, ...} or [[ID, BIAS], ...] */
static bool read_biases(const struct fields *f, struct generation *g)
{
    const json_t *v = field_value(f, "logit_bias");
    json_t *tree = json_members(v);
    size_t n = json_is_array(v) ? json_array_size(v) : json_object_size(v), i = 0;
    char param[64];
    if (v && !json_is_array(v) && !json_is_object(v))
        return field_is_no(f, "logit_bias", "an object", v);
    if (n > MAX_BIASES)
        return refuse_field(f->failure, BAD_VALUE, "logit_bias",
                            "logit_bias has %zu entries, at most %d", n, MAX_BIASES);
    lathe_logit_bias *bias = arena_calloc(&g->arena, n + 1, sizeof *bias);
    if (!bias)
        return no_memory(f);
    for (; json_is_array(v) && i < n; i++) {
        const json_t *pair = json_array_get(v, i);
        int64_t id = -1;
        (void)snprintf(param, sizeof param, "logit_bias[%zu]", i);
        if (json_array_size(pair) != 2 || !json_whole(json_array_get(pair, 0), &id))
            return refuse_field(f->failure, BAD_TYPE, param, "%s: expected [id, bias]", param);
        if (!add_bias(f, &bias[i], id, json_array_get(pair, 1), param))
            return false;
    }
    for (void *it = json_is_object(v) ? json_object_iter(tree) : NULL; it;
         it = json_object_iter_next(tree, it)) {
        const char *key = json_object_iter_key(it);
        char *end;
        long long id = strtoll(key, &end, 10);
        (void)snprintf(param, sizeof param, "logit_bias.%.40s", key);
        if (!*key || *end)
            id = -1;
        if (!add_bias(f, &bias[i++], id, json_object_iter_value(it), param))
            return false;
    }
    g->options.sampling.bias = bias;
    g->options.sampling.n_bias = n;
    return true;
}

/* The last that is given counts; n_predict may be -1. */
static bool read_limits(const struct fields *f, struct generation *g)
{
    lathe_request_options *o = &g->options;
    int32_t most = -1;
    if (!read_int32(f, "n_predict", &o->max_tokens, -1))
        return false;
    if (o->max_tokens == 0)
        return refuse_field(f->failure, BAD_VALUE, "n_predict",
                            "n_predict is 0, expected 1 or more, or -1");
    if (!read_int32(f, "max_tokens", &most, g->may_be_empty ? 0 : 1))
        return false;
    g->is_empty = most == 0;
    if (most >= 0)
        o->max_tokens = most > 0 ? most : 1;
    return read_int32(f, "max_completion_tokens", &o->max_tokens, 1) &&
           read_int32(f, "min_tokens", &o->min_tokens, 0);
}

bool sampling_read(const struct fields *f, struct generation *g)
{
    lathe_request_options *o = &g->options;
    lathe_sampling *s = &o->sampling;
    const char *salt = NULL;
    bool cache = true;
    size_t n_salt = 0;
    if (!read_float(f, "temperature", &s->temperature, 0, 100) ||
        !read_float(f, "top_p", &s->top_p, 0, 1) || !read_int32(f, "top_k", &s->top_k, -1) ||
        !read_float(f, "min_p", &s->min_p, 0, 1) ||
        !read_float(f, "presence_penalty", &s->presence_penalty, -2, 2) ||
        !read_float(f, "frequency_penalty", &s->frequency_penalty, -2, 2) ||
        !read_float(f, "repeat_penalty", &s->repetition_penalty, 1e-6, 1e6) ||
        !read_float(f, "repetition_penalty", &s->repetition_penalty, 1e-6, 1e6) ||
        !field_int(f, "seed", &s->seed, INT64_MIN, INT64_MAX) ||
        !read_stops(f, "stop_sequences", g) || !read_stops(f, "stop", g) || !read_stop_ids(f, g) ||
        !read_biases(f, g) || !read_limits(f, g) || !field_bool(f, "ignore_eos", &o->ignore_eos) ||
        !field_bool(f, "cache_prompt", &cache) ||
        !field_bool(f, "include_stop_str_in_output", &g->show_stop) ||
        !field_text(f, "cache_salt", &salt, &n_salt))
        return false;
    o->no_prefix_reuse = !cache;
    if (!salt)
        return true;
    if (n_salt < 1 || n_salt > MAX_SALT_BYTES || strlen(salt) != n_salt)
        return refuse_field(f->failure, BAD_VALUE, "cache_salt",
                            "cache_salt has %zu bytes, expected 1 to %d without NUL", n_salt,
                            MAX_SALT_BYTES);
    o->cache_salt = arena_strndup(&g->arena, salt, n_salt);
    return o->cache_salt || no_memory(f);
}

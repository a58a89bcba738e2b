/* End tokens and sampling defaults of a model directory. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "text/grow.h"
#include "text/text.h"

/* ---- End tokens --------------------------------------------------------------------------- */

static lathe_status add_stop(struct lathe_text *text, size_t *cap, int32_t id, lathe_error *err)
{
    size_t at = 0;
    while (at < text->n_stop_id && text->stop_id[at] < id)
        at++;
    if (at < text->n_stop_id && text->stop_id[at] == id)
        return LATHE_OK;
    int32_t *p = grow(text->stop_id, cap, text->n_stop_id + 1, sizeof *p);
    if (!p)
        return fail_memory(err, (text->n_stop_id + 1) * sizeof *p);
    text->stop_id = p;
    memmove(p + at + 1, p + at, (text->n_stop_id++ - at) * sizeof *p);
    p[at] = id;
    return LATHE_OK;
}

/* eos_token_id: null, one id or a list of them. */
static lathe_status add_ids(struct lathe_text *text, size_t *cap, const json_t *v, const char *file,
                            lathe_error *err)
{
    bool is_list = json_is_array(v);
    if (!v || json_is_null(v))
        return LATHE_OK;
    for (size_t i = 0, n = is_list ? json_array_size(v) : 1; i < n; i++) {
        const json_t *id = is_list ? json_array_get(v, i) : v;
        if (!json_is_integer(id))
            return fail(err, LATHE_E_FORMAT, "%s: eos_token_id: expected an id or a list of ids",
                        file);
        json_int_t k = json_integer_value(id);
        if (k < 0 || k > INT32_MAX || !tokenizer_has(text->tokenizer, (int32_t)k)) {
            log_warn("%s: eos_token_id %lld is no token of the tokenizer", file, (long long)k);
            continue;
        }
        lathe_status st = add_stop(text, cap, (int32_t)k, err);
        if (st)
            return st;
    }
    return LATHE_OK;
}

/* eos_token: null, a spelling, or an object with the spelling as `content`. */
static lathe_status add_spelling(struct lathe_text *text, size_t *cap, const struct json_doc *d,
                                 lathe_error *err)
{
    const json_t *v = json_object_get(d->root, "eos_token");
    if (!v || json_is_null(v))
        return LATHE_OK;
    size_t n;
    const char *s = json_text(d, json_is_object(v) ? json_object_get(v, "content") : v, &n);
    if (!s)
        return fail(err, LATHE_E_FORMAT,
                    "tokenizer_config.json: eos_token: expected a token's text");
    int32_t id = strlen(s) == n ? tokenizer_control_id(text->tokenizer, s) : -1;
    if (id < 0) {
        log_warn("tokenizer_config.json: eos_token \"%s\" is no added token of the tokenizer", s);
        return LATHE_OK;
    }
    return add_stop(text, cap, id, err);
}

lathe_status text_read_stop_ids(struct lathe_text *text, const struct text_configs *c,
                                lathe_error *err)
{
    size_t cap = 0;
    const json_t *config = c->config.root;
    lathe_status st = add_ids(text, &cap, json_object_get(c->generation.root, "eos_token_id"),
                              "generation_config.json", err);
    st = st ? st : add_ids(text, &cap, json_object_get(config, "eos_token_id"), "config.json", err);
    st = st ? st
            : add_ids(text, &cap,
                      json_object_get(json_object_get(config, "text_config"), "eos_token_id"),
                      "config.json: text_config", err);
    st = st ? st : add_spelling(text, &cap, &c->tokenizer, err);
    if (!st && !text->n_stop_id)
        log_warn("no end token: neither generation_config.json nor config.json nor "
                 "tokenizer_config.json names one");
    return st;
}

/* ---- Sampling defaults --------------------------------------------------------------------- */

/* The members of generation_config.json that are read, and their ranges. */
enum { TEMPERATURE, TOP_P, TOP_K, MIN_P, PRESENCE, FREQUENCY, REPETITION, N_MEMBERS };
static const struct member {
    const char *name;
    double min, max;
} members[N_MEMBERS] = {
    {"temperature", 0, 1e6},           {"top_p", 0, 1},
    {"top_k", -1, INT32_MAX},          {"min_p", 0, 1},
    {"presence_penalty", -2, 2},       {"frequency_penalty", -2, 2},
    {"repetition_penalty", 1e-6, 1e6},
};

static void set(lathe_sampling *s, int member, double x)
{
    switch (member) {
    case TEMPERATURE:
        s->temperature = (float)x;
        break;
    case TOP_P:
        s->top_p = (float)x;
        break;
    case TOP_K:
        s->top_k = (int32_t)x;
        break;
    case MIN_P:
        s->min_p = (float)x;
        break;
    case PRESENCE:
        s->presence_penalty = (float)x;
        break;
    case FREQUENCY:
        s->frequency_penalty = (float)x;
        break;
    case REPETITION:
        s->repetition_penalty = (float)x;
        break;
    }
}

/* The model cards' values. Of this family's templates only 3.5's know neither of these words. */
static void family_sampling(struct lathe_text *text)
{
    const char *source = text->template_source;
    bool is_3_5 =
        source && !strstr(source, "preserve_thinking") && !strstr(source, "reasoning_effort");
    text->sampling[false] = (lathe_sampling){
        .temperature = 0.7f,
        .top_p = 0.8f,
        .top_k = 20,
        .presence_penalty = 1.5f,
        .repetition_penalty = 1,
        .seed = -1,
    };
    text->sampling[true] = (lathe_sampling){
        .temperature = 1,
        .top_p = 0.95f,
        .top_k = 20,
        .presence_penalty = is_3_5 ? 1.5f : 0,
        .repetition_penalty = 1,
        .seed = -1,
    };
}

lathe_status text_read_sampling(struct lathe_text *text, const struct text_configs *c,
                                lathe_error *err)
{
    family_sampling(text);
    for (int i = 0; i < N_MEMBERS; i++) {
        const struct member *m = &members[i];
        const json_t *v = json_object_get(c->generation.root, m->name);
        if (!v || json_is_null(v))
            continue;
        double x = json_number_value(v);
        if (!json_is_number(v) || x < m->min || x > m->max || (i == TOP_K && !json_is_integer(v)))
            return fail(err, LATHE_E_FORMAT, "generation_config.json: %s: expected %s in %g..%g",
                        m->name, i == TOP_K ? "an integer" : "a number", m->min, m->max);
        set(&text->sampling[false], i, x);
        set(&text->sampling[true], i, x);
    }
    if (json_is_false(json_object_get(c->generation.root, "do_sample")))
        text->sampling[false].temperature = text->sampling[true].temperature = 0;
    return LATHE_OK;
}

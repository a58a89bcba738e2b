#include "model/declared.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "model/fields.h"

/* Published files have some 400 rules, 10 of them expressions that take some 300 steps on a name. The product
 * bounds the time that a file can cost; an expression that needs more steps is about nothing. */
enum {
    MAX_RULES = 8192,
    MAX_EXPRESSIONS = 64,
    MAX_STEPS = 5000,
    MAX_PATTERN = 1024,
    MAX_NAME = 512
};

enum format_says { SAYS_ANYTHING, SAYS_PLAIN, SAYS_FP8, SAYS_NVFP4 };
static const char *const says_name[] = {"", "plain", "FP8", "NVFP4"};

enum how {
    BY_NAME,
    BY_EXPRESSION, /* from the name's start, as Python's re.match */
    BY_GLOB,
    BY_PART, /* the start or the end of the name */
    BY_CLASS /* every linear layer */
};

struct rule {
    enum how how;
    const char *text;       /* in the document */
    pcre2_code *expression; /* BY_EXPRESSION */
    enum format_says says;
};

struct declared {
    const char *dir;
    struct json_doc doc;
    struct rule *rules; /* [n_rules]; the first n_exceptions go before the others */
    size_t n_rules, n_exceptions, cap_rules, n_expressions;
    enum format_says rest; /* of linear layers that no rule is about */
    bool is_unknown;       /* nothing of this is to be relied upon */
    pcre2_match_data *match;
    pcre2_match_context *context;

    size_t n_differ;
    char first[MAX_NAME]; /* of those that differ */
    enum format_says first_says;
    const char *first_is;
};

/* ---- Reading ------------------------------------------------------------------------------- */

static lathe_status unknown(struct declared *d)
{
    d->is_unknown = true;
    return LATHE_OK;
}

static lathe_status compile(struct rule *r, lathe_error *err)
{
    int code;
    PCRE2_SIZE at;
    r->expression = pcre2_compile((PCRE2_SPTR)r->text, PCRE2_ZERO_TERMINATED,
                                  PCRE2_UTF | PCRE2_ANCHORED, &code, &at, NULL);
    if (!r->expression && code == PCRE2_ERROR_HEAP_FAILED)
        return fail_memory(err, strlen(r->text));
    return LATHE_OK; /* without an expression it is about nothing */
}

static lathe_status add_rule(struct declared *d, enum how how, const char *text,
                             enum format_says says, lathe_error *err)
{
    struct rule *more = array_room(d->rules, d->n_rules, &d->cap_rules, sizeof *more, err);
    if (!more)
        return LATHE_E_MEMORY;
    d->rules = more;
    struct rule *r = &d->rules[d->n_rules++];
    *r = (struct rule){.how = how, .text = text, .says = says};
    if (how != BY_EXPRESSION)
        return LATHE_OK;
    return d->n_expressions++ < MAX_EXPRESSIONS ? compile(r, err) : unknown(d);
}

/* The strings of a list as rules. "re:" begins an expression where `how` is BY_NAME. */
static lathe_status add_rules(struct declared *d, const json_t *list, enum how how,
                              enum format_says says, lathe_error *err)
{
    lathe_status st = LATHE_OK;
    size_t n_list = json_array_size(list);
    if (n_list > MAX_RULES - d->n_rules)
        return unknown(d);
    for (size_t i = 0; i < n_list && !st; i++) {
        size_t n;
        const char *s = json_text(&d->doc, json_array_get(list, i), &n);
        if (!s || n == 0 || n > MAX_PATTERN || strlen(s) != n)
            continue;
        if (how == BY_NAME && strncmp(s, "re:", 3) == 0)
            st = add_rule(d, BY_EXPRESSION, s + 3, says, err);
        else if (how == BY_NAME && strcmp(s, "Linear") == 0)
            st = add_rule(d, BY_CLASS, s, says, err);
        else
            st = add_rule(d, how, s, says, err);
    }
    return st;
}

/* Is the member a string that contains this? */
static bool has_word(const json_t *obj, const char *name, const char *part)
{
    const char *s = json_string_value(json_object_get(obj, name));
    return s && strstr(s, part);
}

static enum format_says says_of_group(const json_t *config, const json_t *group)
{
    const json_t *weights = json_object_get(group, "weights");
    json_int_t bits = json_integer_value(json_object_get(weights, "num_bits"));
    if (json_is_object(weights))
        return !has_word(weights, "type", "float") ? SAYS_ANYTHING
               : bits == 8                         ? SAYS_FP8
               : bits == 4                         ? SAYS_NVFP4
                                                   : SAYS_ANYTHING;
    if (!json_is_string(json_object_get(group, "format")))
        group = config;
    return has_word(group, "format", "nvfp4")             ? SAYS_NVFP4
           : has_word(group, "format", "float-quantized") ? SAYS_FP8
                                                          : SAYS_ANYTHING;
}

/* "config_groups": {"group_0": {"weights": {"num_bits", "type"}, "format", "targets"}}, "ignore" */
static lathe_status read_compressed(struct declared *d, const json_t *config, lathe_error *err)
{
    json_t *groups = json_object_get(config, "config_groups"), *group;
    const char *key;
    lathe_status st = add_rules(d, json_object_get(config, "ignore"), BY_NAME, SAYS_PLAIN, err);
    d->n_exceptions = d->n_rules;
    if (json_object_size(groups) == 0)
        return st ? st : unknown(d);
    d->rest = SAYS_PLAIN;
    json_object_foreach(groups, key, group)
    {
        if (!st)
            st = add_rules(d, json_object_get(group, "targets"), BY_NAME,
                           says_of_group(config, group), err);
    }
    return st;
}

static lathe_status read_fp8(struct declared *d, const json_t *config, lathe_error *err)
{
    lathe_status st =
        add_rules(d, json_object_get(config, "modules_to_not_convert"), BY_PART, SAYS_PLAIN, err);
    d->n_exceptions = d->n_rules;
    d->rest = SAYS_FP8;
    return st;
}

static enum format_says says_of_algorithm(const json_t *obj)
{
    return has_word(obj, "quant_algo", "NVFP4") ? SAYS_NVFP4
           : has_word(obj, "quant_algo", "FP8") ? SAYS_FP8
                                                : SAYS_ANYTHING;
}

/* "quant_algo", "ignore" or "exclude_modules"; for MIXED_PRECISION "quantized_layers": {name: {"quant_algo"}} */
static lathe_status read_modelopt(struct declared *d, const json_t *config, lathe_error *err)
{
    json_t *layers = json_object_get(config, "quantized_layers"), *layer;
    const char *key;
    lathe_status st = add_rules(d, json_object_get(config, "ignore"), BY_GLOB, SAYS_PLAIN, err);
    if (!st)
        st = add_rules(d, json_object_get(config, "exclude_modules"), BY_GLOB, SAYS_PLAIN, err);
    d->n_exceptions = d->n_rules;
    d->rest = says_of_algorithm(config);
    if (!has_word(config, "quant_algo", "MIXED"))
        return st;
    if (json_object_size(layers) == 0 || json_object_size(layers) > MAX_RULES - d->n_rules)
        return st ? st : unknown(d);
    d->rest = SAYS_PLAIN;
    json_object_foreach(layers, key, layer)
    {
        if (!st)
            st = add_rule(d, BY_NAME, key, says_of_algorithm(layer), err);
    }
    return st;
}

static lathe_status read_config(struct declared *d, const char *dir, lathe_error *err)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/config.json",
                   dir); /* its length is dims_read's to check */
    lathe_status st = json_read_file(&d->doc, path, &json_limits_model, err);
    const json_t *config = json_object_get(d->doc.root, "quantization_config");
    if (st)
        return st;
    const char *method = json_string_value(json_object_get(config, "quant_method"));
    if (!method)
        return unknown(d);
    if (strcmp(method, "compressed-tensors") == 0)
        return read_compressed(d, config, err);
    if (strcmp(method, "fp8") == 0)
        return read_fp8(d, config, err);
    return strncmp(method, "modelopt", 8) == 0 ? read_modelopt(d, config, err) : unknown(d);
}

static void release(struct declared *d)
{
    for (size_t i = 0; i < d->n_rules; i++)
        pcre2_code_free(d->rules[i].expression);
    pcre2_match_context_free(d->context);
    pcre2_match_data_free(d->match);
    free(d->rules);
    json_release(&d->doc);
    free(d);
}

lathe_status declared_open(struct declared **out, const char *dir, lathe_error *err)
{
    *out = NULL;
    struct declared *d = calloc(1, sizeof *d);
    if (!d)
        return fail_memory(err, sizeof *d);
    d->dir = dir;
    lathe_status st = read_config(d, dir, err);
    if (!st && !d->is_unknown) {
        d->match = pcre2_match_data_create(1, NULL);
        d->context = pcre2_match_context_create(NULL);
        if (d->match && d->context)
            pcre2_set_match_limit(d->context, MAX_STEPS);
        else
            st = fail_memory(err, 0);
    }
    if (st || d->is_unknown)
        release(d);
    else
        *out = d;
    return st;
}

/* ---- Comparing ----------------------------------------------------------------------------- */

/* What makers put in front of a text module's name, the longer before what they end in. */
static const char *const prefixes[] = {"model.language_model.", "language_model.model.",
                                       "language_model.", "model.", ""};
enum { N_PREFIXES = sizeof prefixes / sizeof *prefixes };

static const char *short_name(const char *name)
{
    size_t i = 0;
    while (strncmp(name, prefixes[i], strlen(prefixes[i])) != 0)
        i++;
    return name + strlen(prefixes[i]);
}

/* '*' is any text, '?' any character. The last star is the only one to come back to. */
static bool is_glob(const char *name, const char *glob)
{
    const char *star = NULL, *from = NULL;
    while (*name) {
        if (*glob == '*') {
            star = glob++;
            from = name;
        } else if (*glob == '?' || *glob == *name) {
            glob++;
            name++;
        } else if (star) {
            glob = star + 1;
            name = ++from;
        } else {
            return false;
        }
    }
    return glob[strspn(glob, "*")] == 0;
}

static bool is_part(const char *name, const char *part)
{
    size_t n = strlen(name), m = strlen(part);
    return m <= n && (memcmp(name, part, m) == 0 || memcmp(name + n - m, part, m) == 0);
}

static bool applies_to(const struct declared *d, const struct rule *r, const char *name)
{
    switch (r->how) {
    case BY_NAME:
        return strcmp(name, r->text) == 0;
    case BY_EXPRESSION:
        return r->expression && pcre2_match(r->expression, (PCRE2_SPTR)name, strlen(name), 0, 0,
                                            d->match, d->context) >= 0;
    case BY_GLOB:
        return is_glob(name, r->text);
    case BY_PART:
        return is_part(name, r->text);
    case BY_CLASS:
        return strcmp(short_name(name), "embed_tokens") != 0;
    }
    return false;
}

/* The prefix of a rule need not be the tensors'. */
static bool applies(const struct declared *d, const struct rule *r, const char *name)
{
    char spelled[2 * MAX_NAME];
    for (size_t i = 0; i < N_PREFIXES; i++) {
        (void)snprintf(spelled, sizeof spelled, "%s%s", prefixes[i], short_name(name));
        if (applies_to(d, r, spelled))
            return true;
    }
    return false;
}

static enum format_says says_of_format(enum weight_format_id format)
{
    switch (format) {
    case WF_NVFP4:
        return SAYS_NVFP4;
    case WF_FP8_TENSOR:
    case WF_FP8_ROW:
    case WF_FP8_BLOCK:
        return SAYS_FP8;
    default:
        return SAYS_PLAIN;
    }
}

/* What is said of a matrix: `is` if any rule allows it, for groups overlap. */
static enum format_says said(const struct declared *d, const char *name, enum format_says is)
{
    enum format_says says = SAYS_ANYTHING;
    bool any = false;
    for (size_t i = 0; i < d->n_exceptions; i++)
        if (applies(d, &d->rules[i], name))
            return d->rules[i].says;
    for (size_t i = d->n_exceptions; i < d->n_rules; i++) {
        if (!applies(d, &d->rules[i], name))
            continue;
        if (d->rules[i].says == SAYS_ANYTHING || d->rules[i].says == is)
            return is;
        says = any ? says : d->rules[i].says;
        any = true;
    }
    if (any)
        return says;
    return strcmp(short_name(name), "embed_tokens") == 0 ? SAYS_ANYTHING : d->rest;
}

void declared_compare(struct declared *d, const char *name, enum weight_format_id format)
{
    enum format_says is = says_of_format(format);
    enum format_says says = d ? said(d, name, is) : SAYS_ANYTHING;
    if (says == SAYS_ANYTHING || says == is)
        return;
    if (d->n_differ++ == 0) {
        (void)snprintf(d->first, sizeof d->first, "%s", name);
        d->first_says = says;
        d->first_is = weight_formats[format].name;
    }
}

void declared_close(struct declared *d)
{
    char others[64] = "";
    if (!d)
        return;
    if (d->n_differ > 1)
        (void)snprintf(others, sizeof others, " (and %zu more differ)", d->n_differ - 1);
    if (d->n_differ)
        log_warn(
            "%s/config.json: quantization_config says that %s is %s, its tensors are %s%s: the "
            "tensors are used",
            d->dir, d->first, says_name[d->first_says], d->first_is, others);
    release(d);
}

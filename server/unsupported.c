#include "unsupported.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void known_add(struct known_fields *k, const char *const *name, size_t n)
{
    for (size_t i = 0; i < n && k->n < sizeof k->name / sizeof *k->name; i++)
        k->name[k->n++] = name[i];
}

static bool known_has(const struct known_fields *k, const char *name)
{
    size_t i = 0;
    while (i < k->n && strcmp(k->name[i], name) != 0)
        i++;
    return i < k->n;
}

/* ---- Fields that must ask for what is done anyway ------------------------------------------- */

static bool is_neutral(const json_t *v, const char *value)
{
    if (!v)
        return true;
    if (json_is_array(v))
        return json_array_size(v) == 0 && strcmp(value, "[]") == 0;
    if (json_is_boolean(v))
        return strcmp(value, json_is_true(v) ? "true" : "false") == 0;
    return json_is_number(v) && value[0] >= '0' && value[0] <= '9' &&
           json_number_value(v) == (double)(value[0] - '0');
}

bool neutral_read(const struct fields *f, const struct neutral_field *row, size_t n,
                  struct known_fields *k)
{
    for (size_t i = 0; i < n; i++) {
        if (!is_neutral(field_value(f, row[i].name), row[i].value))
            return refuse_field(f->failure, UNSUPPORTED_VALUE, row[i].name,
                                "%s: only %s is supported", row[i].name, row[i].value);
        known_add(k, &row[i].name, 1);
    }
    return true;
}

/* ---- Hints ---------------------------------------------------------------------------------- */

static bool hint_read(const struct fields *f, const struct hint *h)
{
    struct fields object;
    const char *text;
    size_t n;
    bool flag;
    int64_t whole;
    switch (h->type) {
    case HINT_TEXT:
        return field_text(f, h->name, &text, &n);
    case HINT_BOOL:
        return field_bool(f, h->name, &flag);
    case HINT_WHOLE:
        return field_int(f, h->name, &whole, INT64_MIN, INT64_MAX);
    case HINT_OBJECT:
        break;
    }
    return fields_inner(f, h->name, "", &object);
}

bool hints_read(const struct fields *f, const struct hint *row, size_t n, struct known_fields *k)
{
    for (size_t i = 0; i < n; i++) {
        if (!hint_read(f, &row[i]))
            return false;
        known_add(k, &row[i].name, 1);
    }
    return true;
}

/* ---- What is refused ------------------------------------------------------------------------ */

static const struct neutral_field samplers[] = {
    {"skip_special_tokens", "true"},
    {"typical_p", "1"},
    {"top_a", "0"},
    {"tfs", "1"},
    {"xtc_probability", "0"},
    {"dry_multiplier", "0"},
    {"mirostat", "0"},
    {"mirostat_mode", "0"},
    {"dynatemp_range", "0"},
    {"lora", "[]"},
    {"use_beam_search", "false"},
    {"length_penalty", "1"},
};

/* Fields of samplers that are off: numbers, and what breaks a sequence. They change nothing. */
static const char *const tuners[] = {
    "xtc_threshold", "dry_base",     "dry_allowed_length", "dry_penalty_last_n",   "dry_range",
    "mirostat_tau",  "mirostat_eta", "dynatemp_exponent",  "dry_sequence_breakers"};

/* Names that begin so are of samplers and adapters that do not exist here. */
static const char *const families[] = {"xtc_", "dry_", "mirostat", "dynatemp_", "lora"};

static bool tuners_read(const struct fields *f, struct known_fields *k)
{
    enum { N_NUMBERS = sizeof tuners / sizeof *tuners - 1 };
    const char *breakers = tuners[N_NUMBERS];
    const json_t *v = field_value(f, breakers);
    double x;
    for (size_t i = 0; i < N_NUMBERS; i++)
        if (!field_real(f, tuners[i], &x, -INFINITY, INFINITY))
            return false;
    if (v && !json_is_array(v) && !json_is_string(v))
        return field_is_no(f, breakers, "an array or a string", v);
    known_add(k, tuners, sizeof tuners / sizeof *tuners);
    return true;
}

/* Refuses what is of a family, is given, and is not known. */
static bool families_check(const struct fields *f, const struct known_fields *k)
{
    json_t *tree = json_members(f->object);
    for (void *it = json_object_iter(tree); it; it = json_object_iter_next(tree, it)) {
        const char *key = json_object_iter_key(it);
        size_t i = 0, n = sizeof families / sizeof *families;
        while (i < n && strncmp(key, families[i], strlen(families[i])) != 0)
            i++;
        if (i < n && field_value(f, key) && !known_has(k, key))
            return refuse_field(f->failure, UNSUPPORTED_FIELD, key,
                                "%.120s is not supported: there are no adapters, and of samplers "
                                "only temperature, top_k, top_p and min_p",
                                key);
    }
    return true;
}

static const char free_text[] = "output cannot be bound, only free text is supported";

static const struct refused {
    const char *name, *instead;
} refused[] = {
    {"functions", "use tools"},
    {"function_call", "use tool_choice"},
    {"audio", "only text is generated"},
    {"web_search_options", "there is no web search; give a tool"},
    {"moderation", "nothing is moderated; leave it out"},
    {"chat_template", "the model's own template is used"},
    {"guided_json", free_text},
    {"guided_regex", free_text},
    {"guided_choice", free_text},
    {"guided_grammar", free_text},
    {"structured_outputs", free_text},
    {"json_schema", free_text},
    {"regex", free_text},
    {"grammar", free_text},
    {"ebnf", free_text},
    {"samplers", "their order is fixed; use temperature, top_k, top_p and min_p"},
    {"logits_processors", "use logit_bias"},
    {"allowed_token_ids", "use logit_bias"},
};

bool format_read(const struct fields *f, struct exchange *x, const char *name)
{
    static const char *const known[] = {"type"};
    struct fields format;
    const char *type = NULL;
    char path[80], param[84];
    size_t n;
    (void)snprintf(path, sizeof path, "%s%s.", f->path, name);
    (void)snprintf(param, sizeof param, "%stype", path);
    if (!fields_inner(f, name, path, &format) || !field_text(&format, "type", &type, &n))
        return false;
    if (!format.object)
        return true;
    if (!type)
        return refuse_field(f->failure, MISSING_FIELD, param,
                            "%s is missing; only \"text\" is supported", param);
    if (strcmp(type, "text") != 0)
        return refuse_field(f->failure, UNSUPPORTED_VALUE, param,
                            "%s: '%.40s' is not supported, only text", param, type);
    return fields_unknown(&format, x, known, 1);
}

bool unsupported_read(const struct fields *f, struct exchange *x, struct known_fields *k)
{
    static const char *const formats[] = {"response_format"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (field_value(f, refused[i].name))
            return refuse_field(f->failure, UNSUPPORTED_FIELD, refused[i].name,
                                "%s is not supported: %s", refused[i].name, refused[i].instead);
        known_add(k, &refused[i].name, 1); /* null */
    }
    known_add(k, formats, 1);
    return neutral_read(f, samplers, sizeof samplers / sizeof *samplers, k) && tuners_read(f, k) &&
           families_check(f, k) && format_read(f, x, formats[0]);
}

bool inner_unknown(const struct fields *f, struct exchange *x, const char *name, const char *path,
                   const char *const *known, size_t n)
{
    struct fields in;
    return fields_inner(f, name, path, &in) && (!in.object || fields_unknown(&in, x, known, n));
}

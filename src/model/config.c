/* config.json to struct dims. Every number is checked against the range that the code behind it can
 * hold; what changes the mathematics and is not built is refused by name. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "model/model.h"
#include "op/op.h"

enum {
    MAX_VOCAB = 1 << 24,
    MAX_WIDTH = 1 << 20, /* hidden, mlp */
    MAX_HEADS = 1 << 12, /* with OP_MAX_HEAD: every product of sizes stays below 2^31 */
};

/* The first failure is kept and later reads do nothing, so that fields read straight. */
struct reader {
    const struct json_doc *doc;
    json_t *obj;       /* the object that is read */
    const char *where; /* its name with a dot behind, "" for the top level */
    lathe_status *st;  /* shared by the readers of one file */
    lathe_error *err;
};

static const char *kind(const json_t *v)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",        [JSON_NULL] = "null",
    };
    return v ? names[json_typeof(v)] : "missing";
}

/* A member that is there and not null. */
static json_t *member(const struct reader *r, const char *name)
{
    json_t *v = json_object_get(r->obj, name);
    return json_is_null(v) ? NULL : v;
}

static void check_range(struct reader *r, const char *name, const json_t *v, int64_t min,
                        int64_t max, int32_t *out)
{
    if (*r->st)
        return;
    if (!json_is_integer(v)) {
        *r->st = fail(r->err, LATHE_E_FORMAT, "%s%s: %s, expected an integer of %lld to %lld",
                      r->where, name, kind(v), (long long)min, (long long)max);
        return;
    }
    json_int_t i = json_integer_value(v);
    if (i < min || i > max)
        *r->st = fail(r->err, LATHE_E_FORMAT, "%s%s: %lld, expected %lld to %lld", r->where, name,
                      (long long)i, (long long)min, (long long)max);
    else
        *out = (int32_t)i;
}

static int32_t need_int(struct reader *r, const char *name, int64_t min, int64_t max)
{
    int32_t n = (int32_t)min;
    check_range(r, name, member(r, name), min, max, &n);
    return n;
}

static int32_t opt_int(struct reader *r, const char *name, int64_t min, int64_t max, int32_t other)
{
    return member(r, name) ? need_int(r, name, min, max) : other;
}

static double opt_real(struct reader *r, const char *name, double min, double max, double other)
{
    json_t *v = member(r, name);
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
                      name, kind(v), min, max);
    return other;
}

static bool opt_bool(struct reader *r, const char *name, bool other)
{
    json_t *v = member(r, name);
    if (*r->st || !v)
        return other;
    if (!json_is_boolean(v))
        *r->st = fail(r->err, LATHE_E_FORMAT, "%s%s: %s, expected true or false", r->where, name,
                      kind(v));
    return json_is_true(v);
}

static const char *opt_string(struct reader *r, const char *name, const char *other)
{
    json_t *v = member(r, name);
    size_t n;
    if (*r->st || !v)
        return other;
    const char *s = json_text(r->doc, v, &n);
    if (!s)
        *r->st =
            fail(r->err, LATHE_E_FORMAT, "%s%s: %s, expected a string", r->where, name, kind(v));
    return s ? s : other;
}

/* NULL where the member is absent. */
static json_t *opt_object(struct reader *r, const char *name)
{
    json_t *v = member(r, name);
    if (*r->st || !v)
        return NULL;
    if (!json_is_object(v))
        *r->st =
            fail(r->err, LATHE_E_FORMAT, "%s%s: %s, expected an object", r->where, name, kind(v));
    return v;
}

/* The value must be absent or one of two spellings of what is built. */
static void only_string(struct reader *r, const char *name, const char *a, const char *b)
{
    const char *s = opt_string(r, name, a);
    if (!*r->st && strcmp(s, a) != 0 && strcmp(s, b) != 0)
        *r->st = fail(r->err, LATHE_E_UNSUPPORTED, "%s%s \"%.64s\" is not supported, only \"%s\"",
                      r->where, name, s, a);
}

static void only_bool(struct reader *r, const char *name, bool value)
{
    if (opt_bool(r, name, value) != value && !*r->st)
        *r->st = fail(r->err, LATHE_E_UNSUPPORTED, "%s%s %s is not supported, only %s", r->where,
                      name, value ? "false" : "true", value ? "true" : "false");
}

/* It must be absent or null. */
static void refuse_member(struct reader *r, const char *name)
{
    if (!*r->st && member(r, name))
        *r->st = fail(r->err, LATHE_E_UNSUPPORTED, "%s%s is not supported", r->where, name);
}

static void check_multiple(struct reader *r, const char *a, int32_t n, const char *b, int32_t m)
{
    if (!*r->st && n % m)
        *r->st = fail(r->err, LATHE_E_FORMAT, "%s%s: %d, expected a multiple of %s, %d", r->where,
                      a, n, b, m);
}

static void read_sizes(struct reader *r, struct dims *d)
{
    d->vocab = need_int(r, "vocab_size", 1, MAX_VOCAB);
    d->hidden = need_int(r, "hidden_size", 1, MAX_WIDTH);
    d->mlp = need_int(r, "intermediate_size", 1, MAX_WIDTH);
    d->n_layers = need_int(r, "num_hidden_layers", 1, MAX_LAYERS);
    d->rms_eps = (float)opt_real(r, "rms_norm_eps", 0, 1, 1e-6);
    d->max_position = need_int(r, "max_position_embeddings", 1, 1 << 30);

    d->n_heads = need_int(r, "num_attention_heads", 1, MAX_HEADS);
    d->n_kv_heads = need_int(r, "num_key_value_heads", 1, MAX_HEADS);
    d->head_dim = need_int(r, "head_dim", 2, OP_MAX_HEAD);
    check_multiple(r, "num_attention_heads", d->n_heads, "num_key_value_heads", d->n_kv_heads);

    d->n_k_heads = need_int(r, "linear_num_key_heads", 1, MAX_HEADS);
    d->n_v_heads = need_int(r, "linear_num_value_heads", 1, MAX_HEADS);
    d->dk = need_int(r, "linear_key_head_dim", 1, OP_MAX_HEAD);
    d->dv = need_int(r, "linear_value_head_dim", 1, OP_MAX_HEAD);
    d->conv_taps = need_int(r, "linear_conv_kernel_dim", 2, OP_MAX_TAPS);
    check_multiple(r, "linear_num_value_heads", d->n_v_heads, "linear_num_key_heads", d->n_k_heads);
    if (*r->st)
        return;
    d->k_dim = d->n_k_heads * d->dk;
    d->v_dim = d->n_v_heads * d->dv;
    d->conv_dim = 2 * d->k_dim + d->v_dim;
}

static void read_layer_types(struct reader *r, struct dims *d)
{
    int32_t interval = opt_int(r, "full_attention_interval", 1, INT_MAX, 4);
    json_t *types = member(r, "layer_types");
    if (*r->st)
        return;
    if (!types) {
        for (int32_t i = 0; i < d->n_layers; i++)
            d->is_full_attention[i] = (i + 1) % interval == 0;
        return;
    }
    if (!json_is_array(types) || json_array_size(types) != (size_t)d->n_layers) {
        *r->st = fail(r->err, LATHE_E_FORMAT,
                      "%slayer_types: %zu entries, expected num_hidden_layers, %d", r->where,
                      json_array_size(types), d->n_layers);
        return;
    }
    for (int32_t i = 0; i < d->n_layers; i++) {
        size_t n;
        const char *s = json_text(r->doc, json_array_get(types, (size_t)i), &n);
        bool full = s && strcmp(s, "full_attention") == 0;
        if (!full && !(s && strcmp(s, "linear_attention") == 0)) {
            *r->st = fail(r->err, LATHE_E_UNSUPPORTED,
                          "%slayer_types[%d]: \"%.64s\" is not supported, only "
                          "\"linear_attention\" and \"full_attention\"",
                          r->where, i, s ? s : kind(json_array_get(types, (size_t)i)));
            return;
        }
        d->is_full_attention[i] = full;
    }
}

static void read_sections(struct reader *r, struct dims *d)
{
    json_t *v = member(r, "mrope_section");
    if (*r->st || !v)
        return;
    if (!json_is_array(v) || json_array_size(v) != 3) {
        *r->st = fail(r->err, LATHE_E_FORMAT, "%smrope_section: expected three integers", r->where);
        return;
    }
    for (size_t i = 0; i < 3; i++)
        check_range(r, "mrope_section", json_array_get(v, i), 0, MAX_ROTARY_PAIRS,
                    &d->mrope_section[i]);
    only_bool(r, "mrope_interleaved", true);
}

/* base^(-2i/d) in float32 steps, as the reference computes it. */
static float plain_frequency(double theta, int32_t i, int32_t rotary_dims)
{
    float exponent = (float)(2 * i) / (float)rotary_dims;
    float power = (float)pow(theta, (double)exponent);
    return 1.0f / power;
}

/* Static YaRN (transformers' _compute_yarn_parameters):
 *   corr(r) = n ln(L / 2 pi r) / (2 ln theta),  n rotary dims, L the original context
 *   ramp(i) = clamp((i - low) / (high - low), 0, 1), low = floor(corr(beta_fast)),
 *             high = ceil(corr(beta_slow))
 *   f(i)    = f(i) / factor * ramp(i) + f(i) * (1 - ramp(i)) */
static void apply_yarn(struct reader *r, struct dims *d, double theta)
{
    double factor = opt_real(r, "factor", 1, 1 << 20, NAN);
    int32_t original = need_int(r, "original_max_position_embeddings", 1, 1 << 30);
    double fast = opt_real(r, "beta_fast", 1e-3, 1e6, 32);
    double slow = opt_real(r, "beta_slow", 1e-3, 1e6, 1);
    double scale = opt_real(r, "attention_factor", 1e-3, 1e3, 0.1 * log(factor) + 1);
    only_bool(r, "truncate", true);
    refuse_member(r, "mscale");
    refuse_member(r, "mscale_all_dim");
    if (!*r->st && isnan(factor))
        *r->st = fail(r->err, LATHE_E_FORMAT, "%sfactor: missing, YaRN needs it", r->where);
    if (*r->st)
        return;

    double n = d->rotary_dims, two_pi = 2 * acos(-1.0);
    double low = floor(n * log(original / (two_pi * fast)) / (2 * log(theta)));
    double high = ceil(n * log(original / (two_pi * slow)) / (2 * log(theta)));
    low = fmax(low, 0);
    high = fmin(high, n - 1);
    if (low == high)
        high += 0.001;
    for (int32_t i = 0; i < d->rotary_dims / 2; i++) {
        double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
        double f = (double)d->inv_freq[i];
        d->inv_freq[i] = (float)(f / factor * ramp + f * (1 - ramp));
    }
    d->rope_scale = (float)scale;
    d->max_position = (int32_t)fmin(factor * original, 1 << 30);
}

/* Fields are in rope_parameters; older files have rope_scaling, and rope_theta and
 * partial_rotary_factor beside it. */
static void read_rotary(struct reader *text, struct dims *d)
{
    struct reader r = *text;
    char where[64];
    const char *name = member(text, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    json_t *params = opt_object(text, name);
    if (*text->st)
        return;
    if (params) {
        (void)snprintf(where, sizeof where, "%s%s.", text->where, name);
        r.obj = params;
        r.where = where;
    }
    /* Each field from its new place, or else from its old one. */
    struct reader *theta_at = member(&r, "rope_theta") ? &r : text;
    double theta = opt_real(theta_at, "rope_theta", 1.001, 1e12, 1e7);
    struct reader *part_at = member(&r, "partial_rotary_factor") ? &r : text;
    double part = opt_real(part_at, "partial_rotary_factor", 0, 1, 0.25);
    const char *type = opt_string(&r, "rope_type", opt_string(&r, "type", "default"));
    if (*r.st)
        return;
    d->rotary_dims = (int32_t)(d->head_dim * part);
    if (d->rotary_dims < 2 || d->rotary_dims % 2 || d->rotary_dims > 2 * MAX_ROTARY_PAIRS) {
        *text->st = fail(text->err, LATHE_E_FORMAT,
                         "partial_rotary_factor %g of head_dim %d: %d rotary dimensions, expected "
                         "an even number of 2 to %d",
                         part, d->head_dim, d->rotary_dims, 2 * MAX_ROTARY_PAIRS);
        return;
    }
    for (int32_t i = 0; i < d->rotary_dims / 2; i++)
        d->inv_freq[i] = plain_frequency(theta, i, d->rotary_dims);
    d->rope_scale = 1;

    struct reader *section_at = member(&r, "mrope_section") ? &r : text;
    read_sections(section_at, d);
    if (strcmp(type, "yarn") == 0)
        apply_yarn(&r, d, theta);
    else if (strcmp(type, "default") != 0 && strcmp(type, "mrope") != 0 && !*r.st)
        *r.st = fail(r.err, LATHE_E_UNSUPPORTED,
                     "%srope_type \"%.64s\" is not supported, only \"default\" and \"yarn\"",
                     r.where, type);
    const int32_t *s = d->mrope_section;
    int32_t pairs = s[0] + s[1] + s[2];
    if (!*text->st && pairs != 0 && pairs != d->rotary_dims / 2)
        *text->st =
            fail(text->err, LATHE_E_FORMAT, "mrope_section: [%d, %d, %d] are %d pairs, expected %d",
                 s[0], s[1], s[2], pairs, d->rotary_dims / 2);
}

static void check_supported(struct reader *r)
{
    only_string(r, "model_type", "qwen3_5", "qwen3_5_text");
    only_string(r, "hidden_act", "silu", "swish");
    only_string(r, "output_gate_type", "swish", "silu");
    only_bool(r, "attention_bias", false);
    only_bool(r, "attn_output_gate", true);
    if (opt_int(r, "num_experts", 0, INT_MAX, 0))
        refuse_member(r, "num_experts");
}

/* What the tensors cannot say: rotated weights, and blocks of another size. */
static void check_quantization(struct reader *top)
{
    struct reader r = *top;
    r.obj = opt_object(top, "quantization_config");
    r.where = "quantization_config.";
    if (*top->st || !r.obj)
        return;
    json_t *transform = member(&r, "transform_config"), *block = member(&r, "weight_block_size");
    if (json_object_size(transform))
        refuse_member(&r, "transform_config");
    if (block &&
        (json_array_size(block) != 2 || json_integer_value(json_array_get(block, 0)) != 128 ||
         json_integer_value(json_array_get(block, 1)) != 128))
        *r.st = fail(r.err, LATHE_E_UNSUPPORTED,
                     "%sweight_block_size: only [128, 128] is supported", r.where);
}

static void read_parts(struct reader *top, struct reader *text, struct dims *d)
{
    d->tied_head =
        opt_bool(text, "tie_word_embeddings", opt_bool(top, "tie_word_embeddings", false));
    int32_t n_mtp = opt_int(text, "mtp_num_hidden_layers", 0, MAX_LAYERS, 0);
    bool own_embeddings = opt_bool(text, "mtp_use_dedicated_embeddings", false);
    d->has_mtp = n_mtp == 1 && !own_embeddings;
    if (n_mtp > 1)
        log_warn("config.json: a draft head of %d layers is left out, only 1 is supported", n_mtp);
    if (n_mtp && own_embeddings)
        log_warn("config.json: a draft head with its own embedding is left out, not supported");

    struct reader vision = *top;
    vision.obj = opt_object(top, "vision_config");
    vision.where = "vision_config.";
    if (!*top->st && vision.obj)
        d->vision_depth = opt_int(&vision, "depth", 0, MAX_LAYERS, 0);
}

static lathe_status read_config(struct dims *d, const struct json_doc *doc, lathe_error *err)
{
    lathe_status st = LATHE_OK;
    struct reader top = {doc, doc->root, "", &st, err};
    if (!json_is_object(doc->root))
        return fail(err, LATHE_E_FORMAT, "%s, expected an object", kind(doc->root));
    struct reader text = top;
    json_t *inner = opt_object(&top, "text_config");
    if (st)
        return st;
    if (inner) {
        text.obj = inner;
        text.where = "text_config.";
        only_string(&top, "model_type", "qwen3_5", "qwen3_5_text");
    }
    check_quantization(&top);
    if (st)
        return st;
    check_supported(&text);
    read_sizes(&text, d);
    if (!st)
        read_layer_types(&text, d);
    if (!st)
        read_rotary(&text, d);
    if (!st)
        read_parts(&top, &text, d);
    return st;
}

lathe_status dims_parse(struct dims *d, const char *s, size_t n, lathe_error *err)
{
    struct json_doc doc;
    *d = (struct dims){0};
    lathe_status st = json_read(&doc, s, n, &json_limits_model, err);
    if (!st)
        st = read_config(d, &doc, err);
    json_release(&doc);
    return st;
}

lathe_status dims_read(struct dims *d, const char *dir, lathe_error *err)
{
    *d = (struct dims){0};
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/config.json", dir);
    if (n < 0 || (size_t)n >= sizeof path)
        return fail(err, LATHE_E_LIMIT, "path %.64s...: longer than %zu bytes", dir,
                    sizeof path - 1);
    struct file f;
    lathe_status st = file_map(&f, path, err);
    if (st)
        return st; /* it names the path */
    st = dims_parse(d, f.data ? (const char *)f.data : "", f.size, err);
    file_unmap(&f);
    if (st)
        error_context(err, "%s", path);
    return st;
}

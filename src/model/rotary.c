/* The rotary embedding: frequencies, position axes, YaRN. */
#include "model/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void read_sections(struct reader *r, struct dims *d)
{
    json_t *v = field_get(r, "mrope_section");
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

void rotary_read(struct reader *text, struct dims *d, double default_part)
{
    struct reader r = *text;
    char where[64];
    const char *name = field_get(text, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    json_t *params = opt_object(text, name);
    if (*text->st)
        return;
    if (params) {
        (void)snprintf(where, sizeof where, "%s%s.", text->where, name);
        r.obj = params;
        r.where = where;
    }
    /* Each field from its new place, or else from its old one. */
    struct reader *theta_at = field_get(&r, "rope_theta") ? &r : text;
    /* A wrong base is no error but a model that gets worse with every position: none is assumed. */
    if (!field_get(theta_at, "rope_theta")) {
        *text->st =
            fail(text->err, LATHE_E_FORMAT, "%srope_parameters.rope_theta: missing", text->where);
        return;
    }
    double theta = opt_real(theta_at, "rope_theta", 1.001, 1e12, 1e7);
    struct reader *part_at = field_get(&r, "partial_rotary_factor") ? &r : text;
    double part = opt_real(part_at, "partial_rotary_factor", 0, 1, default_part);
    const char *type = opt_string(&r, "rope_type", opt_string(&r, "type", "default"));
    if (*r.st)
        return;
    d->rotary_dims = (int32_t)(d->head_dim * part);
    if (d->rotary_dims < 2 || d->rotary_dims % 2 || d->rotary_dims > 2 * MAX_ROTARY_PAIRS) {
        *text->st =
            fail(text->err, LATHE_E_FORMAT,
                 "%spartial_rotary_factor: %g of head_dim %d, %d rotary dimensions, expected "
                 "an even number of 2 to %d",
                 part_at->where, part, d->head_dim, d->rotary_dims, 2 * MAX_ROTARY_PAIRS);
        return;
    }
    for (int32_t i = 0; i < d->rotary_dims / 2; i++)
        d->inv_freq[i] = plain_frequency(theta, i, d->rotary_dims);
    d->rope_scale = 1;

    struct reader *section_at = field_get(&r, "mrope_section") ? &r : text;
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

/* A block drafter's config.json. What says how the block is built lies in dflash_config, or beside the
 * other fields. */
#include <stdio.h>
#include <string.h>

#include "model/config.h"
#include "spec/dflash.h"

/* The reader of a field that may lie in dflash_config. In both places it must be the same. */
static struct reader *at(struct reader *inner, struct reader *top, const char *name)
{
    json_t *v = inner->obj ? field_get(inner, name) : NULL, *other = field_get(top, name);
    if (v && other && !json_equal(v, other) && !*top->st)
        *top->st = fail(top->err, LATHE_E_FORMAT, "%s and %s%s differ", name, inner->where, name);
    return v ? inner : top;
}

static void read_kind(struct reader *top, struct dflash_config *c)
{
    json_t *list = field_get(top, "architectures");
    size_t n;
    const char *name = json_text(top->doc, json_array_get(list, 0), &n);
    if (*top->st)
        return;
    if (!name)
        name = field_kind(top->doc, list);
    /* DFlash2 first: the older name is its beginning. */
    if (strncmp(name, "DFlash2", 7) == 0)
        c->kind = DFLASH_SELECTOR;
    else if (strncmp(name, "DFlash", 6) == 0)
        c->kind = DFLASH_PLAIN;
    else if (strcmp(name, "DSparkDraftModel") == 0 || strcmp(name, "Qwen3DSparkModel") == 0)
        c->kind = DFLASH_MARKOV;
    else
        *top->st = fail(top->err, LATHE_E_UNSUPPORTED,
                        "architectures \"%.64s\" is not a drafter that is supported, only "
                        "DFlash2DraftModel, DFlashDraftModel and DSparkDraftModel",
                        name);
}

static void read_layer_types(struct reader *top, struct reader *inner, struct dflash_config *c)
{
    struct dims *d = &c->dims;
    json_t *types = field_get(top, "layer_types");
    bool sliding = opt_bool(top, "use_sliding_window", field_get(top, "sliding_window") != NULL);
    bool any = false;
    if (*top->st)
        return;
    if (types && json_array_size(types) != (size_t)d->n_layers) {
        *top->st = fail(top->err, LATHE_E_FORMAT,
                        "layer_types: %zu entries, expected num_hidden_layers, %d",
                        json_array_size(types), d->n_layers);
        return;
    }
    for (int32_t i = 0; i < d->n_layers; i++) {
        size_t n;
        json_t *v = json_array_get(types, (size_t)i);
        const char *s = types     ? json_text(top->doc, v, &n)
                        : sliding ? "sliding_attention"
                                  : "full_attention";
        d->is_full_attention[i] = s && strcmp(s, "full_attention") == 0;
        if (!d->is_full_attention[i] && !(s && strcmp(s, "sliding_attention") == 0)) {
            *top->st = fail(top->err, LATHE_E_UNSUPPORTED,
                            "layer_types[%d]: \"%.64s\" is not supported, only "
                            "\"sliding_attention\" and \"full_attention\"",
                            i, s ? s : field_kind(top->doc, v));
            return;
        }
        any |= !d->is_full_attention[i];
    }
    if (any && !sliding && field_get(top, "use_sliding_window"))
        *top->st = fail(top->err, LATHE_E_FORMAT,
                        "use_sliding_window: false, but layer_types has sliding layers");
    struct reader *r = at(inner, top, "sliding_window");
    c->window = any ? need_int(r, "sliding_window", 1, 1 << 30) : 0;
}

/* The block attends both ways. Older files may not say so: then it is certain only without windows, because
 * the reference makes sliding layers causal by default. */
static void check_causal(struct reader *top, struct reader *inner, const struct dflash_config *c)
{
    if (*top->st)
        return;
    if (field_get(top, "is_causal"))
        only_bool(top, "is_causal", false);
    else if (inner->obj && field_get(inner, "causal"))
        only_bool(inner, "causal", false);
    else if (c->kind == DFLASH_SELECTOR || c->window)
        *top->st = fail(top->err, LATHE_E_FORMAT, "is_causal: missing, expected false");
}

static void read_taps(struct reader *top, struct reader *inner, struct dflash_config *c)
{
    struct reader *r = at(inner, top, "target_layer_ids");
    json_t *ids = field_get(r, "target_layer_ids");
    if (*top->st)
        return;
    size_t n = json_array_size(ids);
    if (n < 1 || n > DFLASH_MAX_TAPS) {
        *top->st = fail(top->err, LATHE_E_FORMAT,
                        "%starget_layer_ids: %s of %zu entries, expected 1 to %d layers", r->where,
                        field_kind(top->doc, ids), n, DFLASH_MAX_TAPS);
        return;
    }
    c->n_taps = (int32_t)n;
    for (int32_t i = 0; i < c->n_taps && !*top->st; i++) {
        check_range(r, "target_layer_ids", json_array_get(ids, (size_t)i), 0, MAX_LAYERS - 1,
                    &c->tap[i]);
        if (!*top->st && i && c->tap[i] <= c->tap[i - 1])
            *top->st = fail(top->err, LATHE_E_UNSUPPORTED,
                            "%starget_layer_ids: %d after %d, only ascending layers are supported",
                            r->where, c->tap[i], c->tap[i - 1]);
    }
}

static void read_selector(struct reader *top, struct reader *inner, struct dflash_config *c)
{
    struct reader *r = at(inner, top, "conv_kernel_size");
    c->conv_taps = need_int(r, "conv_kernel_size", 2, 2);
    r = at(inner, top, "conv_group_size");
    c->conv_group = need_int(r, "conv_group_size", 1, c->dims.hidden);
    c->rank = need_int(at(inner, top, "selector_rank"), "selector_rank", 1, OP_MAX_RANK);
    c->n_candidates =
        need_int(at(inner, top, "selector_top_k"), "selector_top_k", 1, DFLASH_MAX_CANDIDATES);
    check_multiple(r, "hidden_size", c->dims.hidden, "conv_group_size", c->conv_group);
}

static void read_markov(struct reader *top, struct reader *inner, struct dflash_config *c)
{
    only_string(at(inner, top, "markov_head_type"), "markov_head_type", "vanilla", "vanilla");
    c->rank = need_int(at(inner, top, "markov_rank"), "markov_rank", 1, OP_MAX_RANK);
    /* The bias can lift a token over others whose logits are near: of 256 candidates nearly none is lost,
     * and the second codebook is not read whole for every draft (127 MB at the 27B's vocabulary). */
    c->n_candidates = DFLASH_MAX_CANDIDATES;
    c->has_confidence =
        opt_bool(at(inner, top, "enable_confidence_head"), "enable_confidence_head", true);
    c->confidence_sees_token = opt_bool(at(inner, top, "confidence_head_with_markov"),
                                        "confidence_head_with_markov", true);
    if (opt_bool(at(inner, top, "sample_from_anchor"), "sample_from_anchor", true))
        c->first_row = 0;
}

/* A factor that would change the mathematics. */
static void only_real(struct reader *r, const char *name, double value)
{
    if (opt_real(r, name, -1e9, 1e9, value) != value && !*r->st)
        *r->st = fail(r->err, LATHE_E_UNSUPPORTED, "%s%s is not supported, only %g", r->where, name,
                      value);
}

static void read_block(struct reader *top, struct reader *inner, struct dflash_config *c)
{
    c->block = need_int(at(inner, top, "block_size"), "block_size", 2, DFLASH_MAX_BLOCK);
    c->mask_token =
        need_int(at(inner, top, "mask_token_id"), "mask_token_id", 0, c->dims.vocab - 1);
    c->n_target_layers = opt_int(top, "num_target_layers", 1, MAX_LAYERS, 0);
    c->first_row = 1;
    read_taps(top, inner, c);
    only_real(at(inner, top, "input_embedding_scale"), "input_embedding_scale", 1);
    only_real(at(inner, top, "output_multiplier"), "output_multiplier", 1);
    refuse_member(at(inner, top, "final_logit_softcapping"), "final_logit_softcapping");
    if (c->kind == DFLASH_SELECTOR)
        read_selector(top, inner, c);
    else if (c->kind == DFLASH_MARKOV)
        read_markov(top, inner, c);
    if (c->n_candidates > c->dims.vocab)
        c->n_candidates = c->dims.vocab;
}

static lathe_status read_config(struct dflash_config *c, const struct json_doc *doc,
                                lathe_error *err)
{
    lathe_status st = LATHE_OK;
    struct reader top = {doc, doc->root, "", &st, err};
    if (!json_is_object(doc->root))
        return fail(err, LATHE_E_FORMAT, "%s, expected an object", field_kind(doc, doc->root));
    struct reader inner = {doc, opt_object(&top, "dflash_config"), "dflash_config.", &st, err};
    read_kind(&top, c);
    only_string(&top, "model_type", "qwen3", "qwen3");
    only_string(&top, "hidden_act", "silu", "swish");
    only_bool(&top, "attention_bias", false);
    sizes_read(&top, &c->dims);
    if (!st)
        rotary_read(&top, &c->dims, 1);
    if (!st)
        read_layer_types(&top, &inner, c);
    check_causal(&top, &inner, c);
    if (!st)
        read_block(&top, &inner, c);
    return st;
}

lathe_status dflash_config_parse(struct dflash_config *c, const char *s, size_t n, lathe_error *err)
{
    struct json_doc doc;
    *c = (struct dflash_config){0};
    lathe_status st = json_read(&doc, s, n, &json_limits_model, err);
    if (!st)
        st = read_config(c, &doc, err);
    json_release(&doc);
    return st;
}

lathe_status dflash_config_read(struct dflash_config *c, const char *dir, lathe_error *err)
{
    *c = (struct dflash_config){0};
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/config.json", dir);
    if (n < 0 || (size_t)n >= sizeof path)
        return fail(err, LATHE_E_LIMIT, "path %.64s...: longer than %zu bytes", dir,
                    sizeof path - 1);
    struct json_doc doc;
    lathe_status st = json_read_file(&doc, path, &json_limits_model, err);
    if (!st) {
        st = read_config(c, &doc, err);
        if (st)
            error_context(err, "%s", path);
    }
    json_release(&doc);
    return st;
}

lathe_status dflash_config_fits(const struct dflash_config *c, const struct dims *target,
                                lathe_error *err)
{
    const struct {
        const char *what;
        int32_t drafter, target;
    } pairs[] = {
        {"vocab_size", c->dims.vocab, target->vocab},
        {"hidden_size", c->dims.hidden, target->hidden},
        {"num_target_layers", c->n_target_layers ? c->n_target_layers : target->n_layers,
         target->n_layers},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i].drafter != pairs[i].target)
            return fail(err, LATHE_E_ARGUMENT,
                        "the drafter does not fit the model: its %s is %d, the model's %d",
                        pairs[i].what, pairs[i].drafter, pairs[i].target);
    if (c->tap[c->n_taps - 1] >= target->n_layers)
        return fail(
            err, LATHE_E_ARGUMENT,
            "the drafter does not fit the model: it reads layer %d, the model has %d layers",
            c->tap[c->n_taps - 1], target->n_layers);
    return LATHE_OK;
}

/* config.json to struct dims. Every number is checked against the range that the code behind it can
 * hold; what changes the mathematics and is not built is refused by name. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "model/config.h"
#include "op/op.h"

enum {
    MAX_VOCAB = 1 << 24,
    MAX_WIDTH = 1 << 20, /* hidden, mlp */
    MAX_HEADS = 1 << 12, /* with OP_MAX_HEAD: every product of sizes stays below 2^31 */
};

void sizes_read(struct reader *r, struct dims *d)
{
    d->vocab = need_int(r, "vocab_size", 1, MAX_VOCAB);
    d->hidden = need_int(r, "hidden_size", 1, MAX_WIDTH);
    d->mlp = need_int(r, "intermediate_size", 1, MAX_WIDTH);
    d->n_layers = need_int(r, "num_hidden_layers", 1, MAX_LAYERS);
    d->rms_eps = (float)opt_real(r, "rms_norm_eps", 1e-12, 1, 1e-6);
    d->max_position = need_int(r, "max_position_embeddings", 1, 1 << 30);

    d->n_heads = need_int(r, "num_attention_heads", 1, MAX_HEADS);
    d->n_kv_heads = need_int(r, "num_key_value_heads", 1, MAX_HEADS);
    d->head_dim = need_int(r, "head_dim", 2, OP_MAX_HEAD);
    check_multiple(r, "num_attention_heads", d->n_heads, "num_key_value_heads", d->n_kv_heads);
}

static void read_gdn_sizes(struct reader *r, struct dims *d)
{
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

/* layer_types hold; an interval that says something else may be the mistake, or they. */
static void warn_interval(const struct reader *r, const struct dims *d, int32_t interval)
{
    if (!field_get(r, "full_attention_interval"))
        return;
    for (int32_t i = 0; i < d->n_layers; i++)
        if (d->is_full_attention[i] != ((i + 1) % interval == 0)) {
            log_warn("config.json: %slayer_types[%d] is %s attention, full_attention_interval, %d, "
                     "says otherwise; layer_types hold",
                     r->where, i, d->is_full_attention[i] ? "full" : "linear", interval);
            return;
        }
}

static void read_layer_types(struct reader *r, struct dims *d)
{
    int32_t interval = opt_int(r, "full_attention_interval", 1, INT_MAX, 4);
    json_t *types = field_get(r, "layer_types");
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
            *r->st =
                fail(r->err, LATHE_E_UNSUPPORTED,
                     "%slayer_types[%d]: \"%.64s\" is not supported, only "
                     "\"linear_attention\" and \"full_attention\"",
                     r->where, i, s ? s : field_kind(r->doc, json_array_get(types, (size_t)i)));
            return;
        }
        d->is_full_attention[i] = full;
    }
    warn_interval(r, d, interval);
}

static void check_supported(struct reader *r)
{
    only_string(r, "model_type", "qwen3_5", "qwen3_5_text");
    only_string(r, "hidden_act", "silu", "swish");
    only_string(r, "output_gate_type", "swish", "silu");
    only_string(r, "mamba_ssm_dtype", "float32", "float32"); /* of the recurrent state */
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
    json_t *transform = field_get(&r, "transform_config"),
           *block = field_get(&r, "weight_block_size");
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
        return fail(err, LATHE_E_FORMAT, "%s, expected an object", field_kind(doc, doc->root));
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
    sizes_read(&text, d);
    read_gdn_sizes(&text, d);
    if (!st)
        read_layer_types(&text, d);
    if (!st)
        rotary_read(&text, d, 0.25);
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

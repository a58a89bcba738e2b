/* config.json of the grown model and of its drafter: nano's, with other sizes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "grow.h"

/* RoPE is plain and knows no limit; this is the 27B's. */
enum { MAX_POSITION = 262144 };

/* A member that has nano's size and takes the grown one. */
struct member {
    const char *name;
    int32_t nano, grown;
};

static lathe_status set_members(json_t *o, const struct member *m, size_t n, lathe_error *err)
{
    for (size_t i = 0; i < n; i++) {
        json_t *v = json_object_get(o, m[i].name);
        if (!json_is_integer(v))
            return fail(err, LATHE_E_FORMAT, "%s: missing, expected nano's %d", m[i].name,
                        m[i].nano);
        if (json_integer_value(v) != m[i].nano)
            return fail(err, LATHE_E_FORMAT, "%s: %lld, expected nano's %d", m[i].name,
                        (long long)json_integer_value(v), m[i].nano);
        if (json_object_set_new(o, m[i].name, json_integer(m[i].grown)))
            return fail_memory(err, 64);
    }
    return LATHE_OK;
}

/* What need not be nano's. */
static bool set_int(json_t *o, const char *name, int32_t value)
{
    return json_object_set_new(o, name, json_integer(value)) == 0;
}

static bool set_layer_types(json_t *text, int32_t n_layers)
{
    json_t *types = json_array();
    bool ok = types != NULL;
    for (int32_t i = 0; i < n_layers && ok; i++)
        ok = json_array_append_new(
                 types, json_string(i % 4 == 3 ? "full_attention" : "linear_attention")) == 0;
    return json_object_set_new(text, "layer_types", types) == 0 && ok;
}

/* Patterns that name nano's last layer name the layers that are like it. */
static lathe_status rename_last(const struct json_doc *doc, json_t *targets, const struct growth *g,
                                lathe_error *err)
{
    static const char last[] = "layers\\.7\\.";
    for (size_t i = 0; i < json_array_size(targets); i++) {
        size_t n;
        const char *s = json_text(doc, json_array_get(targets, i), &n), *at;
        if (!s || !(at = strstr(s, last)))
            continue;
        struct buf b;
        buf_init(&b, 1 << 16);
        buf_append(&b, s, (size_t)(at - s));
        buf_puts(&b, "layers\\.(");
        for (int32_t k = g->n_layers - g->n_late; k < g->n_layers; k++)
            buf_printf(&b, "%d%s", k, k + 1 < g->n_layers ? "|" : ")\\.");
        buf_puts(&b, at + strlen(last));
        lathe_status st = buf_check(&b, "a pattern", err);
        if (!st && json_array_set_new(targets, i, json_string(buf_str(&b))))
            st = fail_memory(err, b.len);
        buf_release(&b);
        if (st)
            return st;
    }
    return LATHE_OK;
}

static lathe_status rename_targets(const struct json_doc *doc, const struct growth *g,
                                   lathe_error *err)
{
    json_t *groups =
        json_object_get(json_object_get(doc->root, "quantization_config"), "config_groups");
    lathe_status st = LATHE_OK;
    for (void *it = json_object_iter(groups); it && !st; it = json_object_iter_next(groups, it))
        st = rename_last(doc, json_object_get(json_object_iter_value(it), "targets"), g, err);
    return st;
}

static lathe_status grow_model(const struct json_doc *doc, const struct growth *g, lathe_error *err)
{
    json_t *text = json_object_get(doc->root, "text_config");
    json_t *vision = json_object_get(doc->root, "vision_config");
    const struct member sizes[] = {
        {"vocab_size", NANO_VOCAB, g->vocab},
        {"hidden_size", NANO_HIDDEN, NANO_HIDDEN * g->tile},
        {"intermediate_size", NANO_MLP, NANO_MLP * g->tile},
        {"num_hidden_layers", NANO_LAYERS, g->n_layers},
        {"num_attention_heads", NANO_HEADS, NANO_HEADS * g->attention},
        {"num_key_value_heads", NANO_KV_HEADS, NANO_KV_HEADS * g->attention},
        {"head_dim", NANO_HEAD_DIM, NANO_HEAD_DIM},
        {"linear_num_key_heads", NANO_GDN_K_HEADS, NANO_GDN_K_HEADS * g->gdn},
        {"linear_num_value_heads", NANO_GDN_V_HEADS, NANO_GDN_V_HEADS * g->gdn},
        {"linear_key_head_dim", NANO_GDN_DIM, NANO_GDN_DIM},
        {"linear_value_head_dim", NANO_GDN_DIM, NANO_GDN_DIM},
    };
    const struct member out[] = {{"out_hidden_size", NANO_HIDDEN, NANO_HIDDEN * g->tile}};
    lathe_status st = set_members(text, sizes, sizeof sizes / sizeof *sizes, err);
    if (!st && vision)
        st = set_members(vision, out, 1, err);
    if (!st && !(set_int(text, "max_position_embeddings", MAX_POSITION) &&
                 set_layer_types(text, g->n_layers)))
        st = fail_memory(err, 64);
    return st ? st : rename_targets(doc, g, err);
}

/* Layers that see what nano's taps see: anywhere from the place of such a layer to before the next place. */
static lathe_status grow_taps(json_t *inner, struct growth *g, lathe_error *err)
{
    static const int32_t nano[NANO_TAPS] = {1, 2, 4, 5, 7},
                         tap_27b[NANO_TAPS] = {5, 19, 33, 47, 61};
    json_t *taps = json_object_get(inner, "target_layer_ids");
    if (json_array_size(taps) != NANO_TAPS)
        return fail(err, LATHE_E_FORMAT, "target_layer_ids: %zu layers, expected nano's %d",
                    json_array_size(taps), NANO_TAPS);
    for (size_t i = 0; i < NANO_TAPS; i++) {
        json_int_t t = json_integer_value(json_array_get(taps, i));
        if (t != nano[i])
            return fail(err, LATHE_E_FORMAT, "target_layer_ids: %lld, expected nano's %d",
                        (long long)t, nano[i]);
        int32_t first = g->place[t];
        int32_t last = t + 1 < NANO_LAYERS ? g->place[t + 1] - 1 : g->n_layers - 1;
        int32_t like = (tap_27b[i] + 1) * g->n_layers / 64 - 1;
        g->tap[i] = like < first ? first : like > last ? last : like;
        if (json_array_set_new(taps, i, json_integer(g->tap[i])))
            return fail_memory(err, 64);
    }
    return LATHE_OK;
}

static lathe_status grow_drafter(const struct json_doc *doc, struct growth *g, bool as_bf16,
                                 lathe_error *err)
{
    json_t *inner = json_object_get(doc->root, "dflash_config");
    const struct member sizes[] = {
        {"vocab_size", NANO_VOCAB, g->vocab},
        {"hidden_size", NANO_HIDDEN, NANO_HIDDEN * g->tile},
        {"intermediate_size", NANO_MLP, NANO_MLP * g->tile},
        {"num_hidden_layers", NANO_DRAFT_LAYERS, NANO_DRAFT_LAYERS},
        {"num_attention_heads", NANO_DRAFT_HEADS, NANO_DRAFT_HEADS * g->draft},
        {"num_key_value_heads", NANO_DRAFT_KV_HEADS, NANO_DRAFT_KV_HEADS * g->draft},
        {"head_dim", NANO_DRAFT_HEAD_DIM, NANO_DRAFT_HEAD_DIM},
        {"num_target_layers", NANO_LAYERS, g->n_layers},
    };
    const struct member more[] = {
        {"conv_group_size", NANO_CONV_GROUP, NANO_CONV_GROUP},
        {"selector_rank", NANO_RANK, NANO_RANK * g->rank},
    };
    lathe_status st = set_members(doc->root, sizes, sizeof sizes / sizeof *sizes, err);
    if (!st)
        st = set_members(inner, more, sizeof more / sizeof *more, err);
    if (!st)
        st = grow_taps(inner, g, err);
    if (!st && !set_int(doc->root, "max_position_embeddings", MAX_POSITION))
        st = fail_memory(err, 64);
    if (!st && as_bf16)
        (void)json_object_del(doc->root, "quantization_config");
    return st;
}

static lathe_status read_doc(struct json_doc *doc, const char *dir, lathe_error *err)
{
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/config.json", dir);
    *doc = (struct json_doc){0};
    if (n < 0 || (size_t)n >= sizeof path)
        return fail(err, LATHE_E_LIMIT, "path %.64s...: longer than %zu bytes", dir,
                    sizeof path - 1);
    return json_read_file(doc, path, &json_limits_model, err);
}

static lathe_status print_doc(struct buf *out, const struct json_doc *doc, lathe_error *err)
{
    char *s = json_dumps(doc->root, JSON_INDENT(2));
    if (!s)
        return fail_memory(err, 4096);
    buf_puts(out, s);
    buf_putc(out, '\n');
    free(s);
    return buf_check(out, "config.json", err);
}

lathe_status model_config(struct buf *out, const char *dir, const struct growth *g,
                          lathe_error *err)
{
    struct json_doc doc;
    lathe_status st = read_doc(&doc, dir, err);
    if (!st && (st = grow_model(&doc, g, err)))
        error_context(err, "%s/config.json", dir);
    if (!st)
        st = print_doc(out, &doc, err);
    json_release(&doc);
    return st;
}

lathe_status drafter_config(struct buf *out, const char *dir, struct growth *g, bool as_bf16,
                            lathe_error *err)
{
    struct json_doc doc;
    lathe_status st = read_doc(&doc, dir, err);
    if (!st && (st = grow_drafter(&doc, g, as_bf16, err)))
        error_context(err, "%s/config.json", dir);
    if (!st)
        st = print_doc(out, &doc, err);
    json_release(&doc);
    return st;
}

/* Which tensors a grown checkpoint holds, and how each comes from one of nano's. Repeating the residual
 * stream `tile` times, with everything that is added to it and all norms, leaves every norm's mean square as
 * it is; what reads the stream reads the first copy. Heads, MLP rows, vocabulary rows and layers that nano
 * lacks hold any numbers, and a zero stands between them and the stream. */
#include <stdio.h>
#include <string.h>

#include "grow.h"

/* ---- The member ------------------------------------------------------------------------------ */

/* nano's layers in the 27B, and the layers that its drafter reads. */
static const int32_t place_27b[NANO_LAYERS] = {0, 1, 6, 23, 24, 34, 48, 59};
enum { LAYERS_27B = 64, TILE_27B = 16, VOCAB_27B = 248320, MAX_GROWN_LAYERS = 512 };

static bool is_full_attention(int32_t layer)
{
    return layer % 4 == 3;
}

static int32_t min_of(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* In shorter and longer models layers go where the 27B's would be, then on to the next free one of their
 * kind: 0 to 7 in one of eight. */
lathe_status growth_init(struct growth *g, int32_t n_layers, int32_t tile, lathe_error *err)
{
    *g = (struct growth){0};
    if (n_layers < NANO_LAYERS || n_layers > MAX_GROWN_LAYERS || n_layers % 4)
        return fail(err, LATHE_E_ARGUMENT, "%d layers, expected a multiple of 4 from %d to %d",
                    n_layers, NANO_LAYERS, MAX_GROWN_LAYERS);
    if (tile < 1 || tile > TILE_27B)
        return fail(err, LATHE_E_ARGUMENT, "a tile of %d, expected 1 to %d", tile, TILE_27B);
    /* The 27B's ratio to nano, or as many as there are copies of the stream. */
    g->tile = tile;
    g->attention = min_of(tile, 4);
    g->gdn = min_of(tile, 8);
    g->draft = min_of(tile, 8);
    g->rank = min_of(tile, 4);
    g->vocab = VOCAB_27B / TILE_27B * tile;
    g->n_layers = n_layers;
    g->n_late = n_layers / 8;
    for (int32_t i = 0, next = 0; i < NANO_LAYERS; i++, next++) {
        int32_t like = place_27b[i] * n_layers / LAYERS_27B;
        next = like > next ? like : next;
        while (is_full_attention(next) != is_full_attention(i))
            next++;
        g->place[i] = next;
    }
    return LATHE_OK;
}

/* nano's layer that stands at this one; -1: none. */
static int32_t layer_at(const struct growth *g, int32_t layer)
{
    for (int32_t i = 0; i < NANO_LAYERS; i++)
        if (g->place[i] == layer)
            return i;
    return -1;
}

/* ---- Rules ----------------------------------------------------------------------------------- */

/* Axes that grow, in nano's entries. */
enum size {
    KEEP, /* any, and stays */
    STREAM,
    STREAM_2, /* [embedding | hidden] */
    STREAM_5, /* the drafter's features */
    MLP,
    VOCAB,
    ATTENTION_QG,
    ATTENTION_Q,
    ATTENTION_KV,
    GDN_QKV,
    GDN_V,
    GDN_HEADS,
    DRAFT_Q,
    DRAFT_KV,
    CONV_GROUPS, /* of two sides' two taps */
    RANK,
    N_SIZES,
};
enum { Q = NANO_HEADS * NANO_HEAD_DIM, KV = NANO_KV_HEADS * NANO_HEAD_DIM };
enum { GDN_K = NANO_GDN_K_HEADS * NANO_GDN_DIM, GDN_VALUES = NANO_GDN_V_HEADS * NANO_GDN_DIM };
enum { GROUPS = NANO_HIDDEN / NANO_CONV_GROUP };

static const struct {
    int32_t n, part[MAX_PARTS];
} sizes[N_SIZES] = {
    [STREAM] = {1, {NANO_HIDDEN}},
    [STREAM_2] = {2, {NANO_HIDDEN, NANO_HIDDEN}},
    [STREAM_5] = {5, {NANO_HIDDEN, NANO_HIDDEN, NANO_HIDDEN, NANO_HIDDEN, NANO_HIDDEN}},
    [MLP] = {1, {NANO_MLP}},
    [VOCAB] = {1, {NANO_VOCAB}},
    [ATTENTION_QG] = {1, {2 * Q}},
    [ATTENTION_Q] = {1, {Q}},
    [ATTENTION_KV] = {1, {KV}},
    [GDN_QKV] = {3, {GDN_K, GDN_K, GDN_VALUES}},
    [GDN_V] = {1, {GDN_VALUES}},
    [GDN_HEADS] = {1, {NANO_GDN_V_HEADS}},
    [DRAFT_Q] = {1, {NANO_DRAFT_HEADS * NANO_DRAFT_HEAD_DIM}},
    [DRAFT_KV] = {1, {NANO_DRAFT_KV_HEADS * NANO_DRAFT_HEAD_DIM}},
    [CONV_GROUPS] = {4, {GROUPS, GROUPS, GROUPS, GROUPS}},
    [RANK] = {1, {NANO_RANK}},
};

static int32_t factor(const struct growth *g, enum size s)
{
    switch (s) {
    case KEEP:
        return 1;
    case ATTENTION_QG:
    case ATTENTION_Q:
    case ATTENTION_KV:
        return g->attention;
    case GDN_QKV:
    case GDN_V:
    case GDN_HEADS:
        return g->gdn;
    case DRAFT_Q:
    case DRAFT_KV:
        return g->draft;
    case RANK:
        return g->rank;
    default:
        return g->tile;
    }
}

/* In a layer that nano lacks. */
enum role {
    SMALL,  /* as in one of nano's layers of its kind */
    INPUT,  /* any numbers */
    OUTPUT, /* zeros */
};

struct rule {
    const char *module; /* without ".weight" and the like; ends with '*': a prefix */
    enum size rows;
    enum beyond row_beyond;
    enum size cols; /* KEEP for vectors */
    enum beyond col_beyond;
    enum role role;
};

/* Where a product is gated by silu, gates of zero are enough: they are rows, whose code words may be random
 * under scales of zero, while columns that are zero have to be code words of zero in FP8. */
#define VECTOR(name, size) name, size, BEYOND_TILE, KEEP, BEYOND_TILE, SMALL
#define READS(name, size)  name, size, BEYOND_ANY, STREAM, BEYOND_ZERO, INPUT
#define GATES(name, size)  name, size, BEYOND_ZERO, STREAM, BEYOND_ZERO, INPUT
#define ADDS(name, size)   name, STREAM, BEYOND_TILE, size, BEYOND_ZERO, OUTPUT
#define GATED(name, size)  name, STREAM, BEYOND_TILE, size, BEYOND_ANY, OUTPUT

/* Below "model.language_model.layers.N." and "mtp.layers.0.". */
static const struct rule layer_rules[] = {
    {VECTOR("input_layernorm", STREAM)},
    {VECTOR("post_attention_layernorm", STREAM)},
    {GATES("mlp.gate_proj", MLP)},
    {READS("mlp.up_proj", MLP)},
    {GATED("mlp.down_proj", MLP)},
    {READS("self_attn.q_proj", ATTENTION_QG)},
    {READS("self_attn.k_proj", ATTENTION_KV)},
    {READS("self_attn.v_proj", ATTENTION_KV)},
    {ADDS("self_attn.o_proj", ATTENTION_Q)},
    {VECTOR("self_attn.q_norm", KEEP)},
    {VECTOR("self_attn.k_norm", KEEP)},
    {READS("linear_attn.in_proj_qkv", GDN_QKV)},
    {GATES("linear_attn.in_proj_z", GDN_V)},
    {READS("linear_attn.in_proj_a", GDN_HEADS)},
    {READS("linear_attn.in_proj_b", GDN_HEADS)},
    {VECTOR("linear_attn.conv1d", GDN_QKV)},
    {VECTOR("linear_attn.A_log", GDN_HEADS)},
    {VECTOR("linear_attn.dt_bias", GDN_HEADS)},
    {VECTOR("linear_attn.norm", KEEP)},
    {GATED("linear_attn.out_proj", GDN_V)},
    {0},
};

static const struct rule model_rules[] = {
    {"model.language_model.embed_tokens", VOCAB, BEYOND_ANY, STREAM, BEYOND_TILE, SMALL},
    {VECTOR("model.language_model.norm", STREAM)},
    {"lm_head", VOCAB, BEYOND_ZERO, STREAM, BEYOND_ZERO, SMALL},
    {ADDS("mtp.fc", STREAM_2)},
    {VECTOR("mtp.norm", STREAM)},
    {VECTOR("mtp.pre_fc_norm_embedding", STREAM)},
    {VECTOR("mtp.pre_fc_norm_hidden", STREAM)},
    {VECTOR("model.visual.merger.linear_fc2", STREAM)}, /* pictures become rows of the stream */
    {VECTOR("model.visual.*", KEEP)},
    {0},
};

static const struct rule drafter_rules[] = {
    {ADDS("fc", STREAM_5)},
    {VECTOR("hidden_norm", STREAM)},
    {VECTOR("norm", STREAM)},
    {READS("candidate_selector.hidden_projection", RANK)},
    {"candidate_selector.predecessor_codebook", VOCAB, BEYOND_ANY, RANK, BEYOND_ANY, SMALL},
    {"candidate_selector.successor_codebook", VOCAB, BEYOND_ANY, RANK, BEYOND_ZERO, SMALL},
    {0},
};

/* Below "layers.N.". */
static const struct rule drafter_layer_rules[] = {
    {VECTOR("input_layernorm", STREAM)},
    {VECTOR("post_attention_layernorm", STREAM)},
    {GATES("mlp.gate_proj", MLP)},
    {READS("mlp.up_proj", MLP)},
    {GATED("mlp.down_proj", MLP)},
    {READS("self_attn.q_proj", DRAFT_Q)},
    {READS("self_attn.k_proj", DRAFT_KV)},
    {READS("self_attn.v_proj", DRAFT_KV)},
    {ADDS("self_attn.o_proj", DRAFT_Q)},
    {VECTOR("self_attn.q_norm", KEEP)},
    {VECTOR("self_attn.k_norm", KEEP)},
    {"attention_conv.base_kernel", KEEP, BEYOND_TILE, STREAM, BEYOND_TILE, SMALL},
    {"mlp_conv.base_kernel", KEEP, BEYOND_TILE, STREAM, BEYOND_TILE, SMALL},
    {"attention_conv.kernel_projection", CONV_GROUPS, BEYOND_TILE, STREAM, BEYOND_ZERO, SMALL},
    {"mlp_conv.kernel_projection", CONV_GROUPS, BEYOND_TILE, STREAM, BEYOND_ZERO, SMALL},
    {0},
};

/* ---- One tensor ------------------------------------------------------------------------------ */

/* Length of the module's name in a tensor's name. */
static size_t module_length(const char *name)
{
    static const char *const suffixes[] = {
        ".weight_packed",      ".weight_scale", ".weight_global_scale",
        ".input_global_scale", ".weight",       ".bias"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        size_t k = strlen(suffixes[i]);
        if (n > k && strcmp(name + n - k, suffixes[i]) == 0)
            return n - k;
    }
    return n;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

static const struct rule *find_rule(const struct rule *r, const char *name)
{
    size_t n = module_length(name);
    for (; r->module; r++) {
        size_t k = strlen(r->module);
        if (r->module[k - 1] == '*' ? strncmp(name, r->module, k - 1) == 0
                                    : k == n && strncmp(name, r->module, n) == 0)
            return r;
    }
    return NULL;
}

/* Sizes of an axis of `length` entries, each 1 / `per` of a group of matrix columns; `scale` bytes each. */
static bool set_axis(struct axis *a, const struct growth *g, enum size s, enum beyond beyond,
                     int64_t length, int64_t per, int64_t scale)
{
    *a = (struct axis){.n = 1, .beyond = beyond};
    if (s == KEEP) {
        a->from[0] = a->to[0] = length * scale;
        return true;
    }
    int64_t sum = 0;
    a->n = sizes[s].n;
    for (int32_t p = 0; p < a->n; p++) {
        int64_t from = sizes[s].part[p], to = s == VOCAB ? g->vocab : from * factor(g, s);
        a->from[p] = from / per * scale;
        a->to[p] = to / per * scale;
        sum += from / per;
    }
    return sum == length;
}

static int64_t sum_of(const int64_t *x, int32_t n)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += x[i];
    return sum;
}

static uint64_t hash_name(const char *s)
{
    uint64_t h = 0xCBF29CE484222325u; /* FNV-1a */
    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 0x100000001B3u;
    return h;
}

/* What a tensor is in its module, and how many columns of the matrix share one of its columns: 0 where it
 * has none. */
static enum plane plane_of(const struct checkpoint_tensor *t, int64_t *per)
{
    *per = 1;
    if (ends_with(t->name, ".weight_packed")) {
        *per = 2;
        return PLANE_E2M1;
    }
    if (ends_with(t->name, ".weight_scale")) {
        *per = t->dtype == DT_F8_E4M3 ? 16 : 0;
        return *per ? PLANE_BLOCK_SCALE : PLANE_ROW_SCALE;
    }
    return t->dtype == DT_F8_E4M3 ? PLANE_E4M3 : PLANE_PLAIN;
}

static lathe_status refuse(const struct checkpoint_tensor *t, lathe_error *err)
{
    char shape[96] = "";
    for (int32_t i = 0; i < t->n_dims; i++) {
        size_t n = strlen(shape);
        (void)snprintf(shape + n, sizeof shape - n, "%s%lld", i ? ", " : "", (long long)t->dim[i]);
    }
    return fail(err, LATHE_E_FORMAT, "tensor %s: %s [%s] is not nano's", t->name,
                dtype_name(t->dtype), shape);
}

/* `name` is the grown tensor's. */
static lathe_status grow_tensor(struct grown *out, const struct checkpoint_tensor *t,
                                const struct rule *r, const struct growth *g, const char *name,
                                bool is_carried, lathe_error *err)
{
    int64_t per, last = t->n_dims > 1 ? t->dim[t->n_dims - 1] : 1, length = 1;
    bool is_global = ends_with(t->name, "_global_scale");
    *out = (struct grown){
        .name = name,
        .dtype = t->dtype,
        .n_dims = t->n_dims,
        .plane = plane_of(t, &per),
        .source = t->data,
        .is_carried = is_carried || r->role == SMALL || is_global,
        .key = hash_name(name),
    };
    for (int32_t i = 0; i < t->n_dims; i++) {
        out->dim[i] = t->dim[i];
        length *= t->dim[i];
    }
    bool is_plain = t->dtype == DT_BF16 || t->dtype == DT_F32;
    if (length == 0 || t->n_dims < 1 || (!is_plain && out->plane == PLANE_PLAIN))
        return refuse(t, err);
    length /= last;
    int64_t bytes = (int64_t)dtype_size(t->dtype);
    bool is_column = per == 0 || t->n_dims == 1;
    enum size rows = is_global ? KEEP : r->rows, cols = is_column ? KEEP : r->cols;
    if (!set_axis(&out->rows, g, rows, r->row_beyond, length, 1, 1) ||
        !set_axis(&out->cols, g, cols, r->col_beyond, last, per ? per : 1, bytes))
        return refuse(t, err);
    if (!out->is_carried)
        out->rows.beyond = r->role == OUTPUT ? BEYOND_ZERO : BEYOND_ANY;
    out->n_rows = sum_of(out->rows.to, out->rows.n);
    out->row_bytes = sum_of(out->cols.to, out->cols.n);
    if (rows != KEEP)
        out->dim[0] = out->n_rows;
    if (cols != KEEP)
        out->dim[t->n_dims - 1] = out->row_bytes / bytes;
    return LATHE_OK;
}

/* ---- Lists ----------------------------------------------------------------------------------- */

struct lister {
    struct grown_list *list;
    size_t room;
    const struct checkpoint *nano;
    const struct growth *g;
    struct arena *arena;
    lathe_error *err;
};

static lathe_status list_open(struct lister *l, size_t room)
{
    *l->list = (struct grown_list){arena_calloc(l->arena, room, sizeof *l->list->tensor), 0};
    l->room = room;
    return l->list->tensor ? LATHE_OK : fail_memory(l->err, room * sizeof *l->list->tensor);
}

/* The tensor under the name PREFIX + `rest`, or its own where prefix is NULL. */
static lathe_status add(struct lister *l, const struct checkpoint_tensor *t, const struct rule *r,
                        const char *prefix, const char *rest, bool is_carried)
{
    char name[256];
    int n = snprintf(name, sizeof name, "%s%s", prefix ? prefix : "", prefix ? rest : t->name);
    if (n < 0 || (size_t)n >= sizeof name || l->list->n == l->room)
        return fail(l->err, LATHE_E_FORMAT, "tensor %s is not nano's", t->name);
    char *kept = arena_strndup(l->arena, name, (size_t)n);
    if (!kept)
        return fail_memory(l->err, (size_t)n);
    lathe_status st =
        grow_tensor(&l->list->tensor[l->list->n], t, r, l->g, kept, is_carried, l->err);
    if (!st)
        l->list->n++;
    return st;
}

static lathe_status add_from(struct lister *l, const struct checkpoint_tensor *t,
                             const struct rule *rules, size_t skip)
{
    const struct rule *r = find_rule(rules, t->name + skip);
    if (!r)
        return fail(l->err, LATHE_E_FORMAT, "tensor %s is not nano's", t->name);
    return add(l, t, r, NULL, NULL, true);
}

#define LAYERS "model.language_model.layers."

/* Bytes of "PREFIXn." that the name begins with, *layer taking n; 0 if it does not. */
static size_t layer_prefix(const char *name, const char *prefix, int32_t *layer)
{
    size_t n = strlen(prefix);
    int used = 0;
    if (strncmp(name, prefix, n) != 0 || sscanf(name + n, "%9d.%n", layer, &used) != 1 || !used)
        return 0;
    return n + (size_t)used;
}

/* Layer `to` from those of nano: its own at its place, else one with the same parts. */
static lathe_status add_layer(struct lister *l, int32_t to)
{
    int32_t own = layer_at(l->g, to), layer;
    int32_t mixer = own >= 0 ? own : is_full_attention(to) ? 3 : 0;
    int32_t mlp = own >= 0 ? own : to >= l->g->n_layers - l->g->n_late ? NANO_LAYERS - 1 : 0;
    char prefix[64];
    lathe_status st = LATHE_OK;
    (void)snprintf(prefix, sizeof prefix, LAYERS "%d.", to);
    for (size_t i = 0; i < checkpoint_count(l->nano) && !st; i++) {
        const struct checkpoint_tensor *t = checkpoint_at(l->nano, i);
        size_t skip = layer_prefix(t->name, LAYERS, &layer);
        const char *rest = t->name + skip;
        if (!skip || layer != (strncmp(rest, "mlp.", 4) == 0 ? mlp : mixer))
            continue;
        const struct rule *r = find_rule(layer_rules, rest);
        st = r ? add(l, t, r, prefix, rest, own >= 0)
               : fail(l->err, LATHE_E_FORMAT, "tensor %s is not nano's", t->name);
    }
    return st;
}

/* A tensor that lies at its own name. */
static lathe_status add_rest(struct lister *l, const struct checkpoint_tensor *t)
{
    int32_t layer;
    size_t skip = layer_prefix(t->name, "mtp.layers.", &layer);
    return add_from(l, t, skip ? layer_rules : model_rules, skip);
}

static bool is_embedding(const struct checkpoint_tensor *t)
{
    return strncmp(t->name, "model.language_model.embed_tokens.", 34) == 0;
}

lathe_status list_model(struct grown_list *list, const struct checkpoint *nano,
                        const struct growth *g, struct arena *arena, lathe_error *err)
{
    size_t n = checkpoint_count(nano);
    int32_t layer;
    struct lister l = {.list = list, .nano = nano, .g = g, .arena = arena, .err = err};
    lathe_status st = list_open(&l, n * (size_t)(g->n_layers + 1));
    for (size_t i = 0; i < n && !st; i++)
        if (is_embedding(checkpoint_at(nano, i)))
            st = add_rest(&l, checkpoint_at(nano, i));
    for (int32_t i = 0; i < g->n_layers && !st; i++)
        st = add_layer(&l, i);
    for (size_t i = 0; i < n && !st; i++) {
        const struct checkpoint_tensor *t = checkpoint_at(nano, i);
        if (!is_embedding(t) && !layer_prefix(t->name, LAYERS, &layer))
            st = add_rest(&l, t);
    }
    return st;
}

/* nano's FP8 matrix as a BF16 tensor in the arena; the scales are found under the name of the codes. */
static lathe_status expand(struct lister *l, const struct checkpoint_tensor *codes,
                           struct checkpoint_tensor *out)
{
    char name[256];
    (void)snprintf(name, sizeof name, "%s_scale", codes->name);
    const struct checkpoint_tensor *scale = checkpoint_find(l->nano, name);
    if (codes->n_dims != 2 || !scale || scale->bytes != (size_t)codes->dim[0] * 2 ||
        scale->dtype != DT_BF16)
        return refuse(codes, l->err);
    *out = *codes;
    out->dtype = DT_BF16;
    out->bytes = 2 * codes->bytes;
    unsigned char *data = arena_alloc(l->arena, out->bytes);
    float row[MAX_PARTS * NANO_HIDDEN];
    int64_t n = codes->dim[1];
    if (!data)
        return fail_memory(l->err, out->bytes);
    if (n > (int64_t)(sizeof row / sizeof *row))
        return refuse(codes, l->err);
    for (int64_t r = 0; r < codes->dim[0]; r++) {
        float s;
        to_f32(&s, (const unsigned char *)scale->data + 2 * r, DT_BF16, 1);
        to_f32(row, (const unsigned char *)codes->data + r * n, DT_F8_E4M3, n);
        for (int64_t c = 0; c < n; c++)
            row[c] *= s;
        from_f32(data + 2 * r * n, DT_BF16, row, n);
    }
    out->data = data;
    return LATHE_OK;
}

lathe_status list_drafter(struct grown_list *list, const struct checkpoint *nano,
                          const struct growth *g, bool as_bf16, struct arena *arena,
                          lathe_error *err)
{
    size_t n = checkpoint_count(nano);
    struct lister l = {.list = list, .nano = nano, .g = g, .arena = arena, .err = err};
    lathe_status st = list_open(&l, n);
    for (size_t i = 0; i < n && !st; i++) {
        struct checkpoint_tensor t = *checkpoint_at(nano, i);
        int32_t layer;
        if (as_bf16 && ends_with(t.name, ".weight_scale"))
            continue;
        if (as_bf16 && t.dtype == DT_F8_E4M3)
            st = expand(&l, checkpoint_at(nano, i), &t);
        size_t skip = layer_prefix(t.name, "layers.", &layer);
        if (!st)
            st = add_from(&l, &t, skip ? drafter_layer_rules : drafter_rules, skip);
    }
    return st;
}

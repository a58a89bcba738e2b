/* Tensors to roles: formats by the tensors that exist (cases B80, B92), joined parts (B79), strict
 * names (B96), optional draft heads (B90), damaged files, the family's sizes, failing allocations. */
#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fail_alloc.h"
#include "make_model.h"
#include "model/model.h"
#include "test.h"

static int n_warnings;
static char warning[512];

static void count_warning(void *ctx, lathe_log_level level, const char *line)
{
    (void)ctx;
    n_warnings += level == LATHE_LOG_WARN;
    snprintf(warning, sizeof warning, "%s", line);
}

static lathe_status open_dir(struct model *m, const char *dir, lathe_error *err)
{
    n_warnings = 0;
    lathe_log_set(count_warning, NULL);
    lathe_status st = model_open(m, dir, err);
    lathe_log_set(NULL, NULL);
    return st;
}

static const char *fresh(void)
{
    static int n;
    char name[32];
    snprintf(name, sizeof name, "bind-%d", n++);
    return test_tmp(name);
}

/* Writes the tensors and opens the folder. */
static lathe_status open_files(struct model *m, const struct model_spec *s,
                               const struct out_file *f, lathe_error *err)
{
    const char *dir = fresh();
    make_files(dir, s, f);
    return open_dir(m, dir, err);
}

static lathe_status open_spec(struct model *m, const struct model_spec *s, lathe_error *err)
{
    struct out_file f;
    make_tensors(&f, s);
    lathe_status st = open_files(m, s, &f, err);
    out_release(&f);
    return st;
}

static void set_formats(struct model_spec *s, enum weight_format_id f)
{
    s->embed_format = s->head_format = s->attn_format = s->gdn_format = f;
    s->mlp_format = s->mtp_format = s->gate_format = f;
}

static const struct module *module_of(const struct model *m, const char *name)
{
    for (size_t i = 0; i < m->n_modules; i++)
        if (strcmp(m->modules[i].name, name) == 0)
            return &m->modules[i];
    FAIL("no module %s", name);
}

static const char *format_of(const struct model *m, const char *name)
{
    return weight_formats[module_of(m, name)->weight->format].name;
}

#define P "model.language_model."

TEST(nano)
{
    struct model m;
    lathe_error e;
    CHECK_OK(open_dir(&m, test_path("models/nano"), &e), &e);
    CHECK_INT(n_warnings, 0);
    CHECK_INT(m.n_modules, 2 + 6 * 8 + 2 * 7 + 8);
    CHECK_STR(format_of(&m, "lm_head"), "fp8_row");
    CHECK_STR(format_of(&m, P "embed_tokens"), "bf16");
    CHECK_STR(format_of(&m, P "layers.0.mlp.up_proj"), "nvfp4");
    CHECK_STR(format_of(&m, P "layers.7.mlp.up_proj"), "fp8_row");
    CHECK_STR(format_of(&m, P "layers.3.self_attn.q_proj"), "fp8_row");
    CHECK_STR(format_of(&m, P "layers.4.linear_attn.in_proj_a"), "bf16");
    CHECK_STR(format_of(&m, "mtp.fc"), "bf16");
    CHECK_STR(format_of(&m, "mtp.layers.0.self_attn.o_proj"), "fp8_row");
    const struct gdn_layer *g = &m.layers[0].gdn;
    CHECK(g->conv1d.n_dims == 2 && g->conv1d.dim[0] == 1280 && g->conv1d.dim[1] == 4);
    CHECK(g->A_log.dim[0] == 6 && g->dt_bias.dim[0] == 6 && g->norm.dim[0] == 128);
    CHECK(g->in_proj_qkv.rows == 1280 && g->in_proj_qkv.cols == 320);
    CHECK(m.layers[3].is_full_attention && m.layers[3].attn.q_proj.rows == 3072);
    CHECK(m.mtp.fc.cols == 640 && m.mtp.layer.is_full_attention && m.dims.has_mtp);
    for (size_t i = 1; i < m.n_modules; i++) /* the order of the file */
        CHECK((uintptr_t)m.modules[i - 1].weight->codes.data <
              (uintptr_t)m.modules[i].weight->codes.data);
    char what[200];
    CHECK(!model_find_nonfinite(&m, what, sizeof what));
    model_close(&m);
    model_close(&m);
}

TEST(nano_in_bf16)
{
    struct model m;
    lathe_error e;
    CHECK_OK(open_dir(&m, test_shared("nano/bf16"), &e), &e);
    for (size_t i = 0; i < m.n_modules; i++)
        CHECK_INT(m.modules[i].weight->format, WF_BF16);
    model_close(&m);
}

/* ---- Formats ------------------------------------------------------------------------------- */

/* Every matrix and vector of a equals b's, value by value. */
static void check_equal(const struct model *a, const struct model *b)
{
    float x[1024], y[1024];
    CHECK_INT(a->n_modules, b->n_modules);
    for (size_t i = 0; i < a->n_modules; i++) {
        const struct weight *v = a->modules[i].weight, *w = b->modules[i].weight;
        CHECK(v->rows == w->rows && v->cols == w->cols && v->cols <= 1024);
        for (int64_t r = 0; r < v->rows; r++) {
            weight_formats[v->format].unpack(x, v, r, 0, v->cols);
            weight_formats[w->format].unpack(y, w, r, 0, w->cols);
            if (memcmp(x, y, (size_t)v->cols * sizeof *x) != 0)
                FAIL("%s and %s differ in row %lld", a->modules[i].name, b->modules[i].name,
                     (long long)r);
        }
    }
    const struct gdn_layer *g = &a->layers[0].gdn, *h = &b->layers[0].gdn;
    CHECK(memcmp(g->conv1d.data, h->conv1d.data,
                 (size_t)tensor_elements(&g->conv1d) * sizeof(float)) == 0);
    CHECK(memcmp(a->norm.data, b->norm.data, (size_t)a->dims.hidden * sizeof(float)) == 0);
}

TEST(every_format_means_the_same_numbers_expanded)
{
    static const enum dtype scales[] = {DT_BF16, DT_F32};
    for (int f = 0; f < WF_COUNT; f++)
        for (int d = 0; d < 2; d++) {
            struct model_spec s, expanded;
            struct model a, b;
            lathe_error e;
            model_spec_init(&s);
            set_formats(&s, (enum weight_format_id)f);
            s.scales = scales[d];
            s.modelopt = d;
            expanded = s;
            expanded.expand = true;
            CHECK_OK(open_spec(&a, &s, &e), &e);
            CHECK_OK(open_spec(&b, &expanded, &e), &e);
            CHECK_STR(format_of(&a, P "layers.1.mlp.down_proj"), weight_formats[f].name);
            CHECK_STR(format_of(&b, P "layers.1.mlp.down_proj"), "f32");
            check_equal(&a, &b);
            model_close(&a);
            model_close(&b);
        }
}

TEST(nvfp4_by_both_makers)
{
    struct model_spec s;
    struct model a, b;
    lathe_error e;
    model_spec_init(&s);
    s.mlp_format = s.head_format = WF_NVFP4;
    CHECK_OK(open_spec(&a, &s, &e), &e);
    s.modelopt = true;
    CHECK_OK(open_spec(&b, &s, &e), &e);
    CHECK_STR(format_of(&b, "lm_head"), "nvfp4");
    check_equal(&a, &b);
    model_close(&a);
    model_close(&b);
}

TEST(vectors_of_three_dtypes)
{
    static const enum dtype dtypes[] = {DT_F32, DT_BF16, DT_F16};
    for (int d = 0; d < 3; d++) {
        struct model_spec s;
        struct model m;
        struct out_file f;
        lathe_error e;
        float want[64];
        model_spec_init(&s);
        s.vectors = dtypes[d];
        make_tensors(&f, &s);
        to_f32(want, out_find(&f, P "layers.2.input_layernorm.weight")->data, dtypes[d], 64);
        CHECK_OK(open_files(&m, &s, &f, &e), &e);
        CHECK(memcmp(m.layers[2].input_layernorm.data, want, sizeof want) == 0);
        model_close(&m);
        out_release(&f);
    }
}

/* "F8_E4M3 [n,k]" of the case, as a tensor of ones for a matrix [rows, cols]. Without a shape it is
 * the usual one of its suffix. */
static void add_case_tensor(struct out_file *f, const char *name, const char *text, int64_t rows,
                            int64_t cols)
{
    char dtype_text[16];
    enum dtype dtype;
    CHECK(sscanf(text, "%15s", dtype_text) == 1 && dtype_from_name(dtype_text, &dtype));
    bool packed = strstr(name, "weight_packed"), scale = strstr(name, "weight_scale");
    int64_t dims[2] = {rows, packed ? cols / 2 : scale ? cols / 16 : cols};
    int32_t n_dims = 2;
    if (strstr(text, "[1]"))
        dims[0] = n_dims = 1;
    else if (strstr(text, "[n,1]"))
        dims[1] = 1;
    struct out_tensor *t = out_add(f, name, dtype, n_dims, dims, NULL);
    int64_t n = (int64_t)t->bytes / (int64_t)dtype_size(dtype);
    for (int64_t i = 0; i < n; i++) {
        float one = 1;
        if (dtype != DT_U8)
            from_f32(t->data + (size_t)i * dtype_size(dtype), dtype, &one, 1);
    }
}

static const char *format_of_kind(const char *kind)
{
    return strcmp(kind, "nvfp4") == 0         ? "nvfp4"
           : strcmp(kind, "fp8_per_row") == 0 ? "fp8_row"
                                              : "bf16";
}

TEST(case_B92_format_by_module)
{
    json_error_t je;
    json_t *j =
        json_load_file(test_path("tests/cases/formats/B92_mixed_precision_map.json"), 0, &je);
    CHECK(j);
    json_t *config = json_object_get(j, "quantization_config"), *module, *v;
    char *config_text = json_dumps(config, 0), extra[4000];
    snprintf(extra, sizeof extra, ", \"quantization_config\": %s", config_text);
    free(config_text);
    size_t i;
    json_array_foreach(json_object_get(j, "modules"), i, module)
    {
        const char *kind = json_string_value(json_object_get(module, "kind")), *key;
        const char *first =
            json_object_iter_key(json_object_iter(json_object_get(module, "tensors")));
        bool visual = strstr(first, "visual"), gate = strstr(first, "in_proj_a");
        bool attn = strstr(first, "q_proj");
        const char *base = attn   ? P "layers.3.self_attn.q_proj"
                           : gate ? P "layers.0.linear_attn.in_proj_a"
                                  : P "layers.0.mlp.up_proj";
        struct model_spec s;
        struct model m;
        struct out_file f;
        lathe_error e = {0};
        char name[200];
        model_spec_init(&s);
        s.top_extra = extra;
        make_tensors(&f, &s);
        struct out_tensor *old;
        snprintf(name, sizeof name, "%s.weight", base);
        CHECK((old = out_find(&f, name)) != NULL);
        int64_t rows = old->dim[0], cols = old->dim[1];
        if (!visual)
            out_remove(&f, name);
        json_object_foreach(json_object_get(module, "tensors"), key, v)
        {
            const char *suffix = strrchr(key, '.') + 1;
            snprintf(name, sizeof name, "%s.%s", visual ? "model.visual.blocks.0.attn.qkv" : base,
                     suffix);
            add_case_tensor(&f, name, json_string_value(v), rows, cols);
        }
        lathe_status st = open_files(&m, &s, &f, &e);
        if (strncmp(kind, "error: ", 7) == 0) {
            const char *says = strstr(kind, "global") ? "up_proj.weight_global_scale is missing"
                                                      : "up_proj.weight_scale is missing";
            CHECK_INT(st, LATHE_E_FORMAT);
            if (!strstr(e.message, says))
                FAIL("%s: \"%s\"", kind, e.message);
        } else {
            CHECK_OK(st, &e);
            if (!visual)
                CHECK_STR(format_of(&m, base), format_of_kind(kind));
            model_close(&m);
        }
        out_release(&f);
    }
    CHECK_INT(i, 7);
    json_decref(j);
}

/* Adds or removes tensors of layers.0.mlp.up_proj and expects a refusal. */
static void check_conflict(enum weight_format_id format, const char *add, enum dtype dtype,
                           const char *says)
{
    struct model_spec s;
    struct model m;
    struct out_file f;
    lathe_error e = {0};
    char name[200];
    model_spec_init(&s);
    s.mlp_format = format;
    make_tensors(&f, &s);
    snprintf(name, sizeof name, P "layers.0.mlp.up_proj.%s", add);
    float one = 1;
    struct out_tensor *t = out_add(&f, name, dtype, 1, (int64_t[]){1}, NULL);
    from_f32(t->data, dtype, &one, 1);
    lathe_status st = open_files(&m, &s, &f, &e);
    if (st != LATHE_E_FORMAT || !strstr(e.message, P "layers.0.mlp.up_proj") ||
        !strstr(e.message, says))
        FAIL("%s with %s: %d \"%s\"", weight_formats[format].name, add, (int)st, e.message);
    out_release(&f);
}

TEST(tensors_of_two_formats_conflict)
{
    check_conflict(WF_NVFP4, "weight", DT_BF16, "both weight and weight_packed");
    check_conflict(WF_NVFP4, "weight_scale_2", DT_F32, "scales of two formats");
    check_conflict(WF_NVFP4, "weight_scale_inv", DT_F32, "scales of two formats");
    check_conflict(WF_FP8_ROW, "weight_scale_inv", DT_F32, "scales of two formats");
    check_conflict(WF_FP8_ROW, "weight_global_scale", DT_F32, "scales of two formats");
    check_conflict(WF_FP8_BLOCK, "weight_scale_2", DT_F32, "scales of two formats");
    check_conflict(WF_BF16, "weight_scale", DT_BF16, "scales beside a weight of BF16");
    check_conflict(WF_F32, "weight_global_scale", DT_F32, "scales beside a weight of F32");
    check_conflict(WF_BF16, "weight_zero_point", DT_BF16, "no place in the model");
}

TEST(fp8_scale_shapes)
{
    static const struct {
        const char *suffix, *format;
        int32_t n_dims;
        int64_t dim[2];
    } ok[] = {
        {"weight_scale", "fp8_tensor", 0, {1, 1}},
        {"weight_scale", "fp8_tensor", 1, {1, 1}},
        {"weight_scale", "fp8_tensor", 2, {1, 1}},
        {"weight_scale_inv", "fp8_tensor", 0, {1, 1}},
        {"weight_scale", "fp8_row", 2, {256, 1}},
        {"weight_scale", "fp8_row", 1, {256, 1}},
        {"weight_scale_inv", "fp8_block", 2, {2, 3}},
        {"weight_scale", "fp8_block", 2, {2, 3}},
        {"weight_scale", NULL, 2, {1, 256}},
        {"weight_scale", NULL, 2, {3, 2}},
        {"weight_scale", NULL, 1, {6, 1}},
        {"weight_scale", NULL, 2, {256, 2}},
        {"weight_scale", NULL, 2, {256, 320 / 16}},
    };
    for (size_t i = 0; i < sizeof ok / sizeof *ok; i++) {
        struct model_spec s;
        struct model m;
        struct out_file f;
        lathe_error e = {0};
        char name[200];
        model_spec_init(&s);
        s.mlp = 256;
        s.hidden = 320;
        s.mlp_format = WF_FP8_ROW;
        make_tensors(&f, &s);
        out_remove(&f, P "layers.1.mlp.gate_proj.weight_scale");
        snprintf(name, sizeof name, P "layers.1.mlp.gate_proj.%s", ok[i].suffix);
        struct out_tensor *t = out_add(&f, name, DT_F32, ok[i].n_dims, ok[i].dim, NULL);
        for (size_t k = 0; k < t->bytes / 4; k++)
            memcpy(t->data + 4 * k, &(float){0.5f}, 4);
        lathe_status st = open_files(&m, &s, &f, &e);
        if (ok[i].format) {
            CHECK_OK(st, &e);
            CHECK_STR(format_of(&m, P "layers.1.mlp.gate_proj"), ok[i].format);
            model_close(&m);
        } else if (!st || !strstr(e.message, "expected one value, [256, 1] or [2, 3]")) {
            FAIL("shape %zu: \"%s\"", i, e.message);
        }
        out_release(&f);
    }
}

static void set_f32(struct out_file *f, const char *name, float x)
{
    struct out_tensor *t = out_find(f, name);
    CHECK(t && t->dtype == DT_F32 && t->bytes == 4);
    memcpy(t->data, &x, 4);
}

TEST(case_B80_second_level_scales)
{
    static const float bad[] = {0, -0.0f, -4, NAN, INFINITY, 1e-42f};
    for (int opt = 0; opt < 2; opt++)
        for (size_t i = 0; i <= sizeof bad / sizeof *bad + 1; i++) {
            struct model_spec s;
            struct model m;
            struct out_file f;
            lathe_error e = {0};
            const char *base = P "layers.2.mlp.up_proj";
            const char *name = opt ? P "layers.2.mlp.up_proj.weight_scale_2"
                                   : P "layers.2.mlp.up_proj.weight_global_scale";
            model_spec_init(&s);
            s.mlp_format = WF_NVFP4;
            s.modelopt = opt;
            make_tensors(&f, &s);
            if (i < sizeof bad / sizeof *bad)
                set_f32(&f, name, bad[i]);
            else if (i == sizeof bad / sizeof *bad)
                out_remove(&f, name);
            else
                set_f32(&f, name, opt ? 0.25f : 4);
            lathe_status st = open_files(&m, &s, &f, &e);
            if (i == sizeof bad / sizeof *bad + 1) {
                CHECK_OK(st, &e);
                CHECK(module_of(&m, base)->weight->global == 0.25f);
                model_close(&m);
            } else if (opt && i + 1 == sizeof bad / sizeof *bad) {
                CHECK_OK(st, &e); /* a tiny multiplier is one; as a divisor it gives infinity */
                model_close(&m);
            } else if (st != LATHE_E_FORMAT || !strstr(e.message, name)) {
                FAIL("%s of %g: %d \"%s\"", name, (double)bad[i], (int)st, e.message);
            }
            out_release(&f);
        }
}

TEST(fp8_tensor_scales_must_be_positive)
{
    struct model_spec s;
    struct model m;
    struct out_file f;
    lathe_error e;
    model_spec_init(&s);
    s.attn_format = WF_FP8_TENSOR;
    make_tensors(&f, &s);
    set_f32(&f, P "layers.3.self_attn.k_proj.weight_scale", 0);
    CHECK_ERR(open_files(&m, &s, &f, &e), &e, LATHE_E_FORMAT, "self_attn.k_proj.weight_scale");
    out_release(&f);
}

/* Puts two matrices of a layer into one, by rows; their scalars become one tensor of two values, or
 * of one if `single`. */
static void join(struct out_file *f, const char *a, const char *b, const char *to, bool single)
{
    static const char *const suffixes[] = {"weight",
                                           "weight_packed",
                                           "weight_scale",
                                           "weight_scale_inv",
                                           "weight_global_scale",
                                           "weight_scale_2",
                                           "input_global_scale",
                                           "input_scale"};
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        char na[200], nb[200], nt[200];
        snprintf(na, sizeof na, "%s.%s", a, suffixes[i]);
        snprintf(nb, sizeof nb, "%s.%s", b, suffixes[i]);
        snprintf(nt, sizeof nt, "%s.%s", to, suffixes[i]);
        const struct out_tensor *x = out_find(f, na), *y = out_find(f, nb);
        if (!x)
            continue;
        bool scalar = x->bytes == 4;
        size_t n = x->bytes + (scalar && single ? 0 : y->bytes);
        unsigned char *data = malloc(n);
        CHECK(data);
        memcpy(data, x->data, x->bytes);
        memcpy(data + x->bytes, y->data, n - x->bytes);
        int64_t dims[2] = {scalar ? (int64_t)n / 4 : x->dim[0] + y->dim[0], x->dim[1]};
        int32_t n_dims = scalar ? 1 : x->n_dims;
        enum dtype dtype = x->dtype;
        out_add(f, nt, dtype, n_dims, dims, data);
        out_remove(f, na);
        out_remove(f, nb);
        free(data);
    }
}

TEST(case_B79_joined_parts)
{
    for (int format = 0; format < WF_COUNT; format++)
        for (int opt = 0; opt < 2; opt++) {
            struct model_spec s;
            struct model a, b;
            struct out_file f;
            lathe_error e;
            model_spec_init(&s);
            s.mlp_format = (enum weight_format_id)format;
            s.modelopt = opt;
            CHECK_OK(open_spec(&a, &s, &e), &e);
            make_tensors(&f, &s);
            for (int i = 0; i < s.n_layers; i++) {
                char gate[100], up[100], to[100];
                snprintf(gate, sizeof gate, P "layers.%d.mlp.gate_proj", i);
                snprintf(up, sizeof up, P "layers.%d.mlp.up_proj", i);
                snprintf(to, sizeof to, P "layers.%d.mlp.gate_up_proj", i);
                join(&f, gate, up, to, false);
            }
            CHECK_OK(open_files(&b, &s, &f, &e), &e);
            out_release(&f);
            for (int i = 0; i < s.n_layers; i++) {
                const struct mlp *x = &a.layers[i].mlp, *y = &b.layers[i].mlp;
                const struct weight *wx[] = {&x->gate_proj, &x->up_proj},
                                    *wy[] = {&y->gate_proj, &y->up_proj};
                float u[64], v[64];
                for (int k = 0; k < 2; k++)
                    for (int64_t r = 0; r < 128; r++) {
                        weight_formats[format].unpack(u, wx[k], r, 0, 64);
                        weight_formats[format].unpack(v, wy[k], r, 0, 64);
                        CHECK(memcmp(u, v, sizeof u) == 0);
                    }
                CHECK(wx[0]->global == wy[0]->global && wx[1]->global == wy[1]->global);
                CHECK(format != WF_NVFP4 || wx[0]->global != wx[1]->global);
            }
            model_close(&a);
            model_close(&b);
        }
}

TEST(case_B79_one_scalar_for_all_parts)
{
    struct model_spec s;
    struct model m;
    struct out_file f;
    lathe_error e;
    model_spec_init(&s);
    s.mlp_format = WF_NVFP4;
    make_tensors(&f, &s);
    set_f32(&f, P "layers.0.mlp.gate_proj.weight_global_scale", 8);
    join(&f, P "layers.0.mlp.gate_proj", P "layers.0.mlp.up_proj", P "layers.0.mlp.gate_up_proj",
         true);
    CHECK_OK(open_files(&m, &s, &f, &e), &e);
    CHECK(m.layers[0].mlp.gate_proj.global == 0.125f && m.layers[0].mlp.up_proj.global == 0.125f);
    CHECK_STR(module_of(&m, P "layers.0.mlp.up_proj")->name, P "layers.0.mlp.up_proj");
    model_close(&m);
    out_release(&f);
}

TEST(joined_blocks_must_begin_at_a_block)
{
    struct model_spec s;
    struct model m;
    struct out_file f;
    lathe_error e;
    model_spec_init(&s);
    s.mlp = 320;
    make_tensors(&f, &s);
    out_remove(&f, P "layers.0.mlp.gate_proj.weight");
    out_remove(&f, P "layers.0.mlp.up_proj.weight");
    out_add(&f, P "layers.0.mlp.gate_up_proj.weight", DT_F8_E4M3, 2, (int64_t[]){640, 64}, NULL);
    struct out_tensor *t = out_add(&f, P "layers.0.mlp.gate_up_proj.weight_scale_inv", DT_BF16, 2,
                                   (int64_t[]){5, 1}, NULL);
    (void)t;
    CHECK_ERR(open_files(&m, &s, &f, &e), &e, LATHE_E_FORMAT, "block of 128 rows");
    out_release(&f);
}

/* ---- Names ---------------------------------------------------------------------------------- */

TEST(case_B96_prefixes)
{
    static const char *const prefixes[] = {"model.language_model.", "language_model.model.",
                                           "model.", "language_model."};
    struct model_spec s;
    struct model m, first;
    lathe_error e;
    model_spec_init(&s);
    CHECK_OK(open_spec(&first, &s, &e), &e);
    for (size_t i = 0; i < 4; i++)
        for (int shards = 0; shards < 2; shards++) {
            s.prefix = prefixes[i];
            s.text_only = i == 2;
            s.n_shards = 3 * shards;
            CHECK_OK(open_spec(&m, &s, &e), &e);
            CHECK_INT(n_warnings, 0);
            check_equal(&m, &first);
            model_close(&m);
        }
    model_close(&first);
}

static struct model_spec spec_of(struct out_file *f)
{
    struct model_spec s;
    model_spec_init(&s);
    make_tensors(f, &s);
    return s;
}

/* The spoiled files are refused with this text; releases them. */
static void check_spoiled(const struct model_spec *s, struct out_file *f, lathe_status status,
                          const char *says)
{
    struct model m;
    lathe_error e;
    CHECK_ERR(open_files(&m, s, f, &e), &e, status, says);
    CHECK(m.files == NULL && m.layers == NULL);
    out_release(f);
}

TEST(case_B96_mutations)
{
    struct out_file f;
    struct model_spec s = spec_of(&f);
    out_rename(&f, P "embed_tokens.weight", P "token_embd.weight");
    check_spoiled(&s, &f, LATHE_E_FORMAT,
                  "2 problems: tensor " P "embed_tokens.weight is missing; tensor " P
                  "token_embd.weight in model.safetensors has no place in the model");
    s = spec_of(&f);
    out_add(&f, "foo.bar", DT_F32, 1, (int64_t[]){3}, NULL);
    check_spoiled(&s, &f, LATHE_E_FORMAT,
                  ": tensor foo.bar in model.safetensors has no place in the model");
    s = spec_of(&f);
    out_remove(&f, P "norm.weight");
    check_spoiled(&s, &f, LATHE_E_FORMAT, "tensor " P "norm.weight is missing");
    s = spec_of(&f);
    out_add(&f, "model.norm.weight", DT_BF16, 1, (int64_t[]){64}, NULL);
    check_spoiled(&s, &f, LATHE_E_FORMAT, "model.norm.weight");
    s = spec_of(&f);
    struct out_tensor *t = out_find(&f, P "layers.0.mlp.up_proj.weight");
    t->dim[0] = 64;
    t->dim[1] = 128;
    check_spoiled(&s, &f, LATHE_E_FORMAT,
                  "tensor " P "layers.0.mlp.up_proj.weight in model.safetensors: BF16 [64, 128], "
                  "expected BF16 [128, 64] by config.json");
    s = spec_of(&f);
    out_remove(&f, P "layers.0.mlp.up_proj.weight");
    out_add(&f, P "layers.0.mlp.up_proj.weight", DT_F64, 2, (int64_t[]){128, 64}, NULL);
    check_spoiled(&s, &f, LATHE_E_UNSUPPORTED, "weights of F64 are not supported");
    s = spec_of(&f);
    out_remove(&f, P "layers.0.input_layernorm.weight");
    out_add(&f, P "layers.0.input_layernorm.weight", DT_F64, 1, (int64_t[]){64}, NULL);
    check_spoiled(
        &s, &f, LATHE_E_FORMAT,
        "input_layernorm.weight in model.safetensors: F64 [64], expected F32 or BF16 [64]");
}

TEST(every_tensor_is_needed)
{
    struct out_file all;
    struct model_spec s = spec_of(&all);
    size_t n = all.n;
    out_release(&all);
    CHECK_INT(n, 2 + 3 * 14 + 11 + 1 + 15);
    for (size_t i = 0; i < n; i++) {
        struct out_file f;
        make_tensors(&f, &s);
        char name[200], says[300];
        snprintf(name, sizeof name, "%s", f.tensors[i].name);
        out_remove(&f, name);
        snprintf(says, sizeof says, "tensor %s is missing", name);
        check_spoiled(&s, &f, LATHE_E_FORMAT, says);
    }
}

TEST(known_tensors_that_are_not_needed)
{
    static const char *const names[] = {
        "model.visual.patch_embed.proj.weight",
        "model.visual.merger.norm.bias",
        P "layers.3.self_attn.k_scale",
        P "layers.3.self_attn.v_scale",
        P "layers.3.self_attn.k_proj.k_scale",
        P "layers.3.self_attn.v_proj.v_scale",
        P "layers.3.self_attn.q_proj.input_scale",
        P "layers.0.mlp.up_proj.input_global_scale",
    };
    struct model m;
    struct out_file f;
    lathe_error e;
    struct model_spec s = spec_of(&f);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        out_add(&f, names[i], DT_BF16, 1, (int64_t[]){1}, NULL);
    CHECK_OK(open_files(&m, &s, &f, &e), &e);
    CHECK_INT(n_warnings, 0);
    model_close(&m);
    out_add(&f, P "layers.0.self_attn.k_scale", DT_BF16, 1, (int64_t[]){1}, NULL); /* a GDN layer */
    check_spoiled(&s, &f, LATHE_E_FORMAT, P "layers.0.self_attn.k_scale");
}

TEST(all_problems_at_once_within_one_message)
{
    struct out_file f;
    struct model_spec s = spec_of(&f);
    out_remove(&f, P "layers.1.linear_attn.A_log");
    out_find(&f, P "layers.2.linear_attn.conv1d.weight")->dim[1] = 2;
    out_find(&f, P "layers.2.linear_attn.conv1d.weight")->dim[2] = 2;
    out_add(&f, "stray", DT_U8, 1, (int64_t[]){1}, NULL);
    struct model m;
    lathe_error e;
    CHECK_ERR(open_files(&m, &s, &f, &e), &e, LATHE_E_FORMAT, "3 problems: ");
    CHECK(strstr(e.message, P "layers.1.linear_attn.A_log is missing"));
    CHECK(strstr(e.message, "conv1d.weight in model.safetensors: BF16 [160, 2, 2], expected F32 or "
                            "BF16 [160, 1, 4]"));
    CHECK(strstr(e.message, "stray"));
    out_release(&f);

    f = (struct out_file){0};
    CHECK_ERR(open_files(&m, &s, &f, &e), &e, LATHE_E_FORMAT, "56 problems: ");
    CHECK(strstr(e.message, " more"));
    CHECK(strlen(e.message) < sizeof e.message - 1);
}

TEST(config_that_disagrees_with_the_tensors)
{
    struct out_file f;
    struct model_spec s = spec_of(&f);
    s.text_extra = ", \"vocab_size\": 511";
    check_spoiled(&s, &f, LATHE_E_FORMAT,
                  "2 problems: tensor " P "embed_tokens.weight in model.safetensors: "
                  "BF16 [512, 64], expected BF16 [511, 64] by config.json");
    s = spec_of(&f);
    s.text_extra = ", \"num_hidden_layers\": 3";
    check_spoiled(&s, &f, LATHE_E_FORMAT, P "layers.3.");
    s = spec_of(&f);
    s.text_extra = ", \"linear_num_value_heads\": 4";
    check_spoiled(&s, &f, LATHE_E_FORMAT,
                  "in_proj_qkv.weight in model.safetensors: BF16 [160, 64], "
                  "expected BF16 [128, 64]");
    s = spec_of(&f);
    s.text_extra = ", \"layer_types\": [\"linear_attention\", \"full_attention\", "
                   "\"linear_attention\", \"full_attention\"]";
    check_spoiled(&s, &f, LATHE_E_FORMAT,
                  "tensor " P "layers.1.self_attn.q_proj.weight is missing");
}

TEST(nvfp4_needs_whole_blocks)
{
    struct model_spec s;
    struct out_file f;
    model_spec_init(&s);
    s.mlp = 120;
    make_tensors(&f, &s);
    out_remove(&f, P "layers.0.mlp.down_proj.weight");
    out_add(&f, P "layers.0.mlp.down_proj.weight_packed", DT_U8, 2, (int64_t[]){64, 60}, NULL);
    out_add(&f, P "layers.0.mlp.down_proj.weight_scale", DT_F8_E4M3, 2, (int64_t[]){64, 8}, NULL);
    struct out_tensor *t = out_add(&f, P "layers.0.mlp.down_proj.weight_global_scale", DT_F32, 1,
                                   (int64_t[]){1}, NULL);
    memcpy(t->data, &(float){1}, 4);
    check_spoiled(&s, &f, LATHE_E_FORMAT, "120 columns, expected a multiple of 16");
}

/* ---- Optional parts ------------------------------------------------------------------------- */

TEST(tied_heads)
{
    struct model_spec s;
    struct model m;
    struct out_file f;
    lathe_error e;
    model_spec_init(&s);
    s.tied_head = true;
    CHECK_OK(open_spec(&m, &s, &e), &e);
    CHECK(m.dims.tied_head && m.lm_head.codes.data == m.embed_tokens.codes.data);
    model_close(&m);

    s.tied_head = false; /* the files have a head, config.json says tied: tensors win */
    make_tensors(&f, &s);
    s.tied_head = true;
    CHECK_OK(open_files(&m, &s, &f, &e), &e);
    CHECK_INT(n_warnings, 1);
    CHECK(!m.dims.tied_head && m.lm_head.codes.data != m.embed_tokens.codes.data);
    model_close(&m);
    s.tied_head = false;
    out_remove(&f, "lm_head.weight");
    check_spoiled(&s, &f, LATHE_E_FORMAT, "tensor lm_head.weight is missing");
}

TEST(case_B90_draft_head)
{
    struct model_spec s;
    struct model m;
    struct out_file f;
    lathe_error e;
    model_spec_init(&s);
    CHECK_OK(open_spec(&m, &s, &e), &e); /* declared and there */
    CHECK(m.dims.has_mtp && n_warnings == 0 && m.mtp.layer.attn.q_proj.rows == 256);
    model_close(&m);

    make_tensors(&f, &s);
    s.has_mtp = false; /* there, not declared */
    CHECK_OK(open_files(&m, &s, &f, &e), &e);
    CHECK(!m.dims.has_mtp && n_warnings == 1 && strstr(warning, "does not declare"));
    model_close(&m);
    out_release(&f);

    make_tensors(&f, &s);
    CHECK_OK(open_files(&m, &s, &f, &e), &e); /* neither */
    CHECK(!m.dims.has_mtp && n_warnings == 0);
    model_close(&m);
    s.has_mtp = true; /* declared, not there */
    CHECK_OK(open_files(&m, &s, &f, &e), &e);
    CHECK(!m.dims.has_mtp && n_warnings == 1 && strstr(warning, "is off"));
    model_close(&m);
    out_release(&f);

    make_tensors(&f, &s); /* half there */
    out_remove(&f, "mtp.norm.weight");
    check_spoiled(&s, &f, LATHE_E_FORMAT, "tensor mtp.norm.weight is missing");
}

TEST(draft_head_in_its_own_file)
{
    struct model_spec s;
    struct model m;
    struct out_file f;
    lathe_error e;
    char path[1200];
    model_spec_init(&s);
    make_tensors(&f, &s);
    size_t n_main = 0;
    while (strncmp(f.tensors[n_main].name, "mtp.", 4) != 0)
        n_main++;
    struct out_file main_part = {f.tensors, n_main, f.cap};
    s.n_shards = 2;
    const char *dir = fresh();
    make_files(dir, &s, &main_part);
    snprintf(path, sizeof path, "%s/model_mtp.safetensors", dir);
    out_write(&f, n_main, f.n - n_main, path);
    CHECK_OK(open_dir(&m, dir, &e), &e);
    CHECK(m.dims.has_mtp && n_warnings == 0);
    model_close(&m);
    out_release(&f);
}

/* ---- Damage ---------------------------------------------------------------------------------- */

TEST(vectors_that_are_not_finite)
{
    struct out_file f;
    struct model_spec s = spec_of(&f);
    memcpy(out_find(&f, P "layers.1.linear_attn.norm.weight")->data + 2 * 5, "\xC0\x7F", 2);
    check_spoiled(&s, &f, LATHE_E_NUMERIC, "linear_attn.norm.weight in model.safetensors: value 5");
}

TEST(matrices_that_are_not_finite)
{
    struct model m;
    struct out_file f;
    lathe_error e;
    char what[200];
    struct model_spec s = spec_of(&f);
    /* Entries are not read while loading: NaN is seen when it reaches the logits. */
    memcpy(out_find(&f, P "layers.1.mlp.down_proj.weight")->data + 2 * (3 * 128 + 17), "\x80\xFF",
           2);
    CHECK_OK(open_files(&m, &s, &f, &e), &e);
    CHECK(model_find_nonfinite(&m, what, sizeof what));
    CHECK_STR(what, "tensor " P "layers.1.mlp.down_proj: row 3, column 17");
    model_close(&m);
    out_release(&f);

    model_spec_init(&s);
    s.mlp_format = WF_NVFP4;
    make_tensors(&f, &s);
    out_find(&f, P "layers.0.mlp.up_proj.weight_scale")->data[4 * 9 + 2] = 0x7F;
    check_spoiled(&s, &f, LATHE_E_NUMERIC, P "layers.0.mlp.up_proj: the scale of block [9, 2]");
}

/* models/nano with one file's bytes replaced. */
static const char *copy_of_nano(const char *changed, const void *data, size_t n)
{
    static const char *const names[] = {"config.json", "model.safetensors.index.json",
                                        "model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors"};
    const char *dir = fresh();
    CHECK(mkdir(dir, 0755) == 0);
    for (size_t i = 0; i < 4; i++) {
        char from[100], to[1200];
        snprintf(from, sizeof from, "models/nano/%s", names[i]);
        snprintf(to, sizeof to, "%s/%s", dir, names[i]);
        if (strcmp(names[i], changed) == 0) {
            test_write(to, data, n);
            continue;
        }
        size_t n_whole;
        char *whole = test_read(test_path(from), &n_whole);
        test_write(to, whole, n_whole);
        free(whole);
    }
    return dir;
}

static void check_damage(const char *name, const void *data, size_t n, const char *says)
{
    struct model m;
    lathe_error e = {0};
    const char *dir = copy_of_nano(name, data, n);
    lathe_status st = open_dir(&m, dir, &e);
    if (!st || !strstr(e.message, says) || !strstr(e.message, dir))
        FAIL("%s: status %d, \"%s\"; expected \"%s\"", name, (int)st, e.message, says);
}

TEST(damaged_copies_of_nano)
{
    const char *shard = "model-00002-of-00002.safetensors";
    size_t n;
    char *data = test_read(test_path("models/nano/model-00002-of-00002.safetensors"), &n);
    struct model m;
    lathe_error e;
    CHECK_OK(open_dir(&m, copy_of_nano(shard, data, n), &e), &e);
    model_close(&m);
    check_damage(shard, data, n - 1, "(cut short?)");
    check_damage(shard, data, n / 2, "model-00002-of-00002.safetensors: tensor ");
    check_damage(shard, data, 100, "cut short");
    check_damage(shard, data, 0, "0 bytes");
    data[8] = '[';
    check_damage(shard, data, n, "model-00002-of-00002.safetensors: header");
    data[8] = '{';
    char *shape = strstr(data + 8, "[144,544]");
    if (!shape)
        shape = strstr(data + 8, "[144, 544]");
    CHECK(shape);
    shape[1] = '2';
    check_damage(shard, data, n, "bytes, expected");
    free(data);

    char *index = test_read(test_path("models/nano/model.safetensors.index.json"), &n);
    char *where = strstr(index, "model-00001");
    CHECK(where);
    where[10] = '2';
    check_damage("model.safetensors.index.json", index, n, "the index puts it in model-00002");
    check_damage("model.safetensors.index.json", index, n / 2, "index.json");
    free(index);
    check_damage("config.json", "{}", 2, "missing");
}

/* ---- The family ------------------------------------------------------------------------------ */

static void add_shape(struct out_file *f, const char *name, int64_t rows, int64_t cols)
{
    int64_t dims[2] = {rows, cols};
    if (f->n == f->cap) {
        f->cap = f->cap ? 2 * f->cap : 2048;
        f->tensors = realloc(f->tensors, f->cap * sizeof *f->tensors);
        CHECK(f->tensors);
    }
    struct out_tensor *t = &f->tensors[f->n++];
    *t = (struct out_tensor){.dtype = DT_BF16, .n_dims = cols ? 2 : 1, .bytes = 2};
    t->name = malloc(strlen(name) + 1);
    CHECK(t->name);
    memcpy(t->name, name, strlen(name) + 1);
    for (int i = 0; i < t->n_dims; i++) {
        t->dim[i] = dims[i];
        t->bytes *= (size_t)dims[i];
    }
}

/* The text tensors of checkpoints.md section 2.1, without their numbers. */
static void add_shapes(struct out_file *f, const struct model_spec *s)
{
    int64_t D = s->hidden, q = (int64_t)s->n_heads * s->head_dim;
    int64_t kv = (int64_t)s->n_kv_heads * s->head_dim, v = (int64_t)s->n_v_heads * s->dv;
    int64_t conv = 2 * (int64_t)s->n_k_heads * s->dk + v;
    const struct {
        int kind; /* 0 every layer, 1 full attention, 2 GDN */
        const char *name;
        int64_t rows, cols;
    } rows[] = {
        {0, "input_layernorm.weight", D, 0},
        {0, "post_attention_layernorm.weight", D, 0},
        {0, "mlp.gate_proj.weight", s->mlp, D},
        {0, "mlp.up_proj.weight", s->mlp, D},
        {0, "mlp.down_proj.weight", D, s->mlp},
        {1, "self_attn.q_proj.weight", 2 * q, D},
        {1, "self_attn.k_proj.weight", kv, D},
        {1, "self_attn.v_proj.weight", kv, D},
        {1, "self_attn.o_proj.weight", D, q},
        {1, "self_attn.q_norm.weight", s->head_dim, 0},
        {1, "self_attn.k_norm.weight", s->head_dim, 0},
        {2, "linear_attn.in_proj_qkv.weight", conv, D},
        {2, "linear_attn.in_proj_z.weight", v, D},
        {2, "linear_attn.in_proj_a.weight", s->n_v_heads, D},
        {2, "linear_attn.in_proj_b.weight", s->n_v_heads, D},
        {2, "linear_attn.conv1d.weight", conv, 4},
        {2, "linear_attn.A_log", s->n_v_heads, 0},
        {2, "linear_attn.dt_bias", s->n_v_heads, 0},
        {2, "linear_attn.norm.weight", s->dv, 0},
        {2, "linear_attn.out_proj.weight", D, v},
    };
    add_shape(f, P "embed_tokens.weight", s->vocab, D);
    add_shape(f, P "norm.weight", D, 0);
    if (!s->tied_head)
        add_shape(f, "lm_head.weight", s->vocab, D);
    for (int l = 0; l < s->n_layers; l++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            char name[200];
            snprintf(name, sizeof name, P "layers.%d.%s", l, rows[i].name);
            if (rows[i].kind == 0 || rows[i].kind == ((l + 1) % 4 == 0 ? 1 : 2))
                add_shape(f, name, rows[i].rows, rows[i].cols);
        }
}

/* A file that has the header and a hole for the data. */
static void write_hole(const struct out_file *f, const char *path)
{
    FILE *out = fopen(path, "wb");
    char *header = malloc(1 << 20);
    CHECK(out && header);
    size_t n = 0, at = 0;
    for (size_t i = 0; i < f->n; i++) {
        const struct out_tensor *t = &f->tensors[i];
        n += (size_t)sprintf(header + n, "%c\"%s\":{\"dtype\":\"BF16\",\"shape\":[%lld",
                             i ? ',' : '{', t->name, (long long)t->dim[0]);
        if (t->n_dims == 2)
            n += (size_t)sprintf(header + n, ",%lld", (long long)t->dim[1]);
        n += (size_t)sprintf(header + n, "],\"data_offsets\":[%zu,%zu]}", at, at + t->bytes);
        at += t->bytes;
    }
    header[n++] = '}';
    for (int i = 0; i < 8; i++)
        fputc((int)(n >> 8 * i & 255), out);
    CHECK(fwrite(header, 1, n, out) == n && fflush(out) == 0);
    bool fits = ftruncate(fileno(out), (off_t)(8 + n + at)) == 0;
    fclose(out);
    free(header);
    if (!fits)
        SKIP("no file of %zu bytes here, not even an empty one", at);
}

/* Sizes of model.md section 1.3; parameters of the text model, the 27B's as in section 3.5. */
TEST(members_of_the_family)
{
    static const struct {
        const char *name;
        int32_t hidden, layers, mlp, heads, kv, k_heads, v_heads;
        bool tied;
        int64_t parameters;
    } members[] = {
        {"0.8B", 1024, 24, 3584, 8, 2, 16, 16, true, 0},
        {"2B", 2048, 24, 6144, 8, 2, 16, 16, true, 0},
        {"4B", 2560, 32, 9216, 16, 4, 16, 32, true, 0},
        {"9B", 4096, 32, 12288, 16, 4, 16, 32, false, 0},
        {"27B", 5120, 64, 17408, 24, 4, 16, 48, false, 26895998464},
    };
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        struct model_spec s;
        struct out_file f = {0}, none = {0};
        lathe_checkpoint *cp;
        lathe_model_info info;
        lathe_error e;
        char path[1200];
        model_spec_init(&s);
        s.vocab = 248320;
        s.hidden = members[i].hidden;
        s.n_layers = members[i].layers;
        s.mlp = members[i].mlp;
        s.n_heads = members[i].heads;
        s.n_kv_heads = members[i].kv;
        s.head_dim = 256;
        s.n_k_heads = members[i].k_heads;
        s.n_v_heads = members[i].v_heads;
        s.dk = s.dv = 128;
        s.mrope_section[0] = s.mrope_section[1] = 11;
        s.mrope_section[2] = 10;
        s.tied_head = members[i].tied;
        s.has_mtp = false;
        const char *dir = fresh();
        make_files(dir, &s, &none);
        add_shapes(&f, &s);
        CHECK(i < 4 || f.n == 851);
        snprintf(path, sizeof path, "%s/model.safetensors", dir);
        write_hole(&f, path);
        CHECK_OK(lathe_checkpoint_open(&cp, dir, &e), &e);
        lathe_checkpoint_info(cp, &info);
        uint64_t bytes = 0;
        for (size_t k = 0; k < lathe_checkpoint_tensors(cp); k++) {
            lathe_tensor_info t;
            lathe_checkpoint_tensor(cp, k, &t);
            bytes += t.bytes;
        }
        CHECK_INT(info.parameters, bytes / 2);
        CHECK(!members[i].parameters || info.parameters == (uint64_t)members[i].parameters);
        CHECK_INT(info.n_full_attention, members[i].layers / 4);
        CHECK(info.tied_head == members[i].tied && info.rotary_dims == 64);
        lathe_checkpoint_close(cp);
        CHECK(unlink(path) == 0);
        out_release(&f);
    }
}

/* ---- lathe_checkpoint -------------------------------------------------------------------------- */

TEST(checkpoint_of_nano)
{
    lathe_checkpoint *cp;
    lathe_error e;
    lathe_model_info info;
    lathe_module_info module;
    uint64_t bytes = 0;
    CHECK_OK(lathe_checkpoint_open(&cp, test_path("models/nano"), &e), &e);
    CHECK_INT(lathe_checkpoint_tensors(cp), 224 + 33);
    CHECK_INT(lathe_checkpoint_modules(cp), 72);
    lathe_checkpoint_info(cp, &info);
    CHECK_INT(info.hidden, 320);
    CHECK_INT(info.n_layers, 8);
    CHECK_INT(info.n_full_attention, 2);
    CHECK_INT(info.max_context, 32768);
    CHECK(info.has_mtp && info.has_vision && !info.tied_head);
    for (size_t i = 0; i < 72; i++) {
        lathe_checkpoint_module(cp, i, &module);
        CHECK(module.bytes > 0 && module.rows > 0 && module.cols > 0);
        if (strncmp(module.name, "mtp.", 4) != 0 && !strstr(module.name, "embed_tokens"))
            bytes += module.bytes;
    }
    /* Beside the matrices: vectors, and one row of the embedding. */
    CHECK(info.bytes_per_token > bytes && info.bytes_per_token < bytes + (1 << 18));
    CHECK_INT(info.parameters,
              22343304); /* of the BF16 checkpoint, without mtp.* and model.visual.* */
    lathe_checkpoint_close(cp);
    lathe_checkpoint_close(NULL);
    CHECK_ERR(lathe_checkpoint_open(&cp, test_path("models/nano-dflash2"), &e), &e,
              LATHE_E_UNSUPPORTED, "model_type \"qwen3\"");
    CHECK(cp == NULL);
}

TEST(allocations_that_fail)
{
    struct model_spec s;
    lathe_error e;
    char dir[512];
    model_spec_init(&s);
    s.mlp_format = WF_NVFP4;
    s.n_layers = 2;
    s.layer_types = "lf";
    s.n_shards = 2;
    snprintf(dir, sizeof dir, "%s", fresh());
    make_model(dir, &s);
    for (size_t nth = 1;; nth++) {
        lathe_checkpoint *cp;
        fail_alloc_arm(nth);
        lathe_status st = lathe_checkpoint_open(&cp, dir, &e);
        bool failed = fail_alloc_disarm();
        if (!st)
            lathe_checkpoint_close(cp);
        if (!failed) {
            CHECK_INT(st, LATHE_OK);
            CHECK(nth > 100);
            break;
        }
        if (st != LATHE_E_MEMORY)
            FAIL("allocation %zu: status %d, %s", nth, (int)st, st ? e.message : "");
    }
}

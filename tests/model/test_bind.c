/* The format of every matrix by the tensors that exist: cases B80, B92, and joined parts, B79. */
#include <jansson.h>

#include "open_model.h"
#include "test.h"

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
        for (int i = 0; i < 64; i++)
            want[i] = 1 + want[i];
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

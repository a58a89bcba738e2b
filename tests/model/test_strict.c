/* Every tensor has its place (B96), draft heads are optional (B90), and damage is named. */
#include <sys/stat.h>

#include "open_model.h"
#include "test.h"

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

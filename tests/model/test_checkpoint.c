/* lathe_checkpoint: the sizes of the family's members, what nano holds, allocations that fail. */
#include <unistd.h>

#include "fail_alloc.h"
#include "open_model.h"
#include "test.h"

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
    s.top_extra =
        ", \"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"config_groups\": "
        "{\"a\": {\"format\": \"nvfp4-pack-quantized\", \"targets\": [\"re:.*mlp.*\", "
        "\"lm_head\"]}}}";
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

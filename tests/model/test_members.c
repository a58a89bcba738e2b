/* The family's other shapes and formats, for which no reference vectors exist: small random checkpoints
 * on the kernels against the formulas in double, and the same numbers stored in two formats against
 * each other. */
#include "rig.h"
#include "test.h"

#include "make_model.h"
#include "tol.h"

enum { N = 75 };

static const char *folder(void)
{
    static int turn;
    char name[32];
    snprintf(name, sizeof name, "model-%d", turn++);
    return test_tmp(name);
}

/* Logits of the last 8 of N random positions: [8, vocab]. */
static float *last_logits(const char *dir, const struct backend *backend, const char *isa,
                          enum dtype act)
{
    struct rig r;
    struct rng rng = {3};
    int32_t token[N];
    struct rig_options o = {
        .dir = dir, .backend = backend, .isa = isa, .act = act, .kv = act, .n_ctx = 128};
    rig_open(&r, &o);
    int32_t vocab = r.model.dims.vocab;
    for (int32_t i = 0; i < N; i++)
        token[i] = (int32_t)rng_below(&rng, (uint32_t)vocab);
    float *out = malloc((size_t)vocab * 8 * sizeof *out);
    rig_run(&r, PHASE_PREFILL, 0, 0, token, N - 8);
    for (int32_t i = 0; i < 8; i++) {
        rig_run(&r, PHASE_DECODE, 0, N - 8 + i, token + N - 8 + i, 1);
        memcpy(out + (int64_t)i * vocab, rig_logits(&r, 0), (size_t)vocab * sizeof *out);
    }
    rig_close(&r);
    return out;
}

static void check_near(const char *what, const float *a, const float *b, int64_t n, double tol)
{
    double spread = 0;
    for (int64_t i = 1; i < n; i++)
        spread = fabs((double)b[i] - b[0]) > spread ? fabs((double)b[i] - b[0]) : spread;
    CHECK(spread > 1e-3); /* the model says something */
    double d = relative_difference(a, b, n);
    if (!(d <= tol))
        FAIL("%s: relative difference %.3g, at most %.3g", what, d, tol);
}

/* The checkpoint of a spec on every instruction set and in both activation dtypes against ref, and
 * against the same numbers expanded to F32. */
static void check_spec(const char *what, const struct model_spec *spec)
{
    static const char *const isa[] = {"generic", "avx2", "avx512"};
    char dir[512], expanded[512], label[96];
    struct model_spec wide = *spec;
    wide.expand = true;
    snprintf(dir, sizeof dir, "%s", folder());
    snprintf(expanded, sizeof expanded, "%s", folder());
    make_model(dir, spec);
    make_model(expanded, &wide);
    int64_t n = (int64_t)spec->vocab * 8;
    float *want = last_logits(dir, &backend_ref, NULL, DT_F32);
    float *rounded = last_logits(dir, &backend_ref, NULL, DT_BF16);
    double rounding = relative_difference(rounded, want, n);
    float *wider = last_logits(expanded, &backend_ref, NULL, DT_F32);
    snprintf(label, sizeof label, "%s against its expansion, ref", what);
    check_near(label, wider, want, n, TOL_SAME_NUMBERS);
    for (int i = 0; i < 3; i++) {
        void *stream;
        lathe_error err;
        if (backend_cpu.open(&stream, NULL, isa[i], &err)) /* this processor lacks it */
            continue;
        backend_cpu.close(stream);
        float *f32 = last_logits(dir, &backend_cpu, isa[i], DT_F32);
        float *bf16 = last_logits(dir, &backend_cpu, isa[i], DT_BF16);
        snprintf(label, sizeof label, "%s, F32, %s", what, isa[i]);
        check_near(label, f32, want, n, TOL_GOLDEN_F32);
        snprintf(label, sizeof label, "%s, BF16, %s", what, isa[i]);
        check_near(label, bf16, want, n, TOL_GOLDEN_BF16_FACTOR * rounding);
        free(f32);
        free(bf16);
    }
    free(want);
    free(rounded);
    free(wider);
}

static struct model_spec base_spec(void)
{
    struct model_spec s;
    model_spec_init(&s);
    return s;
}

TEST(the_tiny_hybrid)
{
    struct model_spec s = base_spec();
    check_spec("tiny hybrid", &s);
}

TEST(tied_head)
{
    struct model_spec s = base_spec();
    s.tied_head = true;
    check_spec("tied head", &s);
}

TEST(head_repeats)
{
    for (int32_t repeat = 1; repeat <= 3; repeat++) {
        struct model_spec s = base_spec();
        char what[32];
        s.n_k_heads = 2;
        s.n_v_heads = 2 * repeat;
        snprintf(what, sizeof what, "head repeat %d", repeat);
        check_spec(what, &s);
    }
}

TEST(other_head_sizes)
{
    struct model_spec s = base_spec();
    s.n_heads = 6;
    s.n_kv_heads = 1;
    s.head_dim = 48;
    s.partial_rotary_factor = 0.5;
    memset(s.mrope_section, 0, sizeof s.mrope_section);
    s.dk = 24;
    s.dv = 40;
    check_spec("odd head sizes", &s);
}

TEST(all_attention_and_all_recurrent)
{
    struct model_spec s = base_spec();
    s.layer_types = "ffff";
    check_spec("all attention", &s);
    s.layer_types = "llll";
    check_spec("all recurrent", &s);
    s.layer_types = "flfl";
    check_spec("attention first", &s);
}

static void set_matrices(struct model_spec *s, enum weight_format_id f)
{
    s->attn_format = s->mlp_format = s->gdn_format = s->head_format = f;
}

TEST(every_format)
{
    for (int f = 0; f < WF_COUNT; f++)
        for (int scales = 0; scales < 2; scales++) {
            struct model_spec s = base_spec();
            set_matrices(&s, (enum weight_format_id)f);
            s.scales = scales ? DT_F32 : DT_BF16;
            check_spec(weight_formats[f].name, &s);
            if (f != WF_FP8_ROW && f != WF_FP8_BLOCK)
                break; /* the scales' dtype is fixed */
        }
}

TEST(modelopt_names)
{
    struct model_spec s = base_spec();
    set_matrices(&s, WF_NVFP4);
    s.modelopt = true;
    check_spec("ModelOpt NVFP4", &s);
    set_matrices(&s, WF_FP8_TENSOR);
    check_spec("ModelOpt FP8", &s);
}

TEST(wide_blocks)
{
    /* More than one 128 x 128 block in both directions, the last ones ragged. */
    struct model_spec s = base_spec();
    s.hidden = 208;
    s.mlp = 336;
    set_matrices(&s, WF_FP8_BLOCK);
    check_spec("ragged blocks", &s);
}

TEST(yarn)
{
    struct model_spec s = base_spec();
    s.head_dim = 64;
    s.partial_rotary_factor = 0.5;
    memset(s.mrope_section, 0, sizeof s.mrope_section);
    s.original_max_position = 64; /* so that the positions of the test reach past it */
    s.max_position = 64;
    float *plain, *extended;
    char dir[512];
    snprintf(dir, sizeof dir, "%s", folder());
    struct model_spec p = s;
    p.max_position = 256;
    make_model(dir, &p);
    plain = last_logits(dir, &backend_ref, NULL, DT_F32);
    s.yarn_factor = 4;
    snprintf(dir, sizeof dir, "%s", folder());
    make_model(dir, &s);
    extended = last_logits(dir, &backend_ref, NULL, DT_F32);
    CHECK(relative_difference(extended, plain, (int64_t)s.vocab * 8) > 1e-3);
    free(plain);
    free(extended);
    check_spec("YaRN", &s);
}

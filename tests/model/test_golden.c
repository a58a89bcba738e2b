/* The whole model against the reference implementation's vectors (tests/golden, and ../shared for the
 * BF16 checkpoint): hidden states, recurrent and convolution state, rotated keys, logits, greedy
 * continuations. */
#include "golden.h"
#include "rig.h"
#include "test.h"

#include "tol.h"

static const char *const prompts[] = {"define", "think", "tools", "story", "passage"};
enum { N_PROMPTS = sizeof prompts / sizeof *prompts };

static void compare(const char *what, const char *prompt, const float *got, const float *want,
                    int64_t n, double tol)
{
    double d = relative_difference(got, want, n);
    if (!(d <= tol))
        FAIL("%s of %s: relative difference %.3g, at most %.3g", what, prompt, d, tol);
}

/* Collects the last four rows of every tapped tensor: [9, 4, hidden]. */
struct taps {
    float *rows;
    int32_t n_layers;
};

static void collect(void *ctx, const char *name, int32_t layer, const struct tensor *t)
{
    struct taps *c = ctx;
    int32_t at = strcmp(name, "final") == 0 ? c->n_layers : layer;
    for (int64_t i = 0; i < 4; i++)
        to_f32(c->rows + (at * 4 + i) * t->dim[1], tensor_at(t, t->dim[0] - 4 + i), t->dtype,
               t->dim[1]);
}

/* One prompt, F32 throughout, in pieces of at most `piece` rows. */
static void check_prompt(struct rig *r, const struct golden *g, const char *prompt, int32_t piece)
{
    int64_t n_ids, n;
    const struct dims *d = &r->model.dims;
    int32_t *ids = golden_vector(g, prompt, "ids", &n_ids);
    float *hidden = calloc((size_t)(d->n_layers + 1) * 4 * (size_t)d->hidden, sizeof *hidden);
    struct taps taps = {hidden, d->n_layers};
    rig_reset(r, 0);
    for (int32_t at = 0; at < n_ids; at += piece) {
        int32_t k = (int32_t)n_ids - at < piece ? (int32_t)n_ids - at : piece;
        r->step.x.tap = at + k == n_ids && k >= 4 ? collect : NULL;
        r->step.x.tap_ctx = &taps;
        rig_run(r, PHASE_PREFILL, 0, at, ids + at, k);
    }
    r->step.x.tap = NULL;
    float *want = golden_vector(g, prompt, "hidden_f32", &n);
    if (piece >= n_ids)
        compare("hidden", prompt, hidden, want, n, TOL_GOLDEN_F32);
    free(want);
    free(hidden);

    int32_t rows = (int32_t)(n_ids < piece ? n_ids : (n_ids - 1) % piece + 1);
    want = golden_vector(g, prompt, "logits_f32", &n);
    int32_t n_rows = (int32_t)(n / d->vocab);
    for (int32_t i = 0; i < n_rows; i++)
        if (rows - n_rows + i >= 0)
            compare("logits", prompt, rig_logits(r, rows - n_rows + i),
                    want + (int64_t)i * d->vocab, d->vocab, TOL_GOLDEN_F32);
    free(want);

    struct kv_pages kv = kv_cache_layer(&r->state.kv, 0);
    want = golden_vector(g, prompt, "k3_f32", &n);
    for (int32_t i = 0; i < 4; i++) {
        int32_t pos = (int32_t)n_ids - 4 + i;
        const float *k = (const float *)tensor_at(&kv.k, kv.page_table[pos / KV_PAGE]) +
                         (int64_t)(pos % KV_PAGE) * d->n_kv_heads * d->head_dim;
        compare("keys of layer 3", prompt, k, want + (int64_t)i * d->head_dim, d->head_dim,
                TOL_GOLDEN_KEYS);
    }
    free(want);

    static const int32_t layers[] = {0, 5}, gdn_index[] = {0, 4};
    for (int32_t i = 0; i < 2; i++) {
        char name[16];
        snprintf(name, sizeof name, "S%d_f32", layers[i]);
        want = golden_vector(g, prompt, name, &n);
        if (!want)
            continue;
        struct tensor S = recurrent_S(&r->state.recurrent, gdn_index[i]);
        compare(name, prompt, S.data, want, n, TOL_GOLDEN_F32);
        free(want);
        snprintf(name, sizeof name, "conv%d_f32", layers[i]);
        want = golden_vector(g, prompt, name, &n); /* [conv_dim, 4], of which the last 3 are kept */
        struct tensor tail = recurrent_tail(&r->state.recurrent, gdn_index[i]);
        float *got = malloc((size_t)n * sizeof *got);
        for (int64_t c = 0; c < d->conv_dim; c++) {
            got[c * 4] = want[c * 4];
            for (int64_t j = 0; j < 3; j++)
                got[c * 4 + 1 + j] = ((const float *)tail.data)[j * d->conv_dim + c];
        }
        compare(name, prompt, got, want, n, TOL_GOLDEN_F32);
        free(got);
        free(want);
    }
    free(ids);
}

/* Token by token from the prompt's logits, as the vectors were made. */
static void check_greedy(struct rig *r, const struct golden *g, const char *prompt)
{
    int64_t n_ids;
    int32_t *ids = golden_vector(g, prompt, "ids", &n_ids);
    json_t *p = json_object_get(json_object_get(g->json.root, "prompts"), prompt);
    json_t *greedy = json_object_get(p, "greedy"), *margins = json_object_get(p, "margins");
    rig_reset(r, 0);
    rig_run(r, PHASE_PREFILL, 0, 0, ids, (int32_t)n_ids);
    const float *logits = rig_logits(r, (int32_t)n_ids - 1);
    size_t n = json_array_size(greedy);
    CHECK(n > 10 && n == json_array_size(margins));
    for (size_t i = 0; i < n; i++) {
        int32_t want = (int32_t)json_integer_value(json_array_get(greedy, i));
        int32_t got = argmax(logits, r->model.dims.vocab);
        if (got != want && json_number_value(json_array_get(margins, i)) > 1e-3)
            FAIL("%s, token %zu: %d, expected %d", prompt, i, got, want);
        rig_run(r, PHASE_DECODE, 0, (int32_t)(n_ids + (int64_t)i), &want, 1);
        logits = rig_logits(r, 0);
    }
    free(ids);
}

/* `all` prompts, or the shortest. */
static void check_f32(const char *dir, const char *stem, const char *isa, bool all)
{
    struct golden g;
    struct rig r;
    struct rig_options o = {.dir = dir, .isa = isa, .act = DT_F32, .kv = DT_F32};
    golden_open(&g, stem);
    rig_open(&r, &o);
    int n = all ? N_PROMPTS : 1;
    for (int i = 0; i < n; i++)
        check_prompt(&r, &g, prompts[i], 1024);
    if (all)
        check_prompt(&r, &g, "passage", 97);
    for (int i = 0; i < n; i++)
        check_greedy(&r, &g, prompts[i]);
    rig_close(&r);
    golden_close(&g);
}

/* The default activations are no further from the float32 logits than the reference's own bfloat16
 * run is, times 1.5. */
static void check_bf16(const char *dir, const char *stem)
{
    struct golden g;
    struct rig r;
    struct rig_options o = {.dir = dir, .act = DT_BF16, .kv = DT_BF16};
    golden_open(&g, stem);
    rig_open(&r, &o);
    int32_t vocab = r.model.dims.vocab;
    for (int i = 0; i < N_PROMPTS; i++) {
        int64_t n_ids, n, n_bf16;
        int32_t *ids = golden_vector(&g, prompts[i], "ids", &n_ids);
        float *f32 = golden_vector(&g, prompts[i], "logits_f32", &n);
        float *bf16 = golden_vector(&g, prompts[i], "logits_bf16run", &n_bf16);
        int32_t rows = (int32_t)(n_bf16 / vocab);
        const float *want = f32 + (n - n_bf16);
        float *got = malloc((size_t)n_bf16 * sizeof *got);
        rig_reset(&r, 0);
        rig_run(&r, PHASE_PREFILL, 0, 0, ids, (int32_t)n_ids);
        for (int32_t t = 0; t < rows; t++)
            memcpy(got + (int64_t)t * vocab, rig_logits(&r, (int32_t)n_ids - rows + t),
                   (size_t)vocab * sizeof *got);
        double theirs = relative_difference(bf16, want, n_bf16);
        double ours = relative_difference(got, want, n_bf16);
        printf("     %s: BF16 against float32 %.5f, the reference's %.5f\n", prompts[i], ours,
               theirs);
        if (!(ours <= TOL_GOLDEN_BF16_FACTOR * theirs))
            FAIL("%s: BF16 logits are %.4g from the float32 ones, the reference's own are %.4g",
                 prompts[i], ours, theirs);
        free(got);
        free(ids);
        free(f32);
        free(bf16);
    }
    rig_close(&r);
    golden_close(&g);
}

TEST(mixed_f32)
{
    check_f32(test_path("models/nano"), test_path("tests/golden/mixed"), NULL, true);
}

TEST(mixed_f32_generic_kernels)
{
    check_f32(test_path("models/nano"), test_path("tests/golden/mixed"), "generic", !test_quick());
}

TEST(mixed_bf16_activations)
{
    check_bf16(test_path("models/nano"), test_path("tests/golden/mixed"));
}

TEST(bf16_checkpoint_f32)
{
    const char *dir = test_shared("nano/bf16");
    char stem[1024];
    snprintf(stem, sizeof stem, "%s", test_shared("nano/golden/bf16.safetensors"));
    *strstr(stem, ".safetensors") = 0;
    check_f32(dir, stem, NULL, !test_quick());
}

/* The formulas in double, on the shortest prompt: the oracle's own check. */
TEST(mixed_ref)
{
    struct golden g;
    struct rig r;
    struct rig_options o = {.dir = test_path("models/nano"),
                            .backend = &backend_ref,
                            .act = DT_F32,
                            .kv = DT_F32,
                            .n_ctx = 64};
    golden_open(&g, test_path("tests/golden/mixed"));
    rig_open(&r, &o);
    check_prompt(&r, &g, "define", 64);
    rig_close(&r);
    golden_close(&g);
}

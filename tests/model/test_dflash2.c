/* DFlash2 against the vectors of an independent implementation (tests/golden, and ../shared for the BF16
 * checkpoint): features, context, block, candidates, scores, drafts. */
#include "draft_rig.h"
#include "golden.h"
#include "test.h"

#include "tol.h"

/* The vector, which must be there. */
static void *vector(const struct golden *g, const char *prompt, const char *name, int64_t *n)
{
    void *copy = golden_vector(g, prompt, name, n);
    if (!copy)
        FAIL("no vector %s.%s", prompt, name);
    return copy;
}

static void compare(const struct golden *g, const char *prompt, const char *name, const float *got,
                    double tol)
{
    int64_t n;
    float *want = vector(g, prompt, name, &n);
    double d = relative_difference(got, want, n);
    if (!(d <= tol))
        FAIL("%s of %s: relative difference %.3g, at most %.3g", name, prompt, d, tol);
    free(want);
}

/* What a proposal shows on its way. */
enum { STEPS = 7, CANDIDATES = 16, MAX_HIDDEN = 320 };
struct seen {
    float hidden[8 * MAX_HIDDEN], logits[STEPS * CANDIDATES], scores[STEPS * CANDIDATES];
    int32_t ids[STEPS * CANDIDATES];
};

static void watch(void *ctx, const char *name, int32_t layer, const struct tensor *t)
{
    struct seen *s = ctx;
    size_t bytes = (size_t)tensor_elements(t) * dtype_size(t->dtype);
    if (strcmp(name, "block_hidden") == 0)
        memcpy(s->hidden, t->data, bytes);
    else if (strcmp(name, "cand_logits") == 0)
        memcpy(s->logits, t->data, bytes);
    else if (strcmp(name, "cand_ids") == 0)
        memcpy(s->ids, t->data, bytes);
    else if (strcmp(name, "selector_scores") == 0)
        memcpy(s->scores + (size_t)layer * CANDIDATES, t->data, bytes);
}

/* The ring's last four positions as the vectors have them: [layers, 4, kv heads, head_dim]. */
static void last4(const struct draft_rig *r, bool values, float *out)
{
    const struct dflash_context *x = &r->d->context;
    int64_t width = (int64_t)r->d->config.dims.n_kv_heads * r->d->config.dims.head_dim;
    for (int32_t i = 0; i < r->d->config.dims.n_layers; i++)
        for (int32_t k = 0; k < 4; k++) {
            const struct tensor *plane = values ? &x->ring[i].v : &x->ring[i].k;
            int64_t pos = x->frontier[0] - 4 + k;
            memcpy(out + (i * 4 + k) * width,
                   (const float *)plane->data + pos % plane->dim[1] * width,
                   (size_t)width * sizeof *out);
        }
}

static void check_prompt(struct draft_rig *r, const struct golden *g, const char *prompt,
                         int32_t piece)
{
    int64_t n_seq, n;
    int32_t *seq = vector(g, prompt, "seq", &n_seq), drafts[SPEC_MAX_DRAFT];
    int32_t frontier = (int32_t)n_seq - 1;
    float rows[5 * 4 * 128];
    static struct seen seen;
    rig_reset(&r->rig, 0);
    drafter_dflash2.rewind(r->d, 0, 0);
    for (int32_t at = 0; at < frontier; at += piece) {
        int32_t k = frontier - at < piece ? frontier - at : piece;
        draft_rig_run(r, PHASE_PREFILL, 0, at, seq + at, k);
        if (at + k == frontier && k >= 4)
            compare(g, prompt, "features_last4", tensor_at(&r->rig.step.feature, k - 4),
                    TOL_GOLDEN_F32);
    }
    last4(r, false, rows);
    compare(g, prompt, "ctx_k_last4", rows, TOL_GOLDEN_KEYS);
    last4(r, true, rows);
    compare(g, prompt, "ctx_v_last4", rows, TOL_GOLDEN_F32);

    r->d->x.tap = watch;
    r->d->x.tap_ctx = &seen;
    CHECK_INT(draft_rig_propose(r, 0, seq[frontier], STEPS, drafts), STEPS);
    r->d->x.tap = NULL;
    compare(g, prompt, "block_hidden", seen.hidden, TOL_GOLDEN_F32);
    compare(g, prompt, "cand_logits", seen.logits, TOL_GOLDEN_F32);
    compare(g, prompt, "selector_scores", seen.scores, TOL_GOLDEN_F32);
    int32_t *ids = vector(g, prompt, "cand_ids", &n);
    CHECK_INT(n, STEPS * CANDIDATES);
    for (int32_t i = 0; i < n; i++)
        if (ids[i] != seen.ids[i])
            FAIL("cand_ids of %s: entry %d is %d, expected %d", prompt, i, seen.ids[i], ids[i]);
    json_t *p = json_object_get(json_object_get(g->json.root, "prompts"), prompt);
    json_t *want = json_object_get(p, "dflash2_drafts");
    CHECK_INT(json_integer_value(json_object_get(p, "frontier")), frontier);
    CHECK_INT(json_array_size(want), STEPS);
    for (int32_t i = 0; i < STEPS; i++)
        CHECK_INT(drafts[i], json_integer_value(json_array_get(want, (size_t)i)));
    free(ids);
    free(seq);
}

static void check_f32(const char *target, const char *dir, const char *stem,
                      const struct backend *backend, const char *isa)
{
    static const char *const prompts[] = {"define", "story", "passage"};
    struct golden g;
    struct draft_rig r;
    struct draft_rig_options o = {
        .rig = {.dir = target, .backend = backend, .isa = isa, .act = DT_F32, .kv = DT_F32},
        .dir = dir,
        .n_ids = 8187,
    };
    golden_open(&g, stem);
    draft_rig_open(&r, &o);
    bool slow = backend == &backend_ref || (isa && test_quick());
    for (int i = 0; i < (slow ? 1 : 3); i++)
        check_prompt(&r, &g, prompts[i], 1024);
    if (!slow)
        check_prompt(&r, &g, "passage", 113);
    draft_rig_close(&r);
    golden_close(&g);
}

/* The shipped pair. */
static void check_mixed(const struct backend *backend, const char *isa)
{
    char target[1024], dir[1024], stem[1024];
    snprintf(target, sizeof target, "%s", test_path("models/nano"));
    snprintf(dir, sizeof dir, "%s", test_path("models/nano-dflash2"));
    snprintf(stem, sizeof stem, "%s", test_path("tests/golden/mixed_spec"));
    check_f32(target, dir, stem, backend, isa);
}

TEST(mixed_f32)
{
    check_mixed(NULL, NULL);
}

TEST(mixed_f32_generic_kernels)
{
    check_mixed(NULL, "generic");
}

/* The formulas in double, on the shortest prompt: the oracle's own check. */
TEST(mixed_ref)
{
    check_mixed(&backend_ref, NULL);
}

/* Through the target: a prompt in any pieces, decoded, or verified and committed leaves the same context,
 * with the default dtypes. */
TEST(the_context_does_not_know_how_the_prompt_was_cut)
{
    static const struct {
        enum phase phase;
        int32_t piece;
    } cuts[] = {{PHASE_PREFILL, 150}, {PHASE_PREFILL, 37}, {PHASE_DECODE, 1}, {PHASE_VERIFY, 8}};
    char target[1024], dir[1024];
    lathe_error err;
    struct golden g;
    struct draft_rig r;
    int64_t n_seq;
    int32_t drafts[4][SPEC_MAX_DRAFT];
    struct buf saved[4];
    snprintf(target, sizeof target, "%s", test_path("models/nano"));
    snprintf(dir, sizeof dir, "%s", test_path("models/nano-dflash2"));
    struct draft_rig_options o = {
        .rig = {.dir = target, .act = DT_BF16, .kv = DT_BF16}, .dir = dir, .n_ids = 8187};
    golden_open(&g, test_path("tests/golden/mixed_spec"));
    draft_rig_open(&r, &o);
    int32_t *seq = vector(&g, "passage", "seq", &n_seq), n = 150;
    for (int i = 0; i < 4; i++) {
        rig_reset(&r.rig, 0);
        drafter_dflash2.rewind(r.d, 0, 0);
        for (int32_t at = 0; at < n; at += cuts[i].piece) {
            int32_t k = n - at < cuts[i].piece ? n - at : cuts[i].piece;
            draft_rig_run(&r, cuts[i].phase, 0, at, seq + at, k);
            struct batch_seq commit = {0, 0, k, at};
            if (cuts[i].phase == PHASE_VERIFY)
                CHECK_OK(step_commit(&r.rig.step, &commit, 1, &err), &err);
        }
        CHECK_INT(draft_rig_propose(&r, 0, seq[n], STEPS, drafts[i]), STEPS);
        saved[i] = draft_rig_save(&r, 0);
        /* A GPU has an arithmetic of its own for prompts. */
        int like = r.rig.backend->is_host || i < 2 ? 0 : 2;
        CHECK_INT(saved[i].len, saved[like].len);
        if (memcmp(saved[i].data, saved[like].data, saved[like].len) != 0)
            FAIL("pieces of %d leave another context than those of %d", cuts[i].piece,
                 cuts[like].piece);
        CHECK(memcmp(drafts[i], drafts[like], STEPS * sizeof drafts[0][0]) == 0);
    }
    for (int i = 0; i < 4; i++)
        buf_release(&saved[i]);
    free(seq);
    draft_rig_close(&r);
    golden_close(&g);
}

TEST(bf16_checkpoint_f32)
{
    char dir[1024], stem[1024], target[1024];
    snprintf(dir, sizeof dir, "%s", test_shared("nano/dflash2-bf16"));
    snprintf(target, sizeof target, "%s", test_shared("nano/bf16"));
    snprintf(stem, sizeof stem, "%s", test_shared("nano/golden/bf16_spec.safetensors"));
    *strstr(stem, ".safetensors") = 0;
    check_f32(target, dir, stem, NULL, NULL);
}

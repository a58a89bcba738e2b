/* All kinds of block drafters on small random checkpoints, against the oracle in double and on rows made by
 * hand. */
#include "device.h"
#include "dflash_oracle.h"
#include "draft_rig.h"
#include "test.h"
#include "tol.h"

enum { MAX_CTX = 256, TAPS = 3, H = 64 };

/* ---- Against the oracle --------------------------------------------------------------------- */

struct seen {
    double hidden[ORACLE_BLOCK * H];
    float logit[ORACLE_BLOCK * ORACLE_CANDIDATES], score[ORACLE_BLOCK * ORACLE_CANDIDATES];
    int32_t id[ORACLE_BLOCK * ORACLE_CANDIDATES];
    float confidence[ORACLE_BLOCK];
    int32_t n_confidence;
};

static void watch(void *ctx, const char *name, int32_t layer, const struct tensor *t)
{
    struct seen *s = ctx;
    size_t n = (size_t)tensor_elements(t);
    if (strcmp(name, "block_hidden") == 0)
        for (size_t i = 0; i < n; i++) {
            float x;
            to_f32(&x, (const unsigned char *)t->data + i * dtype_size(t->dtype), t->dtype, 1);
            s->hidden[i] = (double)x;
        }
    else if (strcmp(name, "cand_logits") == 0)
        memcpy(s->logit, t->data, n * sizeof(float));
    else if (strcmp(name, "cand_ids") == 0)
        memcpy(s->id, t->data, n * sizeof(int32_t));
    else if (strcmp(name, "selector_scores") == 0)
        memcpy(s->score + (size_t)layer * n, t->data, n * sizeof(float));
    else if (strcmp(name, "confidence") == 0)
        s->confidence[s->n_confidence++] = *(const float *)t->data;
}

static void near(const char *what, int32_t i, double got, double want, double tol)
{
    if (!(fabs(got - want) <= tol))
        FAIL("%s %d is %.9g, expected %.9g within %.3g", what, i, got, want, tol);
}

static double *doubles(const struct weight *w)
{
    double *d = malloc((size_t)(w->rows * w->cols) * sizeof *d);
    float row[H];
    for (int64_t r = 0; r < w->rows; r++) {
        weight_formats[w->format].unpack(row, w, r, 0, H);
        for (int c = 0; c < H; c++)
            d[r * H + c] = (double)row[c];
    }
    return d;
}

/* Random features of a slot's positions, in float and in double. */
static void make_features(float *f, double *d, int32_t n, uint64_t seed)
{
    struct rng r = {seed};
    for (int32_t i = 0; i < n * TAPS * H; i++) {
        f[i] = (float)rng_normal(&r);
        if (d)
            d[i] = (double)f[i];
    }
}

static void compare(const struct drafter_spec *s, const struct oracle *want, const struct seen *got,
                    const int32_t *drafts, int32_t n)
{
    double scale = 0, score = 0;
    for (int32_t i = 0; i < s->block * H; i++)
        scale = fmax(scale, fabs(want->hidden[i / H][i % H]));
    for (int32_t i = 0; i < s->block * H; i++)
        near("block_hidden", i, got->hidden[i], want->hidden[i / H][i % H], TOL_GOLDEN_F32 * scale);
    /* What the F32 sums may move must not decide between tokens. */
    if (!(want->margin > 1e-4))
        FAIL("the oracle decides by %.3g: another seed is needed", want->margin);
    int32_t expected = want->n_drafts, k = want->n_candidates;
    double survival = 1;
    for (int32_t i = 0; i < got->n_confidence; i++) {
        near("confidence", i, got->confidence[i], want->confidence[i], 1e-5);
        survival *= want->confidence[i];
        if (expected == want->n_drafts && survival < 0.2)
            expected = i;
        if (i >= expected)
            break; /* the chain has ended */
    }
    CHECK_INT(n, expected);
    for (int32_t i = 0; i < n; i++)
        CHECK_INT(drafts[i], want->draft[i]);
    for (int32_t i = 0; i < n * k; i++)
        score = fmax(score, fabs(want->score[i / k][i % k]));
    for (int32_t i = 0; i < n * k; i++) {
        near("candidate's logit", i, got->logit[i], want->logit[i / k][i % k],
             TOL_GOLDEN_F32 * scale);
        if (strcmp(s->architecture, "DFlash2DraftModel") != 0)
            continue; /* many candidates: some change places */
        CHECK_INT(got->id[i], want->id[i / k][i % k]);
        near("score", i, got->score[i], want->score[i / k][i % k], TOL_GOLDEN_F32 * score);
    }
}

/* A prompt of `frontier` positions, then a proposal. */
static void check(const struct drafter_spec *s, int32_t frontier)
{
    static struct oracle want;
    static struct seen seen;
    static float f[MAX_CTX * TAPS * H];
    static double d[MAX_CTX * TAPS * H];
    struct out_file file;
    struct draft_rig r;
    struct draft_rig_options o = {.rig = {.act = DT_F32, .kv = DT_F32, .n_ctx = MAX_CTX}};
    int32_t drafts[SPEC_MAX_DRAFT], anchor = 77;
    drafter_tensors(&file, s);
    draft_rig_make(&r, s, &file, &o);
    make_features(f, d, frontier, 5);
    double *embed = doubles(&r.rig.model.embed_tokens), *head = doubles(&r.rig.model.lm_head);
    oracle_run(&want, s, &file, d, frontier, anchor, embed, head);
    if (frontier) {
        struct tensor feature = device_copy(f, frontier, TAPS * H);
        draft_rig_feed(&r, 0, feature);
        device_free(feature.data);
    }
    seen.n_confidence = 0;
    r.d->x.tap = watch;
    r.d->x.tap_ctx = &seen;
    int32_t n = draft_rig_propose(&r, 0, anchor, SPEC_MAX_DRAFT, drafts);
    compare(s, &want, &seen, drafts, n);
    free(embed);
    free(head);
    draft_rig_close(&r);
    out_release(&file);
}

/* Before the first wrap, at it, and after several. */
static void check_frontiers(const struct drafter_spec *s)
{
    static const int32_t frontier[] = {0, 1, 11, 12, 13, 100};
    for (size_t i = 0; i < sizeof frontier / sizeof *frontier; i++)
        check(s, frontier[i]);
}

TEST(dflash2)
{
    struct drafter_spec s;
    drafter_spec_init(&s, "DFlash2DraftModel");
    check_frontiers(&s);
    s.dtype = DT_F32;
    s.layer_types = "sf";
    s.n_candidates = 16;
    s.flat = true;
    s.seed = 2;
    check(&s, 60);
}

TEST(dflash)
{
    struct drafter_spec s;
    drafter_spec_init(&s, "DFlashDraftModel");
    check_frontiers(&s);
    s.layer_types = "sf";
    check(&s, 60);
    s.layer_types = "ff";
    s.n_layers = 1;
    s.own_embed = s.own_head = true;
    check(&s, 60);
}

TEST(dspark)
{
    struct drafter_spec s;
    drafter_spec_init(&s, "DSparkDraftModel");
    s.layer_types = "ff";
    check_frontiers(&s);
    s.yarn_factor = 32;
    s.original_max_position = 64;
    check(&s, 100);
    s.confidence_sees_token = false;
    s.seed = 3;
    check(&s, 30);
    s.has_confidence = false;
    s.flat = true;
    s.layer_types = "ss";
    check(&s, 30);
    s.next_row_only = true;
    check(&s, 30);
}

/* ---- Relations between checkpoints ---------------------------------------------------------- */

/* Drafts and hidden states of a generated drafter behind 40 positions. */
static int32_t run_made(const struct drafter_spec *s, struct seen *seen, int32_t *drafts)
{
    static float f[40 * TAPS * H];
    struct out_file file;
    struct draft_rig r;
    struct draft_rig_options o = {.rig = {.act = DT_F32, .kv = DT_F32, .n_ctx = MAX_CTX}};
    drafter_tensors(&file, s);
    draft_rig_make(&r, s, &file, &o);
    make_features(f, NULL, 40, 6);
    struct tensor feature = device_copy(f, 40, TAPS * H);
    draft_rig_feed(&r, 0, feature);
    device_free(feature.data);
    r.d->x.tap = watch;
    r.d->x.tap_ctx = seen;
    int32_t n = draft_rig_propose(&r, 0, 9, SPEC_MAX_DRAFT, drafts);
    draft_rig_close(&r);
    out_release(&file);
    return n;
}

/* Convolutions that do nothing leave the plain backbone. */
TEST(identity_convolutions_are_the_plain_backbone)
{
    static struct seen a, b;
    struct drafter_spec s;
    int32_t drafts[SPEC_MAX_DRAFT], plain[SPEC_MAX_DRAFT];
    drafter_spec_init(&s, "DFlash2DraftModel");
    s.identity = s.no_successor = true;
    CHECK_INT(run_made(&s, &a, drafts), 7);
    s.architecture = "DFlashDraftModel";
    CHECK_INT(run_made(&s, &b, plain), 7);
    for (int32_t i = 0; i < 8 * H; i++)
        near("block_hidden", i, a.hidden[i], b.hidden[i], 1e-6);
    CHECK(memcmp(drafts, plain, 7 * sizeof *drafts) == 0);
}

/* Without pair scores the path is each row's best candidate. */
TEST(zero_successors_give_independent_choices)
{
    static struct seen seen;
    struct drafter_spec s;
    int32_t drafts[SPEC_MAX_DRAFT];
    drafter_spec_init(&s, "DFlash2DraftModel");
    s.no_successor = true;
    CHECK_INT(run_made(&s, &seen, drafts), 7);
    for (int32_t i = 0; i < 7; i++)
        CHECK_INT(drafts[i], seen.id[i * s.n_candidates]);
    s.no_successor = false;
    int32_t others[SPEC_MAX_DRAFT], different = 0;
    CHECK_INT(run_made(&s, &seen, others), 7);
    for (int32_t i = 0; i < 7; i++)
        different += others[i] != drafts[i];
    CHECK(different > 0);
}

/* ---- Rows by hand: logits of ids below 60 are h's columns; g is h's column 60 ----------------- */

enum { IDS = 60, G = 60 };

struct hand {
    struct draft_rig r;
    struct out_file file;
    struct drafter_spec s;
    float h[8 * H];
};

static void set(struct out_file *f, const char *name, int64_t row, int64_t cols, int64_t col,
                double x)
{
    ((float *)(void *)out_find(f, name)->data)[row * cols + col] = (float)x;
}

static void zero(struct out_file *f, const char *name)
{
    struct out_tensor *t = out_find(f, name);
    memset(t->data, 0, t->bytes);
}

#define BEFORE "candidate_selector.predecessor_codebook"
#define AFTER  "candidate_selector.successor_codebook"

static void hand_init(struct hand *t)
{
    drafter_spec_init(&t->s, "DFlash2DraftModel");
    t->s.dtype = DT_F32;
    t->s.own_head = true;
    drafter_tensors(&t->file, &t->s);
    zero(&t->file, "lm_head.weight");
    zero(&t->file, BEFORE);
    zero(&t->file, AFTER);
    zero(&t->file, "candidate_selector.hidden_projection.weight");
    for (int i = 0; i < IDS; i++)
        set(&t->file, "lm_head.weight", i, H, i, 1);
    set(&t->file, "candidate_selector.hidden_projection.weight", 0, H, G, 1);
    for (int i = 0; i < 8 * H; i++)
        t->h[i] = i % H == G ? 1 : -10;
}

static void hand_pair(struct hand *t, int32_t before, int32_t after, double bonus)
{
    set(&t->file, BEFORE, before, t->s.rank, 0, bonus);
    set(&t->file, AFTER, after, t->s.rank, 0, 1);
}

static void hand_open(struct hand *t)
{
    struct draft_rig_options o = {.rig = {.act = DT_F32, .kv = DT_F32, .n_ctx = 64}, .n_ids = IDS};
    draft_rig_make(&t->r, &t->s, &t->file, &o);
    draft_rig_sampler(&t->r, 0);
}

/* Walks the rows; row 0 is the anchor's and predicts nothing. */
static struct draft_request hand_walk(struct hand *t, struct sampler *sampler, int32_t most,
                                      struct draft_law *law)
{
    lathe_error err;
    struct draft_request q = {.anchor = 1, .most = most, .sampler = sampler, .law = law};
    exec_begin(&t->r.d->x);
    struct tensor h = device_copy(t->h, 8, H);
    dflash_walk(&t->r.d->x, t->r.d, h, &q, 1, most);
    CHECK_OK(exec_end(&t->r.d->x, &err), &err);
    device_free(h.data);
    return q;
}

static void hand_close(struct hand *t)
{
    draft_rig_close(&t->r);
    out_release(&t->file);
}

/* The best path as a whole is 21, 30 (0.9 + 6); the walk takes 20 first. */
TEST(the_walk_is_greedy)
{
    static struct hand t;
    hand_init(&t);
    t.h[1 * H + 20] = 1;
    t.h[1 * H + 21] = 0.9f;
    t.h[2 * H + 29] = 1;
    t.h[2 * H + 30] = 1;
    hand_pair(&t, 21, 30, 5);
    hand_open(&t);
    struct draft_request q = hand_walk(&t, t.r.sampler, 2, NULL);
    CHECK_INT(q.n, 2);
    CHECK_INT(q.draft[0], 20);
    CHECK_INT(q.draft[1], 29);
    /* From the anchor a pair counts too. */
    t.h[1 * H + 21] = 2;
    q = hand_walk(&t, t.r.sampler, 2, NULL);
    CHECK_INT(q.draft[0], 21);
    CHECK_INT(q.draft[1], 30);
    hand_close(&t);
}

/* Equal logits: the lower ids are the candidates. Equal scores: the lower id is the draft. */
TEST(ties_go_to_the_lower_id)
{
    static struct hand t;
    hand_init(&t);
    for (int i = 5; i < 12; i++)
        t.h[1 * H + i] = 1; /* seven for four places */
    t.h[2 * H + 40] = 2;
    t.h[2 * H + 17] = 1;
    hand_pair(&t, 5, 17, 1);
    hand_open(&t);
    struct draft_request q = hand_walk(&t, t.r.sampler, 2, NULL);
    CHECK_INT(q.draft[0], 5);
    CHECK_INT(q.draft[1], 17); /* 1 + 1 = 2 */
    hand_close(&t);
}

/* A candidate without a finite score is none; without any the chain ends. */
TEST(scores_that_are_not_finite)
{
    static struct hand t;
    hand_init(&t);
    t.h[1 * H + 20] = 3;
    t.h[1 * H + 21] = 2;
    t.h[2 * H + 20] = 3;
    set(&t.file, AFTER, 20, t.s.rank, 1, NAN);
    hand_open(&t);
    struct draft_request q = hand_walk(&t, t.r.sampler, 7, NULL);
    CHECK_INT(q.draft[0], 21);
    for (int i = 0; i < H; i++)
        t.h[3 * H + i] = NAN;
    q = hand_walk(&t, t.r.sampler, 7, NULL);
    CHECK_INT(q.n, 2);
    hand_close(&t);
}

static struct sampler *open_sampler(const struct hand *t, lathe_sampling s, const int32_t *ban,
                                    int32_t n_ban)
{
    struct sampler *out;
    lathe_error err;
    struct sampler_options o = {.sampling = &s, .ids = &t->r.ids, .ban = ban, .n_ban = n_ban};
    CHECK_OK(sampler_open(&out, &o, &err), &err);
    return out;
}

/* Bans end a chain that has no other candidate; the request's filters apply. */
TEST(chains_keep_to_what_may_be_sampled)
{
    static struct hand t;
    static const int32_t ban[] = {20, 21, 22, 23};
    hand_init(&t);
    for (int i = 20; i < 24; i++)
        t.h[2 * H + i] = 1;
    t.h[1 * H + 20] = 3;
    t.h[1 * H + 30] = 2;
    hand_open(&t);
    struct sampler *s =
        open_sampler(&t, (lathe_sampling){.top_p = 1, .repetition_penalty = 1, .seed = 1}, ban, 4);
    struct draft_request q = hand_walk(&t, s, 7, NULL);
    CHECK_INT(q.n, 1);
    CHECK_INT(q.draft[0], 30);
    sampler_close(s);
    hand_close(&t);
}

/* The law of a draft is the softmax of its candidates' scores, and drafts have that law over seeds. */
TEST(sampled_drafts_have_their_law)
{
    enum { SEEDS = 20000 };
    static const double score[] = {1.5, 1, 0.25, 0};
    static struct hand t;
    static struct candidate q0[512], q1[512];
    struct draft_law law[] = {{0, q0}, {0, q1}};
    int32_t count[4] = {0};
    double p[4], sum = 0;
    hand_init(&t);
    for (int i = 0; i < 4; i++) {
        t.h[1 * H + 20 + i] = (float)score[i];
        t.h[2 * H + 20 + i] = (float)score[i];
        sum += exp(score[i] / 0.8);
    }
    hand_open(&t);
    for (int seed = 0; seed < SEEDS; seed++) {
        struct sampler *s = open_sampler(
            &t,
            (lathe_sampling){
                .temperature = 0.8f, .top_p = 1, .repetition_penalty = 1, .seed = seed},
            NULL, 0);
        struct draft_request r = hand_walk(&t, s, 2, law);
        CHECK_INT(r.n, 2);
        count[r.draft[0] - 20]++;
        sampler_close(s);
    }
    double chi2 = 0;
    CHECK_INT(law[0].n, 4);
    CHECK_INT(law[1].n, 4);
    for (int i = 0; i < 4; i++) {
        p[i] = exp(score[i] / 0.8) / sum;
        CHECK_INT(q0[i].id, 20 + i);
        near("law", i, q0[i].weight, p[i], 1e-6);
        near("law", i, q1[i].weight, p[i], 1e-6);
        chi2 += pow(count[i] - SEEDS * p[i], 2) / (SEEDS * p[i]);
    }
    if (chi2 > 25.9) /* beyond it lies one in 100,000 of chi2 with 3 degrees of freedom */
        FAIL("chi2 %.1f of drafts against their law", chi2);
    hand_close(&t);
}

/* The noise is the target's: where drafter and target agree on the logits, they choose the same token. */
TEST(sampled_drafts_share_the_noise)
{
    static struct hand t;
    struct rng rng = {8};
    hand_init(&t);
    hand_open(&t);
    for (int seed = 0; seed < 300; seed++) {
        float logits[512];
        struct sampler *s = open_sampler(
            &t,
            (lathe_sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = seed},
            NULL, 0);
        for (int i = 0; i < 512; i++)
            logits[i] = -1e30f;
        for (int i = 0; i < 4; i++)
            for (int row = 1; row < 8; row++)
                t.h[row * H + 20 + i] = logits[20 + i] = (float)rng_normal(&rng);
        for (int row = 1; row < 8; row++)
            memcpy(&t.h[row * H + 20], &logits[20], 4 * sizeof(float));
        struct draft_request q = hand_walk(&t, s, 7, NULL);
        CHECK_INT(q.n, 7);
        for (int i = 0; i < 7; i++) {
            lathe_error err;
            int32_t id;
            CHECK_OK(sampler_pick(s, &t.r.scratch, logits, q.draft, i, &id, &err), &err);
            CHECK_INT(q.draft[i], id);
        }
        sampler_close(s);
    }
    hand_close(&t);
}

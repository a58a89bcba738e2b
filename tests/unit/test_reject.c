/* Rejection sampling on a toy vocabulary: whatever the draft's law, what comes out has the target's.
 * Everything is seeded: a test passes or fails for good. */
#include "test.h"

#include "sample/noise.h"
#include "sample/reject.h"
#include "spec/verify.h"

enum { V = 6, CELLS = V * V, ROUNDS = 1000000 };

static const lathe_sampling plain = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};

/* Logits of the token after `last`, of a target or of a drafter. */
typedef void (*logits_fn)(float *row, int32_t last);

static void target(float *row, int32_t last)
{
    for (int32_t i = 0; i < V; i++)
        row[i] = (float)((i * 7 + last * 5) % 11) * 0.3F - (float)(i == last);
}

static void other(float *row, int32_t last)
{
    for (int32_t i = 0; i < V; i++)
        row[i] = (float)((i * 3 + last * 2) % 7) * 0.4F;
}

/* Only two tokens of the target's, and one that the target never gives. */
static void narrow(float *row, int32_t last)
{
    for (int32_t i = 0; i < V; i++)
        row[i] = i == (last + 1) % V ? 1.0F : i == 2 || i == 5 ? 0.5F : -INFINITY;
}

static void masked(float *row, int32_t last)
{
    target(row, last);
    row[5] = -INFINITY;
}

/* What one case is made of. */
struct toy {
    const char *name;
    lathe_sampling sampling;
    logits_fn p, q;
    bool one_hot; /* drafts are the drafter's best tokens, and no law is kept */
};

struct bench {
    struct id_set ids;
    struct sample_scratch scratch;
};

static void bench_open(struct bench *b)
{
    lathe_error err;
    CHECK_OK(id_set_init(&b->ids, V, NULL, &err), &err);
    CHECK_OK(sample_scratch_init(&b->scratch, V, &err), &err);
}

static void bench_close(struct bench *b)
{
    sample_scratch_release(&b->scratch);
    id_set_release(&b->ids);
}

static struct sampler *open_sampler(const struct bench *b, const lathe_sampling *sampling)
{
    static const int32_t prompt[] = {1, 4};
    lathe_error err;
    struct sampler *s;
    struct sampler_options o = {
        .sampling = sampling, .ids = &b->ids, .prompt = prompt, .n_prompt = 2};
    CHECK_OK(sampler_open(&s, &o, &err), &err);
    return s;
}

enum { ANCHOR = 4 }; /* the prompt's last token */

/* One round of two drafts, then plain choices: the two tokens that come after the prompt. */
static void round_of_two(struct bench *b, struct sampler *s, const struct toy *t, int32_t out[2],
                         int64_t *accepted)
{
    lathe_error err;
    float row[V];
    int32_t draft[2], last = ANCHOR;
    struct candidate q[2][V];
    struct draft_law law[2] = {{0, q[0]}, {0, q[1]}};
    for (int32_t i = 0; i < 2; i++) {
        t->q(row, last);
        if (t->one_hot) {
            draft[i] = logits_argmax(row, &b->ids);
        } else {
            CHECK_OK(sampler_law(s, &b->scratch, row, draft, i, law[i].q, &law[i].n, &err), &err);
            CHECK_OK(sampler_pick(s, &b->scratch, row, draft, i, &draft[i], &err), &err);
        }
        last = draft[i];
    }
    bool drafting = true;
    last = ANCHOR;
    for (int32_t i = 0; i < 2; i++) {
        t->p(row, last);
        struct verify_row v = {.logits = row,
                               .draft = drafting ? draft[i] : -1,
                               .law = drafting && !t->one_hot ? &law[i] : NULL};
        CHECK_OK(verify_choose(s, &b->scratch, ACCEPT_REJECTION, &v, &out[i], &err), &err);
        drafting = drafting && out[i] == draft[i];
        *accepted += drafting && i == 0;
        sampler_commit(s, &out[i], 1);
        last = out[i];
    }
}

/* How often the first draft should be accepted: the sum of min(p, q). */
static double overlap(struct bench *b, const struct toy *t)
{
    lathe_error err;
    float row[V];
    double p[V] = {0}, q[V] = {0}, sum = 0;
    struct candidate law[V];
    int32_t n;
    lathe_sampling sampling = t->sampling;
    sampling.seed = 1;
    struct sampler *s = open_sampler(b, &sampling);
    t->p(row, ANCHOR);
    CHECK_OK(sampler_law(s, &b->scratch, row, NULL, 0, law, &n, &err), &err);
    for (int32_t i = 0; i < n; i++)
        p[law[i].id] = law[i].weight;
    t->q(row, ANCHOR);
    CHECK_OK(sampler_law(s, &b->scratch, row, NULL, 0, law, &n, &err), &err);
    for (int32_t i = 0; i < n; i++)
        q[law[i].id] = law[i].weight;
    if (t->one_hot) {
        memset(q, 0, sizeof q);
        q[logits_argmax(row, &b->ids)] = 1;
    }
    for (int32_t i = 0; i < V; i++)
        sum += p[i] < q[i] ? p[i] : q[i];
    sampler_close(s);
    return sum;
}

/* p(x1) p(x2 | x1) by the sampler's own laws. */
static void exact(struct bench *b, const struct toy *t, double *p)
{
    lathe_error err;
    float row[V];
    struct candidate first[V], second[V];
    int32_t n_first, n_second;
    lathe_sampling sampling = t->sampling;
    sampling.seed = 1;
    struct sampler *s = open_sampler(b, &sampling);
    memset(p, 0, CELLS * sizeof *p);
    t->p(row, ANCHOR);
    CHECK_OK(sampler_law(s, &b->scratch, row, NULL, 0, first, &n_first, &err), &err);
    for (int32_t i = 0; i < n_first; i++) {
        t->p(row, first[i].id);
        CHECK_OK(sampler_law(s, &b->scratch, row, &first[i].id, 1, second, &n_second, &err), &err);
        for (int32_t j = 0; j < n_second; j++)
            p[first[i].id * V + second[j].id] = first[i].weight * second[j].weight;
    }
    sampler_close(s);
}

/* Chi-square of counts against n times p, over its degrees of freedom's mean, in standard deviations. */
static double surprise(const int64_t *count, const double *p, int32_t n_cells, int64_t n)
{
    double chi = 0;
    int32_t cells = 0;
    for (int32_t i = 0; i < n_cells; i++) {
        if (p[i] == 0) {
            if (count[i] > 0)
                return INFINITY;
            continue;
        }
        double want = p[i] * (double)n, d = (double)count[i] - want;
        chi += d * d / want;
        cells++;
    }
    return (chi - (cells - 1)) / sqrt(2.0 * (cells > 1 ? cells - 1 : 1));
}

static void check_toy(const struct toy *t, int64_t rounds)
{
    struct bench b;
    bench_open(&b);
    double p[CELLS];
    static int64_t count[CELLS];
    int64_t accepted = 0;
    memset(count, 0, sizeof count);
    exact(&b, t, p);
    lathe_sampling sampling = t->sampling;
    for (int64_t i = 0; i < rounds; i++) {
        int32_t out[2];
        sampling.seed = i;
        struct sampler *s = open_sampler(&b, &sampling);
        round_of_two(&b, s, t, out, &accepted);
        sampler_close(s);
        count[out[0] * V + out[1]]++;
    }
    double x = surprise(count, p, CELLS, rounds);
    if (!(x < 4)) /* one case in thousands, of the few here */
        FAIL("%s: chi-square is %.1f standard deviations above its mean", t->name, x);
    double rate = (double)accepted / (double)rounds, want = overlap(&b, t);
    if (!(fabs(rate - want) <= 4 * sqrt(fmax(0, want * (1 - want)) / (double)rounds) + 1e-9))
        FAIL("%s: %.5f of the drafts accepted, expected %.5f", t->name, rate, want);
    bench_close(&b);
}

TEST(another_law)
{
    check_toy(&(struct toy){"another law", plain, target, other, false}, ROUNDS);
}

/* Equal laws, up to rounding, accept everything. */
TEST(the_same_law)
{
    check_toy(&(struct toy){"the same law", plain, target, target, false}, ROUNDS / 5);
}

TEST(no_overlap_of_some_tokens)
{
    check_toy(&(struct toy){"q narrow, p masked", plain, masked, narrow, false}, ROUNDS);
}

TEST(one_hot_drafts)
{
    check_toy(&(struct toy){"one hot", plain, target, other, true}, ROUNDS);
    /* The drafter's best token is one that the target never gives. */
    check_toy(&(struct toy){"one hot, never right", plain, masked, narrow, true}, ROUNDS / 5);
}

TEST(penalties_and_filters)
{
    lathe_sampling s = plain;
    s.presence_penalty = 0.7F;
    s.frequency_penalty = 0.4F;
    s.repetition_penalty = 1.3F;
    s.temperature = 0.8F;
    check_toy(&(struct toy){"penalties", s, target, other, false}, ROUNDS);
    s.top_k = 4;
    s.top_p = 0.9F;
    s.min_p = 0.05F;
    check_toy(&(struct toy){"penalties and filters", s, target, other, false}, ROUNDS);
}

/* The statistic sees a rule that is slightly wrong: drafts taken as they are. */
TEST(a_wrong_rule_is_seen)
{
    struct bench b;
    bench_open(&b);
    struct toy t = {"", plain, target, other, false};
    double p[CELLS], first[V] = {0};
    int64_t count[V] = {0}, rounds = 20000;
    float row[V];
    lathe_error err;
    exact(&b, &t, p);
    for (int32_t i = 0; i < CELLS; i++)
        first[i / V] += p[i];
    other(row, ANCHOR);
    lathe_sampling sampling = plain;
    for (sampling.seed = 0; sampling.seed < rounds; sampling.seed++) {
        int32_t id;
        struct sampler *s = open_sampler(&b, &sampling);
        CHECK_OK(sampler_pick(s, &b.scratch, row, NULL, 0, &id, &err), &err);
        sampler_close(s);
        count[id]++;
    }
    CHECK(surprise(count, first, V, rounds) > 100);
    bench_close(&b);
}

/* A greedy request accepts the best token and nothing else, and replaces all others by it. */
TEST(greedy)
{
    struct bench b;
    bench_open(&b);
    lathe_error err;
    lathe_sampling sampling = {.top_p = 1, .repetition_penalty = 1, .seed = 5};
    struct sampler *s = open_sampler(&b, &sampling);
    float row[V];
    struct candidate law[V];
    int32_t n, id, best;
    target(row, ANCHOR);
    best = logits_argmax(row, &b.ids);
    CHECK(sampler_is_greedy(s));
    CHECK_OK(sampler_law(s, &b.scratch, row, NULL, 0, law, &n, &err), &err);
    CHECK_INT(n, 1);
    CHECK_INT(law[0].id, best);
    CHECK(law[0].weight == 1);
    for (int32_t draft = 0; draft < V; draft++) {
        struct verify_row v = {.logits = row, .draft = draft};
        CHECK_OK(verify_choose(s, &b.scratch, ACCEPT_REJECTION, &v, &id, &err), &err);
        CHECK_INT(id, best);
        CHECK_OK(verify_choose(s, &b.scratch, ACCEPT_STRICT, &v, &id, &err), &err);
        CHECK_INT(id, best);
        CHECK_INT(reject_draft(law, n, NULL, 0, draft, 5, 2, &id), draft == best);
        CHECK_INT(id, best);
    }
    sampler_close(s);
    bench_close(&b);
}

/* The law is what picks are drawn from, with every option, and in order of ids. */
TEST(law_is_that_of_picks)
{
    enum { N = 500, SHOTS = 200000 };
    lathe_error err;
    struct id_set ids;
    struct sample_scratch w;
    static float row[N];
    static struct candidate law[N], again[N];
    static int64_t count[N];
    static double p[N];
    struct rng rng = {17};
    CHECK_OK(id_set_init(&ids, N, NULL, &err), &err);
    CHECK_OK(sample_scratch_init(&w, N, &err), &err);
    for (int32_t i = 0; i < N; i++)
        row[i] = (float)rng_normal(&rng) * 2;
    int32_t prompt[40], draft[] = {3, 3, 9}, ban[] = {7};
    for (int32_t i = 0; i < 40; i++)
        prompt[i] = (int32_t)rng_below(&rng, N);
    for (int32_t variant = 0; variant < 4; variant++) {
        lathe_logit_bias bias[] = {{11, 3}, {12, -100}};
        lathe_sampling o = {.temperature = 0.9F, .top_p = 1, .repetition_penalty = 1.2F, .seed = 3};
        o.presence_penalty = 0.5F;
        o.bias = bias;
        o.n_bias = 2;
        o.top_k = variant == 1 || variant == 3 ? 30 : 0;
        o.top_p = variant >= 2 ? 0.8F : 1;
        o.min_p = variant == 3 ? 0.05F : 0;
        struct sampler_options so = {
            .sampling = &o, .ids = &ids, .prompt = prompt, .n_prompt = 40, .ban = ban, .n_ban = 1};
        struct sampler *s;
        int32_t n, n_again;
        CHECK_OK(sampler_open(&s, &so, &err), &err);
        CHECK_OK(sampler_law(s, &w, row, draft, 3, law, &n, &err), &err);
        CHECK_OK(sampler_law(s, &w, row, draft, 3, w.cand, &n_again, &err), &err);
        memcpy(again, w.cand, (size_t)n_again * sizeof *again);
        CHECK(n == n_again && memcmp(law, again, (size_t)n * sizeof *law) == 0);
        CHECK(o.top_k == 0 || n <= 30);
        memset(p, 0, sizeof p);
        memset(count, 0, sizeof count);
        double sum = 0;
        for (int32_t i = 0; i < n; i++) {
            CHECK(i == 0 || law[i].id > law[i - 1].id);
            sum += law[i].weight;
            p[law[i].id] = law[i].weight;
        }
        CHECK(fabs(sum - 1) < 1e-12 && p[7] == 0 && p[12] == 0);
        sampler_close(s);
        for (o.seed = 0; o.seed < SHOTS; o.seed++) {
            int32_t id;
            CHECK_OK(sampler_open(&s, &so, &err), &err);
            CHECK_OK(sampler_pick(s, &w, row, draft, 3, &id, &err), &err);
            sampler_close(s);
            count[id]++;
            if (variant == 0 && o.seed == SHOTS / 10)
                break; /* all 500 tokens, rare ones left aside below */
        }
        int64_t shots = variant == 0 ? SHOTS / 10 + 1 : SHOTS;
        if (variant == 0) /* cells of ten or more */
            for (int32_t i = 0, to = -1; i < N; i++) {
                if (p[i] * (double)shots >= 10)
                    continue;
                if (to < 0) {
                    to = i;
                    continue;
                }
                p[to] += p[i];
                count[to] += count[i];
                p[i] = 0;
                count[i] = 0;
            }
        CHECK(surprise(count, p, N, shots) < 4);
    }
    sample_scratch_release(&w);
    id_set_release(&ids);
}

/* Rounding may leave nothing of p - q although the draft was rejected. */
TEST(numerics)
{
    int32_t id, n_rejected = 0;
    for (int32_t position = 0; position < 2000; position++) {
        /* q is above p by less than a difference of them shows, and names a draft that p lacks. */
        struct candidate p[] = {{.weight = 0.5, .id = 1}, {.weight = 0.5, .id = 4}};
        struct candidate q[] = {
            {.weight = 0.5, .id = 1}, {.weight = 0.5, .id = 4}, {.weight = 1e-300, .id = 9}};
        if (!reject_draft(p, 2, q, 3, 9, 1, position, &id))
            n_rejected++;
        CHECK(id == 1 || id == 4);
        struct candidate r[] = {{.weight = 0.25, .id = 0}, {.weight = 0.75, .id = 3}};
        bool yes = reject_draft(r, 2, NULL, 0, 3, 1, position, &id);
        CHECK(yes ? id == 3 : id == 0);
    }
    CHECK_INT(n_rejected, 2000);
}

/* The streams of a position, and those of neighbours, are not each other's. */
TEST(streams)
{
    double sum[3] = {0}, products[3] = {0};
    enum { N = 100000 };
    for (int32_t i = 0; i < N; i++) {
        double u[] = {noise_uniform(noise_bits(9, i, 0)),
                      noise_uniform(noise_stream_bits(9, i, NOISE_ACCEPT)),
                      noise_uniform(noise_stream_bits(9, i, NOISE_RESIDUAL))};
        for (int k = 0; k < 3; k++) {
            CHECK(u[k] >= 0 && u[k] < 1);
            sum[k] += u[k];
            products[k] += (u[k] - 0.5) * (u[(k + 1) % 3] - 0.5);
        }
    }
    for (int k = 0; k < 3; k++) {
        CHECK(fabs(sum[k] / N - 0.5) < 0.005);
        CHECK(fabs(products[k] / N) < 0.002);
    }
    CHECK(noise_stream_bits(9, 5, NOISE_CHOICE) == noise_bits(9, 5, 0));
    CHECK(noise_uniform(~UINT64_C(0)) < 1 && noise_uniform(0) == 0);
}

TEST(by_id)
{
    struct rng rng = {4};
    static struct candidate c[300];
    for (int32_t n = 0; n <= 300; n++) {
        for (int32_t i = 0; i < n; i++)
            c[i] = (struct candidate){.weight = i, .id = i};
        for (int32_t i = n; i-- > 1;) {
            struct candidate *other_one = &c[rng_below(&rng, (uint32_t)i + 1)], t = c[i];
            c[i] = *other_one;
            *other_one = t;
        }
        candidates_by_id(c, n);
        for (int32_t i = 0; i < n; i++)
            CHECK(c[i].id == i && c[i].weight == i);
    }
}

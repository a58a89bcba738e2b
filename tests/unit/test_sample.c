/* The sampler against its definition: exact probabilities, sorted filters, and the rows of the cases
 * numerics/B89 and spec/B61. Statistical tests have fixed seeds: they pass or fail for good. */
#include "test.h"

#include <float.h>

#include "fail_alloc.h"
#include "op/choice.h"
#include "op/resident.h"
#include "sample/noise.h"
#include "sample/sample.h"

enum { MAX_VOCAB = 5000 };

static const lathe_sampling plain = {
    .temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 7};

/* A sampler over all of n_vocab ids with its working memory. */
struct bench {
    struct id_set ids;
    struct sample_scratch scratch;
    struct sampler *s;
};

static void bench_open(struct bench *b, int32_t n_vocab, const struct sampler_options *o)
{
    lathe_error err;
    CHECK_OK(id_set_init(&b->ids, n_vocab, NULL, &err), &err);
    CHECK_OK(sample_scratch_init(&b->scratch, n_vocab, &err), &err);
    struct sampler_options mine = *o;
    mine.ids = &b->ids;
    CHECK_OK(sampler_open(&b->s, &mine, &err), &err);
}

static void bench_close(struct bench *b)
{
    sampler_close(b->s);
    sample_scratch_release(&b->scratch);
    id_set_release(&b->ids);
}

static int32_t pick(struct bench *b, const float *logits)
{
    int32_t id;
    lathe_error err;
    CHECK_OK(sampler_pick(b->s, &b->scratch, logits, NULL, 0, &id, &err), &err);
    return id;
}

/* ---- Noise --------------------------------------------------------------------------------- */

TEST(philox_known_answers)
{
    /* From the kat_vectors of the Random123 distribution. */
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } rows[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint32_t out[4];
        philox4x32(out, rows[i].counter, rows[i].key);
        for (int j = 0; j < 4; j++)
            CHECK_INT(out[j], rows[i].out[j]);
    }
}

TEST(gumbel_moments_range_and_bound)
{
    double sum = 0, squares = 0;
    int32_t n = 0;
    for (int32_t pos = 0; pos < 100; pos++)
        for (int32_t id = 0; id < 2000; id++, n++) {
            uint64_t bits = noise_bits(42, pos, id);
            double g = noise_gumbel(bits);
            CHECK(noise_gumbel_bound(bits) >= g);
            CHECK(g < 0 || noise_gumbel_bound(bits) <= g + 1.1);
            sum += g;
            squares += g * g;
        }
    double mean = sum / n, variance = squares / n - mean * mean;
    /* Euler's constant and pi^2 / 6; standard errors 0.0029 and 0.0077. */
    CHECK(fabs(mean - 0.5772156649) < 0.012);
    CHECK(fabs(variance - 1.6449340668) < 0.03);
    for (int shift = 0; shift < 64; shift++)
        for (int d = -1; d <= 1; d++) {
            uint64_t bits = ((uint64_t)1 << shift) + (uint64_t)(int64_t)d;
            CHECK(isfinite(noise_gumbel(bits)) && noise_gumbel_bound(bits) >= noise_gumbel(bits));
        }
    CHECK(isfinite(noise_gumbel(UINT64_MAX)) && noise_gumbel(UINT64_MAX) > -3.7);
    CHECK(isfinite(noise_gumbel(0)) && noise_gumbel(0) < 36.8);
    CHECK(noise_gumbel_bound(0) >= noise_gumbel(0));
}

/* The functions of choices beside the library's: 4 units of the last place. */
TEST(log_and_exp)
{
    struct rng r = {3};
    for (int i = 0; i < 200000; i++) {
        double x = ldexp(1 + rng_unit(&r), i % 128 - 64);
        if (i % 4 == 0) /* where the logarithm is near 0 */
            x = 1 + ldexp(rng_unit(&r) - 0.5, -(i / 4 % 50));
        double want = log(x);
        if (!(fabs(choice_log(x) - want) <= 4 * DBL_EPSILON * fabs(want)))
            FAIL("log %a: %a, expected %a", x, choice_log(x), want);
        double y = -rng_unit(&r) * (i % 3 ? 2 : 700);
        want = exp(y);
        if (!(fabs(choice_exp(y) - want) <= 4 * DBL_EPSILON * want))
            FAIL("exp %a: %a, expected %a", y, choice_exp(y), want);
    }
    CHECK(choice_log(1) == 0 && choice_exp(0) == 1 && choice_exp(-1e300) == 0);
    CHECK(choice_exp(-INFINITY) == 0);
}

TEST(noise_depends_on_each_key_alone)
{
    enum { N = 20000 };
    double along_id = 0, along_pos = 0, along_seed = 0;
    for (int32_t i = 0; i < N; i++) {
        double u = (double)noise_bits(5, 100, i) * 0x1p-64 - 0.5;
        along_id += u * ((double)noise_bits(5, 100, i + 1) * 0x1p-64 - 0.5);
        along_pos += u * ((double)noise_bits(5, 101, i) * 0x1p-64 - 0.5);
        along_seed += u * ((double)noise_bits(6, 100, i) * 0x1p-64 - 0.5);
    }
    /* A product's standard deviation is 1/12; 4 standard errors. */
    double limit = 4 * sqrt((double)N) / 12;
    CHECK(fabs(along_id) < limit && fabs(along_pos) < limit && fabs(along_seed) < limit);
    CHECK(noise_bits(1, 2, 3) != noise_bits(1, 3, 2) && noise_bits(1, 2, 3) != noise_bits(3, 2, 1));
    CHECK(noise_bits((uint64_t)1 << 32, 0, 0) != noise_bits(1, 0, 0));
    CHECK(noise_seed() >= 0 && noise_seed() != noise_seed());
}

/* ---- Filters against sorting --------------------------------------------------------------- */

static int by_better(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static int by_id(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

/* The filters as their definitions read. Returns how many candidates stay, sorted best first. */
static int32_t filter_by_sorting(struct candidate *c, const float *logits, const struct id_set *ids,
                                 const lathe_sampling *o)
{
    int32_t n = 0, keep = 0;
    for (int32_t i = 0; i < ids->n_vocab; i++)
        if (id_set_has(ids, i) && logits[i] > -INFINITY)
            c[n++] = (struct candidate){0, logits[i], i};
    qsort(c, (size_t)n, sizeof *c, by_better);
    if (o->top_k > 0 && o->top_k < n)
        n = o->top_k;
    double total = 0, sum = 0;
    for (int32_t i = 0; i < n; i++)
        total += c[i].weight =
            exp(((double)c[i].logit - (double)c[0].logit) / (double)o->temperature);
    while (o->top_p < 1 && keep < n) {
        sum += c[keep++].weight;
        if (sum >= (double)o->top_p * total)
            break;
    }
    n = o->top_p < 1 ? keep : n;
    while (n > 1 && c[n - 1].weight < (double)o->min_p)
        n--;
    return n;
}

static struct candidate cand[MAX_VOCAB], sorted[MAX_VOCAB];
static float row[MAX_VOCAB];

TEST(filters_equal_sorting)
{
    struct rng r = {11};
    for (int trial = 0; trial < 3000; trial++) {
        int32_t n_vocab = trial % 50 == 0 ? MAX_VOCAB : 1 + (int32_t)rng_below(&r, 100);
        uint64_t bits[MAX_VOCAB / 64 + 1];
        for (size_t i = 0; i < sizeof bits / sizeof *bits; i++)
            bits[i] = rng_u64(&r) | rng_u64(&r) | (trial & 1 ? UINT64_MAX : 0);
        bits[0] |= 1;
        struct id_set ids;
        lathe_error err;
        CHECK_OK(id_set_init(&ids, n_vocab, bits, &err), &err);
        int grain = (int)rng_below(&r, 3); /* coarse values give ties */
        for (int32_t i = 0; i < n_vocab; i++) {
            double x = 3 * rng_normal(&r);
            row[i] = (float)(grain ? floor(x * grain) / grain : x);
            if (rng_below(&r, 10) == 0)
                row[i] = -INFINITY;
        }
        row[0] = 1;
        lathe_sampling o = plain;
        o.temperature = (float)(0.2 + 2 * rng_unit(&r));
        if (rng_below(&r, 2))
            o.top_k = 1 + (int32_t)rng_below(&r, (uint32_t)n_vocab + 10);
        if (rng_below(&r, 2))
            o.top_p = (float)rng_unit(&r);
        if (rng_below(&r, 3) == 0)
            o.min_p = (float)rng_unit(&r);
        int32_t want = filter_by_sorting(sorted, row, &ids, &o);
        int32_t n = o.top_k > 0 ? candidates_top_k(cand, row, &ids, o.top_k)
                                : candidates_all(cand, row, &ids);
        candidates_weigh(cand, n, (double)o.temperature);
        if (o.top_p < 1)
            n = candidates_top_p(cand, n, (double)o.top_p);
        n = candidates_min_p(cand, n, (double)o.min_p);
        CHECK_INT(n, want);
        qsort(cand, (size_t)n, sizeof *cand, by_id);
        qsort(sorted, (size_t)n, sizeof *sorted, by_id);
        for (int32_t i = 0; i < n; i++)
            CHECK_INT(cand[i].id, sorted[i].id);
        id_set_release(&ids);
    }
}

TEST(top_p_edges)
{
    static const float even[4] = {1, 1, 1, 1};
    struct id_set ids;
    lathe_error err;
    CHECK_OK(id_set_init(&ids, 4, NULL, &err), &err);
    static const struct {
        double p;
        int32_t keep;
    } rows[] = {{0, 1}, {0.25, 1}, {0.250001, 2}, {0.5, 2}, {0.75, 3}, {0.99, 4}, {1, 4}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        candidates_all(cand, even, &ids);
        candidates_weigh(cand, 4, 1);
        CHECK_INT(candidates_top_p(cand, 4, rows[i].p), rows[i].keep);
        qsort(cand, (size_t)rows[i].keep, sizeof *cand, by_id);
        for (int32_t k = 0; k < rows[i].keep; k++)
            CHECK_INT(cand[k].id, k);
    }
    id_set_release(&ids);
}

/* ---- Laws ---------------------------------------------------------------------------------- */

/* Frequencies of n draws at n positions against p[0..n_vocab): largest absolute difference. An id of
 * probability 0 that is drawn fails the test. */
static double law_error(const struct sampler_options *o, const float *logits, const double *p,
                        int32_t n_vocab, int32_t n)
{
    struct bench b = {0};
    bench_open(&b, n_vocab, o);
    int32_t *count = calloc((size_t)n_vocab, sizeof *count);
    for (int32_t i = 0; i < n; i++) {
        int32_t id = pick(&b, logits);
        if (p[id] == 0)
            FAIL("drew id %d, whose probability is 0", id);
        count[id]++;
        sampler_commit(b.s, &id, 1);
    }
    double worst = 0;
    for (int32_t i = 0; i < n_vocab; i++)
        worst = fmax(worst, fabs((double)count[i] / n - p[i]));
    free(count);
    bench_close(&b);
    return worst;
}

TEST(b89_sampler_distribution)
{
    static const float logits[5] = {2, 1, 0, -1, -20};
    static const struct {
        float temperature, top_p, min_p;
        int32_t top_k;
        double p[5];
    } rows[] = {
        {1, 1, 0, 0, {0.64391426, 0.23688282, 0.08714432, 0.0320586, 1e-10}},
        {0.5F, 1, 0, 0, {0.86495489, 0.11705891, 0.0158422, 0.00214401, 1e-20}},
        {1, 1, 0, 2, {0.73105858, 0.26894142}},
        {1, 0.85F, 0, 0, {0.73105858, 0.26894142}},
        {1, 1, 0.2F, 0, {0.73105858, 0.26894142}},
        {1, 1, 0, 1, {1}},
        {0, 1, 0, 0, {1}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lathe_sampling s = plain;
        s.temperature = rows[i].temperature;
        s.top_p = rows[i].top_p;
        s.min_p = rows[i].min_p;
        s.top_k = rows[i].top_k;
        double e =
            law_error(&(struct sampler_options){.sampling = &s}, logits, rows[i].p, 5, 200000);
        if (e > 0.005)
            FAIL("row %zu: a frequency is %g off", i, e);
    }
    static const float even[5] = {3, 3, 3, 3, 3};
    lathe_sampling greedy = plain;
    greedy.temperature = 0;
    struct bench b = {0};
    bench_open(&b, 5, &(struct sampler_options){.sampling = &greedy});
    CHECK_INT(pick(&b, even), 0);
    bench_close(&b);
}

TEST(law_of_all_stages_together)
{
    enum { N = 60 };
    struct rng r = {3};
    lathe_logit_bias bias[] = {{4, 2.5F}, {9, -100}, {13, -1}};
    for (int trial = 0; trial < 6; trial++) {
        for (int i = 0; i < N; i++)
            row[i] = (float)(2 * rng_normal(&r));
        lathe_sampling s = plain;
        s.temperature = (float)(0.5 + rng_unit(&r));
        s.top_k = trial % 2 ? 25 : 0;
        s.top_p = trial % 3 ? 0.9F : 1;
        s.min_p = trial % 3 == 1 ? 0.02F : 0;
        s.repetition_penalty = 1.3F;
        s.bias = bias;
        s.n_bias = 3;
        s.seed = trial;
        int32_t prompt[] = {1, 2, 3, 4, 5, 5};
        struct id_set ids;
        lathe_error err;
        CHECK_OK(id_set_init(&ids, N, NULL, &err), &err);
        /* Presence and frequency would move the law while tokens are committed; the positions are
         * reached by drafts instead, of one banned id whose counts touch nothing else. */
        float x[N];
        memcpy(x, row, sizeof x);
        for (int i = 0; i < 3; i++)
            x[bias[i].id] = bias[i].bias <= -100 ? -INFINITY : x[bias[i].id] + bias[i].bias;
        for (int i = 1; i <= 5; i++)
            x[i] = x[i] > 0 ? x[i] / 1.3F : x[i] * 1.3F;
        int32_t n = filter_by_sorting(sorted, x, &ids, &s);
        double p[N] = {0}, total = 0;
        for (int32_t i = 0; i < n; i++)
            total += sorted[i].weight;
        for (int32_t i = 0; i < n; i++)
            p[sorted[i].id] = sorted[i].weight / total;
        struct bench b = {0};
        bench_open(&b, N,
                   &(struct sampler_options){.sampling = &s, .prompt = prompt, .n_prompt = 6});
        int32_t count[N] = {0}, nine = 9;
        for (int32_t i = 0; i < 100000; i++) {
            count[pick(&b, row)]++;
            sampler_commit(b.s, &nine, 1);
        }
        for (int i = 0; i < N; i++)
            if ((p[i] == 0 && count[i]) || fabs(count[i] / 1e5 - p[i]) > 0.007)
                FAIL("trial %d, id %d: %g, expected %g", trial, i, count[i] / 1e5, p[i]);
        bench_close(&b);
        id_set_release(&ids);
    }
}

TEST(positions_are_independent)
{
    static const float logits[3] = {0.5F, 0, -0.5F};
    double z = exp(0.5) + 1 + exp(-0.5), p[3] = {exp(0.5) / z, 1 / z, exp(-0.5) / z};
    int32_t pair[3][3] = {{0}}, n = 100000;
    struct bench b = {0};
    bench_open(&b, 3, &(struct sampler_options){.sampling = &plain});
    int32_t last = pick(&b, logits);
    for (int32_t i = 0; i < n; i++) {
        sampler_commit(b.s, &last, 1);
        int32_t id = pick(&b, logits);
        pair[last][id]++;
        last = id;
    }
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++)
            CHECK(fabs((double)pair[i][j] / n - p[i] * p[j]) < 0.006);
    bench_close(&b);
}

/* ---- Penalties ----------------------------------------------------------------------------- */

struct b61 {
    float logit[4];
    float presence, frequency, repetition;
    int32_t prompt[3], n_prompt;
    int32_t n_new, id[6];
};
static const struct b61 b61_rows[] = {
    {{0, 5, 4.9F, 4}, 0, 0.3F, 1, {0}, 0, 6, {1, 2, 1, 2, 1, 2}},
    {{0, 5, 4.9F, 4}, 1.2F, 0, 1, {0}, 0, 4, {1, 2, 3, 1}},
    {{0, 5, 4.9F, -INFINITY}, 1, 0, 1, {1, 1, 1}, 3, 1, {1}},
    {{0, 5, 4.9F, -INFINITY}, 0, 0, 1.1F, {1}, 1, 1, {2}},
};

TEST(b61_penalties_per_token)
{
    for (size_t r = 0; r < sizeof b61_rows / sizeof *b61_rows; r++) {
        const struct b61 *c = &b61_rows[r];
        lathe_sampling s = plain;
        s.temperature = 0;
        s.presence_penalty = c->presence;
        s.frequency_penalty = c->frequency;
        s.repetition_penalty = c->repetition;
        struct sampler_options o = {.sampling = &s, .prompt = c->prompt, .n_prompt = c->n_prompt};
        float logit[4];
        memcpy(logit, c->logit, sizeof logit);
        logit[0] = -INFINITY;
        /* Drafts of 0..5 tokens, the target's own or wrong ones: the rows of a block are judged with
         * the drafts before them, and what is accepted is committed. */
        for (int32_t k = 0; k <= 5; k++)
            for (int wrong = 0; wrong < 2; wrong++) {
                struct bench b = {0};
                bench_open(&b, 4, &o);
                int32_t done = 0;
                while (done < c->n_new) {
                    int32_t draft[5], n_draft = 0, got[6], n = 0;
                    for (; n_draft < k && done + n_draft < c->n_new; n_draft++)
                        draft[n_draft] = wrong ? 3 : c->id[done + n_draft];
                    do {
                        lathe_error err;
                        CHECK_OK(sampler_pick(b.s, &b.scratch, logit, draft, n, &got[n], &err),
                                 &err);
                        n++;
                    } while (n <= n_draft && done + n < c->n_new && got[n - 1] == draft[n - 1]);
                    sampler_commit(b.s, got, n);
                    for (int32_t i = 0; i < n; i++)
                        CHECK_INT(got[i], c->id[done + i]);
                    done += n;
                }
                bench_close(&b);
            }
    }
}

/* What rounds of the device do with the history gives the choice itself. */
TEST(the_history_gives_the_choice)
{
    enum { N = 300, K = 5 };
    static float with[N];
    static int32_t seen[N], times[N];
    struct penalties p;
    const struct history h = {&p, seen, times};
    struct choice choice;
    struct rng r = {22};
    for (int trial = 0; trial < 200; trial++) {
        lathe_sampling s = plain;
        s.temperature = 0;
        s.presence_penalty = trial % 4 ? 1.5F : 0;
        s.frequency_penalty = trial % 4 > 1 ? -0.25F : 0;
        s.repetition_penalty = trial % 4 > 2 ? 1.2F : 1;
        int32_t prompt[20], history[10 + K], end = 5;
        for (int i = 0; i < 20; i++)
            prompt[i] = (int32_t)rng_below(&r, 30);
        for (int i = 0; i < 10 + K; i++)
            history[i] = (int32_t)rng_below(&r, 30);
        struct sampler_options o = {.sampling = &s,
                                    .prompt = prompt,
                                    .n_prompt = 20,
                                    .end_id = &end,
                                    .n_end = 1,
                                    .min_tokens = 4};
        struct bench b = {0};
        bench_open(&b, N, &o);
        CHECK_INT(sampler_choice(b.s, &choice), 0); /* the end is suppressed */
        sampler_commit(b.s, history, 10);
        CHECK_INT(sampler_choice(b.s, &choice), 1);
        sampler_history(b.s, &h);
        CHECK_INT(p.n_seen < 0, trial % 4 == 0);
        for (int32_t i = 0; i <= K; i++) {
            int32_t id;
            lathe_error err;
            for (int c = 0; c < N; c++)
                row[c] = (float)rng_normal(&r) + (c < 30);
            memcpy(with, row, sizeof with);
            resident_penalise(with, &h, history + 10, i);
            CHECK_OK(sampler_pick(b.s, &b.scratch, row, history + 10, i, &id, &err), &err);
            CHECK_INT(logits_argmax(with, &b.ids), id);
        }
        bench_close(&b);
    }
}

/* Of the best candidates, in any order, the choice is that of the row. */
TEST(candidates_give_the_choice)
{
    enum { N = 400 };
    struct rng r = {29};
    static const float ps[] = {1, 0.95F, 0.5F, 0.01F, 0};
    for (int trial = 0; trial < 3000; trial++) {
        lathe_sampling s = plain;
        s.temperature = trial % 5 ? 0.25F + 2 * (float)rng_unit(&r) : 0;
        s.top_k = 1 + (int32_t)rng_below(&r, 64);
        s.top_p = ps[rng_below(&r, 5)];
        s.min_p = trial % 3 ? 0 : (float)rng_unit(&r) / 4;
        s.seed = trial;
        struct sampler_options o = {.sampling = &s, .n_prompt = trial % 100, .prompt = NULL};
        struct bench b = {0};
        struct choice choice;
        struct candidate c[N];
        float value[CHOICE_MOST];
        int32_t id[CHOICE_MOST], n = s.top_k + (int32_t)rng_below(&r, 64), want;
        lathe_error err;
        bench_open(&b, N, &o);
        CHECK_INT(sampler_choice(b.s, &choice), s.temperature > 0 ? s.top_k : 1);
        for (int k = 0; k < N; k++) { /* many are equal */
            row[k] = (float)rng_below(&r, 9) - 4;
            c[k] = (struct candidate){0, row[k], k};
        }
        qsort(c, N, sizeof *c, by_better);
        for (int32_t k = 0; k < n; k++) {
            int32_t at = (k * 7 + trial) % n;
            at = n % 7 ? at : k;
            value[at] = c[k].logit;
            id[at] = c[k].id;
        }
        if (n < CHOICE_MOST) { /* what is no candidate */
            value[n] = trial % 2 ? NAN : 100;
            id[n] = trial % 2 ? 3 : -1;
            n++;
        }
        CHECK_OK(sampler_pick(b.s, &b.scratch, row, NULL, 0, &want, &err), &err);
        int32_t place = choice_of(&choice, value, id, n, sampler_position(b.s));
        CHECK(place >= 0);
        CHECK_INT(id[place], want);
        bench_close(&b);
    }
}

/* Without top-k and top-p it is made in one pass over the row. */
TEST(whole_rows_give_the_choice)
{
    enum { N = 3000 };
    struct rng r = {31};
    for (int trial = 0; trial < 300; trial++) {
        lathe_sampling s = plain;
        s.temperature = 0.25F + 2 * (float)rng_unit(&r);
        s.top_k = trial % 3 - 1 + (trial % 3 == 2 ? N : 0);
        s.min_p = trial % 4 ? 0 : (float)rng_unit(&r) / 4;
        s.seed = trial;
        struct sampler_options o = {.sampling = &s, .n_prompt = trial};
        struct bench b = {0};
        struct choice choice;
        int32_t want;
        float best = -INFINITY;
        lathe_error err;
        bench_open(&b, N, &o);
        CHECK_INT(sampler_choice(b.s, &choice), INT32_MAX);
        CHECK(CHOICE_IS_WHOLE(&choice));
        for (int k = 0; k < N; k++) {
            row[k] = rng_below(&r, 9) ? (float)rng_normal(&r) : -INFINITY;
            best = row[k] > best ? row[k] : best;
        }
        CHECK_OK(sampler_pick(b.s, &b.scratch, row, NULL, 0, &want, &err), &err);
        CHECK_INT(choice_of_row(&choice, row, id_set_pairs(&b.ids), b.ids.n_ranges, best,
                                sampler_position(b.s)),
                  want);
        bench_close(&b);
        s.top_p = 0.5F;
        bench_open(&b, N, &o);
        CHECK_INT(sampler_choice(b.s, &choice), 0);
        bench_close(&b);
    }
}

TEST(drafts_equal_history)
{
    enum { N = 300, K = 5 };
    struct rng r = {21};
    for (int trial = 0; trial < 200; trial++) {
        for (int i = 0; i < N; i++)
            row[i] = (float)rng_normal(&r);
        lathe_sampling s = plain;
        s.seed = (int64_t)rng_u64(&r);
        s.presence_penalty = 0.5F;
        s.frequency_penalty = 0.25F;
        s.repetition_penalty = trial % 2 ? 1.2F : 1;
        s.top_k = trial % 3 ? 40 : 0;
        int32_t prompt[20], history[10 + K], end = 5;
        for (int i = 0; i < 20; i++)
            prompt[i] = (int32_t)rng_below(&r, 30);
        for (int i = 0; i < 10 + K; i++)
            history[i] = (int32_t)rng_below(&r, 30); /* few ids: some repeat inside the drafts */
        struct sampler_options o = {.sampling = &s,
                                    .prompt = prompt,
                                    .n_prompt = 20,
                                    .end_id = &end,
                                    .n_end = 1,
                                    .min_tokens = 12};
        struct bench a = {0}, b = {0};
        bench_open(&a, N, &o);
        bench_open(&b, N, &o);
        sampler_commit(a.s, history, 10);
        sampler_commit(b.s, history, 10);
        int32_t first[K + 1];
        for (int pass = 0; pass < 2; pass++) /* the second shows that a pick leaves no trace */
            for (int32_t i = K; i >= 0; i--) {
                lathe_error err;
                int32_t id;
                CHECK_OK(sampler_pick(a.s, &a.scratch, row, history + 10, i, &id, &err), &err);
                if (pass == 0)
                    first[i] = id;
                CHECK_INT(id, first[i]);
            }
        for (int32_t i = 0; i <= K; i++) {
            CHECK_INT(sampler_position(b.s), 30 + i);
            CHECK_INT(pick(&b, row), first[i]);
            sampler_commit(b.s, &history[10 + (i < K ? i : 0)], 1);
        }
        bench_close(&a);
        bench_close(&b);
    }
}

TEST(penalties_never_mask_or_overflow)
{
    static const float logits[3] = {3.4e38F, -3.4e38F, -INFINITY};
    lathe_sampling s = plain;
    s.repetition_penalty = 1e-30F;
    s.presence_penalty = -2;
    int32_t ids[3] = {0, 1, 2};
    struct bench b = {0};
    bench_open(&b, 3, &(struct sampler_options){.sampling = &s, .prompt = ids, .n_prompt = 3});
    sampler_commit(b.s, ids, 3);
    CHECK_INT(pick(&b, logits), 0);
    bench_close(&b);
    s.repetition_penalty = 1e30F;
    bench_open(&b, 3, &(struct sampler_options){.sampling = &s, .prompt = ids + 1, .n_prompt = 2});
    static const float low[3] = {-INFINITY, -3.4e38F, -INFINITY};
    CHECK_INT(pick(&b, low), 1);
    bench_close(&b);
}

/* ---- Bias, bans, end tokens ----------------------------------------------------------------- */

TEST(bias_forces_and_bans)
{
    static const float logits[6] = {1, 9, 3, 2, -300, 0};
    static const struct {
        lathe_logit_bias bias[3];
        size_t n;
        int32_t greedy;
    } rows[] = {
        {{{2, 5.9F}}, 1, 1},
        {{{2, 6.1F}}, 1, 2},
        {{{1, -100}}, 1, 2},
        {{{1, -250}, {2, -100}}, 2, 3},
        {{{4, 100}}, 1, 4},            /* forced although another leads by more than 100 */
        {{{4, 1000}, {0, 100}}, 2, 0}, /* of several forced ones the best */
        {{{1, -60}, {1, -60}}, 2, 2},  /* entries add up */
        {{{4, 100}, {4, -100}}, 2, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int warm = 0; warm < 2; warm++) {
            lathe_sampling s = plain;
            s.temperature = warm ? 0.01F : 0;
            s.bias = rows[i].bias;
            s.n_bias = rows[i].n;
            struct bench b = {0};
            bench_open(&b, 6, &(struct sampler_options){.sampling = &s});
            int32_t id = pick(&b, logits);
            if (id != rows[i].greedy)
                FAIL("row %zu: id %d, expected %d", i, id, rows[i].greedy);
            bench_close(&b);
        }
}

TEST(end_tokens_wait_for_min_tokens)
{
    static const float logits[4] = {0, 1, 5, 9};
    lathe_sampling s = plain;
    s.temperature = 0;
    int32_t end[3] = {3, 77, -1}, ban = 2; /* ids outside the vocabulary suppress nothing */
    struct sampler_options o = {
        .sampling = &s, .end_id = end, .n_end = 3, .min_tokens = 3, .ban = &ban, .n_ban = 1};
    struct bench b = {0};
    bench_open(&b, 4, &o);
    int32_t draft[3] = {0, 0, 0}, id;
    lathe_error err;
    for (int32_t k = 0; k <= 3; k++) { /* by output index, drafts included */
        CHECK_OK(sampler_pick(b.s, &b.scratch, logits, draft, k, &id, &err), &err);
        CHECK_INT(id, k < 3 ? 1 : 3);
    }
    sampler_commit(b.s, draft, 2);
    CHECK_INT(pick(&b, logits), 1);
    sampler_commit(b.s, draft, 1);
    CHECK_INT(pick(&b, logits), 3);
    bench_close(&b);

    lathe_logit_bias force = {3, 100}; /* a suppressed id is not forced until it may come */
    s.bias = &force;
    s.n_bias = 1;
    bench_open(&b, 4, &o);
    CHECK_INT(pick(&b, logits), 1);
    bench_close(&b);
}

TEST(nothing_left_is_an_error)
{
    static const float logits[3] = {0, 1, 2};
    lathe_logit_bias bias[2] = {{0, -100}, {1, -100}};
    lathe_sampling s = plain;
    s.bias = bias;
    s.n_bias = 2;
    int32_t end = 2, id, prompt[4] = {0};
    lathe_error err;
    for (int warm = 0; warm < 2; warm++) {
        s.temperature = (float)warm;
        struct bench b = {0};
        bench_open(&b, 3,
                   &(struct sampler_options){.sampling = &s,
                                             .end_id = &end,
                                             .n_end = 1,
                                             .min_tokens = 1,
                                             .prompt = prompt,
                                             .n_prompt = 4});
        CHECK_ERR(
            sampler_pick(b.s, &b.scratch, logits, NULL, 0, &id, &err), &err, LATHE_E_ARGUMENT,
            "position 4: logit_bias, min_tokens and banned tokens leave none of the 3 tokens");
        bench_close(&b);
    }
}

/* ---- Seeds --------------------------------------------------------------------------------- */

TEST(seeds_repeat_and_differ)
{
    enum { N = 50, STEPS = 64 };
    struct rng r = {8};
    int32_t out[4][STEPS];
    static const int64_t seeds[4] = {1, 1, 2, INT64_C(1) << 32};
    float rows[STEPS][N];
    for (int t = 0; t < STEPS; t++)
        for (int i = 0; i < N; i++)
            rows[t][i] = (float)rng_normal(&r);
    for (int k = 0; k < 4; k++) {
        lathe_sampling s = plain;
        s.seed = seeds[k];
        struct bench b = {0};
        bench_open(&b, N, &(struct sampler_options){.sampling = &s});
        CHECK(sampler_seed(b.s) == seeds[k]);
        for (int t = 0; t < STEPS; t++) {
            out[k][t] = pick(&b, rows[t]);
            sampler_commit(b.s, &out[k][t], 1);
        }
        bench_close(&b);
    }
    CHECK(memcmp(out[0], out[1], sizeof out[0]) == 0);
    CHECK(memcmp(out[0], out[2], sizeof out[0]) != 0);
    CHECK(memcmp(out[0], out[3], sizeof out[0]) != 0);

    lathe_sampling s = plain;
    s.seed = -1;
    int64_t got[2];
    for (int k = 0; k < 2; k++) {
        struct bench b = {0};
        bench_open(&b, N, &(struct sampler_options){.sampling = &s});
        got[k] = sampler_seed(b.s);
        CHECK(got[k] >= 0);
        bench_close(&b);
    }
    CHECK(got[0] != got[1]);
}

TEST(filters_do_not_move_the_noise)
{
    /* A token that survives a filter and was chosen without it is chosen with it. */
    enum { N = 200 };
    struct rng r = {31};
    int kept = 0;
    for (int trial = 0; trial < 500; trial++) {
        for (int i = 0; i < N; i++)
            row[i] = (float)(2 * rng_normal(&r));
        lathe_sampling s = plain;
        s.seed = trial;
        struct bench a = {0}, b = {0};
        bench_open(&a, N, &(struct sampler_options){.sampling = &s});
        s.top_k = 20;
        bench_open(&b, N, &(struct sampler_options){.sampling = &s});
        int32_t free_id = pick(&a, row);
        int32_t n = candidates_top_k(cand, row, &b.ids, 20);
        for (int32_t i = 0; i < n; i++)
            if (cand[i].id == free_id) {
                kept++;
                CHECK_INT(pick(&b, row), free_id);
            }
        bench_close(&a);
        bench_close(&b);
    }
    CHECK(kept > 100);
}

/* ---- Refusals ------------------------------------------------------------------------------ */

TEST(non_finite_logits_are_named)
{
    lathe_error err;
    int32_t prompt[3] = {0}, id;
    uint64_t bits[4] = {UINT64_MAX, UINT64_MAX, UINT64_MAX, 0xFFFF}; /* 208 of 256 */
    struct id_set ids;
    CHECK_OK(id_set_init(&ids, 256, bits, &err), &err);
    struct sample_scratch w;
    CHECK_OK(sample_scratch_init(&w, 256, &err), &err);
    struct sampler *s;
    struct sampler_options o = {.sampling = &plain, .ids = &ids, .prompt = prompt, .n_prompt = 3};
    CHECK_OK(sampler_open(&s, &o, &err), &err);
    for (int32_t at = 0; at < 256; at++) {
        for (int32_t i = 0; i < 256; i++)
            row[i] = (float)i;
        row[at] = at % 2 ? NAN : INFINITY;
        lathe_status st = sampler_pick(s, &w, row, NULL, 0, &id, &err);
        if (at >= 208) { /* padding may hold anything */
            CHECK_INT(st, LATHE_OK);
            CHECK(id < 208);
            continue;
        }
        char want[100];
        snprintf(want, sizeof want, "logits for position 3: token %d is %s", at,
                 at % 2 ? "NaN" : "+infinity");
        CHECK_ERR(st, &err, LATHE_E_NUMERIC, want);
    }
    for (int32_t i = 0; i < 256; i++)
        row[i] = i < 208 ? -INFINITY : 1;
    CHECK_ERR(sampler_pick(s, &w, row, NULL, 0, &id, &err), &err, LATHE_E_NUMERIC,
              "logits for position 3: all 208 tokens");
    row[207] = -1e30F; /* one finite logit is a distribution */
    CHECK_OK(sampler_pick(s, &w, row, NULL, 0, &id, &err), &err);
    CHECK_INT(id, 207);
    sampler_close(s);
    sample_scratch_release(&w);
    id_set_release(&ids);
}

/* ---- The best of a row ----------------------------------------------------------------------- */

/* As op_top_k: NaN first, ids -1 where fewer than n are left. */
static struct logits_best best_of(const float *logits, const struct id_set *ids, int32_t n)
{
    static float value[SAMPLE_MAX_BEST];
    static int32_t id[SAMPLE_MAX_BEST];
    int32_t found = 0, at = 0;
    for (int32_t i = 0; i < ids->n_vocab; i++)
        if (id_set_has(ids, i) && logits[i] != -INFINITY)
            sorted[found++] = (struct candidate){0, isnan(logits[i]) ? INFINITY : logits[i], i};
    qsort(sorted, (size_t)found, sizeof *sorted, by_better);
    for (; at < n; at++) {
        id[at] = at < found ? sorted[at].id : -1;
        value[at] = at < found ? logits[sorted[at].id] : -INFINITY;
    }
    return (struct logits_best){n, value, id};
}

/* Options of all kinds, alone and together; *is_free: nothing but the filters. */
static void draw_sampling(struct rng *r, lathe_sampling *s, lathe_logit_bias *bias, bool *is_free)
{
    static const float temperatures[] = {0, 0, 0.3F, 1, 2.5F};
    *s = plain;
    s->seed = (int64_t)(rng_u64(r) >> 1);
    s->temperature = temperatures[rng_below(r, 5)];
    s->top_k = rng_below(r, 4) ? 1 + (int32_t)rng_below(r, 40) : 0;
    s->top_p = rng_below(r, 2) ? 1 : (float)rng_unit(r);
    s->min_p = rng_below(r, 3) ? 0 : (float)rng_unit(r) / 2;
    s->bias = bias;
    bool may_raise = rng_below(r, 6) == 0;
    if (rng_below(r, 3) == 0)
        s->presence_penalty = 1.5F - (float)may_raise * 3;
    if (rng_below(r, 3) == 0)
        s->frequency_penalty = 0.4F;
    if (rng_below(r, 3) == 0)
        s->repetition_penalty = may_raise ? 0.8F : 1.3F;
    for (size_t n = rng_below(r, 3) ? 0 : rng_below(r, 6); s->n_bias < n; s->n_bias++)
        bias[s->n_bias] =
            (lathe_logit_bias){(int32_t)rng_below(r, 40), may_raise ? (float)rng_below(r, 201) - 100
                                                                    : -(float)rng_below(r, 101)};
    *is_free = s->presence_penalty == 0 && s->frequency_penalty == 0 && s->repetition_penalty == 1;
}

/* Bit for bit the choice of the whole row; and where there is no penalty, always a choice. */
TEST(best_of_a_row_decide_as_the_row)
{
    struct rng r = {77};
    int32_t decided = 0, penalised = 0, whole = 0, refused = 0;
    for (int trial = 0; trial < 6000; trial++) {
        int32_t n_vocab = 2 + (int32_t)rng_below(&r, trial % 3 ? 900 : 60);
        uint64_t bits[MAX_VOCAB / 64 + 1];
        for (size_t i = 0; i < sizeof bits / sizeof *bits; i++)
            bits[i] = rng_u64(&r) | (trial & 1 ? UINT64_MAX : 0);
        bits[0] |= UINT64_MAX >> (n_vocab < 40 ? 64 - n_vocab : 24); /* what options name */
        struct bench b = {0};
        lathe_error err, whole_err;
        CHECK_OK(id_set_init(&b.ids, n_vocab, bits, &err), &err);
        CHECK_OK(sample_scratch_init(&b.scratch, n_vocab, &err), &err);
        int grain = (int)rng_below(&r, 3);
        for (int32_t i = 0; i < n_vocab; i++) {
            double x = 3 * rng_normal(&r) + (i < 40 ? 2 : 0);
            row[i] = (float)(grain ? floor(x * grain) / grain : x);
            if (rng_below(&r, 20) == 0)
                row[i] = rng_below(&r, 2) ? -INFINITY : -0.0F;
        }
        if (trial % 10 == 0)
            row[rng_below(&r, (uint32_t)n_vocab)] = rng_below(&r, 2) ? NAN : INFINITY;
        lathe_sampling s;
        lathe_logit_bias bias[6];
        int32_t prompt[8], history[12], end[2] = {1, 3}, ban[2] = {0, 7};
        bool is_free;
        draw_sampling(&r, &s, bias, &is_free);
        for (int i = 0; i < 8; i++)
            prompt[i] = (int32_t)rng_below(&r, 40);
        for (int i = 0; i < 12; i++)
            history[i] = (int32_t)rng_below(&r, 40);
        struct sampler_options o = {.sampling = &s, .ids = &b.ids, .prompt = prompt, .n_prompt = 8};
        if (rng_below(&r, 3) == 0)
            o.end_id = end, o.n_end = 2, o.min_tokens = 10;
        if (rng_below(&r, 3) == 0)
            o.ban = ban, o.n_ban = 2;
        for (size_t i = 0; i < s.n_bias; i++)
            bias[i].id %= n_vocab < 40 ? n_vocab : 40;
        CHECK_OK(sampler_open(&b.s, &o, &err), &err);
        sampler_commit(b.s, history, 7);
        int32_t n_best = sampler_best(b.s);
        CHECK(n_best >= 0 && n_best <= SAMPLE_MAX_BEST);
        bool may_fail = n_best == 0 && (trial % 4 != 3 || n_vocab >= SAMPLE_MAX_BEST);
        for (size_t i = 0; i < s.n_bias; i++)
            may_fail |= s.bias[i].bias >= 50; /* or two of them are 100 together */
        whole += n_best == 0;
        if (n_best == 0)
            n_best = 1 + (int32_t)rng_below(&r, 100); /* they decide where they are all there are */
        for (int32_t n_draft = 0; n_draft <= 4; n_draft += 2) {
            int32_t want = -1, got = -1;
            lathe_status st =
                sampler_pick(b.s, &b.scratch, row, history + 7, n_draft, &want, &whole_err);
            bool is_all = trial % 4 == 3 && n_vocab < SAMPLE_MAX_BEST;
            struct logits_best best = best_of(row, &b.ids, is_all ? n_vocab + 1 : n_best);
            bool is_decided = sampler_pick_best(b.s, &b.scratch, &best, history + 7, n_draft, &got);
            if (is_decided && (st || got != want))
                FAIL("trial %d, %d drafts: %d, of the whole row %d (%s)", trial, n_draft, got, want,
                     st ? whole_err.message : "a choice");
            if (!is_decided && !st && (is_free || is_all) && !may_fail)
                FAIL("trial %d, %d drafts: %d of the best did not decide", trial, n_draft, n_best);
            decided += is_decided;
            penalised += is_decided && !is_free;
            refused += !is_decided;
        }
        bench_close(&b);
    }
    CHECK(decided > 3000 && penalised > 1000 && whole > 500 && refused > 100);
}

/* Penalties that lower all of the best leave the choice to the whole row. */
TEST(best_that_are_all_lowered_do_not_decide)
{
    enum { N = 400 };
    lathe_sampling s = plain;
    s.temperature = 0;
    s.presence_penalty = 2;
    struct bench b = {0};
    bench_open(&b, N, &(struct sampler_options){.sampling = &s});
    int32_t seen[N], id;
    for (int32_t i = 0; i < N; i++) {
        row[i] = i < 200 ? 1 : 0;
        seen[i] = i;
    }
    struct logits_best best = best_of(row, &b.ids, sampler_best(b.s));
    CHECK(sampler_pick_best(b.s, &b.scratch, &best, NULL, 0, &id));
    CHECK_INT(id, 0);
    sampler_commit(b.s, seen, 100);
    CHECK(sampler_pick_best(b.s, &b.scratch, &best, NULL, 0, &id));
    CHECK_INT(id, 100);
    sampler_commit(b.s, seen + 100, 100);
    CHECK(!sampler_pick_best(b.s, &b.scratch, &best, NULL, 0, &id));
    CHECK_INT(pick(&b, row), 200);
    bench_close(&b);
}

TEST(ranges_are_checked)
{
    static const lathe_logit_bias good = {3, 5}, unknown = {4, 1}, broken = {3, NAN};
    struct id_set ids;
    lathe_error err;
    CHECK_OK(id_set_init(&ids, 4, NULL, &err), &err);
    CHECK_OK(sampling_check(&plain, &ids, &err), &err);
    lathe_sampling s = plain;
#define REFUSED(field, value, text)                                                                \
    do {                                                                                           \
        s = plain;                                                                                 \
        s.field = value;                                                                           \
        CHECK_ERR(sampling_check(&s, &ids, &err), &err, LATHE_E_ARGUMENT, text);                   \
    } while (0)
    REFUSED(temperature, -0.1F, "temperature is -0.1, expected 0 to 100");
    REFUSED(temperature, NAN, "temperature is nan");
    REFUSED(temperature, 101, "temperature is 101");
    REFUSED(top_k, -2, "top_k is -2, expected -1 or more");
    REFUSED(top_p, 1.5F, "top_p is 1.5, expected 0 to 1");
    REFUSED(top_p, -1, "top_p is -1");
    REFUSED(min_p, NAN, "min_p is nan");
    REFUSED(presence_penalty, 2.5F, "presence_penalty is 2.5, expected -2 to 2");
    REFUSED(frequency_penalty, -3, "frequency_penalty is -3");
    REFUSED(repetition_penalty, 0, "repetition_penalty is 0, expected more than 0");
    REFUSED(repetition_penalty, INFINITY, "repetition_penalty is inf");
    REFUSED(n_bias, 1025, "logit_bias has 1025 entries, expected 1024 at most");
    s = plain;
    s.n_bias = 1;
    s.bias = &good;
    CHECK_OK(sampling_check(&s, &ids, &err), &err);
    s.bias = &unknown;
    CHECK_ERR(sampling_check(&s, &ids, &err), &err, LATHE_E_ARGUMENT, "logit_bias names token 4");
    CHECK_OK(sampling_check(&s, NULL, &err), &err);
    s.bias = &broken;
    CHECK_ERR(sampling_check(&s, NULL, &err), &err, LATHE_E_ARGUMENT,
              "logit_bias of token 3 is nan");
    struct sampler *none;
    CHECK_ERR(sampler_open(&none, &(struct sampler_options){.sampling = &s, .ids = &ids}, &err),
              &err, LATHE_E_ARGUMENT, "logit_bias of token 3");
    CHECK(none == NULL);
    id_set_release(&ids);
}

/* ---- Ids and log-probabilities ------------------------------------------------------------- */

TEST(id_set_is_its_bitmap)
{
    struct rng r = {2};
    lathe_error err;
    for (int trial = 0; trial < 200; trial++) {
        int32_t n = 1 + (int32_t)rng_below(&r, 300), members = 0;
        uint64_t bits[5];
        for (int i = 0; i < 5; i++)
            bits[i] = rng_u64(&r) & rng_u64(&r);
        bits[0] |= 1;
        struct id_set ids;
        CHECK_OK(id_set_init(&ids, n, bits, &err), &err);
        for (int32_t i = -2; i < n + 2; i++) {
            bool want = i >= 0 && i < n && (bits[i / 64] >> (i % 64) & 1);
            CHECK(id_set_has(&ids, i) == want);
            members += want;
        }
        CHECK_INT(ids.n_ids, members);
        id_set_release(&ids);
    }
    struct id_set ids;
    uint64_t none = 0;
    CHECK_ERR(id_set_init(&ids, 64, &none, &err), &err, LATHE_E_FORMAT, "no token");
    id_set_release(&ids);
}

TEST(logprobs_are_a_log_softmax)
{
    enum { N = 3000 };
    struct rng r = {77};
    lathe_error err;
    uint64_t bits[N / 64 + 1];
    memset(bits, 0xFF, sizeof bits);
    bits[1] = 0; /* ids 64 to 127 are padding */
    struct id_set ids;
    CHECK_OK(id_set_init(&ids, N, bits, &err), &err);
    for (int i = 0; i < N; i++)
        row[i] = (float)(floor(20 * rng_normal(&r)) / 8); /* ties */
    row[100] = 1000;
    row[7] = -INFINITY;
    double sum = 0;
    for (int i = 0; i < N; i++)
        if (id_set_has(&ids, i))
            sum += exp((double)row[i]);
    struct id_set *set = &ids;
    int32_t want = 0;
    for (int32_t i = 0; i < N; i++)
        if (id_set_has(set, i) && row[i] > -INFINITY)
            sorted[want++] = (struct candidate){0, row[i], i};
    qsort(sorted, (size_t)want, sizeof *sorted, by_better);
    lathe_candidate top[20];
    int32_t n;
    float lp;
    logits_logprobs(row, set, 11, &lp, top, 20, &n);
    CHECK(fabs((double)lp - ((double)row[11] - log(sum))) < 1e-6);
    CHECK_INT(n, 20);
    for (int32_t i = 0; i < n; i++) {
        CHECK_INT(top[i].id, sorted[i].id);
        CHECK(fabs((double)top[i].logprob - ((double)sorted[i].logit - log(sum))) < 1e-6);
    }
    logits_logprobs(row, set, 100, &lp, NULL, 0, &n);
    CHECK(n == 0 && lp == -INFINITY);
    logits_logprobs(row, set, 7, &lp, top, 1, &n);
    CHECK(n == 1 && lp == -INFINITY && top[0].id == sorted[0].id);
    id_set_release(set);

    static const float pair[2] = {0, -INFINITY};
    CHECK_OK(id_set_init(&ids, 2, NULL, &err), &err);
    logits_logprobs(pair, set, 0, &lp, top, 5, &n);
    CHECK(n == 1 && lp == 0 && top[0].logprob == 0);
    id_set_release(set);
}

TEST(top_k_of_one_is_greedy)
{
    struct rng r = {9};
    for (int trial = 0; trial < 300; trial++) {
        int32_t n = 1 + (int32_t)rng_below(&r, 400);
        for (int32_t i = 0; i < n; i++)
            row[i] = (float)rng_below(&r, 5);
        lathe_sampling s = plain;
        struct bench a = {0}, b = {0}, c = {0};
        s.top_k = 1;
        bench_open(&a, n, &(struct sampler_options){.sampling = &s});
        s.top_k = 0;
        s.top_p = 0;
        bench_open(&b, n, &(struct sampler_options){.sampling = &s});
        s.top_p = 1;
        s.temperature = 0;
        bench_open(&c, n, &(struct sampler_options){.sampling = &s});
        int32_t best = 0;
        for (int32_t i = 1; i < n; i++)
            best = row[i] > row[best] ? i : best;
        CHECK_INT(pick(&a, row), best);
        CHECK_INT(pick(&b, row), best);
        CHECK_INT(pick(&c, row), best);
        bench_close(&a);
        bench_close(&b);
        bench_close(&c);
    }
}

/* ---- Memory -------------------------------------------------------------------------------- */

TEST(every_allocation_may_fail_and_a_pick_makes_none)
{
    lathe_logit_bias bias = {3, 1};
    lathe_sampling s = plain;
    s.presence_penalty = 1;
    s.repetition_penalty = 1.1F;
    s.top_p = 0.9F;
    s.min_p = 0.01F;
    s.bias = &bias;
    s.n_bias = 1;
    int32_t prompt[3] = {1, 2, 3}, end = 4, ban = 5, draft[2] = {6, 7};
    lathe_error err;
    size_t failures = 0;
    for (size_t nth = 1;; nth++) {
        struct id_set ids = {0};
        struct sample_scratch w = {0};
        struct sampler *sampler = NULL;
        fail_alloc_arm(nth);
        lathe_status st = id_set_init(&ids, 50, NULL, &err);
        if (!st)
            st = sample_scratch_init(&w, 50, &err);
        if (!st) {
            struct sampler_options o = {.sampling = &s,
                                        .ids = &ids,
                                        .prompt = prompt,
                                        .n_prompt = 3,
                                        .end_id = &end,
                                        .n_end = 1,
                                        .min_tokens = 9,
                                        .ban = &ban,
                                        .n_ban = 1};
            st = sampler_open(&sampler, &o, &err);
        }
        bool failed = fail_alloc_disarm();
        CHECK_INT(st, failed ? LATHE_E_MEMORY : LATHE_OK);
        if (!failed) {
            for (int i = 0; i < 50; i++)
                row[i] = (float)i / 10;
            int32_t id;
            float lp;
            lathe_candidate top[5];
            fail_alloc_arm(1);
            CHECK_OK(sampler_pick(sampler, &w, row, draft, 2, &id, &err), &err);
            sampler_commit(sampler, &id, 1);
            logits_logprobs(row, &ids, id, &lp, top, 5, &id);
            CHECK(!fail_alloc_disarm());
        }
        sampler_close(sampler);
        sample_scratch_release(&w);
        id_set_release(&ids);
        if (!failed)
            break;
        failures++;
    }
    CHECK(failures >= 8);
}

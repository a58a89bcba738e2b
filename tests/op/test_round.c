/* The operators of rounds that the device decides. */
#include "op_test.h"

#include <float.h>

enum { SLOT = 3, POS = 40, ANCHOR = 17, STOP = 7, VOCAB = 100 };

/* Of n_seen ids 2, 5, 8 ... that are there 0, 1, 2 ... times; -1: without penalties. */
static struct history history_of(int32_t n_seen)
{
    struct history h = {op_alloc(sizeof *h.p), op_alloc(VOCAB * sizeof *h.seen),
                        op_alloc(VOCAB * sizeof *h.times)};
    *h.p = (struct penalties){1.25F, 0.3F, 1.5F, n_seen};
    memset(h.times, 0, VOCAB * sizeof *h.times);
    for (int32_t i = 0; i < n_seen; i++) {
        h.seen[i] = 2 + 3 * i;
        h.times[2 + 3 * i] = 1 + i;
    }
    return h;
}

static void history_free(struct history *h)
{
    op_free(h->p);
    op_free(h->seen);
    op_free(h->times);
}

/* The history is that of n_seen, and n tokens more. */
static void check_history(const struct history *h, int32_t n_seen, const int32_t *token, int32_t n)
{
    struct history want = history_of(n_seen);
    for (int32_t i = 0; i < n && n_seen >= 0; i++) {
        if (want.times[token[i]] == 0) {
            want.times[token[i]] = 1;
            want.seen[want.p->n_seen++] = token[i];
        }
        want.times[token[i]]++;
    }
    CHECK(memcmp(h->p, want.p, sizeof *h->p) == 0);
    CHECK(memcmp(h->times, want.times, VOCAB * sizeof *h->times) == 0);
    for (int32_t i = 0; i < want.p->n_seen; i++)
        CHECK_INT(h->seen[i], want.seen[i]);
    history_free(&want);
}

/* A round of T rows, drafts 1, 2 ... T - 1, that gives `best`. n: rows that are kept of it if no more than `left` may be. */
static void check(struct op_env *e, int32_t T, const int32_t *best, const float *logit,
                  int32_t n_rounds, int32_t left, int32_t n)
{
    n = n < left ? n : left;
    struct resident *r = op_alloc(sizeof *r);
    struct round_report *report = op_alloc(ROUND_REPORTS * sizeof *report);
    const struct round_report *got = &report[n_rounds % ROUND_REPORTS];
    *r = resident_at(SLOT, POS, ANCHOR);
    r->block.n_rows = 5;
    for (int32_t i = 0; i <= RESIDENT_ROWS; i++) {
        r->rope_pos[i][1] += 10;
        r->rope_pos[i][2] += 20;
    }
    for (int32_t i = 0; i < RESIDENT_ROWS; i++) {
        r->token[i] = i ? i : ANCHOR;
        r->block_token[i] = i ? 90 + i : ANCHOR;
        r->best[i] = best[i];
        r->logit[i] = logit ? logit[i] : 1;
    }
    r->stop[0] = 99;
    r->stop[1] = STOP;
    r->n_stops = 2;
    r->n_rounds = n_rounds;
    CHECK_INT(r->left, INT32_MAX);
    r->left = left;
    memset(report, -1, ROUND_REPORTS * sizeof *report);
    int32_t n_seen = n_rounds % 2 ? -1 : n_rounds % 4 * 3;
    struct history h = history_of(n_seen);
    op_advance(&e->exec, r, T, &h, report);
    op_check_ok(e);
    check_history(&h, n_seen, best, n);
    history_free(&h);
    CHECK_INT(got->n, n);
    for (int32_t i = 0; i < n; i++)
        CHECK_INT(got->token[i], best[i]);
    CHECK_INT(report[(n_rounds + 1) % ROUND_REPORTS].n, -1);
    CHECK_INT(r->n_rounds, n_rounds + 1);
    CHECK_INT(r->left, left - (left < INT32_MAX ? n : 0));
    CHECK_INT(r->token[0], n ? best[n - 1] : ANCHOR);
    CHECK_INT(r->block_token[0], r->token[0]);
    const struct batch_seq want[] = {
        {SLOT, 0, 5, POS + n}, {SLOT, 0, n, POS}, {SLOT, 0, n, POS - 1}};
    const struct batch_seq *const seq[] = {&r->block, &r->keep, &r->behind};
    for (int i = 0; i < 3; i++)
        CHECK(memcmp(seq[i], &want[i], sizeof want[i]) == 0);
    for (int32_t i = 0; i <= RESIDENT_ROWS; i++) {
        int32_t at = POS - 1 + i;
        struct batch_seq one = {SLOT, 0, 1, at + n}, all = {SLOT, 0, i, POS + n};
        CHECK(memcmp(&r->one[i], &one, sizeof one) == 0);
        CHECK(memcmp(&r->seq[i], &all, sizeof all) == 0);
        CHECK_INT(r->slot[i], SLOT);
        CHECK_INT(r->pos[i], at + n);
        CHECK_INT(r->kept_pos[i], at);
        for (int32_t axis = 0; axis < 3; axis++) {
            CHECK_INT(r->rope_pos[i][axis], at + 10 * axis + n);
            if (n)
                CHECK_INT(r->kept_rope_pos[i][axis], at + 10 * axis);
        }
    }
    for (int32_t i = 0; i < RESIDENT_ROWS && n; i++) {
        CHECK_INT(r->kept_token[i], i ? i : ANCHOR);
        if (i)
            CHECK_INT(r->block_token[i], 90 + i);
    }
    op_free(r);
    op_free(report);
}

static void check_all(struct op_env *e)
{
    op_case("%s", e->name);
    for (int32_t T = 1; T <= RESIDENT_ROWS; T++)
        for (int32_t n = 1; n <= T; n++) { /* the first draft that is not taken */
            int32_t best[RESIDENT_ROWS];
            float logit[RESIDENT_ROWS];
            for (int32_t i = 0; i < RESIDENT_ROWS; i++) {
                best[i] = i + 1 == n ? 50 : i + 1;
                logit[i] = i % 2 ? -FLT_MAX : FLT_MAX;
            }
            check(e, T, best, logit, n, INT32_MAX, n > STOP ? STOP : n);
            for (int32_t left = 0; left <= T; left += 3)
                check(e, T, best, logit, n, left, n > STOP ? STOP : n);
            for (int k = 0; k < 4; k++) { /* or a row that is not decided */
                static const float not_finite[] = {NAN, -NAN, INFINITY};
                logit[n - 1] = k < 3 ? not_finite[k] : 1;
                best[n - 1] = k < 3 ? n : -1;
                check(e, T, best, logit, k, INT32_MAX, n > STOP ? STOP : n - 1);
            }
            for (int32_t i = 0; i < RESIDENT_ROWS; i++)
                best[i] = 3; /* the same again and again, drafted but once */
            check(e, T, best, NULL, 2, INT32_MAX, 1);
        }
    op_done();
}

TEST(advance_rounds)
{
    int n;
    struct op_env *env = op_envs(&n);
    check_all(op_ref());
    for (int i = 0; i < n; i++)
        check_all(&env[i]);
}

/* ---- Penalties ---------------------------------------------------------------------------------- */

TEST(penalise_rows)
{
    int n_envs;
    struct op_env *env = op_envs(&n_envs);
    struct rng rng = {5};
    for (int32_t n_seen = -1; n_seen <= 30; n_seen += n_seen < 1 ? 1 : 29)
        for (int32_t T = 1; T <= RESIDENT_ROWS; T += 3)
            for (int i = -1; i < n_envs; i++) {
                struct op_env *e = i < 0 ? op_ref() : &env[i];
                struct tensor x = op_tensor(DT_F32, T, VOCAB, 3), was;
                struct resident *r = op_alloc(sizeof *r);
                struct history h = history_of(n_seen);
                op_case("%d rows, %d ids: %s", T, n_seen, e->name);
                op_fill_normal(&x, &rng, 0, 3);
                op_put(&x, T - 1, 5, NAN);
                op_put(&x, T - 1, 8, INFINITY);
                op_put(&x, T - 1, 11, -INFINITY);
                op_put(&x, 0, 14, -FLT_MAX);
                was = op_copy(&x, DT_F32);
                *r = resident_at(0, 0, ANCHOR);
                for (int32_t k = 1; k < RESIDENT_ROWS; k++)
                    r->token[k] = k < 5 ? 8 : k < 9 ? 9 : 40 + k;
                int32_t first = RESIDENT_ROWS - T < 2 ? RESIDENT_ROWS - T : 2;
                op_penalise(&e->exec, x, first, r, &h);
                op_check_ok(e);
                for (int32_t t = 0; t < T; t++)
                    for (int32_t id = 0; id < VOCAB; id++) {
                        int32_t count = h.times[id] > 0 ? h.times[id] - 1 : 0;
                        for (int32_t k = 1; k <= first + t; k++)
                            count += r->token[k] == id;
                        float logit = ((const float *)tensor_at(&was, t))[id], want = logit;
                        if (n_seen >= 0 && isfinite(logit) && (count > 0 || h.times[id] > 0))
                            want = logit > 0 ? logit / 1.25F : logit * 1.25F;
                        float sum = 0.3F * (float)count;
                        if (want != logit && count > 0)
                            want -= sum + 1.5F;
                        want = want < -FLT_MAX && isfinite(logit) ? -FLT_MAX : want;
                        float got = ((const float *)tensor_at(&x, t))[id];
                        if (memcmp(&got, &want, sizeof got) != 0)
                            OP_FAIL("row %d, id %d: %g, expected %g", t, id, (double)got,
                                    (double)want);
                    }
                history_free(&h);
                op_free(r);
                op_done();
            }
}

/* ---- Walks -------------------------------------------------------------------------------------- */
/* Few distinct scores, so that many are equal, some of them not finite, and ids that are missing. */
static void fill(const struct tensor *id, const struct tensor *score, struct rng *r, bool none)
{
    for (int64_t i = 0; i < id->dim[0]; i++) {
        int32_t *row = tensor_at(id, i);
        for (int64_t c = 0; c < id->dim[1]; c++)
            row[c] = rng_below(r, 8) ? (int32_t)((i * 5 + c * 7 + 3) % VOCAB) : -1;
        for (int64_t c = 0; c < score->dim[1]; c++) {
            uint32_t u = rng_below(r, 20);
            op_put(score, i, c,
                   none && i == id->dim[0] / 2 ? -INFINITY
                   : u == 0                    ? NAN
                   : u == 1                    ? INFINITY
                   : u == 2                    ? -INFINITY
                                               : (double)rng_below(r, 5) - 2);
        }
    }
}

/* The path as its definition says, from the tokens themselves. */
static void want_of(const struct tensor *id, const struct tensor *score, const struct resident *r,
                    const struct history *h, int32_t *token)
{
    int64_t k = id->dim[1];
    memset(token, 0, (size_t)id->dim[0] * sizeof *token);
    for (int64_t i = 0; i < id->dim[0]; i++) {
        const int32_t *row = tensor_at(id, i);
        int64_t p = 0;
        float logit[CHOICE_MOST];
        while (i > 0 && ((const int32_t *)tensor_at(id, i - 1))[p] != token[i - 1])
            p++;
        for (int64_t c = 0; c < k; c++) {
            float x = (float)op_at(score, i, p * k + c);
            int32_t count = row[c] >= 0 && h->times[row[c]] > 0 ? h->times[row[c]] - 1 : 0;
            for (int64_t j = 0; j < i; j++)
                count += token[j] == row[c];
            if (row[c] >= 0 && h->p->n_seen >= 0 && (count > 0 || h->times[row[c]] > 0))
                x = penalised(h->p, x, count);
            logit[c] = x;
        }
        int32_t best = choice_of(&r->choice, logit, row, (int32_t)k, POS + 1 + (int32_t)i);
        if (best < 0)
            return;
        token[i] = row[best];
    }
}

/* Greedy, and with filters that leave many or few. */
static const struct choice choices[] = {
    {0}, {1, 1, 0, 5, 90}, {0.75, 0.875, 0.0625, ~(uint64_t)0, 12}, {3, 0.5, 0, 6, 40}};
enum { N_CHOICES = sizeof choices / sizeof choices[0] };

static struct resident *resident_of(const struct choice *c)
{
    struct resident *r = op_alloc(sizeof *r);
    *r = resident_at(SLOT, POS, ANCHOR);
    r->choice = *c;
    return r;
}

static void check_walk(int64_t n, int64_t k, bool none, int32_t n_seen, const struct choice *choice)
{
    struct rng r = {(uint64_t)(n * 31 + k)};
    int n_envs;
    struct op_env *env = op_envs(&n_envs);
    struct tensor id = op_tensor(DT_F32, n, k, 1), score = op_tensor(DT_F32, n, k * k, 2);
    int32_t want[RESIDENT_ROWS] = {0};
    struct history h = history_of(n_seen);
    struct resident *resident = resident_of(choice);
    id.dtype = DT_I32;
    fill(&id, &score, &r, none);
    want_of(&id, &score, resident, &h, want);
    op_case("%lld steps of %lld, temperature %g", (long long)n, (long long)k, choice->temperature);
    for (int i = -1; i < n_envs; i++) {
        struct op_env *e = i < 0 ? op_ref() : &env[i];
        struct tensor token = op_vector(DT_F32, n);
        token.dtype = DT_I32;
        op_walk(&e->exec, token, id, score, resident, &h);
        op_check_ok(e);
        for (int64_t s = 0; s < n; s++)
            if (((const int32_t *)token.data)[s] != want[s])
                OP_FAIL("%s: step %lld: %d, expected %d", e->name, (long long)s,
                        ((const int32_t *)token.data)[s], want[s]);
    }
    history_free(&h);
    op_free(resident);
    op_done();
}

TEST(walk_paths)
{
    static const int64_t ks[] = {1, 2, 16, 31, 32, 33, 90};
    for (size_t i = 0; i < sizeof ks / sizeof *ks; i++)
        for (int64_t n = 1; n < 16; n += 2) {
            for (size_t c = 0; c < N_CHOICES; c++) {
                check_walk(n, ks[i], false, -1, &choices[c]);
                check_walk(n, ks[i], true, 0, &choices[c]);
                check_walk(n, ks[i], false, 20, &choices[c]);
            }
        }
}

/* ---- Choices ------------------------------------------------------------------------------------ */

/* What op_top_k makes of rows of n logits; then the choice, of the best k or of all ids of two ranges. */
static void check_choose(int64_t T, int64_t k, int64_t n, int32_t first,
                         const struct choice *choice)
{
    struct rng r = {(uint64_t)(T * 131 + k)};
    int n_envs;
    struct op_env *env = op_envs(&n_envs);
    const int32_t range[2][2] = {{0, (int32_t)n / 3}, {(int32_t)n / 3 + 2, (int32_t)n - 1}};
    struct tensor id = op_tensor(DT_F32, T, k, 1), value = op_tensor(DT_F32, T, k, 2);
    struct tensor logits = op_tensor(DT_F32, T, n, 3);
    struct resident *resident = resident_of(choice);
    int32_t want[RESIDENT_ROWS];
    id.dtype = DT_I32;
    for (int64_t t = 0; t < T; t++) {
        static const float odd[] = {NAN, INFINITY, -INFINITY};
        for (int64_t c = 0; c < n; c++)
            op_put(&logits, t, c,
                   t % 7 == 5   ? -INFINITY
                   : t % 3 == 2 ? rng_below(&r, 4)
                                : 3 * rng_normal(&r));
        if (t % 5 == 3)
            op_put(&logits, t, n / 4, odd[t / 5]);
    }
    op_top_k(&op_ref()->exec, value, id, logits, range, 2);
    op_check_ok(op_ref());
    for (int64_t t = 0; t < T; t++) {
        const float *x = tensor_at(&value, t);
        const int32_t *of = tensor_at(&id, t);
        int32_t position = POS + 1 + first + (int32_t)t, place = -1;
        if (x[0] <= FLT_MAX)
            place = choice_of(choice, x, of, (int32_t)k, position);
        want[t] = place < 0 ? -5
                  : k > 1 && CHOICE_IS_WHOLE(choice)
                      ? choice_of_row(choice, tensor_at(&logits, t), range, 2, x[0], position)
                      : of[place];
    }
    op_case("%lld rows of %lld of %lld, temperature %g, top-k %d", (long long)T, (long long)k,
            (long long)n, choice->temperature, choice->top_k);
    for (int i = -1; i < n_envs; i++) {
        struct op_env *e = i < 0 ? op_ref() : &env[i];
        struct tensor token = op_vector(DT_F32, T);
        token.dtype = DT_I32;
        op_choose(&e->exec, token, value, id, logits, range, 2, first, -5, resident);
        op_check_ok(e);
        for (int64_t t = 0; t < T; t++)
            if (((const int32_t *)token.data)[t] != want[t])
                OP_FAIL("%s: row %lld: %d, expected %d", e->name, (long long)t,
                        ((const int32_t *)token.data)[t], want[t]);
    }
    op_free(resident);
    op_done();
}

TEST(choose_rows)
{
    static const int64_t ks[] = {1, 2, 31, 32, 33, 64, CHOICE_MOST};
    static const struct choice whole[] = {{1, 1, 0, 8, 0}, {0.5, 1, 0.01, 9, -1}};
    for (size_t i = 0; i < sizeof ks / sizeof *ks; i++)
        for (int64_t T = 1; T <= RESIDENT_ROWS; T += 5)
            for (int32_t first = 0; first + T <= RESIDENT_ROWS && first < 4; first++)
                for (size_t c = 0; c < N_CHOICES; c++)
                    check_choose(T, ks[i], 2 * CHOICE_MOST, first, &choices[c]);
    for (size_t c = 0; c < 2; c++)
        for (int64_t n = CHOOSE_COLUMNS - 1; n < 4 * CHOOSE_COLUMNS; n += CHOOSE_COLUMNS + 1)
            for (int64_t T = 1; T <= RESIDENT_ROWS; T += 5)
                check_choose(T, 64, n, 0, &whole[c]);
}

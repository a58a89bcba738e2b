/* A model that drafts and n-gram lookup together, and the memory of both: opened under failing allocations,
 * and rounds that allocate nothing. */
#include "drafter_bench.h"
#include "fail_alloc.h"
#include "make_model.h"
#include "spec/ngram.h"
#include "test.h"

static const struct drafter_ops *const ops = &drafter_mtp_ngram;

static void small_bench(struct bench *b, const char *name, const struct drafter_ops *o,
                        int32_t n_slots)
{
    struct model_spec s;
    model_spec_init(&s);
    s.has_mtp = true;
    make_model(test_tmp(name), &s);
    struct rig_options r = {.dir = test_tmp(name),
                            .act = DT_BF16,
                            .kv = DT_BF16,
                            .n_threads = 1,
                            .n_slots = n_slots,
                            .n_ctx = 256};
    bench_open(b, o, &r);
}

/* 120 different tokens, then a copy of the first `copied`. */
static void make_tokens(int32_t *token, int32_t n, int32_t copied)
{
    for (int32_t i = 0; i < n; i++)
        token[i] = i < 120 ? 10 + i : i < 120 + copied ? token[i - 120] : 300 + i;
}

TEST(lookup_where_it_copies)
{
    struct bench b;
    struct drafter *alone;
    lathe_error err;
    small_bench(&b, "choice", ops, 1);
    CHECK_OK(drafter_open(&drafter_mtp, &alone, &b.o, &b.r.memory, &err), &err);
    int32_t token[256];
    for (int32_t copied = 0; copied <= 20; copied++) {
        int32_t n = 120 + copied;
        make_tokens(token, 256, copied);
        bench_reset(&b, 0);
        drafter_mtp.rewind(alone, 0, 0);
        bench_feed(&b, 0, token, 0, n - 1);
        struct committed c = {
            .n = n - 1, .token = token, .hidden = tensor_rows(b.r.step.hidden, 0, n - 1)};
        CHECK_OK(drafter_mtp.committed(alone, &c, &err), &err);
        struct draft_request got = bench_propose(&b, 0, &bench_greedy, token, n, SPEC_MAX_DRAFT);
        if (copied >= NGRAM_STRONG) {
            CHECK_INT(got.source, DRAFT_LOOKUP);
            CHECK_INT(got.n, SPEC_MAX_DRAFT);
            for (int32_t i = 0; i < got.n; i++)
                CHECK_INT(got.draft[i], token[copied + i]);
            continue;
        }
        struct draft_request want = {.pos = n - 1,
                                     .anchor = token[n - 1],
                                     .most = 3,
                                     .history = token,
                                     .sampler = bench_sampler(&b, &bench_greedy, token, n)};
        CHECK_OK(drafter_mtp.propose(alone, &want, 1, &err), &err);
        CHECK_INT(got.source, DRAFT_MODEL);
        check_same_drafts(&got, &want);
        sampler_close(want.sampler);
    }
    drafter_mtp.close(alone);
    bench_close(&b);
}

/* Each part keeps to its own limit, and to the one of both; a negative one turns it off. */
TEST(limits_of_the_parts)
{
    static const struct {
        int32_t copied, most, model, lookup; /* given */
        enum draft_source source;
        int32_t n;
    } rows[] = {
        {0, 15, 0, 0, DRAFT_MODEL, 3},     {0, 15, 5, 0, DRAFT_MODEL, 5},
        {0, 15, 20, 0, DRAFT_MODEL, 8},    {0, 2, 5, 0, DRAFT_MODEL, 2},
        {20, 15, 5, 0, DRAFT_LOOKUP, 15},  {20, 15, 5, 4, DRAFT_LOOKUP, 4},
        {20, 2, 0, 4, DRAFT_LOOKUP, 2},    {20, 15, 4, -1, DRAFT_MODEL, 4},
        {20, 15, -1, 0, DRAFT_LOOKUP, 15}, {0, 15, -1, 0, DRAFT_LOOKUP, 0},
        {5, 15, -1, 0, DRAFT_LOOKUP, 5},
    };
    struct bench b;
    small_bench(&b, "limits", ops, 1);
    int32_t token[256];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lathe_error err;
        int32_t n = 120 + rows[i].copied;
        make_tokens(token, 256, rows[i].copied);
        bench_reset(&b, 0);
        bench_feed(&b, 0, token, 0, n - 1);
        struct draft_request r = {.pos = n - 1,
                                  .anchor = token[n - 1],
                                  .most = rows[i].most,
                                  .most_from = {rows[i].model, rows[i].lookup},
                                  .history = token,
                                  .sampler = bench_sampler(&b, &bench_greedy, token, n)};
        CHECK_OK(ops->propose(b.d, &r, 1, &err), &err);
        sampler_close(r.sampler);
        if (r.n != rows[i].n || (r.n > 0 && r.source != rows[i].source))
            FAIL("row %zu: %d drafts of source %d", i, r.n, (int)r.source);
    }
    struct drafter_info info;
    ops->info(b.d, &info);
    CHECK_INT(info.max_draft, SPEC_MAX_DRAFT);
    CHECK_INT(info.max_from[DRAFT_MODEL], 8);
    CHECK_INT(info.max_from[DRAFT_LOOKUP], SPEC_MAX_DRAFT);
    CHECK(info.has_law);
    bench_close(&b);
}

/* Where the model has nothing to say even a weak match is better; its law is certainty. */
TEST(a_weak_match_is_better_than_nothing)
{
    struct bench b;
    lathe_error err;
    small_bench(&b, "weak", ops, 1);
    int32_t token[256], n = 125;
    make_tokens(token, 256, 5);
    bench_feed(&b, 0, token, 0, 160);
    ops->rewind(b.d, 0, n - 1); /* further than the head can follow */
    struct candidate *q = calloc(8 * (size_t)b.r.model.dims.vocab, sizeof *q);
    struct draft_law law[8];
    for (int i = 0; i < 8; i++)
        law[i] = (struct draft_law){9, q + (size_t)i * (size_t)b.r.model.dims.vocab};
    lathe_sampling s = bench_greedy;
    s.temperature = 1;
    struct draft_request r = {.pos = n - 1,
                              .anchor = token[n - 1],
                              .most = 8,
                              .history = token,
                              .law = law,
                              .sampler = bench_sampler(&b, &s, token, n)};
    CHECK_OK(ops->propose(b.d, &r, 1, &err), &err);
    CHECK_INT(r.source, DRAFT_LOOKUP);
    CHECK_INT(r.n, 5);
    for (int32_t i = 0; i < r.n; i++)
        CHECK(r.draft[i] == token[5 + i] && law[i].n == 1 && law[i].q[0].id == r.draft[i] &&
              law[i].q[0].weight == 1);
    sampler_close(r.sampler);
    free(q);
    bench_close(&b);
}

TEST(contexts_of_both)
{
    struct bench b;
    lathe_error err;
    small_bench(&b, "contexts", ops, 2);
    int32_t token[256], other[256];
    make_tokens(token, 256, 40);
    memcpy(other, token, sizeof token);
    random_tokens(other + 140, 10, 300, 1);
    bench_feed(&b, 0, token, 0, 145);
    bench_feed(&b, 1, other, 0, 140);
    bench_feed(&b, 1, other, 140, 10);
    ops->rewind(b.d, 1, 140);
    rig_run(&b.r, PHASE_PREFILL, 0, 145, token + 145, 1); /* so that slot 0 goes on, too */
    bench_tell(&b, 0, token, 145, 1, 0);
    rig_reset(&b.r, 1);
    rig_run(&b.r, PHASE_PREFILL, 1, 0, token, 146);
    bench_tell(&b, 1, token, 140, 6, 140);
    struct buf x = bench_save(&b, 0), y = bench_save(&b, 1);
    check_same_bytes(&x, &y);
    ops->rewind(b.d, 1, 0);
    CHECK_OK(ops->load(b.d, 1, x.data, x.len, &err), &err);
    struct draft_request p = bench_propose(&b, 0, &bench_greedy, token, 147, 15),
                         q = bench_propose(&b, 1, &bench_greedy, token, 147, 15);
    CHECK_INT(p.source, DRAFT_LOOKUP);
    check_same_drafts(&p, &q);
    token[146] = other[146] = 77; /* and what the model says */
    p = bench_propose(&b, 0, &bench_greedy, token, 147, 15);
    q = bench_propose(&b, 1, &bench_greedy, token, 147, 15);
    CHECK(p.source == DRAFT_MODEL && q.source == DRAFT_MODEL);
    check_same_drafts(&p, &q);
    for (size_t n = 0; n < x.len; n += n < 20 ? 1 : 1009)
        if (ops->load(b.d, 1, x.data, n, &err) == LATHE_OK)
            FAIL("a context of %zu of %zu bytes was loaded", n, x.len);
    /* Nor can a context go on that is not as long as the sequence. */
    ops->rewind(b.d, 1, 0);
    struct committed c = {
        .slot = 1, .pos = 5, .n = 1, .token = token, .hidden = tensor_rows(b.r.step.hidden, 0, 1)};
    CHECK_ERR(ops->committed(b.d, &c, &err), &err, LATHE_E_ARGUMENT, "position 5");
    buf_release(&x);
    buf_release(&y);
    bench_close(&b);
}

/* One call for a slot that copies and one that does not. */
TEST(slots_choose_apart)
{
    struct bench b;
    lathe_error err;
    small_bench(&b, "apart", ops, 2);
    int32_t token[2][256];
    make_tokens(token[0], 256, 20);
    make_tokens(token[1], 256, 0);
    struct draft_request r[2], want[2];
    for (int32_t i = 0; i < 2; i++) {
        bench_feed(&b, i, token[i], 0, 139);
        want[i] = bench_propose(&b, i, &bench_greedy, token[i], 140, 15);
    }
    for (int32_t i = 0; i < 2; i++) {
        r[i] = want[1 - i];
        r[i].n = 0;
        r[i].sampler = bench_sampler(&b, &bench_greedy, token[1 - i], 140);
    }
    CHECK_OK(ops->propose(b.d, r, 2, &err), &err);
    for (int32_t i = 0; i < 2; i++) {
        check_same_drafts(&r[i], &want[1 - i]);
        CHECK_INT(r[i].source, i ? DRAFT_LOOKUP : DRAFT_MODEL);
        sampler_close(r[i].sampler);
    }
    bench_close(&b);
}

TEST(opening_may_run_out_of_memory)
{
    static const struct drafter_ops *const all[] = {&drafter_ngram, &drafter_mtp,
                                                    &drafter_mtp_ngram};
    struct bench b;
    lathe_error err;
    small_bench(&b, "memory", ops, 1);
    for (int i = 0; i < 3; i++) {
        size_t nth = 1;
        for (;; nth++) {
            struct drafter *d;
            struct memory m;
            memory_loose(&m, b.o.backend, b.o.stream);
            fail_alloc_arm(nth);
            lathe_status st = drafter_open(all[i], &d, &b.o, &m, &err);
            bool failed = fail_alloc_disarm();
            CHECK_INT(st, failed ? LATHE_E_MEMORY : LATHE_OK);
            CHECK(failed == (d == NULL));
            all[i]->close(d);
            memory_close(&m);
            if (!failed)
                break;
        }
        CHECK(nth > 2);
    }
    bench_close(&b);
}

TEST(a_round_allocates_nothing)
{
    struct bench b;
    small_bench(&b, "rounds", ops, 1);
    int32_t token[256];
    lathe_error err;
    make_tokens(token, 256, 60);
    struct candidate *q = calloc(15 * (size_t)b.r.model.dims.vocab, sizeof *q);
    struct draft_law law[15];
    for (int i = 0; i < 15; i++)
        law[i] = (struct draft_law){0, q + (size_t)i * (size_t)b.r.model.dims.vocab};
    lathe_sampling s = {.temperature = 1, .top_p = 0.9F, .repetition_penalty = 1.1F};
    struct sampler *sampler = bench_sampler(&b, &s, token, 1);
    int32_t from[DRAFT_SOURCES] = {0};
    fail_alloc_arm(1);
    for (int32_t pos = 0, n; pos < 200; pos += n) {
        n = pos == 0 ? 50 : 1 + pos % 5;
        bench_feed(&b, 0, token, pos, n);
        struct draft_request r = {.pos = pos + n,
                                  .anchor = token[pos + n],
                                  .most = 15,
                                  .history = token,
                                  .law = law,
                                  .sampler = sampler};
        CHECK_OK(ops->propose(b.d, &r, 1, &err), &err);
        from[r.source] += r.n > 0;
    }
    CHECK(!fail_alloc_disarm());
    CHECK(from[DRAFT_MODEL] > 0 && from[DRAFT_LOOKUP] > 0);
    sampler_close(sampler);
    free(q);
    bench_close(&b);
}

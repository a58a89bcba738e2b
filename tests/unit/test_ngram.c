#include "base/buf.h"
#include "spec/ngram.h"
#include "test.h"

enum { VOCAB = 1000, N_CTX = 4096, N_SLOTS = 2 };

static const struct drafter_ops *ops = &drafter_ngram;

static struct drafter *open_drafter(const struct id_set *ids)
{
    lathe_error err;
    struct drafter *d;
    struct memory memory; /* lookup takes the host's only */
    struct drafter_options o = {.ids = ids, .n_slots = N_SLOTS, .n_ctx = N_CTX, .max_rows = N_CTX};
    memory_loose(&memory, NULL, NULL);
    CHECK_OK(drafter_open(ops, &d, &o, &memory, &err), &err);
    CHECK_INT(memory.host >= N_SLOTS * N_CTX * sizeof(int32_t), 1);
    return d;
}

static struct id_set all_ids(void)
{
    lathe_error err;
    struct id_set ids;
    CHECK_OK(id_set_init(&ids, VOCAB, NULL, &err), &err);
    return ids;
}

static void commit(struct drafter *d, int32_t slot, const int32_t *token, int32_t pos, int32_t n)
{
    lathe_error err;
    struct committed c = {.slot = slot, .pos = pos, .n = n, .token = token + pos};
    CHECK_OK(ops->committed(d, &c, &err), &err);
}

/* What follows token[0 .. n), the last of which is the anchor. */
static struct draft_request propose(struct drafter *d, int32_t slot, const int32_t *token,
                                    int32_t n, int32_t most)
{
    lathe_error err;
    struct draft_request r = {
        .slot = slot, .pos = n - 1, .anchor = token[n - 1], .most = most, .history = token};
    CHECK_OK(ops->propose(d, &r, 1, &err), &err);
    CHECK_INT(r.source, DRAFT_LOOKUP);
    return r;
}

/* The same by trying every position. Returns the match's length. */
static int32_t expected(const int32_t *token, int32_t n, int32_t most, struct draft_request *r)
{
    int32_t best = 0, at = -1;
    for (int32_t i = n - 2; i >= 0; i--) {
        int32_t len = 0;
        while (len < NGRAM_LONGEST && len <= i && token[i - len] == token[n - 1 - len])
            len++;
        if (len > best) {
            best = len;
            at = i;
        }
    }
    r->n = 0;
    if (best < NGRAM_MIN)
        return 0;
    int32_t want = best < NGRAM_STRONG && best < most ? best : most;
    for (; r->n < want; r->n++) {
        int32_t from = at + 1 + r->n;
        r->draft[r->n] = from < n ? token[from] : r->draft[from - n];
    }
    return best;
}

static void check_same(const struct draft_request *got, const struct draft_request *want)
{
    CHECK_INT(got->n, want->n);
    for (int32_t i = 0; i < got->n; i++)
        CHECK_INT(got->draft[i], want->draft[i]);
}

/* Text with copies of every length: at each step, go on at random or go on copying from somewhere. */
static void make_text(int32_t *token, int32_t n, uint64_t seed)
{
    struct rng rng = {seed};
    int32_t from = -1;
    for (int32_t i = 0; i < n; i++) {
        if (from < 0 && i > 50 && rng_below(&rng, 10) == 0)
            from = (int32_t)rng_below(&rng, (uint32_t)i - 20);
        else if (from >= 0 && rng_below(&rng, 14) == 0)
            from = -1;
        token[i] = from >= 0 ? token[from++] : (int32_t)rng_below(&rng, VOCAB);
    }
}

TEST(longest_match_newest_first)
{
    struct id_set ids = all_ids();
    static int32_t token[N_CTX];
    int32_t n_strong = 0, n_weak = 0, n_none = 0;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct drafter *d = open_drafter(&ids);
        struct rng rng = {seed};
        make_text(token, N_CTX, seed);
        for (int32_t n = 1; n <= N_CTX; n++) {
            int32_t most = 1 + (int32_t)rng_below(&rng, SPEC_MAX_DRAFT);
            struct draft_request got = propose(d, 1, token, n, most), want;
            int32_t match = expected(token, n, most, &want);
            check_same(&got, &want);
            CHECK_INT(ngram_match(d, 1), match);
            n_strong += match >= NGRAM_STRONG;
            n_weak += match > 0 && match < NGRAM_STRONG;
            n_none += match == 0;
            commit(d, 1, token, n - 1, 1);
        }
        ops->close(d);
    }
    CHECK(n_strong > 500 && n_weak > 500 && n_none > 500);
    id_set_release(&ids);
}

TEST(copies_may_overlap)
{
    struct id_set ids = all_ids();
    struct drafter *d = open_drafter(&ids);
    int32_t token[] = {9, 9, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1};
    int32_t n = (int32_t)(sizeof token / sizeof token[0]);
    commit(d, 0, token, 0, n - 1);
    struct draft_request r = propose(d, 0, token, n, SPEC_MAX_DRAFT);
    CHECK_INT(r.n, SPEC_MAX_DRAFT);
    for (int32_t i = 0; i < r.n; i++)
        CHECK_INT(r.draft[i], i % 2 ? 1 : 2);
    CHECK(ngram_match(d, 0) >= NGRAM_STRONG);
    CHECK_INT(ngram_match(d, 1), 0);
    ops->close(d);
    id_set_release(&ids);
}

/* A coincidence of three tokens is not worth fifteen rows. */
TEST(short_matches_propose_little)
{
    struct id_set ids = all_ids();
    struct drafter *d = open_drafter(&ids);
    int32_t token[] = {5, 1, 2, 3, 11, 12, 13, 14, 15, 16, 17, 18, 6, 1, 2, 3};
    int32_t n = (int32_t)(sizeof token / sizeof token[0]);
    commit(d, 0, token, 0, n - 1);
    struct draft_request r = propose(d, 0, token, n, SPEC_MAX_DRAFT);
    CHECK_INT(r.n, 3);
    CHECK_INT(r.draft[2], 13);
    r = propose(d, 0, token, n, 2);
    CHECK_INT(r.n, 2);
    ops->close(d);
    id_set_release(&ids);
}

TEST(law_is_one_hot_and_ids_are_sampled_ones)
{
    lathe_error err;
    uint64_t bits[(VOCAB + 63) / 64];
    memset(bits, 0xff, sizeof bits);
    bits[0] &= ~(UINT64_C(1) << 13);
    struct id_set ids;
    CHECK_OK(id_set_init(&ids, VOCAB, bits, &err), &err);
    struct drafter *d = open_drafter(&ids);
    int32_t token[] = {1, 2, 3, 4, 11, 12, 13, 14, 6, 1, 2, 3, 4};
    int32_t n = (int32_t)(sizeof token / sizeof token[0]);
    commit(d, 0, token, 0, n - 1);
    struct candidate q[4];
    struct draft_law law[4] = {{0, &q[0]}, {0, &q[1]}, {0, &q[2]}, {0, &q[3]}};
    struct draft_request r = {.pos = n - 1, .anchor = 4, .most = 4, .history = token, .law = law};
    CHECK_OK(ops->propose(d, &r, 1, &err), &err);
    CHECK_INT(r.n, 2);
    for (int32_t i = 0; i < 2; i++) {
        CHECK_INT(law[i].n, 1);
        CHECK_INT(q[i].id, 11 + i);
        CHECK(q[i].weight == 1);
    }
    ops->close(d);
    id_set_release(&ids);
}

static struct buf saved(struct drafter *d, int32_t slot)
{
    lathe_error err;
    struct buf b;
    buf_init(&b, 1 << 20);
    CHECK_OK(ops->save(d, slot, &b, &err), &err);
    return b;
}

/* Committing in any pieces, going back and going on in another way, and loading elsewhere end in the
 * proposals of a sequence that was simply read. */
TEST(rewind_and_load)
{
    lathe_error err;
    struct id_set ids = all_ids();
    static int32_t a[N_CTX], b[N_CTX];
    struct rng rng = {3};
    for (int round = 0; round < 60; round++) {
        struct drafter *d = open_drafter(&ids);
        make_text(a, N_CTX, 100 + (uint64_t)round);
        make_text(b, N_CTX, 200 + (uint64_t)round);
        int32_t keep = (int32_t)rng_below(&rng, 600), end = keep + 800;
        memcpy(b, a, (size_t)keep * sizeof *b);
        for (int32_t at = 0; at < 900;) {
            int32_t n = 1 + (int32_t)rng_below(&rng, 100);
            commit(d, 0, a, at, n);
            at += n;
        }
        ops->rewind(d, 0, keep);
        commit(d, 0, b, keep, end - 1 - keep);
        commit(d, 1, b, 0, end - 1);
        struct buf x = saved(d, 0), y = saved(d, 1);
        CHECK(x.len == y.len && memcmp(x.data, y.data, x.len) == 0);
        ops->rewind(d, 1, 0);
        CHECK_OK(ops->load(d, 1, x.data, x.len, &err), &err);
        for (int32_t n = end; n < end + 300; n++) {
            struct draft_request want, got0 = propose(d, 0, b, n, 15),
                                       got1 = propose(d, 1, b, n, 15);
            (void)expected(b, n, 15, &want);
            check_same(&got0, &want);
            check_same(&got1, &want);
            commit(d, 0, b, n - 1, 1);
            commit(d, 1, b, n - 1, 1);
        }
        CHECK_ERR(ops->load(d, 1, x.data, x.len - 1, &err), &err, LATHE_E_FORMAT, "ngram context");
        buf_release(&x);
        buf_release(&y);
        ops->rewind(d, 0, 0);
        x = saved(d, 0);
        CHECK_INT(x.len, 0);
        buf_release(&x);
        ops->close(d);
    }
    id_set_release(&ids);
}

TEST(info_and_edges)
{
    struct id_set ids = all_ids();
    struct drafter *d = open_drafter(&ids);
    struct drafter_info info;
    ops->info(d, &info);
    CHECK_INT(info.max_draft, SPEC_MAX_DRAFT);
    CHECK_INT(info.n_taps, 0);
    CHECK(info.has_law);
    /* One token only, and a full context. */
    static int32_t token[N_CTX];
    struct draft_request r = propose(d, 0, token, 1, 15);
    CHECK_INT(r.n, 0);
    commit(d, 0, token, 0, N_CTX - 1);
    r = propose(d, 0, token, N_CTX, 15);
    CHECK_INT(r.n, 15);
    commit(d, 0, token, N_CTX - 1, 1);
    ops->close(d);
    ops->close(NULL);
    id_set_release(&ids);
}

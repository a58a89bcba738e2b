/* BPE and the matching of added tokens beside their definitions. */
#include "test.h"

#include "text/added.h"
#include "text/bpe.h"

/* The definition: while a pair is in the table, merge the leftmost of the lowest rank. */
static size_t by_definition(const struct bpe_merge *m, size_t n_merges, int32_t *id, uint32_t *at,
                            size_t n)
{
    for (;;) {
        size_t best = n, rank = n_merges;
        for (size_t i = 0; i + 1 < n; i++)
            for (size_t k = 0; k < rank; k++)
                if (m[k].left == id[i] && m[k].right == id[i + 1]) {
                    best = i;
                    rank = k;
                }
        if (best == n)
            return n;
        id[best] = m[rank].result;
        memmove(id + best + 1, id + best + 2, (n - best - 2) * sizeof *id);
        memmove(at + best + 1, at + best + 2, (n - best - 2) * sizeof *at);
        n--;
    }
}

TEST(bpe_equals_its_definition)
{
    lathe_error e;
    struct rng r = {11};
    struct bpe_work w = {0};
    for (int round = 0; round < 300; round++) {
        /* Over an alphabet of 1 to 4 letters; symbols are merged from earlier ones at random. */
        enum { N = 40, LEN = 60 };
        int32_t letters = 1 + (int32_t)rng_below(&r, 4), n_merges = 0;
        struct bpe_merge m[N];
        struct bpe b;
        CHECK_OK(bpe_init(&b, N, &e), &e);
        for (int32_t i = 0; i < letters; i++)
            b.byte_id['a' + i] = i;
        for (int tries = 0; tries < N; tries++) {
            uint32_t n_symbols = (uint32_t)(letters + n_merges);
            struct bpe_merge x = {(int32_t)rng_below(&r, n_symbols),
                                  (int32_t)rng_below(&r, n_symbols), n_merges, letters + n_merges};
            bool is_new = true;
            for (int32_t k = 0; k < n_merges; k++)
                is_new = is_new && (m[k].left != x.left || m[k].right != x.right);
            if (is_new)
                m[n_merges++] = x;
        }
        /* Ranks in another order than the symbols'. */
        for (int32_t k = n_merges - 1; k > 0; k--) {
            uint32_t j = rng_below(&r, (uint32_t)k + 1);
            struct bpe_merge x = m[k];
            m[k] = m[j];
            m[j] = x;
        }
        for (int32_t k = 0; k < n_merges; k++) {
            m[k].rank = k;
            bpe_add(&b, &m[k]);
        }
        for (int text = 0; text < 30; text++) {
            char s[LEN];
            int32_t id[LEN];
            uint32_t at[LEN];
            size_t n = rng_below(&r, LEN + 1);
            for (size_t i = 0; i < n; i++) {
                id[i] = (int32_t)rng_below(&r, (uint32_t)letters);
                s[i] = (char)('a' + id[i]);
                at[i] = (uint32_t)i;
            }
            size_t want = by_definition(m, (size_t)n_merges, id, at, n);
            CHECK_OK(bpe_encode(&b, &w, s, n, &e), &e);
            CHECK_INT(w.n, want);
            CHECK(memcmp(w.id, id, want * sizeof *id) == 0);
            CHECK(memcmp(w.at, at, want * sizeof *at) == 0);
        }
        bpe_release(&b);
    }
    bpe_work_release(&w);
}

TEST(a_pair_added_again_takes_the_later_rank)
{
    lathe_error e;
    struct bpe b;
    struct bpe_work w = {0};
    CHECK_OK(bpe_init(&b, 3, &e), &e);
    for (int32_t i = 0; i < 3; i++)
        b.byte_id['a' + i] = i;
    bpe_add(&b, &(struct bpe_merge){0, 1, 0, 3}); /* ab */
    bpe_add(&b, &(struct bpe_merge){1, 2, 1, 4}); /* bc */
    CHECK_OK(bpe_encode(&b, &w, "abc", 3, &e), &e);
    CHECK(w.n == 2 && w.id[0] == 3 && w.id[1] == 2);
    bpe_add(&b, &(struct bpe_merge){0, 1, 2, 3});
    CHECK_OK(bpe_encode(&b, &w, "abc", 3, &e), &e);
    CHECK(w.n == 2 && w.id[0] == 0 && w.id[1] == 4 && w.at[1] == 1);
    bpe_work_release(&w);
    bpe_release(&b);
}

TEST(added_tokens_match_longest_and_trusted)
{
    lathe_error e;
    struct rng r = {5};
    for (int round = 0; round < 200; round++) {
        struct added_tokens a = {0};
        char content[20][8];
        size_t n_tokens = 1 + rng_below(&r, 20);
        for (size_t i = 0; i < n_tokens; i++) {
            size_t n = 1 + rng_below(&r, 6);
            for (size_t k = 0; k < n; k++)
                content[i][k] = "<|a\xFF"[rng_below(&r, 4)];
            content[i][n] = 0;
            CHECK_OK(
                added_append(&a, &(struct added_token){content[i], (uint32_t)n, (int32_t)i}, &e),
                &e);
        }
        added_sort(&a);
        for (int text = 0; text < 100; text++) {
            char s[24];
            unsigned char trusted[24];
            size_t n = 1 + rng_below(&r, 24);
            for (size_t i = 0; i < n; i++) {
                s[i] = "<|a\xFF"[rng_below(&r, 4)];
                trusted[i] = rng_below(&r, 8) != 0;
            }
            const unsigned char *flags = text & 1 ? trusted : NULL;
            size_t longest = 0;
            for (size_t i = 0; i < n_tokens; i++) {
                size_t len = strlen(content[i]);
                bool fits = len <= n && memcmp(content[i], s, len) == 0;
                for (size_t k = 0; fits && flags && k < len; k++)
                    fits = flags[k];
                if (fits && len > longest)
                    longest = len;
            }
            const struct added_token *t = added_match(&a, s, n, flags);
            CHECK_INT(t ? t->n : 0, longest);
            CHECK(!t || memcmp(t->content, s, longest) == 0);
        }
        CHECK(added_find(&a, content[0], strlen(content[0])) != NULL);
        CHECK(added_find(&a, "zzz", 3) == NULL);
        added_release(&a);
    }
}

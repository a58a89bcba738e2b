/* What slots keep of requests that are over, used by those that come: never more than was committed, and what is said is what a
 * cold engine says. Cases B67 and B70 of the shared cases, where a slot's own state is the cache. */
#include "test.h"

#include "lathe/lathe.h"

enum { CTX = 768, MOST = 64 };

static const char *const drafter[] = {"none", "mtp", "dflash2"};
enum { N_DRAFTERS = sizeof drafter / sizeof *drafter };

static lathe_engine *open_engine(const char *spec, int32_t n_slots)
{
    lathe_engine_options o;
    lathe_engine *e;
    lathe_error err;
    lathe_engine_options_init(&o);
    o.model_dir = test_path("models/nano");
    o.spec = spec;
    if (strcmp(spec, "dflash2") == 0)
        o.draft_dir = test_path("models/nano-dflash2");
    o.n_ctx = CTX;
    o.n_slots = n_slots;
    o.n_threads = 1;
    o.kv = o.activations = LATHE_F32; /* so that no rounding tells prompts from answers */
    CHECK_OK(lathe_engine_open(&e, &o, &err), &err);
    return e;
}

struct said {
    int32_t token[MOST];
    int32_t n, n_cached;
};

/* What follows the tokens, greedily; given up when `stop_at` have come, if that is not 0. */
static struct said go_on(lathe_engine *e, const int32_t *token, int32_t n, int32_t more, bool reuse,
                         int32_t stop_at)
{
    struct said s = {.n = 0};
    lathe_request_options o;
    lathe_request *r;
    lathe_error err;
    lathe_event ev;
    lathe_request_options_init(lathe_engine_text(e), false, &o);
    o.token = token;
    o.n_token = (size_t)n;
    o.sampling = (lathe_sampling){.top_p = 1, .repetition_penalty = 1};
    o.max_tokens = more;
    o.ignore_eos = true;
    o.n_logprobs = 0;
    o.no_prefix_reuse = !reuse;
    CHECK_OK(lathe_request_submit(e, &o, &r, &err), &err);
    do {
        lathe_request_next(r, -1, &ev);
        if (ev.type == LATHE_EVENT_TOKEN) {
            CHECK(s.n < MOST);
            s.token[s.n++] = ev.token.id;
            if (s.n == stop_at)
                lathe_request_cancel(r);
        }
    } while (ev.type != LATHE_EVENT_FINISH);
    CHECK(stop_at || s.n == more);
    s.n_cached = ev.usage.cached_tokens;
    lathe_request_close(r);
    return s;
}

static void check_same(const struct said *got, const struct said *want, int32_t n, const char *what)
{
    CHECK(got->n >= n && want->n >= n);
    for (int32_t i = 0; i < n; i++)
        if (got->token[i] != want->token[i])
            FAIL("%s: token %d is %d, expected %d", what, i, got->token[i], want->token[i]);
}

static void random_words(struct rng *g, int32_t *token, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        token[i] = 300 + (int32_t)rng_below(g, 4000);
}

TEST(B67_an_answer_is_no_part_of_its_prompt)
{
    enum { P = 30, Q = 6, NEW = 40 };
    struct rng g = {67};
    int32_t prompt[P + NEW + Q];
    random_words(&g, prompt, P);
    for (int d = 0; d < N_DRAFTERS; d++) {
        lathe_engine *e = open_engine(drafter[d], 1), *cold = open_engine("none", 1);
        struct said first = go_on(cold, prompt, P, NEW, false, 0), s;
        memcpy(prompt + P, first.token, sizeof *prompt * NEW);
        random_words(&g, prompt + P + NEW, Q);
        struct said shorter = go_on(cold, prompt, P - 1, NEW, false, 0);
        struct said longer = go_on(cold, prompt, P + NEW + Q, 20, false, 0);
        for (int i = 0; i < 2; i++) {
            s = go_on(e, prompt, P, NEW, true, 0);
            check_same(&s, &first, NEW, "P again");
            CHECK(s.n_cached < P);
        }
        s = go_on(e, prompt, P - 1, NEW, true, 0);
        check_same(&s, &shorter, NEW, "P without its last token");
        s = go_on(e, prompt, P, 1, true, 0);
        check_same(&s, &first, 1, "one token");
        s = go_on(e, prompt, P, NEW, true, 0);
        check_same(&s, &first, NEW, "P behind one token");
        s = go_on(e, prompt, P + NEW + Q, 20, true, 0);
        check_same(&s, &longer, 20, "P, its answer and more");
        CHECK(s.n_cached >= P + NEW - 1 && s.n_cached <= P + NEW);
        s = go_on(e, prompt, P, NEW, true, 0);
        check_same(&s, &first, NEW, "P at the end");
        lathe_engine_close(e);
        lathe_engine_close(cold);
    }
}

enum { CONVERSATIONS = 6, TURNS = 5, SHARED = 300, PER_TURN = 24 };

/* All turns of all conversations, two of which run side by side; every seventh request is given up and asked again. */
static void converse(const char *spec, bool reuse, int32_t n_conversations, int32_t n_shared,
                     struct said (*want)[TURNS], bool is_first)
{
    lathe_engine *e = open_engine(spec, 2);
    int32_t n_requests = 0, n_cached = 0;
    for (int pass = 0; pass < (reuse ? 2 : 1); pass++)
        for (int32_t pair = 0; pair < n_conversations; pair += 2) {
            int32_t token[2][CTX], n[2] = {n_shared, n_shared};
            struct rng g[2] = {{(uint64_t)pair + 100}, {(uint64_t)pair + 101}}, system = {70};
            random_words(&system, token[0], n_shared);
            memcpy(token[1], token[0], sizeof **token * (size_t)n_shared);
            for (int32_t turn = 0; turn < (test_quick() ? 3 : TURNS); turn++)
                for (int32_t i = 0; i < 2; i++) {
                    struct said *w = &want[pair + i][turn];
                    random_words(&g[i], token[i] + n[i], PER_TURN);
                    int32_t held = n[i];
                    n[i] += PER_TURN;
                    if (++n_requests % 7 == 0) {
                        struct said part = go_on(e, token[i], n[i], PER_TURN, reuse, 5);
                        if (!is_first)
                            check_same(&part, w, 5, "a request that is given up");
                    }
                    struct said s = go_on(e, token[i], n[i], PER_TURN, reuse, 0);
                    if (is_first && pass == 0)
                        *w = s;
                    check_same(&s, w, PER_TURN, spec);
                    /* Never more than what was committed of it. */
                    CHECK(s.n_cached <= held || s.n_cached < n[i]);
                    n_cached += s.n_cached;
                    memcpy(token[i] + n[i], s.token, sizeof *s.token * PER_TURN);
                    n[i] += PER_TURN;
                }
        }
    CHECK(reuse ? n_cached > n_shared * n_conversations : n_cached == 0);
    lathe_engine_close(e);
}

TEST(B70_drafts_and_reuse_change_nothing)
{
    int32_t n_conversations = test_quick() ? 2 : CONVERSATIONS;
    int32_t n_shared = test_quick() ? 20 : SHARED;
    struct said want[CONVERSATIONS][TURNS];
    for (int d = 0; d < N_DRAFTERS; d++)
        for (int reuse = 0; reuse < 2; reuse++)
            converse(drafter[d], reuse, n_conversations, n_shared, want, d == 0 && !reuse);
}

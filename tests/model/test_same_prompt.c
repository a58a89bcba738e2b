/* Requests with one prompt: it is read once, its state is copied, and each says what it would say on its own. */
#include "engine/engine.h"
#include "test.h"
#include "words.h"

enum { CHUNK = 32, SLOTS = 3, PROMPT = 4 * CHUNK + 9, CONTEXT = 512 };

static const struct kind {
    const char *spec;
    lathe_dtype kv;
    float temperature;
    int32_t n_logprobs;
} kinds[] = {
    {"none", LATHE_BF16, 0.9f, -1},
    {"mtp", LATHE_BF16, 0.9f, -1},
    {"dflash2+ngram", LATHE_F8_E4M3, 0.8f, -1},
    {"mtp+ngram", LATHE_BF16, 1.5f, 2},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static lathe_engine *open_with(const struct kind *k, int32_t n_queue, int32_t n_ctx)
{
    lathe_engine_options o;
    lathe_engine *e;
    lathe_error err;
    lathe_engine_options_init(&o);
    o.model_dir = test_path("models/nano");
    o.n_slots = SLOTS;
    o.n_queue = n_queue;
    o.n_ctx = n_ctx;
    o.prefill_chunk = CHUNK;
    o.n_threads = 2;
    o.spec = k->spec;
    o.kv = k->kv;
    o.fixed_k = true;
    CHECK_OK(lathe_engine_open(&e, &o, &err), &err);
    return e;
}

static lathe_engine *open_nano(const struct kind *k, int32_t n_queue)
{
    return open_with(k, n_queue, CONTEXT);
}

static lathe_request *begin(lathe_engine *e, const struct kind *k, int64_t seed, int32_t n_same,
                            uint64_t like)
{
    lathe_request_options o;
    lathe_request *r;
    lathe_error err;
    struct buf text;
    buf_init(&text, 1 << 16);
    words_put(&text, 0, PROMPT);
    lathe_request_options_init(lathe_engine_text(e), false, &o);
    o.text = text.data;
    o.n_text = text.len;
    o.max_tokens = 40;
    o.ignore_eos = true;
    o.no_prefix_reuse = true;
    o.sampling.temperature = k->temperature;
    o.sampling.seed = seed;
    o.n_logprobs = k->n_logprobs;
    o.same_prompt = like;
    o.n_same = n_same;
    CHECK_OK(lathe_request_submit(e, &o, &r, &err), &err);
    CHECK_INT(lathe_request_prompt_tokens(r), PROMPT);
    buf_release(&text);
    return r;
}

static uint64_t prompt_steps(lathe_engine *e)
{
    lathe_activity a;
    uint64_t n = 0;
    lathe_engine_activity(e, &a, NULL, 0);
    for (int32_t i = 0; i <= LATHE_MAX_BUCKETS; i++)
        n += a.step_seconds[LATHE_STEP_PREFILL].count[i];
    return n;
}

/* What a slot that got a copy holds is the state of its tokens. */
static void check_state(lathe_engine *e, int32_t slot)
{
    lathe_request_options o;
    lathe_event last;
    lathe_error err;
    char *said[2];
    int32_t id[CONTEXT], n = e->slots[slot].n_committed;
    memcpy(id, e->slots[slot].token, (size_t)n * sizeof *id);
    id[n] = 300;
    for (int k = 0; k < 2; k++) {
        lathe_request *r;
        lathe_request_options_init(lathe_engine_text(e), false, &o);
        o.token = id;
        o.n_token = (size_t)n + 1;
        o.max_tokens = 10;
        o.sampling.temperature = 0;
        o.no_prefix_reuse = k == 1;
        CHECK_OK(lathe_request_submit(e, &o, &r, &err), &err);
        said[k] = words_said(r, &last);
        CHECK_INT(last.usage.cached_tokens, k == 0 ? n : 0);
    }
    CHECK_STR(said[0], said[1]);
    free(said[0]);
    free(said[1]);
}

/* All at once; `gone`, if it is one of them, is cancelled as soon as the prompt is begun. */
static void check(const struct kind *k, int32_t gone)
{
    lathe_engine *e = open_nano(k, 8);
    lathe_event last;
    lathe_request *r[SLOTS];
    char *want[SLOTS], *got;
    for (int32_t i = 0; i < SLOTS; i++)
        want[i] = words_said(begin(e, k, 7 + i, 0, 0), &last);
    CHECK(strcmp(want[0], want[1]) != 0 || k->temperature == 0);
    uint64_t before = prompt_steps(e);
    r[0] = begin(e, k, 7, SLOTS - 1, 0);
    for (int32_t i = 1; i < SLOTS; i++)
        r[i] = begin(e, k, 7 + i, 0, lathe_request_number(r[0]));
    if (gone >= 0) {
        do
            lathe_request_next(r[gone], -1, &last);
        while (last.type != LATHE_EVENT_ACCEPTED);
        lathe_request_cancel(r[gone]);
    }
    for (int32_t i = 0; i < SLOTS; i++) {
        got = words_said(r[i], &last);
        CHECK_INT(last.finish, i == gone ? LATHE_FINISH_CANCELLED : LATHE_FINISH_LENGTH);
        if (i != gone)
            CHECK_STR(got, want[i]);
        if (gone < 0) {
            CHECK_INT(last.usage.cached_tokens, i == 0 ? 0 : PROMPT);
            CHECK_INT(last.usage.common_tokens, PROMPT);
            CHECK_INT(last.usage.miss, i == 0 ? LATHE_MISS_OFF : LATHE_MISS_NONE);
        }
        free(got);
        free(want[i]);
    }
    if (gone != 0)
        CHECK_INT((int64_t)(prompt_steps(e) - before), (PROMPT + CHUNK - 1) / CHUNK);
    if (gone < 0)
        check_state(e, 1);
    lathe_engine_close(e);
}

TEST(a_prompt_is_read_once)
{
    for (int i = test_quick() ? 2 : 0; i < KINDS; i++)
        check(&kinds[i], -1);
}

TEST(the_one_that_reads_goes_away)
{
    for (int i = 0; i < 2; i++)
        check(&kinds[i], 0);
}

TEST(one_that_waits_goes_away)
{
    for (int i = 0; i < 2; i++)
        check(&kinds[i], 1);
}

/* A number that nobody has, or of a request with another prompt, changes nothing; one that waits for others lets those behind
 * it go first. */
TEST(other_numbers)
{
    lathe_engine *e = open_nano(&kinds[0], 8);
    lathe_event last;
    lathe_request_options o;
    lathe_request *other;
    lathe_error err;
    char *want = words_said(begin(e, &kinds[0], 3, 0, 0), &last);
    char *got = words_said(begin(e, &kinds[0], 3, 0, 1000), &last);
    CHECK_STR(got, want);
    free(got);
    lathe_request_options_init(lathe_engine_text(e), false, &o);
    o.text = "another";
    o.n_text = 7;
    o.max_tokens = 2;
    o.ignore_eos = true;
    o.n_same = 1;
    CHECK_OK(lathe_request_submit(e, &o, &other, &err), &err);
    got = words_said(begin(e, &kinds[0], 3, 0, 0), &last);
    CHECK_STR(got, want);
    free(got);
    got = words_said(begin(e, &kinds[0], 3, 0, lathe_request_number(other)), &last);
    CHECK_STR(got, want);
    free(got);
    free(want);
    free(words_said(other, &last));
    CHECK_INT(last.finish, LATHE_FINISH_LENGTH);
    o.n_same = SLOTS;
    CHECK_ERR(lathe_request_submit(e, &o, &other, &err), &err, LATHE_E_ARGUMENT, "n_same is 3");
    lathe_engine_close(e);
}

/* One that waits for others keeps none of them out, however full the queue is. */
TEST(a_full_queue)
{
    lathe_engine *e = open_nano(&kinds[0], 0);
    lathe_event last;
    lathe_error err;
    lathe_request_options o;
    lathe_request *long_one[SLOTS - 1], *r[SLOTS], *none;
    lathe_request_options_init(lathe_engine_text(e), false, &o);
    o.text = "another";
    o.n_text = 7;
    o.ignore_eos = true;
    for (int32_t i = 0; i < SLOTS - 1; i++)
        CHECK_OK(lathe_request_submit(e, &o, &long_one[i], &err), &err);
    r[0] = begin(e, &kinds[0], 7, SLOTS - 1, 0);
    CHECK_ERR(lathe_request_submit(e, &o, &none, &err), &err, LATHE_E_BUSY, "full");
    for (int32_t i = 1; i < SLOTS; i++)
        r[i] = begin(e, &kinds[0], 7 + i, 0, lathe_request_number(r[0]));
    for (int32_t i = 0; i < SLOTS - 1; i++) {
        lathe_request_cancel(long_one[i]);
        free(words_said(long_one[i], &last));
    }
    for (int32_t i = 0; i < SLOTS; i++) {
        free(words_said(r[i], &last));
        CHECK_INT(last.finish, LATHE_FINISH_LENGTH);
        CHECK_INT(last.usage.cached_tokens, i == 0 ? 0 : PROMPT);
    }
    lathe_engine_close(e);
}

/* One that is cancelled in the queue is waited for no more, whether the others came before it or after. */
TEST(one_in_the_queue_goes_away)
{
    lathe_engine *e = open_nano(&kinds[0], 8);
    lathe_event last;
    lathe_error err;
    lathe_request_options o;
    lathe_request *long_one[SLOTS], *r[SLOTS];
    lathe_request_options_init(lathe_engine_text(e), false, &o);
    o.text = "another";
    o.n_text = 7;
    o.ignore_eos = true;
    for (int32_t gone = 1; gone < SLOTS; gone++) {
        for (int32_t i = 0; i < SLOTS; i++)
            CHECK_OK(lathe_request_submit(e, &o, &long_one[i], &err), &err);
        r[0] = begin(e, &kinds[0], 7, SLOTS - 1, 0);
        for (int32_t i = 1; i < SLOTS; i++) {
            r[i] = begin(e, &kinds[0], 7 + i, 0, lathe_request_number(r[0]));
            if (i == gone) {
                lathe_request_cancel(r[i]);
                free(words_said(r[i], &last));
                CHECK_INT(last.finish, LATHE_FINISH_CANCELLED);
            }
        }
        for (int32_t i = 0; i < SLOTS; i++) {
            lathe_request_cancel(long_one[i]);
            free(words_said(long_one[i], &last));
        }
        for (int32_t i = 0; i < SLOTS; i++) {
            if (i == gone)
                continue;
            free(words_said(r[i], &last));
            CHECK_INT(last.finish, LATHE_FINISH_LENGTH);
            CHECK_INT(last.usage.cached_tokens, i == 0 ? 0 : PROMPT);
        }
    }
    lathe_engine_close(e);
}

static bool is_queued(lathe_engine *e, const lathe_request *r)
{
    pthread_mutex_lock(&e->lock);
    bool is = queue_has(e, lathe_request_number(r));
    pthread_mutex_unlock(&e->lock);
    return is;
}

static lathe_request *begin_short(lathe_engine *e, int32_t max_tokens, int32_t priority,
                                  bool is_background)
{
    lathe_request_options o;
    lathe_request *r;
    lathe_error err;
    lathe_request_options_init(lathe_engine_text(e), false, &o);
    o.text = "another";
    o.n_text = 7;
    o.ignore_eos = true;
    o.max_tokens = max_tokens;
    o.priority = priority;
    o.is_background = is_background;
    CHECK_OK(lathe_request_submit(e, &o, &r, &err), &err);
    return r;
}

/* While slots for all of several are not free, others use those that are: as many as there are slots, of the same class and
 * priority. Then they wait, so that it gets its turn. */
TEST(others_pass_one_that_waits_for_slots)
{
    /* Room for one that runs until it is cancelled. */
    lathe_engine *e = open_with(&kinds[0], 16, 16384);
    lathe_event last;
    lathe_request *all[SLOTS], *behind;
    lathe_request *running = begin_short(e, -1, 0, false);
    all[0] = begin(e, &kinds[0], 7, SLOTS - 1, 0);
    for (int32_t i = 1; i < SLOTS; i++)
        all[i] = begin(e, &kinds[0], 7 + i, 0, lathe_request_number(all[0]));
    lathe_request *later = begin_short(e, 2, 1, false), *background = begin_short(e, 2, 0, true);
    for (int32_t i = 0; i < SLOTS; i++) {
        free(words_said(begin_short(e, 2, 0, false), &last));
        CHECK_INT(last.finish, LATHE_FINISH_LENGTH);
    }
    behind = begin_short(e, 2, 0, false);
    /* The engine looks at the queue before each step of the one that runs. */
    for (int i = 0; i < 50; i++) {
        lathe_request_next(running, -1, &last);
        CHECK(last.type != LATHE_EVENT_FINISH);
    }
    for (int32_t i = 0; i < SLOTS; i++)
        CHECK(is_queued(e, all[i]));
    CHECK(is_queued(e, behind) && is_queued(e, later) && is_queued(e, background));
    lathe_request_cancel(running);
    free(words_said(running, &last));
    for (int32_t i = 0; i < SLOTS; i++) {
        free(words_said(all[i], &last));
        CHECK_INT(last.finish, LATHE_FINISH_LENGTH);
    }
    free(words_said(behind, &last));
    free(words_said(later, &last));
    free(words_said(background, &last));
    CHECK_INT(last.finish, LATHE_FINISH_LENGTH);
    lathe_engine_close(e);
}

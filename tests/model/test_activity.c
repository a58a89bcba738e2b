/* What an engine tells about its slots and its work, and how slots are made to forget. */
#include "test.h"

static lathe_engine *open_nano(int32_t n_slots)
{
    lathe_engine_options o;
    lathe_engine *e;
    lathe_error err;
    lathe_engine_options_init(&o);
    o.model_dir = test_path("models/nano");
    o.n_slots = n_slots;
    o.n_ctx = 4096;
    o.n_threads = 1;
    CHECK_OK(lathe_engine_open(&e, &o, &err), &err);
    return e;
}

static lathe_request *submit(lathe_engine *e, const char *text, int32_t max_tokens)
{
    lathe_request_options o;
    lathe_request *r;
    lathe_error err;
    lathe_request_options_init(lathe_engine_text(e), false, &o);
    o.text = text;
    o.n_text = strlen(text);
    o.max_tokens = max_tokens;
    o.ignore_eos = true;
    o.sampling.temperature = 0;
    CHECK_OK(lathe_request_submit(e, &o, &r, &err), &err);
    return r;
}

static lathe_event last(lathe_request *r)
{
    lathe_event ev;
    do
        lathe_request_next(r, -1, &ev);
    while (ev.type != LATHE_EVENT_FINISH);
    return ev;
}

/* Of one request, from its finish event on. */
static lathe_usage run(lathe_engine *e, const char *text, int32_t max_tokens, uint64_t *number)
{
    lathe_request *r = submit(e, text, max_tokens);
    lathe_event ev = last(r);
    if (number)
        *number = lathe_request_number(r);
    lathe_request_close(r);
    return ev.usage;
}

static uint64_t total(const lathe_histogram *h)
{
    uint64_t n = 0;
    for (int32_t i = 0; i <= h->n_bounds; i++)
        n += h->count[i];
    for (int32_t i = 1; i < h->n_bounds; i++)
        CHECK(h->bound[i - 1] < h->bound[i]);
    CHECK(h->n_bounds > 0 && h->n_bounds <= LATHE_MAX_BUCKETS);
    return n;
}

TEST(counters_are_the_sums_of_the_requests)
{
    lathe_engine *e = open_nano(2);
    lathe_activity a;
    lathe_slot_info slot[2];
    uint64_t number;
    lathe_engine_activity(e, &a, slot, 2);
    CHECK_INT(a.prompt_tokens, 0);
    CHECK_INT(slot[0].request + slot[1].request, 0);
    CHECK(a.kv_page > 0 && a.n_pages >= 2 * 4096 / a.kv_page);
    CHECK_INT(a.n_pages_running + a.n_pages_idle, 0);
    lathe_usage u = run(e, "one two three one two three one two", 40, NULL);
    lathe_usage v = run(e, "a kiln is", 30, &number);
    CHECK_INT(number, 2);
    lathe_engine_activity(e, &a, slot, 2);
    CHECK_INT(a.prompt_tokens, u.prompt_tokens + v.prompt_tokens);
    CHECK_INT(a.cached_tokens, 0);
    CHECK_INT(a.completion_tokens, 70);
    CHECK_INT(a.rounds, u.spec.rounds + v.spec.rounds);
    CHECK_INT(a.drafted, u.spec.drafted + v.spec.drafted);
    CHECK_INT(a.accepted, u.spec.accepted + v.spec.accepted);
    uint64_t drafted = 0, accepted = 0, rounds = 0;
    for (int i = 0; i < LATHE_MAX_DRAFT; i++) {
        drafted += a.drafted_at[i];
        accepted += a.accepted_at[i];
    }
    for (int i = 0; i <= LATHE_MAX_DRAFT; i++)
        rounds += a.histogram[i];
    CHECK_INT(drafted, a.drafted);
    CHECK_INT(accepted, a.accepted);
    CHECK_INT(rounds, a.rounds);
    CHECK_INT(total(&a.step_seconds[LATHE_STEP_PREFILL]), 2);
    CHECK_INT(total(&a.step_seconds[LATHE_STEP_DECODE]) + total(&a.step_seconds[LATHE_STEP_VERIFY]),
              a.rounds);
    CHECK_INT(total(&a.step_rows), 2 + a.rounds);
    CHECK(a.step_rows.sum == (double)(a.prompt_tokens + a.rounds + a.drafted));
    CHECK(a.n_prefill == 0 && a.n_decode == 0 && a.n_queued == 0 && !a.failure);
    CHECK(a.n_pages_running == 0 && a.n_pages_idle >= 2);
    for (int i = 0; i < 2; i++) {
        const lathe_usage *w = slot[i].request == 2 ? &v : &u;
        CHECK_INT(slot[i].phase, LATHE_SLOT_FREE);
        CHECK_INT(slot[i].n_prompt, w->prompt_tokens);
        CHECK_INT(slot[i].n_decoded, w->completion_tokens);
        CHECK_INT(slot[i].n_held, w->prompt_tokens + w->completion_tokens - 1);
        CHECK_INT(slot[i].drafted, w->spec.drafted);
        CHECK(slot[i].decode_ms > 0 && slot[i].idle_ms >= 0);
    }
    lathe_engine_close(e);
}

TEST(a_running_request_is_seen_and_others_wait)
{
    lathe_engine *e = open_nano(1);
    lathe_activity a;
    lathe_slot_info s;
    lathe_error err;
    lathe_request *r = submit(e, "a kiln is", -1), *waits = submit(e, "a lamp is", 2);
    lathe_event ev;
    do
        lathe_request_next(r, -1, &ev);
    while (ev.type != LATHE_EVENT_TEXT);
    /* A token is shown before its step is over, and the step's end is what is told. */
    do
        lathe_engine_activity(e, &a, &s, 1);
    while (s.phase != LATHE_SLOT_DECODE);
    CHECK_INT(s.request, lathe_request_number(r));
    CHECK(s.n_decoded > 0 && s.n_held >= s.n_prompt && s.prefill_ms > 0 && s.idle_ms == 0);
    CHECK(a.n_decode == 1 && a.n_prefill == 0 && a.n_queued == 1);
    CHECK(a.n_pages_running > 0 && a.n_pages_idle == 0);
    CHECK_ERR(lathe_engine_forget(e, 0, &err), &err, LATHE_E_BUSY, "slot 0 runs a request");
    CHECK_OK(lathe_engine_forget(e, -1, &err), &err);
    lathe_request_cancel(r);
    CHECK_INT(last(r).finish, LATHE_FINISH_CANCELLED);
    CHECK_INT(last(waits).finish, LATHE_FINISH_LENGTH);
    lathe_request_close(r);
    lathe_request_close(waits);
    lathe_engine_close(e);
}

TEST(forgotten_tokens_are_not_reused)
{
    lathe_engine *e = open_nano(1);
    lathe_error err;
    lathe_activity a;
    lathe_slot_info s;
    char longer[200];
    const char *text = "a kiln is a furnace";
    snprintf(longer, sizeof longer, "%s for", text);
    for (int32_t slot = -1; slot <= 0; slot++) {
        (void)run(e, text, 1, NULL);
        lathe_usage u = run(e, longer, 1, NULL);
        CHECK(u.cached_tokens > 0 && u.common_tokens == u.cached_tokens);
        CHECK_INT(u.miss, LATHE_MISS_NONE);
        CHECK_OK(lathe_engine_forget(e, slot, &err), &err);
        lathe_engine_activity(e, &a, &s, 1);
        CHECK(s.n_held == 0 && s.request == 0 && a.n_pages_idle == 0);
        u = run(e, longer, 1, NULL);
        CHECK(u.cached_tokens == 0 && u.common_tokens == 0);
        CHECK_INT(u.miss, LATHE_MISS_COLD);
        u = run(e, text, 1, NULL);
        CHECK(u.cached_tokens == 0 && u.common_tokens > 0);
        CHECK_INT(u.miss, LATHE_MISS_DIFFERS);
        CHECK_OK(lathe_engine_forget(e, slot, &err), &err);
    }
    CHECK_ERR(lathe_engine_forget(e, 1, &err), &err, LATHE_E_ARGUMENT, "only 0 to 0");
    CHECK_ERR(lathe_engine_forget(e, -2, &err), &err, LATHE_E_ARGUMENT, "no slot -2");
    lathe_engine_close(e);
}

TEST(names)
{
    CHECK_STR(lathe_miss_name(LATHE_MISS_DIFFERS), "differs");
    CHECK_STR(lathe_miss_name((lathe_miss)9), "unknown");
}

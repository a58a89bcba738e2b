/* Memory plans: what they say is what is taken; what does not fit is refused with numbers; the largest context
 * that fits. On the GPU where there is one: the same through the same interface. */
#include "engine/engine.h"
#include "make_model.h"
#include "test.h"

static const char *const specs[] = {"none", "ngram", "mtp", "mtp+ngram", "dflash2+ngram"};
enum { N_SPECS = sizeof specs / sizeof *specs };

static lathe_engine_options nano(int32_t n_ctx, const char *spec)
{
    lathe_engine_options o;
    lathe_engine_options_init(&o);
    o.model_dir = test_path("models/nano");
    o.n_ctx = n_ctx;
    o.n_threads = 2;
    o.spec = spec;
    return o;
}

static uint64_t taken(const lathe_memory_plan *p)
{
    return p->total - p->mapped;
}

static void check_sum(const lathe_memory_plan *p)
{
    CHECK_INT(p->total, p->weights + p->kv + p->recurrent + p->drafter + p->workspace + p->driver);
    CHECK((p->driver > 0) == (strncmp(p->device, "cuda", 4) == 0));
    CHECK(p->mapped <= p->total && p->head_room > 0 && p->device_total >= p->device_free);
    CHECK(p->device[0] != 0);
}

TEST(a_plan_is_what_is_taken)
{
    for (int i = 0; i < N_SPECS; i++)
        for (int32_t n_slots = 1; n_slots <= 3; n_slots += 2) {
            lathe_engine_options o = nano(1000, specs[i]);
            lathe_memory_plan plan, opened;
            lathe_engine *e;
            lathe_error err;
            o.n_slots = n_slots;
            CHECK_OK(lathe_plan(&o, &plan, &err), &err);
            check_sum(&plan);
            CHECK((plan.drafter > 0) == (i > 0));
            CHECK_OK(lathe_engine_open(&e, &o, &err), &err);
            lathe_engine_plan(e, &opened);
            CHECK_INT(opened.total, plan.total);
            CHECK_INT(opened.n_ctx, 1000);
            const struct memory *m = &e->memory;
            CHECK_INT(m->cache.used, m->cache.size);
            CHECK_INT(m->workspace.used, m->workspace.size);
            CHECK_INT(m->weights.used, m->weights.size);
            uint64_t regions = m->cache.size + m->workspace.size + m->weights.size;
            CHECK_INT(regions + e->backend->own_bytes + (e->backend->is_host ? m->host : 0),
                      taken(&plan) - plan.driver);
            CHECK(e->backend->is_host == (m->weights.size == 0));
            CHECK(e->backend->is_host == (plan.mapped > 0));
            lathe_engine_close(e);
        }
}

/* One page more than the context that was chosen does not fit. */
TEST(the_largest_context_is_chosen)
{
    for (int i = 0; i < N_SPECS; i++) {
        lathe_engine_options o = nano(4096, specs[i]);
        lathe_memory_plan plan, chosen;
        lathe_error err;
        CHECK_OK(lathe_plan(&o, &plan, &err), &err);
        o.n_ctx = LATHE_CTX_AUTO;
        o.memory = taken(&plan);
        CHECK_OK(lathe_plan(&o, &chosen, &err), &err);
        check_sum(&chosen);
        CHECK(chosen.n_ctx >= 4096 && chosen.n_ctx < 32768 && chosen.n_ctx % 64 == 0);
        CHECK(taken(&chosen) <= o.memory);
        o.n_ctx = chosen.n_ctx;
        CHECK_OK(lathe_plan(&o, &plan, &err), &err);
        CHECK_INT(plan.total, chosen.total);
        o.n_ctx = chosen.n_ctx + 64;
        CHECK_ERR(lathe_plan(&o, &plan, &err), &err, LATHE_E_MEMORY, "would fit");
        CHECK(taken(&plan) > o.memory && plan.n_ctx == chosen.n_ctx + 64);
    }
    lathe_engine_options o = nano(LATHE_CTX_AUTO, "none");
    lathe_memory_plan plan;
    lathe_error err;
    CHECK_OK(lathe_plan(&o, &plan, &err), &err);
    CHECK_INT(plan.n_ctx, 32768); /* all that the model has */
}

static void answer(lathe_engine *e)
{
    lathe_request_options ro;
    lathe_request *r;
    lathe_event ev;
    lathe_error err;
    lathe_request_options_init(lathe_engine_text(e), false, &ro);
    ro.text = "A kiln is a";
    ro.n_text = strlen(ro.text);
    CHECK_OK(lathe_request_submit(e, &ro, &r, &err), &err);
    do
        lathe_request_next(r, -1, &ev);
    while (ev.type != LATHE_EVENT_FINISH);
    CHECK(ev.finish != LATHE_FINISH_ERROR && ev.usage.completion_tokens > 0);
    lathe_request_close(r);
}

/* A chosen context below the prefill chunk, and an engine that runs in it. */
TEST(an_engine_opens_in_little_memory)
{
    lathe_engine_options o = nano(192, "mtp");
    lathe_memory_plan plan;
    lathe_engine *e;
    lathe_error err;
    CHECK_OK(lathe_plan(&o, &plan, &err), &err);
    o.n_ctx = LATHE_CTX_AUTO;
    o.memory = taken(&plan);
    CHECK_OK(lathe_engine_open(&e, &o, &err), &err);
    lathe_engine_plan(e, &plan);
    CHECK(plan.n_ctx >= 64 && plan.n_ctx <= 192 && taken(&plan) <= o.memory);
    answer(e);
    lathe_engine_close(e);
}

TEST(what_does_not_fit_is_refused_with_numbers)
{
    lathe_engine_options o = nano(32768, "dflash2");
    lathe_memory_plan plan;
    lathe_engine *e;
    lathe_error err;
    o.n_ctx = 4096;
    CHECK_OK(lathe_plan(&o, &plan, &err), &err);
    o.memory = taken(&plan);
    o.n_ctx = 32768;
    CHECK_ERR(lathe_plan(&o, &plan, &err), &err, LATHE_E_MEMORY, "a context of 32768 in 1 slot");
    check_sum(&plan);
    CHECK_INT(plan.n_ctx, 32768);
    CHECK_ERR(lathe_engine_open(&e, &o, &err), &err, LATHE_E_MEMORY, "KV cache 67.1 MB");
    CHECK(e == NULL);
    CHECK(strstr(err.message, "it may take ") && strstr(err.message, " MB; a context of "));
    CHECK((strstr(err.message, ", driver ") != NULL) == (plan.driver > 0));
    o.memory = 1000 * 1000;
    CHECK_ERR(lathe_engine_open(&e, &o, &err), &err, LATHE_E_MEMORY, "no context fits");
    o.n_ctx = LATHE_CTX_AUTO;
    CHECK_ERR(lathe_engine_open(&e, &o, &err), &err, LATHE_E_MEMORY, "a context of 64 in 1 slot");
    CHECK(e == NULL && strstr(err.message, "no context fits"));
    o.n_ctx = -2;
    CHECK_ERR(lathe_plan(&o, &plan, &err), &err, LATHE_E_ARGUMENT, "n_ctx) is -2");
    CHECK_INT(plan.total, 0);
    /* A drafter that cannot be opened is refused before anything is planned. */
    o = nano(256, "dflash2");
    o.draft_dir = "no/such/drafter";
    CHECK_ERR(lathe_plan(&o, &plan, &err), &err, LATHE_E_IO, "no/such/drafter");
    CHECK_INT(plan.total, 0);
}

/* Slots times context beyond what the cache can number, and just within: nothing is taken for a plan. */
TEST(contexts_beyond_all_memory_are_refused)
{
    struct model_spec s;
    lathe_memory_plan plan;
    lathe_error err;
    model_spec_init(&s);
    s.vocab = 8192;
    s.tokenizer = true;
    s.max_position = 1 << 30;
    make_model(test_tmp("endless"), &s);
    for (int i = 0; i < 2; i++) {
        lathe_engine_options o = nano(1 << 30, i ? "mtp" : "none");
        o.model_dir = test_tmp("endless");
        o.n_slots = 256;
        CHECK_ERR(lathe_plan(&o, &plan, &err), &err, LATHE_E_LIMIT,
                  "KV cache of 256 x 1073741824 positions: 4294967296 pages of 64");
        CHECK_INT(plan.total, 0);
        o.n_slots = 127;
        if (!test_quick())
            CHECK_ERR(lathe_plan(&o, &plan, &err), &err, LATHE_E_MEMORY, "1073741824");
        o.n_slots = 256;
        o.n_ctx = LATHE_CTX_AUTO;
        o.memory = 2000 * 1000 * 1000;
        CHECK_OK(lathe_plan(&o, &plan, &err), &err);
        check_sum(&plan);
        CHECK(plan.n_ctx >= KV_PAGE && taken(&plan) <= o.memory);
    }
}

struct seen {
    uint64_t last, total;
    uint64_t most; /* 0: all */
};

static bool note(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct seen *s = ctx;
    CHECK_STR(what, "loading");
    CHECK(done >= s->last && done <= total);
    s->last = done;
    s->total = total;
    return s->most == 0 || done < s->most;
}

/* One bar from nothing to all weights, the drafter's too. */
TEST(loading_is_reported)
{
    lathe_engine_options o = nano(256, "dflash2");
    struct seen seen = {0};
    lathe_engine *e;
    lathe_error err;
    o.progress = note;
    o.progress_ctx = &seen;
    CHECK_OK(lathe_engine_open(&e, &o, &err), &err);
    CHECK(seen.total > 28000000 && seen.last == seen.total);
    lathe_engine_close(e);
}

/* Wherever it is, and nothing stays behind. */
TEST(loading_is_stopped)
{
    for (uint64_t most = 1; most < 28000000; most += 9000000) {
        lathe_engine_options o = nano(256, "dflash2");
        struct seen seen = {.most = most};
        lathe_engine *e;
        lathe_error err;
        o.progress = note;
        o.progress_ctx = &seen;
        CHECK_ERR(lathe_engine_open(&e, &o, &err), &err, LATHE_E_CANCELLED, "stopped");
        CHECK(e == NULL);
        CHECK(seen.last >= most && seen.last <= seen.total);
    }
}

#ifdef LATHE_CUDA
/* What is free is told of the whole device: where others use it meanwhile, it is looked at again. */
enum { TRIES = 10 };

static size_t device_free(void *stream)
{
    size_t total, room;
    backend_cuda.room(stream, &total, &room);
    return room;
}

/* Once the device's context and the libraries' are there, plans leave as much free as they found. */
TEST(a_plan_takes_nothing_of_the_device)
{
    void *stream;
    size_t total, room;
    lathe_error err;
    if (backend_cuda.open(&stream, NULL, NULL, &err))
        SKIP("%s", err.message);
    backend_cuda.room(stream, &total, &room);
    for (int i = 0; i < N_SPECS; i++) {
        lathe_engine_options o = nano(LATHE_CTX_AUTO, specs[i]);
        lathe_memory_plan plan;
        bool is_same = false;
        o.device = "cuda";
        for (int k = 0; k < TRIES && !is_same; k++) {
            size_t before = device_free(stream);
            CHECK_OK(lathe_plan(&o, &plan, &err), &err);
            is_same = device_free(stream) == before;
        }
        CHECK(is_same);
        check_sum(&plan);
        CHECK_INT(plan.mapped, 0);
        CHECK_INT(plan.device_total, total);
        CHECK(strncmp(plan.device, "cuda sm_", 8) == 0);
    }
    backend_cuda.close(stream);
}

/* What the driver takes for an engine that has run, which in its first is all code of kernels and what libraries have,
 * and in all of them the graphs of its rounds, is within the plan's allowance. */
TEST(a_device_gives_what_is_planned)
{
    void *stream;
    lathe_error err;
    if (backend_cuda.open(&stream, NULL, NULL, &err))
        SKIP("%s", err.message);
    for (int i = 0; i < N_SPECS; i++) {
        lathe_engine_options o = nano(4096, specs[i]);
        lathe_memory_plan plan;
        bool is_within = false;
        o.device = "cuda";
        for (int k = 0; k < TRIES && !is_within; k++) {
            lathe_engine *e;
            size_t before = device_free(stream);
            CHECK_OK(lathe_engine_open(&e, &o, &err), &err);
            lathe_engine_plan(e, &plan);
            answer(e);
            int64_t driver = (int64_t)before - (int64_t)device_free(stream) -
                             (int64_t)(plan.total - plan.driver);
            lathe_engine_close(e);
            is_within = driver >= 0 && driver <= (int64_t)plan.driver;
            printf("     %s: %lld bytes of the driver, %llu planned\n", specs[i], (long long)driver,
                   (unsigned long long)plan.driver);
        }
        CHECK(is_within);
    }
    backend_cuda.close(stream);
}
#endif

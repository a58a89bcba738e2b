/* Warming up: every kind of round runs, and leaves no trace. */
#include <sched.h>

#include "engine/engine.h"
#include "test.h"

static const char *const specs[] = {"none",      "ngram",   "mtp",
                                    "mtp+ngram", "dflash2", "dflash2+ngram"};

static lathe_engine *open_nano(const char *spec, int32_t n_ctx)
{
    lathe_engine_options o;
    lathe_engine *e;
    lathe_error err;
    lathe_engine_options_init(&o);
    o.model_dir = test_path("models/nano");
    o.n_ctx = n_ctx;
    o.n_threads = 2;
    o.spec = spec;
    o.device = "cpu";
    o.draft_k = strcmp(spec, "none") == 0 ? 0 : 5;
    o.fixed_k = o.draft_k > 0;
    CHECK_OK(lathe_engine_open(&e, &o, &err), &err);
    return e;
}

static lathe_usage answer(lathe_engine *e, char *text, size_t room)
{
    lathe_request_options o;
    lathe_request *r;
    lathe_event ev;
    lathe_error err;
    size_t n = 0;
    lathe_request_options_init(lathe_engine_text(e), false, &o);
    o.text = "A kiln is a";
    o.n_text = strlen(o.text);
    o.max_tokens = 24;
    o.sampling.temperature = 0;
    text[0] = 0;
    CHECK_OK(lathe_request_submit(e, &o, &r, &err), &err);
    do {
        lathe_request_next(r, -1, &ev);
        if (ev.type == LATHE_EVENT_TEXT && n + ev.n_text < room) {
            memcpy(text + n, ev.text, ev.n_text);
            text[n += ev.n_text] = 0;
        }
    } while (ev.type != LATHE_EVENT_FINISH);
    CHECK(ev.finish != LATHE_FINISH_ERROR);
    lathe_usage usage = ev.usage;
    lathe_request_close(r);
    return usage;
}

static int n_calls[3], most_rows[3]; /* of causal_conv1d_silu, by phase */
static const struct backend *whole;

static lathe_status count(void *stream, const struct causal_conv1d_silu_args *a, lathe_error *err)
{
    n_calls[a->b->phase]++;
    if (a->b->n_rows > most_rows[a->b->phase])
        most_rows[a->b->phase] = a->b->n_rows;
    return whole->causal_conv1d_silu(stream, a, err);
}

/* Waits until the scheduler touches nothing. */
static void rest(lathe_engine *e)
{
    pthread_mutex_lock(&e->lock);
    while (!e->resting || e->kicked) {
        pthread_mutex_unlock(&e->lock);
        sched_yield();
        pthread_mutex_lock(&e->lock);
    }
    pthread_mutex_unlock(&e->lock);
}

/* On the host there is nothing to warm: this one says that it is none. */
static void warm(lathe_engine *e)
{
    rest(e);
    struct backend device = *e->backend, counting = *e->step.x.backend;
    const struct backend *host = e->backend;
    lathe_error err;
    whole = e->step.x.backend;
    counting.causal_conv1d_silu = count;
    device.is_host = false;
    memset(n_calls, 0, sizeof n_calls);
    memset(most_rows, 0, sizeof most_rows);
    e->backend = &device;
    e->step.x.backend = &counting;
    CHECK_OK(warm_up(e, &err), &err);
    e->step.x.backend = whole;
    e->backend = host;
}

TEST(every_kind_of_round_runs_and_leaves_no_trace)
{
    enum { GDN_LAYERS = 6 };
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        char before[1024], after[1024];
        lathe_engine *e = open_nano(specs[i], 256);
        warm(e);
        CHECK_INT(most_rows[PHASE_PREFILL], 32);
        CHECK_INT(n_calls[PHASE_PREFILL], GDN_LAYERS);
        CHECK_INT(n_calls[PHASE_DECODE], GDN_LAYERS);
        CHECK_INT(n_calls[PHASE_VERIFY], GDN_LAYERS * e->spec.draft_k);
        CHECK_INT(most_rows[PHASE_VERIFY], e->spec.draft_k ? 1 + e->spec.draft_k : 0);
        CHECK_INT(e->slots[0].n_committed, 0);
        lathe_usage first = answer(e, before, sizeof before);
        CHECK_INT(first.cached_tokens, 0);
        CHECK(before[0] != 0);
        lathe_engine_close(e);
        e = open_nano(specs[i], 256);
        lathe_usage cold = answer(e, after, sizeof after);
        CHECK_STR(after, before);
        CHECK_INT(cold.spec.rounds, first.spec.rounds);
        CHECK_INT(cold.spec.accepted, first.spec.accepted);
        lathe_engine_close(e);
    }
}

/* Rounds are those that fit, in small contexts. */
TEST(small_contexts)
{
    for (int32_t n_ctx = 1; n_ctx < 48; n_ctx += n_ctx < 4 ? 1 : 7) {
        lathe_engine *e = open_nano("mtp+ngram", n_ctx);
        warm(e);
        CHECK_INT(e->slots[0].n_committed, 0);
        lathe_engine_close(e);
    }
}

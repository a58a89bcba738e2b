/* A KV cache of E4M3 codes, end to end: what it costs in quality and saves in memory, and that speculation and
 * plain decoding agree on it as they do on any other. */
#include "test.h"

#include "engine/engine.h"
#include "passage.h"
#include "tol.h"

static lathe_engine *open_nano(lathe_dtype kv, lathe_dtype activations, const char *spec)
{
    lathe_engine_options o;
    lathe_engine *e;
    lathe_error err;
    lathe_engine_options_init(&o);
    o.model_dir = test_path("models/nano");
    o.n_ctx = 1024;
    o.n_threads = 2;
    o.kv = kv;
    o.activations = activations;
    o.spec = spec;
    o.fixed_k = true;
    CHECK_OK(lathe_engine_open(&e, &o, &err), &err);
    return e;
}

static double nats(lathe_dtype kv, lathe_dtype activations)
{
    lathe_engine *e = open_nano(kv, activations, "none");
    double mean = passage_nats(e);
    lathe_engine_close(e);
    return mean;
}

TEST(e4m3_costs_little)
{
    static const lathe_dtype act[] = {LATHE_BF16, LATHE_F32};
    for (int i = 0; i < 2; i++) {
        double want = nats(act[i], act[i]), got = nats(LATHE_F8_E4M3, act[i]);
        printf("     %.5f nats a token, without E4M3 %.5f\n", got, want);
        CHECK(got != want); /* or it is not in use */
        if (!(fabs(got - want) < TOL_E4M3_NATS))
            FAIL("%.5f nats a token, %.5f without E4M3: further than %g", got, want, TOL_E4M3_NATS);
    }
}

TEST(e4m3_is_half_of_bf16)
{
    lathe_memory_plan plan[2];
    for (int i = 0; i < 2; i++) {
        lathe_engine *e = open_nano(i ? LATHE_F8_E4M3 : LATHE_BF16, LATHE_BF16, "none");
        lathe_engine_plan(e, &plan[i]);
        lathe_engine_close(e);
    }
    CHECK_INT(plan[1].kv_per_token * 2, plan[0].kv_per_token);
    CHECK(plan[1].kv < plan[0].kv / 2 + 4096);
}

static int32_t answer(lathe_engine *e, const char *text, int32_t *token, int32_t most,
                      int32_t *accepted)
{
    lathe_request_options o;
    lathe_request *r;
    lathe_event ev;
    lathe_error err;
    int32_t n = 0;
    lathe_request_options_init(lathe_engine_text(e), false, &o);
    o.text = text;
    o.n_text = strlen(text);
    o.ignore_eos = true;
    o.max_tokens = most;
    o.n_logprobs = 0; /* events of tokens */
    o.sampling.temperature = 0;
    CHECK_OK(lathe_request_submit(e, &o, &r, &err), &err);
    do {
        lathe_request_next(r, -1, &ev);
        if (ev.type == LATHE_EVENT_TOKEN)
            token[n++] = ev.token.id;
    } while (ev.type != LATHE_EVENT_FINISH);
    if (ev.finish == LATHE_FINISH_ERROR)
        FAIL("%s", ev.error.message);
    *accepted += ev.usage.spec.accepted;
    lathe_request_close(r);
    return n;
}

TEST(speculation_equals_plain_on_e4m3)
{
    enum { MOST = 48 };
    static const char *const spec[] = {"mtp", "dflash2", "dflash2+ngram"};
    static const char *const text[] = {
        "A kiln is", "Once upon a time there was a fox.",
        "one two three four one two three four one two three four one two"};
    static const lathe_dtype act[] = {LATHE_BF16, LATHE_F32};
    int32_t most = test_quick() ? 24 : MOST;
    for (int a = 0; a < 2; a++) {
        int32_t want[3][MOST], got[MOST], none = 0;
        lathe_engine *plain = open_nano(LATHE_F8_E4M3, act[a], "none");
        for (int i = 0; i < 3; i++)
            CHECK_INT(answer(plain, text[i], want[i], most, &none), most);
        CHECK_INT(none, 0);
        lathe_engine_close(plain);
        for (int s = 0; s < (act[a] == LATHE_BF16 ? 3 : 1); s++) {
            int32_t accepted = 0;
            lathe_engine *e = open_nano(LATHE_F8_E4M3, act[a], spec[s]);
            for (int i = 0; i < 3; i++) {
                CHECK_INT(answer(e, text[i], got, most, &accepted), most);
                for (int32_t t = 0; t < most; t++)
                    if (got[t] != want[i][t])
                        FAIL("%s, text %d: token %d is %d, plain decoding gives %d", spec[s], i, t,
                             got[t], want[i][t]);
            }
            CHECK(accepted > 0);
            lathe_engine_close(e);
        }
    }
}

TEST(dtypes_are_checked)
{
    lathe_engine_options o;
    lathe_engine *e;
    lathe_error err;
    lathe_engine_options_init(&o);
    o.model_dir = test_path("models/nano");
    o.activations = LATHE_F8_E4M3;
    CHECK_ERR(lathe_engine_open(&e, &o, &err), &err, LATHE_E_ARGUMENT,
              "activations are BF16 or F32");
    o.activations = LATHE_BF16;
    o.kv = (lathe_dtype)77;
    CHECK_ERR(lathe_engine_open(&e, &o, &err), &err, LATHE_E_ARGUMENT, "BF16, F32 or E4M3");
}

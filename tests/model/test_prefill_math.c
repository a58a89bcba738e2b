/* Prompts in FP8, end to end: what they cost in quality, and who cannot have them. */
#include "passage.h"
#include "test.h"
#include "tol.h"

static lathe_status open_nano(lathe_engine **e, lathe_prefill_math math, const char *device,
                              lathe_error *err)
{
    lathe_engine_options o;
    lathe_engine_options_init(&o);
    o.model_dir = test_path("models/nano");
    o.n_ctx = 1024;
    o.n_threads = 2;
    o.spec = "none";
    o.device = device;
    o.prefill_math = math;
    return lathe_engine_open(e, &o, err);
}

TEST(the_processor_has_none)
{
    lathe_engine *e;
    lathe_error err;
    for (int math = LATHE_PREFILL_FP8; math <= LATHE_PREFILL_NVFP4; math++)
        CHECK_ERR(open_nano(&e, (lathe_prefill_math)math, "cpu", &err), &err, LATHE_E_UNSUPPORTED,
                  "prompts in FP8 or NVFP4 need a GPU; this is the cpu");
}

#ifdef LATHE_CUDA
TEST(fp8_costs_little)
{
    lathe_engine *e;
    lathe_error err;
    double nats[2];
    if (open_nano(&e, LATHE_PREFILL_FP8, "cuda", &err))
        SKIP("%s", err.message);
    nats[1] = passage_nats(e);
    lathe_engine_close(e);
    CHECK_OK(open_nano(&e, LATHE_PREFILL_BF16, "cuda", &err), &err);
    nats[0] = passage_nats(e);
    lathe_engine_close(e);
    printf("     %.5f nats a token, without FP8 %.5f\n", nats[1], nats[0]);
    CHECK(nats[1] != nats[0]); /* or it is not in use */
    if (!(fabs(nats[1] - nats[0]) < TOL_FP8_PROMPT_NATS))
        FAIL("%.5f nats a token, %.5f without FP8: further than %g", nats[1], nats[0],
             TOL_FP8_PROMPT_NATS);
}

/* A device that lacks it says what it needs. */
TEST(nvfp4_needs_a_later_device)
{
    lathe_engine *e;
    lathe_error err;
    lathe_status st = open_nano(&e, LATHE_PREFILL_NVFP4, "cuda", &err);
    if (!st)
        lathe_engine_close(e);
    else if (st == LATHE_E_DEVICE)
        SKIP("%s", err.message);
    else
        CHECK_ERR(st, &err, LATHE_E_UNSUPPORTED, "in NVFP4 need compute capability 12.0 or later");
}
#endif

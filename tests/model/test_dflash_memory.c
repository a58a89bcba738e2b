/* Block drafters and memory: proposals allocate nothing, and opening survives any allocation that fails. */
#include "draft_rig.h"
#include "fail_alloc.h"
#include "test.h"

enum { TAPS = 3, H = 64, ROWS = 50 };

static void check(const char *architecture)
{
    static float feature[ROWS * TAPS * H];
    struct drafter_spec s;
    struct out_file f;
    struct draft_rig r;
    struct rng rng = {2};
    struct draft_rig_options o = {
        .rig = {.act = DT_F32, .kv = DT_F32, .n_threads = 1, .n_ctx = 128}};
    int32_t drafts[SPEC_MAX_DRAFT];
    lathe_error err;
    drafter_spec_init(&s, architecture);
    drafter_tensors(&f, &s);
    draft_rig_make(&r, &s, &f, &o);
    r.sampling.temperature = 0.7f;
    r.sampling.presence_penalty = 0.5f;
    draft_rig_sampler(&r, 0);
    for (int i = 0; i < ROWS * TAPS * H; i++)
        feature[i] = (float)rng_normal(&rng);

    fail_alloc_arm(1);
    draft_rig_feed(&r, 0, tensor_2d(feature, DT_F32, ROWS, TAPS * H));
    for (int i = 0; i < 20; i++) {
        CHECK(draft_rig_propose(&r, 0, i, SPEC_MAX_DRAFT, drafts) > 0);
        draft_rig_feed(&r, 0, tensor_2d(feature, DT_F32, 1 + i % 4, TAPS * H));
    }
    drafter_dflash2.rewind(r.d, 0, 70);
    drafter_dflash2.rewind(r.d, 0, 0);
    CHECK(!fail_alloc_disarm());

    /* Each allocation of another opening fails in turn. */
    struct drafter_options again = r.d->o;
    struct drafter *d;
    size_t nth = 1;
    again.dir = draft_rig_dir();
    struct memory m;
    for (;; nth++) {
        memory_loose(&m, again.backend, again.stream);
        fail_alloc_arm(nth);
        lathe_status st = drafter_open(&drafter_dflash2, &d, &again, &m, &err);
        if (!fail_alloc_disarm())
            break;
        CHECK_INT(st, LATHE_E_MEMORY);
        CHECK(d == NULL);
        memory_close(&m);
    }
    CHECK(nth > 20);
    drafter_dflash2.close(d);
    memory_close(&m);
    draft_rig_close(&r);
    out_release(&f);
}

TEST(dflash2)
{
    check("DFlash2DraftModel");
}

TEST(dflash)
{
    check("DFlashDraftModel");
}

TEST(dspark)
{
    check("DSparkDraftModel");
}

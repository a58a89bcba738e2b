/* A step allocates nothing: prompt and decode steps and the choice of a token run with an allocation that
 * would fail. */
#include "fail_alloc.h"
#include "rig.h"
#include "test.h"

#include "sample/sample.h"

TEST(a_step_allocates_nothing)
{
    int32_t token[100], top_n, id;
    struct rng rng = {1};
    struct rig r;
    struct rig_options o = {
        .dir = test_path("models/nano"), .act = DT_BF16, .kv = DT_BF16, .n_threads = 1};
    lathe_error err;
    lathe_candidate top[20];
    float logprob;
    rig_open(&r, &o);
    for (int i = 0; i < 100; i++)
        token[i] = (int32_t)rng_below(&rng, 8000);
    struct id_set ids;
    struct sample_scratch scratch;
    struct sampler *sampler;
    lathe_sampling sampling = {.temperature = 0.8f,
                               .top_k = 40,
                               .top_p = 0.9f,
                               .min_p = 0.01f,
                               .presence_penalty = 0.5f,
                               .frequency_penalty = 0.1f,
                               .repetition_penalty = 1.1f,
                               .seed = 3};
    struct sampler_options so = {
        .sampling = &sampling, .ids = &ids, .prompt = token, .n_prompt = 100};
    CHECK_OK(id_set_init(&ids, r.model.dims.vocab, NULL, &err), &err);
    CHECK_OK(sample_scratch_init(&scratch, r.model.dims.vocab, &err), &err);
    CHECK_OK(sampler_open(&sampler, &so, &err), &err);

    fail_alloc_arm(1);
    rig_run(&r, PHASE_PREFILL, 0, 0, token, 100);
    const float *logits = rig_logits(&r, 99);
    for (int32_t i = 0; i < 200; i++) {
        CHECK_OK(sampler_pick(sampler, &scratch, logits, NULL, 0, &id, &err), &err);
        sampler_commit(sampler, &id, 1);
        logits_logprobs(logits, &ids, id, &logprob, top, 20, &top_n);
        rig_run(&r, PHASE_DECODE, 0, 100 + i, &id, 1);
        logits = rig_logits(&r, 0);
    }
    CHECK(!fail_alloc_disarm());

    sampler_close(sampler);
    sample_scratch_release(&scratch);
    id_set_release(&ids);
    rig_close(&r);
}

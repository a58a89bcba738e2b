/* A device loads a kernel, and a library's choice for a shape, when it is first used: a short prompt, a decoded row and
 * rounds of every length go through slot 0, so that the first request does not wait for them. Then the rounds that the
 * device decides are captured. */
#include <string.h>

#include "engine/engine.h"

enum { PROMPT_ROWS = 32 };

/* n rows of token 0 from position pos on, and the best ids of the last of them. */
static lathe_status pass(struct lathe_engine *e, enum phase phase, int32_t pos, int32_t n,
                         int32_t n_best, lathe_error *err)
{
    struct step *step = &e->step;
    int32_t last = n - 1;
    step_begin(step, phase);
    step_add(step, 0, pos, e->slots[0].token + pos, n);
    lathe_status st = step_run(step, err);
    if (!st && phase == PHASE_VERIFY)
        st = step_best(step, NULL, n, n_best, err);
    else if (!st)
        st = step_best(step, &last, 1, n_best, err);
    if (!st && phase == PHASE_VERIFY)
        st = step_commit(step, step->batch.seq, 1, err);
    return st ? st : spec_committed(e, 0, pos, 0, n, err);
}

/* A round of k drafts, which are kept whatever they are. */
static lathe_status warm_round(struct lathe_engine *e, struct sampler *sampler, int32_t pos,
                               int32_t k, int32_t n_best, lathe_error *err)
{
    struct slot *s = &e->slots[0];
    struct draft_request d = {
        .pos = pos,
        .anchor = s->token[pos],
        .most = k,
        .most_from = {[DRAFT_LOOKUP] = -1}, /* which would find token 0 everywhere */
        .sampler = sampler,
        .history = s->token,
        .law = e->spec.law,
    };
    lathe_status st = e->spec.ops->propose(e->spec.drafter, &d, 1, err);
    return st ? st : pass(e, PHASE_VERIFY, pos, 1 + k, n_best, err);
}

static lathe_status warm_rounds(struct lathe_engine *e, int32_t pos, lathe_error *err)
{
    lathe_request_options request;
    struct sampler *sampler;
    lathe_request_options_init(e->text, false, &request);
    struct sampler_options o = {.sampling = &request.sampling, .ids = &e->ids};
    lathe_status st = sampler_open(&sampler, &o, err);
    if (st)
        return st;
    int32_t n_best = sampler_best(sampler) > 0 ? sampler_best(sampler) : 1;
    for (int32_t k = 1; k <= e->spec.draft_k && pos + 1 + k <= e->options.n_ctx && !st; k++) {
        st = warm_round(e, sampler, pos, k, n_best, err);
        pos += 1 + k;
    }
    sampler_close(sampler);
    return st;
}

lathe_status warm_up(struct lathe_engine *e, lathe_error *err)
{
    int32_t most = e->options.n_ctx - 1;
    if (most > e->options.prefill_chunk)
        most = e->options.prefill_chunk;
    int32_t n = most < PROMPT_ROWS ? most : PROMPT_ROWS;
    if (e->backend->is_host || n < 1)
        return ahead_open(e, 0, err);
    memset(e->slots[0].token, 0, (size_t)e->options.n_ctx * sizeof(int32_t));
    lathe_status st = pass(e, PHASE_PREFILL, 0, n, 1, err);
    if (!st)
        st = pass(e, PHASE_DECODE, n, 1, 1, err);
    if (!st && e->spec.ops)
        st = warm_rounds(e, n + 1, err);
    if (!st)
        st = e->backend->wait(e->stream, err);
    slot_wipe(e, &e->slots[0]);
    if (!st && e->backend->capture)
        st = pass(e, PHASE_DECODE, 0, 1, 1, err);
    if (!st)
        st = ahead_open(e, 1, err);
    slot_wipe(e, &e->slots[0]);
    return st;
}

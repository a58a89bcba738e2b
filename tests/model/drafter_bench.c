#include "drafter_bench.h"

#include "test.h"

const lathe_sampling bench_greedy = {.top_p = 1, .repetition_penalty = 1};

void bench_open(struct bench *b, const struct drafter_ops *ops, const struct rig_options *o)
{
    lathe_error err;
    *b = (struct bench){.ops = ops};
    rig_open(&b->r, o);
    int32_t vocab = b->r.model.dims.vocab, n_ctx = o->n_ctx ? o->n_ctx : 1024;
    CHECK_OK(id_set_init(&b->ids, vocab, NULL, &err), &err);
    CHECK_OK(sample_scratch_init(&b->scratch, vocab, &err), &err);
    b->o = (struct drafter_options){
        .model = &b->r.model,
        .backend = b->r.backend,
        .stream = b->r.stream,
        .ids = &b->ids,
        .scratch = &b->scratch,
        .act = o->act,
        .kv = o->kv,
        .n_slots = o->n_slots ? o->n_slots : 1,
        .n_ctx = n_ctx,
        .max_rows = o->max_rows ? o->max_rows : n_ctx,
    };
    CHECK_OK(drafter_open(ops, &b->d, &b->o, &b->r.memory, &err), &err);
}

void bench_close(struct bench *b)
{
    b->ops->close(b->d);
    sample_scratch_release(&b->scratch);
    id_set_release(&b->ids);
    rig_close(&b->r);
}

void bench_tell(struct bench *b, int32_t slot, const int32_t *token, int32_t pos, int32_t n,
                int32_t first)
{
    lathe_error err;
    struct committed c = {.slot = slot,
                          .pos = pos,
                          .n = n,
                          .token = token + pos,
                          .hidden = tensor_rows(b->r.step.hidden, first, n)};
    CHECK_OK(b->ops->committed(b->d, &c, &err), &err);
}

void bench_feed(struct bench *b, int32_t slot, const int32_t *token, int32_t pos, int32_t n)
{
    rig_run(&b->r, PHASE_PREFILL, slot, pos, token + pos, n);
    bench_tell(b, slot, token, pos, n, 0);
}

void bench_reset(struct bench *b, int32_t slot)
{
    rig_reset(&b->r, slot);
    b->ops->rewind(b->d, slot, 0);
}

struct sampler *bench_sampler(const struct bench *b, const lathe_sampling *sampling,
                              const int32_t *token, int32_t n)
{
    lathe_error err;
    struct sampler *s;
    struct sampler_options o = {
        .sampling = sampling, .ids = &b->ids, .prompt = token, .n_prompt = n};
    CHECK_OK(sampler_open(&s, &o, &err), &err);
    return s;
}

struct draft_request bench_propose(struct bench *b, int32_t slot, const lathe_sampling *sampling,
                                   const int32_t *token, int32_t n, int32_t most)
{
    lathe_error err;
    struct draft_request r = {.slot = slot,
                              .pos = n - 1,
                              .anchor = token[n - 1],
                              .most = most,
                              .history = token,
                              .sampler = bench_sampler(b, sampling, token, n)};
    CHECK_OK(b->ops->propose(b->d, &r, 1, &err), &err);
    sampler_close(r.sampler);
    r.sampler = NULL;
    return r;
}

struct buf bench_save(const struct bench *b, int32_t slot)
{
    lathe_error err;
    struct buf x;
    buf_init(&x, 1 << 28);
    CHECK_OK(b->ops->save(b->d, slot, &x, &err), &err);
    return x;
}

void check_same_bytes(const struct buf *a, const struct buf *b)
{
    CHECK_INT(a->len, b->len);
    CHECK(memcmp(a->data, b->data, a->len) == 0);
}

void check_same_drafts(const struct draft_request *a, const struct draft_request *b)
{
    CHECK_INT(a->n, b->n);
    for (int32_t i = 0; i < a->n; i++)
        CHECK_INT(a->draft[i], b->draft[i]);
}

void random_tokens(int32_t *token, int32_t n, uint32_t vocab, uint64_t seed)
{
    struct rng rng = {seed};
    for (int32_t i = 0; i < n; i++)
        token[i] = (int32_t)rng_below(&rng, vocab);
}

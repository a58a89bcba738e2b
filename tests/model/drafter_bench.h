/* A drafter that needs no taps, beside a rig, and what it borrows: for tests that look at proposals. */
#ifndef LATHE_TESTS_MODEL_DRAFTER_BENCH_H
#define LATHE_TESTS_MODEL_DRAFTER_BENCH_H

#include "base/buf.h"
#include "rig.h"
#include "spec/drafter.h"

struct bench {
    struct rig r;
    struct id_set ids;
    struct sample_scratch scratch;
    const struct drafter_ops *ops;
    struct drafter *d;
    struct drafter_options o;
};

extern const lathe_sampling bench_greedy;

void bench_open(struct bench *b, const struct drafter_ops *ops, const struct rig_options *o);
void bench_close(struct bench *b);
/* Runs tokens [pos, pos + n) through the target and tells the drafter. */
void bench_feed(struct bench *b, int32_t slot, const int32_t *token, int32_t pos, int32_t n);
/* Tells the drafter of n tokens from position pos on whose hidden states are rows `first` on of the rig's
 * last run. */
void bench_tell(struct bench *b, int32_t slot, const int32_t *token, int32_t pos, int32_t n,
                int32_t first);
/* Forgets a slot's sequence, in the target and in the drafter. */
void bench_reset(struct bench *b, int32_t slot);

struct sampler *bench_sampler(const struct bench *b, const lathe_sampling *sampling,
                              const int32_t *token, int32_t n);
/* What follows token[0 .. n), the last one being the anchor; at most `most` drafts. */
struct draft_request bench_propose(struct bench *b, int32_t slot, const lathe_sampling *sampling,
                                   const int32_t *token, int32_t n, int32_t most);
/* The slot's context: heap memory. */
struct buf bench_save(const struct bench *b, int32_t slot);

void check_same_bytes(const struct buf *a, const struct buf *b);
void check_same_drafts(const struct draft_request *a, const struct draft_request *b);
void random_tokens(int32_t *token, int32_t n, uint32_t vocab, uint64_t seed);

#endif

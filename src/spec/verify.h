/* The judgement of drafts, and its counters. Verification rows come from one pass of the target over the
 * anchor and the drafts; row j holds the logits of the token that follows draft j. Rows are judged in
 * order: the token that row j gives is published, and if it is draft j + 1, row j + 1 is judged next. */
#ifndef LATHE_SPEC_VERIFY_H
#define LATHE_SPEC_VERIFY_H

#include "sample/sample.h"
#include "spec/drafter.h"

/* How a draft is accepted. Greedy requests are the same in both. */
enum acceptance {
    /* The target's own choice is made as without drafts, with noise of (seed, position, id), and a draft
     * is accepted if it is this choice: the same tokens whatever is drafted. */
    ACCEPT_STRICT,
    /* The draft is accepted with probability min(1, p / q), else the residual law is drawn from: the
     * same law, accepted as often as possible. */
    ACCEPT_REJECTION,
};

struct verify_row {
    const float *logits;         /* [n_vocab] */
    int32_t draft;               /* the draft that this row judges, -1: none */
    const struct draft_law *law; /* it was drawn from; NULL: one token with certainty */
};

/* The token after the sampler's committed ones. The draft was accepted if it is *id. */
lathe_status verify_choose(struct sampler *s, struct sample_scratch *w, enum acceptance how,
                           const struct verify_row *row, int32_t *id, lathe_error *err);

/* Counts one round of n_draft drafts, n_accepted of them accepted. */
void verify_count(lathe_spec_stats *s, int32_t n_draft, int32_t n_accepted);

#endif

/* Speculative sampling: a token with the law p from a draft with the law q (Leviathan et al. 2023, "Fast
 * inference from transformers via speculative decoding"). */
#ifndef LATHE_SAMPLE_REJECT_H
#define LATHE_SAMPLE_REJECT_H

#include "sample/logits.h"

/* Laws are candidates in order of ids, their weights probabilities. p is what the target gives the token at
 * `position`, q what `draft` was drawn from; q NULL: from no law that is known, as is right for any draft
 * that was not drawn at random or whose choice depended on anything but what came before it.
 *
 * The draft is accepted with probability min(1, p(draft) / q(draft)), else the token comes from max(p - q, 0)
 * renormalised (q being the draft with certainty where NULL); *id then has the law p. Noise of
 * (seed, position) in streams of its own: the draft must not depend on it. Returns whether the draft was
 * accepted. p may be overwritten. */
bool reject_draft(struct candidate *p, int32_t n_p, const struct candidate *q, int32_t n_q,
                  int32_t draft, uint64_t seed, int32_t position, int32_t *id);

#endif

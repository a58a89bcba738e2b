/* One row of logits [n_vocab] F32: which ids may be sampled, the filters, log-probabilities.
 *
 * Everywhere "better" is the one total order of tokens: the larger logit, and of equal logits the
 * lower id. Nothing here allocates except the *_init functions. */
#ifndef LATHE_SAMPLE_LOGITS_H
#define LATHE_SAMPLE_LOGITS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* ---- The ids that may be sampled ----------------------------------------------------------- */

struct id_range {
    int32_t begin, end; /* [begin, end) */
};

/* Those ids of a vocabulary's rows that the tokenizer has: the rest is padding of the matrix. */
struct id_set {
    int32_t n_vocab; /* logits in a row */
    int32_t n_ids;   /* members, >= 1 */
    int32_t n_ranges;
    struct id_range *range; /* ascending, apart from each other */
};

/* bits: bit id % 64 of word id / 64 for id in [0, n_vocab); NULL: all of them. */
lathe_status id_set_init(struct id_set *s, int32_t n_vocab, const uint64_t *bits, lathe_error *err);
void id_set_release(struct id_set *s); /* no-op on a zeroed struct */
bool id_set_has(const struct id_set *s, int32_t id);
/* Its ranges as operators take them. */
static inline const int32_t (*id_set_pairs(const struct id_set *s))[2]
{
    return (const int32_t(*)[2])s->range;
}

/* ---- Rows ---------------------------------------------------------------------------------- */

/* LATHE_E_NUMERIC, naming position and id, for NaN or +infinity in the set, or if all of it is
 * -infinity. A single -infinity is a masked token. */
lathe_status logits_check(const float *logits, const struct id_set *ids, int32_t position,
                          lathe_error *err);

/* The best id; -1 if all are -infinity. */
int32_t logits_argmax(const float *logits, const struct id_set *ids);

/* Natural-log probabilities: logit[id] - log(sum over the set of exp(logit)), the sum in double.
 * *logprob is that of id (-infinity outside the set); top[0..*n_got) are the n_top best, best first,
 * masked ones left out. The row has passed logits_check. */
void logits_logprobs(const float *logits, const struct id_set *ids, int32_t id, float *logprob,
                     lathe_candidate *top, int32_t n_top, int32_t *n_got);

/* The n best ids of a row within the set, best first, as op_top_k gives them: NaN stands before all numbers,
 * and where fewer than n are left the id is -1. */
struct logits_best {
    int32_t n;          /* 0: they are not at hand */
    const float *value; /* [n] */
    const int32_t *id;  /* [n] */
};

/* ---- Candidates: what is left of a row ------------------------------------------------------ */

struct candidate {
    double weight; /* exp((logit - best logit) / temperature), where candidates_weigh was called */
    float logit;
    int32_t id;
};

bool candidate_is_better(const struct candidate *a, const struct candidate *b);
/* Every id of the set whose logit is not -infinity, in order of ids. Returns how many. */
int32_t candidates_all(struct candidate *c, const float *logits, const struct id_set *ids);
/* The k best of those, best first; all of them, in order of ids, where the set has no more than k. */
int32_t candidates_top_k(struct candidate *c, const float *logits, const struct id_set *ids,
                         int32_t k);
void candidates_weigh(struct candidate *c, int32_t n, double temperature);
/* Keeps the smallest set of best candidates whose weights sum to p of all weights or more; at least
 * one. Moves them to the front; returns how many. */
int32_t candidates_top_p(struct candidate *c, int32_t n, double p);
/* Keeps the candidates whose probability is at least min_p times the best one's. */
int32_t candidates_min_p(struct candidate *c, int32_t n, double min_p);
/* Puts them in order of ids; the best first. */
void candidates_by_id(struct candidate *c, int32_t n);
void candidates_best_first(struct candidate *c, int32_t n);

#endif

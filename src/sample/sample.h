/* The choice of the next token from a row of logits.
 *
 *   bias       logit += bias, entries of one id adding up; an id whose bias is -100 or less is
 *              banned; if an id that is not banned or suppressed has 100 or more, only such ids stay
 *   suppress   end ids while fewer than min_tokens tokens have been generated
 *   penalties  repetition: x > 0 ? x / r : x * r, for ids in the prompt or generated; then
 *              x -= frequency * count + (count > 0 ? presence : 0), count in the generated tokens
 *   temperature 0: the best token (the larger logit, of equal ones the lower id); else
 *   top-k, top-p, min-p on softmax(x / temperature), each renormalised over what the one before left;
 *              ties are cut by the same order, so a filter keeps a definite set
 *   draw       the id with the largest x / temperature + G(seed, position, id), G a Gumbel variate of
 *              noise.h: the id has exactly the filtered law, and depends on nothing but the row and
 *              the three numbers
 *
 * A sampler belongs to one request. Row i of a verify block is judged with the drafts before it as
 * if they had been generated; only sampler_commit makes tokens part of the history. */
#ifndef LATHE_SAMPLE_SAMPLE_H
#define LATHE_SAMPLE_SAMPLE_H

#include "sample/logits.h"

enum { SAMPLE_MAX_BIAS = 1024, SAMPLE_MAX_TEMPERATURE = 100 };

/* Ranges of every field; messages name field, value and range. `ids` may be NULL: the ids of the
 * bias are then not looked up. */
lathe_status sampling_check(const lathe_sampling *s, const struct id_set *ids, lathe_error *err);

/* Working memory of one call, shared by any number of samplers on one thread. */
struct sample_scratch {
    int32_t n_vocab;
    float *row;             /* [n_vocab]: logits after bias and penalties */
    struct candidate *cand; /* [n_vocab] */
};
lathe_status sample_scratch_init(struct sample_scratch *w, int32_t n_vocab, lathe_error *err);
void sample_scratch_release(struct sample_scratch *w); /* no-op on a zeroed struct */

struct sampler_options {
    const lathe_sampling *sampling; /* copied; passes sampling_check */
    const struct id_set *ids;       /* borrowed as long as the sampler */
    const int32_t *prompt;          /* [n_prompt]; read at open only */
    int32_t n_prompt;
    const int32_t *end_id; /* [n_end]: suppressed before min_tokens; copied */
    int32_t n_end;
    int32_t min_tokens;
    const int32_t *ban; /* [n_ban]: never sampled; copied */
    int32_t n_ban;
};

struct sampler;
lathe_status sampler_open(struct sampler **s, const struct sampler_options *o, lathe_error *err);
void sampler_close(struct sampler *s); /* NULL is allowed */

/* The seed in use: what -1 became. */
int64_t sampler_seed(const struct sampler *s);
/* Temperature 0: a choice is the best token, a law is that token with certainty. */
bool sampler_is_greedy(const struct sampler *s);
/* Position of the next token: prompt and committed tokens. */
int32_t sampler_position(const struct sampler *s);

/* Chooses the token that follows prompt, committed tokens and draft[0..n_draft), from its raw logits
 * [n_vocab]. Leaves the sampler as it was and allocates nothing. LATHE_E_NUMERIC as logits_check;
 * LATHE_E_ARGUMENT if bias and bans leave no token. */
lathe_status sampler_pick(struct sampler *s, struct sample_scratch *w, const float *logits,
                          const int32_t *draft, int32_t n_draft, int32_t *id, lathe_error *err);

/* The choice from the best of the row alone. How many of them it takes: 0 where it needs the whole row. */
enum { SAMPLE_MAX_BEST = 256 };
int32_t sampler_best(const struct sampler *s);
/* sampler_pick's choice where these decide it; false where they do not, or where it fails. Of a row that has
 * no others, whose last id is therefore -1, they may come in any order. */
bool sampler_pick_best(struct sampler *s, struct sample_scratch *w, const struct logits_best *best,
                       const int32_t *draft, int32_t n_draft, int32_t *id);

/* How many of the best ids of a row decide the choice by *c once they have their penalties, whatever comes; 1: it is the
 * best one; INT32_MAX: all of them; 0: it cannot be said. And the history that penalties follow, whose arrays have room for
 * n_vocab. */
struct choice;
int32_t sampler_choice(const struct sampler *s, struct choice *c);
struct history;
void sampler_history(const struct sampler *s, const struct history *h);

/* The law that sampler_pick draws from in the same place: its *n >= 1 tokens in order of ids, their weights
 * being probabilities. `law` has room for n_vocab, or is w->cand. Fails as sampler_pick does. */
lathe_status sampler_law(struct sampler *s, struct sample_scratch *w, const float *logits,
                         const int32_t *draft, int32_t n_draft, struct candidate *law, int32_t *n,
                         lathe_error *err);

/* Makes n tokens part of the generated ones. */
void sampler_commit(struct sampler *s, const int32_t *id, int32_t n);

#endif

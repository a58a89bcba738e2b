/* How many drafts a round should have: the number with the most expected tokens a millisecond, from what
 * rounds cost and what was accepted lately. Functions over two structs, no clocks and no memory of their
 * own. With strict or greedy acceptance any choice gives the same tokens. */
#ifndef LATHE_SPEC_ADAPT_H
#define LATHE_SPEC_ADAPT_H

#include "spec/drafter.h"

enum {
    ADAPT_MAX_ROWS = 64,  /* of a pass whose cost is told apart; more are extrapolated */
    ADAPT_HALF_LIFE = 32, /* rounds after which an observation counts half */
    ADAPT_PROBE = 64, /* every so many rounds one is a draft longer than what seems best, and one
                             a draft shorter */
};

/* What rounds of an engine take, in milliseconds; 0 where nothing was measured yet, which is then drawn from
 * the nearest that was. */
struct adapt_costs {
    double draft[DRAFT_SOURCES][SPEC_MAX_DRAFT + 1]; /* by the number of drafts */
    double verify[ADAPT_MAX_ROWS + 1];               /* by rows of all sequences */
    double commit;
};

/* Each is a running mean in which a single slow round counts as one of twice the mean at most. Rounds whose
 * drafts come from several sources, or to several slots, have no draft cost to note. */
void adapt_note_draft(struct adapt_costs *c, enum draft_source from, int32_t n_draft, double ms);
void adapt_note_verify(struct adapt_costs *c, int32_t n_rows, double ms);
void adapt_note_commit(struct adapt_costs *c, double ms);

/* Of a request, or of all requests together. All zero is a start without experience. */
struct adapt {
    struct adapt_source {
        double
            judged[SPEC_MAX_DRAFT]; /* faded number of drafts at this position that were judged: */
        double
            accepted[SPEC_MAX_DRAFT]; /* those before them were accepted; and of these, accepted */
        int32_t k;                    /* the last choice; 0 before the first is no choice */
        int32_t n_chosen;
    } source[DRAFT_SOURCES];
};

/* A request's start: what all requests show, worth a few rounds. */
void adapt_init(struct adapt *a, const struct adapt *all);
/* A round of n_draft drafts ended with n_accepted of them accepted. */
void adapt_note_round(struct adapt *a, enum draft_source from, int32_t n_draft, int32_t n_accepted);
/* Probability that drafts 1 .. i are all accepted, 1 for i = 0; not increasing in i. */
double adapt_survival(const struct adapt *a, enum draft_source from, int32_t i);

/* What else is in the round: rows of other sequences, and the tokens expected of them. */
struct adapt_load {
    int32_t n_rows;
    double n_tokens;
};

/* Drafts for the next round, 0 .. most. Before anything was measured: `usual`, at most. Changes its mind for
 * a predicted gain of more than 3 % only. */
int32_t adapt_choose(struct adapt *a, const struct adapt_costs *c, enum draft_source from,
                     int32_t usual, int32_t most, struct adapt_load load);
/* Tokens that n_draft drafts are expected to give, the target's own included. */
double adapt_tokens(const struct adapt *a, enum draft_source from, int32_t n_draft);

#endif

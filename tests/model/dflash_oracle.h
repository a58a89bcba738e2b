/* Block drafters once more: in double, position by position, straight from the tensors of a generated
 * checkpoint, with no code of the engine. */
#ifndef LATHE_TESTS_MODEL_DFLASH_ORACLE_H
#define LATHE_TESTS_MODEL_DFLASH_ORACLE_H

#include "make_drafter.h"

enum { ORACLE_HIDDEN = 64, ORACLE_BLOCK = 16, ORACLE_CANDIDATES = 256 };

struct oracle {
    double hidden[ORACLE_BLOCK][ORACLE_HIDDEN]; /* of the block's rows, after the final norm */
    int32_t n_drafts, n_candidates;             /* candidates: 0 without them */
    int32_t draft[ORACLE_BLOCK];                /* greedy */
    int32_t id[ORACLE_BLOCK][ORACLE_CANDIDATES];
    double logit[ORACLE_BLOCK][ORACLE_CANDIDATES], score[ORACLE_BLOCK][ORACLE_CANDIDATES];
    double confidence[ORACLE_BLOCK];
    /* The smallest distance that decided anything: which are the candidates, in which order, which is
     * best. */
    double margin;
};

/* features [frontier, n_taps * hidden]; embed and head [vocab, hidden] are the target's. */
void oracle_run(struct oracle *o, const struct drafter_spec *s, struct out_file *f,
                const double *features, int32_t frontier, int32_t anchor, const double *embed,
                const double *head);

#endif

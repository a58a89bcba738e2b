/* A block drafter beside its target: for tests that look inside. */
#ifndef LATHE_TESTS_MODEL_DRAFT_RIG_H
#define LATHE_TESTS_MODEL_DRAFT_RIG_H

#include "make_drafter.h"
#include "rig.h"
#include "spec/dflash.h"

struct draft_rig {
    struct rig rig;
    struct id_set ids;
    struct sample_scratch scratch;
    struct drafter *d;
    lathe_sampling sampling; /* greedy */
    struct sampler *sampler;
    int32_t history[1]; /* drafters of this kind read none */
};

struct draft_rig_options {
    struct rig_options rig; /* of the target; its taps are filled in */
    const char *dir;        /* the drafter's */
    int32_t n_ids;          /* ids below it may be sampled; 0: all */
    int32_t max_rows;       /* that committed() works on at once; 0: 512 */
};

/* The small target of make_model.h and a generated drafter for it, both written to fresh folders. `o`
 * gives the rest. */
void draft_rig_make(struct draft_rig *r, const struct drafter_spec *s, const struct out_file *f,
                    const struct draft_rig_options *o);
/* Where the drafter that was made last lies. */
const char *draft_rig_dir(void);
void draft_rig_open(struct draft_rig *r, const struct draft_rig_options *o);
void draft_rig_close(struct draft_rig *r);
/* A new sampler for the next proposals: greedy unless r->sampling was changed. */
void draft_rig_sampler(struct draft_rig *r, int32_t n_prompt);
/* Runs n tokens of a slot through the target and tells the drafter. */
void draft_rig_run(struct draft_rig *r, enum phase phase, int32_t slot, int32_t pos,
                   const int32_t *token, int32_t n);
/* Tells the drafter of n rows of features [n, n_taps * hidden] act at the slot's frontier. */
void draft_rig_feed(struct draft_rig *r, int32_t slot, struct tensor feature);
/* Proposes at the slot's frontier: the drafts in out, their number returned. */
int32_t draft_rig_propose(struct draft_rig *r, int32_t slot, int32_t anchor, int32_t most,
                          int32_t *out);
/* The slot's saved bytes: heap memory. */
struct buf draft_rig_save(struct draft_rig *r, int32_t slot);

#endif

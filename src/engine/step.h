/* One pass of the schedule over rows of some slots: the arrays a batch points to, the workspace, and
 * where hidden states and logits end up. Sized at open; a step allocates nothing. */
#ifndef LATHE_ENGINE_STEP_H
#define LATHE_ENGINE_STEP_H

#include "model/forward.h"
#include "sample/best.h"

/* Rows that get logits in one projection. 32: enough for the head's matrix to be read for many rows
 * at once when a text is scored, 32 MB at the 27B's vocabulary. */
enum { STEP_LOGIT_ROWS = 32 };

/* Debug builds (make DEBUG=1) check every commit: the accepted rows are decoded once more from a copy of the
 * state before, in a slot behind the others, and must leave the same bits. */
#ifdef LATHE_DEBUG
enum { STEP_SHADOW_SLOTS = 1 };
#else
enum { STEP_SHADOW_SLOTS = 0 };
#endif

struct step_options {
    const struct model *model; /* borrowed, as are state, backend and stream */
    struct state *state;       /* with STEP_SHADOW_SLOTS more slots than are used */
    const struct backend *backend;
    void *stream;
    int32_t max_rows;
    int32_t max_seqs;
    /* Layers whose hidden states a drafter reads, after them; kept for every row. */
    const int32_t *tap; /* [n_taps], borrowed */
    int32_t n_taps;
    const struct id_set *ids; /* of step_best, borrowed; NULL: it is not called */
};

struct step {
    struct step_options o;
    struct exec x;
    void *workspace; /* backend memory */
    size_t workspace_bytes;
    struct tensor hidden;  /* [max_rows, hidden] act, after the final norm */
    struct tensor feature; /* [max_rows, n_taps * hidden] act; no columns without taps */
    struct tensor logits;  /* [STEP_LOGIT_ROWS or max_seqs, vocab] F32, memory of the host */
    struct tensor head;    /* the same where the backend computes them */
    struct best_rows best; /* of the last step_best; none after step_logits */
    int32_t *row;          /* [max_rows]: the caller's, for step_logits */
    struct batch_store store;
    struct batch batch;
    struct resident *resident, *resident_host; /* of step_round; one where memory is the host's */
    struct history history, history_host;      /* likewise */
    struct round_report *report;               /* [ROUND_REPORTS], of the host */
    struct tensor
        shadow; /* [16, hidden] act: hidden states of the shadow slot; no rows without one */
    struct batch_seq *kept; /* [max_seqs]: the caller's, for step_commit */
};

/* Bytes step_open would take. Listing (may be NULL) gets a line an operator call, for max_rows prompt
 * rows. */
lathe_status step_plan(const struct step_options *o, size_t *bytes, struct buf *listing,
                       lathe_error *err);
/* Its memory is that of the region `workspace`. */
lathe_status step_open(struct step *s, const struct step_options *o, struct region *workspace,
                       lathe_error *err);
void step_close(struct step *s); /* no-op on a zeroed struct */

/* Builds a batch sequence by sequence: n rows of a slot from position pos on. */
void step_begin(struct step *s, enum phase phase);
void step_add(struct step *s, int32_t slot, int32_t pos, const int32_t *token, int32_t n);
/* Reserves the KV pages and runs the layers: s->hidden holds the batch's rows. */
lathe_status step_run(struct step *s, lathe_error *err);
/* Rounds of one sequence that the device decides, of `most` rows at most; r is what resident_at made of the first one, with
 * what drafters add, and sampler the request's, NULL where there are no penalties. Each is step_fold, which commits
 * what the last round kept, perhaps drafts to s->resident->token, and step_round, which runs n rows as a
 * verify batch, chooses by r->choice among the n_best <= CHOICE_MOST best of each, 1: the best, and leaves what op_advance
 * makes of their logits in s->resident and s->report. Positions are below end_pos. s->resident lies where operators are;
 * what they are checked with is s->resident_host, where the kept rows may be fewer than it says. Nothing is waited for. */
void step_place(struct step *s, const struct resident *r, int32_t most,
                const struct sampler *sampler);
lathe_status step_fold(struct step *s, lathe_error *err);
lathe_status step_round(struct step *s, int32_t n, int32_t n_best, int32_t end_pos,
                        lathe_error *err);
/* Commits the first n_rows rows of each sequence listed, of the verify batch that was run last. */
lathe_status step_commit(struct step *s, const struct batch_seq *seq, int32_t n_seqs,
                         lathe_error *err);
/* Logits of n <= logits.dim[0] rows of s->hidden (row NULL: the first ones) into the first n rows of s->logits. */
lathe_status step_logits(struct step *s, const int32_t *row, int32_t n, lathe_error *err);
/* The same, but only the n_best <= SAMPLE_MAX_BEST best ids of each row reach the host, in s->best;
 * step_fetch brings row i to its place in s->logits. */
lathe_status step_best(struct step *s, const int32_t *row, int32_t n, int32_t n_best,
                       lathe_error *err);
lathe_status step_fetch(struct step *s, int32_t i, lathe_error *err);

#endif

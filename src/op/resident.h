/* A sequence whose rounds follow each other without the host: what operators read and write of it lies in the backend's
 * memory. */
#ifndef LATHE_OP_RESIDENT_H
#define LATHE_OP_RESIDENT_H

#include "op/batch.h"
#include "op/choice.h"
#include "tensor/tensor.h"

/* The rounds of one sequence, in the backend's memory: what one leaves is what the next runs. */
enum {
    RESIDENT_ROWS = 16,
    RESIDENT_STOPS = 16,
    RESIDENT_BEST = 64 /* candidates of a row, at most */
};
struct resident {
    /* The next round's rows, the anchor and the drafts behind it. Of positions, the first is the one before the
     * anchor's, and there are as many as there might be rows. */
    int32_t token[RESIDENT_ROWS];
    int32_t slot[RESIDENT_ROWS + 1], pos[RESIDENT_ROWS + 1], rope_pos[RESIDENT_ROWS + 1][3];
    struct batch_seq seq[RESIDENT_ROWS + 1]; /* so many rows from the anchor on */
    struct batch_seq one[RESIDENT_ROWS + 1]; /* a row at each of the positions */
    /* The anchor and whatever else a drafter runs from its position on. */
    int32_t block_token[RESIDENT_ROWS];
    struct batch_seq block;
    /* The last round's rows, of which the first keep.n_rows became part of the sequence; the same at positions one
     * earlier. */
    int32_t kept_token[RESIDENT_ROWS];
    int32_t kept_pos[RESIDENT_ROWS + 1], kept_rope_pos[RESIDENT_ROWS + 1][3];
    struct batch_seq keep, behind;
    int32_t before; /* slot for the recurrent state as it was before these, -1: none */
    /* How tokens and drafts are chosen; what the last round's rows gave, and its logit, 0 of a token that was drawn. */
    struct choice choice;
    int32_t best[RESIDENT_ROWS];
    float logit[RESIDENT_ROWS];
    int32_t stop[RESIDENT_STOPS], n_stops; /* tokens behind which nothing is kept */
    int32_t left;                          /* tokens that may still come, INT32_MAX: any number */
    int32_t n_rounds;
};

/* What the host is told of a round, in memory of its own. */
enum { ROUND_REPORTS = 2 }; /* of round i in place i % ROUND_REPORTS */
struct round_report {
    int32_t n; /* tokens behind the anchor; 0: the row's token is not decided, or none may come */
    int32_t token[RESIDENT_ROWS];
};

/* What a sequence has, for penalties; all of it in the backend's memory. The logit x of an id that is there count times,
 * or is in `seen` with count 0, becomes
 *   x > 0 ? x / repetition : x * repetition;  then, where count > 0, x - (frequency * count + presence)
 * in F32, kept within its finite numbers; what is not finite stays. */
struct penalties {
    float repetition, frequency, presence;
    int32_t n_seen; /* -1: there are none, and nothing is counted */
};
struct history {
    struct penalties *p;
    int32_t *seen;  /* [p->n_seen of n_vocab]: ids, each once */
    int32_t *times; /* [n_vocab]: 1 + count of those, 0 of others */
};

/* Before the first round of a sequence whose next row is `token` at `pos`: there is nothing to keep, and the drafts and
 * the block are to be filled in. */
struct resident resident_at(int32_t slot, int32_t pos, int32_t token);
/* Batches, all of whose positions are below end_pos: n of its rows, to be verified; the block; the rows that were kept, none
 * of which may be there; these one position earlier; and row i of `one`, with this token. */
void resident_batch(struct batch *b, const struct resident *r, int32_t n, int32_t end_pos);
void resident_block(struct batch *b, const struct resident *r, int32_t end_pos);
void resident_kept(struct batch *b, const struct resident *r, int32_t end_pos);
void resident_behind(struct batch *b, const struct resident *r, int32_t end_pos);
void resident_one(struct batch *b, const struct resident *r, int32_t i, const int32_t *token,
                  int32_t end_pos);

/* Of an id that is in the history count times, or in `seen` with count 0: x with its penalties. */
float penalised(const struct penalties *p, float x, int32_t count);

/* The operators on the host. */
void resident_advance(struct resident *r, int32_t n_rows, const struct history *h,
                      struct round_report *report);
void resident_penalise(float *row, const struct history *h, const int32_t *token, int32_t n);
void resident_walk(struct tensor token, struct tensor id, struct tensor score,
                   const struct resident *r, const struct history *h);
struct choose_args;
void resident_choose(const struct choose_args *a);
/* Of an id, n tokens being there beside the history. */
float history_penalised(const struct history *h, int32_t id, float x, const int32_t *token,
                        int32_t n);

#endif

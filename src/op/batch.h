/* What one pass through the schedule computes: T rows, a row being one token of one sequence. */
#ifndef LATHE_OP_BATCH_H
#define LATHE_OP_BATCH_H

#include <stdint.h>

#include "base/error.h"

/* Whose arithmetic the rows get; never inferred from how many there are. A backend may use the same
 * for all (the CPU does). */
enum phase {
    PHASE_PREFILL, /* prompt positions: state advances */
    PHASE_DECODE,  /* generated positions: state advances */
    PHASE_VERIFY,  /* drafted positions: decode arithmetic, persistent state is left alone */
};

/* Consecutive rows of one sequence at consecutive positions. A slot occurs at most once in a batch. */
struct batch_seq {
    int32_t slot;
    int32_t first_row, n_rows; /* n_rows >= 1 */
    int32_t pos;               /* of first_row: tokens of this sequence that came before */
};

struct batch {
    enum phase phase;
    int32_t n_rows; /* T >= 1 */
    int32_t n_seqs;
    const int32_t *token;         /* [T] */
    const int32_t *slot;          /* [T] */
    const int32_t *pos;           /* [T]: cache position */
    const int32_t (*rope_pos)[3]; /* [T]: rotary positions time, height, width; all equal pos[t] for
                                     text */
    const struct batch_seq *seq;  /* [n_seqs], in row order, covering all rows */
    /* Positions stay below it, whatever `pos` says now: set where the arrays change before the batch is run. 0
     * elsewhere. */
    int32_t end_pos;
};

/* Memory for the arrays of a batch that is built sequence by sequence. */
struct batch_store {
    int32_t *token, *slot, *pos; /* [max_rows] */
    int32_t (*rope_pos)[3];      /* [max_rows] */
    struct batch_seq *seq;       /* [max_seqs] */
};

lathe_status batch_store_open(struct batch_store *m, size_t max_rows, size_t max_seqs,
                              lathe_error *err);
void batch_store_close(struct batch_store *m); /* no-op on a zeroed struct */

/* b becomes a batch of no rows whose arrays are the store's. */
void batch_begin(struct batch *b, const struct batch_store *m, enum phase phase);
/* n more rows: tokens of text at positions pos, pos + 1 ... of a slot that is not in the batch yet. token NULL: 0. */
void batch_add(struct batch *b, const struct batch_store *m, int32_t slot, int32_t pos,
               const int32_t *token, int32_t n);

#endif

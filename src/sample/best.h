/* The best ids of rows of logits, which operators write where the host reads them. */
#ifndef LATHE_SAMPLE_BEST_H
#define LATHE_SAMPLE_BEST_H

#include "op/exec.h"
#include "sample/sample.h"

struct best_rows {
    void *memory;      /* of the host, [max_rows, n] twice: F32 values of all rows, then I32 ids */
    int32_t n, n_rows; /* of the last search; n 0: none has been made, or it was forgotten */
};

/* For at most max_rows rows. */
lathe_status best_rows_open(struct best_rows *b, const struct backend *backend, void *stream,
                            int32_t max_rows, lathe_error *err);
/* No-op on a zeroed struct. */
void best_rows_close(struct best_rows *b, const struct backend *backend, void *stream);

/* Finds the n <= SAMPLE_MAX_BEST best ids of each row of logits [T, vocab] F32, and waits for them. While planning
 * b may be zeroed. */
void best_rows_find(struct exec *x, struct best_rows *b, struct tensor logits,
                    const struct id_set *ids, int32_t n);
/* Of row i of the last search, valid until the next. */
struct logits_best best_rows_at(const struct best_rows *b, int32_t i);

#endif

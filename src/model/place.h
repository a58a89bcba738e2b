/* Weights in the memory of a backend that cannot read the mapped files. */
#ifndef LATHE_MODEL_PLACE_H
#define LATHE_MODEL_PLACE_H

#include "model/model.h"
#include "op/backend.h"

/* Walks over weights twice: to add up their bytes, then to copy them into one block of backend memory and
 * make the views point there. */
struct placer {
    const struct backend *backend;
    void *stream;
    unsigned char *memory; /* owned; NULL while measuring */
    size_t used;           /* bytes so far */
    size_t total;
    void (*progress)(void *ctx, const char *what, uint64_t done, uint64_t total); /* may be NULL */
    void *progress_ctx;
};

/* Places what `walk` names through place_weight and place_tensor; no-op where the backend's memory is the
 * host's. Memory lasts until placer_close. */
lathe_status placer_open(struct placer *p, const struct backend *backend, void *stream,
                         void (*walk)(struct placer *p, void *what), void *what, lathe_error *err);
void placer_close(struct placer *p); /* no-op on a zeroed struct */

/* Nothing happens to what has no data. */
void place_weight(struct placer *p, struct weight *w);
void place_tensor(struct placer *p, struct tensor *t);

/* For placer_open: all weights of a struct model. The modules' listing goes on to show the files. */
void model_place(struct placer *p, void *model);

#endif

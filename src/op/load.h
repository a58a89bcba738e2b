/* The sharing of a list of loads among threads, for backends: each takes the next part as it is done with the
 * one before, and the files are read ahead of them all. */
#ifndef LATHE_OP_LOAD_H
#define LATHE_OP_LOAD_H

#include <pthread.h>

#include "op/backend.h"

enum {
    LOAD_PART = 4 << 20, /* bytes a thread takes at once */
    LOAD_AHEAD = 128 << 20,
};

struct load_place {
    size_t index, byte; /* in the list */
};

struct loading {
    const struct load *load; /* [n] */
    size_t n;
    lathe_progress_fn progress; /* may be NULL */
    void *progress_ctx;
    uint64_t total;

    pthread_mutex_t lock; /* guards what follows */
    struct load_place next, ahead;
    uint64_t taken, advised, done;
    lathe_status status; /* the first failure */
    lathe_error err;
};

lathe_status loading_init(struct loading *l, const struct load *load, size_t n,
                          lathe_progress_fn progress, void *progress_ctx, lathe_error *err);
void loading_release(struct loading *l);

/* The next part, at most LOAD_PART bytes; false if there is none, or one has failed. */
bool loading_next(struct loading *l, struct load *part);
/* `bytes` are done; thread 0 reports it, and fails if the rest is not wanted. */
void loading_done(struct loading *l, int32_t thread, size_t bytes);
/* Ends it for all threads. */
void loading_fail(struct loading *l, const lathe_error *err);
/* The first failure; reports the end if there is none. */
lathe_status loading_end(struct loading *l, lathe_error *err);

#endif

/* The memory that an engine takes of a backend: three regions, each one block taken at open and given out piece
 * by piece. What opens a part of the engine takes its pieces from here, and is run twice: over a memory that
 * measures, which is the plan and takes nothing, then over one that was carved to what was measured. */
#ifndef LATHE_OP_MEMORY_H
#define LATHE_OP_MEMORY_H

#include "op/backend.h"

struct region {
    const struct backend *backend; /* borrowed, as is the stream */
    void *stream;
    const char *name;    /* "cache" */
    bool measuring;      /* pieces are added up and have no memory */
    unsigned char *base; /* the block; NULL: each piece is a block of its own */
    size_t used, size;   /* bytes given out; of the block */
    void **piece;        /* [n_pieces], those without a block; owned */
    size_t n_pieces, piece_room;
};

struct memory {
    struct region weights; /* empty where the backend reads the mapped files */
    struct region cache;   /* keys and values, recurrent states, rings, records of verify batches */
    struct region workspace; /* temporaries and results of steps */
    size_t host;             /* bytes of the host's memory that measuring found beside them */
    struct load *load;       /* [n_loads]: weights that are placed and not yet copied or read */
    size_t n_loads, load_room;
    struct weight **matrix; /* [n_matrices], of them, those that the backend may arrange */
    size_t n_matrices, matrix_room;
    lathe_status status; /* the first failure of memory_weight */
    lathe_error err;
};

/* Takes nothing: pieces are added up in `used`. */
void memory_measure(struct memory *m, const struct backend *backend, void *stream);
/* Takes a block a region, as large as `measured` says. */
lathe_status memory_carve(struct memory *m, const struct memory *measured, lathe_error *err);
/* Takes every piece as it comes, a block each: for tests and benchmarks, which open parts one by one. */
void memory_loose(struct memory *m, const struct backend *backend, void *stream);
/* Gives everything back. No-op on a zeroed struct. */
void memory_close(struct memory *m);

/* Zeroed memory, 256-byte aligned in a block; NULL while measuring. It lasts until memory_close. */
lathe_status region_take(struct region *r, void **p, size_t bytes, lathe_error *err);

/* Places a tensor of a mapped file (no-op without data): its view then points to the backend's memory, or stays
 * where the backend reads the files. The values are there after memory_load. */
void memory_weight(struct memory *m, struct tensor *t);
/* The same for codes and scales of a matrix that only linear reads: memory_load lets the backend put it in the
 * order of its kernels. `w` stays where it is until then. */
void memory_matrix(struct memory *m, struct weight *w);
/* Copies and arranges the weights placed so far, by all threads of the pool; where they stay, reads every page once, so that
 * the first tokens do not wait for the disk. Reports "loading". */
lathe_status memory_load(struct memory *m, struct pool *pool, lathe_progress_fn progress,
                         void *progress_ctx, lathe_error *err);

#endif

/* The running of a schedule: the backend, workspace, the first failure, and planning. */
#ifndef LATHE_OP_EXEC_H
#define LATHE_OP_EXEC_H

#include "base/buf.h"
#include "base/error.h"
#include "op/batch.h"
#include "tensor/tensor.h"

struct backend;

/* Sees a tensor of the schedule when it is ready; `layer` is -1 outside the layers. Must not change
 * it. */
typedef void (*exec_tap_fn)(void *ctx, const char *name, int32_t layer, const struct tensor *t);

struct exec {
    const struct backend *backend;
    void *stream;
    enum phase phase;       /* whose arithmetic op_linear's rows get */
    bool planning;          /* operators are checked and listed, not run; tensors have no data */
    unsigned char *base;    /* workspace, 64-byte aligned; NULL while planning */
    size_t cap, used, peak; /* bytes */
    lathe_status status;    /* the first failure */
    lathe_error err;
    exec_tap_fn tap; /* may be NULL */
    void *tap_ctx;
    struct buf *listing; /* while planning, may be NULL: one line an operator call */
};

/* A planning exec: run the schedule, then read `peak`. */
void exec_plan(struct exec *x, const struct backend *backend, void *stream, struct buf *listing);
/* One over a workspace of `cap` bytes that the caller owns. */
void exec_init(struct exec *x, const struct backend *backend, void *stream, void *workspace,
               size_t cap);
/* Begins a step: forgets the last one's failure and rewinds the workspace. */
void exec_begin(struct exec *x);
/* The step's first failure. */
lathe_status exec_end(struct exec *x, lathe_error *err);

/* Sets whose arithmetic the rows of operators without a batch get; returns what it was. A schedule over a batch
 * sets the batch's and puts back what was there: DECODE at the beginning of a step. */
enum phase exec_phase(struct exec *x, enum phase phase);

/* Temporaries last until the matching pop; their contents are undefined at first. Running out of
 * workspace is a failure of the step (planning makes it impossible). */
size_t exec_push(const struct exec *x);
void exec_pop(struct exec *x, size_t mark);
struct tensor exec_tmp(struct exec *x, enum dtype dtype, int64_t rows, int64_t cols);

/* The values of a dense tensor where the host can read them: in place, or copied to `room`, which holds as
 * many bytes. Waits for the work so far. NULL after a failure and while planning. */
const void *exec_fetch(struct exec *x, const struct tensor *t, void *room);

/* Waits for the work so far: the host may read what operators wrote to memory from alloc_host. */
void exec_wait(struct exec *x);

/* Copies values of the host, which are read before it returns, to a dense tensor. */
void exec_put(struct exec *x, const struct tensor *t, const void *values);

void exec_tap(struct exec *x, const char *name, int32_t layer, const struct tensor *t);

/* For op/<name>.c: records a failure if there was none. */
void exec_fail(struct exec *x, lathe_status status, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* For op/<name>.c: notes a call while planning. */
void exec_note(struct exec *x, const char *op, const struct tensor *out, const char *detail);

#endif

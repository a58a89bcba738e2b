/* For op/<name>.c only: operand checks and the one place where an operator meets a backend. */
#ifndef LATHE_OP_RUN_H
#define LATHE_OP_RUN_H

#include "op/backend.h"
#include "op/exec.h"

/* Has an earlier operator failed, or does nobody want the rest? */
static inline bool op_is_over(struct exec *x)
{
    if (!x->status && !x->planning && x->backend->is_left && x->backend->is_left(x->stream))
        exec_fail(x, LATHE_E_CANCELLED, "the pass was left");
    return x->status != LATHE_OK;
}

/* Returns from the operator if there is nothing to do any more. */
#define OP_BEGIN(x)                                                                                \
    do {                                                                                           \
        if (op_is_over(x))                                                                         \
            return;                                                                                \
    } while (0)

/* A shape or dtype that contradicts the contract: a mistake of the schedule or of a model file. */
#define OP_REQUIRE(x, op, cond)                                                                    \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            exec_fail((x), LATHE_E_ARGUMENT, "%s: operands contradict %s", (op), #cond);           \
            return;                                                                                \
        }                                                                                          \
    } while (0)

/* Notes the call while planning, else runs it; fails with the operator's name if the backend has no
 * such entry. `detail` is text for the listing. */
#define OP_RUN(x, op, args, out, detail)                                                           \
    do {                                                                                           \
        lathe_error err_;                                                                          \
        if (!(x)->backend->op)                                                                     \
            exec_fail((x), LATHE_E_UNSUPPORTED, "backend %s has no operator %s",                   \
                      (x)->backend->name, #op);                                                    \
        else if ((x)->planning)                                                                    \
            exec_note((x), #op, (out), (detail));                                                  \
        else if ((x)->backend->op((x)->stream, (args), &err_))                                     \
            exec_fail((x), err_.status, "%s: %s", #op, err_.message);                              \
    } while (0)

/* Did the backend do several operators at once? If so, what failed is reported under the name of them all. */
static inline bool op_joined(struct exec *x, const char *op, bool joined)
{
    lathe_error err;
    if (joined && x->backend->joined(x->stream, &err))
        exec_fail(x, err.status, "%s: %s", op, err.message);
    return joined;
}

/* [rows, cols] of this dtype, rows apart or not. */
static inline bool is_matrix(const struct tensor *t, enum dtype dtype, int64_t rows, int64_t cols)
{
    return t->n_dims == 2 && t->dtype == dtype && t->dim[0] == rows && t->dim[1] == cols &&
           t->stride >= cols;
}

static inline bool is_vector(const struct tensor *t, enum dtype dtype, int64_t n)
{
    return t->n_dims == 1 && t->dtype == dtype && t->dim[0] == n;
}

static inline bool is_act(enum dtype d)
{
    return d == DT_BF16 || d == DT_F32;
}

/* Do the sequences cover the rows in order, in slots below n_slots? */
bool batch_fits(const struct batch *b, int64_t n_slots);
/* Fails the step where operands contradict op_kv_append. */
void kv_append_check(struct exec *x, const struct kv_append_args *a);
/* Same shape and dtype of keys and values. */
bool kv_pages_agree(const struct kv_pages *kv);
/* The same of a ring. */
bool kv_ring_agrees(const struct kv_ring *ring);
/* Is there a page for every position up to each sequence's last row? */
bool kv_pages_hold(const struct kv_pages *kv, const struct batch *b);

#endif

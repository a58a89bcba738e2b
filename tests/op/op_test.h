/* What the operators' tests share: backends to run, tensors with guard words around them, and
 * comparing. All memory is owned by this file and given back by op_done. */
#ifndef LATHE_TESTS_OP_TEST_H
#define LATHE_TESTS_OP_TEST_H

#include "op/backend.h"
#include "op/exec.h"
#include "test.h"
#include "tol.h"

/* A backend that is open, and a workspace. */
struct op_env {
    const struct backend *backend;
    void *stream;
    const char *isa;
    int32_t n_threads;
    struct exec exec;
    char name[48]; /* "cpu avx2, 3 threads" */
};

/* The reference. */
struct op_env *op_ref(void);
/* The CPU backend at every instruction set of this processor, best first, with 1, 2 and 3 threads;
 * *n of them; 1 and 3 threads if test_quick. In a build with CUDA, where there is a GPU, that alone.
 * Valid until the program ends. */
struct op_env *op_envs(int *n);
/* Ends a step; fails the test if the step failed. */
void op_check_ok(struct op_env *e);
/* The step failed with this status and a message that contains `text`. */
void op_check_failed(struct op_env *e, lathe_status status, const char *text);

/* A copy of n numbers there, freed by op_done. */
const int32_t *op_table(const int32_t *p, int64_t n);
/* Memory that every backend of op_envs can use, 64-byte aligned. */
void *op_alloc(size_t bytes);
void op_free(void *p);

/* A matrix [rows, cols] whose rows are `gap` elements apart beyond cols; guard words before, behind
 * and in the gaps. Filled with NaN bits. */
struct tensor op_tensor(enum dtype dtype, int64_t rows, int64_t cols, int64_t gap);
struct tensor op_vector(enum dtype dtype, int64_t n);
/* A dense copy in another dtype (rounded), or the same. */
struct tensor op_copy(const struct tensor *t, enum dtype dtype);
/* Copies values (of the same dtype and shape). */
void op_set(const struct tensor *dst, const struct tensor *src);
/* Fails the test if a guard word changed; frees all tensors and copies. Call it at a case's end. */
void op_done(void);
/* The same for the tensors made since op_mark. */
int op_mark(void);
void op_release(int mark);
/* Bits of all values, to see that inputs are unchanged. */
uint64_t op_hash(const struct tensor *t);

double op_at(const struct tensor *t, int64_t row, int64_t col);
void op_put(const struct tensor *t, int64_t row, int64_t col, double value);
void op_fill_normal(const struct tensor *t, struct rng *r, double mean, double scale);
void op_fill(const struct tensor *t, double value);

/* Fails the test unless every value lies within
 *     rel * |want| + row * (root mean square of the row of want) + floor
 * of want, or both are NaN, or both are the same infinity. A wanted value beyond the dtype's range may
 * be that infinity. From 64 values on, the norm of the whole error is at most
 * `norm` of the wanted norm: errors of single values must not be the rule. */
struct op_tol {
    const char *name;
    double rel, row, floor, norm;
};
void op_check_near(const char *what, const struct tensor *got, const struct tensor *want,
                   struct op_tol tol);
/* The same bits in row g of got and row w of want. */
bool op_same_row(const struct tensor *got, int64_t g, const struct tensor *want, int64_t w);
void op_check_same(const char *what, const struct tensor *got, const struct tensor *want);
bool op_row_is_nan(const struct tensor *t, int64_t row); /* every value */
bool op_row_has_nan(const struct tensor *t, int64_t row);

/* The context that a failure message begins with: printf-like, kept until the next call. */
void op_case(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
#define OP_FAIL(...) op_fail(__FILE__, __LINE__, __VA_ARGS__)
_Noreturn void op_fail(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* One call of an operator whose rows depend on nothing but rows: what is common to testing those.
 * Inputs by row are cut as the outputs are; the others are whole. */
enum { OP_MAX_TENSORS = 6 };
struct op_rows {
    int64_t T;
    struct tensor in[OP_MAX_TENSORS], whole[OP_MAX_TENSORS], out[OP_MAX_TENSORS];
    int n_in, n_whole, n_out;
    struct op_tol tol;
    int64_t poison_back; /* the poisoned column, counted from the last one back */
    /* Rows [first, first + n): in and out are cut. `out` begins as op_rows.out. */
    void (*run)(struct exec *x, const struct op_rows *p, const struct tensor *in,
                const struct tensor *out, int64_t first, int64_t n);
    const void *arg;
};
/* Every backend, instruction set and thread count against ref; inputs unchanged; the same bits for
 * every thread count, for each row alone, for any cut of the rows, and in place where out[i] may be
 * in[alias]; a NaN or an infinity in one row of each input stays in that row. `name` begins messages.
 * Ends with op_done. */
void op_rows_check(const struct op_rows *p, int alias, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* A batch with its arrays. */
enum { OP_MAX_ROWS = 600, OP_MAX_SEQS = 8 };
struct op_batch {
    struct batch b;
    int32_t token[OP_MAX_ROWS], slot[OP_MAX_ROWS], pos[OP_MAX_ROWS], rope_pos[OP_MAX_ROWS][3];
    struct batch_seq seq[OP_MAX_SEQS];
};
void op_batch_begin(struct op_batch *b, enum phase phase);
/* n_rows more rows of a new sequence. */
void op_batch_add(struct op_batch *b, int32_t slot, int32_t pos, int32_t n_rows);

/* One operator, or several, over sequences that carry a state from row to row. */
struct op_seqs {
    int32_t n_seqs, slot[OP_MAX_SEQS], pos[OP_MAX_SEQS], n_rows[OP_MAX_SEQS];
    /* by row, sequence after sequence; and, in out, what the outputs begin as */
    struct tensor in[OP_MAX_TENSORS], out[OP_MAX_TENSORS], whole[OP_MAX_TENSORS];
    struct tensor state[OP_MAX_TENSORS]; /* before the first row */
    int n_in, n_out, n_whole, n_state;
    struct op_tol tol, state_tol;
    struct op_tol gpu_prefill_tol; /* of outputs in PREFILL on a GPU, if it has a name */
    bool verify_writes;            /* VERIFY changes the state too */
    void (*run)(struct exec *x, const struct op_seqs *p, const struct tensor *in,
                const struct tensor *out, const struct tensor *state, const struct batch *b);
    /* Puts a NaN into what the state holds of a slot. */
    void (*poison_state)(const struct op_seqs *p, const struct tensor *state, int32_t slot);
    const void *arg;
};
/* Outputs and state against ref; the same bits of both for every thread count, every phase (on a GPU within
 * PREFILL, and within the other two), sequences alone or side by side, and any cut of them into batches;
 * VERIFY leaves the state alone; inputs unchanged; a NaN in an input reaches no earlier row and no other
 * sequence, one in a slot's state no other slot. Ends with op_done. */
void op_seqs_check(const struct op_seqs *p, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* A weight of random codes that unpack to about N(0, scale^2). */
struct weight op_weight(enum weight_format_id format, int64_t rows, int64_t cols, struct rng *r,
                        double scale);

#endif

/* From the tensors of a checkpoint to the roles of the model. Shared by the files that do it:
 * names.c finds tensors and collects problems, module.c decides a matrix' format, bind.c knows which
 * tensors a model has. */
#ifndef LATHE_MODEL_BIND_H
#define LATHE_MODEL_BIND_H

#include "base/buf.h"
#include "model/model.h"

enum { MAX_NAME = 512 };

/* A tensor of the checkpoint under its short name: the file's without model.language_model.,
 * language_model.model. or model. in front. */
struct entry {
    const char *name;
    const struct checkpoint_tensor *tensor;
    bool is_used; /* has its place in the model, or is known and not needed */
};

struct binder {
    struct arena *arena;   /* of expanded vectors and names */
    struct model *m;       /* bind.c's */
    struct entry *entries; /* [n], by short name */
    size_t n;
    struct bound *bound; /* [n_bound]: the matrices so far */
    size_t n_bound, cap_bound;
    /* Problems do not stop the work, so that one message tells them all. */
    struct buf problems;
    int32_t n_problems, n_told;
    lathe_status status; /* of the first problem */
};

struct bound {
    struct module module;
    const struct checkpoint_tensor *tensor; /* its codes: gives the order in the files */
};

/* Lists the tensors of the files. */
lathe_status names_open(struct binder *b, const struct checkpoint *files, struct arena *arena,
                        lathe_error *err);
void names_close(struct binder *b);

/* The tensor "base.suffix", or "base" where suffix is NULL; NULL if there is none. It then counts as
 * used. */
const struct checkpoint_tensor *names_take(struct binder *b, const char *base, const char *suffix);
bool names_has(const struct binder *b, const char *base, const char *suffix);
/* Does any name begin so? */
bool names_has_prefix(const struct binder *b, const char *prefix);
/* Marks what begins so as not needed. */
void names_ignore_prefix(struct binder *b, const char *prefix);
/* The name as this checkpoint spells it, also of a tensor that is not there. */
void names_full(const struct binder *b, const char *short_name, char out[MAX_NAME]);
/* Reports what has no place in the model. */
void names_check_unused(struct binder *b);

void problem(struct binder *b, lathe_status status, const char *fmt, ...) PRINTF_LIKE(3, 4);
void problem_memory(struct binder *b, size_t bytes);
/* "tensor X in model.safetensors: BF16 [3, 4], expected [4, 3] by config.json"; `expected` is text
 * such as "[4, 3]". */
void problem_shape(struct binder *b, const struct checkpoint_tensor *t, const char *expected);
/* All problems as one message, or success. */
lathe_status problems_check(struct binder *b, lathe_error *err);

/* Rows of a matrix that a checkpoint may store joined with others. */
struct part {
    struct weight *weight;
    const char *name; /* "gate_proj" */
    int64_t rows;
};

/* Binds the matrix `base` [rows, cols] in whatever format its tensors are. */
void bind_matrix(struct binder *b, struct weight *w, const char *base, int64_t rows, int64_t cols);
/* The same for matrices that lie under `parent` by themselves, or joined by rows as
 * parent.joined. */
void bind_parts(struct binder *b, const struct part *parts, int32_t n, const char *parent,
                const char *joined, int64_t cols);
/* Binds a plain matrix whose name has no ".weight" behind it. */
void bind_parameter(struct binder *b, struct weight *w, const char *name, int64_t rows,
                    int64_t cols);
/* Expands a small tensor to F32 in the arena. dims[n_dims] as in config.json; a dimension of
 * 1 in between is allowed in the file (conv1d). */
void bind_vector(struct binder *b, struct tensor *out, const char *base, const char *suffix,
                 int64_t dim0, int64_t dim1);
/* The same for one of dims dim0, dim1, n, as a matrix [dim0 * dim1, n]. */
void bind_stack(struct binder *b, struct tensor *out, const char *base, const char *suffix,
                int64_t dim0, int64_t dim1, int64_t n);
/* The same as bind_vector for the factors of a norm that checkpoints store zero-centred: 1 + what is stored. */
void bind_norm(struct binder *b, struct tensor *out, const char *base, const char *suffix,
               int64_t n);

#endif

/* Opening small checkpoints, whole and spoiled, for the tests of src/model/bind.c. */
#ifndef LATHE_TESTS_MODEL_OPEN_MODEL_H
#define LATHE_TESTS_MODEL_OPEN_MODEL_H

#include "make_model.h"
#include "model/model.h"

/* Where text tensors lie in the files of model_spec_init. */
#define P "model.language_model."

/* Warnings of the last open_dir, and the last of them. */
extern int n_warnings;
extern char warning[512];

lathe_status open_dir(struct model *m, const char *dir, lathe_error *err);
/* A path that nothing is at. */
const char *fresh(void);
/* Writes the tensors and opens the folder. */
lathe_status open_files(struct model *m, const struct model_spec *s, const struct out_file *f,
                        lathe_error *err);
lathe_status open_spec(struct model *m, const struct model_spec *s, lathe_error *err);

/* The small model and its tensors. */
struct model_spec spec_of(struct out_file *f);
/* The spoiled files are refused with this text; releases them. */
void check_spoiled(const struct model_spec *s, struct out_file *f, lathe_status status,
                   const char *says);
/* Every matrix and vector of a equals b's, value by value. */
void check_equal(const struct model *a, const struct model *b);

#endif

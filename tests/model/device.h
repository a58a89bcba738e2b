/* The backend that tests of the model run on. */
#ifndef LATHE_TESTS_MODEL_DEVICE_H
#define LATHE_TESTS_MODEL_DEVICE_H

#include "op/backend.h"

/* The CPU's; in a build with CUDA, where there is a GPU, that with all memory where tests can read and write
 * it too, and every operator complete when it returns. */
const struct backend *test_backend(void);

/* Memory that it can use. */
void *device_alloc(size_t bytes);
void device_free(void *p);
/* A matrix there with these values; device_free takes its data. */
struct tensor device_copy(const float *p, int64_t rows, int64_t cols);

#endif

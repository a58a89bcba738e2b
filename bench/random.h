/* Operands of benchmarks: what they hold does not matter, only that it is in memory and stays finite. */
#ifndef LATHE_BENCH_RANDOM_H
#define LATHE_BENCH_RANDOM_H

#include "quant/formats.h"

/* Like the maps of a checkpoint's files, in large pages where the system gives them. NULL if there is no
 * memory; to be freed. */
void *large_pages(size_t bytes);
/* Memory is taken for one case and released after it, all at once; running out ends the program. */
void *memory(size_t bytes);
void *random_bytes(size_t bytes);
void release_memory(void);
struct tensor zeros(enum dtype dtype, int64_t rows, int64_t cols);
/* Uniform in [-1, 1). */
struct tensor numbers(enum dtype dtype, int64_t rows, int64_t cols);
struct tensor numbers_1d(int64_t n);
/* Random codes without NaN, infinity and huge values. */
struct weight random_weight(enum weight_format_id format, int64_t rows, int64_t cols);
/* Sets the scales so that a row's product with numbers of about 1 is about 1 again. */
void settle(struct weight *w);

#endif

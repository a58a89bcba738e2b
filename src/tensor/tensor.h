/* Views of numbers in memory. A tensor owns nothing. */
#ifndef LATHE_TENSOR_TENSOR_H
#define LATHE_TENSOR_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dtype {
    DT_F32,
    DT_BF16,
    DT_F16,
    DT_F8_E4M3,
    DT_I32,
    DT_I64,
    DT_U8,
    DT_I8,
    /* Read in files only, so that they can be named; no operator takes them. */
    DT_F64,
    DT_I16,
    DT_U16,
    DT_U32,
    DT_U64,
    DT_BOOL,
    DT_F8_E5M2,
    DT_COUNT,
};

size_t dtype_size(enum dtype d);
/* As safetensors spells it: "BF16", "F8_E4M3". */
const char *dtype_name(enum dtype d);
/* False if no dtype has this name. */
bool dtype_from_name(const char *name, enum dtype *out);

/* Row-major: dim[0] is the slowest. Rows may lie apart (a view of some columns of a wider one);
 * everything inside a row is dense. */
struct tensor {
    void *data; /* aligned to the dtype's size unless it lies in a mapped file */
    enum dtype dtype;
    int32_t n_dims;
    int64_t dim[4];
    int64_t stride; /* elements from one row (index of dim[0]) to the next */
};

struct tensor tensor_1d(void *data, enum dtype dtype, int64_t n);
struct tensor tensor_2d(void *data, enum dtype dtype, int64_t rows, int64_t cols);
struct tensor tensor_3d(void *data, enum dtype dtype, int64_t a, int64_t b, int64_t c);
struct tensor tensor_4d(void *data, enum dtype dtype, int64_t a, int64_t b, int64_t c, int64_t d);

/* Elements of one row: the product of dim[1..]. */
int64_t tensor_row(const struct tensor *t);
int64_t tensor_elements(const struct tensor *t);
/* Address of row r. */
void *tensor_at(const struct tensor *t, int64_t r);
/* Rows [first, first + n). */
struct tensor tensor_rows(struct tensor t, int64_t first, int64_t n);
/* Columns [first, first + n) of a matrix. */
struct tensor tensor_cols(struct tensor t, int64_t first, int64_t n);
/* Bytes of its elements one after the other, up to a whole line of 64. */
size_t tensor_room(const struct tensor *t);
/* The same view `bytes` further on; without data none. */
struct tensor tensor_after(struct tensor t, size_t bytes);
/* "BF16 [320, 768]" into a static-size buffer. */
void tensor_describe(const struct tensor *t, char out[96]);

/* n values of dtype F32, BF16, F16 or F8_E4M3, at any alignment, to float; the inverse rounds to
 * nearest even. */
void to_f32(float *dst, const void *src, enum dtype dtype, int64_t n);
void from_f32(void *dst, enum dtype dtype, const float *src, int64_t n);

#endif

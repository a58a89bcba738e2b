/* A list of tensors that tests build, edit and write as safetensors files. Failures end the test. */
#ifndef LATHE_TESTS_WRITE_SAFETENSORS_H
#define LATHE_TESTS_WRITE_SAFETENSORS_H

#include "tensor/tensor.h"
#include "test.h"

struct out_tensor {
    char *name;
    enum dtype dtype;
    int32_t n_dims;
    int64_t dim[5];
    unsigned char *data;
    size_t bytes;
};

struct out_file {
    struct out_tensor *tensors;
    size_t n, cap;
};

/* Copies the data, which may be NULL for zeros; dims are n_dims int64_t. */
struct out_tensor *out_add(struct out_file *f, const char *name, enum dtype dtype, int32_t n_dims,
                           const int64_t *dims, const void *data);
/* NULL if there is none. */
struct out_tensor *out_find(struct out_file *f, const char *name);
/* These fail the test if there is none. */
void out_remove(struct out_file *f, const char *name);
void out_rename(struct out_file *f, const char *name, const char *to);
void out_release(struct out_file *f);

/* One file with tensors [first, first + n). */
void out_write(const struct out_file *f, size_t first, size_t n, const char *path);
/* dir/model.safetensors, or dir/model-0000i-of-0000n.safetensors with their index. */
void out_write_shards(const struct out_file *f, int32_t n_shards, const char *dir);

#endif

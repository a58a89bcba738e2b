/* safetensors files: one file, or shards with an index, mapped read-only.
 *
 *   offset  size  meaning
 *   0       8     N, little-endian: bytes of the header
 *   8       N     JSON object: name -> {"dtype", "shape", "data_offsets": [begin, end]}, offsets from
 *                 byte 8 + N; "__metadata__" maps strings to strings
 *   8 + N         data, row-major, little-endian, no padding
 *
 * Example: 39 00 00 00 00 00 00 00 {"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}} and 16
 * bytes. Everything is checked before use: offsets in order, in range, equal to shape times dtype,
 * no overlap and no gap. */
#ifndef LATHE_CONTAINER_SAFETENSORS_H
#define LATHE_CONTAINER_SAFETENSORS_H

#include "base/error.h"
#include "tensor/tensor.h"

enum { MAX_HEADER_BYTES = 100 << 20, MAX_TENSOR_DIMS = 8 };

struct checkpoint_tensor {
    const char *name;
    const char *file; /* the shard's name */
    enum dtype dtype;
    int32_t n_dims;
    int64_t dim[MAX_TENSOR_DIMS];
    const void *data; /* in the map; no alignment is promised */
    size_t bytes;
};

struct checkpoint;

/* A directory with model.safetensors or model.safetensors.index.json (then also *mtp*.safetensors
 * files whose tensors the index does not list), or one .safetensors file. */
lathe_status checkpoint_open(struct checkpoint **cp, const char *path, lathe_error *err);
void checkpoint_close(struct checkpoint *cp); /* NULL is allowed */
size_t checkpoint_count(const struct checkpoint *cp);
/* In the order of files, and of offsets within each. */
const struct checkpoint_tensor *checkpoint_at(const struct checkpoint *cp, size_t i);
/* NULL if there is none. */
const struct checkpoint_tensor *checkpoint_find(const struct checkpoint *cp, const char *name);

#endif

/* One safetensors file in memory: the header's JSON to a checked list of tensors. */
#ifndef LATHE_CONTAINER_SHARD_H
#define LATHE_CONTAINER_SHARD_H

#include "base/arena.h"
#include "container/safetensors.h"

struct shard {
    struct checkpoint_tensor *tensors; /* [n], by offset */
    size_t n;
};

/* Reads the n bytes at `data`, a whole file called `file`. Tensors point into `data`; the list and
 * the names live in `arena`. */
lathe_status shard_parse(struct shard *s, struct arena *arena, const char *file,
                         const unsigned char *data, size_t n, lathe_error *err);

#endif

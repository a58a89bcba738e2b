/* Any bytes as a safetensors file: a refusal with a message, or tensors that lie in the file, touch
 * and cover it. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "container/shard.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct arena arena;
    struct shard s;
    lathe_error err = {0};
    arena_init(&arena, 64 << 20);
    if (shard_parse(&s, &arena, "fuzz.safetensors", data, n, &err)) {
        if (!err.message[0])
            abort();
    } else {
        const unsigned char *at = s.n ? s.tensors[0].data : data + n;
        for (size_t i = 0; i < s.n; i++) {
            const struct checkpoint_tensor *t = &s.tensors[i];
            if ((const unsigned char *)t->data != at || t->n_dims > MAX_TENSOR_DIMS)
                abort();
            at += t->bytes;
        }
        if (at != data + n)
            abort();
    }
    arena_release(&arena);
    return 0;
}

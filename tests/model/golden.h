/* Reference vectors: STEM.safetensors, whose tensors are named PROMPT.NAME, and STEM.json. */
#ifndef LATHE_TESTS_MODEL_GOLDEN_H
#define LATHE_TESTS_MODEL_GOLDEN_H

#include "base/json.h"
#include "container/safetensors.h"

struct golden {
    struct checkpoint *vectors;
    struct json_doc json;
};

void golden_open(struct golden *g, const char *stem);
void golden_close(struct golden *g);
/* A heap copy of four-byte values, aligned; NULL where there is no such vector. */
void *golden_vector(const struct golden *g, const char *prompt, const char *name, int64_t *n);

#endif

#include "golden.h"

#include "test.h"

void golden_open(struct golden *g, const char *stem)
{
    char path[1100];
    lathe_error err;
    snprintf(path, sizeof path, "%s.safetensors", stem);
    CHECK_OK(checkpoint_open(&g->vectors, path, &err), &err);
    snprintf(path, sizeof path, "%s.json", stem);
    CHECK_OK(json_read_file(&g->json, path, &json_limits_model, &err), &err);
}

void golden_close(struct golden *g)
{
    checkpoint_close(g->vectors);
    json_release(&g->json);
}

void *golden_vector(const struct golden *g, const char *prompt, const char *name, int64_t *n)
{
    char full[64];
    snprintf(full, sizeof full, "%s.%s", prompt, name);
    const struct checkpoint_tensor *t = checkpoint_find(g->vectors, full);
    if (!t)
        return NULL;
    *n = (int64_t)(t->bytes / 4);
    void *copy = malloc(t->bytes);
    memcpy(copy, t->data, t->bytes);
    return copy;
}

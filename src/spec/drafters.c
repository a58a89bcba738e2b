#include <stdio.h>
#include <string.h>

#include "spec/drafter.h"

static const struct drafter_ops *const drafters[] = {
    &drafter_mtp, &drafter_dflash2, &drafter_ngram, &drafter_mtp_ngram, &drafter_dflash2_ngram,
};
enum { N_DRAFTERS = sizeof drafters / sizeof *drafters };

const struct drafter_ops *drafter_named(const char *name)
{
    for (int i = 0; i < N_DRAFTERS; i++)
        if (strcmp(drafters[i]->name, name) == 0)
            return drafters[i];
    return NULL;
}

void drafter_names(char *out, size_t room)
{
    size_t n = 0;
    for (int i = 0; i < N_DRAFTERS && n < room; i++)
        n += (size_t)snprintf(out + n, room - n, "%s%s", i ? ", " : "", drafters[i]->name);
}

lathe_status drafter_open(const struct drafter_ops *ops, struct drafter **d,
                          const struct drafter_options *o, struct memory *m, lathe_error *err)
{
    lathe_status st = ops->open(d, o, err);
    if (st)
        return st;
    st = ops->place(*d, o->n_ctx, m, err);
    if (!st)
        st = memory_load(m, NULL, NULL, NULL, err);
    if (st) {
        ops->close(*d);
        *d = NULL;
    }
    return st;
}

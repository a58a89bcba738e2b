#include <stdlib.h>

#include "engine/model_info.h"

struct lathe_checkpoint {
    struct model model;
};

lathe_status lathe_checkpoint_open(lathe_checkpoint **out, const char *model_dir, lathe_error *err)
{
    *out = NULL;
    lathe_checkpoint *cp = malloc(sizeof *cp);
    if (!cp)
        return fail_memory(err, sizeof *cp);
    lathe_status st = model_open(&cp->model, model_dir, err);
    if (st) {
        free(cp);
        return st;
    }
    *out = cp;
    return LATHE_OK;
}

void lathe_checkpoint_close(lathe_checkpoint *cp)
{
    if (!cp)
        return;
    model_close(&cp->model);
    free(cp);
}

size_t lathe_checkpoint_tensors(const lathe_checkpoint *cp)
{
    return checkpoint_count(cp->model.files);
}

void lathe_checkpoint_tensor(const lathe_checkpoint *cp, size_t i, lathe_tensor_info *out)
{
    const struct checkpoint_tensor *t = checkpoint_at(cp->model.files, i);
    *out = (lathe_tensor_info){
        .name = t->name,
        .dtype = dtype_name(t->dtype),
        .file = t->file,
        .n_dims = t->n_dims,
        .bytes = t->bytes,
    };
    for (int32_t k = 0; k < t->n_dims; k++)
        out->dim[k] = t->dim[k];
}

size_t lathe_checkpoint_modules(const lathe_checkpoint *cp)
{
    return cp->model.n_modules;
}

void lathe_checkpoint_module(const lathe_checkpoint *cp, size_t i, lathe_module_info *out)
{
    const struct module *m = &cp->model.modules[i];
    *out = (lathe_module_info){
        .name = m->name,
        .format = weight_formats[m->weight->format].name,
        .rows = m->weight->rows,
        .cols = m->weight->cols,
        .bytes = weight_bytes(m->weight),
    };
}

void lathe_checkpoint_info(const lathe_checkpoint *cp, lathe_model_info *out)
{
    model_info(&cp->model, out);
}

#include "write_safetensors.h"

#include "base/buf.h"

struct out_tensor *out_add(struct out_file *f, const char *name, enum dtype dtype, int32_t n_dims,
                           const int64_t *dims, const void *data)
{
    if (f->n == f->cap) {
        f->cap = f->cap ? 2 * f->cap : 64;
        f->tensors = realloc(f->tensors, f->cap * sizeof *f->tensors);
        CHECK(f->tensors);
    }
    struct out_tensor *t = &f->tensors[f->n++];
    *t = (struct out_tensor){.dtype = dtype, .n_dims = n_dims, .bytes = dtype_size(dtype)};
    t->name = malloc(strlen(name) + 1);
    CHECK(t->name);
    memcpy(t->name, name, strlen(name) + 1);
    for (int32_t i = 0; i < n_dims; i++) {
        t->dim[i] = dims[i];
        t->bytes *= (size_t)dims[i];
    }
    t->data = calloc(1, t->bytes + 1);
    CHECK(t->data);
    if (data)
        memcpy(t->data, data, t->bytes);
    return t;
}

struct out_tensor *out_find(struct out_file *f, const char *name)
{
    for (size_t i = 0; i < f->n; i++)
        if (strcmp(f->tensors[i].name, name) == 0)
            return &f->tensors[i];
    return NULL;
}

void out_remove(struct out_file *f, const char *name)
{
    struct out_tensor *t = out_find(f, name);
    if (!t)
        FAIL("no tensor %s to remove", name);
    free(t->name);
    free(t->data);
    size_t i = (size_t)(t - f->tensors);
    memmove(t, t + 1, (f->n - i - 1) * sizeof *t);
    f->n--;
}

void out_rename(struct out_file *f, const char *name, const char *to)
{
    struct out_tensor *t = out_find(f, name);
    if (!t)
        FAIL("no tensor %s to rename", name);
    t->name = realloc(t->name, strlen(to) + 1);
    CHECK(t->name);
    memcpy(t->name, to, strlen(to) + 1);
}

void out_release(struct out_file *f)
{
    for (size_t i = 0; i < f->n; i++) {
        free(f->tensors[i].name);
        free(f->tensors[i].data);
    }
    free(f->tensors);
    *f = (struct out_file){0};
}

void out_write(const struct out_file *f, size_t first, size_t n, const char *path)
{
    struct buf json, all;
    buf_init(&json, 64 << 20);
    buf_init(&all, (size_t)1 << 30);
    size_t at = 0;
    buf_puts(&json, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = first; i < first + n; i++) {
        const struct out_tensor *t = &f->tensors[i];
        buf_printf(&json, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name, dtype_name(t->dtype));
        for (int32_t k = 0; k < t->n_dims; k++)
            buf_printf(&json, "%s%lld", k ? "," : "", (long long)t->dim[k]);
        buf_printf(&json, "],\"data_offsets\":[%zu,%zu]}", at, at + t->bytes);
        at += t->bytes;
    }
    buf_putc(&json, '}');
    for (int i = 0; i < 8; i++)
        buf_putc(&all, (char)(json.len >> 8 * i));
    buf_append(&all, json.data, json.len);
    for (size_t i = first; i < first + n; i++)
        buf_append(&all, f->tensors[i].data, f->tensors[i].bytes);
    CHECK(!buf_check(&json, "header", NULL) && !buf_check(&all, "file", NULL));
    test_write(path, all.data, all.len);
    buf_release(&json);
    buf_release(&all);
}

void out_write_shards(const struct out_file *f, int32_t n_shards, const char *dir)
{
    char path[1200], name[64];
    if (n_shards <= 1) {
        snprintf(path, sizeof path, "%s/model.safetensors", dir);
        out_write(f, 0, f->n, path);
        return;
    }
    struct buf index;
    buf_init(&index, 64 << 20);
    buf_puts(&index, "{\"metadata\":{},\"weight_map\":{");
    for (int32_t s = 0; s < n_shards; s++) {
        size_t first = f->n * (size_t)s / (size_t)n_shards;
        size_t end = f->n * ((size_t)s + 1) / (size_t)n_shards;
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", s + 1, n_shards);
        snprintf(path, sizeof path, "%s/%s", dir, name);
        out_write(f, first, end - first, path);
        for (size_t i = first; i < end; i++)
            buf_printf(&index, "%s\"%s\":\"%s\"", i ? "," : "", f->tensors[i].name, name);
    }
    buf_puts(&index, "}}");
    CHECK(!buf_check(&index, "index", NULL));
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    test_write(path, index.data, index.len);
    buf_release(&index);
}

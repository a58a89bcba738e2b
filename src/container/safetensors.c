#include "container/shard.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

/* The parts of a message that say where: "tensor a: ...". */
struct place {
    const struct json_doc *doc;
    const char *tensor;
    lathe_error *err;
};

static lathe_status read_count(const struct place *at, const json_t *v, const char *what,
                               uint64_t *out)
{
    if (!json_is_integer(v))
        return fail(at->err, json_big_integer(at->doc, v) ? LATHE_E_LIMIT : LATHE_E_FORMAT,
                    "tensor %s: %s is not an integer below 2^63", at->tensor, what);
    json_int_t i = json_integer_value(v);
    if (i < 0)
        return fail(at->err, LATHE_E_FORMAT, "tensor %s: %s is %lld, expected 0 or more",
                    at->tensor, what, (long long)i);
    *out = (uint64_t)i;
    return LATHE_OK;
}

static lathe_status read_dtype(const struct place *at, const json_t *v, enum dtype *out)
{
    size_t n = 0;
    const char *s = json_text(at->doc, v, &n);
    if (!s)
        return fail(at->err, LATHE_E_FORMAT, "tensor %s: no dtype", at->tensor);
    if (strlen(s) != n || !dtype_from_name(s, out))
        return fail(at->err, LATHE_E_UNSUPPORTED, "tensor %s: unknown dtype \"%.32s\"", at->tensor,
                    s);
    return LATHE_OK;
}

static lathe_status read_shape(const struct place *at, const json_t *v, struct checkpoint_tensor *t)
{
    if (!json_is_array(v))
        return fail(at->err, LATHE_E_FORMAT, "tensor %s: no shape", at->tensor);
    size_t n = json_array_size(v);
    if (n > MAX_TENSOR_DIMS)
        return fail(at->err, LATHE_E_LIMIT, "tensor %s: %zu dimensions, at most %d", at->tensor, n,
                    MAX_TENSOR_DIMS);
    t->n_dims = (int32_t)n;
    uint64_t bytes = dtype_size(t->dtype);
    for (size_t i = 0; i < n; i++) {
        uint64_t d;
        lathe_status st = read_count(at, json_array_get(v, i), "a dimension", &d);
        if (st)
            return st;
        if (d && bytes > INT64_MAX / d)
            return fail(at->err, LATHE_E_FORMAT, "tensor %s: its shape is 2^63 bytes or more",
                        at->tensor);
        bytes *= d;
        t->dim[i] = (int64_t)d;
    }
    t->bytes = (size_t)bytes;
    return LATHE_OK;
}

/* One member of the header. `begin` takes the offset into the data, whose size is `size`. */
static lathe_status read_tensor(const struct place *at, const json_t *v, uint64_t size,
                                struct checkpoint_tensor *t, uint64_t *begin)
{
    if (!json_is_object(v))
        return fail(at->err, LATHE_E_FORMAT, "tensor %s: not an object", at->tensor);
    lathe_status st = read_dtype(at, json_object_get(v, "dtype"), &t->dtype);
    if (!st)
        st = read_shape(at, json_object_get(v, "shape"), t);
    if (st)
        return st;

    const json_t *offsets = json_object_get(v, "data_offsets");
    uint64_t end;
    if (!json_is_array(offsets) || json_array_size(offsets) != 2)
        return fail(at->err, LATHE_E_FORMAT, "tensor %s: data_offsets is not a pair", at->tensor);
    st = read_count(at, json_array_get(offsets, 0), "an offset", begin);
    if (!st)
        st = read_count(at, json_array_get(offsets, 1), "an offset", &end);
    if (st)
        return st;
    if (end < *begin)
        return fail(at->err, LATHE_E_FORMAT, "tensor %s: offsets %llu and %llu are reversed",
                    at->tensor, (unsigned long long)*begin, (unsigned long long)end);
    if (end > size)
        return fail(
            at->err, LATHE_E_FORMAT,
            "tensor %s: ends at byte %llu of the data, but the file holds %llu (cut short?)",
            at->tensor, (unsigned long long)end, (unsigned long long)size);
    if (end - *begin != t->bytes)
        return fail(at->err, LATHE_E_FORMAT,
                    "tensor %s: %llu bytes, expected %zu from its shape and dtype", at->tensor,
                    (unsigned long long)(end - *begin), t->bytes);
    return LATHE_OK;
}

static lathe_status check_metadata(json_t *v, lathe_error *err)
{
    if (!json_is_object(v))
        return fail(err, LATHE_E_FORMAT, "__metadata__ is not an object");
    for (void *it = json_object_iter(v); it; it = json_object_iter_next(v, it))
        if (!json_is_string(json_object_iter_value(it)))
            return fail(err, LATHE_E_FORMAT, "__metadata__: member %s is not a string",
                        json_object_iter_key(it));
    return LATHE_OK;
}

/* By place in the file; an empty tensor before the one that begins where it lies. */
static int by_offset(const void *a, const void *b)
{
    const struct checkpoint_tensor *x = a, *y = b;
    uintptr_t p = (uintptr_t)x->data, q = (uintptr_t)y->data;
    if (p != q)
        return p < q ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static lathe_status check_cover(const struct shard *s, const unsigned char *data, size_t size,
                                lathe_error *err)
{
    size_t at = 0;
    for (size_t i = 0; i < s->n; i++) {
        const struct checkpoint_tensor *t = &s->tensors[i];
        size_t begin = (size_t)((const unsigned char *)t->data - data);
        if (begin != at)
            return fail(err, LATHE_E_FORMAT, "tensor %s: begins at byte %zu of the data, %s %zu",
                        t->name, begin,
                        begin < at ? "inside another that ends at" : "after a gap from", at);
        at += t->bytes;
    }
    if (at != size)
        return fail(err, LATHE_E_FORMAT, "%zu bytes behind the last tensor belong to none",
                    size - at);
    return LATHE_OK;
}

static lathe_status read_header(struct shard *s, struct arena *arena, const char *file,
                                const struct json_doc *doc, const unsigned char *data, size_t size,
                                lathe_error *err)
{
    if (!json_is_object(doc->root))
        return fail(err, LATHE_E_FORMAT, "the header is not a JSON object");
    size_t n = json_object_size(doc->root);
    s->tensors = arena_calloc(arena, n, sizeof *s->tensors);
    if (!s->tensors)
        return fail_memory(err, n * sizeof *s->tensors);
    for (void *it = json_object_iter(doc->root); it; it = json_object_iter_next(doc->root, it)) {
        const char *name = json_object_iter_key(it);
        json_t *v = json_object_iter_value(it);
        lathe_status st;
        if (strcmp(name, "__metadata__") == 0) {
            if ((st = check_metadata(v, err)) != LATHE_OK)
                return st;
            continue;
        }
        struct checkpoint_tensor *t = &s->tensors[s->n];
        uint64_t begin;
        struct place at = {doc, name, err};
        st = read_tensor(&at, v, size, t, &begin);
        if (st)
            return st;
        t->name = arena_strndup(arena, name, strlen(name));
        if (!t->name)
            return fail_memory(err, strlen(name));
        t->file = file;
        t->data = data + begin;
        s->n++;
    }
    qsort(s->tensors, s->n, sizeof *s->tensors, by_offset);
    return check_cover(s, data, size, err);
}

lathe_status shard_parse(struct shard *s, struct arena *arena, const char *file,
                         const unsigned char *data, size_t n, lathe_error *err)
{
    *s = (struct shard){0};
    if (n < 8)
        return fail(err, LATHE_E_FORMAT, "%zu bytes, a safetensors file has 8 at least", n);
    uint64_t header = 0;
    for (int i = 7; i >= 0; i--)
        header = header << 8 | data[i];
    if (header > n - 8)
        return fail(err, LATHE_E_FORMAT,
                    "a header of %llu bytes in a file of %zu (cut short, or no safetensors file?)",
                    (unsigned long long)header, n);
    if (header > MAX_HEADER_BYTES)
        return fail(err, LATHE_E_LIMIT, "a header of %llu bytes, at most %d",
                    (unsigned long long)header, MAX_HEADER_BYTES);
    struct json_doc doc;
    lathe_status st =
        json_read(&doc, (const char *)data + 8, (size_t)header, &json_limits_model, err);
    if (st)
        error_context(err, "header");
    else
        st = read_header(s, arena, file, &doc, data + 8 + header, n - 8 - (size_t)header, err);
    json_release(&doc);
    return st;
}

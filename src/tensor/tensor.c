#include "tensor/tensor.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "tensor/number.h"

static const struct {
    const char *name;
    size_t size;
} dtypes[DT_COUNT] = {
    [DT_F32] = {"F32", 4},         [DT_BF16] = {"BF16", 2}, [DT_F16] = {"F16", 2},
    [DT_F8_E4M3] = {"F8_E4M3", 1}, [DT_I32] = {"I32", 4},   [DT_I64] = {"I64", 8},
    [DT_U8] = {"U8", 1},           [DT_I8] = {"I8", 1},     [DT_F64] = {"F64", 8},
    [DT_I16] = {"I16", 2},         [DT_U16] = {"U16", 2},   [DT_U32] = {"U32", 4},
    [DT_U64] = {"U64", 8},         [DT_BOOL] = {"BOOL", 1}, [DT_F8_E5M2] = {"F8_E5M2", 1},
};

size_t dtype_size(enum dtype d)
{
    return dtypes[d].size;
}

const char *dtype_name(enum dtype d)
{
    return dtypes[d].name;
}

bool dtype_from_name(const char *name, enum dtype *out)
{
    for (int d = 0; d < DT_COUNT; d++)
        if (strcmp(dtypes[d].name, name) == 0) {
            *out = (enum dtype)d;
            return true;
        }
    return false;
}

struct tensor tensor_1d(void *data, enum dtype dtype, int64_t n)
{
    return (struct tensor){data, dtype, 1, {n, 1, 1, 1}, 1};
}

struct tensor tensor_2d(void *data, enum dtype dtype, int64_t rows, int64_t cols)
{
    return (struct tensor){data, dtype, 2, {rows, cols, 1, 1}, cols};
}

struct tensor tensor_3d(void *data, enum dtype dtype, int64_t a, int64_t b, int64_t c)
{
    return (struct tensor){data, dtype, 3, {a, b, c, 1}, b * c};
}

struct tensor tensor_4d(void *data, enum dtype dtype, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (struct tensor){data, dtype, 4, {a, b, c, d}, b * c * d};
}

int64_t tensor_row(const struct tensor *t)
{
    return t->dim[1] * t->dim[2] * t->dim[3];
}

int64_t tensor_elements(const struct tensor *t)
{
    return t->dim[0] * tensor_row(t);
}

void *tensor_at(const struct tensor *t, int64_t r)
{
    return (unsigned char *)t->data + (size_t)(r * t->stride) * dtype_size(t->dtype);
}

struct tensor tensor_rows(struct tensor t, int64_t first, int64_t n)
{
    assert(first >= 0 && n >= 0 && first + n <= t.dim[0]);
    t.data = t.data ? tensor_at(&t, first) : NULL;
    t.dim[0] = n;
    return t;
}

struct tensor tensor_cols(struct tensor t, int64_t first, int64_t n)
{
    assert(t.n_dims == 2 && first >= 0 && n >= 0 && first + n <= t.dim[1]);
    if (t.data)
        t.data = (unsigned char *)t.data + (size_t)first * dtype_size(t.dtype);
    t.dim[1] = n;
    return t;
}

size_t tensor_room(const struct tensor *t)
{
    return ((size_t)tensor_elements(t) * dtype_size(t->dtype) + 63) & ~(size_t)63;
}

struct tensor tensor_after(struct tensor t, size_t bytes)
{
    if (t.data)
        t.data = (unsigned char *)t.data + bytes;
    return t;
}

void tensor_describe(const struct tensor *t, char out[96])
{
    int n = snprintf(out, 96, "%s [", dtype_name(t->dtype));
    for (int32_t i = 0; i < t->n_dims && n < 80; i++)
        n += snprintf(out + n, 96 - (size_t)n, "%s%lld", i ? ", " : "", (long long)t->dim[i]);
    snprintf(out + n, 96 - (size_t)n, "]");
}

void to_f32(float *dst, const void *src, enum dtype dtype, int64_t n)
{
    const unsigned char *p = src;
    uint16_t h;
    switch (dtype) {
    case DT_F32:
        memcpy(dst, src, (size_t)n * sizeof *dst);
        return;
    case DT_BF16:
        for (int64_t i = 0; i < n; i++) {
            memcpy(&h, p + 2 * i, 2);
            dst[i] = bf16_to_f32(h);
        }
        return;
    case DT_F16:
        for (int64_t i = 0; i < n; i++) {
            memcpy(&h, p + 2 * i, 2);
            dst[i] = f16_to_f32(h);
        }
        return;
    case DT_F8_E4M3:
        for (int64_t i = 0; i < n; i++)
            dst[i] = e4m3_to_f32(p[i]);
        return;
    default:
        assert(!"to_f32: not a real dtype");
    }
}

void from_f32(void *dst, enum dtype dtype, const float *src, int64_t n)
{
    unsigned char *p = dst;
    uint16_t h;
    switch (dtype) {
    case DT_F32:
        memcpy(dst, src, (size_t)n * sizeof *src);
        return;
    case DT_BF16:
        for (int64_t i = 0; i < n; i++) {
            h = bf16_from_f32(src[i]);
            memcpy(p + 2 * i, &h, 2);
        }
        return;
    case DT_F16:
        for (int64_t i = 0; i < n; i++) {
            h = f16_from_f32(src[i]);
            memcpy(p + 2 * i, &h, 2);
        }
        return;
    case DT_F8_E4M3:
        for (int64_t i = 0; i < n; i++)
            p[i] = e4m3_from_f32(src[i]);
        return;
    default:
        assert(!"from_f32: not a real dtype");
    }
}

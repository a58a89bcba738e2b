/* One matrix from the tensors beside its name. The format follows from which tensors exist and from
 * their dtypes (checkpoints.md, sections 2 to 5); the words of quantization_config are not asked.
 *
 *   weight of F32, BF16, F16, nothing else                            plain
 *   weight_packed U8, weight_scale F8_E4M3, weight_global_scale       NVFP4, compressed-tensors
 *   weight U8, weight_scale F8_E4M3, weight_scale_2                   NVFP4, ModelOpt
 *   weight F8_E4M3, weight_scale or weight_scale_inv                  FP8, by the scale's shape:
 *     one value, [rows, 1] or [rows], [rows / 128, cols / 128] rounded up
 *
 * input_scale and input_global_scale describe activations in 4 or 8 bits, which are kept wider. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/bind.h"

enum { MAX_PARTS = 3 };

struct siblings {
    const struct checkpoint_tensor *weight, *packed, *scale, *scale_inv, *global_scale, *scale_2;
};

/* A matrix whose parts may differ in `global`. */
struct loaded {
    struct weight weight;
    const struct checkpoint_tensor *codes;
    float global[MAX_PARTS];
};

static struct siblings take_siblings(struct binder *b, const char *base)
{
    (void)names_take(b, base, "input_global_scale");
    (void)names_take(b, base, "input_scale");
    return (struct siblings){
        .weight = names_take(b, base, "weight"),
        .packed = names_take(b, base, "weight_packed"),
        .scale = names_take(b, base, "weight_scale"),
        .scale_inv = names_take(b, base, "weight_scale_inv"),
        .global_scale = names_take(b, base, "weight_global_scale"),
        .scale_2 = names_take(b, base, "weight_scale_2"),
    };
}

static int64_t elements(const struct checkpoint_tensor *t)
{
    int64_t n = 1;
    for (int32_t i = 0; i < t->n_dims; i++)
        n *= t->dim[i];
    return n;
}

static bool is_real(enum dtype d)
{
    return d == DT_F32 || d == DT_BF16 || d == DT_F16;
}

static bool has_shape(const struct checkpoint_tensor *t, int64_t rows, int64_t cols)
{
    return t->n_dims == 2 && t->dim[0] == rows && t->dim[1] == cols;
}

static void *data_of(const struct checkpoint_tensor *t)
{
    union {
        const void *c;
        void *v;
    } p = {.c = t->data};
    return p.v; /* struct tensor is for reading and writing; weights are only read */
}

/* One positive number for all parts, or one for each. */
static bool read_global(struct binder *b, const struct checkpoint_tensor *t, int32_t n_parts,
                        bool is_divisor, float global[MAX_PARTS])
{
    int64_t n = elements(t);
    if (!is_real(t->dtype) || (n != 1 && n != n_parts)) {
        problem_shape(b, t, "one value of F32");
        return false;
    }
    float x[MAX_PARTS];
    to_f32(x, t->data, t->dtype, n);
    for (int32_t i = 0; i < n_parts; i++) {
        float s = x[n == 1 ? 0 : i];
        global[i] = is_divisor ? 1 / s : s;
        if (!(s > 0) || !isfinite(s) || !isfinite(global[i])) {
            problem(b, LATHE_E_FORMAT, "tensor %s in %s: %g, expected a positive number", t->name,
                    t->file, (double)s);
            return false;
        }
    }
    return true;
}

static bool refuse_format(struct binder *b, const char *base, const char *why)
{
    char name[MAX_NAME];
    names_full(b, base, name);
    problem(b, LATHE_E_FORMAT, "module %s: %s", name, why);
    return false;
}

static bool missing(struct binder *b, const char *base, const char *suffix)
{
    char name[MAX_NAME];
    names_full(b, base, name);
    problem(b, LATHE_E_FORMAT, "tensor %s.%s is missing", name, suffix);
    return false;
}

/* Fills `out` by the format's layout and checks the codes' shape. */
static bool set_layout(struct binder *b, struct loaded *out, enum weight_format_id format,
                       const struct checkpoint_tensor *codes, int64_t rows, int64_t cols,
                       enum dtype scales_dtype)
{
    lathe_error e;
    struct weight *w = &out->weight;
    if (weight_formats[format].layout(w, rows, cols, scales_dtype, &e)) {
        problem(b, e.status, "tensor %s in %s: %s", codes->name, codes->file, e.message);
        return false;
    }
    if (codes->dtype != w->codes.dtype || !has_shape(codes, w->codes.dim[0], w->codes.dim[1])) {
        char text[96];
        tensor_describe(&w->codes, text);
        problem_shape(b, codes, text);
        return false;
    }
    w->codes.data = data_of(codes);
    out->codes = codes;
    for (int32_t i = 0; i < MAX_PARTS; i++)
        out->global[i] = 1;
    return true;
}

static bool load_nvfp4(struct binder *b, struct loaded *out, const char *base,
                       const struct siblings *s, int64_t rows, int64_t cols, int32_t n_parts)
{
    const struct checkpoint_tensor *global = s->packed ? s->global_scale : s->scale_2;
    if (s->scale_inv || (s->packed ? s->scale_2 : s->global_scale))
        return refuse_format(b, base, "scales of two formats");
    if (!s->scale)
        return missing(b, base, "weight_scale");
    if (!global)
        return missing(b, base, s->packed ? "weight_global_scale" : "weight_scale_2");
    if (!set_layout(b, out, WF_NVFP4, s->packed ? s->packed : s->weight, rows, cols, DT_F8_E4M3))
        return false;
    struct tensor *scales = &out->weight.scales;
    if (s->scale->dtype != DT_F8_E4M3 || !has_shape(s->scale, scales->dim[0], scales->dim[1])) {
        char text[96];
        tensor_describe(scales, text);
        problem_shape(b, s->scale, text);
        return false;
    }
    scales->data = data_of(s->scale);
    return read_global(b, global, n_parts, s->packed != NULL, out->global);
}

static bool load_fp8(struct binder *b, struct loaded *out, const char *base,
                     const struct siblings *s, int64_t rows, int64_t cols, int32_t n_parts)
{
    if (s->global_scale || s->scale_2 || (s->scale && s->scale_inv))
        return refuse_format(b, base, "scales of two formats");
    const struct checkpoint_tensor *t = s->scale ? s->scale : s->scale_inv;
    if (!t)
        return missing(b, base, "weight_scale");
    int64_t n = elements(t), block_rows = (rows + 127) / 128, block_cols = (cols + 127) / 128;
    bool is_row = (t->n_dims == 2 && has_shape(t, rows, 1)) || (t->n_dims == 1 && n == rows);
    bool is_block = has_shape(t, block_rows, block_cols);
    enum weight_format_id format;
    /* Where shapes coincide, so do the numbers; the name then says what the maker meant. */
    if (is_block && s->scale_inv)
        format = WF_FP8_BLOCK;
    else if (n == 1 || (n == n_parts && !is_row))
        format = WF_FP8_TENSOR;
    else if (is_row)
        format = WF_FP8_ROW;
    else if (is_block)
        format = WF_FP8_BLOCK;
    else {
        char text[128];
        (void)snprintf(text, sizeof text, "one value, [%lld, 1] or [%lld, %lld]", (long long)rows,
                       (long long)block_rows, (long long)block_cols);
        problem_shape(b, t, text);
        return false;
    }
    if (format == WF_FP8_TENSOR)
        return set_layout(b, out, format, s->weight, rows, cols, DT_F32) &&
               read_global(b, t, n_parts, false, out->global);
    if (!set_layout(b, out, format, s->weight, rows, cols, t->dtype))
        return false;
    out->weight.scales.data = data_of(t);
    return true;
}

static bool load_plain(struct binder *b, struct loaded *out, const char *base,
                       const struct siblings *s, int64_t rows, int64_t cols)
{
    enum dtype d = s->weight->dtype;
    if (s->scale || s->scale_inv || s->global_scale || s->scale_2) {
        char why[96];
        (void)snprintf(why, sizeof why, "scales beside a weight of %s", dtype_name(d));
        return refuse_format(b, base, why);
    }
    if (!is_real(d)) {
        problem(b, LATHE_E_UNSUPPORTED,
                "tensor %s in %s: weights of %s are not supported, only F32, BF16, F16, FP8 and "
                "NVFP4",
                s->weight->name, s->weight->file, dtype_name(d));
        return false;
    }
    enum weight_format_id format = d == DT_F32 ? WF_F32 : d == DT_BF16 ? WF_BF16 : WF_F16;
    return set_layout(b, out, format, s->weight, rows, cols, DT_F32);
}

static bool load(struct binder *b, struct loaded *out, const char *base, int64_t rows, int64_t cols,
                 int32_t n_parts)
{
    struct siblings s = take_siblings(b, base);
    *out = (struct loaded){0};
    if (s.weight && s.packed)
        return refuse_format(b, base, "both weight and weight_packed");
    if (!s.weight && !s.packed)
        return missing(b, base, "weight");
    if (s.packed || s.weight->dtype == DT_U8)
        return load_nvfp4(b, out, base, &s, rows, cols, n_parts);
    if (s.weight->dtype == DT_F8_E4M3)
        return load_fp8(b, out, base, &s, rows, cols, n_parts);
    return load_plain(b, out, base, &s, rows, cols);
}

/* Notes the finished matrix and checks its scales. */
static void finish(struct binder *b, struct weight *w, const char *base,
                   const struct checkpoint_tensor *codes)
{
    char name[MAX_NAME];
    lathe_error e;
    names_full(b, base, name);
    if (weight_check_scales(w, &e)) {
        problem(b, e.status, "module %s: %s", name, e.message);
        return;
    }
    if (b->n_bound == b->cap_bound) {
        size_t cap = b->cap_bound ? 2 * b->cap_bound : 64;
        struct bound *p = realloc(b->bound, cap * sizeof *p);
        if (!p) {
            problem_memory(b, cap * sizeof *p);
            return;
        }
        b->bound = p;
        b->cap_bound = cap;
    }
    char *kept = arena_strndup(b->arena, name, strlen(name));
    if (!kept) {
        problem_memory(b, strlen(name));
        return;
    }
    b->bound[b->n_bound++] = (struct bound){{kept, w}, codes};
}

void bind_matrix(struct binder *b, struct weight *w, const char *base, int64_t rows, int64_t cols)
{
    struct loaded l;
    if (!load(b, &l, base, rows, cols, 1))
        return;
    *w = l.weight;
    w->global = l.global[0];
    finish(b, w, base, l.codes);
}

static void missing_tensor(struct binder *b, const char *base, const char *suffix)
{
    char name[MAX_NAME], full[MAX_NAME];
    (void)snprintf(name, sizeof name, "%s%s%s", base, suffix ? "." : "", suffix ? suffix : "");
    names_full(b, name, full);
    problem(b, LATHE_E_FORMAT, "tensor %s is missing", full);
}

void bind_parameter(struct binder *b, struct weight *w, const char *name, int64_t rows,
                    int64_t cols)
{
    struct siblings s = {.weight = names_take(b, name, NULL)};
    struct loaded l = {0};
    if (!s.weight) {
        missing_tensor(b, name, NULL);
        return;
    }
    if (!load_plain(b, &l, name, &s, rows, cols))
        return;
    *w = l.weight;
    w->global = 1;
    finish(b, w, name, l.codes);
}

static struct weight rows_of(const struct weight *w, int64_t first, int64_t n)
{
    struct weight part = *w;
    part.rows = n;
    part.codes = tensor_rows(w->codes, first, n);
    if (w->format == WF_FP8_BLOCK)
        part.scales = tensor_rows(w->scales, first / 128, (n + 127) / 128);
    else if (w->scales.data)
        part.scales = tensor_rows(w->scales, first, n);
    return part;
}

static void bind_joined(struct binder *b, const struct part *parts, int32_t n, const char *parent,
                        const char *joined, int64_t cols)
{
    char base[MAX_NAME];
    struct loaded l;
    int64_t rows = 0;
    for (int32_t i = 0; i < n; i++)
        rows += parts[i].rows;
    (void)snprintf(base, sizeof base, "%s.%s", parent, joined);
    if (!load(b, &l, base, rows, cols, n))
        return;
    int64_t first = 0;
    for (int32_t i = 0; i < n; first += parts[i++].rows) {
        if (l.weight.format == WF_FP8_BLOCK && first % 128) {
            (void)refuse_format(b, base, "its parts do not begin at a block of 128 rows");
            return;
        }
        *parts[i].weight = rows_of(&l.weight, first, parts[i].rows);
        parts[i].weight->global = l.global[i];
        (void)snprintf(base, sizeof base, "%s.%s", parent, parts[i].name);
        finish(b, parts[i].weight, base, l.codes);
    }
}

void bind_parts(struct binder *b, const struct part *parts, int32_t n, const char *parent,
                const char *joined, int64_t cols)
{
    char base[MAX_NAME];
    bool any = false;
    for (int32_t i = 0; i < n; i++) {
        (void)snprintf(base, sizeof base, "%s.%s", parent, parts[i].name);
        any = any || names_has(b, base, "weight") || names_has(b, base, "weight_packed");
    }
    (void)snprintf(base, sizeof base, "%s.%s", parent, joined);
    if (!any && (names_has(b, base, "weight") || names_has(b, base, "weight_packed"))) {
        bind_joined(b, parts, n, parent, joined, cols);
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        (void)snprintf(base, sizeof base, "%s.%s", parent, parts[i].name);
        bind_matrix(b, parts[i].weight, base, parts[i].rows, cols);
    }
}

/* The n values of a small tensor in F32; NULL after a problem. */
static float *expand(struct binder *b, const struct checkpoint_tensor *t)
{
    int64_t n = elements(t);
    float *x = arena_alloc(b->arena, (size_t)n * sizeof *x);
    if (!x) {
        problem_memory(b, (size_t)n * sizeof *x);
        return NULL;
    }
    to_f32(x, t->data, t->dtype, n);
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) {
            problem(b, LATHE_E_NUMERIC, "tensor %s in %s: value %lld is %g", t->name, t->file,
                    (long long)i, (double)x[i]);
            break;
        }
    return x;
}

void bind_vector(struct binder *b, struct tensor *out, const char *base, const char *suffix,
                 int64_t dim0, int64_t dim1)
{
    const struct checkpoint_tensor *t = names_take(b, base, suffix);
    if (!t) {
        missing_tensor(b, base, suffix);
        return;
    }
    bool fits = t->n_dims >= 1 && t->dim[0] == dim0 &&
                (dim1 ? (t->n_dims == 2 && t->dim[1] == dim1) ||
                            (t->n_dims == 3 && t->dim[1] == 1 && t->dim[2] == dim1)
                      : t->n_dims == 1);
    if (!is_real(t->dtype) || !fits) {
        char text[96];
        if (dim1)
            (void)snprintf(text, sizeof text, "F32 or BF16 [%lld, 1, %lld]", (long long)dim0,
                           (long long)dim1);
        else
            (void)snprintf(text, sizeof text, "F32 or BF16 [%lld]", (long long)dim0);
        problem_shape(b, t, text);
        return;
    }
    float *x = expand(b, t);
    if (x)
        *out = dim1 ? tensor_2d(x, DT_F32, dim0, dim1) : tensor_1d(x, DT_F32, dim0);
}

void bind_stack(struct binder *b, struct tensor *out, const char *base, const char *suffix,
                int64_t dim0, int64_t dim1, int64_t n)
{
    const struct checkpoint_tensor *t = names_take(b, base, suffix);
    if (!t) {
        missing_tensor(b, base, suffix);
        return;
    }
    if (!is_real(t->dtype) || t->n_dims != 3 || t->dim[0] != dim0 || t->dim[1] != dim1 ||
        t->dim[2] != n) {
        char text[96];
        (void)snprintf(text, sizeof text, "F32 or BF16 [%lld, %lld, %lld]", (long long)dim0,
                       (long long)dim1, (long long)n);
        problem_shape(b, t, text);
        return;
    }
    float *x = expand(b, t);
    if (x)
        *out = tensor_2d(x, DT_F32, dim0 * dim1, n);
}

void bind_norm(struct binder *b, struct tensor *out, const char *base, const char *suffix,
               int64_t n)
{
    bind_vector(b, out, base, suffix, n, 0);
    float *w = out->data;
    for (int64_t i = 0; w && i < n; i++)
        w[i] = 1 + w[i];
}

#include "op/exec.h"

#include <stdarg.h>
#include <stdio.h>

#include "op/backend.h"

enum { ALIGN = 64 }; /* a cache line, and the widest vector */

void exec_plan(struct exec *x, const struct backend *backend, void *stream, struct buf *listing)
{
    *x = (struct exec){
        .backend = backend,
        .stream = stream,
        .phase = PHASE_DECODE,
        .planning = true,
        .cap = SIZE_MAX,
        .listing = listing,
    };
}

void exec_init(struct exec *x, const struct backend *backend, void *stream, void *workspace,
               size_t cap)
{
    *x = (struct exec){
        .backend = backend,
        .stream = stream,
        .phase = PHASE_DECODE,
        .base = workspace,
        .cap = cap,
    };
}

void exec_begin(struct exec *x)
{
    x->status = LATHE_OK;
    x->phase = PHASE_DECODE;
    x->used = 0;
}

lathe_status exec_end(struct exec *x, lathe_error *err)
{
    if (x->status && err)
        *err = x->err;
    return x->status;
}

enum phase exec_phase(struct exec *x, enum phase phase)
{
    enum phase before = x->phase;
    x->phase = phase;
    return before;
}

size_t exec_push(const struct exec *x)
{
    return x->used;
}

void exec_pop(struct exec *x, size_t mark)
{
    x->used = mark;
}

struct tensor exec_tmp(struct exec *x, enum dtype dtype, int64_t rows, int64_t cols)
{
    struct tensor t = tensor_2d(NULL, dtype, rows, cols);
    if (x->status)
        return t;
    size_t row_bytes, bytes, end;
    if (rows < 0 || cols < 0 ||
        __builtin_mul_overflow((size_t)cols, dtype_size(dtype), &row_bytes) ||
        __builtin_mul_overflow(row_bytes, (size_t)rows, &bytes) ||
        __builtin_add_overflow(bytes, (size_t)(ALIGN - 1), &bytes) ||
        __builtin_add_overflow(x->used, bytes & ~(size_t)(ALIGN - 1), &end) || end > x->cap) {
        exec_fail(x, LATHE_E_MEMORY, "workspace: %lld x %lld %s do not fit in %zu of %zu bytes",
                  (long long)rows, (long long)cols, dtype_name(dtype), x->cap - x->used, x->cap);
        return t;
    }
    if (!x->planning)
        t.data = x->base + x->used;
    x->used = end;
    if (x->peak < end)
        x->peak = end;
    return t;
}

const void *exec_fetch(struct exec *x, const struct tensor *t, void *room)
{
    if (x->status || x->planning)
        return NULL;
    if (x->backend->is_host)
        return t->data;
    size_t bytes = (size_t)tensor_elements(t) * dtype_size(t->dtype);
    lathe_error err;
    if (x->backend->copy_out(x->stream, room, t->data, bytes, &err)) {
        exec_fail(x, err.status, "%s", err.message);
        return NULL;
    }
    return room;
}

void exec_wait(struct exec *x)
{
    lathe_error err;
    if (!x->status && !x->planning && x->backend->wait(x->stream, &err))
        exec_fail(x, err.status, "%s", err.message);
}

void exec_put(struct exec *x, const struct tensor *t, const void *values)
{
    if (!x->status && !x->planning)
        x->backend->copy_in(x->stream, t->data, values,
                            (size_t)tensor_elements(t) * dtype_size(t->dtype));
}

void exec_tap(struct exec *x, const char *name, int32_t layer, const struct tensor *t)
{
    if (x->tap && !x->status && !x->planning)
        x->tap(x->tap_ctx, name, layer, t);
}

void exec_fail(struct exec *x, lathe_status status, const char *fmt, ...)
{
    if (x->status)
        return;
    char message[sizeof x->err.message];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    x->status = fail(&x->err, status, "%s", message);
}

void exec_note(struct exec *x, const char *op, const struct tensor *out, const char *detail)
{
    if (!x->listing)
        return;
    char what[96];
    tensor_describe(out, what);
    buf_printf(x->listing, "%-20s %-24s%s%s\n", op, what, detail && *detail ? " " : "",
               detail ? detail : "");
}

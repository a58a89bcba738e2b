#include "op/memory.h"

#include <stdlib.h>

#include "base/array.h"

enum { ALIGN = 256 };

static void region_init(struct region *r, const char *name, bool measuring,
                        const struct backend *backend, void *stream)
{
    *r =
        (struct region){.backend = backend, .stream = stream, .name = name, .measuring = measuring};
}

static void init(struct memory *m, bool measuring, const struct backend *backend, void *stream)
{
    *m = (struct memory){0};
    region_init(&m->weights, "weights", measuring, backend, stream);
    region_init(&m->cache, "cache", measuring, backend, stream);
    region_init(&m->workspace, "workspace", measuring, backend, stream);
}

void memory_measure(struct memory *m, const struct backend *backend, void *stream)
{
    init(m, true, backend, stream);
}

void memory_loose(struct memory *m, const struct backend *backend, void *stream)
{
    init(m, false, backend, stream);
}

static lathe_status carve(struct region *r, size_t bytes, lathe_error *err)
{
    void *block;
    lathe_status st = r->backend->alloc(r->stream, &block, bytes, err);
    if (st) {
        error_context(err, "memory of the %s", r->name);
        return st;
    }
    r->base = block;
    r->size = bytes;
    return LATHE_OK;
}

lathe_status memory_carve(struct memory *m, const struct memory *measured, lathe_error *err)
{
    const struct backend *backend = measured->cache.backend;
    init(m, false, backend, measured->cache.stream);
    lathe_status st = LATHE_OK;
    if (!backend->is_host)
        st = carve(&m->weights, measured->weights.used, err);
    if (!st)
        st = carve(&m->cache, measured->cache.used, err);
    if (!st)
        st = carve(&m->workspace, measured->workspace.used, err);
    if (st)
        memory_close(m);
    return st;
}

static void region_close(struct region *r)
{
    if (r->base)
        r->backend->free(r->stream, r->base);
    for (size_t i = 0; i < r->n_pieces; i++)
        r->backend->free(r->stream, r->piece[i]);
    free(r->piece);
}

void memory_close(struct memory *m)
{
    region_close(&m->weights);
    region_close(&m->cache);
    region_close(&m->workspace);
    free(m->load);
    free(m->matrix);
    *m = (struct memory){0};
}

static lathe_status take_block(struct region *r, void **p, size_t bytes, lathe_error *err)
{
    void **list = array_room(r->piece, r->n_pieces, &r->piece_room, sizeof *list, err);
    if (!list)
        return LATHE_E_MEMORY;
    r->piece = list;
    lathe_status st = r->backend->alloc(r->stream, p, bytes, err);
    if (st)
        *p = NULL;
    else
        r->piece[r->n_pieces++] = *p;
    return st;
}

lathe_status region_take(struct region *r, void **p, size_t bytes, lathe_error *err)
{
    size_t whole, end;
    *p = NULL;
    if (__builtin_add_overflow(bytes, (size_t)(ALIGN - 1), &whole) ||
        __builtin_add_overflow(r->used, whole &= ~(size_t)(ALIGN - 1), &end))
        return fail(err, LATHE_E_MEMORY, "%s: %zu bytes beside %zu", r->name, bytes, r->used);
    if (r->base) {
        if (end > r->size)
            return fail(err, LATHE_E_MEMORY, "%s: %zu bytes do not fit in what is left of %zu",
                        r->name, bytes, r->size);
        *p = r->base + r->used;
    } else if (!r->measuring) {
        lathe_status st = take_block(r, p, bytes, err);
        if (st)
            return st;
    }
    r->used = end;
    return LATHE_OK;
}

static lathe_status place(struct memory *m, struct tensor *t, lathe_error *err)
{
    size_t bytes = (size_t)tensor_elements(t) * dtype_size(t->dtype);
    struct region *r = &m->weights;
    void *to = NULL;
    if (r->measuring)
        return region_take(r, &to, bytes, err);
    struct load *list = array_room(m->load, m->n_loads, &m->load_room, sizeof *list, err);
    if (!list)
        return LATHE_E_MEMORY;
    m->load = list;
    if (!r->backend->is_host) {
        lathe_status st = region_take(r, &to, bytes, err);
        if (st)
            return st;
    }
    m->load[m->n_loads++] = (struct load){to, t->data, bytes};
    if (to)
        t->data = to;
    return LATHE_OK;
}

void memory_weight(struct memory *m, struct tensor *t)
{
    if (t->data && !m->status)
        m->status = place(m, t, &m->err);
}

static lathe_status note_matrix(struct memory *m, struct weight *w, lathe_error *err)
{
    struct weight **list = array_room(m->matrix, m->n_matrices, &m->matrix_room, sizeof *list, err);
    if (!list)
        return LATHE_E_MEMORY;
    m->matrix = list;
    m->matrix[m->n_matrices++] = w;
    return LATHE_OK;
}

void memory_matrix(struct memory *m, struct weight *w)
{
    memory_weight(m, &w->codes);
    memory_weight(m, &w->scales);
    if (w->codes.data && !m->weights.measuring && m->weights.backend->arrange && !m->status)
        m->status = note_matrix(m, w, &m->err);
}

lathe_status memory_load(struct memory *m, struct pool *pool, lathe_progress_fn progress,
                         void *progress_ctx, lathe_error *err)
{
    const struct region *r = &m->weights;
    lathe_status st = m->status;
    if (st && err)
        *err = m->err;
    if (!st && m->n_loads)
        st = r->backend->load(r->stream, pool, m->load, m->n_loads, progress, progress_ctx, err);
    if (!st && m->n_matrices)
        st = r->backend->arrange(r->stream, m->matrix, m->n_matrices, err);
    free(m->load);
    free(m->matrix);
    m->load = NULL;
    m->matrix = NULL;
    m->n_loads = m->load_room = m->n_matrices = m->matrix_room = 0;
    if (st)
        error_context(err, "loading weights");
    return st;
}

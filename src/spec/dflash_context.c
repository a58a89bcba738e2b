/* The rings of a block drafter.
 *
 * Saved bytes of a slot: struct header; then per layer, for positions [from, frontier) in order, all keys
 * and then all values, [n_kv_heads, head_dim] in the cache's dtype each; `from` is the oldest position that
 * a row at the frontier may see, or the first that is there. An int32_t per layer before its keys gives it. */
#include <stdlib.h>
#include <string.h>

#include "spec/dflash.h"

struct header {
    int32_t magic, frontier, n_layers, width, dtype, window;
};
enum { MAGIC = 0x4c464c44 }; /* "DLFL" */

static int64_t width(const struct dflash_config *c)
{
    return (int64_t)c->dims.n_kv_heads * c->dims.head_dim;
}

static int32_t ring_size(const struct dflash_context *x, int32_t layer)
{
    bool full = x->c->dims.is_full_attention[layer];
    return full || x->c->window > x->n_ctx ? x->n_ctx : x->c->window;
}

lathe_status dflash_context_open(struct dflash_context *x, const struct dflash_config *c,
                                 const struct drafter_options *o, int32_t n_ctx,
                                 struct region *cache, lathe_error *err)
{
    const struct dims *d = &c->dims;
    *x = (struct dflash_context){
        .c = c,
        .backend = o->backend,
        .stream = o->stream,
        .n_slots = o->n_slots,
        .n_ctx = n_ctx,
        .kv = o->kv,
    };
    size_t n_slots = (size_t)o->n_slots, n_layers = (size_t)d->n_layers;
    size_t row = (size_t)width(c) * dtype_size(o->kv) * n_slots;
    size_t bytes = 0;
    void *memory = NULL;
    for (int32_t i = 0; i < d->n_layers; i++)
        bytes += 2 * (size_t)ring_size(x, i) * row;
    size_t rings = bytes;
    if (!o->backend->is_host)
        bytes += n_layers * n_slots * sizeof *x->first;
    x->ring = calloc(n_layers, sizeof *x->ring);
    x->first = calloc(n_layers * n_slots, sizeof *x->first);
    x->frontier = calloc(n_slots, sizeof *x->frontier);
    lathe_status st = LATHE_OK;
    if (!x->ring || !x->first || !x->frontier)
        st = fail_memory(err, n_layers * (sizeof *x->ring + n_slots * sizeof *x->first));
    if (!st)
        st = region_take(cache, &memory, bytes, err);
    if (st) {
        error_context(err, "the drafter's context of %d x %d positions", o->n_slots, n_ctx);
        dflash_context_close(x);
        return st;
    }
    unsigned char *at = memory; /* NULL while measuring */
    x->device_first = x->first;
    if (!o->backend->is_host)
        x->device_first = at ? (int32_t *)(void *)(at + rings) : NULL;
    for (int32_t i = 0; i < d->n_layers; i++) {
        int64_t size = ring_size(x, i);
        struct kv_ring *r = &x->ring[i];
        r->k = tensor_4d(at, o->kv, o->n_slots, size, d->n_kv_heads, d->head_dim);
        at = at ? at + (size_t)size * row : NULL;
        r->v = tensor_4d(at, o->kv, o->n_slots, size, d->n_kv_heads, d->head_dim);
        at = at ? at + (size_t)size * row : NULL;
        r->first = x->first + (size_t)i * n_slots;
    }
    return LATHE_OK;
}

void dflash_context_close(struct dflash_context *x)
{
    free(x->ring);
    free(x->first);
    free(x->frontier);
    *x = (struct dflash_context){0};
}

void dflash_context_send(const struct dflash_context *x)
{
    size_t n = (size_t)x->c->dims.n_layers * (size_t)x->n_slots;
    if (x->device_first != x->first)
        x->backend->copy_in(x->stream, x->device_first, x->first, n * sizeof *x->first);
}

static int32_t *first_of(const struct dflash_context *x, int32_t layer, int32_t slot)
{
    return &x->first[(size_t)layer * (size_t)x->n_slots + (size_t)slot];
}

static int32_t larger(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* Positions that later ones took the place of stay lost; an empty sequence leaves nothing to be read. */
void dflash_context_rewind(struct dflash_context *x, int32_t slot, int32_t n)
{
    int32_t frontier = x->frontier[slot];
    if (n >= frontier)
        return;
    for (int32_t i = 0; i < x->c->dims.n_layers; i++) {
        const struct kv_ring *r = &x->ring[i];
        int32_t *first = first_of(x, i, slot), size = ring_size(x, i);
        *first = larger(*first, frontier - size);
        if (*first > n)
            *first = n;
        if (n == 0) {
            size_t bytes = (size_t)tensor_row(&r->k) * dtype_size(x->kv);
            *first = 0;
            x->backend->zero(x->stream, tensor_at(&r->k, slot), bytes);
            x->backend->zero(x->stream, tensor_at(&r->v, slot), bytes);
        }
    }
    x->frontier[slot] = n;
}

/* The oldest position of a layer that is there and that a row at the frontier may see. */
static int32_t oldest(const struct dflash_context *x, int32_t layer, int32_t slot)
{
    int32_t first = *first_of(x, layer, slot), frontier = x->frontier[slot];
    if (x->c->dims.is_full_attention[layer])
        return first;
    return larger(first, larger(0, frontier - (x->c->window - 1)));
}

static void *row_of(const struct dflash_context *x, const struct tensor *plane, int32_t slot,
                    int32_t pos)
{
    size_t row = (size_t)width(x->c) * dtype_size(x->kv);
    return (unsigned char *)tensor_at(plane, slot) + (size_t)(pos % plane->dim[1]) * row;
}

/* How many positions from p on, below `to`, lie one behind the other in a ring. */
static int32_t run_length(const struct tensor *plane, int32_t p, int32_t to)
{
    int32_t size = (int32_t)plane->dim[1], whole = size - p % size;
    return to - p < whole ? to - p : whole;
}

/* Positions [from, to) of a plane, in order. */
static lathe_status save_plane(const struct dflash_context *x, const struct tensor *plane,
                               int32_t slot, int32_t from, int32_t to, struct buf *out,
                               lathe_error *err)
{
    size_t row = (size_t)width(x->c) * dtype_size(x->kv);
    lathe_status st = LATHE_OK;
    for (int32_t p = from, n; p < to && !st; p += n) {
        n = run_length(plane, p, to);
        void *room = buf_grow(out, (size_t)n * row);
        if (room)
            st = x->backend->copy_out(x->stream, room, row_of(x, plane, slot, p), (size_t)n * row,
                                      err);
    }
    return st;
}

/* The other way; returns what follows in the bytes. */
static const unsigned char *load_plane(const struct dflash_context *x, const struct tensor *plane,
                                       int32_t slot, int32_t from, int32_t to,
                                       const unsigned char *at)
{
    size_t row = (size_t)width(x->c) * dtype_size(x->kv);
    for (int32_t p = from, n; p < to; p += n, at += (size_t)n * row) {
        n = run_length(plane, p, to);
        x->backend->copy_in(x->stream, row_of(x, plane, slot, p), at, (size_t)n * row);
    }
    return at;
}

lathe_status dflash_context_save(const struct dflash_context *x, int32_t slot, struct buf *out,
                                 lathe_error *err)
{
    struct header h = {MAGIC,          x->frontier[slot], x->c->dims.n_layers, (int32_t)width(x->c),
                       (int32_t)x->kv, x->c->window};
    lathe_status st = LATHE_OK;
    buf_append(out, &h, sizeof h);
    for (int32_t i = 0; i < h.n_layers && !st; i++) {
        int32_t from = oldest(x, i, slot);
        buf_append(out, &from, sizeof from);
        st = save_plane(x, &x->ring[i].k, slot, from, h.frontier, out, err);
        if (!st)
            st = save_plane(x, &x->ring[i].v, slot, from, h.frontier, out, err);
    }
    return st ? st : buf_check(out, "the drafter's context", err);
}

/* The saved positions of one layer; *at moves behind them. */
static lathe_status load_layer(struct dflash_context *x, int32_t slot, int32_t layer,
                               int32_t frontier, const unsigned char **at, const unsigned char *end,
                               lathe_error *err)
{
    const struct kv_ring *r = &x->ring[layer];
    size_t row = (size_t)width(x->c) * dtype_size(x->kv), left = (size_t)(end - *at);
    int32_t from = 0;
    if (left >= sizeof from)
        memcpy(&from, *at, sizeof from);
    if (left < sizeof from || from < 0 || from > frontier || frontier - from > r->k.dim[1] ||
        (left - sizeof from) / (2 * row) < (size_t)(frontier - from))
        return fail(err, LATHE_E_FORMAT,
                    "a saved context: layer %d from position %d to %d, %zu bytes are left", layer,
                    from, frontier, left);
    *at += sizeof from;
    *at = load_plane(x, &r->k, slot, from, frontier, *at);
    *at = load_plane(x, &r->v, slot, from, frontier, *at);
    /* A window that reaches back to `from` only is whole. */
    bool whole = !x->c->dims.is_full_attention[layer] && from == frontier - (x->c->window - 1);
    *first_of(x, layer, slot) = whole ? 0 : from;
    return LATHE_OK;
}

lathe_status dflash_context_load(struct dflash_context *x, int32_t slot, const void *bytes,
                                 size_t n, lathe_error *err)
{
    struct header h = {0};
    const unsigned char *at = bytes, *end = at + n;
    dflash_context_rewind(x, slot, 0);
    if (n >= sizeof h)
        memcpy(&h, bytes, sizeof h);
    if (h.magic != MAGIC || h.n_layers != x->c->dims.n_layers || h.width != width(x->c) ||
        h.dtype != (int32_t)x->kv || h.window != x->c->window || h.frontier < 0 ||
        h.frontier > x->n_ctx)
        return fail(
            err, LATHE_E_FORMAT,
            "a saved context of %d layers of %d values, window %d, %d positions: this drafter's "
            "has %d, %d, %d, and at most %d",
            h.n_layers, h.width, h.window, h.frontier, x->c->dims.n_layers, (int32_t)width(x->c),
            x->c->window, x->n_ctx);
    at += sizeof h;
    lathe_status st = LATHE_OK;
    for (int32_t i = 0; i < h.n_layers && !st; i++)
        st = load_layer(x, slot, i, h.frontier, &at, end, err);
    if (!st && at != end)
        st = fail(err, LATHE_E_FORMAT, "a saved context: %zu bytes too many", (size_t)(end - at));
    if (!st)
        st = x->backend->wait(x->stream, err);
    x->frontier[slot] = h.frontier;
    if (st)
        dflash_context_rewind(x, slot, 0);
    return st;
}

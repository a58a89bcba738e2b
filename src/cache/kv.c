#include "cache/kv.h"

#include <stdlib.h>

static int32_t pages_for(int32_t n)
{
    return (int32_t)(((int64_t)n + KV_PAGE - 1) / KV_PAGE);
}

/* One page of K (or of V) in one layer. */
static size_t page_bytes(const struct kv_shape *s)
{
    return (size_t)KV_PAGE * (size_t)s->n_kv_heads * (size_t)s->head_dim * dtype_size(s->dtype);
}

static size_t n_pages_of(const struct kv_shape *s)
{
    return (size_t)pages_for(s->n_ctx) * (size_t)s->n_slots;
}

size_t kv_cache_bytes(const struct kv_shape *s)
{
    return n_pages_of(s) * (page_bytes(s) * 2 * (size_t)s->n_layers + sizeof(int32_t));
}

size_t kv_cache_bytes_per_token(const struct kv_shape *s)
{
    return page_bytes(s) / KV_PAGE * 2 * (size_t)s->n_layers;
}

lathe_status kv_cache_open(struct kv_cache *kv, const struct kv_shape *s, struct region *region,
                           lathe_error *err)
{
    const struct backend *backend = region->backend;
    *kv = (struct kv_cache){.shape = *s, .backend = backend, .stream = region->stream};
    kv->pages_per_slot = pages_for(s->n_ctx);
    size_t n = n_pages_of(s);
    if (n > INT32_MAX)
        return fail(err, LATHE_E_LIMIT,
                    "KV cache of %d x %d positions: %zu pages of %d, at most %d", s->n_slots,
                    s->n_ctx, n, KV_PAGE, INT32_MAX);
    kv->n_pages = (int32_t)n;
    void *data = NULL, *table = NULL;
    lathe_status st = region_take(region, &data, n * page_bytes(s) * 2 * (size_t)s->n_layers, err);
    kv->data = data;
    if (!st && !backend->is_host)
        st = region_take(region, &table, n * sizeof(int32_t), err);
    if (!st) {
        kv->page_table = calloc(n ? n : 1, sizeof(int32_t));
        kv->device_table = backend->is_host ? kv->page_table : table;
        kv->n_used = calloc((size_t)s->n_slots, sizeof(int32_t));
        /* While measuring there are no pages to give: only the table, never written, which operators look at. */
        kv->free_page = region->measuring ? NULL : malloc(n * sizeof(int32_t));
        if (!kv->page_table || !kv->n_used || (!kv->free_page && !region->measuring))
            st = fail_memory(err, n * sizeof(int32_t));
    }
    if (st) {
        kv_cache_close(kv);
        error_context(err, "KV cache of %d x %d positions", s->n_slots, s->n_ctx);
        return st;
    }
    if (!kv->free_page)
        return LATHE_OK;
    for (int32_t i = 0; i < kv->n_pages; i++)
        kv->free_page[i] = kv->n_pages - 1 - i;
    kv->n_free = kv->n_pages;
    return LATHE_OK;
}

void kv_cache_close(struct kv_cache *kv)
{
    free(kv->page_table);
    free(kv->n_used);
    free(kv->free_page);
    *kv = (struct kv_cache){0};
}

void kv_cache_send(struct kv_cache *kv, int32_t slot, int32_t first, int32_t n)
{
    size_t at = (size_t)slot * (size_t)kv->pages_per_slot + (size_t)first;
    if (kv->device_table != kv->page_table)
        kv->backend->copy_in(kv->stream, kv->device_table + at, kv->page_table + at,
                             (size_t)n * sizeof *kv->page_table);
}

lathe_status kv_cache_reserve(struct kv_cache *kv, int32_t slot, int32_t n, lathe_error *err)
{
    if (n > kv->shape.n_ctx)
        return fail(err, LATHE_E_CONTEXT, "%d positions, the context has %d", n, kv->shape.n_ctx);
    int32_t *row = kv->page_table + (size_t)slot * (size_t)kv->pages_per_slot;
    int32_t before = kv->n_used[slot];
    while (kv->n_used[slot] < pages_for(n))
        row[kv->n_used[slot]++] = kv->free_page[--kv->n_free];
    if (kv->n_used[slot] > before)
        kv_cache_send(kv, slot, before, kv->n_used[slot] - before);
    return LATHE_OK;
}

void kv_cache_cut(struct kv_cache *kv, int32_t slot, int32_t n)
{
    const int32_t *row = kv->page_table + (size_t)slot * (size_t)kv->pages_per_slot;
    size_t bytes = page_bytes(&kv->shape);
    while (kv->n_used[slot] > pages_for(n)) {
        int32_t page = row[--kv->n_used[slot]];
        for (int32_t i = 0; i < kv->shape.n_layers; i++) {
            struct kv_pages p = kv_cache_layer(kv, i);
            kv->backend->zero(kv->stream, tensor_at(&p.k, page), bytes);
            kv->backend->zero(kv->stream, tensor_at(&p.v, page), bytes);
        }
        kv->free_page[kv->n_free++] = page;
    }
}

lathe_status kv_cache_copy(struct kv_cache *kv, int32_t to, int32_t from, int32_t n,
                           lathe_error *err)
{
    const int32_t *page_to = kv->page_table + (size_t)to * (size_t)kv->pages_per_slot;
    const int32_t *page_from = kv->page_table + (size_t)from * (size_t)kv->pages_per_slot;
    size_t bytes = page_bytes(&kv->shape);
    lathe_status st = kv_cache_reserve(kv, to, n, err);
    for (int32_t i = 0; i < kv->shape.n_layers && !st; i++) {
        struct kv_pages p = kv_cache_layer(kv, i);
        for (int32_t k = 0; k < pages_for(n); k++) {
            kv->backend->copy(kv->stream, tensor_at(&p.k, page_to[k]),
                              tensor_at(&p.k, page_from[k]), bytes);
            kv->backend->copy(kv->stream, tensor_at(&p.v, page_to[k]),
                              tensor_at(&p.v, page_from[k]), bytes);
        }
    }
    return st;
}

struct kv_pages kv_cache_layer(const struct kv_cache *kv, int32_t i)
{
    const struct kv_shape *s = &kv->shape;
    size_t plane = page_bytes(s) * (size_t)kv->n_pages;
    unsigned char *k = kv->data ? kv->data + 2 * (size_t)i * plane : NULL; /* NULL while planning */
    unsigned char *v = k ? k + plane : NULL;
    return (struct kv_pages){
        .k = tensor_4d(k, s->dtype, kv->n_pages, KV_PAGE, s->n_kv_heads, s->head_dim),
        .v = tensor_4d(v, s->dtype, kv->n_pages, KV_PAGE, s->n_kv_heads, s->head_dim),
        .page_table = kv->page_table,
        .pages_per_slot = kv->pages_per_slot,
        .device_table = kv->device_table,
    };
}

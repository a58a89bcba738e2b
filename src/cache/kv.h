/* Keys and values of the full-attention layers, in pages of KV_PAGE positions. Pages of a slot are
 * taken from one pool as it grows and go back when it is cut. */
#ifndef LATHE_CACHE_KV_H
#define LATHE_CACHE_KV_H

#include "op/memory.h"

/* 64: the attention's splits are whole pages, and a page of the 27B (128 KiB) is long enough to
 * stream. */
enum { KV_PAGE = 64 };

struct kv_shape {
    int32_t n_layers, n_kv_heads, head_dim;
    enum dtype dtype; /* DT_BF16, DT_F32 or DT_F8_E4M3 */
    int32_t n_slots;
    int32_t n_ctx; /* positions a slot may hold */
};

struct kv_cache {
    struct kv_shape shape;
    const struct backend *backend;
    void *stream;
    unsigned char *data; /* backend memory: per layer K, then V */
    int32_t n_pages;     /* in the pool */
    int32_t pages_per_slot;
    int32_t *page_table; /* [n_slots, pages_per_slot] */
    /* The same in backend memory; page_table itself where that is the host's. */
    int32_t *device_table;
    int32_t *n_used;    /* [n_slots]: pages a slot has */
    int32_t *free_page; /* [n_pages] stack */
    int32_t n_free;
};

/* Bytes kv_cache_open takes of backend memory. */
size_t kv_cache_bytes(const struct kv_shape *s);
size_t kv_cache_bytes_per_token(const struct kv_shape *s);
/* Its pages are the region's. While that measures, the cache has its shape and no pages. */
lathe_status kv_cache_open(struct kv_cache *kv, const struct kv_shape *s, struct region *region,
                           lathe_error *err);
void kv_cache_close(struct kv_cache *kv); /* no-op on a zeroed struct */

/* Makes positions [0, n) of a slot addressable; never fails for n <= n_ctx. */
lathe_status kv_cache_reserve(struct kv_cache *kv, int32_t slot, int32_t n, lathe_error *err);
/* Tells the backend of entries [first, first + n) of a slot's table that were changed. */
void kv_cache_send(struct kv_cache *kv, int32_t slot, int32_t first, int32_t n);
/* Gives back the slot's pages beyond those of its first n positions; what they held is zeroed, so that nothing of it can be
 * read again. */
void kv_cache_cut(struct kv_cache *kv, int32_t slot, int32_t n);

/* Makes the first n positions of `to`, which has none, those of `from`. */
lathe_status kv_cache_copy(struct kv_cache *kv, int32_t to, int32_t from, int32_t n,
                           lathe_error *err);

/* Layer i of the full-attention layers, for the operators. */
struct kv_pages kv_cache_layer(const struct kv_cache *kv, int32_t i);

#endif

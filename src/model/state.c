#include "model/forward.h"

#include <stdlib.h>
#include <string.h>

static int32_t count_layers(const struct dims *d, bool full_attention)
{
    int32_t n = 0;
    for (int32_t i = 0; i < d->n_layers; i++)
        n += d->is_full_attention[i] == full_attention;
    return n;
}

void rope_axes(uint8_t *axis, int32_t n_pairs, const int32_t section[3])
{
    for (int32_t i = 0; i < n_pairs; i++) {
        int32_t a = i % 3;
        axis[i] = a != 0 && i < 3 * section[a] ? (uint8_t)a : 0;
    }
}

struct kv_shape state_kv_shape(const struct dims *d, const struct state_options *o)
{
    return (struct kv_shape){
        .n_layers = count_layers(d, true),
        .n_kv_heads = d->n_kv_heads,
        .head_dim = d->head_dim,
        .dtype = o->kv,
        .n_slots = o->n_slots,
        .n_ctx = o->n_ctx,
    };
}

struct recurrent_shape state_recurrent_shape(const struct dims *d, const struct state_options *o)
{
    return (struct recurrent_shape){
        .n_layers = count_layers(d, false),
        .n_slots = o->n_slots + o->has_spare,
        .conv_dim = d->conv_dim,
        .conv_taps = d->conv_taps,
        .heads = {d->n_k_heads, d->n_v_heads, d->dk, d->dv},
        .act = o->act,
    };
}

static void rope_init(struct state *s, const struct dims *d)
{
    rope_axes(s->rope_axis, d->rotary_dims / 2, d->mrope_section);
    s->rope = (struct rope){
        .dims = d->rotary_dims,
        .inv_freq = d->inv_freq,
        .axis = s->rope_axis,
        .scale = d->rope_scale,
    };
}

lathe_status state_open(struct state *s, const struct dims *d, const struct state_options *o,
                        struct region *cache, lathe_error *err)
{
    struct kv_shape kv = state_kv_shape(d, o);
    struct recurrent_shape rec = state_recurrent_shape(d, o);
    *s = (struct state){.act = o->act};
    rope_init(s, d);
    lathe_status st = kv_cache_open(&s->kv, &kv, cache, err);
    if (!st)
        st = recurrent_open(&s->recurrent, &rec, cache, err);
    if (!st)
        st = record_open(&s->record, &rec, o->n_verify, cache, err);
    if (st)
        state_close(s);
    return st;
}

void state_close(struct state *s)
{
    kv_cache_close(&s->kv);
    *s = (struct state){0};
}

void state_reset(struct state *s, int32_t slot)
{
    kv_cache_cut(&s->kv, slot, 0);
    recurrent_reset(&s->recurrent, slot);
}

int32_t state_spare(const struct state *s)
{
    int32_t n = s->kv.shape.n_slots;
    return s->recurrent.shape.n_slots > n ? n : -1;
}

void state_copy(struct state *s, int32_t to, int32_t from)
{
    recurrent_copy(&s->recurrent, to, from, false);
}

void state_keep(struct state *s, int32_t slot)
{
    recurrent_copy(&s->recurrent, state_spare(s), slot, true);
}

void state_take_back(struct state *s, int32_t slot, int32_t n)
{
    kv_cache_cut(&s->kv, slot, n);
    recurrent_copy(&s->recurrent, slot, state_spare(s), true);
}

void state_alias(struct state *s, int32_t to, int32_t from)
{
    struct kv_cache *kv = &s->kv;
    size_t n = (size_t)kv->pages_per_slot;
    memcpy(kv->page_table + (size_t)to * n, kv->page_table + (size_t)from * n, n * sizeof(int32_t));
    kv_cache_send(kv, to, 0, kv->pages_per_slot);
    state_copy(s, to, from);
}

/* Are n bytes of the backend's memory the same? */
static bool same_bytes(const struct state *s, const void *a, const void *b, size_t n)
{
    const struct backend *backend = s->kv.backend;
    if (backend->is_host)
        return memcmp(a, b, n) == 0;
    unsigned char *copy = malloc(2 * n);
    bool same = copy && !backend->copy_out(s->kv.stream, copy, a, n, NULL) &&
                !backend->copy_out(s->kv.stream, copy + n, b, n, NULL) &&
                memcmp(copy, copy + n, n) == 0;
    free(copy);
    return same;
}

bool state_same(const struct state *s, int32_t a, int32_t b)
{
    for (int32_t i = 0; i < s->recurrent.shape.n_layers; i++) {
        struct tensor S = recurrent_S(&s->recurrent, i), tail = recurrent_tail(&s->recurrent, i);
        if (!same_bytes(s, tensor_at(&S, a), tensor_at(&S, b),
                        (size_t)tensor_row(&S) * dtype_size(S.dtype)) ||
            !same_bytes(s, tensor_at(&tail, a), tensor_at(&tail, b),
                        (size_t)tensor_row(&tail) * dtype_size(tail.dtype)))
            return false;
    }
    return true;
}

#include "cache/recurrent.h"

/* Of one slot and layer, each a multiple of 64 so that every part stays aligned. */
static size_t matrix_bytes(const struct recurrent_shape *s)
{
    size_t n = (size_t)s->heads.n_v_heads * (size_t)s->heads.dk * (size_t)s->heads.dv;
    return n * sizeof(float) + s->room_bytes;
}

static size_t tail_bytes(const struct recurrent_shape *s)
{
    return (size_t)(s->conv_taps - 1) * (size_t)s->conv_dim * dtype_size(s->act);
}

static size_t round_up(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

static size_t layer_bytes(const struct recurrent_shape *s)
{
    return round_up(matrix_bytes(s) * (size_t)s->n_slots) +
           round_up(tail_bytes(s) * (size_t)s->n_slots);
}

size_t recurrent_bytes(const struct recurrent_shape *s)
{
    return layer_bytes(s) * (size_t)s->n_layers;
}

lathe_status recurrent_open(struct recurrent *r, const struct recurrent_shape *s,
                            struct region *region, lathe_error *err)
{
    *r = (struct recurrent){.shape = *s, .backend = region->backend, .stream = region->stream};
    const struct backend *b = r->backend;
    r->shape.room_bytes = b->delta_room ? b->delta_room(r->stream, &s->heads, s->act) : 0;
    void *data;
    lathe_status st = region_take(region, &data, recurrent_bytes(&r->shape), err);
    r->data = data;
    if (st)
        error_context(err, "recurrent state of %d slots", s->n_slots);
    return st;
}

struct tensor recurrent_S(const struct recurrent *r, int32_t i)
{
    const struct recurrent_shape *s = &r->shape;
    /* No data while planning. */
    struct tensor S = tensor_4d(r->data ? r->data + (size_t)i * layer_bytes(s) : NULL, DT_F32,
                                s->n_slots, s->heads.n_v_heads, s->heads.dk, s->heads.dv);
    S.stride = (int64_t)(matrix_bytes(s) / sizeof(float));
    return S;
}

struct tensor recurrent_tail(const struct recurrent *r, int32_t i)
{
    const struct recurrent_shape *s = &r->shape;
    unsigned char *p =
        r->data + (size_t)i * layer_bytes(s) + round_up(matrix_bytes(s) * (size_t)s->n_slots);
    return tensor_3d(p, s->act, s->n_slots, s->conv_taps - 1, s->conv_dim);
}

size_t recurrent_step(const struct recurrent *r)
{
    return layer_bytes(&r->shape);
}

void recurrent_reset(struct recurrent *r, int32_t slot)
{
    for (int32_t i = 0; i < r->shape.n_layers; i++) {
        struct tensor S = recurrent_S(r, i), tail = recurrent_tail(r, i);
        r->backend->zero(r->stream, tensor_at(&S, slot), matrix_bytes(&r->shape));
        r->backend->zero(r->stream, tensor_at(&tail, slot), tail_bytes(&r->shape));
    }
}

void recurrent_copy(struct recurrent *r, int32_t to, int32_t from, bool with_room)
{
    size_t bytes = matrix_bytes(&r->shape) - (with_room ? 0 : r->shape.room_bytes);
    for (int32_t i = 0; i < r->shape.n_layers; i++) {
        struct tensor S = recurrent_S(r, i), tail = recurrent_tail(r, i);
        r->backend->copy(r->stream, tensor_at(&S, to), tensor_at(&S, from), bytes);
        r->backend->copy(r->stream, tensor_at(&tail, to), tensor_at(&tail, from),
                         tail_bytes(&r->shape));
    }
}

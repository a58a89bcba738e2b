#include "cache/record.h"

static size_t round_up(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

static size_t channels_bytes(const struct recurrent_shape *s, int32_t n_rows)
{
    return round_up((size_t)n_rows * (size_t)s->conv_dim * dtype_size(s->act));
}

static size_t gates_bytes(const struct recurrent_shape *s, int32_t n_rows)
{
    return round_up((size_t)n_rows * (size_t)s->heads.n_v_heads * sizeof(float));
}

static size_t layer_bytes(const struct recurrent_shape *s, int32_t n_rows)
{
    return 2 * channels_bytes(s, n_rows) + 2 * gates_bytes(s, n_rows);
}

size_t record_bytes(const struct recurrent_shape *s, int32_t n_rows)
{
    return layer_bytes(s, n_rows) * (size_t)s->n_layers;
}

lathe_status record_open(struct record *r, const struct recurrent_shape *s, int32_t n_rows,
                         struct region *region, lathe_error *err)
{
    *r = (struct record){.shape = *s, .n_rows = n_rows};
    void *data = NULL;
    lathe_status st = LATHE_OK;
    if (n_rows > 0)
        st = region_take(region, &data, record_bytes(s, n_rows), err);
    r->data = data;
    if (st)
        error_context(err, "record of %d verify rows", n_rows);
    return st;
}

size_t record_step(const struct record *r)
{
    return layer_bytes(&r->shape, r->n_rows);
}

struct record_layer record_at(const struct record *r, int32_t layer, int32_t T)
{
    const struct recurrent_shape *s = &r->shape;
    unsigned char *at = r->data ? r->data + (size_t)layer * layer_bytes(s, r->n_rows) : NULL;
    size_t step[3] = {channels_bytes(s, r->n_rows), channels_bytes(s, r->n_rows),
                      gates_bytes(s, r->n_rows)};
    unsigned char *part[4]; /* no data while planning */
    for (int i = 0; i < 4; i++) {
        part[i] = at;
        if (at && i < 3)
            at += step[i];
    }
    return (struct record_layer){
        .mixed = tensor_2d(part[0], s->act, T, s->conv_dim),
        .qkv = tensor_2d(part[1], s->act, T, s->conv_dim),
        .g = tensor_2d(part[2], DT_F32, T, s->heads.n_v_heads),
        .beta = tensor_2d(part[3], DT_F32, T, s->heads.n_v_heads),
    };
}

/* BF16 weights times BF16 activations with BF16 dot products: nothing to decode.
 * One row: as fast as memory delivers; eight rows: memory and arithmetic about balance. */
#include "op/cpu/linear_avx512bf16.h"

enum { GROUP = 32 };

void bf16_pack_bf16(void *dst, size_t step, const void *src, enum dtype act, int64_t n)
{
    (void)act;
    const uint16_t *x = src;
    unsigned char *y = dst;
    for (int64_t k = 0; k < n; k += GROUP, x += GROUP, y += step) {
        __mmask32 m = n - k < GROUP ? (1u << (n - k)) - 1 : ~0u;
        _mm512_store_si512(y, _mm512_maskz_loadu_epi16(m, x));
    }
}

INLINE void load_w(__m512i *w, const uint8_t *code, int64_t stride, uintptr_t next, const int nr)
{
    UNROLL
    for (int r = 0; r < nr; r++) {
        w[r] = load_512(code + r * stride);
        prefetch(next, r * stride);
    }
}

INLINE void rows(const struct span *t, int32_t i, int32_t end, const int nr, const int nx)
{
    const int64_t stride = t->code_stride;
    _Alignas(64) float nowhere[SUMS];
    float *acc = nowhere;
    struct sums s;
    __m512i w[4];
    sums_zero(&s, nr, nx);
    for (; i < end; i += nr) {
        const uint8_t *code = t->code + i * stride;
        uintptr_t next = span_ahead(t->code, t->next_code, stride, i, t->n_rows);
        const unsigned char *x = t->x, *x_end = x + t->n_groups * nx * LINEAR_UNIT;
        float *row_acc = t->acc + i * nx * LINEAR_LANES;
        const float *from = t->begin ? zeros : row_acc;
        load_w(w, code, stride, next, nr);
        sums_turn(acc, &s, from, w, x, nr, nx);
        acc = row_acc;
        for (;;) {
            x += nx * LINEAR_UNIT;
            code += LINEAR_UNIT;
            next += LINEAR_UNIT;
            if (x == x_end)
                break;
            load_w(w, code, stride, next, nr);
            sums_dot(&s, w, x, 0, nr, nx);
        }
    }
    sums_store(acc, &s, nr, nx);
}

static void run(const struct span *s, int32_t nx)
{
    SPAN_RUN(rows, s, nx);
}

void bf16_tile_bf16(const struct linear_tile *t)
{
    int64_t n = t->k1 - t->k0, rest = n % GROUP;
    struct span s = {
        .code = (const uint8_t *)t->w->codes.data + 2 * (t->row * t->w->codes.stride + t->k0),
        .code_stride = 2 * t->w->codes.stride,
        .next_code = t->next_code,
        .begin = t->k0 == 0,
        .n_groups = n / GROUP,
        .n_rows = t->n_rows,
        .x = t->x,
        .acc = t->acc,
    };
    if (s.n_groups)
        run(&s, t->n_x);
    if (rest) {
        struct tail tail;
        span_tail(&s, &tail, t->n_x * LINEAR_UNIT, 2 * GROUP, 2 * rest, 0);
        run(&s, t->n_x);
    }
}

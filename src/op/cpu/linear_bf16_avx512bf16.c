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

INLINE void rows(const struct linear_tile *t, int32_t i, const int nr, const int nx)
{
    struct sums s;
    const uint16_t *code[4];
    const unsigned char *x = t->x;
    float *acc = tile_acc(t, i);
    int64_t n = t->k1 - t->k0, ahead = 2 * t->ahead;
    UNROLL
    for (int r = 0; r < nr; r++)
        code[r] =
            (const uint16_t *)t->w->codes.data + (t->row + i + r) * t->w->codes.stride + t->k0;
    sums_load(&s, acc, nr, nx);
    for (int64_t k = 0; k < n; k += GROUP, x += nx * LINEAR_UNIT) {
        __m512i w[4];
        if (__builtin_expect(n - k < GROUP, 0)) {
            __mmask32 m = (1u << (n - k)) - 1;
            UNROLL
            for (int r = 0; r < nr; r++)
                w[r] = _mm512_maskz_loadu_epi16(m, code[r] + k);
        } else {
            UNROLL
            for (int r = 0; r < nr; r++) {
                w[r] = load_512(code[r] + k);
                prefetch(code[r] + k, ahead);
            }
        }
        sums_dot(&s, w, x, 0, nr, nx);
    }
    sums_store(acc, &s, nr, nx);
}

void bf16_tile_bf16(const struct linear_tile *t)
{
    BF16_TILE(rows, t);
}

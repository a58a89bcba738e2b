/* The table of the kernels over BF16 dot products, and what they share. */
#include <string.h>

#include "op/cpu/linear_avx512bf16.h"

void span_tail(struct span *s, struct tail *t, int64_t x_bytes, int64_t group_bytes,
               int64_t code_bytes, int64_t scale_bytes)
{
    memset(t, 0, sizeof *t);
    const uint8_t *code = s->code + s->n_groups * group_bytes;
    for (int32_t r = 0; r < s->n_rows; r++) {
        memcpy(t->code[r], code + r * s->code_stride, (size_t)code_bytes);
        if (scale_bytes)
            memcpy(t->scale[r], s->scale + s->n_groups * 16 + r * s->scale_stride,
                   (size_t)scale_bytes);
    }
    s->x += s->n_groups * x_bytes;
    s->begin &= s->n_groups == 0;
    s->code = t->code[0];
    s->code_stride = sizeof t->code[0];
    s->scale = t->scale[0];
    s->scale_stride = sizeof t->scale[0];
    s->n_groups = 1;
    s->next_code = s->next_scale = 0;
}

/* Two registers' lanes i and i + 8, ... in one: of a in the low half, of b in the high half. */
INLINE __m512 halves(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
}

/* Sixteen sums at once. */
static __m512 reduce16(const float *acc, int64_t stride)
{
    __m512 v[16];
    UNROLL
    for (int i = 0; i < 16; i++)
        v[i] = _mm512_load_ps(acc + i * stride);
    /* To eight lanes each, two vectors a register; then four; then two. */
    UNROLL
    for (int i = 0; i < 8; i++)
        v[i] = halves(v[2 * i], v[2 * i + 1]);
    UNROLL
    for (int i = 0; i < 4; i++) /* lanes 0..3 and 4..7 of vectors 4i, 4i + 1, 4i + 2, 4i + 3 */
        v[i] = _mm512_add_ps(_mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0x88),
                             _mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0xDD));
    UNROLL
    for (int i = 0; i < 2;
         i++) /* pairs 0, 1 and 2, 3: [4i..] in the low, [4i + 4..] in the high pair */
        v[i] = _mm512_add_ps(_mm512_shuffle_ps(v[2 * i], v[2 * i + 1], 0x44),
                             _mm512_shuffle_ps(v[2 * i], v[2 * i + 1], 0xEE));
    __m512 s =
        _mm512_add_ps(_mm512_shuffle_ps(v[0], v[1], 0x88), _mm512_shuffle_ps(v[0], v[1], 0xDD));
    /* 128-bit lane l, element e: vector 4 e + l. */
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    return _mm512_permutexvar_ps(order, s);
}

/* One sum, in the same order. */
static float reduce1(const float *acc)
{
    __m512 a = _mm512_load_ps(acc);
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

/* Nearest, ties to even; NaN stays a NaN: bf16_from_f32 for sixteen. */
static __m256i to_bf16(__m512 x)
{
    __m512i u = _mm512_castps_si512(x), high = _mm512_srli_epi32(u, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7FFF)), odd);
    r = _mm512_srli_epi32(r, 16);
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(r, nan, high, _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(r);
}

static void store(void *y, enum dtype dtype, bool add, const float *scale, const float *acc,
                  int64_t stride, int32_t n)
{
    for (int32_t i = 0; i < n; i += 16, acc += 16 * stride) {
        __mmask16 m = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : 0xFFFF;
        __m512 v;
        if (n - i < 16) {
            float sum[16] = {0};
            for (int32_t j = 0; j < n - i; j++)
                sum[j] = reduce1(acc + j * stride);
            v = _mm512_loadu_ps(sum);
        } else {
            v = reduce16(acc, stride);
        }
        v = _mm512_mul_ps(v, _mm512_maskz_loadu_ps(m, scale + i));
        if (dtype == DT_F32) {
            float *f = (float *)y + i;
            if (add)
                v = _mm512_add_ps(_mm512_maskz_loadu_ps(m, f), v);
            _mm512_mask_storeu_ps(f, m, v);
        } else {
            uint16_t *h = (uint16_t *)y + i;
            __m512i old = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, h));
            if (add)
                v = _mm512_add_ps(_mm512_castsi512_ps(_mm512_slli_epi32(old, 16)), v);
            _mm256_mask_storeu_epi16(h, m, to_bf16(v));
        }
    }
}

void linear_avx512bf16(struct linear_kernels *k)
{
    const struct linear_kernel bf16 = {
        .group = 32,
        .max_x = BF16_MAX_X,
        .max_cols = BF16_MAX_COLS,
        .max_bytes = BF16_MAX_BYTES,
        .packed = DT_BF16,
        .pack = bf16_pack_bf16,
        .tile = bf16_tile_bf16,
        .store = store,
    };
    struct linear_kernel fp8 = bf16, fp8_block, nvfp4;
    fp8.group = 256;
    fp8.raw = true;
    fp8.pack = fp8_pack_bf16;
    fp8.tile = fp8_tile_bf16;
    nvfp4 = fp8_block = fp8;
    fp8_block.raw = false;
    fp8_block.tile = fp8_block_tile_bf16;
    nvfp4.pack = nvfp4_pack_bf16;
    nvfp4.tile = nvfp4_tile_bf16;
    k->bf16[WF_BF16] = bf16;
    k->bf16[WF_FP8_TENSOR] = fp8;
    k->bf16[WF_FP8_ROW] = fp8;
    k->bf16[WF_FP8_BLOCK] = fp8_block;
    k->bf16[WF_NVFP4] = nvfp4;
}

/* Inner loops of the operators that work on each row alone. Included by kernels_<isa>.c. */
#include <float.h>
#include <math.h>

#include "op/cpu/kernels.h"
#include "op/cpu/simd.h"
#include "op/op.h"

/* Calls a loop with a constant dtype, so that each gets its own code. */
#define BY_ACT(act, call_bf16, call_f32)                                                           \
    do {                                                                                           \
        if ((act) == DT_BF16)                                                                      \
            call_bf16;                                                                             \
        else                                                                                       \
            call_f32;                                                                              \
    } while (0)

#if defined(__AVX2__)
/* Both bytes of the BF16 of E4M3 codes below 16, in a table that is looked up by the low four bits: numbers
 * below 2^-6 are in the first half. Above, the low byte is the code's low half and the high one 60 more than
 * its other three bits. */
INLINE __m128i e4m3_low_bytes(void)
{
    return _mm_setr_epi8(0, 0, -128, -64, 0, 0x20, 0x40, 0x60, -128, -112, -96, -80, -64, -48, -32,
                         -16);
}
INLINE __m128i e4m3_high_bytes(void)
{
    return _mm_setr_epi8(0, 59, 59, 59, 60, 60, 60, 60, 60, 60, 60, 60, 60, 60, 60, 60);
}
#endif

#if defined(__AVX512VBMI__)
enum { E4M3_AT_ONCE = 64 };

/* Tables of all 128, without sign. */
INLINE void e4m3_to_bf16_at_once(uint16_t *dst, const uint8_t *src)
{
    const __m512i row =
        _mm512_setr_epi64(0, 0, 0x0101010101010101, 0x0101010101010101, 0x0202020202020202,
                          0x0202020202020202, 0x0303030303030303, 0x0303030303030303);
    const __m512i step = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 16, 32, 48, 64, 80, 96, 112, -128, -112, -96, -80, -64, -48, -32, -16));
    const __m512i high = _mm512_add_epi8(row, _mm512_set1_epi8(60));
    const __m512i low0 = _mm512_inserti32x4(step, e4m3_low_bytes(), 0);
    const __m512i high0 = _mm512_inserti32x4(high, e4m3_high_bytes(), 0);
    const __mmask64 nan = (__mmask64)1 << 63;
    const __m512i low1 = _mm512_mask_set1_epi8(step, nan, -64);
    const __m512i high1 =
        _mm512_mask_set1_epi8(_mm512_add_epi8(row, _mm512_set1_epi8(64)), nan, 0x7F);
    /* The halves of each quarter are interleaved below: bring the right quarters there. */
    __m512i code = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7),
                                            _mm512_loadu_si512(src));
    __m512i l = _mm512_permutex2var_epi8(low0, code, low1);
    __m512i h = _mm512_permutex2var_epi8(high0, code, high1);
    h = _mm512_ternarylogic_epi64(h, code, _mm512_set1_epi8(-128), 0xF8); /* h | (code & 128) */
    _mm512_storeu_si512(dst, _mm512_unpacklo_epi8(l, h));
    _mm512_storeu_si512(dst + 32, _mm512_unpackhi_epi8(l, h));
}
#elif defined(__AVX2__)
enum { E4M3_AT_ONCE = 32 };

INLINE void e4m3_to_bf16_at_once(uint16_t *dst, const uint8_t *src)
{
    __m256i code = _mm256_loadu_si256((const __m256i *)(const void *)src);
    /* The halves of each half are interleaved below: bring the right quarters there. */
    code = _mm256_permute4x64_epi64(code, 0xD8);
    __m256i rest = _mm256_and_si256(code, _mm256_set1_epi8(0x7F));
    __m256i small = _mm256_cmpgt_epi8(_mm256_set1_epi8(8), rest);
    __m256i nan = _mm256_cmpeq_epi8(rest, _mm256_set1_epi8(0x7F));
    __m256i l = _mm256_and_si256(_mm256_slli_epi16(code, 4), _mm256_set1_epi8(-16));
    __m256i h = _mm256_and_si256(_mm256_srli_epi16(code, 4), _mm256_set1_epi8(7));
    h = _mm256_add_epi8(h, _mm256_set1_epi8(60));
    __m256i low = _mm256_broadcastsi128_si256(e4m3_low_bytes());
    __m256i high = _mm256_broadcastsi128_si256(e4m3_high_bytes());
    l = _mm256_blendv_epi8(l, _mm256_shuffle_epi8(low, rest), small);
    h = _mm256_blendv_epi8(h, _mm256_shuffle_epi8(high, rest), small);
    h = _mm256_or_si256(h, _mm256_and_si256(nan, _mm256_set1_epi8(0x7F)));
    h = _mm256_or_si256(h, _mm256_and_si256(code, _mm256_set1_epi8(-128)));
    _mm256_storeu_si256((__m256i *)(void *)dst, _mm256_unpacklo_epi8(l, h));
    _mm256_storeu_si256((__m256i *)(void *)(dst + 16), _mm256_unpackhi_epi8(l, h));
}
#endif

INLINE void e4m3_to_bf16(uint16_t *dst, const uint8_t *src, int64_t n)
{
    int64_t i = 0;
#if defined(__AVX2__)
    for (; i + E4M3_AT_ONCE <= n; i += E4M3_AT_ONCE)
        e4m3_to_bf16_at_once(dst + i, src + i);
#endif
    for (; i < n; i += 2 * LANES) {
        vwb code = {0};
        int64_t m = n - i < 2 * LANES ? n - i : 2 * LANES;
        memcpy(&code, src + i, (size_t)m);
        vw value = v_bf16_from_e4m3(__builtin_convertvector(code, vw));
        memcpy(dst + i, &value, (size_t)m * sizeof *dst);
    }
}

/* From BF16 or F32 to them or to E4M3; from E4M3 to BF16. */
static void convert(void *dst, enum dtype to, const void *src, enum dtype from, int64_t n)
{
    if (from == to) {
        memcpy(dst, src, (size_t)n * dtype_size(from));
        return;
    }
    if (from == DT_F8_E4M3) {
        e4m3_to_bf16(dst, src, n);
        return;
    }
    if (to == DT_F8_E4M3) {
        for (int64_t i = 0; i < n; i += LANES) {
            int64_t m = v_left(n, i);
            vb code =
                v_to_e4m3(from == DT_F32 ? v_get(src, i, m, DT_F32) : v_get(src, i, m, DT_BF16));
            memcpy((unsigned char *)dst + i, &code, (size_t)m);
        }
        return;
    }
    for (int64_t i = 0; i < n; i += LANES) {
        int64_t m = v_left(n, i);
        if (to == DT_BF16)
            v_put(dst, i, m, DT_BF16, v_get(src, i, m, DT_F32));
        else
            v_put(dst, i, m, DT_F32, v_get(src, i, m, DT_BF16));
    }
}

/* In double where F32 overflows. */
INLINE double sum_squares(const void *x, int64_t n, enum dtype act)
{
    vf acc[4] = {{0}};
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int j = 0; j < 4; j++) {
            vf v = v_get(x, i + j * LANES, LANES, act);
            acc[j] = v_fma(v, v, acc[j]);
        }
    for (; i < n; i += LANES) {
        vf v = v_get(x, i, v_left(n, i), act);
        acc[0] = v_fma(v, v, acc[0]);
    }
    float sum = v_sum((acc[0] + acc[1]) + (acc[2] + acc[3]));
    if (sum <= FLT_MAX)
        return (double)sum;
    double wide = 0;
    for (i = 0; i < n; i++) {
        double v = act == DT_BF16 ? (double)bf16_to_f32(((const uint16_t *)x)[i])
                                  : (double)((const float *)x)[i];
        wide += v * v;
    }
    return wide;
}

INLINE float rms_scale(const void *x, int64_t n, float eps, enum dtype act)
{
    return (float)(1 / sqrt(sum_squares(x, n, act) / (double)n + (double)eps));
}

INLINE void rmsnorm_act(void *y, enum dtype to, const void *x, const float *w, int64_t n, float eps,
                        enum dtype act)
{
    vf scale = v_set(rms_scale(x, n, eps, act));
    for (int64_t i = 0; i < n; i += LANES) {
        int64_t m = v_left(n, i);
        v_put(y, i, m, to, v_get(x, i, m, act) * scale * v_get(w, i, m, DT_F32));
    }
}

static void rmsnorm(void *y, const void *x, const float *w, int64_t n, float eps, enum dtype act)
{
    BY_ACT(act, rmsnorm_act(y, DT_BF16, x, w, n, eps, DT_BF16),
           rmsnorm_act(y, DT_F32, x, w, n, eps, DT_F32));
}

INLINE void rmsnorm_gated_act(void *y, const float *o, const void *z, const float *w, int64_t n,
                              float eps, enum dtype act)
{
    vf scale = v_set(rms_scale(o, n, eps, DT_F32));
    for (int64_t i = 0; i < n; i += LANES) {
        int64_t m = v_left(n, i);
        vf v = v_get(o, i, m, DT_F32) * scale * v_get(w, i, m, DT_F32);
        v_put(y, i, m, act, v * v_silu(v_get(z, i, m, act)));
    }
}

static void rmsnorm_gated(void *y, const float *o, const void *z, const float *w, int64_t n,
                          float eps, enum dtype act)
{
    BY_ACT(act, rmsnorm_gated_act(y, o, z, w, n, eps, DT_BF16),
           rmsnorm_gated_act(y, o, z, w, n, eps, DT_F32));
}

INLINE void norm_rope_act(void *y, const void *x, const float *w, int64_t n, float eps,
                          const float *cosine, const float *sine, int64_t half, enum dtype act)
{
    float v[OP_MAX_HEAD];
    rmsnorm_act(v, DT_F32, x, w, n, eps, act);
    for (int64_t i = 0; i < half; i += LANES) {
        int64_t m = v_left(half, i);
        vf c = v_get(cosine, i, m, DT_F32), s = v_get(sine, i, m, DT_F32);
        vf first = v_get(v, i, m, DT_F32), second = v_get(v, half + i, m, DT_F32);
        v_put(v, i, m, DT_F32, first * c - second * s);
        v_put(v, half + i, m, DT_F32, second * c + first * s);
    }
    for (int64_t i = 0; i < n; i += LANES) {
        int64_t m = v_left(n, i);
        v_put(y, i, m, act, v_get(v, i, m, DT_F32));
    }
}

static void norm_rope(void *y, const void *x, const float *w, int64_t n, float eps,
                      const float *cosine, const float *sine, int64_t half, enum dtype act)
{
    BY_ACT(act, norm_rope_act(y, x, w, n, eps, cosine, sine, half, DT_BF16),
           norm_rope_act(y, x, w, n, eps, cosine, sine, half, DT_F32));
}

INLINE void silu_mul_act(void *y, const void *gate, const void *up, int64_t n, enum dtype act)
{
    for (int64_t i = 0; i < n; i += LANES) {
        int64_t m = v_left(n, i);
        v_put(y, i, m, act, v_silu(v_get(gate, i, m, act)) * v_get(up, i, m, act));
    }
}

static void silu_mul(void *y, const void *gate, const void *up, int64_t n, enum dtype act)
{
    BY_ACT(act, silu_mul_act(y, gate, up, n, DT_BF16), silu_mul_act(y, gate, up, n, DT_F32));
}

INLINE void sigmoid_mul_act(void *y, const float *o, const void *gate, int64_t n, enum dtype act)
{
    for (int64_t i = 0; i < n; i += LANES) {
        int64_t m = v_left(n, i);
        v_put(y, i, m, act, v_get(o, i, m, DT_F32) * v_sigmoid(v_get(gate, i, m, act)));
    }
}

static void sigmoid_mul(void *y, const float *o, const void *gate, int64_t n, enum dtype act)
{
    BY_ACT(act, sigmoid_mul_act(y, o, gate, n, DT_BF16), sigmoid_mul_act(y, o, gate, n, DT_F32));
}

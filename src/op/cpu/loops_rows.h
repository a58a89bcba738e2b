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

static void convert(void *dst, enum dtype to, const void *src, enum dtype from, int64_t n)
{
    if (from == to) {
        memcpy(dst, src, (size_t)n * dtype_size(from));
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

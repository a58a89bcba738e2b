/* Every format and both activation dtypes with NEON: in F32, sixteen lanes in four registers. */
#include <arm_neon.h>

#include "op/cpu/linear.h"
#include "op/cpu/unroll.h"
#include "quant/parts.h"

enum { ROWS = 3, XS = 2 }; /* 24 of the 32 registers are sums */

struct lanes {
    float32x4_t v[4];
};

INLINE struct lanes lanes_load(const float *p)
{
    return (struct lanes){{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
}

INLINE void lanes_store(float *p, struct lanes a)
{
    for (int i = 0; i < 4; i++)
        vst1q_f32(p + 4 * i, a.v[i]);
}

INLINE struct lanes lanes_fma(struct lanes a, struct lanes b, struct lanes c)
{
    for (int i = 0; i < 4; i++)
        c.v[i] = vfmaq_f32(c.v[i], a.v[i], b.v[i]);
    return c;
}

static void decode_row(float *dst, const struct weight *w, int64_t row, int64_t col, int64_t n)
{
    weight_formats[w->format].unpack(dst, w, row, col, n);
}

#include "op/cpu/linear_f32.h"

void linear_neon(struct linear_kernels *k)
{
    decoded_fill(k);
}

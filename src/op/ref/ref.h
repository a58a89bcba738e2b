/* The reference backend: every operator as its formula in op.h, in double, results rounded once as
 * they are stored. One thread, no scratch; written to be read, not to be fast. */
#ifndef LATHE_OP_REF_REF_H
#define LATHE_OP_REF_REF_H

#include <math.h>

#include "op/backend.h"
#include "tensor/number.h"

struct ref {
    enum prompt_math prompt_math;
};

#define X(name)                                                                                    \
    lathe_status ref_##name(void *stream, const struct name##_args *a, lathe_error *err);
OPERATORS(X)
#undef X

/* Element c of row r; t is BF16, F32 or E4M3. */
static inline double get(const struct tensor *t, int64_t r, int64_t c)
{
    int64_t i = r * t->stride + c;
    if (t->dtype == DT_F8_E4M3)
        return (double)e4m3_to_f32(((const uint8_t *)t->data)[i]);
    return t->dtype == DT_F32 ? (double)((const float *)t->data)[i]
                              : (double)bf16_to_f32(((const uint16_t *)t->data)[i]);
}

/* BF16 nearest to x, without a first rounding to F32: that one rounds to odd, which leaves the
 * second rounding the right side of every tie. */
static inline uint16_t bf16_from_double(double x)
{
    float f = (float)x;
    uint32_t u = f32_bits(f);
    if ((double)f != x && isfinite(f) && !(u & 1)) {
        bool away = fabs((double)f) < fabs(x); /* f lies nearer to zero: its neighbour is odd */
        u += away ? 1u : -1u;
        if (f == 0)
            u = f32_bits(x < 0 ? -0x1p-149f : 0x1p-149f);
    }
    return bf16_from_f32(f32_from_bits(u));
}

/* In E4M3 only what is an F32 already. */
static inline void put(const struct tensor *t, int64_t r, int64_t c, double x)
{
    int64_t i = r * t->stride + c;
    if (t->dtype == DT_F32)
        ((float *)t->data)[i] = (float)x;
    else if (t->dtype == DT_F8_E4M3)
        ((uint8_t *)t->data)[i] = e4m3_from_f32((float)x);
    else
        ((uint16_t *)t->data)[i] = bf16_from_double(x);
}

static inline double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static inline double silu(double x)
{
    return x / (1 + exp(-x));
}

/* Row r of w times row t of in. */
double ref_dot(const struct weight *w, int64_t r, const struct tensor *in, int64_t t);

#endif

/* Every format and both activation dtypes in portable C. */
#include "op/cpu/linear.h"
#include "op/cpu/unroll.h"

enum { ROWS = 2, XS = 1 };

struct lanes {
    float v[LINEAR_LANES];
};

INLINE struct lanes lanes_load(const float *p)
{
    struct lanes a;
    for (int l = 0; l < LINEAR_LANES; l++)
        a.v[l] = p[l];
    return a;
}

INLINE void lanes_store(float *p, struct lanes a)
{
    for (int l = 0; l < LINEAR_LANES; l++)
        p[l] = a.v[l];
}

INLINE struct lanes lanes_fma(struct lanes a, struct lanes b, struct lanes c)
{
    for (int l = 0; l < LINEAR_LANES; l++)
        c.v[l] += a.v[l] * b.v[l];
    return c;
}

static void decode_row(float *dst, const struct weight *w, int64_t row, int64_t col, int64_t n)
{
    weight_formats[w->format].unpack(dst, w, row, col, n);
}

#include "op/cpu/linear_f32.h"

void linear_generic(struct linear_kernels *k)
{
    decoded_fill(k);
}

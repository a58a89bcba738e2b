#include "op_test.h"

static void run(struct exec *x, const struct op_rows *p, const struct tensor *in,
                const struct tensor *out, int64_t first, int64_t n)
{
    (void)first, (void)n;
    op_attention_gate(x, out[0], in[0], in[1], *(const int32_t *)p->arg);
}

static void check(int64_t T, int32_t heads, int32_t head_dim, int64_t gap, enum dtype act,
                  double scale)
{
    struct rng r = {(uint64_t)(T * 31 + head_dim)};
    int64_t n = heads * head_dim;
    struct op_rows p = {.T = T, .n_in = 2, .n_out = 1, .run = run, .arg = &head_dim};
    p.tol = act == DT_BF16 ? TOL_ROW_BF16 : TOL_ROW_F32;
    p.in[0] = op_tensor(DT_F32, T, n, gap);
    p.in[1] = op_tensor(act, T, 2 * n, gap);
    p.out[0] = op_tensor(act, T, n, gap);
    op_fill_normal(&p.in[0], &r, 0, 1);
    op_fill_normal(&p.in[1], &r, 0, scale);
    /* The halves that hold queries are not part of this operator. */
    for (int64_t t = 0; t < T; t++)
        for (int64_t i = 0; i < 2 * n; i++)
            if (i / head_dim % 2 == 0)
                op_put(&p.in[1], t, i, NAN);
    op_rows_check(&p, -1, "T %lld, %d heads of %d, gap %lld, %s, scale %g", (long long)T, heads,
                  head_dim, (long long)gap, dtype_name(act), scale);
}

TEST(attention_gate_rows)
{
    static const int64_t rows[] = {1, 2, 7, 64};
    for (size_t j = 0; j < sizeof rows / sizeof rows[0]; j++) {
        check(rows[j], 6, 256, 0, DT_BF16, 2);
        check(rows[j], 3, 40, 3, DT_F32, 2);
        check(rows[j], 2, 1, 0, DT_BF16, 2);
    }
    check(7, 24, 256, 0, DT_BF16, 100);
    check(7, 24, 256, 0, DT_F32, 1e38);
}

#include "op_test.h"

static void run(struct exec *x, const struct op_rows *p, const struct tensor *in,
                const struct tensor *out, int64_t first, int64_t n)
{
    (void)p, (void)first, (void)n;
    op_silu_mul(x, out[0], in[0], in[1]);
}

static void check(int64_t T, int64_t n, int64_t gap, enum dtype act, double scale, int alias)
{
    struct rng r = {(uint64_t)(T * 31 + n)};
    struct op_rows p = {.T = T, .n_in = 2, .n_out = 1, .run = run};
    p.tol = act == DT_BF16 ? TOL_ROW_BF16 : TOL_ROW_F32;
    for (int i = 0; i < 2; i++) {
        p.in[i] = op_tensor(act, T, n, gap);
        op_fill_normal(&p.in[i], &r, 0, scale);
    }
    p.out[0] = op_tensor(act, T, n, gap);
    op_rows_check(&p, alias, "T %lld, n %lld, gap %lld, %s, scale %g", (long long)T, (long long)n,
                  (long long)gap, dtype_name(act), scale);
}

/* 1088 and 17408 are nano's and the 27B's widths, 1024 the piece that threads share. */
TEST(silu_mul_rows)
{
    static const int64_t widths[] = {1, 5, 17, 1023, 1024, 1025, 1088, 17408},
                         rows[] = {1, 2, 7, 64};
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
        for (size_t j = 0; j < sizeof rows / sizeof rows[0]; j++) {
            if (widths[i] * rows[j] > (test_quick() ? 8000 : 130000))
                continue;
            check(rows[j], widths[i], 0, DT_BF16, 2, 0);
            check(rows[j], widths[i], 3, DT_F32, 2, 1);
        }
}

TEST(silu_mul_extremes)
{
    static const double scale[] = {1e-30, 30, 1000, 1e38};
    for (size_t i = 0; i < sizeof scale / sizeof scale[0]; i++) {
        check(3, 320, 0, DT_BF16, scale[i], -1);
        check(3, 320, 0, DT_F32, scale[i], -1);
    }
}

/* Every sign and exponent of a gate, and the values where exp leaves F32's range. */
TEST(silu_of_all_magnitudes)
{
    enum { N = 1 << 12 };
    struct op_rows p = {.T = 1, .n_in = 2, .n_out = 1, .run = run, .tol = TOL_ROW_F32};
    p.tol.row = 0;
    p.tol.floor = 1e-36; /* 1 + exp(-x) is infinite below -88.73 */
    p.in[0] = op_tensor(DT_F32, 1, N, 0);
    p.in[1] = op_tensor(DT_F32, 1, N, 0);
    p.out[0] = op_tensor(DT_F32, 1, N, 0);
    op_fill(&p.in[1], 1);
    for (int i = 0; i < N; i++) {
        double x = i < N / 2 ? ldexp(1 + (i % 8) / 8., i / 8 % 256 - 127)
                             : 80 + 30. * (i - N / 2) / (N / 2);
        op_put(&p.in[0], 0, i, i % 2 ? -x : x);
    }
    op_rows_check(&p, -1, "all magnitudes");
}

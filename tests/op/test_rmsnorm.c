#include "op_test.h"

static void run(struct exec *x, const struct op_rows *p, const struct tensor *in,
                const struct tensor *out, int64_t first, int64_t n)
{
    (void)first, (void)n;
    op_rmsnorm(x, out[0], in[0], p->whole[0], 1e-6f);
}

static void check(int64_t T, int64_t n, int64_t gap, enum dtype act, double scale)
{
    struct rng r = {(uint64_t)(T * 31 + n)};
    struct op_rows p = {.T = T, .n_in = 1, .n_whole = 1, .n_out = 1, .run = run};
    p.tol = act == DT_BF16 ? TOL_ROW_BF16 : TOL_ROW_F32;
    p.in[0] = op_tensor(act, T, n, gap);
    p.whole[0] = op_vector(DT_F32, n);
    p.out[0] = op_tensor(act, T, n, gap);
    op_fill_normal(&p.in[0], &r, 0, scale);
    op_fill_normal(&p.whole[0], &r, 1, 0.3);
    op_rows_check(&p, 0, "T %lld, n %lld, gap %lld, %s, scale %g", (long long)T, (long long)n,
                  (long long)gap, dtype_name(act), scale);
}

/* Widths: heads, nano's and the 27B's hidden sizes, and ragged ones. */
TEST(rmsnorm_rows)
{
    static const int64_t widths[] = {1, 3, 63, 65, 128, 320, 5120}, rows[] = {1, 2, 7, 64};
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
        for (size_t j = 0; j < sizeof rows / sizeof rows[0]; j++) {
            if (test_quick() && widths[i] * rows[j] > 10000)
                continue;
            check(rows[j], widths[i], 0, DT_BF16, 1);
            check(rows[j], widths[i], 5, DT_F32, 1);
        }
}

/* Wider than any model's. */
TEST(rmsnorm_of_wide_rows)
{
    static const int64_t widths[] = {8191, 8193, 16384, 16390};
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        check(2, widths[i], 0, DT_BF16, 1);
        check(2, widths[i], 3, DT_F32, 1e30);
    }
}

/* Squares beyond F32's range, and far below epsilon. */
TEST(rmsnorm_extremes)
{
    static const double scale[] = {1e37, 1e20, 1e-8, 1e-30, 0};
    for (size_t i = 0; i < sizeof scale / sizeof scale[0]; i++) {
        check(3, 320, 0, DT_BF16, scale[i]);
        check(3, 320, 0, DT_F32, scale[i]);
    }
}

/* With w = 0 the norm has root mean square 1, and the sign stays. */
TEST(rmsnorm_of_unit_weight)
{
    struct op_env *ref = op_ref();
    struct tensor in = op_tensor(DT_F32, 1, 2, 0), w = op_vector(DT_F32, 2);
    struct tensor y = op_tensor(DT_F32, 1, 2, 0);
    op_put(&in, 0, 0, 3);
    op_put(&in, 0, 1, -4);
    op_fill(&w, 1);
    op_rmsnorm(&ref->exec, y, in, w, 0);
    op_check_ok(ref);
    CHECK(fabs(op_at(&y, 0, 0) - 3 / sqrt(12.5)) < 1e-6);
    CHECK(fabs(op_at(&y, 0, 1) + 4 / sqrt(12.5)) < 1e-6);
    op_done();
}

TEST(rmsnorm_refuses)
{
    struct op_env *ref = op_ref();
    struct tensor in = op_tensor(DT_F32, 2, 8, 0), w = op_vector(DT_F32, 7);
    op_rmsnorm(&ref->exec, in, in, w, 0);
    op_check_failed(ref, LATHE_E_ARGUMENT, "rmsnorm: operands contradict");
    op_done();
}

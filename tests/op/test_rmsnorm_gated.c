#include "op_test.h"

static void run(struct exec *x, const struct op_rows *p, const struct tensor *in,
                const struct tensor *out, int64_t first, int64_t n)
{
    (void)first, (void)n;
    op_rmsnorm_gated(x, out[0], in[0], in[1], p->whole[0], 1e-6f);
}

static void check(int64_t T, int64_t heads, int64_t dv, int64_t gap, enum dtype act, double scale)
{
    struct rng r = {(uint64_t)(T * 31 + dv)};
    struct op_rows p = {.T = T, .n_in = 2, .n_whole = 1, .n_out = 1, .run = run};
    p.tol = act == DT_BF16 ? TOL_ROW_BF16 : TOL_ROW_F32;
    p.in[0] = op_tensor(DT_F32, T, heads * dv, gap);
    p.in[1] = op_tensor(act, T, heads * dv, gap);
    p.whole[0] = op_vector(DT_F32, dv);
    p.out[0] = op_tensor(act, T, heads * dv, gap);
    op_fill_normal(&p.in[0], &r, 0, scale);
    op_fill_normal(&p.in[1], &r, 0, 2);
    op_fill_normal(&p.whole[0], &r, 1, 0.3);
    op_rows_check(&p, 1, "T %lld, %lld heads of %lld, gap %lld, %s, scale %g", (long long)T,
                  (long long)heads, (long long)dv, (long long)gap, dtype_name(act), scale);
}

TEST(rmsnorm_gated_rows)
{
    static const int64_t rows[] = {1, 2, 7, 64};
    for (size_t j = 0; j < sizeof rows / sizeof rows[0]; j++) {
        check(rows[j], 6, 128, 0, DT_BF16, 1);
        check(rows[j], 3, 33, 2, DT_F32, 1);
    }
    if (!test_quick())
        check(7, 48, 128, 0, DT_BF16, 1);
    check(3, 2, 1, 0, DT_F32, 1);
}

TEST(rmsnorm_gated_extremes)
{
    static const double scale[] = {1e37, 1e20, 1e-8, 1e-30, 0};
    for (size_t i = 0; i < sizeof scale / sizeof scale[0]; i++)
        check(3, 2, 128, 0, i % 2 ? DT_F32 : DT_BF16, scale[i]);
}

/* B77: a readout beyond F16's range stays in F32 up to the norm. S^T q by hand: o = (120000, -120000). */
TEST(B77_readout_range)
{
    int n;
    struct op_env *env = op_envs(&n);
    struct tensor o = op_tensor(DT_F32, 1, 2, 0), z = op_tensor(DT_BF16, 1, 2, 0);
    struct tensor w = op_vector(DT_F32, 2);
    op_put(&o, 0, 0, 60000. + 60000);
    op_put(&o, 0, 1, -60000. - 60000);
    op_fill(&z, 20);
    op_fill(&w, 1);
    for (int i = -1; i < n; i++) {
        struct op_env *e = i < 0 ? op_ref() : &env[i];
        struct tensor y = op_tensor(DT_BF16, 1, 2, 0);
        op_case("%s", e->name);
        op_rmsnorm_gated(&e->exec, y, o, z, w, 1e-6f);
        op_check_ok(e);
        if (fabs(op_at(&y, 0, 0) - 20) > 0.02 || fabs(op_at(&y, 0, 1) + 20) > 0.02)
            OP_FAIL("y is %g, %g, expected 20, -20", op_at(&y, 0, 0), op_at(&y, 0, 1));
    }
    op_done();
}

#include "op_test.h"

struct gates_arg {
    struct weight a, b;
    struct tensor A_log, dt_bias;
};

static void run(struct exec *x, const struct op_rows *p, const struct tensor *in,
                const struct tensor *out, int64_t first, int64_t n)
{
    const struct gates_arg *a = p->arg;
    (void)first, (void)n;
    op_gdn_gates(x, out[0], out[1], in[0], &a->a, &a->b, a->A_log, a->dt_bias);
}

/* `size` of the products: beyond 20 softplus is the identity, below -20 it vanishes. */
static void check(enum weight_format_id fa, enum weight_format_id fb, enum dtype act, int64_t T,
                  int64_t heads, int64_t hidden, double size)
{
    struct rng r = {(uint64_t)(T * 131 + heads + hidden)};
    double scale = size / sqrt((double)hidden);
    struct gates_arg arg = {
        .a = op_weight(fa, heads, hidden, &r, scale),
        .b = op_weight(fb, heads, hidden, &r, scale),
        .A_log = op_vector(DT_F32, heads),
        .dt_bias = op_vector(DT_F32, heads),
    };
    op_fill_normal(&arg.A_log, &r, 1, 1);
    op_fill_normal(&arg.dt_bias, &r, 0, 2);
    struct op_rows p = {
        .T = T,
        .in = {op_tensor(act, T, hidden, 2)},
        .whole = {arg.A_log, arg.dt_bias},
        .out = {op_tensor(DT_F32, T, heads, 0), op_tensor(DT_F32, T, heads, 0)},
        .n_in = 1,
        .n_whole = 2,
        .n_out = 2,
        .tol = TOL_GDN_GATES,
        .run = run,
        .arg = &arg,
    };
    op_fill_normal(&p.in[0], &r, 0, 1);
    op_fill(&p.out[0], 0);
    op_fill(&p.out[1], 0);
    op_rows_check(&p, -1, "%s and %s, %s, T %lld, %lld heads, hidden %lld, size %g",
                  weight_formats[fa].name, weight_formats[fb].name, dtype_name(act), (long long)T,
                  (long long)heads, (long long)hidden, size);
}

TEST(bf16)
{
    static const int64_t rows[] = {1, 2, 7, 8, 9, 64};
    for (int i = 0; i < (test_quick() ? 3 : 6); i++) {
        check(WF_BF16, WF_BF16, DT_BF16, rows[i], 48, 5120, 3);
        check(WF_BF16, WF_BF16, DT_F32, rows[i], 6, 320, 3);
        check(WF_BF16, WF_BF16, DT_BF16, rows[i], 6, 320, 30);
    }
}

TEST(other_formats)
{
    check(WF_FP8_ROW, WF_FP8_ROW, DT_BF16, 9, 12, 272, 3);
    check(WF_NVFP4, WF_NVFP4, DT_BF16, 5, 32, 512, 3);
    check(WF_BF16, WF_F32, DT_BF16, 3, 16, 256, 3);
    check(WF_F16, WF_BF16, DT_F32, 130, 3, 32, 3);
    check(WF_NVFP4, WF_FP8_BLOCK, DT_BF16, 11, 48, 1088, 3);
}

TEST(refuses_contradictions)
{
    int n_envs;
    struct op_env *e = op_envs(&n_envs);
    struct rng r = {3};
    struct weight a = op_weight(WF_BF16, 6, 64, &r, 1), b = op_weight(WF_BF16, 7, 64, &r, 1);
    struct tensor u = op_tensor(DT_BF16, 2, 64, 0), v = op_vector(DT_F32, 6);
    struct tensor g = op_tensor(DT_F32, 2, 6, 0);
    op_gdn_gates(&e->exec, g, g, u, &a, &b, v, v);
    op_check_failed(e, LATHE_E_ARGUMENT, "gdn_gates");
    op_gdn_gates(&e->exec, g, op_tensor(DT_BF16, 2, 6, 0), u, &a, &a, v, v);
    op_check_failed(e, LATHE_E_ARGUMENT, "gdn_gates");
    op_gdn_gates(&e->exec, g, g, u, &a, &a, v, op_vector(DT_F32, 7));
    op_check_failed(e, LATHE_E_ARGUMENT, "gdn_gates");
    op_done();
}

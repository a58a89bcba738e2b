#include "op_test.h"

struct shape {
    int64_t blocks, n, groups, taps;
    int32_t block;
    enum dtype act;
    bool add;
    double scale;
};

struct operands {
    struct tensor in, base, delta, h; /* h: what the sum is added to */
};

static struct operands make(const struct shape *s, struct rng *r)
{
    int64_t T = s->blocks * s->block;
    struct operands p = {
        .in = op_tensor(s->act, T, s->n, 3),
        .base = op_tensor(DT_F32, s->taps, s->n, 0),
        .delta = op_tensor(DT_F32, T, s->taps * s->groups, 5),
        .h = op_tensor(s->act, T, s->n, 0),
    };
    op_fill_normal(&p.in, r, 0, s->scale);
    op_fill_normal(&p.base, r, 0.5, 0.5);
    op_fill_normal(&p.delta, r, 0, 0.3);
    op_fill_normal(&p.h, r, 0, s->scale);
    return p;
}

/* Rows [first, first + n) into a fresh tensor of all rows. */
static void run(struct op_env *e, const struct shape *s, const struct operands *p, struct tensor y,
                int64_t first, int64_t n)
{
    struct tensor out = tensor_rows(y, first, n), in = tensor_rows(p->in, first, n);
    struct tensor delta = tensor_rows(p->delta, first, n);
    if (s->add)
        op_block_conv_add(&e->exec, out, in, p->base, delta, s->block);
    else
        op_block_conv(&e->exec, out, in, p->base, delta, s->block);
    op_check_ok(e);
}

static struct tensor whole(struct op_env *e, const struct shape *s, const struct operands *p)
{
    struct tensor y = op_tensor(s->act, p->in.dim[0], s->n, 1);
    op_set(&y, &p->h);
    run(e, s, p, y, 0, p->in.dim[0]);
    return y;
}

/* A NaN in row t of the input reaches t and the taps - 1 rows behind it, not the next block; one in delta
 * reaches its row alone. */
static void check_poison(struct op_env *e, const struct shape *s, const struct operands *p,
                         const struct tensor *want)
{
    for (int64_t bad = 0; bad < p->in.dim[0]; bad++)
        for (int k = 0; k < 2; k++) {
            int mark = op_mark();
            struct operands q = *p;
            struct tensor *t = k ? &q.delta : &q.in;
            *t = op_copy(t, t->dtype);
            op_put(t, bad, 0, NAN);
            struct tensor y = whole(e, s, &q);
            for (int64_t row = 0; row < y.dim[0]; row++) {
                bool reached =
                    k ? row == bad
                      : row >= bad && row < bad + s->taps && row / s->block == bad / s->block;
                if (reached != op_row_has_nan(&y, row))
                    OP_FAIL("NaN in row %lld of %s %s row %lld", (long long)bad, k ? "delta" : "in",
                            reached ? "does not reach" : "reaches", (long long)row);
                if (!reached && !op_same_row(&y, row, want, row))
                    OP_FAIL("row %lld changes with row %lld", (long long)row, (long long)bad);
            }
            op_release(mark);
        }
}

static void check(struct shape s)
{
    struct rng r = {(uint64_t)(s.n * 7 + s.block)};
    int n_envs;
    struct op_env *env = op_envs(&n_envs);
    struct operands p = make(&s, &r);
    op_case("%lld blocks of %d, n %lld, %lld groups, %lld taps, %s%s, scale %g",
            (long long)s.blocks, s.block, (long long)s.n, (long long)s.groups, (long long)s.taps,
            dtype_name(s.act), s.add ? ", add" : "", s.scale);
    uint64_t before = op_hash(&p.in) ^ op_hash(&p.delta) ^ op_hash(&p.base);
    struct tensor want = whole(op_ref(), &s, &p), same = {0};
    for (int i = 0; i < n_envs; i++) {
        struct op_env *e = &env[i];
        struct tensor y = whole(e, &s, &p);
        op_check_near("y", &y, &want, s.act == DT_BF16 ? TOL_ROW_BF16 : TOL_ROW_F32);
        if (i && strcmp(e->isa, env[i - 1].isa) == 0)
            op_check_same("y with more threads", &y, &same);
        same = y;
        struct tensor cut = op_tensor(s.act, p.in.dim[0], s.n, 0);
        op_set(&cut, &p.h);
        for (int64_t b = 0; b < s.blocks; b++)
            run(e, &s, &p, cut, b * s.block, s.block);
        op_check_same("blocks alone", &cut, &y);
        if (p.in.dim[0] * s.n < 4000)
            check_poison(e, &s, &p, &y);
    }
    if (before != (op_hash(&p.in) ^ op_hash(&p.delta) ^ op_hash(&p.base)))
        OP_FAIL("an input changed");
    op_done();
}

/* nano's and the 27B's widths, groups that are no whole vectors, blocks shorter than the taps. */
TEST(block_conv_rows)
{
    for (int add = 0; add < 2; add++)
        for (int k = 0; k < 2; k++) {
            enum dtype act = k ? DT_F32 : DT_BF16;
            check((struct shape){1, 320, 20, 2, 8, act, add, 1});
            check((struct shape){3, 64, 4, 2, 8, act, add, 1});
            check((struct shape){2, 60, 4, 2, 5, act, add, 1});
            check((struct shape){3, 21, 7, 3, 2, act, add, 1});
            check((struct shape){4, 16, 1, 2, 1, act, add, 1});
            check((struct shape){2, 33, 33, 2, 4, act, add, 1});
            check((struct shape){2, 64, 4, 2, 8, act, add, 1e30});
            if (!test_quick())
                check((struct shape){2, 5120, 320, 2, 8, act, add, 1});
        }
}

/* Base (1, 0) and delta 0 are the identity, to the bit. */
TEST(block_conv_identity)
{
    int n;
    struct op_env *env = op_envs(&n);
    struct rng r = {5};
    for (int i = -1; i < n; i++) {
        struct op_env *e = i < 0 ? op_ref() : &env[i];
        struct shape s = {2, 48, 3, 2, 4, DT_BF16, false, 1};
        struct operands p = make(&s, &r);
        op_case("identity: %s", e->name);
        op_fill(&p.base, 0);
        op_fill(&p.delta, 0);
        for (int64_t c = 0; c < s.n; c++)
            op_put(&p.base, 0, c, 1);
        struct tensor y = whole(e, &s, &p);
        op_check_same("y", &y, &p.in);
        op_done();
    }
}

/* By hand: two rows of two groups. */
TEST(block_conv_by_hand)
{
    int n;
    struct op_env *env = op_envs(&n);
    for (int i = -1; i < n; i++) {
        struct op_env *e = i < 0 ? op_ref() : &env[i];
        static const double in[] = {1, 2, 3, 4}, base[] = {1, 10, 100, 1000},
                            delta[] = {0.5, 0.25, 7, 9, 1, 2, 3, 4};
        static const double want[] = {1.5 * 1, 10.25 * 2, 2 * 3 + 103 * 1, 12 * 4 + 1004 * 2};
        struct shape s = {1, 2, 2, 2, 2, DT_F32, false, 1};
        struct operands p = make(&s, &(struct rng){1});
        op_case("by hand: %s", e->name);
        for (int k = 0; k < 4; k++) {
            op_put(&p.in, k / 2, k % 2, in[k]);
            op_put(&p.base, k / 2, k % 2, base[k]);
        }
        for (int k = 0; k < 8; k++)
            op_put(&p.delta, k / 4, k % 4, delta[k]);
        struct tensor y = whole(e, &s, &p);
        for (int k = 0; k < 4; k++)
            if (fabs(op_at(&y, k / 2, k % 2) - want[k]) > 1e-4)
                OP_FAIL("entry %d is %g, expected %g", k, op_at(&y, k / 2, k % 2), want[k]);
        op_done();
    }
}

/* The same bits as op_block_conv_add and then op_rmsnorm, over the sum too. */
TEST(block_conv_add_norm_is_both)
{
    static const struct shape shapes[] = {
        {1, 5120, 320, 2, 8, DT_BF16, true, 1}, {2, 2560, 160, 2, 8, DT_BF16, true, 1},
        {3, 320, 20, 2, 8, DT_BF16, true, 1},   {2, 60, 4, 2, 5, DT_F32, true, 1},
        {1, 3072, 192, 3, 5, DT_BF16, true, 1}, {1, 2560, 160, 2, 8, DT_BF16, true, 1e30},
    };
    int n;
    struct op_env *env = op_envs(&n);
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
        for (int i = 0; i < n; i++) {
            const struct shape *s = &shapes[k];
            struct op_env *e = &env[i];
            struct rng r = {(uint64_t)s->n};
            struct operands p = make(s, &r);
            int64_t T = s->blocks * s->block;
            struct tensor w = op_vector(DT_F32, s->n), h[3], u[2];
            op_fill_normal(&w, &r, 1, 0.3);
            op_case("%s, n %lld, %lld groups, %s, scale %g", e->name, (long long)s->n,
                    (long long)s->groups, dtype_name(s->act), s->scale);
            for (int j = 0; j < 3; j++) {
                h[j] = op_tensor(s->act, T, s->n, 8);
                op_set(&h[j], &p.h);
            }
            for (int j = 0; j < 2; j++)
                u[j] = op_tensor(s->act, T, s->n, 8 * j);
            op_block_conv_add(&e->exec, h[0], p.in, p.base, p.delta, s->block);
            op_rmsnorm(&e->exec, u[0], h[0], w, 1e-6f);
            op_block_conv_add_norm(&e->exec, h[1], u[1], p.in, p.base, p.delta, s->block, w, 1e-6f);
            op_block_conv_add_norm(&e->exec, h[2], h[2], p.in, p.base, p.delta, s->block, w, 1e-6f);
            op_check_ok(e);
            op_check_same("sum", &h[1], &h[0]);
            op_check_same("norm", &u[1], &u[0]);
            op_check_same("norm over the sum", &h[2], &u[0]);
            op_done();
        }
}

/* The same bits as op_linear and then op_block_conv: the result, and the second half of delta. */
TEST(block_conv_made_is_both)
{
    static const struct {
        int64_t n, groups, taps, T;
        int32_t block;
        enum weight_format_id format;
        enum dtype act;
    } cases[] = {
        {5120, 320, 2, 8, 8, WF_BF16, DT_BF16}, {1024, 64, 2, 8, 8, WF_BF16, DT_BF16},
        {1152, 8, 2, 6, 3, WF_BF16, DT_BF16},   {640, 40, 2, 5, 5, WF_BF16, DT_BF16},
        {1024, 64, 2, 16, 8, WF_BF16, DT_BF16}, {320, 20, 2, 8, 8, WF_BF16, DT_BF16},
        {256, 16, 3, 8, 8, WF_BF16, DT_BF16},   {256, 16, 2, 8, 8, WF_FP8_ROW, DT_BF16},
        {256, 16, 2, 8, 8, WF_BF16, DT_F32},
    };
    int n;
    struct op_env *env = op_envs(&n);
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++)
        for (int i = 0; i < n; i++) {
            struct op_env *e = &env[i];
            int64_t T = cases[k].T, rows = 2 * cases[k].taps * cases[k].groups;
            struct rng r = {(uint64_t)(cases[k].n + T)};
            struct weight w = op_weight(cases[k].format, rows, cases[k].n, &r, 0.02);
            struct tensor base = op_tensor(DT_F32, cases[k].taps, cases[k].n, 0);
            struct tensor in = op_tensor(cases[k].act, T, cases[k].n, 8), y[2], delta[2];
            op_case("%s, n %lld, %lld groups, %lld rows, %s, %s", e->name, (long long)cases[k].n,
                    (long long)cases[k].groups, (long long)T, weight_formats[w.format].name,
                    dtype_name(cases[k].act));
            op_fill_normal(&base, &r, 0.5, 0.5);
            op_fill_normal(&in, &r, 0, 1);
            for (int j = 0; j < 2; j++) {
                y[j] = op_tensor(cases[k].act, T, cases[k].n, 8 * j);
                delta[j] = op_tensor(DT_F32, T, rows, 0);
            }
            op_linear(&e->exec, delta[0], in, &w);
            op_block_conv(&e->exec, y[0], in, base, tensor_cols(delta[0], 0, rows / 2),
                          cases[k].block);
            op_block_conv_made(&e->exec, y[1], delta[1], in, &w, base, cases[k].block);
            op_check_ok(e);
            struct tensor half[2];
            for (int j = 0; j < 2; j++)
                half[j] = tensor_cols(delta[j], rows / 2, rows / 2);
            op_check_same("y", &y[1], &y[0]);
            op_check_same("second half of delta", &half[1], &half[0]);
            op_done();
        }
}

TEST(block_conv_refuses)
{
    struct op_env *e = op_ref();
    struct shape s = {1, 6, 3, 2, 4, DT_F32, false, 1};
    struct operands p = make(&s, &(struct rng){1});
    struct tensor y = op_tensor(DT_F32, 4, 6, 0);
    op_case("refuses");
    op_block_conv(&e->exec, y, p.in, p.base, p.delta, 3);
    op_check_failed(e, LATHE_E_ARGUMENT, "block_conv: operands contradict");
    op_block_conv(&e->exec, y, p.in, p.base, tensor_cols(p.delta, 0, 5), 4);
    op_check_failed(e, LATHE_E_ARGUMENT, "block_conv: operands contradict");
    op_done();
}

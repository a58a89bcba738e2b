#include "op_test.h"

enum { ROWS = 40 }; /* of the codebooks */

struct setup {
    struct weight A, B;
    struct tensor prev, id; /* [T, m], [T, k] I32 */
};

static void run(struct exec *x, const struct op_rows *p, const struct tensor *in,
                const struct tensor *out, int64_t first, int64_t n)
{
    const struct setup *u = p->arg;
    op_pair_scores(x, out[0], in[0], tensor_rows(u->prev, first, n), tensor_rows(u->id, first, n),
                   in[1], &u->A, &u->B);
}

/* Rows of the codebooks, and a few -1, but not in the row that gets poison. */
static struct tensor ids(int64_t T, int64_t n, struct rng *r)
{
    struct tensor t = op_tensor(DT_F32, T, n, 3);
    t.dtype = DT_I32;
    for (int64_t i = 0; i < T * n; i++)
        ((int32_t *)tensor_at(&t, i / n))[i % n] =
            i / n == T / 2 || rng_below(r, 12) ? (int32_t)rng_below(r, ROWS) : -1;
    return t;
}

static void check(int64_t T, int64_t m, int64_t k, int64_t rank, enum weight_format_id format)
{
    static struct setup u;
    struct rng r = {(uint64_t)(T * 31 + k + rank)};
    struct op_rows p = {.T = T, .n_in = 2, .n_out = 1, .run = run, .arg = &u};
    p.tol = TOL_LINEAR_F32;
    p.tol.floor *= 2 * sqrt((double)rank); /* products of three numbers, and thousands of sums */
    p.poison_back = 0;
    u.A = op_weight(format, ROWS, rank, &r, 1);
    u.B = op_weight(format, ROWS, rank, &r, 1);
    p.in[0] = op_tensor(DT_F32, T, k, 2);
    p.in[1] = op_tensor(DT_F32, T, rank, 1);
    p.out[0] = op_tensor(DT_F32, T, m * k, 2);
    u.prev = ids(T, m, &r);
    u.id = ids(T, k, &r);
    op_fill_normal(&p.in[0], &r, 0, 1);
    op_fill_normal(&p.in[1], &r, 0, 1);
    op_rows_check(&p, -1, "%lld rows, %lld x %lld candidates, rank %lld, %s", (long long)T,
                  (long long)m, (long long)k, (long long)rank, weight_formats[format].name);
}

/* nano's and the 27B's ranks, and ragged ones. */
TEST(pair_scores_rows)
{
    static const enum weight_format_id formats[] = {WF_F32, WF_BF16, WF_F16, WF_FP8_ROW};
    static const int64_t ranks[] = {16, 64, 256, 1024};
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
        for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
            check(1, 1, 16, ranks[i], formats[f]);
            check(7, 16, 16, ranks[i], formats[f]);
        }
    check(5, 4, 4, 8, WF_BF16);
    check(5, 1, 1, 1, WF_F32);
    check(3, 5, 7, 19, WF_BF16);
}

static struct tensor int_row(int32_t first, int32_t second)
{
    struct tensor t = op_tensor(DT_F32, 1, 2, 0);
    t.dtype = DT_I32;
    ((int32_t *)t.data)[0] = first;
    ((int32_t *)t.data)[1] = second;
    return t;
}

/* No candidate, or nothing before it: no score. */
TEST(pair_scores_of_no_candidate)
{
    int n;
    struct op_env *env = op_envs(&n);
    struct rng r = {2};
    for (int i = -1; i < n; i++) {
        struct op_env *e = i < 0 ? op_ref() : &env[i];
        struct weight A = op_weight(WF_BF16, ROWS, 16, &r, 1),
                      B = op_weight(WF_BF16, ROWS, 16, &r, 1);
        struct tensor u = op_tensor(DT_F32, 1, 2, 0), g = op_tensor(DT_F32, 1, 16, 0);
        struct tensor y = op_tensor(DT_F32, 1, 4, 0);
        op_case("%s", e->name);
        op_fill(&u, 1);
        op_fill(&g, 0);
        op_pair_scores(&e->exec, y, u, int_row(3, -1), int_row(7, -1), g, &A, &B);
        op_check_ok(e);
        for (int64_t c = 0; c < 4; c++)
            if (op_at(&y, 0, c) != (c == 0 ? 1 : -INFINITY))
                OP_FAIL("score %lld is %g", (long long)c, op_at(&y, 0, c));
        op_done();
    }
}

TEST(pair_scores_refuses)
{
    struct op_env *e = op_ref();
    struct rng r = {2};
    struct weight A = op_weight(WF_BF16, ROWS, 16, &r, 1);
    struct tensor u = op_tensor(DT_F32, 1, 2, 0), g = op_tensor(DT_F32, 1, 16, 0);
    struct tensor y = op_tensor(DT_F32, 1, 4, 0);
    op_case("ids beyond the codebooks");
    op_pair_scores(&e->exec, y, u, int_row(0, ROWS), int_row(0, 0), g, &A, &A);
    op_check_failed(e, LATHE_E_ARGUMENT, "pair_scores: operands contradict");
    op_pair_scores(&e->exec, y, u, int_row(0, 0), int_row(-2, 0), g, &A, &A);
    op_check_failed(e, LATHE_E_ARGUMENT, "pair_scores: operands contradict");
    op_done();
}

#include "op_test.h"

struct result {
    struct tensor value, id;
};

static struct result run(struct op_env *e, struct tensor logits, int64_t k,
                         const int32_t (*range)[2], int32_t n_ranges)
{
    int64_t T = logits.dim[0];
    struct tensor memory = op_tensor(DT_F32, T, k, 0); /* of the same size, and guarded */
    struct result r = {op_tensor(DT_F32, T, k, 2), tensor_2d(memory.data, DT_I32, T, k)};
    op_top_k(&e->exec, r.value, r.id, logits, range, n_ranges);
    op_check_ok(e);
    return r;
}

static int32_t id_at(const struct result *r, int64_t t, int64_t k)
{
    return ((const int32_t *)tensor_at(&r->id, t))[k];
}

static void check_equal(const struct result *got, const struct result *want)
{
    op_check_same("values", &got->value, &want->value);
    for (int64_t t = 0; t < got->id.dim[0]; t++)
        for (int64_t k = 0; k < got->id.dim[1]; k++)
            if (id_at(got, t, k) != id_at(want, t, k))
                OP_FAIL("row %lld, place %lld: id %d, expected %d", (long long)t, (long long)k,
                        id_at(got, t, k), id_at(want, t, k));
}

/* Few distinct values (many ties), with masked, infinite and, in every other row, NaN entries. */
static void fill(const struct tensor *x, struct rng *r, uint32_t distinct)
{
    for (int64_t t = 0; t < x->dim[0]; t++)
        for (int64_t i = 0; i < x->dim[1]; i++) {
            uint32_t u = rng_below(r, 50);
            double v = distinct ? rng_below(r, distinct) : rng_normal(r);
            op_put(x, t, i,
                   u == 0                ? -INFINITY
                   : u == 1 && t % 2     ? (i % 2 ? NAN : -NAN)
                   : u == 2 && !distinct ? INFINITY
                                         : v);
        }
}

static void check(int64_t T, int64_t n, int64_t k, uint32_t distinct, const int32_t (*range)[2],
                  int32_t n_ranges)
{
    struct rng r = {(uint64_t)(n * 31 + k)};
    int n_envs;
    struct op_env *env = op_envs(&n_envs);
    struct tensor x = op_tensor(DT_F32, T, n, 1);
    fill(&x, &r, distinct);
    op_case("%lld rows of %lld, the best %lld, %u values", (long long)T, (long long)n, (long long)k,
            distinct);
    struct result want = run(op_ref(), x, k, range, n_ranges);
    for (int i = 0; i < n_envs; i++) {
        struct result got = run(&env[i], x, k, range, n_ranges);
        check_equal(&got, &want);
        for (int64_t t = 0; t < T; t++) { /* alone */
            struct result one = run(&env[i], tensor_rows(x, t, 1), k, range, n_ranges);
            struct result row = {tensor_rows(want.value, t, 1), tensor_rows(want.id, t, 1)};
            check_equal(&one, &row);
        }
    }
    op_done();
}

TEST(top_k_rows)
{
    static const int64_t widths[] = {1, 15, 16, 17, 63, 64, 65, 300, 1000}, ks[] = {1, 4, 16, 64};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (size_t j = 0; j < sizeof ks / sizeof *ks; j++) {
            const int32_t all[][2] = {{0, (int32_t)widths[i]}};
            check(3, widths[i], ks[j], 0, all, 1);
            check(2, widths[i], ks[j], 4, all, 1);
        }
}

/* Only what lies in the ranges counts, which may be empty. */
TEST(top_k_ranges)
{
    static const int32_t some[][2] = {{3, 3}, {5, 40}, {41, 42}, {100, 180}};
    check(2, 200, 16, 0, some, 4);
    check(2, 200, 16, 3, some, 4);
    check(2, 200, 160, 0, some, 4);
    check(2, 200, 5, 0, some, 1);
    int32_t many[50][2]; /* more than a kernel takes by value */
    for (int32_t i = 0; i < 50; i++)
        many[i][0] = 4 * i, many[i][1] = 4 * i + i % 4;
    check(2, 200, 16, 0, (const int32_t(*)[2])many, 50);
    check(2, 200, 257, 0, (const int32_t(*)[2])many, 50);
    if (!test_quick()) {
        static const int32_t vocabulary[][2] = {{0, 248077}};
        check(2, 248320, 16, 0, vocabulary, 1);
    }
}

/* More than one list of a kernel holds, from a row of several pieces; all values equal; the best in one place. */
TEST(top_k_of_many)
{
    enum { N = 9000 };
    static const int32_t all[][2] = {{0, N}}, most[][2] = {{1, 4095}, {4097, N - 1}};
    static const int64_t ks[] = {1, 2, 31, 255, 256, 257};
    for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
        check(1, N, ks[i], 0, all, 1);
        if (test_quick())
            continue;
        check(2, N, ks[i], 1, most, 2);
        check(1, N, ks[i], 300, most, 2);
    }
}

/* Of equal values the lower ids, in order, wherever tiles of the vocabulary lie. */
TEST(top_k_ties)
{
    enum { N = 512, K = 16 };
    static const int32_t all[][2] = {{0, N}};
    int n;
    struct op_env *env = op_envs(&n);
    for (int i = -1; i < n; i++)
        for (int first = 0; first < N - 2 * K; first += 37) {
            struct op_env *e = i < 0 ? op_ref() : &env[i];
            struct tensor x = op_tensor(DT_F32, 1, N, 0);
            op_case("ties from %d: %s", first, e->name);
            op_fill(&x, -1);
            for (int k = 0; k < K + 3; k++)
                op_put(&x, 0, first + k, 2);
            op_put(&x, 0, N - 1, 3);
            struct result r = run(e, x, K, all, 1);
            for (int k = 0; k < K; k++)
                if (id_at(&r, 0, k) != (k == 0 ? N - 1 : first + k - 1))
                    OP_FAIL("place %d: id %d", k, id_at(&r, 0, k));
            op_done();
        }
}

/* NaN of either sign comes first, wherever it is; then infinity. */
TEST(top_k_of_nan)
{
    enum { N = 9000 };
    static const int32_t all[][2] = {{0, N}};
    static const int64_t ks[] = {1, 2, 5, 300};
    int n;
    struct op_env *env = op_envs(&n);
    for (int i = -1; i < n; i++)
        for (size_t j = 0; j < sizeof ks / sizeof *ks; j++)
            for (int at = 0; at < N; at += 1111) {
                struct op_env *e = i < 0 ? op_ref() : &env[i];
                struct tensor x = op_tensor(DT_F32, 1, N, 0);
                int32_t want[3] = {at, at + 3, (at + 40) % N};
                op_case("NaN at %d, the best %lld: %s", at, (long long)ks[j], e->name);
                op_fill(&x, 1);
                op_put(&x, 0, want[0], NAN);
                op_put(&x, 0, want[1] % N, -NAN);
                op_put(&x, 0, want[2], INFINITY);
                struct result r = run(e, x, ks[j], all, 1);
                for (int64_t k = 0; k < ks[j] && k < 3; k++)
                    if (id_at(&r, 0, k) != want[k] ||
                        (k < 2 ? !isnan(op_at(&r.value, 0, k)) : !isinf(op_at(&r.value, 0, k))))
                        OP_FAIL("place %lld: id %d, value %g", (long long)k, id_at(&r, 0, k),
                                op_at(&r.value, 0, k));
                op_done();
            }
}

TEST(top_k_refuses)
{
    static const int32_t beyond[][2] = {{0, 9}}, overlap[][2] = {{0, 5}, {4, 8}};
    struct op_env *e = op_ref();
    struct tensor x = op_tensor(DT_F32, 1, 8, 0), value = op_tensor(DT_F32, 1, 2, 0);
    struct tensor id = tensor_2d(op_tensor(DT_F32, 1, 2, 0).data, DT_I32, 1, 2);
    op_case("refuses");
    op_top_k(&e->exec, value, id, x, beyond, 1);
    op_check_failed(e, LATHE_E_ARGUMENT, "top_k: operands contradict");
    op_top_k(&e->exec, value, id, x, overlap, 2);
    op_check_failed(e, LATHE_E_ARGUMENT, "top_k: operands contradict");
    op_done();
}

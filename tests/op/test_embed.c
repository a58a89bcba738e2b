#include "op_test.h"

static void run(struct exec *x, const struct op_rows *p, const struct tensor *in,
                const struct tensor *out, int64_t first, int64_t n)
{
    (void)in, (void)n;
    const struct weight *table = p->arg;
    int32_t token[80];
    for (int64_t t = 0; t < out[0].dim[0]; t++)
        token[t] = (int32_t)((first + t) * 37 % table->rows);
    op_embed(x, out[0], table, token);
}

static void check(enum weight_format_id format, int64_t T, int64_t hidden, enum dtype act)
{
    struct rng r = {(uint64_t)(T + hidden)};
    struct weight table = op_weight(format, 128, hidden, &r, 0.02);
    struct op_rows p = {.T = T, .n_out = 1, .run = run, .arg = &table, .tol = TOL_EXACT};
    p.out[0] = op_tensor(act, T, hidden, 0);
    op_rows_check(&p, -1, "%s, T %lld, hidden %lld, %s", weight_formats[format].name, (long long)T,
                  (long long)hidden, dtype_name(act));
}

/* 512 is the piece of a row that is converted at once. */
TEST(embed_every_format)
{
    static const int64_t hidden[] = {320, 512, 528, 5120}, rows[] = {1, 2, 7, 64};
    for (int f = 0; f < WF_COUNT; f++)
        for (size_t i = 0; i < sizeof hidden / sizeof hidden[0]; i++)
            for (size_t j = 0; j < sizeof rows / sizeof rows[0]; j++)
                if (hidden[i] * rows[j] <= (test_quick() ? 4000 : 40000))
                    check((enum weight_format_id)f, rows[j], hidden[i], j % 2 ? DT_F32 : DT_BF16);
    check(WF_BF16, 65, 320, DT_BF16); /* more tokens than a kernel takes by value */
    check(WF_BF16, 80, 33, DT_F32);
    for (int f = 0; f < WF_COUNT; f++)
        if (f != WF_NVFP4) /* of which a row is whole blocks of 16 */
            check((enum weight_format_id)f, 3, 133, DT_BF16);
}

TEST(embed_refuses_a_token)
{
    struct rng r = {1};
    struct weight table = op_weight(WF_BF16, 8, 16, &r, 1);
    struct tensor y = op_tensor(DT_BF16, 3, 16, 0);
    struct op_env *e = op_ref();
    op_case("token range");
    op_embed(&e->exec, y, &table, (const int32_t[]){0, 7, 8});
    op_check_failed(e, LATHE_E_ARGUMENT, "token id 8 in row 2, expected 0 to 7");
    op_embed(&e->exec, y, &table, (const int32_t[]){0, -1, 8});
    op_check_failed(e, LATHE_E_ARGUMENT, "token id -1 in row 1");
    op_done();
}

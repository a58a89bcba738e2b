#include "op_test.h"

/* Bits, duplicates, any order; input with gaps between rows. */
TEST(gather_rows_copies)
{
    enum { MOST = 65 }; /* more than a kernel takes by value */
    static const int32_t some[] = {6, 0, 0, 3, 6}, counts[] = {5, 64, MOST};
    int32_t pick[MOST];
    static const enum dtype act[] = {DT_F32, DT_BF16};
    int n;
    struct op_env *env = op_envs(&n);
    struct rng r = {5};
    for (int k = 0; k < MOST; k++)
        pick[k] = some[k % 5];
    for (int a = 0; a < 2; a++) {
        struct tensor in = op_tensor(act[a], 7, 33, 4), y;
        op_fill_normal(&in, &r, 0, 1);
        op_put(&in, 3, 5, NAN);
        uint64_t before = op_hash(&in);
        for (int i = -1; i < n; i++)
            for (int c = 0; c < 3; c++) {
                struct op_env *e = i < 0 ? op_ref() : &env[i];
                op_case("%d rows: %s", counts[c], e->name);
                y = op_tensor(act[a], counts[c], 33, 2);
                op_gather_rows(&e->exec, y, in, pick);
                op_check_ok(e);
                for (int k = 0; k < counts[c]; k++)
                    if (!op_same_row(&y, k, &in, pick[k]))
                        OP_FAIL("row %d is not row %d of the input", k, pick[k]);
            }
        CHECK(op_hash(&in) == before);
        op_case("out of range");
        y = op_tensor(act[a], 5, 33, 2);
        op_gather_rows(&op_ref()->exec, y, in, (const int32_t[]){0, 1, 2, 7, 0});
        op_check_failed(op_ref(), LATHE_E_ARGUMENT, "gather_rows");
        op_done();
    }
}

#include "op_test.h"

/* Every row at its slot and position, rounded once; nothing else changes. */
TEST(kv_append_writes_rows)
{
    enum { PAGE = 3, PAGES = 6, HEADS = 2, DIM = 5, WIDTH = HEADS * DIM };
    static const int32_t table[] = {4, 0, 2, 1, 5, 3}; /* 2 slots of 3 pages */
    static const enum dtype act[] = {DT_F32, DT_BF16};
    static struct op_batch b;
    int n;
    struct op_env *env = op_envs(&n);
    struct rng r = {9};
    op_batch_begin(&b, PHASE_VERIFY);
    op_batch_add(&b, 1, 2, 3);
    op_batch_add(&b, 0, 0, 2);
    for (int i = -1; i < n; i++)
        for (int c = 0; c < 4; c++) {
            struct op_env *e = i < 0 ? op_ref() : &env[i];
            enum dtype from = act[c / 2], to = act[c % 2];
            struct tensor in[2], plane[2], before[2];
            op_case("%s, %s to %s", e->name, dtype_name(from), dtype_name(to));
            for (int k = 0; k < 2; k++) {
                in[k] = op_tensor(from, 5, WIDTH, 3);
                op_fill_normal(&in[k], &r, 0, 1);
                op_put(&in[k], 4, 1, k ? NAN : INFINITY);
                plane[k] = op_tensor(to, PAGES * PAGE, WIDTH, 0);
                op_fill_normal(&plane[k], &r, 0, 1);
                before[k] = op_copy(&plane[k], to);
            }
            struct kv_pages kv = {tensor_4d(plane[0].data, to, PAGES, PAGE, HEADS, DIM),
                                  tensor_4d(plane[1].data, to, PAGES, PAGE, HEADS, DIM), table, 3,
                                  op_table(table, 6)};
            op_kv_append(&e->exec, &kv, in[0], in[1], &b.b);
            op_check_ok(e);
            for (int k = 0; k < 2; k++) {
                for (int t = 0; t < 5; t++) {
                    int at = table[b.slot[t] * 3 + b.pos[t] / PAGE] * PAGE + b.pos[t] % PAGE;
                    struct tensor to_row = tensor_rows(before[k], at, 1);
                    for (int d = 0; d < WIDTH; d++)
                        op_put(&to_row, 0, d, op_at(&in[k], t, d));
                }
                op_check_same(k ? "values" : "keys", &plane[k], &before[k]);
            }
            op_done();
        }
}

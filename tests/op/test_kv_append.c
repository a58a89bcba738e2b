#include "op_test.h"

#include "tensor/number.h"

/* Every row at its slot and position, rounded once; nothing else changes. */
TEST(kv_append_writes_rows)
{
    enum { PAGE = 3, PAGES = 6, HEADS = 2, DIM = 5, WIDTH = HEADS * DIM };
    static const int32_t table[] = {4, 0, 2, 1, 5, 3}; /* 2 slots of 3 pages */
    static const enum dtype kv_dtype[] = {DT_F32, DT_BF16, DT_F8_E4M3};
    static struct op_batch b;
    int n;
    struct op_env *env = op_envs(&n);
    struct rng r = {9};
    op_batch_begin(&b, PHASE_VERIFY);
    op_batch_add(&b, 1, 2, 3);
    op_batch_add(&b, 0, 0, 2);
    for (int i = -1; i < n; i++)
        for (int c = 0; c < 6; c++) {
            struct op_env *e = i < 0 ? op_ref() : &env[i];
            enum dtype from = kv_dtype[c / 3], to = kv_dtype[c % 3];
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

/* E4M3 of every BF16, and of F32 on, below and above each tie, at widths that are no multiple of anything. */
TEST(kv_append_rounds_to_e4m3)
{
    enum { WIDTH = 2731, ROWS = 24 }; /* 65544 values */
    static const int32_t table[] = {0};
    static struct op_batch b;
    int n;
    struct op_env *env = op_envs(&n);
    op_batch_begin(&b, PHASE_PREFILL);
    op_batch_add(&b, 0, 0, ROWS);
    for (int i = -1; i < n; i++)
        for (int f32 = 0; f32 < 2; f32++) {
            struct op_env *e = i < 0 ? op_ref() : &env[i];
            struct tensor in = op_tensor(f32 ? DT_F32 : DT_BF16, ROWS, WIDTH, 0);
            struct tensor k = op_tensor(DT_F8_E4M3, ROWS, WIDTH, 0);
            struct tensor v = op_tensor(DT_F8_E4M3, ROWS, WIDTH, 0);
            struct kv_pages kv = {tensor_4d(k.data, DT_F8_E4M3, 1, ROWS, 1, WIDTH),
                                  tensor_4d(v.data, DT_F8_E4M3, 1, ROWS, 1, WIDTH), table, 1,
                                  op_table(table, 1)};
            op_case("%s, %s", e->name, dtype_name(in.dtype));
            for (int64_t c = 0; c < (int64_t)ROWS * WIDTH; c++)
                if (f32) {
                    /* the middle of a code and the next, 448 and infinity for the last ones */
                    float low = e4m3_to_f32((uint8_t)(c / 3 % 127)),
                          high = e4m3_to_f32((uint8_t)(c / 3 % 127 + 1));
                    uint32_t u = f32_bits(isnan(high) ? 464 : isnan(low) ? high : (low + high) / 2);
                    u = (u + (uint32_t)(c % 3) - 1) | (c & 512 ? 0x80000000u : 0);
                    ((uint32_t *)in.data)[c] = u;
                } else {
                    ((uint16_t *)in.data)[c] = (uint16_t)c;
                }
            op_kv_append(&e->exec, &kv, in, in, &b.b);
            op_check_ok(e);
            for (int64_t c = 0; c < (int64_t)ROWS * WIDTH; c++) {
                float x =
                    f32 ? ((const float *)in.data)[c] : bf16_to_f32(((const uint16_t *)in.data)[c]);
                int want = e4m3_from_f32(x), got = ((const uint8_t *)k.data)[c];
                if (got != want || ((const uint8_t *)v.data)[c] != want)
                    OP_FAIL("%.9g becomes %02x, expected %02x", (double)x, got, want);
            }
            op_done();
        }
}

#include "op_test.h"

enum { SLOTS = 3, HEADS = 2, DIM = 5, WIDTH = HEADS * DIM };

/* What every row of a plane must hold after the batch: the last of the rows that fall on it. */
static void expect(const struct tensor *plane, int64_t size, const struct tensor *in,
                   const struct batch *b)
{
    for (int32_t t = 0; t < b->n_rows; t++)
        for (int64_t c = 0; c < WIDTH; c++)
            op_put(plane, b->slot[t] * size + b->pos[t] % size, c, op_at(in, t, c));
}

static void check(struct op_env *e, enum dtype act, enum dtype kv, int64_t size,
                  const struct batch *b, struct rng *r)
{
    struct tensor in[2], plane[2], want[2];
    op_case("%s, %s to %s, ring of %lld, %d rows at %d", e->name, dtype_name(act), dtype_name(kv),
            (long long)size, b->seq[0].n_rows, b->seq[0].pos);
    for (int k = 0; k < 2; k++) {
        in[k] = op_tensor(act, b->n_rows, WIDTH, 3);
        op_fill_normal(&in[k], r, 0, 1);
        plane[k] = op_tensor(kv, SLOTS * size, WIDTH, 0);
        op_fill_normal(&plane[k], r, 0, 1);
        want[k] = op_copy(&plane[k], kv);
        expect(&want[k], size, &in[k], b);
    }
    static const int32_t first[SLOTS];
    struct kv_ring ring = {tensor_4d(plane[0].data, kv, SLOTS, size, HEADS, DIM),
                           tensor_4d(plane[1].data, kv, SLOTS, size, HEADS, DIM), first};
    op_ring_append(&e->exec, &ring, in[0], in[1], b);
    op_check_ok(e);
    op_check_same("keys", &plane[0], &want[0]);
    op_check_same("values", &plane[1], &want[1]);
    op_done();
}

/* Every length around the ring's, from positions that make it wrap; other slots stay. */
TEST(ring_append_rows)
{
    static const int32_t pos[] = {0, 3, 6, 7, 20, 1000003}, rows[] = {1, 2, 6, 7, 8, 14, 30};
    static struct op_batch b;
    int n;
    struct op_env *env = op_envs(&n);
    struct rng r = {3};
    for (int i = -1; i < n; i++)
        for (size_t p = 0; p < sizeof pos / sizeof *pos; p++)
            for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
                op_batch_begin(&b, PHASE_DECODE);
                op_batch_add(&b, 2, pos[p], rows[k]);
                op_batch_add(&b, 0, 5, 3);
                check(i < 0 ? op_ref() : &env[i], p % 2 ? DT_F32 : DT_BF16,
                      k % 2 ? DT_F32 : DT_BF16, 7, &b.b, &r);
            }
}

/* Enough rows for several threads. */
TEST(ring_append_many_rows)
{
    static struct op_batch b;
    int n;
    struct op_env *env = op_envs(&n);
    struct rng r = {4};
    for (int i = 0; i < n; i++)
        for (int64_t size = 64; size <= 512; size *= 8) {
            op_batch_begin(&b, PHASE_DECODE);
            op_batch_add(&b, 1, 100, 500);
            check(&env[i], DT_F32, DT_BF16, size, &b.b, &r);
        }
}

TEST(ring_append_refuses)
{
    static struct op_batch b;
    struct op_env *e = op_ref();
    struct tensor k = op_tensor(DT_F32, 1, 2, 0), plane = op_tensor(DT_F32, 4, 2, 0);
    struct tensor ring_plane = tensor_4d(plane.data, DT_F32, 1, 4, 1, 2);
    struct kv_ring ring = {ring_plane, ring_plane, NULL};
    op_case("a slot that is not there");
    op_batch_begin(&b, PHASE_DECODE);
    op_batch_add(&b, 1, 0, 1);
    op_ring_append(&e->exec, &ring, k, k, &b.b);
    op_check_failed(e, LATHE_E_ARGUMENT, "ring_append: operands contradict");
    op_done();
}

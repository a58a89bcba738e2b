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

/* The same bits as op_qk_norm_rope and op_ring_append, one layer after the other. */
static void check_layers(struct op_env *e, int32_t n, int32_t heads, int32_t dim, int32_t rope_dims,
                         enum dtype act, enum dtype kv, const struct batch *b)
{
    enum { MOST = 9 };
    static const int32_t first[SLOTS];
    static float inv_freq[128];
    static uint8_t axis[128];
    struct rng r = {(uint64_t)(n + dim)};
    struct rope rope = {rope_dims, inv_freq, axis, 1.25f};
    struct kv_ring ring[2][MOST];
    struct ring_rows rows[2][MOST];
    int64_t width = (int64_t)heads * dim;
    op_case("%s, %d layers, %d heads of %d, rope %d, %s to %s, %d rows at %d", e->name, n, heads,
            dim, rope_dims, dtype_name(act), dtype_name(kv), b->n_rows, b->seq[0].pos);
    for (int32_t i = 0; i < rope_dims / 2; i++) {
        inv_freq[i] = (float)pow(1e7, -2. * i / rope_dims);
        axis[i] = (uint8_t)(i % 3);
    }
    for (int32_t i = 0; i < n; i++) {
        int64_t size = i % 2 ? 7 : 40;
        struct tensor v = op_tensor(act, b->n_rows, width, 8), w = op_vector(DT_F32, dim);
        op_fill_normal(&v, &r, 0, 1);
        op_fill_normal(&w, &r, 1, 0.3);
        for (int j = 0; j < 2; j++) {
            struct tensor plane[2], k = op_tensor(act, b->n_rows, width, 8 * j);
            for (int p = 0; p < 2; p++) {
                plane[p] = op_tensor(kv, SLOTS * size, width, 0);
                op_fill(&plane[p], 3);
            }
            if (j)
                op_set(&k, &rows[0][i].k);
            else
                op_fill_normal(&k, &r, 0, 1);
            ring[j][i] =
                (struct kv_ring){tensor_4d(plane[0].data, kv, SLOTS, size, heads, dim),
                                 tensor_4d(plane[1].data, kv, SLOTS, size, heads, dim), first};
            rows[j][i] = (struct ring_rows){k, v, w, &ring[j][i]};
        }
    }
    for (int32_t i = 0; i < n; i++) {
        struct tensor none = tensor_cols(rows[0][i].k, 0, 0);
        op_qk_norm_rope(&e->exec, none, rows[0][i].k, none, rows[0][i].k_norm, rows[0][i].k_norm,
                        dim, 1e-6f, &rope, b);
        op_ring_append(&e->exec, &ring[0][i], rows[0][i].k, rows[0][i].v, b);
    }
    op_ring_rows(&e->exec, n, rows[1], 1e-6f, &rope, b);
    op_check_ok(e);
    for (int32_t i = 0; i < n; i++) {
        op_check_same("keys", &rows[1][i].k, &rows[0][i].k);
        for (int p = 0; p < 2; p++) {
            struct tensor x[2];
            for (int j = 0; j < 2; j++) {
                const struct tensor *t = p ? &ring[j][i].v : &ring[j][i].k;
                x[j] = tensor_2d(t->data, kv, SLOTS * t->dim[1], width);
            }
            op_check_same(p ? "ring of values" : "ring of keys", &x[1], &x[0]);
        }
    }
    op_done();
}

TEST(ring_rows_are_both)
{
    static struct op_batch b;
    static const int32_t rows[] = {1, 8, 30};
    int n;
    struct op_env *env = op_envs(&n);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 3; k++) {
            op_batch_begin(&b, PHASE_DECODE);
            op_batch_add(&b, 2, 20, rows[k]);
            op_batch_add(&b, 0, 5, 3);
            check_layers(&env[i], 5, 8, 128, 128, DT_BF16, DT_BF16, &b.b);
            check_layers(&env[i], 8, 3, 64, 32, DT_BF16, DT_BF16, &b.b);
            check_layers(&env[i], 9, 1, 40, 10, DT_BF16, DT_BF16, &b.b);
            check_layers(&env[i], 2, 2, 33, 2, DT_BF16, DT_F32, &b.b);
            check_layers(&env[i], 2, 2, 128, 128, DT_F32, DT_BF16, &b.b);
        }
}

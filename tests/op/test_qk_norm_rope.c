#include "op_test.h"

struct shape {
    int32_t heads, kv_heads, head_dim, rope_dims;
    enum dtype act;
    int64_t gap;
    float scale;
};

struct setup {
    struct shape s;
    float inv_freq[256];
    uint8_t axis[256];
    struct rope rope;
    struct op_batch batch;
};

static void setup_init(struct setup *u, const struct shape *s, int32_t T, int32_t pos)
{
    u->s = *s;
    for (int32_t i = 0; i < s->rope_dims / 2; i++) {
        u->inv_freq[i] = (float)pow(1e7, -2. * i / s->rope_dims);
        /* sections [11, 11, 10] */
        u->axis[i] = i % 3 == 1 && i < 33 ? 1 : i % 3 == 2 && i < 30 ? 2 : 0;
    }
    u->rope = (struct rope){s->rope_dims, u->inv_freq, u->axis, s->scale};
    op_batch_begin(&u->batch, PHASE_PREFILL);
    op_batch_add(&u->batch, 0, pos, T);
    for (int32_t t = 0; t < T; t++) /* axes apart, as behind an image */
        for (int a = 0; a < 3; a++)
            u->batch.rope_pos[t][a] = pos + t + a * 5;
}

static void run(struct exec *x, const struct op_rows *p, const struct tensor *in,
                const struct tensor *out, int64_t first, int64_t n)
{
    const struct setup *u = p->arg;
    struct batch b = u->batch.b;
    b.n_rows = (int32_t)n;
    b.rope_pos += first;
    op_qk_norm_rope(x, out[0], out[1], in[0], p->whole[0], p->whole[1], u->s.head_dim, 1e-6f,
                    &u->rope, &b);
}

static void check(const struct shape *s, int32_t T, int32_t pos)
{
    static struct setup u;
    struct rng r = {(uint64_t)(T + pos)};
    int64_t q = s->heads * s->head_dim, k = s->kv_heads * s->head_dim;
    setup_init(&u, s, T, pos);
    struct op_rows p = {.T = T, .n_in = 1, .n_whole = 2, .n_out = 2, .run = run, .arg = &u};
    p.tol = s->act == DT_BF16 ? TOL_ROW_BF16 : TOL_ROW_F32;
    p.poison_back = s->head_dim; /* a query, not the gate behind it */
    p.in[0] = op_tensor(s->act, T, 2 * q, s->gap);
    p.out[0] = op_tensor(s->act, T, q, s->gap);
    p.out[1] = op_tensor(s->act, T, k, s->gap);
    op_fill_normal(&p.in[0], &r, 0, 1);
    op_fill_normal(&p.out[1], &r, 0, 1);
    for (int64_t t = 0; t < T; t++) /* gates: not looked at */
        for (int64_t i = 0; i < 2 * q; i++)
            if (i / s->head_dim % 2 == 1)
                op_put(&p.in[0], t, i, NAN);
    for (int i = 0; i < 2; i++) {
        p.whole[i] = op_vector(DT_F32, s->head_dim);
        op_fill_normal(&p.whole[i], &r, 1, 0.3);
    }
    op_rows_check(&p, -1, "T %d at %d, %d/%d heads of %d, rope %d, %s", T, pos, s->heads,
                  s->kv_heads, s->head_dim, s->rope_dims, dtype_name(s->act));
}

TEST(qk_norm_rope_rows)
{
    static const struct shape shapes[] = {
        {6, 1, 256, 64, DT_BF16, 0, 1},  {24, 4, 256, 64, DT_BF16, 0, 1},
        {6, 1, 256, 64, DT_F32, 3, 1},   {4, 2, 128, 32, DT_F32, 0, 1.1386294f},
        {3, 3, 40, 10, DT_BF16, 1, 1},   {2, 1, 33, 2, DT_F32, 0, 1},
        {2, 1, 64, 64, DT_BF16, 0, 1},   {3, 2, 512, 300, DT_F32, 0, 1},
        {2, 1, 260, 258, DT_BF16, 0, 1}, {2, 1, 16, 0, DT_F32, 0, 1},
    };
    static const int32_t rows[] = {1, 2, 7, 64};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (size_t j = 0; j < 4; j++) {
            if (shapes[i].heads * shapes[i].head_dim * rows[j] > (test_quick() ? 8000 : 50000))
                continue;
            check(&shapes[i], rows[j], 0);
            check(&shapes[i], rows[j], 262000); /* near the end of the longest plain context */
        }
}

/* The same bits as op_qk_norm_rope and then op_kv_append: queries, keys, and the pages of two slots. */
static void check_append(struct op_env *e, const struct shape *s, enum dtype kv_dtype)
{
    enum { PAGE = 3, PAGES = 6, T = 5 };
    static const int32_t table[] = {4, 0, 2, 1, 5, 3}; /* 2 slots of 3 pages */
    static struct setup u;
    struct rng r = {(uint64_t)s->head_dim};
    int64_t q_dim = s->heads * s->head_dim, k_dim = s->kv_heads * s->head_dim;
    struct tensor w[2], q[2], k[2], plane[2][2], v = op_tensor(s->act, T, k_dim, s->gap);
    struct tensor qg = op_tensor(s->act, T, 2 * q_dim, s->gap);
    setup_init(&u, s, T, 0);
    op_batch_begin(&u.batch, PHASE_VERIFY);
    op_batch_add(&u.batch, 1, 2, 3);
    op_batch_add(&u.batch, 0, 6, 2);
    op_case("%s, %d/%d heads of %d, rope %d, %s, KV %s", e->name, s->heads, s->kv_heads,
            s->head_dim, s->rope_dims, dtype_name(s->act), dtype_name(kv_dtype));
    op_fill_normal(&qg, &r, 0, 1);
    op_fill_normal(&v, &r, 0, 1);
    op_put(&v, 4, k_dim - 1, NAN);
    op_put(&v, 3, 0, -INFINITY);
    for (int i = 0; i < 2; i++) {
        w[i] = op_vector(DT_F32, s->head_dim);
        op_fill_normal(&w[i], &r, 1, 0.3);
        q[i] = op_tensor(s->act, T, q_dim, s->gap);
        k[i] = op_tensor(s->act, T, k_dim, s->gap);
        for (int j = 0; j < 2; j++)
            plane[i][j] = op_tensor(kv_dtype, PAGES * PAGE, k_dim, 0);
    }
    op_fill_normal(&k[0], &r, 0, 1);
    op_put(&k[0], 2, 0, NAN);
    op_set(&k[1], &k[0]);
    for (int j = 0; j < 2; j++) {
        op_fill_normal(&plane[0][j], &r, 0, 1);
        op_set(&plane[1][j], &plane[0][j]);
    }
    uint64_t before[] = {op_hash(&v), op_hash(&qg)};
    for (int i = 0; i < 2; i++) {
        struct tensor page[2];
        for (int j = 0; j < 2; j++)
            page[j] = tensor_4d(plane[i][j].data, kv_dtype, PAGES, PAGE, s->kv_heads, s->head_dim);
        struct kv_pages kv = {page[0], page[1], table, 3, op_table(table, 6)};
        if (i) {
            op_qk_norm_rope_append(&e->exec, q[i], k[i], qg, w[0], w[1], s->head_dim, 1e-6f,
                                   &u.rope, &kv, v, &u.batch.b);
        } else {
            op_qk_norm_rope(&e->exec, q[i], k[i], qg, w[0], w[1], s->head_dim, 1e-6f, &u.rope,
                            &u.batch.b);
            op_kv_append(&e->exec, &kv, k[i], v, &u.batch.b);
        }
        op_check_ok(e);
    }
    if (q_dim)
        op_check_same("queries", &q[1], &q[0]);
    op_check_same("keys", &k[1], &k[0]);
    op_check_same("pages of keys", &plane[1][0], &plane[0][0]);
    op_check_same("pages of values", &plane[1][1], &plane[0][1]);
    if (op_hash(&v) != before[0] || op_hash(&qg) != before[1])
        OP_FAIL("an input was changed");
    op_done();
}

TEST(qk_norm_rope_append_is_both)
{
    static const struct shape shapes[] = {
        {6, 1, 256, 64, DT_BF16, 0, 1}, {24, 4, 256, 64, DT_BF16, 0, 1},
        {6, 1, 256, 64, DT_F32, 3, 1},  {3, 3, 40, 10, DT_BF16, 1, 1},
        {2, 1, 33, 2, DT_F32, 0, 1},    {3, 2, 512, 300, DT_BF16, 0, 1},
        {2, 1, 260, 258, DT_F32, 0, 1}, {0, 4, 256, 64, DT_BF16, 0, 1},
        {2, 9, 16, 0, DT_BF16, 0, 1},
    };
    static const enum dtype kv[] = {DT_BF16, DT_F8_E4M3, DT_F32};
    int n;
    struct op_env *env = op_envs(&n);
    for (int i = -1; i < n; i++)
        for (size_t j = 0; j < sizeof shapes / sizeof shapes[0]; j++)
            for (int k = 0; k < 3; k++)
                check_append(i < 0 ? op_ref() : &env[i], &shapes[j], kv[k]);
}

/* One head of ones, 256 wide; positions of the three axes. Changed pairs in *changed. */
static void rotate(struct op_env *e, const int32_t pos[3], enum dtype act, struct tensor *out,
                   uint32_t *changed)
{
    static struct setup u;
    struct shape s = {1, 1, 256, 64, act, 0, 1};
    struct tensor qg = op_tensor(act, 1, 512, 0), k = op_tensor(act, 1, 256, 0);
    struct tensor w = op_vector(DT_F32, 256);
    setup_init(&u, &s, 1, 0);
    memcpy(u.batch.rope_pos[0], pos, 3 * sizeof *pos);
    op_fill(&qg, 1);
    op_fill(&k, 1);
    op_fill(&w, 1);
    *out = op_tensor(act, 1, 256, 0);
    op_qk_norm_rope(&e->exec, *out, k, qg, w, w, 256, 0, &u.rope, &u.batch.b);
    op_check_ok(e);
    op_check_same("k and q", &k, out);
    *changed = 0;
    for (int i = 0; i < 32; i++)
        if (op_at(out, 0, i) != 1 || op_at(out, 0, i + 32) != 1)
            *changed |= 1u << i;
    for (int i = 64; i < 256; i++)
        if (op_at(out, 0, i) != 1)
            OP_FAIL("dim %d beyond the rotary ones changed", i);
}

static uint32_t every_third(int first, int end)
{
    uint32_t bits = 0;
    for (int i = first; i < end; i += 3)
        bits |= 1u << i;
    return bits;
}

/* B82: which frequencies follow which axis; equal axes are plain rotary. */
TEST(B82_axis_map)
{
    int n;
    struct op_env *env = op_envs(&n);
    for (int i = -1; i < n; i++) {
        struct op_env *e = i < 0 ? op_ref() : &env[i];
        struct tensor y;
        uint32_t changed;
        op_case("%s", e->name);
        rotate(e, (const int32_t[]){7, 0, 0}, DT_F32, &y, &changed);
        CHECK_INT(changed, every_third(0, 32));
        rotate(e, (const int32_t[]){0, 9, 0}, DT_F32, &y, &changed);
        CHECK_INT(changed, every_third(1, 33));
        rotate(e, (const int32_t[]){0, 0, 9}, DT_F32, &y, &changed);
        CHECK_INT(changed, every_third(2, 30));
        rotate(e, (const int32_t[]){5, 5, 5}, DT_F32, &y, &changed);
        CHECK_INT(changed, 0xFFFFFFFFu);
        for (int d = 0; d < 32; d++) { /* by hand: (1, 1) turned by 5 theta^(-2d/64) */
            double a = 5 * pow(1e7, -2. * d / 64);
            CHECK(fabs(op_at(&y, 0, d) - (cos(a) - sin(a))) < 1e-6);
            CHECK(fabs(op_at(&y, 0, d + 32) - (cos(a) + sin(a))) < 1e-6);
        }
        op_done();
    }
}

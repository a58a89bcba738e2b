/* The gated delta rule of prompts where a backend has room behind each S, and goes through them in chunks. */
#include "op_test.h"
#ifdef LATHE_CUDA

enum { MOST_SEQS = 3, SLOTS = 4 };

struct sequences {
    struct gdn_heads heads;
    int n;
    int32_t pos[MOST_SEQS], n_rows[MOST_SEQS];
    double decay; /* g is uniform in a square of [-decay, 0] */
    double alike; /* share of a key that all keys have */
};

struct operands {
    struct tensor qkv, g, beta, S, o;
};

/* S of empty sequences, with the backend's room; given back with op_free. */
static struct tensor states_of(const struct op_env *e, const struct gdn_heads *h)
{
    size_t room = e->backend->delta_room(e->stream, h, DT_BF16), row;
    struct tensor S = tensor_2d(NULL, DT_F32, SLOTS, (int64_t)h->n_v_heads * 128 * 128);
    S.stride += (int64_t)(room / sizeof(float));
    row = (size_t)S.stride * sizeof(float);
    S.data = op_alloc(SLOTS * row);
    memset(S.data, 0, SLOTS * row);
    return S;
}

static struct operands operands_of(const struct op_env *e, const struct sequences *p)
{
    struct rng r = {(uint64_t)p->heads.n_v_heads}, gates = {5}, states = {6};
    const struct gdn_heads *h = &p->heads;
    int64_t T = 0, keys = h->n_k_heads * 128, width = 2 * keys + h->n_v_heads * 128;
    for (int i = 0; i < p->n; i++)
        T += p->n_rows[i];
    struct operands x = {
        .qkv = op_tensor(DT_BF16, T, width, 8),
        .g = op_tensor(DT_F32, T, h->n_v_heads, 3),
        .beta = op_tensor(DT_F32, T, h->n_v_heads, 0),
        .S = states_of(e, h),
        .o = op_tensor(DT_F32, T, (int64_t)h->n_v_heads * 128, 4),
    };
    op_fill_normal(&x.qkv, &r, 0, 1);
    for (int64_t t = 0; t < T; t++) {
        for (int64_t c = keys; c < 2 * keys; c++)
            op_put(&x.qkv, t, c,
                   op_at(&x.qkv, t, c) * (1 - p->alike) + (c % 3 ? p->alike : -p->alike));
        for (int64_t j = 0; j < h->n_v_heads; j++) {
            op_put(&x.g, t, j, -p->decay * rng_unit(&gates) * rng_unit(&gates));
            op_put(&x.beta, t, j, rng_unit(&gates));
        }
    }
    op_fill_normal(&x.S, &states, 0, 0.5);
    return x;
}

static const int32_t slots[MOST_SEQS] = {2, 0, 3};

static void run(struct op_env *e, const struct sequences *p, const struct operands *x)
{
    static struct op_batch b;
    struct tensor S = tensor_4d(x->S.data, DT_F32, SLOTS, p->heads.n_v_heads, 128, 128);
    S.stride = x->S.stride;
    op_batch_begin(&b, PHASE_PREFILL);
    for (int i = 0; i < p->n; i++)
        op_batch_add(&b, slots[i], p->pos[i], p->n_rows[i]);
    exec_begin(&e->exec);
    op_gated_delta_rule(&e->exec, x->o, x->qkv, x->g, x->beta, S, &p->heads, &b.b);
    op_check_ok(e);
}

/* NULL where no backend has room. */
static struct op_env *device(void)
{
    static const struct gdn_heads heads = {1, 1, 128, 128};
    int n;
    struct op_env *e = op_envs(&n);
    const struct backend *b = e->backend;
    return b->delta_room && b->delta_room(e->stream, &heads, DT_BF16) > 0 ? e : NULL;
}

static void check(const struct sequences *p)
{
    struct op_env *e = device();
    struct operands x = operands_of(e, p), want = x;
    want.S = op_copy(&x.S, DT_F32);
    want.o = op_copy(&x.o, DT_F32);
    op_case("%d/%d heads, %d sequences, %d rows from %d, decay %g, alike %g", p->heads.n_k_heads,
            p->heads.n_v_heads, p->n, p->n_rows[0], p->pos[0], p->decay, p->alike);
    uint64_t in = op_hash(&x.qkv) ^ op_hash(&x.g) ^ op_hash(&x.beta);
    run(e, p, &x);
    run(op_ref(), p, &want);
    op_check_near("o", &x.o, &want.o, TOL_DELTA_CHUNKS);
    op_check_near("S", &x.S, &want.S, TOL_DELTA_CHUNKS);
    CHECK(in == (op_hash(&x.qkv) ^ op_hash(&x.g) ^ op_hash(&x.beta)));
    op_free(x.S.data);
    op_done();
}

/* The sequence in parts of at most `most` rows; 0: of random ones. */
static void check_cuts(const struct sequences *p, int32_t most)
{
    struct op_env *e = device();
    struct rng r = {(uint64_t)p->pos[0]};
    struct operands all = operands_of(e, p), cut = operands_of(e, p);
    int32_t T = p->n_rows[0];
    run(e, p, &all);
    for (int32_t at = 0, n; at < T; at += n) {
        n = most ? most : 1 + (int32_t)rng_below(&r, 100);
        n = n < T - at ? n : T - at;
        struct sequences part = *p;
        struct operands x = {
            .qkv = tensor_rows(cut.qkv, at, n),
            .g = tensor_rows(cut.g, at, n),
            .beta = tensor_rows(cut.beta, at, n),
            .S = cut.S,
            .o = tensor_rows(cut.o, at, n),
        };
        part.pos[0] += at;
        part.n_rows[0] = n;
        run(e, &part, &x);
    }
    op_case("%d rows from %d in parts of %d", T, p->pos[0], most);
    for (int32_t t = 0; t < T; t++)
        if (!op_same_row(&cut.o, t, &all.o, t))
            OP_FAIL("row %d of o differs", t);
    for (int32_t i = 0; i < SLOTS; i++)
        if (!op_same_row(&cut.S, i, &all.S, i))
            OP_FAIL("S of slot %d differs", i);
    op_free(all.S.data);
    op_free(cut.S.data);
    op_done();
}
#endif

TEST(gated_delta_chunks)
{
#ifdef LATHE_CUDA
    static const struct sequences few[] = {
        {{1, 1, 128, 128}, 1, {0}, {1}, 2, 0},
        {{2, 6, 128, 128}, 1, {0}, {64}, 2, 0},
        {{1, 2, 128, 128}, 1, {0}, {65}, 2, 0},
        {{1, 3, 128, 128}, 1, {37}, {27}, 2, 0},
        {{1, 3, 128, 128}, 1, {37}, {28}, 2, 0},
        {{1, 1, 128, 128}, 1, {1000}, {200}, 0.002, 0.8},
        {{1, 1, 128, 128}, 1, {0}, {200}, 80, 0},
        {{1, 2, 128, 128}, 3, {63, 0, 100}, {70, 129, 1}, 1, 0.3},
    };
    if (!device())
        SKIP("no backend has chunks here");
    for (size_t i = 0; i < sizeof few / sizeof *few; i++)
        check(&few[i]);
    if (!test_quick())
        check(&(struct sequences){{16, 48, 128, 128}, 1, {0}, {70}, 2, 0});
#else
    SKIP("built without CUDA");
#endif
}

TEST(gated_delta_chunks_cut_anywhere)
{
#ifdef LATHE_CUDA
    static const int32_t pos[] = {0, 20, 1000}, most[] = {0, 5, 63, 64, 65};
    if (!device())
        SKIP("no backend has chunks here");
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 5; k++)
            check_cuts(&(struct sequences){{1, 2, 128, 128}, 1, {pos[i]}, {300}, 1, 0.2}, most[k]);
#else
    SKIP("built without CUDA");
#endif
}

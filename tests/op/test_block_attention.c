#include "op_test.h"

enum { SLOTS = 4 };

struct shape {
    int32_t heads, kv_heads, head_dim;
    enum dtype act, kv;
    int32_t window, size, block;
};

struct operands {
    struct tensor q, k, v, ring[2]; /* ring: [SLOTS * size, width] */
    int32_t first[SLOTS];
};

static struct kv_ring ring_of(const struct shape *s, const struct operands *p)
{
    struct tensor plane[2];
    for (int i = 0; i < 2; i++)
        plane[i] = tensor_4d(p->ring[i].data, s->kv, SLOTS, s->size, s->kv_heads, s->head_dim);
    return (struct kv_ring){plane[0], plane[1], p->first};
}

/* Sequences in slots 2, 0, 3; the ring is NaN but where a row may see it. */
static struct operands make(const struct shape *s, const struct batch *b, const int32_t *first)
{
    struct rng r = {(uint64_t)s->head_dim + (uint64_t)s->window};
    int64_t width = s->kv_heads * s->head_dim;
    struct operands p = {
        .q = op_tensor(s->act, b->n_rows, s->heads * s->head_dim, 2),
        .k = op_tensor(s->act, b->n_rows, width, 1),
        .v = op_tensor(s->act, b->n_rows, width, 0),
    };
    op_fill_normal(&p.q, &r, 0, 1);
    op_fill_normal(&p.k, &r, 0, 1);
    op_fill_normal(&p.v, &r, 0, 1);
    for (int i = 0; i < 2; i++)
        p.ring[i] = op_tensor(s->kv, (int64_t)SLOTS * s->size, width, 0);
    for (int32_t i = 0; i < b->n_seqs; i++) {
        const struct batch_seq *q = &b->seq[i];
        p.first[q->slot] = first[i];
        for (int64_t pos = first[i]; pos < q->pos; pos++)
            for (int k = 0; k < 2 && q->pos - pos < s->window; k++) {
                struct tensor row = tensor_rows(p.ring[k], q->slot * s->size + pos % s->size, 1);
                op_fill_normal(&row, &r, 0, 1);
            }
    }
    return p;
}

static struct tensor run(struct op_env *e, const struct shape *s, const struct operands *p,
                         const struct batch *b)
{
    struct tensor o = op_tensor(s->act, b->n_rows, s->heads * s->head_dim, 3);
    struct kv_ring ring = ring_of(s, p);
    op_block_attention(&e->exec, o, p->q, &ring, p->k, p->v, s->window,
                       (float)(1 / sqrt(s->head_dim)), b);
    op_check_ok(e);
    return o;
}

/* Each sequence by itself has the same bits. */
static void check_alone(struct op_env *e, const struct shape *s, const struct operands *p,
                        const struct batch *b, const struct tensor *want)
{
    static struct op_batch one;
    for (int32_t i = 0; i < b->n_seqs; i++) {
        const struct batch_seq *q = &b->seq[i];
        struct operands part = *p;
        part.q = tensor_rows(p->q, q->first_row, q->n_rows);
        part.k = tensor_rows(p->k, q->first_row, q->n_rows);
        part.v = tensor_rows(p->v, q->first_row, q->n_rows);
        op_batch_begin(&one, PHASE_DECODE);
        op_batch_add(&one, q->slot, q->pos, q->n_rows);
        struct tensor o = run(e, s, &part, &one.b);
        for (int32_t t = 0; t < q->n_rows; t++)
            if (!op_same_row(&o, t, want, q->first_row + t))
                OP_FAIL("row %d of sequence %d alone differs", t, i);
    }
}

/* Which rows a key or value reaches: those of its sequence that see its position. */
static void check_reach(const struct shape *s, const struct batch *b, const struct tensor *got,
                        const struct tensor *want, const struct batch_seq *of, int64_t pos)
{
    for (int32_t t = 0; t < b->n_rows; t++) {
        int64_t far = pos > b->pos[t] ? pos - b->pos[t] : b->pos[t] - pos;
        bool reached = b->slot[t] == of->slot && far < s->window;
        if (reached ? !op_row_has_nan(got, t) : !op_same_row(got, t, want, t))
            OP_FAIL("NaN at position %lld of slot %d %s row %d at %d", (long long)pos, of->slot,
                    reached ? "does not reach" : "reaches", t, b->pos[t]);
    }
}

/* NaN in turn at the position behind the window, at the oldest, at the newest of the ring, and at rows of
 * the block. */
static void check_poison(struct op_env *e, const struct shape *s, const struct operands *p,
                         const struct batch *b, const struct tensor *want)
{
    const struct batch_seq *q = &b->seq[b->n_seqs / 2];
    int64_t at[] = {(int64_t)q->pos - s->window, (int64_t)q->pos - s->window + 1, q->pos - 1,
                    q->pos, q->pos + q->n_rows - 1};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        for (int k = 0; k < 2; k++) {
            int mark = op_mark();
            struct operands bad = *p;
            bool own = at[i] >= q->pos;
            if (at[i] < p->first[q->slot] || q->pos - at[i] > s->size)
                continue;
            struct tensor *t = own ? (k ? &bad.v : &bad.k) : &bad.ring[k];
            *t = op_copy(t, t->dtype);
            op_put(t, own ? q->first_row + at[i] - q->pos : q->slot * s->size + at[i] % s->size, 0,
                   NAN);
            struct tensor o = run(e, s, &bad, b);
            check_reach(s, b, &o, want, q, at[i]);
            op_release(mark);
        }
}

static void check(struct shape s, int n_seqs, const int32_t *pos, const int32_t *first)
{
    static const int32_t slots[] = {2, 0, 3};
    static struct op_batch b;
    int n_envs;
    struct op_env *env = op_envs(&n_envs);
    op_batch_begin(&b, PHASE_DECODE);
    for (int i = 0; i < n_seqs; i++)
        op_batch_add(&b, slots[i], pos[i], s.block);
    op_case("%d/%d heads of %d, %s, kv %s, window %d, ring %d, block %d at %d", s.heads, s.kv_heads,
            s.head_dim, dtype_name(s.act), dtype_name(s.kv), s.window, s.size, s.block, pos[0]);
    struct operands p = make(&s, &b.b, first);
    uint64_t before = op_hash(&p.q) ^ op_hash(&p.k) ^ op_hash(&p.v) ^ op_hash(&p.ring[0]);
    struct tensor want = run(op_ref(), &s, &p, &b.b), same = {0};
    for (int i = 0; i < n_envs; i++) {
        struct op_env *e = &env[i];
        struct tensor o = run(e, &s, &p, &b.b);
        op_check_near("o", &o, &want, s.act == DT_BF16 ? TOL_ATTENTION_BF16 : TOL_ATTENTION);
        if (i && strcmp(e->isa, env[i - 1].isa) == 0)
            op_check_same("o with more threads", &o, &same);
        else
            check_poison(e, &s, &p, &b.b, &o);
        same = o;
        check_alone(e, &s, &p, &b.b, &o);
    }
    if (before != (op_hash(&p.q) ^ op_hash(&p.k) ^ op_hash(&p.v) ^ op_hash(&p.ring[0])))
        OP_FAIL("an input changed");
    op_done();
}

/* Positions before, at and behind the first wraps, and around the tile of 64 keys. */
TEST(block_attention_window)
{
    static const int32_t pos[] = {0, 1, 11, 12, 13, 63, 64, 65, 100, 127, 128, 129, 5000};
    static const int32_t first[] = {0, 0, 0};
    for (size_t i = 0; i < sizeof pos / sizeof *pos; i++) {
        int32_t at[] = {pos[i], 70, 3};
        check((struct shape){4, 2, 16, DT_F32, DT_F32, 12, 12, 8}, 3, at, first);
        check((struct shape){4, 2, 16, DT_BF16, DT_BF16, 12, 12, 16}, 2, at, first);
        check((struct shape){4, 1, 128, DT_BF16, DT_BF16, 128, 128, 8}, 1, at, first);
        check((struct shape){6, 2, 40, DT_F32, DT_BF16, 65, 65, 8}, 2, at, first);
        check((struct shape){2, 1, 33, DT_BF16, DT_F32, 1, 1, 3}, 1, at, first);
    }
}

/* All positions, in a ring that does not wrap, and one that begins late. */
TEST(block_attention_full)
{
    static const int32_t pos[] = {200, 77, 0}, first[] = {0, 70, 0}, late[] = {199, 77, 0};
    check((struct shape){4, 2, 16, DT_F32, DT_F32, INT32_MAX, 256, 8}, 3, pos, first);
    check((struct shape){4, 2, 16, DT_BF16, DT_BF16, INT32_MAX, 256, 7}, 3, pos, late);
    check((struct shape){4, 2, 16, DT_F32, DT_F32, 100, 256, 8}, 3, pos, late);
}

/* More rows than fit one piece of work, and the 27B's heads and window. */
TEST(block_attention_large)
{
    static const int32_t pos[] = {300, 150, 9}, first[] = {0, 0, 0}, far[] = {3000};
    check((struct shape){24, 2, 32, DT_F32, DT_F32, 64, 64, 64}, 1, pos, first);
    check((struct shape){OP_MAX_GROUP, 1, 8, DT_F32, DT_F32, 64, 64, 3}, 1, pos, first);
    check((struct shape){4, 4, 16, DT_BF16, DT_BF16, 100, 100, 70}, 2, pos, first);
    if (!test_quick())
        check((struct shape){32, 8, 128, DT_BF16, DT_BF16, 2048, 2048, 8}, 1, far, first);
}

TEST(block_attention_refuses)
{
    static struct op_batch b;
    struct op_env *e = op_ref();
    struct shape s = {1, 1, 4, DT_F32, DT_F32, INT32_MAX, 8, 2};
    int32_t first[] = {0};
    op_case("a ring that has lost what is seen");
    op_batch_begin(&b, PHASE_DECODE);
    op_batch_add(&b, 2, 8, 2);
    struct operands p = make(&s, &b.b, first);
    run(e, &s, &p, &b.b);
    struct kv_ring ring = ring_of(&s, &p);
    b.seq[0].pos = 9;
    op_block_attention(&e->exec, p.q, p.q, &ring, p.k, p.v, s.window, 1, &b.b);
    op_check_failed(e, LATHE_E_ARGUMENT, "block_attention: operands contradict");
    op_done();
}

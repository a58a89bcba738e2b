#include "op_test.h"

struct shape {
    int32_t heads, kv_heads, head_dim, page;
    enum dtype act, kv;
};

enum { SLOTS = 4 };

struct setup {
    struct shape s;
    int32_t pages_per_slot;
    int32_t table[SLOTS * 700]; /* [SLOTS, pages_per_slot] */
    const int32_t *device;      /* a copy */
};

static struct kv_pages pages_of(const struct setup *u, const struct tensor *state)
{
    return (struct kv_pages){state[0], state[1], u->table, u->pages_per_slot, u->device};
}

static void run(struct exec *x, const struct op_seqs *p, const struct tensor *in,
                const struct tensor *out, const struct tensor *state, const struct batch *b)
{
    const struct setup *u = p->arg;
    struct kv_pages kv = pages_of(u, state);
    op_kv_append(x, &kv, in[1], in[2], b);
    op_attention(x, out[0], in[0], &kv, (float)(1 / sqrt(u->s.head_dim)), b);
}

/* Index of a slot's position among all rows of a plane. */
static int64_t row_of(const struct setup *u, int32_t slot, int32_t pos)
{
    int32_t page = u->s.page;
    return (int64_t)u->table[slot * u->pages_per_slot + pos / page] * page + pos % page;
}

static void poison_state(const struct op_seqs *p, const struct tensor *state, int32_t slot)
{
    const struct setup *u = p->arg;
    int64_t width = tensor_row(&state[1]) / u->s.page, row = row_of(u, slot, 0);
    struct tensor rows =
        tensor_2d(state[1].data, state[1].dtype, state[1].dim[0] * u->s.page, width);
    op_put(&rows, row, 0, NAN);
}

/* What prompts on a GPU are held to; rounded: results in s->act. */
static struct op_tol gpu_prompt_tol(const struct shape *s, bool rounded)
{
    rounded = rounded && s->act == DT_BF16;
    if (s->act != DT_BF16 || s->head_dim != 256 || s->kv == DT_F32)
        return rounded ? TOL_ATTENTION_BF16 : TOL_ATTENTION;
    if (s->kv == DT_BF16)
        return rounded ? TOL_ATTENTION_PROMPT_BF16 : TOL_ATTENTION_PROMPT;
    return rounded ? TOL_ATTENTION_PROMPT_E4M3_BF16 : TOL_ATTENTION_PROMPT_E4M3;
}

/* Pages in shuffled order, NaN wherever no history was written. */
static void make(struct op_seqs *p, struct setup *u, const struct shape *s, int n_seqs,
                 const int32_t *pos, const int32_t *n_rows, int64_t gap)
{
    static const int32_t slots[] = {2, 0, 3};
    struct rng r = {(uint64_t)(s->head_dim + pos[0])};
    int64_t T = 0, width = s->kv_heads * s->head_dim, last = 0;
    *p = (struct op_seqs){.n_seqs = n_seqs, .n_in = 3, .n_out = 1, .n_state = 2, .arg = u};
    p->run = run;
    p->poison_state = pos[n_seqs / 2] > 0 ? poison_state : NULL;
    p->verify_writes = true;
    p->tol = TOL_ATTENTION;
    p->gpu_prefill_tol = gpu_prompt_tol(s, false);
    p->state_tol = TOL_EXACT;
    for (int i = 0; i < n_seqs; i++) {
        p->slot[i] = slots[i];
        p->pos[i] = pos[i];
        p->n_rows[i] = n_rows[i];
        T += n_rows[i];
        last = pos[i] + n_rows[i] > last ? pos[i] + n_rows[i] : last;
    }
    u->s = *s;
    u->pages_per_slot = (int32_t)(last / s->page + 2);
    int32_t n_pages = SLOTS * u->pages_per_slot;
    CHECK((size_t)n_pages <= sizeof u->table / sizeof u->table[0]);
    for (int32_t i = 0; i < n_pages; i++) {
        int32_t j = (int32_t)rng_below(&r, (uint32_t)i + 1);
        u->table[i] = u->table[j];
        u->table[j] = i;
    }
    u->device = op_table(u->table, n_pages);
    for (int i = 0; i < 3; i++) {
        p->in[i] = op_tensor(s->act, T, i ? width : s->heads * s->head_dim, gap);
        op_fill_normal(&p->in[i], &r, 0, 1);
    }
    p->out[0] = op_tensor(DT_F32, T, s->heads * s->head_dim, gap);
    for (int k = 0; k < 2; k++) {
        struct tensor rows = op_tensor(s->kv, (int64_t)n_pages * s->page, width, 0);
        for (int i = 0; i < n_seqs; i++)
            for (int32_t t = 0; t < pos[i]; t++) {
                struct tensor one = tensor_rows(rows, row_of(u, p->slot[i], t), 1);
                op_fill_normal(&one, &r, 0, 1);
            }
        p->state[k] = tensor_4d(rows.data, s->kv, n_pages, s->page, s->kv_heads, s->head_dim);
    }
}

static void check(const struct shape *s, int n_seqs, const int32_t *pos, const int32_t *n_rows,
                  int64_t gap)
{
    static struct setup u;
    struct op_seqs p;
    make(&p, &u, s, n_seqs, pos, n_rows, gap);
    op_seqs_check(&p, "%d/%d heads of %d, page %d, %s, kv %s, %d sequences, %d rows at %d",
                  s->heads, s->kv_heads, s->head_dim, s->page, dtype_name(s->act),
                  dtype_name(s->kv), n_seqs, n_rows[0], pos[0]);
}

/* Rows around the tile of 64 keys and the split of 256; 16 rows of 6 heads fill a block, and up to 16
 * rows have their splits spread over threads. */
TEST(attention_rows)
{
    static const struct shape shapes[] = {
        {6, 1, 256, 64, DT_BF16, DT_BF16},    {6, 1, 256, 64, DT_F32, DT_F32},
        {8, 2, 64, 16, DT_BF16, DT_F32},      {3, 3, 40, 64, DT_F32, DT_BF16},
        {2, 1, 33, 100, DT_BF16, DT_BF16},    {7, 1, 1, 1, DT_F32, DT_F32},
        {6, 1, 256, 64, DT_BF16, DT_F8_E4M3}, {6, 2, 256, 16, DT_F32, DT_F8_E4M3},
        {3, 1, 97, 100, DT_BF16, DT_F8_E4M3},
    };
    static const struct {
        int32_t pos, n_rows;
    } at[] = {{0, 1},  {0, 2},  {0, 7},   {0, 16},  {0, 17},  {0, 64},   {62, 1},   {63, 1},
              {64, 1}, {60, 7}, {254, 1}, {255, 1}, {256, 1}, {250, 16}, {250, 17}, {600, 3}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (size_t j = 0; j < sizeof at / sizeof at[0]; j++)
            if (!test_quick() || (i + j) % 4 == 0)
                check(&shapes[i], 1, &at[j].pos, &at[j].n_rows, 2 * (j % 2));
}

TEST(attention_seqs)
{
    static const int32_t pos[] = {250, 70, 3}, rows[] = {9, 20, 1}, one[] = {1, 1, 1};
    check(&(struct shape){6, 1, 128, 64, DT_BF16, DT_BF16}, 3, pos, rows, 0);
    check(&(struct shape){6, 1, 128, 64, DT_BF16, DT_BF16}, 3, pos, one, 0);
    check(&(struct shape){4, 2, 64, 64, DT_F32, DT_F32}, 3, pos, rows, 0);
    check(&(struct shape){6, 1, 256, 64, DT_BF16, DT_BF16}, 3, pos, rows, 0);
    check(&(struct shape){6, 1, 256, 64, DT_BF16, DT_F8_E4M3}, 3, pos, rows, 0);
    check(&(struct shape){12, 2, 256, 16, DT_BF16, DT_F8_E4M3}, 3, pos, one, 0);
    check(&(struct shape){4, 2, 64, 64, DT_F32, DT_F8_E4M3}, 3, pos, rows, 0);
    if (!test_quick()) { /* the 27B's heads */
        check(&(struct shape){24, 4, 256, 64, DT_BF16, DT_BF16}, 1, (const int32_t[]){300},
              (const int32_t[]){3}, 0);
        check(&(struct shape){24, 4, 256, 64, DT_BF16, DT_F8_E4M3}, 1, (const int32_t[]){300},
              (const int32_t[]){3}, 0);
    }
}

/* So many kv heads that a GPU of 132 multiprocessors has 11 splits at most: from 705 positions on they are longer, for
 * some of these rows. */
TEST(attention_splits_of_two_lengths)
{
    static const enum dtype kv[] = {DT_F8_E4M3, DT_BF16, DT_F32};
    int n_envs, n_large = op_envs(&n_envs)->backend->is_host ? 0 : test_quick() ? 1 : 3;
    for (int i = 0; i < n_large; i++)
        check(&(struct shape){24, 24, 256, 64, i < 2 ? DT_BF16 : DT_F32, kv[i]}, 1,
              (const int32_t[]){702}, (const int32_t[]){test_quick() ? 4 : 16}, 0);
    check(&(struct shape){24, 24, 64, 64, DT_BF16, DT_BF16}, 1, (const int32_t[]){702},
          (const int32_t[]){4}, 0);
}

/* A prompt of many blocks: rows that share tiles against rows alone. */
TEST(attention_prompt)
{
    check(&(struct shape){6, 1, 64, 64, DT_BF16, DT_BF16}, 1, (const int32_t[]){100},
          (const int32_t[]){test_quick() ? 101 : 300}, 0);
    check(&(struct shape){6, 1, 256, 64, DT_BF16, DT_F8_E4M3}, 1, (const int32_t[]){100},
          (const int32_t[]){test_quick() ? 101 : 200}, 0);
    check(&(struct shape){12, 2, 256, 64, DT_BF16, DT_BF16}, 1, (const int32_t[]){70},
          (const int32_t[]){test_quick() ? 23 : 150}, 0);
}

/* Every code as a value, alone and beside others: half of a page's keys see NaN. */
TEST(attention_reads_e4m3)
{
    enum { HD = 256, KEYS = 2 };
    static const int32_t table[] = {0};
    static const enum dtype act[] = {DT_BF16, DT_F32};
    static struct op_batch b;
    int n;
    struct op_env *env = op_envs(&n);
    for (int i = -1; i < n; i++)
        for (int c = 0; c < 4; c++) {
            struct op_env *e = i < 0 ? op_ref() : &env[i];
            enum phase phase = c / 2 ? PHASE_PREFILL : PHASE_DECODE;
            struct tensor q = op_tensor(act[c % 2], KEYS, HD, 0),
                          o = op_tensor(DT_F32, KEYS, HD, 0);
            struct tensor k = op_tensor(DT_F8_E4M3, KEYS, HD, 0),
                          v = op_tensor(DT_F8_E4M3, KEYS, HD, 0);
            struct kv_pages kv = {tensor_4d(k.data, DT_F8_E4M3, 1, KEYS, 1, HD),
                                  tensor_4d(v.data, DT_F8_E4M3, 1, KEYS, 1, HD), table, 1,
                                  op_table(table, 1)};
            op_case("%s, %s, phase %d", e->name, dtype_name(act[c % 2]), (int)phase);
            op_fill(&q, 0);
            op_fill(&k, 1);
            for (int d = 0; d < HD; d++) {
                ((uint8_t *)v.data)[d] = (uint8_t)d;
                ((uint8_t *)v.data)[HD + d] = (uint8_t)(d ^ 0x40);
            }
            op_batch_begin(&b, phase);
            op_batch_add(&b, 0, 0, KEYS);
            op_attention(&e->exec, o, q, &kv, 1, &b.b);
            op_check_ok(e);
            for (int d = 0; d < HD; d++) {
                double one = op_at(&v, 0, d), want[KEYS] = {one, (one + op_at(&v, 1, d)) / 2};
                for (int t = 0; t < KEYS; t++) {
                    double got = op_at(&o, t, d);
                    if (!(isnan(want[t]) ? isnan(got)
                                         : fabs(got - want[t]) <= 1e-6 * fabs(want[t])))
                        OP_FAIL("row %d, code %02x: %g, expected %g", t, d, got, want[t]);
                }
            }
            op_done();
        }
}

/* The same bits as op_attention and then op_attention_gate, over the queries too, and near ref. The table has
 * room for so long a context that a GPU takes some 20 rows of 24 heads at a time. */
static void check_gated(struct op_env *e, const struct shape *s, enum phase phase, int32_t pos,
                        int32_t T, int64_t gap)
{
    enum { PAGES = 700 };
    static int32_t table[PAGES];
    static struct op_batch b;
    struct rng r = {(uint64_t)(s->head_dim + T)};
    int32_t used = (pos + T - 1) / s->page + 1;
    int64_t n = s->heads * s->head_dim, width = s->kv_heads * s->head_dim;
    struct tensor q = op_tensor(s->act, T, n, gap), qg = op_tensor(s->act, T, 2 * n, gap);
    struct tensor o = op_tensor(DT_F32, T, n, gap), want = op_tensor(s->act, T, n, gap);
    struct tensor y = op_tensor(s->act, T, n, gap), exact = op_tensor(s->act, T, n, 0), plane[2];
    float scale = (float)(1 / sqrt(s->head_dim));
    op_case("%s, %d/%d heads of %d, %s, KV %s, phase %d, %d rows at %d", e->name, s->heads,
            s->kv_heads, s->head_dim, dtype_name(s->act), dtype_name(s->kv), (int)phase, T, pos);
    for (int32_t i = 0; i < PAGES; i++)
        table[i] = i < used ? used - 1 - i : -1;
    for (int i = 0; i < 2; i++) {
        plane[i] = op_tensor(s->kv, (int64_t)used * s->page, width, 0);
        op_fill_normal(&plane[i], &r, 0, 1);
    }
    struct kv_pages kv = {tensor_4d(plane[0].data, s->kv, used, s->page, s->kv_heads, s->head_dim),
                          tensor_4d(plane[1].data, s->kv, used, s->page, s->kv_heads, s->head_dim),
                          table, PAGES, op_table(table, PAGES)};
    op_fill_normal(&q, &r, 0, 1);
    op_fill_normal(&qg, &r, 0, 2);
    for (int32_t t = 0; t < T; t++) /* the queries beside the gates: not looked at */
        for (int64_t i = 0; i < 2 * n; i++)
            if (i / s->head_dim % 2 == 0)
                op_put(&qg, t, i, NAN);
    op_batch_begin(&b, phase);
    op_batch_add(&b, 0, pos, T);
    uint64_t before[] = {op_hash(&q), op_hash(&qg), op_hash(&plane[0]), op_hash(&plane[1])};
    op_attention(&e->exec, o, q, &kv, scale, &b.b);
    op_attention_gate(&e->exec, want, o, qg, s->head_dim);
    op_gated_attention(&e->exec, y, q, qg, &kv, scale, &b.b);
    op_check_ok(e);
    op_check_same("output", &y, &want);
    if (op_hash(&q) != before[0] || op_hash(&qg) != before[1] || op_hash(&plane[0]) != before[2] ||
        op_hash(&plane[1]) != before[3])
        OP_FAIL("an input was changed");
    op_gated_attention(&op_ref()->exec, exact, q, qg, &kv, scale, &b.b);
    op_check_ok(op_ref());
    struct op_tol tol = s->act == DT_BF16 ? TOL_ATTENTION_BF16 : TOL_ATTENTION;
    if (phase == PHASE_PREFILL && !e->backend->is_host)
        tol = gpu_prompt_tol(s, true);
    op_check_near("output", &y, &exact, tol);
    op_gated_attention(&e->exec, q, q, qg, &kv, scale, &b.b);
    op_check_ok(e);
    op_check_same("output over the queries", &q, &want);
    int32_t last = pos + T - 1; /* only one row sees it; these queries are the results from above */
    op_put(&plane[1], (int64_t)table[last / s->page] * s->page + last % s->page, 0, NAN);
    op_gated_attention(&e->exec, y, q, qg, &kv, scale, &b.b);
    op_gated_attention(&e->exec, q, q, qg, &kv, scale, &b.b);
    op_check_ok(e);
    op_check_same("output over the queries, a value NaN", &q, &y);
    op_done();
}

TEST(gated_attention_is_both)
{
    static const struct shape shapes[] = {
        {24, 4, 256, 64, DT_BF16, DT_BF16}, {24, 4, 256, 64, DT_BF16, DT_F8_E4M3},
        {6, 1, 64, 16, DT_BF16, DT_BF16},   {8, 2, 128, 64, DT_BF16, DT_BF16},
        {3, 3, 40, 64, DT_F32, DT_BF16},    {2, 1, 33, 100, DT_BF16, DT_BF16},
    };
    int n;
    struct op_env *e = op_envs(&n);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        check_gated(e, &shapes[i], PHASE_DECODE, 100, 1, 0);
        check_gated(e, &shapes[i], PHASE_VERIFY, 100, 7, 3);
        check_gated(e, &shapes[i], PHASE_PREFILL, 0, 1, 3);
        if (i > 1 || !test_quick()) {
            check_gated(e, &shapes[i], PHASE_DECODE, 100, 45, 0);
            check_gated(e, &shapes[i], PHASE_PREFILL, 100, 45, 0);
        }
    }
}

/* Queries of any size over E4M3: far beyond F16, far below it, and both in one query. */
TEST(attention_of_large_and_tiny_queries)
{
    enum { HD = 256, ROWS = 7, KEYS = 70 };
    static const int32_t table[] = {0, 1};
    static const double q_of[ROWS][2] = {{1e5, 0},  {1e5, 1e-3}, {0, 1e-3}, {1e-30, 1e-30},
                                         {3e38, 0}, {-1e5, 30},  {1e12, 0}};
    static struct op_batch b;
    int n;
    struct op_env *env = op_envs(&n);
    for (int i = 0; i < n; i++)
        for (int prefill = 0; prefill < 2; prefill++) {
            struct tensor q = op_tensor(DT_BF16, ROWS, HD, 0), o[2];
            struct tensor k = op_tensor(DT_F8_E4M3, 128, HD, 0),
                          v = op_tensor(DT_F8_E4M3, 128, HD, 0);
            struct kv_pages kv = {tensor_4d(k.data, DT_F8_E4M3, 2, 64, 1, HD),
                                  tensor_4d(v.data, DT_F8_E4M3, 2, 64, 1, HD), table, 2,
                                  op_table(table, 2)};
            struct rng r = {7};
            op_fill(&q, 0);
            op_fill(&k, 0);
            op_fill_normal(&v, &r, 0, 1);
            for (int t = 0; t < ROWS; t++) {
                op_put(&q, t, 3, q_of[t][0]);
                op_put(&q, t, 200, q_of[t][1]);
            }
            for (int s = 0; s < KEYS; s++) {
                op_put(&k, s, 3, s % 5 * 0x1p-9);
                op_put(&k, s, 200, s % 7 * 64 - 192);
            }
            op_batch_begin(&b, prefill ? PHASE_PREFILL : PHASE_DECODE);
            op_batch_add(&b, 0, KEYS - ROWS, ROWS);
            for (int e = 0; e < 2; e++) {
                struct op_env *on = e ? &env[i] : op_ref();
                op_case("%s, phase %d", on->name, (int)b.b.phase);
                o[e] = op_tensor(DT_F32, ROWS, HD, 0);
                op_attention(&on->exec, o[e], q, &kv, 0.01f, &b.b);
                op_check_ok(on);
            }
            op_check_near("output", &o[1], &o[0],
                          prefill && !env[i].backend->is_host ? TOL_ATTENTION_PROMPT_E4M3
                                                              : TOL_ATTENTION);
            op_done();
        }
}

/* More splits than may be in flight at once (8 MiB of sums): 24 of them for 16 rows of 24 heads. */
TEST(attention_waves)
{
    static struct setup u;
    struct op_seqs p;
    int n;
    struct op_env *env = op_envs(&n);
    if (test_quick())
        SKIP("a long context takes long under an emulator");
    make(&p, &u, &(struct shape){24, 1, 256, 64, DT_BF16, DT_BF16}, 1, (const int32_t[]){6100},
         (const int32_t[]){16}, 0);
    for (int i = 0; i < n && strcmp(env[i].isa, env[0].isa) == 0; i++) {
        static struct op_batch b;
        struct op_env *e = &env[i];
        struct tensor all = op_tensor(DT_F32, 16, 24 * 256, 0),
                      one = op_tensor(DT_F32, 1, 24 * 256, 0);
        op_case("%s", e->name);
        op_batch_begin(&b, PHASE_DECODE);
        op_batch_add(&b, p.slot[0], 6100, 16);
        run(&e->exec, &p, p.in, &all, p.state, &b.b);
        op_check_ok(e);
        for (int t = 0; t < 16; t++) {
            struct tensor in[3];
            for (int k = 0; k < 3; k++)
                in[k] = tensor_rows(p.in[k], t, 1);
            op_batch_begin(&b, PHASE_DECODE);
            op_batch_add(&b, p.slot[0], 6100 + t, 1);
            run(&env[0].exec, &p, in, &one, p.state, &b.b);
            op_check_ok(&env[0]);
            if (!op_same_row(&one, 0, &all, t))
                OP_FAIL("row %d alone differs", t);
        }
    }
    op_done();
}

/* One head: keys whose scores are far apart, infinite, or all equal. */
TEST(attention_scores)
{
    static const struct {
        double q, k[3], v[3], want;
    } cases[] = {
        {1, {0, 0, 0}, {1, 2, 6}, 3},
        {1, {1000, 0, -1000}, {1, 2, 6}, 1},
        {1, {-1000, -1000, -1000}, {1, 2, 6}, 3},
        {1, {-INFINITY, 0, 0}, {1, 2, 6}, 4},
        {1, {-INFINITY, -INFINITY, 0}, {1, 2, 6}, 6},
        {1, {INFINITY, 0, 0}, {1, 2, 6}, NAN},
        {1, {-INFINITY, -INFINITY, -INFINITY}, {1, 2, 6}, NAN},
        {1, {0, NAN, 0}, {1, 2, 6}, NAN},
        {1, {1000, 0, 0}, {1, INFINITY, 6}, NAN},
    };
    static const int32_t table[] = {0};
    static struct op_batch b;
    int n;
    struct op_env *env = op_envs(&n);
    for (int i = -1; i < n; i++)
        for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
            struct op_env *e = i < 0 ? op_ref() : &env[i];
            struct tensor q = op_tensor(DT_F32, 1, 1, 0), o = op_tensor(DT_F32, 1, 1, 0);
            struct tensor k = op_tensor(DT_F32, 4, 1, 0), v = op_tensor(DT_F32, 4, 1, 0);
            struct kv_pages kv = {tensor_4d(k.data, DT_F32, 1, 4, 1, 1),
                                  tensor_4d(v.data, DT_F32, 1, 4, 1, 1), table, 1,
                                  op_table(table, 1)};
            op_case("%s, case %zu", e->name, c);
            op_put(&q, 0, 0, cases[c].q);
            for (int s = 0; s < 3; s++) {
                op_put(&k, s, 0, cases[c].k[s]);
                op_put(&v, s, 0, cases[c].v[s]);
            }
            op_batch_begin(&b, PHASE_DECODE);
            op_batch_add(&b, 0, 2, 1);
            op_attention(&e->exec, o, q, &kv, 1, &b.b);
            op_check_ok(e);
            double got = op_at(&o, 0, 0), want = cases[c].want;
            if (!(isnan(want) ? isnan(got) : fabs(got - want) < 1e-6))
                OP_FAIL("%g, expected %g", got, want);
            op_done();
        }
}

TEST(attention_refuses_a_position_beyond_the_pages)
{
    static const int32_t table[] = {0, 7};
    static struct op_batch b;
    struct op_env *e = op_ref();
    struct tensor q = op_tensor(DT_F32, 1, 1, 0), o = op_tensor(DT_F32, 1, 1, 0);
    struct tensor k = op_tensor(DT_F32, 4, 1, 0);
    struct tensor plane = tensor_4d(k.data, DT_F32, 1, 4, 1, 1);
    struct kv_pages kv = {plane, plane, table, 2, table};
    op_case("beyond the pages");
    op_batch_begin(&b, PHASE_DECODE);
    op_batch_add(&b, 0, 8, 1);
    op_attention(&e->exec, o, q, &kv, 1, &b.b);
    op_check_failed(e, LATHE_E_ARGUMENT, "attention");
    op_batch_begin(&b, PHASE_DECODE);
    op_batch_add(&b, 0, 4, 1); /* page 7 of 1 */
    op_attention(&e->exec, o, q, &kv, 1, &b.b);
    op_check_failed(e, LATHE_E_ARGUMENT, "attention");
    op_done();
}

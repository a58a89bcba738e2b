#include "op_test.h"

static void run(struct exec *x, const struct op_seqs *p, const struct tensor *in,
                const struct tensor *out, const struct tensor *state, const struct batch *b)
{
    op_gated_delta_rule(x, out[0], in[0], in[1], in[2], state[0], p->arg, b);
}

static void poison_state(const struct op_seqs *p, const struct tensor *state, int32_t slot)
{
    (void)p;
    op_put(&state[0], slot, 0, NAN);
}

static void check(const struct gdn_heads *h, int n_seqs, const int32_t *n_rows, int64_t gap,
                  enum dtype act)
{
    static const int32_t slots[] = {2, 0, 3};
    struct rng r = {(uint64_t)(h->dk + h->n_v_heads)};
    struct op_seqs p = {.n_seqs = n_seqs, .n_in = 3, .n_out = 1, .n_state = 1, .arg = h};
    int64_t T = 0, width = 2 * h->n_k_heads * h->dk + h->n_v_heads * h->dv;
    for (int i = 0; i < n_seqs; i++) {
        p.slot[i] = slots[i];
        p.pos[i] = 10 * i;
        p.n_rows[i] = n_rows[i];
        T += n_rows[i];
    }
    p.run = run;
    p.poison_state = poison_state;
    p.tol = p.state_tol = TOL_DELTA_RULE;
    p.in[0] = op_tensor(act, T, width, gap);
    p.in[1] = op_tensor(DT_F32, T, h->n_v_heads, gap);
    p.in[2] = op_tensor(DT_F32, T, h->n_v_heads, 0);
    p.out[0] = op_tensor(DT_F32, T, h->n_v_heads * h->dv, gap);
    struct tensor S = op_tensor(DT_F32, 4, (int64_t)h->n_v_heads * h->dk * h->dv, 0);
    op_fill_normal(&p.in[0], &r, 0, 1);
    for (int64_t t = 0; t < T; t++)
        for (int64_t j = 0; j < h->n_v_heads; j++) {
            op_put(&p.in[1], t, j, -2 * rng_unit(&r) * rng_unit(&r));
            op_put(&p.in[2], t, j, rng_unit(&r));
        }
    op_fill_normal(&S, &r, 0, 0.5);
    p.state[0] = tensor_4d(S.data, DT_F32, 4, h->n_v_heads, h->dk, h->dv);
    op_seqs_check(&p, "%d/%d heads of %d x %d, %d sequences, %lld rows, %s", h->n_k_heads,
                  h->n_v_heads, h->dk, h->dv, n_seqs, (long long)T, dtype_name(act));
}

/* Head repeats 1, 2, 3; sizes around the 32 columns and 16 rows that are worked on at once. */
TEST(gated_delta_rule_seqs)
{
    static const struct gdn_heads heads[] = {
        {2, 6, 128, 128}, {2, 2, 64, 128}, {1, 2, 33, 31}, {1, 3, 8, 65}, {3, 3, 1, 1},
    };
    static const int32_t rows[][3] = {{1}, {2}, {7}, {15}, {16}, {17}, {1, 1, 1}, {5, 1, 18}};
    static const int n[] = {1, 1, 1, 1, 1, 1, 3, 3};
    for (size_t h = 0; h < sizeof heads / sizeof heads[0]; h++)
        for (int i = 0; i < 8; i++) {
            if (h == 0 && i > (test_quick() ? 0 : 3) && i < 7)
                continue;
            check(&heads[h], n[i], rows[i], 3 * (i % 2), i % 2 ? DT_F32 : DT_BF16);
        }
    if (!test_quick())
        check(&(struct gdn_heads){16, 48, 128, 128}, 1, (const int32_t[]){2}, 0, DT_BF16);
    check(&(struct gdn_heads){1, 1, 128, 128}, 1, (const int32_t[]){64}, 0, DT_BF16);
}

/* One step by hand: dk = dv = 2, S = 0, k = (3, 4), q = (4, 3), v = (10, 20), beta = 1/2, g = ln 1/2. */
TEST(gated_delta_rule_by_hand)
{
    static struct op_batch b;
    int n;
    struct op_env *env = op_envs(&n);
    struct gdn_heads h = {1, 1, 2, 2};
    static const double q_k_v[] = {4, 3, 3, 4, 10, 20};
    struct tensor in = op_tensor(DT_F32, 2, 6, 0), g = op_tensor(DT_F32, 2, 1, 0);
    struct tensor beta = op_tensor(DT_F32, 2, 1, 0);
    for (int t = 0; t < 2; t++)
        for (int c = 0; c < 6; c++)
            op_put(&in, t, c, q_k_v[c]);
    op_fill(&g, log(0.5));
    op_fill(&beta, 0.5);
    op_batch_begin(&b, PHASE_DECODE);
    op_batch_add(&b, 0, 0, 2);
    for (int i = -1; i < n; i++) {
        struct op_env *e = i < 0 ? op_ref() : &env[i];
        struct tensor S = op_tensor(DT_F32, 1, 4, 0), o = op_tensor(DT_F32, 2, 2, 0);
        op_case("%s", e->name);
        op_fill(&S, 0);
        op_gated_delta_rule(&e->exec, o, in, g, beta, tensor_4d(S.data, DT_F32, 1, 1, 2, 2), &h,
                            &b.b);
        op_check_ok(e);
        /* k^ = (.6, .8), q^ = (.8, .6) / sqrt 2, k^ . q^ = .96 / sqrt 2.
         * Step 1: d = (5, 10), S = k^ d^T, o = d .96 / sqrt 2.
         * Step 2: S^T k^ = d / 2, d' = ((10, 20) - d / 2) / 2 = (3.75, 7.5), S = k^ (d / 2 + d')^T. */
        double unit = 0.96 / sqrt(2);
        const double want_o[] = {5 * unit, 10 * unit, 6.25 * unit, 12.5 * unit};
        const double want_S[] = {0.6 * 6.25, 0.6 * 12.5, 0.8 * 6.25, 0.8 * 12.5};
        for (int c = 0; c < 4; c++) {
            if (fabs(op_at(&o, c / 2, c % 2) - want_o[c]) > 1e-5)
                OP_FAIL("o[%d] is %g, expected %g", c, op_at(&o, c / 2, c % 2), want_o[c]);
            if (fabs(op_at(&S, 0, c) - want_S[c]) > 1e-5)
                OP_FAIL("S[%d] is %g, expected %g", c, op_at(&S, 0, c), want_S[c]);
        }
    }
    op_done();
}

/* B77: S^T q beyond F16's range is finite; a soak with decay 1 and beta 1 stays finite. */
TEST(B77_state_range)
{
    static struct op_batch b;
    int n;
    struct op_env *env = op_envs(&n);
    struct gdn_heads h = {1, 1, 2, 2};
    struct rng r = {77};
    struct tensor in = op_tensor(DT_BF16, 512, 6, 0), g = op_tensor(DT_F32, 512, 1, 0);
    struct tensor beta = op_tensor(DT_F32, 512, 1, 0), o = op_tensor(DT_F32, 512, 2, 0);
    op_fill(&g, 0);
    op_fill(&beta, 1);
    op_fill_normal(&in, &r, 0, 1);
    for (int i = 0; i < n; i++) {
        struct op_env *e = &env[i];
        if (e->n_threads > 1)
            continue;
        op_case("%s", e->name);
        struct tensor S = op_tensor(DT_F32, 1, 4, 0);
        for (int c = 0; c < 4; c++)
            op_put(&S, 0, c, c % 2 ? -60000 : 60000);
        for (int32_t step = 0; step < (test_quick() ? 8192 : 262144); step += 512) {
            op_batch_begin(&b, PHASE_PREFILL);
            op_batch_add(&b, 0, step, 512);
            op_gated_delta_rule(&e->exec, o, in, g, beta, tensor_4d(S.data, DT_F32, 1, 1, 2, 2), &h,
                                &b.b);
            op_check_ok(e);
        }
        for (int c = 0; c < 4; c++)
            if (!isfinite(op_at(&S, 0, c)))
                OP_FAIL("S[%d] is %g", c, op_at(&S, 0, c));
        for (int t = 0; t < 512; t++)
            if (!isfinite(op_at(&o, t, 0)) || !isfinite(op_at(&o, t, 1)))
                OP_FAIL("o[%d] is not finite", t);
    }
    op_done();
}

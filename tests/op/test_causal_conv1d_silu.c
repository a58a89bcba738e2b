#include "op_test.h"

static void run(struct exec *x, const struct op_seqs *p, const struct tensor *in,
                const struct tensor *out, const struct tensor *state, const struct batch *b)
{
    op_causal_conv1d_silu(x, out[0], in[0], p->whole[0], state[0], b);
}

static void poison_state(const struct op_seqs *p, const struct tensor *state, int32_t slot)
{
    (void)p;
    op_put(&state[0], slot, tensor_row(&state[0]) - 1, NAN);
}

/* n_rows of sequences in slots 2, 0, 3 ...; slot 1 stays out. */
static void check(int n_seqs, const int32_t *n_rows, int64_t channels, int64_t taps, int64_t gap,
                  enum dtype act, double scale)
{
    static const int32_t slots[] = {2, 0, 3};
    struct rng r = {(uint64_t)(channels + taps)};
    struct op_seqs p = {.n_seqs = n_seqs, .n_in = 1, .n_out = 1, .n_whole = 1, .n_state = 1};
    int64_t T = 0;
    for (int i = 0; i < n_seqs; i++) {
        p.slot[i] = slots[i];
        p.pos[i] = 10 * i;
        p.n_rows[i] = n_rows[i];
        T += n_rows[i];
    }
    p.run = run;
    p.poison_state = poison_state;
    p.tol = act == DT_BF16 ? TOL_ROW_BF16 : TOL_ROW_F32;
    p.state_tol = TOL_EXACT;
    p.in[0] = op_tensor(act, T, channels, gap);
    p.out[0] = op_tensor(act, T, channels, gap);
    p.whole[0] = op_tensor(DT_F32, channels, taps, 0);
    struct tensor tail = op_tensor(act, 4, (taps - 1) * channels, 0);
    op_fill_normal(&p.in[0], &r, 0, scale);
    op_fill_normal(&p.whole[0], &r, 0, 0.5);
    op_fill_normal(&tail, &r, 0, scale);
    p.state[0] = tensor_3d(tail.data, act, 4, taps - 1, channels);
    op_seqs_check(&p, "%d sequences, %lld rows, %lld channels, %lld taps, %s, scale %g", n_seqs,
                  (long long)T, (long long)channels, (long long)taps, dtype_name(act), scale);
}

/* 256 is the piece of channels that is worked on at once. */
TEST(causal_conv1d_silu_seqs)
{
    static const int32_t rows[][3] = {{1}, {2}, {7}, {64}, {1, 1, 1}, {5, 1, 3}};
    static const int n[] = {1, 1, 1, 1, 3, 3};
    for (int i = 0; i < 6; i++) {
        check(n[i], rows[i], 1280, 4, 0, DT_BF16, 1);
        check(n[i], rows[i], 257, 4, 3, DT_F32, 1);
        check(n[i], rows[i], 255, 2, 0, DT_BF16, 1);
        check(n[i], rows[i], 19, 8, 0, DT_F32, 1);
    }
    if (!test_quick())
        check(1, (const int32_t[]){33}, 10240, 4, 0, DT_BF16, 1);
    check(3, (const int32_t[]){5, 1, 3}, 64, 4, 0, DT_F32, 1e30);
    check(3, (const int32_t[]){5, 1, 3}, 64, 4, 0, DT_BF16, 1e-30);
}

/* B83: prompts shorter than the kernel. After one row x1 of a fresh sequence the window is [0, 0, x1]. */
TEST(B83_short_prompt)
{
    enum { C = 8 };
    static struct op_batch b;
    int n;
    struct op_env *env = op_envs(&n);
    struct rng r = {83};
    struct tensor w = op_tensor(DT_F32, C, 4, 0), in = op_tensor(DT_BF16, 5, C, 0);
    op_fill_normal(&w, &r, 0, 1);
    op_fill_normal(&in, &r, 0, 1);
    for (int i = -1; i < n; i++)
        for (int32_t len = 1; len <= 5; len++) {
            struct op_env *e = i < 0 ? op_ref() : &env[i];
            op_case("%s, prompt of %d", e->name, len);
            struct tensor tail = op_tensor(DT_BF16, 1, 3 * C, 0), y = op_tensor(DT_BF16, len, C, 0);
            op_fill(&tail, 0);
            op_batch_begin(&b, PHASE_PREFILL);
            op_batch_add(&b, 0, 0, len);
            op_causal_conv1d_silu(&e->exec, y, tensor_rows(in, 0, len), w,
                                  tensor_3d(tail.data, DT_BF16, 1, 3, C), &b.b);
            op_check_ok(e);
            for (int32_t k = 0; k < 3; k++)
                for (int c = 0; c < C; c++) {
                    int32_t t = len - 3 + k;
                    double want = t < 0 ? 0 : op_at(&in, t, c);
                    if (op_at(&tail, 0, k * C + c) != want)
                        OP_FAIL("window row %d is %g, expected %g", k, op_at(&tail, 0, k * C + c),
                                want);
                }
            double x = op_at(&w, 0, 3) * op_at(&in, 0, 0); /* the first row sees only itself */
            if (fabs(op_at(&y, 0, 0) - x / (1 + exp(-x))) > 0x1p-8 * fabs(x))
                OP_FAIL("first output %g", op_at(&y, 0, 0));
        }
    op_done();
}

#include "op_test.h"

/* The joined operators of a Gated DeltaNet layer against the parts, in double; and as all operators, for cuts, phases,
 * neighbours and NaN. */

struct mix_arg {
    struct gdn_heads heads;
    float eps;
};

static void run_mix(struct exec *x, const struct op_seqs *p, const struct tensor *in,
                    const struct tensor *out, const struct tensor *state, const struct batch *b)
{
    const struct mix_arg *a = p->arg;
    struct gdn_projected r = {.mixed = in[0], .z = in[1], .g = in[2], .beta = in[3]};
    size_t mark = exec_push(x);
    struct tensor qkv = exec_tmp(x, in[0].dtype, in[0].dim[0], in[0].dim[1]);
    op_gdn_mix(x, out[0], qkv, &r, p->whole[0], p->whole[1], a->eps, state[1], state[0], &a->heads,
               b);
    exec_pop(x, mark);
}

static void poison_state(const struct op_seqs *p, const struct tensor *state, int32_t slot)
{
    (void)p;
    op_put(&state[0], slot, 0, NAN);
}

static void check_mix(struct gdn_heads h, int n_seqs, const int32_t *n_rows, int64_t gap,
                      enum dtype act)
{
    static const int32_t slots[] = {2, 0, 3};
    struct rng r = {(uint64_t)(h.dk + h.n_v_heads + n_seqs)};
    struct mix_arg arg = {h, 1e-6f};
    struct op_seqs p = {.n_seqs = n_seqs, .n_in = 4, .n_out = 1, .n_whole = 2, .n_state = 2};
    int64_t T = 0, v_dim = h.n_v_heads * h.dv, width = 2 * h.n_k_heads * h.dk + v_dim;
    for (int i = 0; i < n_seqs; i++) {
        p.slot[i] = slots[i];
        p.pos[i] = 10 * i;
        p.n_rows[i] = n_rows[i];
        T += n_rows[i];
    }
    p.arg = &arg;
    p.run = run_mix;
    p.poison_state = poison_state;
    p.tol = p.state_tol = TOL_GDN_MIX;
    p.in[0] = op_tensor(act, T, width, gap);
    p.in[1] = op_tensor(act, T, v_dim, gap);
    p.in[2] = op_tensor(DT_F32, T, h.n_v_heads, gap);
    p.in[3] = op_tensor(DT_F32, T, h.n_v_heads, 0);
    p.out[0] = op_tensor(act, T, v_dim, gap);
    p.whole[0] = op_tensor(DT_F32, width, 4, 0);
    p.whole[1] = op_vector(DT_F32, h.dv);
    struct tensor S = op_tensor(DT_F32, 4, v_dim * h.dk, 0), tail = op_tensor(act, 4, 3 * width, 0);
    op_fill_normal(&p.in[0], &r, 0, 1);
    op_fill_normal(&p.in[1], &r, 0, 1);
    for (int64_t t = 0; t < T; t++)
        for (int64_t j = 0; j < h.n_v_heads; j++) {
            op_put(&p.in[2], t, j, -2 * rng_unit(&r) * rng_unit(&r));
            op_put(&p.in[3], t, j, rng_unit(&r));
        }
    op_fill_normal(&p.whole[0], &r, 0, 0.5);
    op_fill_normal(&p.whole[1], &r, 1, 0.1);
    op_fill_normal(&S, &r, 0, 0.5);
    op_fill_normal(&tail, &r, 0, 1);
    p.state[0] = tensor_4d(S.data, DT_F32, 4, h.n_v_heads, h.dk, h.dv);
    p.state[1] = tensor_3d(tail.data, act, 4, 3, width);
    op_seqs_check(&p, "%d/%d heads of %d x %d, %d sequences, %lld rows, %s", h.n_k_heads,
                  h.n_v_heads, h.dk, h.dv, n_seqs, (long long)T, dtype_name(act));
}

/* Sizes around the 16 rows that are worked on at once; heads that are not joined on a GPU too. */
TEST(gdn_mix)
{
    static const struct gdn_heads heads[] = {
        {2, 6, 128, 128}, {2, 2, 64, 128}, {1, 3, 32, 96}, {1, 2, 33, 31}, {1, 9, 8, 8},
    };
    static const int32_t rows[][3] = {{1}, {2}, {8}, {16}, {17}, {1, 1, 1}, {5, 1, 18}};
    static const int n[] = {1, 1, 1, 1, 1, 3, 3};
    for (size_t h = 0; h < sizeof heads / sizeof heads[0]; h++)
        for (int i = 0; i < 7; i++) {
            if (h == 0 && test_quick() && i % 4)
                continue;
            check_mix(heads[h], n[i], rows[i], 4 * (i % 2) + (i % 3 == 2), DT_BF16);
        }
    check_mix(heads[1], 3, rows[6], 0, DT_F32);
}

/* What the parts give, one after the other. */
TEST(gdn_project)
{
    enum { HIDDEN = 640, QKV = 320, Z = 192, HEADS = 6 };
    static const enum weight_format_id format[] = {WF_FP8_ROW, WF_NVFP4, WF_BF16};
    int n_envs;
    struct op_env *env = op_envs(&n_envs);
    struct rng r = {31};
    for (int f = 0; f < 3; f++)
        for (int i = 0; i < n_envs; i++)
            for (int64_t T = 1; T < 20; T += 4) {
                struct weight qkv = op_weight(format[f], QKV, HIDDEN, &r, 0.05);
                struct weight z = op_weight(format[f], Z, HIDDEN, &r, 0.05);
                struct weight a = op_weight(WF_BF16, HEADS, HIDDEN, &r, 0.05);
                struct weight b = op_weight(WF_BF16, HEADS, HIDDEN, &r, 0.05);
                struct weight *arranged[2] = {&qkv, &z};
                lathe_error err;
                if (env[i].backend->arrange)
                    CHECK_OK(env[i].backend->arrange(env[i].stream, arranged, 2, &err), &err);
                struct gdn_inputs in = {
                    &qkv, &z, &a, &b, op_vector(DT_F32, HEADS), op_vector(DT_F32, HEADS)};
                struct weight add = op_weight(format[f], HIDDEN, 256, &r, 0.05), *sum = &add;
                if (env[i].backend->arrange)
                    CHECK_OK(env[i].backend->arrange(env[i].stream, &sum, 1, &err), &err);
                struct tensor h = op_tensor(DT_BF16, T, HIDDEN, 8), w = op_vector(DT_F32, HIDDEN);
                struct tensor u = op_tensor(DT_BF16, T, HIDDEN, 0);
                struct tensor other = op_tensor(DT_BF16, T, 256, 0);
                struct gdn_projected result[3];
                for (int k = 0; k < 3; k++)
                    result[k] = (struct gdn_projected){
                        op_tensor(DT_BF16, T, QKV, 3), op_tensor(DT_BF16, T, Z, 0),
                        op_tensor(DT_F32, T, HEADS, 1), op_tensor(DT_F32, T, HEADS, 0)};
                const struct gdn_projected want = result[0], got = result[1], late = result[2];
                op_fill_normal(&h, &r, 0, 1);
                op_fill_normal(&other, &r, 0, 1);
                op_fill_normal(&w, &r, 1, 0.1);
                op_fill_normal(&in.A_log, &r, 0, 0.5);
                op_fill_normal(&in.dt_bias, &r, 0, 0.5);
                op_case("%s, %s, T %lld", env[i].name, weight_formats[format[f]].name,
                        (long long)T);
                struct exec *x = &env[i].exec;
                struct normed n = normed_already(u), joined = normed_tmp(x, h, 1e-6f);
                op_linear_add_norm(x, &joined, other, &add, w);
                op_gdn_project(x, &late, &joined, &in);
                op_rmsnorm(x, u, h, w, 1e-6f);
                op_gdn_gates(x, want.g, want.beta, u, &a, &b, in.A_log, in.dt_bias);
                op_linears(x, 2, (struct tensor[]){want.mixed, want.z}, &n,
                           (const struct weight *[]){&qkv, &z});
                op_gdn_project(x, &got, &n, &in);
                op_check_ok(&env[i]);
                op_check_same("mixed", &got.mixed, &want.mixed);
                op_check_same("z", &got.z, &want.z);
                op_check_near("g", &got.g, &want.g, TOL_GDN_GATES_JOINED);
                op_check_near("beta", &got.beta, &want.beta, TOL_GDN_GATES_JOINED);
                op_check_near("mixed of a sum", &late.mixed, &want.mixed, TOL_NORM_JOINED);
                op_check_near("z of a sum", &late.z, &want.z, TOL_NORM_JOINED);
                op_check_near("g of a sum", &late.g, &want.g, TOL_NORM_JOINED);
                op_check_near("beta of a sum", &late.beta, &want.beta, TOL_NORM_JOINED);
                op_done();
            }
}

/* Whoever joins the parts relies on it. */
TEST(gdn_mix_refuses)
{
    static struct op_batch b;
    const struct gdn_heads uneven = {2, 3, 4, 4}, good = {1, 3, 4, 4};
    struct op_env *e = op_ref();
    for (int i = 0; i < 3; i++) {
        struct gdn_heads h = i == 0 ? uneven : good;
        int64_t v_dim = h.n_v_heads * h.dv, width = 2 * h.n_k_heads * h.dk + v_dim;
        struct gdn_projected in = {op_tensor(DT_BF16, 1, width, 0), op_tensor(DT_BF16, 1, v_dim, 0),
                                   op_tensor(DT_F32, 1, h.n_v_heads, 0),
                                   op_tensor(DT_F32, 1, h.n_v_heads, 0)};
        struct tensor qkv = i == 1 ? in.mixed : op_tensor(DT_BF16, 1, width, 0);
        struct tensor S = op_tensor(DT_F32, 1, v_dim * h.dk, 0);
        struct tensor tail = op_tensor(DT_BF16, 1, (i == 2 ? 2 : 3) * width, 0);
        op_case("case %d", i);
        op_batch_begin(&b, PHASE_DECODE);
        op_batch_add(&b, 0, 0, 1);
        op_gdn_mix(&e->exec, in.z, qkv, &in, op_tensor(DT_F32, width, 4, 0),
                   op_vector(DT_F32, h.dv), 1e-6f,
                   tensor_3d(tail.data, DT_BF16, 1, i == 2 ? 2 : 3, width),
                   tensor_4d(S.data, DT_F32, 1, h.n_v_heads, h.dk, h.dv), &h, &b.b);
        op_check_failed(e, LATHE_E_ARGUMENT, "gdn_mix");
        op_done();
    }
}

/* Schedules: planning, workspace, the first failure, instruction sets by name. */
#include "op_test.h"

static void schedule(struct exec *x, const struct weight *w, struct tensor h)
{
    size_t mark = exec_push(x);
    struct tensor u = exec_tmp(x, DT_F32, h.dim[0], h.dim[1]);
    struct tensor norm = exec_tmp(x, DT_F32, 1, h.dim[1]);
    if (norm.data)
        memset(norm.data, 0, (size_t)h.dim[1] * sizeof(float));
    op_rmsnorm(x, u, h, tensor_1d(norm.data, DT_F32, h.dim[1]), 1e-6f);
    op_linear_add(x, h, u, w);
    exec_pop(x, mark);
}

/* What planning says is enough, and a byte less is not. */
TEST(plan_gives_the_workspace)
{
    int n;
    struct op_env *env = op_envs(&n);
    struct rng r = {1};
    struct weight w = op_weight(WF_FP8_BLOCK, 256, 256, &r, 0.1);
    for (int i = -1; i < n; i++) {
        struct op_env *e = i < 0 ? op_ref() : &env[i];
        struct exec plan, x;
        struct buf listing;
        lathe_error err;
        struct tensor h = op_tensor(DT_F32, 7, 256, 0);
        op_case("%s", e->name);
        op_fill_normal(&h, &r, 0, 1);
        buf_init(&listing, 4096);
        exec_plan(&plan, e->backend, e->stream, &listing);
        schedule(&plan, &w, tensor_2d(NULL, DT_F32, 7, 256));
        CHECK_OK(exec_end(&plan, &err), &err);
        if (!strstr(buf_str(&listing), "rmsnorm ") ||
            !strstr(buf_str(&listing), "fp8_block [256, 256] add"))
            OP_FAIL("listing:\n%s", buf_str(&listing));
        buf_release(&listing);
        CHECK(plan.peak >= 8 * 256 * sizeof(float) && plan.used == 0);

        void *workspace = op_alloc(plan.peak);
        CHECK(workspace);
        exec_init(&x, e->backend, e->stream, workspace, plan.peak);
        schedule(&x, &w, h);
        CHECK_OK(exec_end(&x, &err), &err);
        CHECK_OK(e->backend->wait(e->stream, &err), &err);
        CHECK_INT(x.peak, plan.peak);
        exec_init(&x, e->backend, e->stream, workspace, plan.peak - 1);
        schedule(&x, &w, h);
        CHECK_ERR(exec_end(&x, &err), &err, LATHE_E_MEMORY, "workspace: ");
        exec_begin(&x); /* forgets it */
        CHECK_OK(exec_end(&x, &err), &err);
        CHECK_INT(x.used, 0);
        CHECK_OK(e->backend->wait(e->stream, &err), &err);
        op_free(workspace);
    }
    op_done();
}

TEST(workspace_sizes_do_not_overflow)
{
    struct exec x;
    lathe_error err;
    exec_plan(&x, &backend_ref, NULL, NULL);
    exec_tmp(&x, DT_F32, INT64_MAX, INT64_MAX);
    CHECK_ERR(exec_end(&x, &err), &err, LATHE_E_MEMORY, "workspace");
    exec_begin(&x);
    exec_tmp(&x, DT_F32, -1, 4);
    CHECK_ERR(exec_end(&x, &err), &err, LATHE_E_MEMORY, "workspace");
}

/* The first failure is kept, and what follows does nothing. */
TEST(first_failure_stays)
{
    struct op_env *e = op_ref();
    struct tensor a = op_tensor(DT_F32, 2, 8, 0), b = op_tensor(DT_F32, 2, 9, 0);
    struct tensor w = op_vector(DT_F32, 8);
    uint64_t before = op_hash(&a);
    op_case("failure");
    op_silu_mul(&e->exec, a, a, b);
    op_rmsnorm(&e->exec, a, a, w, 1);
    op_rmsnorm(&e->exec, b, b, w, 1);
    CHECK(op_hash(&a) == before);
    op_check_failed(e, LATHE_E_ARGUMENT, "silu_mul: operands contradict");
    op_done();
}

static bool do_linears(void *stream, const struct linear_args *a, int n)
{
    (void)stream, (void)a, (void)n;
    return true;
}

static bool do_silu_mul(void *stream, const struct linear_args a[2])
{
    return do_linears(stream, a, 2);
}

static bool do_project(void *stream, const struct linear_args *a, int n,
                       const struct gdn_gates_args *gates)
{
    (void)gates;
    return do_linears(stream, a, n);
}

static bool do_add_norm(void *stream, const struct linear_args *a, const struct normed *n)
{
    (void)stream, (void)a, (void)n;
    return true;
}

static bool do_mix(void *stream, const struct gdn_mix_args *a)
{
    (void)stream, (void)a;
    return true;
}

static lathe_status joined(void *stream, lathe_error *err)
{
    return *(const bool *)stream ? LATHE_OK : fail(err, LATHE_E_DEVICE, "no more");
}

/* What a backend does at once fails under the name of it all, not under the next operator's. */
TEST(joined_operators_fail_under_their_name)
{
    enum { T = 2, N = 16 };
    static const char *const says[] = {"linears: no more", "linear_silu_mul: no more",
                                       "gdn_project: no more", "gdn_mix: no more",
                                       "linear_add_norm: no more"};
    struct backend b = backend_ref;
    struct exec x;
    lathe_error err;
    struct rng r = {1};
    bool whole;
    int32_t token[T] = {0}, slot[T] = {0}, pos[T] = {0, 1}, rope_pos[T][3] = {{0}};
    struct batch_seq seq = {0, 0, T, 0};
    struct batch batch = {.phase = PHASE_DECODE,
                          .n_rows = T,
                          .n_seqs = 1,
                          .token = token,
                          .slot = slot,
                          .pos = pos,
                          .rope_pos = rope_pos,
                          .seq = &seq};
    struct gdn_heads heads = {1, 1, N, N};
    struct weight w = op_weight(WF_BF16, N, N, &r, 1), qkv = op_weight(WF_BF16, 3 * N, N, &r, 1),
                  gate = op_weight(WF_BF16, 1, N, &r, 1);
    struct tensor h = op_tensor(DT_F32, T, N, 0), y = op_tensor(DT_F32, T, N, 0),
                  rows = op_tensor(DT_F32, T, 3 * N, 0), norm = op_vector(DT_F32, N),
                  conv = op_tensor(DT_F32, 3 * N, 4, 0), one = op_vector(DT_F32, 1);
    struct gdn_projected p = {op_tensor(DT_F32, T, 3 * N, 0), op_tensor(DT_F32, T, N, 0),
                              op_tensor(DT_F32, T, 1, 0), op_tensor(DT_F32, T, 1, 0)};
    struct gdn_inputs in = {&qkv, &w, &gate, &gate, one, one};
    static float tail[3 * 3 * N], S[N * N], room[4096];
    b.linears = do_linears;
    b.linear_silu_mul = do_silu_mul;
    b.linears_gates = do_project;
    b.linear_add_norm = do_add_norm;
    b.gdn_mix = do_mix;
    b.joined = joined;
    exec_init(&x, &b, &whole, room, sizeof room);
    for (int i = 0; i < 10; i++) {
        struct normed n = normed_already(h);
        whole = i < 5;
        exec_begin(&x);
        if (i % 5 == 0) {
            op_linears(&x, 2, (struct tensor[]){y, y}, &n, (const struct weight *[]){&w, &w});
        } else if (i % 5 == 1) {
            op_linear_silu_mul(&x, y, &n, &w, &w);
        } else if (i % 5 == 2) {
            op_gdn_project(&x, &p, &n, &in);
        } else if (i % 5 == 4) {
            n = normed_tmp(&x, y, 1e-6f);
            op_linear_add_norm(&x, &n, h, &w, norm);
            CHECK(n.unscaled);
        } else {
            op_gdn_mix(&x, y, rows, &p, conv, norm, 1e-6f, tensor_3d(tail, DT_F32, 1, 3, 3 * N),
                       tensor_4d(S, DT_F32, 1, 1, N, N), &heads, &batch);
        }
        if (whole)
            CHECK_OK(exec_end(&x, &err), &err);
        else
            CHECK_ERR(exec_end(&x, &err), &err, LATHE_E_DEVICE, says[i % 5]);
    }
    op_done();
}

static bool has_none(enum weight_format_id format, enum dtype act)
{
    (void)format, (void)act;
    return false;
}

/* A backend that lacks an operator, or a weight format, is found out while planning. */
TEST(planning_finds_what_a_backend_lacks)
{
    struct backend lacking = backend_ref;
    struct exec x;
    lathe_error err;
    struct rng r = {1};
    struct weight w = op_weight(WF_NVFP4, 16, 16, &r, 1);
    struct tensor h = tensor_2d(NULL, DT_BF16, 1, 16);
    lacking.name = "lacking";
    lacking.silu_mul = NULL;
    lacking.has_linear = has_none;
    exec_plan(&x, &lacking, NULL, NULL);
    op_silu_mul(&x, h, h, h);
    CHECK_ERR(exec_end(&x, &err), &err, LATHE_E_UNSUPPORTED, "lacking has no operator silu_mul");
    exec_begin(&x);
    op_linear(&x, h, h, &w);
    CHECK_ERR(exec_end(&x, &err), &err, LATHE_E_UNSUPPORTED,
              "no linear of nvfp4 weights with BF16");
    op_done();
}

static void count_tap(void *ctx, const char *name, int32_t layer, const struct tensor *t)
{
    int *n = ctx;
    CHECK_STR(name, "hidden");
    CHECK_INT(layer, 3);
    CHECK_INT(t->dim[1], 5);
    ++*n;
}

TEST(taps_see_tensors_of_a_running_step)
{
    struct exec x;
    int n = 0;
    struct tensor t = tensor_2d(NULL, DT_F32, 1, 5);
    exec_init(&x, &backend_ref, NULL, NULL, 0);
    exec_tap(&x, "hidden", 3, &t);
    x.tap = count_tap;
    x.tap_ctx = &n;
    exec_tap(&x, "hidden", 3, &t);
    exec_fail(&x, LATHE_E_NUMERIC, "gone");
    exec_tap(&x, "hidden", 3, &t);
    CHECK_INT(n, 1);
}

TEST(instruction_sets_by_name)
{
    void *stream;
    lathe_error err;
    CHECK_ERR(backend_cpu.open(&stream, NULL, "avx9", &err), &err, LATHE_E_ARGUMENT,
              "instruction set \"avx9\": this processor has generic");
    CHECK(!stream);
    CHECK_ERR(backend_ref.open(&stream, NULL, "avx2", &err), &err, LATHE_E_ARGUMENT, "generic");
    CHECK_OK(backend_cpu.open(&stream, NULL, NULL, &err), &err);
    int n;
    const struct op_env *env = op_envs(&n);
    if (env->backend == &backend_cpu)
        CHECK_STR(backend_cpu.isa(stream), env->isa); /* the best */
    void *p;
    CHECK_ERR(backend_cpu.alloc(stream, &p, SIZE_MAX, &err), &err, LATHE_E_MEMORY, "out of memory");
    CHECK_OK(backend_cpu.alloc(stream, &p, 100, &err), &err);
    CHECK((uintptr_t)p % 64 == 0);
    for (int i = 0; i < 100; i++)
        CHECK_INT(((unsigned char *)p)[i], 0);
    backend_cpu.free(stream, p);
    backend_cpu.close(stream);
}

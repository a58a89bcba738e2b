#include "op_test.h"

#include "tensor/number.h"

/* A weight of random code words, every one of them but NaN and infinity, at any alignment: its planes
 * begin `offset` bytes into blocks that end where they end, so that a sanitizer sees reads beyond. */
struct random_weight {
    struct weight w;
    unsigned char *codes, *scales;
};

static float random_scale(struct rng *r)
{
    return (float)(0.5 + rng_unit(r)) * 0x1p-7f;
}

static void fill_codes(void *p, enum dtype dtype, size_t n, struct rng *r)
{
    uint8_t *b = p;
    for (size_t i = 0; i < n; i++) {
        float f = (float)rng_normal(r);
        uint64_t u = rng_u64(r);
        if (dtype == DT_U8)
            b[i] = (uint8_t)u;
        else if (dtype == DT_F8_E4M3)
            b[i] = (u & 0x7F) == 0x7F ? 0 : (uint8_t)u;
        else
            from_f32(b + i * dtype_size(dtype), dtype, &f, 1);
    }
}

static struct random_weight random_weight(enum weight_format_id format, int64_t rows, int64_t cols,
                                          enum dtype scales, size_t offset, struct rng *r)
{
    struct random_weight x = {0};
    lathe_error err;
    CHECK_OK(weight_formats[format].layout(&x.w, rows, cols, scales, &err), &err);
    size_t n = (size_t)tensor_elements(&x.w.codes);
    x.codes = op_alloc(offset + n * dtype_size(x.w.codes.dtype));
    CHECK(x.codes);
    x.w.codes.data = x.codes + offset;
    fill_codes(x.w.codes.data, x.w.codes.dtype, n, r);
    if (x.w.scales.n_dims) {
        n = (size_t)tensor_elements(&x.w.scales);
        size_t size = dtype_size(x.w.scales.dtype);
        x.scales = op_alloc(offset + n * size);
        CHECK(x.scales);
        x.w.scales.data = x.scales + offset;
        if (format == WF_NVFP4)
            fill_codes(x.w.scales.data, DT_F8_E4M3, n, r);
        else
            for (size_t i = 0; i < n; i++) {
                float s = random_scale(r);
                from_f32(x.scales + offset + i * size, x.w.scales.dtype, &s, 1);
            }
    }
    if (format == WF_FP8_TENSOR || format == WF_NVFP4)
        x.w.global = random_scale(r);
    return x;
}

static void release(struct random_weight *x)
{
    op_free(x->codes);
    op_free(x->scales);
}

static enum prompt_math prompt_math; /* of what is run */

/* Skips where there is no backend for it. */
static void need_prompt_math(enum prompt_math math)
{
    int n_envs;
    struct op_env *env = op_envs(&n_envs), *ref = op_ref();
    lathe_error err;
    if (!env->backend->set_prompt_math)
        SKIP("no backend here has such products");
    if (env->backend->set_prompt_math(env->stream, math, &err))
        SKIP("%s", err.message);
    CHECK_OK(ref->backend->set_prompt_math(ref->stream, math, &err), &err);
    prompt_math = math;
}

static bool on_gpu(void)
{
    int n;
    return strcmp(op_envs(&n)->backend->name, "cuda") == 0;
}

/* What rounding may cost, from the largest norms of weight and activation rows. */
static struct op_tol tolerance(const struct weight *w, const struct tensor *in, enum dtype out,
                               enum phase phase)
{
    double most[2] = {0, 0};
    float *row = malloc((size_t)w->cols * sizeof *row);
    CHECK(row);
    for (int64_t i = 0; i < w->rows; i++) {
        double sum = 0;
        weight_formats[w->format].unpack(row, w, i, 0, w->cols);
        for (int64_t c = 0; c < w->cols; c++)
            sum += (double)row[c] * (double)row[c];
        most[0] = fmax(most[0], sum);
    }
    for (int64_t t = 0; t < in->dim[0]; t++) {
        double sum = 0;
        for (int64_t c = 0; c < w->cols; c++)
            sum += op_at(in, t, c) * op_at(in, t, c);
        most[1] = fmax(most[1], sum);
    }
    free(row);
    bool tensor = in->dtype == DT_BF16 && on_gpu(), prompt = tensor && phase == PHASE_PREFILL;
    bool fp8 = prompt && prompt_math == PROMPT_FP8 &&
               (w->format == WF_FP8_ROW || w->format == WF_FP8_TENSOR);
    struct op_tol tol;
    if (fp8)
        tol = out == DT_BF16 ? TOL_LINEAR_FP8_BF16 : TOL_LINEAR_FP8;
    else if (out == DT_BF16)
        tol = prompt ? TOL_LINEAR_PROMPT_BF16 : TOL_LINEAR_BF16;
    else
        tol = prompt ? TOL_LINEAR_PROMPT : tensor ? TOL_LINEAR_TENSOR : TOL_LINEAR_F32;
    tol.floor *= sqrt(most[0] * most[1] / (double)w->cols);
    return tol;
}

struct linear_arg {
    const struct weight *w;
    const struct weight *arranged; /* for a backend that has an order of its own; may be NULL */
    bool add;
    enum phase phase;
};

static void run(struct exec *x, const struct op_rows *p, const struct tensor *in,
                const struct tensor *out, int64_t first, int64_t n)
{
    const struct linear_arg *a = p->arg;
    const struct weight *w = a->arranged && x->backend->arrange ? a->arranged : a->w;
    (void)first, (void)n;
    (void)exec_phase(x, a->phase);
    if (a->add)
        op_linear_add(x, out[0], in[0], w);
    else
        op_linear(x, out[0], in[0], w);
}

/* A copy of w that the backend has put in its order. */
static struct random_weight arranged(const struct op_env *e, const struct weight *w)
{
    struct random_weight x = {.w = *w};
    struct weight *list = &x.w;
    lathe_error err;
    size_t n = (size_t)tensor_elements(&w->codes) * dtype_size(w->codes.dtype);
    x.codes = op_alloc(n);
    CHECK(x.codes);
    x.w.codes.data = memcpy(x.codes, w->codes.data, n);
    if (w->scales.data) {
        n = (size_t)tensor_elements(&w->scales) * dtype_size(w->scales.dtype);
        x.scales = op_alloc(n);
        CHECK(x.scales);
        x.w.scales.data = memcpy(x.scales, w->scales.data, n);
    }
    CHECK_OK(e->backend->arrange(e->stream, &list, 1, &err), &err);
    return x;
}

static void check_weight(struct random_weight *x, bool arrange, enum dtype act, enum dtype out,
                         bool add, int64_t T, enum phase phase, struct rng *r)
{
    int n_envs;
    int64_t rows = x->w.rows, cols = x->w.cols;
    struct random_weight other = {0};
    if (arrange)
        other = arranged(op_envs(&n_envs), &x->w);
    CHECK(other.w.tiled == arrange);
    struct linear_arg arg = {&x->w, arrange ? &other.w : NULL, add, phase};
    int64_t gap = rng_below(r, 9);
    struct op_rows p = {
        .T = T,
        .in = {op_tensor(act, T, cols, gap)},
        .out = {op_tensor(out, T, rows, 0)},
        .n_in = 1,
        .n_out = 1,
        .run = run,
        .arg = &arg,
    };
    op_fill_normal(&p.in[0], r, 0, 1);
    op_fill_normal(&p.out[0], r, 0, 3);
    p.tol = tolerance(&x->w, &p.in[0], out, phase);
    op_rows_check(&p, -1, "%s%s [%lld, %lld], T %lld, %s to %s%s%s, gap %lld",
                  weight_formats[x->w.format].name, arrange ? ", arranged" : "", (long long)rows,
                  (long long)cols, (long long)T, dtype_name(act), dtype_name(out),
                  add ? ", add" : "", phase == PHASE_PREFILL ? ", prefill" : "", (long long)gap);
    release(&other);
}

static void check_phase(enum weight_format_id format, enum dtype act, enum dtype out, bool add,
                        int64_t T, int64_t rows, int64_t cols, enum phase phase)
{
    struct rng r = {(uint64_t)(T * 7919 + rows * 31 + cols + format)};
    enum dtype scales = rows % 2 ? DT_F32 : DT_BF16;
    struct random_weight x =
        random_weight(format, rows, cols, scales,
                      rows % 16 || cols % 128 ? (size_t)(1 + rng_below(&r, 63)) : 64, &r);
    check_weight(&x, false, act, out, add, T, phase, &r);
    release(&x);
}

static void check(enum weight_format_id format, enum dtype act, enum dtype out, bool add, int64_t T,
                  int64_t rows, int64_t cols)
{
    check_phase(format, act, out, add, T, rows, cols, PHASE_DECODE);
}

/* Below, at and above every tile of rows, of columns and of activation rows. */
static const struct {
    int64_t T, rows, cols;
} shapes[] = {
    {1, 1, 16},
    {2, 3, 48},
    {3, 5, 320},
    {4, 31, 256},
    {5, 32, 272},
    {6, 33, 512},
    {7, 48, 1088},
    {8, 9, 1040},
    {9, 4, 2064},
    {15, 7, 528},
    {16, 257, 64},
    {17, 6, 5120},
    {33, 130, 80},
    {64, 65, 320},
    {65, 63, 48},
    {129, 5, 32},
    {1, 3, 17408},
    {2, 2, 8208},
    /* whole tiles of tensor cores */
    {1, 16, 128},
    {8, 32, 640},
    {9, 48, 256},
    {16, 16, 5120},
    {17, 128, 384},
    {40, 144, 1152},
};

static void check_format(enum weight_format_id format)
{
    int n = (int)(sizeof shapes / sizeof shapes[0]);
    for (int i = 0; i < n; i++) {
        if (test_quick() && i % 3 != (int)format % 3)
            continue;
        int64_t T = shapes[i].T, rows = shapes[i].rows, cols = shapes[i].cols;
        check(format, DT_BF16, DT_BF16, i % 2 == 0, T, rows, cols);
        check(format, DT_BF16, DT_F32, false, T, rows, cols);
        check(format, DT_F32, DT_F32, i % 2 == 1, T, rows, cols);
    }
}

TEST(f32)
{
    check_format(WF_F32);
}

TEST(bf16)
{
    check_format(WF_BF16);
    check(WF_BF16, DT_BF16, DT_F32, false, 3, 5, 37); /* columns need no multiple here */
    check(WF_F32, DT_F32, DT_F32, false, 3, 5, 7);
}

TEST(f16)
{
    check_format(WF_F16);
}

TEST(fp8_tensor)
{
    check_format(WF_FP8_TENSOR);
    check(WF_FP8_TENSOR, DT_BF16, DT_F32, false, 2, 3, 301);
}

TEST(fp8_row)
{
    check_format(WF_FP8_ROW);
}

TEST(fp8_block)
{
    check_format(WF_FP8_BLOCK);
    check(WF_FP8_BLOCK, DT_BF16, DT_F32, false, 2, 300, 392);
    check(WF_FP8_BLOCK, DT_F32, DT_F32, false, 9, 300, 392);
}

TEST(nvfp4)
{
    check_format(WF_NVFP4);
}

static void check_numbers_of(const struct weight *w, enum dtype act, enum dtype out, bool add,
                             int64_t most, enum phase phase, struct rng *r)
{
    int n_envs;
    int64_t rows = w->rows, cols = w->cols;
    struct op_env *env = op_envs(&n_envs);
    struct tensor in = op_tensor(act, most, cols, 3), before = op_tensor(out, most, rows, 0);
    op_fill_normal(&in, r, 0, 1);
    op_fill_normal(&before, r, 0, 3);
    struct tensor all = op_tensor(out, most, rows, 0);
    for (int i = 0; i < n_envs; i++) {
        if (i == 0 || strcmp(env[i].isa, env[i - 1].isa) != 0) {
            (void)exec_phase(&env[i].exec, phase);
            op_set(&all, &before);
            if (add)
                op_linear_add(&env[i].exec, all, in, w);
            else
                op_linear(&env[i].exec, all, in, w);
            op_check_ok(&env[i]);
        }
        for (int64_t T = 1, first = 0; T < most; T += T < 18 ? 1 : 37, first += 5) {
            if (first + T > most)
                first = 0;
            int mark = op_mark();
            struct tensor y = op_tensor(out, T, rows, T % 3), part = tensor_rows(in, first, T);
            op_case("%s, %s, %s%s to %s%s%s, rows %lld..%lld", env[i].name,
                    weight_formats[w->format].name, w->tiled ? "arranged, " : "", dtype_name(act),
                    dtype_name(out), add ? ", add" : "", phase == PHASE_PREFILL ? ", prefill" : "",
                    (long long)first, (long long)(first + T - 1));
            struct tensor old = tensor_rows(before, first, T);
            op_set(&y, &old);
            if (T % 2)
                part = op_copy(&part, act);
            (void)exec_phase(&env[i].exec, phase);
            if (add)
                op_linear_add(&env[i].exec, y, part, w);
            else
                op_linear(&env[i].exec, y, part, w);
            op_check_ok(&env[i]);
            struct tensor want = tensor_rows(all, first, T);
            op_check_same("y", &y, &want);
            op_release(mark);
        }
    }
    op_done();
}

/* The same bits for a row whatever number of rows it is computed with, and wherever it and its result stand. */
static void check_numbers(enum weight_format_id format, enum dtype act, enum dtype out,
                          int64_t rows, int64_t cols, int64_t most, size_t offset, enum phase phase)
{
    struct rng r = {(uint64_t)(5 + format)};
    struct random_weight x = random_weight(format, rows, cols, DT_F32, offset, &r);
    check_numbers_of(&x.w, act, out, false, most, phase, &r);
    release(&x);
}

TEST(any_number_of_rows)
{
    static const int64_t cols[] = {1088, 5120}, rows[] = {37, 48};
    for (int f = 0; f < WF_COUNT; f++)
        for (int k = 0; k < (test_quick() ? 1 : 4); k++)
            check_numbers((enum weight_format_id)f, k / 2 ? DT_F32 : DT_BF16, DT_F32, rows[k % 2],
                          cols[k % 2], 131, k % 2 ? 64 : 2, PHASE_DECODE);
}

/* Every code at every place. NVFP4's scales are negative too, or not. */
static void put_every_code(struct random_weight *x, bool negative)
{
    struct weight *w = &x->w;
    if (w->codes.dtype == DT_U8 || w->codes.dtype == DT_F8_E4M3)
        for (int64_t row = 0; row < w->rows; row++)
            for (int64_t c = 0; c < w->codes.dim[1]; c++) {
                uint8_t code = (uint8_t)(row + c);
                x->codes[row * w->codes.stride + c] =
                    w->codes.dtype == DT_F8_E4M3 && (code & 0x7F) == 0x7F ? 1 : code;
            }
    if (w->format == WF_NVFP4) {
        w->global = 0x1p-5f; /* the order of the two scales then does not matter */
        for (int64_t k = 0; k < w->rows * w->cols / 16; k++)
            x->scales[k] = (uint8_t)(negative ? ((k & 0x7F) == 0x7F ? 0 : k) : k % 0x7F);
    }
}

/* Activation rows with a single 1 pick weights out: `used` decoded is w, exactly or within `rel`. */
static void check_decoded(struct op_env *e, const struct weight *used, const struct weight *w,
                          double rel, enum phase phase)
{
    int64_t rows = w->rows, cols = w->cols;
    struct tensor in = op_tensor(DT_BF16, cols, cols, 0);
    struct tensor y = op_tensor(DT_F32, cols, rows, 0);
    float *want = malloc((size_t)cols * sizeof *want);
    CHECK(want);
    for (int64_t t = 0; t < cols; t++)
        for (int64_t c = 0; c < cols; c++)
            op_put(&in, t, c, t == c);
    op_case("%s, %s%s", e->name, weight_formats[w->format].name,
            phase == PHASE_PREFILL ? ", prefill" : "");
    (void)exec_phase(&e->exec, phase);
    op_linear(&e->exec, y, in, used);
    op_check_ok(e);
    for (int64_t row = 0; row < rows; row++) {
        weight_formats[w->format].unpack(want, w, row, 0, cols);
        for (int64_t t = 0; t < cols; t++) {
            double got = op_at(&y, t, row), exact = (double)want[t];
            if (!(fabs(got - exact) <= rel * fabs(exact)))
                OP_FAIL("W[%lld, %lld]: %.9g, expected %.9g", (long long)row, (long long)t, got,
                        exact);
        }
    }
    op_done();
    free(want);
}

/* Exactly; within `rel` in FP8 blocks. */
static void check_codes(int64_t rows, int64_t cols, double rel, enum phase phase)
{
    int n_envs;
    struct op_env *env = op_envs(&n_envs);
    struct rng r = {6};
    for (int f = 0; f < WF_COUNT; f++)
        for (int i = 0; i < n_envs; i++) {
            if (i > 0 && strcmp(env[i].isa, env[i - 1].isa) == 0)
                continue;
            struct random_weight x =
                random_weight((enum weight_format_id)f, rows, cols, DT_F32, 0, &r);
            put_every_code(&x, true);
            check_decoded(&env[i], &x.w, &x.w, f == WF_FP8_BLOCK ? rel : 0, phase);
            release(&x);
        }
}

TEST(every_code)
{
    check_codes(256, 384, 0, PHASE_DECODE);
}

/* A NaN among codes or scales makes its row NaN, for every activation row, and no other. */
static void check_nan(int64_t rows, int64_t cols, int64_t most, enum phase phase)
{
    enum { BAD = 35 };
    int n_envs;
    struct op_env *env = op_envs(&n_envs);
    struct rng r = {7};
    for (int f = 0; f < WF_COUNT; f++)
        for (int in_scale = 0; in_scale < 2; in_scale++)
            for (int sign = 0; sign < 2; sign++) {
                struct random_weight x =
                    random_weight((enum weight_format_id)f, rows, cols, DT_F32, 0, &r);
                float nan = sign ? -NAN : NAN;
                int64_t first = BAD, last = BAD;
                if (in_scale && f == WF_NVFP4) {
                    x.scales[BAD * x.w.scales.stride + 31] = sign ? 0xFF : 0x7F;
                } else if (in_scale && f == WF_FP8_ROW) {
                    from_f32(x.scales + BAD * sizeof(float), DT_F32, &nan, 1);
                } else if (in_scale && f == WF_FP8_BLOCK) {
                    from_f32(x.scales + 4 * sizeof(float), DT_F32, &nan, 1);
                    first = 0, last = rows < 128 ? rows - 1 : 127; /* those of the first block */
                } else if (!in_scale && f != WF_NVFP4) {
                    size_t size = dtype_size(x.w.codes.dtype);
                    uint8_t *p = x.codes + (size_t)(BAD * x.w.codes.stride + 300) * size;
                    if (size == 1)
                        *p = sign ? 0xFF : 0x7F;
                    else
                        from_f32(p, x.w.codes.dtype, &nan, 1);
                } else {
                    release(&x);
                    continue;
                }
                for (int i = 0; i < n_envs; i++)
                    for (int64_t T = 1; T < most; T += most / 3) {
                        int mark = op_mark();
                        bool bf16 = i % 2 || phase == PHASE_PREFILL;
                        enum dtype act = bf16 ? DT_BF16 : DT_F32;
                        struct tensor in = op_tensor(act, T, cols, 0);
                        struct tensor y = op_tensor(act, T, rows, 0);
                        op_fill_normal(&in, &r, 0, 1);
                        op_case("%s, %s, T %lld, NaN in a %s", env[i].name, weight_formats[f].name,
                                (long long)T, in_scale ? "scale" : "code");
                        (void)exec_phase(&env[i].exec, phase);
                        op_linear(&env[i].exec, y, in, &x.w);
                        op_check_ok(&env[i]);
                        for (int64_t t = 0; t < T; t++)
                            for (int64_t row = 0; row < rows; row++)
                                if (isnan(op_at(&y, t, row)) != (row >= first && row <= last))
                                    OP_FAIL("y[%lld, %lld] is %g", (long long)t, (long long)row,
                                            op_at(&y, t, row));
                        op_release(mark);
                    }
                op_done();
                release(&x);
            }
}

TEST(nan_weights)
{
    check_nan(80, 640, 20, PHASE_DECODE);
}

/* ---- Prompts --------------------------------------------------------------------------------------
 *
 * A GPU has other kernels for the rows of a prompt and large matrices. Elsewhere the phase changes nothing: there
 * the matrices are small. */

/* Skips where there is a GPU but no such kernels. */
static void need_prompt_kernels(void)
{
    int n_envs;
    struct op_env *e = op_envs(&n_envs);
    struct weight w;
    lathe_error err;
    CHECK_OK(weight_formats[WF_BF16].layout(&w, 1024, 1024, DT_F32, &err), &err);
    struct linear_args a = {
        .y = tensor_2d(NULL, DT_BF16, 1, 1024),
        .in = tensor_2d(NULL, DT_BF16, 1, 1024),
        .w = &w,
        .phase = PHASE_PREFILL,
    };
    if (on_gpu() && e->backend->linear_scratch(e->stream, &a) == 0)
        SKIP("there is no cuBLASLt");
}

TEST(prompt_rows)
{
    static const struct {
        int64_t T, rows, cols;
    } large[] = {{1, 1024, 1024}, {17, 256, 5120}, {131, 1040, 1152}, {150, 8192, 128}},
      small[] = {{1, 16, 128}, {17, 48, 256}};
    bool gpu = on_gpu();
    need_prompt_kernels();
    for (int f = 0; f < WF_COUNT; f++)
        for (int i = 0; i < (gpu ? 4 : 2); i++) {
            enum weight_format_id format = (enum weight_format_id)f;
            int64_t T = gpu ? large[i].T : small[i].T, rows = gpu ? large[i].rows : small[i].rows;
            int64_t cols = gpu ? large[i].cols : small[i].cols;
            check_phase(format, DT_BF16, DT_BF16, true, T, rows, cols, PHASE_PREFILL);
            check_phase(format, DT_BF16, DT_BF16, false, T, rows, cols, PHASE_PREFILL);
            check_phase(format, DT_BF16, DT_F32, false, T, rows, cols, PHASE_PREFILL);
            if (!gpu || i == 1)
                check_phase(format, DT_F32, DT_F32, true, T, rows, cols, PHASE_PREFILL);
        }
}

TEST(prompt_any_number_of_rows)
{
    int64_t rows = on_gpu() ? 1040 : 48, most = on_gpu() ? 300 : 40;
    need_prompt_kernels();
    for (int f = 0; f < WF_COUNT; f++)
        for (int k = 0; k < 2; k++)
            check_numbers((enum weight_format_id)f, DT_BF16, k ? DT_F32 : DT_BF16, rows, 1152, most,
                          64, PHASE_PREFILL);
}

/* FP8 blocks: two BF16 numbers hold a weight to 2^-17. */
TEST(prompt_every_code)
{
    need_prompt_kernels();
    if (on_gpu())
        check_codes(1024, 1024, 0x1p-16, PHASE_PREFILL);
    else
        check_codes(256, 384, 0, PHASE_PREFILL);
}

TEST(prompt_nan_weights)
{
    need_prompt_kernels();
    if (on_gpu())
        check_nan(1040, 1024, 200, PHASE_PREFILL);
    else
        check_nan(80, 640, 20, PHASE_PREFILL);
}

/* Any phase gives the same bits but for prompts on a GPU. */
TEST(phases)
{
    enum { T = 9, ROWS = 48, COLS = 640 };
    static const enum phase other[] = {PHASE_VERIFY, PHASE_PREFILL};
    int n_envs;
    struct op_env *env = op_envs(&n_envs);
    struct rng r = {9};
    for (int f = 0; f < WF_COUNT; f++)
        for (int i = 0; i < n_envs; i++) {
            struct random_weight x =
                random_weight((enum weight_format_id)f, ROWS, COLS, DT_F32, 0, &r);
            struct tensor in = op_tensor(DT_BF16, T, COLS, 0);
            struct tensor want = op_tensor(DT_BF16, T, ROWS, 0), y = op_tensor(DT_BF16, T, ROWS, 0);
            op_fill_normal(&in, &r, 0, 1);
            op_case("%s, %s", env[i].name, weight_formats[f].name);
            op_linear(&env[i].exec, want, in, &x.w); /* a step begins with decoding */
            op_check_ok(&env[i]);
            for (int k = 0; k < (on_gpu() ? 1 : 2); k++) {
                CHECK_INT(exec_phase(&env[i].exec, other[k]), PHASE_DECODE);
                op_linear(&env[i].exec, y, in, &x.w);
                op_check_ok(&env[i]);
                op_check_same("y", &y, &want);
            }
            op_done();
            release(&x);
        }
}

/* A matrix larger than what is expanded at once, beside the kernels for few rows. */
TEST(prompt_panels)
{
    enum { T = 130, ROWS = 12400, COLS = 8192, ROOM = 512 << 20 };
    int n_envs;
    struct op_env *env = op_envs(&n_envs);
    struct rng r = {10};
    lathe_error err;
    void *memory;
    if (!on_gpu())
        SKIP("there is no GPU");
    need_prompt_kernels();
    CHECK_OK(env->backend->alloc(env->stream, &memory, ROOM, &err), &err);
    for (int f = WF_FP8_ROW; f < WF_COUNT; f++) {
        struct random_weight x = random_weight((enum weight_format_id)f, ROWS, COLS, DT_F32, 0, &r);
        struct tensor in = op_tensor(DT_BF16, T, COLS, 0);
        struct tensor want = op_tensor(DT_F32, T, ROWS, 0), y = op_tensor(DT_F32, T, ROWS, 0);
        struct exec exec;
        op_fill_normal(&in, &r, 0, 1);
        op_case("%s", weight_formats[f].name);
        op_linear(&env->exec, want, in, &x.w);
        op_check_ok(env);
        exec_init(&exec, env->backend, env->stream, memory, ROOM);
        (void)exec_phase(&exec, PHASE_PREFILL);
        op_linear(&exec, y, in, &x.w);
        CHECK_OK(exec_end(&exec, &err), &err);
        CHECK_OK(env->backend->wait(env->stream, &err), &err);
        op_check_near("y", &y, &want, tolerance(&x.w, &in, DT_F32, PHASE_PREFILL));
        op_done();
        release(&x);
    }
    env->backend->free(env->stream, memory);
}

/* ---- Arranged matrices: those of a backend with an order of its own ---- */

static const enum weight_format_id tiled_formats[] = {WF_FP8_TENSOR, WF_FP8_ROW, WF_FP8_BLOCK,
                                                      WF_NVFP4};

/* Scales as files have them: positive, zero, or subnormal. */
static struct random_weight random_tiled(enum weight_format_id format, int64_t rows, int64_t cols,
                                         struct rng *r)
{
    struct random_weight x = random_weight(format, rows, cols, rows % 32 ? DT_F32 : DT_BF16, 0, r);
    for (int64_t i = 0; format == WF_NVFP4 && i < rows * cols / 16; i++)
        x.scales[i] &= 0x7F;
    return x;
}

/* ---- Prompts in FP8 ------------------------------------------------------------------------------- */

/* Every shape that the kernels take, small ones too, as in files and arranged: any number of rows gives the same bits,
 * and a NaN stays in its row. */
TEST(fp8_prompt_rows)
{
    static const int64_t shape[][2] = {{16, 16}, {48, 320}, {528, 640}, {128, 5120}};
    static const enum weight_format_id format[] = {WF_FP8_TENSOR, WF_FP8_ROW};
    struct rng r = {22};
    need_prompt_math(PROMPT_FP8);
    for (int i = 0; i < 4; i++)
        for (int f = 0; f < 2; f++)
            for (int64_t T = 1; T < 200; T += 130) {
                struct random_weight x = random_tiled(format[f], shape[i][0], shape[i][1], &r);
                check_weight(&x, false, DT_BF16, DT_BF16, false, T, PHASE_PREFILL, &r);
                if (shape[i][1] % 128 == 0) {
                    check_weight(&x, true, DT_BF16, DT_BF16, true, T, PHASE_PREFILL, &r);
                    check_weight(&x, true, DT_BF16, DT_F32, false, T, PHASE_PREFILL, &r);
                }
                release(&x);
            }
    need_prompt_math(PROMPT_ACT);
}

/* A matrix of two panels, beside each half of it. */
TEST(fp8_prompt_panels)
{
    enum { T = 130, ROWS = 12416, COLS = 8192, ROOM = 512 << 20 };
    int n_envs;
    struct op_env *env = op_envs(&n_envs);
    struct rng r = {23};
    struct exec exec;
    lathe_error err;
    void *memory;
    need_prompt_math(PROMPT_FP8);
    CHECK_OK(env->backend->alloc(env->stream, &memory, ROOM, &err), &err);
    exec_init(&exec, env->backend, env->stream, memory, ROOM);
    (void)exec_phase(&exec, PHASE_PREFILL);
    struct random_weight x = random_weight(WF_FP8_ROW, ROWS, COLS, DT_F32, 0, &r);
    struct tensor in = op_tensor(DT_BF16, T, COLS, 0), y = op_tensor(DT_F32, T, ROWS, 0);
    struct tensor want = op_tensor(DT_F32, T, ROWS, 0);
    op_fill_normal(&in, &r, 0, 1);
    op_case("panels");
    op_linear(&exec, y, in, &x.w);
    for (int half = 0; half < 2; half++) {
        struct weight w = x.w;
        struct tensor part = want;
        w.rows = w.codes.dim[0] = w.scales.dim[0] = part.dim[1] = ROWS / 2;
        w.codes.data = x.codes + half * (int64_t)(ROWS / 2) * COLS;
        w.scales.data = (float *)(void *)x.scales + half * (ROWS / 2);
        part.data = (float *)want.data + half * (ROWS / 2);
        op_linear(&exec, part, in, &w);
    }
    CHECK_OK(exec_end(&exec, &err), &err);
    CHECK_OK(env->backend->wait(env->stream, &err), &err);
    op_check_near("y", &y, &want, tolerance(&x.w, &in, DT_F32, PHASE_PREFILL));
    op_done();
    release(&x);
    env->backend->free(env->stream, memory);
    need_prompt_math(PROMPT_ACT);
}

/* The matrix as this backend has it after loading; `other` holds the copy, if there is one. */
static const struct weight *as_loaded(const struct op_env *e, const struct random_weight *x,
                                      struct random_weight *other)
{
    *other = (struct random_weight){0};
    if (!e->backend->arrange)
        return &x->w;
    *other = arranged(e, &x->w);
    return &other->w;
}

static bool can_be_tiled(int format)
{
    for (size_t i = 0; i < sizeof tiled_formats / sizeof *tiled_formats; i++)
        if ((int)tiled_formats[i] == format)
            return true;
    return false;
}

/* The same matrices in the order of a backend's kernels. */
TEST(arranged)
{
    /* The last has more strips than two for each multiprocessor of a GPU with 132, and no more than three; a warp has more
     * units of them than it copies ahead. */
    static const int64_t shape[][2] = {{16, 128},  {48, 256},   {128, 1152},
                                       {32, 5120}, {16, 17408}, {4240, 3200}};
    static const int64_t T[] = {1, 3, 8, 9, 16, 17, 40};
    int n_envs;
    struct rng r = {11};
    if (!op_envs(&n_envs)->backend->arrange)
        test_skip("no backend here has an order of its own");
    for (size_t f = 0; f < 4; f++)
        for (size_t i = 0; i < sizeof shape / sizeof *shape; i++)
            for (size_t t = 0; t < 7; t += test_quick() ? 3 : 1) {
                struct random_weight x =
                    random_tiled(tiled_formats[f], shape[i][0], shape[i][1], &r);
                check_weight(&x, true, DT_BF16, DT_BF16, t % 2, T[t], PHASE_DECODE, &r);
                check_weight(&x, true, DT_BF16, DT_F32, false, T[t], PHASE_DECODE, &r);
                if (shape[i][1] < 10000)
                    check_weight(&x, true, DT_F32, DT_F32, t % 2, T[t], PHASE_DECODE, &r);
                release(&x);
            }
}

/* A prompt's rows have kernels of their own, which know the order too. */
TEST(arranged_prompt_rows)
{
    int n_envs;
    struct rng r = {13};
    if (!op_envs(&n_envs)->backend->arrange)
        test_skip("no backend here has an order of its own");
    need_prompt_kernels();
    for (size_t f = 0; f < 4; f++)
        for (int64_t T = 17; T < 200; T += 133) {
            struct random_weight x = random_tiled(tiled_formats[f], 1040, 1152, &r);
            check_weight(&x, true, DT_BF16, DT_BF16, true, T, PHASE_PREFILL, &r);
            check_weight(&x, true, DT_BF16, DT_F32, false, T, PHASE_PREFILL, &r);
            release(&x);
        }
}

/* Few rows of a prompt and many are computed by different kernels: the bits are the same. */
TEST(arranged_prompt_any_number_of_rows)
{
    static const int64_t shape[][2] = {{1040, 1152}, {64, 17408}, {8208, 256}};
    int n_envs;
    struct op_env *env = op_envs(&n_envs);
    struct rng r = {14};
    if (!env->backend->arrange)
        test_skip("no backend here has an order of its own");
    need_prompt_kernels();
    for (size_t f = 0; f < 4; f++)
        for (size_t i = 0; i < 3; i++) {
            struct random_weight x = random_tiled(tiled_formats[f], shape[i][0], shape[i][1], &r);
            struct random_weight tiled = arranged(env, &x.w);
            CHECK(tiled.w.tiled);
            check_numbers_of(&tiled.w, DT_BF16, DT_BF16, true, 300, PHASE_PREFILL, &r);
            check_numbers_of(&tiled.w, DT_BF16, i ? DT_F32 : DT_BF16, false, 300, PHASE_PREFILL,
                             &r);
            release(&tiled);
            release(&x);
        }
}

/* Every code at every place of a tile, exactly; and what keeps a matrix as it was. */
TEST(arranged_codes)
{
    enum { COLS = 384 };
    static const int64_t rows[] = {256, 6416}; /* the second: more strips than blocks */
    int n_envs;
    struct op_env *env = op_envs(&n_envs);
    struct rng r = {12};
    if (!env->backend->arrange)
        test_skip("no backend here has an order of its own");
    for (size_t f = 0; f < 8; f++) {
        struct random_weight x = random_tiled(tiled_formats[f % 4], rows[f / 4], COLS, &r);
        put_every_code(&x, false);
        struct random_weight tiled = arranged(env, &x.w);
        CHECK(tiled.w.tiled);
        check_decoded(env, &tiled.w, &x.w, 0, PHASE_DECODE);
        release(&tiled);
        if (tiled_formats[f % 4] == WF_NVFP4)
            x.scales[5] = 0x7F;
        else
            x.codes[1000] = 0xFF; /* NaN: no room for a check in the tiles' kernels */
        tiled = arranged(env, &x.w);
        CHECK(!tiled.w.tiled);
        op_done();
        release(&tiled);
        release(&x);
    }
}

/* Kernels copy scales 16 bytes at a time. */
TEST(scales_that_lie_badly_are_not_arranged)
{
    enum { ROWS = 32, COLS = 256, SCALES = ROWS * COLS / 16 };
    int n_envs;
    struct op_env *env = op_envs(&n_envs);
    struct rng r = {17};
    lathe_error err;
    if (!env->backend->arrange)
        test_skip("no backend here has an order of its own");
    struct random_weight x = random_tiled(WF_NVFP4, ROWS, COLS, &r);
    unsigned char *scales = op_alloc(SCALES + 16);
    struct weight w = x.w, *list = &w;
    CHECK(scales);
    w.scales.data = memcpy(scales + 8, x.w.scales.data, SCALES);
    CHECK_OK(env->backend->arrange(env->stream, &list, 1, &err), &err);
    CHECK(!w.tiled);
    w.scales.data = memcpy(scales + 16, x.w.scales.data, SCALES);
    CHECK_OK(env->backend->arrange(env->stream, &list, 1, &err), &err);
    CHECK(w.tiled);
    release(&x);
    op_free(scales);
}

/* Several matrices in one call give what each gives alone. */
TEST(linears)
{
    enum { N = 3 };
    /* Those of the third have more strips than a GPU's blocks, and each is in several places in a block's turns; together
     * those of the last are what three blocks of each of 132 multiprocessors have a strip of, alone they are not. */
    static const int64_t all[][N] = {
        {48, 16, 160}, {48, 16, 160}, {3200, 16, 4080}, {2640, 16, 1584}};
    static const int64_t rows_in_all[] = {5, 9, 5, 13}, cols_of_all[] = {256, 256, 256, 3200};
    static const enum weight_format_id other[N] = {WF_BF16, WF_NVFP4, WF_FP8_ROW};
    int n_envs;
    struct op_env *env = op_envs(&n_envs);
    struct rng r = {14};
    for (int f = 0; f < 4 * (WF_COUNT + 1); f++) /* the last: formats mixed */
        for (int i = 0; i < n_envs; i++) {
            const int format = f % (WF_COUNT + 1), shape = f / (WF_COUNT + 1);
            if (shape >= 2 && (!can_be_tiled(format) || !env[i].backend->arrange))
                continue;
            const int64_t *rows = all[shape], T = rows_in_all[shape], cols = cols_of_all[shape];
            struct random_weight x[N], tiled[N];
            const struct weight *w[N];
            struct tensor in = op_tensor(DT_BF16, T, cols, 8), y[N], alone[N];
            op_fill_normal(&in, &r, 0, 1);
            for (int k = 0; k < N; k++) {
                enum dtype dtype = k == 1 || shape == 3 ? DT_F32 : DT_BF16;
                x[k] = random_tiled(format < WF_COUNT ? (enum weight_format_id)format : other[k],
                                    rows[k], cols, &r);
                w[k] = as_loaded(&env[i], &x[k], &tiled[k]);
                y[k] = op_tensor(dtype, T, rows[k], 2 * k);
                alone[k] = op_tensor(dtype, T, rows[k], 2 * k);
                op_linear(&env[i].exec, alone[k], in, w[k]);
            }
            op_case("%s, format %d, %lld rows of x", env[i].name, format, (long long)T);
            struct normed rows_in = normed_already(in);
            op_linears(&env[i].exec, N, y, &rows_in, w);
            op_check_ok(&env[i]);
            for (int k = 0; k < N; k++)
                op_check_same("y", &y[k], &alone[k]);
            op_done();
            for (int k = 0; k < N; k++) {
                release(&x[k]);
                release(&tiled[k]);
            }
        }
}

/* What the products and silu_mul give one after the other, with the input's rows apart too. */
TEST(linear_silu_mul)
{
    enum { ROWS = 48, COLS = 640 };
    int n_envs;
    struct op_env *env = op_envs(&n_envs);
    struct rng r = {15};
    for (int f = 0; f < WF_COUNT; f++)
        for (int i = 0; i < n_envs; i++)
            for (int64_t T = 1; T < 40; T += 7) {
                struct random_weight x[2], tiled[2];
                const struct weight *w[2];
                struct tensor in = op_tensor(DT_BF16, T, COLS, T % 3 * 8), alone[2];
                struct tensor y = op_tensor(DT_BF16, T, ROWS, 5);
                op_fill_normal(&in, &r, 0, 1);
                for (int k = 0; k < 2; k++) {
                    x[k] = random_tiled((enum weight_format_id)f, ROWS, COLS, &r);
                    w[k] = as_loaded(&env[i], &x[k], &tiled[k]);
                    alone[k] = op_tensor(DT_BF16, T, ROWS, 2);
                    op_linear(&env[i].exec, alone[k], in, w[k]);
                }
                op_silu_mul(&env[i].exec, alone[0], alone[0], alone[1]);
                op_case("%s, %s, T %lld", env[i].name, weight_formats[f].name, (long long)T);
                struct normed rows_in = normed_already(in);
                op_linear_silu_mul(&env[i].exec, y, &rows_in, w[0], w[1]);
                op_check_ok(&env[i]);
                op_check_same("y", &y, &alone[0]);
                op_done();
                for (int k = 0; k < 2; k++) {
                    release(&x[k]);
                    release(&tiled[k]);
                }
            }
}

/* Both, for few rows of a prompt and for more, by matrices that are large enough for the kernels of prompts. */
TEST(arranged_linears_of_a_prompt)
{
    enum { N = 3, COLS = 1152 };
    static const int64_t rows[N] = {1040, 912, 1040};
    static const int64_t T[] = {1, 16, 17, 32, 33, 64, 65, 128, 129, 256, 257};
    int n_envs;
    struct op_env *env = op_envs(&n_envs);
    struct rng r = {16};
    if (!env->backend->arrange)
        test_skip("no backend here has an order of its own");
    need_prompt_kernels();
    for (size_t f = 0; f < 4; f++) {
        struct random_weight x[N], tiled[N];
        const struct weight *w[N];
        for (int k = 0; k < N; k++) {
            x[k] = random_tiled(tiled_formats[f], rows[k], COLS, &r);
            tiled[k] = arranged(env, &x[k].w);
            w[k] = &tiled[k].w;
            CHECK(w[k]->tiled);
        }
        for (size_t i = 0; i < sizeof T / sizeof *T; i++) {
            struct tensor in = op_tensor(DT_BF16, T[i], COLS, 8), y[N + 1], alone[N];
            enum phase outside = exec_phase(&env->exec, PHASE_PREFILL);
            op_fill_normal(&in, &r, 0, 1);
            for (int k = 0; k < N; k++) {
                enum dtype out = k == 1 ? DT_F32 : DT_BF16;
                y[k] = op_tensor(out, T[i], rows[k], 2 * k);
                alone[k] = op_tensor(out, T[i], rows[k], 2 * k);
                op_linear(&env->exec, alone[k], in, w[k]);
            }
            op_case("%s, %s, T %lld", env->name, weight_formats[w[0]->format].name,
                    (long long)T[i]);
            struct normed rows_in = normed_already(in);
            op_linears(&env->exec, N, y, &rows_in, w);
            op_check_ok(env);
            for (int k = 0; k < N; k++)
                op_check_same("y", &y[k], &alone[k]);
            y[N] = op_tensor(DT_BF16, T[i], rows[0], 5);
            (void)exec_phase(&env->exec, PHASE_PREFILL); /* op_check_ok has set it to DECODE */
            op_silu_mul(&env->exec, alone[0], alone[0], alone[2]);
            op_linear_silu_mul(&env->exec, y[N], &rows_in, w[0], w[2]);
            op_check_ok(env);
            op_check_same("silu(gate) * up", &y[N], &alone[0]);
            (void)exec_phase(&env->exec, outside);
            op_done();
        }
        for (int k = 0; k < N; k++) {
            release(&x[k]);
            release(&tiled[k]);
        }
    }
}

/* ---- Sums and their norms ------------------------------------------------------------------------- */

enum {
    ADD,
    FIRST,
    SECOND,
    OTHER,
    N_MATRICES
}; /* OTHER has an order that FIRST's kernels do not know */
struct norm_arg {
    const struct weight *w[2][N_MATRICES]; /* as loaded by backends with an order of their own */
    struct tensor norm;
    enum phase phase;
};

/* h += W x, and four ways of reading its norm. */
static void run_norm(struct exec *x, const struct op_rows *p, const struct tensor *in,
                     const struct tensor *out, int64_t first, int64_t n)
{
    const struct norm_arg *arg = p->arg;
    const struct weight *const *w = arg->w[x->backend->arrange != NULL];
    size_t mark = exec_push(x);
    enum phase outside = exec_phase(x, arg->phase);
    struct normed rows = normed_tmp(x, out[0], 1e-6f);
    (void)first, (void)n;
    op_linear_add_norm(x, &rows, in[0], w[ADD], arg->norm);
    op_linears(x, 2, &out[1], &rows, &w[FIRST]);
    op_linear_silu_mul(x, out[3], &rows, w[FIRST], w[SECOND]);
    op_linears(x, 1, &out[4], &rows, &w[OTHER]);
    op_linears(x, 1, &out[5], &rows, &w[FIRST]);
    exec_phase(x, outside);
    exec_pop(x, mark);
}

static void check_norm(enum weight_format_id format, int64_t hidden, int64_t cols, int64_t T,
                       double size, enum phase phase)
{
    enum { ROWS = 48 };
    int n_envs;
    struct op_env *env = op_envs(&n_envs);
    struct rng r = {(uint64_t)(hidden + T)};
    struct random_weight x[N_MATRICES], tiled[N_MATRICES] = {{.codes = NULL}};
    struct norm_arg arg = {.norm = op_vector(DT_F32, hidden), .phase = phase};
    for (int k = 0; k < N_MATRICES; k++) {
        x[k] = random_tiled(k == OTHER ? WF_BF16 : format, k == ADD ? hidden : ROWS,
                            k == ADD ? cols : hidden, &r);
        arg.w[0][k] = arg.w[1][k] = &x[k].w;
        for (int i = 0; i < n_envs && !tiled[k].codes; i++)
            arg.w[1][k] = as_loaded(&env[i], &x[k], &tiled[k]);
    }
    struct op_rows p = {
        .T = T,
        .in = {op_tensor(DT_BF16, T, cols, 8)},
        .out = {op_tensor(DT_BF16, T, hidden, 0), op_tensor(DT_BF16, T, ROWS, 0),
                op_tensor(DT_F32, T, ROWS, 0), op_tensor(DT_BF16, T, ROWS, 0),
                op_tensor(DT_BF16, T, ROWS, 0), op_tensor(DT_F32, T, ROWS, 0)},
        .n_in = 1,
        .n_out = 6,
        .tol = TOL_NORM_JOINED,
        .run = run_norm,
        .arg = &arg,
    };
    op_fill_normal(&p.in[0], &r, 0, 1);
    op_fill_normal(&p.out[0], &r, 0, size);
    for (int i = 1; i < 6; i++)
        op_fill(&p.out[i], 0);
    op_fill_normal(&arg.norm, &r, 1, 0.2);
    op_rows_check(&p, -1, "%s [%lld, %lld], T %lld, size %g%s", weight_formats[format].name,
                  (long long)hidden, (long long)cols, (long long)T, size,
                  phase == PHASE_PREFILL ? ", prefill" : "");
    for (int k = 0; k < N_MATRICES; k++) {
        release(&x[k]);
        release(&tiled[k]);
    }
}

/* Few strips, and where matrices are arranged as many as three blocks of each of 132 multiprocessors have one of. Squares of
 * 1e22 exceed F32. */
TEST(linear_add_norm)
{
    static const int64_t shape[][2] = {{128, 128}, {640, 384}, {4240, 1280}};
    static const int64_t T[] = {1, 4, 8, 11, 16, 21};
    int n_envs, n_shapes = op_envs(&n_envs)->backend->arrange ? 3 : 2;
    for (int f = 0; f < WF_COUNT; f++)
        for (int i = 0; i < n_shapes; i++)
            for (size_t t = 0; t < 6; t += i == 2 || test_quick() ? 3 : 1)
                check_norm((enum weight_format_id)f, shape[i][0], shape[i][1], T[t], 3,
                           PHASE_DECODE);
    check_norm(WF_NVFP4, 640, 384, 5, 1e22, PHASE_VERIFY);
    check_norm(WF_FP8_ROW, 640, 384, 17, 3, PHASE_PREFILL);
}

TEST(refuses_contradictions)
{
    int n_envs;
    struct op_env *e = op_envs(&n_envs);
    struct rng r = {8};
    struct random_weight x = random_weight(WF_BF16, 32, 64, DT_F32, 0, &r);
    struct tensor in = op_tensor(DT_BF16, 2, 64, 0), y = op_tensor(DT_BF16, 2, 32, 0);
    op_linear(&e->exec, op_tensor(DT_BF16, 2, 33, 0), in, &x.w);
    op_check_failed(e, LATHE_E_ARGUMENT, "linear");
    op_linear(&e->exec, y, op_tensor(DT_BF16, 2, 63, 0), &x.w);
    op_check_failed(e, LATHE_E_ARGUMENT, "linear");
    op_linear(&e->exec, y, op_tensor(DT_BF16, 3, 64, 0), &x.w);
    op_check_failed(e, LATHE_E_ARGUMENT, "linear");
    op_linear(&e->exec, y, op_tensor(DT_F32, 2, 64, 0), &x.w);
    op_check_failed(e, LATHE_E_ARGUMENT, "linear");
    op_linear_add(&e->exec, op_tensor(DT_F32, 2, 32, 0), in, &x.w);
    op_check_failed(e, LATHE_E_ARGUMENT, "linear");
    op_done();
    release(&x);
}

#include "op_test.h"

#include <float.h>
#include <stdarg.h>

#include "base/thread.h"
#include "tensor/number.h"

enum { GUARD = 64, MAX_TENSORS = 4096, WORKSPACE = 96 << 20 };

struct block {
    struct tensor t;
    unsigned char *memory;
    size_t bytes;
};

static struct block block[MAX_TENSORS];
static int n_blocks;
static char context[512];

void op_case(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(context, sizeof context, fmt, ap);
    va_end(ap);
}

void op_fail(const char *file, int line, const char *fmt, ...)
{
    char message[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    test_fail(file, line, "%s: %s", context, message);
}

static void open_env(struct op_env *e, const struct backend *backend, struct pool *pool,
                     const char *isa, void *workspace)
{
    lathe_error err;
    e->backend = backend;
    e->isa = isa;
    e->n_threads = pool_threads(pool);
    CHECK_OK(backend->open(&e->stream, pool, isa, &err), &err);
    CHECK_STR(backend->isa(e->stream), isa);
    exec_init(&e->exec, backend, e->stream, workspace, WORKSPACE);
    snprintf(e->name, sizeof e->name, "%s %s, %d threads", backend->name, isa, e->n_threads);
}

#ifdef LATHE_CUDA
/* The GPU's stream, NULL where there is none. Tests then keep all they allocate where it can read and write. */
static void *gpu(void)
{
    static void *stream;
    static bool looked;
    lathe_error err;
    if (!looked && backend_cuda.open(&stream, NULL, NULL, &err))
        printf("     %s\n", err.message);
    looked = true;
    return stream;
}

void *op_alloc(size_t bytes)
{
    void *p;
    lathe_error err;
    if (!gpu())
        return aligned_alloc(GUARD, (bytes + GUARD - 1) / GUARD * GUARD);
    CHECK_OK(backend_cuda.alloc_host(gpu(), &p, bytes, &err), &err);
    return p;
}

void op_free(void *p)
{
    if (gpu())
        backend_cuda.free_host(gpu(), p);
    else
        free(p);
}
#else
void *op_alloc(size_t bytes)
{
    return aligned_alloc(GUARD, (bytes + GUARD - 1) / GUARD * GUARD);
}

void op_free(void *p)
{
    free(p);
}
#endif

static void *workspace(void)
{
    static void *p;
    if (!p)
        p = op_alloc(WORKSPACE);
    CHECK(p);
    return p;
}

struct op_env *op_ref(void)
{
    static struct op_env e;
    if (!e.backend)
        open_env(&e, &backend_ref, NULL, "generic", workspace());
    return &e;
}

struct op_env *op_envs(int *n)
{
    enum { THREADS = 3 };
    static const char *const isa[] = {"avx512bf16", "avx512", "avx2", "neon", "generic"};
    static struct op_env env[5 * THREADS];
    static struct pool *pool[THREADS];
    static int count;
    lathe_error err;
    if (count) {
        *n = count;
        return env;
    }
    for (int t = 0; t < THREADS; t++)
        CHECK_OK(pool_open(&pool[t], t + 1, false, &err), &err);
#ifdef LATHE_CUDA
    if (gpu()) {
        struct op_env *e = &env[count++];
        *e = (struct op_env){.backend = &backend_cuda, .stream = gpu(), .n_threads = 1};
        e->isa = backend_cuda.isa(e->stream);
        void *memory;
        CHECK_OK(e->backend->alloc(e->stream, &memory, WORKSPACE, &err), &err);
        exec_init(&e->exec, e->backend, e->stream, memory, WORKSPACE);
        snprintf(e->name, sizeof e->name, "cuda %s", e->isa);
        /* The processor's kernels have their own run, without a GPU. */
        *n = count;
        return env;
    }
#endif
    for (size_t i = 0; i < sizeof isa / sizeof isa[0]; i++) {
        void *stream;
        if (backend_cpu.open(&stream, NULL, isa[i], &err))
            continue;
        backend_cpu.close(stream);
        for (int t = 0; t < THREADS; t++)
            if (!test_quick() || t != 1)
                open_env(&env[count++], &backend_cpu, pool[t], isa[i], workspace());
    }
    *n = count;
    return env;
}

void op_check_ok(struct op_env *e)
{
    lathe_error err;
    if (exec_end(&e->exec, &err) || e->backend->wait(e->stream, &err))
        OP_FAIL("%s: %s", e->name, err.message);
    exec_begin(&e->exec);
}

void op_check_failed(struct op_env *e, lathe_status status, const char *text)
{
    lathe_error err = {0};
    lathe_status st = exec_end(&e->exec, &err);
    if (st != status || !strstr(err.message, text))
        OP_FAIL("%s: status %d, \"%s\"; expected status %d with \"%s\"", e->name, (int)st,
                st ? err.message : "", (int)status, text);
    exec_begin(&e->exec);
}

static unsigned char guard_byte(size_t i)
{
    return (unsigned char)(0xA5 + 7 * i);
}

static void set_guard(struct block *b, size_t from, size_t n)
{
    for (size_t k = from; k < from + n; k++)
        b->memory[k] = guard_byte(k);
}

struct tensor op_tensor(enum dtype dtype, int64_t rows, int64_t cols, int64_t gap)
{
    CHECK(n_blocks < MAX_TENSORS);
    size_t size = dtype_size(dtype), n = (size_t)(rows * (cols + gap)) * size;
    struct block *b = &block[n_blocks++];
    b->bytes = GUARD + ((n + GUARD - 1) & ~(size_t)(GUARD - 1)) + GUARD;
    b->memory = op_alloc(b->bytes);
    CHECK(b->memory);
    memset(b->memory, 0xFF, b->bytes);
    b->t = tensor_2d(b->memory + GUARD, dtype, rows, cols);
    b->t.stride = cols + gap;
    set_guard(b, 0, GUARD);
    size_t stride = (size_t)(cols + gap) * size, row = (size_t)cols * size;
    for (int64_t r = 0; r < rows; r++)
        set_guard(b, GUARD + (size_t)r * stride + row, stride - row);
    set_guard(b, GUARD + n, b->bytes - GUARD - n);
    return b->t;
}

struct tensor op_vector(enum dtype dtype, int64_t n)
{
    struct tensor t = op_tensor(dtype, 1, n, 0);
    return tensor_1d(t.data, dtype, n);
}

const int32_t *op_table(const int32_t *p, int64_t n)
{
    struct tensor t = op_vector(DT_I32, n);
    memcpy(t.data, p, (size_t)n * sizeof *p);
    return t.data;
}

/* Bytes [from, from + n) of block i's memory. */
static void check_guard(int i, size_t from, size_t n)
{
    for (size_t k = from; k < from + n; k++)
        if (block[i].memory[k] != guard_byte(k))
            OP_FAIL("tensor %d: byte %lld from its first, outside its rows, was written", i,
                    (long long)k - GUARD);
}

int op_mark(void)
{
    return n_blocks;
}

void op_done(void)
{
    op_release(0);
}

void op_release(int mark)
{
    for (int i = mark; i < n_blocks; i++) {
        struct block *b = &block[i];
        size_t size = dtype_size(b->t.dtype), row = (size_t)b->t.dim[1] * size;
        size_t stride = (size_t)b->t.stride * size;
        check_guard(i, 0, GUARD);
        for (int64_t r = 0; r < b->t.dim[0]; r++)
            check_guard(i, GUARD + (size_t)r * stride + row, stride - row);
        size_t end = GUARD + (size_t)b->t.dim[0] * stride;
        check_guard(i, end, b->bytes - end);
        op_free(b->memory);
    }
    n_blocks = mark;
}

/* Matrix view of any tensor: rows of dim[0]; a vector is one row. */
static struct tensor flat(const struct tensor *t)
{
    struct tensor m = *t;
    if (t->n_dims == 1)
        return tensor_2d(t->data, t->dtype, 1, t->dim[0]);
    m.n_dims = 2;
    m.dim[1] = tensor_row(t);
    m.dim[2] = m.dim[3] = 1;
    return m;
}

struct tensor op_copy(const struct tensor *t, enum dtype dtype)
{
    struct tensor m = flat(t), c = op_tensor(dtype, m.dim[0], m.dim[1], 0);
    if (dtype == m.dtype)
        op_set(&c, &m);
    else
        for (int64_t r = 0; r < m.dim[0]; r++)
            for (int64_t i = 0; i < m.dim[1]; i++)
                op_put(&c, r, i, op_at(&m, r, i));
    struct tensor out = *t;
    out.data = c.data;
    out.dtype = dtype;
    out.stride = t->n_dims == 1 ? t->stride : c.stride;
    return out;
}

void op_set(const struct tensor *dst, const struct tensor *src)
{
    struct tensor d = flat(dst), s = flat(src);
    CHECK(d.dtype == s.dtype && d.dim[0] == s.dim[0] && d.dim[1] == s.dim[1]);
    for (int64_t r = 0; r < d.dim[0]; r++)
        memcpy(tensor_at(&d, r), tensor_at(&s, r), (size_t)d.dim[1] * dtype_size(d.dtype));
}

uint64_t op_hash(const struct tensor *t)
{
    struct tensor m = flat(t);
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (int64_t r = 0; r < m.dim[0]; r++) {
        const unsigned char *p = tensor_at(&m, r);
        for (size_t i = 0; i < (size_t)m.dim[1] * dtype_size(m.dtype); i++)
            h = (h ^ p[i]) * 1099511628211u;
    }
    return h;
}

double op_at(const struct tensor *t, int64_t row, int64_t col)
{
    struct tensor m = flat(t);
    int64_t i = row * m.stride + col;
    if (m.dtype == DT_F32)
        return (double)((const float *)m.data)[i];
    if (m.dtype == DT_F8_E4M3)
        return (double)e4m3_to_f32(((const uint8_t *)m.data)[i]);
    CHECK(m.dtype == DT_BF16);
    return (double)bf16_to_f32(((const uint16_t *)m.data)[i]);
}

void op_put(const struct tensor *t, int64_t row, int64_t col, double value)
{
    struct tensor m = flat(t);
    int64_t i = row * m.stride + col;
    if (m.dtype == DT_F32)
        ((float *)m.data)[i] = (float)value;
    else if (m.dtype == DT_F8_E4M3)
        ((uint8_t *)m.data)[i] = e4m3_from_f32((float)value);
    else
        ((uint16_t *)m.data)[i] = bf16_from_f32((float)value);
}

void op_fill_normal(const struct tensor *t, struct rng *r, double mean, double scale)
{
    struct tensor m = flat(t);
    for (int64_t i = 0; i < m.dim[0]; i++)
        for (int64_t c = 0; c < m.dim[1]; c++)
            op_put(&m, i, c, mean + scale * rng_normal(r));
}

void op_fill(const struct tensor *t, double value)
{
    struct tensor m = flat(t);
    for (int64_t i = 0; i < m.dim[0]; i++)
        for (int64_t c = 0; c < m.dim[1]; c++)
            op_put(&m, i, c, value);
}

static double largest(enum dtype dtype)
{
    return dtype == DT_BF16 ? 0x1.FEp127 : (double)FLT_MAX;
}

void op_check_near(const char *what, const struct tensor *got, const struct tensor *want,
                   struct op_tol tol)
{
    struct tensor g = flat(got), w = flat(want);
    if (g.dim[0] != w.dim[0] || g.dim[1] != w.dim[1])
        OP_FAIL("%s: shapes differ", what);
    if (tol.rel == 0 && tol.row == 0 && tol.floor == 0) {
        op_check_same(what, got, want);
        return;
    }
    double error = 0, norm = 0;
    for (int64_t r = 0; r < g.dim[0]; r++) {
        double squares = 0;
        for (int64_t c = 0; c < g.dim[1]; c++) {
            double x = op_at(&w, r, c);
            squares += isfinite(x) ? x * x : 0;
        }
        double rms = sqrt(squares / (double)g.dim[1]);
        for (int64_t c = 0; c < g.dim[1]; c++) {
            double a = op_at(&g, r, c), b = op_at(&w, r, c), bound;
            bound = tol.rel * fabs(b) + tol.row * rms + tol.floor;
            if (isfinite(a) && isfinite(b)) {
                error += (a - b) * (a - b);
                norm += b * b;
            }
            if (a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= bound)
                continue;
            /* one rounding apart at the end of the range */
            if (isinf(a) && fabs(b) * (1 + tol.rel) >= largest(g.dtype) && (a > 0) == (b > 0))
                continue;
            if (isinf(b) && fabs(a) * (1 + tol.rel) >= largest(g.dtype) && (a > 0) == (b > 0))
                continue;
            OP_FAIL("%s[%lld, %lld]: %.9g, expected %.9g within %.3g (%s)", what, (long long)r,
                    (long long)c, a, b, bound, tol.name);
        }
    }
    if (tensor_elements(&g) >= 64 && sqrt(error) > tol.norm * sqrt(norm) + tol.floor)
        OP_FAIL("%s: the error's norm is %.3g of the value's, expected at most %.3g (%s)", what,
                sqrt(error / norm), tol.norm, tol.name);
}

bool op_same_row(const struct tensor *got, int64_t g, const struct tensor *want, int64_t w)
{
    struct tensor a = flat(got), b = flat(want);
    CHECK(a.dtype == b.dtype && a.dim[1] == b.dim[1]);
    return memcmp(tensor_at(&a, g), tensor_at(&b, w), (size_t)a.dim[1] * dtype_size(a.dtype)) == 0;
}

void op_check_same(const char *what, const struct tensor *got, const struct tensor *want)
{
    struct tensor a = flat(got), b = flat(want);
    if (a.dim[0] != b.dim[0] || a.dim[1] != b.dim[1])
        OP_FAIL("%s: shapes differ", what);
    for (int64_t r = 0; r < a.dim[0]; r++)
        if (!op_same_row(&a, r, &b, r))
            for (int64_t c = 0; c < a.dim[1]; c++)
                if (memcmp(&(double){op_at(&a, r, c)}, &(double){op_at(&b, r, c)}, sizeof(double)))
                    OP_FAIL("%s[%lld, %lld]: %.9g, expected the same bits as %.9g", what,
                            (long long)r, (long long)c, op_at(&a, r, c), op_at(&b, r, c));
}

bool op_row_is_nan(const struct tensor *t, int64_t row)
{
    struct tensor m = flat(t);
    for (int64_t c = 0; c < m.dim[1]; c++)
        if (!isnan(op_at(&m, row, c)))
            return false;
    return true;
}

bool op_row_has_nan(const struct tensor *t, int64_t row)
{
    struct tensor m = flat(t);
    for (int64_t c = 0; c < m.dim[1]; c++)
        if (isnan(op_at(&m, row, c)))
            return true;
    return false;
}

static struct batch_store store_of(struct op_batch *b)
{
    return (struct batch_store){b->token, b->slot, b->pos, b->rope_pos, b->seq};
}

void op_batch_begin(struct op_batch *b, enum phase phase)
{
    struct batch_store store = store_of(b);
    batch_begin(&b->b, &store, phase);
}

void op_batch_add(struct op_batch *b, int32_t slot, int32_t pos, int32_t n_rows)
{
    struct batch_store store = store_of(b);
    CHECK(b->b.n_seqs < OP_MAX_SEQS && b->b.n_rows + n_rows <= OP_MAX_ROWS);
    batch_add(&b->b, &store, slot, pos, NULL, n_rows);
}

struct weight op_weight(enum weight_format_id format, int64_t rows, int64_t cols, struct rng *r,
                        double scale)
{
    struct weight w;
    lathe_error err;
    CHECK_OK(weight_formats[format].layout(&w, rows, cols, DT_F32, &err), &err);
    struct tensor codes = op_tensor(w.codes.dtype, w.codes.dim[0], tensor_row(&w.codes), 0);
    w.codes.data = codes.data;
    if (w.scales.n_dims) {
        int64_t n = tensor_elements(&w.scales);
        w.scales.data = op_tensor(w.scales.dtype, 1, n, 0).data;
    }
    struct tensor values = op_tensor(DT_F32, rows, cols, 0);
    op_fill_normal(&values, r, 0, scale);
    w.global = weight_global_for(format, (float)(6 * scale));
    weight_formats[format].pack(&w, values.data, 0, rows);
    return w;
}

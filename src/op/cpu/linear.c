/* op_linear on the CPU: activations are packed, then the threads share the weight rows.
 *
 * A thread takes its rows in panels. Per panel it goes through the columns in blocks, and per block
 * through the activation rows, so that the packed activations of a tile stay in the first cache, the
 * panel's codes and sums in the second, and memory is read once. Scratch:
 *
 *   packed activations   [tile of max_x rows][unit of columns][row]
 *   per thread: sums     [tile of max_x rows][panel row][row][lane]
 *
 * A single tile of activations is packed by every thread for itself, behind its sums: lines that
 * another core wrote, or reads as well, take longer to load. */
#include <math.h>

#include "op/cpu/cpu.h"
#include "quant/parts.h"

enum {
    BATCH_ROWS = 64,   /* activation rows that pass over a panel together: 256 KiB of sums */
    ALONE_ROWS = 4,    /* weight rows of a panel if there is one activation row */
    GRAIN = 4,         /* weight rows; what the kernels take at once */
    SCALE_BLOCK = 128, /* columns */
    LINE = 128,        /* bytes: two cache lines, which processors fetch together */
};

/* Sums of weight rows with one activation row, still in lanes, and what they are to be multiplied by. */
struct sums {
    const float *acc, *scale;
    int64_t stride;
};

/* One product as the threads see it. */
struct product {
    const struct cpu *cpu;
    const struct linear_kernel *kernel;
    const struct weight *w;
    struct tensor in;
    int64_t block;          /* columns */
    size_t row_bytes;       /* of a packed activation row */
    size_t sums_bytes;      /* of one thread */
    size_t own_bytes;       /* of one thread's packed activations; 0: they are shared */
    size_t shared_bytes;    /* of those, else */
    unsigned char *scratch; /* shared, then per thread: sums, own */
    /* Takes what is finished of activation row t: weight rows [row, row + n). */
    void (*finish)(const struct product *p, const struct sums *s, int64_t t, int64_t row,
                   int32_t n);
    struct tensor y; /* of finish */
    bool add;
    const float *A_log, *dt_bias;
};

/* A product, and where this thread has what it works with. */
struct share {
    const struct product *p;
    unsigned char *packed;
    float *acc;
    int32_t thread, n_threads;
};

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static const struct linear_kernel *kernel_for(const struct cpu *cpu, enum weight_format_id format,
                                              enum dtype act)
{
    return act == DT_BF16 ? &cpu->linear.bf16[format] : &cpu->linear.f32[format];
}

/* Fills what follows from shapes; returns the bytes of scratch for in.dim[0] = T. */
static size_t lay_out(struct product *p, const struct cpu *cpu, int64_t T)
{
    const struct linear_kernel *k = p->kernel;
    int64_t size = (int64_t)dtype_size(k->packed), row = round_up(p->w->cols, k->group) * size;
    /* Equal blocks, because a short one costs as much; of whole FP8 scale blocks. */
    int64_t unit = k->group > SCALE_BLOCK ? k->group : SCALE_BLOCK;
    int64_t most = min64(k->max_cols, k->max_bytes / (min64(T, k->max_x) * size)) / unit;
    int64_t n = (p->w->cols - 1) / ((most ? most : 1) * unit) + 1;
    p->block = round_up((p->w->cols + n - 1) / n, unit);
    p->row_bytes = (size_t)row;
    size_t packed = (size_t)round_up(T * row, LINE);
    p->sums_bytes = (size_t)(LINEAR_MAX_ROWS * min64(T, BATCH_ROWS) * LINEAR_LANES) * sizeof(float);
    p->own_bytes = T <= k->max_x ? packed : 0;
    p->shared_bytes = T <= k->max_x ? 0 : packed;
    return p->shared_bytes + (p->sums_bytes + p->own_bytes) * (size_t)pool_threads(cpu->pool);
}

/* Returns the bytes of scratch, never less than fewer rows take. */
static size_t plan(struct product *p, const struct cpu *cpu, const struct weight *w,
                   struct tensor in)
{
    const struct linear_kernel *k = kernel_for(cpu, w->format, in.dtype);
    int64_t T = in.dim[0];
    *p = (struct product){.cpu = cpu, .kernel = k, .w = w, .in = in};
    size_t fewer = T > k->max_x ? lay_out(p, cpu, k->max_x) : 0, bytes = lay_out(p, cpu, T);
    return bytes > fewer ? bytes : fewer;
}

/* Address of the packed columns from k on of the tile that begins with activation row t. */
static unsigned char *packed_at(const struct product *p, unsigned char *packed, int64_t t,
                                int32_t n_x, int64_t k)
{
    return packed + (size_t)t * p->row_bytes + (size_t)(k * n_x) * dtype_size(p->kernel->packed);
}

/* Rows [t, end). */
static void pack(const struct product *p, unsigned char *packed, int64_t t, int64_t end)
{
    const struct linear_kernel *k = p->kernel;
    for (; t < end; t++) {
        int64_t tile = t / k->max_x * k->max_x;
        int32_t n_x = (int32_t)min64(k->max_x, p->in.dim[0] - tile);
        k->pack(packed_at(p, packed, tile, n_x, 0) + (t - tile) * LINEAR_UNIT,
                (size_t)n_x * LINEAR_UNIT, tensor_at(&p->in, t), p->in.dtype, p->w->cols);
    }
}

static void pack_shared(void *ctx, int32_t thread, int32_t n_threads)
{
    const struct product *p = ctx;
    int64_t t, end;
    pool_share(p->in.dim[0], 1, thread, n_threads, &t, &end);
    pack(p, p->scratch, t, end);
}

/* Before the threads start. */
static void prepare(const struct cpu *cpu, struct product *p, void *scratch)
{
    p->scratch = scratch;
    if (!p->own_bytes)
        cpu_run(cpu, p->in.dim[0] * p->w->cols, pack_shared, p);
}

/* On each thread, before its rows. */
static struct share begin(const struct product *p, int32_t thread, int32_t n_threads)
{
    unsigned char *area =
        p->scratch + p->shared_bytes + (p->sums_bytes + p->own_bytes) * (size_t)thread;
    struct share s = {p, p->scratch, (float *)(void *)area, thread, n_threads};
    if (p->own_bytes) {
        s.packed = area + p->sums_bytes;
        pack(p, s.packed, 0, p->in.dim[0]);
    }
    return s;
}

/* Addresses of the codes and scales of row `row` from column k on. */
static uintptr_t code_address(const struct weight *w, int64_t row, int64_t k)
{
    int64_t bytes = w->format == WF_NVFP4 ? k / 2 : k * (int64_t)dtype_size(w->codes.dtype);
    return (uintptr_t)tensor_at(&w->codes, row) + (uintptr_t)bytes;
}

static uintptr_t scale_address(const struct weight *w, int64_t row, int64_t k)
{
    return w->format == WF_NVFP4 ? (uintptr_t)tensor_at(&w->scales, row) + (uintptr_t)(k / 16) : 0;
}

/* What the sums of rows [row, row + n) are to be multiplied by. */
static void row_scales(const struct product *p, float *scale, int64_t row, int32_t n)
{
    const struct weight *w = p->w;
    if (p->kernel->raw && w->format == WF_FP8_ROW) {
        size_t size = dtype_size(w->scales.dtype);
        to_f32(scale, (const unsigned char *)w->scales.data + (size_t)row * size, w->scales.dtype,
               n);
        return;
    }
    for (int32_t i = 0; i < n; i++)
        scale[i] = p->kernel->raw ? w->global : 1;
}

/* Weight rows [row, row + n_rows) with activation rows [t0, t1). `next` is the first row of the
 * thread's next panel, 0 if there is none to prefetch. */
static void panel(const struct share *s, int64_t row, int32_t n_rows, int64_t t0, int64_t t1,
                  int64_t next)
{
    const struct product *p = s->p;
    const struct linear_kernel *k = p->kernel;
    const struct weight *w = p->w;
    int64_t T = p->in.dim[0], cols = w->cols, stride = n_rows * LINEAR_LANES;
    for (int64_t k0 = 0; k0 < cols; k0 += p->block)
        for (int64_t t = t0; t < t1; t += k->max_x) {
            struct linear_tile tile = {
                .w = w,
                .row = row,
                .n_rows = n_rows,
                .n_x = (int32_t)min64(k->max_x, T - t),
                .k0 = k0,
                .k1 = min64(k0 + p->block, cols),
                .acc = s->acc + (t - t0) * stride,
            };
            tile.x = packed_at(p, s->packed, t, tile.n_x, k0);
            int64_t next_row = tile.k1 < cols ? row : next, next_k = tile.k1 < cols ? tile.k1 : 0;
            if (t == t0 && (next_row || next_k)) {
                tile.next_code = code_address(w, next_row, next_k);
                tile.next_scale = scale_address(w, next_row, next_k);
            }
            k->tile(&tile);
        }
    float scale[LINEAR_MAX_ROWS];
    row_scales(p, scale, row, n_rows);
    for (int64_t t = t0; t < t1; t++) {
        int64_t tile = t / k->max_x * k->max_x, n_x = min64(k->max_x, T - tile);
        struct sums sums = {
            .acc = s->acc + (tile - t0) * stride + (t - tile) * LINEAR_LANES,
            .scale = scale,
            .stride = n_x * LINEAR_LANES,
        };
        p->finish(p, &sums, t, row, n_rows);
    }
}

static void panels(const struct share *s)
{
    int64_t T = s->p->in.dim[0], step = T == 1 ? ALONE_ROWS : LINEAR_MAX_ROWS, row, end;
    pool_share(s->p->w->rows, GRAIN, s->thread, s->n_threads, &row, &end);
    for (; row < end && !cpu_is_left(s->p->cpu, s->thread); row += step) {
        int32_t n_rows = (int32_t)min64(step, end - row);
        int64_t next = row + step < end ? row + step : 0;
        for (int64_t t = 0; t < T; t += BATCH_ROWS)
            panel(s, row, n_rows, t, min64(t + BATCH_ROWS, T), t == 0 ? next : 0);
    }
}

static void run_product(void *ctx, int32_t thread, int32_t n_threads)
{
    struct share s = begin(ctx, thread, n_threads);
    panels(&s);
}

static void store_rows(const struct product *p, const struct sums *s, int64_t t, int64_t row,
                       int32_t n)
{
    unsigned char *y = tensor_at(&p->y, t);
    y += (size_t)row * dtype_size(p->y.dtype);
    p->kernel->store(y, p->y.dtype, p->add, s->scale, s->acc, s->stride, n);
}

lathe_status cpu_linear(void *stream, const struct linear_args *a, lathe_error *err)
{
    (void)err;
    struct cpu *cpu = cpu_of(stream);
    struct product p;
    plan(&p, cpu, a->w, a->in);
    p.finish = store_rows;
    p.y = a->y;
    p.add = a->add;
    prepare(cpu, &p, a->scratch.data);
    pool_run(cpu->pool, run_product, &p);
    return LATHE_OK;
}

size_t cpu_linear_scratch(const void *stream, const struct linear_args *a)
{
    struct product p;
    return plan(&p, stream, a->w, a->in);
}

bool cpu_has_linear(enum weight_format_id format, enum dtype act)
{
    return format < WF_COUNT && (act == DT_BF16 || act == DT_F32);
}

/* g = -exp(A_log) * softplus(sum + dt_bias) */
static void store_g(const struct product *p, const struct sums *s, int64_t t, int64_t row,
                    int32_t n)
{
    float *y = (float *)tensor_at(&p->y, t) + row;
    p->kernel->store(y, DT_F32, false, s->scale, s->acc, s->stride, n);
    for (int32_t i = 0; i < n; i++) {
        float v = y[i] + p->dt_bias[row + i];
        y[i] = -expf(p->A_log[row + i]) * (v > 20 ? v : log1pf(expf(v)));
    }
}

/* beta = sigmoid(sum) */
static void store_beta(const struct product *p, const struct sums *s, int64_t t, int64_t row,
                       int32_t n)
{
    float *y = (float *)tensor_at(&p->y, t) + row;
    p->kernel->store(y, DT_F32, false, s->scale, s->acc, s->stride, n);
    for (int32_t i = 0; i < n; i++)
        y[i] = 1 / (1 + expf(-y[i]));
}

/* The two products of the gates. Weights of one format share the packed activations. */
struct gates {
    struct product a, b;
};

static void run_gates(void *ctx, int32_t thread, int32_t n_threads)
{
    const struct gates *g = ctx;
    struct share s = begin(&g->a, thread, n_threads);
    panels(&s);
    if (g->b.kernel == g->a.kernel)
        s.p = &g->b;
    else
        s = begin(&g->b, thread, n_threads);
    panels(&s);
}

lathe_status cpu_gdn_gates(void *stream, const struct gdn_gates_args *a, lathe_error *err)
{
    (void)err;
    struct cpu *cpu = cpu_of(stream);
    struct gates g;
    size_t first = plan(&g.a, cpu, a->in_proj_a, a->u);
    plan(&g.b, cpu, a->in_proj_b, a->u);
    g.a.finish = store_g;
    g.a.y = a->g;
    g.a.A_log = a->A_log.data;
    g.a.dt_bias = a->dt_bias.data;
    g.b.finish = store_beta;
    g.b.y = a->beta;
    prepare(cpu, &g.a, a->scratch.data);
    if (g.b.kernel != g.a.kernel)
        prepare(cpu, &g.b, (unsigned char *)a->scratch.data + first);
    pool_run(cpu->pool, run_gates, &g);
    return LATHE_OK;
}

size_t cpu_gdn_gates_scratch(const void *stream, const struct gdn_gates_args *a)
{
    struct product p;
    size_t first = plan(&p, stream, a->in_proj_a, a->u);
    const struct linear_kernel *kernel = p.kernel;
    size_t second = plan(&p, stream, a->in_proj_b, a->u);
    return p.kernel == kernel ? first : first + second;
}

void linear_kernels_select(struct linear_kernels *k, enum cpu_isa isa)
{
    linear_generic(k);
#if defined(__x86_64__)
    if (isa >= ISA_AVX2 && isa <= ISA_AVX512BF16)
        linear_avx2(k);
    if (isa >= ISA_AVX512 && isa <= ISA_AVX512BF16)
        linear_avx512(k);
    if (isa == ISA_AVX512BF16)
        linear_avx512bf16(k);
#elif defined(__aarch64__)
    if (isa == ISA_NEON)
        linear_neon(k);
#else
    (void)isa;
#endif
}

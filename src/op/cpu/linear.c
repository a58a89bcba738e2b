/* op_linear on the CPU: activations are packed, then the threads share the weight rows.
 *
 * A thread takes its rows in panels. Per panel it goes through the columns in blocks, and per block
 * through the activation rows, so that the packed activations of a tile stay in the first cache, the
 * panel's codes and accumulators in the second, and memory is read once:
 *
 *   scratch   packed activations    [tile of max_x rows][unit of columns][row]
 *             each thread's sums    [tile of max_x rows][panel row][row][lane] */
#include <string.h>

#include "op/cpu/cpu.h"
#include "quant/parts.h"
#include "tensor/number.h"

enum {
    BATCH_ROWS = 128, /* activation rows that pass over a panel together: 256 KiB of accumulators */
    ALONE_ROWS = 4,   /* weight rows of a panel if there is one activation row */
    GRAIN = 4,        /* weight rows; what the kernels take at once */
    CACHE_LINE = 64,
};

/* One product as the threads see it. */
struct product {
    const struct linear_kernel *kernel;
    const struct weight *w;
    struct tensor in;
    int64_t block; /* columns */
    unsigned char *packed, *acc;
    size_t row_bytes; /* of a packed activation row */
    size_t acc_bytes; /* of one thread */
    /* Takes n finished sums of activation row t, weight rows row... */
    void (*store)(const struct product *p, float *sum, int64_t t, int64_t row, int32_t n);
    struct tensor y; /* of store */
    bool add;
    const float *A_log, *dt_bias;
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

/* Everything of p that follows from shapes; returns the bytes of scratch it takes. */
static size_t plan(struct product *p, const struct cpu *cpu, const struct weight *w,
                   struct tensor in)
{
    const struct linear_kernel *k = kernel_for(cpu, w->format, in.dtype);
    int64_t T = in.dim[0], n_x = min64(T, k->max_x);
    int64_t size = (int64_t)dtype_size(k->packed);
    *p = (struct product){.kernel = k, .w = w, .in = in};
    p->block = min64(k->max_cols, k->max_bytes / (n_x * size)) / k->group * k->group;
    if (p->block < k->group)
        p->block = k->group;
    p->row_bytes = (size_t)(round_up(w->cols, k->group) * size);
    p->acc_bytes = (size_t)(LINEAR_MAX_ROWS * min64(T, BATCH_ROWS)) * LINEAR_LANES * sizeof(float);
    return (size_t)round_up((int64_t)p->row_bytes * T, CACHE_LINE) +
           p->acc_bytes * (size_t)pool_threads(cpu->pool);
}

static void place(struct product *p, unsigned char *scratch)
{
    p->packed = scratch;
    p->acc = scratch + round_up((int64_t)p->row_bytes * p->in.dim[0], CACHE_LINE);
}

/* Address of the packed columns from k on of the tile that begins with activation row t. */
static unsigned char *packed_at(const struct product *p, int64_t t, int32_t n_x, int64_t k)
{
    return p->packed + (size_t)t * p->row_bytes + (size_t)(k * n_x) * dtype_size(p->kernel->packed);
}

static void pack_rows(void *ctx, int32_t thread, int32_t n_threads)
{
    const struct product *p = ctx;
    const struct linear_kernel *k = p->kernel;
    int64_t T = p->in.dim[0], t, end;
    pool_share(T, 1, thread, n_threads, &t, &end);
    for (; t < end; t++) {
        int64_t tile = t / k->max_x * k->max_x;
        int32_t n_x = (int32_t)min64(k->max_x, T - tile);
        k->pack(packed_at(p, tile, n_x, 0) + (t - tile) * LINEAR_UNIT, (size_t)n_x * LINEAR_UNIT,
                tensor_at(&p->in, t), p->in.dtype, p->w->cols);
    }
}

/* The sums of weight rows [row, row + n_rows) with activation rows [t0, t1). `ahead`: columns from a
 * row of this panel to the same of the next. */
static void panel(const struct product *p, float *acc, int64_t row, int32_t n_rows, int64_t t0,
                  int64_t t1, int64_t ahead)
{
    const struct linear_kernel *k = p->kernel;
    int64_t cols = p->w->cols, stride = n_rows * LINEAR_LANES;
    memset(acc, 0, (size_t)(stride * (t1 - t0)) * sizeof *acc);
    for (int64_t k0 = 0; k0 < cols; k0 += p->block) {
        int64_t k1 = min64(k0 + p->block, cols);
        for (int64_t t = t0; t < t1; t += k->max_x) {
            struct linear_tile tile = {
                .w = p->w,
                .row = row,
                .n_rows = n_rows,
                .n_x = (int32_t)min64(k->max_x, p->in.dim[0] - t),
                .k0 = k0,
                .k1 = k1,
                .acc = acc + (t - t0) * stride,
                .ahead = t > t0      ? 0
                         : k1 < cols ? p->block
                                     : ahead - k0,
            };
            tile.x = packed_at(p, t, tile.n_x, k0);
            k->tile(&tile);
        }
    }
    for (int64_t t = t0; t < t1; t++) {
        int64_t tile = t / k->max_x * k->max_x, n_x = min64(k->max_x, p->in.dim[0] - tile);
        float sum[LINEAR_MAX_ROWS];
        k->reduce(sum, acc + (tile - t0) * stride + (t - tile) * LINEAR_LANES, n_x * LINEAR_LANES,
                  n_rows);
        p->store(p, sum, t, row, n_rows);
    }
}

/* This thread's share of a product. */
static void product_rows(const struct product *p, int32_t thread, int32_t n_threads)
{
    int64_t T = p->in.dim[0], step = T == 1 ? ALONE_ROWS : LINEAR_MAX_ROWS;
    int64_t row, end, stride = p->w->codes.stride;
    if (p->w->format == WF_NVFP4)
        stride *= 2;
    float *acc = (float *)(void *)(p->acc + p->acc_bytes * (size_t)thread);
    pool_share(p->w->rows, GRAIN, thread, n_threads, &row, &end);
    for (; row < end; row += step) {
        int32_t n_rows = (int32_t)min64(step, end - row);
        int64_t ahead = row + step < end ? step * stride : 0;
        for (int64_t t = 0; t < T; t += BATCH_ROWS)
            panel(p, acc, row, n_rows, t, min64(t + BATCH_ROWS, T), t == 0 ? ahead : 0);
    }
}

static void run_product(void *ctx, int32_t thread, int32_t n_threads)
{
    product_rows(ctx, thread, n_threads);
}

/* Packing is worth a fork from about this many activations on. */
static void pack(struct cpu *cpu, struct product *p)
{
    bool small = p->in.dim[0] * p->w->cols < 32768;
    pool_run(small ? NULL : cpu->pool, pack_rows, p);
}

static void scale_rows(const struct product *p, float *sum, int64_t row, int32_t n)
{
    const struct weight *w = p->w;
    if (!p->kernel->raw)
        return;
    if (w->format == WF_FP8_ROW) {
        float scale[LINEAR_MAX_ROWS];
        to_f32(scale,
               (const unsigned char *)w->scales.data + (size_t)row * dtype_size(w->scales.dtype),
               w->scales.dtype, n);
        for (int32_t i = 0; i < n; i++)
            sum[i] *= scale[i];
    } else if (w->global != 1) {
        for (int32_t i = 0; i < n; i++)
            sum[i] *= w->global;
    }
}

static void store_linear(const struct product *p, float *sum, int64_t t, int64_t row, int32_t n)
{
    scale_rows(p, sum, row, n);
    if (p->y.dtype == DT_F32) {
        float *y = (float *)tensor_at(&p->y, t) + row;
        for (int32_t i = 0; i < n; i++)
            y[i] = p->add ? y[i] + sum[i] : sum[i];
    } else {
        uint16_t *y = (uint16_t *)tensor_at(&p->y, t) + row;
        for (int32_t i = 0; i < n; i++)
            y[i] = bf16_from_f32(p->add ? bf16_to_f32(y[i]) + sum[i] : sum[i]);
    }
}

lathe_status cpu_linear(void *stream, const struct linear_args *a, lathe_error *err)
{
    (void)err;
    struct cpu *cpu = cpu_of(stream);
    struct product p;
    plan(&p, cpu, a->w, a->in);
    place(&p, a->scratch.data);
    p.store = store_linear;
    p.y = a->y;
    p.add = a->add;
    pack(cpu, &p);
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
static void store_g(const struct product *p, float *sum, int64_t t, int64_t row, int32_t n)
{
    scale_rows(p, sum, row, n);
    float *y = (float *)tensor_at(&p->y, t) + row;
    for (int32_t i = 0; i < n; i++) {
        float v = sum[i] + p->dt_bias[row + i];
        y[i] = -expf(p->A_log[row + i]) * (v > 20 ? v : log1pf(expf(v)));
    }
}

/* beta = sigmoid(sum) */
static void store_beta(const struct product *p, float *sum, int64_t t, int64_t row, int32_t n)
{
    scale_rows(p, sum, row, n);
    float *y = (float *)tensor_at(&p->y, t) + row;
    for (int32_t i = 0; i < n; i++)
        y[i] = 1 / (1 + expf(-sum[i]));
}

/* The two products of the gates: one fork. */
struct gates {
    struct product a, b;
};

static void run_gates(void *ctx, int32_t thread, int32_t n_threads)
{
    const struct gates *g = ctx;
    product_rows(&g->a, thread, n_threads);
    product_rows(&g->b, thread, n_threads);
}

/* Weights of one format share the packed activations. */
static size_t plan_gates(struct gates *g, const struct cpu *cpu, const struct gdn_gates_args *a)
{
    size_t first = plan(&g->a, cpu, a->in_proj_a, a->u);
    size_t second = plan(&g->b, cpu, a->in_proj_b, a->u);
    return g->a.kernel == g->b.kernel ? first : first + second;
}

lathe_status cpu_gdn_gates(void *stream, const struct gdn_gates_args *a, lathe_error *err)
{
    (void)err;
    struct cpu *cpu = cpu_of(stream);
    struct gates g;
    size_t bytes = plan_gates(&g, cpu, a);
    place(&g.a, a->scratch.data);
    g.b.packed = g.a.packed;
    g.b.acc = g.a.acc;
    g.a.store = store_g;
    g.a.y = a->g;
    g.a.A_log = a->A_log.data;
    g.a.dt_bias = a->dt_bias.data;
    g.b.store = store_beta;
    g.b.y = a->beta;
    pack(cpu, &g.a);
    if (g.b.kernel != g.a.kernel) {
        struct product p;
        place(&g.b, (unsigned char *)a->scratch.data + bytes - plan(&p, cpu, a->in_proj_b, a->u));
        pack(cpu, &g.b);
    }
    pool_run(cpu->pool, run_gates, &g);
    return LATHE_OK;
}

size_t cpu_gdn_gates_scratch(const void *stream, const struct gdn_gates_args *a)
{
    struct gates g;
    return plan_gates(&g, stream, a);
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

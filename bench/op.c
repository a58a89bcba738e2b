/* bench/op: what every operator reaches at the shapes of the 27B model, beside what the machine can do.
 *
 *   op [--op NAME] [--format NAME] [--rows N] [--shape ROWSxCOLS] [--threads N] [--isa NAME]
 *      [--act bf16|f32] [--seconds S] [--pin]
 *
 * Weights are random code words in several copies, which together exceed every cache. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "op/backend.h"
#include "op/op.h"
#include "tensor/number.h"

enum { COPY_BYTES = 128 << 20 };

struct options {
    const char *op, *format, *shape, *isa;
    int64_t rows;
    int32_t n_threads;
    enum dtype act;
    double seconds;
    bool pin;
};

struct run {
    const struct options *o;
    struct bench *bench;
    struct exec exec;
};

static uint64_t state = 1;

static uint64_t random_u64(void) /* splitmix64 */
{
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static void *memory(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 127) & ~(size_t)63);
    if (!p) {
        fprintf(stderr, "op: out of memory (%zu bytes)\n", bytes);
        exit(1);
    }
    return p;
}

static void *random_bytes(size_t bytes)
{
    uint64_t *p = memory(bytes);
    for (size_t i = 0; i <= bytes / 8; i++)
        p[i] = random_u64();
    return p;
}

static struct tensor activations(enum dtype act, int64_t rows, int64_t cols)
{
    struct tensor t = tensor_2d(NULL, act, rows, cols);
    unsigned char *p = t.data = memory((size_t)(rows * cols) * dtype_size(act));
    for (int64_t i = 0; i < rows * cols; i++) {
        float x = (float)((int)(random_u64() % 2001) - 1000) / 1000;
        from_f32(p + (size_t)i * dtype_size(act), act, &x, 1);
    }
    return t;
}

/* Random codes: of BF16 and FP8 without NaN, infinity and huge values. */
static struct weight random_weight(enum weight_format_id format, int64_t rows, int64_t cols)
{
    struct weight w;
    lathe_error err;
    if (weight_formats[format].layout(&w, rows, cols, DT_BF16, &err)) {
        fprintf(stderr, "op: %s\n", err.message);
        exit(1);
    }
    size_t bytes = (size_t)tensor_elements(&w.codes) * dtype_size(w.codes.dtype);
    uint8_t *p = w.codes.data = random_bytes(bytes);
    if (w.codes.dtype == DT_F8_E4M3)
        for (size_t i = 0; i < bytes; i++)
            p[i] &= 0xBF;
    else if (w.codes.dtype == DT_BF16 || w.codes.dtype == DT_F16)
        for (size_t i = 1; i < bytes; i += 2)
            p[i] = (uint8_t)((p[i] & 0x83) | 0x38);
    else if (w.codes.dtype == DT_F32)
        for (size_t i = 3; i < bytes; i += 4)
            p[i] = (uint8_t)((p[i] & 0x83) | 0x38);
    if (w.scales.n_dims) {
        bytes = (size_t)tensor_elements(&w.scales) * dtype_size(w.scales.dtype);
        p = w.scales.data = random_bytes(bytes);
        for (size_t i = 0; i < bytes; i++)
            p[i] = (uint8_t)(w.scales.dtype == DT_F8_E4M3 ? (p[i] & 0x3F) + 8 : (p[i] & 3) | 0x3C);
    }
    w.global = 0.01f;
    return w;
}

static void free_weight(const struct weight *w)
{
    free(w->codes.data);
    free(w->scales.data);
}

struct linear_ctx {
    struct run *run;
    struct weight *w;
    struct tensor in, y;
};

static void call_linear(void *ctx, int64_t copy)
{
    struct linear_ctx *c = ctx;
    exec_begin(&c->run->exec);
    op_linear(&c->run->exec, c->y, c->in, &c->w[copy]);
}

static void linear_case(struct run *r, enum weight_format_id format, int64_t rows, int64_t cols)
{
    static const int64_t row_counts[] = {1, 8, 512};
    const struct options *o = r->o;
    char shape[32];
    snprintf(shape, sizeof shape, "%lldx%lld", (long long)rows, (long long)cols);
    if (o->shape && strcmp(o->shape, shape) != 0)
        return;
    struct weight first = random_weight(format, rows, cols);
    int64_t n_copies = COPY_BYTES / (int64_t)weight_bytes(&first) + 1;
    struct weight *w = memory((size_t)n_copies * sizeof *w);
    w[0] = first;
    for (int64_t i = 1; i < n_copies; i++)
        w[i] = random_weight(format, rows, cols);
    for (int i = 0; i < 3; i++) {
        int64_t T = o->rows ? o->rows : row_counts[i];
        struct linear_ctx ctx = {
            .run = r,
            .w = w,
            .in = activations(o->act, T, cols),
            .y = activations(o->act, T, rows),
        };
        struct bench_case c = {
            .op = "linear",
            .what = weight_formats[format].name,
            .shape = shape,
            .rows = T,
            .bytes = (double)weight_bytes(&first),
            .ops = 2. * (double)T * (double)rows * (double)cols,
            .dots = o->act == DT_BF16 &&
                    strcmp(r->exec.backend->isa(r->exec.stream), "avx512bf16") == 0,
            .n_copies = T > 64 ? 1 : n_copies,
            .call = call_linear,
            .ctx = &ctx,
        };
        bench_run(r->bench, &c, o->seconds);
        free(ctx.in.data);
        free(ctx.y.data);
        if (o->rows)
            break;
    }
    for (int64_t i = 0; i < n_copies; i++)
        free_weight(&w[i]);
    free(w);
}

static void linear(struct run *r)
{
    static const int64_t shapes[][2] = {
        {17408, 5120}, {5120, 17408}, {10240, 5120}, {6144, 5120},
        {5120, 6144},  {12288, 5120}, {1024, 5120},
    };
    static const enum weight_format_id formats[] = {WF_NVFP4, WF_FP8_ROW, WF_BF16};
    for (int f = 0; f < WF_COUNT; f++) {
        bool wanted = false;
        for (int i = 0; i < 3; i++)
            wanted |= formats[i] == (enum weight_format_id)f;
        if (r->o->format)
            wanted = strcmp(r->o->format, weight_formats[f].name) == 0;
        for (size_t i = 0; wanted && i < sizeof shapes / sizeof shapes[0]; i++)
            linear_case(r, (enum weight_format_id)f, shapes[i][0], shapes[i][1]);
    }
}

static const struct {
    const char *name;
    void (*run)(struct run *r);
} operators[] = {
    {"linear", linear},
};

static void usage(void)
{
    fprintf(stderr,
            "usage: op [--op NAME] [--format NAME] [--rows N] [--shape ROWSxCOLS] [--threads N]\n"
            "          [--isa NAME] [--act bf16|f32] [--seconds S] [--pin]\n");
    exit(2);
}

static struct options parse(int argc, char **argv)
{
    struct options o = {.act = DT_BF16, .seconds = 1};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--pin") == 0) {
            o.pin = true;
            continue;
        }
        const char *name = argv[i], *value = i + 1 < argc ? argv[++i] : NULL;
        if (!value)
            usage();
        if (strcmp(name, "--op") == 0)
            o.op = value;
        else if (strcmp(name, "--format") == 0)
            o.format = value;
        else if (strcmp(name, "--rows") == 0)
            o.rows = atoll(value);
        else if (strcmp(name, "--shape") == 0)
            o.shape = value;
        else if (strcmp(name, "--threads") == 0)
            o.n_threads = atoi(value);
        else if (strcmp(name, "--isa") == 0)
            o.isa = value;
        else if (strcmp(name, "--seconds") == 0)
            o.seconds = atof(value);
        else if (strcmp(name, "--act") == 0)
            o.act = strcmp(value, "f32") == 0 ? DT_F32 : DT_BF16;
        else
            usage();
    }
    return o;
}

int main(int argc, char **argv)
{
    enum { WORKSPACE = 256 << 20 };
    struct options o = parse(argc, argv);
    struct run r = {.o = &o};
    struct pool *pool;
    void *stream;
    lathe_error err;
    if (pool_open(&pool, o.n_threads, o.pin, &err) ||
        backend_cpu.open(&stream, pool, o.isa, &err)) {
        fprintf(stderr, "op: %s\n", err.message);
        return 1;
    }
    exec_init(&r.exec, &backend_cpu, stream, memory(WORKSPACE), WORKSPACE);
    r.bench = bench_open(pool);
    if (!r.bench)
        return 1;
    printf("%d threads, %s, %s activations\n", pool_threads(pool), backend_cpu.isa(stream),
           dtype_name(o.act));
    bench_header();
    for (size_t i = 0; i < sizeof operators / sizeof operators[0]; i++)
        if (!o.op || strcmp(o.op, operators[i].name) == 0)
            operators[i].run(&r);
    if (r.exec.status)
        fprintf(stderr, "op: %s\n", r.exec.err.message);
    bench_close(r.bench);
    backend_cpu.close(stream);
    pool_close(pool);
    free(r.exec.base);
    return r.exec.status != 0;
}

/* What products of few rows make of a GPU's memory: bytes of weights over time, beside a copy's. Shapes are those of
 * the 27B's matrices; operators that a pass joins are timed whole, with what they do for the norms between them. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "op/backend.h"
#include "op/exec.h"
#include "random.h"

enum { COPIES_BYTES = 768 << 20, REPEATS = 7, MAX_COPIES = 256 };

static cudaStream_t raw;
static void *stream;

static void must(lathe_status st, const lathe_error *err)
{
    if (st) {
        fprintf(stderr, "gpu_linear: %s\n", err->message);
        exit(1);
    }
}

static void *device(const void *from, size_t bytes)
{
    void *p;
    lathe_error err;
    must(backend_cuda.alloc(stream, &p, bytes, &err), &err);
    if (from)
        backend_cuda.copy_in(stream, p, from, bytes);
    must(backend_cuda.wait(stream, &err), &err);
    return p;
}

static double ms_between(cudaEvent_t a, cudaEvent_t b)
{
    float ms = 0;
    (void)cudaEventSynchronize(b);
    (void)cudaEventElapsedTime(&ms, a, b);
    return (double)ms;
}

static double copy_rate(cudaEvent_t a, cudaEvent_t b)
{
    size_t n = (size_t)1 << 30;
    void *x = device(NULL, n), *y = device(NULL, n);
    double best = 1e9;
    for (int i = 0; i < 10; i++) {
        (void)cudaEventRecord(a, raw);
        (void)cudaMemcpyAsync(y, x, n, cudaMemcpyDeviceToDevice, raw);
        (void)cudaEventRecord(b, raw);
        double ms = ms_between(a, b);
        best = ms < best ? ms : best;
    }
    backend_cuda.free(stream, x);
    backend_cuda.free(stream, y);
    return 2. * (double)n / best * 1e3;
}

struct bench {
    struct exec x;
    cudaEvent_t begin, end;
    double copy; /* bytes a second, read and written */
};

enum kind { LINEAR, LINEARS, LINEAR_SILU_MUL, GDN_PROJECT, LINEAR_ADD_NORM };
static const char *const names[] = {"linear", "linears", "linear_silu_mul", "gdn_project",
                                    "linear_add_norm"};

/* An operator's matrices of one input. */
struct product {
    enum kind kind;
    enum weight_format_id format;
    int64_t cols, rows[3];
    int n;
};

enum { GDN_HEADS = 48, MOST_PARTS = 5 };

/* Copies of a product's matrices that together exceed every cache, as they lie after loading. */
struct copies {
    struct weight w[MOST_PARTS][MAX_COPIES];
    int n_parts, n;
    double bytes; /* of one copy */
};

static void copy_matrices(struct weight *to, int n, enum weight_format_id format, int64_t rows,
                          int64_t cols)
{
    struct weight first = random_weight(format, rows, cols), *list[MAX_COPIES];
    lathe_error err;
    if (format == WF_NVFP4)
        for (int64_t i = 0; i < tensor_elements(&first.scales); i++)
            ((uint8_t *)first.scales.data)[i] &= 0x7F;
    for (int i = 0; i < n; i++) {
        struct tensor *scales = &first.scales;
        to[i] = first;
        to[i].codes.data = device(first.codes.data, (size_t)tensor_elements(&first.codes) *
                                                        dtype_size(first.codes.dtype));
        if (scales->data)
            to[i].scales.data =
                device(scales->data, (size_t)tensor_elements(scales) * dtype_size(scales->dtype));
        list[i] = &to[i];
    }
    must(backend_cuda.arrange(stream, list, (size_t)n, &err), &err);
    release_memory();
}

static void copies_open(struct copies *c, const struct product *p)
{
    int64_t rows[MOST_PARTS];
    enum weight_format_id format[MOST_PARTS];
    c->n_parts = 0;
    c->bytes = 0;
    for (int i = 0; i < p->n; i++, c->n_parts++) {
        rows[c->n_parts] = p->rows[i];
        format[c->n_parts] = p->format;
    }
    for (int i = 0; i < 2 && p->kind == GDN_PROJECT; i++, c->n_parts++) {
        rows[c->n_parts] = GDN_HEADS;
        format[c->n_parts] = WF_BF16;
    }
    for (int i = 0; i < c->n_parts; i++) {
        struct weight w;
        lathe_error err;
        must(weight_formats[format[i]].layout(&w, rows[i], p->cols, DT_BF16, &err), &err);
        c->bytes += (double)weight_bytes(&w);
    }
    c->n = (int)(COPIES_BYTES / c->bytes) + 1;
    if (c->n > MAX_COPIES)
        c->n = MAX_COPIES;
    c->bytes = 0;
    for (int i = 0; i < c->n_parts; i++) {
        copy_matrices(c->w[i], c->n, format[i], rows[i], p->cols);
        c->bytes += (double)weight_bytes(c->w[i]);
    }
}

static void copies_close(struct copies *c)
{
    for (int i = 0; i < c->n_parts; i++)
        for (int k = 0; k < c->n; k++) {
            backend_cuda.free(stream, c->w[i][k].codes.data);
            backend_cuda.free(stream, c->w[i][k].scales.data);
        }
}

struct operands {
    struct tensor in, y[MOST_PARTS], norm, head, squares, u;
};

static void call(struct exec *x, enum phase phase, enum kind kind, const struct operands *o,
                 const struct copies *c, int k)
{
    const struct weight *w[MOST_PARTS];
    struct normed in = {.h = o->in,
                        .u = o->in,
                        .squares = o->squares,
                        .w = o->norm,
                        .eps = 1e-6f,
                        .unscaled = phase != PHASE_PREFILL};
    for (int i = 0; i < c->n_parts; i++)
        w[i] = &c->w[i][k];
    exec_begin(x);
    (void)exec_phase(x, phase);
    if (kind == LINEAR) {
        op_linear(x, o->y[0], o->in, w[0]);
    } else if (kind == LINEARS) {
        op_linears(x, c->n_parts, o->y, &in, w);
    } else if (kind == LINEAR_SILU_MUL) {
        op_linear_silu_mul(x, o->y[0], &in, w[0], w[1]);
    } else if (kind == LINEAR_ADD_NORM) {
        struct normed out = {.h = o->y[0], .u = o->u, .squares = o->squares, .eps = 1e-6f};
        op_linear_add_norm(x, &out, o->in, w[0], o->norm);
    } else {
        struct gdn_projected out = {o->y[0], o->y[1], o->y[2], o->y[3]};
        struct gdn_inputs weights = {w[0], w[1], w[2], w[3], o->head, o->head};
        op_gdn_project(x, &out, &in, &weights);
    }
}

static struct tensor on_device(struct tensor t)
{
    t.data = device(t.data, (size_t)tensor_elements(&t) * dtype_size(t.dtype));
    return t;
}

static void measure(struct bench *b, const struct product *p, const struct copies *c,
                    enum phase phase, int32_t T)
{
    lathe_error err;
    double best = 1e9;
    int64_t rows = 0;
    int64_t longest =
        p->cols > p->rows[0] ? p->cols : p->rows[0]; /* norms are of the input or of the result */
    struct operands o = {
        .in = on_device(numbers(DT_BF16, T, p->cols)),
        .norm = on_device(numbers(DT_F32, 1, longest)),
        .head = on_device(numbers(DT_F32, 1, GDN_HEADS)),
        .squares = on_device(zeros(DT_F32, T, longest / OP_NORM_PART)),
        .u = on_device(zeros(DT_BF16, T, p->rows[0])),
    };
    o.norm = tensor_1d(o.norm.data, DT_F32, p->kind == LINEAR_ADD_NORM ? p->rows[0] : p->cols);
    o.head = tensor_1d(o.head.data, DT_F32, GDN_HEADS);
    for (int i = 0; i < c->n_parts; i++)
        o.y[i] = on_device(zeros(i < p->n ? DT_BF16 : DT_F32, T, c->w[i]->rows));
    for (int i = 0; i < p->n; i++)
        rows += p->rows[i];
    for (int r = 0; r < REPEATS; r++) {
        (void)cudaEventRecord(b->begin, raw);
        for (int k = 0; k < 2 * c->n; k++)
            call(&b->x, phase, p->kind, &o, c, k % c->n);
        (void)cudaEventRecord(b->end, raw);
        double ms = ms_between(b->begin, b->end) / (2 * c->n);
        best = ms < best ? ms : best;
    }
    must(exec_end(&b->x, &err), &err);
    printf("%-15s %-8s %6lldx%-6lld %3d rows%s %8.1f us %6.2f TB/s %5.1f %% of a copy\n",
           names[p->kind], weight_formats[p->format].name, (long long)rows, (long long)p->cols, T,
           phase == PHASE_PREFILL ? " of a prompt" : "", 1e3 * best, c->bytes / best * 1e-9,
           100 * c->bytes / best * 1e3 / b->copy);
    backend_cuda.free(stream, o.in.data);
    backend_cuda.free(stream, o.norm.data);
    backend_cuda.free(stream, o.squares.data);
    backend_cuda.free(stream, o.u.data);
    backend_cuda.free(stream, o.head.data);
    for (int i = 0; i < c->n_parts; i++)
        backend_cuda.free(stream, o.y[i].data);
    release_memory();
}

int main(int argc, char **argv)
{
    static const struct product product[] = {
        {LINEAR, WF_NVFP4, 5120, {17408}, 1},
        {LINEAR, WF_NVFP4, 5120, {34816}, 1},
        {LINEAR, WF_NVFP4, 17408, {5120}, 1},
        {LINEAR, WF_FP8_ROW, 5120, {16384}, 1},
        {LINEAR, WF_FP8_ROW, 5120, {14336}, 1},
        {LINEAR, WF_FP8_ROW, 6144, {5120}, 1},
        {LINEAR, WF_FP8_ROW, 5120, {34816}, 1},
        {LINEAR, WF_FP8_ROW, 17408, {5120}, 1},
        {LINEAR, WF_FP8_ROW, 5120, {1024}, 1},
        {LINEAR, WF_FP8_ROW, 5120, {248320}, 1},
        {LINEAR_ADD_NORM, WF_NVFP4, 17408, {5120}, 1},
        {LINEAR_ADD_NORM, WF_FP8_ROW, 17408, {5120}, 1},
        {LINEAR_ADD_NORM, WF_FP8_ROW, 6144, {5120}, 1},
        {LINEAR, WF_BF16, 5120, {17408}, 1},
        {LINEAR, WF_BF16, 17408, {5120}, 1},
        {LINEAR_SILU_MUL, WF_NVFP4, 5120, {17408, 17408}, 2},
        {LINEAR_SILU_MUL, WF_FP8_ROW, 5120, {17408, 17408}, 2},
        {LINEARS, WF_FP8_ROW, 5120, {12288, 1024, 1024}, 3},
        {GDN_PROJECT, WF_FP8_ROW, 5120, {10240, 6144}, 2},
    };
    static const int32_t rows[] = {1, 8, 16}, prompt[] = {16, 32, 64, 128, 256};
    static struct copies copies;
    struct bench b;
    lathe_error err;
    size_t workspace = 512 << 20;
    (void)argv;
    if (argc > 1) {
        fprintf(stderr, "usage: gpu_linear\n");
        return 2;
    }
    must(backend_cuda.open(&stream, NULL, NULL, &err), &err);
    raw = backend_cuda.native(stream);
    (void)cudaEventCreate(&b.begin);
    (void)cudaEventCreate(&b.end);
    exec_init(&b.x, &backend_cuda, stream, device(NULL, workspace), workspace);
    b.copy = copy_rate(b.begin, b.end);
    printf("a copy: %.2f TB/s read and written\n", b.copy * 1e-12);
    for (size_t s = 0; s < sizeof product / sizeof *product; s++) {
        copies_open(&copies, &product[s]);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            measure(&b, &product[s], &copies, PHASE_DECODE, rows[i]);
        for (size_t i = 0; i < sizeof prompt / sizeof *prompt; i++)
            measure(&b, &product[s], &copies, PHASE_PREFILL, prompt[i]);
        copies_close(&copies);
    }
    return 0;
}

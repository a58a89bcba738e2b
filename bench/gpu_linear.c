/* What linear's kernels for few rows make of a GPU's memory: bytes over time, beside a copy's.
 * Shapes are those of the 27B's matrices, those that a pass joins joined. */
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

/* Copies of a matrix that together exceed every cache, as they lie after loading. */
struct copies {
    struct weight w[MAX_COPIES];
    int n;
};

static void copies_open(struct copies *c, enum weight_format_id format, int64_t rows, int64_t cols)
{
    struct weight first = random_weight(format, rows, cols), *list[MAX_COPIES];
    lathe_error err;
    if (format == WF_NVFP4)
        for (int64_t i = 0; i < tensor_elements(&first.scales); i++)
            ((uint8_t *)first.scales.data)[i] &= 0x7F;
    c->n = (int)(COPIES_BYTES / weight_bytes(&first)) + 1;
    if (c->n > MAX_COPIES)
        c->n = MAX_COPIES;
    for (int i = 0; i < c->n; i++) {
        struct tensor *scales = &first.scales;
        c->w[i] = first;
        c->w[i].codes.data = device(first.codes.data, (size_t)tensor_elements(&first.codes) *
                                                          dtype_size(first.codes.dtype));
        if (scales->data)
            c->w[i].scales.data =
                device(scales->data, (size_t)tensor_elements(scales) * dtype_size(scales->dtype));
        list[i] = &c->w[i];
    }
    must(backend_cuda.arrange(stream, list, (size_t)c->n, &err), &err);
    release_memory();
}

static void copies_close(struct copies *c)
{
    for (int i = 0; i < c->n; i++) {
        backend_cuda.free(stream, c->w[i].codes.data);
        backend_cuda.free(stream, c->w[i].scales.data);
    }
}

static void measure(struct bench *b, const struct copies *c, int32_t T)
{
    const struct weight *w = c->w;
    lathe_error err;
    struct tensor in = numbers(DT_BF16, T, w->cols), y = zeros(DT_BF16, T, w->rows);
    double best = 1e9, bytes = (double)weight_bytes(w);
    in.data = device(in.data, (size_t)tensor_elements(&in) * sizeof(uint16_t));
    y.data = device(NULL, (size_t)tensor_elements(&y) * sizeof(uint16_t));
    for (int r = 0; r < REPEATS; r++) {
        (void)cudaEventRecord(b->begin, raw);
        for (int k = 0; k < 2 * c->n; k++) {
            exec_begin(&b->x);
            op_linear(&b->x, y, in, &w[k % c->n]);
        }
        (void)cudaEventRecord(b->end, raw);
        double ms = ms_between(b->begin, b->end) / (2 * c->n);
        best = ms < best ? ms : best;
    }
    must(exec_end(&b->x, &err), &err);
    printf("%-10s %6lldx%-6lld %2d rows %8.1f us %6.2f TB/s %5.1f %% of a copy\n",
           weight_formats[w->format].name, (long long)w->rows, (long long)w->cols, T, 1e3 * best,
           bytes / best * 1e-9, 100 * bytes / best * 1e3 / b->copy);
    backend_cuda.free(stream, in.data);
    backend_cuda.free(stream, y.data);
    release_memory();
}

int main(int argc, char **argv)
{
    static const struct {
        enum weight_format_id format;
        int64_t rows, cols;
    } shape[] = {
        {WF_NVFP4, 17408, 5120},    {WF_NVFP4, 34816, 5120},   {WF_NVFP4, 5120, 17408},
        {WF_FP8_ROW, 16384, 5120},  {WF_FP8_ROW, 14336, 5120}, {WF_FP8_ROW, 5120, 6144},
        {WF_FP8_ROW, 34816, 5120},  {WF_FP8_ROW, 5120, 17408}, {WF_FP8_ROW, 1024, 5120},
        {WF_FP8_ROW, 248320, 5120}, {WF_BF16, 17408, 5120},    {WF_BF16, 5120, 17408},
    };
    static const int32_t rows[] = {1, 8, 16};
    static struct copies copies;
    struct bench b;
    lathe_error err;
    size_t workspace = 64 << 20;
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
    for (size_t s = 0; s < sizeof shape / sizeof *shape; s++) {
        copies_open(&copies, shape[s].format, shape[s].rows, shape[s].cols);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            measure(&b, &copies, rows[i]);
        copies_close(&copies);
    }
    return 0;
}

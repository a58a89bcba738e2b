/* What products of few rows make of a GPU's memory: bytes of weights over time, beside a copy's. Shapes are those of
 * the 27B's matrices and its drafters'; operators that a pass joins are timed whole, with what they do for the norms
 * between them.
 *   gpu_linear [--op NAME] [--format NAME] [--shape ROWSxCOLS] [--rows N]
 * Each option keeps the lines that have its value; ROWS are those of all matrices of a product. */
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
    enum dtype result;
    bool is_draft; /* of a drafter: no rows of a prompt's phase, and norms are taken before */
};

static const struct product products[] = {
    {LINEAR, WF_NVFP4, 5120, {17408}, 1, DT_BF16, false},
    {LINEAR, WF_NVFP4, 5120, {34816}, 1, DT_BF16, false},
    {LINEAR, WF_NVFP4, 17408, {5120}, 1, DT_BF16, false},
    {LINEAR, WF_FP8_ROW, 5120, {16384}, 1, DT_BF16, false},
    {LINEAR, WF_FP8_ROW, 5120, {14336}, 1, DT_BF16, false},
    {LINEAR, WF_FP8_ROW, 6144, {5120}, 1, DT_BF16, false},
    {LINEAR, WF_FP8_ROW, 5120, {34816}, 1, DT_BF16, false},
    {LINEAR, WF_FP8_ROW, 17408, {5120}, 1, DT_BF16, false},
    {LINEAR, WF_FP8_ROW, 5120, {1024}, 1, DT_BF16, false},
    {LINEAR, WF_FP8_ROW, 5120, {248320}, 1, DT_BF16, false},
    {LINEAR_ADD_NORM, WF_NVFP4, 17408, {5120}, 1, DT_BF16, false},
    {LINEAR_ADD_NORM, WF_FP8_ROW, 17408, {5120}, 1, DT_BF16, false},
    {LINEAR_ADD_NORM, WF_FP8_ROW, 6144, {5120}, 1, DT_BF16, false},
    {LINEAR, WF_FP8_BLOCK, 5120, {17408}, 1, DT_BF16, false},
    {LINEAR, WF_FP8_BLOCK, 17408, {5120}, 1, DT_BF16, false},
    {LINEAR, WF_BF16, 5120, {17408}, 1, DT_BF16, false},
    {LINEAR, WF_BF16, 17408, {5120}, 1, DT_BF16, false},
    {LINEAR_SILU_MUL, WF_NVFP4, 5120, {17408, 17408}, 2, DT_BF16, false},
    {LINEAR_SILU_MUL, WF_FP8_ROW, 5120, {17408, 17408}, 2, DT_BF16, false},
    {LINEARS, WF_FP8_ROW, 5120, {12288, 1024, 1024}, 3, DT_BF16, false},
    {GDN_PROJECT, WF_FP8_ROW, 5120, {10240, 6144}, 2, DT_BF16, false},
    {LINEAR, WF_BF16, 10240, {5120}, 1, DT_BF16, true},                /* MTP: fc */
    {LINEARS, WF_FP8_ROW, 5120, {1024, 1024}, 2, DT_BF16, true},       /* contexts: k, v */
    {LINEAR, WF_FP8_ROW, 25600, {5120}, 1, DT_BF16, true},             /* DFlash2: fc */
    {LINEARS, WF_FP8_ROW, 5120, {4096, 1024, 1024}, 3, DT_BF16, true}, /* q, k, v */
    {LINEAR, WF_FP8_ROW, 4096, {5120}, 1, DT_BF16, true},              /* o */
    {LINEAR, WF_BF16, 5120, {1280}, 1, DT_F32, true}, /* kernel_projection, of more than 8 rows */
    {LINEAR, WF_BF16, 5120, {256}, 1, DT_F32, true},  /* hidden_projection */
};
enum { N_PRODUCTS = sizeof products / sizeof *products };

/* Rows that come together. */
static const struct group {
    enum phase phase;
    int32_t T;
} groups[] = {{PHASE_DECODE, 1},   {PHASE_DECODE, 8},   {PHASE_DECODE, 16},   {PHASE_PREFILL, 16},
              {PHASE_PREFILL, 32}, {PHASE_PREFILL, 64}, {PHASE_PREFILL, 128}, {PHASE_PREFILL, 256}};
enum { N_GROUPS = sizeof groups / sizeof *groups };

static int64_t all_rows(const struct product *p)
{
    int64_t rows = 0;
    for (int i = 0; i < p->n; i++)
        rows += p->rows[i];
    return rows;
}

/* ---- Options --------------------------------------------------------------------------------- */

enum option { OP, FORMAT, SHAPE, ROWS, N_OPTIONS };
static const char *const option_names[N_OPTIONS] = {"--op", "--format", "--shape", "--rows"};

enum { MAX_WORD = 48 };

/* What a line has for an option. */
static void word_of(char word[MAX_WORD], enum option option, const struct product *p,
                    const struct group *g)
{
    if (option == OP)
        (void)snprintf(word, MAX_WORD, "%s", names[p->kind]);
    else if (option == FORMAT)
        (void)snprintf(word, MAX_WORD, "%s", weight_formats[p->format].name);
    else if (option == SHAPE)
        (void)snprintf(word, MAX_WORD, "%lldx%lld", (long long)all_rows(p), (long long)p->cols);
    else
        (void)snprintf(word, MAX_WORD, "%d", g->T);
}

/* Is the line one that the options leave? */
static bool is_kept(const char *const value[N_OPTIONS], const struct product *p,
                    const struct group *g)
{
    char word[MAX_WORD];
    if (p->is_draft && g->phase == PHASE_PREFILL)
        return false;
    for (int i = 0; i < N_OPTIONS; i++) {
        word_of(word, (enum option)i, p, g);
        if (value[i] && strcmp(value[i], word) != 0)
            return false;
    }
    return true;
}

static int count_kept(const char *const value[N_OPTIONS])
{
    int n = 0;
    for (int i = 0; i < N_PRODUCTS * N_GROUPS; i++)
        n += is_kept(value, &products[i / N_GROUPS], &groups[i % N_GROUPS]);
    return n;
}

/* Tells what lines have for the option. */
static _Noreturn void refuse(enum option option, const char *value)
{
    enum { N_LINES = N_PRODUCTS * N_GROUPS };
    static char word[N_LINES][MAX_WORD];
    int n = 0;
    fprintf(stderr, "gpu_linear: %s is \"%s\", expected", option_names[option], value);
    for (int i = 0; i < N_LINES; i++) {
        int k = 0;
        word_of(word[n], option, &products[i / N_GROUPS], &groups[i % N_GROUPS]);
        while (strcmp(word[k], word[n]) != 0)
            k++;
        if (k == n)
            fprintf(stderr, "%s %s", k ? "," : "", word[n++]);
    }
    fprintf(stderr, "\n");
    exit(2);
}

static void parse(const char *value[N_OPTIONS], int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        int k = 0;
        while (k < N_OPTIONS && strcmp(argv[i], option_names[k]) != 0)
            k++;
        if (k == N_OPTIONS || i + 1 == argc) {
            fprintf(stderr, "gpu_linear: %s: %s\n", argv[i],
                    k < N_OPTIONS ? "a value is missing"
                                  : "expected --op, --format, --shape, --rows");
            exit(2);
        }
        const char *only[N_OPTIONS] = {[0] = NULL};
        value[k] = only[k] = argv[i + 1];
        if (!count_kept(only))
            refuse((enum option)k, value[k]);
    }
    if (!count_kept(value)) {
        fprintf(stderr, "gpu_linear: no line has all that the options name\n");
        exit(2);
    }
}

/* ---- Operands -------------------------------------------------------------------------------- */

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

static void call(struct exec *x, const struct product *p, enum phase phase,
                 const struct operands *o, const struct copies *c, int k)
{
    enum kind kind = p->kind;
    const struct weight *w[MOST_PARTS];
    struct normed in = {.h = o->in,
                        .u = o->in,
                        .squares = o->squares,
                        .w = o->norm,
                        .eps = 1e-6f,
                        .unscaled = phase != PHASE_PREFILL && !p->is_draft};
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
        o.y[i] = on_device(zeros(i < p->n ? p->result : DT_F32, T, c->w[i]->rows));
    for (int r = 0; r < REPEATS; r++) {
        (void)cudaEventRecord(b->begin, raw);
        for (int k = 0; k < 2 * c->n; k++)
            call(&b->x, p, phase, &o, c, k % c->n);
        (void)cudaEventRecord(b->end, raw);
        double ms = ms_between(b->begin, b->end) / (2 * c->n);
        best = ms < best ? ms : best;
    }
    must(exec_end(&b->x, &err), &err);
    printf("%-15s %-9s %6lldx%-6lld %3d rows%s %8.1f us %6.2f TB/s %5.1f %% of a copy\n",
           names[p->kind], weight_formats[p->format].name, (long long)all_rows(p),
           (long long)p->cols, T, phase == PHASE_PREFILL ? " of a prompt" : "", 1e3 * best,
           c->bytes / best * 1e-9, 100 * c->bytes / best * 1e3 / b->copy);
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
    const char *value[N_OPTIONS] = {[0] = NULL};
    static struct copies copies;
    struct bench b;
    lathe_error err;
    size_t workspace = 512 << 20;
    parse(value, argc, argv);
    must(backend_cuda.open(&stream, NULL, NULL, &err), &err);
    raw = backend_cuda.native(stream);
    (void)cudaEventCreate(&b.begin);
    (void)cudaEventCreate(&b.end);
    exec_init(&b.x, &backend_cuda, stream, device(NULL, workspace), workspace);
    b.copy = copy_rate(b.begin, b.end);
    printf("a copy: %.2f TB/s read and written\n", b.copy * 1e-12);
    for (int i = 0; i < N_PRODUCTS; i++) {
        bool is_open = false;
        for (int k = 0; k < N_GROUPS; k++) {
            if (!is_kept(value, &products[i], &groups[k]))
                continue;
            if (!is_open)
                copies_open(&copies, &products[i]);
            is_open = true;
            measure(&b, &products[i], &copies, groups[k].phase, groups[k].T);
        }
        if (is_open)
            copies_close(&copies);
    }
    return 0;
}

/* The delta rule of a prompt's rows on a GPU, row after row and in chunks: microseconds, and how far each is from the
 * formula in double. The 27B's heads. */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "op/cuda/cuda.h"
#include "tensor/number.h"

enum {
    K_HEADS = 16,
    V_HEADS = 48,
    HEAD = 128,
    WIDTH = (2 * K_HEADS + V_HEADS) * HEAD,
    MOST_ROWS = 2048,
    ROUNDS = 5,
    CALLS = 10,
};

static void *stream;
static cudaStream_t raw;

static void must(lathe_status st, const lathe_error *err)
{
    if (st) {
        fprintf(stderr, "gpu_delta: %s\n", err->message);
        exit(1);
    }
}

static void *device(size_t bytes)
{
    void *p;
    lathe_error err;
    must(backend_cuda.alloc(stream, &p, bytes, &err), &err);
    return p;
}

static void *host(size_t bytes)
{
    void *p = calloc(1, bytes);
    if (!p)
        exit(1);
    return p;
}

static uint64_t state = 1;
static double uniform(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 11) * 0x1p-53;
}
static double normal(void)
{
    return sqrt(-2 * log(1 - uniform())) * cos(6.283185307179586 * uniform());
}

/* Rows of one kind: g is uniform in a square of [-decay, 0], beta in [least_beta, 1], and `alike` the share of a key that
 * all keys have. */
static const struct kind {
    const char *name;
    double decay, least_beta, alike;
} kinds[] = {
    {"keys alike, slow decay", 0.002, 0.9, 0.7},
    {"fast decay", 80, 0, 0},
    {"usual", 2, 0, 0},
};

static struct {
    uint16_t *qkv;
    float *g, *beta;
    float *o, *S;
} at_host;

static struct {
    void *qkv, *g, *beta, *o, *S, *scratch;
} at_device;

static void fill(const struct kind *k)
{
    static double common[HEAD];
    for (int i = 0; i < HEAD; i++)
        common[i] = normal();
    for (int64_t t = 0; t < MOST_ROWS; t++) {
        for (int64_t c = 0; c < WIDTH; c++) {
            double x = normal();
            if (c / HEAD >= K_HEADS && c / HEAD < 2 * K_HEADS)
                x = (1 - k->alike) * x + k->alike * common[c % HEAD];
            at_host.qkv[t * WIDTH + c] = bf16_from_f32((float)x);
        }
        for (int64_t j = 0; j < V_HEADS; j++) {
            at_host.g[t * V_HEADS + j] = (float)(-k->decay * uniform() * uniform());
            at_host.beta[t * V_HEADS + j] =
                (float)(k->least_beta + (1 - k->least_beta) * uniform());
        }
    }
    backend_cuda.copy_in(stream, at_device.qkv, at_host.qkv,
                         (size_t)MOST_ROWS * WIDTH * sizeof *at_host.qkv);
    backend_cuda.copy_in(stream, at_device.g, at_host.g,
                         (size_t)MOST_ROWS * V_HEADS * sizeof(float));
    backend_cuda.copy_in(stream, at_device.beta, at_host.beta,
                         (size_t)MOST_ROWS * V_HEADS * sizeof(float));
}

enum form { ROWS, CHUNKS, FACTORS, WALK, N_FORMS };
static const char *const forms[] = {"row after row", "chunks", "  their factors", "  their walk"};
static const struct gdn_heads heads = {K_HEADS, V_HEADS, HEAD, HEAD};
static size_t state_bytes; /* S, and the room behind it */

static void call(enum form f, int32_t T)
{
    struct batch_seq seq = {.slot = 0, .first_row = 0, .n_rows = T, .pos = 0};
    struct batch b = {.phase = PHASE_PREFILL, .n_rows = T, .n_seqs = 1, .seq = &seq};
    struct gated_delta_rule_args a = {
        .o = tensor_2d(at_device.o, DT_F32, T, V_HEADS * HEAD),
        .qkv = tensor_2d(at_device.qkv, DT_BF16, T, WIDTH),
        .g = tensor_2d(at_device.g, DT_F32, T, V_HEADS),
        .beta = tensor_2d(at_device.beta, DT_F32, T, V_HEADS),
        .S = tensor_4d(at_device.S, DT_F32, 1, V_HEADS, HEAD, HEAD),
        .heads = heads,
        .b = &b,
        .scratch = tensor_1d(at_device.scratch, DT_U8, 1),
    };
    static const int what[] = {
        [CHUNKS] = CHUNKS_ALL, [FACTORS] = CHUNKS_FACTORS, [WALK] = CHUNKS_WALK};
    lathe_error err;
    if (f == ROWS) { /* without the room it goes row after row */
        must(backend_cuda.gated_delta_rule(stream, &a, &err), &err);
        return;
    }
    a.S.stride = (int64_t)(state_bytes / sizeof(float));
    if (!cuda_gated_delta_chunks_takes(stream, &a)) {
        fprintf(stderr, "gpu_delta: chunks need more shared memory than this GPU has\n");
        exit(1);
    }
    must(cuda_gated_delta_chunks(stream, &a, what[f], &err), &err);
}

static double microseconds(enum form f, int32_t T)
{
    cudaEvent_t begin, end;
    double best = 1e9;
    float ms;
    (void)cudaEventCreate(&begin);
    (void)cudaEventCreate(&end);
    for (int i = 0; i < ROUNDS; i++) {
        (void)cudaEventRecord(begin, raw);
        for (int k = 0; k < CALLS; k++)
            call(f, T);
        (void)cudaEventRecord(end, raw);
        (void)cudaEventSynchronize(end);
        (void)cudaEventElapsedTime(&ms, begin, end);
        best = fmin(best, (double)ms * 1e3 / CALLS);
    }
    (void)cudaEventDestroy(begin);
    (void)cudaEventDestroy(end);
    return best;
}

struct distance {
    double error, all; /* sums of squares */
    double largest;    /* of an error, in root mean squares of its row and head */
};

/* Column c of head j against the formula, S being zero at first. o_error [T] takes the largest of each row. */
static void measure_column(int32_t T, int64_t j, int64_t c, double *error, double *square,
                           struct distance *o, struct distance *S)
{
    double col[HEAD] = {0};
    int64_t k_head = j / (V_HEADS / K_HEADS);
    for (int64_t t = 0; t < T; t++) {
        const uint16_t *row = at_host.qkv + t * WIDTH, *q = row + k_head * HEAD;
        const uint16_t *k = row + (K_HEADS + k_head) * HEAD;
        double v = (double)bf16_to_f32(row[(2 * K_HEADS + j) * HEAD + c]);
        double decay = exp((double)at_host.g[t * V_HEADS + j]), qq = 0, kk = 0, kv = 0, sq = 0;
        double x[HEAD], y[HEAD];
        for (int i = 0; i < HEAD; i++) {
            x[i] = (double)bf16_to_f32(k[i]);
            y[i] = (double)bf16_to_f32(q[i]);
            kk += x[i] * x[i];
            qq += y[i] * y[i];
            col[i] *= decay;
            kv += col[i] * x[i];
        }
        double k_scale = 1 / sqrt(kk + 1e-6), q_scale = 1 / sqrt((qq + 1e-6) * HEAD);
        double d = (double)at_host.beta[t * V_HEADS + j] * (v - kv * k_scale) * k_scale;
        for (int i = 0; i < HEAD; i++) {
            col[i] += x[i] * d;
            sq += col[i] * y[i];
        }
        sq *= q_scale;
        double e = (double)at_host.o[t * V_HEADS * HEAD + j * HEAD + c] - sq;
        o->error += e * e;
        o->all += sq * sq;
        square[t] += sq * sq;
        if (!(fabs(e) <= error[t])) /* NaN, too */
            error[t] = fabs(e);
    }
    for (int64_t i = 0; i < HEAD; i++) {
        double e = (double)at_host.S[(j * HEAD + i) * HEAD + c] - col[i];
        S->error += e * e;
        S->all += col[i] * col[i];
    }
}

static void measure(enum form f, int32_t T, struct distance *o, struct distance *S)
{
    static const int64_t head[] = {0, 23, 47};
    static double error[MOST_ROWS], square[MOST_ROWS];
    lathe_error err;
    *o = *S = (struct distance){0, 0, 0};
    backend_cuda.zero(stream, at_device.S, state_bytes);
    call(f, T);
    must(backend_cuda.copy_out(stream, at_host.o, at_device.o,
                               (size_t)T * V_HEADS * HEAD * sizeof(float), &err),
         &err);
    must(backend_cuda.copy_out(stream, at_host.S, at_device.S,
                               (size_t)V_HEADS * HEAD * HEAD * sizeof(float), &err),
         &err);
    for (size_t i = 0; i < sizeof head / sizeof *head; i++) {
        memset(error, 0, sizeof error);
        memset(square, 0, sizeof square);
        for (int64_t c = 0; c < HEAD; c++)
            measure_column(T, head[i], c, error, square, o, S);
        for (int64_t t = 0; t < T; t++)
            if (!(error[t] / sqrt(square[t] / HEAD) <= o->largest))
                o->largest = error[t] / sqrt(square[t] / HEAD);
    }
}

int main(int argc, char **argv)
{
    static const int32_t rows[] = {16, 64, 512, MOST_ROWS};
    lathe_error err;
    (void)argv;
    if (argc > 1) {
        fprintf(stderr, "usage: gpu_delta\n");
        return 2;
    }
    must(backend_cuda.open(&stream, NULL, NULL, &err), &err);
    raw = backend_cuda.native(stream);
    at_host.qkv = host((size_t)MOST_ROWS * WIDTH * sizeof *at_host.qkv);
    at_host.g = host((size_t)MOST_ROWS * V_HEADS * sizeof(float));
    at_host.beta = host((size_t)MOST_ROWS * V_HEADS * sizeof(float));
    at_host.o = host((size_t)MOST_ROWS * V_HEADS * HEAD * sizeof(float));
    at_host.S = host((size_t)V_HEADS * HEAD * HEAD * sizeof(float));
    at_device.qkv = device((size_t)MOST_ROWS * WIDTH * sizeof *at_host.qkv);
    at_device.g = device((size_t)MOST_ROWS * V_HEADS * sizeof(float));
    at_device.beta = device((size_t)MOST_ROWS * V_HEADS * sizeof(float));
    at_device.o = device((size_t)MOST_ROWS * V_HEADS * HEAD * sizeof(float));
    state_bytes = (size_t)V_HEADS * HEAD * HEAD * sizeof(float) +
                  backend_cuda.delta_room(stream, &heads, DT_BF16);
    at_device.S = device(state_bytes);
    struct batch most = {.phase = PHASE_PREFILL, .n_rows = MOST_ROWS, .n_seqs = 1};
    struct gated_delta_rule_args shape = {
        .qkv = tensor_2d(at_device.qkv, DT_BF16, MOST_ROWS, WIDTH),
        .S = tensor_4d(at_device.S, DT_F32, 1, V_HEADS, HEAD, HEAD),
        .heads = heads,
        .b = &most,
    };
    shape.S.stride = (int64_t)(state_bytes / sizeof(float));
    at_device.scratch = device(backend_cuda.gated_delta_rule_scratch(stream, &shape));
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        fill(&kinds[k]);
        printf("%s: largest error of o in root mean squares of its row; norms of the errors of o "
               "and S\n",
               kinds[k].name);
        for (int32_t T = 512; T <= 2048; T *= 4)
            for (int f = ROWS; f <= CHUNKS; f++) {
                struct distance o, S;
                measure(f, T, &o, &S);
                printf("%5d rows  %-16s  %.2e  %.2e  %.2e\n", T, forms[f], o.largest,
                       sqrt(o.error / o.all), sqrt(S.error / S.all));
            }
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int f = ROWS; f < N_FORMS; f++)
            printf("%5d rows  %-16s  %8.1f us\n", rows[i], forms[f],
                   microseconds((enum form)f, rows[i]));
    return 0;
}

/* bench/op: what every operator reaches at the shapes of the 27B model, beside what the machine can do.
 *
 *   op [--op NAME] [--format NAME] [--rows N] [--shape ROWSxCOLS] [--threads N] [--isa NAME]
 *      [--act bf16|f32] [--seconds S] [--pin]
 *
 * Weights are random code words in several copies, which together exceed every cache; docs/performance.md
 * explains the columns. */
#include "op.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/number.h"

enum { MAX_BLOCKS = 4096, WORKSPACE = 512 << 20 };

static void *block[MAX_BLOCKS];
static int n_blocks;

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "op: %s\n", what);
    exit(1);
}

void *memory(size_t bytes)
{
    void *p = n_blocks < MAX_BLOCKS ? aligned_alloc(64, (bytes + 127) & ~(size_t)63) : NULL;
    if (!p)
        die("out of memory");
    return block[n_blocks++] = p;
}

void release_memory(void)
{
    while (n_blocks > 0)
        free(block[--n_blocks]);
}

static uint64_t random_u64(void) /* splitmix64 */
{
    static uint64_t state;
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

void *random_bytes(size_t bytes)
{
    uint64_t *p = memory(bytes);
    for (size_t i = 0; i <= bytes / 8; i++)
        p[i] = random_u64();
    return p;
}

struct tensor zeros(enum dtype dtype, int64_t rows, int64_t cols)
{
    size_t bytes = (size_t)(rows * cols) * dtype_size(dtype);
    return tensor_2d(memset(memory(bytes), 0, bytes), dtype, rows, cols);
}

struct tensor numbers(enum dtype dtype, int64_t rows, int64_t cols)
{
    struct tensor t = zeros(dtype, rows, cols);
    unsigned char *p = t.data;
    for (int64_t i = 0; i < rows * cols; i++) {
        float x = (float)((int)(random_u64() % 2000) - 1000) / 1000;
        from_f32(p + (size_t)i * dtype_size(dtype), dtype, &x, 1);
    }
    return t;
}

struct tensor numbers_1d(int64_t n)
{
    return tensor_1d(numbers(DT_F32, 1, n).data, DT_F32, n);
}

struct weight random_weight(enum weight_format_id format, int64_t rows, int64_t cols)
{
    struct weight w;
    lathe_error err;
    if (weight_formats[format].layout(&w, rows, cols, DT_BF16, &err))
        die(err.message);
    size_t size = dtype_size(w.codes.dtype), bytes = (size_t)tensor_elements(&w.codes) * size;
    uint8_t *p = w.codes.data = random_bytes(bytes);
    if (w.codes.dtype == DT_F8_E4M3)
        for (size_t i = 0; i < bytes; i++)
            p[i] &= 0xBF;
    else if (w.codes.dtype != DT_U8) /* about 2^-15 .. 1 */
        for (size_t i = size - 1; i < bytes; i += size)
            p[i] = (uint8_t)((p[i] & 0x83) | 0x38);
    if (w.scales.n_dims) {
        bytes = (size_t)tensor_elements(&w.scales) * dtype_size(w.scales.dtype);
        p = w.scales.data = random_bytes(bytes);
        for (size_t i = 0; i < bytes; i++)
            p[i] = (uint8_t)(format == WF_NVFP4 ? (p[i] & 0x3F) + 8 : (p[i] & 3) | 0x3C);
    }
    if (format == WF_NVFP4 || format == WF_FP8_TENSOR)
        w.global = 0.01f;
    return w;
}

int row_counts(const struct run *r, int64_t *rows, const int64_t *usual, int n)
{
    if (r->o->rows) {
        rows[0] = r->o->rows;
        return 1;
    }
    memcpy(rows, usual, (size_t)n * sizeof *rows);
    return n;
}

void sequence_init(struct sequence *s, enum phase phase, int32_t slot, int32_t pos, int32_t n_rows)
{
    *s = (struct sequence){0};
    s->b = (struct batch){
        .phase = phase,
        .n_rows = n_rows,
        .n_seqs = 1,
        .token = s->token,
        .slot = s->slot,
        .pos = s->pos,
        .rope_pos = (const int32_t(*)[3])s->rope_pos,
        .seq = &s->seq,
    };
    s->seq = (struct batch_seq){.slot = slot, .n_rows = n_rows, .pos = pos};
    for (int32_t t = 0; t < n_rows; t++) {
        s->slot[t] = slot;
        s->pos[t] = pos + t;
        for (int i = 0; i < 3; i++)
            s->rope_pos[t][i] = pos + t;
    }
}

static const struct {
    const char *name;
    void (*run)(struct run *r);
} operators[] = {
    {"linear", bench_linear},
    {"gdn_gates", bench_gdn_gates},
    {"embed", bench_embed},
    {"rmsnorm", bench_rmsnorm},
    {"silu_mul", bench_silu_mul},
    {"qk_norm_rope", bench_qk_norm_rope},
    {"kv_append", bench_kv_append},
    {"attention", bench_attention},
    {"attention_gate", bench_attention_gate},
    {"causal_conv1d_silu", bench_causal_conv1d_silu},
    {"gated_delta_rule", bench_gated_delta_rule},
    {"gated_delta_fold", bench_gated_delta_fold},
    {"conv_fold", bench_conv_fold},
    {"rmsnorm_gated", bench_rmsnorm_gated},
    {"gather_rows", bench_gather_rows},
};
enum { N_OPERATORS = sizeof operators / sizeof operators[0] };

static _Noreturn void usage(void)
{
    fprintf(stderr, "usage: op [--op NAME] [--format NAME] [--rows N] [--shape ROWSxCOLS]\n"
                    "          [--threads N] [--isa NAME] [--act bf16|f32] [--seconds S] [--pin]\n"
                    "operators:");
    for (int i = 0; i < N_OPERATORS; i++)
        fprintf(stderr, " %s", operators[i].name);
    fprintf(stderr, "\nformats:");
    for (int i = 0; i < WF_COUNT; i++)
        fprintf(stderr, " %s", weight_formats[i].name);
    fprintf(stderr, "\n");
    exit(2);
}

static struct options parse(int argc, char **argv)
{
    struct options o = {.act = DT_BF16, .seconds = 1};
    bool known = true;
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
    if (o.op) {
        known = false;
        for (int i = 0; i < N_OPERATORS; i++)
            known |= strcmp(o.op, operators[i].name) == 0;
    }
    if (!known || o.rows < 0 || o.rows > MAX_ROWS)
        usage();
    return o;
}

int main(int argc, char **argv)
{
    struct options o = parse(argc, argv);
    struct run r = {.o = &o};
    struct pool *pool;
    void *stream, *workspace = aligned_alloc(64, WORKSPACE);
    lathe_error err;
    if (!workspace)
        die("out of memory");
    if (pool_open(&pool, o.n_threads, o.pin, &err) || backend_cpu.open(&stream, pool, o.isa, &err))
        die(err.message);
    exec_init(&r.exec, &backend_cpu, stream, workspace, WORKSPACE);
    r.has_dots = strcmp(backend_cpu.isa(stream), "avx512bf16") == 0;
    r.bench = bench_open(pool);
    if (!r.bench)
        die("out of memory");
    printf("%d threads, %s, %s activations\n", pool_threads(pool), backend_cpu.isa(stream),
           dtype_name(o.act));
    bench_header();
    for (int i = 0; i < N_OPERATORS && !r.exec.status; i++)
        if (!o.op || strcmp(o.op, operators[i].name) == 0)
            operators[i].run(&r);
    if (exec_end(&r.exec, &err))
        fprintf(stderr, "op: %s\n", err.message);
    bench_close(r.bench);
    backend_cpu.close(stream);
    pool_close(pool);
    free(workspace);
    return r.exec.status != 0;
}

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

enum { WORKSPACE = 512 << 20 };

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "op: %s\n", what);
    exit(1);
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
    {"block_conv", bench_block_conv},
    {"ring_append", bench_ring_append},
    {"block_attention", bench_block_attention},
    {"top_k", bench_top_k},
    {"pair_scores", bench_pair_scores},
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

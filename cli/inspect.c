/* lathe inspect: what a model directory holds, and what it would take to run it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "args.h"
#include "base/size.h"
#include "cli.h"
#include "plan.h"

static const char help[] =
    "lathe inspect DIR [options]: what a model directory holds, and what it needs\n"
    "\n"
    "  -c, --ctx N|auto       context of the memory plan; auto: the largest that fits\n"
    "  --memory GB            what it may take; else what is free\n"
    "  --slots N              requests at once in the memory plan\n"
    "  --activations bf16|f32 between operators\n"
    "  --kv bf16|fp8|f32      of the KV cache; the default is what activations are\n"
    "  --prefill-math bf16|fp8|nvfp4\n"
    "                         what prompts are multiplied in, on a GPU\n"
    "  --tensors              a line a tensor as the files have it\n"
    "  --matrices             a line a matrix as it is used: format, rows, columns\n"
    "  --schedule             a line an operator call of one step (opens the model)\n"
    "  --device auto|cpu|cuda --threads N  --pin\n"
    "  --isa generic|avx2|avx512|avx512bf16|neon|best\n"
    "                         for the memory plan and --schedule\n"
    "  --spec auto|none|ngram|mtp|mtp+ngram|dflash2|dflash2+ngram\n"
    "  --draft-model DIR  --draft-k N\n"
    "                         the drafter that the memory plan includes\n"
    "\n"
    "Prints the configuration, the formats of the matrices with their sizes, and\n"
    "the memory that `run` would take at that context.\n"
    "\n"
    "Exit codes: 0 done, 1 failed, 2 wrong command line.\n";

enum { MAX_FORMATS = 32 };

struct inspect {
    struct options options;
    struct engine_args engine;
    int64_t slots;
    bool tensors, matrices, schedule;
};

static void print_model(const lathe_model_info *m)
{
    char bytes[32];
    size_text(bytes, m->bytes_per_token);
    (void)printf(
        "hidden %d, MLP %d, %d layers (%d full attention, %d Gated DeltaNet), vocabulary %d\n",
        m->hidden, m->intermediate, m->n_layers, m->n_full_attention,
        m->n_layers - m->n_full_attention, m->vocab);
    (void)printf("attention: %d query and %d KV heads of %d, %d rotary dimensions\n", m->n_heads,
                 m->n_kv_heads, m->head_dim, m->rotary_dims);
    (void)printf("Gated DeltaNet: %d key heads of %d, %d value heads of %d, %d convolution taps\n",
                 m->gdn_k_heads, m->gdn_k_dim, m->gdn_v_heads, m->gdn_v_dim, m->conv_taps);
    (void)printf("positions %d; %s; %s; %s\n", m->max_context,
                 m->tied_head ? "head tied to the embedding" : "head of its own",
                 m->has_mtp ? "multi-token prediction head" : "no multi-token prediction head",
                 m->has_vision ? "vision tower" : "no vision tower");
    (void)printf("parameters %.1f million; a decoded token reads %s of weights\n",
                 (double)m->parameters / 1e6, bytes);
}

/* One line a format: matrices, weights, bytes. */
static void print_formats(const lathe_checkpoint *cp)
{
    struct {
        const char *name;
        uint64_t n, weights, bytes;
    } format[MAX_FORMATS];
    size_t n = 0;
    for (size_t i = 0; i < lathe_checkpoint_modules(cp); i++) {
        lathe_module_info m;
        lathe_checkpoint_module(cp, i, &m);
        size_t f = 0;
        while (f < n && strcmp(format[f].name, m.format) != 0)
            f++;
        if (f == MAX_FORMATS)
            continue;
        if (f == n) {
            memset(&format[n], 0, sizeof format[n]);
            format[n++].name = m.format;
        }
        format[f].n++;
        format[f].weights += (uint64_t)m.rows * (uint64_t)m.cols;
        format[f].bytes += m.bytes;
    }
    (void)printf("\n%-12s %9s %14s %10s %12s\n", "format", "matrices", "weights", "bytes",
                 "bits/weight");
    for (size_t f = 0; f < n; f++) {
        char bytes[32];
        size_text(bytes, format[f].bytes);
        (void)printf("%-12s %9" PRIu64 " %14" PRIu64 " %10s %12.2f\n", format[f].name, format[f].n,
                     format[f].weights, bytes,
                     format[f].weights ? 8.0 * (double)format[f].bytes / (double)format[f].weights
                                       : 0);
    }
}

static void print_matrices(const lathe_checkpoint *cp)
{
    (void)printf("\n%-56s %-12s %8s %8s %10s\n", "matrix", "format", "rows", "columns", "bytes");
    for (size_t i = 0; i < lathe_checkpoint_modules(cp); i++) {
        lathe_module_info m;
        char bytes[32];
        lathe_checkpoint_module(cp, i, &m);
        size_text(bytes, m.bytes);
        (void)printf("%-56s %-12s %8" PRId64 " %8" PRId64 " %10s\n", m.name, m.format, m.rows,
                     m.cols, bytes);
    }
}

static void print_tensors(const lathe_checkpoint *cp, bool each)
{
    uint64_t total = 0;
    size_t n = lathe_checkpoint_tensors(cp);
    if (each)
        (void)printf("\n%-67s %-8s %-18s %10s  %s\n", "tensor", "dtype", "shape", "bytes", "file");
    for (size_t i = 0; i < n; i++) {
        lathe_tensor_info t;
        char bytes[32], shape[200] = "[";
        lathe_checkpoint_tensor(cp, i, &t);
        total += t.bytes;
        if (!each)
            continue;
        size_t at = 1;
        for (int32_t d = 0; d < t.n_dims; d++)
            at += (size_t)snprintf(shape + at, sizeof shape - at, "%s%" PRId64, d ? ", " : "",
                                   t.dim[d]);
        (void)snprintf(shape + at, sizeof shape - at, "]");
        size_text(bytes, t.bytes);
        (void)printf("%-67s %-8s %-18s %10s  %s\n", t.name, t.dtype, shape, bytes, t.file);
    }
    char bytes[32];
    size_text(bytes, total);
    (void)printf("\n%zu tensors, %s\n", n, bytes);
}

static lathe_status print_schedule(struct inspect *in, lathe_error *err)
{
    lathe_engine *engine;
    char *schedule = NULL;
    lathe_status st = engine_args_open(&in->engine, &engine, err);
    if (st)
        return st;
    st = lathe_engine_schedule(engine, &schedule, err);
    if (!st)
        (void)printf("\n%s", schedule);
    lathe_free(schedule);
    lathe_engine_close(engine);
    return st;
}

static lathe_status inspect(struct inspect *in, lathe_error *err)
{
    lathe_checkpoint *cp;
    lathe_model_info model;
    lathe_engine_options o;
    lathe_memory_plan plan;
    lathe_status st = lathe_checkpoint_open(&cp, in->engine.model, err);
    if (st)
        return st;
    lathe_checkpoint_info(cp, &model);
    (void)printf("%s\n", in->engine.model);
    print_model(&model);
    print_formats(cp);
    if (in->matrices)
        print_matrices(cp);
    print_tensors(cp, in->tensors);
    lathe_checkpoint_close(cp);
    engine_args_fill(&in->engine, &o);
    if (in->slots)
        o.n_slots = (int32_t)in->slots;
    st = lathe_plan(&o, &plan, err);
    if (!plan.total)
        return st;
    (void)printf("\n");
    plan_print(stdout, &plan, o.kv);
    if (st)
        (void)printf("it does not fit: %s\n", err->message);
    return in->schedule ? print_schedule(in, err) : LATHE_OK;
}

int inspect_main(int argc, char **argv)
{
    static struct inspect in;
    struct options *o = &in.options;
    lathe_error err;
    int code;
    o->command = "inspect";
    o->help = help;
    o->operand = "DIR";
    engine_args_add(o, &in.engine);
    spec_args_add(o, &in.engine);
    option_int(o, "--slots", NULL, &in.slots, 1, 256);
    option_flag(o, "--tensors", NULL, &in.tensors);
    option_flag(o, "--matrices", NULL, &in.matrices);
    option_flag(o, "--schedule", NULL, &in.schedule);
    if (!options_parse(o, argc, argv, &code))
        return code;
    if (in.engine.model && o->operand_value)
        return options_usage(o, "the directory is given twice, as -m and as DIR");
    if (o->operand_value)
        in.engine.model = o->operand_value;
    if (!in.engine.model)
        return options_usage(o, "a model directory is needed, for example models/nano");
    if (!engine_args_check(o, &in.engine, &code))
        return code;
    return inspect(&in, &err) ? (cli_flush(), cli_fail(&err)) : cli_flush();
}

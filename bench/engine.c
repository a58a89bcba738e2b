/* Prefill and decode rates of a model directory over context lengths, through the public interface:
 *
 *   engine -m DIR [--contexts 128,1024,...] [-n TOKENS] [--threads N] [--activations bf16|f32]
 *          [--kv bf16|fp8|f32] [--device auto|cpu|cuda] [--isa NAME]
 *
 * A line a context: prompt tokens, prefill tokens per second, decode tokens per second, milliseconds a
 * token, and the bytes a token reads (weights, keys and values, recurrent state) per second. Best of
 * three. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lathe/lathe.h"

enum { MAX_CONTEXTS = 16, RUNS = 3 };

struct options {
    lathe_engine_options engine;
    int32_t context[MAX_CONTEXTS];
    int32_t n_contexts;
    int32_t n_decode;
};

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "engine: %s\n", what);
    exit(1);
}

static void parse_contexts(struct options *o, const char *list)
{
    o->n_contexts = 0;
    for (const char *p = list; *p && o->n_contexts < MAX_CONTEXTS;) {
        char *end;
        long n = strtol(p, &end, 10);
        if (end == p || n < 1 || n > 1 << 20)
            die("--contexts takes numbers with commas between");
        o->context[o->n_contexts++] = (int32_t)n;
        p = *end == ',' ? end + 1 : end;
    }
}

static lathe_dtype parse_dtype(const char *s)
{
    if (strcmp(s, "fp8") == 0)
        return LATHE_F8_E4M3;
    if (strcmp(s, "bf16") != 0 && strcmp(s, "f32") != 0)
        die("a dtype is bf16 or f32, and for --kv also fp8");
    return s[0] == 'f' ? LATHE_F32 : LATHE_BF16;
}

static const char *parse_device(const char *s)
{
    if (strcmp(s, "auto") != 0 && strcmp(s, "cpu") != 0 && strcmp(s, "cuda") != 0)
        die("--device is auto, cpu or cuda");
    return s;
}

static void parse_options(struct options *o, int argc, char **argv)
{
    lathe_engine_options_init(&o->engine);
    o->n_decode = 32;
    parse_contexts(o, "128,512,2048,8192");
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!value)
            die("every option takes a value");
        if (strcmp(argv[i], "-m") == 0)
            o->engine.model_dir = value;
        else if (strcmp(argv[i], "-n") == 0)
            o->n_decode = atoi(value);
        else if (strcmp(argv[i], "--contexts") == 0)
            parse_contexts(o, value);
        else if (strcmp(argv[i], "--threads") == 0)
            o->engine.n_threads = atoi(value);
        else if (strcmp(argv[i], "--device") == 0)
            o->engine.device = parse_device(value);
        else if (strcmp(argv[i], "--isa") == 0)
            o->engine.isa = value;
        else if (strcmp(argv[i], "--activations") == 0)
            o->engine.activations = parse_dtype(value);
        else if (strcmp(argv[i], "--kv") == 0)
            o->engine.kv = parse_dtype(value);
        else
            die("unknown option; the file's head lists them");
    }
    if (!o->engine.model_dir || o->n_decode < 1)
        die("usage: engine -m DIR [--contexts LIST] [-n TOKENS] [--threads N] ...");
}

static lathe_usage run(lathe_engine *e, const int32_t *token, int32_t n, int32_t n_decode)
{
    lathe_request_options o;
    lathe_request *r;
    lathe_error err;
    lathe_event ev;
    lathe_request_options_init(lathe_engine_text(e), false, &o);
    o.token = token;
    o.n_token = (size_t)n;
    o.max_tokens = n_decode + 1; /* the first token belongs to the prompt */
    o.ignore_eos = true;
    o.no_prefix_reuse = true;
    o.sampling.temperature = 0;
    if (lathe_request_submit(e, &o, &r, &err))
        die(err.message);
    do
        lathe_request_next(r, -1, &ev);
    while (ev.type != LATHE_EVENT_FINISH);
    if (ev.finish == LATHE_FINISH_ERROR)
        die(ev.error.message);
    lathe_request_close(r);
    return ev.usage;
}

int main(int argc, char **argv)
{
    struct options o;
    lathe_engine *e;
    lathe_error err;
    lathe_model_info info;
    lathe_memory_plan plan;
    parse_options(&o, argc, argv);
    int32_t most = 0;
    for (int32_t i = 0; i < o.n_contexts; i++)
        most = o.context[i] > most ? o.context[i] : most;
    o.engine.n_ctx = most + o.n_decode + 1;
    if (lathe_engine_open(&e, &o.engine, &err))
        die(err.message);
    lathe_engine_info(e, &info);
    lathe_engine_plan(e, &plan);
    int32_t *token = malloc((size_t)most * sizeof *token);
    if (!token)
        die("out of memory");
    uint32_t seed = 1;
    for (int32_t i = 0; i < most; i++) {
        seed = seed * 1664525 + 1013904223;
        token[i] = (int32_t)((uint64_t)(seed >> 8) * (uint32_t)(info.vocab / 2) >> 24);
    }
    printf("%8s %12s %12s %10s %8s\n", "context", "prefill t/s", "decode t/s", "ms/token", "GB/s");
    for (int32_t i = 0; i < o.n_contexts; i++) {
        int32_t n = o.context[i];
        double prefill = 1e30, decode = 1e30;
        for (int k = 0; k < RUNS; k++) {
            lathe_usage u = run(e, token, n, o.n_decode);
            prefill = u.prefill_ms < prefill ? u.prefill_ms : prefill;
            double ms = u.decode_ms / u.spec.rounds;
            decode = ms < decode ? ms : decode;
        }
        double bytes = (double)info.bytes_per_token + (double)plan.kv_per_token * n +
                       2 * (double)plan.recurrent / plan.n_slots;
        printf("%8d %12.1f %12.2f %10.3f %8.2f\n", n, n / prefill * 1e3, 1e3 / decode, decode,
               bytes / decode * 1e-6);
    }
    free(token);
    lathe_engine_close(e);
    return 0;
}

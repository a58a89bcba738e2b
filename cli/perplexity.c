/* lathe perplexity: how well a model predicts a text. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "cli.h"
#include "progress.h"

enum { TEXT_LIMIT = 1 << 30 };

static const char help[] =
    "lathe perplexity -m DIR -f FILE [options]: how well the model predicts a text\n"
    "\n"
    "  -f, --file FILE        the text, of any length; - reads standard input\n"
    "  --chunk N              tokens scored on their own, each part from an empty\n"
    "                         context (the default is the whole context)\n"
    "  --control              spelled-out markers such as <|im_end|> are tokens\n"
    "  --json                 the result as a line of JSON\n"
    "  -m, --model DIR  -c, --ctx N|auto  --memory GB  --threads N  --pin\n"
    "  --activations bf16|f32  --kv bf16|fp8|f32 (as activations)\n"
    "  --prefill-math bf16|fp8|nvfp4 (on a GPU: faster, less exact)\n"
    "  --device auto|cpu|cuda\n"
    "  --isa generic|avx2|avx512|avx512bf16|neon|best\n"
    "\n"
    "Prints the mean of -log(probability) over the tokens of the text, each given\n"
    "those before it in its chunk, and e to that power. A chunk's first token has\n"
    "nothing before it and is not counted.\n"
    "\n"
    "Exit codes: 0 done, 1 failed, 2 wrong command line, 130 interrupted.\n";

struct perplexity {
    struct options options;
    struct engine_args engine;
    const char *file;
    int64_t chunk;
    bool control, json;
};

static lathe_status score(struct perplexity *p, const struct buf *text, double *nats,
                          size_t *counted, lathe_error *err)
{
    lathe_engine *engine;
    lathe_tokens tokens = {0};
    double *logprob = NULL;
    lathe_status st = engine_args_open(&p->engine, &engine, err);
    if (st)
        return st;
    st = lathe_tokenize(lathe_engine_text(engine), buf_str(text), text->len, p->control, &tokens,
                        err);
    if (st)
        error_context(err, "%s", p->file);
    if (!st && tokens.n < 2)
        st = fail(err, LATHE_E_FORMAT, "%s: %zu token%s, expected 2 or more", p->file, tokens.n,
                  cli_plural((int64_t)tokens.n));
    if (!st) {
        logprob = calloc(tokens.n, sizeof *logprob);
        if (!logprob)
            st = fail_memory(err, tokens.n * sizeof *logprob);
    }
    if (!st) {
        lathe_memory_plan plan;
        struct progress bar;
        lathe_engine_plan(engine, &plan);
        size_t window = p->chunk ? (size_t)p->chunk : (size_t)plan.n_ctx;
        progress_begin(&bar);
        st = lathe_score(engine, tokens.id, tokens.n, (int32_t)window, logprob, progress_update,
                         &bar, err);
        progress_end(&bar);
        *nats = 0;
        *counted = 0;
        for (size_t i = 0; i < tokens.n && !st; i++)
            if (i % window) {
                *nats -= logprob[i];
                (*counted)++;
            }
        *nats /= *counted ? (double)*counted : 1;
    }
    free(logprob);
    lathe_tokens_release(&tokens);
    lathe_engine_close(engine);
    return st;
}

int perplexity_main(int argc, char **argv)
{
    static struct perplexity p;
    struct options *o = &p.options;
    int code;
    o->command = "perplexity";
    o->help = help;
    engine_args_add(o, &p.engine);
    p.engine.spec = "none"; /* nothing is generated */
    option_path(o, "--file", "-f", &p.file);
    option_int(o, "--chunk", NULL, &p.chunk, 2, 1 << 24);
    option_flag(o, "--control", NULL, &p.control);
    option_flag(o, "--json", NULL, &p.json);
    if (!options_parse(o, argc, argv, &code) || !engine_args_check(o, &p.engine, &code))
        return code;
    if (!p.file)
        return options_usage(o, "a text is needed: -f FILE");
    struct buf text;
    lathe_error err;
    double nats = 0;
    size_t counted = 0;
    buf_init(&text, TEXT_LIMIT);
    lathe_status st = cli_read(&text, p.file, &err);
    if (!st)
        st = score(&p, &text, &nats, &counted, &err);
    buf_release(&text);
    if (st)
        return cli_fail(&err);
    if (p.json)
        (void)printf("{\"nats_per_token\": %.6f, \"perplexity\": %.6f, \"tokens\": %zu}\n", nats,
                     exp(nats), counted);
    else
        (void)printf("%.5f nats a token, perplexity %.5f, over %zu token%s\n", nats, exp(nats),
                     counted, cli_plural((int64_t)counted));
    return cli_flush();
}

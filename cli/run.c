/* lathe run: one answer. */
#include <stdio.h>
#include <string.h>

#include "answer.h"
#include "args.h"
#include "base/file.h"
#include "cli.h"
#include "messages.h"

static const char help[] =
    "lathe run -m DIR (-p TEXT | --messages FILE) [options]: one answer\n"
    "\n"
    "prompt    -p, --prompt TEXT  a user's message; - reads standard input\n"
    "          --system TEXT  --messages FILE (JSON; -p then adds a turn)\n"
    "          --tools FILE (JSON)  --raw (-p without a template, markers count)\n"
    "          --no-think  --think  --effort xhigh|high|max|medium|low|minimal|none\n"
    "          --think-budget N  --budget-message TEXT  --eos-in-think close|stop\n"
    "sampling  --greedy  --seed N  --temp X  --top-k N  --top-p X  --min-p X\n"
    "          --presence-penalty X  --frequency-penalty X  --repetition-penalty X\n"
    "          --logit-bias ID=X[,ID=X...] (-100 bans, 100 forces)\n"
    "length    -n, --max-tokens N  --stop TEXT (may be repeated)  --ignore-eos\n"
    "engine    -m, --model DIR  -c, --ctx N|auto  --memory GB  --threads N  --pin\n"
    "          --plan  --activations bf16|f32  --kv bf16|fp8|f32 (as activations)\n"
    "          --prefill-math bf16|fp8|nvfp4 (on a GPU: prompts faster, less exact)\n"
    "          --device auto|cpu|cuda  --isa generic|avx2|avx512|avx512bf16|neon|best\n"
    "drafts    --spec auto|none|ngram|mtp|mtp+ngram|dflash2|dflash2+ngram\n"
    "          --draft-model DIR  --draft-k N  --fixed-k (always N)  --rejection\n"
    "output    --stats json|text  a line on standard error at the end\n"
    "          --logprobs N       a JSON line a token with the N best (0 to 20), on\n"
    "                             standard error, or --logprobs-file FILE\n"
    "\n"
    "The answer goes to standard output, a tool call as a line of JSON. Reasoning is\n"
    "dimmed there on a terminal, else on standard error (with --logprobs there, in\n"
    "its lines). Exit codes: 0 done, 1 failed, 2 wrong command line, 130 interrupted.\n";

struct run {
    struct options options;
    struct engine_args engine;
    struct sampling_args sampling;
    struct think_args think;
    struct budget_args budget;
    const char *prompt, *system, *messages, *tools;
    bool raw;
    const char *stats; /* json, text or NULL */
    int64_t n_logprobs;
    const char *logprobs_file;
    struct file_out logprobs; /* there only after an answer */

    struct buf text;               /* the prompt */
    struct buf turns, array, tool; /* the conversation as JSON */
};

static void add_options(struct run *r)
{
    struct options *o = &r->options;
    o->command = "run";
    o->help = help;
    engine_args_add(o, &r->engine);
    spec_args_add(o, &r->engine);
    round_args_add(o, &r->engine);
    option_flag(o, "--plan", NULL, &r->engine.plan);
    sampling_args_add(o, &r->sampling);
    think_args_add(o, &r->think);
    budget_args_add(o, &r->budget);
    option_text(o, "--prompt", "-p", &r->prompt);
    option_text(o, "--system", NULL, &r->system);
    option_path(o, "--messages", NULL, &r->messages);
    option_path(o, "--tools", NULL, &r->tools);
    option_flag(o, "--raw", NULL, &r->raw);
    option_word(o, "--stats", NULL, &r->stats, "json|text");
    option_int(o, "--logprobs", NULL, &r->n_logprobs, 0, 20);
    option_path(o, "--logprobs-file", NULL, &r->logprobs_file);
}

static bool check_options(struct run *r, int *code)
{
    const struct options *o = &r->options;
    if (!engine_args_check(o, &r->engine, code) || !sampling_args_check(o, &r->sampling, code) ||
        !think_args_check(o, &r->think, code) || !budget_args_check(o, &r->budget, code))
        return false;
    if (!r->prompt && !r->messages)
        *code = options_usage(o, "a prompt is needed: -p TEXT or --messages FILE");
    else if (r->raw && (r->messages || r->system || r->tools))
        *code = options_usage(o, "--raw has no conversation: --messages, --system and --tools "
                                 "cannot go with it");
    else if (r->raw && (r->think.think || r->think.no_think || r->think.effort ||
                        r->budget.tokens >= 0 || r->budget.end))
        *code = options_usage(o, "--raw has no template: --think, --no-think, --effort, "
                                 "--think-budget and --eos-in-think cannot go with it");
    else if (r->prompt && r->messages && strcmp(r->prompt, "-") == 0 &&
             strcmp(r->messages, "-") == 0)
        *code = options_usage(o, "-p and --messages cannot both read standard input");
    else if (r->logprobs_file && !options_given(o, "--logprobs"))
        *code = options_usage(o, "--logprobs-file needs --logprobs N");
    else
        return true;
    return false;
}

/* The conversation in order: --system, --messages, -p. */
static lathe_status build_conversation(struct run *r, lathe_conversation *c, lathe_error *err)
{
    lathe_status st = LATHE_OK;
    if (r->system)
        st = messages_add(&r->turns, "system", "--system", r->system, strlen(r->system), err);
    if (!st && r->tools)
        st = tools_read(&r->tool, r->tools, err);
    if (!st && r->messages)
        st = messages_read(&r->turns, &r->tool, r->messages, err);
    if (!st && r->prompt)
        st = messages_add(&r->turns, "user", "the prompt", buf_str(&r->text), r->text.len, err);
    if (!st)
        st = messages_array(&r->array, &r->turns, err);
    c->messages = buf_str(&r->array);
    c->tools = r->tool.len ? buf_str(&r->tool) : NULL;
    think_args_apply(&r->think, c);
    return st;
}

static lathe_status open_logprobs(struct run *r, struct answer *a, lathe_error *err)
{
    if (!options_given(&r->options, "--logprobs"))
        return LATHE_OK;
    if (r->logprobs_file) {
        lathe_status st = file_out_open(&r->logprobs, r->logprobs_file, err);
        if (st)
            return st;
    }
    a->logprobs = r->logprobs_file ? r->logprobs.file : stderr;
    return LATHE_OK;
}

static lathe_status answer_prompt(struct run *r, lathe_engine *engine, const lathe_conversation *c,
                                  struct answer *a, lathe_error *err)
{
    lathe_request_options o;
    lathe_request_options_init(lathe_engine_text(engine), !r->raw && conversation_thinks(c), &o);
    sampling_args_apply(&r->options, &r->sampling, &o);
    if (r->raw) {
        o.text = buf_str(&r->text);
        o.n_text = r->text.len;
        o.control = true;
        o.no_parse = true;
    } else {
        o.conversation = c;
        budget_args_apply(&r->budget, &o);
    }
    lathe_status st = open_logprobs(r, a, err);
    if (st)
        return st;
    o.n_logprobs = a->logprobs ? (int32_t)r->n_logprobs : -1;
    st = answer_run(a, engine, &o, err);
    if (!st && r->logprobs.file)
        st = file_out_commit(&r->logprobs, err);
    else
        file_out_discard(&r->logprobs);
    return st;
}

static int run(struct run *r)
{
    lathe_engine *engine = NULL;
    lathe_conversation c = {0};
    struct answer a;
    lathe_error err;
    lathe_status st = LATHE_OK;
    answer_init(&a);
    a.second_interrupt_ends = true;
    if (r->prompt)
        st = cli_text(&r->text, r->prompt, &err);
    if (!st && !r->raw)
        st = build_conversation(r, &c, &err);
    if (!st)
        st = engine_args_open(&r->engine, &engine, &err);
    if (!st)
        st = answer_prompt(r, engine, &c, &a, &err);
    const lathe_conversation *input = r->messages || r->tools ? &c : NULL;
    int code = !st      ? cli_flush()
               : engine ? answer_fail(lathe_engine_text(engine), input, &err)
                        : cli_fail(&err);
    if (!st && a.finish == LATHE_FINISH_CONTEXT)
        fprintf(stderr, "lathe: the context is full; --ctx sets its size\n");
    if (!st && r->stats) {
        if (strcmp(r->stats, "json") == 0) {
            uint64_t room, total;
            engine_args_memory(&r->engine, &room, &total);
            answer_stats_json(&a, r->engine.load_ms, room, total, stderr);
        } else {
            answer_stats_text(&a, stderr);
        }
    }
    if (code == EXIT_DONE && a.is_interrupted)
        code = EXIT_INTERRUPTED;
    answer_release(&a);
    if (engine)
        lathe_engine_close(engine);
    return code;
}

int run_main(int argc, char **argv)
{
    static struct run r; /* too large for a stack frame, and the program runs one command */
    int code;
    add_options(&r);
    if (!options_parse(&r.options, argc, argv, &code) || !check_options(&r, &code))
        return code;
    buf_init(&r.text, MESSAGES_LIMIT);
    buf_init(&r.turns, MESSAGES_LIMIT);
    buf_init(&r.array, MESSAGES_LIMIT);
    buf_init(&r.tool, MESSAGES_LIMIT);
    code = run(&r);
    buf_release(&r.text);
    buf_release(&r.turns);
    buf_release(&r.array);
    buf_release(&r.tool);
    return code;
}

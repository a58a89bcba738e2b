#include "args.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli.h"
#include "plan.h"
#include "progress.h"

/* ---- The model ----------------------------------------------------------------------------- */

void engine_args_add(struct options *o, struct engine_args *a)
{
    option_path(o, "--model", "-m", &a->model);
    option_auto(o, "--ctx", "-c", &a->ctx, 2, 1 << 24);
    option_real(o, "--memory", NULL, &a->memory, 1e-6, 1e6);
    option_int(o, "--threads", NULL, &a->threads, 1, 256);
    option_flag(o, "--pin", NULL, &a->pin);
    option_word(o, "--kv", NULL, &a->kv, "bf16|fp8|f32");
    option_word(o, "--activations", NULL, &a->activations, "bf16|f32");
    option_word(o, "--prefill-math", NULL, &a->prefill_math, "bf16|fp8|nvfp4");
    option_word(o, "--device", NULL, &a->device, "auto|cpu|cuda");
    option_word(o, "--isa", NULL, &a->isa, "generic|avx2|avx512|avx512bf16|neon|best");
}

void spec_args_add(struct options *o, struct engine_args *a)
{
    option_word(o, "--spec", NULL, &a->spec, "auto|none|ngram|mtp|mtp+ngram|dflash2|dflash2+ngram");
    option_path(o, "--draft-model", NULL, &a->draft_model);
    option_int(o, "--draft-k", NULL, &a->draft_k, 1, INT32_MAX);
}

void round_args_add(struct options *o, struct engine_args *a)
{
    option_flag(o, "--fixed-k", NULL, &a->fixed_k);
    option_flag(o, "--rejection", NULL, &a->rejection);
}

bool engine_args_check(const struct options *o, const struct engine_args *a, int *code)
{
    static const char *const of_drafters[] = {"--draft-model", "--draft-k", "--fixed-k",
                                              "--rejection"};
    if (!a->model) {
        *code = options_usage(o, "a model is needed: -m DIR, for example -m models/nano");
        return false;
    }
    bool none = a->spec && strcmp(a->spec, "none") == 0;
    for (size_t i = 0; i < sizeof of_drafters / sizeof *of_drafters && none; i++)
        if (options_given(o, of_drafters[i])) {
            *code = options_usage(o, "--spec none has no drafter: %s cannot go with it",
                                  of_drafters[i]);
            return false;
        }
    return true;
}

/* NULL: the default. */
static lathe_dtype dtype_named(const char *word)
{
    if (word && strcmp(word, "f32") == 0)
        return LATHE_F32;
    return word && strcmp(word, "fp8") == 0 ? LATHE_F8_E4M3 : LATHE_BF16;
}

static lathe_prefill_math prefill_math_named(const char *word)
{
    if (word && strcmp(word, "fp8") == 0)
        return LATHE_PREFILL_FP8;
    return word && strcmp(word, "nvfp4") == 0 ? LATHE_PREFILL_NVFP4 : LATHE_PREFILL_BF16;
}

void engine_args_fill(const struct engine_args *a, lathe_engine_options *o)
{
    lathe_engine_options_init(o);
    o->model_dir = a->model;
    o->n_ctx = (int32_t)a->ctx;
    o->memory = (uint64_t)(a->memory * 1e9);
    o->n_threads = (int32_t)a->threads;
    o->pin_threads = a->pin;
    o->spec = a->spec;
    o->draft_dir = a->draft_model;
    o->draft_k = (int32_t)a->draft_k;
    o->fixed_k = a->fixed_k;
    o->rejection = a->rejection;
    o->activations = dtype_named(a->activations);
    o->kv = dtype_named(a->kv ? a->kv : a->activations);
    o->prefill_math = prefill_math_named(a->prefill_math);
    o->device = a->device;
    o->isa = a->isa && strcmp(a->isa, "best") != 0 ? a->isa : NULL;
}

/* The memory plan, on standard error; nothing if there is none. */
static void print_plan(const lathe_engine_options *o)
{
    lathe_memory_plan plan;
    (void)lathe_plan(o, &plan, NULL);
    if (plan.total)
        plan_print(stderr, &plan, o->kv);
}

void engine_args_memory(const struct engine_args *a, uint64_t *room, uint64_t *total)
{
    lathe_engine_options o;
    lathe_memory_plan plan = {0};
    engine_args_fill(a, &o);
    (void)lathe_plan(&o, &plan, NULL);
    *room = plan.device_free;
    *total = plan.device_total;
}

lathe_status engine_args_open(struct engine_args *a, lathe_engine **engine, lathe_error *err)
{
    lathe_engine_options o;
    struct progress bar;
    engine_args_fill(a, &o);
    if (a->plan)
        print_plan(&o);
    double start = clock_ms();
    o.progress = progress_update;
    o.progress_ctx = &bar;
    progress_begin(&bar);
    lathe_status st = lathe_engine_open(engine, &o, err);
    progress_end(&bar);
    if (st == LATHE_E_MEMORY && !a->plan)
        print_plan(&o);
    a->load_ms = clock_ms() - start;
    return st;
}

/* ---- Sampling ------------------------------------------------------------------------------ */

void sampling_args_add(struct options *o, struct sampling_args *a)
{
    option_flag(o, "--greedy", NULL, &a->greedy);
    option_int(o, "--seed", NULL, &a->seed, -1, INT64_MAX);
    option_real(o, "--temp", "--temperature", &a->temp, 0, 100);
    option_int(o, "--top-k", NULL, &a->top_k, -1, INT32_MAX);
    option_real(o, "--top-p", NULL, &a->top_p, 0, 1);
    option_real(o, "--min-p", NULL, &a->min_p, 0, 1);
    option_real(o, "--presence-penalty", NULL, &a->presence, -2, 2);
    option_real(o, "--frequency-penalty", NULL, &a->frequency, -2, 2);
    option_real(o, "--repetition-penalty", "--repeat-penalty", &a->repetition, 0.01, 100);
    option_list(o, "--logit-bias", NULL, &a->bias);
    option_list(o, "--stop", NULL, &a->stop);
    option_int(o, "--max-tokens", "-n", &a->max_tokens, -1, INT32_MAX);
    option_flag(o, "--ignore-eos", NULL, &a->ignore_eos);
    a->max_tokens = -1;
}

/* "ID=BIAS,ID=BIAS" */
static bool read_biases(const struct options *o, struct sampling_args *a, const char *all,
                        int *code)
{
    const char *s = all;
    for (;;) {
        char *end;
        long id = strtol(s, &end, 10);
        const char *value = end + 1;
        float bias = 0;
        bool good = end > s && (*end == '=' || *end == ':') && id >= 0 && id <= INT32_MAX;
        if (good) {
            bias = strtof(value, &end);
            good = end > value && (*end == 0 || *end == ',') && bias >= -100 && bias <= 100;
        }
        if (!good) {
            *code = options_usage(o,
                                  "--logit-bias is \"%s\", expected ID=BIAS[,ID=BIAS...] with "
                                  "biases of -100 to 100; \"%.*s\" is none of these",
                                  all, (int)strcspn(s, ","), s);
            return false;
        }
        if (a->n_bias == OPTION_MAX_LIST) {
            *code = options_usage(o, "--logit-bias has more than %d entries", OPTION_MAX_LIST);
            return false;
        }
        a->bias_value[a->n_bias++] = (lathe_logit_bias){(int32_t)id, bias};
        if (!*end)
            return true;
        s = end + 1;
    }
}

bool sampling_args_check(const struct options *o, struct sampling_args *a, int *code)
{
    if (a->greedy && options_given(o, "--temp")) {
        *code = options_usage(o, "--greedy is --temp 0; give one of the two");
        return false;
    }
    if (options_given(o, "--max-tokens") && a->max_tokens == 0) {
        *code = options_usage(o, "--max-tokens is 0, expected 1 or more, or -1: to the end of the "
                                 "context");
        return false;
    }
    for (size_t i = 0; i < a->bias.n; i++)
        if (!read_biases(o, a, a->bias.value[i], code))
            return false;
    return true;
}

void sampling_args_apply(const struct options *o, const struct sampling_args *a,
                         lathe_request_options *r)
{
    lathe_sampling *s = &r->sampling;
    if (a->greedy)
        s->temperature = 0;
    if (options_given(o, "--temp"))
        s->temperature = (float)a->temp;
    if (options_given(o, "--seed"))
        s->seed = a->seed;
    if (options_given(o, "--top-k"))
        s->top_k = (int32_t)a->top_k;
    if (options_given(o, "--top-p"))
        s->top_p = (float)a->top_p;
    if (options_given(o, "--min-p"))
        s->min_p = (float)a->min_p;
    if (options_given(o, "--presence-penalty"))
        s->presence_penalty = (float)a->presence;
    if (options_given(o, "--frequency-penalty"))
        s->frequency_penalty = (float)a->frequency;
    if (options_given(o, "--repetition-penalty"))
        s->repetition_penalty = (float)a->repetition;
    s->bias = a->bias_value;
    s->n_bias = a->n_bias;
    r->max_tokens = (int32_t)a->max_tokens;
    r->ignore_eos = a->ignore_eos;
    r->stop = a->stop.value;
    r->n_stop = a->stop.n;
}

/* ---- Thinking ------------------------------------------------------------------------------ */

void think_args_add(struct options *o, struct think_args *a)
{
    option_flag(o, "--think", NULL, &a->think);
    option_flag(o, "--no-think", "--nothink", &a->no_think);
    option_word(o, "--effort", NULL, &a->effort, "xhigh|high|max|medium|low|minimal|none");
}

bool think_args_check(const struct options *o, const struct think_args *a, int *code)
{
    bool none = a->effort && strcmp(a->effort, "none") == 0;
    if ((a->think && (a->no_think || none)) || (a->no_think && a->effort && !none)) {
        *code = options_usage(o, "--think, --no-think and --effort contradict each other");
        return false;
    }
    return true;
}

void think_args_apply(const struct think_args *a, lathe_conversation *c)
{
    c->thinking = a->think ? LATHE_ON : a->no_think ? LATHE_OFF : LATHE_DEFAULT;
    c->effort = a->effort;
}

void budget_args_add(struct options *o, struct budget_args *a)
{
    a->tokens = -1;
    option_int(o, "--think-budget", NULL, &a->tokens, -1, INT32_MAX);
    option_text(o, "--budget-message", NULL, &a->message);
    option_word(o, "--eos-in-think", NULL, &a->end, "close|stop");
}

bool budget_args_check(const struct options *o, const struct budget_args *a, int *code)
{
    if (a->message && a->tokens < 0) {
        *code = options_usage(o, "--budget-message needs --think-budget N");
        return false;
    }
    return true;
}

void budget_args_apply(const struct budget_args *a, lathe_request_options *r)
{
    r->think_budget = (int32_t)a->tokens;
    r->budget_message = a->message;
    r->end_in_think = a->end && strcmp(a->end, "stop") == 0;
}

bool conversation_thinks(const lathe_conversation *c)
{
    return c->thinking != LATHE_OFF && !(c->effort && strcmp(c->effort, "none") == 0);
}

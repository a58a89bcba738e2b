/* Options that several commands have: which model and how it is held, how tokens are chosen, how the
 * conversation is rendered. */
#ifndef LATHE_CLI_ARGS_H
#define LATHE_CLI_ARGS_H

#include "lathe/lathe.h"
#include "options.h"

/* ---- -m --ctx --memory --threads --pin --activations --prefill-math --kv --device --isa: the KV cache is what
 * activations are, unless --kv says otherwise --------------------------------------------------- */

struct engine_args {
    const char *model; /* NULL until given */
    int64_t ctx, threads;
    double memory; /* GB; 0: what is free */
    bool pin;
    const char *kv, *activations, *prefill_math, *device, *isa; /* words; NULL: the default */
    const char *spec, *draft_model;                             /* NULL: the default */
    int64_t draft_k;
    bool fixed_k, rejection;
    bool plan;      /* printed before the engine is opened */
    double load_ms; /* of engine_args_open */
};
void engine_args_add(struct options *o, struct engine_args *a);
/* --spec --draft-model --draft-k: which drafter. */
void spec_args_add(struct options *o, struct engine_args *a);
/* --fixed-k --rejection, for commands that generate. */
void round_args_add(struct options *o, struct engine_args *a);
/* Checks what the table cannot: that there is a model, and that --spec none stands without options of
 * drafters. */
bool engine_args_check(const struct options *o, const struct engine_args *a, int *code);
void engine_args_fill(const struct engine_args *a, lathe_engine_options *o);
/* Memory of the device that is free now, and all of it, in bytes; 0: not known. */
void engine_args_memory(const struct engine_args *a, uint64_t *room, uint64_t *total);
/* Opens the engine for one request at a time, with a bar. The memory plan goes to standard error if it was asked
 * for, or does not fit. */
lathe_status engine_args_open(struct engine_args *a, lathe_engine **engine, lathe_error *err);

/* ---- --greedy --seed --temp --top-k ... --logit-bias --stop -n ------------------------------ */

struct sampling_args {
    bool greedy, ignore_eos;
    int64_t seed, top_k, max_tokens;
    double temp, top_p, min_p, presence, frequency, repetition;
    struct option_list bias, stop;
    lathe_logit_bias bias_value[OPTION_MAX_LIST];
    size_t n_bias;
};
void sampling_args_add(struct options *o, struct sampling_args *a);
/* Checks what the table cannot: the biases, and --greedy beside --temp. */
bool sampling_args_check(const struct options *o, struct sampling_args *a, int *code);
/* Overrides the model's defaults in *r by what was given; *r borrows from *a. */
void sampling_args_apply(const struct options *o, const struct sampling_args *a,
                         lathe_request_options *r);

/* ---- --think --no-think --effort ------------------------------------------------------------ */

struct think_args {
    bool think, no_think;
    const char *effort; /* NULL: not given */
};
void think_args_add(struct options *o, struct think_args *a);
bool think_args_check(const struct options *o, const struct think_args *a, int *code);
void think_args_apply(const struct think_args *a, lathe_conversation *c);

/* ---- --think-budget --budget-message --eos-in-think: how long, for commands that generate ------ */

struct budget_args {
    int64_t tokens;            /* -1: none */
    const char *message, *end; /* NULL: not given */
};
void budget_args_add(struct options *o, struct budget_args *a);
/* There is nothing to say at a budget's end without one. */
bool budget_args_check(const struct options *o, const struct budget_args *a, int *code);
void budget_args_apply(const struct budget_args *a, lathe_request_options *r);

/* Does a conversation with these settings think? */
bool conversation_thinks(const lathe_conversation *c);

#endif

/* Lathe: inference for the Qwen3.5 / 3.6 / 3.8 model family. The public interface.
 *
 *   lathe_text        a model directory's tokenizer and chat template, without its weights
 *   lathe_checkpoint  a model directory's tensors and configuration, for inspection
 *   lathe_engine      a loaded model with its slots; many requests at once
 *   lathe_request     one generation: submitted, read event by event, closed
 *
 * Conventions. A function that can fail returns lathe_status, 0 being success, and fills *err (which
 * may be NULL). Strings are UTF-8. Pointers that a call returns or fills are borrowed from the object
 * they came from and stay valid until the next call on that object, unless a line says otherwise.
 * Engines and texts may be used from several threads at once; a request from one thread at a time,
 * except lathe_request_cancel, which may come from any. The library never prints, exits or aborts. A model's
 * files must not change while a checkpoint or an engine has them open: they are mapped, and reading what a file
 * that shrank no longer has ends the process (SIGBUS). */
#ifndef LATHE_LATHE_H
#define LATHE_LATHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Errors ------------------------------------------------------------------------------- */

typedef enum lathe_status {
    LATHE_OK = 0,
    LATHE_E_ARGUMENT,    /* an option or a value that the caller gave */
    LATHE_E_FORMAT,      /* a file or a text that is not what it should be */
    LATHE_E_IO,          /* the operating system refused a file */
    LATHE_E_MEMORY,      /* an allocation failed, or the plan does not fit */
    LATHE_E_LIMIT,       /* larger, deeper or longer than a stated limit */
    LATHE_E_UNSUPPORTED, /* valid, but not built */
    LATHE_E_CONTEXT,     /* the prompt does not fit the context */
    LATHE_E_TEMPLATE,    /* the chat template refused the conversation or failed */
    LATHE_E_NUMERIC,     /* NaN or infinity where a finite number is needed */
    LATHE_E_CANCELLED,   /* lathe_request_cancel, or the engine closed */
    LATHE_E_BUSY,        /* no room for another request now */
    LATHE_E_DEVICE,      /* the accelerator failed: see lathe_engine_open */
    LATHE_E_IMAGE,       /* an image that is not, or cannot be, read */
} lathe_status;

typedef struct lathe_error {
    lathe_status status;
    char message[1024]; /* one line: what, where, found and expected */
} lathe_error;

const char *lathe_version(void);
/* What it was built for and with, as "x86_64-linux, gcc 12.2.0, cpu, cuda 80 90a": target, compiler, and backends, behind
 * cuda the compute capabilities. */
const char *lathe_build(void);
/* "argument", "format" ...: a word for logs and JSON. */
const char *lathe_status_name(lathe_status status);

/* ---- Log ---------------------------------------------------------------------------------- */

typedef enum lathe_log_level { LATHE_LOG_WARN, LATHE_LOG_INFO } lathe_log_level;
typedef void (*lathe_log_fn)(void *ctx, lathe_log_level level, const char *line);
/* Installs the sink of warnings, for the whole process; NULL (the start) drops them. The sink may be
 * called from any thread, one call at a time. */
void lathe_log_set(lathe_log_fn fn, void *ctx);

/* ---- Text: tokens and chat templates ------------------------------------------------------- */

typedef struct lathe_text lathe_text;

/* Reads tokenizer.json, tokenizer_config.json, chat_template.jinja, config.json and
 * generation_config.json of a model directory. */
lathe_status lathe_text_open(lathe_text **text, const char *model_dir, lathe_error *err);
void lathe_text_close(lathe_text *text);

typedef struct lathe_tokens {
    int32_t *id;    /* [n] */
    size_t *offset; /* [n]: first byte of the text that token i covers */
    size_t n;
} lathe_tokens;
void lathe_tokens_release(lathe_tokens *tokens);

/* Encodes n bytes. With `control`, spelled-out added tokens ("<|im_end|>") become their ids;
 * without it all of the text is plain text. Invalid UTF-8 is an error that names the byte. */
lathe_status lathe_tokenize(const lathe_text *text, const char *s, size_t n, bool control,
                            lathe_tokens *out, lathe_error *err);
/* The same while `leave` is asked every few milliseconds, on the caller's thread: does nobody want it any more? Then it is
 * LATHE_E_CANCELLED. */
lathe_status lathe_tokenize_while(const lathe_text *text, const char *s, size_t n, bool control,
                                  bool (*leave)(void *ctx), void *leave_ctx, lathe_tokens *out,
                                  lathe_error *err);
/* The bytes of one token: not necessarily whole characters. NULL if no token has this id. */
const char *lathe_token_bytes(const lathe_text *text, int32_t id, size_t *n);
/* Is id an added token such as <|im_end|> or <think>? */
bool lathe_token_is_control(const lathe_text *text, int32_t id);
/* Decodes ids to UTF-8 with U+FFFD for broken sequences; *out is a heap string, freed by
 * lathe_free. */
lathe_status lathe_detokenize(const lathe_text *text, const int32_t *id, size_t n, char **out,
                              size_t *n_out, lathe_error *err);
void lathe_free(void *p);

typedef enum lathe_switch { LATHE_DEFAULT, LATHE_OFF, LATHE_ON } lathe_switch;

/* What becomes of a system message after the first user turn. */
typedef enum lathe_late_system {
    LATHE_LATE_SYSTEM_MERGE,  /* joined to the leading system block */
    LATHE_LATE_SYSTEM_INLINE, /* a system turn in its place */
    LATHE_LATE_SYSTEM_ERROR,  /* the template decides: the published ones refuse it */
} lathe_late_system;

/* The tokens that a message of the assistant was sampled as, from the beginning of its answer, its reasoning, on. They are
 * used if they say the beginning of the turn's text byte for byte, and have control tokens exactly where the turn has
 * them; else the text is tokenised. So they decide where plain text is cut into tokens, and nothing else. */
typedef struct lathe_turn {
    size_t message;    /* its index among the messages */
    const int32_t *id; /* [n] */
    size_t n;
} lathe_turn;

typedef struct lathe_conversation {
    const char *messages; /* JSON array of {role, content, reasoning_content?, tool_calls?} */
    const char *tools;    /* JSON array of tools with distinct names, or NULL */
    /* The tools that calls may name, where they are more than those that the prompt lists; NULL: tools. */
    const char *callable_tools;
    const char *kwargs; /* JSON object of further template variables, or NULL */
    lathe_switch thinking;
    lathe_switch preserve_thinking;
    const char *effort; /* xhigh high max medium low minimal none, or NULL */
    lathe_late_system late_system;
    bool no_generation_prompt; /* true: the text ends after the last message */
    /* The last message is the assistant's, and the answer goes on with it: the text ends inside it. Its reasoning alone
     * leaves the think block open; a text closes it, and has no blanks at its end. */
    bool continue_last;
    const lathe_turn *turn; /* [n_turns], in the order of their messages; others are not used */
    size_t n_turns;
    /* Asked while the prompt is made, as that of lathe_tokenize_while; NULL: nobody is. */
    bool (*leave)(void *ctx);
    void *leave_ctx;
} lathe_conversation;

typedef struct lathe_prompt {
    char *text; /* as rendered, NUL-terminated */
    size_t n_text;
    lathe_tokens tokens; /* only the template's own bytes are control tokens */
    bool thinking_open;  /* the prompt ends inside a think block */
} lathe_prompt;
void lathe_prompt_release(lathe_prompt *prompt);

lathe_status lathe_render(const lathe_text *text, const lathe_conversation *conversation,
                          lathe_prompt *out, lathe_error *err);

/* ---- Checkpoint: what a model directory holds ---------------------------------------------- */

typedef struct lathe_checkpoint lathe_checkpoint;

typedef struct lathe_tensor_info {
    const char *name;
    const char *dtype; /* as the file spells it: "BF16", "F8_E4M3" */
    const char *file;  /* the shard's name */
    int32_t n_dims;
    int64_t dim[8];
    uint64_t bytes;
} lathe_tensor_info;

typedef struct lathe_module_info { /* one matrix of the model as it will be used */
    const char *name;              /* without ".weight" */
    const char *format;            /* "bf16", "fp8_row", "nvfp4" ... */
    int64_t rows, cols;
    uint64_t bytes; /* codes and scales */
} lathe_module_info;

lathe_status lathe_checkpoint_open(lathe_checkpoint **cp, const char *model_dir, lathe_error *err);
void lathe_checkpoint_close(lathe_checkpoint *cp);
size_t lathe_checkpoint_tensors(const lathe_checkpoint *cp);
void lathe_checkpoint_tensor(const lathe_checkpoint *cp, size_t i, lathe_tensor_info *out);
size_t lathe_checkpoint_modules(const lathe_checkpoint *cp);
void lathe_checkpoint_module(const lathe_checkpoint *cp, size_t i, lathe_module_info *out);

typedef struct lathe_model_info {
    int32_t hidden, n_layers, n_full_attention, intermediate, vocab;
    int32_t n_heads, n_kv_heads, head_dim, rotary_dims;
    int32_t gdn_k_heads, gdn_v_heads, gdn_k_dim, gdn_v_dim, conv_taps;
    int32_t max_context; /* positions the configuration declares */
    bool tied_head, has_mtp, has_vision;
    uint64_t parameters;      /* of the text model */
    uint64_t bytes_per_token; /* weights read for one decoded token */
} lathe_model_info;
void lathe_checkpoint_info(const lathe_checkpoint *cp, lathe_model_info *out);

/* ---- Engine -------------------------------------------------------------------------------- */

typedef enum lathe_dtype { LATHE_BF16, LATHE_F32, LATHE_F8_E4M3 } lathe_dtype;

/* Is the rest wanted? If not, what reports ends with LATHE_E_CANCELLED. */
typedef bool (*lathe_progress_fn)(void *ctx, const char *what, uint64_t done, uint64_t total);

enum { LATHE_CTX_AUTO = -1 }; /* the largest context that fits, at most what the model declares */

/* What a GPU multiplies a prompt's rows in. All but the first need BF16 activations (else LATHE_E_ARGUMENT) and a GPU with
 * cuBLASLt (else LATHE_E_UNSUPPORTED). */
typedef enum lathe_prefill_math {
    LATHE_PREFILL_BF16, /* the activations as they are */
    /* FP8 matrices, those with scales of blocks aside, by activations that are rounded to E4M3: faster, and a little
     * less accurate (docs/performance.md). Needs compute capability 8.9 or later */
    LATHE_PREFILL_FP8,
    /* The same, and NVFP4 matrices by activations that are rounded to NVFP4. Needs compute capability 12.0 or later;
     * built, never run */
    LATHE_PREFILL_NVFP4,
} lathe_prefill_math;

typedef struct lathe_engine_options {
    const char *model_dir;
    int32_t n_ctx; /* positions per slot; 0: min(what the model declares, 32768); LATHE_CTX_AUTO */
    uint64_t memory;   /* bytes that it may take, mapped weights aside; 0: what is free */
    int32_t n_slots;   /* requests that run at once */
    int32_t n_queue;   /* requests that may wait for a slot; more are LATHE_E_BUSY */
    int32_t n_threads; /* 0: one per processor. With a GPU they load the weights */
    bool pin_threads;
    lathe_dtype kv; /* of the KV cache, an MTP head's too: any; codes of E4M3 have no scale */
    lathe_dtype activations; /* between operators: LATHE_BF16 or LATHE_F32 */
    lathe_prefill_math prefill_math;
    /* Rows of one prefill step; they bound the workspace. 0: 512, on a GPU 2048. */
    int32_t prefill_chunk;
    /* Speculation: a drafter proposes tokens, one pass of the model checks them all; the output is what it
     * would be without.
     *   spec       "none", "mtp", "dflash2", "ngram", "mtp+ngram", "dflash2+ngram", or "auto" (NULL too):
     *              a block drafter beside the model, else its own MTP head, each with n-gram lookup
     *   draft_dir  the block drafter's checkpoint; NULL: MODEL-dflash2 beside the model directory.
     *              Refused where no block drafter is used
     *   draft_k    most drafts a round; 0: what suits the drafter. Clipped to what it can give
     *   fixed_k    always draft_k drafts; else their number follows cost and acceptance
     *   rejection  sampled requests accept by rejection sampling: the same law, but other tokens for a
     *              seed than without speculation; K is then fixed */
    const char *spec;
    const char *draft_dir;
    int32_t draft_k;
    bool fixed_k;
    bool rejection;
    /* "cpu" or "cuda"; NULL or "auto" takes a GPU if the build and the machine have one */
    const char *device;
    const char *isa; /* "generic", "avx2", "avx512", "avx512bf16", "neon": no faster kernels than
                        these; NULL: the best the processor has */
    /* Bytes of memory for the tokens of answers, so that a turn whose text comes back is prompted with the tokens it was
     * sampled as; the oldest are forgotten first. 0: none. */
    uint64_t turn_memory;
    lathe_progress_fn progress; /* loading; may be NULL */
    void *progress_ctx;
} lathe_engine_options;
void lathe_engine_options_init(lathe_engine_options *o);

typedef struct lathe_memory_plan { /* bytes */
    uint64_t weights;      /* as they lie in the files: mapped from there, or on a GPU copied */
    uint64_t kv_per_token; /* of one slot */
    uint64_t kv;           /* all slots, full context */
    uint64_t recurrent;    /* GDN matrices and convolution tails, all slots */
    uint64_t drafter;      /* its weights and contexts, and the record of verify steps */
    /* Of one step, what a GPU's stream has for itself, and a recurrent state to go back to. */
    uint64_t workspace;
    uint64_t driver;       /* on a GPU: an allowance for code of kernels, graphs, and libraries */
    uint64_t total;        /* of these but kv_per_token */
    uint64_t mapped;       /* of total: read from the files in place. Not refused for */
    uint64_t head_room;    /* what must stay free beside it */
    uint64_t device_total; /* memory of the device; 0: not known */
    uint64_t device_free;  /* of it, now; on the CPU what programs can have without swapping */
    char device[32];       /* "cuda sm_90", "cpu avx2" */
    int32_t n_ctx, n_slots;
} lathe_memory_plan;

/* What lathe_engine_open would take, without taking it: files are mapped and a GPU is asked what it has.
 * LATHE_E_MEMORY if it does not fit; *out is filled then too, and its total is 0 after any other failure. */
lathe_status lathe_plan(const lathe_engine_options *o, lathe_memory_plan *out, lathe_error *err);

typedef struct lathe_engine lathe_engine;
/* LATHE_E_DEVICE: there is no such device, or it cannot be used; *err says why.
 *
 * A device that fails under an engine ends all its requests with LATHE_E_DEVICE, refuses those that come later with the same
 * sentence, and shows in lathe_activity.failure. Nothing runs any more in the engine, and in others of the process on that
 * device. When the last of them is closed, the device is reset, and engines can be opened again if the driver agrees. NVIDIA's 580 does not: then
 * every lathe_engine_open of the process is LATHE_E_DEVICE with "start the program again". Such a process must be
 * replaced, by another or by executing a program itself (execve). */
lathe_status lathe_engine_open(lathe_engine **engine, const lathe_engine_options *o,
                               lathe_error *err);
/* Ends what runs, also a lathe_score in another thread, as cancelled, and waits for it. Requests that are
 * open still get their finish event; they are closed by lathe_request_close, before this or after. But for
 * these two no call on the engine may run meanwhile. */
void lathe_engine_close(lathe_engine *engine);
const lathe_text *lathe_engine_text(const lathe_engine *engine);
void lathe_engine_info(const lathe_engine *engine, lathe_model_info *out);
void lathe_engine_plan(const lathe_engine *engine, lathe_memory_plan *out);
/* The prompt that a request with this conversation has: as lathe_render, but images and videos are refused as there, and
 * turns whose text the engine answered have the tokens of that answer. */
lathe_status lathe_engine_render(lathe_engine *engine, const lathe_conversation *conversation,
                                 lathe_prompt *out, lathe_error *err);
/* The drafter in use and the most drafts it makes a round, "dflash2+ngram"; "none" and 0 without. */
const char *lathe_engine_drafter(const lathe_engine *engine, int32_t *draft_k);
/* One line an operator call of a step: what `inspect --schedule` prints. Heap string. */
lathe_status lathe_engine_schedule(lathe_engine *engine, char **out, lathe_error *err);

/* ---- What an engine does now ---------------------------------------------------------------- */

enum { LATHE_MAX_BUCKETS = 24, LATHE_MAX_DRAFT = 15 };

/* Values counted by size: count[i] are those that are at most bound[i] and above the bound before it,
 * count[n_bounds] those above all. */
typedef struct lathe_histogram {
    const double *bound; /* [n_bounds] ascending; constant */
    int32_t n_bounds;
    uint64_t count[LATHE_MAX_BUCKETS + 1];
    double sum; /* of the values */
} lathe_histogram;

typedef enum lathe_step_kind {
    LATHE_STEP_PREFILL, /* rows of one prompt */
    LATHE_STEP_DECODE,  /* one row of every slot that decodes */
    LATHE_STEP_VERIFY,  /* with drafts behind it */
    LATHE_STEP_KINDS,
} lathe_step_kind;

typedef enum lathe_slot_phase {
    LATHE_SLOT_FREE,
    LATHE_SLOT_PREFILL,
    LATHE_SLOT_DECODE
} lathe_slot_phase;

typedef struct lathe_slot_info {
    lathe_slot_phase phase;
    int32_t
        n_held; /* tokens whose state it has; of a free slot, for prompts that go on from there */
    uint64_t request; /* lathe_request_number of the request that it has or had last; 0: none yet */
    bool is_background; /* that request */
    /* Of that request, as in lathe_usage. */
    int32_t n_prompt, n_cached, n_decoded, n_reasoning, drafted, accepted;
    double prefill_ms, decode_ms; /* so far */
    double idle_ms;               /* since it is free */
} lathe_slot_info;

/* Counters are since the engine was opened, and never fall. */
typedef struct lathe_activity {
    int32_t n_queued;                                  /* requests that wait for a slot */
    int32_t n_prefill, n_decode;                       /* slots */
    int32_t n_queued_background, n_running_background; /* of these, requests of the background */
    int32_t kv_page;                                   /* positions of a page of the KV cache */
    int32_t n_pages; /* of them in all; held by running requests; and by free slots */
    int32_t n_pages_running, n_pages_idle;
    uint64_t prompt_tokens, cached_tokens; /* of requests that a slot took */
    uint64_t completion_tokens, reasoning_tokens;
    uint64_t ended_in_reasoning; /* requests that an end token ended inside a think block */
    uint64_t closed_for_end;     /* think blocks that were closed in the place of an end token */
    uint64_t closed_for_budget;  /* and because they had as many tokens as they may */
    /* Speculation, as in lathe_spec_stats. */
    uint64_t rounds, drafted, accepted;
    uint64_t drafted_at[LATHE_MAX_DRAFT], accepted_at[LATHE_MAX_DRAFT];
    uint64_t histogram[LATHE_MAX_DRAFT + 1];
    lathe_histogram step_seconds[LATHE_STEP_KINDS];
    lathe_histogram step_rows; /* tokens of a step, drafts included */
    /* Of the device, after which no request can run: its error, valid until the engine is closed. NULL: none. */
    const char *failure;
} lathe_activity;

/* The state after the last step. It never waits for a step, and may be called as often as wanted. Fills the first
 * n_slots of slot[], which may be NULL with 0. */
void lathe_engine_activity(const lathe_engine *engine, lathe_activity *out, lathe_slot_info *slot,
                           int32_t n_slots);

/* Makes a free slot forget its tokens, so that no prompt goes on from them; -1: all that are free. Waits for the
 * step that runs. LATHE_E_BUSY if the slot has a request, LATHE_E_ARGUMENT if there is no such slot. */
lathe_status lathe_engine_forget(lathe_engine *engine, int32_t slot, lathe_error *err);

/* Natural-log probability of every token given those before it: logprob[i] belongs to token[i],
 * logprob[0] is 0. The text may be longer than the context: it is then cut into windows of `window`
 * tokens that are scored on their own (0: the context). `progress` may be NULL. */
lathe_status lathe_score(lathe_engine *engine, const int32_t *token, size_t n, int32_t window,
                         double *logprob, lathe_progress_fn progress, void *progress_ctx,
                         lathe_error *err);

/* ---- Requests ------------------------------------------------------------------------------ */

typedef struct lathe_logit_bias {
    int32_t id;
    float bias; /* added to the logit; -100 and below ban the token, 100 and above force it */
} lathe_logit_bias;

/* Order: logit bias, penalties, temperature, top-k, top-p, min-p, draw. */
typedef struct lathe_sampling {
    float temperature;        /* >= 0; 0 is greedy: the lowest id of equal logits */
    int32_t top_k;            /* 0 and -1: off */
    float top_p;              /* 0..1 */
    float min_p;              /* 0..1 */
    float presence_penalty;   /* -2..2, once for each token generated so far */
    float frequency_penalty;  /* -2..2, for each time a token was generated */
    float repetition_penalty; /* > 0, 1 is off; prompt and generated tokens */
    int64_t seed;             /* -1: random. The same seed gives the same tokens */
    const lathe_logit_bias *bias;
    size_t n_bias;
} lathe_sampling;

typedef struct lathe_request_options {
    /* The prompt: exactly one of conversation, text, token. */
    const lathe_conversation *conversation;
    const char *text; /* encoded with `control` as lathe_tokenize does */
    size_t n_text;
    bool control;
    const int32_t *token;
    size_t n_token;

    lathe_sampling sampling; /* starts as the model's defaults, lathe_request_options_init */
    int32_t max_tokens;      /* >= 1, or -1: to the end of the context */
    int32_t min_tokens;      /* end tokens and stop strings do not count before; <= max_tokens */
    const char *const *stop; /* stop strings: match visible text only */
    size_t n_stop;
    const int32_t *stop_id; /* beside the model's own end tokens */
    size_t n_stop_id;
    bool ignore_eos;
    /* Of a think block that the prompt of a conversation leaves open; other prompts, and no_parse, have none:
     *   think_budget    tokens that it may have; -1: as many as come. Then its end is generated without choice:
     *                   budget_message (NULL: none), a newline, </think> as a control token, two newlines; the answer goes
     *                   on behind it. A budget of max_tokens or more is one of max_tokens - min(512, max_tokens / 4).
     *   end_in_think    an end token in it ends the answer, which is then empty; else the first one is replaced by what ends
     *                   the block, without the message
     * Tokens without choice count, are steps like others, and have their token events. */
    int32_t think_budget;
    const char *budget_message; /* without "</think>" */
    bool end_in_think;
    int32_t n_logprobs; /* 0..20 alternatives beside each token, -1: no token events */
    int32_t
        n_prompt_logprobs; /* the same of the prompt's tokens. From 0 on the whole prompt is computed */
    bool no_parse;         /* all output is text events, markup included */
    int32_t max_calls;     /* tool calls after which the turn ends: 1 or more; 0: 64 */
    bool no_prefix_reuse; /* prefill the whole prompt */
    const char *
        cache_salt; /* at most 256 bytes: state is shared by requests with the same salt alone. NULL: "" */
    /* Hints: they change when and where it runs, never what it says.
     *   is_background  it waits until none waits that is not, and of slots that serve it alike it takes the state of one
     *                  that is not last
     *   priority       of those that wait alike, the lowest goes first, then the first that came
     *   session        the conversation that it belongs to, a number of the caller's; 0: none. Of slots that serve it alike
     *                  it takes the one that had this session last */
    bool is_background;
    int32_t priority;
    uint64_t session;
    /* Requests with one prompt, whose state is copied: they say what they would say on their own.
     *   n_same       so many requests that are submitted later name this one; it waits until they are there, less those that
     *                were cancelled since, and all of them have slots. Below the engine's n_slots. While those are not
     *                free, as many as n_slots of its class and priority that stand behind it go first, if there are slots
     *   same_prompt  the lathe_request_number of the one that has the same prompt, cache_salt and sampling, seeds aside; 0:
     *                none. One that has read its prompt does not count; behind one that waits there is always room */
    int32_t n_same;
    uint64_t same_prompt;
    int32_t draft_k;           /* most drafts a round; -1: the engine's, 0: no speculation */
    void (*notify)(void *ctx); /* an event is ready; any thread; may be NULL */
    void *notify_ctx;
} lathe_request_options;
/* The defaults of the model behind `text`: generation_config.json, then the family's. The family's
 * depend on whether the request thinks. */
void lathe_request_options_init(const lathe_text *text, bool thinking, lathe_request_options *o);

typedef enum lathe_event_type {
    LATHE_EVENT_NONE,     /* the wait ended before anything came */
    LATHE_EVENT_ACCEPTED, /* usage: prompt_tokens, cached_tokens */
    LATHE_EVENT_PROGRESS, /* done, total: prompt tokens */
    /* token: before its piece, an end token too, with n_logprobs >= 0 only; usage as far as the request is. With
     * n_prompt_logprobs >= 0 also the prompt's tokens from the second on, before the first PROGRESS that counts them */
    LATHE_EVENT_TOKEN,
    LATHE_EVENT_REASONING, /* text */
    /* id: the block's tokens, the separator aside; none if it did not end with one */
    LATHE_EVENT_REASONING_END,
    LATHE_EVENT_TEXT,       /* text: whole characters */
    LATHE_EVENT_CALL_BEGIN, /* index, call_id, name */
    LATHE_EVENT_CALL_ARGS,  /* index, text: pieces of one JSON object */
    LATHE_EVENT_CALL_END,   /* index */
    LATHE_EVENT_FINISH, /* the last one, always: finish, usage, error; token.id: the end token of a STOP */
} lathe_event_type;

typedef enum lathe_finish {
    LATHE_FINISH_STOP,        /* an end token */
    LATHE_FINISH_STOP_STRING, /* text: which */
    LATHE_FINISH_LENGTH,      /* max_tokens */
    LATHE_FINISH_CONTEXT,     /* the context is full */
    LATHE_FINISH_CALLS,       /* tool calls end the turn */
    LATHE_FINISH_CANCELLED,
    LATHE_FINISH_ERROR, /* error says why */
} lathe_finish;
const char *lathe_finish_name(lathe_finish finish);

typedef struct lathe_candidate {
    int32_t id;
    float logprob; /* of the raw distribution: before bias, penalties and temperature */
} lathe_candidate;

typedef struct lathe_token_info {
    int32_t id;
    int32_t position; /* in the sequence, the prompt's first token being 0 */
    float logprob;
    const lathe_candidate *top; /* [n_top], best first */
    int32_t n_top;
    bool is_end; /* it ended the request and is no part of the answer */
} lathe_token_info;

/* Of one request. A round is one pass of the model for this request; drafts at position i are the i-th of
 * their round, from 0. Tokens per round = (completion_tokens - 1) / rounds: the first token comes from the
 * prompt's own pass. */
typedef struct lathe_spec_stats {
    int32_t rounds; /* passes, those without drafts included */
    int32_t drafted, accepted;
    int32_t drafted_at[LATHE_MAX_DRAFT];    /* rounds that drafted at this position */
    int32_t accepted_at[LATHE_MAX_DRAFT];   /* and had it accepted */
    int32_t histogram[LATHE_MAX_DRAFT + 1]; /* rounds that accepted this many */
    double draft_ms, verify_ms, commit_ms;
} lathe_spec_stats;

/* Why a prompt, or the rest of it, had to be computed. */
typedef enum lathe_miss {
    LATHE_MISS_NONE, /* all that a slot held was used */
    LATHE_MISS_OFF,  /* no_prefix_reuse */
    LATHE_MISS_COLD, /* no slot held anything */
    LATHE_MISS_DIFFERS, /* from what slots hold, at token common_tokens; a recurrent state cannot be cut back to it */
    LATHE_MISS_OCCUPIED, /* the slot that holds its beginning runs another request */
} lathe_miss;
const char *lathe_miss_name(lathe_miss miss);

typedef struct lathe_usage {
    int32_t prompt_tokens, cached_tokens;
    int32_t common_tokens; /* the longest beginning that it shares with what a slot held */
    lathe_miss miss;
    int32_t completion_tokens; /* an end token that was sampled counts */
    int32_t
        reasoning_tokens; /* of the think block, with its separator and what was generated without choice */
    int32_t forced_tokens;  /* of these without choice: the end of a think block */
    int32_t repaired_calls; /* tool calls that an end token cut off, and that were completed */
    int32_t unparsed_calls; /* <tool_call> tags without a call: shown as text, or left out */
    double queue_ms, prefill_ms, decode_ms;
    lathe_spec_stats spec;
} lathe_usage;

typedef struct lathe_event {
    lathe_event_type type;
    const char *text; /* [n_text], NUL-terminated */
    size_t n_text;
    int32_t index;
    const char *call_id, *name;
    int32_t done, total;
    lathe_token_info token;
    const int32_t *id; /* [n_id] */
    size_t n_id;
    lathe_finish finish;
    lathe_usage usage;
    lathe_error error;
} lathe_event;

typedef struct lathe_request lathe_request;

/* Checks and queues a request. Everything in *o is copied. LATHE_E_CONTEXT, naming first the prompt's
 * tokens and then the context's, if the prompt does not fit; naming the place, LATHE_E_IMAGE if the conversation has images, and LATHE_E_UNSUPPORTED
 * if it has videos, which lathe_render shows as the template's placeholders. */
lathe_status lathe_request_submit(lathe_engine *engine, const lathe_request_options *o,
                                  lathe_request **request, lathe_error *err);
/* Its number among the engine's requests, from 1. */
uint64_t lathe_request_number(const lathe_request *request);
/* Tokens of its prompt, known from the start. */
int32_t lathe_request_prompt_tokens(const lathe_request *request);
/* Their ids, [lathe_request_prompt_tokens]; valid until the request is closed. */
const int32_t *lathe_request_prompt(const lathe_request *request);
/* Waits up to timeout_ms (-1: for ever, 0: not at all) for the next event. Strings in it are valid
 * until the next call on this request. After LATHE_EVENT_FINISH every call returns NONE. */
void lathe_request_next(lathe_request *request, int32_t timeout_ms, lathe_event *out);
/* Ends it, on a GPU within a step, on the CPU also in the middle of one, which then counts as never begun for a
 * prompt. The finish event still comes, and the slot keeps what it has for the next prompt. */
void lathe_request_cancel(lathe_request *request);
/* Cancels if it runs still, then frees it. */
void lathe_request_close(lathe_request *request);

#ifdef __cplusplus
}
#endif

#endif

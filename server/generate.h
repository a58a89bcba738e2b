/* One generation, whatever the dialect: the request that a dialect's parser fills, and the run of the engine's events
 * through the dialect's writer. A reply in one piece is the fold of the same events. A reply has one answer or several,
 * its choices: n to each prompt, that of prompt i and number j being choice i * n + j. */
#ifndef LATHE_SERVER_GENERATE_H
#define LATHE_SERVER_GENERATE_H

#include "base/arena.h"
#include "conversation.h"

struct token_ids {
    const int32_t *id;
    size_t n;
};

struct generation {
    struct chat chat;
    lathe_request_options options; /* of every choice; borrows from chat and arena */
    int32_t n; /* choices of each prompt; 0: 1. Seeds count up from the options' */
    const struct token_ids *prompt; /* [n_prompts], in the arena; NULL: the one of the options */
    size_t n_prompts;
    struct arena arena;
    bool stream;
    bool show_progress;   /* of the prompt, in the stream */
    bool show_stop;       /* the text ends with the stop string that ended it */
    bool no_calls;        /* a tool choice of none */
    bool may_be_empty;    /* a limit of 0 tokens reads the prompt alone, and then is_empty */
    bool is_empty;        /* the answer has nothing; the engine is asked for one token */
    bool hides_reasoning; /* it is not sent: if the answer comes back it is put back */
};

struct dialect {
    const char *name;
    /* Fills g, which is zeroed but for its arena, and makes the state of this reply, from g's arena; false after a
     * refusal. */
    bool (*parse)(struct exchange *x, const struct fields *f, struct generation *g, void **state);
    /* What goes out with the head of a stream, before any event. known: the prompt's tokens, and those of them that
     * were cached as far as a slot has said. */
    void (*head)(struct buf *out, void *state, const lathe_usage *known);
    /* Writes one event, or keeps it where the reply comes in one piece. ACCEPTED, TOKEN, REASONING to CALL_END, PROGRESS,
     * with usage.prefill_ms, if it was asked for, and FINISH of every choice that did not fail. Pieces that one step of the
     * engine made are one event, behind the tokens it has its text from; other tokens come before what follows them.
     * REASONING_END has the whole reasoning as its text. */
    void (*event)(struct buf *out, void *state, const lathe_event *ev);
    /* Of a stream on which nothing moves. */
    void (*keepalive)(struct buf *out, void *state);
    /* Ends an open stream with an error. usage: of all choices that ended, or NULL where nothing is known of it. */
    void (*error)(struct buf *out, void *state, const struct failure *f, const lathe_usage *usage);
    /* Ends a stream, or writes the reply in one piece. last: the finish of the choice that ended last, with the usage of
     * all. */
    void (*finish)(struct buf *out, void *state, const lathe_event *last);
    void (*release)(void *state); /* what does not lie in the arena; state may be NULL */
    /* What follows is about this choice; also when its request begins. NULL: the dialect has one choice. */
    void (*choose)(void *state, int32_t choice, const lathe_request *request);
    /* The field that the prompt is in, which refusals of the engine's name in place of messages; NULL: it is those. */
    const char *prompt;
};

/* The handler of a route that generates. */
void generate(struct exchange *x, const struct dialect *d);

/* Reads and renders a body as generate does; without_answer: the text ends after the last message. *out is released by the
 * caller, after a refusal too. */
bool generate_render(struct exchange *x, const struct dialect *d, const struct fields *f,
                     bool without_answer, lathe_prompt *out);
/* The same for the body of x, and counts the prompt's tokens. */
bool generate_count(struct exchange *x, const struct dialect *d, size_t *n);

/* The defaults of a conversation's answer into g->options, once g->chat is read; max_calls stays. */
void generation_defaults(const struct exchange *x, struct generation *g);

/* Sampling, limits and stop conditions, in the words that all dialects share. g->options has the defaults. */
bool sampling_read(const struct fields *f, struct generation *g);

#endif

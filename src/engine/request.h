/* One generation: what the caller asked for, and how far it is. */
#ifndef LATHE_ENGINE_REQUEST_H
#define LATHE_ENGINE_REQUEST_H

#include <stdatomic.h>

#include "base/arena.h"
#include "engine/closing.h"
#include "engine/events.h"
#include "engine/output.h"
#include "sample/sample.h"
#include "spec/adapt.h"

enum { MAX_CACHE_SALT = 257 /* with its NUL */ };

struct lathe_request {
    lathe_engine *engine;
    uint64_t number;
    struct events events;
    atomic_bool cancelled;

    /* Fixed at submission. */
    struct arena arena;
    const int32_t *prompt; /* [n_prompt], in the arena or, when scoring, the caller's */
    int32_t n_prompt;
    int32_t max_tokens;   /* the context's edge applied */
    bool edge_is_context; /* max_tokens is the context's edge, not the caller's limit */
    int32_t min_tokens;
    int32_t *stop_id; /* [n_stop_id] all ids that end it, the model's first */
    int32_t n_stop_id, n_own_stop_id;
    int32_t n_logprobs, n_prompt_logprobs;
    bool reuse_prefix;
    char cache_salt[MAX_CACHE_SALT];
    bool is_background;
    int32_t priority;
    uint64_t session;
    int32_t n_same; /* that wait for its prompt, or will */
    uint64_t same_prompt;
    int32_t draft_k; /* most drafts a round, -1: the engine's */
    double
        *score; /* [n_prompt] log-probabilities wanted of the prompt; then nothing is generated */

    /* The scheduler's. */
    struct sampler *sampler;
    /* The answer's turn as far as the prompt has opened it, then what was generated, the token that ended it aside. NULL: it
     * opens none. */
    int32_t *turn;
    int32_t n_turn, n_opened; /* n_opened: of the prompt's tokens, the last ones */
    struct output output;
    struct closing closing;
    struct adapt adapt; /* what drafts of this request were worth */
    lathe_usage usage;
    int32_t end_id;                            /* the end token, once it was sampled */
    double submitted_ms, started_ms, first_ms; /* monotonic clock */

    /* Guarded by the engine's lock. */
    lathe_request *next; /* in the queue */
    int32_t n_passed;    /* that were admitted before it, though they stood behind it */
    bool is_attached;    /* the engine still knows it */
};

/* Ends it: the finish event, the times. err belongs to LATHE_FINISH_ERROR, text to a stop string. */
void request_finish(lathe_request *r, lathe_finish finish, const char *text,
                    const lathe_error *err);

#endif

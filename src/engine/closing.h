/* The end of a think block that the engine brings about: tokens that are generated without choice, because the block has
 * as many as it may, or because an end token came in it. */
#ifndef LATHE_ENGINE_CLOSING_H
#define LATHE_ENGINE_CLOSING_H

#include "base/arena.h"
#include "text/text.h"

struct closing {
    int32_t *id; /* [n]: the message, then a newline, </think>, two newlines */
    int32_t n, n_message;
    int32_t at;     /* the next of them; CLOSING_NOT_BEGUN; n: all have been generated */
    int32_t budget; /* tokens that the block may have, -1: any number */
    bool replaces_end;
};
enum { CLOSING_NOT_BEGUN = -1 };

/* For a request of which max_tokens tokens are generated at most. `thinking`: its prompt leaves a block open; else there
 * is nothing to end. */
lathe_status closing_open(struct closing *c, struct arena *arena, const struct lathe_text *text,
                          const lathe_request_options *o, int32_t max_tokens, bool thinking,
                          lathe_error *err);

/* Is the next token without choice? */
static inline bool closing_is_on(const struct closing *c)
{
    return c->at >= 0 && c->at < c->n;
}
/* The tokens without choice that come next, [c->n - c->at] of them. */
static inline const int32_t *closing_next(const struct closing *c)
{
    return c->id + c->at;
}
/* Begins, unless it did before: because the budget is spent, or in the place of an end token. */
void closing_begin(struct closing *c, bool with_message);
/* Tokens that may come in an open block of n_thought tokens before they are without choice. */
int32_t closing_room(const struct closing *c, int32_t n_thought);

#endif

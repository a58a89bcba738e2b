/* What OpenAI's chat completions and completions have in common. */
#ifndef LATHE_SERVER_DIALECT_OPENAI_H
#define LATHE_SERVER_DIALECT_OPENAI_H

#include "generate.h"
#include "unsupported.h"

/* Refuses fields that are not supported, and values of those that must ask for what is done anyway; lists unknown ones.
 * known: the dialect's own; the others are added. */
bool openai_fields(struct exchange *x, const struct fields *f, struct known_fields *known);
/* stream, stream_options, return_progress. usage_per_chunk NULL: it is refused. */
bool openai_stream(struct exchange *x, const struct fields *f, struct generation *g,
                   bool *include_usage, bool *usage_per_chunk);

/* What a client asked to see beside the text. */
struct openai_wish {
    bool include_usage; /* a chunk of its own at the end of a stream */
    bool usage_per_chunk, timings_per_chunk;
    bool ids;               /* of the tokens of prompt and answer */
    int32_t n_top;          /* alternatives beside log-probabilities; -1: none are shown */
    const int32_t *stop_id; /* [n_stop_id], of the request, in its arena */
    size_t n_stop_id;
};
/* The fields of chat completions and completions that responses do not have. */
enum { N_WISH_FIELDS = 6 };
extern const char *const openai_wish_fields[N_WISH_FIELDS];
/* What openai_stream reads, and n, best_of, return_token_ids, timings_per_token. n_top is -1. */
bool openai_wishes(struct exchange *x, const struct fields *f, struct generation *g,
                   struct openai_wish *w);
/* Asks the engine for the tokens that the wishes need; w->n_top is set, and the options have the stop ids. */
void openai_ask_tokens(struct openai_wish *w, struct generation *g);

/* One entry of logprobs.content, with a comma before it if it is not the first. */
void openai_put_token(struct buf *out, const lathe_text *text, const lathe_token_info *t,
                      int32_t n_top);

void openai_string(struct buf *out, const char *s);
/* What every object of a reply begins with, up to the fingerprint; made once, and released by the caller. model: [n_model], as
 * the client named it. */
void openai_head(struct buf *out, const struct server *s, const char *id, const char *object,
                 const char *model, size_t n_model);
void openai_usage(struct buf *out, const lathe_usage *u);
/* What stands behind the choices of a chunk, to its end. so_far: where each chunk has the usage, else NULL. */
void openai_end_chunk(struct buf *out, const struct openai_wish *w, const lathe_usage *so_far);
/* The member, with a comma before it, unless the server's options leave it out. In llama.cpp's names: cache_n + prompt_n
 * is the prompt. */
void openai_timings(struct buf *out, const struct server *s, const lathe_usage *u);
/* "stop", "length", "tool_calls" */
const char *openai_finish(lathe_finish finish);
/* The entries of struct dialect by these names: neither asks for the state. */
void openai_keepalive(struct buf *out, void *state);
void openai_error(struct buf *out, void *state, const struct failure *f, const lathe_usage *usage);
/* The string or the id of the request's that stopped it, or null. */
void openai_stop_reason(struct buf *out, const lathe_event *last, const struct openai_wish *w);

#endif

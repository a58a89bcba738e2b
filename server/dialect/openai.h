/* What OpenAI's chat completions and completions have in common. */
#ifndef LATHE_SERVER_DIALECT_OPENAI_H
#define LATHE_SERVER_DIALECT_OPENAI_H

#include "generate.h"

/* Refuses fields that are not supported, and values of those that must ask for what is done anyway; lists unknown ones.
 * own[0..n_own) are the dialect's. */
bool openai_fields(struct exchange *x, const struct fields *f, const char *const *own,
                   size_t n_own);
/* stream, stream_options, return_progress. */
bool openai_stream(struct exchange *x, const struct fields *f, struct generation *g,
                   bool *include_usage);

void openai_string(struct buf *out, const char *s);
void openai_usage(struct buf *out, const lathe_usage *u);
/* The member, with a comma before it, unless the server's options leave it out. In llama.cpp's names: cache_n + prompt_n
 * is the prompt. */
void openai_timings(struct buf *out, const struct server *s, const lathe_usage *u);
/* "stop", "length", "tool_calls" */
const char *openai_finish(lathe_finish finish);
/* The entries of struct dialect by these names: neither asks for the state. */
void openai_keepalive(struct buf *out, void *state);
void openai_error(struct buf *out, void *state, const struct failure *f);
/* The string that stopped it, or null. */
void openai_stop_reason(struct buf *out, const lathe_event *last);

#endif

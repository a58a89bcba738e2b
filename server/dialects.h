/* The routes that generate, one file of dialect/ each. */
#ifndef LATHE_SERVER_DIALECTS_H
#define LATHE_SERVER_DIALECTS_H

#include "exchange.h"

/* Of those that take a conversation. */
struct dialect;
extern const struct dialect chat_dialect, messages_dialect, responses_dialect;

void chat_completions(struct exchange *x);
void completions(struct exchange *x);
void messages(struct exchange *x);
void messages_count_tokens(struct exchange *x);
void chat_input_tokens(struct exchange *x);
void responses(struct exchange *x);
void responses_input_tokens(struct exchange *x);
/* Of stored responses. */
void responses_get(struct exchange *x);
void responses_delete(struct exchange *x);

#endif

/* Whether, how hard and how long a request thinks: the fields of a body, and the server's options (server.h) for what they
 * leave open. */
#ifndef LATHE_SERVER_THINKING_H
#define LATHE_SERVER_THINKING_H

#include "conversation.h"

/* The steps of reading, of which a dialect puts its own fields between the first and the last. */

/* chat_template_kwargs into c->kwargs, which is initialised; preserve_thinking, and what budgets are called. */
bool thinking_begin(const struct fields *f, struct chat *c);
/* Fields of f: a switch, an effort, a budget. The first switch, effort and budget that is given counts. */
bool thinking_switch(const struct fields *f, const char *name, struct chat *c);
bool thinking_effort(const struct fields *f, const char *name, struct chat *c);
bool thinking_budget(const struct fields *f, const char *name, struct chat *c);
/* thinking: {type, budget_tokens} */
bool thinking_object(const struct fields *f, struct chat *c);
/* Members of thinking and of reasoning that are not read: see fields_unknown. has_display, has_summary: the
 * dialect reads those of messages, of responses. */
bool thinking_unknown(const struct fields *f, struct exchange *x, bool has_display);
bool reasoning_unknown(const struct fields *f, struct exchange *x, bool has_summary);
/* What all of it comes to: c->thinks, c->asks_to_think, c->conversation. */
void thinking_end(const struct fields *f, struct chat *c);

#endif

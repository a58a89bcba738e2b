/* The request side of Anthropic's messages. */
#ifndef LATHE_SERVER_DIALECT_ANTHROPIC_H
#define LATHE_SERVER_DIALECT_ANTHROPIC_H

#include "generate.h"

/* Fills g->chat from system, messages, tools, tool_choice, thinking and output_config, and g->options.max_calls. */
bool anthropic_conversation(struct exchange *x, const struct fields *f, struct generation *g);

#endif

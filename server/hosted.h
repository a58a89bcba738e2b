/* Tools that run at the service whose dialect it is. The model is not told of them; a reply names them in x-ignored-tools. */
#ifndef LATHE_SERVER_HOSTED_H
#define LATHE_SERVER_HOSTED_H

#include "fields.h"

/* OpenAI's, by a tool's type. */
bool tool_is_hosted(const char *type);
/* Anthropic's, whose types end in a date. */
bool tool_is_anthropic_hosted(const char *type);
/* Into x->ignored, once. */
void tool_ignore(struct exchange *x, const char *type);
/* Those of OpenAI's that the body's tools have. */
void tools_ignore_hosted(struct exchange *x, const struct fields *f);

#endif

/* Tokens as replies spell them. */
#ifndef LATHE_SERVER_TOKEN_H
#define LATHE_SERVER_TOKEN_H

#include "base/buf.h"
#include "base/error.h"

/* A JSON string, with U+FFFD for what is no whole character; "" if no token has this id. */
void token_string(struct buf *out, const lathe_text *text, int32_t id);
/* An array of numbers. */
void token_bytes(struct buf *out, const lathe_text *text, int32_t id);
/* A number: JSON has no infinity, so -9999 stands for all below it. */
void token_logprob(struct buf *out, float logprob);
/* Ids with commas between them, and before the first if the text does not end with an opening bracket. */
void token_id(struct buf *out, int32_t id);

#endif

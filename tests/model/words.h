/* Prompts that are nothing but words, a token each, and what requests say. */
#ifndef LATHE_TESTS_MODEL_WORDS_H
#define LATHE_TESTS_MODEL_WORDS_H

#include "base/buf.h"
#include "lathe/lathe.h"

/* Appends n words of nano's vocabulary, one of several texts. */
void words_put(struct buf *text, int32_t which, int32_t n);
/* Waits for the end of the request, which it closes. What it said, a heap string; its tokens' probabilities are in it where
 * they are asked for. */
char *words_said(lathe_request *r, lathe_event *last);

#endif

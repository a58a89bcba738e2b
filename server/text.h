/* Routes that tokenise or render and generate nothing. */
#ifndef LATHE_SERVER_TEXT_H
#define LATHE_SERVER_TEXT_H

#include "exchange.h"

void tokenize(struct exchange *x);
void detokenize(struct exchange *x);
void apply_template(struct exchange *x);

#endif

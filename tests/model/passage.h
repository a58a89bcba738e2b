/* How well an engine predicts tests/golden/passage.txt. */
#ifndef LATHE_TESTS_PASSAGE_H
#define LATHE_TESTS_PASSAGE_H

#include "lathe/lathe.h"

/* The mean of -log(probability) of its tokens, nats; of the first 200 if test_quick. */
double passage_nats(lathe_engine *e);

#endif

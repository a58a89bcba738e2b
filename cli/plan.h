/* The memory plan as lines of text. */
#ifndef LATHE_CLI_PLAN_H
#define LATHE_CLI_PLAN_H

#include <stdio.h>

#include "lathe/lathe.h"

/* kv: of the options that the plan was made from. */
void plan_print(FILE *f, const lathe_memory_plan *p, lathe_dtype kv);

#endif

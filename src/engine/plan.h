/* The memory plan: what an engine takes, found by opening its parts over a memory that only measures. */
#ifndef LATHE_ENGINE_PLAN_H
#define LATHE_ENGINE_PLAN_H

#include "engine/step.h"
#include "op/memory.h"

struct lathe_engine;

struct state_options plan_state_options(const struct lathe_engine *e);
struct step_options plan_step_options(struct lathe_engine *e);

/* Needs the model, the backend and the drafter. Chooses the context where LATHE_CTX_AUTO asks for it, and
 * fills e->plan and `measured`. LATHE_E_MEMORY with the numbers, and e->plan filled, if it does not fit. e->state
 * is left open over the measuring memory. */
lathe_status plan_make(struct lathe_engine *e, struct memory *measured, lathe_error *err);

#endif

/* Routes of operators: what the slots do, what they hold, and how they are made to forget. */
#ifndef LATHE_SERVER_SLOTS_H
#define LATHE_SERVER_SLOTS_H

#include "exchange.h"

void slots_list(struct exchange *x);         /* GET /slots */
void slots_act(struct exchange *x);          /* POST /slots/{id}?action=erase */
void reset_prefix_cache(struct exchange *x); /* POST /reset_prefix_cache */
void debug_requests(struct exchange *x);     /* GET /debug/requests */
void debug_cache(struct exchange *x);        /* GET /debug/cache */

#endif

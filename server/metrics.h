/* Counters and histograms of the server, and their text for Prometheus. Counting takes atomic operations and no lock. */
#ifndef LATHE_SERVER_METRICS_H
#define LATHE_SERVER_METRICS_H

#include "exchange.h"

struct metrics;
lathe_status metrics_open(struct metrics **m, lathe_error *err);
void metrics_close(struct metrics *m); /* NULL is allowed */

/* Seconds from a request's arrival to the first piece of its answer, and between steps whose pieces were sent. */
void metrics_first(struct metrics *m, double seconds);
void metrics_next(struct metrics *m, double seconds);
/* A request that is over. */
void metrics_request(struct metrics *m, const struct exchange *x, int status, double seconds);

void metrics_show(struct exchange *x); /* GET /metrics */

#endif

/* The log: one line for a request that is over. Nothing of what was said, and no keys. */
#ifndef LATHE_SERVER_LOG_H
#define LATHE_SERVER_LOG_H

#include "exchange.h"

/* Gives the line to the server's sink, if there is one. status 0: the client went away before any. */
void log_request(const struct exchange *x, int status, int64_t ms);

#endif

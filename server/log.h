/* The log: one line for a request that is over, and notices. Nothing of what was said unless bodies are asked for, and no
 * keys. */
#ifndef LATHE_SERVER_LOG_H
#define LATHE_SERVER_LOG_H

#include "exchange.h"

enum log_level {
    LOG_LEVEL_ERROR, /* requests that failed with 500 and more */
    LOG_LEVEL_INFO,  /* all but probes */
    LOG_LEVEL_DEBUG,
};

struct log;
lathe_status log_open(struct log **l, lathe_error *err);
void log_close(struct log *l); /* NULL is allowed */

/* Of "info", or of "@FILE" whose first word it is. */
lathe_status log_read_level(const char *option, enum log_level *out, lathe_error *err);

/* What is told of a request that is over: members of a JSON object, or name=value. */
void log_members(struct buf *out, const struct exchange *x, int status, int64_t ms, bool json);
/* Gives the line to the server's sink, if there is one and the level wants it. status 0: the client went away before
 * any. */
void log_request(const struct exchange *x, int status, int64_t ms);
void log_notice(struct server *s, enum log_level level, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* A notice of a name that is none of the 256 that were met last. */
void log_new(struct server *s, const char *what, const char *name);

/* Tokens a second behind the first, which the prompt's pass gives; 0 of one token. */
double decode_rate(int32_t n, double decode_ms);

#endif

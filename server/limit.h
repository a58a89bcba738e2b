/* What a server takes of the world outside before it refuses: one table, of which options, help, messages and
 * docs/server.md have their names, units and figures. */
#ifndef LATHE_SERVER_LIMIT_H
#define LATHE_SERVER_LIMIT_H

#include <stddef.h>
#include <stdint.h>

#include "base/json.h"

/* X(NAME, option, unit, bits of the unit, least, default, most, of what). The most of depth and values is what the engine
 * reads of a conversation (json_limits_request), that of a body what it renders. */
#define SERVER_LIMITS(X)                                                                           \
    X(LINE, "--max-request-line", "KB", 10, 1, 8, 64, "a request line")                            \
    X(HEADER, "--max-header", "KB", 10, 1, 64, 1024, "all header fields")                          \
    X(FIELDS, "--max-fields", "N", 0, 8, 128, 4096, "header fields")                               \
    X(HEADER_TIME, "--header-timeout", "S", 0, 1, 30, 86400, "until the header is whole")          \
    X(BODY, "--max-body", "MB", 20, 1, 64, 256, "a body")                                          \
    X(BODY_MEMORY, "--body-memory", "MB", 20, 1, 512, 1048576, "all bodies in flight")             \
    X(BODY_TIME, "--body-timeout", "S", 0, 1, 300, 86400, "until a body is whole")                 \
    X(STALL_TIME, "--stall-timeout", "S", 0, 1, 30, 86400, "without a byte of a body")             \
    X(IDLE_TIME, "--idle-timeout", "S", 0, 1, 75, 86400, "between requests")                       \
    X(CONNECTIONS, "--max-connections", "N", 0, 1, 1024, 100000, "connections")                    \
    X(DEPTH, "--max-depth", "N", 0, 8, 128, 128, "levels of JSON")                                 \
    X(VALUES, "--max-values", "N", 0, 16, 1000000, 1000000, "values in a body's JSON")             \
    X(STRING, "--max-string", "MB", 20, 1, 32, 256, "a string of JSON")                            \
    X(MESSAGES, "--max-messages", "N", 0, 1, 100000, 1000000, "messages, or input items")          \
    X(TOOLS, "--max-tools", "N", 0, 1, 1024, 16384, "tools of a request")

enum server_limit {
#define X(name, option, unit, bits, low, normal, high, what) LIMIT_##name,
    SERVER_LIMITS(X)
#undef X
        N_LIMITS
};

struct limit_row {
    const char *option, *unit, *what;
    int bits;                  /* a unit is 1 << bits */
    int64_t low, normal, high; /* in units */
};
extern const struct limit_row limit_rows[N_LIMITS];

/* In bytes, seconds, or how many. */
struct limits {
    int64_t of[N_LIMITS];
};
void limits_init(struct limits *l);
/* What json_read takes of a body. */
struct json_limits limits_json(const struct limits *l);

#endif

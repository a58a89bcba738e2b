/* Which conversation a request belongs to, as clients say it in headers and fields that were made for caches, kept as a
 * hash; and whether somebody waits for the answer. Hints, for the engine's queue and slots, the log and traces. */
#ifndef LATHE_SERVER_SESSION_H
#define LATHE_SERVER_SESSION_H

#include "fields.h"

enum { SESSION_HEADERS = 6 };

struct session_hint {
    const char *header[SESSION_HEADERS]; /* values, the first that is there counts */
    bool is_background;
};

/* Takes note of one header field. */
void session_header(struct session_hint *h, const char *name, const char *value);
void session_of_headers(const struct session_hint *h, char out[SESSION_SIZE]);
/* prompt_cache_key counts more than headers, metadata.user_id and user less. */
void session_of_body(const struct fields *f, char session[SESSION_SIZE]);
/* The field priority: what is above 0 is of the background too. */
void priority_of_body(const struct fields *f, struct record *r);
/* The session as a number, 0 for none. */
uint64_t session_number(const char session[SESSION_SIZE]);

#endif

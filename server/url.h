/* Paths and queries of URLs. */
#ifndef LATHE_SERVER_URL_H
#define LATHE_SERVER_URL_H

#include <stdbool.h>
#include <stddef.h>

/* Decodes %XX; a plus sign stays. False at %00. `out` has room for n + 1 bytes. */
bool path_decode(const char *path, size_t n, char *out);

/* The decoded value of `name` in a query as "a=1&b=%2F", the first if there are several; a plus sign stays. False where it
 * is absent, has a NUL in it, or does not fit: out[room] is "" then. */
bool query_get(const char *query, const char *name, char *out, size_t room);

#endif

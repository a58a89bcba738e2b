/* The query of a URL. */
#ifndef LATHE_SERVER_QUERY_H
#define LATHE_SERVER_QUERY_H

#include <stdbool.h>
#include <stddef.h>

/* The decoded value of `name` in a query as "a=1&b=%2F", the first if there are several; a plus sign stays. False where it
 * is absent, has a NUL in it, or does not fit: out[room] is "" then. */
bool query_get(const char *query, const char *name, char *out, size_t room);

#endif

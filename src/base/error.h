/* Statuses and messages. A function that can fail returns lathe_status and takes lathe_error last;
 * the innermost one says what and how much, its callers prepend what they were doing. */
#ifndef LATHE_BASE_ERROR_H
#define LATHE_BASE_ERROR_H

#include "lathe/lathe.h"

#if defined(__GNUC__)
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define PRINTF_LIKE(fmt, args)
#endif

/* Fills *err (which may be NULL) and returns `status`: `return fail(err, LATHE_E_IO, "...")`.
 * Control bytes and broken UTF-8 that come from outside are replaced in the message by '?'. */
lathe_status fail(lathe_error *err, lathe_status status, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Prepends "context: " to the message. */
void error_context(lathe_error *err, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* The status of a failed allocation, "out of memory (N bytes)". */
lathe_status fail_memory(lathe_error *err, size_t bytes);

#endif

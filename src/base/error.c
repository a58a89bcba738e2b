#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

/* A message is one line of valid UTF-8, also where a name or a value in it came from a file; a
 * character that the buffer cut in half goes too. */
static void sanitise(char *s)
{
    size_t n = strlen(s), i = 0;
    while (i < n) {
        uint32_t cp;
        int32_t len = utf8_decode(s + i, n - i, &cp);
        if (len == 0) {
            if (n - i < 4 && utf8_incomplete_tail(s, n) == n - i) {
                s[i] = 0;
                return;
            }
            s[i++] = '?';
        } else {
            if (cp < 0x20 || cp == 0x7f)
                s[i] = '?';
            i += (size_t)len;
        }
    }
}

lathe_status fail(lathe_error *err, lathe_status status, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        (void)vsnprintf(err->message, sizeof err->message, fmt, ap);
        va_end(ap);
        sanitise(err->message);
        err->status = status;
    }
    return status;
}

void error_context(lathe_error *err, const char *fmt, ...)
{
    if (!err)
        return;
    char old[sizeof err->message];
    memcpy(old, err->message, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(err->message, sizeof err->message, fmt, ap);
    va_end(ap);
    size_t n = strlen(err->message);
    (void)snprintf(err->message + n, sizeof err->message - n, ": %s", old);
    sanitise(err->message);
}

lathe_status fail_memory(lathe_error *err, size_t bytes)
{
    return fail(err, LATHE_E_MEMORY, "out of memory (%zu bytes)", bytes);
}

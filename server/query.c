#include "query.h"

#include <string.h>

#include "route.h"

bool query_get(const char *query, const char *name, char *out, size_t room)
{
    size_t n_name = strlen(name);
    out[0] = 0;
    for (const char *at = query; *at;) {
        size_t n = strcspn(at, "&"), n_key = strcspn(at, "=&");
        const char *value = at + n_key + (at[n_key] == '=');
        size_t n_value = n - (size_t)(value - at);
        if (n_key == n_name && memcmp(at, name, n_key) == 0) {
            bool fits = n_value < room && path_decode(value, n_value, out);
            if (!fits)
                out[0] = 0;
            return fits;
        }
        at += n + (at[n] == '&');
    }
    return false;
}

#include "url.h"

#include <string.h>

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

bool path_decode(const char *path, size_t n, char *out)
{
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        char c = path[i];
        if (c == '%' && n - i >= 3 && hex(path[i + 1]) >= 0 && hex(path[i + 2]) >= 0) {
            c = (char)(hex(path[i + 1]) << 4 | hex(path[i + 2]));
            i += 2;
            if (c == 0)
                return false;
        }
        out[len++] = c;
    }
    out[len] = 0;
    return true;
}

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

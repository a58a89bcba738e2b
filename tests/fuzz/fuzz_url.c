/* Any bytes as a URL: its path is decoded into no more room than it has, and values of its query are whole or "". */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "server/url.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const name[] = {"limit", "action", "", "a"};
    char *url = malloc(size + 1), value[8];
    if (!url)
        abort();
    if (size)
        memcpy(url, data, size);
    url[size] = 0;
    size_t n = strcspn(url, "?");
    char *exact = malloc(n + 1); /* what is written behind it is found */
    if (!exact)
        abort();
    if (path_decode(url, n, exact))
        require(strlen(exact) <= n && (strlen(exact) == n || memchr(url, '%', n)));
    for (size_t i = 0; i < 4; i++) {
        memset(value, 'x', sizeof value);
        bool found = query_get(url[n] ? url + n + 1 : "", name[i], value, sizeof value);
        require(memchr(value, 0, sizeof value) && (found || !value[0]));
    }
    free(exact);
    free(url);
    return 0;
}

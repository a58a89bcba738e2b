#include "guard.h"

#include <arpa/inet.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/array.h"
#include "base/file.h"

/* ---- Host and Origin ------------------------------------------------------------------------ */

enum { MAX_NAME = 255, MAX_KEY_FILE = 1 << 20 };

/* The name of "name:port" or "[v6]:port", brackets and a final dot removed. False if it is none. */
static bool host_name(const char *host, char out[MAX_NAME + 1], const char **port)
{
    size_t n;
    const char *from = host;
    if (host[0] == '[') {
        from = host + 1;
        n = strcspn(from, "]");
        if (from[n] != ']')
            return false;
        *port = from + n + 1;
    } else {
        n = strcspn(host, ":");
        *port = host + n;
    }
    if (n == 0 || n > MAX_NAME || (**port && **port != ':'))
        return false;
    for (const char *p = *port + (**port == ':'); *p; p++)
        if (*p < '0' || *p > '9')
            return false;
    memcpy(out, from, n);
    out[n] = 0;
    if (n > 1 && out[n - 1] == '.')
        out[n - 1] = 0;
    return true;
}

bool host_allowed(const char *host, const char *own, const struct names *allowed)
{
    char name[MAX_NAME + 1];
    const char *port;
    unsigned char address[16];
    if (!host_name(host, name, &port))
        return false;
    if (host[0] == '[')
        return inet_pton(AF_INET6, name, address) == 1;
    if (inet_pton(AF_INET, name, address) == 1 || strcasecmp(name, "localhost") == 0 ||
        strcasecmp(name, "host.docker.internal") == 0 || (own && strcasecmp(name, own) == 0))
        return true;
    for (size_t i = 0; i < allowed->n; i++)
        if (strcasecmp(name, allowed->name[i]) == 0)
            return true;
    return false;
}

enum origin origin_check(const char *origin, const char *host, const struct names *listed)
{
    char a[MAX_NAME + 1], b[MAX_NAME + 1];
    const char *pa, *pb, *authority = strstr(origin, "://");
    for (size_t i = 0; i < listed->n; i++)
        if (strcasecmp(origin, listed->name[i]) == 0)
            return ORIGIN_LISTED;
    if (!authority || !host_name(authority + 3, a, &pa) || !host_name(host, b, &pb) ||
        strcasecmp(a, b) != 0)
        return ORIGIN_FOREIGN;
    const char *standard = strncasecmp(origin, "https:", 6) == 0 ? ":443" : ":80";
    if (strcmp(pa, standard) == 0)
        pa = "";
    if (strcmp(pb, standard) == 0)
        pb = "";
    return strcmp(pa, pb) == 0 ? ORIGIN_SAME : ORIGIN_FOREIGN;
}

/* ---- Keys ----------------------------------------------------------------------------------- */

struct keys {
    struct owner *digest; /* SHA-256 of the keys */
    size_t n, room;
};

lathe_status keys_open(struct keys **k, lathe_error *err)
{
    *k = calloc(1, sizeof **k);
    return *k ? LATHE_OK : fail_memory(err, sizeof **k);
}

void keys_close(struct keys *k)
{
    if (k)
        free(k->digest);
    free(k);
}

lathe_status keys_add(struct keys *k, const char *key, size_t n, lathe_error *err)
{
    if (n == 0)
        return fail(err, LATHE_E_ARGUMENT, "an API key is empty");
    struct owner *more = array_room(k->digest, k->n, &k->room, sizeof *more, err);
    if (!more)
        return LATHE_E_MEMORY;
    k->digest = more;
    SHA256((const unsigned char *)key, n, k->digest[k->n++].byte);
    return LATHE_OK;
}

lathe_status keys_add_file(struct keys *k, const char *path, lathe_error *err)
{
    struct buf f;
    buf_init(&f, MAX_KEY_FILE);
    lathe_status st = file_read(&f, path, err);
    size_t before = k->n;
    for (size_t at = 0; !st && at < f.len;) {
        const char *line = f.data + at;
        const char *end = memchr(line, '\n', f.len - at);
        size_t n = end ? (size_t)(end - line) : f.len - at;
        at += n + 1;
        while (n && (line[n - 1] == '\r' || line[n - 1] == ' ' || line[n - 1] == '\t'))
            n--;
        while (n && (*line == ' ' || *line == '\t'))
            line++, n--;
        if (n && *line != '#')
            st = keys_add(k, line, n, err);
    }
    buf_release(&f);
    if (!st && k->n == before)
        st = fail(err, LATHE_E_FORMAT, "%s: no API key in it", path);
    return st;
}

bool keys_any(const struct keys *k)
{
    return k->n > 0;
}

static bool matches(const struct keys *k, const char *key, struct owner *owner)
{
    struct owner d;
    unsigned any = 0;
    SHA256((const unsigned char *)key, strlen(key), d.byte);
    for (size_t i = 0; i < k->n; i++)
        any |= CRYPTO_memcmp(d.byte, k->digest[i].byte, sizeof d.byte) == 0;
    if (any)
        *owner = d;
    return any;
}

bool keys_match(const struct keys *k, const char *authorization, const char *x_api_key,
                struct owner *owner)
{
    bool any = k->n == 0;
    *owner = (struct owner){{0}};
    if (authorization && strncasecmp(authorization, "Bearer ", 7) == 0)
        any |= matches(k, authorization + 7 + strspn(authorization + 7, " "), owner);
    if (x_api_key)
        any |= matches(k, x_api_key, owner);
    return any;
}

/* Who may talk to the server: API keys, the Host header against DNS rebinding, a page's Origin. */
#ifndef LATHE_SERVER_GUARD_H
#define LATHE_SERVER_GUARD_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

struct names {
    const char *const *name;
    size_t n;
};

/* Does a Host header's value name this server: an IP literal, localhost, `own` (may be NULL), or one of
 * `allowed`? The port is not looked at. */
bool host_allowed(const char *host, const char *own, const struct names *allowed);

enum origin { ORIGIN_SAME, ORIGIN_LISTED, ORIGIN_FOREIGN };
/* The authority of `origin`, without a default port, against `host`; the scheme does not count, a TLS proxy may
 * stand between. */
enum origin origin_check(const char *origin, const char *host, const struct names *listed);

/* Keys, kept as hashes only. */
struct keys;
lathe_status keys_open(struct keys **k, lathe_error *err);
void keys_close(struct keys *k);
lathe_status keys_add(struct keys *k, const char *key, size_t n, lathe_error *err);
/* One key a line; blank lines and those that begin with '#' are left out. */
lathe_status keys_add_file(struct keys *k, const char *path, lathe_error *err);
bool keys_any(const struct keys *k);
/* Whose a request is: the hash of its key, or zeros where no key is set. */
struct owner {
    unsigned char byte[32];
};
/* The values of Authorization and x-api-key, NULL where absent: either may match. True if no key is set. The time
 * does not depend on how much of a key is right. */
bool keys_match(const struct keys *k, const char *authorization, const char *x_api_key,
                struct owner *owner);

#endif

/* The socket that the server listens on. */
#ifndef LATHE_SERVER_LISTEN_H
#define LATHE_SERVER_LISTEN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/error.h"

struct listener {
    int fd;           /* -1: none */
    const char *path; /* of a Unix socket, borrowed; NULL: it has an address */
    dev_t dev;        /* of the file at the path: another may stand there later */
    ino_t ino;
};

/* The path of "unix:PATH", else NULL. */
const char *listen_path(const char *host);

/* host: a name or an address; or unix:PATH, which gets mode 0600 and replaces a socket there that nobody listens on. */
lathe_status listen_open(struct listener *l, const char *host, int32_t port, lathe_error *err);
/* The port, 0 of a Unix socket. */
int32_t listen_port(const struct listener *l);
/* Removes the file of a Unix socket. The descriptor is closed by who has taken it. */
void listen_remove(const struct listener *l);

#endif

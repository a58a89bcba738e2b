#include "listen.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

const char *listen_path(const char *host)
{
    return strncmp(host, "unix:", 5) == 0 ? host + 5 : NULL;
}

static int make_socket(int family)
{
    int fd = socket(family, SOCK_STREAM, 0);
    if (fd >= 0 && (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 || fcntl(fd, F_SETFL, O_NONBLOCK) < 0)) {
        (void)close(fd);
        fd = -1;
    }
    return fd;
}

static lathe_status open_address(struct listener *l, const char *host, int32_t port,
                                 lathe_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *a;
    char service[12];
    const int on = 1;
    (void)snprintf(service, sizeof service, "%d", (int)port);
    int rc = getaddrinfo(host, service, &hints, &a);
    if (rc != 0)
        return fail(err, LATHE_E_ARGUMENT, "--host %s: %s", host, gai_strerror(rc));
    l->fd = make_socket(a->ai_family);
    bool ok = l->fd >= 0 && setsockopt(l->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0;
    if (ok && a->ai_family == AF_INET6)
        ok = setsockopt(l->fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on) == 0;
    ok = ok && bind(l->fd, a->ai_addr, a->ai_addrlen) == 0 && listen(l->fd, SOMAXCONN) == 0;
    int why = errno;
    freeaddrinfo(a);
    if (ok)
        return LATHE_OK;
    return fail(err, LATHE_E_IO, "cannot listen on %s port %d: %s", host, (int)port, strerror(why));
}

/* A socket at the path that refuses connections is what a process left that was killed. */
static bool is_abandoned(const struct sockaddr_un *a)
{
    struct stat st;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    bool refused = fd >= 0 && lstat(a->sun_path, &st) == 0 && S_ISSOCK(st.st_mode) &&
                   connect(fd, (const struct sockaddr *)a, sizeof *a) < 0 && errno == ECONNREFUSED;
    if (fd >= 0)
        (void)close(fd);
    return refused;
}

static lathe_status open_path(struct listener *l, const char *path, lathe_error *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct stat st;
    if (!*path || strlen(path) >= sizeof a.sun_path)
        return fail(err, LATHE_E_ARGUMENT, "--host unix:%.200s: a path has 1 to %zu bytes", path,
                    sizeof a.sun_path - 1);
    (void)snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    if (is_abandoned(&a))
        (void)unlink(path);
    l->fd = make_socket(AF_UNIX);
    /* The mode of the file that bind makes is the socket's own, so there is no moment without it. */
    if (l->fd < 0 || fchmod(l->fd, 0600) < 0 ||
        bind(l->fd, (const struct sockaddr *)&a, sizeof a) < 0 || lstat(path, &st) < 0 ||
        listen(l->fd, SOMAXCONN) < 0)
        return fail(err, LATHE_E_IO, "cannot listen on unix:%s: %s", path, strerror(errno));
    l->path = path;
    l->dev = st.st_dev;
    l->ino = st.st_ino;
    return LATHE_OK;
}

lathe_status listen_open(struct listener *l, const char *host, int32_t port, lathe_error *err)
{
    *l = (struct listener){.fd = -1};
    lathe_status st =
        listen_path(host) ? open_path(l, listen_path(host), err) : open_address(l, host, port, err);
    if (st && l->fd >= 0) {
        (void)close(l->fd);
        l->fd = -1;
    }
    return st;
}

int32_t listen_port(const struct listener *l)
{
    struct sockaddr_storage a = {0};
    socklen_t n = sizeof a;
    if (l->fd < 0 || getsockname(l->fd, (struct sockaddr *)&a, &n) < 0)
        return 0;
    return a.ss_family == AF_INET    ? ntohs(((const struct sockaddr_in *)&a)->sin_port)
           : a.ss_family == AF_INET6 ? ntohs(((const struct sockaddr_in6 *)&a)->sin6_port)
                                     : 0;
}

void listen_remove(const struct listener *l)
{
    struct stat st;
    if (l->path && lstat(l->path, &st) == 0 && st.st_dev == l->dev && st.st_ino == l->ino)
        (void)unlink(l->path);
}

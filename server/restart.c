/* prctl is Linux' own. */
#define _GNU_SOURCE
#include "restart.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"

/* Its value: the process's id, the program's name, the descriptor, device and inode of a Unix socket's file, the number of losses, and
 * their times. */
static const char variable[] = "LATHE_RESTART";

enum { COMMAND_LIMIT = 8 << 20, NAME_SIZE = 16 };

extern char **environ;

static bool is_listening(int fd)
{
    int on = 0;
    socklen_t n = sizeof on;
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &n) == 0 && on;
}

/* "PID NAME FD DEV INO LOSSES T T T" of this process. */
static bool parse(const char *s, struct restart *r, char name[NAME_SIZE])
{
    long pid;
    int n = 0;
    uintmax_t dev, ino;
    if (sscanf(s, "%ld %15s %d %ju %ju %" SCNu64 "%n", &pid, name, &r->listener.fd, &dev, &ino,
               &r->n_losses, &n) != 6 ||
        pid != (long)getpid())
        return false;
    r->listener.dev = (dev_t)dev;
    r->listener.ino = (ino_t)ino;
    s += n;
    for (int i = 0; i < RESTARTS; i++, s += n)
        if (sscanf(s, " %" SCNd64 "%n", &r->lost_s[i], &n) != 1)
            return false;
    return *s == 0;
}

lathe_status restart_read(struct restart *r, lathe_error *err)
{
    char name[NAME_SIZE];
    const char *value = getenv(variable);
    *r = (struct restart){.listener.fd = -1};
    if (!value || strtol(value, NULL, 10) != (long)getpid()) {
        (void)unsetenv(variable);
        return LATHE_OK;
    }
    if (!parse(value, r, name) || !is_listening(r->listener.fd) ||
        fcntl(r->listener.fd, F_SETFD, FD_CLOEXEC) < 0) {
        r->listener.fd = -1;
        return fail(err, LATHE_E_ARGUMENT,
                    "the environment's %s is \"%.100s\": a server sets it when it starts again",
                    variable, value);
    }
    (void)unsetenv(variable);
    (void)prctl(PR_SET_NAME, name); /* which is "exe" now */
    return LATHE_OK;
}

bool restart_note_loss(struct restart *r, int64_t now_s)
{
    int64_t before = r->lost_s[RESTARTS - 1];
    memmove(r->lost_s + 1, r->lost_s, (RESTARTS - 1) * sizeof *r->lost_s);
    r->lost_s[0] = now_s;
    r->n_losses++;
    return before == 0 || now_s - before >= RESTART_WINDOW_S;
}

/* ---- Executing ------------------------------------------------------------------------------ */

/* The environment with the variable, a heap array whose first string is on the heap. */
static char **make_environment(const struct restart *r)
{
    char name[NAME_SIZE] = "";
    size_t n = 0;
    while (environ[n])
        n++;
    char **out = calloc(n + 2, sizeof *out);
    char *value = malloc(256);
    (void)prctl(PR_GET_NAME, name);
    /* One word. */
    for (char *c = name; *c; c++)
        if (*c <= ' ')
            *c = '_';
    if (out && value) {
        int at = snprintf(value, 256, "%s=%ld %s %d %ju %ju %" PRIu64, variable, (long)getpid(),
                          name[0] ? name : "lathe", r->listener.fd, (uintmax_t)r->listener.dev,
                          (uintmax_t)r->listener.ino, r->n_losses);
        for (int i = 0; i < RESTARTS; i++)
            at += snprintf(value + at, 256 - (size_t)at, " %" PRId64, r->lost_s[i]);
        out[0] = value;
        memcpy(out + 1, environ, n * sizeof *out);
        return out;
    }
    free(value);
    free(out);
    return NULL;
}

/* The strings of a command line, which lie one behind the other; a heap array. */
static char **make_arguments(struct buf *line)
{
    size_t n = 0;
    for (size_t i = 0; i < line->len; i++)
        n += line->data[i] == 0;
    char **out = calloc(n + 1, sizeof *out);
    char *s = line->data;
    for (size_t i = 0; i < n && out; i++, s += strlen(s) + 1)
        out[i] = s;
    return out;
}

/* Descriptors that others opened, as those of the device, are closed by the execution. */
static bool close_others(int but)
{
    DIR *all = opendir("/proc/self/fd");
    if (!all)
        return false;
    for (const struct dirent *d; (d = readdir(all));) {
        int fd = (int)strtol(d->d_name, NULL, 10);
        if (fd > STDERR_FILENO && fd != but)
            (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
    (void)closedir(all);
    return fcntl(but, F_SETFD, 0) == 0;
}

lathe_status restart_execute(const struct restart *r, lathe_error *err)
{
    struct buf line;
    char **arguments = NULL, **environment = make_environment(r);
    buf_init(&line, COMMAND_LIMIT);
    lathe_status st = file_read(&line, "/proc/self/cmdline", err);
    if (!st && !(arguments = make_arguments(&line)))
        st = fail_memory(err, line.len);
    if (!st && !environment)
        st = fail_memory(err, 256);
    if (!st) {
        if (close_others(r->listener.fd))
            (void)execve("/proc/self/exe", arguments, environment);
        st = fail(err, LATHE_E_IO, "the program cannot be executed again: %s", strerror(errno));
        (void)fcntl(r->listener.fd, F_SETFD, FD_CLOEXEC);
    }
    if (environment)
        free(environment[0]);
    free(environment);
    free(arguments);
    buf_release(&line);
    return st;
}

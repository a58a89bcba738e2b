/* What a server hands on to the program that takes its place: how often, and what is refused. The execution itself is in
 * test_device_loss.sh. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "restart.h"
#include "test.h"

TEST(so_many_restarts_in_an_hour)
{
    struct restart r;
    lathe_error err;
    (void)unsetenv("LATHE_RESTART");
    CHECK_OK(restart_read(&r, &err), &err);
    CHECK(r.listener.fd == -1 && r.n_losses == 0);
    /* The clock may be young. */
    CHECK(restart_note_loss(&r, 5));
    CHECK(restart_note_loss(&r, 6));
    CHECK(restart_note_loss(&r, 3000));
    CHECK(!restart_note_loss(&r, 3604));
    CHECK_INT((int)r.n_losses, 4);
    /* Of the last four the first was more than an hour ago, or just so long. */
    r = (struct restart){.lost_s = {300, 200, 100}, .n_losses = 7};
    CHECK(restart_note_loss(&r, 3700));
    CHECK(restart_note_loss(&r, 3800));
    CHECK(!restart_note_loss(&r, 3899));
    CHECK_INT((int)r.n_losses, 10);
}

/* In the environment of this process; the id is put before it. */
static lathe_status read_value(const char *rest, struct restart *r, lathe_error *err)
{
    char value[256];
    (void)snprintf(value, sizeof value, "%ld%s", (long)getpid(), rest);
    (void)setenv("LATHE_RESTART", value, 1);
    return restart_read(r, err);
}

TEST(what_comes_over)
{
    struct restart r;
    lathe_error err;
    char value[200];
    int fd = socket(AF_INET, SOCK_STREAM, 0), pair[2];
    CHECK(fd >= 0 && listen(fd, 1) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    (void)snprintf(value, sizeof value, " test_restart %d 18446744073709551615 7 12 33 22 0", fd);
    CHECK_OK(read_value(value, &r, &err), &err);
    CHECK(!getenv("LATHE_RESTART") && fcntl(fd, F_GETFD) == FD_CLOEXEC);
    CHECK(r.listener.fd == fd && r.listener.dev == (dev_t)-1 && r.listener.ino == 7);
    CHECK(r.n_losses == 12 && r.lost_s[0] == 33 && r.lost_s[1] == 22 && r.lost_s[2] == 0);
    /* Another process's. */
    (void)setenv("LATHE_RESTART", "1 test_restart 0 0 0 12 33 22 0", 1);
    CHECK_OK(restart_read(&r, &err), &err);
    CHECK(!getenv("LATHE_RESTART") && r.listener.fd == -1 && r.n_losses == 0);
    /* Not a socket that listens, or not all of it. */
    (void)snprintf(value, sizeof value, " a %d 0 0 1 0 0 0", pair[0]);
    CHECK_ERR(read_value(value, &r, &err), &err, LATHE_E_ARGUMENT, "LATHE_RESTART");
    for (size_t n = 0; n < strlen(" a 3 0 0 1 0 0 0"); n++) {
        (void)snprintf(value, sizeof value, "%.*s", (int)n, " a 3 0 0 1 0 0 0");
        CHECK_ERR(read_value(value, &r, &err), &err, LATHE_E_ARGUMENT, "a server sets it");
        CHECK_INT(r.listener.fd, -1);
    }
    (void)unsetenv("LATHE_RESTART");
    (void)close(fd);
    (void)close(pair[0]);
    (void)close(pair[1]);
}

#include "direct.h"

#include <errno.h>
#include <stdint.h>
#include <sys/socket.h>

void direct_init(struct direct *d)
{
    *d = (struct direct){.n_sent = 0};
    buf_init(&d->frame, SIZE_MAX / 2);
}

void direct_release(struct direct *d)
{
    buf_release(&d->frame);
}

bool direct_is_torn(const struct direct *d)
{
    return d->n_sent < d->frame.len;
}

bool direct_flush(struct direct *d, int fd)
{
    while (d->n_sent < d->frame.len) {
        ssize_t n = send(fd, d->frame.data + d->n_sent, d->frame.len - d->n_sent,
                         MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR)
            return errno == EAGAIN;
        d->n_sent += n > 0 ? (size_t)n : 0;
    }
    return true;
}

bool direct_write(struct direct *d, int fd, const char *bytes, size_t n)
{
    static const char digit[] = "0123456789abcdef";
    char size[2 * sizeof n + 2] = {0};
    size_t at = sizeof size;
    size[--at] = '\n';
    size[--at] = '\r';
    for (size_t left = n; left; left >>= 4)
        size[--at] = digit[left & 15];
    buf_clear(&d->frame);
    d->n_sent = 0;
    buf_append(&d->frame, size + at, sizeof size - at);
    buf_append(&d->frame, bytes, n);
    buf_puts(&d->frame, "\r\n");
    if (!d->frame.no_memory)
        return direct_flush(d, fd);
    buf_clear(&d->frame);
    return false;
}

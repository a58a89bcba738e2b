#define _DEFAULT_SOURCE /* madvise */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static lathe_status open_regular(const char *path, int *fd, size_t *size, lathe_error *err)
{
    struct stat sb;
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0)
        return fail(err, LATHE_E_IO, "%s: %s", path, strerror(errno));
    if (fstat(*fd, &sb) != 0 || !S_ISREG(sb.st_mode)) {
        close(*fd);
        return fail(err, LATHE_E_IO, "%s: not a regular file", path);
    }
    *size = (size_t)sb.st_size;
    return LATHE_OK;
}

lathe_status file_map(struct file *f, const char *path, lathe_error *err)
{
    int fd;
    *f = (struct file){0};
    lathe_status st = open_regular(path, &fd, &f->size, err);
    if (st)
        return st;
    if (f->size) {
        void *p = mmap(NULL, f->size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            st = fail(err, LATHE_E_IO, "%s: cannot map %zu bytes: %s", path, f->size,
                      strerror(errno));
        else
            f->data = p;
        /* Reading weights through 4 KiB pages costs up to a sixth of a product's time. Not every file
         * system has larger ones, so a refusal is no error. */
        if (f->data)
            (void)madvise(p, f->size, MADV_HUGEPAGE);
    }
    close(fd);
    if (st)
        *f = (struct file){0};
    return st;
}

void file_unmap(struct file *f)
{
    if (f->data) {
        union {
            const unsigned char *c;
            void *v;
        } p = {.c = f->data};
        munmap(p.v, f->size);
    }
    *f = (struct file){0};
}

void file_will_need(const void *p, size_t n)
{
    union {
        const void *c;
        unsigned char *v;
    } at = {.c = p};
    size_t page = (size_t)sysconf(_SC_PAGESIZE), before = (uintptr_t)p % page;
    if (n)
        (void)posix_madvise(at.v - before, n + before, POSIX_MADV_WILLNEED);
}

lathe_status file_read(struct buf *out, const char *path, lathe_error *err)
{
    int fd;
    size_t size;
    lathe_status st = open_regular(path, &fd, &size, err);
    if (st)
        return st;
    char chunk[16384];
    ssize_t n;
    while ((n = read(fd, chunk, sizeof chunk)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            st = fail(err, LATHE_E_IO, "%s: %s", path, strerror(errno));
            break;
        }
        buf_append(out, chunk, (size_t)n);
        if (out->over || out->no_memory)
            break;
    }
    close(fd);
    return st ? st : buf_check(out, path, err);
}

bool file_exists(const char *path)
{
    struct stat sb;
    return stat(path, &sb) == 0;
}

lathe_status file_write(const char *path, const void *data, size_t n, lathe_error *err)
{
    struct stat sb;
    if (stat(path, &sb) == 0 && !S_ISREG(sb.st_mode)) /* rename would put a file in its place */
        return fail(err, LATHE_E_IO, "%s: not a regular file", path);
    size_t len = strlen(path);
    char *tmp = malloc(len + 8);
    if (!tmp)
        return fail_memory(err, len + 8);
    memcpy(tmp, path, len);
    memcpy(tmp + len, ".XXXXXX", 8);
    lathe_status st = LATHE_OK;
    int fd = mkstemp(tmp);
    if (fd < 0) {
        st = fail(err, LATHE_E_IO, "%s: %s", path, strerror(errno));
        free(tmp);
        return st;
    }
    const char *p = data;
    while (n && !st) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno != EINTR)
            st = fail(err, LATHE_E_IO, "%s: %s", path, strerror(errno));
        else if (k > 0) {
            p += k;
            n -= (size_t)k;
        }
    }
    mode_t mask = umask(0);
    umask(mask);
    if (!st && (fchmod(fd, 0666 & ~mask) != 0 || rename(tmp, path) != 0))
        st = fail(err, LATHE_E_IO, "%s: %s", path, strerror(errno));
    close(fd);
    if (st)
        unlink(tmp);
    free(tmp);
    return st;
}

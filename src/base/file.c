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

static lathe_status open_to_read(const char *path, int flags, int *fd, struct stat *sb,
                                 lathe_error *err)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC | flags);
    if (*fd < 0)
        return fail(err, LATHE_E_IO, "%s: %s", path, strerror(errno));
    if (fstat(*fd, sb) != 0) {
        lathe_status st = fail(err, LATHE_E_IO, "%s: %s", path, strerror(errno));
        close(*fd);
        return st;
    }
    return LATHE_OK;
}

lathe_status file_map(struct file *f, const char *path, lathe_error *err)
{
    int fd;
    struct stat sb;
    *f = (struct file){0};
    lathe_status st = open_to_read(path, O_NONBLOCK, &fd, &sb, err); /* no waiting for a pipe */
    if (st)
        return st;
    if (!S_ISREG(sb.st_mode)) {
        close(fd);
        return fail(err, LATHE_E_IO, "%s: not a regular file", path);
    }
    f->size = (size_t)sb.st_size;
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
    struct stat sb;
    lathe_status st = open_to_read(path, 0, &fd, &sb, err);
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

/* Where symbolic links lead, also if nothing is there yet. Heap string, NULL with errno. */
static char *follow(const char *path)
{
    enum { MOST_LINKS = 40 };
    char *at = strdup(path);
    for (int i = 0; at && i < MOST_LINKS; i++) {
        char link[4096];
        ssize_t n = readlink(at, link, sizeof link);
        if (n < 0)
            return at;
        const char *slash = strrchr(at, '/');
        size_t dir = slash && (n == 0 || link[0] != '/') ? (size_t)(slash - at) + 1 : 0;
        char *next = (size_t)n < sizeof link ? malloc(dir + (size_t)n + 1) : NULL;
        if (next) {
            memcpy(next, at, dir);
            memcpy(next + dir, link, (size_t)n);
            next[dir + (size_t)n] = 0;
        }
        free(at);
        at = next;
        if (!next)
            errno = ENAMETOOLONG;
    }
    if (at)
        errno = ELOOP;
    free(at);
    return NULL;
}

/* A new file beside path, with the permissions that the process gives new files. */
static int open_beside(const char *path, char **name)
{
    enum { TRIES = 1000 };
    size_t room = strlen(path) + 40;
    *name = malloc(room);
    if (!*name) {
        errno = ENOMEM;
        return -1;
    }
    for (int i = 0; i < TRIES; i++) {
        (void)snprintf(*name, room, "%s.%ld.%d", path, (long)getpid(), i);
        int fd = open(*name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0)
            return fd;
        if (errno != EEXIST)
            break;
    }
    free(*name);
    *name = NULL;
    return -1;
}

lathe_status file_out_open(struct file_out *o, const char *path, lathe_error *err)
{
    struct stat sb;
    int fd = -1;
    *o = (struct file_out){0};
    o->path = follow(path);
    if (o->path) {
        bool exists = stat(o->path, &sb) == 0;
        if (exists && !S_ISREG(sb.st_mode))
            fd = open(o->path, O_WRONLY | O_CLOEXEC);
        else if (!exists || access(o->path, W_OK) == 0)
            fd = open_beside(o->path, &o->tmp);
        /* A file that only its owner may read stays so. */
        if (fd >= 0 && o->tmp && exists && fchmod(fd, sb.st_mode & 0777) != 0) {
            close(fd);
            fd = -1;
        }
    }
    if (fd >= 0) {
        o->file = fdopen(fd, "w");
        if (!o->file)
            close(fd);
    }
    if (o->file)
        return LATHE_OK;
    lathe_status st = fail(err, LATHE_E_IO, "%s: %s", path, strerror(errno));
    file_out_discard(o);
    return st;
}

lathe_status file_out_commit(struct file_out *o, lathe_error *err)
{
    lathe_status st = LATHE_OK;
    FILE *f = o->file;
    bool bad = fflush(f) != 0 || ferror(f);
    int why = errno;
    if (fclose(f) != 0 && !bad) {
        bad = true;
        why = errno;
    }
    o->file = NULL;
    if (!bad && o->tmp && rename(o->tmp, o->path) != 0) {
        bad = true;
        why = errno;
    }
    if (bad) {
        st = fail(err, LATHE_E_IO, "%s: %s", o->path, strerror(why));
    } else {
        free(o->tmp); /* it is in place */
        o->tmp = NULL;
    }
    file_out_discard(o);
    return st;
}

void file_out_discard(struct file_out *o)
{
    if (o->file)
        (void)fclose(o->file);
    if (o->tmp)
        (void)unlink(o->tmp);
    free(o->tmp);
    free(o->path);
    *o = (struct file_out){0};
}

lathe_status file_write(const char *path, const void *data, size_t n, lathe_error *err)
{
    struct file_out o;
    struct stat sb;
    if (stat(path, &sb) == 0 && !S_ISREG(sb.st_mode))
        return fail(err, LATHE_E_IO, "%s: not a regular file", path);
    lathe_status st = file_out_open(&o, path, err);
    if (st)
        return st;
    if (n)
        (void)fwrite(data, 1, n, o.file); /* a failure shows at the commit */
    return file_out_commit(&o, err);
}

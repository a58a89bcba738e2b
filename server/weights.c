/* SCHED_IDLE and priorities of reading are extensions of Linux. */
#define _GNU_SOURCE
#include "weights.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/buf.h"

enum {
    PIECE = 1 << 20,
    IDLE_CLASS = 3 << 13,
    SAMPLES = 16,
    SAMPLE = 4096, /* bytes of each */
    MAX_HEADER = 16 << 20,
};

struct weights {
    const char *dir;
    void (*done)(void *ctx, const lathe_error *err);
    void *ctx;
    pthread_t thread;
    _Atomic(bool) stop, is_known;
    char hex[65]; /* constant once is_known */
};

static int is_weights(const struct dirent *d)
{
    static const char suffix[] = ".safetensors";
    size_t n = strlen(d->d_name), m = sizeof suffix - 1;
    return n > m && strcmp(d->d_name + n - m, suffix) == 0;
}

/* By bytes, whatever the locale. */
static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* ---- A sample ------------------------------------------------------------------------------- */

static void add_at(EVP_MD_CTX *md, int fd, unsigned char *piece, size_t n, uint64_t at)
{
    ssize_t got = pread(fd, piece, n, (off_t)at);
    if (got > 0)
        (void)EVP_DigestUpdate(md, piece, (size_t)got);
}

/* The header's length comes first, in eight bytes. */
static void sample_file(EVP_MD_CTX *md, int fd, uint64_t size, unsigned char *piece)
{
    unsigned char length[8] = {0};
    uint64_t header = 0;
    if (pread(fd, length, sizeof length, 0) != (ssize_t)sizeof length)
        return;
    for (int i = 7; i >= 0; i--)
        header = header << 8 | length[i];
    header = header < MAX_HEADER ? header : MAX_HEADER;
    for (uint64_t at = 0; at < 8 + header; at += SAMPLE)
        add_at(md, fd, piece, 8 + header - at < SAMPLE ? (size_t)(8 + header - at) : SAMPLE, at);
    if (size <= 8 + header)
        return;
    for (uint64_t i = 0; i < SAMPLES; i++)
        add_at(md, fd, piece, SAMPLE, 8 + header + (size - 8 - header) / SAMPLES * i);
}

static void sample_path(EVP_MD_CTX *md, const char *dir, const char *name, bool is_whole)
{
    unsigned char piece[SAMPLE];
    struct stat st;
    struct buf path;
    buf_init(&path, 1 << 16);
    buf_printf(&path, "%s/%s", dir, name);
    int fd = path.over || path.no_memory ? -1 : open(buf_str(&path), O_RDONLY | O_CLOEXEC);
    buf_release(&path);
    if (fd >= 0 && fstat(fd, &st) == 0) {
        uint64_t size = (uint64_t)st.st_size;
        (void)EVP_DigestUpdate(md, name, strlen(name) + 1);
        (void)EVP_DigestUpdate(md, &size, sizeof size);
        if (!is_whole)
            sample_file(md, fd, size, piece);
        for (uint64_t at = 0; is_whole && at < size && at < MAX_HEADER; at += SAMPLE)
            add_at(md, fd, piece, SAMPLE, at);
    }
    if (fd >= 0)
        (void)close(fd);
}

void weights_sample(const char *model_dir, EVP_MD_CTX *md)
{
    struct dirent **entry;
    sample_path(md, model_dir, "config.json", true);
    int n = scandir(model_dir, &entry, is_weights, by_name);
    for (int i = 0; i < n; i++) {
        sample_path(md, model_dir, entry[i]->d_name, false);
        free(entry[i]);
    }
    if (n >= 0)
        free(entry);
}

/* ---- The whole ------------------------------------------------------------------------------ */

static lathe_status add_file(struct weights *w, EVP_MD_CTX *md, const char *path,
                             unsigned char *piece, lathe_error *err)
{
    lathe_status st = LATHE_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : 1;
    while (n > 0 && !st) {
        n = read(fd, piece, PIECE);
        if (n > 0 && EVP_DigestUpdate(md, piece, (size_t)n) != 1)
            st = fail(err, LATHE_E_MEMORY, "SHA-256 failed");
        else if (atomic_load(&w->stop))
            st = fail(err, LATHE_E_CANCELLED, "stopped");
    }
    if (n < 0)
        st = fail(err, LATHE_E_IO, "%s: %s", path, strerror(errno));
    if (fd >= 0)
        (void)close(fd);
    return st;
}

static lathe_status add_files(struct weights *w, EVP_MD_CTX *md, unsigned char *piece,
                              lathe_error *err)
{
    struct dirent **entry;
    lathe_status st = LATHE_OK;
    int n = scandir(w->dir, &entry, is_weights, by_name);
    if (n < 0)
        return fail(err, LATHE_E_IO, "%s: %s", w->dir, strerror(errno));
    if (n == 0)
        st = fail(err, LATHE_E_IO, "%s: no file *.safetensors", w->dir);
    for (int i = 0; i < n; i++) {
        struct buf path;
        buf_init(&path, 1 << 16);
        buf_printf(&path, "%s/%s", w->dir, entry[i]->d_name);
        if (!st)
            st = buf_check(&path, "path", err);
        if (!st)
            st = add_file(w, md, buf_str(&path), piece, err);
        buf_release(&path);
        free(entry[i]);
    }
    free(entry);
    return st;
}

static lathe_status make(struct weights *w, lathe_error *err)
{
    unsigned char digest[32], *piece = malloc(PIECE);
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    lathe_status st = LATHE_OK;
    if (!piece || !md || EVP_DigestInit_ex(md, EVP_sha256(), NULL) != 1)
        st = fail_memory(err, PIECE);
    if (!st)
        st = add_files(w, md, piece, err);
    if (!st && EVP_DigestFinal_ex(md, digest, NULL) != 1)
        st = fail(err, LATHE_E_MEMORY, "SHA-256 failed");
    for (size_t i = 0; i < sizeof digest && !st; i++)
        (void)snprintf(w->hex + 2 * i, 3, "%02x", digest[i]);
    atomic_store(&w->is_known, st == LATHE_OK);
    EVP_MD_CTX_free(md);
    free(piece);
    return st;
}

static void *run(void *arg)
{
    struct weights *w = arg;
    const struct sched_param none = {0};
    lathe_error err = {.status = LATHE_OK};
    /* Where these are refused it runs like others. */
    (void)pthread_setschedparam(pthread_self(), SCHED_IDLE, &none);
    (void)syscall(SYS_ioprio_set, 1, 0, IDLE_CLASS);
    if (make(w, &err) != LATHE_E_CANCELLED)
        w->done(w->ctx, &err);
    return NULL;
}

lathe_status weights_open(struct weights **out, const char *model_dir,
                          void (*done)(void *ctx, const lathe_error *err), void *ctx,
                          lathe_error *err)
{
    struct weights *w = calloc(1, sizeof *w);
    if (!w)
        return fail_memory(err, sizeof *w);
    w->dir = model_dir;
    w->done = done;
    w->ctx = ctx;
    if (pthread_create(&w->thread, NULL, run, w) != 0) {
        free(w);
        return fail(err, LATHE_E_MEMORY, "no thread can be started");
    }
    *out = w;
    return LATHE_OK;
}

bool weights_sha256(const struct weights *w, char out[65])
{
    bool is_known = w && atomic_load(&w->is_known);
    out[0] = 0;
    if (is_known)
        memcpy(out, w->hex, sizeof w->hex);
    return is_known;
}

void weights_close(struct weights *w)
{
    if (!w)
        return;
    atomic_store(&w->stop, true);
    (void)pthread_join(w->thread, NULL);
    free(w);
}

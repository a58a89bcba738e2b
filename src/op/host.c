#include "op/host.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "op/load.h"

lathe_status host_alloc(void *stream, void **p, size_t bytes, lathe_error *err)
{
    (void)stream;
    *p = NULL;
    if (bytes > SIZE_MAX - 64)
        return fail_memory(err, bytes);
    size_t whole = (bytes + 63) & ~(size_t)63;
    if (posix_memalign(p, 64, whole ? whole : 64) != 0) {
        *p = NULL;
        return fail_memory(err, bytes);
    }
    memset(*p, 0, whole);
    return LATHE_OK;
}

void host_free(void *stream, void *p)
{
    (void)stream;
    free(p);
}

void host_zero(void *stream, void *p, size_t bytes)
{
    (void)stream;
    memset(p, 0, bytes);
}

void host_copy(void *stream, void *dst, const void *src, size_t bytes)
{
    (void)stream;
    memcpy(dst, src, bytes);
}

lathe_status host_copy_out(void *stream, void *dst, const void *src, size_t bytes, lathe_error *err)
{
    (void)stream, (void)err;
    memcpy(dst, src, bytes);
    return LATHE_OK;
}

lathe_status host_wait(void *stream, lathe_error *err)
{
    (void)stream, (void)err;
    return LATHE_OK;
}

void host_keep_before(struct tensor state, const struct fold_layers *layers,
                      const struct batch_seq *seq)
{
    size_t bytes = (size_t)tensor_row(&state) * dtype_size(state.dtype);
    if (!layers->before || *layers->before < 0 || seq->n_rows == 0)
        return;
    for (int32_t i = 0; i < layers->n; i++) {
        struct tensor layer = tensor_after(state, (size_t)i * layers->state_step);
        memcpy(tensor_at(&layer, *layers->before), tensor_at(&layer, seq->slot), bytes);
    }
}

/* A line "name:   123 kB" of /proc/meminfo. */
static size_t kilobytes(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    return at ? (size_t)strtoull(at + strlen(name), NULL, 10) * 1024 : 0;
}

void host_room(void *stream, size_t *total, size_t *room)
{
    (void)stream;
    struct buf b;
    *total = *room = 0;
    buf_init(&b, 1 << 16);
    if (!file_read(&b, "/proc/meminfo", NULL)) {
        *total = kilobytes(buf_str(&b), "MemTotal:");
        *room = kilobytes(buf_str(&b), "MemAvailable:");
    }
    buf_release(&b);
}

static void load_parts(void *ctx, int32_t thread, int32_t n_threads)
{
    (void)n_threads;
    struct loading *l = ctx;
    struct load part;
    while (loading_next(l, &part)) {
        const volatile unsigned char *p = part.from;
        unsigned char sink = 0;
        if (part.to)
            memcpy(part.to, part.from, part.bytes);
        for (size_t at = 0; !part.to && at < part.bytes; at += 4096)
            sink = (unsigned char)(sink + p[at]);
        (void)sink;
        loading_done(l, thread, part.bytes);
    }
}

lathe_status host_load(void *stream, struct pool *pool, const struct load *load, size_t n,
                       lathe_progress_fn progress, void *progress_ctx, lathe_error *err)
{
    (void)stream;
    struct loading l;
    lathe_status st = loading_init(&l, load, n, progress, progress_ctx, err);
    if (st)
        return st;
    pool_run(pool, load_parts, &l);
    st = loading_end(&l, err);
    loading_release(&l);
    return st;
}

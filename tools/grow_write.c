/* Writing grown checkpoints. A folder is made under a temporary name beside its own; all shards are opened
 * with their headers, then threads take chunks of rows, make them in a buffer of their own and write them
 * where they belong. When everything is written the folders are renamed. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "grow.h"

/* 1 MB: large enough that a write costs little beside its bytes, small enough that 256 threads need
 * little memory. A row may be longer. */
enum { CHUNK = 1 << 20, ALIGN = 64, MAX_PATH_BYTES = 4096 };

struct shard_file {
    int fd;
    const struct grown **tensor; /* [n], in the order of the file */
    int64_t *offset;             /* [n]: in the file */
    int64_t *chunk;              /* [n]: the tensor's first chunk */
    size_t n;
    int64_t data_bytes, n_chunks;
    atomic_llong next; /* chunk to be taken */
    char name[64];
};

struct output {
    const struct folder *folder;
    char *temporary; /* NULL: not made */
    struct shard_file *shard;
    int32_t n_shards;
    bool is_renamed;
};

struct writer {
    struct output *output; /* [n] */
    int32_t n;
    struct shard_file **shard; /* [n_shards]: of all outputs */
    int32_t n_shards;
    int64_t total;
    atomic_llong done;
    atomic_bool has_failed;
    unsigned char *buffers; /* a chunk for each thread */
    size_t buffer_bytes;
    struct arena arena;
    const struct progress *progress;
    lathe_error *thread_error; /* [threads] */
};

/* ---- Shards ---------------------------------------------------------------------------------- */

static int64_t tensor_bytes(const struct grown *t)
{
    return t->n_rows * t->row_bytes;
}

static int64_t chunk_rows(const struct grown *t)
{
    int64_t rows = CHUNK / t->row_bytes;
    return rows ? rows : 1;
}

/* Tensors [first, first + n) of a list as one shard. Those that would shift what follows from multiples of 64
 * bytes go last. */
static lathe_status fill_shard(struct writer *w, struct shard_file *s, const struct grown_list *l,
                               size_t first, size_t n, lathe_error *err)
{
    s->tensor = arena_calloc(&w->arena, n, sizeof *s->tensor);
    s->offset = arena_calloc(&w->arena, n, sizeof *s->offset);
    s->chunk = arena_calloc(&w->arena, n, sizeof *s->chunk);
    if (!s->tensor || !s->offset || !s->chunk)
        return fail_memory(err, n * sizeof *s->offset);
    for (int is_odd = 0; is_odd < 2; is_odd++)
        for (size_t i = first; i < first + n; i++)
            if ((tensor_bytes(&l->tensor[i]) % ALIGN != 0) == is_odd)
                s->tensor[s->n++] = &l->tensor[i];
    for (size_t i = 0; i < n; i++) {
        const struct grown *t = s->tensor[i];
        size_t bytes = (size_t)(chunk_rows(t) * t->row_bytes);
        s->offset[i] = s->data_bytes;
        s->chunk[i] = s->n_chunks;
        s->data_bytes += tensor_bytes(t);
        s->n_chunks += (t->n_rows + chunk_rows(t) - 1) / chunk_rows(t);
        w->buffer_bytes = bytes > w->buffer_bytes ? bytes : w->buffer_bytes;
    }
    w->total += s->data_bytes;
    return LATHE_OK;
}

/* The first tensor of the shard behind the one that begins at `first`. */
static size_t shard_end(const struct folder *f, size_t first)
{
    int64_t bytes = 0;
    size_t i = first;
    for (; i < f->list.n; i++) {
        bytes += tensor_bytes(&f->list.tensor[i]);
        if (f->shard_bytes && bytes > f->shard_bytes && i > first)
            break;
    }
    return i;
}

static lathe_status divide(struct writer *w, struct output *o, lathe_error *err)
{
    const struct folder *f = o->folder;
    int32_t n = 0;
    for (size_t i = 0; i < f->list.n; i = shard_end(f, i))
        n++;
    o->shard = arena_calloc(&w->arena, (size_t)n, sizeof *o->shard);
    if (!o->shard)
        return fail_memory(err, (size_t)n * sizeof *o->shard);
    lathe_status st = LATHE_OK;
    for (size_t i = 0, end; i < f->list.n && !st; i = end) {
        struct shard_file *s = &o->shard[o->n_shards++];
        end = shard_end(f, i);
        s->fd = -1;
        if (f->shard_bytes)
            (void)snprintf(s->name, sizeof s->name, "model-%05d-of-%05d.safetensors", o->n_shards,
                           n);
        else
            (void)snprintf(s->name, sizeof s->name, "model.safetensors");
        st = fill_shard(w, s, &f->list, i, end - i, err);
    }
    return st;
}

/* ---- Small files ----------------------------------------------------------------------------- */

static lathe_status join(char out[MAX_PATH_BYTES], const char *dir, const char *name,
                         lathe_error *err)
{
    int n = snprintf(out, MAX_PATH_BYTES, "%s/%s", dir, name);
    if (n < 0 || n >= MAX_PATH_BYTES)
        return fail(err, LATHE_E_LIMIT, "path %.64s...: longer than %d bytes", dir,
                    MAX_PATH_BYTES - 1);
    return LATHE_OK;
}

static lathe_status write_small(const struct output *o, const char *name, const void *data,
                                size_t n, lathe_error *err)
{
    char path[MAX_PATH_BYTES];
    lathe_status st = join(path, o->temporary, name, err);
    return st ? st : file_write(path, data, n, err);
}

/* Tokenizer, template and notices are nano's. */
static lathe_status copy_small(const struct output *o, lathe_error *err)
{
    static const char *const names[] = {
        "tokenizer.json",         "tokenizer_config.json",    "chat_template.jinja",
        "generation_config.json", "preprocessor_config.json", "SOURCES.md",
    };
    lathe_status st = LATHE_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names && !st; i++) {
        char path[MAX_PATH_BYTES];
        struct file f = {0};
        if ((st = join(path, o->folder->source, names[i], err)) || !file_exists(path))
            continue;
        st = file_map(&f, path, err);
        if (!st)
            st = write_small(o, names[i], f.data, f.size, err);
        file_unmap(&f);
    }
    return st;
}

static lathe_status write_index(const struct output *o, lathe_error *err)
{
    struct buf b;
    int64_t bytes = 0;
    const char *comma = "";
    buf_init(&b, 64 << 20);
    for (int32_t i = 0; i < o->n_shards; i++)
        bytes += o->shard[i].data_bytes;
    buf_printf(&b, "{\n  \"metadata\": {\"total_size\": %lld},\n  \"weight_map\": {",
               (long long)bytes);
    for (int32_t i = 0; i < o->n_shards; i++)
        for (size_t k = 0; k < o->shard[i].n; k++, comma = ",")
            buf_printf(&b, "%s\n    \"%s\": \"%s\"", comma, o->shard[i].tensor[k]->name,
                       o->shard[i].name);
    buf_puts(&b, "\n  }\n}\n");
    lathe_status st = buf_check(&b, "the index", err);
    if (!st)
        st = write_small(o, "model.safetensors.index.json", b.data, b.len, err);
    buf_release(&b);
    return st;
}

/* ---- Files ----------------------------------------------------------------------------------- */

static lathe_status write_at(const struct shard_file *s, const void *data, size_t n, int64_t at,
                             lathe_error *err)
{
    const char *p = data;
    while (n) {
        ssize_t k = pwrite(s->fd, p, n, (off_t)at);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return fail(err, LATHE_E_IO, "writing %s: %s", s->name,
                        k ? strerror(errno) : "nothing was written");
        p += k;
        n -= (size_t)k;
        at += k;
    }
    return LATHE_OK;
}

/* The header; offsets become those in the file. */
static lathe_status write_header(struct shard_file *s, lathe_error *err)
{
    struct buf b;
    buf_init(&b, MAX_HEADER_BYTES);
    buf_puts(&b, "01234567{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < s->n; i++) {
        const struct grown *t = s->tensor[i];
        buf_printf(&b, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name, dtype_name(t->dtype));
        for (int32_t k = 0; k < t->n_dims; k++)
            buf_printf(&b, "%s%lld", k ? "," : "", (long long)t->dim[k]);
        buf_printf(&b, "],\"data_offsets\":[%lld,%lld]}", (long long)s->offset[i],
                   (long long)(s->offset[i] + tensor_bytes(t)));
    }
    buf_putc(&b, '}');
    while (!b.over && !b.no_memory && b.len % ALIGN)
        buf_putc(&b, ' ');
    lathe_status st = buf_check(&b, "a header", err);
    if (!st) {
        for (int i = 0; i < 8; i++)
            b.data[i] = (char)((b.len - 8) >> 8 * i & 0xFF);
        st = write_at(s, b.data, b.len, 0, err);
    }
    for (size_t i = 0; i < s->n; i++)
        s->offset[i] += (int64_t)b.len;
    buf_release(&b);
    return st;
}

static lathe_status open_shards(struct output *o, lathe_error *err)
{
    lathe_status st = LATHE_OK;
    for (int32_t i = 0; i < o->n_shards && !st; i++) {
        struct shard_file *s = &o->shard[i];
        char path[MAX_PATH_BYTES];
        if ((st = join(path, o->temporary, s->name, err)))
            break;
        s->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        st = s->fd < 0 ? fail(err, LATHE_E_IO, "%s: %s", path, strerror(errno))
                       : write_header(s, err);
    }
    return st;
}

/* Late errors of a write are told when a file is closed. */
static lathe_status close_shards(struct output *o, lathe_error *err)
{
    lathe_status st = LATHE_OK;
    for (int32_t i = 0; i < o->n_shards; i++) {
        struct shard_file *s = &o->shard[i];
        if (s->fd >= 0 && close(s->fd) != 0 && !st)
            st = fail(err, LATHE_E_IO, "writing %s: %s", s->name, strerror(errno));
        s->fd = -1;
    }
    return st;
}

/* ---- Folders --------------------------------------------------------------------------------- */

static lathe_status make_folder(struct output *o, lathe_error *err)
{
    size_t n = strlen(o->folder->path);
    mode_t mask = umask(0);
    umask(mask);
    struct stat sb;
    if (lstat(o->folder->path, &sb) == 0)
        return fail(err, LATHE_E_IO, "%s: is already there, nothing is written over it",
                    o->folder->path);
    char *path = malloc(n + 8);
    if (!path)
        return fail_memory(err, n + 8);
    memcpy(path, o->folder->path, n);
    memcpy(path + n, ".XXXXXX", 8);
    if (!mkdtemp(path)) {
        lathe_status st =
            fail(err, LATHE_E_IO, "cannot make %s: %s", o->folder->path, strerror(errno));
        free(path);
        return st;
    }
    (void)chmod(path, 0777 & ~mask);
    o->temporary = path;
    return LATHE_OK;
}

/* Only files that this program makes are in it. */
static void remove_folder(const struct output *o, const char *dir)
{
    static const char *const names[] = {
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
        "preprocessor_config.json",
        "SOURCES.md",
        "config.json",
        "model.safetensors.index.json",
    };
    char path[MAX_PATH_BYTES];
    for (int32_t i = 0; i < o->n_shards; i++)
        if (!join(path, dir, o->shard[i].name, NULL))
            (void)unlink(path);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!join(path, dir, names[i], NULL))
            (void)unlink(path);
    (void)rmdir(dir);
}

static lathe_status rename_all(struct writer *w, lathe_error *err)
{
    for (int32_t i = 0; i < w->n; i++) {
        struct output *o = &w->output[i];
        if (rename(o->temporary, o->folder->path) != 0)
            return fail(err, LATHE_E_IO, "%s: %s", o->folder->path, strerror(errno));
        o->is_renamed = true;
    }
    return LATHE_OK;
}

/* Both folders may lie on one disk: the first that lacks room for all is enough to refuse. */
static lathe_status check_room(const struct writer *w, lathe_error *err)
{
    for (int32_t i = 0; i < w->n; i++) {
        struct statvfs v;
        if (statvfs(w->output[i].temporary, &v) != 0)
            continue;
        double room = (double)v.f_bavail * (double)v.f_frsize, need = (double)w->total;
        if (room < need)
            return fail(err, LATHE_E_IO, "%s: %.2f GB are to be written, but only %.2f GB are free",
                        w->output[i].folder->path, need / 1e9, room / 1e9);
    }
    return LATHE_OK;
}

/* ---- Threads --------------------------------------------------------------------------------- */

static lathe_status write_chunk(struct writer *w, const struct shard_file *s, int64_t chunk,
                                unsigned char *buffer, lathe_error *err)
{
    size_t lo = 0, hi = s->n; /* the last tensor whose first chunk is not behind this one */
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (s->chunk[mid] <= chunk)
            lo = mid;
        else
            hi = mid;
    }
    const struct grown *t = s->tensor[lo];
    int64_t rows = chunk_rows(t), row = (chunk - s->chunk[lo]) * rows;
    int64_t n = t->n_rows - row < rows ? t->n_rows - row : rows;
    grown_rows(buffer, t, row, n);
    lathe_status st =
        write_at(s, buffer, (size_t)(n * t->row_bytes), s->offset[lo] + row * t->row_bytes, err);
    atomic_fetch_add(&w->done, n * t->row_bytes);
    return st;
}

/* Each thread begins with another shard: writes to one file wait for each other. */
static void work(void *ctx, int32_t thread, int32_t n_threads)
{
    (void)n_threads;
    struct writer *w = ctx;
    const struct progress *p = w->progress;
    lathe_error *err = &w->thread_error[thread];
    unsigned char *buffer = w->buffers + (size_t)thread * w->buffer_bytes;
    for (int32_t i = 0; i < w->n_shards; i++) {
        struct shard_file *s = w->shard[(thread + i) % w->n_shards];
        long long chunk;
        while ((chunk = atomic_fetch_add(&s->next, 1)) < s->n_chunks) {
            if (atomic_load(&w->has_failed))
                return;
            lathe_status st = p->is_stopped(p->ctx) ? fail(err, LATHE_E_CANCELLED,
                                                           "interrupted, nothing is left of it")
                                                    : write_chunk(w, s, chunk, buffer, err);
            if (st) {
                atomic_store(&w->has_failed, true);
                return;
            }
            if (thread == 0 && p->fn)
                p->fn(p->ctx, atomic_load(&w->done), w->total);
        }
    }
}

static lathe_status write_data(struct writer *w, struct pool *pool, lathe_error *err)
{
    size_t n = (size_t)pool_threads(pool);
    w->thread_error = arena_calloc(&w->arena, n, sizeof *w->thread_error);
    w->buffers = malloc(n * w->buffer_bytes);
    if (!w->thread_error || !w->buffers)
        return fail_memory(err, n * w->buffer_bytes);
    pool_run(pool, work, w);
    for (size_t i = 0; i < n; i++)
        if (w->thread_error[i].status) {
            if (err)
                *err = w->thread_error[i];
            return w->thread_error[i].status;
        }
    return LATHE_OK;
}

/* ---- All of it ------------------------------------------------------------------------------- */

static lathe_status prepare(struct writer *w, const struct folder *folder, lathe_error *err)
{
    lathe_status st = LATHE_OK;
    for (int32_t i = 0; i < w->n && !st; i++) {
        w->output[i].folder = &folder[i];
        st = divide(w, &w->output[i], err);
        w->n_shards += w->output[i].n_shards;
    }
    for (int32_t i = 0; i < w->n && !st; i++)
        st = make_folder(&w->output[i], err);
    if (!st)
        st = check_room(w, err);
    if (st)
        return st;
    w->shard = arena_calloc(&w->arena, (size_t)w->n_shards, sizeof *w->shard);
    if (!w->shard)
        return fail_memory(err, (size_t)w->n_shards * sizeof *w->shard);
    for (int32_t i = 0, at = 0; i < w->n; i++)
        for (int32_t k = 0; k < w->output[i].n_shards; k++)
            w->shard[at++] = &w->output[i].shard[k];
    return LATHE_OK;
}

static lathe_status write_all(struct writer *w, struct pool *pool, lathe_error *err)
{
    lathe_status st = LATHE_OK;
    for (int32_t i = 0; i < w->n && !st; i++) {
        struct output *o = &w->output[i];
        st = copy_small(o, err);
        if (!st)
            st = write_small(o, "config.json", o->folder->config.data, o->folder->config.len, err);
        if (!st && o->folder->shard_bytes)
            st = write_index(o, err);
        if (!st)
            st = open_shards(o, err);
    }
    if (!st)
        st = write_data(w, pool, err);
    for (int32_t i = 0; i < w->n; i++) {
        lathe_status closed = close_shards(&w->output[i], st ? NULL : err);
        st = st ? st : closed;
    }
    return st ? st : rename_all(w, err);
}

lathe_status folders_write(const struct folder *folder, int32_t n, struct pool *pool,
                           const struct progress *progress, int64_t *bytes, int32_t *n_files,
                           lathe_error *err)
{
    struct writer w = {.n = n, .progress = progress};
    arena_init(&w.arena, SIZE_MAX);
    w.output = arena_calloc(&w.arena, (size_t)n, sizeof *w.output);
    lathe_status st = w.output ? prepare(&w, folder, err) : fail_memory(err, sizeof *w.output);
    if (!st)
        st = write_all(&w, pool, err);
    *bytes = w.total;
    for (int32_t i = 0; w.output && i < n; i++) {
        struct output *o = &w.output[i];
        n_files[i] = o->n_shards;
        if (st && o->temporary)
            remove_folder(o, o->is_renamed ? o->folder->path : o->temporary);
        free(o->temporary);
    }
    free(w.buffers);
    arena_release(&w.arena);
    return st;
}

/* Files: read-only maps, and small ones read whole. */
#ifndef LATHE_BASE_FILE_H
#define LATHE_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/error.h"

struct file {
    const unsigned char *data; /* NULL for an empty file */
    size_t size;
};

/* Maps a regular file read-only, in large pages where the file system has them. Messages name the path. */
lathe_status file_map(struct file *f, const char *path, lathe_error *err);
/* No-op on a zeroed struct. */
void file_unmap(struct file *f);

/* Asks for bytes of a mapped file to be read in now, without waiting; for other memory it does nothing. */
void file_will_need(const void *p, size_t n);

/* Appends the whole file to `out`, whose limit bounds it. */
lathe_status file_read(struct buf *out, const char *path, lathe_error *err);
bool file_exists(const char *path);

/* Writes path by way of a temporary file beside it that is renamed when complete, so that no
 * partial file is left. What exists there and is no regular file is left alone. */
lathe_status file_write(const char *path, const void *data, size_t n, lathe_error *err);

#endif

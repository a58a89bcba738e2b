/* Files: read-only maps, and small ones read whole. */
#ifndef LATHE_BASE_FILE_H
#define LATHE_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

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

/* Appends all that a file, a pipe or a device gives to `out`, whose limit bounds it. */
lathe_status file_read(struct buf *out, const char *path, lathe_error *err);
bool file_exists(const char *path);

/* A file that is written, and appears only when it is complete. */
struct file_out {
    FILE *file;
    char *path; /* where links lead */
    char *tmp;  /* the temporary file beside it; NULL: path is no regular file and is written to */
};

/* Until the commit what is at path stays as it is; a symbolic link stays one, and a file keeps its
 * permissions. A pipe or a device is written to directly. */
lathe_status file_out_open(struct file_out *o, const char *path, lathe_error *err);
/* Puts it in place, or fails and leaves what was there. Releases o either way. */
lathe_status file_out_commit(struct file_out *o, lathe_error *err);
/* Drops what was written. No-op on a zeroed struct. */
void file_out_discard(struct file_out *o);

/* All of it at once. What exists there and is no regular file is left alone. */
lathe_status file_write(const char *path, const void *data, size_t n, lathe_error *err);

#endif

/* Memory for backends that compute on the host. */
#ifndef LATHE_OP_HOST_H
#define LATHE_OP_HOST_H

#include "op/backend.h"

/* As the entries of struct backend; the stream is not looked at. */
lathe_status host_alloc(void *stream, void **p, size_t bytes, lathe_error *err);
void host_free(void *stream, void *p);
void host_zero(void *stream, void *p, size_t bytes);
void host_copy(void *stream, void *dst, const void *src, size_t bytes);
lathe_status host_copy_out(void *stream, void *dst, const void *src, size_t bytes,
                           lathe_error *err);
lathe_status host_wait(void *stream, lathe_error *err);

void host_room(void *stream, size_t *total, size_t *room);
lathe_status host_load(void *stream, struct pool *pool, const struct load *load, size_t n,
                       lathe_progress_fn progress, void *progress_ctx, lathe_error *err);

/* What folds do with layers->before: of the first layer's states [n_slots, ...]. */
void host_keep_before(struct tensor state, const struct fold_layers *layers,
                      const struct batch_seq *seq);

/* The memory entries of a backend on the host. */
#define HOST_MEMORY                                                                                \
    .alloc = host_alloc, .free = host_free, .room = host_room, .load = host_load,                  \
    .alloc_host = host_alloc, .free_host = host_free, .is_host = true, .zero = host_zero,          \
    .copy = host_copy, .copy_in = host_copy, .copy_out = host_copy_out, .wait = host_wait

#endif

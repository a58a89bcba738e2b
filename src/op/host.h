/* Memory for backends that compute on the host. */
#ifndef LATHE_OP_HOST_H
#define LATHE_OP_HOST_H

#include "base/error.h"

/* As struct backend's alloc and free; the stream is not looked at. */
lathe_status host_alloc(void *stream, void **p, size_t bytes, lathe_error *err);
void host_free(void *stream, void *p);

#endif

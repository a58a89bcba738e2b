/* The SHA-256 of a model's weights, for GET /version: of the files *.safetensors of its directory in the order of their
 * names, one behind the other, as `cat *.safetensors | sha256sum` has it. It is made by a thread that runs when nothing else
 * wants the processor or the disk. */
#ifndef LATHE_SERVER_WEIGHTS_H
#define LATHE_SERVER_WEIGHTS_H

#include <stdbool.h>

#include "base/error.h"

/* Adds to a digest what tells these weights from others without reading them whole: of each file its name, its size, its header and
 * SAMPLES pieces of its data; and config.json before. What cannot be read is left out. */
struct evp_md_ctx_st;
void weights_sample(const char *model_dir, struct evp_md_ctx_st *md);

struct weights;
/* done: called once at the end, from that thread, err->status LATHE_OK unless it failed. model_dir and ctx are
 * borrowed. */
lathe_status weights_open(struct weights **w, const char *model_dir,
                          void (*done)(void *ctx, const lathe_error *err), void *ctx,
                          lathe_error *err);
/* False while it is not known. */
bool weights_sha256(const struct weights *w, char out[65]);
/* Without waiting for the end. NULL is allowed. */
void weights_close(struct weights *w);

#endif

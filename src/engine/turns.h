/* What the engine's answers were sampled as, by the SHA-256 of their turns' text. Any thread; the oldest are forgotten
 * first. */
#ifndef LATHE_ENGINE_TURNS_H
#define LATHE_ENGINE_TURNS_H

#include <pthread.h>

#include "text/replay.h"

struct turn_memory {
    bool has_lock;
    pthread_mutex_t lock;
    struct kept_turn **bucket; /* [TURN_BUCKETS] */
    struct kept_turn *newest, *oldest;
    size_t bytes, limit;
};

/* bytes 0: it keeps nothing. */
lathe_status turns_open(struct turn_memory *m, uint64_t bytes, lathe_error *err);
void turns_close(struct turn_memory *m); /* no-op on a zeroed struct */

/* Keeps n ids, which say the whole text of a turn. Without memory it keeps nothing. */
void turns_keep(struct turn_memory *m, const struct lathe_text *text, const int32_t *id, size_t n);
/* For text_render_known. */
struct replay_memory turns_replay(struct turn_memory *m);

#endif

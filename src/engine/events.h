/* The queue between the engine's thread, which writes a request's events, and the thread that reads
 * them with lathe_request_next. In steady state neither side allocates. */
#ifndef LATHE_ENGINE_EVENTS_H
#define LATHE_ENGINE_EVENTS_H

#include <pthread.h>

#include "base/buf.h"

/* A reader that lags by this much pauses its request's generation. */
enum { EVENTS_HIGH_WATER = 256 << 10 };

struct events {
    pthread_mutex_t lock;
    pthread_cond_t ready;
    struct buf incoming; /* records, guarded by lock */
    bool finished;       /* `last` is set, guarded by lock */
    bool held;           /* the reader does not see `incoming` yet, guarded by lock */
    lathe_event last;    /* the finish event */
    char *last_text;     /* its text, or NULL */

    struct buf reading; /* the reader's own */
    size_t at;
    bool delivered;       /* the finish event was returned */
    lathe_candidate *top; /* [20] the reader's own, of the last token event */

    void (*notify)(void *ctx);
    void *notify_ctx;
};

enum { EVENTS_MAX_TOP = 20 };

lathe_status events_init(struct events *q, lathe_error *err);
void events_release(struct events *q);

/* Writer. Strings are copied; out of memory is remembered and returned by events_check. */
void events_push(struct events *q, const lathe_event *ev);
/* Between these the reader sees nothing new: a token is shown only after its state is committed. */
void events_hold(struct events *q);
void events_show(struct events *q);
/* The last event; later pushes are ignored. */
void events_finish(struct events *q, const lathe_event *ev);
lathe_status events_check(struct events *q, lathe_error *err);
/* Has the reader fallen behind? */
bool events_full(struct events *q);

/* Reader: as lathe_request_next. Returns true if it made room in a queue that was full. */
bool events_next(struct events *q, int32_t timeout_ms, lathe_event *out);

#endif

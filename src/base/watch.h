/* Long work that its caller may no longer want: asked now and then on the thread that does it. */
#ifndef LATHE_BASE_WATCH_H
#define LATHE_BASE_WATCH_H

#include "base/error.h"

struct watch {
    bool (*leave)(void *ctx); /* true: nobody wants the rest; NULL: it is not asked */
    void *ctx;
    size_t done; /* units of work since it was asked last; 0 at the start */
};

/* Notes n units and asks after each `often` of them; w may be NULL. LATHE_E_CANCELLED: the work ends. */
static inline lathe_status watch_work(struct watch *w, size_t n, size_t often, lathe_error *err)
{
    if (!w || !w->leave || (w->done += n) < often)
        return LATHE_OK;
    w->done = 0;
    return w->leave(w->ctx) ? fail(err, LATHE_E_CANCELLED, "nobody wants it any more") : LATHE_OK;
}

#endif

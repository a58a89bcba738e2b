/* A server whose program takes its own place: the same process executes it anew, with the same arguments. What goes over is the
 * socket that it listens on, and when devices were lost, in the variable LATHE_RESTART of the environment, which counts for
 * the process alone that wrote it. All other descriptors but the standard ones are closed, and memory is gone. */
#ifndef LATHE_SERVER_RESTART_H
#define LATHE_SERVER_RESTART_H

#include "listen.h"

enum { RESTARTS = 3, RESTART_WINDOW_S = 3600 }; /* so many in so long */

struct restart {
    struct listener listener; /* without its path; fd -1: none came over */
    uint64_t n_losses;        /* of devices, in this process so far */
    int64_t lost_s
        [RESTARTS]; /* when the last ones were, by the monotonic clock, the latest first; 0: not yet */
};

/* Takes what came over out of the environment; without any, *r is of a process that begins. Before other threads are started. */
lathe_status restart_read(struct restart *r, lathe_error *err);
/* Counts a loss; false: there were too many restarts before it. */
bool restart_note_loss(struct restart *r, int64_t now_s);
/* Executes the program anew, which takes r->listener over. Returns only if that fails. Signals that are blocked and wait go over
 * as well. */
lathe_status restart_execute(const struct restart *r, lathe_error *err);

#endif

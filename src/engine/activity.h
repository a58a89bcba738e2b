/* What an engine does, for those who watch it: counted by the scheduler's thread, and shown after every step under a
 * lock of its own that nobody holds for longer than a copy. */
#ifndef LATHE_ENGINE_ACTIVITY_H
#define LATHE_ENGINE_ACTIVITY_H

#include <pthread.h>

#include "base/error.h"

struct slot;

struct activity {
    lathe_activity now; /* the scheduler's */
    bool has_lock;
    pthread_mutex_t lock; /* guards what follows */
    lathe_activity shown;
    lathe_slot_info *slot; /* [n_slots] */
};

lathe_status activity_open(struct activity *a, int32_t n_slots, lathe_error *err);
void activity_close(struct activity *a); /* no-op on a zeroed struct */

/* Keeps what is told of a slot's request, which ends now. */
void activity_end(struct slot *s);

/* A step of this many rows that took so long. */
void activity_step(struct activity *a, lathe_step_kind kind, int32_t n_rows, double ms);
/* A round of a request with n_draft drafts, n_accepted of them accepted. */
void activity_round(struct activity *a, int32_t n_draft, int32_t n_accepted);

#endif

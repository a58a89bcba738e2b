/* The engine's inside. One thread, the scheduler, owns the model's state, the slots and every running
 * request's generation; other threads submit, read events and cancel. */
#ifndef LATHE_ENGINE_ENGINE_H
#define LATHE_ENGINE_ENGINE_H

#include <pthread.h>

#include "engine/request.h"
#include "engine/step.h"
#include "sample/sample.h"
#include "text/text.h"

enum slot_phase { SLOT_FREE, SLOT_PREFILL, SLOT_DECODE };

struct slot {
    enum slot_phase phase;
    lathe_request *request; /* NULL if free */
    int32_t *token; /* [n_ctx]: the sequence whose first n_committed tokens the state holds */
    int32_t n_committed;
    int32_t next; /* DECODE: sampled and published, not yet committed */
};

struct lathe_engine {
    lathe_engine_options options; /* its strings and callbacks are not used after open */
    lathe_text *text;
    struct model model;
    struct pool *pool;
    const struct backend *backend;
    void *stream;
    struct state state;
    struct step step;
    lathe_memory_plan plan;
    struct id_set ids;             /* what may be sampled: the tokenizer's ids */
    struct sample_scratch scratch; /* the scheduler's */
    struct slot *slots;            /* [n_slots] */
    int32_t last_prefill;          /* slot that had the last prompt step, for fairness */

    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake;
    lathe_request *queue_first, *queue_last;
    int32_t n_queued;
    int32_t n_attached; /* requests queued or running */
    bool stopping;
    bool kicked; /* something changed that the scheduler waits for */
};

/* The scheduler's thread: runs until `stopping`. */
void *scheduler_main(void *engine);
/* Wakes it: a request came, was cancelled, or its reader caught up. */
void scheduler_kick(struct lathe_engine *e);

#endif

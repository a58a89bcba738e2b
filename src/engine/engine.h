/* The engine's inside. One thread, the scheduler, owns the model's state, the slots and every running
 * request's generation; other threads submit, read events and cancel. */
#ifndef LATHE_ENGINE_ENGINE_H
#define LATHE_ENGINE_ENGINE_H

#include <pthread.h>

#include "engine/request.h"
#include "engine/step.h"
#include "model/place.h"
#include "sample/sample.h"
#include "spec/adapt.h"
#include "spec/verify.h"
#include "text/text.h"

enum slot_phase { SLOT_FREE, SLOT_PREFILL, SLOT_DECODE };

struct slot {
    enum slot_phase phase;
    lathe_request *request; /* NULL if free */
    int32_t *token; /* [n_ctx]: the sequence whose first n_committed tokens the state holds */
    int32_t n_committed;
    int32_t next; /* DECODE: sampled and published, not yet committed: the anchor */

    /* Of the round that runs: what ended it for this request, if anything did. */
    bool ended;
    lathe_finish finish;
    lathe_error err; /* status LATHE_OK unless it failed */
};

/* Speculation: the drafter, and a round's room. ops NULL: none. */
struct spec {
    const struct drafter_ops *ops;
    struct drafter *drafter;
    struct drafter_info info;
    int32_t draft_k; /* most drafts a round */
    enum acceptance acceptance;
    bool adaptive;                 /* the number of drafts follows costs and acceptance */
    struct adapt_costs costs;      /* of this engine's rounds */
    struct adapt all;              /* what all requests so far accepted */
    struct draft_request *request; /* [n_slots] */
    struct draft_law *law;         /* [n_slots, draft_k] with rejection sampling, else NULL */
};

enum dtype engine_dtype(lathe_dtype d);

struct lathe_engine {
    lathe_engine_options options; /* its strings and callbacks are not used after open */
    lathe_text *text;
    struct model model;
    struct pool *pool;
    const struct backend *backend;
    void *stream;
    struct memory
        memory; /* what the model, the state, the steps and the drafter have of the backend */
    struct state state;
    struct step step;
    lathe_memory_plan plan;
    struct id_set ids;             /* what may be sampled: the tokenizer's ids */
    struct sample_scratch scratch; /* the scheduler's */
    struct slot *slots;            /* [n_slots] */
    struct spec spec;
    int32_t last_prefill; /* slot that had the last prompt step, for fairness */

    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake;
    lathe_request *queue_first, *queue_last;
    int32_t n_queued;
    int32_t n_attached; /* requests queued or running */
    bool stopping;
    int32_t n_holders; /* who opened it, open requests and scores: the last one frees the struct */
    lathe_error failure; /* of the device; status LATHE_OK: none. All requests end with it */
    bool kicked;         /* something changed that the scheduler waits for */
    bool resting;        /* the scheduler waits, and touches nothing until it is kicked */
};

/* round.c: the steps of a running request. Each ends the requests that it should. */

/* One chunk of a slot's prompt, and the first token after the last chunk. */
void prefill_step(struct lathe_engine *e, struct slot *s);
/* One round for every slot that decodes and whose reader keeps up: drafts, one pass of the model, the
 * accepted tokens published and committed. False if there is no such slot. */
bool decode_round(struct lathe_engine *e);
/* Ends a slot's request: after what was held back of its text; at once; with an error, wiping the slot. */
void slot_conclude(struct lathe_engine *e, struct slot *s, lathe_finish why);
void slot_finish(struct lathe_engine *e, struct slot *s, lathe_finish finish, const char *text,
                 const lathe_error *err);
/* Notes that the device failed, which ends the engine's work. */
void engine_fail(struct lathe_engine *e, const lathe_error *err);
/* Makes a free slot that of an empty sequence. */
void slot_wipe(struct lathe_engine *e, struct slot *s);

/* drafting.c */
lathe_status spec_open(struct lathe_engine *e, lathe_error *err);
void spec_close(struct lathe_engine *e);
/* Notes what a round took, for the choice of later ones. n_drafted as spec_propose returned it. */
void spec_note_costs(struct lathe_engine *e, int32_t n_drafted, double draft_ms, double verify_ms,
                     double commit_ms);
/* Notes how many drafts of a request's round were accepted. */
void spec_note_round(struct lathe_engine *e, lathe_request *r, const struct draft_request *d,
                     int32_t n_accepted);
/* Fills e->spec.request with proposals for the slots that decode; returns how many slots have some. */
int32_t spec_propose(struct lathe_engine *e);
/* Tells the drafter of rows [first_row, first_row + n) of the last step. */
lathe_status spec_committed(struct lathe_engine *e, int32_t slot, int32_t pos, int32_t first_row,
                            int32_t n, lathe_error *err);

/* warm_up.c: no-op on the host. Leaves no trace in the slots. */
lathe_status warm_up(struct lathe_engine *e, lathe_error *err);

/* engine.c: whoever may use the lock after lathe_engine_close holds the engine. */
void engine_hold(struct lathe_engine *e);
void engine_drop(struct lathe_engine *e);

/* The scheduler's thread: runs until `stopping`. */
void *scheduler_main(void *engine);
/* Tells a request that nothing more will come and lets its owner free it. */
void scheduler_detach(struct lathe_engine *e, lathe_request *r);
/* Wakes it: a request came, was cancelled, or its reader caught up. */
void scheduler_kick(struct lathe_engine *e);

#endif

/* The engine's inside. One thread, the scheduler, owns the model's state, the slots and every running
 * request's generation; other threads submit, read events and cancel. */
#ifndef LATHE_ENGINE_ENGINE_H
#define LATHE_ENGINE_ENGINE_H

#include <pthread.h>

#include "engine/activity.h"
#include "engine/request.h"
#include "engine/step.h"
#include "engine/turns.h"
#include "model/place.h"
#include "sample/sample.h"
#include "spec/adapt.h"
#include "spec/verify.h"
#include "text/text.h"

enum slot_phase { SLOT_FREE, SLOT_PREFILL, SLOT_DECODE };

struct slot {
    enum slot_phase phase;
    lathe_request *request; /* NULL if free */
    lathe_slot_info info;   /* of its last request, once that has ended */
    double freed_ms;        /* when it ended; monotonic clock */
    int32_t *token; /* [n_ctx]: the sequence whose first n_committed tokens the state holds */
    int32_t n_committed;
    char cache_salt[MAX_CACHE_SALT]; /* of the request that made it, as are the next two */
    bool is_background;
    uint64_t session;
    struct slot *leader; /* PREFILL: it reads the same prompt, and this one waits; NULL: none */
    int32_t next;        /* DECODE: sampled and published, not yet committed: the anchor */

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

/* Lengths of a context that rounds are captured for, at most: up to the longest that a model declares. */
enum { AHEAD_ENDS = 11 };

/* Rounds that the device decides, of one slot that decodes alone: the next one runs while the host reads the last one's
 * tokens. */
struct ahead {
    bool is_on;            /* where it gains something: where the backend captures schedules */
    int32_t most_rows;     /* of a round, an anchor and drafts; 0: the host decides them all */
    struct slot *slot;     /* whose rounds run; NULL: nobody's */
    int32_t n_run, n_read; /* since the slot's first: rounds that were launched, and read */
    int32_t rows[ROUND_REPORTS]; /* of round i in place i % ROUND_REPORTS */
    double read_ms;              /* when the last one was */
    struct adapt_costs costs;    /* of rounds by their rows, all in all */
    /* Of a round, by whether its tokens are drawn, by what its positions are below, and by its rows. */
    void *graph[2][AHEAD_ENDS][RESIDENT_ROWS + 1];
};

enum dtype engine_dtype(lathe_dtype d);

struct lathe_engine {
    lathe_engine_options options; /* its strings and callbacks are not used after open */
    lathe_text *text;
    struct turn_memory turns;
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
    struct ahead ahead;
    int32_t last_prefill; /* slot that had the last prompt step, for fairness */
    struct activity activity;

    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake;
    lathe_request *queue;      /* by class, priority and arrival */
    _Atomic(int32_t) n_queued; /* read without it, as is the next */
    _Atomic(int32_t) n_queued_background;
    _Atomic(uint32_t)
        n_cancels; /* that the scheduler was told of, the engine's end included; likewise */
    uint32_t n_seen_cancels; /* the scheduler's: when it last looked */
    uint64_t n_requests;     /* so far */
    struct forget *forget;   /* that are waited for */
    int32_t n_attached;      /* requests queued or running */
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

/* For ahead.c. A slot's round begins; the token that was chosen after its sequence, which is at `position`, is published,
 * true if the request goes on; what that decided is carried out, once the state is that of the published tokens. *id
 * becomes the token that ends a think block where one stands in the place of the chosen one. logits are looked at for a
 * request that wants their probabilities. A round that failed ends the slot's request. */
void round_begin(struct slot *s);
bool round_publish(struct lathe_engine *e, struct slot *s, const float *logits, int32_t *id,
                   int32_t position);
void round_settle(struct lathe_engine *e, struct slot *s);
void round_fail(struct lathe_engine *e, struct slot *s, const lathe_error *err);

/* ahead.c */
/* How many rows rounds have; and where the backend captures schedules, rounds for all lengths of a context, through
 * slot 0, of which the drafter knows pos >= 1 positions; two of them are run. */
lathe_status ahead_open(struct lathe_engine *e, int32_t pos, lathe_error *err);
void ahead_close(struct lathe_engine *e);
/* The slot that decodes alone, if the device can decide its rounds; else NULL. */
struct slot *ahead_slot(struct lathe_engine *e);
/* Reads one of the slot's rounds, with the next one running. False if the device could not decide it: the slot is as it
 * was. */
bool ahead_round(struct lathe_engine *e, struct slot *s);

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
/* Would the drafter propose to the slot what rounds of the device do not? */
bool spec_differs(struct lathe_engine *e, struct slot *s);
/* Tells the drafter of rows [first_row, first_row + n) of the last step. */
lathe_status spec_committed(struct lathe_engine *e, int32_t slot, int32_t pos, int32_t first_row,
                            int32_t n, lathe_error *err);

/* warm_up.c: on a device, a round of every kind; then ahead_open. Leaves no trace in the slots. */
lathe_status warm_up(struct lathe_engine *e, lathe_error *err);

/* engine.c: whoever may use the lock after lathe_engine_close holds the engine. */
void engine_hold(struct lathe_engine *e);
void engine_drop(struct lathe_engine *e);

/* Shows what the scheduler's thread did to lathe_engine_activity. */
void activity_publish(struct lathe_engine *e);

/* One lathe_engine_forget, which waits for it on e->wake. */
struct forget {
    struct forget *next;
    int32_t slot;
    bool is_done, is_busy;
};

/* With the lock: puts a request in its place of the queue; does one of this number wait there? */
void queue_add(struct lathe_engine *e, lathe_request *r);
bool queue_has(const struct lathe_engine *e, uint64_t number);

/* The scheduler's thread: runs until `stopping`. */
void *scheduler_main(void *engine);
/* For backend.watch, while a pass runs: ends what was cancelled meanwhile, and says whether nobody wants the pass any more. A
 * pass over a prompt is left if its request is cancelled, which then still has its slot, one that verifies drafts if all
 * its requests were. One that decodes is never left, since its rows are right whoever wants them. */
bool scheduler_leaves(void *engine);
/* Tells a request that nothing more will come and lets its owner free it. */
void scheduler_detach(struct lathe_engine *e, lathe_request *r);
/* Wakes it: a request came, was cancelled, or its reader caught up. */
void scheduler_kick(struct lathe_engine *e);
/* The same for a cancel, of a request or of all, that was noted where it looks. */
void scheduler_cancel(struct lathe_engine *e);

#endif

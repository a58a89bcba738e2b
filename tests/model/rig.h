/* A model with its state and a step, without the engine around it: for tests that look inside. */
#ifndef LATHE_TESTS_MODEL_RIG_H
#define LATHE_TESTS_MODEL_RIG_H

#include "engine/step.h"
#include "model/place.h"

struct rig {
    struct model model;
    struct memory memory; /* of the backend, each piece by itself */
    struct pool *pool;
    const struct backend *backend;
    void *stream;
    struct state state;
    struct step step;
};

struct rig_options {
    const char *dir;
    const struct backend *backend; /* NULL: test_backend, or backend_cpu with an isa */
    const char *isa;               /* NULL: the best */
    enum dtype act, kv;
    int32_t n_threads;  /* 0: 2 */
    int32_t n_slots;    /* 0: 1 */
    int32_t n_ctx;      /* 0: 1024 */
    int32_t max_rows;   /* 0: n_ctx */
    const int32_t *tap; /* [n_taps]: layers whose hidden states step.feature gets */
    int32_t n_taps;
};

/* Fails the test with the engine's message. */
void rig_open(struct rig *r, const struct rig_options *o);
void rig_close(struct rig *r);
/* Runs n tokens of a slot from position pos on in one batch; the hidden rows are in r->step.hidden. */
void rig_run(struct rig *r, enum phase phase, int32_t slot, int32_t pos, const int32_t *token,
             int32_t n);
/* Logits of row `row` of the last run: [vocab], valid until the next call. */
const float *rig_logits(struct rig *r, int32_t row);
/* Forgets the slot's sequence. */
void rig_reset(struct rig *r, int32_t slot);

int32_t argmax(const float *x, int32_t n);
/* max|a - b| / max|b|; infinite if either holds a NaN. */
double relative_difference(const float *a, const float *b, int64_t n);

#endif

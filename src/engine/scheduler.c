#include <stdio.h>
#include <string.h>

#include "engine/engine.h"

/* Tells a request that nothing more will come and lets its owner free it. */
static void detach(struct lathe_engine *e, lathe_request *r)
{
    pthread_mutex_lock(&e->lock);
    r->is_attached = false;
    e->n_attached--;
    pthread_cond_broadcast(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

/* Ends a slot's request. The slot keeps its state for the next prompt that extends it. */
static void finish_slot(struct lathe_engine *e, struct slot *s, lathe_finish finish,
                        const char *text, const lathe_error *err)
{
    lathe_request *r = s->request;
    s->request = NULL;
    s->phase = SLOT_FREE;
    request_finish(r, finish, text, err);
    detach(e, r);
}

/* A failure inside a step or of its numbers: the slot's state may be torn, so it is wiped. */
static void fail_slot(struct lathe_engine *e, struct slot *s, const lathe_error *err)
{
    int32_t index = (int32_t)(s - e->slots);
    s->n_committed = 0;
    state_reset(&e->state, index);
    finish_slot(e, s, LATHE_FINISH_ERROR, NULL, err);
}

/* What the state of the slot has in common with a prompt: all of its tokens or nothing, since a
 * recurrent state cannot be cut back; and the prompt's last token is always computed, for its logits. */
static int32_t reusable(const struct slot *s, const lathe_request *r)
{
    int32_t n = s->n_committed;
    if (!r->reuse_prefix || n >= r->n_prompt ||
        memcmp(s->token, r->prompt, (size_t)n * sizeof *s->token) != 0)
        return 0;
    return n;
}

/* Gives a request the free slot whose state serves it best. */
static void admit(struct lathe_engine *e, lathe_request *r)
{
    struct slot *best = NULL;
    int32_t best_n = -1;
    for (int32_t i = 0; i < e->options.n_slots; i++) {
        struct slot *s = &e->slots[i];
        if (s->phase != SLOT_FREE)
            continue;
        /* Of slots that do not help, the emptiest: others may still be continued. */
        int32_t n = reusable(s, r);
        bool better = !best || n > best_n || (n == best_n && s->n_committed < best->n_committed);
        if (better) {
            best = s;
            best_n = n;
        }
    }
    if (best_n == 0 && best->n_committed > 0) {
        state_reset(&e->state, (int32_t)(best - e->slots));
        best->n_committed = 0;
    }
    best->request = r;
    best->phase = SLOT_PREFILL;
    r->started_ms = clock_ms();
    r->usage.queue_ms = r->started_ms - r->submitted_ms;
    r->usage.prompt_tokens = r->n_prompt;
    r->usage.cached_tokens = best_n;
    lathe_event ev = {.type = LATHE_EVENT_ACCEPTED, .usage = r->usage};
    events_push(&r->events, &ev);
}

/* "logits at position 17 are not finite" gains the weight that caused it, if one did. */
static void explain_nonfinite(const struct lathe_engine *e, lathe_error *err)
{
    char what[256];
    if (err->status == LATHE_E_NUMERIC && model_find_nonfinite(&e->model, what, sizeof what)) {
        size_t n = strlen(err->message);
        (void)snprintf(err->message + n, sizeof err->message - n, "; %s is not finite", what);
    }
}

static bool is_stop_id(const lathe_request *r, int32_t id)
{
    for (int32_t i = 0; i < r->n_stop_id; i++)
        if (r->stop_id[i] == id)
            return true;
    return false;
}

static void push_token_info(const struct lathe_engine *e, lathe_request *r, const float *logits,
                            int32_t id, int32_t position)
{
    lathe_candidate top[EVENTS_MAX_TOP];
    lathe_event ev = {.type = LATHE_EVENT_TOKEN};
    ev.token.id = id;
    ev.token.position = position;
    ev.token.top = top;
    logits_logprobs(logits, &e->ids, id, &ev.token.logprob, top, r->n_logprobs, &ev.token.n_top);
    events_push(&r->events, &ev);
}

/* Ends a slot's request after what was held back of its text. */
static void conclude(struct lathe_engine *e, struct slot *s, lathe_finish why)
{
    lathe_request *r = s->request;
    lathe_finish finish;
    lathe_error err;
    if (output_finish(&r->output, why, &finish, &err))
        finish_slot(e, s, LATHE_FINISH_ERROR, NULL, &err);
    else
        finish_slot(e, s, finish, output_stop_string(&r->output), NULL);
}

/* Chooses the token after the slot's sequence from its logits and publishes it; ends the request
 * where it should. */
static void next_token(struct lathe_engine *e, struct slot *s, const float *logits)
{
    lathe_request *r = s->request;
    lathe_error err;
    int32_t id, ended;
    if (sampler_pick(r->sampler, &e->scratch, logits, NULL, 0, &id, &err)) {
        explain_nonfinite(e, &err);
        fail_slot(e, s, &err);
        return;
    }
    sampler_commit(r->sampler, &id, 1);
    r->usage.completion_tokens++;
    bool armed = r->usage.completion_tokens > r->min_tokens;
    if (armed && is_stop_id(r, id)) {
        conclude(e, s, LATHE_FINISH_STOP);
        return;
    }
    if (r->n_logprobs >= 0)
        push_token_info(e, r, logits, id, s->n_committed);
    if (output_is_thinking(&r->output))
        r->usage.reasoning_tokens++;
    if (output_token(&r->output, id, armed, &ended, &err) || events_check(&r->events, &err)) {
        finish_slot(e, s, LATHE_FINISH_ERROR, NULL, &err);
    } else if (ended >= 0) {
        conclude(e, s, (lathe_finish)ended);
    } else if (r->usage.completion_tokens >= r->max_tokens) {
        conclude(e, s, r->edge_is_context ? LATHE_FINISH_CONTEXT : LATHE_FINISH_LENGTH);
    } else {
        s->phase = SLOT_DECODE;
        s->next = id;
    }
}

/* Log-probabilities of the prompt tokens that follow the n rows of the last step, the first being at
 * position pos. */
static lathe_status score_rows(struct lathe_engine *e, lathe_request *r, int32_t pos, int32_t n,
                               lathe_error *err)
{
    struct step *step = &e->step;
    int32_t most = (int32_t)step->logits.dim[0];
    for (int32_t i = 0; i < n; i += most) {
        int32_t k = n - i < most ? n - i : most;
        for (int32_t j = 0; j < k; j++)
            step->row[j] = i + j;
        lathe_status st = step_logits(step, step->row, k, err);
        for (int32_t j = 0; j < k && !st; j++) {
            int32_t at = pos + i + j;
            const float *logits = tensor_at(&step->logits, j);
            float logprob;
            int32_t none;
            if (at + 1 >= r->n_prompt)
                break;
            st = logits_check(logits, &e->ids, at + 1, err);
            if (st)
                break;
            logits_logprobs(logits, &e->ids, r->prompt[at + 1], &logprob, NULL, 0, &none);
            r->score[at + 1] = logprob;
        }
        if (st)
            return st;
    }
    return LATHE_OK;
}

/* One chunk of a slot's prompt. Chunks end at multiples of the chunk size, whatever was reused. */
static void prefill_step(struct lathe_engine *e, struct slot *s)
{
    lathe_request *r = s->request;
    struct step *step = &e->step;
    int32_t chunk = e->options.prefill_chunk, pos = s->n_committed;
    int32_t end = (pos / chunk + 1) * chunk;
    if (end > r->n_prompt)
        end = r->n_prompt;
    lathe_error err;
    step_begin(step, PHASE_PREFILL);
    step_add(step, (int32_t)(s - e->slots), pos, r->prompt + pos, end - pos);
    lathe_status st = step_run(step, &err);
    int32_t last = end - pos - 1;
    if (!st && r->score)
        st = score_rows(e, r, pos, end - pos, &err);
    else if (!st && end == r->n_prompt)
        st = step_logits(step, &last, 1, &err);
    if (st) {
        explain_nonfinite(e, &err);
        fail_slot(e, s, &err);
        return;
    }
    memcpy(s->token + pos, r->prompt + pos, (size_t)(end - pos) * sizeof *s->token);
    s->n_committed = end;
    lathe_event ev = {.type = LATHE_EVENT_PROGRESS, .done = end, .total = r->n_prompt};
    events_push(&r->events, &ev);
    if (end < r->n_prompt)
        return;
    r->first_ms = clock_ms();
    if (r->score)
        finish_slot(e, s, LATHE_FINISH_STOP, NULL, NULL);
    else
        next_token(e, s, tensor_at(&step->logits, 0));
}

/* One token for every slot that decodes and whose reader keeps up. False if there is none. */
static bool decode_step(struct lathe_engine *e)
{
    struct step *step = &e->step;
    lathe_error err;
    step_begin(step, PHASE_DECODE);
    for (int32_t i = 0; i < e->options.n_slots; i++) {
        struct slot *s = &e->slots[i];
        if (s->phase == SLOT_DECODE && !events_full(&s->request->events)) {
            s->token[s->n_committed] = s->next;
            step_add(step, i, s->n_committed, &s->next, 1);
        }
    }
    int32_t n = step->batch.n_rows;
    if (n == 0)
        return false;
    for (int32_t i = 0; i < n; i++)
        step->row[i] = i;
    lathe_status st = step_run(step, &err);
    if (!st)
        st = step_logits(step, step->row, n, &err);
    for (int32_t i = 0; i < n; i++) {
        struct slot *s = &e->slots[step->batch.seq[i].slot];
        if (st) {
            fail_slot(e, s, &err);
            continue;
        }
        s->n_committed++;
        s->request->usage.rounds++;
        next_token(e, s, tensor_at(&step->logits, i));
    }
    return true;
}

/* The next slot that has prompt left, in turn; NULL if none has. */
static struct slot *next_prefill(struct lathe_engine *e)
{
    int32_t n = e->options.n_slots;
    for (int32_t i = 1; i <= n; i++) {
        int32_t at = (e->last_prefill + i) % n;
        if (e->slots[at].phase == SLOT_PREFILL) {
            e->last_prefill = at;
            return &e->slots[at];
        }
    }
    return NULL;
}

static lathe_request *pop(struct lathe_engine *e)
{
    lathe_request *r = e->queue_first;
    if (r) {
        e->queue_first = r->next;
        if (!e->queue_first)
            e->queue_last = NULL;
        e->n_queued--;
    }
    return r;
}

static bool has_free_slot(const struct lathe_engine *e)
{
    for (int32_t i = 0; i < e->options.n_slots; i++)
        if (e->slots[i].phase == SLOT_FREE)
            return true;
    return false;
}

/* Takes cancelled requests out of the queue, wherever they stand in it. */
static void drop_cancelled(struct lathe_engine *e, bool all)
{
    for (;;) {
        pthread_mutex_lock(&e->lock);
        lathe_request **at = &e->queue_first, *before = NULL, *r;
        while ((r = *at) && !all && !atomic_load(&r->cancelled)) {
            before = r;
            at = &r->next;
        }
        if (r) {
            *at = r->next;
            if (e->queue_last == r)
                e->queue_last = before;
            e->n_queued--;
        }
        pthread_mutex_unlock(&e->lock);
        if (!r)
            return;
        request_finish(r, LATHE_FINISH_CANCELLED, NULL, NULL);
        detach(e, r);
    }
}

static void cancel_slots(struct lathe_engine *e, bool all)
{
    for (int32_t i = 0; i < e->options.n_slots; i++) {
        struct slot *s = &e->slots[i];
        if (s->request && (all || atomic_load(&s->request->cancelled))) {
            if (s->request->score)
                finish_slot(e, s, LATHE_FINISH_CANCELLED, NULL, NULL);
            else
                conclude(e, s, LATHE_FINISH_CANCELLED);
        }
    }
}

void scheduler_kick(struct lathe_engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->kicked = true;
    pthread_cond_broadcast(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

void *scheduler_main(void *arg)
{
    struct lathe_engine *e = arg;
    bool idle = false;
    for (;;) {
        pthread_mutex_lock(&e->lock);
        while (idle && !e->kicked && !e->stopping)
            pthread_cond_wait(&e->wake, &e->lock);
        e->kicked = false;
        bool stopping = e->stopping;
        pthread_mutex_unlock(&e->lock);

        drop_cancelled(e, stopping);
        cancel_slots(e, stopping);
        if (stopping)
            return NULL;
        while (has_free_slot(e)) {
            pthread_mutex_lock(&e->lock);
            lathe_request *r = pop(e);
            pthread_mutex_unlock(&e->lock);
            if (!r)
                break;
            admit(e, r);
        }
        struct slot *s = next_prefill(e);
        if (s)
            prefill_step(e, s);
        idle = !decode_step(e) && !s;
    }
}

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "engine/engine.h"

static int32_t index_of(const struct lathe_engine *e, const struct slot *s)
{
    return (int32_t)(s - e->slots);
}

void slot_wipe(struct lathe_engine *e, struct slot *s)
{
    s->n_committed = 0;
    state_reset(&e->state, index_of(e, s));
    if (e->spec.ops)
        e->spec.ops->rewind(e->spec.drafter, index_of(e, s), 0);
}

/* The slot keeps its state for the next prompt that extends it. */
void slot_finish(struct lathe_engine *e, struct slot *s, lathe_finish finish, const char *text,
                 const lathe_error *err)
{
    lathe_request *r = s->request;
    activity_end(s);
    s->request = NULL;
    s->leader = NULL;
    s->phase = SLOT_FREE;
    /* Who waited for what it reads reads it now. */
    for (int32_t i = 0; i < e->options.n_slots; i++)
        if (e->slots[i].leader == s)
            e->slots[i].leader = NULL;
    if (e->ahead.slot == s)
        e->ahead.slot = NULL;
    activity_publish(e);
    request_finish(r, finish, text, err);
    scheduler_detach(e, r);
}

void slot_conclude(struct lathe_engine *e, struct slot *s, lathe_finish why)
{
    lathe_request *r = s->request;
    lathe_finish finish;
    lathe_error err;
    if (output_finish(&r->output, why, &finish, &err))
        slot_finish(e, s, LATHE_FINISH_ERROR, NULL, &err);
    else
        slot_finish(e, s, finish, output_stop_string(&r->output), NULL);
}

void engine_fail(struct lathe_engine *e, const lathe_error *err)
{
    pthread_mutex_lock(&e->lock);
    if (!e->failure.status)
        (void)fail(&e->failure, LATHE_E_DEVICE, "%s; the engine must be closed and opened again",
                   err->message);
    pthread_mutex_unlock(&e->lock);
}

/* A failure inside a step or of its numbers: the slot's state may be torn, so it is wiped. Its request may have ended
 * meanwhile. */
void round_fail(struct lathe_engine *e, struct slot *s, const lathe_error *err)
{
    if (err->status == LATHE_E_DEVICE) {
        engine_fail(e, err);
        err = &e->failure; /* only this thread writes it */
    } else {
        slot_wipe(e, s);
    }
    if (s->request)
        slot_finish(e, s, LATHE_FINISH_ERROR, NULL, err);
}

/* What a pass computes from here on, until `end_watch`, may be left. */
static void begin_watch(struct lathe_engine *e)
{
    if (e->backend->watch)
        e->backend->watch(e->stream, scheduler_leaves, e);
}

/* The pass so far: was it left? */
static lathe_status end_watch(struct lathe_engine *e, lathe_status st, lathe_error *err)
{
    const struct backend *backend = e->backend;
    if (!st && backend->is_left && backend->is_left(e->stream))
        st = fail(err, LATHE_E_CANCELLED, "the pass was left");
    if (backend->watch)
        backend->watch(e->stream, NULL, NULL);
    return st;
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

/* Among the first n of the ids that end it. */
static bool is_stop_id(const lathe_request *r, int32_t n, int32_t id)
{
    for (int32_t i = 0; i < n; i++)
        if (r->stop_id[i] == id)
            return true;
    return false;
}

/* n_top: alternatives beside it. */
static void push_token_info(const struct lathe_engine *e, lathe_request *r, const float *logits,
                            int32_t id, int32_t position, int32_t n_top, bool is_end)
{
    lathe_candidate top[EVENTS_MAX_TOP];
    lathe_event ev = {.type = LATHE_EVENT_TOKEN, .usage = r->usage};
    ev.token.id = id;
    ev.token.position = position;
    ev.token.top = top;
    ev.token.is_end = is_end;
    if (r->first_ms > 0) {
        ev.usage.prefill_ms = r->first_ms - r->started_ms;
        ev.usage.decode_ms = clock_ms() - r->first_ms;
    }
    logits_logprobs(logits, &e->ids, id, &ev.token.logprob, top, n_top, &ev.token.n_top);
    events_push(&r->events, &ev);
}

/* Ends the slot's request for this round, not yet carried out. */
static void end(struct slot *s, lathe_finish finish)
{
    s->ended = true;
    s->finish = finish;
    s->err.status = LATHE_OK;
}

/* How many of the best ids of a row the request's choices take; 0: the whole row. */
static int32_t n_best_of(const struct lathe_engine *e, const lathe_request *r)
{
    bool by_law = e->spec.acceptance == ACCEPT_REJECTION && !sampler_is_greedy(r->sampler);
    return r->n_logprobs >= 0 || by_law ? 0 : sampler_best(r->sampler);
}

/* The logits of n rows of the step, or what all of the choices take of them. */
static lathe_status project(struct lathe_engine *e, const int32_t *row, int32_t n, int32_t n_best,
                            lathe_error *err)
{
    return n_best > 0 ? step_best(&e->step, row, n, n_best, err)
                      : step_logits(&e->step, row, n, err);
}

/* The token that row i of the logits gives, from its best ids if they are at hand and decide it. */
static lathe_status choose(struct lathe_engine *e, struct slot *s, int32_t i,
                           struct verify_row *row, int32_t *id)
{
    struct sampler *sampler = s->request->sampler;
    struct logits_best best = best_rows_at(&e->step.best, i);
    row->logits = tensor_at(&e->step.logits, i);
    if (best.n > 0 && sampler_pick_best(sampler, &e->scratch, &best, NULL, 0, id))
        return LATHE_OK;
    lathe_status st = best.n > 0 ? step_fetch(&e->step, i, &s->err) : LATHE_OK;
    return st ? st : verify_choose(sampler, &e->scratch, e->spec.acceptance, row, id, &s->err);
}

/* The token that comes where `id` was chosen: another, if it is without choice. */
static int32_t without_choice(struct lathe_engine *e, lathe_request *r, int32_t id)
{
    struct closing *c = &r->closing;
    if (c->replaces_end && output_is_thinking(&r->output) && is_stop_id(r, r->n_own_stop_id, id)) {
        e->activity.now.closed_for_end += c->at == CLOSING_NOT_BEGUN;
        closing_begin(c, false);
    }
    return closing_is_on(c) ? c->id[c->at++] : id;
}

bool round_publish(struct lathe_engine *e, struct slot *s, const float *logits, int32_t *id,
                   int32_t position)
{
    lathe_request *r = s->request;
    int32_t finish, chosen = *id;
    bool is_forced = closing_is_on(&r->closing);
    *id = without_choice(e, r, chosen);
    is_forced |= *id != chosen;
    r->usage.forced_tokens += is_forced;
    sampler_commit(r->sampler, id, 1);
    r->usage.completion_tokens++;
    e->activity.now.completion_tokens++;
    bool armed = r->usage.completion_tokens > r->min_tokens,
         ends = armed && is_stop_id(r, r->n_stop_id, *id);
    if (!ends && (is_forced || output_is_thinking(&r->output))) {
        r->usage.reasoning_tokens++;
        e->activity.now.reasoning_tokens++;
    }
    if (r->n_logprobs >= 0)
        push_token_info(e, r, logits, *id, position, r->n_logprobs, ends);
    if (ends) {
        e->activity.now.ended_in_reasoning += output_is_thinking(&r->output);
        r->end_id = *id;
        end(s, LATHE_FINISH_STOP);
        return false;
    }
    if (r->turn) {
        r->output.before = r->turn + r->n_opened;
        r->output.n_before = r->n_turn - r->n_opened;
    }
    lathe_status st = output_token(&r->output, *id, armed, &finish, &s->err);
    if (r->turn)
        r->turn[r->n_turn++] = *id;
    if (output_is_thinking(&r->output) &&
        closing_room(&r->closing, r->usage.reasoning_tokens) <= 0) {
        e->activity.now.closed_for_budget += r->closing.at == CLOSING_NOT_BEGUN;
        closing_begin(&r->closing, true);
    }
    if (st || events_check(&r->events, &s->err))
        s->ended = true;
    else if (finish >= 0)
        end(s, (lathe_finish)finish);
    else if (r->usage.completion_tokens >= r->max_tokens)
        end(s, r->edge_is_context ? LATHE_FINISH_CONTEXT : LATHE_FINISH_LENGTH);
    return !s->ended;
}

/* The row of logits is looked at where its probabilities are wanted. */
static lathe_status skip_choice(struct lathe_engine *e, struct slot *s, int32_t i,
                                struct verify_row *row, int32_t position)
{
    row->logits = tensor_at(&e->step.logits, i);
    return s->request->n_logprobs < 0 ? LATHE_OK
                                      : logits_check(row->logits, &e->ids, position, &s->err);
}

/* Chooses the token after the slot's sequence, which is at `position`, by row i of the logits, unless it is
 * without choice, and publishes it. True if the request goes on; *id is then in the sequence. */
static bool next_token(struct lathe_engine *e, struct slot *s, int32_t i, struct verify_row *row,
                       int32_t position, int32_t *id)
{
    *id = -1;
    lathe_status st = closing_is_on(&s->request->closing) ? skip_choice(e, s, i, row, position)
                                                          : choose(e, s, i, row, id);
    if (!st)
        return round_publish(e, s, row->logits, id, position);
    explain_nonfinite(e, &s->err);
    s->ended = true;
    return false;
}

void round_settle(struct lathe_engine *e, struct slot *s)
{
    events_show(&s->request->events);
    if (!s->ended)
        return;
    if (s->err.status == LATHE_E_NUMERIC)
        round_fail(e, s, &s->err);
    else if (s->err.status)
        slot_finish(e, s, LATHE_FINISH_ERROR, NULL, &s->err);
    else
        slot_conclude(e, s, s->finish);
}

void round_begin(struct slot *s)
{
    s->ended = false;
    s->err.status = LATHE_OK;
    events_hold(&s->request->events);
}

/* Of the prompt's token at this position. */
static void score_token(const struct lathe_engine *e, lathe_request *r, const float *logits,
                        int32_t at)
{
    float logprob;
    int32_t none;
    if (!r->score) {
        push_token_info(e, r, logits, r->prompt[at], at, r->n_prompt_logprobs, false);
        return;
    }
    logits_logprobs(logits, &e->ids, r->prompt[at], &logprob, NULL, 0, &none);
    r->score[at] = logprob;
}

/* Log-probabilities of the prompt tokens that follow the n rows of the last step, the first being at
 * position pos: into r->score, else as events. */
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
            if (at + 1 >= r->n_prompt)
                break;
            st = logits_check(logits, &e->ids, at + 1, err);
            if (st)
                break;
            score_token(e, r, logits, at + 1);
        }
        if (st)
            return st;
    }
    return LATHE_OK;
}

/* Makes what the slot holds the whole of what its leader holds. */
static lathe_status follow(struct lathe_engine *e, struct slot *s, lathe_error *err)
{
    const struct spec *sp = &e->spec;
    const struct slot *from = s->leader;
    int32_t n = from->n_committed, to = index_of(e, s), at = index_of(e, from);
    struct buf context;
    slot_wipe(e, s);
    buf_init(&context, SIZE_MAX / 2);
    lathe_status st = kv_cache_copy(&e->state.kv, to, at, n, err);
    if (!st)
        recurrent_copy(&e->state.recurrent, to, at, true);
    if (!st && sp->ops)
        st = sp->ops->save(sp->drafter, at, &context, err);
    if (!st && sp->ops)
        st = sp->ops->load(sp->drafter, to, context.data, context.len, err);
    buf_release(&context);
    memcpy(s->token, from->token, (size_t)n * sizeof *s->token);
    s->n_committed = st ? 0 : n;
    return st;
}

/* The slot's prompt is read, and row 0 of the logits is that of its last token: the first token. */
static void begin_decoding(struct lathe_engine *e, struct slot *s)
{
    struct verify_row row = {.draft = -1};
    s->request->first_ms = clock_ms();
    round_begin(s);
    if (next_token(e, s, 0, &row, s->n_committed, &s->next))
        s->phase = SLOT_DECODE;
    round_settle(e, s);
}

/* Those that waited for the slot's prompt have it too, and go on with it. */
static void lead(struct lathe_engine *e, struct slot *s)
{
    for (int32_t i = 0; i < e->options.n_slots; i++) {
        struct slot *other = &e->slots[i];
        lathe_request *r = other->request;
        lathe_error err;
        if (other->leader != s)
            continue;
        int32_t n_cached = r->usage.cached_tokens;
        lathe_status st = follow(e, other, &err);
        other->leader = NULL;
        if (st) {
            round_fail(e, other, &err);
            continue;
        }
        r->usage.cached_tokens = r->usage.common_tokens = r->n_prompt;
        r->usage.miss = LATHE_MISS_NONE;
        e->activity.now.cached_tokens += (uint64_t)(r->n_prompt - n_cached);
        lathe_event ev = {.type = LATHE_EVENT_PROGRESS, .done = r->n_prompt, .total = r->n_prompt};
        events_push(&r->events, &ev);
        begin_decoding(e, other);
    }
}

/* What n_best_of says for a slot and those that wait for it. */
static int32_t n_best_of_prompt(const struct lathe_engine *e, const struct slot *s)
{
    int32_t most = n_best_of(e, s->request);
    for (int32_t i = 0; i < e->options.n_slots && most > 0; i++) {
        if (e->slots[i].leader != s)
            continue;
        int32_t n = n_best_of(e, e->slots[i].request);
        most = n == 0 || n > most ? n : most;
    }
    return most;
}

/* Chunks end at multiples of the chunk size, whatever was reused. */
void prefill_step(struct lathe_engine *e, struct slot *s)
{
    lathe_request *r = s->request;
    struct step *step = &e->step;
    int32_t chunk = e->options.prefill_chunk, pos = s->n_committed, slot = index_of(e, s);
    int32_t end_pos = (pos / chunk + 1) * chunk;
    if (end_pos > r->n_prompt)
        end_pos = r->n_prompt;
    int32_t n = end_pos - pos, last = n - 1;
    lathe_error err;
    e->ahead.slot = NULL; /* what drafters read of its last rows is written over */
    double began = clock_ms();
    step_begin(step, PHASE_PREFILL);
    step_add(step, slot, pos, r->prompt + pos, n);
    if (pos > 0 && e->backend->watch)
        state_keep(&e->state, slot);
    begin_watch(e);
    lathe_status st = step_run(step, &err);
    if (!st && (r->score || r->n_prompt_logprobs >= 0))
        st = score_rows(e, r, pos, n, &err);
    st = end_watch(e, st, &err);
    if (st == LATHE_E_CANCELLED) {
        if (pos > 0)
            state_take_back(&e->state, slot, pos);
        else
            slot_wipe(e, s);
        return;
    }
    if (!st && !r->score)
        st = spec_committed(e, slot, pos, 0, n, &err);
    if (!st && !r->score && end_pos == r->n_prompt)
        st = project(e, &last, 1, n_best_of_prompt(e, s), &err);
    if (st) {
        explain_nonfinite(e, &err);
        round_fail(e, s, &err);
        return;
    }
    activity_step(&e->activity, LATHE_STEP_PREFILL, n, clock_ms() - began);
    memcpy(s->token + pos, r->prompt + pos, (size_t)n * sizeof *s->token);
    s->n_committed = end_pos;
    lathe_event ev = {.type = LATHE_EVENT_PROGRESS, .done = end_pos, .total = r->n_prompt};
    events_push(&r->events, &ev);
    if (end_pos < r->n_prompt)
        return;
    if (r->score) {
        r->first_ms = clock_ms();
        slot_wipe(e, s); /* the drafter has not seen it */
        slot_finish(e, s, LATHE_FINISH_STOP, NULL, NULL);
        return;
    }
    lead(e, s);
    begin_decoding(e, s);
}

/* Judges the rows of one slot, from the batch's `first` on: publishes tokens as long as drafts are
 * accepted, and one more. Returns the rows that become part of the sequence. */
static int32_t judge(struct lathe_engine *e, struct slot *s, const struct draft_request *d,
                     int32_t first)
{
    int32_t n_draft = d ? d->n : 0, kept = 0;
    s->token[s->n_committed] = s->next;
    if (!s->request) /* it was cancelled meanwhile; the anchor was published before */
        return 1;
    bool is_own = closing_is_on(&s->request->closing); /* no drafter made them */
    round_begin(s);
    for (bool goes_on = true; goes_on && kept <= n_draft; kept++) {
        struct verify_row row = {
            .draft = kept < n_draft ? d->draft[kept] : -1,
            .law = kept < n_draft && d->law ? &d->law[kept] : NULL,
        };
        int32_t id;
        if (kept > 0)
            s->token[s->n_committed + kept] = d->draft[kept - 1];
        goes_on = next_token(e, s, first + kept, &row, s->n_committed + kept + 1, &id);
        if (goes_on && id != row.draft) {
            s->next = id;
            goes_on = false;
        }
    }
    if (!is_own) {
        verify_count(&s->request->usage.spec, n_draft, kept - 1);
        activity_round(&e->activity, n_draft, kept - 1);
    } else {
        verify_count(&s->request->usage.spec, 0, 0);
        activity_round(&e->activity, 0, 0);
    }
    if (n_draft > 0 && !is_own && !s->ended)
        spec_note_round(e, s->request, d, kept - 1);
    return kept;
}

/* The drafts for a slot in this round, NULL if it has none. */
static const struct draft_request *drafts_of(const struct lathe_engine *e, int32_t n_drafted,
                                             int32_t slot)
{
    for (int32_t i = 0; i < n_drafted; i++)
        if (e->spec.request[i].slot == slot && e->spec.request[i].n > 0)
            return &e->spec.request[i];
    return NULL;
}

/* What n_best_of says for all sequences of the step together. */
static int32_t n_best_of_batch(const struct lathe_engine *e)
{
    int32_t most = 1;
    for (int32_t i = 0; i < e->step.batch.n_seqs; i++) {
        const lathe_request *r = e->slots[e->step.batch.seq[i].slot].request;
        int32_t n = r ? n_best_of(e, r) : 1;
        if (n == 0)
            return 0;
        most = n > most ? n : most;
    }
    return most;
}

static void fail_batch(struct lathe_engine *e, const lathe_error *err)
{
    for (int32_t i = 0; i < e->step.batch.n_seqs; i++)
        round_fail(e, &e->slots[e->step.batch.seq[i].slot], err);
}

bool decode_round(struct lathe_engine *e)
{
    struct step *step = &e->step;
    lathe_error err;
    struct slot *alone = ahead_slot(e);
    if (alone && ahead_round(e, alone))
        return true;
    e->ahead.slot = NULL;
    double began = clock_ms();
    int32_t n_drafted = spec_propose(e);
    bool any = false;
    for (int32_t i = 0; i < n_drafted; i++)
        any |= e->spec.request[i].n > 0;
    step_begin(step, any ? PHASE_VERIFY : PHASE_DECODE);
    for (int32_t i = 0; i < e->options.n_slots; i++) {
        struct slot *s = &e->slots[i];
        if (s->phase != SLOT_DECODE || events_full(&s->request->events))
            continue;
        int32_t row[1 + SPEC_MAX_DRAFT] = {s->next};
        const struct draft_request *d = drafts_of(e, n_drafted, i);
        int32_t n = d ? d->n : 0;
        if (n)
            memcpy(row + 1, d->draft, (size_t)n * sizeof *row);
        step_add(step, i, s->n_committed, row, 1 + n);
    }
    int32_t n_rows = step->batch.n_rows, n_seqs = step->batch.n_seqs;
    if (n_rows == 0)
        return false;
    double drafted = clock_ms();
    begin_watch(e);
    lathe_status st = step_run(step, &err);
    if (!st)
        st = project(e, NULL, n_rows, n_best_of_batch(e), &err);
    st = end_watch(e, st, &err);
    if (st == LATHE_E_CANCELLED) /* drafts, of requests that have all ended: no state was changed */
        return true;
    if (st) {
        fail_batch(e, &err);
        return true;
    }
    for (int32_t i = 0; i < n_seqs; i++) {
        const struct batch_seq *q = &step->batch.seq[i];
        step->kept[i] = *q;
        step->kept[i].n_rows =
            judge(e, &e->slots[q->slot], drafts_of(e, n_drafted, q->slot), q->first_row);
    }
    double verified = clock_ms();
    if (any)
        st = step_commit(step, step->kept, n_seqs, &err);
    for (int32_t i = 0; i < n_seqs && !st; i++) {
        const struct batch_seq *k = &step->kept[i];
        st = spec_committed(e, k->slot, k->pos, k->first_row, k->n_rows, &err);
        e->slots[k->slot].n_committed += k->n_rows;
    }
    if (st) {
        fail_batch(e, &err);
        return true;
    }
    double committed = clock_ms();
    activity_step(&e->activity, any ? LATHE_STEP_VERIFY : LATHE_STEP_DECODE, n_rows,
                  committed - began);
    spec_note_costs(e, n_drafted, drafted - began, verified - drafted, committed - verified);
    for (int32_t i = 0; i < n_seqs; i++) {
        struct slot *s = &e->slots[step->kept[i].slot];
        if (!s->request)
            continue;
        lathe_spec_stats *stats = &s->request->usage.spec;
        stats->draft_ms += drafted - began;
        stats->verify_ms += verified - drafted;
        stats->commit_ms += committed - verified;
        round_settle(e, s);
    }
    return true;
}

/* Rounds that the device decides. A round commits the rows that the one before kept, drafts, runs the anchor and the
 * drafts, and keeps of them what is accepted. The host launches round i + 1 before it reads the tokens of round i, and so
 * is always one round behind: what it then finds, an end or a cancelled request, leaves a round that
 * committed nothing but rows that were right, and whose own rows nobody commits. Where text may end a request inside a
 * round, each keeps the state as it was before its commit, and what was too much is taken back. How many rows a round has
 * the host chooses by what it has read. */
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"

/* A round's graph serves the positions below FIRST_END << 2 i: kernels are launched for all of them, and what no row
 * sees costs a few microseconds. */
enum { FIRST_END = 1024 };
_Static_assert((int64_t)FIRST_END << 2 * (AHEAD_ENDS - 1) >= 1 << 30,
               "2^30 is the longest context");

static int32_t end_pos_of(const struct lathe_engine *e, int32_t i)
{
    int64_t end = (int64_t)FIRST_END << 2 * i;
    return end < e->options.n_ctx ? (int32_t)end : e->options.n_ctx;
}

/* How many candidates a token has. */
static int32_t n_best_of(bool is_drawn)
{
    return is_drawn ? RESIDENT_BEST : 1;
}

static lathe_status run(struct lathe_engine *e, bool is_drawn, int32_t n_rows, int32_t end_pos,
                        lathe_error *err)
{
    int32_t n_best = n_best_of(is_drawn);
    struct step *step = &e->step;
    const struct spec *sp = &e->spec;
    const struct round_rows last = {step->hidden, step->feature};
    lathe_status st = step_fold(step, err);
    if (!st && sp->ops)
        st = sp->ops->draft(sp->drafter, step->resident_host, step->resident, n_rows, n_best,
                            &step->history, &last, end_pos, err);
    return st ? st : step_round(step, n_rows, n_best, end_pos, err);
}

/* Makes room for positions below end_pos. */
static lathe_status reserve(struct lathe_engine *e, int32_t slot, int32_t end_pos, lathe_error *err)
{
    const struct spec *sp = &e->spec;
    lathe_status st = kv_cache_reserve(&e->state.kv, slot, end_pos, err);
    return st || !sp->ops ? st : sp->ops->reach(sp->drafter, slot, end_pos, err);
}

static int32_t tokens_left(const lathe_request *r)
{
    return r->max_tokens - r->usage.completion_tokens;
}

/* Places the sequence's first round, if the drafter can take part in it. *home is the drafter's. */
static bool place(struct lathe_engine *e, int32_t slot, int32_t pos, int32_t token,
                  const lathe_request *r, struct home *home)
{
    const struct spec *sp = &e->spec;
    struct resident first = resident_at(slot, pos, token);
    *home = (struct home){0};
    /* One row at a time is the host's to stop, behind however many ids. */
    for (int32_t i = 0; r && e->ahead.most_rows > 1 && i < r->n_stop_id; i++)
        first.stop[first.n_stops++] = r->stop_id[i];
    if (r) {
        (void)sampler_choice(r->sampler, &first.choice);
        first.left = tokens_left(r);
    }
    if (r && r->output.ends_by_text)
        first.before = state_spare(&e->state);
    if (sp->ops && !sp->ops->ready(sp->drafter, &first, e->ahead.most_rows, home))
        return false;
    step_place(&e->step, &first, e->ahead.most_rows, r ? r->sampler : NULL);
    return true;
}

static lathe_status capture(struct lathe_engine *e, const struct home *drafter, bool is_drawn,
                            int32_t i, int32_t n_rows, lathe_error *err)
{
    struct step *step = &e->step;
    const struct home home[] = {{step->resident_host, step->resident, sizeof *step->resident},
                                *drafter};
    void **graph = &e->ahead.graph[is_drawn][i][n_rows];
    lathe_error ignored;
    lathe_status st = e->backend->capture(e->stream, home, 2, err);
    if (st)
        return st;
    st = run(e, is_drawn, n_rows, end_pos_of(e, i), err);
    lathe_status end = e->backend->captured(e->stream, graph, st ? &ignored : err);
    return st ? st : end;
}

/* All rounds there may be. */
static lathe_status capture_all(struct lathe_engine *e, const struct home *drafter,
                                lathe_error *err)
{
    int32_t most = e->ahead.most_rows, least = e->spec.adaptive ? 1 : most, end_pos = 0;
    for (int32_t i = 0; end_pos < e->options.n_ctx; i++) {
        end_pos = end_pos_of(e, i);
        for (int32_t n = least; n <= most; n++) {
            lathe_status st = capture(e, drafter, false, i, n, err);
            if (!st)
                st = capture(e, drafter, true, i, n, err);
            if (st)
                return st;
        }
    }
    return LATHE_OK;
}

static int32_t most_rows(const struct lathe_engine *e)
{
    const struct spec *sp = &e->spec;
    int32_t most = sp->draft_k, model = sp->info.max_from[DRAFT_MODEL];
    if (!sp->ops)
        return 1;
    if (!sp->adaptive && e->options.draft_k == 0)
        model = sp->info.usual_from[DRAFT_MODEL];
    return sp->ops->ready && !sp->law ? 1 + (most < model ? most : model) : 0;
}

lathe_status ahead_open(struct lathe_engine *e, int32_t pos, lathe_error *err)
{
    struct ahead *a = &e->ahead;
    struct home home;
    lathe_error why;
    a->most_rows = most_rows(e);
    if (!e->backend->capture || a->most_rows == 0 || pos + a->most_rows > e->options.n_ctx)
        return LATHE_OK;
    lathe_status st = reserve(e, 0, pos + a->most_rows, err);
    if (st)
        return st;
    if (!place(e, 0, pos, 0, NULL, &home))
        return LATHE_OK;
    if (capture_all(e, &home, &why)) {
        log_warn("rounds are not captured: %s", why.message);
        ahead_close(e);
        return LATHE_OK;
    }
    a->is_on = true;
    for (int drawn = 0; drawn < 2 && !st && place(e, 0, pos, 0, NULL, &home); drawn++)
        st = e->backend->replay(e->stream, a->graph[drawn][0][a->most_rows], err);
    return st ? st : e->backend->wait(e->stream, err);
}

void ahead_close(struct lathe_engine *e)
{
    if (e->ahead.is_on)
        (void)e->backend->wait(e->stream, NULL); /* for a round that nobody reads */
    for (int drawn = 0; drawn < 2; drawn++)
        for (int32_t i = 0; i < AHEAD_ENDS; i++)
            for (int32_t n = 0; n <= RESIDENT_ROWS; n++)
                if (e->ahead.graph[drawn][i][n])
                    e->backend->release(e->stream, e->ahead.graph[drawn][i][n]);
    e->ahead = (struct ahead){0};
}

/* A row's best candidates, or all ids in one draw, decide its token, and the host needs no more of the row. An end token
 * that something else replaces is the last of its round, and the host goes on from there. */
static bool device_decides(const struct lathe_engine *e, const lathe_request *r)
{
    int32_t most = e->ahead.most_rows;
    struct choice choice;
    int32_t n_best = sampler_choice(r->sampler, &choice);
    bool decides = n_best == INT32_MAX || (n_best > 0 && n_best <= RESIDENT_BEST);
    if (!decides || r->n_logprobs >= 0 || closing_is_on(&r->closing))
        return false;
    if (most == 1)
        return true;
    return r->n_stop_id <= RESIDENT_STOPS && (r->draft_k < 0 || r->draft_k >= most - 1);
}

struct slot *ahead_slot(struct lathe_engine *e)
{
    struct slot *alone = NULL;
    if (!e->ahead.is_on)
        return NULL;
    for (int32_t i = 0; i < e->options.n_slots; i++) {
        struct slot *s = &e->slots[i];
        if (s->phase != SLOT_DECODE)
            continue;
        if (alone)
            return NULL;
        alone = s;
    }
    bool may = alone && device_decides(e, alone->request) && !events_full(&alone->request->events);
    return may ? alone : NULL;
}

/* Rows of the rounds that are launched and not read. */
static int32_t rows_ahead(const struct ahead *a)
{
    int32_t n = 0;
    for (int32_t i = a->n_read; i < a->n_run; i++)
        n += a->rows[i % ROUND_REPORTS];
    return n;
}

/* Is there room for a round behind those, whatever they keep, and may a token come of it; and is there nothing that should be
 * proposed instead? */
static bool may_launch(struct lathe_engine *e, struct slot *s)
{
    const lathe_request *r = s->request;
    int32_t most = rows_ahead(&e->ahead) + e->ahead.most_rows;
    if (output_is_thinking(&r->output) &&
        most > closing_room(&r->closing, r->usage.reasoning_tokens))
        return false;
    return e->ahead.n_run - e->ahead.n_read < tokens_left(r) &&
           most <= e->options.n_ctx - s->n_committed && !spec_differs(e, s);
}

static int32_t choose_rows(struct lathe_engine *e, lathe_request *r)
{
    const struct spec *sp = &e->spec;
    int32_t most = e->ahead.most_rows - 1, usual = sp->info.usual_from[DRAFT_MODEL];
    struct adapt_load alone = {0, 0};
    if (!sp->adaptive || most == 0)
        return 1 + most;
    return 1 + adapt_choose(&r->adapt, &e->ahead.costs, DRAFT_MODEL, usual < most ? usual : most,
                            most, alone);
}

static lathe_status launch(struct lathe_engine *e, struct slot *s, lathe_error *err)
{
    struct ahead *a = &e->ahead;
    const struct backend *backend = e->backend;
    struct choice choice;
    bool is_drawn = sampler_choice(s->request->sampler, &choice) > 1;
    int32_t n = choose_rows(e, s->request), i = 0;
    /* A drafter is told of the rows behind those that were kept, too, as many as a round may have. */
    int32_t end = s->n_committed + rows_ahead(a) + a->most_rows;
    lathe_status st = reserve(e, (int32_t)(s - e->slots), end, err);
    if (st)
        return st;
    while (end_pos_of(e, i) < end)
        i++;
    void *graph = a->graph[is_drawn][i][n];
    st =
        graph ? backend->replay(e->stream, graph, err) : run(e, is_drawn, n, end_pos_of(e, i), err);
    if (backend->mark)
        backend->mark(e->stream, a->n_run % ROUND_REPORTS);
    a->rows[a->n_run++ % ROUND_REPORTS] = n;
    return st;
}

/* The oldest round that is not read. */
static lathe_status await(struct lathe_engine *e, struct round_report *report, lathe_error *err)
{
    int32_t i = e->ahead.n_read % ROUND_REPORTS;
    lathe_status st = e->backend->await ? e->backend->await(e->stream, i, err) : LATHE_OK;
    *report = e->step.report[i];
    return st;
}

/* Commits n rows of a round that no other follows, and ends the rounds. */
static lathe_status commit_last(struct lathe_engine *e, struct slot *s, int32_t n, lathe_error *err)
{
    struct step *step = &e->step;
    int32_t slot = (int32_t)(s - e->slots), pos = s->n_committed;
    e->ahead.slot = NULL;
    step_begin(step, PHASE_VERIFY);
    step_add(step, slot, pos, s->token + pos, n);
    lathe_status st = step_commit(step, step->batch.seq, 1, err);
    return st ? st : spec_committed(e, slot, pos, 0, n, err);
}

static void followed(struct lathe_engine *e, const struct slot *s, int32_t n)
{
    const struct spec *sp = &e->spec;
    const struct committed c = {.slot = (int32_t)(s - e->slots),
                                .pos = s->n_committed,
                                .n = n,
                                .token = s->token + s->n_committed};
    if (sp->ops)
        sp->ops->followed(sp->drafter, &c);
}

/* What the round of n_rows that was read took, and what it accepted, at a time when `left` tokens could still come: no more
 * drafts than that count. */
static void note(struct lathe_engine *e, struct slot *s, int32_t n_rows, int32_t left,
                 int32_t n_accepted)
{
    struct ahead *a = &e->ahead;
    lathe_spec_stats *stats = &s->request->usage.spec;
    struct draft_request d = {.source = DRAFT_MODEL, .n = (n_rows < left ? n_rows : left) - 1};
    double now = clock_ms(), ms = now - a->read_ms;
    a->read_ms = now;
    stats->verify_ms += ms;
    verify_count(stats, d.n, n_accepted);
    activity_round(&e->activity, d.n, n_accepted);
    activity_step(&e->activity, n_rows > 1 ? LATHE_STEP_VERIFY : LATHE_STEP_DECODE, 1 + d.n, ms);
    if (a->n_read > 1) /* it ran while the one before was read, and so began behind that */
        adapt_note_verify(&a->costs, n_rows, ms);
    if (d.n > 0 && !s->ended)
        spec_note_round(e, s->request, &d, n_accepted);
}

/* The next round, which is launched, has committed n_told rows of this one, of which only n are right. */
static lathe_status take_back(struct lathe_engine *e, struct slot *s, int32_t n_told, int32_t n,
                              lathe_error *err)
{
    const struct spec *sp = &e->spec;
    int32_t slot = (int32_t)(s - e->slots), pos = s->n_committed;
    followed(e, s, n_told);
    sp->ops->rewind(sp->drafter, slot, pos);
    state_copy(&e->state, slot, state_spare(&e->state));
    step_begin(&e->step, PHASE_VERIFY);
    step_add(&e->step, slot, pos, s->token + pos, n);
    lathe_status st = step_run(&e->step, err);
    return st ? st : commit_last(e, s, n, err);
}

/* Publishes the tokens of a round. Returns how many rows of it become part of the sequence: all, or where the request
 * ends, and the others can be taken back, as many as gave a token. */
static int32_t publish(struct lathe_engine *e, struct slot *s, const struct round_report *report)
{
    int32_t n = 0;
    bool goes_on = true;
    round_begin(s);
    for (; n < report->n && goes_on; n++) {
        s->next = report->token[n];
        goes_on = round_publish(e, s, NULL, &s->next, s->n_committed + n + 1);
    }
    return s->request->output.ends_by_text ? n : report->n;
}

bool ahead_round(struct lathe_engine *e, struct slot *s)
{
    struct ahead *a = &e->ahead;
    struct round_report report = {0};
    lathe_error err;
    lathe_status st = LATHE_OK;
    if (a->slot != s) {
        int32_t slot = (int32_t)(s - e->slots);
        struct home home;
        a->n_run = a->n_read = 0;
        a->read_ms = clock_ms();
        if (!may_launch(e, s) || !place(e, slot, s->n_committed, s->next, s->request, &home))
            return false;
        a->slot = s;
        st = launch(e, s, &err);
    }
    bool goes_on = !st && may_launch(e, s);
    if (goes_on)
        st = launch(e, s, &err);
    if (!st)
        st = await(e, &report, &err);
    if (!st && report.n == 0)
        return false;
    s->token[s->n_committed] = s->next;
    for (int32_t i = 1; i < report.n; i++)
        s->token[s->n_committed + i] = report.token[i - 1];
    if (st) {
        round_fail(e, s, &err);
        return true;
    }
    int32_t n_rows = a->rows[a->n_read++ % ROUND_REPORTS], left = tokens_left(s->request);
    int32_t n = publish(e, s, &report);
    if (!goes_on)
        st = commit_last(e, s, n, &err);
    else if (n < report.n)
        st = take_back(e, s, report.n, n, &err);
    else
        followed(e, s, n);
    if (st) {
        round_fail(e, s, &err);
        return true;
    }
    s->n_committed += n;
    note(e, s, n_rows, left, n - 1);
    round_settle(e, s);
    return true;
}

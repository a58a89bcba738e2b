#include "engine/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/engine.h"

enum {
    REQUEST_ARENA = 256 << 20,
    MAX_STOP_IDS = 32,
    MAX_STOPS = 32,
    MAX_STOP_BYTES = 1024,
    MAX_MESSAGE = 4096,
};

void request_finish(lathe_request *r, lathe_finish finish, const char *text, const lathe_error *err)
{
    double now = clock_ms();
    if (finish != LATHE_FINISH_ERROR && r->n_turn > r->n_opened)
        turns_keep(&r->engine->turns, r->engine->text, r->turn, (size_t)r->n_turn);
    if (r->first_ms > 0) {
        r->usage.prefill_ms = r->first_ms - r->started_ms;
        r->usage.decode_ms = now - r->first_ms;
    } else if (r->started_ms > 0) {
        r->usage.prefill_ms = now - r->started_ms;
    }
    if (r->output.parser) {
        r->usage.repaired_calls = parser_repaired(r->output.parser);
        r->usage.unparsed_calls = parser_unparsed(r->output.parser);
    }
    lathe_event ev = {
        .type = LATHE_EVENT_FINISH, .finish = finish, .text = text, .usage = r->usage};
    ev.token.id = r->end_id;
    if (err)
        ev.error = *err;
    events_finish(&r->events, &ev);
}

static lathe_status check_options(const struct lathe_engine *e, const lathe_request_options *o,
                                  lathe_error *err)
{
    int32_t n = (o->conversation != NULL) + (o->text != NULL) + (o->token != NULL);
    if (n != 1)
        return fail(err, LATHE_E_ARGUMENT,
                    "a request has one prompt, as conversation, text or tokens; this one has %d",
                    n);
    if (o->max_tokens != -1 && o->max_tokens < 1)
        return fail(err, LATHE_E_ARGUMENT, "max_tokens is %d, expected 1 or more, or -1",
                    o->max_tokens);
    if (o->min_tokens < 0)
        return fail(err, LATHE_E_ARGUMENT, "min_tokens is %d, expected 0 or more", o->min_tokens);
    if (o->max_tokens != -1 && o->min_tokens > o->max_tokens)
        return fail(err, LATHE_E_ARGUMENT, "min_tokens is %d, expected at most max_tokens, %d",
                    o->min_tokens, o->max_tokens);
    if (o->max_calls < 0)
        return fail(err, LATHE_E_ARGUMENT, "max_calls is %d, expected 0 or more", o->max_calls);
    if (o->n_same < 0 || o->n_same >= e->options.n_slots)
        return fail(err, LATHE_E_ARGUMENT, "n_same is %d, expected 0 to %d", o->n_same,
                    e->options.n_slots - 1);
    if (o->n_logprobs < -1 || o->n_logprobs > EVENTS_MAX_TOP)
        return fail(err, LATHE_E_ARGUMENT, "n_logprobs is %d, expected -1 to %d", o->n_logprobs,
                    EVENTS_MAX_TOP);
    if (o->n_prompt_logprobs < -1 || o->n_prompt_logprobs > EVENTS_MAX_TOP)
        return fail(err, LATHE_E_ARGUMENT, "n_prompt_logprobs is %d, expected -1 to %d",
                    o->n_prompt_logprobs, EVENTS_MAX_TOP);
    if (o->cache_salt && strlen(o->cache_salt) >= MAX_CACHE_SALT)
        return fail(err, LATHE_E_ARGUMENT, "cache_salt has %zu bytes, at most %d",
                    strlen(o->cache_salt), MAX_CACHE_SALT - 1);
    if (o->draft_k < -1 || o->draft_k > LATHE_MAX_DRAFT)
        return fail(err, LATHE_E_ARGUMENT, "draft_k is %d, expected -1 to %d", o->draft_k,
                    LATHE_MAX_DRAFT);
    if (o->think_budget < -1)
        return fail(err, LATHE_E_ARGUMENT, "think_budget is %d, expected -1 or more",
                    o->think_budget);
    if (o->think_budget >= 0 && (!o->conversation || o->no_parse))
        return fail(
            err, LATHE_E_ARGUMENT,
            "think_budget is %d: only the output of a conversation, parsed, has a think block",
            o->think_budget);
    size_t n_message = o->budget_message ? strlen(o->budget_message) : 0;
    if (n_message > MAX_MESSAGE || (n_message && strstr(o->budget_message, "</think>")))
        return fail(err, LATHE_E_ARGUMENT,
                    "budget_message has %zu bytes, expected %d at most, without </think>",
                    n_message, MAX_MESSAGE);
    if (o->n_stop > MAX_STOPS)
        return fail(err, LATHE_E_ARGUMENT, "%zu stop strings, at most %d", o->n_stop, MAX_STOPS);
    for (size_t i = 0; i < o->n_stop; i++) {
        size_t len = o->stop[i] ? strlen(o->stop[i]) : 0;
        if (len < 1 || len > MAX_STOP_BYTES)
            return fail(err, LATHE_E_ARGUMENT, "stop[%zu] has %zu bytes, expected 1 to %d", i, len,
                        MAX_STOP_BYTES);
    }
    if (o->n_stop_id > MAX_STOP_IDS)
        return fail(err, LATHE_E_ARGUMENT, "%zu stop ids, at most %d", o->n_stop_id, MAX_STOP_IDS);
    for (size_t i = 0; i < o->n_stop_id; i++)
        if (!tokenizer_has(e->text->tokenizer, o->stop_id[i]))
            return fail(err, LATHE_E_ARGUMENT, "stop_id[%zu] is %d, which no token has", i,
                        o->stop_id[i]);
    return sampling_check(&o->sampling, &e->ids, err);
}

lathe_status lathe_engine_render(lathe_engine *e, const lathe_conversation *c, lathe_prompt *out,
                                 lathe_error *err)
{
    struct replay_memory memory = turns_replay(&e->turns);
    return text_render_known(e->text, c, e->turns.limit ? &memory : NULL, true, out, err);
}

/* Room for the answer's turn, with what the prompt has of it. */
static lathe_status begin_turn(lathe_request *r, lathe_error *err)
{
    size_t bytes = (size_t)(r->n_opened + r->max_tokens) * sizeof *r->turn;
    if (r->n_opened == 0)
        return LATHE_OK;
    r->turn = arena_alloc(&r->arena, bytes);
    if (!r->turn)
        return fail_memory(err, bytes);
    r->n_turn = r->n_opened;
    memcpy(r->turn, r->prompt + r->n_prompt - r->n_opened, (size_t)r->n_opened * sizeof *r->turn);
    return LATHE_OK;
}

/* The prompt's ids, copied to the arena; *thinking says whether it ends inside a think block. */
static lathe_status build_prompt(lathe_request *r, const lathe_request_options *o, bool *thinking,
                                 lathe_error *err)
{
    const struct lathe_engine *e = r->engine;
    lathe_prompt prompt = {0};
    lathe_tokens tokens = {0};
    const int32_t *id = o->token;
    size_t n = o->n_token;
    lathe_status st = LATHE_OK;
    *thinking = false;
    if (o->conversation) {
        st = lathe_engine_render(r->engine, o->conversation, &prompt, err);
        id = prompt.tokens.id;
        n = prompt.tokens.n;
        *thinking = prompt.thinking_open;
        size_t first;
        if (!st && replay_open_turn(e->text, &prompt, &first))
            r->n_opened = (int32_t)(n - first);
    } else if (o->text) {
        st = lathe_tokenize(e->text, o->text, o->n_text, o->control, &tokens, err);
        id = tokens.id;
        n = tokens.n;
    }
    for (size_t i = 0; i < n && !st; i++)
        if (id[i] < 0 || id[i] >= e->model.dims.vocab)
            st = fail(err, LATHE_E_ARGUMENT, "prompt token %zu is %d, expected 0 to %d", i, id[i],
                      e->model.dims.vocab - 1);
    if (!st && n == 0)
        st = fail(err, LATHE_E_ARGUMENT, "the prompt is empty");
    if (!st && n >= (size_t)e->options.n_ctx)
        st = fail(err, LATHE_E_CONTEXT,
                  "the prompt has %zu token%s, the context holds %d and needs one for the answer",
                  n, n == 1 ? "" : "s", e->options.n_ctx);
    if (!st) {
        int32_t *copy = arena_alloc(&r->arena, n * sizeof *copy);
        if (!copy)
            st = fail_memory(err, n * sizeof *copy);
        else
            memcpy(copy, id, n * sizeof *copy);
        r->prompt = copy;
        r->n_prompt = (int32_t)n;
    }
    lathe_prompt_release(&prompt);
    lathe_tokens_release(&tokens);
    return st;
}

static lathe_status build_stops(lathe_request *r, const lathe_request_options *o, lathe_error *err)
{
    const struct lathe_text *text = r->engine->text;
    size_t n_own = o->ignore_eos ? 0 : text->n_stop_id, n = n_own + o->n_stop_id;
    r->stop_id = arena_alloc(&r->arena, n * sizeof *r->stop_id);
    if (!r->stop_id)
        return fail_memory(err, n * sizeof *r->stop_id);
    if (n_own)
        memcpy(r->stop_id, text->stop_id, n_own * sizeof *r->stop_id);
    if (o->n_stop_id)
        memcpy(r->stop_id + n_own, o->stop_id, o->n_stop_id * sizeof *r->stop_id);
    r->n_stop_id = (int32_t)n;
    r->n_own_stop_id = (int32_t)n_own;
    return LATHE_OK;
}

static const char *callable_tools(const lathe_conversation *c)
{
    return !c ? NULL : c->callable_tools ? c->callable_tools : c->tools;
}

static lathe_status build(lathe_request *r, const lathe_request_options *o, lathe_error *err)
{
    const struct lathe_engine *e = r->engine;
    bool thinking;
    lathe_status st = check_options(e, o, err);
    if (!st)
        st = build_prompt(r, o, &thinking, err);
    if (!st)
        st = build_stops(r, o, err);
    if (st)
        return st;
    int32_t room = e->options.n_ctx - r->n_prompt;
    r->edge_is_context = o->max_tokens == -1 || o->max_tokens > room;
    r->max_tokens = r->edge_is_context ? room : o->max_tokens;
    st = begin_turn(r, err);
    if (st)
        return st;
    r->min_tokens = o->min_tokens;
    r->n_logprobs = o->n_logprobs;
    r->n_prompt_logprobs = o->n_prompt_logprobs;
    r->reuse_prefix = !o->no_prefix_reuse && o->n_prompt_logprobs < 0;
    if (o->cache_salt)
        (void)snprintf(r->cache_salt, sizeof r->cache_salt, "%s", o->cache_salt);
    r->is_background = o->is_background;
    r->priority = o->priority;
    r->session = o->session;
    r->n_same = o->n_same;
    r->same_prompt = o->same_prompt;
    r->draft_k = o->draft_k;
    struct sampler_options so = {
        .sampling = &o->sampling,
        .ids = &e->ids,
        .prompt = r->prompt,
        .n_prompt = r->n_prompt,
        .end_id = r->stop_id,
        .n_end = r->n_stop_id,
        .min_tokens = o->min_tokens,
    };
    st = sampler_open(&r->sampler, &so, err);
    if (st)
        return st;
    bool parse = o->conversation && !o->no_parse;
    st = closing_open(&r->closing, &r->arena, e->text, o, r->max_tokens, thinking && parse, err);
    if (st)
        return st;
    struct output_options oo = {
        .text = e->text,
        .events = &r->events,
        .parse = parse,
        .thinking = thinking,
        .tools = callable_tools(o->conversation),
        .max_calls = o->max_calls,
        .stop = o->stop,
        .n_stop = o->n_stop,
    };
    return output_open(&r->output, &oo, err);
}

static void release(lathe_request *r)
{
    struct lathe_engine *e = r->engine;
    output_close(&r->output);
    sampler_close(r->sampler);
    events_release(&r->events);
    arena_release(&r->arena);
    free(r);
    engine_drop(e);
}

static uint64_t request_number(lathe_engine *e)
{
    pthread_mutex_lock(&e->lock);
    uint64_t n = ++e->n_requests;
    pthread_mutex_unlock(&e->lock);
    return n;
}

static lathe_status create(lathe_engine *e, lathe_request **out, lathe_error *err)
{
    lathe_request *r = calloc(1, sizeof *r);
    if (!r)
        return fail_memory(err, sizeof *r);
    r->engine = e;
    engine_hold(e);
    r->number = request_number(e);
    arena_init(&r->arena, REQUEST_ARENA);
    lathe_status st = events_init(&r->events, err);
    if (st)
        release(r);
    else
        *out = r;
    return st;
}

static lathe_status enqueue(lathe_request *r, lathe_error *err)
{
    struct lathe_engine *e = r->engine;
    lathe_status st = LATHE_OK;
    r->submitted_ms = clock_ms();
    pthread_mutex_lock(&e->lock);
    if (e->failure.status) {
        st = fail(err, e->failure.status, "%s", e->failure.message);
    } else if (e->stopping) {
        st = fail(err, LATHE_E_CANCELLED, "the engine was closed");
    } else if (e->n_attached - e->options.n_slots >= e->options.n_queue &&
               !queue_has(e, r->same_prompt)) { /* else that one waits for this */
        st = fail(err, LATHE_E_BUSY, "%d requests run and %d wait: the queue is full",
                  e->n_attached - e->n_queued, e->n_queued);
    } else {
        r->is_attached = true;
        e->n_attached++;
        queue_add(e, r);
    }
    pthread_mutex_unlock(&e->lock);
    if (!st)
        scheduler_kick(e);
    return st;
}

lathe_status lathe_request_submit(lathe_engine *e, const lathe_request_options *o,
                                  lathe_request **request, lathe_error *err)
{
    lathe_request *r;
    *request = NULL;
    lathe_status st = create(e, &r, err);
    if (st)
        return st;
    r->events.notify = o->notify;
    r->events.notify_ctx = o->notify_ctx;
    st = build(r, o, err);
    if (!st)
        st = enqueue(r, err);
    if (st)
        release(r);
    else
        *request = r;
    return st;
}

uint64_t lathe_request_number(const lathe_request *r)
{
    return r->number;
}

int32_t lathe_request_prompt_tokens(const lathe_request *r)
{
    return r->n_prompt;
}

const int32_t *lathe_request_prompt(const lathe_request *r)
{
    return r->prompt;
}

void lathe_request_next(lathe_request *r, int32_t timeout_ms, lathe_event *out)
{
    if (events_next(&r->events, timeout_ms, out))
        scheduler_kick(r->engine);
}

void lathe_request_cancel(lathe_request *r)
{
    atomic_store(&r->cancelled, true);
    scheduler_cancel(r->engine);
}

void lathe_request_close(lathe_request *r)
{
    if (!r)
        return;
    struct lathe_engine *e = r->engine;
    lathe_request_cancel(r);
    pthread_mutex_lock(&e->lock);
    while (r->is_attached)
        pthread_cond_wait(&e->wake, &e->lock);
    pthread_mutex_unlock(&e->lock);
    release(r);
}

/* One window: a request that has only a prompt. */
static lathe_status score_window(lathe_engine *e, const int32_t *token, int32_t n, double *logprob,
                                 size_t done, size_t total, lathe_progress_fn progress, void *ctx,
                                 lathe_error *err)
{
    lathe_request *r;
    lathe_status st = create(e, &r, err);
    if (st)
        return st;
    r->prompt = token;
    r->n_prompt = n;
    r->n_prompt_logprobs = -1;
    r->score = logprob;
    st = enqueue(r, err);
    if (st) {
        release(r);
        return st;
    }
    lathe_event ev;
    bool wanted = true;
    do {
        lathe_request_next(r, -1, &ev);
        if (ev.type == LATHE_EVENT_PROGRESS && progress)
            wanted = progress(ctx, "scoring", done + (size_t)ev.done, total);
        if (!wanted)
            lathe_request_cancel(r);
    } while (ev.type != LATHE_EVENT_FINISH);
    if (ev.finish == LATHE_FINISH_ERROR)
        st = fail(err, ev.error.status, "%s", ev.error.message);
    else if (ev.finish != LATHE_FINISH_STOP || !wanted)
        st = fail(err, LATHE_E_CANCELLED, "scoring was stopped");
    lathe_request_close(r);
    return st;
}

lathe_status lathe_score(lathe_engine *e, const int32_t *token, size_t n, int32_t window,
                         double *logprob, lathe_progress_fn progress, void *progress_ctx,
                         lathe_error *err)
{
    if (window == 0)
        window = e->options.n_ctx;
    if (window < 2 || window > e->options.n_ctx)
        return fail(err, LATHE_E_ARGUMENT, "the window is %d, expected 2 to the context, %d tokens",
                    window, e->options.n_ctx);
    for (size_t i = 0; i < n; i++)
        if (token[i] < 0 || token[i] >= e->model.dims.vocab)
            return fail(err, LATHE_E_ARGUMENT, "token %zu is %d, expected 0 to %d", i, token[i],
                        e->model.dims.vocab - 1);
    lathe_status st = LATHE_OK;
    engine_hold(e); /* from one window to the next, too */
    for (size_t at = 0; at < n && !st; at += (size_t)window) {
        size_t k = n - at < (size_t)window ? n - at : (size_t)window;
        logprob[at] = 0;
        st = score_window(e, token + at, (int32_t)k, logprob + at, at, n, progress, progress_ctx,
                          err);
    }
    engine_drop(e);
    return st;
}

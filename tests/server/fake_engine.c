#include "fake_engine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "text/parse.h"
#include "text/text.h"

struct lathe_engine {
    lathe_text *text;
    char *script;
    fake_engine_choose choose; /* NULL: `script` is for all */
    void *choose_ctx;
    _Atomic(int) n_open, n_waiting;
    _Atomic(uint64_t) n_requests;
    lathe_request_options last;
    lathe_activity activity;
    lathe_slot_info slot[FAKE_SLOTS];
};

/* An event that the parser made. */
struct parsed {
    lathe_event ev;
    char *text, id[64], name[128];
};

struct lathe_request {
    lathe_engine *engine;
    lathe_prompt prompt; /* its tokens alone, and whether a think block is open */
    int32_t *prompt_id;  /* [prompt tokens of the script] */
    struct parser *parser;
    struct parsed *parsed; /* [n_parsed], of which n_shown */
    size_t n_parsed, n_shown;
    lathe_event end; /* behind them; type NONE: nothing yet */
    uint64_t number;
    char *script, *at; /* at: the next line */
    _Atomic(bool) is_cancelled;
    bool is_finished, is_waiting;
    double paused_until; /* seconds; 0: not in a pause */
    int32_t index;       /* of the call that is open */
    int n_ids;
    int32_t end_id;
    int32_t n_scored;  /* tokens of the prompt */
    lathe_usage usage; /* with tokens */
    lathe_candidate top[20];
    void (*notify)(void *ctx);
    void *notify_ctx;
    char text[4096], id[64], name[128];
    int32_t thought[64];
};

lathe_status fake_engine_open(lathe_engine **e, const char *model_dir, lathe_error *err)
{
    *e = calloc(1, sizeof **e);
    if (!*e)
        return fail_memory(err, sizeof **e);
    return lathe_text_open(&(*e)->text, model_dir, err);
}

void fake_engine_script(lathe_engine *e, const char *script)
{
    free(e->script);
    e->script = strdup(script);
}

void fake_engine_ask(lathe_engine *e, fake_engine_choose choose, void *ctx)
{
    e->choose = choose;
    e->choose_ctx = ctx;
}

uint64_t fake_engine_requests(const lathe_engine *e)
{
    return atomic_load(&e->n_requests);
}

int fake_engine_open_requests(const lathe_engine *e)
{
    return atomic_load(&e->n_open);
}

int fake_engine_waiting_requests(const lathe_engine *e)
{
    return atomic_load(&e->n_waiting);
}

const lathe_request_options *fake_engine_last(const lathe_engine *e)
{
    return &e->last;
}

void lathe_engine_close(lathe_engine *e)
{
    lathe_text_close(e->text);
    free(e->script);
    free(e);
}

const char *lathe_version(void)
{
    return "test";
}

const char *lathe_build(void)
{
    return "a build";
}

const char *lathe_engine_drafter(const lathe_engine *e, int32_t *draft_k)
{
    (void)e;
    *draft_k = 4;
    return "mtp";
}

void lathe_engine_plan(const lathe_engine *e, lathe_memory_plan *out)
{
    (void)e;
    *out = (lathe_memory_plan){.weights = 1 << 20,
                               .mapped = 1 << 20,
                               .kv = 4096,
                               .recurrent = 512,
                               .drafter = 256,
                               .workspace = 128,
                               .n_ctx = 512,
                               .n_slots = 2,
                               .device = "cpu"};
}

void fake_engine_activity(lathe_engine *e, const lathe_activity *a, const lathe_slot_info *slot)
{
    e->activity = *a;
    memcpy(e->slot, slot, sizeof e->slot);
}

void lathe_engine_activity(const lathe_engine *e, lathe_activity *out, lathe_slot_info *slot,
                           int32_t n_slots)
{
    *out = e->activity;
    for (int32_t i = 0; i < n_slots && i < FAKE_SLOTS; i++)
        slot[i] = e->slot[i];
}

lathe_status lathe_engine_forget(lathe_engine *e, int32_t slot, lathe_error *err)
{
    if (slot < -1 || slot >= FAKE_SLOTS)
        return fail(err, LATHE_E_ARGUMENT, "there is no slot %d, only 0 to 1", slot);
    if (slot >= 0 && e->slot[slot].phase != LATHE_SLOT_FREE)
        return fail(err, LATHE_E_BUSY, "slot %d runs a request", slot);
    for (int32_t i = 0; i < FAKE_SLOTS; i++)
        if (e->slot[i].phase == LATHE_SLOT_FREE && (slot < 0 || slot == i))
            e->slot[i] = (lathe_slot_info){0};
    return LATHE_OK;
}

const lathe_text *lathe_engine_text(const lathe_engine *e)
{
    return e->text;
}

lathe_status lathe_engine_render(lathe_engine *e, const lathe_conversation *c, lathe_prompt *out,
                                 lathe_error *err)
{
    return text_render_request(e->text, c, out, err);
}

/* The rest of a line, unescaped. */
static size_t unescape(const char *s, size_t n, char *out, size_t room)
{
    size_t len = 0;
    for (size_t i = 0; i < n && len + 1 < room; i++) {
        char c = s[i];
        if (c == '\\' && i + 1 < n) {
            c = s[++i];
            c = c == 'n' ? '\n' : c == 's' ? ' ' : c;
        }
        out[len++] = c;
    }
    out[len] = 0;
    return len;
}

/* ---- Requests ------------------------------------------------------------------------------- */

static lathe_status keep(void *ctx, const struct parse_event *ev, lathe_error *err)
{
    lathe_request *r = ctx;
    struct parsed *more = realloc(r->parsed, (r->n_parsed + 1) * sizeof *more);
    char *text = strndup(ev->text, ev->n);
    if (more)
        r->parsed = more;
    if (!more || !text)
        return fail_memory(err, ev->n);
    struct parsed *p = &more[r->n_parsed++];
    *p = (struct parsed){.ev = {.type = ev->type, .index = ev->index, .n_text = ev->n},
                         .text = text};
    if (ev->call_id)
        (void)snprintf(p->id, sizeof p->id, "%s", ev->call_id);
    if (ev->name)
        (void)snprintf(p->name, sizeof p->name, "%s", ev->name);
    return LATHE_OK;
}

static void make_call_id(void *ctx, char id[CALL_ID_SIZE])
{
    lathe_request *r = ctx;
    (void)snprintf(id, CALL_ID_SIZE, "call_%024d", ++r->n_ids);
}

static bool next_parsed(lathe_request *r, lathe_event *out)
{
    if (r->n_shown == r->n_parsed)
        return false;
    struct parsed *p = &r->parsed[r->n_shown++];
    *out = p->ev;
    out->text = p->text;
    out->call_id = p->id;
    out->name = p->name;
    return true;
}

/* As the engine does. */
static lathe_status read_prompt(lathe_request *r, const lathe_request_options *o, lathe_error *err)
{
    const lathe_text *text = r->engine->text;
    struct parse_options po = {.tools = o->conversation ? o->conversation->tools : NULL,
                               .max_calls = o->max_calls,
                               .stop = o->stop,
                               .n_stop = o->n_stop,
                               .sink = keep,
                               .sink_ctx = r,
                               .make_id = make_call_id,
                               .make_id_ctx = r};
    lathe_status st = LATHE_OK;
    size_t n_script = (size_t)lathe_request_prompt_tokens(r);
    if (o->conversation)
        st = text_render_request(text, o->conversation, &r->prompt, err);
    else if (o->text)
        st = lathe_tokenize(text, o->text, o->n_text, o->control, &r->prompt.tokens, err);
    const int32_t *id = o->token ? o->token : r->prompt.tokens.id;
    size_t n = o->token ? o->n_token : r->prompt.tokens.n;
    r->prompt_id = calloc(n_script + 1, sizeof *r->prompt_id);
    if (!r->prompt_id)
        return fail_memory(err, n_script);
    if (!st && n)
        memcpy(r->prompt_id, id, (n < n_script ? n : n_script) * sizeof *id);
    po.thinking_open = r->prompt.thinking_open && !o->no_parse;
    if (o->no_parse)
        po.tools = NULL;
    else if (o->conversation && o->conversation->callable_tools)
        po.tools = o->conversation->callable_tools;
    return st ? st : parser_open(&r->parser, &po, err);
}

const int32_t *lathe_request_prompt(const lathe_request *r)
{
    return r->prompt_id;
}

lathe_status lathe_request_submit(lathe_engine *e, const lathe_request_options *o,
                                  lathe_request **request, lathe_error *err)
{
    int status, n = 0;
    *request = NULL;
    e->last = *o;
    const char *script = e->choose ? e->choose(e->choose_ctx, o) : e->script;
    if (sscanf(script, "refuse %d %n", &status, &n) == 1 && n)
        return fail(err, (lathe_status)status, "%.*s", (int)strcspn(script + n, "\n"), script + n);
    lathe_request *r = calloc(1, sizeof *r);
    if (!r)
        return fail_memory(err, sizeof *r);
    r->engine = e;
    r->script = strdup(script);
    r->at = r->script;
    r->index = -1;
    r->notify = o->notify;
    r->notify_ctx = o->notify_ctx;
    r->number = atomic_fetch_add(&e->n_requests, 1) + 1;
    atomic_fetch_add(&e->n_open, 1);
    lathe_status st = read_prompt(r, o, err);
    if (st)
        lathe_request_close(r);
    else
        *request = r;
    return st;
}

uint64_t lathe_request_number(const lathe_request *r)
{
    return r->number;
}

/* Of the first line. */
int32_t lathe_request_prompt_tokens(const lathe_request *r)
{
    int n = 0;
    return sscanf(r->script, "accepted %d", &n) == 1 ? n : 0;
}

static void set_text(lathe_request *r, lathe_event *ev, const char *s, size_t n)
{
    ev->n_text = unescape(s, n, r->text, sizeof r->text);
    ev->text = r->text;
}

static void finish(lathe_request *r, lathe_event *ev, const char *line, size_t n)
{
    static const char *const word[] = {"stop", "stop_string", "length", "context", "calls"};
    char name[20];
    int p, c, g, t, at = 0;
    if (sscanf(line, "finish %19s %d %d %d %d%n", name, &p, &c, &g, &t, &at) != 5)
        abort();
    ev->type = LATHE_EVENT_FINISH;
    for (int i = 0; i < 5; i++)
        if (strcmp(name, word[i]) == 0)
            ev->finish = (lathe_finish)i;
    ev->usage = (lathe_usage){.prompt_tokens = p,
                              .cached_tokens = c,
                              .completion_tokens = g,
                              .reasoning_tokens = t,
                              .prefill_ms = 10,
                              .decode_ms = 100,
                              .spec = {.drafted = 6, .accepted = 4}};
    if ((size_t)at < n)
        set_text(r, ev, line + at + 1, n - (size_t)at - 1);
    ev->token.id = r->end_id;
    r->is_finished = true;
}

/* "token ID LOGPROB [ID LOGPROB]...", "end_token ..." and "prompt_token ...". */
static bool read_token(lathe_request *r, const char *line, lathe_event *ev)
{
    int at = 0;
    lathe_token_info *t = &ev->token;
    bool is_prompt = strncmp(line, "prompt_", 7) == 0;
    t->is_end = strncmp(line, "end_", 4) == 0;
    line += is_prompt ? 7 : t->is_end ? 4 : 0;
    if (sscanf(line, "token %d %f%n", &t->id, &t->logprob, &at) != 2)
        return false;
    ev->type = LATHE_EVENT_TOKEN;
    t->top = r->top;
    if (t->is_end)
        r->end_id = t->id;
    for (line += at; t->n_top < 20; line += at) {
        lathe_candidate *c = &r->top[t->n_top];
        if (*line == '\n' || sscanf(line, "%*[ ]%d %f%n", &c->id, &c->logprob, &at) != 2)
            break;
        t->n_top++;
    }
    t->position =
        is_prompt ? ++r->n_scored : lathe_request_prompt_tokens(r) + r->usage.completion_tokens++;
    r->usage.prompt_tokens = lathe_request_prompt_tokens(r);
    r->usage.prefill_ms = 10;
    r->usage.decode_ms = 20 * r->usage.completion_tokens;
    ev->usage = r->usage;
    return true;
}

/* One line as an event; false: it is none. */
static bool read_line(lathe_request *r, const char *line, size_t n, lathe_event *ev)
{
    int a, b, at = 0;
    if (sscanf(line, "accepted %d %d", &a, &b) == 2) {
        ev->type = LATHE_EVENT_ACCEPTED;
        r->usage.prompt_tokens = ev->usage.prompt_tokens = a;
        r->usage.cached_tokens = ev->usage.cached_tokens = b;
    } else if (sscanf(line, "progress %d %d", &ev->done, &ev->total) == 2) {
        ev->type = LATHE_EVENT_PROGRESS;
    } else if (n >= 13 && memcmp(line, "reasoning_end", 13) == 0) {
        ev->type = LATHE_EVENT_REASONING_END;
        ev->id = r->thought;
        for (const char *s = line + 13; s < line + n && ev->n_id < 64;
             s += strcspn(s + 1, " \n") + 1)
            r->thought[ev->n_id++] = (int32_t)strtol(s, NULL, 10);
    } else if (n > 10 && memcmp(line, "reasoning ", 10) == 0) {
        ev->type = LATHE_EVENT_REASONING;
        set_text(r, ev, line + 10, n - 10);
    } else if (n > 4 && memcmp(line, "raw ", 4) == 0) {
        lathe_event raw;
        set_text(r, &raw, line + 4, n - 4);
        if (parser_feed(r->parser, raw.text, raw.n_text, NULL))
            abort();
        return next_parsed(r, ev);
    } else if (read_token(r, line, ev)) {
        return true;
    } else if (n > 5 && memcmp(line, "text ", 5) == 0) {
        ev->type = LATHE_EVENT_TEXT;
        set_text(r, ev, line + 5, n - 5);
    } else if (sscanf(line, "call %63s %127s", r->id, r->name) == 2) {
        ev->type = LATHE_EVENT_CALL_BEGIN;
        r->index++;
        ev->call_id = r->id;
        ev->name = r->name;
    } else if (n > 5 && memcmp(line, "args ", 5) == 0) {
        ev->type = LATHE_EVENT_CALL_ARGS;
        set_text(r, ev, line + 5, n - 5);
    } else if (n == 3 && memcmp(line, "end", n) == 0) {
        ev->type = LATHE_EVENT_CALL_END;
    } else if (n > 7 && memcmp(line, "finish ", 7) == 0) {
        finish(r, ev, line, n);
    } else if (sscanf(line, "error %d %n", &a, &at) == 1 && at) {
        ev->type = LATHE_EVENT_FINISH;
        ev->finish = LATHE_FINISH_ERROR;
        ev->usage = r->usage;
        (void)fail(&ev->error, (lathe_status)a, "%.*s", (int)n - at, line + at);
        r->is_finished = true;
    } else {
        return false;
    }
    ev->index = r->index < 0 ? 0 : r->index;
    return true;
}

static void sleep_ms(int32_t ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000L};
    (void)nanosleep(&t, NULL);
}

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* "pause MS", which begins when it is reached and is left when it is over. */
static bool is_in_pause(lathe_request *r)
{
    int ms;
    if (sscanf(r->at, "pause %d", &ms) != 1)
        return false;
    if (r->paused_until == 0)
        r->paused_until = now_s() + ms * 1e-3;
    if (now_s() < r->paused_until)
        return true;
    r->paused_until = 0;
    r->at += strcspn(r->at, "\n");
    return false;
}

static void note_wait(lathe_request *r, bool is_waiting)
{
    if (r->is_waiting != is_waiting)
        atomic_fetch_add(&r->engine->n_waiting, is_waiting ? 1 : -1);
    r->is_waiting = is_waiting;
}

/* A finish that raw text came before: what the parser held back is shown first, and it may know better. */
static void end_parser(lathe_request *r, lathe_event *ev)
{
    bool is_own = ev->type == LATHE_EVENT_FINISH && ev->finish < LATHE_FINISH_CANCELLED;
    if (!is_own || !strstr(r->script, "\nraw "))
        return;
    if (parser_finish(r->parser, ev->finish, &ev->finish, NULL))
        abort();
    ev->usage.repaired_calls = parser_repaired(r->parser);
    ev->usage.unparsed_calls = parser_unparsed(r->parser);
    if (ev->finish == LATHE_FINISH_STOP_STRING) {
        ev->text = parser_stop_string(r->parser);
        ev->n_text = strlen(ev->text);
    }
    r->end = *ev;
    if (next_parsed(r, ev))
        return;
    *ev = r->end;
    r->end.type = LATHE_EVENT_NONE;
}

void lathe_request_next(lathe_request *r, int32_t timeout_ms, lathe_event *out)
{
    *out = (lathe_event){.type = LATHE_EVENT_NONE};
    if (next_parsed(r, out))
        return;
    if (r->end.type != LATHE_EVENT_NONE) {
        *out = r->end;
        r->end.type = LATHE_EVENT_NONE;
        return;
    }
    while (!r->is_finished) {
        size_t n = strcspn(r->at, "\n");
        bool is_wait = strncmp(r->at, "wait", 4) == 0 || is_in_pause(r);
        if (atomic_load(&r->is_cancelled)) {
            out->type = LATHE_EVENT_FINISH;
            out->finish = LATHE_FINISH_CANCELLED;
            out->usage = r->usage;
            r->is_finished = true;
            return;
        }
        if (is_wait) {
            note_wait(r, true);
            sleep_ms(timeout_ms > 20 ? 20 : timeout_ms);
            return;
        }
        const char *line = r->at;
        n = strcspn(line, "\n");
        r->at += n + (line[n] == '\n');
        /* A step ends the batch. */
        if (strncmp(line, "step", 4) == 0) {
            if (r->notify)
                r->notify(r->notify_ctx);
            return;
        }
        if (n && read_line(r, line, n, out)) {
            end_parser(r, out);
            return;
        }
        if (n && strncmp(line, "raw ", 4) != 0)
            abort();
        if (!n && !*r->at)
            abort(); /* a script without an end */
    }
}

void lathe_request_cancel(lathe_request *r)
{
    atomic_store(&r->is_cancelled, true);
}

void lathe_request_close(lathe_request *r)
{
    if (!r)
        return;
    note_wait(r, false);
    atomic_fetch_sub(&r->engine->n_open, 1);
    parser_close(r->parser);
    lathe_prompt_release(&r->prompt);
    for (size_t i = 0; i < r->n_parsed; i++)
        free(r->parsed[i].text);
    free(r->parsed);
    free(r->prompt_id);
    free(r->script);
    free(r);
}

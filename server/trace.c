#include "trace.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/sha.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"
#include "state.h"

/* ---- The file ------------------------------------------------------------------------------- */

struct trace {
    pthread_mutex_t lock;
    const char *path;
    char *old_path;
    int fd; /* -1: it cannot be written, which was told */
    uint64_t bytes, max_bytes;
    bool text;
};

static bool open_file(struct trace *t)
{
    struct stat st;
    t->fd = open(t->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (t->fd < 0 || fstat(t->fd, &st) < 0)
        return false;
    t->bytes = (uint64_t)st.st_size;
    return true;
}

lathe_status trace_open(struct trace **out, const char *path, uint64_t max_bytes, bool text,
                        lathe_error *err)
{
    struct trace *t = calloc(1, sizeof *t);
    size_t room = strlen(path) + 3;
    if (!t)
        return fail_memory(err, sizeof *t);
    t->path = path;
    t->max_bytes = max_bytes;
    t->text = text;
    t->fd = -1;
    (void)pthread_mutex_init(&t->lock, NULL);
    t->old_path = malloc(room);
    lathe_status st = LATHE_OK;
    if (!t->old_path)
        st = fail_memory(err, room);
    else
        (void)snprintf(t->old_path, room, "%s.1", path);
    if (!st && !open_file(t))
        st = fail(err, LATHE_E_IO, "--trace %s: %s", path, strerror(errno));
    if (st)
        trace_close(t);
    else
        *out = t;
    return st;
}

void trace_close(struct trace *t)
{
    if (!t)
        return;
    if (t->fd >= 0)
        (void)close(t->fd);
    pthread_mutex_destroy(&t->lock);
    free(t->old_path);
    free(t);
}

static bool write_all(struct trace *t, const struct buf *line)
{
    for (size_t at = 0; at < line->len;) {
        ssize_t n = write(t->fd, line->data + at, line->len - at);
        if (n < 0 && errno != EINTR)
            return false;
        at += n > 0 ? (size_t)n : 0;
    }
    t->bytes += line->len;
    return true;
}

static bool put_line(struct trace *t, const struct buf *line)
{
    bool ok = t->fd >= 0;
    if (ok && t->bytes > 0 && t->bytes + line->len > t->max_bytes) {
        (void)close(t->fd);
        t->fd = -1;
        ok = rename(t->path, t->old_path) == 0 && open_file(t);
    }
    return ok && write_all(t, line);
}

void trace_write(struct trace *t, const struct exchange *x, int status, int64_t ms)
{
    struct buf line;
    if (!t || x->trace.len == 0)
        return;
    buf_init(&line, SIZE_MAX / 2);
    buf_putc(&line, '{');
    log_members(&line, x, status, ms, true);
    buf_append(&line, buf_str(&x->trace), x->trace.len);
    buf_puts(&line, "}\n");
    if (!line.no_memory && !x->trace.no_memory && !x->trace.over) {
        pthread_mutex_lock(&t->lock);
        bool was_open = t->fd >= 0, ok = put_line(t, &line);
        int why = errno;
        if (!ok && t->fd >= 0)
            (void)close(t->fd);
        if (!ok)
            t->fd = -1;
        pthread_mutex_unlock(&t->lock);
        if (was_open && !ok)
            log_notice(x->server, LOG_LEVEL_ERROR, "the trace %s ends here: %s", t->path,
                       strerror(why));
    }
    buf_release(&line);
}

/* ---- What is collected ---------------------------------------------------------------------- */

enum { TEXT_LIMIT = 64 << 20, HASH_BYTES = 8 };

struct choice {
    struct buf prompt; /* its members */
    int32_t n_turns;
    int32_t *turn; /* [n_turns] where they begin, in tokens */
    struct buf states;
    lathe_event_type state; /* the last one of `states`; NONE: none */
    size_t state_bytes;
    struct buf said, tokens; /* with texts only */
    bool is_over;
    lathe_finish finish;
    lathe_usage usage;
};

struct trace_run {
    const struct exchange *x;
    bool text;
    int32_t n;
    struct choice *choice;
};

struct trace_run *trace_begin(const struct exchange *x, int32_t n_choices)
{
    struct trace_run *r = x->server->trace ? calloc(1, sizeof *r) : NULL;
    if (!r)
        return NULL;
    r->x = x;
    r->text = x->server->trace->text;
    r->n = n_choices;
    r->choice = calloc((size_t)n_choices, sizeof *r->choice);
    for (int32_t i = 0; r->choice && i < n_choices; i++) {
        buf_init(&r->choice[i].prompt, TEXT_LIMIT);
        buf_init(&r->choice[i].states, TEXT_LIMIT);
        buf_init(&r->choice[i].said, TEXT_LIMIT);
        buf_init(&r->choice[i].tokens, TEXT_LIMIT);
    }
    return r;
}

bool trace_wants_tokens(const struct trace_run *run)
{
    return run && run->text;
}

/* A string as its length, an array or an object as the number of what is in it, all else as it is. */
static void put_field(struct buf *out, const json_t *v)
{
    if (json_is_string(v))
        buf_printf(out, "{\"bytes\":%zu}", json_string_length(v));
    else if (json_is_array(v))
        buf_printf(out, "{\"items\":%zu}", json_array_size(v));
    else if (json_is_object(v))
        buf_printf(out, "{\"members\":%zu}", json_object_size(v));
    else if (json_is_number(v))
        buf_printf(out, "%.9g", json_number_value(v));
    else
        buf_puts(out, json_is_true(v) ? "true" : json_is_false(v) ? "false" : "null");
}

void trace_fields(struct exchange *x, const struct fields *f)
{
    json_t *body = json_members(f->object);
    bool any = false;
    if (!x->server->trace)
        return;
    buf_puts(&x->trace, ",\"fields\":{");
    for (void *it = json_object_iter(body); it; it = json_object_iter_next(body, it)) {
        const char *key = json_object_iter_key(it);
        buf_puts(&x->trace, any ? "," : "");
        json_print_string(&x->trace, key, strlen(key));
        buf_putc(&x->trace, ':');
        put_field(&x->trace, json_object_iter_value(it));
        any = true;
    }
    buf_putc(&x->trace, '}');
    if (!x->server->trace->text)
        return;
    /* It was read as JSON, so it is UTF-8 but for escapes. */
    buf_puts(&x->trace, ",\"body\":");
    json_print_string(&x->trace, buf_str(&x->body), x->body.len);
}

static void put_hash(struct buf *out, const int32_t *id, int32_t n)
{
    unsigned char digest[SHA256_DIGEST_LENGTH];
    SHA256((const unsigned char *)id, (size_t)n * sizeof *id, digest);
    buf_putc(out, '"');
    for (int i = 0; i < HASH_BYTES; i++)
        buf_printf(out, "%02x", digest[i]);
    buf_putc(out, '"');
}

static void put_ids(struct buf *out, const int32_t *id, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        buf_printf(out, "%s%d", i ? "," : "", (int)id[i]);
}

/* The id of <|im_start|>, with which a turn begins; -1: there is none. */
static int32_t turn_start(const lathe_text *text)
{
    static const char start[] = "<|im_start|>";
    lathe_tokens t = {0};
    int32_t id = -1;
    if (!lathe_tokenize(text, start, strlen(start), true, &t, NULL) && t.n == 1)
        id = t.id[0];
    lathe_tokens_release(&t);
    return id;
}

static void put_turns(struct choice *c, const int32_t *id, int32_t n, int32_t start)
{
    for (int32_t at = 0; at < n;) {
        int32_t end = at + 1;
        while (end < n && id[end] != start)
            end++;
        buf_printf(&c->prompt, "%s{\"tokens\":%d,\"sha256\":", c->n_turns ? "," : "",
                   (int)(end - at));
        put_hash(&c->prompt, id + at, end - at);
        buf_putc(&c->prompt, '}');
        if (c->turn)
            c->turn[c->n_turns] = at;
        c->n_turns++;
        at = end;
    }
}

void trace_prompt(struct trace_run *run, int32_t i, const lathe_request *request)
{
    if (!run || !run->choice)
        return;
    struct choice *c = &run->choice[i];
    const lathe_text *text = lathe_engine_text(run->x->server->engine);
    const int32_t *id = lathe_request_prompt(request);
    int32_t n = lathe_request_prompt_tokens(request);
    char *s;
    size_t len;
    c->turn = calloc((size_t)n + 1, sizeof *c->turn);
    buf_printf(&c->prompt, "\"prompt\":{\"tokens\":%d,\"sha256\":", (int)n);
    put_hash(&c->prompt, id, n);
    buf_puts(&c->prompt, ",\"turns\":[");
    put_turns(c, id, n, turn_start(text));
    buf_putc(&c->prompt, ']');
    if (run->text) {
        buf_puts(&c->prompt, ",\"ids\":[");
        put_ids(&c->prompt, id, n);
        buf_putc(&c->prompt, ']');
        if (!lathe_detokenize(text, id, (size_t)n, &s, &len, NULL)) {
            buf_puts(&c->prompt, ",\"text\":");
            json_print_string(&c->prompt, s, len);
            lathe_free(s);
        }
    }
    buf_putc(&c->prompt, '}');
}

static const char *state_name(lathe_event_type t)
{
    return t == LATHE_EVENT_REASONING ? "reasoning" : t == LATHE_EVENT_TEXT ? "text" : "call";
}

static void end_state(const struct trace_run *run, struct choice *c)
{
    if (c->state == LATHE_EVENT_NONE)
        return;
    buf_printf(&c->states, "%s{\"state\":\"%s\",\"bytes\":%zu", c->states.len ? "," : "",
               state_name(c->state), c->state_bytes);
    if (run->text) {
        buf_puts(&c->states, ",\"text\":");
        json_print_string(&c->states, buf_str(&c->said), c->said.len);
    }
    buf_putc(&c->states, '}');
    c->state = LATHE_EVENT_NONE;
    c->state_bytes = 0;
    buf_clear(&c->said);
}

static void begin_state(const struct trace_run *run, struct choice *c, lathe_event_type t)
{
    if (c->state == t && t != LATHE_EVENT_CALL_BEGIN)
        return;
    end_state(run, c);
    c->state = t;
}

static void add_text(const struct trace_run *run, struct choice *c, const char *s, size_t n)
{
    c->state_bytes += n;
    if (run->text)
        buf_append(&c->said, s, n);
}

void trace_event(struct trace_run *run, int32_t i, const lathe_event *ev)
{
    if (!run || !run->choice)
        return;
    struct choice *c = &run->choice[i];
    switch (ev->type) {
    case LATHE_EVENT_REASONING:
    case LATHE_EVENT_TEXT:
        begin_state(run, c, ev->type);
        add_text(run, c, ev->text, ev->n_text);
        return;
    case LATHE_EVENT_CALL_BEGIN:
        begin_state(run, c, ev->type);
        if (run->text)
            buf_printf(&c->said, "%s", ev->name);
        return;
    case LATHE_EVENT_CALL_ARGS:
        add_text(run, c, ev->text, ev->n_text);
        return;
    case LATHE_EVENT_TOKEN:
        if (run->text)
            buf_printf(&c->tokens, "%s%d", c->tokens.len ? "," : "", (int)ev->token.id);
        return;
    case LATHE_EVENT_FINISH:
        end_state(run, c);
        c->is_over = true;
        c->finish = ev->finish;
        c->usage = ev->usage;
        return;
    case LATHE_EVENT_NONE:
    case LATHE_EVENT_ACCEPTED:
    case LATHE_EVENT_PROGRESS:
    case LATHE_EVENT_REASONING_END:
    case LATHE_EVENT_CALL_END:
        return;
    }
}

/* The turn that the first token lies in that is not what a slot held; -1: none does. */
static int32_t diverged_turn(const struct choice *c)
{
    int32_t i = c->n_turns - 1;
    if (!c->turn || c->usage.common_tokens >= c->usage.prompt_tokens)
        return -1;
    while (i > 0 && c->turn[i] > c->usage.common_tokens)
        i--;
    return i;
}

static void put_choice(const struct trace_run *run, struct buf *out, const struct choice *c)
{
    const lathe_usage *u = &c->usage;
    buf_printf(out, "{%s", buf_str(&c->prompt));
    if (c->is_over) {
        buf_printf(out,
                   ",\"cached\":%d,\"common\":%d,\"diverged_turn\":%d,\"miss\":\"%s\","
                   "\"queue_ms\":%.3f,\"prefill_ms\":%.3f,\"decode_ms\":%.3f,\"output\":%d,"
                   "\"reasoning\":%d,\"forced\":%d,\"repaired_calls\":%d,"
                   "\"unparsed_calls\":%d,\"drafted\":%d,"
                   "\"accepted\":%d,\"finish\":\"%s\"",
                   (int)u->cached_tokens, (int)u->common_tokens, (int)diverged_turn(c),
                   lathe_miss_name(u->miss), u->queue_ms, u->prefill_ms, u->decode_ms,
                   (int)u->completion_tokens, (int)u->reasoning_tokens, (int)u->forced_tokens,
                   (int)u->repaired_calls, (int)u->unparsed_calls, (int)u->spec.drafted,
                   (int)u->spec.accepted, lathe_finish_name(c->finish));
    }
    buf_printf(out, ",\"states\":[%s]", buf_str(&c->states));
    if (run->text)
        buf_printf(out, ",\"tokens\":[%s]", buf_str(&c->tokens));
    buf_putc(out, '}');
}

void trace_end(struct trace_run *run, struct exchange *x)
{
    bool any = false;
    if (!run)
        return;
    buf_puts(&x->trace, ",\"choices\":[");
    for (int32_t i = 0; run->choice && i < run->n; i++) {
        struct choice *c = &run->choice[i];
        if (c->prompt.len) {
            buf_puts(&x->trace, any ? "," : "");
            put_choice(run, &x->trace, c);
            any = true;
        }
        buf_release(&c->prompt);
        buf_release(&c->states);
        buf_release(&c->said);
        buf_release(&c->tokens);
        free(c->turn);
    }
    buf_putc(&x->trace, ']');
    free(run->choice);
    free(run);
}

#include "log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "route.h"
#include "state.h"

enum {
    LINE_LIMIT = 16 << 10,
    MAX_BODY = 256 << 10,           /* of a body that is logged; what is longer is cut */
    BODY_LINE_LIMIT = 8 * MAX_BODY, /* escaped */
    MAX_NAMES = 256,                /* that are remembered */
};

struct log {
    pthread_mutex_t lock;
    char *name[MAX_NAMES]; /* that were met, the last one first */
    size_t n_names;
};

lathe_status log_open(struct log **l, lathe_error *err)
{
    *l = calloc(1, sizeof **l);
    if (*l && pthread_mutex_init(&(*l)->lock, NULL) == 0)
        return LATHE_OK;
    free(*l);
    *l = NULL;
    return fail_memory(err, sizeof **l);
}

void log_close(struct log *l)
{
    if (!l)
        return;
    for (size_t i = 0; i < l->n_names; i++)
        free(l->name[i]);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

/* ---- Levels --------------------------------------------------------------------------------- */

static bool level_of(const char *word, size_t n, enum log_level *out)
{
    static const char *const name[] = {"error", "info", "debug"};
    for (int i = 0; i < 3; i++)
        if (strlen(name[i]) == n && memcmp(name[i], word, n) == 0) {
            *out = (enum log_level)i;
            return true;
        }
    return false;
}

lathe_status log_read_level(const char *option, enum log_level *out, lathe_error *err)
{
    struct buf b;
    buf_init(&b, 4096);
    const char *word = option;
    lathe_status st = LATHE_OK;
    if (option[0] == '@') {
        st = file_read(&b, option + 1, err);
        word = buf_str(&b);
    }
    word += strspn(word, " \t\r\n");
    if (!st && !level_of(word, strcspn(word, " \t\r\n"), out))
        st = fail(err, LATHE_E_ARGUMENT,
                  "the log level %s is \"%.40s\", expected error, info or debug",
                  option[0] == '@' ? option : "", word);
    buf_release(&b);
    return st;
}

/* ---- Pieces of a line ----------------------------------------------------------------------- */

/* Outside JSON a value is a word, or in quotes. */
static void put(struct buf *out, bool json, const char *name, const char *value)
{
    lathe_error text;
    (void)fail(&text, LATHE_OK, "%.200s", value); /* UTF-8 without control characters */
    buf_printf(out, json ? "%s\"%s\":" : "%s%s=", json ? out->len > 1 ? "," : "" : " ", name);
    if (json || text.message[strcspn(text.message, " \"=")] || !text.message[0])
        json_print_string(out, text.message, strlen(text.message));
    else
        buf_puts(out, text.message);
}

static void put_number(struct buf *out, bool json, const char *name, double value, int decimals)
{
    buf_printf(out, json ? "%s\"%s\":%.*f" : "%s%s=%.*f", json ? out->len > 1 ? "," : "" : " ",
               name, decimals, value);
}

static void put_time(struct buf *out, const struct server *s, bool json)
{
    char when[32] = "";
    time_t now = (time_t)server_now(s);
    struct tm tm;
    if (gmtime_r(&now, &tm))
        (void)strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm);
    if (json)
        put(out, true, "time", when);
    else
        buf_puts(out, when);
}

static void give(struct server *s, struct buf *line)
{
    if (s->options.log_json)
        buf_putc(line, '}');
    if (line->over || line->no_memory)
        return;
    pthread_mutex_lock(&s->log->lock);
    s->options.log(s->options.log_ctx, buf_str(line));
    pthread_mutex_unlock(&s->log->lock);
}

static const char *finish_word(const struct record *r)
{
    return r->is_gone                              ? "abort"
           : r->finish == LATHE_FINISH_ERROR       ? "error"
           : r->finish == LATHE_FINISH_CANCELLED   ? "abort"
           : r->finish == LATHE_FINISH_CALLS       ? "tool_calls"
           : r->finish == LATHE_FINISH_LENGTH      ? "length"
           : r->finish == LATHE_FINISH_CONTEXT     ? "context"
           : r->finish == LATHE_FINISH_STOP_STRING ? "stop_string"
                                                   : "stop";
}

double decode_rate(int32_t n, double decode_ms)
{
    return n > 1 && decode_ms > 0 ? (n - 1) * 1e3 / decode_ms : 0;
}

static void put_generation(struct buf *out, bool json, const struct record *r)
{
    const lathe_usage *u = &r->usage;
    put(out, json, "dialect", r->dialect);
    if (r->session[0])
        put(out, json, "session", r->session);
    if (r->is_background)
        put(out, json, "class", "background");
    put(out, json, "finish", finish_word(r));
    put_number(out, json, "prompt", u->prompt_tokens, 0);
    put_number(out, json, "cached", u->cached_tokens, 0);
    if (u->miss != LATHE_MISS_NONE)
        put(out, json, "miss", lathe_miss_name(u->miss));
    put_number(out, json, "reasoning", u->reasoning_tokens, 0);
    put_number(out, json, "output", u->completion_tokens, 0);
    put_number(out, json, "queue_ms", u->queue_ms, 1);
    put_number(out, json, "prefill_ms", u->prefill_ms, 1);
    put_number(out, json, "decode_ms", u->decode_ms, 1);
    put_number(out, json, "tokens_per_second", decode_rate(u->completion_tokens, u->decode_ms), 1);
    put_number(out, json, "drafted", u->spec.drafted, 0);
    put_number(out, json, "accepted", u->spec.accepted, 0);
}

void log_members(struct buf *out, const struct exchange *x, int status, int64_t ms, bool json)
{
    put_time(out, x->server, json);
    put(out, json, "id", x->id);
    put(out, json, "method", x->method);
    put(out, json, "path", x->path ? x->path : "");
    put_number(out, json, "status", status, 0);
    put_number(out, json, "ms", (double)ms, 0);
    if (x->record.model[0])
        put(out, json, "model", x->record.model);
    if (x->record.dialect)
        put_generation(out, json, &x->record);
    if (x->failure.condition != FINE)
        put(out, json, "error", failure_code(x->failure.condition));
}

/* All of it that is UTF-8. */
static void put_body(struct buf *out, bool json, const struct buf *body)
{
    size_t n = utf8_valid_prefix(buf_str(body), body->len < MAX_BODY ? body->len : MAX_BODY);
    buf_puts(out, json ? ",\"body\":" : " body=");
    json_print_string(out, buf_str(body), n);
}

static bool is_wanted(const struct exchange *x, int status)
{
    int level = atomic_load(&x->server->log_level);
    bool is_probe = x->route && x->route->no_key;
    return x->server->options.log && (level == LOG_LEVEL_DEBUG || !is_probe) &&
           (level != LOG_LEVEL_ERROR || status >= 500);
}

void log_request(const struct exchange *x, int status, int64_t ms)
{
    const struct server_options *o = &x->server->options;
    struct buf line;
    bool json = o->log_json;
    if (!is_wanted(x, status))
        return;
    buf_init(&line, o->log_bodies ? BODY_LINE_LIMIT : LINE_LIMIT);
    if (json)
        buf_putc(&line, '{');
    log_members(&line, x, status, ms, json);
    if (o->log_bodies && x->body.len)
        put_body(&line, json, &x->body);
    give(x->server, &line);
    buf_release(&line);
}

/* ---- Notices -------------------------------------------------------------------------------- */

void log_notice(struct server *s, enum log_level level, const char *fmt, ...)
{
    char text[1200];
    struct buf line;
    va_list ap;
    if (!s->options.log || (int)level > atomic_load(&s->log_level))
        return;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    buf_init(&line, LINE_LIMIT);
    if (s->options.log_json)
        buf_putc(&line, '{');
    put_time(&line, s, s->options.log_json);
    buf_puts(&line, s->options.log_json ? ",\"notice\":" : " notice=");
    json_print_string(&line, text, utf8_valid_prefix(text, strlen(text)));
    give(s, &line);
    buf_release(&line);
}

/* Puts the name in front of those that are remembered: where it is new, in the place of the one that was met longest ago.
 * With the lock. */
static bool meet(struct log *l, const char *name)
{
    size_t i = 0;
    while (i < l->n_names && strcmp(l->name[i], name) != 0)
        i++;
    bool is_new = i == l->n_names;
    char *copy = is_new ? strdup(name) : l->name[i];
    if (!copy)
        return false;
    if (is_new && i == MAX_NAMES)
        free(l->name[--i]);
    else
        l->n_names += is_new;
    memmove(l->name + 1, l->name, i * sizeof *l->name);
    l->name[0] = copy;
    return is_new;
}

void log_new(struct server *s, const char *what, const char *name)
{
    lathe_error text;
    if (!s->options.log)
        return;
    (void)fail(&text, LATHE_OK, "%s %.120s", what, name);
    pthread_mutex_lock(&s->log->lock);
    bool is_new = meet(s->log, text.message);
    pthread_mutex_unlock(&s->log->lock);
    if (is_new)
        log_notice(s, LOG_LEVEL_INFO, "%s, which is new here", text.message);
}

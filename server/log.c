#include "log.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "state.h"

enum { LINE_LIMIT = 16 << 10 };

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

static void put_generation(struct buf *out, bool json, const struct record *r)
{
    const lathe_usage *u = &r->usage;
    put(out, json, "dialect", r->dialect);
    put(out, json, "finish", finish_word(r));
    put_number(out, json, "prompt", u->prompt_tokens, 0);
    put_number(out, json, "cached", u->cached_tokens, 0);
    put_number(out, json, "reasoning", u->reasoning_tokens, 0);
    put_number(out, json, "output", u->completion_tokens, 0);
    put_number(out, json, "queue_ms", u->queue_ms, 1);
    put_number(out, json, "prefill_ms", u->prefill_ms, 1);
    put_number(out, json, "decode_ms", u->decode_ms, 1);
    put_number(out, json, "tokens_per_second",
               u->decode_ms > 0 ? u->completion_tokens * 1e3 / u->decode_ms : 0, 1);
    put_number(out, json, "drafted", u->spec.drafted, 0);
    put_number(out, json, "accepted", u->spec.accepted, 0);
}

void log_request(const struct exchange *x, int status, int64_t ms)
{
    const struct server_options *o = &x->server->options;
    struct buf line;
    char when[32] = "";
    time_t now = (time_t)server_now(x->server);
    struct tm tm;
    bool json = o->log_json;
    if (!o->log)
        return;
    buf_init(&line, LINE_LIMIT);
    if (gmtime_r(&now, &tm))
        (void)strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm);
    if (json)
        buf_puts(&line, "{");
    else
        buf_puts(&line, when);
    if (json)
        put(&line, json, "time", when);
    put(&line, json, "id", x->id);
    put(&line, json, "method", x->method);
    put(&line, json, "path", x->path ? x->path : "");
    put_number(&line, json, "status", status, 0);
    put_number(&line, json, "ms", (double)ms, 0);
    if (x->record.model[0])
        put(&line, json, "model", x->record.model);
    if (x->record.dialect)
        put_generation(&line, json, &x->record);
    if (x->failure.condition != FINE)
        put(&line, json, "error", failure_code(x->failure.condition));
    if (json)
        buf_putc(&line, '}');
    if (!line.over && !line.no_memory)
        o->log(o->log_ctx, buf_str(&line));
    buf_release(&line);
}

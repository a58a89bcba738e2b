#include "info.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "route.h"
#include "state.h"
#include "url.h"
#include "weights.h"

static void put(struct buf *out, const char *s)
{
    json_print_string(out, s, strlen(s));
}

static void put_or_null(struct buf *out, const char *s)
{
    if (s[0])
        put(out, s);
    else
        buf_puts(out, "null");
}

/* ---- Health --------------------------------------------------------------------------------- */

void health(struct exchange *x)
{
    int phase = atomic_load(&x->server->phase);
    bool has_failed = atomic_load(&x->server->has_failed);
    x->status = phase == PHASE_READY && !has_failed ? 200 : 503;
    if (has_failed)
        buf_puts(&x->reply, "{\"status\":\"error\"}");
    else if (phase == PHASE_LOADING)
        buf_printf(&x->reply, "{\"status\":\"loading\",\"progress\":%d.%03d}",
                   atomic_load(&x->server->progress) / 1000,
                   atomic_load(&x->server->progress) % 1000);
    else
        buf_puts(&x->reply,
                 phase == PHASE_READY ? "{\"status\":\"ok\"}" : "{\"status\":\"draining\"}");
}

void ready(struct exchange *x)
{
    health(x);
}

void livez(struct exchange *x)
{
    bool has_failed = atomic_load(&x->server->has_failed);
    x->status = has_failed ? 503 : 200;
    buf_puts(&x->reply, has_failed ? "{\"status\":\"error\"}" : "{\"status\":\"ok\"}");
}

void hello(struct exchange *x)
{
    buf_puts(&x->reply, "{\"status\":\"ok\"}");
}

void version(struct exchange *x)
{
    const struct server *s = x->server;
    char weights[65] = "";
    if (server_engine(s))
        (void)weights_sha256(s->weights, weights);
    buf_puts(&x->reply, "{\"version\":");
    put(&x->reply, lathe_version());
    buf_puts(&x->reply, ",\"build\":");
    put(&x->reply, lathe_build());
    buf_puts(&x->reply, ",\"revision\":");
    put(&x->reply, server_revision(s));
    buf_puts(&x->reply, ",\"model\":");
    put(&x->reply, s->model);
    buf_puts(&x->reply, ",\"weights_sha256\":");
    put_or_null(&x->reply, weights);
    buf_puts(&x->reply, ",\"template_sha256\":");
    put_or_null(&x->reply, s->template_sha256);
    buf_putc(&x->reply, '}');
}

void help(struct exchange *x)
{
    x->type = "text/plain; charset=utf-8";
    x->is_page = true;
    for (const struct route *r = routes; r->path; r++) {
        char methods[40];
        route_methods((int)r->method, methods);
        buf_printf(&x->reply, "%-20s %s%s%s\n", methods, r->v1 ? "/v1" : "", r->path,
                   r->prefix ? "/{id}" : "");
    }
}

/* ---- Models --------------------------------------------------------------------------------- */

static void put_model(struct exchange *x)
{
    const struct server *s = x->server;
    struct buf *out = &x->reply;
    char created[32] = "";
    time_t t = (time_t)s->created;
    struct tm tm;
    int n_ctx = (int)s->options.n_ctx;
    if (gmtime_r(&t, &tm))
        (void)strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", &tm);
    buf_puts(out, "{\"id\":");
    put(out, s->model);
    buf_printf(out,
               ",\"object\":\"model\",\"type\":\"model\",\"created\":%lld,\"created_at\":\"%s\","
               "\"owned_by\":\"local\",\"display_name\":",
               (long long)s->created, created);
    put(out, s->model);
    buf_puts(out, ",\"description\":\"\",\"root\":");
    put(out, s->model);
    buf_printf(out,
               ",\"parent\":null,\"max_model_len\":%d,\"context_length\":%d,\"context_window\":%d,"
               "\"max_input_tokens\":%d,\"max_tokens\":%d,\"max_output_tokens\":%d,",
               n_ctx, n_ctx, n_ctx, n_ctx - 1, n_ctx - 1, n_ctx - 1);
    buf_puts(out, "\"input_modalities\":[\"text\"],\"output_modalities\":[\"text\"],"
                  "\"supported_parameters\":[\"frequency_penalty\",\"include_reasoning\","
                  "\"logit_bias\",\"logprobs\",\"max_completion_tokens\",\"max_tokens\",\"min_p\","
                  "\"n\",\"parallel_tool_calls\",\"presence_penalty\",\"reasoning\","
                  "\"reasoning_effort\",\"repetition_penalty\",\"seed\",\"stop\","
                  "\"temperature\",\"tool_choice\",\"tools\",\"top_k\",\"top_logprobs\",\"top_p\"],"
                  "\"capabilities\":{\"tools\":true,\"reasoning\":true,\"reasoning_efforts\":"
                  "[\"low\",\"medium\",\"xhigh\"],\"structured_output\":false,\"vision\":false,"
                  "\"embeddings\":false},\"aliases\":[");
    for (size_t i = 1; i < s->options.alias.n; i++) {
        if (i > 1)
            buf_putc(out, ',');
        put(out, s->options.alias.name[i]);
    }
    buf_puts(out, "]}");
}

/* Anthropic's paging, of a list of one: is the model on the page? */
static bool is_on_page(struct exchange *x, bool *shown)
{
    static const char *const cursor[] = {"after_id", "before_id"};
    char value[300], *end;
    *shown = true;
    if (query_get(x->query, "limit", value, sizeof value)) {
        long n = strtol(value, &end, 10);
        if (end == value || *end || n < 1 || n > 1000)
            return refuse_field(&x->failure, BAD_VALUE, "limit",
                                "limit is '%.40s', expected 1 to 1000", value);
    }
    for (size_t i = 0; i < 2; i++) {
        if (!query_get(x->query, cursor[i], value, sizeof value))
            continue;
        if (!server_has_model(x->server, value))
            return refuse_field(&x->failure, BAD_VALUE, cursor[i], "%s: there is no model %.200s",
                                cursor[i], value);
        *shown = false; /* nothing lies before or after it */
    }
    return true;
}

void models_list(struct exchange *x)
{
    bool shown;
    if (!is_on_page(x, &shown))
        return;
    const char *id = shown ? x->server->model : "";
    buf_puts(&x->reply, "{\"object\":\"list\",\"has_more\":false,\"first_id\":");
    put_or_null(&x->reply, id);
    buf_puts(&x->reply, ",\"last_id\":");
    put_or_null(&x->reply, id);
    buf_puts(&x->reply, ",\"data\":[");
    if (shown)
        put_model(x);
    buf_puts(&x->reply, "]}");
}

void models_one(struct exchange *x)
{
    if (server_has_model(x->server, x->rest))
        put_model(x);
    else
        (void)refuse(&x->failure, MODEL_NOT_FOUND, "there is no model %.200s, only %s", x->rest,
                     x->server->model);
}

/* ---- Properties ----------------------------------------------------------------------------- */

void props(struct exchange *x)
{
    const struct server *s = x->server;
    struct buf *out = &x->reply;
    lathe_request_options o;
    lathe_request_options_init(lathe_engine_text(s->engine), true, &o);
    /* Settings are floats: seven digits spell them as they were written. */
    buf_printf(out,
               "{\"default_generation_settings\":{\"temperature\":%.7g,\"top_p\":%.7g,"
               "\"top_k\":%d,\"min_p\":%.7g,\"presence_penalty\":%.7g,"
               "\"frequency_penalty\":%.7g,\"repetition_penalty\":%.7g",
               (double)o.sampling.temperature, (double)o.sampling.top_p, (int)o.sampling.top_k,
               (double)o.sampling.min_p, (double)o.sampling.presence_penalty,
               (double)o.sampling.frequency_penalty, (double)o.sampling.repetition_penalty);
    buf_printf(out, "},\"total_slots\":%d,\"model_alias\":", (int)s->options.n_slots);
    put(out, s->model);
    buf_puts(out, ",\"chat_template\":");
    put(out, s->template);
    buf_puts(out, ",\"chat_template_sha256\":");
    put_or_null(out, s->template_sha256);
    buf_printf(out,
               ",\"modalities\":{\"vision\":false,\"video\":false,\"audio\":false},\"n_ctx\":%d,"
               "\"bos_token\":null,\"eos_token\":",
               (int)s->options.n_ctx);
    put_or_null(out, s->eos_token);
    buf_puts(out, ",\"build_info\":");
    char build[128];
    (void)snprintf(build, sizeof build, "%s-%.64s", lathe_version(), server_revision(s));
    put(out, build);
    buf_putc(out, '}');
}

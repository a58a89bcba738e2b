/* POST /v1/completions: text in, text out. No template, no thinking, no tools. */
#include <stdio.h>
#include <string.h>

#include "dialects.h"
#include "openai.h"
#include "state.h"

enum { TEXT_LIMIT = 256 << 20 };

struct completion_state {
    const struct server *server;
    char id[40];
    int64_t created;
    const char *model; /* as the client named it */
    bool stream, include_usage;
    struct buf text; /* of a reply in one piece */
};

/* ---- The request ---------------------------------------------------------------------------- */

static bool read_ids(struct exchange *x, const json_t *array, struct generation *g)
{
    size_t n = json_array_size(array);
    int32_t *id = arena_calloc(&g->arena, n + 1, sizeof *id);
    if (!id)
        return refuse(&x->failure, INTERNAL, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(array, i);
        char param[40];
        int64_t value;
        size_t n_bytes;
        (void)snprintf(param, sizeof param, "prompt[%zu]", i);
        if (json_is_string(v) || json_is_array(v))
            return refuse_field(&x->failure, UNSUPPORTED_VALUE, "prompt",
                                "prompt: several prompts in one request are not supported; send "
                                "one text, or the ids of one");
        if (!json_whole(v, &value))
            return refuse_field(&x->failure, BAD_TYPE, param, "%s: expected a token's id, found %s",
                                param, json_kind(v));
        if (value < 0 || value > INT32_MAX ||
            !lathe_token_bytes(lathe_engine_text(x->server->engine), (int32_t)value, &n_bytes))
            return refuse_field(&x->failure, BAD_VALUE, param, "%s: no token has this id", param);
        id[i] = (int32_t)value;
    }
    g->options.token = id;
    g->options.n_token = n;
    return true;
}

static bool read_prompt(struct exchange *x, const struct fields *f, struct generation *g)
{
    const json_t *v = field_value(f, "prompt");
    bool special = true;
    size_t n = 0;
    if (!v)
        return refuse_field(&x->failure, MISSING_FIELD, "prompt", "prompt is missing");
    if (!field_bool(f, "parse_special", &special))
        return false;
    const char *s = json_text(&f->doc, v, &n);
    if (!s && !json_is_array(v))
        return field_is_no(f, "prompt", "a string or an array", v);
    if (s ? n == 0 : json_array_size(v) == 0)
        return refuse_field(&x->failure, BAD_VALUE, "prompt",
                            "prompt is empty: there is no token to begin with");
    if (!s)
        return read_ids(x, v, g);
    g->options.text = arena_strndup(&g->arena, s, n);
    g->options.n_text = n;
    g->options.control = special;
    return g->options.text || refuse(&x->failure, INTERNAL, "out of memory");
}

static bool read_request(struct exchange *x, const struct fields *f, struct generation *g,
                         struct completion_state *s)
{
    static const char *const own[] = {"prompt", "parse_special", "suffix", "prompt_logprobs"};
    const char *model = x->server->model;
    size_t n = strlen(model);
    lathe_request_options_init(lathe_engine_text(x->server->engine), false, &g->options);
    g->options.no_parse = true;
    if (!openai_fields(x, f, own, 4) || !field_text(f, "model", &model, &n) ||
        !read_prompt(x, f, g) || !openai_stream(x, f, g, &s->include_usage) || !sampling_read(f, g))
        return false;
    if (field_value(f, "suffix"))
        return refuse_field(&x->failure, UNSUPPORTED_FIELD, "suffix", "suffix is not supported");
    if (field_value(f, "prompt_logprobs"))
        return refuse_field(&x->failure, UNSUPPORTED_FIELD, "prompt_logprobs",
                            "prompt_logprobs is not supported");
    s->model = arena_strndup(&g->arena, model, n);
    (void)snprintf(x->record.model, sizeof x->record.model, "%.*s", (int)(n < 120 ? n : 120),
                   model);
    return s->model || refuse(&x->failure, INTERNAL, "out of memory");
}

static bool parse(struct exchange *x, const struct fields *f, struct generation *g, void **state)
{
    struct completion_state *s = arena_calloc(&g->arena, 1, sizeof *s);
    if (!s)
        return refuse(&x->failure, INTERNAL, "out of memory");
    *state = s;
    buf_init(&s->text, TEXT_LIMIT);
    s->server = x->server;
    s->created = server_now(x->server);
    memcpy(s->id, "cmpl-", 5);
    server_id(x->server, s->id + 5);
    if (!read_request(x, f, g, s))
        return false;
    s->stream = g->stream;
    return true;
}

/* ---- The reply ------------------------------------------------------------------------------ */

static void put_head(struct buf *out, const struct completion_state *s)
{
    buf_printf(out,
               "{\"id\":\"%s\",\"object\":\"text_completion\",\"created\":%lld,\"model\":", s->id,
               (long long)s->created);
    openai_string(out, s->model);
    buf_printf(out, ",\"system_fingerprint\":\"%s\",\"choices\":[", s->server->fingerprint);
}

/* The one choice; `last` is NULL while it goes on. */
static void put_choice(struct buf *out, const char *text, size_t n, const lathe_event *last)
{
    buf_puts(out, "{\"index\":0,\"text\":");
    json_print_string(out, text, n);
    buf_puts(out, ",\"logprobs\":null,\"finish_reason\":");
    if (last) {
        buf_printf(out, "\"%s\",\"stop_reason\":", openai_finish(last->finish));
        openai_stop_reason(out, last);
    } else {
        buf_puts(out, "null");
    }
    buf_puts(out, "}]");
}

static void end_chunk(struct buf *out, const struct completion_state *s)
{
    buf_puts(out, s->include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
}

static void head(struct buf *out, void *state, const lathe_usage *known)
{
    (void)known;
    (void)out;
    (void)state;
}

static void event(struct buf *out, void *state, const lathe_event *ev)
{
    struct completion_state *s = state;
    if (ev->type == LATHE_EVENT_TEXT && !s->stream)
        buf_append(&s->text, ev->text, ev->n_text);
    if (!s->stream || (ev->type != LATHE_EVENT_TEXT && ev->type != LATHE_EVENT_PROGRESS))
        return;
    buf_puts(out, "data: ");
    put_head(out, s);
    if (ev->type == LATHE_EVENT_TEXT)
        put_choice(out, ev->text, ev->n_text, NULL);
    else
        buf_printf(out, "],\"prompt_progress\":{\"total\":%d,\"processed\":%d,\"time_ms\":%.0f}",
                   (int)ev->total, (int)ev->done, ev->usage.prefill_ms);
    end_chunk(out, s);
}

static void finish(struct buf *out, void *state, const lathe_event *last)
{
    const struct completion_state *s = state;
    if (s->stream)
        buf_puts(out, "data: ");
    put_head(out, s);
    put_choice(out, buf_str(&s->text), s->text.len, last);
    openai_timings(out, s->server, &last->usage);
    out->over |= s->text.over;
    out->no_memory |= s->text.no_memory;
    if (!s->stream) {
        buf_puts(out, ",\"usage\":");
        openai_usage(out, &last->usage);
        buf_putc(out, '}');
        return;
    }
    end_chunk(out, s);
    if (s->include_usage) {
        buf_puts(out, "data: ");
        put_head(out, s);
        buf_puts(out, "],\"usage\":");
        openai_usage(out, &last->usage);
        buf_puts(out, "}\n\n");
    }
    buf_puts(out, "data: [DONE]\n\n");
}

static void release(void *state)
{
    struct completion_state *s = state;
    if (s)
        buf_release(&s->text);
}

void completions(struct exchange *x)
{
    static const struct dialect dialect = {"completions", parse,  head,    event, openai_keepalive,
                                           openai_error,  finish, release, NULL};
    generate(x, &dialect);
}

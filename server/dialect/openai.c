#include "openai.h"

#include <string.h>

#include "state.h"
#include "token.h"

/* ---- Fields --------------------------------------------------------------------------------- */

static const struct hint hints[] = {
    {"user", HINT_TEXT},
    {"safety_identifier", HINT_TEXT},
    {"metadata", HINT_OBJECT},
    {"store", HINT_BOOL},
    {"service_tier", HINT_TEXT},
    {"prompt_cache_key", HINT_TEXT},
    {"prompt_cache_retention", HINT_TEXT},
    {"prompt_cache_options", HINT_OBJECT},
    {"verbosity", HINT_TEXT},
    {"request_id", HINT_TEXT},
    {"id_slot", HINT_WHOLE},
    {"prediction", HINT_OBJECT},
    {"priority", HINT_WHOLE},
};

static const char *const read_fields[] = {"model",
                                          "stream",
                                          "stream_options",
                                          "temperature",
                                          "top_p",
                                          "top_k",
                                          "min_p",
                                          "presence_penalty",
                                          "frequency_penalty",
                                          "repeat_penalty",
                                          "repetition_penalty",
                                          "seed",
                                          "stop",
                                          "stop_sequences",
                                          "stop_token_ids",
                                          "ignore_eos",
                                          "min_tokens",
                                          "max_tokens",
                                          "max_completion_tokens",
                                          "n_predict",
                                          "logit_bias",
                                          "cache_prompt",
                                          "cache_salt",
                                          "include_stop_str_in_output",
                                          "return_progress"};

const char *const openai_wish_fields[N_WISH_FIELDS] = {
    "n", "best_of", "echo", "logprobs", "timings_per_token", "return_token_ids"};

bool openai_fields(struct exchange *x, const struct fields *f, struct known_fields *known)
{
    known_add(known, read_fields, sizeof read_fields / sizeof *read_fields);
    return unsupported_read(f, x, known) &&
           hints_read(f, hints, sizeof hints / sizeof *hints, known) &&
           fields_unknown(f, x, known->name, known->n);
}

static bool read_number_of_choices(struct exchange *x, const struct fields *f, struct generation *g)
{
    int64_t n = 1, most = x->server->options.n_slots, best_of;
    if (!field_int(f, "n", &n, 1, INT32_MAX))
        return false;
    best_of = n;
    if (!field_int(f, "best_of", &best_of, 1, INT32_MAX))
        return false;
    g->n = (int32_t)n;
    if (n > most)
        return refuse_field(&x->failure, BAD_VALUE, "n",
                            "n is %lld, and the server has %lld slot%s; --slots sets it",
                            (long long)n, (long long)most, most == 1 ? "" : "s");
    return best_of == n || refuse_field(&x->failure, UNSUPPORTED_VALUE, "best_of",
                                        "best_of: only the value of n is supported");
}

bool openai_stream(struct exchange *x, const struct fields *f, struct generation *g,
                   bool *include_usage, bool *usage_per_chunk)
{
    static const char *const known[] = {"include_usage", "include_obfuscation",
                                        "continuous_usage_stats"};
    struct fields o;
    bool obfuscation, continuous = false;
    if (!field_bool(f, "stream", &g->stream) ||
        !field_bool(f, "return_progress", &g->show_progress) ||
        !fields_inner(f, "stream_options", "stream_options.", &o) ||
        !field_bool(&o, "include_usage", include_usage) ||
        !field_bool(&o, "include_obfuscation", &obfuscation) ||
        !field_bool(&o, "continuous_usage_stats", &continuous) ||
        (o.object && !fields_unknown(&o, x, known, 3)))
        return false;
    g->show_progress &= g->stream;
    if (usage_per_chunk)
        *usage_per_chunk = continuous && g->stream;
    return usage_per_chunk || !continuous ||
           refuse_field(&x->failure, UNSUPPORTED_VALUE, "stream_options.continuous_usage_stats",
                        "stream_options.continuous_usage_stats: only false is supported here");
}

bool openai_wishes(struct exchange *x, const struct fields *f, struct generation *g,
                   struct openai_wish *w)
{
    *w = (struct openai_wish){.include_usage = x->server->options.always_usage, .n_top = -1};
    if (!openai_stream(x, f, g, &w->include_usage, &w->usage_per_chunk) ||
        !field_bool(f, "timings_per_token", &w->timings_per_chunk) ||
        !field_bool(f, "return_token_ids", &w->ids))
        return false;
    w->timings_per_chunk &= g->stream;
    return read_number_of_choices(x, f, g);
}

void openai_ask_tokens(struct openai_wish *w, struct generation *g)
{
    w->stop_id = g->options.stop_id;
    w->n_stop_id = g->options.n_stop_id;
    if (w->ids || w->usage_per_chunk || w->timings_per_chunk)
        g->options.n_logprobs = 0;
    if (w->n_top >= 0)
        g->options.n_logprobs = w->n_top;
}

/* ---- Tokens --------------------------------------------------------------------------------- */

static void put_candidate(struct buf *out, const lathe_text *text, int32_t id, float logprob)
{
    buf_puts(out, "{\"token\":");
    token_string(out, text, id);
    buf_puts(out, ",\"logprob\":");
    token_logprob(out, logprob);
    buf_puts(out, ",\"bytes\":");
    token_bytes(out, text, id);
}

void openai_put_token(struct buf *out, const lathe_text *text, const lathe_token_info *t,
                      int32_t n_top)
{
    if (out->len)
        buf_putc(out, ',');
    put_candidate(out, text, t->id, t->logprob);
    buf_puts(out, ",\"top_logprobs\":[");
    for (int32_t i = 0; i < t->n_top && i < n_top; i++) {
        if (i)
            buf_putc(out, ',');
        put_candidate(out, text, t->top[i].id, t->top[i].logprob);
        buf_putc(out, '}');
    }
    buf_puts(out, "]}");
}

/* ---- Pieces of JSON ------------------------------------------------------------------------- */

void openai_string(struct buf *out, const char *s)
{
    json_print_string(out, s, strlen(s));
}

void openai_head(struct buf *out, const struct server *s, const char *id, const char *object,
                 const char *model, size_t n_model)
{
    buf_init(out, SIZE_MAX / 2);
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", id, object,
               (long long)server_now(s));
    json_print_string(out, model, n_model);
    buf_printf(out, ",\"system_fingerprint\":\"%s\"", s->fingerprint);
}

void openai_usage(struct buf *out, const lathe_usage *u)
{
    buf_printf(out,
               "{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d,"
               "\"prompt_tokens_details\":{\"cached_tokens\":%d},"
               "\"completion_tokens_details\":{\"reasoning_tokens\":%d}}",
               (int)u->prompt_tokens, (int)u->completion_tokens,
               (int)(u->prompt_tokens + u->completion_tokens), (int)u->cached_tokens,
               (int)u->reasoning_tokens);
}

static double rate(int32_t n, double ms)
{
    return ms > 0 ? n * 1e3 / ms : 0;
}

void openai_end_chunk(struct buf *out, const struct openai_wish *w, const lathe_usage *so_far)
{
    if (so_far) {
        buf_puts(out, ",\"usage\":");
        openai_usage(out, so_far);
    } else if (w->include_usage) {
        buf_puts(out, ",\"usage\":null");
    }
    buf_puts(out, "}\n\n");
}

void openai_timings(struct buf *out, const struct server *s, const lathe_usage *u)
{
    if (s->options.no_timings)
        return;
    int32_t n = u->prompt_tokens - u->cached_tokens;
    buf_printf(out,
               ",\"timings\":{\"prompt_n\":%d,\"cache_n\":%d,\"prompt_ms\":%.3f,\"prompt_per_"
               "second\":%.3f,"
               "\"predicted_n\":%d,\"predicted_ms\":%.3f,\"predicted_per_second\":%.3f,"
               "\"draft_n\":%d,\"draft_n_accepted\":%d}",
               (int)n, (int)u->cached_tokens, u->prefill_ms, rate(n, u->prefill_ms),
               (int)u->completion_tokens, u->decode_ms, rate(u->completion_tokens, u->decode_ms),
               (int)u->spec.drafted, (int)u->spec.accepted);
}

const char *openai_finish(lathe_finish finish)
{
    return finish == LATHE_FINISH_LENGTH || finish == LATHE_FINISH_CONTEXT ? "length"
           : finish == LATHE_FINISH_CALLS                                  ? "tool_calls"
                                                                           : "stop";
}

void openai_stop_reason(struct buf *out, const lathe_event *last, const struct openai_wish *w)
{
    if (last->finish == LATHE_FINISH_STOP_STRING && last->text) {
        json_print_string(out, last->text, last->n_text);
        return;
    }
    for (size_t i = 0; last->finish == LATHE_FINISH_STOP && i < w->n_stop_id; i++)
        if (w->stop_id[i] == last->token.id) {
            buf_printf(out, "%d", (int)last->token.id);
            return;
        }
    buf_puts(out, "null");
}

void openai_keepalive(struct buf *out, void *state)
{
    (void)state;
    buf_puts(out, ": keepalive\n\n");
}

void openai_error(struct buf *out, void *state, const struct failure *f, const lathe_usage *usage)
{
    (void)state;
    (void)usage;
    buf_puts(out, "data: ");
    failure_print(out, f, SHAPE_OPENAI, "");
    buf_puts(out, "\n\ndata: [DONE]\n\n");
}

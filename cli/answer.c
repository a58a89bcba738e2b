#include "answer.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "cli.h"
#include "progress.h"

enum { TEXT_LIMIT = 256 << 20, WAIT_MS = 100 }; /* WAIT_MS: between looks at the Ctrl-C flag */

void answer_init(struct answer *a)
{
    *a = (struct answer){0};
    buf_init(&a->text, TEXT_LIMIT);
    buf_init(&a->reasoning, TEXT_LIMIT);
    buf_init(&a->calls, TEXT_LIMIT);
}

void answer_release(struct answer *a)
{
    buf_release(&a->text);
    buf_release(&a->reasoning);
    buf_release(&a->calls);
}

/* ---- Standard output ----------------------------------------------------------------------- */

static void write_out(struct answer *a, const char *s, size_t n)
{
    cli_write(s, n);
    (void)fflush(stdout);
    if (n)
        a->is_mid_line = s[n - 1] != '\n';
}

static void fresh_line(struct answer *a)
{
    if (a->is_mid_line)
        write_out(a, "\n", 1);
}

static void set_dim(struct answer *a, bool dim)
{
    if (a->is_dim == dim || !cli_has_colour())
        return;
    a->is_dim = dim;
    (void)fputs(dim ? "\033[2m" : "\033[0m", stdout);
}

/* ---- Reasoning ----------------------------------------------------------------------------- */

static void show_reasoning(struct answer *a, const char *s, size_t n)
{
    if (stdout_is_terminal()) {
        set_dim(a, true);
        write_out(a, s, n);
    } else if (a->logprobs != stderr) { /* there the tokens' own lines hold it */
        (void)fwrite(s, 1, n, stderr);
        if (n)
            a->is_mid_line_of_stderr = s[n - 1] != '\n';
    }
}

static void end_reasoning(struct answer *a)
{
    if (stdout_is_terminal() && a->reasoning.len) {
        set_dim(a, false);
        fresh_line(a);
        write_out(a, "\n", 1);
    }
    if (a->is_mid_line_of_stderr)
        (void)fputc('\n', stderr);
    a->is_mid_line_of_stderr = false;
}

/* ---- Tool calls: a JSON line each, {"name": ..., "arguments": {...}} ------------------------- */

static void begin_call(struct answer *a, const lathe_event *ev)
{
    struct buf line;
    size_t n = strlen(ev->name);
    buf_init(&line, TEXT_LIMIT);
    buf_puts(&line, "{\"name\": ");
    json_print_string(&line, ev->name, n);
    buf_puts(&line, ", \"arguments\": ");
    fresh_line(a);
    write_out(a, buf_str(&line), line.len);
    buf_release(&line);

    buf_puts(&a->calls, a->calls.len ? ", {\"id\": " : "{\"id\": ");
    json_print_string(&a->calls, ev->call_id, strlen(ev->call_id));
    buf_puts(&a->calls, ", \"type\": \"function\", \"function\": {\"name\": ");
    json_print_string(&a->calls, ev->name, n);
    buf_puts(&a->calls, ", \"arguments\": ");
}

/* ---- Log-probabilities --------------------------------------------------------------------- */

static void print_logprob(struct buf *b, float x)
{
    json_print_real(b, x > -9999 ? (double)x : -9999.0); /* JSON has no infinity */
}

/* "id": 5, "text": " a", "logprob": -0.5; bytes that are no whole characters are U+FFFD in "text",
 * and then "bytes" has them. */
static void print_token(struct buf *b, const lathe_text *text, int32_t id, float logprob)
{
    size_t n = 0;
    const char *s = lathe_token_bytes(text, id, &n);
    buf_printf(b, "\"id\": %d, \"text\": \"", (int)id);
    bool is_whole = true;
    for (size_t i = 0; s && i < n;) {
        size_t good = utf8_valid_prefix(s + i, n - i);
        json_escape(b, s + i, good);
        i += good;
        if (i < n) {
            is_whole = false;
            buf_puts(b, "\xEF\xBF\xBD");
            i += utf8_maximal_subpart(s + i, n - i);
        }
    }
    buf_putc(b, '"');
    for (size_t i = 0; s && !is_whole && i < n; i++)
        buf_printf(b, "%s%d", i ? ", " : ", \"bytes\": [", (unsigned char)s[i]);
    buf_puts(b, is_whole ? ", \"logprob\": " : "], \"logprob\": ");
    print_logprob(b, logprob);
}

static void show_token(struct answer *a, const lathe_text *text, const lathe_token_info *t)
{
    struct buf line;
    buf_init(&line, 1 << 20);
    buf_printf(&line, "{\"position\": %d, ", (int)t->position);
    print_token(&line, text, t->id, t->logprob);
    buf_puts(&line, ", \"top\": [");
    for (int32_t i = 0; i < t->n_top; i++) {
        buf_puts(&line, i ? ", {" : "{");
        print_token(&line, text, t->top[i].id, t->top[i].logprob);
        buf_putc(&line, '}');
    }
    buf_puts(&line, "]}\n");
    (void)fputs(buf_str(&line), a->logprobs);
    buf_release(&line);
}

/* ---- Events -------------------------------------------------------------------------------- */

static void handle(struct answer *a, lathe_engine *engine, const lathe_event *ev,
                   struct progress *bar)
{
    if (ev->type == LATHE_EVENT_PROGRESS) {
        (void)progress_update(bar, "reading", (uint64_t)ev->done, (uint64_t)ev->total);
        return;
    }
    if (ev->type != LATHE_EVENT_NONE && ev->type != LATHE_EVENT_ACCEPTED)
        progress_end(bar);
    switch (ev->type) {
    case LATHE_EVENT_TOKEN:
        if (a->logprobs)
            show_token(a, lathe_engine_text(engine), &ev->token);
        break;
    case LATHE_EVENT_REASONING:
        show_reasoning(a, ev->text, ev->n_text);
        buf_append(&a->reasoning, ev->text, ev->n_text);
        break;
    case LATHE_EVENT_REASONING_END:
        end_reasoning(a);
        break;
    case LATHE_EVENT_TEXT:
        write_out(a, ev->text, ev->n_text);
        buf_append(&a->text, ev->text, ev->n_text);
        break;
    case LATHE_EVENT_CALL_BEGIN:
        begin_call(a, ev);
        break;
    case LATHE_EVENT_CALL_ARGS:
        write_out(a, ev->text, ev->n_text);
        buf_append(&a->calls, ev->text, ev->n_text);
        break;
    case LATHE_EVENT_CALL_END:
        write_out(a, "}\n", 2);
        buf_puts(&a->calls, "}}");
        break;
    case LATHE_EVENT_FINISH:
        a->finish = ev->finish;
        a->usage = ev->usage;
        break;
    case LATHE_EVENT_NONE:
    case LATHE_EVENT_ACCEPTED:
    case LATHE_EVENT_PROGRESS:
        break;
    }
}

lathe_status answer_run(struct answer *a, lathe_engine *engine, const lathe_request_options *o,
                        lathe_error *err)
{
    lathe_request *request;
    lathe_status st = lathe_request_submit(engine, o, &request, err);
    if (st)
        return st;
    struct progress bar;
    lathe_event ev;
    progress_begin(&bar);
    interrupt_arm(a->second_interrupt_ends);
    do {
        lathe_request_next(request, WAIT_MS, &ev);
        handle(a, engine, &ev, &bar);
        if (interrupt_pending() && !a->is_interrupted) {
            a->is_interrupted = true;
            lathe_request_cancel(request);
        }
        if (ferror(stdout)) /* nobody reads the answer any more */
            lathe_request_cancel(request);
    } while (ev.type != LATHE_EVENT_FINISH);
    interrupt_disarm();
    progress_end(&bar);
    set_dim(a, false);
    fresh_line(a);
    if (a->is_mid_line_of_stderr)
        (void)fputc('\n', stderr);
    a->is_mid_line_of_stderr = false;
    if (ev.finish == LATHE_FINISH_ERROR) {
        st = ev.error.status ? ev.error.status : LATHE_E_NUMERIC;
        if (err)
            *err = ev.error;
    }
    lathe_request_close(request);
    return st;
}

bool render_fails_so(const lathe_text *text, const lathe_conversation *c, const lathe_error *err)
{
    lathe_prompt prompt;
    lathe_error e;
    bool fails = lathe_render(text, c, &prompt, &e) && strcmp(e.message, err->message) == 0;
    lathe_prompt_release(&prompt);
    return fails;
}

int answer_fail(const lathe_text *text, const lathe_conversation *c, const lathe_error *err)
{
    bool is_input = c && err->status == LATHE_E_ARGUMENT && render_fails_so(text, c, err);
    return is_input ? cli_fail_input(err) : cli_fail(err);
}

/* ---- Statistics ---------------------------------------------------------------------------- */

static double rate(double n, double ms)
{
    return ms > 0 && n > 0 ? n * 1e3 / ms : 0;
}

/* The first token comes from the prompt's own logits, the others from rounds of one token and the
 * drafts that were accepted with it. */
static int32_t tokens_of_rounds(const lathe_usage *u)
{
    return u->completion_tokens > 0 ? u->completion_tokens - 1 : 0;
}

static void print_counts(FILE *out, const char *name, const int32_t *count, int32_t n)
{
    fprintf(out, ", \"%s\": [", name);
    for (int32_t i = 0; i < n; i++)
        fprintf(out, "%s%d", i ? ", " : "", (int)count[i]);
    fputc(']', out);
}

/* Positions that were drafted at in any round. */
static int32_t deepest(const lathe_spec_stats *s)
{
    int32_t n = 0;
    while (n < LATHE_MAX_DRAFT && s->drafted_at[n] > 0)
        n++;
    return n;
}

void answer_stats_json(const struct answer *a, double load_ms, uint64_t room, uint64_t total,
                       FILE *out)
{
    const lathe_usage *u = &a->usage;
    const lathe_spec_stats *s = &u->spec;
    int32_t computed = u->prompt_tokens - u->cached_tokens, decoded = tokens_of_rounds(u);
    int32_t depth = deepest(s);
    fprintf(out,
            "{\"prompt_tokens\": %d, \"cached_tokens\": %d, \"load_ms\": %.1f, \"queue_ms\": %.1f, "
            "\"prefill_ms\": %.1f, \"prefill_per_s\": %.1f, \"decode_tokens\": %d, "
            "\"reasoning_tokens\": %d, \"decode_ms\": %.1f, \"decode_per_s\": %.1f, "
            "\"rounds\": %d, \"tokens_per_round\": %.3f, \"drafted\": %d, \"accepted\": %d",
            (int)u->prompt_tokens, (int)u->cached_tokens, load_ms, u->queue_ms, u->prefill_ms,
            rate(computed, u->prefill_ms), (int)u->completion_tokens, (int)u->reasoning_tokens,
            u->decode_ms, rate(decoded, u->decode_ms), (int)s->rounds,
            s->rounds ? (double)decoded / s->rounds : 0.0, (int)s->drafted, (int)s->accepted);
    print_counts(out, "accepted_histogram", s->histogram, depth + 1);
    print_counts(out, "drafted_at", s->drafted_at, depth);
    print_counts(out, "accepted_at", s->accepted_at, depth);
    fprintf(
        out,
        ", \"draft_ms\": %.1f, \"verify_ms\": %.1f, \"commit_ms\": %.1f, \"device_free\": %" PRIu64
        ", \"device_total\": %" PRIu64 ", \"finish\": \"%s\"}\n",
        s->draft_ms, s->verify_ms, s->commit_ms, room, total, lathe_finish_name(a->finish));
}

void answer_stats_text(const struct answer *a, FILE *out)
{
    const lathe_usage *u = &a->usage;
    int32_t computed = u->prompt_tokens - u->cached_tokens, decoded = tokens_of_rounds(u);
    fprintf(out,
            "prompt %d token%s (%d kept from before), %.0f ms, %.0f a second; answer %d token%s, "
            "%.0f ms, %.1f a second",
            (int)u->prompt_tokens, cli_plural(u->prompt_tokens), (int)u->cached_tokens,
            u->prefill_ms, rate(computed, u->prefill_ms), (int)u->completion_tokens,
            cli_plural(u->completion_tokens), u->decode_ms, rate(decoded, u->decode_ms));
    if (u->spec.drafted)
        fprintf(out, ", %.2f tokens a round", (double)decoded / u->spec.rounds);
    fprintf(out, "; ended by %s\n", lathe_finish_name(a->finish));
}

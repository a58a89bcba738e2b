#include "text/parse.h"

#include <stdlib.h>
#include <string.h>

#include "text/parse_state.h"

enum { SLICE = 4096 }; /* bytes that are parsed between two events at most */

/* ---- Life cycle ----------------------------------------------------------------------------- */

lathe_status parser_open(struct parser **out, const struct parse_options *o, lathe_error *err)
{
    *out = NULL;
    struct parser *p = calloc(1, sizeof *p);
    if (!p)
        return fail_memory(err, sizeof *p);
    p->o = *o;
    if (p->o.max_calls <= 0)
        p->o.max_calls = PARSE_MAX_CALLS;
    p->stops_armed = true;
    p->state = o->thinking_open ? S_THINK : S_TEXT;
    p->may_open = p->skips_newlines = p->at_line_start = true;
    p->ended = -1;
    buf_init(&p->hold, PARSE_MAX_HELD);
    buf_init(&p->value, PARSE_MAX_HELD);
    buf_init(&p->word, PARSE_MAX_HELD);
    buf_init(&p->in, SLICE * 3 + 16);
    buf_init(&p->out, (size_t)PARSE_MAX_HELD * 16); /* control characters grow sixfold in JSON */
    lathe_status st = stops_init(&p->stops, o->stop, o->n_stop, err);
    if (!st && o->tools)
        st = toolset_open(&p->tools, o->tools, strlen(o->tools), err);
    if (!st && !toolset_any(p->tools)) {
        toolset_close(p->tools);
        p->tools = NULL;
    }
    if (st) {
        parser_close(p);
        return st;
    }
    *out = p;
    return LATHE_OK;
}

void parser_close(struct parser *p)
{
    if (!p)
        return;
    json_decref(p->seen);
    stops_release(&p->stops);
    toolset_close(p->tools);
    buf_release(&p->hold);
    buf_release(&p->value);
    buf_release(&p->word);
    buf_release(&p->in);
    buf_release(&p->out);
    free(p);
}

int32_t parser_ended(const struct parser *p)
{
    return p->ended;
}

const char *parser_stop_string(const struct parser *p)
{
    return p->stop;
}

bool parser_thinking(const struct parser *p)
{
    return p->state == S_THINK;
}

int32_t parser_repaired(const struct parser *p)
{
    return p->n_repaired;
}

int32_t parser_unparsed(const struct parser *p)
{
    return p->n_unparsed;
}

int32_t parser_calls(const struct parser *p)
{
    return p->n_calls;
}

void parser_arm_stops(struct parser *p, bool is_armed)
{
    p->stops_armed = is_armed;
}

/* ---- Events --------------------------------------------------------------------------------- */

/* p->error is filled. */
void parse_fail(struct parser *p, lathe_status st)
{
    if (!p->status)
        p->status = st;
}

static void check(struct parser *p, const struct buf *b, const char *what)
{
    if ((b->over || b->no_memory) && !p->status)
        parse_fail(p, buf_check(b, what, &p->error));
}

void parse_send(struct parser *p, const struct parse_event *ev)
{
    if (!p->status)
        parse_fail(p, p->o.sink(p->o.sink_ctx, ev, &p->error));
}

void parse_flush(struct parser *p)
{
    check(p, &p->out, "output");
    if (p->out.len)
        parse_send(p, &(struct parse_event){.type = p->out_type,
                                            .text = p->out.data,
                                            .n = p->out.len,
                                            .index = p->n_calls ? p->n_calls - 1 : 0});
    buf_clear(&p->out);
}

struct buf *parse_out(struct parser *p, lathe_event_type type)
{
    if (p->out_type != type)
        parse_flush(p);
    p->out_type = type;
    return &p->out;
}

void parse_emit(struct parser *p, lathe_event_type type, const char *s, size_t n)
{
    buf_append(parse_out(p, type), s, n);
}

void parse_end_turn(struct parser *p, lathe_finish how)
{
    p->ended = (int32_t)how;
    p->state = S_DONE;
}

/* Visible text passes the stop strings. */
static void emit_text(struct parser *p, const char *s, size_t n)
{
    if (n == 0 || p->state == S_DONE)
        return;
    p->at_line_start = s[n - 1] == '\n';
    p->stop = stops_feed(&p->stops, s, n, p->stops_armed, parse_out(p, LATHE_EVENT_TEXT));
    if (p->stop)
        parse_end_turn(p, LATHE_FINISH_STOP_STRING);
}

/* Takes n bytes off the front. */
void parse_drop_held(struct parser *p, size_t n)
{
    size_t left = p->hold.len - n;
    if (left)
        memmove(p->hold.data, p->hold.data + n, left);
    p->hold.len = left;
}

void parse_release_text(struct parser *p, size_t n)
{
    emit_text(p, p->hold.data, n);
    parse_drop_held(p, n);
}

void parse_hold_is_text(struct parser *p)
{
    parse_release_text(p, p->hold.len);
}

/* White space at the end may still be layout. */
void parse_hold_is_text_but_blanks(struct parser *p)
{
    size_t n = p->hold.len;
    while (n && parse_is_blank(p->hold.data[n - 1]))
        n--;
    parse_release_text(p, n);
    if (p->hold.len)
        p->at_line_start = p->hold.data[p->hold.len - 1] == '\n';
}

size_t parse_blanks(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && parse_is_blank(s[i]))
        i++;
    return i;
}

/* ---- Reasoning ------------------------------------------------------------------------------ */

/* Text behind held newlines: they belong to the reasoning, and so does s. */
static void emit_reasoning(struct parser *p, const char *s, size_t n)
{
    static const char newlines[] = "\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n";
    for (int64_t left = p->newlines; left > 0; left -= 16)
        parse_emit(p, LATHE_EVENT_REASONING, newlines, left < 16 ? (size_t)left : 16);
    p->newlines = 0;
    p->may_open = p->skips_newlines = false;
    parse_emit(p, LATHE_EVENT_REASONING, s, n);
}

static void end_reasoning(struct parser *p)
{
    parse_flush(p);
    parse_send(p, &(struct parse_event){.type = LATHE_EVENT_REASONING_END, .text = ""});
    p->state = S_GAP;
}

static size_t think_step(struct parser *p, const char *s, size_t n)
{
    if (p->tag.n == 0 && s[0] != '<') {
        size_t k = 0;
        while (k < n && s[k] != '<' && s[k] != '\n')
            k++;
        if (k) {
            emit_reasoning(p, s, k);
            return k;
        }
        if (!p->skips_newlines)
            p->newlines++;
        return 1;
    }
    switch (tag_feed(&p->tag, TAG_THINK_END | (p->may_open ? TAG_THINK : 0), s[0])) {
    case TAG_MORE:
        buf_putc(&p->hold, s[0]);
        return 1;
    case TAG_THINK:
        buf_clear(&p->hold);
        p->may_open = false;
        return 1;
    case TAG_THINK_END:
        buf_clear(&p->hold);
        end_reasoning(p);
        return 1;
    default:
        emit_reasoning(p, p->hold.data, p->hold.len);
        buf_clear(&p->hold);
        return 0;
    }
}

static size_t gap_step(struct parser *p, const char *s)
{
    if (s[0] == '\n')
        return 1;
    p->state = S_TEXT;
    return 0;
}

/* ---- Text ----------------------------------------------------------------------------------- */

/* hold: white space that is layout if a call follows, then the beginning of a tag. */
static size_t text_step(struct parser *p, const char *s, size_t n)
{
    if (!p->tools) {
        emit_text(p, s, n);
        return n;
    }
    if (p->tag.n == 0 && s[0] != '<') {
        size_t k = parse_blanks(s, n);
        if (k) {
            buf_append(&p->hold, s, k);
            p->at_line_start = s[k - 1] == '\n';
            return k;
        }
        while (k < n && s[k] != '<' && !parse_is_blank(s[k]))
            k++;
        parse_hold_is_text(p);
        emit_text(p, s, k);
        return k;
    }
    uint32_t wanted = TAG_CALL | (p->at_line_start ? TAG_FUNCTION | TAG_FUNCTION_NAME : 0);
    enum tag tag = tag_feed(&p->tag, wanted, s[0]);
    if (tag == TAG_NO) {
        parse_hold_is_text(p);
        return 0;
    }
    buf_putc(&p->hold, s[0]);
    if (tag == TAG_CALL) {
        p->state = S_OPEN;
        p->blank_at = p->hold.len;
    } else if (tag != TAG_MORE) {
        p->state = S_NAME;
        p->is_named = tag == TAG_FUNCTION_NAME;
        buf_clear(&p->word);
    }
    p->in_block = tag == TAG_CALL;
    return 1;
}

/* ---- Feeding -------------------------------------------------------------------------------- */

static size_t step(struct parser *p, const char *s, size_t n)
{
    switch (p->state) {
    case S_THINK:
        return think_step(p, s, n);
    case S_GAP:
        return gap_step(p, s);
    case S_TEXT:
        return text_step(p, s, n);
    case S_OPEN:
        return parse_open_step(p, s, n);
    case S_JSON:
        return parse_json_step(p, s, n);
    case S_NAME:
        return parse_name_step(p, s, n);
    case S_BODY:
        return parse_body_step(p, s, n);
    case S_KEY:
        return parse_key_step(p, s, n);
    case S_VALUE:
        return parse_value_step(p, s, n);
    case S_AFTER:
        return parse_after_step(p, s, n);
    case S_DONE:
        break;
    }
    return n;
}

/* After every step, before a buffer is emptied and forgets its failure. */
static void check_buffers(struct parser *p)
{
    check(p, &p->in, "output");
    check(p, &p->out, "output");
    check(p, &p->hold, "output that may be markup");
    check(p, &p->word, "a parameter's name");
    check(p, &p->value, "a parameter's value");
}

/* Parses p->in. */
static void run(struct parser *p)
{
    size_t i = 0;
    check_buffers(p);
    while (i < p->in.len && !p->status && p->state != S_DONE) {
        i += step(p, p->in.data + i, p->in.len - i);
        check_buffers(p);
    }
    buf_clear(&p->in);
}

static lathe_status report(const struct parser *p, lathe_error *err)
{
    if (p->status && err)
        *err = p->error;
    return p->status;
}

lathe_status parser_feed(struct parser *p, const char *bytes, size_t n, lathe_error *err)
{
    while (n && !p->status && p->state != S_DONE) {
        size_t k = n < SLICE ? n : SLICE;
        stream_feed(&p->stream, bytes, k, &p->in);
        run(p);
        parse_flush(p);
        bytes += k;
        n -= k;
    }
    return report(p, err);
}

lathe_status parser_finish(struct parser *p, lathe_finish why, lathe_finish *finish,
                           lathe_error *err)
{
    stream_finish(&p->stream, &p->in);
    run(p);
    switch (p->state) {
    case S_THINK:
        if (p->hold.len)
            emit_reasoning(p, p->hold.data, p->hold.len);
        end_reasoning(p);
        break;
    case S_TEXT:
        parse_hold_is_text(p);
        break;
    case S_GAP:
    case S_DONE:
        break;
    default:
        parse_call_finish(p, why == LATHE_FINISH_STOP);
    }
    if (p->n_calls == 0 && !p->stop)
        stops_flush(&p->stops, parse_out(p, LATHE_EVENT_TEXT));
    check_buffers(p);
    parse_flush(p);
    p->state = S_DONE;
    if (p->ended >= 0)
        *finish = (lathe_finish)p->ended;
    else
        *finish = why == LATHE_FINISH_STOP && p->n_calls ? LATHE_FINISH_CALLS : why;
    return report(p, err);
}

#include <openssl/rand.h>
#include <string.h>

#include "text/parse_state.h"

enum { MAX_PARAMETERS = 65536 }; /* of one call: a full context holds fewer */

/* ---- The call's events ---------------------------------------------------------------------- */

static bool random_id(char id[CALL_ID_SIZE])
{
    static const char digit[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    size_t n = 5;
    memcpy(id, "call_", n);
    while (n < CALL_ID_SIZE - 1) {
        unsigned char r[32];
        if (RAND_bytes(r, sizeof r) != 1)
            return false;
        for (size_t i = 0; i < sizeof r && n < CALL_ID_SIZE - 1; i++)
            if (r[i] < 62 * 4) /* more would favour the first digits */
                id[n++] = digit[r[i] % 62];
    }
    id[n] = 0;
    return true;
}

static void trim(const char **s, size_t *n)
{
    while (*n && (parse_is_blank(**s) || **s == '"' || **s == '\''))
        (*s)++, (*n)--;
    while (*n && (parse_is_blank((*s)[*n - 1]) || (*s)[*n - 1] == '"' || (*s)[*n - 1] == '\''))
        (*n)--;
}

/* Announces a call, unless the name can be none. */
static bool begin_call(struct parser *p, const char *s, size_t n)
{
    char name[TOOL_MAX_NAME + 1], id[CALL_ID_SIZE];
    trim(&s, &n);
    if (n == 0 || n > TOOL_MAX_NAME || memchr(s, 0, n))
        return false;
    p->tool = toolset_find(p->tools, s, n);
    if (!p->tool && !p->in_block)
        return false;
    memcpy(name, s, n);
    name[n] = 0;
    if (p->n_calls == 0)
        stops_flush(&p->stops, parse_out(p, LATHE_EVENT_TEXT));
    parse_flush(p);
    buf_clear(&p->hold);
    json_decref(p->seen);
    p->seen = json_object();
    if (!p->seen)
        parse_fail(p, fail_memory(&p->error, 0));
    p->n_parameters = 0;
    if (p->o.make_id)
        p->o.make_id(p->o.make_id_ctx, id);
    else if (!random_id(id))
        parse_fail(p, fail(&p->error, LATHE_E_IO, "no random numbers for a call's id"));
    parse_send(p, &(struct parse_event){.type = LATHE_EVENT_CALL_BEGIN,
                                        .text = "",
                                        .index = p->n_calls,
                                        .call_id = id,
                                        .name = p->tool ? p->tool : name});
    p->n_calls++;
    return true;
}

static void end_call(struct parser *p)
{
    parse_flush(p);
    parse_send(p, &(struct parse_event){
                      .type = LATHE_EVENT_CALL_END, .text = "", .index = p->n_calls - 1});
    p->state = S_AFTER;
    if (p->n_calls >= p->o.max_calls)
        parse_end_turn(p, LATHE_FINISH_CALLS);
}

static void close_arguments(struct parser *p)
{
    buf_puts(parse_out(p, LATHE_EVENT_CALL_ARGS), p->n_parameters ? "}" : "{}");
    end_call(p);
}

/* What began like a call is none: text, or behind a call the end of the turn. */
static void not_a_call(struct parser *p)
{
    p->n_unparsed += p->in_block;
    if (p->n_calls) {
        buf_clear(&p->hold);
        parse_end_turn(p, LATHE_FINISH_CALLS);
    } else {
        p->state = S_TEXT;
        parse_hold_is_text_but_blanks(p);
    }
}

static void start_name(struct parser *p, enum tag tag)
{
    p->state = S_NAME;
    p->is_named = tag == TAG_FUNCTION_NAME;
    buf_clear(&p->word);
}

/* A tag that ends a call or follows it. */
static void after_tag(struct parser *p, enum tag tag)
{
    if (p->state == S_DONE)
        return;
    switch (tag) {
    case TAG_CALL_END:
        p->in_block = false;
        break;
    case TAG_CALL:
        p->in_block = true;
        p->state = S_OPEN;
        p->blank_at = 0;
        break;
    case TAG_FUNCTION:
    case TAG_FUNCTION_NAME:
        start_name(p, tag);
        break;
    default:
        break;
    }
}

/* ---- Up to the name ------------------------------------------------------------------------- */

/* hold: text before, white space, <tool_call> [blank_at] white space, the beginning of a tag. */
size_t parse_open_step(struct parser *p, const char *s, size_t n)
{
    if (p->tag.n == 0 && s[0] != '<') {
        size_t k = parse_blanks(s, n);
        buf_append(&p->hold, s, k);
        if (k)
            return k;
        if (s[0] == '{') {
            p->state = S_JSON;
            p->json_at = p->hold.len;
            p->json_depth = 0;
            p->json_in_string = p->json_escaped = false;
            p->json_last = 0;
        } else {
            not_a_call(p);
        }
        return 0;
    }
    enum tag tag = tag_feed(&p->tag, TAG_FUNCTION | TAG_FUNCTION_NAME | TAG_CALL, s[0]);
    if (tag == TAG_NO) {
        not_a_call(p);
        return 0;
    }
    buf_putc(&p->hold, s[0]);
    if (tag == TAG_CALL && p->n_calls) {
        not_a_call(p);
    } else if (tag == TAG_CALL) { /* the first one is text, the white space behind it layout */
        p->n_unparsed++;
        parse_release_text(p, p->blank_at);
        p->blank_at = p->hold.len;
    } else if (tag != TAG_MORE) {
        start_name(p, tag);
    }
    return 1;
}

/* {"name": ..., "arguments": {...}} in hold; arguments may be missing. */
static bool json_call(struct parser *p)
{
    struct json_doc d;
    lathe_error err;
    lathe_status st = json_read(&d, p->hold.data + p->json_at, p->hold.len - p->json_at,
                                &json_limits_value, &err);
    if (st == LATHE_E_MEMORY) {
        p->error = err;
        parse_fail(p, st);
    }
    size_t n = 0;
    const json_t *value = json_object_get(d.root, "name");
    const json_t *arguments = json_object_get(d.root, "arguments");
    const char *name = value ? json_text(&d, value, &n) : NULL;
    bool ok = name && (!arguments || json_is_object(arguments)) && begin_call(p, name, n);
    if (ok) {
        if (arguments)
            json_print(parse_out(p, LATHE_EVENT_CALL_ARGS), &d, arguments);
        else
            buf_puts(parse_out(p, LATHE_EVENT_CALL_ARGS), "{}");
        end_call(p);
    }
    json_release(&d);
    return ok;
}

/* Whether c may stand here; finds the object's end, and of what is no JSON most. */
static bool json_byte(struct parser *p, char c)
{
    if (p->json_in_string) {
        if (p->json_escaped)
            p->json_escaped = false;
        else if (c == '\\')
            p->json_escaped = true;
        else if (c == '"')
            p->json_in_string = false;
        return (unsigned char)c >= 0x20;
    }
    if (parse_is_blank(c))
        return true;
    bool ok = c && strchr("{}[]:,\"-+.0123456789eEtrufalsn", c);
    if (p->json_last == '{')
        ok = c == '"' || c == '}';
    p->json_last = c;
    p->json_in_string = c == '"';
    p->json_depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    return ok;
}

size_t parse_json_step(struct parser *p, const char *s, size_t n)
{
    size_t k = 0;
    bool ok = true;
    while (k < n && ok) {
        ok = json_byte(p, s[k]);
        k += ok;
        if (p->json_depth == 0)
            break;
    }
    buf_append(&p->hold, s, k);
    if (!ok || (p->json_depth == 0 && !json_call(p)))
        not_a_call(p);
    return k;
}

size_t parse_name_step(struct parser *p, const char *s, size_t n)
{
    for (size_t k = 0; k < n; k++) {
        bool ends_line = s[k] == '\n' && !p->in_block;
        if (s[k] == '<' || ends_line || (s[k] != '>' && p->word.len >= TOOL_MAX_NAME)) {
            not_a_call(p);
            return k;
        }
        buf_putc(&p->hold, s[k]);
        if (s[k] == '>') {
            p->state = S_BODY;
            if (!begin_call(p, buf_str(&p->word), p->word.len))
                not_a_call(p);
            return k + 1;
        }
        buf_putc(&p->word, s[k]);
    }
    return n;
}

/* ---- Parameters ----------------------------------------------------------------------------- */

static void start_key(struct parser *p, enum tag tag)
{
    p->state = S_KEY;
    p->is_named = tag == TAG_PARAMETER_NAME;
    buf_clear(&p->word);
}

/* Between parameters no data is expected: anything but a tag is passed over. A call whose
 * </function> is missing ends where the next tag says so. */
size_t parse_body_step(struct parser *p, const char *s, size_t n)
{
    if (p->tag.n == 0 && s[0] != '<') {
        const char *next = memchr(s, '<', n);
        return next ? (size_t)(next - s) : n;
    }
    enum tag tag = tag_feed(&p->tag,
                            TAG_PARAMETER | TAG_PARAMETER_NAME | TAG_FUNCTION_END | TAG_CALL_END |
                                TAG_FUNCTION | TAG_FUNCTION_NAME | TAG_CALL,
                            s[0]);
    switch (tag) {
    case TAG_NO:
        return 0;
    case TAG_MORE:
        return 1;
    case TAG_PARAMETER:
    case TAG_PARAMETER_NAME:
        start_key(p, tag);
        return 1;
    default:
        close_arguments(p);
        after_tag(p, tag);
        return 1;
    }
}

static const json_t *schema_of(const struct parser *p, const char *key, size_t n)
{
    return p->tool ? toolset_parameter(p->tools, p->tool, key, n) : NULL;
}

/* Is the key new in this call? The first of equal keys counts: what was sent stays. */
static bool is_new_key(struct parser *p, const char *key, size_t n)
{
    if (json_object_getn(p->seen, key, n))
        return false;
    if (p->n_parameters >= MAX_PARAMETERS)
        parse_fail(p, fail(&p->error, LATHE_E_LIMIT, "a call with more than %d parameters",
                           MAX_PARAMETERS));
    else if (json_object_setn_new_nocheck(p->seen, key, n, json_true()) != 0)
        parse_fail(p, fail_memory(&p->error, n));
    return true;
}

static void begin_value(struct parser *p)
{
    const char *key = buf_str(&p->word), *trimmed = key;
    size_t n = p->word.len, n_trimmed = n;
    const json_t *schema = schema_of(p, key, n);
    /* A key is what it is, blanks and quotes included, unless only without them it is declared. */
    trim(&trimmed, &n_trimmed);
    if (p->is_named || (!schema && schema_of(p, trimmed, n_trimmed))) {
        key = trimmed;
        n = n_trimmed;
        schema = schema_of(p, key, n);
    }
    p->state = S_VALUE;
    p->part = V_START;
    buf_clear(&p->value);
    p->n_lead = 0;
    if (!is_new_key(p, key, n)) {
        p->mode = MODE_DROP;
        return;
    }
    struct buf *out = parse_out(p, LATHE_EVENT_CALL_ARGS);
    buf_puts(out, p->n_parameters++ ? ", " : "{");
    json_print_string(out, key, n);
    buf_puts(out, ": ");
    p->parameter = parameter_of(p->tools, p->tool, schema);
    p->mode = value_is_string(&p->parameter, "", 0) ? MODE_STREAM : MODE_WAIT;
    if (p->mode == MODE_STREAM)
        buf_putc(out, '"');
}

size_t parse_key_step(struct parser *p, const char *s, size_t n)
{
    const char *end = memchr(s, '>', n);
    size_t k = end ? (size_t)(end - s) : n;
    for (size_t i = 0; i < k; i++)
        if (s[i])
            buf_putc(&p->word, s[i]);
        else /* no JSON reader takes U+0000 in a key */
            buf_puts(&p->word, "\xEF\xBF\xBD");
    if (!end || p->word.over || p->word.no_memory)
        return n;
    begin_value(p);
    return k + 1;
}

/* ---- Values --------------------------------------------------------------------------------- */

static void data(struct parser *p, const char *s, size_t n)
{
    if (n == 0 || p->mode == MODE_DROP)
        return;
    if (p->mode == MODE_STREAM) {
        json_escape(parse_out(p, LATHE_EVENT_CALL_ARGS), s, n);
        return;
    }
    size_t blanks = parse_blanks(s, n);
    if (p->n_lead == p->value.len)
        p->n_lead += blanks;
    buf_append(&p->value, s, n);
    if (blanks == n || p->value.over || p->value.no_memory ||
        !value_is_string(&p->parameter, p->value.data + p->n_lead, p->value.len - p->n_lead))
        return;
    struct buf *out = parse_out(p, LATHE_EVENT_CALL_ARGS);
    buf_putc(out, '"');
    json_escape(out, p->value.data, p->value.len);
    buf_clear(&p->value);
    p->mode = MODE_STREAM;
}

static void hold_is_data(struct parser *p, size_t n)
{
    data(p, p->hold.data, n);
    parse_drop_held(p, n);
}

/* The held bytes are data, except for a newline at their end, which may be layout. */
static void hold_is_data_but_newline(struct parser *p)
{
    size_t n = p->hold.len;
    hold_is_data(p, n - (n && p->hold.data[n - 1] == '\n'));
}

static void end_value(struct parser *p)
{
    struct buf *out = parse_out(p, LATHE_EVENT_CALL_ARGS);
    if (p->mode == MODE_STREAM)
        buf_putc(out, '"');
    else if (p->mode == MODE_WAIT && !p->status)
        parse_fail(p, value_print(out, &p->parameter, buf_str(&p->value), p->value.len, &p->error));
    buf_clear(&p->value);
    buf_clear(&p->hold);
}

static size_t data_step(struct parser *p, const char *s, size_t n)
{
    if (p->tag.n == 0 && s[0] == '\n') {
        hold_is_data(p, p->hold.len);
        buf_putc(&p->hold, '\n');
        return 1;
    }
    if (p->tag.n == 0 && s[0] != '<') {
        size_t k = 0;
        while (k < n && s[k] != '<' && s[k] != '\n')
            k++;
        hold_is_data(p, p->hold.len);
        data(p, s, k);
        return k;
    }
    switch (tag_feed(&p->tag, TAG_PARAMETER_END, s[0])) {
    case TAG_PARAMETER_END:
        p->part = V_CLOSED;
        buf_putc(&p->hold, s[0]);
        return 1;
    case TAG_MORE:
        buf_putc(&p->hold, s[0]);
        return 1;
    default:
        hold_is_data(p, p->hold.len);
        return 0;
    }
}

static size_t closed_step(struct parser *p, const char *s, size_t n)
{
    if (p->tag.n == 0 && s[0] != '<') {
        size_t k = parse_blanks(s, n);
        buf_append(&p->hold, s, k);
        if (k == 0) {
            hold_is_data(p, p->hold.len);
            p->part = V_DATA;
        }
        return k;
    }
    size_t partial = (size_t)p->tag.n;
    enum tag tag = tag_feed(&p->tag,
                            TAG_PARAMETER | TAG_PARAMETER_NAME | TAG_FUNCTION_END |
                                TAG_PARAMETER_END | TAG_CALL_END,
                            s[0]);
    switch (tag) {
    case TAG_NO:
        hold_is_data(p, p->hold.len);
        p->part = V_DATA;
        return 0;
    case TAG_PARAMETER:
    case TAG_PARAMETER_NAME:
        end_value(p);
        start_key(p, tag);
        return 1;
    case TAG_FUNCTION_END:
        end_value(p);
        close_arguments(p);
        return 1;
    case TAG_PARAMETER_END: /* the earlier one is data, and so is what stands between the two */
        if (p->hold.len > partial) {
            char tail[16];
            memcpy(tail, p->hold.data + p->hold.len - partial, partial);
            p->hold.len -= partial;
            hold_is_data_but_newline(p);
            buf_append(&p->hold, tail, partial);
        }
        break;
    case TAG_CALL_END:
        p->part = V_TAIL;
        break;
    default:
        break;
    }
    buf_putc(&p->hold, s[0]);
    return 1;
}

static size_t tail_step(struct parser *p, const char *s, size_t n)
{
    size_t k = parse_blanks(s, n);
    buf_append(&p->hold, s, k);
    if (k)
        return k;
    if (s[0] == '<')
        hold_is_data_but_newline(p);
    else
        hold_is_data(p, p->hold.len);
    p->part = V_DATA;
    return 0;
}

size_t parse_value_step(struct parser *p, const char *s, size_t n)
{
    switch (p->part) {
    case V_START:
        p->part = V_DATA;
        return s[0] == '\n';
    case V_DATA:
        return data_step(p, s, n);
    case V_CLOSED:
        return closed_step(p, s, n);
    default:
        return tail_step(p, s, n);
    }
}

/* ---- Behind a call -------------------------------------------------------------------------- */

/* Calls end the turn: other text behind them is not looked at. */
size_t parse_after_step(struct parser *p, const char *s, size_t n)
{
    size_t k = p->tag.n == 0 ? parse_blanks(s, n) : 0;
    if (k)
        return k;
    enum tag tag =
        tag_feed(&p->tag, TAG_CALL | TAG_CALL_END | TAG_FUNCTION | TAG_FUNCTION_NAME, s[0]);
    if (tag == TAG_NO)
        parse_end_turn(p, LATHE_FINISH_CALLS);
    else
        after_tag(p, tag);
    return 1;
}

/* ---- The end of the text -------------------------------------------------------------------- */

void parse_call_finish(struct parser *p, bool completes)
{
    if (p->state == S_OPEN || p->state == S_JSON || p->state == S_NAME)
        p->n_unparsed += p->in_block;
    if (p->state == S_NAME && !p->in_block && p->n_calls == 0)
        parse_hold_is_text(p);
    if (!completes || (p->state != S_BODY && p->state != S_KEY && p->state != S_VALUE))
        return;
    if (p->state == S_VALUE) {
        if (p->part == V_DATA && p->hold.len && p->hold.data[p->hold.len - 1] != '\n')
            hold_is_data(p, p->hold.len);
        end_value(p);
    }
    p->n_repaired++;
    close_arguments(p);
}

/* Inside the output parser: parse.c has its life cycle, reasoning and text, parse_call.c the markup of
 * calls. A step function looks at s[0..n), n > 0, and returns how many bytes it took; it takes none
 * only if it changed the state, dropped a match or emptied `hold`. */
#ifndef LATHE_TEXT_PARSE_STATE_H
#define LATHE_TEXT_PARSE_STATE_H

#include "text/parse.h"
#include "text/stop.h"
#include "text/stream.h"
#include "text/tag.h"
#include "text/tools.h"
#include "text/values.h"

enum parse_state {
    S_THINK, /* reasoning */
    S_GAP,   /* newlines behind </think> */
    S_TEXT,
    S_OPEN, /* behind <tool_call> */
    S_JSON, /* in a JSON object behind it */
    S_NAME, /* behind <function= */
    S_BODY, /* between parameters */
    S_KEY,  /* behind <parameter= */
    S_VALUE,
    S_AFTER, /* behind </function> */
    S_DONE,
};

enum value_part {
    V_START,  /* a newline here is layout */
    V_DATA,   /* hold: a newline, the beginning of </parameter> */
    V_CLOSED, /* hold: newline? </parameter> ws, the beginning of what must follow */
    V_TAIL,   /* hold: the same with </tool_call> ws: the value's end only if the text ends here */
};

enum value_mode {
    MODE_STREAM, /* a string, sent as it comes */
    MODE_WAIT,   /* the complete text decides */
    MODE_DROP,   /* the key came before */
};

struct parser {
    struct parse_options o; /* its pointers to strings are not used after parser_open */
    struct toolset *tools;  /* NULL: markup is text */
    struct stops stops;
    bool stops_armed;

    enum parse_state state;
    struct tag_match tag;
    struct buf hold; /* undecided bytes: sent if they turn out to be text, data or reasoning */
    struct stream stream;
    struct buf in;  /* whole characters of the piece at hand */
    struct buf out; /* of the event at hand */
    lathe_event_type out_type;
    int32_t ended; /* parser_ended */
    const char *stop;
    lathe_status status; /* the first failure */
    lathe_error error;

    /* S_THINK */
    bool may_open;       /* no visible character yet: <think> is swallowed */
    bool skips_newlines; /* no reasoning yet */
    int64_t newlines;    /* held back behind reasoning */
    /* S_TEXT */
    bool at_line_start;

    /* Calls */
    int32_t n_calls, n_repaired, n_unparsed;
    bool in_block;    /* a <tool_call> is open */
    bool is_named;    /* NAME or KEY came in the form name="x" */
    size_t blank_at;  /* S_OPEN: where in hold the white space behind <tool_call> begins */
    struct buf word;  /* NAME or KEY so far */
    const char *tool; /* the declared name; NULL: undeclared */
    json_t *seen;     /* the keys of this call, escaped */
    int32_t n_parameters;
    struct parameter parameter;
    enum value_part part;
    enum value_mode mode;
    struct buf value; /* MODE_WAIT */
    size_t n_lead;    /* its leading blanks */
    /* S_JSON */
    size_t json_at; /* where in hold the object begins */
    int32_t json_depth;
    char json_last; /* the last byte that was no blank */
    bool json_in_string, json_escaped;
};

static inline bool parse_is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* The end of the leading blanks of s[0..n). */
size_t parse_blanks(const char *s, size_t n);
void parse_fail(struct parser *p, lathe_status st);
/* Joins text to the event at hand if it is of this type, else sends that one first. */
struct buf *parse_out(struct parser *p, lathe_event_type type);
void parse_emit(struct parser *p, lathe_event_type type, const char *s, size_t n);
/* Sends the event at hand. */
void parse_flush(struct parser *p);
void parse_send(struct parser *p, const struct parse_event *ev);
/* Takes n bytes off the front of hold. */
void parse_drop_held(struct parser *p, size_t n);
/* The first n held bytes are text; all of them; all but the white space at their end. */
void parse_release_text(struct parser *p, size_t n);
void parse_hold_is_text(struct parser *p);
void parse_hold_is_text_but_blanks(struct parser *p);
void parse_end_turn(struct parser *p, lathe_finish how);

size_t parse_open_step(struct parser *p, const char *s, size_t n);
size_t parse_json_step(struct parser *p, const char *s, size_t n);
size_t parse_name_step(struct parser *p, const char *s, size_t n);
size_t parse_body_step(struct parser *p, const char *s, size_t n);
size_t parse_key_step(struct parser *p, const char *s, size_t n);
size_t parse_value_step(struct parser *p, const char *s, size_t n);
size_t parse_after_step(struct parser *p, const char *s, size_t n);
/* The text ends in one of these states; `completes`: by an end token. */
void parse_call_finish(struct parser *p, bool completes);

#endif

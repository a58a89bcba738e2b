/* The output parser: sampled text in, reasoning, text and tool calls out, in this order.
 *
 *     output = reasoning "</think>" answer         where the prompt left a think block open
 *     answer = text? call*                         calls only if the request has tools
 *     call   = "<tool_call>" ws "<function=" NAME ">" ws parameter* "</function>" ws "</tool_call>" ws
 *     parameter = "<parameter=" KEY ">" nl? VALUE nl? "</parameter>" ws
 *
 * A value ends only at a "</parameter>" that is followed, after white space, by "<parameter=" or
 * "</function>"; any other markup in it is data. What can still become markup, layout or a stop
 * string is held back, nothing else is, and nothing is taken back. The events joined are the same for
 * every way of cutting the text, inside characters included.
 *
 * Tolerated beside the grammar: "<function=" of a declared tool at the start of a line without
 * "<tool_call>"; `<function name="x">` and `<parameter name="k">`; a JSON object with name and
 * arguments in a "<tool_call>"; several functions in one; "</function>" or "</tool_call>" missing.
 *
 * Memory: what is held back and the value that waits for its end, each at most PARSE_MAX_HELD. */
#ifndef LATHE_TEXT_PARSE_H
#define LATHE_TEXT_PARSE_H

#include "base/error.h"

enum {
    PARSE_MAX_HELD = 32 << 20,
    PARSE_MAX_CALLS = 64, /* of a turn, where the options do not say */
    CALL_ID_SIZE = 30,    /* "call_", 24 characters of base62, NUL */
};

struct parse_event {
    lathe_event_type type; /* REASONING, REASONING_END, TEXT, CALL_BEGIN, CALL_ARGS, CALL_END */
    const char *text;      /* [n], whole characters, NUL-terminated; "" where there is none */
    size_t n;
    int32_t index;              /* of the call, from 0 */
    const char *call_id, *name; /* CALL_BEGIN */
};
/* Takes one event, whose strings are valid during the call; a failure ends the parse. */
typedef lathe_status (*parse_sink)(void *ctx, const struct parse_event *ev, lathe_error *err);

struct parse_options {
    bool thinking_open;      /* the prompt ends inside a think block */
    const char *tools;       /* JSON array in OpenAI's form; NULL or empty: markup is text */
    const char *const *stop; /* stop strings: in visible text only */
    size_t n_stop;
    int32_t max_calls; /* 0: PARSE_MAX_CALLS; 1 where calls must not be parallel */
    parse_sink sink;
    void *sink_ctx;
    /* Writes a fresh call id; NULL: random ones. */
    void (*make_id)(void *ctx, char id[CALL_ID_SIZE]);
    void *make_id_ctx;
};

struct parser;

/* Copies what *o points to, except the contexts. */
lathe_status parser_open(struct parser **p, const struct parse_options *o, lathe_error *err);
void parser_close(struct parser *p); /* NULL is allowed */

/* The next bytes of the output; a piece is sent as far as it is certain before this returns. Bytes
 * behind the end of the turn are ignored. After a failure every call fails. */
lathe_status parser_feed(struct parser *p, const char *bytes, size_t n, lathe_error *err);

/* Whether the text itself has ended the turn: LATHE_FINISH_STOP_STRING, LATHE_FINISH_CALLS, or -1 as
 * long as more can come. */
int32_t parser_ended(const struct parser *p);
/* The stop string that matched, or NULL. */
const char *parser_stop_string(const struct parser *p);
/* The think block is still open. */
bool parser_thinking(const struct parser *p);
/* Calls that were completed because an end token came inside them. */
int32_t parser_repaired(const struct parser *p);
/* <tool_call> tags that no call came of: what is behind them is text, or left out at the end. */
int32_t parser_unparsed(const struct parser *p);
int32_t parser_calls(const struct parser *p);

/* Matches of stop strings are ignored while disarmed (min_tokens). Armed at the start. */
void parser_arm_stops(struct parser *p, bool is_armed);

/* No more text comes. `why` is LATHE_FINISH_STOP for an end token, or what cut the text off
 * (LENGTH, CONTEXT, CANCELLED); *finish is the turn's, by what it holds. An end token inside a call
 * completes it; any other end leaves it open, without CALL_END and its arguments cut. */
lathe_status parser_finish(struct parser *p, lathe_finish why, lathe_finish *finish,
                           lathe_error *err);

#endif

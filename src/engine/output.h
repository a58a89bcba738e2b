/* From sampled tokens to events: what a token's bytes mean for the reader, and what ends the answer. */
#ifndef LATHE_ENGINE_OUTPUT_H
#define LATHE_ENGINE_OUTPUT_H

#include "engine/events.h"
#include "text/parse.h"
#include "text/text.h"

struct output_options {
    const struct lathe_text *text; /* borrowed */
    struct events *events;         /* borrowed: where events go */
    bool parse;                    /* false: all output is text */
    bool thinking;                 /* the prompt ends inside a think block */
    const char *tools;             /* JSON array or NULL; copied */
    int32_t max_calls;             /* as in parse_options */
    const char *const *stop;       /* [n_stop], copied */
    size_t n_stop;
};

struct output {
    const struct lathe_text *text;
    struct events *events;
    struct parser *parser;
    const int32_t *before; /* [n_before]: what was generated before the token at hand */
    int32_t n_before;
    bool is_separator; /* the token at hand */
    bool ends_by_text; /* a stop string or what stands behind a call may end it */
};

lathe_status output_open(struct output *o, const struct output_options *options, lathe_error *err);
void output_close(struct output *o); /* no-op on a zeroed struct */

bool output_is_thinking(const struct output *o);
/* Publishes what a token makes certain. *ended: LATHE_FINISH_STOP_STRING or LATHE_FINISH_CALLS if the
 * text has ended the turn, else -1. Stop strings count only if `armed`. */
lathe_status output_token(struct output *o, int32_t id, bool armed, int32_t *ended,
                          lathe_error *err);
/* Publishes what was held back. `why` as in parser_finish; returns the finish it comes to. */
lathe_status output_finish(struct output *o, lathe_finish why, lathe_finish *finish,
                           lathe_error *err);
/* The stop string that matched, or NULL. */
const char *output_stop_string(const struct output *o);

#endif

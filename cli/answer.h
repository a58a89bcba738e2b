/* One request from submit to finish: what it says goes to the terminal as it comes, and is kept. */
#ifndef LATHE_CLI_ANSWER_H
#define LATHE_CLI_ANSWER_H

#include <stdbool.h>
#include <stdio.h>

#include "base/buf.h"
#include "lathe/lathe.h"

struct answer {
    FILE *logprobs; /* a JSON line a token; NULL: none */
    bool second_interrupt_ends;

    struct buf text, reasoning; /* what came, whole */
    struct buf calls;           /* tool calls, as a message's tool_calls without brackets */
    lathe_finish finish;
    lathe_usage usage;
    bool is_interrupted;

    bool is_dim, is_mid_line;   /* of standard output */
    bool is_mid_line_of_stderr; /* by reasoning that was sent there */
};

void answer_init(struct answer *a);
void answer_release(struct answer *a);

/* Submits and prints until the end, which leaves standard output at the start of a line. Ctrl-C ends
 * it early: then is_interrupted. An answer that ends in an error returns it. */
lathe_status answer_run(struct answer *a, lathe_engine *engine, const lathe_request_options *o,
                        lathe_error *err);

/* Does rendering this conversation fail with this very message? */
bool render_fails_so(const lathe_text *text, const lathe_conversation *c, const lathe_error *err);
/* Reports a request that failed. Its conversation is from files or standard input, or NULL: an argument that
 * is refused there is not the command line's fault. The exit code. */
int answer_fail(const lathe_text *text, const lathe_conversation *c, const lathe_error *err);

/* One JSON object a line. */
void answer_stats_json(const struct answer *a, double load_ms, uint64_t room, uint64_t total,
                       FILE *out);
/* The same in words. */
void answer_stats_text(const struct answer *a, FILE *out);

#endif

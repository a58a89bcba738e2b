/* The trace: a file with a JSON object a line for every generation that is over, for finding out what a model was shown
 * and what became of what it said. Without texts unless they are asked for. */
#ifndef LATHE_SERVER_TRACE_H
#define LATHE_SERVER_TRACE_H

#include "fields.h"

struct trace;
/* Appends to the file at `path`, which gets mode 0600. Before it would exceed max_bytes it is renamed to "path.1", in the
 * place of what is there. `text`: with texts and the ids of tokens. */
lathe_status trace_open(struct trace **t, const char *path, uint64_t max_bytes, bool text,
                        lathe_error *err);
void trace_close(struct trace *t); /* NULL is allowed */

/* What is collected of a run of n choices. NULL as `run` is allowed below: nothing is done. */
struct trace_run;
struct trace_run *trace_begin(const struct exchange *x, int32_t n_choices);
/* Are events of sampled tokens needed? */
bool trace_wants_tokens(const struct trace_run *run);
/* The body. */
void trace_fields(struct exchange *x, const struct fields *f);
/* A choice that was submitted. */
void trace_prompt(struct trace_run *run, int32_t choice, const lathe_request *request);
/* Any event of it. */
void trace_event(struct trace_run *run, int32_t choice, const lathe_event *ev);
/* Puts all into x->trace and frees the run. */
void trace_end(struct trace_run *run, struct exchange *x);

/* The line of a request that is over, if anything of it was collected. */
void trace_write(struct trace *t, const struct exchange *x, int status, int64_t ms);

#endif

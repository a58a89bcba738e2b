/* A second implementation of lathe.h's engine, for tests of the server: requests replay a script instead of running a
 * model. Its text is a real one. Linked before the library, whose engine is then not taken from the archive.
 *
 * A script is lines, each one event; TEXT is the rest of the line, with \n for a line break, \\ for a backslash, and \s
 * for a blank at the end:
 *
 *     accepted PROMPT CACHED
 *     progress DONE TOTAL
 *     reasoning TEXT        reasoning_end [ID ID ...]
 *     text TEXT
 *     call ID NAME          args TEXT          end
 *     raw TEXT              what the model said, through the parser, which the finish then ends
 *     token ID LOGPROB [ID LOGPROB]...   with alternatives; end_token: the one that ends it; prompt_token: of the prompt
 *     step                  what follows comes in a later step
 *     pause MS              nothing comes for so long
 *     wait                  for the cancel: a request that goes on
 *     finish WORD PROMPT CACHED COMPLETION REASONING [TEXT]
 *                           stop, stop_string (TEXT: which), length, context, calls
 *     error STATUS TEXT     a failure of the request: the number of a lathe_status
 *     refuse STATUS TEXT    the same, at submission */
#ifndef LATHE_TESTS_FAKE_ENGINE_H
#define LATHE_TESTS_FAKE_ENGINE_H

#include "base/error.h"

/* The text of a model directory; `script` is for all requests until the next call. */
lathe_status fake_engine_open(lathe_engine **e, const char *model_dir, lathe_error *err);
void fake_engine_script(lathe_engine *e, const char *script);
/* Asked for the script of every request from here on, on the thread that submits it. */
typedef const char *(*fake_engine_choose)(void *ctx, const lathe_request_options *o);
void fake_engine_ask(lathe_engine *e, fake_engine_choose choose, void *ctx);
/* What lathe_engine_activity tells from now on; slot [FAKE_SLOTS]. */
enum { FAKE_SLOTS = 2 };
void fake_engine_activity(lathe_engine *e, const lathe_activity *a, const lathe_slot_info *slot);
/* Requests so far, those that are over included. */
uint64_t fake_engine_requests(const lathe_engine *e);
/* Requests that are open. */
int fake_engine_open_requests(const lathe_engine *e);
/* Of these, the ones that have shown all events before a wait or a pause. */
int fake_engine_waiting_requests(const lathe_engine *e);
/* What the last one was given; valid until the next. */
const lathe_request_options *fake_engine_last(const lathe_engine *e);

#endif

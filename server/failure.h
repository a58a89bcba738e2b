/* What a client is told when its request cannot be served: a condition of the table in failure.c, which gives the
 * HTTP status and each dialect's words, and one or two sentences. */
#ifndef LATHE_SERVER_FAILURE_H
#define LATHE_SERVER_FAILURE_H

#include "base/buf.h"
#include "base/error.h"

enum condition {
    FINE,
    BAD_JSON,
    BAD_TYPE,
    BAD_VALUE,
    MISSING_FIELD,
    UNSUPPORTED_FIELD,
    UNSUPPORTED_VALUE,
    BAD_IMAGE,
    PROMPT_TOO_LONG,
    PREVIOUS_NOT_FOUND, /* of a response to go on from */
    THREAD_UNSUPPORTED, /* Anthropic's threads: clients then send full histories */
    BAD_KEY,
    HOST_REFUSED,
    ORIGIN_REFUSED,
    NOT_FOUND,
    MODEL_NOT_FOUND,
    BAD_METHOD,
    BODY_TOO_LARGE,
    HEAD_TOO_LARGE,
    BAD_ENCODING,
    SLOT_AT_WORK,
    NOT_BUILT,
    QUEUE_FULL,
    QUEUE_TIMEOUT,
    DEADLINE,
    CLIENT_GONE, /* for the log and the metrics: nobody reads it */
    INTERNAL,
    LOADING,
    DRAINING,
    BUSY,
    N_CONDITIONS,
};

/* Whose shape the error has. */
enum shape { SHAPE_OPENAI, SHAPE_ANTHROPIC };

struct failure {
    enum condition condition;
    char message[1024];
    char param[160];      /* JSON path of the field, "messages[3].content"; "" for none */
    long n_prompt, n_ctx; /* of PROMPT_TOO_LONG */
};

/* Keep the first failure only. Both return false: `return refuse(f, ...)`. */
bool refuse(struct failure *f, enum condition c, const char *fmt, ...) PRINTF_LIKE(3, 4);
bool refuse_field(struct failure *f, enum condition c, const char *param, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
/* What the library said. A message that begins with a path of the conversation, as
 * "messages[1].content: ...", has it in `param` too. */
bool refuse_status(struct failure *f, const lathe_error *err);

int failure_http(enum condition c);
const char *failure_code(enum condition c); /* OpenAI's */
/* Seconds for Retry-After, 0: no such header. */
int failure_retry_after(enum condition c);
/* The JSON body. request_id goes into Anthropic's. */
void failure_print(struct buf *out, const struct failure *f, enum shape shape,
                   const char *request_id);

#endif

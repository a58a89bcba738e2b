/* One request and its reply, between the HTTP layer (http.c) and what answers it. */
#ifndef LATHE_SERVER_EXCHANGE_H
#define LATHE_SERVER_EXCHANGE_H

#include "base/buf.h"
#include "base/watch.h"
#include "failure.h"
#include "guard.h"

struct server;
struct route;

enum { MAX_REQUEST_ID = 128, MAX_LISTED_BYTES = 512, MAX_LISTED_NAMES = 16 };

enum { SESSION_SIZE = 17 };

/* PROMPT: it is made. */
enum run_phase { RUN_PROMPT, RUN_QUEUED, RUN_PREFILL, RUN_DECODE };

/* Of a generation, for the log. */
struct record {
    char session[SESSION_SIZE]; /* hash of the conversation's name, "" without one */
    bool is_background;         /* nobody waits for it */
    int32_t priority;           /* lower first */
    const char *dialect;        /* NULL: nothing was generated */
    char model[128];            /* as the client named it */
    enum run_phase phase;       /* that it was in last */
    int32_t n_calls;            /* tool calls, complete ones */
    bool is_gone;               /* the client went away */
    lathe_finish finish;
    lathe_usage usage;
};

struct exchange {
    struct server *server;
    const struct route *route; /* NULL: there is none */
    enum shape shape;          /* of errors */
    char id[MAX_REQUEST_ID + 1];
    const char *method; /* valid as long as the exchange */
    char *path;         /* decoded, as it came, without the query */
    const char *query;  /* not decoded, "" for none */
    const char *rest;   /* of a prefix route: the path behind it */
    struct owner owner;
    bool
        knows_context_stop; /* an Anthropic client that tells the context's end from max_tokens, by its headers */
    struct buf body;
    /* For long work on a thread of its own: does nobody wait for the reply any more? Then x->failure says why. It asks nobody
     * where there is no connection. */
    struct watch watch;

    /* The reply: with a failure its condition and message, else this. */
    struct failure failure;
    int status;       /* 0: 200 */
    struct buf reply; /* JSON, unless `type` says another media type */
    const char *type;
    bool is_page;  /* shown by a browser, which runs nothing of elsewhere in it */
    char etag[24]; /* of a file of the page, which a browser may keep; "" for everything else */
    char response_id[40]; /* x-response-id, of a response that is going to be stored; "" for none */
    struct buf unknown;   /* x-unknown-fields: names, separated by ", " */
    int n_unknown, n_listed; /* fields; of these in the header */
    struct record record;
    struct buf trace;    /* members of its JSON object in the trace; empty if there is none */
    struct buf warnings; /* x-warnings: sentences, separated by "; " */
    struct buf ignored;  /* x-ignored-tools: types, separated by ", " */
};

/* ---- Replies in pieces: for handlers on a thread of their own ------------------------------- */

/* Sends the head of a 200 now; what stream_write gives follows it, and the handler's return ends it. x->reply does
 * not count from here on, and x->failure for the log alone. x->type is the media type. */
void stream_begin(struct exchange *x);
bool stream_begun(const struct exchange *x);
/* Empties `bytes` into the stream. False if the client is gone or takes nothing: the handler should end. */
bool stream_write(struct exchange *x, struct buf *bytes);
/* The end will be no end: the connection is cut, so that the client does not take what it has for an answer. */
void stream_break(struct exchange *x);

/* A client that has shut its side may still read, which only something written can show. Before the head of a reply that is
 * an interim response, which stream_peer sends now and then to clients of HTTP/1.1; later, and to others, it is for the
 * handler to write something that changes nothing. */
enum peer {
    PEER_THERE,
    PEER_HALF_CLOSED, /* the handler should write something */
    PEER_GONE,        /* closed, reset, or without progress for too long */
};
enum peer stream_peer(struct exchange *x);
/* The server ends what runs. */
bool stream_must_end(const struct exchange *x);

#endif

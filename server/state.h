/* What the server's own files share. */
#ifndef LATHE_SERVER_STATE_H
#define LATHE_SERVER_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "server.h"

/* LEAVING: what distributes requests is told to send no more, and those that still come are served. */
enum phase { PHASE_LOADING, PHASE_READY, PHASE_LEAVING, PHASE_DRAINING };

/* At work and waiting in the routes that render or tokenise. */
enum { POOL_AT_WORK = 2, POOL_WAITING = 32 };

struct http;
struct answers;
struct store;
struct server {
    struct server_options options;
    pthread_mutex_t lock; /* of the keys, and of writing device_error */
    struct keys *keys;
    _Atomic(int) log_level; /* enum log_level */
    struct log *log;
    struct metrics *metrics;
    struct served *served;
    struct trace *trace;     /* NULL: none */
    struct weights *weights; /* set before PHASE_READY; NULL: its thread could not be started */
    struct http *http;
    struct answers *answers;
    struct store *store;      /* of responses */
    _Atomic(int) phase;       /* enum phase */
    lathe_error device_error; /* of the engine's device; written once, before has_failed */
    _Atomic(bool) has_failed; /* the device: nothing can be served any more */
    _Atomic(int) progress;    /* of loading, 0..1000 */
    _Atomic(size_t) bodies;   /* bytes of bodies in flight */
    lathe_engine *engine;     /* set before PHASE_READY, and then constant */
    char model[256];          /* the model's id */
    char *template;           /* chat_template.jinja; "" if there is none */
    char template_sha256[65];
    char eos_token[64];   /* "" if not known */
    char fingerprint[20]; /* "fp_": of the program, the template and a sample of the weights */
    int64_t created;      /* seconds since 1970: when the server opened */
};

/* 24 characters of a fresh id. */
void server_id(const struct server *s, char out[25]);
/* Seconds since 1970. */
static inline int64_t server_now(const struct server *s)
{
    return s->options.now ? s->options.now() : (int64_t)time(NULL);
}
const char *server_revision(const struct server *s);

/* NULL while the model is being loaded, and where the server ends before it is. */
static inline lathe_engine *server_engine(const struct server *s)
{
    return atomic_load(&s->phase) == PHASE_LOADING ? NULL : s->engine;
}

/* Is it the model's id or an alias, what clients append aside? */
bool server_has_model(const struct server *s, const char *name);

/* As keys_match. */
bool server_knows_key(struct server *s, const char *authorization, const char *x_api_key,
                      struct owner *owner);

/* The engine's device has failed: the first error is kept. Any thread. */
static inline void server_note_failure(struct server *s, const lathe_error *err)
{
    pthread_mutex_lock(&s->lock);
    if (!atomic_load(&s->has_failed))
        s->device_error = *err;
    atomic_store(&s->has_failed, true);
    pthread_mutex_unlock(&s->lock);
}

/* Listening and connections: http.c. */
lathe_status http_open(struct http **h, struct server *s, lathe_error *err);
/* Takes no more connections; the socket is the caller's. */
void http_give_socket(struct http *h, struct listener *out);
int32_t http_port(const struct http *h);
/* Waits until nothing runs any more, or for timeout_ms; then stream_must_end is true. */
void http_drain(struct http *h, int64_t timeout_ms);
void http_close(struct http *h);

#endif

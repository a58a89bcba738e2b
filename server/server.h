/* The HTTP server over an engine: opened before the model is loaded, so that probes get an answer meanwhile. */
#ifndef LATHE_SERVER_SERVER_H
#define LATHE_SERVER_SERVER_H

#include "base/error.h"
#include "guard.h"
#include "limit.h"
#include "listen.h"

struct server;

/* What of the reasoning Responses send: bits. */
enum responses_reasoning {
    RESPONSES_REASONING_NONE,
    RESPONSES_REASONING_SUMMARY = 1,
    RESPONSES_REASONING_CONTENT = 2,
    RESPONSES_REASONING_BOTH = 3,
    RESPONSES_REASONING_ASKED = 4, /* a summary where the request asks for one, else the content */
};

/* Whether, how hard and how long requests think. */
struct thinking_options {
    lathe_switch thinking; /* of requests that say nothing; LATHE_DEFAULT: what the model does */
    const char *effort;    /* likewise; NULL: the model's */
    const char *pinned_effort;  /* of all requests that think; NULL: theirs */
    const char *budget_message; /* before a block ends whose budget is spent; NULL: none */
    bool end_in_think;          /* an end token inside the block ends the answer */
};

/* What reasoning is called in chat completions: bits. */
enum reasoning_field { FIELD_REASONING_CONTENT = 1, FIELD_REASONING = 2 };

struct server_options {
    const char *host; /* a name or an address, or unix:PATH */
    int32_t port;     /* 0: any that is free */
    const char *model_dir;
    int32_t n_ctx, n_slots, n_queue; /* of the engine that will be given */
    struct names alias; /* names of the model; the first is its id. None: the directory's name */
    struct names key, key_file, allowed_host, cors_origin;
    const char *tls_cert,
        *tls_key;          /* PEM files; NULL: no TLS. One server of a process may have them */
    bool unknown_is_error; /* refuse unknown fields of bodies */
    struct limits limits;
    int32_t queue_timeout_s, request_timeout_s; /* 0: none */
    int32_t write_timeout_s;  /* a stream from which nothing is taken for so long is cut off */
    int32_t json_keepalive_s; /* from then on a reply in one piece shows signs of life; 0: never */
    int32_t default_max_tokens; /* of requests that give none; 0: to the end of the context */
    struct thinking_options thinking;
    enum reasoning_field reasoning_field; /* of chat completions */
    bool no_restore_reasoning;            /* what a client left out of its history stays out */
    bool no_repair_arguments;             /* of calls that were cut off */
    bool keep_think_tags; /* a <think> block at the head of an assistant's text stays text */
    bool strict_model;    /* only the model's names are taken */
    bool no_timings;      /* replies leave them out */
    /* Streams of OpenAI's end with the usage, asked for or not. */
    bool always_usage;
    /* Chat begins a turn of its own behind a last message of the assistant, unless it is asked to go on with it. */
    bool no_prefill;
    /* With a tool choice of none the prompt has the tools all the same; calls are forbidden. */
    bool keep_unused_tools;
    bool keep_billing_header; /* of system texts: the line x-anthropic-billing-header: */
    int32_t max_calls;        /* tool calls of a turn; 0: 64 */
    int32_t late_system;      /* a lathe_late_system for all dialects; -1: each has its own */
    enum responses_reasoning responses_reasoning;
    int32_t n_responses; /* that are stored; 0: none */
    /* Takes a line for each request that is over, and notices; any thread, one call at a time. NULL: none. */
    void (*log)(void *ctx, const char *line);
    void *log_ctx;
    bool log_json; /* the lines are JSON objects */
    /* "error": requests that failed with 500 and more; "info", and NULL: all but probes; "debug": these too; or
     * "@FILE", which holds one of the words */
    const char *log_level;
    bool no_metrics, metrics_auth; /* GET /metrics: is not there; needs a key */
    bool debug_routes;             /* GET /debug/... is there */
    const char *trace;             /* a file: trace.h; NULL: none */
    uint64_t trace_bytes;
    bool trace_text;
    bool log_bodies;      /* the lines have the bodies of requests */
    const char *revision; /* of the source that the program was built from; NULL: "unknown" */
    /* A socket of this host and port that listens already; NULL: one is opened. */
    const struct listener *listener;
    uint64_t n_device_losses; /* in this process, before this server */
    /* For tests: seconds since 1970, 24 characters that no other id has, and what replies have as the fingerprint. NULL: the
     * clock, random ones, and that of program and weights. */
    int64_t (*now)(void);
    void (*id)(char out[25]);
    const char *fingerprint;
};
/* 127.0.0.1:8080, the limits of limits_init, 60 s for writing, 240 s for a reply in one piece, no other timeouts,
 * 256 responses. */
void server_options_init(struct server_options *o);

/* Listens. What *o points to must stay until the server is closed. */
lathe_status server_open(struct server **s, const struct server_options *o, lathe_error *err);
int32_t server_port(const struct server *s);
bool server_has_key(struct server *s);
/* Reads keys, certificate and log level again; what cannot be read stays as it is, and the log says so. */
void server_reload(struct server *s);
/* From here on requests are served by this engine, which is closed after the server. */
void server_ready(struct server *s, lathe_engine *engine);
/* The share of the model that is loaded, 0..1. */
void server_progress(struct server *s, double share);
/* Has the engine's device failed, so that nothing can be served any more? *why gets the first error. */
bool server_has_failed(struct server *s, lathe_error *why);
/* Takes no more connections, before server_drain: those that are made wait in the socket, which is the caller's. */
void server_give_socket(struct server *s, struct listener *out);
/* Says that it is not ready, and after delay_ms takes no new work; waits up to timeout_ms for what runs, then ends it with
 * an error. */
void server_drain(struct server *s, int64_t delay_ms, int64_t timeout_ms);
void server_close(struct server *s);

#endif

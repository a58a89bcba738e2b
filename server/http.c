/* The HTTP layer over libmicrohttpd.
 *
 * One thread of the library serves all sockets; a pooled route runs on a thread of its own while its connection is
 * suspended. Suspending, resuming and the flag that says which are under the exchange's lock: resuming what is not
 * suspended is undefined. A watchdog thread shuts down connections whose head or body takes too long; the library
 * itself measures inactivity only, and closes silently.
 *
 * No response can be queued while a body is being read. So a request that will be refused is read to its end, its
 * body thrown away, and then refused: a client that still sends would otherwise see a broken connection instead of
 * the status. Two are refused at once, since they wait or would send too much: Expect: 100-continue, and a
 * Content-Length beyond the limit. */
/* POLLRDHUP is an extension of Linux. */
#define _GNU_SOURCE
#include <errno.h>
#include <gnutls/gnutls.h>
#include <microhttpd.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "certificate.h"
#include "direct.h"
#include "exchange.h"
#include "listen.h"
#include "log.h"
#include "metrics.h"
#include "route.h"
#include "served.h"
#include "session.h"
#include "state.h"
#include "trace.h"

enum {
    /* The library's pool of a connection, beside the head: write buffer. */
    CONNECTION_MEMORY = 88 << 10,
    MORE_CONNECTIONS = 128, /* above the limit, so that a 503 can be sent */
    WATCH_MS = 250,
    PROBE_MS = 300,         /* between interim responses to a client that shut its side */
    STREAM_LIMIT = 4 << 20, /* bytes that a slow client may leave untaken: then no piece is added */
    LAST_WORDS_MS = 3000,
    MORE_LONG = 8, /* generating requests beyond what the engine holds: it refuses them */
};

/* ---- Connections ---------------------------------------------------------------------------- */

enum stage { STAGE_IDLE, STAGE_HEAD, STAGE_BODY, STAGE_REPLY };

struct connection {
    struct connection *next, *before;
    int fd;
    bool over;                       /* beyond the soft limit */
    enum stage stage;                /* this and what follows: under http.lock */
    int64_t since_ms;                /* of the stage */
    int64_t moved_ms;                /* the last piece of the body */
    char *uri;                       /* raw, of the request at hand */
    struct certificate *certificate; /* held; NULL: none is shown */
};

struct http {
    struct server *server;
    struct MHD_Daemon *daemon;
    struct listener listener; /* whose descriptor is the daemon's */
    int32_t port;
    pthread_mutex_t lock;
    pthread_cond_t idle; /* a job ended, or a reply */
    struct connection *first;
    int32_t n_connections;
    int32_t n_jobs;    /* on threads of their own */
    int32_t n_long;    /* of these, generating */
    int32_t n_at_work; /* of these */
    pthread_cond_t turn;
    struct pollfd *polled; /* the watchdog's, for all connections */
    pthread_t watchdog;
    bool stop;
    bool is_watched;
    _Atomic(bool) must_end;
};

/* What http.c keeps beside an exchange: the exchange is its first member. */
struct call {
    struct exchange x;
    struct http *http;
    struct MHD_Connection *connection;
    struct connection *c;
    _Atomic(int) n_holders; /* the library, and the job */
    pthread_mutex_t lock;   /* of what follows, up to taken_ms */
    bool is_whole;          /* the request, as the library has said once */
    bool is_started, is_done, is_suspended;
    bool is_streaming; /* a head is wanted, or sent */
    bool is_broken;    /* the stream will not end properly */
    bool is_gone;      /* the library has done with the request */
    struct buf out;    /* of the stream: from n_sent on not yet taken */
    size_t n_sent;
    struct direct direct; /* what goes past the library */
    bool is_plain;        /* it may: no TLS, and chunked */
    bool knows_interim;   /* HTTP/1.1: a client skips interim responses */
    int64_t probed_ms;    /* when it was sent one last */
    bool is_open;         /* the library has sent the head, and awaits what follows */
    int64_t taken_ms;     /* when something was taken, or there was nothing to take */
    bool must_close;
    int status;         /* that was sent */
    int64_t started_ms; /* when the head was read */
    size_t counted;     /* of the body, in server.bodies */
    int allow;          /* methods, for 405 */
    const char *origin; /* one that gets CORS headers; NULL: none */
    char *method;
};

static void set_stage(struct http *h, struct connection *c, enum stage stage)
{
    pthread_mutex_lock(&h->lock);
    if (c->stage == STAGE_REPLY)
        pthread_cond_broadcast(&h->idle);
    c->stage = stage;
    c->since_ms = c->moved_ms = clock_whole_ms();
    pthread_mutex_unlock(&h->lock);
}

static void connection_opened(struct http *h, struct MHD_Connection *mc, void **socket_context)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mc, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct certificate *certificate = h->server->options.tls_cert ? certificate_hold() : NULL;
    struct connection *c = calloc(1, sizeof *c);
    *socket_context = c;
    if (!c)
        return; /* and the certificate stays held */
    c->certificate = certificate;
    c->fd = info ? info->connect_fd : -1;
    c->stage = STAGE_HEAD;
    c->since_ms = clock_whole_ms();
    pthread_mutex_lock(&h->lock);
    c->next = h->first;
    if (c->next)
        c->next->before = c;
    h->first = c;
    c->over = ++h->n_connections > h->server->options.limits.of[LIMIT_CONNECTIONS];
    pthread_mutex_unlock(&h->lock);
}

static void connection_closed(struct http *h, struct connection *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&h->lock);
    *(c->before ? &c->before->next : &h->first) = c->next;
    if (c->next)
        c->next->before = c->before;
    h->n_connections--;
    pthread_cond_broadcast(&h->idle);
    pthread_mutex_unlock(&h->lock);
    certificate_let_go(c->certificate);
    free(c->uri);
    free(c);
}

static void on_connection(void *cls, struct MHD_Connection *mc, void **socket_context,
                          enum MHD_ConnectionNotificationCode code)
{
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        connection_opened(cls, mc, socket_context);
    else
        connection_closed(cls, *socket_context);
}

static struct connection *connection_of(struct MHD_Connection *mc)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mc, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/* The library's own limit of inactivity while a request is read and answered: none of ours is longer. */
static unsigned busy_timeout_s(const struct server_options *o)
{
    int64_t s = o->write_timeout_s;
    static const enum server_limit of[] = {LIMIT_IDLE_TIME, LIMIT_HEADER_TIME, LIMIT_STALL_TIME};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        s = s > o->limits.of[of[i]] ? s : o->limits.of[of[i]];
    return (unsigned)s;
}

/* ... and between requests. */
static void set_idle(struct http *h, struct MHD_Connection *mc, bool is_idle)
{
    const struct server_options *o = &h->server->options;
    unsigned busy = busy_timeout_s(o), idle = (unsigned)o->limits.of[LIMIT_IDLE_TIME];
    if (idle != busy)
        (void)MHD_set_connection_option(mc, MHD_CONNECTION_OPTION_TIMEOUT, is_idle ? idle : busy);
}

/* The request line is read. */
static void *on_uri(void *cls, const char *uri, struct MHD_Connection *mc)
{
    struct connection *c = connection_of(mc);
    if (c) {
        free(c->uri);
        c->uri = strdup(uri);
        set_stage(cls, c, STAGE_HEAD);
        set_idle(cls, mc, false);
    }
    return NULL;
}

static int64_t limit_ms(const struct http *h, enum server_limit which)
{
    return h->server->options.limits.of[which] * 1000;
}

static bool is_late(const struct http *h, const struct connection *c, int64_t now)
{
    int64_t in_stage = now - c->since_ms;
    switch (c->stage) {
    case STAGE_IDLE: /* where the next request line begins cannot be seen */
        return in_stage > limit_ms(h, LIMIT_IDLE_TIME) + limit_ms(h, LIMIT_HEADER_TIME);
    case STAGE_HEAD:
        return in_stage > limit_ms(h, LIMIT_HEADER_TIME);
    case STAGE_BODY:
        return in_stage > limit_ms(h, LIMIT_BODY_TIME) ||
               now - c->moved_ms > limit_ms(h, LIMIT_STALL_TIME);
    case STAGE_REPLY:
        break;
    }
    return false;
}

/* A client that has closed its side in the middle of a request can finish it no more. The library finds that out when it reads
 * again, but it waits for an event first, and where the end came together with the last bytes there is none: this makes one.
 * What was sent before the end is read all the same, and answered if it is a request. With h->lock held. */
static void stir_half_closed(struct http *h)
{
    nfds_t n = 0;
    for (const struct connection *c = h->first; c; c = c->next)
        if (c->fd >= 0 && c->stage != STAGE_REPLY)
            h->polled[n++] = (struct pollfd){.fd = c->fd, .events = POLLRDHUP};
    if (n == 0 || poll(h->polled, n, 0) <= 0)
        return;
    for (nfds_t i = 0; i < n; i++)
        if (h->polled[i].revents & POLLRDHUP)
            (void)shutdown(h->polled[i].fd, SHUT_RD);
}

static void *watch(void *arg)
{
    struct http *h = arg;
    const struct timespec pause = {.tv_nsec = WATCH_MS * 1000000L};
    pthread_mutex_lock(&h->lock);
    while (!h->stop) {
        int64_t now = clock_whole_ms();
        for (struct connection *c = h->first; c; c = c->next)
            if (c->fd >= 0 && is_late(h, c, now))
                (void)shutdown(c->fd, SHUT_RDWR);
        stir_half_closed(h);
        pthread_mutex_unlock(&h->lock);
        (void)nanosleep(&pause, NULL);
        pthread_mutex_lock(&h->lock);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

/* ---- Replies -------------------------------------------------------------------------------- */

static void header(struct MHD_Response *r, const char *name, const char *value)
{
    (void)MHD_add_response_header(r, name, value);
}

static void add_headers(struct call *k, struct MHD_Response *r)
{
    struct exchange *x = &k->x;
    char text[64];
    (void)snprintf(text, sizeof text, "lathe/%s", lathe_version());
    header(r, "Server", text);
    header(r, "x-request-id", x->id);
    header(r, "request-id", x->id);
    if (x->response_id[0] && x->failure.condition == FINE)
        header(r, "x-response-id", x->response_id);
    if (x->unknown.len)
        header(r, "x-unknown-fields", buf_str(&x->unknown));
    if (x->warnings.len)
        header(r, "x-warnings", buf_str(&x->warnings));
    if (x->ignored.len)
        header(r, "x-ignored-tools", buf_str(&x->ignored));
    if (k->origin) {
        header(r, "Access-Control-Allow-Origin", k->origin);
        header(r, "Vary", "Origin");
        header(r, "Access-Control-Expose-Headers",
               "x-request-id, request-id, x-response-id, retry-after, x-unknown-fields, "
               "x-ignored-tools, x-warnings");
    }
    if (k->must_close || atomic_load(&x->server->phase) >= PHASE_LEAVING)
        header(r, "Connection", "close");
}

/* Of a reply that is a refusal. */
static void add_failure_headers(struct call *k, struct MHD_Response *r)
{
    struct exchange *x = &k->x;
    char text[64];
    if (x->failure.condition == BAD_KEY)
        header(r, "WWW-Authenticate", "Bearer");
    if (x->failure.condition == BAD_METHOD) {
        route_methods(k->allow, text);
        header(r, "Allow", text);
    }
    if (failure_retry_after(x->failure.condition)) {
        (void)snprintf(text, sizeof text, "%d", failure_retry_after(x->failure.condition));
        header(r, "Retry-After", text);
    }
}

static void add_page_headers(struct call *k, struct MHD_Response *r)
{
    if (k->x.etag[0]) {
        header(r, "ETag", k->x.etag);
        header(r, "Cache-Control", "no-cache");
    }
    header(r, "Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'");
    header(r, "X-Content-Type-Options", "nosniff");
}

/* The browser has this file of the page. */
static bool is_known(struct call *k)
{
    const char *known =
        MHD_lookup_connection_value(k->connection, MHD_HEADER_KIND, "If-None-Match");
    return k->x.etag[0] && known && strstr(known, k->x.etag);
}

static void preflight_headers(struct call *k, struct MHD_Response *r)
{
    const char *wanted = MHD_lookup_connection_value(k->connection, MHD_HEADER_KIND,
                                                     "Access-Control-Request-Headers");
    header(r, "Allow", "GET, HEAD, POST, DELETE, OPTIONS");
    if (!k->origin)
        return;
    header(r, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
    header(r, "Access-Control-Max-Age", "600");
    if (wanted)
        header(r, "Access-Control-Allow-Headers", wanted);
}

static ssize_t read_stream(void *cls, uint64_t at, char *to, size_t room)
{
    struct call *k = cls;
    (void)at;
    pthread_mutex_lock(&k->lock);
    size_t n = k->out.len - k->n_sent;
    ssize_t result = 0;
    if (n > room)
        n = room;
    if (n) {
        memcpy(to, k->out.data + k->n_sent, n);
        k->n_sent += n;
        k->taken_ms = clock_whole_ms();
        result = (ssize_t)n;
    } else if (k->is_done) {
        result =
            k->is_broken ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        k->is_open = k->is_suspended = true;
        MHD_suspend_connection(k->connection);
    }
    pthread_mutex_unlock(&k->lock);
    return result;
}

static enum MHD_Result send_stream(struct call *k)
{
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16 << 10, read_stream, k, NULL);
    if (!r)
        return MHD_NO;
    add_headers(k, r);
    header(r, "Content-Type", k->x.type ? k->x.type : "application/json; charset=utf-8");
    header(r, "Cache-Control", "no-cache, no-store");
    header(r, "X-Accel-Buffering", "no");
    enum MHD_Result ok = MHD_queue_response(k->connection, 200, r);
    k->status = 200;
    MHD_destroy_response(r);
    return ok;
}

/* With k->lock held. */
static void wake(struct call *k)
{
    if (k->is_suspended) {
        k->is_suspended = false;
        MHD_resume_connection(k->connection);
    }
}

/* Is something not taken yet? With k->lock held. */
static bool is_pending(const struct call *k)
{
    return k->n_sent < k->out.len || direct_is_torn(&k->direct);
}

/* May bytes go past the library? With k->lock held. */
static bool may_send_directly(const struct call *k)
{
    return k->is_plain && k->is_open && k->is_suspended && !k->is_gone;
}

/* Sends what can be sent past the library, of the chunk that is on its way and of what waits behind it. */
static bool send_directly(struct call *k)
{
    size_t before = k->direct.n_sent;
    bool ok = true;
    if (!may_send_directly(k))
        return true;
    if (direct_is_torn(&k->direct)) {
        ok = direct_flush(&k->direct, k->c->fd);
        if (k->direct.n_sent > before)
            k->taken_ms = clock_whole_ms();
    }
    if (ok && k->n_sent < k->out.len && !direct_is_torn(&k->direct)) {
        ok = direct_write(&k->direct, k->c->fd, k->out.data + k->n_sent, k->out.len - k->n_sent);
        k->n_sent = k->out.len;
        k->taken_ms = clock_whole_ms();
    }
    return ok;
}

/* Until the chunk that is on its way has left, for as long as a client may take nothing; a reply that is cut off in it is
 * broken. */
static void finish_directly(struct call *k)
{
    int64_t stall_ms = (int64_t)k->x.server->options.write_timeout_s * 1000,
            start = clock_whole_ms();
    pthread_mutex_lock(&k->lock);
    while (send_directly(k) && direct_is_torn(&k->direct) && !k->is_broken &&
           clock_whole_ms() - k->taken_ms <= stall_ms &&
           !(atomic_load(&k->http->must_end) && clock_whole_ms() - start > LAST_WORDS_MS)) {
        struct pollfd p = {.fd = k->c->fd, .events = POLLOUT};
        pthread_mutex_unlock(&k->lock);
        (void)poll(&p, 1, WATCH_MS);
        pthread_mutex_lock(&k->lock);
    }
    k->is_broken |= direct_is_torn(&k->direct);
    pthread_mutex_unlock(&k->lock);
}

/* An exchange is the first member of its call. */
static struct call *call_of(const struct exchange *x)
{
    union {
        const struct exchange *in;
        struct call *out;
    } p = {x};
    return p.out;
}

void stream_begin(struct exchange *x)
{
    struct call *k = call_of(x);
    pthread_mutex_lock(&k->lock);
    k->is_streaming = true;
    k->taken_ms = clock_whole_ms();
    wake(k);
    pthread_mutex_unlock(&k->lock);
}

bool stream_begun(const struct exchange *x)
{
    return call_of(x)->is_streaming; /* set by the caller's own thread */
}

/* What the library gets, or waits behind what is on its way. With k->lock held. */
static bool add_to_stream(struct call *k, const struct buf *bytes)
{
    size_t left = k->out.len - k->n_sent + k->direct.frame.len - k->direct.n_sent;
    if (k->n_sent > STREAM_LIMIT) {
        k->out.len -= k->n_sent;
        memmove(k->out.data, k->out.data + k->n_sent, k->out.len);
        k->n_sent = 0;
    }
    if (left <= STREAM_LIMIT)
        buf_append(&k->out, buf_str(bytes), bytes->len);
    return !k->is_gone && left <= STREAM_LIMIT && !k->out.over && !k->out.no_memory &&
           send_directly(k);
}

bool stream_write(struct exchange *x, struct buf *bytes)
{
    struct call *k = call_of(x);
    bool ok = !bytes->over && !bytes->no_memory;
    pthread_mutex_lock(&k->lock);
    if (k->n_sent == k->out.len) {
        buf_clear(&k->out);
        k->n_sent = 0;
        k->taken_ms = clock_whole_ms();
    }
    if (ok && bytes->len && !is_pending(k) && may_send_directly(k))
        ok = direct_write(&k->direct, k->c->fd, bytes->data, bytes->len);
    else if (ok)
        ok = add_to_stream(k, bytes);
    k->is_broken |= !ok;
    if (!ok || !k->is_plain || !k->is_open)
        wake(k);
    pthread_mutex_unlock(&k->lock);
    buf_clear(bytes);
    return ok;
}

void stream_break(struct exchange *x)
{
    struct call *k = call_of(x);
    pthread_mutex_lock(&k->lock);
    k->is_broken = true;
    pthread_mutex_unlock(&k->lock);
}

/* Sends an interim response: of a client that has shut its side, its answer tells whether it still reads. The library leaves
 * a connection alone while it is suspended and no reply has begun. False if the connection is closed. With k->lock held. */
static bool probe(struct call *k)
{
    static const char interim[] = "HTTP/1.1 100 Continue\r\n\r\n";
    const size_t n = sizeof interim - 1;
    int64_t now = clock_whole_ms();
    if (now - k->probed_ms < PROBE_MS)
        return true;
    k->probed_ms = now;
    /* Without TLS there is no such information. */
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(k->connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    ssize_t sent = info ? gnutls_record_send(info->tls_session, interim, n)
                        : send(k->c->fd, interim, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent == (ssize_t)n;
}

/* What of a half-closed connection is known. With k->lock held. */
static enum peer look_at_half_closed(struct call *k, bool is_writable)
{
    if (!k->knows_interim || k->is_streaming || !k->is_suspended)
        return PEER_HALF_CLOSED;
    /* Where there is no room, something is on its way already, and the peer's answer to it will tell. */
    return !is_writable || probe(k) ? PEER_THERE : PEER_GONE;
}

enum peer stream_peer(struct exchange *x)
{
    struct call *k = call_of(x);
    enum peer peer = PEER_THERE;
    int64_t stall_ms = (int64_t)x->server->options.write_timeout_s * 1000;
    /* The library closes the socket after is_gone is set. */
    pthread_mutex_lock(&k->lock);
    struct pollfd p = {.fd = k->is_gone ? -1 : k->c->fd, .events = POLLRDHUP | POLLOUT};
    if (k->is_gone || !send_directly(k) ||
        (is_pending(k) && clock_whole_ms() - k->taken_ms > stall_ms) ||
        (poll(&p, 1, 0) > 0 && p.revents & (POLLHUP | POLLERR | POLLNVAL)))
        peer = PEER_GONE;
    else if (p.revents & POLLRDHUP)
        peer = look_at_half_closed(k, p.revents & POLLOUT);
    pthread_mutex_unlock(&k->lock);
    return peer;
}

bool stream_must_end(const struct exchange *x)
{
    return atomic_load(&call_of(x)->http->must_end);
}

/* Of an exchange: struct watch. */
static bool is_left(void *ctx)
{
    struct exchange *x = ctx;
    if (stream_must_end(x))
        return !refuse(&x->failure, DRAINING, "the server is shutting down");
    if (stream_peer(x) == PEER_GONE)
        return !refuse(&x->failure, CLIENT_GONE, "the client has gone");
    return false;
}

static enum MHD_Result send_reply(struct call *k)
{
    struct exchange *x = &k->x;
    bool is_preflight = strcmp(x->method, "OPTIONS") == 0 && x->failure.condition == FINE;
    lathe_error err;
    int status = x->status ? x->status : is_preflight ? 204 : 200;
    if (x->failure.condition == FINE && buf_check(&x->reply, "the reply", &err))
        (void)refuse_status(&x->failure, &err);
    if (x->failure.condition != FINE) {
        buf_clear(&x->reply);
        failure_print(&x->reply, &x->failure, x->shape, x->id);
        status = failure_http(x->failure.condition);
    }
    if (buf_check(&x->reply, "the reply", &err))
        return MHD_NO;
    if (is_known(k)) {
        buf_clear(&x->reply);
        status = 304;
    }
    struct MHD_Response *r =
        MHD_create_response_from_buffer(x->reply.len, x->reply.data, MHD_RESPMEM_MUST_COPY);
    if (!r)
        return MHD_NO;
    add_headers(k, r);
    add_failure_headers(k, r);
    if (x->is_page)
        add_page_headers(k, r);
    if (is_preflight)
        preflight_headers(k, r);
    else
        header(r, "Content-Type",
               x->type && x->failure.condition == FINE ? x->type
                                                       : "application/json; charset=utf-8");
    enum MHD_Result ok = MHD_queue_response(k->connection, (unsigned)status, r);
    k->status = status;
    MHD_destroy_response(r);
    set_stage(k->http, k->c, STAGE_REPLY);
    return ok;
}

/* ---- Reading the head ----------------------------------------------------------------------- */

static void make_id(struct exchange *x)
{
    memcpy(x->id, "req_", 4);
    server_id(x->server, x->id + 4);
}

static bool is_id(const char *s)
{
    size_t n = strlen(s);
    for (size_t i = 0; i < n; i++)
        if (s[i] <= 0x20 || s[i] >= 0x7f)
            return false;
    return n >= 1 && n <= MAX_REQUEST_ID;
}

/* What MHD_lookup_connection_value does not tell: how many of each there are. */
struct head {
    size_t bytes;
    int n_fields, n_host, n_length, n_transfer, n_origin;
    bool lengths_differ, knows_context_stop;
    struct session_hint session;
    const char *host, *length, *origin, *encoding, *expect, *id, *authorization, *x_api_key;
};

static enum MHD_Result on_field(void *cls, enum MHD_ValueKind kind, const char *name,
                                const char *value)
{
    struct head *h = cls;
    (void)kind;
    value = value ? value : "";
    h->bytes += strlen(name) + strlen(value) + 4;
    session_header(&h->session, name, value);
    h->n_fields++;
    if (strcasecmp(name, "Host") == 0) {
        h->host = value;
        h->n_host++;
    } else if (strcasecmp(name, "Content-Length") == 0) {
        h->lengths_differ |= h->length && strcmp(h->length, value) != 0;
        h->length = value;
        h->n_length++;
    } else if (strcasecmp(name, "Transfer-Encoding") == 0) {
        h->n_transfer++;
    } else if (strcasecmp(name, "Origin") == 0) {
        h->origin = value;
        h->n_origin++;
    } else if (strcasecmp(name, "Content-Encoding") == 0) {
        h->encoding = value;
    } else if (strcasecmp(name, "Expect") == 0) {
        h->expect = value;
    } else if (strcasecmp(name, "Authorization") == 0) {
        h->authorization = value;
    } else if (strcasecmp(name, "x-api-key") == 0) {
        h->x_api_key = value;
    } else if (strcasecmp(name, "anthropic-version") == 0) {
        h->knows_context_stop |= strcmp(value, "2023-06-01") > 0;
    } else if (strcasecmp(name, "anthropic-beta") == 0) {
        h->knows_context_stop |= strstr(value, "model-context-window-exceeded-") != NULL;
    } else if ((strcasecmp(name, "x-request-id") == 0 ||
                (strcasecmp(name, "x-client-request-id") == 0 && !h->id)) &&
               is_id(value)) {
        h->id = value;
    }
    return MHD_YES;
}

/* Those that leave the connection in doubt. */
static bool check_framing(struct call *k, const struct head *head)
{
    struct failure *f = &k->x.failure;
    const char *uri = k->c->uri;
    const int64_t *most = k->x.server->options.limits.of;
    k->must_close = true;
    if (k->c->over)
        return refuse(f, BUSY,
                      "more than %d connections are open; --max-connections sets the limit",
                      (int)most[LIMIT_CONNECTIONS]);
    if ((head->n_length && head->n_transfer) || head->lengths_differ)
        return refuse(f, BAD_VALUE,
                      "Content-Length stands beside Transfer-Encoding or another Content-Length");
    if (!uri || strlen(uri) > (size_t)most[LIMIT_LINE])
        return refuse(f, HEAD_TOO_LARGE,
                      "the request line is longer than %d bytes; --max-request-line sets the limit",
                      (int)most[LIMIT_LINE]);
    if (head->n_fields > most[LIMIT_FIELDS])
        return refuse(f, HEAD_TOO_LARGE,
                      "the header has %d fields, at most %d are read; --max-fields sets the limit",
                      head->n_fields, (int)most[LIMIT_FIELDS]);
    if (head->bytes > (size_t)most[LIMIT_HEADER])
        return refuse(f, HEAD_TOO_LARGE,
                      "the header has %zu bytes, at most %d are read; --max-header sets the limit",
                      head->bytes, (int)most[LIMIT_HEADER]);
    k->must_close = false;
    return true;
}

static bool read_path(struct call *k)
{
    struct exchange *x = &k->x;
    const char *uri = k->c->uri;
    size_t n = strcspn(uri, "?");
    x->path = malloc(strlen(uri) + 1);
    if (!x->path)
        return refuse(&x->failure, INTERNAL, "out of memory");
    if (!path_decode(uri, n, x->path)) {
        k->must_close = true;
        return refuse(&x->failure, BAD_VALUE, "the path has a NUL in it");
    }
    x->query = uri[n] ? uri + n + 1 : "";
    x->shape = route_shape(x->path);
    return true;
}

static bool check_sender(struct call *k, const struct head *head)
{
    struct exchange *x = &k->x;
    const struct server_options *o = &x->server->options;
    if (head->n_host != 1 || !host_allowed(head->host, o->host, &o->allowed_host))
        return refuse(&x->failure, HOST_REFUSED,
                      "the Host header is %s%.100s: it must be one address, localhost, or a name "
                      "given with --allowed-host",
                      head->n_host ? "" : "missing", head->host ? head->host : "");
    if (head->n_origin == 0)
        return true;
    enum origin origin = head->n_origin > 1
                             ? ORIGIN_FOREIGN
                             : origin_check(head->origin, head->host, &o->cors_origin);
    if (origin == ORIGIN_FOREIGN)
        return refuse(&x->failure, ORIGIN_REFUSED,
                      "pages of %.100s may not use this server; --cors-origin allows them",
                      head->origin);
    if (origin == ORIGIN_LISTED)
        k->origin = head->origin;
    return true;
}

static bool check_phase(struct exchange *x)
{
    int phase = atomic_load(&x->server->phase);
    if (x->route->closed == NEVER_CLOSED)
        return true;
    if (phase == PHASE_LOADING)
        return refuse(&x->failure, LOADING, "the model is being loaded");
    if (!server_engine(x->server) ||
        (phase == PHASE_DRAINING && x->route->closed == CLOSED_DRAINING))
        return refuse(&x->failure, DRAINING, "the server is shutting down");
    return true;
}

static bool check_length(struct call *k, const struct head *head)
{
    size_t limit = (size_t)k->x.server->options.limits.of[LIMIT_BODY];
    if (head->length && strtoull(head->length, NULL, 10) > limit)
        return refuse(&k->x.failure, BODY_TOO_LARGE,
                      "the body has %.20s bytes, the limit is %zu; --max-body sets it",
                      head->length, limit);
    return true;
}

static bool check_head(struct call *k, const struct head *head)
{
    struct exchange *x = &k->x;
    if (!check_framing(k, head) || !read_path(k) || !check_sender(k, head))
        return false;
    if (strcmp(x->method, "OPTIONS") == 0)
        return true;
    if (!route_find(x, &k->allow))
        return false;
    bool needs_key = !x->route->no_key || (x->route->metrics && x->server->options.metrics_auth);
    if (needs_key && !server_knows_key(x->server, head->authorization, head->x_api_key, &x->owner))
        return refuse(&x->failure, BAD_KEY, "%s: send Authorization: Bearer KEY, or x-api-key: KEY",
                      head->authorization || head->x_api_key ? "the API key is not known"
                                                             : "an API key is needed");
    if (head->encoding && strcasecmp(head->encoding, "identity") != 0)
        return refuse(&x->failure, BAD_ENCODING,
                      "Content-Encoding %.40s is not supported; send the body as it is",
                      head->encoding);
    return check_phase(x) && check_length(k, head);
}

static void is_over(const struct exchange *x, int status, int64_t ms)
{
    metrics_request(x->server->metrics, x, status, (double)ms * 1e-3);
    if (x->record.dialect || x->failure.condition != FINE)
        served_add(x->server->served, x, status, ms);
    log_request(x, status, ms);
    trace_write(x->server->trace, x, status, ms);
}

static void drop(struct call *k)
{
    if (atomic_fetch_sub(&k->n_holders, 1) != 1)
        return;
    is_over(&k->x, k->status, clock_whole_ms() - k->started_ms);
    atomic_fetch_sub(&k->x.server->bodies, k->counted);
    buf_release(&k->x.body);
    buf_release(&k->x.reply);
    buf_release(&k->x.unknown);
    buf_release(&k->x.warnings);
    buf_release(&k->x.trace);
    buf_release(&k->x.ignored);
    buf_release(&k->out);
    direct_release(&k->direct);
    free(k->x.path);
    free(k->method);
    pthread_mutex_destroy(&k->lock);
    free(k);
}

static struct call *begin(struct http *h, struct MHD_Connection *mc, const char *method)
{
    struct call *k = calloc(1, sizeof *k);
    struct connection *c = connection_of(mc);
    if (!k || !c || !(k->method = strdup(method))) {
        free(k);
        return NULL;
    }
    k->http = h;
    k->connection = mc;
    k->c = c;
    k->x.server = h->server;
    k->x.watch = (struct watch){.leave = is_left, .ctx = &k->x};
    k->x.method = k->method;
    k->started_ms = clock_whole_ms();
    atomic_init(&k->n_holders, 1);
    (void)pthread_mutex_init(&k->lock, NULL);
    buf_init(&k->x.body, (size_t)h->server->options.limits.of[LIMIT_BODY]);
    buf_init(&k->x.reply, SIZE_MAX / 2);
    buf_init(&k->x.unknown, MAX_LISTED_BYTES);
    buf_init(&k->x.warnings, MAX_LISTED_BYTES);
    buf_init(&k->x.trace, SIZE_MAX / 2);
    buf_init(&k->x.ignored, MAX_LISTED_BYTES);
    buf_init(&k->out, SIZE_MAX / 2);
    direct_init(&k->direct);
    set_stage(h, c, STAGE_BODY);
    return k;
}

/* ---- The body ------------------------------------------------------------------------------- */

static void take_body(struct call *k, const char *bytes, size_t n)
{
    struct exchange *x = &k->x;
    const int64_t *most = x->server->options.limits.of;
    pthread_mutex_lock(&k->http->lock);
    k->c->moved_ms = clock_whole_ms();
    pthread_mutex_unlock(&k->http->lock);
    if (x->failure.condition != FINE)
        return;
    size_t before = x->body.cap;
    buf_append(&x->body, bytes, n);
    size_t more = x->body.cap - before;
    size_t all = atomic_fetch_add(&x->server->bodies, more) + more;
    k->counted += more;
    if (x->body.over)
        (void)refuse(&x->failure, BODY_TOO_LARGE,
                     "the body has more than %lld bytes; --max-body sets the limit",
                     (long long)most[LIMIT_BODY]);
    else if (all > (size_t)most[LIMIT_BODY_MEMORY])
        (void)refuse(&x->failure, BUSY,
                     "the bodies of all requests take more than %lld bytes; --body-memory sets the "
                     "limit",
                     (long long)most[LIMIT_BODY_MEMORY]);
    else if (x->body.no_memory)
        (void)refuse(&x->failure, BUSY, "there is no memory for the body");
    else
        return;
    atomic_fetch_sub(&x->server->bodies, k->counted);
    k->counted = 0;
    buf_release(&x->body);
}

/* ---- Answering ------------------------------------------------------------------------------ */

static void until_in(struct timespec *t, int64_t ms)
{
    (void)clock_gettime(CLOCK_REALTIME, t);
    t->tv_sec += (time_t)(ms / 1000);
    t->tv_nsec += (long)(ms % 1000) * 1000000L;
    if (t->tv_nsec >= 1000000000L) {
        t->tv_sec++;
        t->tv_nsec -= 1000000000L;
    }
}

/* False: nobody waits for the reply any more. */
static bool take_turn(struct call *k)
{
    struct http *h = k->http;
    struct timespec until;
    bool is_wanted = true;
    pthread_mutex_lock(&h->lock);
    while (is_wanted && h->n_at_work >= POOL_AT_WORK) {
        until_in(&until, WATCH_MS);
        (void)pthread_cond_timedwait(&h->turn, &h->lock, &until);
        pthread_mutex_unlock(&h->lock);
        is_wanted = !is_left(&k->x);
        pthread_mutex_lock(&h->lock);
    }
    h->n_at_work += is_wanted;
    pthread_mutex_unlock(&h->lock);
    return is_wanted;
}

static void run_in_turn(struct call *k)
{
    struct http *h = k->http;
    if (!take_turn(k))
        return;
    k->x.route->handle(&k->x);
    pthread_mutex_lock(&h->lock);
    h->n_at_work--;
    pthread_cond_signal(&h->turn);
    pthread_mutex_unlock(&h->lock);
}

static void *job(void *arg)
{
    struct call *k = arg;
    struct http *h = k->http;
    bool is_long = k->x.route->runs == RUNS_LONG;
    if (is_long)
        k->x.route->handle(&k->x);
    else
        run_in_turn(k);
    finish_directly(k);
    pthread_mutex_lock(&k->lock);
    k->is_done = true;
    wake(k);
    pthread_mutex_unlock(&k->lock);
    drop(k);
    pthread_mutex_lock(&h->lock);
    h->n_jobs--;
    h->n_long -= is_long;
    pthread_cond_broadcast(&h->idle);
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

/* With k->lock held. */
static bool start_job(struct call *k)
{
    struct http *h = k->http;
    pthread_attr_t attr;
    pthread_t thread;
    bool is_long = k->x.route->runs == RUNS_LONG;
    const struct server_options *o = &k->x.server->options;
    int32_t most = is_long ? o->n_slots + o->n_queue + MORE_LONG : POOL_AT_WORK + POOL_WAITING;
    pthread_mutex_lock(&h->lock);
    bool is_full = (is_long ? h->n_long : h->n_jobs - h->n_long) >= most;
    h->n_jobs += !is_full;
    h->n_long += is_long && !is_full;
    pthread_mutex_unlock(&h->lock);
    if (is_full)
        return refuse(&k->x.failure, QUEUE_FULL, "%d requests of this kind are at work or wait",
                      (int)most);
    (void)pthread_attr_init(&attr);
    (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    k->is_suspended = true;
    MHD_suspend_connection(k->connection);
    atomic_fetch_add(&k->n_holders, 1);
    int rc = pthread_create(&thread, &attr, job, k);
    (void)pthread_attr_destroy(&attr);
    if (rc == 0)
        return true;
    atomic_fetch_sub(&k->n_holders, 1);
    wake(k);
    pthread_mutex_lock(&h->lock);
    h->n_jobs--;
    h->n_long -= is_long;
    pthread_mutex_unlock(&h->lock);
    k->is_done = true;
    (void)refuse(&k->x.failure, BUSY, "no thread can be started");
    return true;
}

static enum MHD_Result answer(struct call *k)
{
    struct exchange *x = &k->x;
    enum { NOTHING, RUN_AND_REPLY, REPLY, STREAM } next = NOTHING;
    /* A connection that is resumed goes on with what the library last wanted of it. Where it is suspended by the first call
     * for a whole request, that is to read: the end of what a half-closed client sends would then be found before the
     * reply, and the connection closed. The library calls again at once. */
    if (!k->is_whole) {
        k->is_whole = true;
        return MHD_YES;
    }
    pthread_mutex_lock(&k->lock);
    if (!k->is_started) {
        bool may_run = x->failure.condition == FINE && x->route;
        bool is_job = may_run && x->route->runs != RUNS_INLINE;
        k->is_started = true;
        set_stage(k->http, k->c, STAGE_REPLY);
        if (!is_job || !start_job(k)) {
            k->is_done = true;
            next = may_run && !is_job ? RUN_AND_REPLY : REPLY;
        }
    } else if (k->is_streaming) {
        next = STREAM;
    } else if (k->is_done) {
        next = REPLY;
    }
    pthread_mutex_unlock(&k->lock);
    /* Without the lock: the library has one of its own for a response, under which it calls read_stream. */
    if (next == RUN_AND_REPLY)
        x->route->handle(x);
    return next == NOTHING ? MHD_YES : next == STREAM ? send_stream(k) : send_reply(k);
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *mc, const char *url,
                                  const char *method, const char *protocol, const char *bytes,
                                  size_t *n_bytes, void **context)
{
    struct call *k = *context;
    (void)url;
    if (!k) {
        struct head head = {0};
        k = begin(cls, mc, method);
        if (!k)
            return MHD_NO;
        k->knows_interim = strcmp(protocol, "HTTP/1.1") == 0;
        k->is_plain = !k->x.server->options.tls_cert && k->knows_interim;
        *context = k;
        (void)MHD_get_connection_values(mc, MHD_HEADER_KIND, on_field, &head);
        if (head.id)
            (void)snprintf(k->x.id, sizeof k->x.id, "%s", head.id);
        else
            make_id(&k->x);
        k->x.knows_context_stop = head.knows_context_stop;
        session_of_headers(&head.session, k->x.record.session);
        k->x.record.is_background = head.session.is_background;
        if (!check_head(k, &head) &&
            (k->must_close || k->x.failure.condition == BODY_TOO_LARGE ||
             (head.expect && strcasecmp(head.expect, "100-continue") == 0)))
            return send_reply(k);
        return MHD_YES;
    }
    if (*n_bytes) {
        take_body(k, bytes, *n_bytes);
        *n_bytes = 0;
        return MHD_YES;
    }
    return answer(k);
}

static void on_completed(void *cls, struct MHD_Connection *mc, void **context,
                         enum MHD_RequestTerminationCode code)
{
    struct call *k = *context;
    *context = NULL;
    if (!k)
        return;
    set_stage(cls, k->c, STAGE_IDLE);
    if (code == MHD_REQUEST_TERMINATED_COMPLETED_OK)
        set_idle(cls, mc, true);
    pthread_mutex_lock(&k->lock);
    k->is_gone = true;
    pthread_mutex_unlock(&k->lock);
    drop(k);
}

/* ---- Opening -------------------------------------------------------------------------------- */

static void no_log(void *cls, const char *fmt, va_list ap)
{
    (void)cls;
    (void)fmt;
    (void)ap;
}

/* 1.2 and 1.3, in the order that the server prefers. */
static const char tls_priorities[] =
    "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:%SERVER_PRECEDENCE";

static lathe_status start(struct http *h, lathe_error *err)
{
    const struct server_options *o = &h->server->options;
    const int64_t *most = o->limits.of;
    const struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_CERT_CALLBACK, 0, (void *)(uintptr_t)certificate_show},
        {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t)tls_priorities},
        {MHD_OPTION_END, 0, NULL},
    };
    const struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME |
                     MHD_USE_ERROR_LOG | (o->tls_cert ? (unsigned)MHD_USE_TLS : 0u);
    h->daemon = MHD_start_daemon(
        flags, (uint16_t)h->port, NULL, NULL, on_request, h, MHD_OPTION_EXTERNAL_LOGGER, no_log,
        NULL, MHD_OPTION_LISTEN_SOCKET, h->listener.fd, MHD_OPTION_NOTIFY_CONNECTION, on_connection,
        h, MHD_OPTION_URI_LOG_CALLBACK, on_uri, h, MHD_OPTION_NOTIFY_COMPLETED, on_completed, h,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)(most[LIMIT_CONNECTIONS] + MORE_CONNECTIONS),
        MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)(most[LIMIT_LINE] + most[LIMIT_HEADER] + CONNECTION_MEMORY),
        MHD_OPTION_CONNECTION_TIMEOUT, busy_timeout_s(o), MHD_OPTION_ARRAY,
        o->tls_cert ? tls : none, MHD_OPTION_END);
    if (h->daemon)
        return LATHE_OK;
    return fail(err, LATHE_E_IO, "cannot serve %s port %d: libmicrohttpd refused", o->host,
                (int)h->port);
}

lathe_status http_open(struct http **out, struct server *s, lathe_error *err)
{
    struct http *h = calloc(1, sizeof *h);
    if (!h)
        return fail_memory(err, sizeof *h);
    h->server = s;
    h->listener.fd = -1;
    size_t most = (size_t)s->options.limits.of[LIMIT_CONNECTIONS] + MORE_CONNECTIONS;
    h->polled = calloc(most, sizeof *h->polled);
    (void)pthread_mutex_init(&h->lock, NULL);
    (void)pthread_cond_init(&h->idle, NULL);
    (void)pthread_cond_init(&h->turn, NULL);
    lathe_status st = h->polled ? LATHE_OK : fail_memory(err, most * sizeof *h->polled);
    if (!st && s->options.listener)
        h->listener = *s->options.listener;
    else if (!st)
        st = listen_open(&h->listener, s->options.host, s->options.port, err);
    h->port = listen_port(&h->listener);
    if (!st)
        st = start(h, err);
    if (!st && pthread_create(&h->watchdog, NULL, watch, h) != 0)
        st = fail(err, LATHE_E_MEMORY, "cannot start a thread");
    else
        h->is_watched = !st;
    if (st)
        http_close(h);
    else
        *out = h;
    return st;
}

int32_t http_port(const struct http *h)
{
    return h->port;
}

/* A job runs, or a reply is on its way. */
static bool is_busy(const struct http *h)
{
    bool busy = h->n_jobs > 0;
    for (const struct connection *c = h->first; c && !busy; c = c->next)
        busy = c->stage == STAGE_REPLY;
    return busy;
}

void http_give_socket(struct http *h, struct listener *out)
{
    (void)MHD_quiesce_daemon(h->daemon);
    *out = h->listener;
    h->listener = (struct listener){.fd = -1};
}

void http_drain(struct http *h, int64_t timeout_ms)
{
    struct timespec until;
    until_in(&until, timeout_ms);
    pthread_mutex_lock(&h->lock);
    while (is_busy(h) && pthread_cond_timedwait(&h->idle, &h->lock, &until) == 0)
        continue;
    pthread_mutex_unlock(&h->lock);
    atomic_store(&h->must_end, true);
    /* The last words of what is ended now are still sent. */
    until_in(&until, LAST_WORDS_MS);
    pthread_mutex_lock(&h->lock);
    while (is_busy(h) && pthread_cond_timedwait(&h->idle, &h->lock, &until) == 0)
        continue;
    pthread_mutex_unlock(&h->lock);
}

void http_close(struct http *h)
{
    if (!h)
        return;
    /* A job holds a suspended connection, with which the library must not be stopped. */
    atomic_store(&h->must_end, true);
    pthread_mutex_lock(&h->lock);
    while (h->n_jobs > 0)
        pthread_cond_wait(&h->idle, &h->lock);
    h->stop = true;
    pthread_mutex_unlock(&h->lock);
    if (h->is_watched)
        (void)pthread_join(h->watchdog, NULL);
    listen_remove(&h->listener);
    if (h->daemon)
        MHD_stop_daemon(h->daemon);
    pthread_cond_destroy(&h->idle);
    pthread_cond_destroy(&h->turn);
    pthread_mutex_destroy(&h->lock);
    free(h->polled);
    free(h);
}

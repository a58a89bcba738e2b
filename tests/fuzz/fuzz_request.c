/* Any bytes as requests of clients, one after another, against one server over the fake engine: method and URL, headers,
 * an empty line and a body; "\n====\n" parts requests. So ids that a reply has can come back. A request is refused in one of
 * the two shapes, or its reply is JSON or text, or a stream of events whose data are JSON and whose last is its
 * dialect's. HTTP itself is not in it: what http.c does for handlers is done here. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "server/guard.h"
#include "server/route.h"
#include "server/state.h"
#include "server/url.h"
#include "tests/server/fake_engine.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* ---- In place of http.c --------------------------------------------------------------------- */

struct http {
    int32_t port;
};

static struct http no_http;
static struct buf stream;
static bool is_streaming, is_broken;

lathe_status http_open(struct http **h, struct server *s, lathe_error *err)
{
    (void)s;
    (void)err;
    *h = &no_http;
    return LATHE_OK;
}

int32_t http_port(const struct http *h)
{
    return h->port;
}

void http_give_socket(struct http *h, struct listener *out)
{
    (void)h;
    (void)out;
}

void http_drain(struct http *h, int64_t timeout_ms)
{
    (void)h;
    (void)timeout_ms;
}

void http_close(struct http *h)
{
    (void)h;
}

void stream_begin(struct exchange *x)
{
    (void)x;
    is_streaming = true;
}

bool stream_begun(const struct exchange *x)
{
    (void)x;
    return is_streaming;
}

bool stream_write(struct exchange *x, struct buf *bytes)
{
    (void)x;
    buf_append(&stream, buf_str(bytes), bytes->len);
    buf_clear(bytes);
    return true;
}

void stream_break(struct exchange *x)
{
    (void)x;
    is_broken = true;
}

enum peer stream_peer(struct exchange *x)
{
    (void)x;
    return PEER_THERE;
}

bool stream_must_end(const struct exchange *x)
{
    (void)x;
    return false;
}

/* ---- What comes out ------------------------------------------------------------------------- */

static void require_json(const char *s, size_t n)
{
    struct json_doc d;
    lathe_error err;
    lathe_status st = json_read(&d, s, n, &json_limits_request, &err);
    require(!st || st == LATHE_E_LIMIT);
    json_release(&d);
}

static void require_events(const char *s, size_t n)
{
    const char *end = s + n, *last = "";
    require(n >= 2 && end[-1] == '\n' && end[-2] == '\n');
    for (const char *line = s; line < end;) {
        size_t len = strcspn(line, "\n");
        if (strncmp(line, "data: ", 6) == 0 && strncmp(line, "data: [DONE]", 12) != 0)
            require_json(line + 6, len - 6);
        if (len && line[0] != ':' && (line == s || line[-1] == '\n'))
            last =
                strncmp(line, "data: ", 6) == 0 && strncmp(last, "event: ", 7) == 0 ? last : line;
        line += len + 1;
    }
    require(strncmp(last, "data: [DONE]", 12) == 0 ||
            strncmp(last, "event: message_stop", 19) == 0 ||
            strncmp(last, "event: error", 12) == 0 ||
            strncmp(last, "event: response.completed", 25) == 0 ||
            strncmp(last, "event: response.incomplete", 26) == 0 ||
            strncmp(last, "event: response.failed", 22) == 0);
}

static void check_reply(struct exchange *x)
{
    if (is_streaming) {
        require(!is_broken);
        if (x->type)
            require_events(buf_str(&stream), stream.len);
        else
            require_json(buf_str(&stream), stream.len);
        return;
    }
    if (x->failure.condition != FINE) {
        require(x->failure.message[0] && failure_http(x->failure.condition) >= 400);
        buf_clear(&x->reply);
        failure_print(&x->reply, &x->failure, x->shape, x->id);
    }
    if (x->failure.condition != FINE || !x->type)
        require_json(buf_str(&x->reply), x->reply.len);
}

/* ---- One request ---------------------------------------------------------------------------- */

struct input {
    char *at; /* ends with a NUL */
};

/* Up to the end of the line, which becomes a NUL; "" at the end. */
static char *take_line(char **at)
{
    char *line = *at;
    size_t n = strcspn(line, "\n");
    *at = line + n + (line[n] == '\n');
    line[n] = 0;
    return line;
}

struct head {
    const char *host, *origin, *authorization, *x_api_key;
};

static void take_headers(char **at, struct head *h)
{
    static const char *const name[] = {"host: ", "origin: ", "authorization: ", "x-api-key: "};
    const char **value[] = {&h->host, &h->origin, &h->authorization, &h->x_api_key};
    for (char *line; *(line = take_line(at));)
        for (size_t i = 0; i < 4; i++)
            if (strncmp(line, name[i], strlen(name[i])) == 0)
                *value[i] = line + strlen(name[i]);
}

static void one_request(struct server *s, char *request)
{
    struct exchange x = {.server = s};
    struct head h = {NULL, NULL, NULL, NULL};
    int allow;
    char *line = take_line(&request);
    size_t n_method = strcspn(line, " ");
    const char *url = line + n_method + (line[n_method] == ' ');
    line[n_method] = 0;
    size_t n = strcspn(url, "?");
    take_headers(&request, &h);
    char *path = malloc(n + 2);
    require(path);
    x.method = line;
    x.path = path;
    x.query = url[n] ? url + n + 1 : "";
    memcpy(x.id, "req_1", 6);
    buf_init(&x.body, 1 << 20);
    buf_append(&x.body, request, strlen(request));
    buf_init(&x.reply, 1 << 28);
    buf_init(&x.unknown, MAX_LISTED_BYTES);
    buf_init(&x.warnings, MAX_LISTED_BYTES);
    buf_init(&x.ignored, MAX_LISTED_BYTES);
    buf_init(&x.trace, 1 << 20);
    buf_init(&stream, 1 << 28);
    is_streaming = is_broken = false;
    bool is_allowed = !h.host || host_allowed(h.host, s->options.host, &s->options.allowed_host);
    if (h.host && h.origin)
        (void)origin_check(h.origin, h.host, &s->options.cors_origin);
    bool has_key = server_knows_key(s, h.authorization, h.x_api_key, &x.owner);
    bool is_path = path_decode(url, n, path);
    x.shape = is_path ? route_shape(path) : SHAPE_OPENAI;
    if (is_allowed && is_path && strcmp(line, "OPTIONS") != 0) {
        if (route_find(&x, &allow) && (x.route->no_key || has_key))
            x.route->handle(&x);
        if (has_key)
            check_reply(&x);
    }
    free(path);
    buf_release(&x.body);
    buf_release(&x.reply);
    buf_release(&x.unknown);
    buf_release(&x.warnings);
    buf_release(&x.ignored);
    buf_release(&x.trace);
    buf_release(&stream);
}

static int n_ids;

static void next_id(char out[25])
{
    (void)snprintf(out, 25, "%024d", ++n_ids);
}

static int64_t no_time(void)
{
    return 1700000000;
}

static lathe_engine *engine_of(const char *model)
{
    static lathe_engine *engine;
    lathe_error err;
    if (!engine) {
        require(!fake_engine_open(&engine, model, &err));
        fake_engine_script(engine, "accepted 5 2\nprogress 5 5\ntoken 10 -0.5 11 -0.75\nraw a\n"
                                   "token 12 -1\nraw </think>\nstep\nraw b<tool_call>\n"
                                   "raw <function=f><parameter=x>1</parameter></function>\n"
                                   "raw </tool_call>\nend_token 13 -1\nfinish stop 5 2 3 2\n");
    }
    return engine;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char parting[] = "\n====\n";
    struct server_options o;
    struct server *s;
    lathe_error err;
    char *all = malloc(size + 1);
    require(all);
    if (size)
        memcpy(all, data, size);
    all[size] = 0;
    server_options_init(&o);
    o.model_dir = "models/nano";
    o.n_ctx = 512;
    o.n_slots = 2;
    o.n_queue = 2;
    o.now = no_time;
    o.id = next_id;
    n_ids = 0;
    lathe_engine *engine = engine_of(o.model_dir);
    require(!server_open(&s, &o, &err));
    s->engine = engine; /* without the thread that reads the weights */
    atomic_store(&s->phase, PHASE_READY);
    for (char *at = all; at;) {
        char *end = strstr(at, parting);
        if (end)
            *end = 0;
        one_request(s, at);
        at = end ? end + strlen(parting) : NULL;
    }
    server_close(s);
    free(all);
    return 0;
}

#include "rig.h"

#include <arpa/inet.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "fake_engine.h"
#include "test.h"

static int64_t fixed_now(void)
{
    return 1700000000;
}

static void fixed_id(char out[25])
{
    memcpy(out, "AAAAAAAAAAAAAAAAAAAAAAAA", 25);
}

void open_rig(struct rig *r, const struct server_options *with)
{
    struct server_options o;
    lathe_error err;
    server_options_init(&o);
    if (with)
        o = *with;
    o.port = 0;
    o.model_dir = test_path("models/nano");
    o.n_ctx = o.n_ctx ? o.n_ctx : 512;
    o.n_slots = o.n_slots ? o.n_slots : 2;
    o.n_queue = o.n_queue ? o.n_queue : 2;
    o.now = fixed_now;
    o.id = fixed_id;
    o.fingerprint = "fp_bf8a26dad797";
    CHECK_OK(fake_engine_open(&r->engine, o.model_dir, &err), &err);
    CHECK_OK(server_open(&r->server, &o, &err), &err);
    server_ready(r->server, r->engine);
}

void close_rig(struct rig *r)
{
    server_close(r->server);
    CHECK_INT(fake_engine_open_requests(r->engine), 0);
    lathe_engine_close(r->engine);
}

/* ---- A client ------------------------------------------------------------------------------- */

static const char interim_response[] = "HTTP/1.1 100 Continue\r\n\r\n";

int connect_to(const struct rig *r)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)server_port(r->server)),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
    return fd;
}

void send_to(int fd, const char *path, const char *body)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    buf_printf(&b,
               "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
               "Content-Length: %zu\r\n\r\n%s",
               path, strlen(body), body);
    CHECK(write(fd, b.data, b.len) == (ssize_t)b.len);
    buf_release(&b);
}

void send_request(int fd, const char *body)
{
    send_to(fd, "/v1/chat/completions", body);
}

void receive(int fd, struct buf *out)
{
    char piece[4096];
    ssize_t n;
    buf_init(out, 1 << 24);
    while ((n = read(fd, piece, sizeof piece)) > 0)
        buf_append(out, piece, (size_t)n);
    (void)close(fd);
    const size_t n_interim = strlen(interim_response);
    while (strncmp(buf_str(out), interim_response, n_interim) == 0) {
        out->len -= n_interim;
        memmove(out->data, out->data + n_interim, out->len);
        out->data[out->len] = 0;
    }
}

/* The chunks joined, in place; false if the last one is missing. */
bool join_chunks(char *s)
{
    char *to = s, *end;
    for (;;) {
        size_t n = strtoul(s, &end, 16);
        if (end == s || strncmp(end, "\r\n", 2) != 0) {
            *to = 0;
            return false;
        }
        if (n == 0) {
            *to = 0;
            return true;
        }
        memmove(to, end + 2, n);
        to += n;
        s = end + 2 + n + 2;
    }
}

/* The body of the answer to `body`; a heap string. */
char *ask_at(const struct rig *r, const char *path, const char *body, int *status, bool *ended)
{
    struct buf b;
    int fd = connect_to(r);
    send_to(fd, path, body);
    receive(fd, &b);
    char *head = strstr(buf_str(&b), "\r\n\r\n");
    CHECK(head && sscanf(b.data, "HTTP/1.1 %d", status) == 1);
    *head = 0;
    *ended = true;
    if (strstr(b.data, "chunked"))
        *ended = join_chunks(head + 4);
    char *copy = strdup(head + 4);
    buf_release(&b);
    return copy;
}

char *ask(const struct rig *r, const char *body, int *status, bool *ended)
{
    return ask_at(r, "/v1/chat/completions", body, status, ended);
}

char *with_stream(const char *request, bool stream)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    buf_printf(&b, "{\"stream\":%s,%s", stream ? "true" : "false", request + 1);
    return b.data;
}

double seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void wait_for_requests(const struct rig *r, int n, double at_most)
{
    double start = seconds();
    const struct timespec pause = {.tv_nsec = 5000000};
    while (fake_engine_open_requests(r->engine) != n) {
        if (seconds() - start > at_most)
            FAIL("%d requests are open, expected %d", fake_engine_open_requests(r->engine), n);
        (void)nanosleep(&pause, NULL);
    }
}

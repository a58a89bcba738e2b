#include "client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"

enum { MOST = 64 << 20 };

struct client {
    struct client_target target;
    int fd;          /* -1: none */
    struct buf in;   /* as it came */
    struct buf body; /* the chunks joined, what is not a whole line yet */
    double *at;
    size_t n_at, room;
};

double client_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

struct client *client_open(const struct client_target *t)
{
    struct client *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->target = *t;
    c->fd = -1;
    buf_init(&c->in, MOST);
    buf_init(&c->body, MOST);
    return c;
}

static void disconnect(struct client *c)
{
    if (c->fd >= 0)
        (void)close(c->fd);
    c->fd = -1;
}

void client_close(struct client *c)
{
    disconnect(c);
    buf_release(&c->in);
    buf_release(&c->body);
    free(c->at);
    free(c);
}

static bool connect_to(struct client *c)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)c->target.port)};
    const int on = 1;
    if (c->fd >= 0)
        return true;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd >= 0 && inet_pton(AF_INET, c->target.host, &a.sin_addr) == 1 &&
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0 &&
        connect(c->fd, (struct sockaddr *)&a, sizeof a) == 0)
        return true;
    disconnect(c);
    return false;
}

static bool send_all(struct client *c, const char *body, size_t n)
{
    struct buf b;
    buf_init(&b, MOST);
    buf_printf(&b, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n");
    if (c->target.key)
        buf_printf(&b, "Authorization: Bearer %s\r\n", c->target.key);
    buf_printf(&b, "Content-Length: %zu\r\n\r\n", n);
    buf_append(&b, body, n);
    size_t at = 0;
    while (at < b.len) {
        ssize_t k = send(c->fd, b.data + at, b.len - at, MSG_NOSIGNAL);
        if (k <= 0)
            break;
        at += (size_t)k;
    }
    bool ok = at == b.len && !b.over && !b.no_memory;
    buf_release(&b);
    return ok;
}

static bool receive(struct client *c)
{
    char piece[16384];
    ssize_t n = recv(c->fd, piece, sizeof piece, 0);
    if (n > 0)
        buf_append(&c->in, piece, (size_t)n);
    return n > 0 && !c->in.over && !c->in.no_memory;
}

static void drop(struct buf *b, size_t n)
{
    memmove(b->data, b->data + n, b->len - n + 1);
    b->len -= n;
}

/* The first bytes are the head; its length, 0 if it is not whole. */
static size_t head_length(const struct client *c)
{
    const char *end = strstr(buf_str(&c->in), "\r\n\r\n");
    return end ? (size_t)(end - c->in.data) + 4 : 0;
}

static void note_piece(struct client *c, double when)
{
    if (c->n_at == c->room) {
        size_t room = c->room ? 2 * c->room : 1024;
        double *more = realloc(c->at, room * sizeof *more);
        if (!more)
            return;
        c->at = more;
        c->room = room;
    }
    c->at[c->n_at++] = when;
}

/* Is the string at the member not empty? */
static bool says(const char *line, const char *member)
{
    const char *at = strstr(line, member);
    return at && at[strlen(member)] != '"';
}

static double number(const char *line, const char *member, double other)
{
    const char *at = strstr(line, member);
    return at ? strtod(at + strlen(member), NULL) : other;
}

static void take_line(struct client *c, const char *line, double when, struct client_answer *out)
{
    if (strncmp(line, "data: ", 6) != 0)
        return;
    if (strcmp(line, "data: [DONE]") == 0)
        out->ended = true;
    else if (says(line, "\"reasoning_content\":\"") || says(line, "\"content\":\"") ||
             strstr(line, "\"tool_calls\":["))
        note_piece(c, when);
    out->prompt_tokens = (int32_t)number(line, "\"usage\":{\"prompt_tokens\":", out->prompt_tokens);
    out->completion_tokens =
        (int32_t)number(line, "\"completion_tokens\":", out->completion_tokens);
    out->prompt_ms = number(line, "\"prompt_ms\":", out->prompt_ms);
}

static void take_lines(struct client *c, double when, struct client_answer *out)
{
    char *end;
    size_t used = 0;
    while (c->body.len > used && (end = strchr(c->body.data + used, '\n'))) {
        *end = 0;
        take_line(c, c->body.data + used, when, out);
        used = (size_t)(end - c->body.data) + 1;
    }
    if (used)
        drop(&c->body, used);
}

/* Moves whole chunks to the body. True at the last one. */
static bool take_chunks(struct client *c)
{
    for (;;) {
        char *end;
        const char *s = buf_str(&c->in), *line = strstr(s, "\r\n");
        if (!line)
            return false;
        size_t n = strtoul(s, &end, 16), head = (size_t)(line - s) + 2;
        if (c->in.len < head + n + 2)
            return false;
        buf_append(&c->body, s + head, n);
        drop(&c->in, head + n + 2);
        if (n == 0)
            return true;
    }
}

/* One attempt. False if the connection turned out to be closed before anything came. */
static bool try_to_ask(struct client *c, const char *body, size_t n, struct client_answer *out)
{
    size_t head = 0;
    bool is_over = false;
    *out = (struct client_answer){.status = 0};
    c->n_at = 0;
    buf_clear(&c->in);
    buf_clear(&c->body);
    if (!connect_to(c))
        return true;
    double start = client_now();
    if (send_all(c, body, n))
        while (head == 0 && receive(c))
            head = head_length(c);
    if (c->in.len == 0) {
        disconnect(c);
        return false;
    }
    bool closes = head && strstr(c->in.data, "Connection: close");
    bool is_chunked = head && strstr(c->in.data, "chunked");
    if (head)
        out->status = atoi(c->in.data + strcspn(c->in.data, " "));
    if (head)
        drop(&c->in, head);
    while (is_chunked && !is_over) {
        is_over = take_chunks(c);
        take_lines(c, client_now() - start, out);
        if (!is_over && !receive(c))
            break;
    }
    if (!is_over || closes)
        disconnect(c);
    out->at = c->at;
    out->n_at = c->n_at;
    out->first = c->n_at ? c->at[0] : 0;
    out->last = client_now() - start;
    return true;
}

void client_ask(struct client *c, const char *body, size_t n, struct client_answer *out)
{
    /* The server closes connections that are idle. */
    bool is_kept = c->fd >= 0;
    if (!try_to_ask(c, body, n, out) && is_kept)
        (void)try_to_ask(c, body, n, out);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void sort_numbers(double *x, size_t n)
{
    if (n)
        qsort(x, n, sizeof *x, by_size);
}

double percentile(double *x, size_t n, double p)
{
    sort_numbers(x, n);
    if (n == 0)
        return 0;
    size_t i = (size_t)(p * (double)n);
    return x[i < n ? i : n - 1];
}

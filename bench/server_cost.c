/* What the server costs beside the engine, with the same prompts through both:
 *
 *   server_cost -m DIR [-n REQUESTS] [--tokens N] [--spec NAME]
 *
 * The server runs in this process, over one engine thread, with the server's own speculation unless --spec says
 * another, and its client in another. Processor time of the process is taken, less that of the engine's own threads;
 * requests of one token and of N + 1 (256) give what a request and what a token take. Through the library alone the
 * same is measured, and its difference is the server's. Beside it stands what the kernel takes to send as many chunks
 * of that size to a process that waits for them, from the thread that gets the tokens: no server streams for less. Then
 * the time from sending a request to the first piece of its answer, less the engine's own prefill time of that request.
 * Medians. */
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "client.h"
#include "server/server.h"

enum { MAX_THREADS = 64, ROUNDS = 5, CHUNK = 270 };

struct options {
    const char *model, *spec; /* spec NULL: what the engine does by itself, as in lathe serve */
    int n, tokens;
};

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "server_cost: %s\n", what);
    exit(1);
}

/* ---- Processor time ------------------------------------------------------------------------- */

static long engine_thread[MAX_THREADS];
static int n_engine_threads;

/* All threads of the process now but this one. */
static void note_engine_threads(void)
{
    DIR *d = opendir("/proc/self/task");
    struct dirent *e;
    while (d && (e = readdir(d))) {
        long id = atol(e->d_name);
        if (id > 0 && id != (long)getpid() && n_engine_threads < MAX_THREADS)
            engine_thread[n_engine_threads++] = id;
    }
    if (!d || closedir(d) != 0 || n_engine_threads == 0)
        die("/proc/self/task tells of no threads");
}

/* Seconds that the engine's threads had. */
static double engine_time(void)
{
    double sum = 0;
    for (int i = 0; i < n_engine_threads; i++) {
        char path[80];
        unsigned long long ns = 0;
        (void)snprintf(path, sizeof path, "/proc/self/task/%ld/schedstat", engine_thread[i]);
        FILE *f = fopen(path, "r");
        if (!f || fscanf(f, "%llu", &ns) != 1)
            die("/proc/self/task/N/schedstat cannot be read");
        (void)fclose(f);
        sum += (double)ns * 1e-9;
    }
    return sum;
}

struct times {
    double own, engine; /* seconds of processor time */
};

static struct times times_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    struct times now = {.engine = engine_time()};
    now.own = (double)t.tv_sec + (double)t.tv_nsec * 1e-9 - now.engine;
    return now;
}

/* ---- The two ways --------------------------------------------------------------------------- */

#define PROMPT                                                                                     \
    "Tell me in a few sentences what a kiln is, what it is made of, and what people have burned "  \
    "in "

/* The same prompts in both; they differ in their last word, so that none of the state is reused. */
static void question(char out[200], int i)
{
    (void)snprintf(out, 200, PROMPT "%d of them.", i);
}

/* sink: a socket that gets as many bytes for every piece as a chunk of a stream has; -1: none. */
static double ask_library(lathe_engine *e, int i, int tokens, int sink)
{
    static const char chunk[CHUNK];
    char text[200], messages[300];
    lathe_request_options o;
    lathe_request *r;
    lathe_error err;
    lathe_event ev;
    question(text, i);
    (void)snprintf(messages, sizeof messages, "[{\"role\":\"user\",\"content\":\"%s\"}]", text);
    lathe_conversation c = {.messages = messages};
    lathe_request_options_init(lathe_engine_text(e), true, &o);
    o.conversation = &c;
    o.sampling.temperature = 0;
    o.max_tokens = tokens;
    o.ignore_eos = true;
    o.no_prefix_reuse = true;
    if (lathe_request_submit(e, &o, &r, &err))
        die(err.message);
    do {
        lathe_request_next(r, -1, &ev);
        if (sink >= 0 && ev.n_text && send(sink, chunk, sizeof chunk, MSG_NOSIGNAL) < 0)
            die("nobody reads what is sent");
    } while (ev.type != LATHE_EVENT_FINISH);
    lathe_request_close(r);
    return ev.usage.prefill_ms;
}

static size_t make_body(char *body, size_t room, int i, int tokens)
{
    char text[200];
    question(text, i);
    return (size_t)snprintf(
        body, room,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],\"stream\":true,"
        "\"temperature\":0,\"max_tokens\":%d,\"ignore_eos\":true,"
        "\"cache_prompt\":false}",
        text, tokens);
}

/* In the client's process: one request for each number that comes, answered by how long the first piece took beyond the
 * engine's prefill, in milliseconds. */
static _Noreturn void serve_client(int from, int to, int port)
{
    struct client_target t = {.host = "127.0.0.1", .port = port};
    struct client *c = client_open(&t);
    struct client_answer a;
    int order[2];
    char body[600];
    while (c && read(from, order, sizeof order) == (ssize_t)sizeof order) {
        client_ask(c, body, make_body(body, sizeof body, order[0], order[1]), &a);
        double late = a.status == 200 && a.ended && a.n_at ? a.first * 1e3 - a.prompt_ms : -1;
        if (write(to, &late, sizeof late) != (ssize_t)sizeof late)
            break;
    }
    _exit(0);
}

struct rig {
    lathe_engine *engine;
    struct server *server;
    int to_client, from_client;
    int sink; /* a socket over loopback; a process reads it */
    pid_t client, reader;
};

static void open_sink(struct rig *r)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    const int on = 1;
    char piece[4096];
    int l = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);
    if (l < 0 || fd < 0 || bind(l, (struct sockaddr *)&a, n) != 0 || listen(l, 1) != 0 ||
        getsockname(l, (struct sockaddr *)&a, &n) != 0 ||
        connect(fd, (struct sockaddr *)&a, n) != 0)
        die("no socket");
    r->reader = fork();
    if (r->reader < 0)
        die("no process");
    if (r->reader == 0) {
        (void)close(fd);
        int from = accept(l, NULL, NULL);
        while (read(from, piece, sizeof piece) > 0)
            continue;
        _exit(0);
    }
    (void)close(l);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    r->sink = fd;
}

static double ask_server(struct rig *r, int i, int tokens)
{
    const int order[2] = {i, tokens};
    double late;
    if (write(r->to_client, order, sizeof order) != (ssize_t)sizeof order ||
        read(r->from_client, &late, sizeof late) != (ssize_t)sizeof late || late == -1)
        die("the server did not answer as it should");
    return late;
}

static void open_rig(struct rig *r, const struct options *o)
{
    lathe_engine_options eo;
    struct server_options so;
    lathe_error err;
    int to[2], from[2];
    lathe_engine_options_init(&eo);
    eo.model_dir = o->model;
    eo.n_ctx = 1024 + o->tokens;
    eo.n_threads = 1;
    eo.spec = o->spec;
    if (lathe_engine_open(&r->engine, &eo, &err))
        die(err.message);
    note_engine_threads();
    open_sink(r);
    server_options_init(&so);
    so.port = 0;
    so.model_dir = o->model;
    so.n_ctx = eo.n_ctx;
    so.n_slots = 1;
    so.n_queue = 8;
    if (server_open(&r->server, &so, &err))
        die(err.message);
    if (pipe(to) != 0 || pipe(from) != 0)
        die("no pipe");
    r->client = fork();
    if (r->client < 0)
        die("no process");
    if (r->client == 0) {
        (void)close(to[1]);
        (void)close(from[0]);
        (void)close(r->sink);
        serve_client(to[0], from[1], server_port(r->server));
    }
    (void)close(to[0]);
    (void)close(from[1]);
    r->to_client = to[1];
    r->from_client = from[0];
    server_ready(r->server, r->engine);
}

static void close_rig(struct rig *r)
{
    (void)close(r->to_client);
    (void)waitpid(r->client, NULL, 0);
    (void)close(r->from_client);
    (void)close(r->sink);
    (void)waitpid(r->reader, NULL, 0);
    server_close(r->server);
    lathe_engine_close(r->engine);
}

/* ---- Figures -------------------------------------------------------------------------------- */

/* Processor time of a request, in seconds: all threads but the engine's, and the engine's. */
enum way { BY_SERVER, BY_LIBRARY, BY_SENDS };
static struct times cost(struct rig *r, enum way way, int first, int n, int tokens)
{
    struct times before = times_now();
    for (int i = 0; i < n; i++)
        if (way == BY_SERVER)
            (void)ask_server(r, first + i, tokens);
        else
            (void)ask_library(r->engine, first + i, tokens, way == BY_SENDS ? r->sink : -1);
    struct times after = times_now();
    return (struct times){(after.own - before.own) / n, (after.engine - before.engine) / n};
}

static void measure_cost(struct rig *r, const struct options *o)
{
    double token[ROUNDS], request[ROUNDS], sends[ROUNDS];
    int n = o->n / 10 > 0 ? o->n / 10 : 1;
    for (int i = 0; i < ROUNDS; i++) {
        int at = 1000 * i;
        struct times short_server = cost(r, BY_SERVER, at, o->n, 1);
        struct times short_library = cost(r, BY_LIBRARY, at, o->n, 1);
        struct times server = cost(r, BY_SERVER, at, n, 1 + o->tokens);
        struct times library = cost(r, BY_LIBRARY, at, n, 1 + o->tokens);
        struct times with_sends = cost(r, BY_SENDS, at, n, 1 + o->tokens);
        request[i] = (short_server.own - short_library.own) * 1e3;
        token[i] =
            ((server.own - short_server.own) - (library.own - short_library.own)) / o->tokens * 1e6;
        sends[i] = (with_sends.own - library.own) / (1 + o->tokens) * 1e6;
    }
    printf("processor time of the server: %.3f ms a request, %.2f us a token (medians of %d)\n",
           percentile(request, ROUNDS, 0.5), percentile(token, ROUNDS, 0.5), ROUNDS);
    sort_numbers(sends, ROUNDS);
    printf("a token takes %.2f to %.2f us; as many bare sends over loopback, %.2f (%.2f to %.2f)\n",
           token[0], token[ROUNDS - 1], percentile(sends, ROUNDS, 0.5), sends[0],
           sends[ROUNDS - 1]);
}

static void measure_first(struct rig *r, const struct options *o)
{
    double *late = calloc((size_t)o->n, sizeof *late);
    if (!late)
        die("out of memory");
    for (int i = 0; i < o->n; i++)
        late[i] = ask_server(r, 100000 + i, 8);
    printf("first piece over loopback, beyond the engine's prefill: %.3f ms (median of %d; p90 "
           "%.3f)\n",
           percentile(late, (size_t)o->n, 0.5), o->n, percentile(late, (size_t)o->n, 0.9));
    free(late);
}

int main(int argc, char **argv)
{
    struct options o = {.n = 100, .tokens = 255};
    struct rig r;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!value)
            die("every option takes a value");
        if (strcmp(argv[i], "-m") == 0)
            o.model = value;
        else if (strcmp(argv[i], "-n") == 0)
            o.n = atoi(value);
        else if (strcmp(argv[i], "--tokens") == 0)
            o.tokens = atoi(value);
        else if (strcmp(argv[i], "--spec") == 0)
            o.spec = value;
        else
            die("unknown option; the file's head lists them");
    }
    if (!o.model || o.n < 1 || o.n > 1000 || o.tokens < 1)
        die("usage: server_cost -m DIR [-n REQUESTS] [--tokens N] [--spec NAME]");
    open_rig(&r, &o);
    for (int i = 0; i < 5; i++)
        (void)ask_server(&r, i, 8);
    measure_cost(&r, &o);
    measure_first(&r, &o);
    close_rig(&r);
    return 0;
}

/* What a streamed step, and a request, cost the server, in calls and not in time: of the system, of libmicrohttpd (each wakes its thread), and
 * for memory. Linked with --wrap, so that what the server's objects call is counted here; what a stream of many steps has more
 * than one of few belongs to the steps. */
#include <limits.h>
#include <microhttpd.h>
#include <poll.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "fake_engine.h"
#include "rig.h"
#include "test.h"

/* ---- Counting ------------------------------------------------------------------------------- */

enum call { SEND, WAIT, RING, OTHER, ALLOC, N_CALLS };
static const char *const call_name[] = {"sends", "waits", "rings", "other calls of the system",
                                        "allocations"};
static _Atomic(long) calls[N_CALLS];
static _Thread_local bool is_client; /* this thread's are not counted */

static void count(enum call what)
{
    if (!is_client)
        atomic_fetch_add(&calls[what], 1);
}

/* The server's call of NAME comes here, and goes on to the real one. */
#define WRAP(what, type, name, parameters, arguments)                                              \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    type __wrap_##name parameters                                                                  \
    {                                                                                              \
        count(what);                                                                               \
        return __real_##name arguments;                                                            \
    }
WRAP(SEND, ssize_t, send, (int fd, const void *p, size_t n, int flags), (fd, p, n, flags))
WRAP(SEND, ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags), (fd, m, flags))
WRAP(SEND, ssize_t, write, (int fd, const void *p, size_t n), (fd, p, n))
WRAP(WAIT, int, sem_clockwait, (sem_t * s, clockid_t c, const struct timespec *t), (s, c, t))
WRAP(RING, int, sem_post, (sem_t * s), (s))
WRAP(OTHER, int, poll, (struct pollfd * p, nfds_t n, int ms), (p, n, ms))
WRAP(OTHER, ssize_t, recv, (int fd, void *p, size_t n, int flags), (fd, p, n, flags))
WRAP(OTHER, ssize_t, read, (int fd, void *p, size_t n), (fd, p, n))
WRAP(OTHER, int, nanosleep, (const struct timespec *t, struct timespec *left), (t, left))
WRAP(OTHER, int, pthread_cond_signal, (pthread_cond_t * c), (c))
WRAP(OTHER, int, pthread_cond_broadcast, (pthread_cond_t * c), (c))
WRAP(OTHER, int, pthread_cond_wait, (pthread_cond_t * c, pthread_mutex_t *m), (c, m))
WRAP(OTHER, enum MHD_Result, MHD_queue_response,
     (struct MHD_Connection * c, unsigned status, struct MHD_Response *r), (c, status, r))
WRAP(ALLOC, void *, malloc, (size_t n), (n))
WRAP(ALLOC, void *, calloc, (size_t n, size_t size), (n, size))
WRAP(ALLOC, void *, realloc, (void *p, size_t n), (p, n))

void __real_MHD_suspend_connection(struct MHD_Connection *c);
void __wrap_MHD_suspend_connection(struct MHD_Connection *c);
void __wrap_MHD_suspend_connection(struct MHD_Connection *c)
{
    count(OTHER);
    __real_MHD_suspend_connection(c);
}

void __real_MHD_resume_connection(struct MHD_Connection *c);
void __wrap_MHD_resume_connection(struct MHD_Connection *c);
void __wrap_MHD_resume_connection(struct MHD_Connection *c)
{
    count(OTHER);
    __real_MHD_resume_connection(c);
}

/* ---- Streams -------------------------------------------------------------------------------- */

static const struct row {
    const char *name, *path, *body;
    const char *begin;  /* of the script; what follows waits until the head has left */
    const char *piece;  /* one token's line */
    const char *finish; /* the end of the script */
    const char *delta;  /* what an event of a piece has */
    long allocations;   /* of a short answer, at most */
} rows[] = {
#define CHAT        "/v1/chat/completions"
#define ASK         "{\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"
#define FINISH      "finish stop 5 0 9 0\n"
#define CALL        "accepted 5 0\nreasoning_end\ncall call_1 f\nargs {\"a\": \"\n"
#define CALL_FINISH "args \"}\nend\nfinish calls 5 0 9 0\n"
    {"text of chat", CHAT, ASK "}", "accepted 5 0\nreasoning_end\ntext a\n", "text bc\n", FINISH,
     "\"content\":\"bc", 60},
    {"reasoning of chat", CHAT, ASK "}", "accepted 5 0\nreasoning a\n", "reasoning bc\n", FINISH,
     "\"reasoning_content\":\"bc", 60},
    {"arguments of chat", CHAT, ASK "}", CALL, "args bc\n", CALL_FINISH, "\"arguments\":\"bc", 60},
    {"log-probabilities of chat", CHAT, ASK ",\"logprobs\":true,\"top_logprobs\":2}",
     "accepted 5 0\nreasoning_end\ntoken 64 -1 64 -1 65 -2\ntext a\n",
     "token 64 -1 64 -1 65 -2\ntext bc\n", FINISH, "\"content\":\"bc", 60},
    {"completions", "/v1/completions", "{\"stream\":true,\"prompt\":\"a\"}",
     "accepted 5 0\ntext a\n", "text bc\n", FINISH, "\"text\":\"bc", 46},
    {"text of responses", "/v1/responses", "{\"stream\":true,\"input\":\"a\"}",
     "accepted 5 0\nreasoning_end\ntext a\n", "text bc\n", FINISH, "\"delta\":\"bc", 105},
    {"reasoning of responses", "/v1/responses", "{\"stream\":true,\"input\":\"a\"}",
     "accepted 5 0\nreasoning a\n", "reasoning bc\n", FINISH, "\"delta\":\"bc", 105},
    {"arguments of responses", "/v1/responses", "{\"stream\":true,\"input\":\"a\"}", CALL,
     "args bc\n", CALL_FINISH, "\"delta\":\"bc", 105},
    {"text of messages", "/v1/messages", ASK "}", "accepted 5 0\nreasoning_end\ntext a\n",
     "text bc\n", FINISH, "\"text\":\"bc", 66},
    {"reasoning of messages", "/v1/messages", ASK ",\"thinking\":{\"type\":\"adaptive\"}}",
     "accepted 5 0\nreasoning a\n", "reasoning bc\n", FINISH, "\"thinking\":\"bc", 66},
    {"arguments of messages", "/v1/messages", ASK "}", CALL, "args bc\n", CALL_FINISH,
     "\"partial_json\":\"bc", 66},
};
enum { N_ROWS = sizeof rows / sizeof *rows, TOKENS = 3, FEW = 100, MANY = 500 };

static int occurrences(const char *s, const char *what)
{
    int n = 0;
    for (; (s = strstr(s, what)); s += strlen(what))
        n++;
    return n;
}

/* What a stream of so many steps calls, of TOKENS each, all of which come in one event. The head has so many milliseconds
 * to leave. */
static void measure(const struct rig *r, const struct row *row, int steps, int head_ms,
                    long out[N_CALLS])
{
    struct buf script;
    int status;
    bool ended;
    buf_init(&script, 1 << 20);
    buf_printf(&script, "%sstep\npause %d\n", row->begin, head_ms);
    for (int i = 0; i < steps; i++) {
        for (int k = 0; k < TOKENS; k++)
            buf_puts(&script, row->piece);
        buf_puts(&script, "step\n");
    }
    buf_puts(&script, row->finish);
    fake_engine_script(r->engine, buf_str(&script));
    buf_release(&script);
    for (int i = 0; i < N_CALLS; i++)
        out[i] = atomic_load(&calls[i]);
    char *answer = ask_at(r, row->path, row->body, &status, &ended);
    wait_for_requests(r, 0, 20);
    for (int i = 0; i < N_CALLS; i++)
        out[i] = atomic_load(&calls[i]) - out[i];
    int n = occurrences(answer, row->delta);
    free(answer);
    if (status != 200 || !ended || n != steps)
        FAIL("%s, %d steps of %d tokens: %d events have %s", row->name, steps, TOKENS, n,
             row->delta);
}

/* Until they are hashed, which is work of another thread. */
static void wait_for_weights(const struct rig *r)
{
    static const char ask[] =
        "GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    for (bool done = false; !done;) {
        struct buf b;
        int fd = connect_to(r);
        CHECK(write(fd, ask, sizeof ask - 1) == (ssize_t)sizeof ask - 1);
        receive(fd, &b);
        done = strstr(buf_str(&b), "weights_sha256") && !strstr(b.data, "\"weights_sha256\":null");
        buf_release(&b);
    }
}

/* One send, one wait and no memory, however many tokens a step has: a round of speculation is one write. The watchdog, and the
 * looks at whether a client is there, add a call now and then. */
static void check_row(const struct rig *r, const struct row *row)
{
    static const double most[N_CALLS] = {1, 1, 1, 0, 0};
    const double now_and_then = 0.1;
    for (int head_ms = 150;; head_ms *= 2) {
        long few[N_CALLS], many[N_CALLS];
        double each[N_CALLS];
        int i = 0;
        measure(r, row, FEW, head_ms, few);
        measure(r, row, MANY, head_ms, many);
        for (int k = 0; k < N_CALLS; k++)
            each[k] = (double)(many[k] - few[k]) / (MANY - FEW);
        while (i < N_CALLS && each[i] <= most[i] + now_and_then)
            i++;
        if (i == N_CALLS)
            return;
        /* Before the head has left, the library sends what is written; on a machine without time that takes longer. */
        if (head_ms > 2000)
            FAIL("%s: %.2f %s a step, at most %.0f", row->name, each[i], call_name[i], most[i]);
    }
}

TEST(a_step_is_one_send_and_one_wait)
{
    struct rig r;
    is_client = true;
    open_rig(&r, NULL);
    wait_for_weights(&r);
    for (int i = 0; i < N_ROWS; i++)
        check_row(&r, &rows[i]);
    fake_engine_script(r.engine, "finish stop 5 0 9 0\n");
    close_rig(&r);
}

/* From the connection to its end, the fake engine's included; nothing runs beside it in the best of some. */
TEST(a_request_is_so_many_calls)
{
    struct rig r;
    is_client = true;
    open_rig(&r, NULL);
    wait_for_weights(&r);
    for (const struct row *row = rows; row < rows + N_ROWS; row++) {
        const long most[N_CALLS] = {4, 5, 3, 18, row->allocations};
        long best[N_CALLS] = {LONG_MAX, LONG_MAX, LONG_MAX, LONG_MAX, LONG_MAX}, n[N_CALLS];
        for (int i = 0; i < 8; i++) {
            measure(&r, row, 1, 1, n);
            for (int k = 0; k < N_CALLS; k++)
                best[k] = n[k] < best[k] ? n[k] : best[k];
        }
        for (int k = 0; k < N_CALLS; k++)
            if (best[k] > most[k])
                FAIL("%s: %ld %s a request, at most %ld", row->name, best[k], call_name[k],
                     most[k]);
    }
    fake_engine_script(r.engine, "finish stop 5 0 9 0\n");
    close_rig(&r);
}

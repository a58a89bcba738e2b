/* Every dialect, streamed and in one piece, in every phase of a request, and everything that can end it before its time:
 * each answer ends with the status or the terminal event that its dialect has for that. One line of `rows` is a
 * dialect. */
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "fake_engine.h"
#include "rig.h"
#include "test.h"

enum phase { QUEUED, PREFILL, THINKING, TEXT, ARGUMENTS, N_PHASES };
static const char *const phase_name[] = {"queued", "prefill", "thinking", "text", "arguments"};

enum cause { ENGINE_ERROR, DEADLINE_REACHED, QUEUE_TIME_UP, GRACE_OVER, N_CAUSES };

struct row {
    const char *name, *path, *body;
    const char *script[N_PHASES]; /* up to the phase */
    const char *status[N_CAUSES]; /* the error as a body has it */
    const char *event[N_CAUSES];  /* and as a stream has it */
    const char *failed_tail;      /* a stream's last bytes behind an error */
    const char *tail;             /* and where nothing went wrong */
};

#define CHAT_SCRIPTS                                                                               \
    {                                                                                              \
        "", "accepted 5 0\nprogress 1 5\n", "accepted 5 0\nreasoning a\n",                         \
            "accepted 5 0\nreasoning a\nreasoning_end\ntext b\n",                                  \
            "accepted 5 0\nreasoning_end\ntext b\ncall call_1 f\nargs {\"a\": \n",                 \
    }
/* No markup is read there. */
#define RAW_SCRIPTS                                                                                \
    {                                                                                              \
        "", "accepted 5 0\nprogress 1 5\n", "accepted 5 0\ntext <think>a\n",                       \
            "accepted 5 0\ntext <think>a</think>b\n",                                              \
            "accepted 5 0\ntext <tool_call><function=f><parameter=a>\n",                           \
    }
#define OPENAI_ERRORS                                                                              \
    {                                                                                              \
        "\"code\":\"internal_error\"", "\"code\":\"deadline_exceeded\"",                           \
            "\"code\":\"queue_timeout\"", "\"code\":\"shutting_down\"",                            \
    }
#define OPENAI_EVENTS                                                                              \
    {                                                                                              \
        "data: {\"error\":{\"message\":\"lost\",\"type\":\"server_error\"",                        \
            "data: {\"error\":{\"message\":\"the request took too "                                \
            "long\",\"type\":\"server_error\"",                                                    \
            "data: {\"error\":{\"message\":\"the request waited too long for a slot\",\"type\":"   \
            "\"rate_limit_error\"",                                                                \
            "data: {\"error\":{\"message\":\"the server is shutting down\",\"type\":"              \
            "\"server_error\"",                                                                    \
    }
#define ANTHROPIC_ERRORS                                                                           \
    {                                                                                              \
        "{\"type\":\"error\",\"error\":{\"type\":\"api_error\"",                                   \
            "{\"type\":\"error\",\"error\":{\"type\":\"timeout_error\"",                           \
            "{\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\"",                        \
            "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"",                        \
    }
/* In the middle of a stream clients retry that one alone. */
#define OVERLOADED                                                                                 \
    "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\""
#define ANTHROPIC_EVENTS                                                                           \
    {                                                                                              \
        OVERLOADED, OVERLOADED, OVERLOADED, OVERLOADED                                             \
    }

#define RESPONSES_FAILED "\"status\":\"failed\",\"background\":false,\"error\":{\"code\":"
#define RESPONSES_EVENTS                                                                           \
    {                                                                                              \
        RESPONSES_FAILED "\"server_error\",\"message\":\"lost\"",                                  \
            RESPONSES_FAILED "\"server_error\",\"message\":\"the request took too long\"",         \
            RESPONSES_FAILED "\"rate_limit_exceeded\"",                                            \
            RESPONSES_FAILED "\"server_is_overloaded\"",                                           \
    }
/* The last event has the usage, if the prompt got a slot. */
#define RESPONSES_FAILED_TAIL ",\"user\":null,\"metadata\":{}}}\n\n"
#define RESPONSES_TAIL        "\"total_tokens\":8},\"user\":null,\"metadata\":{}}}\n\n"

static const struct row rows[] = {
    {"responses", "/v1/responses", "{\"input\":\"hi\"}", CHAT_SCRIPTS, OPENAI_ERRORS,
     RESPONSES_EVENTS, RESPONSES_FAILED_TAIL, RESPONSES_TAIL},
    {"responses with a summary", "/v1/responses",
     "{\"input\":\"hi\",\"reasoning\":{\"summary\":\"auto\"}}", CHAT_SCRIPTS, OPENAI_ERRORS,
     RESPONSES_EVENTS, RESPONSES_FAILED_TAIL, RESPONSES_TAIL},
    {"chat", "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}",
     CHAT_SCRIPTS, OPENAI_ERRORS, OPENAI_EVENTS, "}}\n\ndata: [DONE]\n\n", "data: [DONE]\n\n"},
    {"completions", "/v1/completions", "{\"prompt\":\"hi\"}", RAW_SCRIPTS, OPENAI_ERRORS,
     OPENAI_EVENTS, "}}\n\ndata: [DONE]\n\n", "data: [DONE]\n\n"},
    {"messages", "/v1/messages",
     "{\"thinking\":{\"type\":\"adaptive\"},\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}",
     CHAT_SCRIPTS, ANTHROPIC_ERRORS, ANTHROPIC_EVENTS, "\"}\n\n",
     "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"},
    {"messages without thinking", "/v1/messages",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}", CHAT_SCRIPTS, ANTHROPIC_ERRORS,
     ANTHROPIC_EVENTS, "\"}\n\n", "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"},
};
enum { N_ROWS = sizeof rows / sizeof *rows, N_CELLS = N_ROWS * N_PHASES * 2 };

static const int http_status[N_CAUSES] = {500, 504, 429, 503};

/* ---- All cells at once ---------------------------------------------------------------------- */

struct cell {
    const struct row *row;
    enum phase phase;
    bool stream;
    int fd;
    struct buf answer;
};

static void cell_at(int i, struct cell *c)
{
    *c =
        (struct cell){.row = &rows[i / (N_PHASES * 2)], .phase = i / 2 % N_PHASES, .stream = i % 2};
}

static const char *describe(const struct cell *c)
{
    static char text[120];
    (void)snprintf(text, sizeof text, "%s, %s, %s", c->row->name, phase_name[c->phase],
                   c->stream ? "streamed" : "in one piece");
    return text;
}

/* Sends the request of a cell, whose script goes on with `then`. */
static void begin_cell(const struct rig *r, struct cell *c, const char *then)
{
    char script[400];
    char *body = with_stream(c->row->body, c->stream);
    uint64_t n = fake_engine_requests(r->engine);
    const struct timespec pause = {.tv_nsec = 5000000};
    double start = seconds();
    (void)snprintf(script, sizeof script, "%s%s", c->row->script[c->phase], then);
    fake_engine_script(r->engine, script);
    c->fd = connect_to(r);
    send_to(c->fd, c->row->path, body);
    while (fake_engine_requests(r->engine) == n && seconds() - start < 10)
        (void)nanosleep(&pause, NULL);
    CHECK(fake_engine_requests(r->engine) == n + 1);
    free(body);
}

static void begin_all(struct rig *r, const struct server_options *with, struct cell *cells,
                      const char *then)
{
    struct server_options o;
    server_options_init(&o);
    if (with)
        o = *with;
    o.n_queue = N_CELLS;
    open_rig(r, &o);
    for (int i = 0; i < N_CELLS; i++) {
        cell_at(i, &cells[i]);
        begin_cell(r, &cells[i], then);
    }
}

static void wait_for_phases(const struct rig *r, int n)
{
    const struct timespec pause = {.tv_nsec = 5000000};
    double start = seconds();
    while (fake_engine_waiting_requests(r->engine) < n && seconds() - start < 10)
        (void)nanosleep(&pause, NULL);
    CHECK_INT(fake_engine_waiting_requests(r->engine), n);
}

/* ---- What an answer must be ----------------------------------------------------------------- */

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

static int count(const char *s, const char *of)
{
    int n = 0;
    for (; (s = strstr(s, of)); s += strlen(of))
        n++;
    return n;
}

/* Splits the answer; the body of a stream that was cut off is no answer. */
static const char *body_of(const struct cell *c, int *status)
{
    char *all = c->answer.data, *head = all ? strstr(all, "\r\n\r\n") : NULL;
    if (!head || sscanf(all, "HTTP/1.1 %d", status) != 1)
        FAIL("%s: no answer: %s", describe(c), all ? all : "");
    *head = 0;
    if (strstr(all, "chunked") && !join_chunks(head + 4))
        FAIL("%s: the answer was cut off: %s", describe(c), head + 4);
    return head + 4;
}

static void check_failure(const struct cell *c, enum cause why, bool in_stream)
{
    int status;
    const char *body = body_of(c, &status);
    const struct row *row = c->row;
    bool ok = status == (in_stream ? 200 : http_status[why]);
    if (in_stream)
        ok = ok && count(body, row->event[why]) == 1 && ends_with(body, row->failed_tail) &&
             count(body, "data: [DONE]") == count(row->failed_tail, "data: [DONE]") &&
             !strstr(body, "event: message_stop") &&
             (strcmp(row->failed_tail, RESPONSES_FAILED_TAIL) != 0 ||
              count(body, "\"total_tokens\":5}") == (c->phase != QUEUED));
    else
        ok = ok && strstr(body, row->status[why]) && !strstr(body, "data: ");
    if (!ok)
        FAIL("%s: status %d: %s", describe(c), status, body);
}

static void check_success(const struct cell *c)
{
    int status;
    const char *body = body_of(c, &status);
    if (status != 200 || strstr(body, "\"error\":{") ||
        (c->stream && (!ends_with(body, c->row->tail) || count(body, c->row->tail) != 1)))
        FAIL("%s: status %d: %s", describe(c), status, body);
}

/* A stream has its head from the model's first piece on. */
static bool has_head(const struct cell *c)
{
    return c->stream && c->phase >= THINKING;
}

/* Until it is here; it stays to be read. */
static void wait_for_head(const struct cell *c)
{
    char head[4096];
    const struct timespec pause = {.tv_nsec = 5000000};
    double start = seconds();
    for (;;) {
        ssize_t n = recv(c->fd, head, sizeof head - 1, MSG_PEEK | MSG_DONTWAIT);
        head[n > 0 ? n : 0] = 0;
        if (strstr(head, "\r\n\r\n"))
            break;
        if (seconds() - start > 20)
            FAIL("%s: no head", describe(c));
        (void)nanosleep(&pause, NULL);
    }
    CHECK(strncmp(head, "HTTP/1.1 200", 12) == 0);
}

static void leave(const struct cell *c, bool is_reset)
{
    struct linger l = {1, 0};
    if (is_reset)
        CHECK(setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &l, sizeof l) == 0);
    (void)close(c->fd);
}

static void end_all(struct rig *r, struct cell *cells)
{
    for (int i = 0; i < N_CELLS; i++)
        buf_release(&cells[i].answer);
    close_rig(r);
}

/* ---- Causes --------------------------------------------------------------------------------- */

TEST(the_engine_fails)
{
    struct rig r;
    struct cell cells[N_CELLS];
    begin_all(&r, NULL, cells, "pause 300\nerror 12 lost\n");
    for (int i = 0; i < N_CELLS; i++) {
        receive(cells[i].fd, &cells[i].answer);
        check_failure(&cells[i], ENGINE_ERROR, has_head(&cells[i]));
    }
    end_all(&r, cells);
}

TEST(the_deadline_comes)
{
    struct rig r;
    struct server_options o;
    struct cell cells[N_CELLS];
    server_options_init(&o);
    o.request_timeout_s = 2;
    begin_all(&r, &o, cells, "wait\n");
    for (int i = 0; i < N_CELLS; i++) {
        receive(cells[i].fd, &cells[i].answer);
        check_failure(&cells[i], DEADLINE_REACHED, has_head(&cells[i]));
    }
    end_all(&r, cells);
}

/* Only what waits for a slot is ended; what has one goes on. */
TEST(the_time_in_the_queue_is_up)
{
    struct rig r;
    struct server_options o;
    struct cell cells[N_CELLS];
    server_options_init(&o);
    o.queue_timeout_s = 1;
    begin_all(&r, &o, cells, "pause 2500\nfinish length 5 0 3 0\n");
    for (int i = 0; i < N_CELLS; i++) {
        receive(cells[i].fd, &cells[i].answer);
        if (cells[i].phase == QUEUED)
            check_failure(&cells[i], QUEUE_TIME_UP, false);
        else
            check_success(&cells[i]);
    }
    end_all(&r, cells);
}

TEST(the_grace_of_a_shutdown_is_over)
{
    struct rig r;
    struct cell cells[N_CELLS];
    begin_all(&r, NULL, cells, "wait\n");
    wait_for_phases(&r, N_CELLS);
    server_drain(r.server, 0, 300);
    for (int i = 0; i < N_CELLS; i++) {
        receive(cells[i].fd, &cells[i].answer);
        check_failure(&cells[i], GRACE_OVER, has_head(&cells[i]));
    }
    end_all(&r, cells);
}

/* What ends within the grace time is an answer like any other. */
TEST(a_shutdown_lets_running_requests_finish)
{
    struct rig r;
    struct cell cells[N_CELLS];
    begin_all(&r, NULL, cells, "pause 500\nfinish stop 5 0 3 0\n");
    server_drain(r.server, 0, 20000);
    for (int i = 0; i < N_CELLS; i++) {
        receive(cells[i].fd, &cells[i].answer);
        check_success(&cells[i]);
    }
    end_all(&r, cells);
}

/* How clients go. Those that shut their side first are waited for, and then go as well. */
enum going { CLOSE, RESET, SHUT_AND_CLOSE, N_GOINGS };
static const char *const going_name[] = {"a close", "a reset",
                                         "a close some time after the end of what was sent"};

/* A busy machine may take a second for other things: so often is it tried. */
enum { TRIES = 5 };

/* Seconds from the last close until no request is open. */
static double time_to_end(struct rig *r, const struct cell *cells, int n, bool is_reset)
{
    for (int i = 0; i < n; i++)
        leave(&cells[i], is_reset);
    double start = seconds();
    wait_for_requests(r, 0, 20);
    return seconds() - start;
}

/* In every phase. */
TEST(the_client_goes_away)
{
    const struct timespec pause = {.tv_nsec = 700000000};
    for (enum going how = 0; how < N_GOINGS; how++) {
        double best = 1e9;
        for (int i = 0; i < TRIES && best >= 1; i++) {
            struct rig r;
            struct cell cells[N_CELLS];
            begin_all(&r, NULL, cells, "wait\n");
            wait_for_phases(&r, N_CELLS);
            for (int k = 0; k < N_CELLS && how == SHUT_AND_CLOSE; k++)
                CHECK(shutdown(cells[k].fd, SHUT_WR) == 0);
            if (how == SHUT_AND_CLOSE)
                (void)nanosleep(&pause, NULL);
            CHECK_INT(fake_engine_open_requests(r.engine), N_CELLS);
            double s = time_to_end(&r, cells, N_CELLS, how == RESET);
            best = s < best ? s : best;
            close_rig(&r);
        }
        if (best >= 1)
            FAIL("requests go on for %.2f s after %s", best, going_name[how]);
    }
}

/* After some seconds a stream has its head without any event. Whatever ends it then is an event, and a client that goes
 * away is noticed. All causes at once, each with a server of its own, since the head takes its time. */
TEST(what_comes_after_the_head_and_before_the_first_event)
{
    enum { GONE = N_CAUSES, N_ENDS, N = N_ROWS * 2 };
    static const char *const then[N_ENDS] = {"pause 9000\nerror 12 lost\n", "wait\n",
                                             "pause 9000\nfinish length 5 0 3 0\n", "wait\n",
                                             "wait\n"};
    struct rig r[N_ENDS];
    struct cell cells[N_ENDS][N], gone[TRIES][N];
    for (int why = 0; why < N_ENDS; why++) {
        struct server_options o;
        server_options_init(&o);
        o.n_queue = N * TRIES;
        o.request_timeout_s = why == DEADLINE_REACHED ? 8 : 0;
        o.queue_timeout_s = why == QUEUE_TIME_UP ? 8 : 0;
        open_rig(&r[why], &o);
        for (int i = 0; i < (why == GONE ? N * TRIES : N); i++) {
            struct cell *c = why == GONE ? &gone[i / N][i % N] : &cells[why][i];
            *c = (struct cell){
                .row = &rows[i % N / 2], .phase = i % 2 ? PREFILL : QUEUED, .stream = true};
            begin_cell(&r[why], c, then[why]);
        }
    }
    for (int why = 0; why < GONE; why++)
        for (int i = 0; i < N; i++)
            wait_for_head(&cells[why][i]);
    server_drain(r[GRACE_OVER].server, 0, 300);
    double best = 1e9;
    for (int k = 0; k < TRIES; k++) {
        for (int i = 0; i < N; i++)
            wait_for_head(&gone[k][i]);
        double start = seconds();
        for (int i = 0; i < N; i++)
            leave(&gone[k][i], i / 2 % 2);
        wait_for_requests(&r[GONE], (TRIES - 1 - k) * N, 20);
        best = seconds() - start < best ? seconds() - start : best;
    }
    if (best >= 1)
        FAIL("requests go on for %.2f s after their clients", best);
    for (int why = 0; why < N_ENDS; why++) {
        for (int i = 0; i < N && why != GONE; i++) {
            struct cell *c = &cells[why][i];
            receive(c->fd, &c->answer);
            if (why == QUEUE_TIME_UP && c->phase != QUEUED)
                check_success(c); /* it has a slot */
            else
                check_failure(c, (enum cause)why, true);
            buf_release(&c->answer);
        }
        close_rig(&r[why]);
    }
}

/* That is no end, in no phase: it still reads. */
TEST(a_client_that_shuts_its_side_gets_its_answer)
{
    struct rig r;
    struct cell cells[N_CELLS];
    begin_all(&r, NULL, cells, "pause 500\nfinish stop 5 0 3 0\n");
    for (int i = 0; i < N_CELLS; i++)
        CHECK(shutdown(cells[i].fd, SHUT_WR) == 0);
    for (int i = 0; i < N_CELLS; i++) {
        receive(cells[i].fd, &cells[i].answer);
        check_success(&cells[i]);
    }
    end_all(&r, cells);
}

/* It is told by interim responses whether it still reads, so that a failure before the head is a status as for others. */
TEST(a_client_that_shuts_its_side_gets_its_status)
{
    struct rig r;
    struct cell cells[N_CELLS];
    begin_all(&r, NULL, cells, "pause 1000\nerror 12 lost\n");
    for (int i = 0; i < N_CELLS; i++)
        CHECK(shutdown(cells[i].fd, SHUT_WR) == 0);
    for (int i = 0; i < N_CELLS; i++) {
        receive(cells[i].fd, &cells[i].answer);
        check_failure(&cells[i], ENGINE_ERROR, has_head(&cells[i]));
    }
    end_all(&r, cells);
}

/* HTTP/1.0 has no interim responses: the head shows whether the client reads, with a sign of life behind it. */
TEST(an_old_client_that_shuts_its_side)
{
    static const char body[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";
    struct rig r;
    struct buf request, answer;
    double best = 1e9;
    open_rig(&r, NULL);
    buf_init(&request, 1 << 12);
    buf_printf(
        &request,
        "POST /v1/chat/completions HTTP/1.0\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s",
        strlen(body), body);
    for (int i = 0; i < 1 + TRIES && best >= 1; i++) {
        int fd = connect_to(&r);
        fake_engine_script(r.engine, i ? "wait\n"
                                       : "pause 1000\naccepted 5 0\ntext b\nfinish stop 5 0 3 0\n");
        CHECK(write(fd, request.data, request.len) == (ssize_t)request.len);
        wait_for_requests(&r, 1, 20);
        if (i) {
            (void)close(fd);
            double start = seconds();
            wait_for_requests(&r, 0, 20);
            best = seconds() - start;
            continue;
        }
        CHECK(shutdown(fd, SHUT_WR) == 0);
        receive(fd, &answer);
        CHECK(strstr(buf_str(&answer), " 200 OK\r\n") && strstr(buf_str(&answer), "\r\n\r\n\n"));
        CHECK(strstr(buf_str(&answer), "\"content\":\"b\"") && !strstr(buf_str(&answer), " 100 "));
        buf_release(&answer);
    }
    if (best >= 1)
        FAIL("a request goes on for %.2f s after its client", best);
    buf_release(&request);
    close_rig(&r);
}

/* What resets a client's idle timer; only data count for some. */
static const char *sign_of_life(const struct row *row)
{
    return strcmp(row->path, "/v1/messages") == 0    ? "event: ping\ndata: {\"type\":\"ping\"}\n\n"
           : strcmp(row->path, "/v1/responses") == 0 ? "event: response.in_progress\n"
                                                     : ": keepalive\n\n";
}

/* In the queue, while the prompt is read, and in the middle of an answer. */
TEST(streams_in_silence_show_that_they_live)
{
    struct rig r;
    struct server_options o;
    struct cell cells[N_ROWS * 3];
    static const enum phase phase[] = {QUEUED, PREFILL, TEXT};
    if (test_quick())
        SKIP("it takes a quarter of a minute");
    server_options_init(&o);
    o.n_queue = N_ROWS * 3;
    open_rig(&r, &o);
    for (int i = 0; i < N_ROWS * 3; i++) {
        cells[i] = (struct cell){.row = &rows[i / 3], .phase = phase[i % 3], .stream = true};
        begin_cell(&r, &cells[i], "pause 17000\nfinish stop 5 0 3 0\n");
    }
    for (int i = 0; i < N_ROWS * 3; i++) {
        receive(cells[i].fd, &cells[i].answer);
        check_success(&cells[i]);
        /* Where a head has one as well: that one and another. */
        const char *sign = sign_of_life(cells[i].row);
        bool is_in_head = sign[0] != ':';
        const char *body = cells[i].answer.data + strlen(cells[i].answer.data) + 4;
        if (count(body, sign) < 1 + is_in_head)
            FAIL("%s: %s", describe(&cells[i]), body);
        buf_release(&cells[i].answer);
    }
    close_rig(&r);
}

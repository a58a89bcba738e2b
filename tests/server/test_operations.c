/* What operators of a server see and set, over the fake engine: health, limits, who may ask for which model. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "fake_engine.h"
#include "rig.h"
#include "test.h"

#define ASK "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}"

/* The answer to a GET, head and body; a heap string. */
static char *get(const struct rig *r, const char *path, int *status)
{
    struct buf b;
    int fd = connect_to(r);
    char head[512];
    int n = snprintf(head, sizeof head,
                     "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
    CHECK(write(fd, head, (size_t)n) == n);
    receive(fd, &b);
    CHECK(sscanf(buf_str(&b), "HTTP/1.1 %d", status) == 1);
    char *copy = strdup(buf_str(&b));
    buf_release(&b);
    return copy;
}

static void check_get(const struct rig *r, const char *path, int want, const char *with)
{
    int status;
    char *s = get(r, path, &status);
    if (status != want || !strstr(s, with))
        FAIL("%s: %d, expected %d with %s:\n%s", path, status, want, with, s);
    free(s);
}

static void check_ask(const struct rig *r, const char *body, int want, const char *with)
{
    int status;
    bool ended;
    char *s = ask(r, body, &status, &ended);
    if (status != want || !ended || !strstr(s, with))
        FAIL("%s: %d, expected %d with %s:\n%s", body, status, want, with, s);
    free(s);
}

/* In the library's place: another thread opens a file at that moment, and a file cannot be renamed. */
static int opened_meanwhile = -1;
int rename(const char *old, const char *new)
{
    (void)old;
    (void)new;
    if (opened_meanwhile < 0)
        opened_meanwhile = open("/dev/null", O_RDONLY | O_CLOEXEC);
    errno = EACCES;
    return -1;
}

TEST(a_trace_that_cannot_be_renamed_ends)
{
    struct server_options o;
    struct rig r;
    char path[] = "/tmp/lathe-trace-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && write(fd, "{}\n", 3) == 3);
    (void)close(fd);
    server_options_init(&o);
    o.trace = path;
    o.trace_bytes = 1;
    open_rig(&r, &o);
    fake_engine_script(r.engine, "text a\nfinish stop 1 0 1 0\n");
    check_ask(&r, ASK, 200, "choices");
    close_rig(&r);
    (void)unlink(path);
    CHECK(opened_meanwhile >= 0 && fcntl(opened_meanwhile, F_GETFD) >= 0);
    (void)close(opened_meanwhile);
}

TEST(a_device_that_failed_makes_the_server_unhealthy)
{
    static const char *const probe[] = {"/livez", "/ping", "/health", "/ready"};
    struct rig r;
    lathe_error err;
    char script[80];
    for (int at_submission = 0; at_submission < 2; at_submission++) {
        open_rig(&r, NULL);
        CHECK(!server_has_failed(r.server, &err));
        for (int i = 0; i < 4; i++)
            check_get(&r, probe[i], 200, "{\"status\":\"ok\"}");
        snprintf(script, sizeof script, "%s %d the device is gone\n",
                 at_submission ? "refuse" : "error", LATHE_E_MEMORY);
        fake_engine_script(r.engine, script);
        check_ask(&r, ASK, 500, "the device is gone");
        check_get(&r, "/livez", 200, "ok");
        snprintf(script, sizeof script, "%s %d the device is gone\n",
                 at_submission ? "refuse" : "error", LATHE_E_DEVICE);
        fake_engine_script(r.engine, script);
        check_ask(&r, ASK, 500, "internal_error");
        for (int i = 0; i < 4; i++)
            check_get(&r, probe[i], 503, "{\"status\":\"error\"}");
        check_get(&r, "/api/hello", 200, "ok");
        check_get(&r, "/v1/models", 200, "nano");
        check_get(&r, "/metrics", 200, "lathe_device_losses_total{model_name=\"nano\"} 1\n");
        CHECK(server_has_failed(r.server, &err));
        CHECK_INT(err.status, LATHE_E_DEVICE);
        CHECK_STR(err.message, "the device is gone");
        close_rig(&r);
    }
}

TEST(a_device_that_failed_under_nobody)
{
    const lathe_slot_info idle[FAKE_SLOTS] = {{0}};
    const lathe_activity failed = {.failure = "the device is gone"};
    struct server_options o;
    struct rig r;
    lathe_error err;
    server_options_init(&o);
    o.n_device_losses = 2;
    open_rig(&r, &o);
    check_get(&r, "/metrics", 200, "lathe_device_losses_total{model_name=\"nano\"} 2\n");
    fake_engine_activity(r.engine, &failed, idle);
    CHECK(server_has_failed(r.server, &err));
    CHECK_STR(err.message, "the device is gone");
    check_get(&r, "/livez", 503, "error");
    check_get(&r, "/metrics", 200, "lathe_device_losses_total{model_name=\"nano\"} 3\n");
    close_rig(&r);
}

static void *drain(void *arg)
{
    server_drain(((struct rig *)arg)->server, 1500, 1000);
    return NULL;
}

TEST(a_server_that_leaves_still_serves_for_the_delay)
{
    struct rig r;
    pthread_t thread;
    int status = 200;
    open_rig(&r, NULL);
    fake_engine_script(r.engine, "text yes\nfinish stop 5 0 3 0\n");
    CHECK(pthread_create(&thread, NULL, drain, &r) == 0);
    while (status == 200) {
        char *s = get(&r, "/ready", &status);
        free(s);
    }
    check_get(&r, "/health", 503, "{\"status\":\"draining\"}");
    check_get(&r, "/livez", 200, "Connection: close");
    check_ask(&r, ASK, 200, "yes");
    pthread_join(thread, NULL);
    check_ask(&r, ASK, 503, "shutting_down");
    close_rig(&r);
}

TEST(limits_and_names)
{
    static const char *const alias[] = {"nano", "org/other"};
    struct rig r;
    struct server_options o;
    server_options_init(&o);
    o.alias = (struct names){alias, 2};
    o.strict_model = true;
    o.default_max_tokens = 77;
    o.no_timings = true;
    open_rig(&r, &o);
    fake_engine_script(r.engine, "text yes\nfinish stop 5 0 3 0\n");
#define WITH(more) "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]," more "}"
    check_ask(&r, ASK, 200, "yes");
    CHECK_INT(fake_engine_last(r.engine)->max_tokens, 77);
    check_ask(&r, WITH("\"max_tokens\":100"), 200, "yes");
    CHECK_INT(fake_engine_last(r.engine)->max_tokens, 100);
    check_ask(&r, WITH("\"model\":\"org/other:tag\""), 200, "\"model\":\"org/other:tag\"");
    check_ask(&r, WITH("\"model\":\"gpt\""), 404, "model_not_found");
    check_ask(&r, WITH("\"model\":\"gpt\",\"stream\":true"), 404,
              "there is no model gpt, only nano");
    int status;
    bool ended;
    char *s = ask_at(&r, "/v1/messages/count_tokens", WITH("\"model\":\"gpt\""), &status, &ended);
    CHECK(status == 404 && strstr(s, "not_found_error"));
    free(s);
    for (int stream = 0; stream < 2; stream++) {
        char *body = with_stream(ASK, stream);
        s = ask(&r, body, &status, &ended);
        CHECK(status == 200 && !strstr(s, "timings"));
        free(s);
        free(body);
    }
    close_rig(&r);
}

TEST(a_reply_in_one_piece_shows_signs_of_life)
{
    struct rig r;
    struct server_options o;
    struct buf b;
    server_options_init(&o);
    o.json_keepalive_s = 1;
    open_rig(&r, &o);
    fake_engine_script(r.engine, "pause 2500\ntext yes\nfinish stop 5 0 3 0\n");
    int fd = connect_to(&r);
    send_request(fd, ASK);
    receive(fd, &b);
    char *body = strstr(buf_str(&b), "\r\n\r\n");
    CHECK(body && strncmp(b.data, "HTTP/1.1 200", 12) == 0 && join_chunks(body + 4));
    CHECK(body[4] == '\n' && strstr(body, "{\"id\""));
    buf_release(&b);
    close_rig(&r);
}

/* Nothing is read. The engine says 5 MB, of which the sockets take at most 4 MiB, and the rest is less than what the server holds
 * for a client. */
TEST(a_client_that_takes_nothing_is_cut_off)
{
    struct rig r;
    struct server_options o;
    struct buf script;
    int small = 4096;
    server_options_init(&o);
    o.write_timeout_s = 1;
    open_rig(&r, &o);
    buf_init(&script, 64 << 20);
    for (int i = 0; i < 3400; i++)
        buf_printf(&script, "text %01500d\nstep\n", i);
    buf_puts(&script, "wait\n");
    fake_engine_script(r.engine, buf_str(&script));
    char *body = with_stream(ASK, true);
    int fd = connect_to(&r);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0);
    send_request(fd, body);
    wait_for_requests(&r, 1, 10);
    wait_for_requests(&r, 0, 20);
    (void)close(fd);
    free(body);
    buf_release(&script);
    close_rig(&r);
}

/* Its bytes keep coming, but there is an end to it; what it had is given back, and others are served. */
TEST(a_body_that_trickles_is_cut_off)
{
    static const char head[] =
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n{";
    const struct timespec pause = {.tv_nsec = 20000000};
    struct rig r;
    struct server_options o;
    char answer[400];
    ssize_t n;
    int status;
    bool ended;
    server_options_init(&o);
    CHECK_INT(o.limits.of[LIMIT_BODY_TIME], 300);
    o.limits.of[LIMIT_BODY_TIME] = 2;
    open_rig(&r, &o);
    fake_engine_script(r.engine, "text yes\nfinish stop 5 0 3 0\n");
    int fd = connect_to(&r);
    double start = seconds();
    CHECK(send(fd, head, sizeof head - 1, 0) > 0);
    for (;;) {
        (void)send(fd, " ", 1, MSG_NOSIGNAL);
        n = recv(fd, answer, sizeof answer - 1, MSG_DONTWAIT);
        if (n >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
            break;
        CHECK(seconds() - start < 20);
        (void)nanosleep(&pause, NULL);
    }
    CHECK(seconds() - start > 1.5);
    answer[n > 0 ? n : 0] = 0;
    if (n > 0 && strncmp(answer, "HTTP/1.1 408", 12) != 0)
        FAIL("%s", answer);
    (void)close(fd);
    free(ask(&r, ASK, &status, &ended));
    CHECK_INT(status, 200);
    CHECK_INT(fake_engine_requests(r.engine), 1);
    close_rig(&r);
}

/* A request is counted when it is over, which its client may see before. */
static void wait_for_metric(const struct rig *r, const char *line)
{
    const struct timespec pause = {.tv_nsec = 5000000};
    double start = seconds();
    for (;;) {
        int status;
        char *s = get(r, "/metrics", &status);
        bool found = status == 200 && strstr(s, line);
        free(s);
        if (found)
            return;
        if (seconds() - start > 20)
            FAIL("/metrics has no %s", line);
        (void)nanosleep(&pause, NULL);
    }
}

TEST(calls_are_counted)
{
    static const char tools[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"type\":"
        "\"function\",\"function\":{\"name\":\"ping\",\"parameters\":{}}}]}";
    static const char *const script[] = {
        "raw </think><tool_call>\\n<function=ping>\\n</function>\\n</tool_call>\n",
        "raw </think><tool_call>\\n<function=ping>\\n<parameter=x>\\n1\n",
        "raw </think><tool_call> is a tag, and <tool_call>{}</tool_call> is none\n",
    };
    static const char *const want[] = {
        "lathe_tool_calls_total{result=\"ok\",model_name=\"nano\"} 1\n",
        "lathe_tool_calls_total{result=\"repaired\",model_name=\"nano\"} 1\n",
        "lathe_tool_calls_total{result=\"unparsed\",model_name=\"nano\"} 2\n",
    };
    struct rig r;
    char all[300];
    open_rig(&r, NULL);
    for (size_t i = 0; i < 3; i++) {
        (void)snprintf(all, sizeof all, "accepted 5 0\n%sfinish stop 5 0 9 0\n", script[i]);
        fake_engine_script(r.engine, all);
        check_ask(&r, tools, 200, i < 2 ? "\"tool_calls\"" : "is none");
    }
    for (size_t i = 0; i < 3; i++)
        wait_for_metric(&r, want[i]);
    close_rig(&r);
}

static void keep_line(void *ctx, const char *line)
{
    buf_printf(ctx, "%s\n", line);
}

/* Asks with fields that are not known, PREFIX0 to PREFIX(n - 1); how many of them the log names. */
static int count_named(const struct rig *r, struct buf *log, const char *prefix, int n)
{
    struct buf body;
    int status, named = 0;
    bool ended;
    buf_init(&body, 1 << 20);
    buf_puts(&body, "{\"content\":\"a\"");
    for (int i = 0; i < n; i++)
        buf_printf(&body, ",\"%s%d\":0", prefix, i);
    buf_puts(&body, "}");
    buf_clear(log);
    free(ask_at(r, "/tokenize", buf_str(&body), &status, &ended));
    CHECK_INT(status, 200);
    for (const char *s = buf_str(log); (s = strstr(s, "unknown field ")); s++)
        named++;
    buf_release(&body);
    return named;
}

/* Of whatever there was before, and by whom: a name that is new is told. One that is met again and again is told once. */
TEST(names_are_logged_whatever_others_send)
{
    struct rig r;
    struct server_options o;
    struct buf log;
    char prefix[16];
    server_options_init(&o);
    buf_init(&log, 1 << 20);
    o.log = keep_line;
    o.log_ctx = &log;
    open_rig(&r, &o);
    CHECK_INT(count_named(&r, &log, "mine", 1), 1);
    CHECK_INT(count_named(&r, &log, "mine", 1), 0);
    CHECK_INT(count_named(&r, &log, "many", 5000), 16);
    CHECK_INT(count_named(&r, &log, "mine", 1), 0);
    for (int i = 0; i < 40; i++) {
        (void)snprintf(prefix, sizeof prefix, "of_%d_", i);
        CHECK_INT(count_named(&r, &log, prefix, 16), 16);
        CHECK_INT(count_named(&r, &log, "mine", 1), 0);
    }
    CHECK_INT(count_named(&r, &log, "other", 1), 1);
    CHECK_INT(count_named(&r, &log, "many", 1), 1); /* forgotten long since */
    close_rig(&r);
    buf_release(&log);
}

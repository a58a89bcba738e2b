/* What clients say about when and where a request should run reaches the engine, and shows where operators look. */
#include <unistd.h>

#include "fake_engine.h"
#include "rig.h"
#include "test.h"

#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":9"

/* The answer, head and body, a heap string. */
static char *exchange(const struct rig *r, const char *method, const char *path, const char *head,
                      const char *body)
{
    struct buf b, request;
    int fd = connect_to(r);
    buf_init(&request, 1 << 16);
    buf_printf(&request,
               "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%sContent-Length: "
               "%zu\r\n\r\n%s",
               method, path, head, strlen(body), body);
    CHECK(write(fd, request.data, request.len) == (ssize_t)request.len);
    receive(fd, &b);
    char *copy = strdup(buf_str(&b));
    buf_release(&b);
    buf_release(&request);
    return copy;
}

TEST(hints_reach_the_engine)
{
    static const struct {
        const char *path, *head, *body;
        bool is_background;
        int32_t priority;
        int session; /* 0: none; equal numbers: the same */
    } row[] = {
        {"/v1/chat/completions", "", "{" MESSAGES "}", false, 0, 0},
        {"/v1/chat/completions", "", "{" MESSAGES ",\"user\":\"x\"}", false, 0, 1},
        {"/v1/chat/completions", "x-session-affinity: x\r\n", "{" MESSAGES "}", false, 0, 1},
        {"/v1/chat/completions", "", "{" MESSAGES ",\"prompt_cache_key\":\"y\"}", false, 0, 2},
        {"/v1/messages", "x-session-id: y\r\n", "{" MESSAGES "}", false, 0, 2},
        {"/v1/responses", "", "{\"input\":\"a\",\"prompt_cache_key\":\"y\"}", false, 0, 2},
        {"/v1/chat/completions", "", "{" MESSAGES ",\"priority\":3}", true, 3, 0},
        {"/v1/messages", "", "{" MESSAGES ",\"priority\":-3}", false, -3, 0},
        {"/v1/responses", "", "{\"input\":\"a\",\"priority\":9999999999}", true, INT32_MAX, 0},
        {"/v1/completions", "", "{\"prompt\":\"a\",\"priority\":0}", false, 0, 0},
        {"/v1/messages", "x-claude-code-request-class: auxiliary\r\n", "{" MESSAGES "}", true, 0,
         0},
        {"/v1/messages", "X-Claude-Code-Request-Class: Compaction\r\n", "{" MESSAGES "}", true, 0,
         0},
        {"/v1/messages", "x-claude-code-request-class: subagent\r\n", "{" MESSAGES "}", true, 0, 0},
        {"/v1/messages", "x-claude-code-request-class: main\r\n", "{" MESSAGES "}", false, 0, 0},
        {"/v1/responses", "x-openai-subagent: review\r\n", "{\"input\":\"a\"}", true, 0, 0},
    };
    uint64_t session[3] = {0};
    struct rig r;
    open_rig(&r, NULL);
    fake_engine_script(r.engine, "accepted 5 0\ntext a\nfinish stop 5 0 1 0\n");
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        char *s = exchange(&r, "POST", row[i].path, row[i].head, row[i].body);
        const lathe_request_options *o = fake_engine_last(r.engine);
        CHECK(strncmp(s, "HTTP/1.1 200", 12) == 0 && !strstr(s, "x-unknown-fields"));
        CHECK_INT(o->is_background, row[i].is_background);
        CHECK_INT(o->priority, row[i].priority);
        CHECK((row[i].session == 0) == (o->session == 0));
        if (!session[row[i].session])
            session[row[i].session] = o->session;
        CHECK(session[row[i].session] == o->session);
        free(s);
    }
    CHECK(session[1] != session[2]);
    char *s = exchange(&r, "POST", "/v1/messages", "", "{" MESSAGES ",\"priority\":\"high\"}");
    CHECK(strncmp(s, "HTTP/1.1 400", 12) == 0 && strstr(s, "priority: expected"));
    free(s);
    close_rig(&r);
}

TEST(classes_are_shown)
{
    static const lathe_activity a = {.n_queued = 5,
                                     .n_queued_background = 2,
                                     .n_prefill = 1,
                                     .n_decode = 1,
                                     .n_running_background = 1};
    static const lathe_slot_info slot[FAKE_SLOTS] = {
        {.phase = LATHE_SLOT_PREFILL, .request = 7, .is_background = true},
        {.phase = LATHE_SLOT_DECODE, .request = 8}};
    static const lathe_slot_info none[FAKE_SLOTS];
    static const char *const line[] = {
        "vllm:num_requests_waiting{model_name=\"nano\"} 5\n",
        "lathe_requests_waiting{class=\"interactive\",model_name=\"nano\"} 3\n",
        "lathe_requests_waiting{class=\"background\",model_name=\"nano\"} 2\n",
        "lathe_requests_running{class=\"interactive\",model_name=\"nano\"} 1\n",
        "lathe_requests_running{class=\"background\",model_name=\"nano\"} 1\n",
    };
    struct rig r;
    open_rig(&r, NULL);
    fake_engine_activity(r.engine, &a, slot);
    char *s = exchange(&r, "GET", "/metrics", "", "");
    for (size_t i = 0; i < sizeof line / sizeof *line; i++)
        CHECK(strstr(s, line[i]) != NULL);
    free(s);
    s = exchange(&r, "GET", "/slots", "", "");
    const char *first = strstr(s, "\"class\":\"background\"");
    CHECK(first && strstr(first, "\"class\":\"interactive\""));
    free(s);
    fake_engine_activity(r.engine, &a, none);
    s = exchange(&r, "GET", "/slots", "", "");
    CHECK(strstr(s, "\"class\":null") && !strstr(s, "interactive"));
    free(s);
    close_rig(&r);
}

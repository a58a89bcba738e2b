/* Bodies: fields with their refusals, and conversations as they go to the renderer. */
#include <time.h>

#include "server/conversation.h"
#include "server/log.h"
#include "server/state.h"

#include "test.h"

struct rig {
    struct server server;
    struct exchange x;
    struct fields f;
};

static bool open_body(struct rig *r, const char *json)
{
    *r = (struct rig){0};
    limits_init(&r->server.options.limits);
    r->x.server = &r->server;
    buf_init(&r->x.body, 1 << 20);
    buf_init(&r->x.unknown, MAX_LISTED_BYTES);
    buf_puts(&r->x.body, json);
    return fields_open(&r->f, &r->x);
}

static void close_body(struct rig *r)
{
    fields_close(&r->f);
    buf_release(&r->x.body);
    buf_release(&r->x.unknown);
}

#define CHECK_REFUSED(r, c, at, text)                                                              \
    do {                                                                                           \
        if ((r)->x.failure.condition != (c) || strcmp((r)->x.failure.param, (at)) != 0 ||          \
            !strstr((r)->x.failure.message, (text)))                                               \
            FAIL("condition %d, param \"%s\", message \"%s\"", (int)(r)->x.failure.condition,      \
                 (r)->x.failure.param, (r)->x.failure.message);                                    \
    } while (0)

TEST(bodies)
{
    static const char *const bad[] = {
        "", "[]", "{", "1", "{\"a\":1e400}", "{\"a\":1} x", "{\"a\\u0000\":1}"};
    struct rig r;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (open_body(&r, bad[i]))
            FAIL("%s was read", bad[i]);
        CHECK_INT(r.x.failure.condition, BAD_JSON);
        close_body(&r);
    }
    CHECK(open_body(&r, "\xEF\xBB\xBF {\"a\":\"\\u0000\"} \n"));
    close_body(&r);
}

TEST(fields)
{
    struct rig r;
    int64_t i = 7;
    double x = 7;
    bool b = true;
    const char *s = "seven";
    size_t n;
    CHECK(open_body(&r, "{\"i\":5.0,\"x\":3,\"n\":null,\"s\":\"t\",\"b\":false,"
                        "\"big\":99999999999999999999,\"half\":2.5,\"in\":{\"i\":\"5\"}}"));
    CHECK(field_int(&r.f, "i", &i, 0, 10) && i == 5);
    CHECK(field_real(&r.f, "x", &x, 0, 10) && x == 3);
    CHECK(field_text(&r.f, "n", &s, &n) && strcmp(s, "seven") == 0);
    CHECK(field_text(&r.f, "s", &s, &n) && strcmp(s, "t") == 0);
    CHECK(field_bool(&r.f, "b", &b) && !b);
    CHECK(field_int(&r.f, "absent", &i, 0, 10) && i == 5);
    CHECK(!field_int(&r.f, "x", &i, 4, 10));
    CHECK_REFUSED(&r, BAD_VALUE, "x", "x is 3, expected 4 to 10");
    r.x.failure.condition = FINE;
    CHECK(!field_int(&r.f, "big", &i, 0, INT32_MAX));
    CHECK_REFUSED(&r, BAD_VALUE, "big", "99999999999999999999");
    r.x.failure.condition = FINE;
    CHECK(!field_int(&r.f, "half", &i, 0, 10));
    CHECK_REFUSED(&r, BAD_TYPE, "half", "a whole number");
    r.x.failure.condition = FINE;
    struct fields in;
    CHECK(fields_inner(&r.f, "in", "in.", &in));
    CHECK(!field_int(&in, "i", &i, 0, 10));
    CHECK_REFUSED(&r, BAD_TYPE, "in.i", "in.i: expected a whole number, found a string");
    r.x.failure.condition = FINE;
    CHECK(!fields_inner(&r.f, "s", "s.", &in));
    CHECK_REFUSED(&r, BAD_TYPE, "s", "an object");
    close_body(&r);
}

TEST(unknown_fields)
{
    static const char *const known[] = {"a"};
    struct rig r;
    CHECK(open_body(&r, "{\"a\":1,\"b\":2,\"c d\":3,\"e.f\":4}"));
    CHECK(fields_unknown(&r.f, &r.x, known, 1));
    CHECK_STR(buf_str(&r.x.unknown), "b, e.f");
    r.server.options.unknown_is_error = true;
    CHECK(!fields_unknown(&r.f, &r.x, known, 1));
    CHECK_REFUSED(&r, UNSUPPORTED_FIELD, "b", "b is no field");
    close_body(&r);
}

static void keep_line(void *ctx, const char *line)
{
    buf_puts(ctx, line);
    buf_putc(ctx, '\n');
}

/* A header has plain names alone; the log has all of them, once, and all count. */
TEST(unknown_fields_of_odd_names)
{
    static const char *const known[] = {"a"};
    struct rig r;
    struct buf lines;
    lathe_error err;
    buf_init(&lines, 1 << 16);
    CHECK(open_body(&r, "{\"a\":1,\"c d\":3,\"b\":2,\"\\u00e9\":4,\"x\\ny\":5}"));
    CHECK_OK(log_open(&r.server.log, &err), &err);
    atomic_store(&r.server.log_level, LOG_LEVEL_INFO);
    r.server.options.log = keep_line;
    r.server.options.log_ctx = &lines;
    for (int i = 0; i < 2; i++) {
        CHECK(fields_unknown(&r.f, &r.x, known, 1));
        CHECK_INT(r.x.n_unknown, 4 * (i + 1));
    }
    CHECK_STR(buf_str(&r.x.unknown), "b, b");
    const char *const told[] = {"unknown field c d, which", "unknown field b, which",
                                "unknown field \xC3\xA9, which"};
    for (size_t i = 0; i < 3; i++) {
        const char *first = strstr(buf_str(&lines), told[i]);
        CHECK(first && !strstr(first + 1, told[i]));
    }
    int n = 0;
    for (size_t i = 0; i < lines.len; i++)
        n += lines.data[i] == '\n';
    CHECK_INT(n, 4);
    buf_release(&lines);
    log_close(r.server.log);
    close_body(&r);
}

TEST(rates)
{
    CHECK(decode_rate(0, 0) == 0 && decode_rate(1, 0.002) == 0 && decode_rate(2, 0) == 0);
    CHECK(decode_rate(11, 100) == 100);
}

static void check_messages(const char *in, const char *want)
{
    struct rig r;
    struct chat c;
    char body[2048];
    (void)snprintf(body, sizeof body, "{\"messages\":%s}", in);
    CHECK(open_body(&r, body));
    if (!chat_read(&r.f, &c))
        FAIL("%s: %s", in, r.x.failure.message);
    CHECK_STR(c.conversation.messages, want);
    chat_release(&c);
    close_body(&r);
}

TEST(reasoning_comes_from_one_field)
{
    check_messages("[{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":\"r\","
                   "\"reasoning\":\"r\"}]",
                   "[{\"role\": \"assistant\", \"reasoning_content\": \"r\", \"content\": \"a\"}]");
    check_messages("[{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":\"\","
                   "\"thinking\":\"t\"}]",
                   "[{\"role\": \"assistant\", \"reasoning_content\": \"t\", \"content\": \"a\"}]");
    check_messages("[{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":\"\"}]",
                   "[{\"role\": \"assistant\", \"reasoning_content\": \"\", \"content\": \"a\"}]");
    check_messages("[{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_details\":[{\"type\":"
                   "\"reasoning.text\",\"text\":\"p\"},{\"type\":\"x\",\"text\":\"q\"},{\"type\":"
                   "\"reasoning.text\",\"text\":\"\\\"\"}]}]",
                   "[{\"role\": \"assistant\", \"reasoning_content\": \"p\\\"\", \"content\": "
                   "\"a\"}]");
    check_messages("[{\"role\":\"assistant\",\"content\":\"<think>\\np\\n</think>\\n\\na\"}]",
                   "[{\"role\": \"assistant\", \"reasoning_content\": \"p\", \"content\": \"a\"}]");
    check_messages("[{\"role\":\"user\",\"content\":\"<think>p</think>a\"}]",
                   "[{\"role\": \"user\", \"content\": \"<think>p</think>a\"}]");
}

TEST(a_long_text_is_split_too)
{
    enum { LONG = 10000 };
    char *in = malloc(3 * LONG), *a = malloc(LONG + 1);
    struct rig r;
    struct chat c;
    memset(a, 'a', LONG);
    a[LONG] = 0;
    (void)snprintf(in, 3 * LONG,
                   "{\"messages\":[{\"role\":\"assistant\",\"content\":\"<think>p</think>%s\"}]}",
                   a);
    CHECK(open_body(&r, in) && chat_read(&r.f, &c));
    (void)snprintf(in, 3 * LONG,
                   "[{\"role\": \"assistant\", \"reasoning_content\": \"p\", \"content\": \"%s\"}]",
                   a);
    CHECK_STR(c.conversation.messages, in);
    chat_release(&c);
    close_body(&r);
    free(in);
    free(a);
}

TEST(contents)
{
    check_messages("[{\"role\":\"assistant\",\"content\":null,\"refusal\":\"no\"}]",
                   "[{\"role\": \"assistant\", \"content\": \"no\"}]");
    check_messages("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":"
                   "\"refusal\",\"refusal\":\"b\"}],\"name\":\"n\"}]",
                   "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, "
                   "{\"type\": \"text\", \"text\": \"b\"}]}]");
    check_messages("[{\"role\":\"tool\",\"content\":{\"a\":[1,2.0]}},{\"role\":\"tool\"},{\"role\":"
                   "\"tool\",\"content\":[1,\"x\"]}]",
                   "[{\"role\": \"tool\", \"content\": \"{\\\"a\\\": [1, 2.0]}\"}, {\"role\": "
                   "\"tool\", \"content\": \"\"}, {\"role\": \"tool\", \"content\": \"[1, "
                   "\\\"x\\\"]\"}]");
}

TEST(results_follow_their_calls)
{
    check_messages(
        "[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\"},{\"id\":\"b\"},{\"id\":\"c\"}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"C\"},"
        "{\"role\":\"tool\",\"tool_call_id\":\"?\",\"content\":\"X\"},"
        "{\"role\":\"tool\",\"tool_call_id\":\"b\",\"content\":\"B\"},"
        "{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"A\"}]",
        "[{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"a\"}, {\"id\": "
        "\"b\"}, {\"id\": \"c\"}]}, {\"role\": \"tool\", \"content\": \"A\"}, {\"role\": \"tool\", "
        "\"content\": \"X\"}, {\"role\": \"tool\", \"content\": \"B\"}, {\"role\": \"tool\", "
        "\"content\": \"C\"}]");
}

/* Of as many calls as a body may have the order is found at once. */
TEST(results_of_many_calls)
{
    enum { N = 11000 };
    struct rig r;
    struct chat c;
    struct buf body;
    buf_init(&body, 1 << 20);
    buf_puts(&body, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[");
    for (int i = 0; i < N; i++)
        buf_printf(&body, "%s{\"id\":\"%d\",\"arguments\":\"{\"}", i ? "," : "", i);
    buf_puts(&body, "]}");
    for (int i = N; i-- > 0;)
        buf_printf(&body, ",{\"role\":\"tool\",\"tool_call_id\":\"%d\",\"content\":\"r%d\"}", i, i);
    buf_puts(&body, "]}");
    clock_t start = clock();
    CHECK(open_body(&r, buf_str(&body)) && chat_read(&r.f, &c));
    CHECK((double)(clock() - start) / CLOCKS_PER_SEC < 5);
    const char *at = strstr(c.conversation.messages, "\"tool\"");
    for (int i = 0; i < N && at; i++) {
        char want[32];
        (void)snprintf(want, sizeof want, "\"r%d\"", i);
        at = strstr(at, "\"content\": ");
        if (!at || strncmp(at + 11, want, strlen(want)) != 0)
            FAIL("result %d is at %.40s", i, at ? at : "");
        at++;
    }
    chat_release(&c);
    close_body(&r);
    buf_release(&body);
}

TEST(conversations_that_are_refused)
{
    static const struct {
        const char *body;
        enum condition want;
        const char *param, *text;
    } rows[] = {
        {"{}", MISSING_FIELD, "messages", "missing"},
        {"{\"messages\":null}", MISSING_FIELD, "messages", "missing"},
        {"{\"messages\":[]}", BAD_VALUE, "messages", "empty"},
        {"{\"messages\":{}}", BAD_TYPE, "messages", "an array"},
        {"{\"messages\":[1]}", BAD_TYPE, "messages[0]", "an object"},
        {"{\"messages\":[{}],\"tools\":[{\"type\":\"custom\"}]}", UNSUPPORTED_VALUE,
         "tools[0].type", "function"},
        {"{\"messages\":[{}],\"reasoning_effort\":\"huge\"}", BAD_VALUE, "reasoning_effort",
         "huge"},
        {"{\"messages\":[{}],\"reasoning\":{\"effort\":3}}", BAD_TYPE, "reasoning.effort",
         "a string"},
        {"{\"messages\":[{}],\"thinking\":{\"type\":\"often\"}}", BAD_VALUE, "thinking.type",
         "often"},
        {"{\"messages\":[{}],\"thinking\":{\"budget_tokens\":-2}}", BAD_VALUE,
         "thinking.budget_tokens", "-1 or more"},
        {"{\"messages\":[{}],\"thinking_budget\":\"9\"}", BAD_TYPE, "thinking_budget",
         "a whole number"},
        {"{\"messages\":[{}],\"chat_template_kwargs\":{\"reasoning_effort\":\"huge\"}}", BAD_VALUE,
         "chat_template_kwargs.reasoning_effort", "huge"},
        {"{\"messages\":[{}],\"chat_template_kwargs\":[]}", BAD_TYPE, "chat_template_kwargs",
         "an object"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct rig r;
        struct chat c;
        CHECK(open_body(&r, rows[i].body));
        CHECK(!chat_read(&r.f, &c));
        CHECK_REFUSED(&r, rows[i].want, rows[i].param, rows[i].text);
        chat_release(&c);
        close_body(&r);
    }
}

TEST(tools_without_a_schema)
{
    struct rig r;
    struct chat c;
    CHECK(open_body(&r, "{\"messages\":[{}],\"tools\":[{\"type\":\"function\",\"function\":"
                        "{\"name\":\"f\",\"x\":100000000000000000000}}]}"));
    CHECK(chat_read(&r.f, &c));
    CHECK_STR(c.conversation.tools,
              "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"x\": "
              "100000000000000000000, \"parameters\": {\"type\": \"object\", \"properties\": "
              "{}}}}]");
    chat_release(&c);
    close_body(&r);
}

TEST(errors)
{
    struct failure f = {0};
    struct buf out;
    lathe_error err;
    buf_init(&out, 4096);
    CHECK(!refuse_field(&f, BAD_VALUE, "a.b", "it is \"%s\"", "\xff"));
    CHECK(!refuse(&f, INTERNAL, "later"));
    failure_print(&out, &f, SHAPE_OPENAI, "id");
    CHECK_STR(buf_str(&out), "{\"error\":{\"message\":\"it is \\\"?\\\"\",\"type\":"
                             "\"invalid_request_error\",\"param\":\"a.b\",\"code\":"
                             "\"invalid_value\"}}");
    buf_clear(&out);
    failure_print(&out, &f, SHAPE_ANTHROPIC, "id");
    CHECK_STR(buf_str(&out), "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\","
                             "\"message\":\"it is \\\"?\\\"\"},\"request_id\":\"id\"}");
    f = (struct failure){0};
    (void)fail(&err, LATHE_E_ARGUMENT, "messages[2].content: no");
    CHECK(!refuse_status(&f, &err));
    CHECK_STR(f.param, "messages[2].content");
    f = (struct failure){0};
    (void)fail(&err, LATHE_E_ARGUMENT, "kwargs.x: no");
    CHECK(!refuse_status(&f, &err));
    CHECK_STR(f.param, "chat_template_kwargs");
    CHECK_STR(f.message, "chat_template_kwargs.x: no");
    for (int c = BAD_JSON; c < N_CONDITIONS; c++)
        CHECK(failure_http((enum condition)c) >= 400);
    buf_release(&out);
}

/* Dialects over the fake engine: a request and a script in, exact bytes out, streamed and in one piece. The files are
 * tests/server/DIALECT/NAME.case: sections that begin with "== request", "== script", "== stream" and "== reply",
 * and a request is JSON without "stream". */
#include <dirent.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "fake_engine.h"
#include "rig.h"
#include "test.h"

/* ---- Cases ---------------------------------------------------------------------------------- */

/* The section of a case, a heap string; NULL if there is none. */
static char *section(const char *all, const char *name)
{
    char mark[40];
    (void)snprintf(mark, sizeof mark, "== %s\n", name);
    const char *from = strstr(all, mark);
    if (!from)
        return NULL;
    from += strlen(mark);
    const char *to = strstr(from, "\n== ");
    return to ? strndup(from, (size_t)(to - from) + 1) : strdup(from);
}

/* What carriers say is no matter of these cases: in place, "l1.WORD.WORD" becomes "carrier". */
static void mask_carriers(char *s)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
    for (char *at; (at = strstr(s, "\"l1."));) {
        char *dot = at + 4 + strspn(at + 4, digits), *end = dot + 1 + strspn(dot + 1, digits);
        CHECK(*dot == '.' && *end == '"' && end - dot == 23);
        memcpy(at + 1, "carrier", 7);
        memmove(at + 8, end, strlen(end) + 1);
        s = at + 8;
    }
}

static void run_case(const struct rig *r, const char *path, const char *name, const char *all,
                     bool stream)
{
    char *want = section(all, stream ? "stream" : "reply");
    char *request = section(all, "request"), *script = section(all, "script");
    int status;
    bool ended;
    if (!request || !script)
        FAIL("%s: no request or no script", name);
    if (!want)
        return;
    fake_engine_script(r->engine, script);
    char *body = with_stream(request, stream), *got = ask_at(r, path, body, &status, &ended);
    mask_carriers(got);
    size_t n = strlen(want);
    /* A reply in one piece has no line break at its end, a file has. */
    if (!stream && n)
        want[n - 1] = 0;
    if (strcmp(got, want) != 0 || !ended)
        FAIL("%s, %s, status %d:\n%s\nexpected\n%s", name, stream ? "stream" : "reply", status, got,
             want);
    free(want);
    free(request);
    free(script);
    free(body);
    free(got);
}

/* All cases of a folder, at least n_min. */
static void run_cases(const char *name, const char *path, int n_min)
{
    struct rig r;
    char folder[256], file[600];
    (void)snprintf(file, sizeof file, "tests/server/%s", name);
    (void)snprintf(folder, sizeof folder, "%s", test_path(file));
    DIR *d = opendir(folder);
    CHECK(d);
    open_rig(&r, NULL);
    int n = 0;
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        if (!strstr(e->d_name, ".case"))
            continue;
        size_t size;
        (void)snprintf(file, sizeof file, "%s/%s", folder, e->d_name);
        char *all = test_read(file, &size);
        run_case(&r, path, e->d_name, all, true);
        run_case(&r, path, e->d_name, all, false);
        free(all);
        n++;
    }
    closedir(d);
    CHECK(n >= n_min);
    close_rig(&r);
}

TEST(chat)
{
    run_cases("chat", "/v1/chat/completions", 12);
}

TEST(completions)
{
    run_cases("completions", "/v1/completions", 4);
}

TEST(messages)
{
    run_cases("messages", "/v1/messages", 8);
}

TEST(responses)
{
    run_cases("responses", "/v1/responses", 19);
}

static const char hello[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";

static void check_status(const struct rig *r, const char *script, bool stream, int want,
                         const char *code)
{
    int status;
    bool ended;
    char *body = with_stream(hello, stream);
    fake_engine_script(r->engine, script);
    char *got = ask(r, body, &status, &ended);
    if (status != want || !strstr(got, code))
        FAIL("%s: status %d, %s", script, status, got);
    free(body);
    free(got);
}

/* Before the head a failure is a status, streamed or not. */
TEST(failures_before_the_head)
{
    struct rig r;
    open_rig(&r, NULL);
    for (int stream = 0; stream < 2; stream++) {
        check_status(&r, "refuse 11 full\n", stream, 429, "queue_full");
        check_status(&r, "refuse 7 the prompt has 600 tokens, the context holds 512\n", stream, 400,
                     "context length is 512 tokens. However, the prompt has 600 tokens");
        check_status(&r, "accepted 5 0\nerror 12 lost\n", stream, 500, "internal_error");
        check_status(&r, "accepted 5 0\nerror 9 NaN\n", stream, 500, "internal_error");
    }
    close_rig(&r);
}

/* ---- The end of the server ------------------------------------------------------------------ */

/* Streams end with an error and [DONE], replies with a status; new requests are refused. */
TEST(the_end_of_the_server)
{
    for (int how = 0; how < 4; how++) {
        bool stream = how & 1, has_text = how & 2;
        struct rig r;
        struct buf b;
        open_rig(&r, NULL);
        fake_engine_script(r.engine, has_text ? "accepted 5 0\nreasoning_end\ntext a\nwait\n"
                                              : "accepted 5 0\nwait\n");
        char *body = with_stream(hello, stream);
        int fd = connect_to(&r);
        send_request(fd, body);
        wait_for_requests(&r, 1, 5);
        const struct timespec pause = {.tv_nsec = 100000000};
        (void)nanosleep(&pause, NULL);
        server_drain(r.server, 0, 100);
        receive(fd, &b);
        CHECK(strstr(buf_str(&b), "shutting_down"));
        if (stream && has_text)
            CHECK(strstr(b.data, " 200 ") && strstr(b.data, "data: [DONE]"));
        else
            CHECK(strstr(b.data, " 503 ") && strstr(b.data, "Retry-After"));
        int status;
        bool ended;
        char *got = ask(&r, body, &status, &ended);
        CHECK_INT(status, 503);
        free(got);
        free(body);
        buf_release(&b);
        close_rig(&r);
    }
}

/* ---- What the engine is asked for ----------------------------------------------------------- */

TEST(requests)
{
    struct rig r;
    int status;
    bool ended;
    open_rig(&r, NULL);
    fake_engine_script(r.engine, "accepted 5 0\nfinish stop 5 0 1 0\n");
    char *got = ask(
        &r,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"temperature\":0.5,\"top_p\":"
        "0.25,\"top_k\":7,\"min_p\":0.125,\"presence_penalty\":1,\"frequency_penalty\":-1,"
        "\"repetition_penalty\":1.5,\"seed\":42,\"max_tokens\":9,\"max_completion_tokens\":8,"
        "\"min_tokens\":3,\"ignore_eos\":true,\"cache_prompt\":false,\"parallel_tool_calls\":"
        "false,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":"
        "\"auto\",\"user\":\"u\"}",
        &status, &ended);
    const lathe_request_options *o = fake_engine_last(r.engine);
    CHECK_INT(status, 200);
    CHECK(o->sampling.temperature == 0.5F && o->sampling.top_p == 0.25F && o->sampling.top_k == 7 &&
          o->sampling.min_p == 0.125F && o->sampling.presence_penalty == 1 &&
          o->sampling.frequency_penalty == -1 && o->sampling.repetition_penalty == 1.5F &&
          o->sampling.seed == 42);
    CHECK(o->max_tokens == 8 && o->min_tokens == 3 && o->ignore_eos && o->no_prefix_reuse &&
          o->max_calls == 1 && !o->no_parse);
    free(got);
    close_rig(&r);
}

TEST(messages_that_are_refused)
{
    static const struct {
        const char *fields, *text;
    } rows[] = {
        {"\"messages\":[]", "messages is empty"},
        {"\"messages\":[{\"role\":\"tool\",\"content\":\"a\"}]", "messages[0].role"},
        {"\"messages\":[{\"role\":\"user\",\"content\":1}]", "messages[0].content"},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]",
         "image input needs the vision tower, which is not loaded"},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"document\",\"source\":{"
         "\"type\":"
         "\"base64\",\"media_type\":\"application/pdf\",\"data\":\"\"}}]}]",
         "only sources of type text and content"},
        {"\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"a\","
         "\"name\":\"f\",\"input\":{}}]}]",
         "messages[0].content: a message with calls cannot be continued"},
        {"\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"thread\":{\"type\":\"create\"}",
         "\"details\":{\"error_code\":\"thread_unsupported_request\",\"unsupported\":[\"thread\"]"
         "}"},
        {"\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"thinking\":{\"type\":\"enabled\","
         "\"budget_tokens\":-5}",
         "thinking.budget_tokens"},
        {"\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tool_choice\":{\"type\":\"any\"}",
         "tool_choice.type"},
        {"\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"output_config\":{\"format\":{}}",
         "output_config.format"},
        {"\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"mcp_servers\":[1]", "mcp_servers"},
        {"\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"type\":\"bash_"
         "20250124\",\"name\":\"bash\"}]",
         "tools[0]"},
    };
    struct rig r;
    open_rig(&r, NULL);
    fake_engine_script(r.engine, "refuse 1 the engine was asked\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[512];
        int status;
        bool ended;
        (void)snprintf(body, sizeof body, "{%s}", rows[i].fields);
        char *got = ask_at(&r, "/v1/messages", body, &status, &ended);
        if (status != 400 || !strstr(got, rows[i].text) ||
            !strstr(got, "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\""))
            FAIL("%s: status %d, %s", rows[i].fields, status, got);
        free(got);
    }
    close_rig(&r);
}

TEST(raw_prompts)
{
    static const struct {
        const char *body;
        int status;
        const char *text;
    } rows[] = {
        {"{}", 400, "\"param\":\"prompt\",\"code\":\"missing_required_parameter\""},
        {"{\"prompt\":\"\"}", 400, "\"invalid_value\""},
        {"{\"prompt\":[]}", 400, "\"invalid_value\""},
        {"{\"prompt\":{}}", 400, "\"invalid_type\""},
        {"{\"prompt\":[1,-2]}", 400, "\"param\":\"prompt[1]\""},
        {"{\"prompt\":[\"a\",\"\"]}", 400, "\"invalid_value\""},
        {"{\"prompt\":[\"a\",3]}", 400, "\"param\":\"prompt[1]\",\"code\":\"invalid_type\""},
        {"{\"prompt\":[[1],[2,-1]]}", 400, "\"param\":\"prompt[1][1]\""},
        {"{\"prompt\":[1,\"a\"]}", 400, "\"param\":\"prompt[1]\",\"code\":\"invalid_type\""},
        {"{\"prompt\":\"a\",\"suffix\":\"b\"}", 400, "\"param\":\"suffix\""},
        {"{\"prompt\":\"a\",\"logprobs\":21}", 400, "\"param\":\"logprobs\""},
        {"{\"prompt\":\"a\",\"logprobs\":true}", 400, "\"param\":\"logprobs\""},
        {"{\"prompt\":\"a\",\"prompt_logprobs\":21}", 400, "\"param\":\"prompt_logprobs\""},
        {"{\"prompt\":\"a\",\"echo\":1}", 400, "\"param\":\"echo\""},
        {"{\"prompt\":\"a\",\"n\":3}", 400, "\"param\":\"n\""},
        {"{\"prompt\":\"a\",\"best_of\":2}", 400, "\"param\":\"best_of\""},
        {"{\"prompt\":\"a\",\"cache_salt\":\"\"}", 400, "\"param\":\"cache_salt\""},
        {"{\"prompt\":\"a\",\"max_tokens\":0}", 400, "\"param\":\"max_tokens\""},
        {"{\"prompt\":[1,2,3]}", 200, "text_completion"},
        {"{\"prompt\":\"a\",\"parse_special\":false}", 200, "text_completion"},
    };
    struct rig r;
    open_rig(&r, NULL);
    fake_engine_script(r.engine, "accepted 5 0\nfinish stop 5 0 1 0\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int status;
        bool ended;
        char *got = ask_at(&r, "/completions", rows[i].body, &status, &ended);
        if (status != rows[i].status || !strstr(got, rows[i].text))
            FAIL("%s: status %d, %s", rows[i].body, status, got);
        free(got);
    }
    const lathe_request_options *o = fake_engine_last(r.engine);
    CHECK(o->no_parse && !o->text && !o->conversation && o->n_token == 1);
    close_rig(&r);
}

TEST(requests_that_are_refused)
{
    static const struct {
        const char *fields, *param, *code;
    } rows[] = {
        {"\"max_tokens\":0", "max_tokens", "invalid_value"},
        {"\"max_tokens\":-1", "max_tokens", "invalid_value"},
        {"\"max_tokens\":\"5\"", "max_tokens", "invalid_type"},
        {"\"n_predict\":0", "n_predict", "invalid_value"},
        {"\"temperature\":-0.5", "temperature", "invalid_value"},
        {"\"temperature\":101", "temperature", "invalid_value"},
        {"\"top_p\":1.5", "top_p", "invalid_value"},
        {"\"repetition_penalty\":0", "repetition_penalty", "invalid_value"},
        {"\"stop\":\"\"", "stop", "invalid_value"},
        {"\"stop\":[1]", "stop[0]", "invalid_type"},
        {"\"logit_bias\":{\"x\":1}", "logit_bias.x", "invalid_value"},
        {"\"logit_bias\":{\"1\":101}", "logit_bias.1", "invalid_value"},
        {"\"n\":3", "n", "invalid_value"},
        {"\"n\":0", "n", "invalid_value"},
        {"\"best_of\":2", "best_of", "unsupported_value"},
        {"\"logprobs\":1", "logprobs", "invalid_type"},
        {"\"top_logprobs\":1", "top_logprobs", "invalid_value"},
        {"\"logprobs\":true,\"top_logprobs\":21", "top_logprobs", "invalid_value"},
        {"\"stream_options\":{\"continuous_usage_stats\":1}",
         "stream_options.continuous_usage_stats", "invalid_type"},
        {"\"cache_salt\":1", "cache_salt", "invalid_type"},
        {"\"continue_final_message\":true", "messages", "invalid_value"},
        {"\"add_generation_prompt\":false", "messages", "invalid_value"},
        {"\"continue_final_message\":true,\"add_generation_prompt\":true", "continue_final_message",
         "invalid_value"},
        {"\"functions\":[]", "functions", "unsupported_parameter"},
        {"\"chat_template\":\"x\"", "chat_template", "unsupported_parameter"},
        {"\"grammar\":\"x\"", "grammar", "unsupported_parameter"},
        {"\"response_format\":{\"type\":\"json_object\"}", "response_format.type",
         "unsupported_value"},
        {"\"response_format\":{\"type\":\"json_schema\"}", "response_format.type",
         "unsupported_value"},
        {"\"modalities\":[\"audio\"]", "modalities", "unsupported_value"},
        {"\"tool_choice\":\"sometimes\"", "tool_choice", "invalid_value"},
        {"\"tool_choice\":\"required\"", "tool_choice", "invalid_value"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":"
         "\"required\"",
         "tool_choice", "unsupported_value"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":"
         "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}",
         "tool_choice", "unsupported_value"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":"
         "{\"type\":\"function\",\"function\":{\"name\":\"nope\"}}",
         "tool_choice.function.name", "invalid_value"},
    };
    struct rig r;
    open_rig(&r, NULL);
    fake_engine_script(r.engine, "refuse 1 the engine was asked\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[512], want[160];
        int status;
        bool ended;
        (void)snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\"}],%s}",
                       rows[i].fields);
        (void)snprintf(want, sizeof want, "\"param\":\"%s\",\"code\":\"%s\"", rows[i].param,
                       rows[i].code);
        char *got = ask(&r, body, &status, &ended);
        if (status != 400 || !strstr(got, want))
            FAIL("%s: status %d, %s", rows[i].fields, status, got);
        free(got);
    }
    close_rig(&r);
}

/* From a body to what the engine is asked: prompts, limits, choices, and what the server's options say. */
#include <string.h>

#include "fake_engine.h"
#include "rig.h"
#include "test.h"

static const char chat[] = "/v1/chat/completions", messages[] = "/v1/messages",
                  completions[] = "/v1/completions";

/* What the engine was asked, request by request. */
struct asked {
    int n;
    lathe_request_options o[8]; /* their pointers are not valid any more */
    char *prompt[8], *salt;
    lathe_logit_bias bias; /* the last one */
    const lathe_text *text;
    int32_t call_begin; /* the token <tool_call> */
};

static const char *take(void *ctx, const lathe_request_options *o)
{
    struct asked *a = ctx;
    lathe_prompt p = {0};
    lathe_error err;
    CHECK(a->n < 8);
    if (o->conversation)
        CHECK_OK(lathe_render(a->text, o->conversation, &p, &err), &err);
    a->prompt[a->n] = strdup(p.text ? p.text : "");
    lathe_prompt_release(&p);
    if (o->sampling.n_bias)
        a->bias = o->sampling.bias[o->sampling.n_bias - 1];
    if (o->cache_salt)
        a->salt = strdup(o->cache_salt);
    a->o[a->n++] = *o;
    return "accepted 5 0\ntext a\nfinish stop_string 5 0 2 0 END\n";
}

/* The whole answer, with its head. */
static char *send_body(const struct server_options *with, const char *path, const char *body,
                       struct asked *a)
{
    struct rig r;
    struct buf b;
    lathe_tokens t;
    lathe_error err;
    *a = (struct asked){0};
    open_rig(&r, with);
    a->text = lathe_engine_text(r.engine);
    CHECK_OK(lathe_tokenize(a->text, "<tool_call>", 11, true, &t, &err), &err);
    CHECK_INT(t.n, 1);
    a->call_begin = t.id[0];
    lathe_tokens_release(&t);
    fake_engine_ask(r.engine, take, a);
    int fd = connect_to(&r);
    send_to(fd, path, body);
    receive(fd, &b);
    close_rig(&r);
    return b.data;
}

static void forget(struct asked *a, char *answer)
{
    for (int i = 0; i < a->n; i++)
        free(a->prompt[i]);
    free(a->salt);
    free(answer);
}

/* ---- Prompts -------------------------------------------------------------------------------- */

enum with { NOTHING, NO_PREFILL, KEEP_TOOLS, KEEP_BILLING, MERGE, INLINE, LATE_ERROR };

static struct server_options options_with(enum with with)
{
    struct server_options o;
    server_options_init(&o);
    o.no_prefill = with == NO_PREFILL;
    o.keep_unused_tools = with == KEEP_TOOLS;
    o.keep_billing_header = with == KEEP_BILLING;
    o.late_system = with >= MERGE ? (int32_t)(with - MERGE) : -1;
    return o;
}

#define USER      "{\"role\":\"user\",\"content\":\"q\"}"
#define ASSISTANT "{\"role\":\"assistant\",\"content\":\"Once \"}"
#define TOOL      "{\"type\":\"function\",\"function\":{\"name\":\"look\",\"parameters\":{}}}"
#define LATE      "{\"role\":\"system\",\"content\":\"late\"}"

static const struct prompt_row {
    const char *path;
    enum with with;
    const char *body;
    const char *has, *has_not; /* of the prompt; NULL: anything */
} prompt_rows[] = {
    /* Answers that go on. */
    {chat, NOTHING, "{\"messages\":[" USER "," ASSISTANT "]}", "</think>\n\nOnce", "Once<"},
    {chat, NO_PREFILL, "{\"messages\":[" USER "," ASSISTANT "]}", "<|im_start|>assistant\n<think>",
     "</think>\n\nOnce "},
    {chat, NOTHING, "{\"messages\":[" USER "," ASSISTANT "],\"continue_final_message\":false}",
     "Once<|im_end|>", NULL},
    {chat, NOTHING, "{\"messages\":[" USER "," ASSISTANT "],\"add_generation_prompt\":true}",
     "Once<|im_end|>", NULL},
    {chat, NO_PREFILL, "{\"messages\":[" USER "," ASSISTANT "],\"add_generation_prompt\":false}",
     "</think>\n\nOnce", "Once<"},
    {chat, NO_PREFILL, "{\"messages\":[" USER "," ASSISTANT "],\"continue_final_message\":true}",
     "</think>\n\nOnce", "Once<"},
    {messages, NO_PREFILL, "{\"messages\":[" USER "," ASSISTANT "]}", "</think>\n\nOnce", "Once<"},
    /* Tools that must not be called. */
    {chat, NOTHING, "{\"messages\":[" USER "],\"tools\":[" TOOL "],\"tool_choice\":\"none\"}", NULL,
     "look"},
    {chat, KEEP_TOOLS, "{\"messages\":[" USER "],\"tools\":[" TOOL "],\"tool_choice\":\"none\"}",
     "\"look\"", NULL},
    {messages, NOTHING,
     "{\"messages\":[" USER
     "],\"tools\":[{\"name\":\"look\"}],\"tool_choice\":{\"type\":\"none\"}}",
     NULL, "look"},
    {messages, KEEP_TOOLS,
     "{\"messages\":[" USER
     "],\"tools\":[{\"name\":\"look\"}],\"tool_choice\":{\"type\":\"none\"}}",
     "\"look\"", NULL},
    /* System messages that come late: into the first block, or in their place. */
    {chat, NOTHING, "{\"messages\":[" USER "," LATE "]}", "late<|im_end|>\n<|im_start|>user\nq",
     NULL},
    {chat, INLINE, "{\"messages\":[" USER "," LATE "]}", "<|im_start|>system\nlate<|im_end|>\n",
     "late<|im_end|>\n<|im_start|>user\nq"},
    {chat, INLINE,
     "{\"messages\":[" USER "," LATE "],\"chat_template_kwargs\":{\"late_system\":\"merge\"}}",
     "late<|im_end|>\n<|im_start|>user\nq", NULL},
    {messages, NOTHING, "{\"messages\":[" USER "," LATE "]}",
     "q<|im_end|>\n<|im_start|>system\nlate<|im_end|>\n", NULL},
    {messages, MERGE, "{\"messages\":[" USER "," LATE "]}", "late<|im_end|>\n<|im_start|>user\nq",
     NULL},
    /* B74: a line that changes with each request is no part of a system text. */
    {messages, NOTHING,
     "{\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: "
     "a\"},{\"type\":\"text\","
     "\"text\":\"rules\"}],\"messages\":[" USER "]}",
     "rules", "billing"},
    {messages, NOTHING,
     "{\"system\":\"x-anthropic-billing-header: a\\nrules\",\"messages\":[{\"role\":\"user\","
     "\"content\":\"x-anthropic-billing-header: mine\"}]}",
     "user\nx-anthropic-billing-header: mine", "header: a"},
    {messages, KEEP_BILLING,
     "{\"system\":\"x-anthropic-billing-header: a\\nrules\",\"messages\":[" USER "]}",
     "x-anthropic-billing-header: a\nrules", NULL},
    /* Blocks that are text. */
    {messages, NOTHING,
     "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"document\",\"title\":\"T\","
     "\"context\":\"C\",\"source\":{\"type\":\"text\",\"data\":\"D\"}},{\"type\":\"document\","
     "\"source\":{\"type\":\"content\",\"content\":[{\"type\":\"text\",\"text\":\"E\"}]}},{"
     "\"type\":"
     "\"search_result\",\"title\":\"S\",\"source\":\"http://s\",\"content\":[{\"type\":\"text\","
     "\"text\":\"R\"}]},{\"type\":\"text\",\"text\":\"q\"}]}]}",
     "user\nT\nC\nD\nE\nS\nhttp://s\nR\nq<", NULL},
    {messages, NOTHING,
     "{\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":[{\"type\":\"server_tool_use\","
     "\"id\":\"s\",\"name\":\"web_search\",\"input\":{\"q\":\"a\"}},{\"type\":\"text\",\"text\":"
     "\"b\"}]}," USER "]}",
     "[server_tool_use: {", NULL},
    /* Tools that come later. */
    {messages, NOTHING,
     "{\"messages\":[" USER "],\"tools\":[{\"name\":\"look\"},{\"name\":\"late\",\"defer_loading\":"
     "true}]}",
     "\"look\"", "\"late\""},
    {messages, NOTHING,
     "{\"messages\":[" USER
     ",{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"1\","
     "\"name\":\"look\",\"input\":{}}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\","
     "\"tool_use_id\":\"1\",\"content\":[{\"type\":\"tool_reference\",\"tool_name\":\"late\"},{"
     "\"type\":\"tool_reference\",\"tool_name\":\"gone\"}]}]}],\"tools\":[{\"name\":\"look\"},{"
     "\"name\":\"late\",\"defer_loading\":true}]}",
     "<tool_response>\n{\"type\": \"function\", \"function\": {\"name\": \"late\", \"parameters\": "
     "{\"type\": \"object\", \"properties\": {}}}}\n[tool_reference: gone]",
     NULL},
    /* Tools that run elsewhere. */
    {chat, NOTHING,
     "{\"messages\":[" USER "],\"tools\":[{\"type\":\"web_search_preview\"}," TOOL "]}", "\"look\"",
     "web_search"},
    {messages, NOTHING,
     "{\"messages\":[" USER
     "],\"tools\":[{\"type\":\"web_search_20250305\",\"name\":\"web_search\"},"
     "{\"name\":\"look\"}]}",
     "\"look\"", "web_search"},
};

TEST(prompts)
{
    for (size_t i = 0; i < sizeof prompt_rows / sizeof *prompt_rows; i++) {
        const struct prompt_row *row = &prompt_rows[i];
        struct server_options o = options_with(row->with);
        struct asked a;
        char *answer = send_body(&o, row->path, row->body, &a);
        if (a.n != 1 || !strstr(answer, "HTTP/1.1 200"))
            FAIL("%s: %s", row->body, answer);
        if ((row->has && !strstr(a.prompt[0], row->has)) ||
            (row->has_not && strstr(a.prompt[0], row->has_not)))
            FAIL("%s: %s", row->body, a.prompt[0]);
        forget(&a, answer);
    }
}

TEST(a_late_system_message_may_be_an_error)
{
    struct server_options o = options_with(LATE_ERROR);
    struct rig r;
    int status;
    bool ended;
    open_rig(&r, &o);
    fake_engine_script(r.engine, "accepted 5 0\nfinish stop 5 0 1 0\n");
    char *got = ask(&r, "{\"messages\":[" USER "," LATE "]}", &status, &ended);
    CHECK_INT(status, 400);
    free(got);
    close_rig(&r);
}

/* ---- Tools ---------------------------------------------------------------------------------- */

TEST(calls_that_are_forbidden)
{
    struct server_options o = options_with(KEEP_TOOLS);
    struct asked a;
    char *answer = send_body(&o, chat,
                             "{\"messages\":[" USER "],\"tools\":[" TOOL
                             "],\"tool_choice\":\"none\",\"logit_bias\":{\"7\":1}}",
                             &a);
    CHECK_INT(a.o[0].sampling.n_bias, 2);
    CHECK_INT(a.bias.id, a.call_begin);
    CHECK(a.bias.bias == -100);
    forget(&a, answer);
}

TEST(tools_that_are_ignored_are_named)
{
    static const struct {
        const char *path, *tools, *header;
    } rows[] = {
        {chat, "{\"type\":\"web_search\"},{\"type\":\"mcp\"},{\"type\":\"web_search\"}," TOOL,
         "\r\nx-ignored-tools: web_search, mcp\r\n"},
        {chat, TOOL, NULL},
        {messages, "{\"type\":\"code_execution_20250825\",\"name\":\"code_execution\"}",
         "\r\nx-ignored-tools: code_execution_20250825\r\n"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct asked a;
        char body[600];
        (void)snprintf(body, sizeof body, "{\"messages\":[" USER "],\"tools\":[%s]}",
                       rows[i].tools);
        char *answer = send_body(NULL, rows[i].path, body, &a);
        if (!strstr(answer, "HTTP/1.1 200") ||
            (rows[i].header ? !strstr(answer, rows[i].header) : !!strstr(answer, "x-ignored")))
            FAIL("%s: %s", rows[i].tools, answer);
        forget(&a, answer);
    }
}

TEST(how_many_calls)
{
    static const struct {
        int32_t of_server;
        const char *field;
        int32_t want;
    } rows[] = {{0, "", 0},
                {5, "", 5},
                {5, ",\"parallel_tool_calls\":false", 1},
                {0, ",\"parallel_tool_calls\":true", 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct server_options o;
        struct asked a;
        char body[300];
        server_options_init(&o);
        o.max_calls = rows[i].of_server;
        (void)snprintf(body, sizeof body, "{\"messages\":[" USER "]%s}", rows[i].field);
        char *answer = send_body(&o, chat, body, &a);
        CHECK_INT(a.o[0].max_calls, rows[i].want);
        forget(&a, answer);
    }
}

/* ---- Choices and tokens --------------------------------------------------------------------- */

TEST(seeds_of_choices)
{
    struct asked a;
    char *answer =
        send_body(NULL, chat, "{\"messages\":[" USER "],\"n\":2,\"seed\":9223372036854775807}", &a);
    CHECK_INT(a.n, 2);
    CHECK(a.o[0].sampling.seed == INT64_MAX && a.o[1].sampling.seed == 0);
    forget(&a, answer);
    answer = send_body(NULL, completions, "{\"prompt\":[\"a\",\"b\"],\"n\":2,\"seed\":7}", &a);
    CHECK_INT(a.n, 4);
    for (int i = 0; i < 4; i++)
        CHECK(a.o[i].sampling.seed == 7 + i % 2);
    forget(&a, answer);
    answer = send_body(NULL, chat, "{\"messages\":[" USER "],\"n\":2}", &a);
    CHECK(a.o[0].sampling.seed == -1 && a.o[1].sampling.seed == -1);
    forget(&a, answer);
}

TEST(tokens_that_are_asked_for)
{
    static const struct {
        const char *path, *fields;
        int32_t n, n_prompt;
    } rows[] = {
        {chat, "", -1, -1},
        {chat, ",\"logprobs\":false", -1, -1},
        {chat, ",\"logprobs\":true", 0, -1},
        {chat, ",\"logprobs\":true,\"top_logprobs\":20", 20, -1},
        {chat, ",\"return_token_ids\":true", 0, -1},
        {chat, ",\"timings_per_token\":true", -1, -1},
        {chat, ",\"timings_per_token\":true,\"stream\":true", 0, -1},
        {chat, ",\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":true}", 0, -1},
        {completions, "", -1, -1},
        {completions, ",\"logprobs\":0", 0, -1},
        {completions, ",\"logprobs\":3,\"echo\":true", 3, 3},
        {completions, ",\"logprobs\":3,\"echo\":true,\"prompt_logprobs\":5", 3, 5},
        {completions, ",\"prompt_logprobs\":0", -1, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct asked a;
        char body[300];
        (void)snprintf(body, sizeof body, "{%s%s}",
                       rows[i].path == chat ? "\"messages\":[" USER "]" : "\"prompt\":\"a\"",
                       rows[i].fields);
        char *answer = send_body(NULL, rows[i].path, body, &a);
        if (a.n != 1 || a.o[0].n_logprobs != rows[i].n ||
            a.o[0].n_prompt_logprobs != rows[i].n_prompt)
            FAIL("%s: %d and %d", rows[i].fields, (int)a.o[0].n_logprobs,
                 (int)a.o[0].n_prompt_logprobs);
        forget(&a, answer);
    }
}

/* ---- Fields of all dialects ----------------------------------------------------------------- */

TEST(salts_and_stop_strings)
{
    static const struct {
        const char *path, *body;
    } rows[] = {{chat, "\"messages\":[" USER "]"},
                {messages, "\"messages\":[" USER "]"},
                {completions, "\"prompt\":\"a\""}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct asked a;
        char body[300];
        (void)snprintf(body, sizeof body,
                       "{%s,\"cache_salt\":\"tenant\",\"include_stop_str_in_output\":true}",
                       rows[i].body);
        char *answer = send_body(NULL, rows[i].path, body, &a);
        CHECK_STR(a.salt, "tenant");
        CHECK(strstr(answer, "\"aEND\"") && !strstr(answer, "x-unknown-fields"));
        forget(&a, answer);
    }
}

TEST(usage_that_was_not_asked_for)
{
    static const char *const path[] = {chat, completions};
    for (int i = 0; i < 2; i++)
        for (int always = 0; always < 2; always++) {
            struct server_options o;
            struct asked a;
            server_options_init(&o);
            o.always_usage = always;
            char *answer = send_body(&o, path[i],
                                     i ? "{\"prompt\":\"a\",\"stream\":true}"
                                       : "{\"messages\":[" USER "],\"stream\":true}",
                                     &a);
            CHECK_INT(strstr(answer, "\"usage\":{") != NULL, always);
            forget(&a, answer);
        }
}

/* ---- Choices that do not go well ------------------------------------------------------------ */

struct scripts {
    const char *const *script;
    int n, n_busy; /* n_busy: submissions that the engine has no room for, after the first */
};

static const char *next_script(void *ctx, const lathe_request_options *o)
{
    struct scripts *s = ctx;
    (void)o;
    if (s->n > 0 && s->n_busy > 0) {
        s->n_busy--;
        return "refuse 11 full\n";
    }
    return s->script[s->n++];
}

static char *ask_choices(const char *const *script, int n_busy, const char *body, int *status,
                         bool *ended)
{
    struct rig r;
    struct scripts s = {script, 0, n_busy};
    open_rig(&r, NULL);
    fake_engine_ask(r.engine, next_script, &s);
    char *got = ask_at(&r, completions, body, status, ended);
    close_rig(&r);
    return got;
}

/* The others are cancelled, and the reply is one error. */
TEST(a_choice_that_fails)
{
    static const char *const scripts[] = {"accepted 5 0\ntext a\nwait\n",
                                          "accepted 5 0\ntext b\npause 300\nerror 12 lost\n"};
    int status;
    bool ended;
    char *got = ask_choices(scripts, 0, "{\"prompt\":\"a\",\"n\":2}", &status, &ended);
    CHECK_INT(status, 500);
    CHECK(strstr(got, "\"internal_error\""));
    free(got);
    got = ask_choices(scripts, 0, "{\"prompt\":\"a\",\"n\":2,\"stream\":true}", &status, &ended);
    CHECK(status == 200 && ended && strstr(got, "\"text\":\"a\"") && strstr(got, "\"text\":\"b\""));
    char *error = strstr(got, "data: {\"error\"");
    CHECK(error && !strstr(error + 1, "data: {\"error\"") && strstr(error, "data: [DONE]") &&
          !strstr(got, "\"finish_reason\":\""));
    free(got);
}

/* The first choice is refused where the engine is full; later ones wait, also with nothing of the request at work. */
TEST(choices_that_wait_for_room)
{
    static const char *const scripts[] = {"accepted 5 0\ntext a\nfinish stop 5 0 1 0\n",
                                          "accepted 5 0\ntext b\nfinish stop 5 0 1 0\n",
                                          "accepted 5 0\ntext c\nfinish stop 5 0 1 0\n"};
    static const char *const full[] = {"refuse 11 full\n"};
    int status;
    bool ended;
    char *got = ask_choices(scripts, 3, "{\"prompt\":[\"p\",\"q\",\"r\"]}", &status, &ended);
    CHECK_INT(status, 200);
    CHECK(strstr(got, "\"text\":\"a\"") && strstr(got, "\"text\":\"b\"") &&
          strstr(got, "\"text\":\"c\""));
    free(got);
    got = ask_choices(full, 0, "{\"prompt\":[\"p\",\"q\",\"r\"]}", &status, &ended);
    CHECK_INT(status, 429);
    free(got);
}

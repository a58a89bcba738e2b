/* Whether, how hard and how long a request thinks, in the words of each dialect and under the server's options. */
#include <stdio.h>

#include "dialect/anthropic.h"
#include "fake_engine.h"
#include "rig.h"
#include "state.h"
#include "test.h"

struct outcome {
    lathe_switch thinking;
    const char *effort; /* NULL: none */
    int32_t budget;
    bool asks;
};

static void check(const struct thinking_options *options, bool anthropic, const char *fields,
                  const struct outcome *want)
{
    static struct server server;
    struct exchange x = {.server = &server};
    struct generation g = {0};
    struct fields f;
    server.options.thinking = *options;
    limits_init(&server.options.limits);
    buf_init(&x.body, 4096);
    buf_printf(&x.body, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]%s}", fields);
    CHECK(fields_open(&f, &x));
    bool ok = anthropic ? anthropic_conversation(&x, &f, &g) : chat_read(&f, &g.chat);
    if (!ok)
        FAIL("%s: %s", fields, x.failure.message);
    const struct chat *c = &g.chat;
    const char *effort = c->conversation.effort ? c->conversation.effort : "none";
    const char *expected = want->effort ? want->effort : "none";
    if (c->conversation.thinking != want->thinking || strcmp(effort, expected) != 0 ||
        c->budget != want->budget || c->asks_to_think != want->asks ||
        c->thinks != (want->thinking != LATHE_OFF))
        FAIL("%s: thinking %d, effort %s, budget %d, asks %d", fields,
             (int)c->conversation.thinking, effort, (int)c->budget, c->asks_to_think);
    if (c->conversation.kwargs)
        CHECK_STR(c->conversation.kwargs, "{}");
    chat_release(&g.chat);
    fields_close(&f);
    buf_release(&x.body);
}

static const struct thinking_options plain;

TEST(chat_words)
{
    static const struct {
        const char *fields;
        struct outcome want;
    } rows[] = {
        {"", {LATHE_DEFAULT, NULL, -1, false}},
        {",\"reasoning_effort\":\"high\"", {LATHE_ON, "high", -1, true}},
        {",\"reasoning_effort\":\"max\"", {LATHE_ON, "max", -1, true}},
        {",\"reasoning_effort\":\"minimal\"", {LATHE_ON, "minimal", -1, true}},
        {",\"reasoning_effort\":\"none\"", {LATHE_OFF, NULL, -1, false}},
        {",\"reasoning_effort\":\"auto\"", {LATHE_DEFAULT, NULL, -1, false}},
        {",\"reasoning_effort\":null", {LATHE_DEFAULT, NULL, -1, false}},
        {",\"enable_thinking\":false,\"reasoning_effort\":\"high\"", {LATHE_OFF, NULL, -1, false}},
        {",\"thinking\":{\"type\":\"disabled\"}", {LATHE_OFF, NULL, -1, false}},
        {",\"thinking\":{\"type\":\"adaptive\"}", {LATHE_ON, NULL, -1, true}},
        {",\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":0}", {LATHE_ON, NULL, 0, true}},
        {",\"think\":true", {LATHE_ON, NULL, -1, true}},
        {",\"think\":\"low\"", {LATHE_ON, "low", -1, true}},
        {",\"reasoning\":{\"enabled\":true,\"effort\":\"none\"}", {LATHE_ON, NULL, -1, true}},
        {",\"reasoning\":{\"effort\":\"none\",\"max_tokens\":-1}", {LATHE_OFF, NULL, -1, false}},
        {",\"reasoning\":{\"max_tokens\":70}", {LATHE_DEFAULT, NULL, 70, false}},
        {",\"thinking_budget\":5,\"reasoning_budget\":6", {LATHE_DEFAULT, NULL, 5, false}},
        {",\"thinking_budget\":-1,\"reasoning_budget\":6", {LATHE_DEFAULT, NULL, -1, false}},
        {",\"thinking_token_budget\":7.0", {LATHE_DEFAULT, NULL, 7, false}},
        {",\"reasoning_budget\":8", {LATHE_DEFAULT, NULL, 8, false}},
        {",\"thinking_budget_tokens\":9", {LATHE_DEFAULT, NULL, 9, false}},
        {",\"enable_thinking\":true,\"chat_template_kwargs\":{\"enable_thinking\":false}",
         {LATHE_OFF, NULL, -1, false}},
        {",\"reasoning_effort\":\"low\",\"chat_template_kwargs\":{\"reasoning_effort\":\"high\"}",
         {LATHE_ON, "high", -1, true}},
        {",\"chat_template_kwargs\":{\"reasoning_effort\":\"none\"}", {LATHE_OFF, NULL, -1, false}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check(&plain, false, rows[i].fields, &rows[i].want);
}

TEST(messages_words)
{
    static const struct {
        const char *fields;
        struct outcome want;
    } rows[] = {
        {"", {LATHE_DEFAULT, NULL, -1, false}},
        {",\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024}",
         {LATHE_ON, NULL, 1024, true}},
        {",\"thinking\":{\"type\":\"between_tools\"}", {LATHE_ON, NULL, -1, true}},
        {",\"thinking\":{\"type\":\"disabled\"},\"output_config\":{\"effort\":\"max\"}",
         {LATHE_OFF, NULL, -1, false}},
        {",\"output_config\":{\"effort\":\"max\"}", {LATHE_ON, "max", -1, true}},
        {",\"chat_template_kwargs\":{\"enable_thinking\":true},\"thinking_budget\":3",
         {LATHE_ON, NULL, 3, true}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check(&plain, true, rows[i].fields, &rows[i].want);
}

TEST(options_for_what_is_left_open)
{
    const struct thinking_options off = {.thinking = LATHE_OFF, .effort = "low"};
    const struct thinking_options low = {.thinking = LATHE_ON, .effort = "low"};
    const struct thinking_options pinned = {.effort = "low", .pinned_effort = "medium"};
    static const char *const high = ",\"reasoning_effort\":\"high\"",
                             *const none = ",\"reasoning_effort\":\"none\"";
    check(&off, false, "", &(struct outcome){LATHE_OFF, NULL, -1, false});
    check(&off, true, "", &(struct outcome){LATHE_OFF, NULL, -1, false});
    check(&off, false, high, &(struct outcome){LATHE_ON, "high", -1, true});
    check(&off, false, ",\"think\":true", &(struct outcome){LATHE_ON, "low", -1, true});
    check(&low, false, "", &(struct outcome){LATHE_ON, "low", -1, false});
    check(&low, true, "", &(struct outcome){LATHE_ON, "low", -1, false});
    check(&low, false, none, &(struct outcome){LATHE_OFF, NULL, -1, false});
    check(&pinned, false, "", &(struct outcome){LATHE_DEFAULT, "medium", -1, false});
    check(&pinned, false, high, &(struct outcome){LATHE_ON, "medium", -1, true});
    check(&pinned, false, ",\"chat_template_kwargs\":{\"reasoning_effort\":\"high\"}",
          &(struct outcome){LATHE_ON, "medium", -1, true});
    check(&pinned, false, none, &(struct outcome){LATHE_OFF, NULL, -1, false});
}

/* What the engine gets, whatever the dialect. */
TEST(budgets_reach_the_engine)
{
    static const struct {
        const char *path, *body;
        int32_t budget;
    } rows[] = {
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", -1},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"thinking_budget\":12}", 12},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"thinking_budget\":12,"
         "\"enable_thinking\":false}",
         -1},
        {"/v1/messages",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"thinking\":{\"type\":"
         "\"enabled\",\"budget_tokens\":32000},\"max_tokens\":8000}",
         32000},
        {"/v1/responses", "{\"input\":\"a\",\"reasoning\":{\"max_tokens\":0}}", 0},
        {"/v1/responses", "{\"input\":\"a\",\"thinking_budget\":4}", 4},
        {"/v1/completions", "{\"prompt\":\"a\"}", -1},
    };
    struct server_options so;
    struct rig r;
    server_options_init(&so);
    so.thinking.budget_message = "Enough.";
    so.thinking.end_in_think = true;
    open_rig(&r, &so);
    fake_engine_script(r.engine, "accepted 3 0\ntext b\nfinish stop 3 0 2 0\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int status;
        bool ended;
        free(ask_at(&r, rows[i].path, rows[i].body, &status, &ended));
        const lathe_request_options *o = fake_engine_last(r.engine);
        if (status != 200 || o->think_budget != rows[i].budget)
            FAIL("%s: status %d, budget %d", rows[i].body, status, (int)o->think_budget);
        if (o->conversation) {
            CHECK_STR(o->budget_message, "Enough.");
            CHECK(o->end_in_think);
        }
    }
    close_rig(&r);
}

static void check_reply(const struct rig *r, const char *path, const char *body, const char *text)
{
    int status;
    bool ended;
    char *got = ask_at(r, path, body, &status, &ended);
    if (status != 200 || !ended || !strstr(got, text))
        FAIL("%s: status %d, %s; expected %s", body, status, got, text);
    free(got);
}

#define ASK "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"

TEST(where_reasoning_goes)
{
    struct server_options so;
    struct rig r;
    server_options_init(&so);
    so.reasoning_field = FIELD_REASONING;
    open_rig(&r, &so);
    fake_engine_script(r.engine, "accepted 3 0\nreasoning why\nstep\nreasoning \\snot\n"
                                 "reasoning_end\ntext b\nfinish stop 3 0 2 0\n");
    const char *chat = "/v1/chat/completions", *messages = "/v1/messages";
    check_reply(&r, chat, "{" ASK "}", "\"content\":\"b\",\"reasoning\":\"why not\",");
    check_reply(&r, chat, "{\"stream\":true," ASK "}", "\"delta\":{\"reasoning\":\" not\"}");
    check_reply(&r, chat, "{\"reasoning_format\":\"none\"," ASK "}",
                "\"content\":\"<think>\\nwhy not\\n</think>\\n\\nb\",\"refusal\"");
    check_reply(&r, chat, "{\"stream\":true,\"reasoning_format\":\"none\"," ASK "}",
                "\"delta\":{\"content\":\"\\n</think>\\n\\n\"}");
    check_reply(&r, chat, "{\"reasoning_format\":\"none\",\"include_reasoning\":false," ASK "}",
                "\"content\":\"b\",\"refusal\"");
    check_reply(&r, messages,
                "{\"thinking\":{\"type\":\"enabled\",\"display\":\"omitted\"}," ASK "}",
                "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"");
    check_reply(&r, messages,
                "{\"stream\":true,\"thinking\":{\"type\":\"enabled\",\"display\":\"omitted\"}," ASK
                "}",
                "\"signature\":\"\"}}\n\nevent: content_block_delta\ndata: {\"type\":"
                "\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"signature_delta\"");
    static const char *const shown[] = {"summarized", "updates", "highlights"};
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) {
        char body[256];
        snprintf(body, sizeof body,
                 "{\"thinking\":{\"type\":\"adaptive\",\"display\":\"%s\"}," ASK "}", shown[i]);
        check_reply(&r, messages, body,
                    "{\"type\":\"thinking\",\"thinking\":\"why not\",\"signature\":\"");
    }
    close_rig(&r);
    so.reasoning_field = FIELD_REASONING | FIELD_REASONING_CONTENT;
    open_rig(&r, &so);
    fake_engine_script(r.engine,
                       "accepted 3 0\nreasoning x\nreasoning_end\ntext b\nfinish stop 3 0 2 0\n");
    check_reply(&r, chat, "{" ASK "}", "\"reasoning_content\":\"x\",\"reasoning\":\"x\",");
    close_rig(&r);
}

static void check_split(bool keeps, const char *want)
{
    static struct server server;
    struct exchange x = {.server = &server};
    struct fields f;
    struct chat c;
    server.options.keep_think_tags = keeps;
    limits_init(&server.options.limits);
    buf_init(&x.body, 4096);
    buf_puts(&x.body, "{\"messages\":[{\"role\":\"assistant\",\"content\":"
                      "\"<think>\\nwhy\\n</think>\\n\\nb\"}]}");
    CHECK(fields_open(&f, &x) && chat_read(&f, &c));
    CHECK_STR(c.conversation.messages, want);
    chat_release(&c);
    fields_close(&f);
    buf_release(&x.body);
}

TEST(tags_in_a_text)
{
    check_split(false, "[{\"role\": \"assistant\", \"reasoning_content\": \"why\", \"content\": "
                       "\"b\"}]");
    check_split(true, "[{\"role\": \"assistant\", \"content\": "
                      "\"<think>\\nwhy\\n</think>\\n\\nb\"}]");
}

/* Responses: what their items and tools become, what is refused, what is stored. The events are in tests/server/responses. */
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "fake_engine.h"
#include "rig.h"
#include "server/dialect/custom_input.h"
#include "server/dialect/openai_responses.h"
#include "server/state.h"
#include "test.h"

/* ---- Bodies --------------------------------------------------------------------------------- */

struct read {
    struct server server;
    struct exchange x;
    struct fields f;
    struct generation g;
    struct responses_request q;
};

static void fixed_id(char out[25])
{
    memcpy(out, "AAAAAAAAAAAAAAAAAAAAAAAA", 25);
}

/* Reads a body; false after a refusal. */
static bool read_begin(struct read *r, const char *body)
{
    lathe_error err;
    memset(r, 0, sizeof *r);
    server_options_init(&r->server.options);
    r->server.options.id = fixed_id;
    CHECK_OK(store_open(&r->server.store, 8, 1 << 20, &err), &err);
    r->x.server = &r->server;
    buf_init(&r->x.body, 64 << 20);
    buf_init(&r->x.unknown, MAX_LISTED_BYTES);
    buf_init(&r->x.ignored, MAX_LISTED_BYTES);
    buf_puts(&r->x.body, body);
    arena_init(&r->g.arena, 16 << 20);
    return fields_open(&r->f, &r->x) && responses_conversation(&r->x, &r->f, &r->g, &r->q);
}

static void read_end(struct read *r)
{
    responses_request_release(&r->q, r->server.store);
    store_close(r->server.store);
    chat_release(&r->g.chat);
    arena_release(&r->g.arena);
    fields_close(&r->f);
    buf_release(&r->x.body);
    buf_release(&r->x.unknown);
    buf_release(&r->x.ignored);
}

static void check_text(const char *body, const char *what, const char *got, const char *want)
{
    if (strcmp(got ? got : "", want) != 0)
        FAIL("%s:\n%s:\n%s\nexpected\n%s", body, what, got ? got : "", want);
}

#define USER "{\"role\": \"user\", \"content\": \"hi\"}"
#define CALL(id, name, arguments)                                                                  \
    "{\"id\": \"" id "\", \"type\": \"function\", \"function\": {\"name\": \"" name                \
    "\", \"arguments\": " arguments "}}"
#define RESULT(id, text) "{\"role\": \"tool\", \"content\": \"" text "\"}"

TEST(items)
{
    static const struct {
        const char *input, *messages;
    } rows[] = {
        {"\"hi\"", "[" USER "]"},
        {"[{\"role\":\"user\",\"content\":\"hi\"}]", "[" USER "]"},
        {"[{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":"
         "\"h\"},{\"type\":\"input_text\",\"text\":\"i\"}]}]",
         "[" USER "]"},
        {"[{\"role\":\"developer\",\"content\":\"a\"},{\"role\":\"system\",\"content\":\"b\"}]",
         "[{\"role\": \"system\", \"content\": \"a\"}, {\"role\": \"system\", \"content\": "
         "\"b\"}]"},
        /* The assistant's items are one turn, until another's comes. */
        {"[{\"type\":\"reasoning\",\"summary\":[{\"type\":\"summary_text\",\"text\":\"s\"},{"
         "\"type\":\"summary_text\",\"text\":\"t\"}]},{\"role\":\"assistant\",\"content\":[{"
         "\"type\":\"output_text\",\"text\":\"x\"}]},{\"type\":\"function_call\",\"call_id\":\"1\","
         "\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"},{\"type\":\"function_call\",\"call_id\":"
         "\"2\",\"name\":\"f\",\"arguments\":\"\"},{\"role\":\"assistant\",\"content\":\"y\"},"
         "{\"role\":\"user\",\"content\":\"hi\"}]",
         "[{\"role\": \"assistant\", \"reasoning_content\": \"s\\n\\nt\", \"content\": \"xy\", "
         "\"tool_calls\": [" CALL("1", "f", "\"{\\\"a\\\":1}\"") ", " CALL("2", "f",
                                                                           "\"\"") "]}, " USER "]"},
        /* Raw text before the summary; another server's carrier is nothing. */
        {"[{\"type\":\"reasoning\",\"summary\":[{\"type\":\"summary_text\",\"text\":\"s\"}],"
         "\"content\":[{\"type\":\"reasoning_text\",\"text\":\"r\"}],\"encrypted_content\":"
         "\"gAAA\"},{\"role\":\"assistant\",\"content\":\"x\"}]",
         "[{\"role\": \"assistant\", \"reasoning_content\": \"r\", \"content\": \"x\"}]"},
        {"[{\"type\":\"reasoning\",\"summary\":[],\"encrypted_content\":\"gAAA\"},{\"role\":"
         "\"user\",\"content\":\"hi\"}]",
         "[" USER "]"},
        /* New reasoning is a new turn. */
        {"[{\"role\":\"assistant\",\"content\":\"x\"},{\"type\":\"reasoning\",\"summary\":[{"
         "\"type\":\"summary_text\",\"text\":\"s\"}]},{\"role\":\"assistant\",\"content\":\"y\"}]",
         "[{\"role\": \"assistant\", \"content\": \"x\"}, {\"role\": \"assistant\", "
         "\"reasoning_content\": \"s\", \"content\": \"y\"}]"},
        /* Results in the order of their calls. */
        {"[{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\",\"arguments\":\"{}\"},"
         "{\"type\":\"function_call\",\"call_id\":\"2\",\"name\":\"g\",\"arguments\":{}},"
         "{\"type\":\"function_call_output\",\"call_id\":\"2\",\"output\":[{\"type\":\"input_"
         "text\","
         "\"text\":\"b\"}]},{\"type\":\"function_call_output\",\"call_id\":\"1\",\"output\":\"a\"}"
         "]",
         "[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [" CALL(
             "1", "f", "\"{}\"") ", " CALL("2", "g",
                                           "{}") "]}, " RESULT("1", "a") ", " RESULT("2", "b") "]"},
        {"[{\"type\":\"function_call_output\",\"call_id\":\"1\"},{\"type\":"
         "\"function_call_output\",\"call_id\":\"2\",\"output\":{\"a\":[1]}}]",
         "[" RESULT("1", "") ", " RESULT("2", "{\\\"a\\\": [1]}") "]"},
        {"[{\"type\":\"custom_tool_call\",\"call_id\":\"1\",\"name\":\"p\",\"input\":\"a\\n\"},"
         "{\"type\":\"custom_tool_call_output\",\"call_id\":\"1\",\"output\":\"ok\"}]",
         "[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [" CALL(
             "1", "p", "{\"input\": \"a\\n\"}") "]}, " RESULT("1", "ok") "]"},
        {"[{\"type\":\"function_call\",\"call_id\":\"1\",\"namespace\":\"n\",\"name\":\"f\","
         "\"arguments\":\"{}\"}]",
         "[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [" CALL("1", "n__f",
                                                                                "\"{}\"") "]}]"},
        {"[{\"type\":\"tool_search_call\",\"call_id\":\"1\",\"execution\":\"client\",\"arguments\":"
         "{\"query\":\"q\"}},{\"type\":\"tool_search_output\",\"call_id\":\"1\",\"tools\":[{"
         "\"type\":\"namespace\",\"name\":\"n\",\"tools\":[\"short\",{\"type\":\"function\","
         "\"name\":\"f\"},{\"name\":\"g\"}]}]}]",
         "[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [" CALL(
             "1", "tool_search",
             "{\"query\": \"q\"}") "]}, " RESULT("1", "{\\\"type\\\": \\\"function\\\", "
                                                      "\\\"function\\\": {\\\"name\\\": \\\"n__f"
                                                      "\\\", \\\"parameters\\\": {\\\"type\\\": "
                                                      "\\\"object\\\", \\\"properties\\\": {}}}}\\n"
                                                      "{\\\"type\\\": \\\"function\\\", "
                                                      "\\\"function\\\": {\\\"name\\\": \\\"n__g"
                                                      "\\\", \\\"parameters\\\": {\\\"type\\\": "
                                                      "\\\"object\\\", \\\"properties\\\": "
                                                      "{}}}}") "]"},
        /* Calls of other servers' tools, and arguments that were cut off, are text. */
        {"[{\"type\":\"web_search_call\",\"id\":\"w\"},{\"role\":\"assistant\",\"content\":\"x\"}]",
         "[{\"role\": \"assistant\", \"content\": \"[web_search_call: {\\\"type\\\": "
         "\\\"web_search_call\\\", \\\"id\\\": \\\"w\\\"}]x\"}]"},
        {"[{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\",\"arguments\":\"{\\\"a\"},"
         "{\"role\":\"user\",\"content\":\"hi\"}]",
         "[{\"role\": \"assistant\", \"content\": \"[f: {\\\"a]\"}, " USER "]"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"input_file\",\"filename\":\"a.txt\","
         "\"file_data\":\"data:text/plain;base64,w6kK\"}]}]",
         "[{\"role\": \"user\", \"content\": \"a.txt\\né\\n\"}]"},
        {"[{\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\",\"refusal\":\"no\"}]}]",
         "[{\"role\": \"assistant\", \"content\": \"no\"}]"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct read r;
        struct buf body;
        buf_init(&body, 1 << 16);
        buf_printf(&body, "{\"input\":%s}", rows[i].input);
        if (!read_begin(&r, buf_str(&body)))
            FAIL("%s: %s", body.data, r.x.failure.message);
        check_text(body.data, "messages", r.g.chat.conversation.messages, rows[i].messages);
        read_end(&r);
        buf_release(&body);
    }
}

/* Ids are given to items that have none; strings become parts. */
TEST(stored_items)
{
    struct read r;
    CHECK(read_begin(&r,
                     "{\"instructions\":\"i\",\"input\":[{\"role\":\"user\",\"content\":\"hi\"},"
                     "{\"type\":\"function_call\",\"id\":\"own\",\"name\":\"f\"}]}"));
    check_text("", "stored", buf_str(&r.q.input),
               "[{\"role\": \"user\", \"content\": [{\"type\": \"input_text\", \"text\": "
               "\"hi\"}], \"type\": \"message\", \"id\": \"msg_AAAAAAAAAAAAAAAAAAAAAAAA\"}, "
               "{\"type\": \"function_call\", \"id\": \"own\", \"name\": \"f\"}]");
    read_end(&r);
}

#define FUNCTION(name, more)                                                                       \
    "{\"type\": \"function\", \"function\": {\"name\": \"" name "\"" more "}}"
#define NO_PARAMETERS ", \"parameters\": {\"type\": \"object\", \"properties\": {}}"

TEST(tools)
{
    static const struct {
        const char *tools, *listed, *callable, *ignored;
    } rows[] = {
        {"[{\"type\":\"function\",\"name\":\"f\",\"description\":\"d\",\"strict\":true,"
         "\"parameters\":{\"type\":\"object\"}}]",
         "[" FUNCTION("f", ", \"description\": \"d\", \"parameters\": {\"type\": \"object\"}") "]",
         "", ""},
        {"[{\"type\":\"custom\",\"name\":\"p\",\"description\":\"d\",\"format\":{\"type\":"
         "\"grammar\",\"syntax\":\"lark\",\"definition\":\"a\\nb\"}},{\"type\":\"custom\",\"name\":"
         "\"q\",\"format\":{\"type\":\"text\"}}]",
         "[" FUNCTION("p", ", \"description\": \"d\\n\\nThe input follows this lark "
                           "grammar:\\na\\nb\", \"parameters\": {\"type\": \"object\", "
                           "\"properties\": {\"input\": {\"type\": \"string\"}}, \"required\": "
                           "[\"input\"]}") ", " FUNCTION("q", ", \"parameters\": {\"type\": "
                                                              "\"object\", \"properties\": "
                                                              "{\"input\": {\"type\": "
                                                              "\"string\"}}, \"required\": "
                                                              "[\"input\"]}") "]",
         "", ""},
        {"[{\"type\":\"namespace\",\"name\":\"n\",\"tools\":[{\"type\":\"function\",\"name\":"
         "\"f\"},{\"type\":\"function\",\"name\":\"n__g\"}]},{\"type\":\"function\",\"name\":"
         "\"f\"}]",
         "[" FUNCTION("n__f", NO_PARAMETERS) ", " FUNCTION("n__g", NO_PARAMETERS) ", " FUNCTION(
             "f", NO_PARAMETERS) "]",
         "", ""},
        {"[{\"type\":\"function\",\"name\":\"n__f\"},{\"type\":\"namespace\",\"name\":\"n\","
         "\"tools\":[{\"type\":\"function\",\"name\":\"f\"}]}]",
         "[" FUNCTION("n__f", NO_PARAMETERS) ", " FUNCTION("n__f_2", NO_PARAMETERS) "]", "", ""},
        {"[{\"type\":\"function\",\"name\":\"f\",\"defer_loading\":true},{\"type\":"
         "\"tool_search\",\"execution\":\"client\"}]",
         "[" FUNCTION("tool_search", NO_PARAMETERS) "]",
         "[" FUNCTION("f", NO_PARAMETERS) ", " FUNCTION("tool_search", NO_PARAMETERS) "]", ""},
        {"[{\"type\":\"web_search\"},{\"type\":\"mcp\",\"server_label\":\"x\"},{\"type\":"
         "\"web_search\"},{\"type\":\"tool_search\"}]",
         "", "", "web_search, mcp, tool_search"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct read r;
        struct buf body;
        buf_init(&body, 1 << 16);
        buf_printf(&body, "{\"input\":\"hi\",\"tools\":%s}", rows[i].tools);
        if (!read_begin(&r, buf_str(&body)))
            FAIL("%s: %s", body.data, r.x.failure.message);
        check_text(body.data, "tools", r.g.chat.conversation.tools, rows[i].listed);
        check_text(body.data, "callable", r.g.chat.conversation.callable_tools, rows[i].callable);
        check_text(body.data, "ignored", buf_str(&r.x.ignored), rows[i].ignored);
        read_end(&r);
        buf_release(&body);
    }
}

/* Those that a search found can be called, and are not in the prompt's list. */
TEST(found_tools)
{
    struct read r;
    CHECK(read_begin(&r,
                     "{\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"input\":[{\"type\":"
                     "\"tool_search_output\",\"call_id\":\"1\",\"tools\":[{\"type\":\"namespace\","
                     "\"name\":\"n\",\"tools\":[{\"type\":\"function\",\"name\":\"g\"}]},{\"type\":"
                     "\"function\",\"name\":\"f\"}]}]}"));
    check_text("", "tools", r.g.chat.conversation.tools, "[" FUNCTION("f", NO_PARAMETERS) "]");
    check_text("", "callable", r.g.chat.conversation.callable_tools,
               "[" FUNCTION("f", NO_PARAMETERS) ", " FUNCTION("n__g", NO_PARAMETERS) "]");
    const struct named_tool *t = toolbox_find(&r.q.tools, "n__g");
    CHECK(t && strcmp(t->space, "n") == 0 && strcmp(t->name, "g") == 0);
    CHECK(!toolbox_find(&r.q.tools, "g"));
    read_end(&r);
}

/* Long names of a namespace are cut, and stay apart. */
TEST(long_names)
{
    char name[3][121];
    struct buf body;
    struct read r;
    buf_init(&body, 1 << 16);
    for (int i = 0; i < 3; i++) {
        memset(name[i], 'a', 120);
        name[i][120] = 0;
    }
    name[1][119] = 'b';
    name[2][118] = 0xC3 - 256; /* a character that the cut goes through */
    name[2][119] = 0xA9 - 256;
    buf_puts(&body, "{\"input\":\"hi\",\"tools\":[{\"type\":\"namespace\",\"name\":\"sevenab\","
                    "\"tools\":[");
    for (int i = 0; i < 3; i++)
        buf_printf(&body, "%s{\"type\":\"function\",\"name\":\"%s\"}", i ? "," : "", name[i]);
    buf_puts(&body, "]}]}");
    CHECK(read_begin(&r, buf_str(&body)));
    CHECK_INT((int)r.q.tools.n, 3);
    for (int i = 0; i < 3; i++) {
        const struct named_tool *t = &r.q.tools.tool[i];
        CHECK(strlen(t->rendered) <= 128 && strcmp(t->name, name[i]) == 0);
        CHECK(toolbox_find(&r.q.tools, t->rendered) == t);
        check_text("", "rendered", toolbox_rendered(&r.q.tools, "sevenab", name[i]), t->rendered);
    }
    read_end(&r);
    buf_release(&body);
}

/* `head`, n times `each` with a number in it, `tail`: read, or refused with a text. */
static void check_many(const char *head, const char *each, int n, const char *tail,
                       const char *refusal)
{
    struct buf body;
    struct read r;
    buf_init(&body, 64 << 20);
    buf_puts(&body, head);
    for (int i = 0; i < n; i++) {
        const char *at = strchr(each, '#');
        buf_printf(&body, "%s%.*s%d%s", i ? "," : "", (int)(at - each), each, i, at + 1);
    }
    buf_puts(&body, tail);
    bool ok = read_begin(&r, buf_str(&body));
    if (ok ? refusal != NULL : !refusal || !strstr(r.x.failure.message, refusal))
        FAIL("%d of %s: %s", n, each, r.x.failure.message);
    read_end(&r);
    buf_release(&body);
}

TEST(limits)
{
    check_many("{\"input\":\"a\",\"tools\":[", "{\"type\":\"function\",\"name\":\"f#\"}", 1024,
               "]}", NULL);
    check_many("{\"input\":\"a\",\"tools\":[", "{\"type\":\"function\",\"name\":\"f#\"}", 1025,
               "]}", "tools has 1025 entries, at most 1024");
    check_many("{\"input\":[", "{\"role\":\"user\",\"content\":\"#\"}", 5000, "]}", NULL);
    check_many("{\"input\":[", "#", 100001, "]}", "input has 100001 entries, at most 100000");
    /* Found tools are more than a body's own. */
    check_many("{\"input\":[{\"type\":\"tool_search_output\",\"call_id\":\"1\",\"tools\":[",
               "{\"type\":\"function\",\"name\":\"f#\"}", 2000, "]}]}", NULL);
    check_many("{\"input\":[{\"type\":\"tool_search_output\",\"call_id\":\"1\",\"tools\":[",
               "{\"type\":\"function\",\"name\":\"f#\"}", 16385, "]}]}", "more than 16384 tools");
    /* Calls of one id, and of many without results. */
    check_many(
        "{\"input\":[",
        "{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\",\"arguments\":\"{\\\"a\\\""
        ":#}\"}",
        200, ",{\"type\":\"function_call_output\",\"call_id\":\"1\",\"output\":\"x\"}]}", NULL);
}

TEST(long_arguments)
{
    struct buf body;
    struct read r;
    size_t n = 10 << 20;
    buf_init(&body, 64 << 20);
    buf_puts(&body, "{\"input\":[{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\","
                    "\"arguments\":\"{\\\"a\\\":\\\"");
    memset(buf_grow(&body, n), 'x', n);
    buf_puts(&body,
             "\\\"}\"},{\"type\":\"function_call_output\",\"call_id\":\"1\",\"output\":\"o\"}]}");
    CHECK(read_begin(&r, buf_str(&body)));
    CHECK(r.g.chat.messages.len > n);
    read_end(&r);
    buf_release(&body);
}

/* ---- Refusals ------------------------------------------------------------------------------- */

TEST(refusals)
{
    static const struct {
        const char *fields, *param, *code;
    } rows[] = {
        {"\"model\":\"m\"", "input", "missing_required_parameter"},
        {"\"input\":[]", "input", "invalid_value"},
        {"\"input\":[{\"type\":\"reasoning\",\"summary\":[]}]", "input", "invalid_value"},
        {"\"input\":1", "input", "invalid_type"},
        {"\"input\":[1]", "input[0]", "invalid_type"},
        {"\"input\":[{\"type\":\"poem\"}]", "input[0].type", "invalid_value"},
        {"\"input\":[{\"type\":\"compaction\",\"encrypted_content\":\"x\"}]", "input[0]",
         "unsupported_value"},
        {"\"input\":[{\"role\":\"function\",\"content\":\"a\"}]", "input[0].role", "invalid_value"},
        {"\"input\":[{\"role\":\"user\",\"content\":1}]", "input[0].content", "invalid_type"},
        {"\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":1}]}]",
         "input[0].content[0]", "invalid_type"},
        {"\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]",
         "input[0].content[0]", "invalid_image"},
        {"\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_file\",\"file_id\":\"x\"}]}"
         "]",
         "input[0].content[0]", "unsupported_value"},
        {"\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_file\",\"file_data\":"
         "\"data:text/plain;base64,/w==\"}]}]",
         "input[0].content[0]", "invalid_value"},
        {"\"input\":[{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\",\"arguments\":"
         "\"[1]\"},{\"type\":\"function_call_output\",\"call_id\":\"1\",\"output\":\"\"}]",
         "input[0]", "invalid_value"},
        {"\"input\":[{\"type\":\"function_call\",\"call_id\":\"1\"}]", "input[0]",
         "missing_required_parameter"},
        {"\"input\":[{\"type\":\"custom_tool_call\",\"name\":\"p\",\"input\":{}}]", "input[0]",
         "invalid_type"},
        {"\"input\":[{\"type\":\"item_reference\",\"id\":\"msg_1\"}]", "input[0]", "invalid_value"},
        {"\"input\":\"a\",\"previous_response_id\":\"resp_1\"", "previous_response_id",
         "previous_response_not_found"},
        {"\"input\":\"a\",\"instructions\":[]", "instructions", "invalid_type"},
        {"\"input\":\"a\",\"tools\":[{\"type\":\"poem\"}]", "tools[0]", "unsupported_value"},
        {"\"input\":\"a\",\"tools\":[{\"type\":\"function\"}]", "tools[0]",
         "missing_required_parameter"},
        {"\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"a<b\"}]", "tools[0]",
         "invalid_value"},
        {"\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{\"type\":\"function\","
         "\"name\":\"f\"}]",
         "tools[1]", "invalid_value"},
        {"\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":[]}]",
         "tools[0]", "invalid_type"},
        {"\"input\":\"a\",\"tools\":[{\"type\":\"namespace\",\"name\":\"n\",\"tools\":[{\"type\":"
         "\"mcp\"}]}]",
         "tools[0].tools[0]", "unsupported_value"},
        {"\"input\":\"a\",\"tools\":[{\"type\":\"custom\",\"name\":\"p\",\"format\":{\"type\":"
         "\"grammar\",\"syntax\":\"regex\",\"definition\":\"a\"}}]",
         "tools[0]", "unsupported_value"},
        {"\"input\":\"a\",\"strict_custom\":true,\"tools\":[{\"type\":\"custom\",\"name\":\"p\","
         "\"format\":{\"type\":\"grammar\",\"syntax\":\"lark\",\"definition\":\"a\"}}]",
         "tools[0]", "unsupported_value"},
        {"\"input\":\"a\",\"tool_choice\":\"required\"", "tool_choice", "invalid_value"},
        {"\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"tool_choice\":"
         "\"required\"",
         "tool_choice", "unsupported_value"},
        {"\"input\":\"a\",\"tool_choice\":{\"type\":\"function\",\"name\":\"g\"}",
         "tool_choice.name", "invalid_value"},
        {"\"input\":\"a\",\"tool_choice\":{\"type\":\"web_search\"}", "tool_choice",
         "unsupported_value"},
        {"\"input\":\"a\",\"max_tool_calls\":0", "max_tool_calls", "invalid_value"},
        {"\"input\":\"a\",\"max_output_tokens\":0", "max_output_tokens", "invalid_value"},
        {"\"input\":\"a\",\"text\":{\"format\":{\"type\":\"json_object\"}}", "text.format.type",
         "unsupported_value"},
        {"\"input\":\"a\",\"text\":{\"verbosity\":\"huge\"}", "text.verbosity", "invalid_value"},
        {"\"input\":\"a\",\"truncation\":\"auto\"", "truncation", "unsupported_value"},
        {"\"input\":\"a\",\"background\":true", "background", "unsupported_value"},
        {"\"input\":\"a\",\"conversation\":\"c\"", "conversation", "unsupported_parameter"},
        {"\"input\":\"a\",\"prompt\":{\"id\":\"p\"}", "prompt", "unsupported_parameter"},
        {"\"input\":\"a\",\"context_management\":[{}]", "context_management", "unsupported_value"},
        {"\"input\":\"a\",\"include\":[\"all\"]", "include[0]", "unsupported_value"},
        {"\"input\":\"a\",\"top_logprobs\":21", "top_logprobs", "invalid_value"},
        {"\"input\":\"a\",\"reasoning\":{\"summary\":\"long\"}", "reasoning.summary",
         "invalid_value"},
        {"\"input\":\"a\",\"reasoning\":{\"effort\":\"huge\"}", "reasoning.effort",
         "invalid_value"},
        {"\"input\":\"a\",\"metadata\":[]", "metadata", "invalid_type"},
        {"\"input\":\"a\",\"return_progress\":true,\"stream\":true", "return_progress",
         "unsupported_value"},
    };
    struct rig r;
    open_rig(&r, NULL);
    fake_engine_script(r.engine, "refuse 1 the engine was asked\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[600], want[160];
        int status;
        bool ended;
        (void)snprintf(body, sizeof body, "{%s}", rows[i].fields);
        (void)snprintf(want, sizeof want, "\"param\":\"%s\",\"code\":\"%s\"", rows[i].param,
                       rows[i].code);
        char *got = ask_at(&r, "/v1/responses", body, &status, &ended);
        if (status != 400 || !strstr(got, want))
            FAIL("%s: status %d, %s", rows[i].fields, status, got);
        free(got);
    }
    close_rig(&r);
}

/* What the engine refuses names the input, not the messages that it became. */
TEST(refusals_of_the_engine)
{
    struct rig r;
    int status;
    bool ended;
    open_rig(&r, NULL);
    fake_engine_script(r.engine, "refuse 7 the prompt has 600 tokens, the context holds 512\n");
    char *got = ask_at(&r, "/v1/responses", "{\"input\":\"a\",\"stream\":true}", &status, &ended);
    CHECK_INT(status, 400);
    CHECK(strstr(got,
                 "\"param\":\"input\",\"code\":\"context_length_exceeded\",\"n_prompt_tokens\":600,"
                 "\"n_ctx\":512"));
    free(got);
    close_rig(&r);
}

/* ---- What the engine is asked for ----------------------------------------------------------- */

TEST(options)
{
    static const struct {
        const char *fields;
        int32_t max_calls, max_tokens;
    } rows[] = {
        {"\"max_tool_calls\":3", 3, -1},
        {"\"max_tool_calls\":3,\"parallel_tool_calls\":false", 1, -1},
        {"\"max_output_tokens\":7,\"max_tokens\":9", 64, 7},
        {"\"max_tokens\":9", 64, 9},
    };
    struct rig r;
    open_rig(&r, NULL);
    fake_engine_script(r.engine, "accepted 5 0\nfinish stop 5 0 1 0\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[300];
        int status;
        bool ended;
        (void)snprintf(body, sizeof body, "{\"input\":\"a\",%s}", rows[i].fields);
        free(ask_at(&r, "/v1/responses", body, &status, &ended));
        CHECK_INT(status, 200);
        const lathe_request_options *o = fake_engine_last(r.engine);
        CHECK_INT(o->max_tokens, rows[i].max_tokens);
        if ((o->max_calls ? o->max_calls : 64) != rows[i].max_calls)
            FAIL("%s: %d calls", body, o->max_calls);
    }
    close_rig(&r);
}

/* ---- Reasoning ------------------------------------------------------------------------------ */

TEST(what_the_option_shows)
{
    static const struct {
        enum responses_reasoning option;
        bool has_summary, has_content;
    } rows[] = {
        {RESPONSES_REASONING_SUMMARY, true, false},
        {RESPONSES_REASONING_CONTENT, false, true},
        {RESPONSES_REASONING_BOTH, true, true},
        {RESPONSES_REASONING_NONE, false, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int asks = 0; asks < 2; asks++) {
            struct rig r;
            struct server_options o;
            int status;
            bool ended;
            server_options_init(&o);
            o.responses_reasoning = rows[i].option;
            open_rig(&r, &o);
            fake_engine_script(r.engine, "accepted 5 0\nreasoning plan\nreasoning_end\ntext x\n"
                                         "finish stop 5 0 3 2\n");
            char *got = ask_at(&r, "/v1/responses",
                               asks ? "{\"input\":\"a\",\"reasoning\":{\"summary\":\"auto\"},"
                                      "\"stream\":true}"
                                    : "{\"input\":\"a\",\"stream\":true}",
                               &status, &ended);
            CHECK((strstr(got, "{\"type\":\"summary_text\",\"text\":\"plan\"}") != NULL) ==
                  rows[i].has_summary);
            CHECK((strstr(got, "{\"type\":\"reasoning_text\",\"text\":\"plan\"}") != NULL) ==
                  rows[i].has_content);
            CHECK((strstr(got, "event: response.reasoning_summary_text.delta") != NULL) ==
                  rows[i].has_summary);
            CHECK((strstr(got, "event: response.reasoning_text.delta") != NULL) ==
                  rows[i].has_content);
            CHECK(strstr(got, "\"type\":\"reasoning\",\"id\""));
            free(got);
            close_rig(&r);
        }
}

/* ---- Streams -------------------------------------------------------------------------------- */

/* Events are numbered from 0 without gaps; a client that shut its writing side is looked after with one more
 * response.in_progress. */
TEST(keepalives_are_numbered)
{
    struct rig r;
    struct buf b;
    int n_progress = 0;
    open_rig(&r, NULL);
    fake_engine_script(r.engine, "accepted 5 0\nreasoning_end\ntext a\npause 500\ntext b\n"
                                 "finish stop 5 0 2 0\n");
    int fd = connect_to(&r);
    send_to(fd, "/v1/responses", "{\"input\":\"a\",\"stream\":true}");
    CHECK(shutdown(fd, SHUT_WR) == 0);
    receive(fd, &b);
    char *at = strstr(buf_str(&b), "\r\n\r\n");
    CHECK(at && join_chunks(at + 4));
    at += 4;
    for (long long n = 0; (at = strstr(at, "event: ")); n++) {
        char type[80], name[80];
        long long number;
        CHECK(sscanf(at, "event: %79s\ndata: {\"type\":\"%79[a-z_.]\",\"sequence_number\":%lld",
                     type, name, &number) == 3);
        CHECK(strcmp(type, name) == 0 && number == n);
        n_progress += strcmp(type, "response.in_progress") == 0;
        at++;
    }
    CHECK_INT(n_progress, 2);
    CHECK(strstr(b.data, "event: response.completed"));
    buf_release(&b);
    close_rig(&r);
}

/* The closing events repeat a text, and may be larger than what a client may leave untaken. */
TEST(large_arguments)
{
    struct rig r;
    struct buf script;
    int status;
    bool ended;
    buf_init(&script, 16 << 20);
    buf_puts(&script, "accepted 5 0\ncall call_1 f\nargs {\"a\": \"\n");
    for (int i = 0; i < 600; i++) {
        buf_puts(&script, "args ");
        for (int k = 0; k < 4000; k++)
            buf_putc(&script, 'x');
        buf_putc(&script, '\n');
    }
    buf_puts(&script, "args \"}\nend\nfinish calls 5 0 9 0\n");
    open_rig(&r, NULL);
    fake_engine_script(r.engine, buf_str(&script));
    char *got = ask_at(&r, "/v1/responses", "{\"input\":\"a\",\"stream\":true}", &status, &ended);
    CHECK(status == 200 && ended && strlen(got) > (9 << 20));
    CHECK(strstr(got, "event: response.completed"));
    free(got);
    buf_release(&script);
    close_rig(&r);
}

/* ---- Custom input --------------------------------------------------------------------------- */

static void check_input(const char *json, bool is_found, const char *want, size_t n_want)
{
    size_t n = strlen(json);
    for (size_t cut = 0; cut <= n; cut++) {
        struct custom_input c = {0};
        struct buf out;
        buf_init(&out, 1 << 16);
        custom_input_feed(&c, json, cut, &out);
        custom_input_feed(&c, json + cut, n - cut, &out);
        if (c.is_found != is_found || out.len != n_want || memcmp(buf_str(&out), want, n_want) != 0)
            FAIL("%s cut at %zu: %d, \"%s\"", json, cut, c.is_found, buf_str(&out));
        buf_release(&out);
    }
}

TEST(custom_input)
{
    check_input("{\"input\": \"a\"}", true, "a", 1);
    check_input("{}", false, "", 0);
    check_input(" { \"x\" : {\"input\": \"no\"} , \"input\" : \"a\\\"\\\\\\/\\b\\f\\n\\r\\t\" }",
                true, "a\"\\/\b\f\n\r\t", 9);
    check_input("{\"input\": \"\\u00e9\\ud83d\\ude00\\u0000\"}", true, "\xC3\xA9\xF0\x9F\x98\x80\0",
                7);
    check_input("{\"input\": \"\\ud83dx\\ude00\"}", true, "\xEF\xBF\xBDx\xEF\xBF\xBD", 7);
    check_input("{\"input\": 5, \"inputs\": \"no\", \"inp\": [\"}\", \"\\\"\"]}", false, "", 0);
    check_input("{\"a\\\"input\": \"no\", \"input\": \"yes\", \"input\": \"no\"}", true, "yes", 3);
}

/* ---- The store ------------------------------------------------------------------------------ */

#define OBJECT "{\"output\":[{\"id\": \"msg_1\", \"type\": \"message\"}]}"

static struct stored stored_of(const char *id, unsigned char owner, struct stored *previous)
{
    struct stored r = {.owner = {{owner}},
                       .input = "[{\"id\": \"in_1\", \"text\": \"msg_1\"}]",
                       .object = OBJECT,
                       .n_object = strlen(OBJECT),
                       .output_at = strlen("{\"output\":"),
                       .n_output = strlen(OBJECT) - strlen("{\"output\":") - 1,
                       .previous = previous};
    r.n_input = strlen(r.input);
    (void)snprintf(r.id, sizeof r.id, "%s", id);
    return r;
}

static void put(struct store *s, const char *id, unsigned char owner, struct stored *previous)
{
    lathe_error err;
    struct stored r = stored_of(id, owner, previous);
    CHECK_OK(store_put(s, &r, &err), &err);
}

static bool has(struct store *s, const char *id, unsigned char owner)
{
    struct owner o = {{owner}};
    struct stored *r = store_find(s, &o, id);
    bool found = r != NULL;
    store_drop(s, r);
    return found;
}

TEST(the_store_forgets_what_was_not_used)
{
    struct store *s;
    lathe_error err;
    CHECK_OK(store_open(&s, 2, 1 << 20, &err), &err);
    put(s, "a", 1, NULL);
    put(s, "b", 1, NULL);
    CHECK(has(s, "a", 1) && has(s, "b", 1) && has(s, "a", 1));
    put(s, "c", 1, NULL);
    CHECK(has(s, "a", 1) && !has(s, "b", 1) && has(s, "c", 1));
    store_close(s);
    CHECK_OK(store_open(&s, 100, 2000, &err), &err);
    for (int i = 0; i < 50; i++) {
        char id[8];
        (void)snprintf(id, sizeof id, "%d", i);
        put(s, id, 1, NULL);
    }
    CHECK(has(s, "49", 1) && !has(s, "30", 1));
    store_close(s);
    CHECK_OK(store_open(&s, 0, 2000, &err), &err);
    put(s, "a", 1, NULL);
    CHECK(!has(s, "a", 1));
    store_close(s);
}

TEST(the_store_is_each_owners)
{
    struct store *s;
    lathe_error err;
    struct owner one = {{1}}, two = {{2}};
    struct buf out;
    CHECK_OK(store_open(&s, 8, 1 << 20, &err), &err);
    put(s, "a", 1, NULL);
    buf_init(&out, 1 << 16);
    CHECK(has(s, "a", 1) && !has(s, "a", 2));
    CHECK(store_item(s, &one, "msg_1", &out));
    check_text("", "item", buf_str(&out), "{\"id\": \"msg_1\", \"type\": \"message\"}");
    CHECK(!store_item(s, &two, "msg_1", &out) && !store_item(s, &one, "msg", &out));
    buf_clear(&out);
    CHECK(store_item(s, &one, "in_1", &out) && strstr(buf_str(&out), "\"in_1\""));
    CHECK(!store_delete(s, &two, "a") && store_delete(s, &one, "a") && !has(s, "a", 1));
    buf_release(&out);
    store_close(s);
}

/* A response keeps those before it, though they are found no more. */
TEST(the_store_keeps_conversations)
{
    struct store *s;
    lathe_error err;
    struct owner one = {{1}};
    struct stored *last = NULL;
    CHECK_OK(store_open(&s, 1, 1 << 20, &err), &err);
    for (int i = 0; i < 100; i++) {
        char id[8];
        (void)snprintf(id, sizeof id, "%d", i);
        put(s, id, 1, last);
        store_drop(s, last);
        last = store_find(s, &one, id);
        CHECK(last);
    }
    CHECK(!has(s, "98", 1));
    CHECK(store_delete(s, &one, "99"));
    int n = 0;
    for (const struct stored *r = last; r; r = r->previous)
        n++;
    CHECK_INT(n, 100);
    store_drop(s, last);
    store_close(s);
}

static void *use_store(void *arg)
{
    struct store *s = arg;
    for (int i = 0; i < 300; i++) {
        char id[8];
        struct owner one = {{1}};
        (void)snprintf(id, sizeof id, "%d", i % 7);
        struct stored *before = store_find(s, &one, id);
        put(s, id, 1, before);
        if (i % 5 == 0)
            (void)store_delete(s, &one, id);
        store_drop(s, before);
    }
    return NULL;
}

TEST(the_store_from_several_threads)
{
    struct store *s;
    lathe_error err;
    pthread_t thread[4];
    CHECK_OK(store_open(&s, 5, 1 << 20, &err), &err);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&thread[i], NULL, use_store, s) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
    store_close(s);
}

/* ---- Stored responses over HTTP ------------------------------------------------------------- */

/* The body of the answer to a request with a key. */
static char *ask_as(const struct rig *r, const char *key, const char *method, const char *path,
                    const char *body, int *status)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    buf_printf(&b,
               "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nx-api-key: %s\r\n"
               "Content-Length: %zu\r\n\r\n%s",
               method, path, key, strlen(body), body);
    int fd = connect_to(r);
    CHECK(write(fd, b.data, b.len) == (ssize_t)b.len);
    buf_release(&b);
    receive(fd, &b);
    const char *head = strstr(buf_str(&b), "\r\n\r\n");
    CHECK(head && sscanf(b.data, "HTTP/1.1 %d", status) == 1);
    char *copy = strdup(head + 4);
    buf_release(&b);
    return copy;
}

static void expect(const struct rig *r, const char *key, const char *method, const char *path,
                   const char *body, int want, const char *text)
{
    int status;
    char *got = ask_as(r, key, method, path, body, &status);
    if (status != want || !strstr(got, text))
        FAIL("%s %s: status %d, %s", method, path, status, got);
    free(got);
}

/* All ids are the same here: the response stored last is the one that is found. */
#define ID "resp_AAAAAAAAAAAAAAAAAAAAAAAA"

static char seen[4096];

static const char *note_messages(void *ctx, const lathe_request_options *o)
{
    (void)ctx;
    (void)snprintf(seen, sizeof seen, "%s", o->conversation->messages);
    return "accepted 5 0\nreasoning plan\nreasoning_end\ntext ok\nfinish stop 5 0 3 2\n";
}

TEST(stored_responses)
{
    static const char *const key[] = {"one", "two"};
    struct rig r;
    struct server_options o;
    server_options_init(&o);
    o.key.name = key;
    o.key.n = 2;
    open_rig(&r, &o);
    fake_engine_ask(r.engine, note_messages, NULL);
    expect(&r, "one", "GET", "/v1/responses/" ID, "", 404, "not_found");
    expect(&r, "one", "POST", "/v1/responses", "{\"input\":\"hi\",\"store\":false}", 200, ID);
    expect(&r, "one", "GET", "/v1/responses/" ID, "", 404, "not_found");
    expect(&r, "one", "POST", "/v1/responses", "{\"input\":\"hi\",\"instructions\":\"be\"}", 200,
           ID);
    expect(&r, "one", "GET", "/v1/responses/" ID, "", 200,
           "\"content\":[{\"type\":\"output_text\",\"text\":\"ok\"");
    expect(&r, "one", "GET", "/v1/responses/" ID "?stream=true", "", 400, "stream");
    expect(&r, "one", "GET", "/v1/responses/" ID "?stream=false", "", 200, ID);
    expect(&r, "one", "GET", "/v1/responses/" ID "/more", "", 404, "not_found");
    expect(&r, "two", "GET", "/v1/responses/" ID, "", 404, "not_found");
    expect(&r, "two", "POST", "/v1/responses",
           "{\"input\":\"and\",\"previous_response_id\":\"" ID "\"}", 400,
           "previous_response_not_found");
    expect(&r, "two", "DELETE", "/v1/responses/" ID, "", 404, "not_found");
    /* Instructions are not inherited, items are. */
    expect(&r, "one", "POST", "/v1/responses",
           "{\"input\":[{\"role\":\"user\",\"content\":\"and\"},{\"role\":\"user\",\"content\":"
           "\"more\"}],\"previous_response_id\":\"" ID "\"}",
           200, "\"previous_response_id\":\"" ID "\"");
    check_text("", "messages", seen,
               "[" USER ", {\"role\": \"assistant\", \"reasoning_content\": \"plan\", \"content\": "
               "\"ok\"}, {\"role\": \"user\", \"content\": \"and\"}, {\"role\": \"user\", "
               "\"content\": \"more\"}]");
    expect(&r, "one", "GET", "/v1/responses/" ID "/input_items", "", 200,
           "{\"object\":\"list\",\"data\":[{\"role\": \"user\", \"content\": [{\"type\": "
           "\"input_text\", \"text\": \"more\"}], \"type\": \"message\", \"id\": "
           "\"msg_AAAAAAAAAAAAAAAAAAAAAAAA\"},");
    expect(&r, "one", "POST", "/v1/responses",
           "{\"input\":[{\"type\":\"item_reference\",\"id\":\"rs_AAAAAAAAAAAAAAAAAAAAAAAA\"},"
           "{\"role\":\"user\",\"content\":\"x\"}]}",
           200, ID);
    CHECK(strstr(seen, "[{\"role\": \"assistant\", \"reasoning_content\": \"plan\""));
    for (int i = 0; i < 3; i++)
        expect(&r, "one", "DELETE", "/v1/responses/" ID, "", 200,
               "{\"id\":\"" ID "\",\"object\":\"response\",\"deleted\":true}");
    expect(&r, "one", "DELETE", "/v1/responses/" ID, "", 404, "not_found");
    close_rig(&r);
}

/* Each item of a stored array is found by its id, whatever the texts beside it hold. */
TEST(references)
{
    struct rig r;
    open_rig(&r, NULL);
    fake_engine_ask(r.engine, note_messages, NULL);
    expect(&r, "", "POST", "/v1/responses",
           "{\"input\":[{\"id\":\"msg_x1\",\"role\":\"user\",\"content\":\"a ]} \\\", [{ \\\\\"},"
           "{\"id\":\"msg_x2\",\"role\":\"user\",\"content\":\"second\"}]}",
           200, ID);
    expect(&r, "", "POST", "/v1/responses",
           "{\"input\":[{\"type\":\"item_reference\",\"id\":\"msg_x2\"},"
           "{\"type\":\"item_reference\",\"id\":\"msg_x1\"}]}",
           200, ID);
    check_text("", "messages", seen,
               "[{\"role\": \"user\", \"content\": \"second\"}, {\"role\": \"user\", \"content\": "
               "\"a ]} \\\", [{ \\\\\"}]");
    expect(&r, "", "POST", "/v1/responses",
           "{\"input\":[{\"type\":\"item_reference\",\"id\":\"msg_x3\"}]}", 400, "msg_x3");
    close_rig(&r);
}

/* What was left out, or is only tried, is said in the head. */
TEST(headers)
{
    struct rig r;
    struct buf b;
    open_rig(&r, NULL);
    fake_engine_script(r.engine, "accepted 5 0\nfinish stop 5 0 1 0\n");
    int fd = connect_to(&r);
    send_to(fd, "/v1/responses",
            "{\"input\":\"hi\",\"surprise\":1,\"messages\":[],\"tools\":[{\"type\":\"web_search\"},"
            "{\"type\":\"function\",\"name\":\"f\",\"strict\":true}]}");
    receive(fd, &b);
    CHECK(strstr(buf_str(&b), "HTTP/1.1 200 "));
    CHECK(strstr(b.data, "x-ignored-tools: web_search\r\n"));
    CHECK(strstr(b.data, "x-unknown-fields: surprise, messages\r\n"));
    CHECK(strstr(b.data, "x-warnings: strict of tools is best effort"));
    buf_release(&b);
    close_rig(&r);
}

TEST(no_store)
{
    struct rig r;
    struct server_options o;
    server_options_init(&o);
    o.n_responses = 0;
    open_rig(&r, &o);
    fake_engine_script(r.engine, "accepted 5 0\nfinish stop 5 0 1 0\n");
    expect(&r, "", "POST", "/v1/responses", "{\"input\":\"hi\"}", 200, "\"store\":false");
    expect(&r, "", "POST", "/v1/responses", "{\"input\":\"hi\",\"store\":true}", 400,
           "--responses-store 0");
    expect(&r, "", "GET", "/v1/responses/" ID, "", 404, "not_found");
    close_rig(&r);
}

TEST(routes_that_are_refused)
{
    struct rig r;
    open_rig(&r, NULL);
    expect(&r, "", "POST", "/v1/responses/compact", "{}", 404, "not compacted");
    expect(&r, "", "POST", "/responses/resp_1/cancel", "{}", 404, "no background mode");
    expect(&r, "", "GET", "/v1/responses", "", 405, "no WebSocket");
    expect(&r, "", "POST", "/v1/responses/resp_1", "{}", 405, "method_not_allowed");
    close_rig(&r);
}

/* Names and values of the contract that have one meaning each: what is taken, what is refused and how, what an item of a
 * history becomes, and the members of replies. A line is a request. */
#include <string.h>
#include <unistd.h>

#include "fake_engine.h"
#include "rig.h"
#include "test.h"

#define CHAT        "/v1/chat/completions"
#define RESPONSES   "/v1/responses"
#define MESSAGES    "/v1/messages"
#define COMPLETIONS "/v1/completions"
#define USER        "{\"role\":\"user\",\"content\":\"a\"}"
#define ASK         "{\"messages\":[" USER "],"
#define INPUT       "{\"input\":\"a\","
#define FUNCTION    "\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],"
#define CHAT_TOOL   "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],"
#define TOOL        "\"tools\":[{\"name\":\"f\",\"input_schema\":{\"type\":\"object\"}}],"

static const char answer[] = "accepted 5 2\nprogress 4 5\nreasoning r\nreasoning_end\ntext a\n"
                             "finish stop 5 2 2 1\n";

struct row {
    const char *path, *body; /* NULL: a GET */
    int status;
    const char *has; /* of head and body; NULL: nothing is unknown, ignored or warned of */
};

/* All of the answer, a heap string. */
static char *send_row(const struct rig *r, const struct row *row)
{
    struct buf b;
    int fd = connect_to(r);
    if (row->body) {
        send_to(fd, row->path, row->body);
    } else {
        char head[300];
        int n =
            snprintf(head, sizeof head,
                     "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", row->path);
        CHECK(write(fd, head, (size_t)n) == n);
    }
    receive(fd, &b);
    return b.data;
}

static void check_rows(const struct rig *r, const struct row *row, size_t n)
{
    static const char *const listed[] = {"x-unknown-fields", "x-ignored-tools", "x-warnings"};
    for (size_t i = 0; i < n; i++, row++) {
        int status = 0;
        char *s = send_row(r, row);
        bool ok = s && sscanf(s, "HTTP/1.1 %d", &status) == 1 && status == row->status;
        for (size_t k = 0; ok && !row->has && k < 3; k++)
            ok = !strstr(s, listed[k]);
        if (!ok || (row->has && !strstr(s, row->has)))
            FAIL("%s %s: expected %d with %s:\n%s", row->path, row->body ? row->body : "",
                 row->status, row->has ? row->has : "nothing left out", s);
        free(s);
    }
}

static void check_all(const struct row *row, size_t n)
{
    struct rig r;
    open_rig(&r, NULL);
    fake_engine_script(r.engine, answer);
    check_rows(&r, row, n);
    close_rig(&r);
}
#define CHECK_ALL(rows) check_all(rows, sizeof(rows) / sizeof *(rows))

TEST(what_is_taken)
{
    static const struct row rows[] = {
        {CHAT, ASK "\"chat_template_kwargs\":{\"add_vision_id\":true}}", 200, NULL},
        {CHAT, ASK "\"stream\":true,\"stream_options\":{\"include_obfuscation\":false}}", 200,
         NULL},
        {RESPONSES, INPUT "\"stream\":true,\"stream_options\":{\"include_obfuscation\":true}}", 200,
         NULL},
        {CHAT,
         ASK "\"prompt_cache_options\":{},\"prompt_cache_retention\":\"24h\",\"safety_identifier\":"
             "\"a\",\"service_tier\":\"flex\",\"verbosity\":\"low\",\"request_id\":\"a\"}",
         200, "\"service_tier\":\"default\""},
        {RESPONSES,
         INPUT "\"prompt_cache_retention\":\"24h\",\"safety_identifier\":\"a\",\"client_metadata\":"
               "{},\"metadata\":{\"b\":\"c\"}}",
         200, "\"metadata\":{\"b\": \"c\"}"},
        {MESSAGES,
         ASK "\"inference_geo\":\"us\",\"speed\":\"fast\",\"diagnostics\":{},\"mcp_servers\":[],"
             "\"container\":null,\"context_management\":{\"edits\":[{\"type\":\"a\"}]}}",
         200, "\"service_tier\":\"standard\"},\"context_management\":{\"applied_edits\":[]}}"},
        {MESSAGES, ASK "\"stream\":true,\"context_management\":{}}", 200,
         "\"service_tier\":\"standard\"},\"context_management\":{\"applied_edits\":[]}}\n\n"
         "event: message_stop"},
        {CHAT, ASK "\"repeat_penalty\":1.1,\"skip_special_tokens\":true,\"length_penalty\":1.0}",
         200, NULL},
        {CHAT, ASK "\"modalities\":[\"text\"],\"best_of\":1,\"n_predict\":-1}", 200, NULL},
        {RESPONSES, INPUT "\"context_management\":[],\"truncation\":\"disabled\"}", 200, NULL},
        {RESPONSES, INPUT "\"reasoning\":{\"generate_summary\":\"auto\"}}", 200,
         "\"summary\":[{\"type\":\"summary_text\",\"text\":\"r\"}]"},
        {RESPONSES, INPUT "\"reasoning\":{\"generate_summary\":\"auto\",\"summary\":\"none\"}}",
         200, "\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"r\"}]"},
        {RESPONSES, INPUT "\"reasoning\":{\"summary\":\"detailed\"}}", 200,
         "\"summary\":[{\"type\":\"summary_text\",\"text\":\"r\"}]"},
        {MESSAGES,
         ASK TOOL "\"tool_choice\":{\"type\":\"auto\",\"disable_parallel_tool_use\":true}}", 200,
         NULL},
        {CHAT,
         "{\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":\"b\",\"function_call\":null,"
         "\"audio\":null}," USER "]}",
         200, NULL},
        {"/tokenize", "{\"content\":\"a\",\"add_special\":true}", 200, "\"count\":1"},
    };
    CHECK_ALL(rows);
}

TEST(what_is_refused)
{
    static const struct row rows[] = {
        {CHAT, ASK "\"chat_template_kwargs\":{\"foo\":1}}", 400, "enable_thinking, preserve_"},
        {CHAT, ASK CHAT_TOOL "\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{}}}",
         400, "\"param\":\"tool_choice\",\"code\":\"unsupported_value\""},
        {RESPONSES, INPUT FUNCTION "\"tool_choice\":{\"type\":\"allowed_tools\",\"tools\":[]}}",
         400, "\"param\":\"tool_choice\",\"code\":\"unsupported_value\""},
        {RESPONSES, INPUT FUNCTION "\"tool_choice\":{\"type\":\"web_search\"}}", 400,
         "only \\\"auto\\\" and \\\"none\\\" are supported"},
        {MESSAGES, ASK TOOL "\"tool_choice\":{\"type\":\"any\"}}", 400, "only auto and none"},
        {RESPONSES, INPUT "\"reasoning\":{\"generate_summary\":\"x\"}}", 400,
         "\"param\":\"reasoning.generate_summary\""},
        {RESPONSES, INPUT "\"reasoning\":{\"summary\":\"x\",\"generate_summary\":\"auto\"}}", 400,
         "\"param\":\"reasoning.summary\""},
        {CHAT, ASK "\"stream_options\":{\"include_obfuscation\":5}}", 400,
         "\"param\":\"stream_options.include_obfuscation\",\"code\":\"invalid_type\""},
        {CHAT, ASK "\"repeat_penalty\":0}", 400, "repeat_penalty is 0"},
        {CHAT, ASK "\"skip_special_tokens\":false}", 400, "only true"},
        {CHAT, ASK "\"length_penalty\":2}", 400, "length_penalty: only 1"},
        {CHAT, ASK "\"best_of\":2}", 400, "best_of: only the value of n"},
        {COMPLETIONS, "{\"prompt\":\"a\",\"n\":2,\"best_of\":1}", 400,
         "best_of: only the value of n"},
        {CHAT, ASK "\"logits_processors\":[]}", 400, "logits_processors is not supported"},
        {CHAT, ASK "\"allowed_token_ids\":[1]}", 400, "\"code\":\"unsupported_parameter\""},
        {CHAT, ASK "\"web_search_options\":{}}", 400, "\"code\":\"unsupported_parameter\""},
        {CHAT, ASK "\"function_call\":\"auto\"}", 400, "use tool_choice"},
        {CHAT, ASK "\"chat_template\":\"x\"}", 400, "the model's own template is used"},
        {CHAT, ASK "\"modalities\":[\"audio\"]}", 400, "only [\\\"text\\\"]"},
        {RESPONSES, INPUT "\"truncation\":\"auto\"}", 400, "\"param\":\"truncation\""},
        {RESPONSES, INPUT "\"background\":true}", 400, "only false"},
        {RESPONSES, INPUT "\"conversation\":\"a\"}", 400, "previous_response_id"},
        {RESPONSES, INPUT "\"prompt\":{\"id\":\"a\"}}", 400, "\"param\":\"prompt\""},
        {RESPONSES, INPUT "\"context_management\":[{\"type\":\"compaction\"}]}", 400,
         "\"param\":\"context_management\""},
        {MESSAGES, ASK "\"mcp_servers\":[{\"name\":\"a\"}]}", 400, "mcp_servers is not supported"},
        {MESSAGES, ASK "\"thinking\":{\"display\":\"all\"}}", 400,
         "thinking.display: 'all' is none of"},
        {CHAT,
         "{\"messages\":[" USER
         ",{\"role\":\"assistant\",\"content\":null,\"function_call\":{\"name\":"
         "\"f\",\"arguments\":\"{}\"}}," USER "]}",
         400,
         "messages[1].function_call is not supported: use tool_calls\",\"type\":\"invalid_request_"
         "error\",\"param\":\"messages[1].function_call\",\"code\":\"unsupported_parameter\""},
        {CHAT,
         "{\"messages\":[" USER ",{\"role\":\"assistant\",\"audio\":{\"id\":\"a\"}}," USER "]}",
         400, "\"param\":\"messages[1].audio\""},
        {CHAT, "{\"messages\":[" USER ",{\"role\":\"function\",\"name\":\"f\",\"content\":\"a\"}]}",
         400, "\"param\":\"messages[1]"},
        {MESSAGES, ASK "\"thread\":{\"type\":\"continue\",\"previous_message_id\":\"msg_1\"}}", 400,
         "\"details\":{\"error_code\":\"thread_unsupported_request\",\"unsupported\":[\"thread\"]"
         "}"},
        {"/tokenize", "{\"content\":\"a\",\"add_special\":5}", 400, "add_special: expected true"},
        {"/v1/fine_tuning/jobs", NULL, 404, "models are not trained here"},
        {"/v1/moderations", "{}", 404, "\"code\":\"not_found\""},
        {"/v1/messages/batches", "{}", 404, "\"type\":\"not_found_error\""},
        {"/api/event_logging/batch", "{}", 404, "no such route: POST /api/event_logging/batch"},
        {"/api/claude_cli_feedback", "{}", 404, "no such route: POST /api/claude_cli_feedback"},
        {CHAT, "", 400, "\"code\":\"invalid_json\""},
        {MESSAGES, "[", 400, "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\""},
    };
    CHECK_ALL(rows);
}

/* Server tools of Anthropic's: those that a client would have to run are refused, those that the service runs are left out. */
TEST(tools_of_the_service)
{
#define SERVER_TOOL(type) ASK "\"tools\":[{\"type\":\"" type "\",\"name\":\"a\"}]}"
    static const struct row rows[] = {
        {MESSAGES, SERVER_TOOL("bash_20250124"), 400, "tools[0]: a tool of type 'bash_20250124'"},
        {MESSAGES, SERVER_TOOL("text_editor_20250728"), 400, "'text_editor_20250728'"},
        {MESSAGES, SERVER_TOOL("memory_20250818"), 400, "'memory_20250818'"},
        {MESSAGES, SERVER_TOOL("computer_20250124"), 400, "'computer_20250124'"},
        {MESSAGES, SERVER_TOOL("web_search_20250305"), 200, "x-ignored-tools: web_search_20250305"},
        {MESSAGES, SERVER_TOOL("web_fetch_20250910"), 200, "x-ignored-tools: web_fetch_20250910"},
        {MESSAGES, SERVER_TOOL("code_execution_20250522"), 200,
         "x-ignored-tools: code_execution_20250522"},
        {RESPONSES,
         INPUT "\"tools\":[{\"type\":\"image_generation\"},{\"type\":\"code_interpreter\"},"
               "{\"type\":\"file_search\"},{\"type\":\"local_shell\"}]}",
         200, "x-ignored-tools: image_generation, code_interpreter, file_search, local_shell"},
    };
    CHECK_ALL(rows);
}

/* What is no part of the prompt: the tool is rendered as if it stood alone. */
TEST(members_of_tools_that_are_not_rendered)
{
    static const char *const bodies[] = {
        "{\"dialect\":\"messages\",\"messages\":[" USER
        "],\"tools\":[{\"name\":\"f\",\"description\":"
        "\"d\",\"input_schema\":{\"type\":\"object\"}}]}",
        "{\"dialect\":\"messages\",\"messages\":[" USER
        "],\"tools\":[{\"type\":\"custom\",\"eager_input_streaming\":true,\"input_examples\":[{}],"
        "\"allowed_callers\":[\"direct\"],\"cache_control\":{\"type\":\"ephemeral\"},\"defer_"
        "loading\":"
        "false,\"name\":\"f\",\"description\":\"d\",\"input_schema\":{\"type\":\"object\"}}]}",
        "{\"dialect\":\"responses\",\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"strict\":"
        "false,"
        "\"name\":\"f\",\"description\":\"d\",\"parameters\":{\"type\":\"object\"}}]}",
    };
    struct rig r;
    int status;
    bool ended;
    char *first = NULL;
    open_rig(&r, NULL);
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        char *s = ask_at(&r, "/apply-template", bodies[i], &status, &ended);
        CHECK_INT(status, 200);
        CHECK(strstr(s, "\\\"name\\\": \\\"f\\\""));
        if (first)
            CHECK_STR(s, first);
        else
            first = strdup(s);
        free(s);
    }
    free(first);
    close_rig(&r);
}

/* Items and blocks of hosted tools, in a history: their JSON as a text of the turn, never an error. */
TEST(histories_of_other_servers)
{
    static const char *const items[] = {"web_search_call",
                                        "file_search_call",
                                        "image_generation_call",
                                        "code_interpreter_call",
                                        "computer_call",
                                        "computer_call_output",
                                        "local_shell_call",
                                        "local_shell_call_output",
                                        "shell_call",
                                        "shell_call_output",
                                        "apply_patch_call",
                                        "apply_patch_call_output",
                                        "mcp_call",
                                        "mcp_list_tools",
                                        "mcp_approval_request",
                                        "mcp_approval_response"};
    static const char *const blocks[] = {"server_tool_use", "web_search_tool_result",
                                         "code_execution_tool_result", "mcp_tool_use",
                                         "mcp_tool_result"};
    enum { N_ITEMS = sizeof items / sizeof *items, N_BLOCKS = sizeof blocks / sizeof *blocks };
    struct rig r;
    int status;
    bool ended;
    open_rig(&r, NULL);
    for (int i = 0; i < N_ITEMS + N_BLOCKS; i++) {
        const char *type = i < N_ITEMS ? items[i] : blocks[i - N_ITEMS];
        char body[500], want[200];
        (void)snprintf(body, sizeof body,
                       i < N_ITEMS ? "{\"dialect\":\"responses\",\"input\":[" USER
                                     ",{\"type\":\"%s\",\"x\":[1]}," USER "]}"
                                   : "{\"dialect\":\"messages\",\"messages\":[" USER
                                     ",{\"role\":\"assistant\",\"content\":[{\"type\":\"%s\",\"x\":"
                                     "[1]}]}," USER "]}",
                       type);
        (void)snprintf(want, sizeof want,
                       "<|im_start|>assistant\\n[%s: {\\\"type\\\": \\\"%s\\\", \\\"x\\\": "
                       "[1]}]<|im_end|>",
                       type, type);
        char *s = ask_at(&r, "/apply-template", body, &status, &ended);
        if (status != 200 || !strstr(s, want))
            FAIL("%s: %d, expected %s in %s", type, status, want, s);
        free(s);
    }
    close_rig(&r);
}

TEST(items_and_blocks_with_a_meaning_of_their_own)
{
#define ITEM(item) "{\"dialect\":\"responses\",\"input\":[" USER "," item "," USER "]}"
#define BLOCK(block)                                                                               \
    "{\"dialect\":\"messages\",\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":[" block \
    ",{\"type\":\"text\",\"text\":\"z\"}]}," USER "]}"
#define USER_PART(part) ASK_PARTS "[" part "]}]}"
#define ASK_PARTS       "{\"messages\":[{\"role\":\"user\",\"content\":"
#define INPUT_PART(part)                                                                           \
    "{\"dialect\":\"responses\",\"input\":[{\"role\":\"user\",\"content\":[" part "]}]}"
    static const struct row rows[] = {
        {"/apply-template", ITEM("{\"type\":\"compaction\",\"encrypted_content\":\"x\"}"), 400,
         "input[1]: another server's compacted history cannot be read"},
        {"/apply-template", ITEM("{\"type\":\"compaction_summary\",\"encrypted_content\":\"x\"}"),
         400, "input[1]: another server's compacted history cannot be read"},
        {"/apply-template", ITEM("{\"type\":\"foo\"}"), 400, "input[1].type: 'foo' is no type"},
        {"/apply-template", BLOCK("{\"type\":\"redacted_thinking\",\"data\":\"x\"}"), 200,
         "assistant\\nz<|im_end|>"},
        {"/apply-template",
         BLOCK(
             "{\"type\":\"search_result\",\"title\":\"t\",\"source\":\"s\",\"content\":[{\"type\":"
             "\"text\",\"text\":\"c\"}]}"),
         200, "assistant\\nt\\ns\\nc\\nz<|im_end|>"},
        {"/apply-template", BLOCK("{\"type\":\"foo\"}"), 400, "'foo' is not supported here"},
        {"/apply-template", BLOCK("{\"type\":\"container_upload\",\"file_id\":\"x\"}"), 400,
         "'container_upload' is not supported here"},
        {"/apply-template", USER_PART("{\"type\":\"refusal\",\"refusal\":\"no\"}"), 200,
         "user\\nno<|im_end|>"},
        {"/apply-template", USER_PART("{\"type\":\"input_audio\",\"input_audio\":{}}"), 400,
         "messages[0].content[0]: a part of type 'input_audio' is not supported"},
        {"/apply-template", USER_PART("{\"type\":\"file\",\"file\":{}}"), 400,
         "messages[0].content[0]: a part of type 'file' is not supported"},
        {"/apply-template", USER_PART("{\"type\":\"video_url\",\"video_url\":{\"url\":\"x\"}}"),
         400, "messages[0].content[0]: videos are not supported"},
        {"/apply-template", USER_PART("{\"type\":\"video\",\"video\":\"x\"}"), 400,
         "messages[0].content[0]: videos are not supported"},
        {"/apply-template", INPUT_PART("{\"type\":\"input_file\",\"file_url\":\"http://x\"}"), 400,
         "input[0].content[0]: a file is supported as file_data"},
        {"/apply-template", INPUT_PART("{\"type\":\"input_file\",\"file_id\":\"x\"}"), 400,
         "input[0].content[0]: a file is supported as file_data"},
        {"/apply-template",
         INPUT_PART("{\"type\":\"input_file\",\"filename\":\"a.txt\",\"file_data\":"
                    "\"data:text/plain;base64,aGk=\"}"),
         200, "a.txt\\nhi<|im_end|>"},
    };
    CHECK_ALL(rows);
}

/* What a tool said, as each dialect spells it: text, parts, nothing, or any other JSON, which is its own text. */
TEST(results_of_tools)
{
    static const struct {
        const char *head, *tail;
    } dialect[] = {
        {"{\"messages\":[" USER
         ",{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\","
         "\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},"
         "{\"role\":\"tool\",\"tool_call_id\":\"1\"",
         "}]}"},
        {"{\"dialect\":\"responses\",\"input\":[" USER
         ",{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\",\"arguments\":\"{}\"},"
         "{\"type\":\"function_call_output\",\"call_id\":\"1\"",
         "}]}"},
        {"{\"dialect\":\"messages\",\"messages\":[" USER
         ",{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\","
         "\"input\":{}}]},"
         "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"1\"",
         "}]}]}"}};
    static const struct {
        const char *content, *shown; /* NULL: absent */
    } rows[] = {
        {NULL, ""},
        {"null", ""},
        {"[]", ""},
        {"\"x\"", "x"},
        {"[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"text\",\"text\":\"y\"}]", "xy"},
        {"{\"b\":[1,\"c\"]}", "{\\\"b\\\": [1, \\\"c\\\"]}"},
        {"[\"x\",\"y\"]", "[\\\"x\\\", \\\"y\\\"]"},
        {"[{\"text\":\"x\"}]", "[{\\\"text\\\": \\\"x\\\"}]"},
        {"[{\"type\":\"text\",\"text\":\"x\"},5]",
         "[{\\\"type\\\": \\\"text\\\", \\\"text\\\": \\\"x\\\"}, 5]"},
        {"5", "5"},
        {"123456789012345678901234567890", "123456789012345678901234567890"},
        {"true", "true"},
    };
    struct rig r;
    open_rig(&r, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t k = 0; k < sizeof dialect / sizeof *dialect; k++) {
            char body[600], shown[120];
            const char *name = !rows[i].content ? "" : k == 1 ? ",\"output\":" : ",\"content\":";
            (void)snprintf(body, sizeof body, "%s%s%s%s", dialect[k].head, name,
                           rows[i].content ? rows[i].content : "", dialect[k].tail);
            (void)snprintf(shown, sizeof shown, "<tool_response>\\n%s\\n</tool_response>",
                           rows[i].shown);
            check_rows(&r, &(struct row){"/apply-template", body, 200, shown}, 1);
        }
    close_rig(&r);
}

TEST(texts_of_blocks_that_are_no_text)
{
    static const struct row rows[] = {
        {"/apply-template",
         BLOCK("{\"type\":\"search_result\",\"title\":\"t\",\"source\":\"s\",\"content\":{"
               "\"a\":1}"
               "}"),
         400,
         "messages[1].content: expected the text of a block as a string or an array of "
         "blocks, found an object"},
        {"/apply-template",
         BLOCK("{\"type\":\"document\",\"source\":{\"type\":\"content\",\"content\":{\"a\":1}}}"),
         400, "found an object"},
        {"/apply-template",
         BLOCK("{\"type\":\"document\",\"source\":{\"type\":\"content\",\"content\":7}}"), 400,
         "found a number"},
        {"/apply-template",
         BLOCK("{\"type\":\"document\",\"source\":{\"type\":\"text\",\"data\":"
               "123456789012345678901234567890}}"),
         400, "only sources of type text and content"},
    };
    CHECK_ALL(rows);
}

TEST(members_of_replies)
{
    static const char *const models[] = {"\"object\":\"list\"",
                                         "\"has_more\":false",
                                         "\"first_id\":\"nano\"",
                                         "\"last_id\":\"nano\"",
                                         "\"type\":\"model\"",
                                         "\"created_at\":\"2023-11-14T22:13:20Z\"",
                                         "\"owned_by\":\"local\"",
                                         "\"display_name\":\"nano\"",
                                         "\"root\":\"nano\"",
                                         "\"parent\":null",
                                         "\"max_model_len\":512",
                                         "\"context_length\":512",
                                         "\"context_window\":512",
                                         "\"max_input_tokens\":511",
                                         "\"max_tokens\":511",
                                         "\"max_output_tokens\":511",
                                         "\"input_modalities\":[\"text\"]",
                                         "\"output_modalities\":[\"text\"]",
                                         "\"supported_parameters\":[",
                                         "\"reasoning_efforts\":[\"low\",\"medium\",\"xhigh\"]",
                                         "\"structured_output\":false",
                                         "\"vision\":false",
                                         "\"embeddings\":false",
                                         "\"aliases\":[]",
                                         NULL};
    static const char *const props[] = {
        "\"default_generation_settings\":{\"temperature\":",
        "\"total_slots\":2",
        "\"model_alias\":\"nano\"",
        "\"chat_template\":\"",
        "\"chat_template_sha256\":\"",
        "\"modalities\":{\"vision\":false,\"video\":false,\"audio\":false}",
        "\"n_ctx\":512",
        "\"bos_token\":null",
        "\"eos_token\":\"<|im_end|>\"",
        "\"build_info\":\"test-",
        NULL};
    static const char *const slots[] = {
        "\"id\":0",         "\"is_processing\":false",
        "\"phase\":",       "\"request_id\":",
        "\"dialect\":",     "\"session\":",
        "\"n_ctx\":512",    "\"n_prompt\":",
        "\"n_cached\":",    "\"n_decoded\":",
        "\"n_reasoning\":", "\"draft\":{\"type\":\"mtp\",\"accepted\":",
        "\"drafted\":",     "\"tokens_per_second\":",
        "\"seconds\":",     NULL};
    static const char *const progress[] = {
        "\"choices\":[],\"prompt_progress\":{\"total\":5,\"cache\":2,\"processed\":4,\"time_ms\":",
        NULL};
    static const struct {
        struct row row;
        const char *const *has;
    } rows[] = {{{"/v1/models", NULL, 200, NULL}, models},
                {{"/props", NULL, 200, NULL}, props},
                {{"/slots", NULL, 200, NULL}, slots},
                {{CHAT, ASK "\"stream\":true,\"return_progress\":true}", 200, NULL}, progress}};
    struct rig r;
    open_rig(&r, NULL);
    fake_engine_script(r.engine, answer);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *s = send_row(&r, &rows[i].row);
        for (const char *const *has = rows[i].has; *has; has++)
            if (!strstr(s, *has))
                FAIL("%s: expected %s in %s", rows[i].row.path, *has, s);
        free(s);
    }
    close_rig(&r);
}

/* Those of a server that has keys, and of one whose model is still being loaded. */
TEST(statuses_of_both_shapes)
{
    static const struct row keyless[] = {
        {CHAT, ASK "\"n\":1}", 401, "\"code\":\"invalid_api_key\""},
        {CHAT, ASK "\"n\":1}", 401, "WWW-Authenticate: Bearer"},
        {MESSAGES, ASK "\"n\":1}", 401,
         "{\"type\":\"error\",\"error\":{\"type\":\"authentication_error\""},
        {"/v1/messages/count_tokens", ASK "\"n\":1}", 401, "\"type\":\"authentication_error\""},
        {"/v1/models", NULL, 401, "\"code\":\"invalid_api_key\""},
    };
    static const struct row loading[] = {
        {CHAT, ASK "\"n\":1}", 503, "\"type\":\"server_error\",\"param\":null,\"code\":\"loading_"},
        {CHAT, ASK "\"n\":1}", 503, "Retry-After: "},
        {RESPONSES, INPUT "\"n\":1}", 503, "\"code\":\"loading_model\""},
        {MESSAGES, ASK "\"n\":1}", 503,
         "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\""},
        {"/v1/messages/count_tokens", ASK "\"n\":1}", 503, "\"type\":\"overloaded_error\""},
        {"/tokenize", "{\"content\":\"a\"}", 503, "\"code\":\"loading_model\""},
        {"/health", NULL, 503, "{\"status\":\"loading\",\"progress\":0."},
        {"/ready", NULL, 503, "loading"},
        {"/livez", NULL, 200, "ok"},
        {"/v1/models", NULL, 200, "\"id\":\"nano\""},
        {"/metrics", NULL, 200, "lathe_ready"},
        {"/debug/requests", NULL, 200, "\"error\":\"loading_model\""},
        {"/debug/cache", NULL, 200,
         "{\"pages\":0,\"pages_running\":0,\"pages_idle\":0,\"prefixes\":[]}"},
        {"/slots", NULL, 503, "\"code\":\"loading_model\""},
    };
    /* It ends before there is a model. */
    static const struct row leaving[] = {
        {CHAT, ASK "\"n\":1}", 503, "\"code\":\"shutting_down\""},
        {"/tokenize", "{\"content\":\"a\"}", 503, "\"code\":\"shutting_down\""},
        {"/slots", NULL, 503, "\"code\":\"shutting_down\""},
        {"/debug/cache", NULL, 200, "\"prefixes\":[]"},
        {"/metrics", NULL, 200, "lathe_ready"},
        {"/version", NULL, 200, "\"weights_sha256\":null"},
    };
    struct rig r;
    struct server_options o;
    struct server *still_loading;
    lathe_error err;
    static const char *const keys[] = {"k"};
    server_options_init(&o);
    o.key.name = keys;
    o.key.n = 1;
    open_rig(&r, &o);
    check_rows(&r, keyless, sizeof keyless / sizeof *keyless);
    server_options_init(&o);
    o.port = 0;
    o.model_dir = test_path("models/nano");
    o.n_ctx = 512;
    o.n_slots = 1;
    o.debug_routes = true;
    CHECK_OK(server_open(&still_loading, &o, &err), &err);
    struct rig other = {.server = still_loading};
    check_rows(&other, loading, sizeof loading / sizeof *loading);
    server_drain(still_loading, 0, 0);
    check_rows(&other, leaving, sizeof leaving / sizeof *leaving);
    server_close(still_loading);
    close_rig(&r);
}

/* lathe_render: the golden prompts, the cases, the checks of a conversation, and which bytes may
 * become control tokens. The published templates are read from ../shared. */
#define _GNU_SOURCE
#include "test.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "fail_alloc.h"
#include "text/parse.h"
#include "text/text.h"

/* ---- Texts --------------------------------------------------------------------------------- */

static lathe_text *open_nano(void)
{
    lathe_text *t;
    lathe_error e;
    CHECK_OK(lathe_text_open(&t, test_path("models/nano"), &e), &e);
    return t;
}

/* The shipped model's tokenizer with another template. */
static lathe_text *open_with(const char *source, size_t n)
{
    static int n_dirs;
    static const char *const file[] = {"tokenizer.json", "tokenizer_config.json", "config.json",
                                       "generation_config.json"};
    char dir[300], to[400], from[4096], name[40];
    lathe_text *t;
    lathe_error e;
    snprintf(name, sizeof name, "model%d", n_dirs++);
    snprintf(dir, sizeof dir, "%s", test_tmp(name));
    CHECK(mkdir(dir, 0700) == 0);
    for (size_t i = 0; i < sizeof file / sizeof file[0]; i++) {
        snprintf(to, sizeof to, "models/nano/%s", file[i]);
        CHECK(realpath(test_path(to), from));
        snprintf(to, sizeof to, "%s/%s", dir, file[i]);
        CHECK(symlink(from, to) == 0);
    }
    snprintf(to, sizeof to, "%s/chat_template.jinja", dir);
    test_write(to, source, n);
    CHECK_OK(lathe_text_open(&t, dir, &e), &e);
    return t;
}

static lathe_text *open_shared(const char *template_path)
{
    size_t n;
    char *source = test_read(test_shared(template_path), &n);
    lathe_text *t = open_with(source, n);
    free(source);
    return t;
}

static void expect(lathe_text *t, const lathe_conversation *c, const char *text)
{
    lathe_prompt p;
    lathe_error e;
    CHECK_OK(lathe_render(t, c, &p, &e), &e);
    CHECK_STR(p.text, text);
    CHECK_INT(p.n_text, strlen(text));
    lathe_prompt_release(&p);
}

static void expect_error(lathe_text *t, const lathe_conversation *c, lathe_status st,
                         const char *message)
{
    lathe_prompt p;
    lathe_error e;
    CHECK_ERR(lathe_render(t, c, &p, &e), &e, st, message);
    CHECK(!p.text && !p.tokens.id);
}

static size_t count_id(const lathe_prompt *p, int32_t id)
{
    size_t n = 0;
    for (size_t i = 0; i < p->tokens.n; i++)
        n += p->tokens.id[i] == id;
    return n;
}

static size_t count(const char *s, const char *what)
{
    size_t n = 0;
    for (; (s = strstr(s, what)); s += strlen(what))
        n++;
    return n;
}

static char *dump(const json_t *v)
{
    char *s = v ? json_dumps(v, JSON_ENCODE_ANY) : NULL;
    CHECK(!v || s);
    return s;
}

static struct json_doc read_case(const char *path)
{
    struct json_doc d = {0};
    lathe_error e;
    CHECK_OK(json_read_file(&d, path, &json_limits_request, &e), &e);
    return d;
}

/* ---- Golden prompts ------------------------------------------------------------------------ */

TEST(golden_tool_prompts)
{
    struct json_doc d = read_case(test_path("tests/golden/tool_calls.json"));
    lathe_text *t = open_nano();
    lathe_error e;
    CHECK(json_array_size(d.root) > 0);
    for (size_t i = 0; i < json_array_size(d.root); i++) {
        const json_t *g = json_array_get(d.root, i), *ids = json_object_get(g, "ids");
        char *messages = dump(json_object_get(g, "messages"));
        char *tools = dump(json_object_get(g, "tools"));
        bool thinking = json_is_true(json_object_get(g, "thinking"));
        lathe_conversation c = {
            .messages = messages, .tools = tools, .thinking = thinking ? LATHE_ON : LATHE_OFF};
        lathe_prompt p;
        CHECK_OK(lathe_render(t, &c, &p, &e), &e);
        CHECK_STR(p.text, json_string_value(json_object_get(g, "text")));
        CHECK_INT(p.tokens.n, json_array_size(ids));
        for (size_t k = 0; k < p.tokens.n; k++)
            CHECK_INT(p.tokens.id[k], json_integer_value(json_array_get(ids, k)));
        CHECK(p.thinking_open == thinking);
        lathe_prompt_release(&p);
        free(messages);
        free(tools);
    }
    lathe_text_close(t);
    json_release(&d);
}

TEST(golden_prompts)
{
    static const struct {
        const char *name, *messages, *tools;
        lathe_switch thinking;
    } rows[] = {
        {"define", "[{\"role\":\"user\",\"content\":\"What is a kiln?\"}]", NULL, LATHE_OFF},
        {"think", "[{\"role\":\"user\",\"content\":\"What is 48 + 37?\"}]", NULL, LATHE_ON},
        {"story",
         "[{\"role\":\"user\",\"content\":\"Tell me a short story about a lighthouse keeper.\"}]",
         NULL, LATHE_OFF},
        {"tools",
         "[{\"role\":\"system\",\"content\":\"You are a helpful assistant.\"},{\"role\":\"user\","
         "\"content\":\"What will the weather be in Oslo for the next 3 days?\"}]",
         "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"description\": "
         "\"Current weather of a city\", \"parameters\": {\"type\": \"object\", \"properties\": "
         "{\"city\": {\"type\": \"string\"}, \"days\": {\"type\": \"integer\"}}, \"required\": "
         "[\"city\"]}}}]",
         LATHE_OFF},
    };
    struct json_doc d = read_case(test_path("tests/golden/mixed.json"));
    const json_t *prompts = json_object_get(d.root, "prompts");
    lathe_text *t = open_nano();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const json_t *g = json_object_get(prompts, rows[i].name);
        lathe_conversation c = {
            .messages = rows[i].messages, .tools = rows[i].tools, .thinking = rows[i].thinking};
        lathe_prompt p;
        lathe_error e;
        CHECK_OK(lathe_render(t, &c, &p, &e), &e);
        CHECK_STR(p.text, json_string_value(json_object_get(g, "text")));
        CHECK_INT(p.tokens.n, json_integer_value(json_object_get(g, "n")));
        lathe_prompt_release(&p);
    }
    lathe_text_close(t);
    json_release(&d);
}

/* ---- Cases --------------------------------------------------------------------------------- */

/* B04: of the conversation's text nothing becomes a control token. */
static void check_injection(lathe_text *t)
{
    struct json_doc d =
        read_case(test_path("tests/cases/tokenizer/B04_special_text_in_content.json"));
    const json_t *want = json_object_get(d.root, "expect");
    char *messages = dump(json_object_get(d.root, "messages")), *back;
    lathe_conversation c = {.messages = messages, .effort = "medium"};
    lathe_prompt p;
    lathe_error e;
    size_t n;
    CHECK_OK(lathe_render(t, &c, &p, &e), &e);
    CHECK_INT(count_id(&p, t->im_start), 5);
    CHECK_INT(count_id(&p, t->im_end),
              json_integer_value(json_object_get(want, "count_id_im_end")));
    CHECK_INT(count_id(&p, tokenizer_control_id(t->tokenizer, "<|image_pad|>")),
              json_integer_value(json_object_get(want, "count_image_pad_ids")));
    CHECK_OK(lathe_detokenize(t, p.tokens.id, p.tokens.n, &back, &n, &e), &e);
    CHECK_STR(back, p.text);
    const json_t *parts = json_object_get(want, "decode_contains");
    for (size_t i = 0; i < json_array_size(parts); i++)
        CHECK(strstr(back, json_string_value(json_array_get(parts, i))));
    lathe_free(back);
    lathe_prompt_release(&p);
    free(messages);
    json_release(&d);
}

/* B09, B11 and B17: exact texts, the same for the shipped and the published template. */
static void check_exact(lathe_text *t, const char *file)
{
    char path[200];
    snprintf(path, sizeof path, "tests/cases/template/%s", file);
    struct json_doc d = read_case(test_path(path));
    const json_t *messages = json_object_get(d.root, "messages");
    char *kwargs = dump(json_object_get(d.root, "kwargs"));
    char *list = dump(messages ? messages : json_object_get(d.root, "messages_mapping"));
    lathe_conversation c = {.messages = list, .kwargs = kwargs};
    expect(t, &c, json_string_value(json_object_get(json_object_get(d.root, "expect"), "exact")));
    free(list);
    free(kwargs);
    json_release(&d);
}

static json_t *arguments_holder(json_t *messages)
{
    json_t *call = json_array_get(json_object_get(json_array_get(messages, 1), "tool_calls"), 0);
    return json_object_get(call, "function");
}

/* B11: string arguments render as the mapping does; what is no object names its place. */
static void check_string_arguments(lathe_text *t)
{
    struct json_doc d = read_case(test_path("tests/cases/template/B11_string_arguments.json"));
    const json_t *want = json_object_get(d.root, "expect");
    json_t *messages = json_object_get(d.root, "messages_mapping");
    char *kwargs = dump(json_object_get(d.root, "kwargs"));
    lathe_conversation c = {.kwargs = kwargs};
    lathe_prompt p;
    lathe_error e;

    json_object_set(arguments_holder(messages), "arguments",
                    json_object_get(d.root, "arguments_as_string"));
    char *list = dump(messages);
    c.messages = list;
    expect(t, &c, json_string_value(json_object_get(want, "exact")));
    free(list);

    const json_t *forms = json_object_get(want, "empty_forms");
    for (size_t i = 0; i <= json_array_size(forms); i++) {
        json_t *form = json_array_get(forms, i);
        json_object_set_new(arguments_holder(messages), "arguments",
                            form ? json_incref(form) : json_string(" \n"));
        list = dump(messages);
        c.messages = list;
        CHECK_OK(lathe_render(t, &c, &p, &e), &e);
        CHECK(strstr(p.text, "<function=lookup>\n</function>") && !strstr(p.text, "<parameter"));
        lathe_prompt_release(&p);
        free(list);
    }
    forms = json_object_get(want, "bad_forms_status_400");
    for (size_t i = 0; i < json_array_size(forms); i++) {
        json_object_set(arguments_holder(messages), "arguments", json_array_get(forms, i));
        list = dump(messages);
        c.messages = list;
        expect_error(t, &c, LATHE_E_ARGUMENT, "messages[1].tool_calls[0].function.arguments: ");
        free(list);
    }
    free(kwargs);
    json_release(&d);
}

/* B12: the tool object as it was sent. */
static void check_tojson(lathe_text *t)
{
    struct json_doc d = read_case(test_path("tests/cases/template/B12_tojson_fidelity.json"));
    const json_t *want = json_object_get(d.root, "expect");
    const json_t *absent = json_object_get(want, "must_not_contain");
    char *messages = dump(json_object_get(d.root, "messages"));
    char *tools = dump(json_object_get(d.root, "tools"));
    char *kwargs = dump(json_object_get(d.root, "kwargs"));
    lathe_conversation c = {.messages = messages, .tools = tools, .kwargs = kwargs};
    char line[1000];
    lathe_prompt p;
    lathe_error e;
    CHECK_OK(lathe_render(t, &c, &p, &e), &e);
    snprintf(line, sizeof line, "<tools>\n%s\n</tools>",
             json_string_value(json_object_get(want, "line_inside_tools_block")));
    CHECK(strstr(p.text, line));
    for (size_t i = 0; i < json_array_size(absent); i++)
        CHECK(!strstr(p.text, json_string_value(json_array_get(absent, i))));
    lathe_prompt_release(&p);
    free(messages);
    free(tools);
    free(kwargs);
    json_release(&d);
}

/* B13: words for effort. The instruction is the published template's; `has_levels` says it is there. */
static void check_effort(lathe_text *t, bool has_levels)
{
    struct json_doc d = read_case(test_path("tests/cases/template/B13_reasoning_effort_map.json"));
    char *messages = dump(json_object_get(d.root, "messages"));
    const json_t *rows = json_object_get(d.root, "rows");
    CHECK_INT(json_array_size(rows), 9);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const char *word = json_string_value(json_object_get(row, "effort"));
        const char *level = json_string_value(json_object_get(row, "instruction"));
        lathe_conversation c = {.messages = messages, .effort = word};
        lathe_prompt p;
        lathe_error e;
        if (json_object_get(row, "status")) {
            expect_error(t, &c, LATHE_E_ARGUMENT, "reasoning_effort: 'turbo'");
            continue;
        }
        for (int by_kwargs = 0; by_kwargs < 2; by_kwargs++) {
            char kwargs[60];
            snprintf(kwargs, sizeof kwargs, word ? "{\"reasoning_effort\":\"%s\"}" : "{}",
                     word ? word : "");
            if (by_kwargs)
                c = (lathe_conversation){.messages = messages, .kwargs = kwargs};
            CHECK_OK(lathe_render(t, &c, &p, &e), &e);
            if (has_levels) {
                char sentence[60];
                snprintf(sentence, sizeof sentence, "Reasoning effort is set to %s.",
                         level ? level : "");
                CHECK_INT(count(p.text, level ? sentence : "Reasoning effort"), level ? 1 : 0);
            }
            bool open = json_is_true(json_object_get(row, "think_open"));
            const char *end = open ? "<|im_start|>assistant\n<think>\n" : "<think>\n\n</think>\n\n";
            CHECK(p.n_text > strlen(end));
            CHECK_STR(p.text + p.n_text - strlen(end), end);
            CHECK(p.thinking_open == open);
            lathe_prompt_release(&p);
        }
    }
    free(messages);
    json_release(&d);
}

/* One assistant message from the events of an output. */
struct answer {
    json_t *message;
    struct buf args;
};

static void add_text(json_t *m, const char *key, const char *s, size_t n)
{
    const char *old = json_string_value(json_object_get(m, key));
    struct buf b;
    buf_init(&b, 1 << 20);
    buf_puts(&b, old ? old : "");
    buf_append(&b, s, n);
    json_object_set_new(m, key, json_string(buf_str(&b)));
    buf_release(&b);
}

static lathe_status on_event(void *ctx, const struct parse_event *ev, lathe_error *err)
{
    struct answer *a = ctx;
    (void)err;
    json_t *calls = json_object_get(a->message, "tool_calls");
    if (ev->type == LATHE_EVENT_REASONING)
        add_text(a->message, "reasoning_content", ev->text, ev->n);
    if (ev->type == LATHE_EVENT_TEXT)
        add_text(a->message, "content", ev->text, ev->n);
    if (ev->type == LATHE_EVENT_CALL_ARGS)
        buf_append(&a->args, ev->text, ev->n);
    if (ev->type == LATHE_EVENT_CALL_BEGIN && !calls)
        json_object_set_new(a->message, "tool_calls", json_array());
    if (ev->type == LATHE_EVENT_CALL_BEGIN) {
        calls = json_object_get(a->message, "tool_calls");
        json_array_append_new(
            calls, json_pack("{s:s,s:{s:s}}", "id", ev->call_id, "function", "name", ev->name));
        buf_clear(&a->args);
    }
    if (ev->type == LATHE_EVENT_CALL_END) {
        json_t *call = json_array_get(calls, json_array_size(calls) - 1);
        json_object_set_new(json_object_get(call, "function"), "arguments",
                            json_string(buf_str(&a->args)));
    }
    return LATHE_OK;
}

static json_t *parse_answer(const char *raw, bool thinking_open)
{
    struct answer a = {.message = json_pack("{s:s,s:s}", "role", "assistant", "content", "")};
    struct parse_options o = {.thinking_open = thinking_open,
                              .tools = "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]",
                              .sink = on_event,
                              .sink_ctx = &a};
    struct parser *p;
    lathe_finish finish;
    lathe_error e;
    buf_init(&a.args, 1 << 20);
    CHECK_OK(parser_open(&p, &o, &e), &e);
    CHECK_OK(parser_feed(p, raw, strlen(raw), &e), &e);
    CHECK_OK(parser_finish(p, LATHE_FINISH_STOP, &finish, &e), &e);
    parser_close(p);
    buf_release(&a.args);
    return a.message;
}

/* B15: prompt, output and end marker are the beginning of the next prompt. */
static void check_prefixes(lathe_text *t)
{
    struct json_doc d = read_case(test_path("tests/cases/template/B15_turn_prefix_stability.json"));
    const json_t *variants = json_object_get(d.root, "variants");
    for (size_t v = 0; v < json_array_size(variants); v++) {
        const json_t *variant = json_array_get(variants, v);
        const json_t *turns = json_object_get(variant, "turns");
        char *kwargs = dump(json_object_get(variant, "kwargs"));
        json_t *messages = json_array();
        struct buf before;
        buf_init(&before, 1 << 20);
        for (size_t i = 0; i < json_array_size(turns); i++) {
            const json_t *turn = json_array_get(turns, i);
            const char *user = json_string_value(json_object_get(turn, "user"));
            const char *tool = json_string_value(json_object_get(turn, "tool"));
            const char *raw = json_string_value(json_object_get(turn, "raw_output"));
            json_array_append_new(messages, json_pack("{s:s,s:s}", "role", user ? "user" : "tool",
                                                      "content", user ? user : tool));
            char *list = dump(messages);
            lathe_conversation c = {
                .messages = list, .kwargs = kwargs, .preserve_thinking = LATHE_ON};
            lathe_prompt p;
            lathe_error e;
            CHECK_OK(lathe_render(t, &c, &p, &e), &e);
            if (strncmp(p.text, buf_str(&before), before.len) != 0)
                FAIL("turn %zu begins with\n%s\nexpected\n%s", i, p.text, buf_str(&before));
            buf_clear(&before);
            if (raw) {
                buf_printf(&before, "%s%s<|im_end|>\n", p.text, raw);
                json_array_append_new(messages, parse_answer(raw, p.thinking_open));
            }
            lathe_prompt_release(&p);
            free(list);
        }
        buf_release(&before);
        json_decref(messages);
        free(kwargs);
    }
    json_release(&d);
}

static void check_cases(lathe_text *t, bool has_levels)
{
    check_injection(t);
    check_exact(t, "B09_system_messages.json");
    check_exact(t, "B11_string_arguments.json");
    check_exact(t, "B17_developer_role.json");
    check_string_arguments(t);
    check_tojson(t);
    check_effort(t, has_levels);
    check_prefixes(t);
    lathe_text_close(t);
}

TEST(cases_with_the_shipped_template)
{
    check_cases(open_nano(), false);
}

TEST(cases_with_the_38_template)
{
    check_cases(open_shared("templates/qwen3.8-27b.jinja"), true);
}

/* ---- System messages ----------------------------------------------------------------------- */

#define U(text)         "{\"role\":\"user\",\"content\":\"" text "\"}"
#define S(text)         "{\"role\":\"system\",\"content\":\"" text "\"}"
#define A(text)         "{\"role\":\"assistant\",\"content\":\"" text "\"}"
#define T(text)         "{\"role\":\"tool\",\"content\":\"" text "\"}"
#define SYSTEM(text)    "<|im_start|>system\n" text "<|im_end|>\n"
#define USER(text)      "<|im_start|>user\n" text "<|im_end|>\n"
#define ASSISTANT(text) "<|im_start|>assistant\n" text "<|im_end|>\n"
#define OPEN            "<|im_start|>assistant\n<think>\n"
#define CLOSED          "<|im_start|>assistant\n<think>\n\n</think>\n\n"

TEST(system_messages_are_merged)
{
    lathe_text *t = open_nano();
    lathe_conversation c = {.thinking = LATHE_OFF};
    c.messages = "[" S(" a \\n") "," U("u") "," S("") "," S("b") "]";
    expect(t, &c, SYSTEM("a\n\nb") USER("u") CLOSED);
    /* Before the first user message all are leading, whatever stands between. */
    c.late_system = LATHE_LATE_SYSTEM_ERROR;
    c.messages =
        "[" A("hello") "," S("a") ",{\"role\":\"developer\",\"content\":[{\"type\":\"text\","
                                  "\"text\":\"b\"},{\"text\":\"c\"}]}," U("u") "]";
    expect(t, &c, SYSTEM("a\n\nbc") ASSISTANT("hello") USER("u") CLOSED);
    c.messages = "[" U("u") "," S("b") "]";
    expect_error(t, &c, LATHE_E_TEMPLATE,
                 "chat_template.jinja: line 77: a message has the role system");
    /* kwargs have the last word. */
    c.kwargs = "{\"late_system\":\"merge\"}";
    expect(t, &c, SYSTEM("b") USER("u") CLOSED);
    c.messages = "[" S("a") ",{\"role\":\"system\",\"content\":[{\"type\":\"image\"}]}," U("u") "]";
    expect_error(t, &c, LATHE_E_ARGUMENT,
                 "messages[1].content[0]: a system message holds text only");
    lathe_text_close(t);
}

static void check_inline(lathe_text *t)
{
    lathe_conversation c = {.thinking = LATHE_OFF,
                            .preserve_thinking = LATHE_ON,
                            .late_system = LATHE_LATE_SYSTEM_INLINE};
    lathe_prompt p;
    lathe_error e;
    c.messages = "[" S("lead") "," U("one") "," A("two") "," S(" <|im_end|> late \\n") "," S(
        "  ") "," S("later") "," U("three") "]";
    expect(t, &c,
           SYSTEM("lead") USER("one") ASSISTANT("<think>\n\n</think>\n\ntwo")
               SYSTEM("<|im_end|> late") SYSTEM("later") USER("three") CLOSED);
    CHECK_OK(lathe_render(t, &c, &p, &e), &e);
    CHECK_INT(count_id(&p, t->im_end), 6);
    CHECK_INT(count_id(&p, t->im_start), 7);
    lathe_prompt_release(&p);
    lathe_text_close(t);
}

TEST(late_system_inline_with_the_shipped_template)
{
    check_inline(open_nano());
}

TEST(late_system_inline_with_the_38_template)
{
    check_inline(open_shared("templates/qwen3.8-27b.jinja"));
}

/* A late system message is no question of the user: reasoning behind the last question stays. */
TEST(late_system_inline_keeps_the_span_of_reasoning)
{
    lathe_text *t = open_shared("templates/qwen3.6-27b.jinja");
    lathe_conversation c = {.late_system = LATHE_LATE_SYSTEM_INLINE};
    c.messages =
        "[" U("q") ",{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":\"r\"}," T(
            "t") "," S("note") "]";
    expect(t, &c,
           USER("q") ASSISTANT("<think>\nr\n</think>\n\na")
               USER("<tool_response>\nt\n</tool_response>") SYSTEM("note") OPEN);
    lathe_text_close(t);
}

TEST(late_system_inline_needs_a_known_form)
{
    static const char source[] =
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}";
    lathe_text *t = open_with(source, sizeof source - 1);
    lathe_conversation c = {.messages = "[" U("u") "," S("b") "]",
                            .late_system = LATHE_LATE_SYSTEM_INLINE};
    expect_error(t, &c, LATHE_E_UNSUPPORTED, "merge and error are supported");
    c.late_system = LATHE_LATE_SYSTEM_ERROR;
    expect(t, &c, "[user] u\n[system] b\n");
    lathe_text_close(t);
}

/* ---- No question of the user --------------------------------------------------------------- */

TEST(no_question_with_the_38_template)
{
    lathe_text *t = open_shared("templates/qwen3.8-27b.jinja");
    lathe_conversation c = {.thinking = LATHE_OFF};
    c.messages = "[" S("s") "]";
    expect(t, &c, SYSTEM("s") CLOSED);
    c.messages = "[" A("a") "," T("x") "," T("y") "]";
    expect(t, &c,
           ASSISTANT("<think>\n\n</think>\n\na") "<|im_start|>user\n<tool_response>\nx\n"
                                                 "</tool_response>\n<tool_response>\ny\n"
                                                 "</tool_response><|im_end|>\n" CLOSED);
    c.messages = "[" U("<tool_response>r</tool_response>") "]";
    expect(t, &c, USER("<tool_response>r</tool_response>") CLOSED);
    c.messages = "[" A("a") ","
                            "{\"role\":\"tool\",\"content\":[{\"type\":\"audio\"}]}"
                            "]";
    expect_error(t, &c, LATHE_E_UNSUPPORTED, "messages[1].content[0]: a part of type 'audio'");
    lathe_text_close(t);
}

TEST(no_question_with_the_shipped_template)
{
    lathe_text *t = open_nano();
    lathe_conversation c = {.thinking = LATHE_OFF, .messages = "[" S("s") "," A("a") "]"};
    expect(t, &c, SYSTEM("s") ASSISTANT("a") CLOSED);
    lathe_text_close(t);
}

/* ---- Switches ------------------------------------------------------------------------------ */

TEST(thinking_and_its_precedence)
{
    static const struct {
        lathe_switch thinking;
        const char *effort, *kwargs;
        bool open;
    } rows[] = {
        {LATHE_DEFAULT, NULL, NULL, true},
        {LATHE_OFF, NULL, NULL, false},
        {LATHE_ON, NULL, NULL, true},
        {LATHE_OFF, "high", NULL, false},
        {LATHE_ON, "none", NULL, false},
        {LATHE_DEFAULT, "auto", NULL, true},
        {LATHE_OFF, NULL, "{\"enable_thinking\":true}", true},
        {LATHE_ON, NULL, "{\"enable_thinking\":false}", false},
        {LATHE_OFF, NULL, "{\"enable_thinking\":null}", false},
        {LATHE_DEFAULT, NULL, "{\"reasoning_effort\":\"none\"}", false},
        {LATHE_DEFAULT, NULL, "{\"reasoning_effort\":\"none\",\"enable_thinking\":true}", true},
        {LATHE_DEFAULT, "low", "{\"reasoning_effort\":null}", true},
    };
    lathe_text *t = open_nano();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lathe_conversation c = {.messages = "[" U("x") "]",
                                .thinking = rows[i].thinking,
                                .effort = rows[i].effort,
                                .kwargs = rows[i].kwargs};
        lathe_prompt p;
        lathe_error e;
        CHECK_OK(lathe_render(t, &c, &p, &e), &e);
        if (p.thinking_open != rows[i].open)
            FAIL("row %zu: %s", i, p.text);
        lathe_prompt_release(&p);
    }
    lathe_text_close(t);
}

TEST(thinking_open_looks_at_the_templates_tags)
{
    lathe_text *t = open_nano();
    lathe_conversation c = {.messages = "[" U("a <think> b") "]", .thinking = LATHE_OFF};
    lathe_prompt p;
    lathe_error e;
    CHECK_OK(lathe_render(t, &c, &p, &e), &e);
    CHECK(!p.thinking_open);
    lathe_prompt_release(&p);
    c.no_generation_prompt = true;
    c.thinking = LATHE_ON;
    expect(t, &c, USER("a <think> b"));
    CHECK_OK(lathe_render(t, &c, &p, &e), &e);
    CHECK(!p.thinking_open);
    lathe_prompt_release(&p);
    lathe_text_close(t);
}

TEST(kwargs_that_are_unknown_or_wrong)
{
    static const char source[] = "{{ style | default('plain') }} {{ messages[0].content }}";
    lathe_text *t = open_nano();
    lathe_conversation c = {.messages = "[" U("x") "]"};
    static const struct {
        const char *kwargs, *message;
        lathe_status st;
    } rows[] = {
        {"{\"enable_thinkin\":true}",
         "kwargs: unknown key 'enable_thinkin'; known are enable_thinking", LATHE_E_ARGUMENT},
        {"{\"messages\":[]}", "kwargs: unknown key 'messages'", LATHE_E_ARGUMENT},
        {"{\"enable_thinking\":1}", "kwargs.enable_thinking: expected true or false",
         LATHE_E_ARGUMENT},
        {"{\"preserve_thinking\":\"yes\"}", "kwargs.preserve_thinking", LATHE_E_ARGUMENT},
        {"{\"reasoning_effort\":\"turbo\"}", "kwargs.reasoning_effort: 'turbo'", LATHE_E_ARGUMENT},
        {"{\"reasoning_effort\":5}", "kwargs.reasoning_effort: expected a word", LATHE_E_ARGUMENT},
        {"{\"late_system\":\"drop\"}", "kwargs.late_system", LATHE_E_ARGUMENT},
        {"[]", "kwargs: expected an object", LATHE_E_ARGUMENT},
        {"{", "kwargs: ", LATHE_E_FORMAT},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        c.kwargs = rows[i].kwargs;
        expect_error(t, &c, rows[i].st, rows[i].message);
    }
    lathe_text_close(t);
    t = open_with(source, sizeof source - 1);
    c.kwargs = "{\"style\":\"fancy\"}";
    expect(t, &c, "fancy x");
    c.kwargs = NULL;
    expect(t, &c, "plain x");
    lathe_text_close(t);
}

/* ---- Checks of messages and tools ---------------------------------------------------------- */

TEST(bad_conversations)
{
    static const struct {
        const char *messages, *tools, *message;
        lathe_status st;
    } rows[] = {
        {NULL, NULL, "messages: missing", LATHE_E_ARGUMENT},
        {"", NULL, "messages: ", LATHE_E_FORMAT},
        {"[{]", NULL, "messages: ", LATHE_E_FORMAT},
        {"{}", NULL, "messages: expected an array, found an object", LATHE_E_ARGUMENT},
        {"[]", NULL, "messages: the array is empty", LATHE_E_ARGUMENT},
        {"[5]", NULL, "messages[0]: expected an object, found a number", LATHE_E_ARGUMENT},
        {"[{}]", NULL, "messages[0].role: expected a string, found nothing", LATHE_E_ARGUMENT},
        {"[" U("x") ",{\"role\":null}]", NULL, "messages[1].role: expected a string, found null",
         LATHE_E_ARGUMENT},
        {"[{\"role\":\"function\",\"content\":\"x\"}]", NULL,
         "messages[0].role: 'function' is none of", LATHE_E_ARGUMENT},
        {"[{\"role\":\"user\",\"content\":5}]", NULL,
         "messages[0].content: expected a string or an array, found a number", LATHE_E_ARGUMENT},
        {"[{\"role\":\"user\",\"content\":{}}]", NULL, "messages[0].content: expected",
         LATHE_E_ARGUMENT},
        {"[{\"role\":\"user\",\"content\":[\"x\"]}]", NULL,
         "messages[0].content[0]: expected an object, found a string", LATHE_E_ARGUMENT},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", NULL,
         "messages[0].content[0].text: expected a string, found nothing", LATHE_E_ARGUMENT},
        {"[{\"role\":\"user\",\"content\":[{\"text\":5}]}]", NULL,
         "messages[0].content[0].text: expected a string, found a number", LATHE_E_ARGUMENT},
        {"[{\"role\":\"user\",\"content\":[{\"type\":5}]}]", NULL,
         "messages[0].content[0].type: expected a string", LATHE_E_ARGUMENT},
        {"[{\"role\":\"assistant\",\"content\":\"x\",\"reasoning_content\":5}]", NULL,
         "messages[0].reasoning_content: expected a string", LATHE_E_ARGUMENT},
        {"[{\"role\":\"assistant\",\"tool_calls\":{}}]", NULL,
         "messages[0].tool_calls: expected an array, found an object", LATHE_E_ARGUMENT},
        {"[{\"role\":\"assistant\",\"tool_calls\":[5]}]", NULL,
         "messages[0].tool_calls[0]: expected an object", LATHE_E_ARGUMENT},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":[]}]}]", NULL,
         "messages[0].tool_calls[0].function: expected an object", LATHE_E_ARGUMENT},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]", NULL,
         "messages[0].tool_calls[0].function.name: expected the tool's name", LATHE_E_ARGUMENT},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"\"}}]}]", NULL,
         "messages[0].tool_calls[0].function.name: expected the tool's name", LATHE_E_ARGUMENT},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\",\"arguments\":[1]}]}]", NULL,
         "messages[0].tool_calls[0].arguments: expected an object or its JSON text, found an array",
         LATHE_E_ARGUMENT},
        {"[" A("") "," A("") "]", NULL, "messages: nothing in them to render", LATHE_E_ARGUMENT},
        {"[" U("x") "]", "{}", "tools: expected an array", LATHE_E_ARGUMENT},
        {"[" U("x") "]", "[5]", "tools[0]: expected an object", LATHE_E_ARGUMENT},
        {"[" U("x") "]", "[{\"type\":\"function\"}]",
         "tools[0].name: expected a string of 1 to 128 characters", LATHE_E_ARGUMENT},
        {"[" U("x") "]", "[{\"name\":\"f\"},{\"function\":{\"name\":\"\"}}]",
         "tools[1].function.name: expected a string", LATHE_E_ARGUMENT},
        {"[" U("x") "]", "[{\"function\":{\"name\":5}}]", "tools[0].function.name: expected",
         LATHE_E_ARGUMENT},
        {"[" U("x") "]", "[{\"name\":123456789012345678901234567890}]", "tools[0].name: expected",
         LATHE_E_ARGUMENT},
        {"[" U("x") "]", "[{\"name\":\"f>\"}]", "tools[0].name: expected", LATHE_E_ARGUMENT},
        {"[" U("x") "]", "[{\"name\":\"<f\"}]", "tools[0].name: expected", LATHE_E_ARGUMENT},
        {"[" U("x") "]", "[{\"name\":\"f\\ng\"}]", "tools[0].name: expected", LATHE_E_ARGUMENT},
        {"[" U("x") "]", "[{\"name\":\"f\\u0000g\"}]", "tools", LATHE_E_ARGUMENT},
        {"[" U("x") "]", "[{\"function\":\"f\"}]", "tools[0].function: expected an object",
         LATHE_E_ARGUMENT},
        {"[" U("x") "]", "[{\"function\":{\"name\":\"f\",\"parameters\":[]}}]",
         "tools[0].function.parameters: expected an object", LATHE_E_ARGUMENT},
        {"[" U("x") "]", "[{\"name\":\"f\",\"parameters\":true}]",
         "tools[0].parameters: expected an object", LATHE_E_ARGUMENT},
        {"[" U("x") "]",
         "[{\"function\":{\"name\":\"f\"}},{\"name\":\"g\"},{\"function\":{\"name\":\"f\"}}]",
         "tools[2].function.name: 'f' is the name of an earlier tool", LATHE_E_ARGUMENT},
        {"[" U("x") "]", "[", "tools: ", LATHE_E_FORMAT},
        {"[" U("\xff") "]", NULL, "messages: ", LATHE_E_FORMAT},
    };
    lathe_text *t = open_nano();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lathe_conversation c = {.messages = rows[i].messages, .tools = rows[i].tools};
        expect_error(t, &c, rows[i].st, rows[i].message);
    }
    lathe_text_close(t);
}

TEST(odd_conversations)
{
    lathe_text *t = open_nano();
    lathe_conversation c = {.thinking = LATHE_OFF};
    c.messages = "[" U("") ",{\"role\":\"assistant\",\"content\":null}," A("") "," U("x") "]";
    expect(t, &c, USER("") USER("x") CLOSED);
    c.messages = "[{\"role\":\"user\"},{\"role\":\"assistant\",\"content\":[],\"tool_calls\":[]},"
                 "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":"
                 "\"text\",\"text\":\"b\"}],\"name\":\"Ann\"}]";
    expect(t, &c, USER("") USER("ab") CLOSED);
    /* A call without the `function` around it, with keys in the order they were sent. */
    c.messages =
        "[" U("x") ",{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\",\"arguments\":"
                   "\"{\\\"z\\\": 1.50, \\\"a\\\": 123456789012345678901234567890}\"}]}]";
    expect(t, &c,
           USER("x")
               ASSISTANT("<think>\n\n</think>\n\n<tool_call>\n<function=f>\n<parameter=z>\n1.5\n"
                         "</parameter>\n<parameter=a>\n123456789012345678901234567890\n"
                         "</parameter>\n</function>\n</tool_call>") CLOSED);
    c.messages = "[" U("x") "]";
    c.tools = "[]";
    expect(t, &c, USER("x") CLOSED);
    c.tools = "null";
    expect(t, &c, USER("x") CLOSED);
    lathe_text_close(t);
}

/* The longest names, in characters of one byte and of four; a name beyond; no schema at all. */
TEST(tool_names_of_every_length)
{
    lathe_text *t = open_nano();
    for (int wide = 0; wide < 2; wide++)
        for (int n = 127; n <= 129; n++) {
            struct buf b;
            lathe_prompt p;
            lathe_error e;
            buf_init(&b, 1 << 16);
            buf_puts(&b, "[{\"name\":\"");
            for (int i = 0; i < n; i++)
                buf_puts(&b, wide ? "\xF0\x9F\x99\x82" : ".");
            buf_puts(&b, "\",\"parameters\":null},{\"name\":\"a b\",\"parameters\":{}}]");
            lathe_conversation c = {.messages = "[" U("x") "]", .tools = buf_str(&b)};
            if (n > 128) {
                expect_error(t, &c, LATHE_E_ARGUMENT, "tools[0].name");
            } else {
                CHECK_OK(lathe_render(t, &c, &p, &e), &e);
                lathe_prompt_release(&p);
            }
            buf_release(&b);
        }
    lathe_text_close(t);
}

TEST(switches_are_in_range)
{
    lathe_text *t = open_nano();
    lathe_conversation c = {.messages = "[" U("x") "]", .thinking = (lathe_switch)77};
    expect_error(t, &c, LATHE_E_ARGUMENT, "thinking is 77, expected 0 to 2");
    c.thinking = LATHE_OFF;
    c.preserve_thinking = (lathe_switch)3;
    expect_error(t, &c, LATHE_E_ARGUMENT, "preserve_thinking is 3");
    c.preserve_thinking = LATHE_DEFAULT;
    c.late_system = (lathe_late_system)99;
    expect_error(t, &c, LATHE_E_ARGUMENT, "late_system is 99, expected 0 to 2");
    lathe_text_close(t);
}

/* Placeholders are for showing what the model would see; an answer from one would be made up. */
TEST(media_are_rendered_but_no_request)
{
    static const struct {
        const char *part, *says;
    } parts[] = {
        {"{\"type\":\"image\"}", "image input needs the vision tower, which is not loaded"},
        {"{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:\"}}",
         "image input needs the vision tower"},
        {"{\"type\":\"text\",\"text\":\"a\",\"image\":\"b\"}",
         "image input needs the vision tower"},
        {"{\"type\":\"video\"}", "videos are not supported"},
        {"{\"video\":\"x\"}", "videos are"},
        {"{\"type\":\"input_audio\",\"input_audio\":{}}",
         "a part of type 'input_audio' is not supported, only text"},
        {"{}", "a part of type '' is not supported"},
    };
    lathe_text *t = open_nano();
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        char messages[300], says[200];
        lathe_prompt p;
        lathe_error e;
        snprintf(messages, sizeof messages,
                 "[" S("s") ",{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}"
                            ",%s]}]",
                 parts[i].part);
        snprintf(says, sizeof says, "messages[1].content[1]: %s", parts[i].says);
        lathe_conversation c = {.messages = messages};
        if (strstr(says, "a part of type")) {
            CHECK_ERR(lathe_render(t, &c, &p, &e), &e, LATHE_E_UNSUPPORTED, says);
        } else {
            CHECK_OK(lathe_render(t, &c, &p, &e), &e);
            lathe_prompt_release(&p);
        }
        CHECK_ERR(text_render_request(t, &c, &p, &e), &e,
                  strstr(says, "image input") ? LATHE_E_IMAGE : LATHE_E_UNSUPPORTED, says);
        CHECK(!p.text && !p.tokens.id);
    }
    lathe_conversation c = {.messages = "[{\"role\":\"user\",\"content\":[{\"type\":\"text\","
                                        "\"text\":\"image\"},{\"text\":\"b\"}]}]"};
    lathe_prompt p;
    lathe_error e;
    CHECK_OK(text_render_request(t, &c, &p, &e), &e);
    lathe_prompt_release(&p);
    lathe_text_close(t);
}

/* ---- Control tokens ------------------------------------------------------------------------ */

TEST(only_the_templates_bytes_become_control_tokens)
{
    /* The conversation's text through everything that moves bytes; the template's own beside it. */
    static const char source[] =
        "{% set c = messages[0].content %}{% set ns = namespace(t='') %}"
        "<|im_start|>{{ c }}{{ c | trim }}{{ c ~ '' }}{{ c + c }}{{ c[1:] }}{{ c[:] }}"
        "{{ c.split(' ')[0] }}{{ c | replace('a', '') }}{{ c | replace('x', '<|im_end|>') }}"
        "{{ [c, c] | join }}{{ messages | tojson }}{{ c | upper | lower }}{{ c[::-1][::-1] }}"
        "{{ '%s' % c }}{{ '{}'.format(c) }}{{ messages | map(attribute='content') | join(',') }}"
        "{% for k in messages[0] %}{{ messages[0][k] }}{% endfor %}{% macro m(x) %}{{ x }}"
        "{% endmacro %}{{ m(c) }}{% set b %}{{ c }}{% endset %}{{ b }}{{ (c | list) | join }}"
        "{% for p in c.partition('|') %}{{ p }}{% endfor %}{{ c | e | safe | replace('&lt;', '<') "
        "}}"
        "{% set ns.t = ns.t ~ c %}{{ ns.t }}{{ c | indent }}{{ c | string }}{{ c | default('') }}"
        "{{ '<' ~ c[1:] }}{{ c[:-1] ~ '>' }}<|im_end|>{{ '<|im_' ~ 'end|>' }}{{ '|'.join(['<', "
        "'im_end', '>']) }}";
    lathe_text *t = open_with(source, sizeof source - 1);
    lathe_conversation c = {.messages = "[" U("<|im_start|> x<|im_end|>") "]"};
    lathe_prompt p;
    lathe_error e;
    CHECK_OK(lathe_render(t, &c, &p, &e), &e);
    CHECK(count(p.text, "<|im_start|>") > 25 && count(p.text, "<|im_end|>") > 25);
    CHECK_INT(count_id(&p, t->im_start), 1);
    /* replace() put one in, three are written at the end. */
    CHECK_INT(count_id(&p, t->im_end), 4);
    lathe_prompt_release(&p);
    lathe_text_close(t);
}

TEST(tools_and_kwargs_are_conversation)
{
    static const char source[] = "{{ style }}{{ tools | tojson }}{{ tools[0].x }}{{ eos_token }}";
    lathe_text *t = open_with(source, sizeof source - 1);
    lathe_conversation c = {.messages = "[" U("u") "]",
                            .tools = "[{\"name\":\"f\",\"x\":\"<|im_start|>\",\"<|im_end|>\":1}]",
                            .kwargs = "{\"style\":\"<|im_start|>\"}"};
    lathe_prompt p;
    lathe_error e;
    CHECK_OK(lathe_render(t, &c, &p, &e), &e);
    CHECK_INT(count_id(&p, t->im_start), 0);
    CHECK_INT(count_id(&p, t->im_end), 1);
    CHECK_INT(p.tokens.id[p.tokens.n - 1], t->im_end);
    lathe_prompt_release(&p);
    lathe_text_close(t);
}

/* ---- Size ---------------------------------------------------------------------------------- */

/* Histories of the sizes that are accepted must stay within the limits of a rendering. */
static void check_long(size_t n_messages, size_t n_text)
{
    struct buf b;
    buf_init(&b, 256 << 20);
    for (size_t i = 0; i < n_messages; i++) {
        buf_printf(&b, "%c{\"role\":\"%s\",\"content\":\"", i ? ',' : '[',
                   i % 2 ? "assistant" : "user");
        for (size_t k = 0; k < n_text; k += 16)
            buf_puts(&b, "sixteen bytes...");
        buf_puts(&b, "\"}");
    }
    buf_putc(&b, ']');
    lathe_text *t = open_nano();
    lathe_conversation c = {.messages = buf_str(&b), .thinking = LATHE_OFF};
    lathe_prompt p;
    lathe_error e;
    CHECK_OK(lathe_render(t, &c, &p, &e), &e);
    CHECK(p.n_text > n_messages * n_text);
    lathe_prompt_release(&p);
    lathe_text_close(t);
    buf_release(&b);
}

TEST(many_messages)
{
    check_long(20000, 32);
}

TEST(long_messages)
{
    check_long(3, 4 << 20);
}

TEST(many_tools)
{
    struct buf b;
    buf_init(&b, 64 << 20);
    for (int i = 0; i < 1024; i++)
        buf_printf(
            &b,
            "%c{\"type\":\"function\",\"function\":{\"name\":\"f%d\",\"description\":\"%0500d\"}}",
            i ? ',' : '[', i, i);
    buf_putc(&b, ']');
    lathe_text *t = open_nano();
    lathe_conversation c = {.messages = "[" U("x") "]", .tools = buf_str(&b)};
    lathe_prompt p;
    lathe_error e;
    CHECK_OK(lathe_render(t, &c, &p, &e), &e);
    CHECK(p.n_text > 1024 * 500);
    lathe_prompt_release(&p);
    lathe_text_close(t);
    buf_release(&b);
}

/* ---- Failing allocations ------------------------------------------------------------------- */

TEST(rendering_survives_failed_allocations)
{
    lathe_text *t = open_nano();
    lathe_conversation c = {
        .messages =
            "[" S("s") "," U("q") ",{\"role\":\"assistant\",\"content\":"
                                  "\"a\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
                                  "\"arguments\":\"{\\\"a\\\":1}\"}}]}," T("r") "," S("late") "]",
        .tools = "[{\"name\":\"f\"}]",
        .kwargs = "{\"preserve_thinking\":true}",
        .late_system = LATHE_LATE_SYSTEM_INLINE};
    for (size_t nth = 1;; nth++) {
        lathe_prompt p;
        lathe_error e = {0};
        fail_alloc_arm(nth);
        lathe_status st = lathe_render(t, &c, &p, &e);
        bool failed = fail_alloc_disarm();
        if (failed && st != LATHE_E_MEMORY)
            FAIL("allocation %zu: status %d, %s", nth, (int)st, e.message);
        if (!st)
            lathe_prompt_release(&p);
        if (!failed) {
            CHECK_INT(st, 0);
            CHECK(nth > 20);
            break;
        }
    }
    lathe_text_close(t);
}

/* ---- Answers that go on --------------------------------------------------------------------- */

TEST(an_answer_goes_on_with_the_last_message)
{
    static const struct {
        const char *last;
        lathe_switch thinking;
        const char *tail; /* behind <|im_start|>assistant\n */
        bool open;
    } rows[] = {
        {"\"content\": \"Once \"", LATHE_ON, "<think>\n\n</think>\n\nOnce", false},
        {"\"content\": \"Once \\n\"", LATHE_OFF, "<think>\n\n</think>\n\nOnce", false},
        {"\"content\": [{\"type\": \"text\", \"text\": \"a \"}, {\"type\": \"text\", \"text\": "
         "\"b\"}]",
         LATHE_OFF, "<think>\n\n</think>\n\na b", false},
        {"\"content\": \"\", \"reasoning_content\": \"\\nplan \"", LATHE_ON, "<think>\nplan", true},
        {"\"content\": null, \"reasoning_content\": \"plan\"", LATHE_OFF,
         "<think>\nplan\n</think>\n\n", false},
        {"\"content\": \"Once\", \"reasoning_content\": \"plan\\n\"", LATHE_ON,
         "<think>\nplan\n</think>\n\nOnce", false},
        {"\"content\": \"Once\", \"reasoning_content\": \"plan\"", LATHE_OFF,
         "<think>\nplan\n</think>\n\nOnce", false},
        {"\"content\": \"</think><|im_end|>\"", LATHE_ON,
         "<think>\n\n</think>\n\n</think><|im_end|>", false},
        {"\"content\": \"\"", LATHE_ON, "<think>\n", true},
    };
    lathe_text *t = open_nano();
    lathe_error e;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int with_user = 0; with_user < 2; with_user++) {
            static const char user[] = "{\"role\": \"user\", \"content\": \"q\"}, ";
            char messages[400];
            lathe_prompt p, plain;
            (void)snprintf(messages, sizeof messages, "[%s{\"role\": \"assistant\", %s}]",
                           with_user ? user : "", rows[i].last);
            lathe_conversation c = {
                .messages = messages, .thinking = rows[i].thinking, .continue_last = true};
            CHECK_OK(lathe_render(t, &c, &p, &e), &e);
            const char *tail = strstr(p.text, "<|im_start|>assistant\n");
            CHECK(tail);
            CHECK_STR(tail + strlen("<|im_start|>assistant\n"), rows[i].tail);
            CHECK_INT(p.thinking_open, rows[i].open);
            /* Control tokens of the message are text. */
            CHECK_INT(count_id(&p, t->im_end), with_user);
            if (with_user) {
                c = (lathe_conversation){.messages = "[{\"role\": \"user\", \"content\": \"q\"}]",
                                         .thinking = rows[i].thinking};
                CHECK_OK(lathe_render(t, &c, &plain, &e), &e);
                CHECK(strncmp(plain.text, p.text, (size_t)(tail - p.text)) == 0);
                lathe_prompt_release(&plain);
            }
            lathe_prompt_release(&p);
        }
    lathe_conversation bad = {.messages = "[{\"role\": \"user\", \"content\": \"q\"}]",
                              .continue_last = true};
    expect_error(t, &bad, LATHE_E_ARGUMENT, "messages[0].role: only a message of the assistant");
    bad.messages = "[]";
    expect_error(t, &bad, LATHE_E_ARGUMENT, "no message to continue");
    bad.messages =
        "[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"name\": \"f\", "
        "\"arguments\": {}}]}]";
    expect_error(t, &bad, LATHE_E_ARGUMENT, "messages[0].tool_calls");
    bad.messages = "[{\"role\": \"assistant\", \"content\": \"a\"}]";
    bad.no_generation_prompt = true;
    expect_error(t, &bad, LATHE_E_ARGUMENT, "continue_last");
    lathe_text_close(t);
}

/* Says so when it is asked for the n-th time. */
static bool leave_at(void *ctx)
{
    return --*(int32_t *)ctx == 0;
}

TEST(a_prompt_that_nobody_wants)
{
    lathe_text *t = open_nano();
    lathe_error e;
    lathe_prompt p;
    struct buf messages;
    int32_t left = INT32_MAX, n_asked = 0;
    buf_init(&messages, 1 << 24);
    buf_puts(&messages, "[");
    for (int i = 0; i < 4000; i++)
        buf_printf(&messages, "%s{\"role\": \"%s\", \"content\": \"%d %0200d\"}", i ? ", " : "",
                   i % 2 ? "assistant" : "user", i, i);
    buf_puts(&messages, "]");
    lathe_conversation c = {.messages = buf_str(&messages), .leave = leave_at, .leave_ctx = &left};
    CHECK_OK(lathe_render(t, &c, &p, &e), &e);
    n_asked = INT32_MAX - left;
    CHECK(n_asked > 10);
    lathe_prompt_release(&p);
    for (int32_t at = 1; at <= n_asked; at += n_asked / 7) {
        left = at;
        CHECK_ERR(lathe_render(t, &c, &p, &e), &e, LATHE_E_CANCELLED, "nobody wants");
        CHECK_INT(left, 0); /* it is not asked again */
        CHECK(!p.text && !p.tokens.id);
    }
    lathe_tokens k;
    left = 2;
    CHECK_ERR(lathe_tokenize_while(t, messages.data, messages.len, true, leave_at, &left, &k, &e),
              &e, LATHE_E_CANCELLED, "nobody wants");
    CHECK(!k.id);
    left = INT32_MAX;
    CHECK_OK(lathe_tokenize_while(t, messages.data, messages.len, true, leave_at, &left, &k, &e),
             &e);
    lathe_tokens_release(&k);
    buf_release(&messages);
    lathe_text_close(t);
}

#include "test.h"

#include <time.h>

#include "base/json.h"
#include "base/utf8.h"
#include "fail_alloc.h"
#include "text/parse.h"
#include "text/stop.h"

/* ---- Running the parser --------------------------------------------------------------------- */

/* Everything it says, as one string: R reasoning E T text [name(arguments)] and the finish. */
struct log {
    struct buf text, args;
    lathe_event_type last;
    int32_t n_begun, n_ended, n_reasoning_end;
};

static lathe_status record(void *ctx, const struct parse_event *ev, lathe_error *err)
{
    struct log *l = ctx;
    (void)err;
    CHECK(ev->text && strlen(ev->text) <= ev->n && ev->text[ev->n] == 0);
    CHECK_INT(utf8_valid_prefix(ev->text, ev->n), ev->n);
    switch (ev->type) {
    case LATHE_EVENT_REASONING:
        CHECK(ev->n && !l->n_reasoning_end && !l->n_begun && l->last != LATHE_EVENT_TEXT);
        if (l->last != ev->type)
            buf_puts(&l->text, "R:");
        buf_append(&l->text, ev->text, ev->n);
        break;
    case LATHE_EVENT_REASONING_END:
        CHECK(!l->n_reasoning_end++ && !l->n_begun && l->last != LATHE_EVENT_TEXT);
        buf_puts(&l->text, "|");
        break;
    case LATHE_EVENT_TEXT:
        CHECK(ev->n && !l->n_begun);
        if (l->last != ev->type)
            buf_puts(&l->text, "T:");
        buf_append(&l->text, ev->text, ev->n);
        break;
    case LATHE_EVENT_CALL_BEGIN:
        CHECK_INT(ev->index, l->n_begun++);
        CHECK_INT(l->n_ended, ev->index);
        CHECK_INT(strlen(ev->call_id), CALL_ID_SIZE - 1);
        buf_printf(&l->text, "[%s(", ev->name);
        break;
    case LATHE_EVENT_CALL_ARGS:
        CHECK(ev->n && ev->index == l->n_begun - 1 && l->n_ended == ev->index);
        buf_append(&l->text, ev->text, ev->n);
        break;
    case LATHE_EVENT_CALL_END:
        CHECK_INT(ev->index, l->n_ended++);
        CHECK_INT(l->n_ended, l->n_begun);
        buf_puts(&l->text, ")]");
        break;
    default:
        FAIL("event %d", (int)ev->type);
    }
    l->last = ev->type;
    return LATHE_OK;
}

static const char *const finish_name[] = {"stop", "stop_string", "length", "context", "calls"};

/* Feeds the text in pieces of `piece` bytes, the first one of `first`. */
static char *parse(struct parse_options o, const char *s, size_t n, size_t first, size_t piece,
                   lathe_finish why)
{
    struct log l = {.last = LATHE_EVENT_NONE};
    struct parser *p;
    lathe_error e;
    lathe_finish finish;
    buf_init(&l.text, 1 << 28);
    o.sink = record;
    o.sink_ctx = &l;
    CHECK_OK(parser_open(&p, &o, &e), &e);
    for (size_t at = 0; at < n || at == 0;) {
        size_t k = at == 0 ? first : piece;
        k = k < n - at ? k : n - at;
        CHECK_OK(parser_feed(p, s + at, k, &e), &e);
        CHECK(at + k < n || parser_thinking(p) == (o.thinking_open && !l.n_reasoning_end));
        at += k;
        if (k == 0 && first == 0)
            first = piece;
        if (n == 0)
            break;
    }
    CHECK_OK(parser_finish(p, why, &finish, &e), &e);
    CHECK_INT(l.n_reasoning_end, o.thinking_open);
    CHECK(l.n_ended == l.n_begun || (why != LATHE_FINISH_STOP && l.n_ended == l.n_begun - 1));
    CHECK_INT(parser_calls(p), l.n_begun);
    CHECK_INT(parser_stop_string(p) != NULL, finish == LATHE_FINISH_STOP_STRING);
    buf_printf(&l.text, " .%s", finish_name[finish]);
    CHECK_OK(buf_check(&l.text, "log", &e), &e);
    parser_close(p);
    return l.text.data;
}

/* Whole, with every two-way cut, byte by byte and in 7-byte pieces: the same. */
static char *parse_all_ways(struct parse_options o, const char *s, size_t n, lathe_finish why)
{
    char *whole = parse(o, s, n, n, n, why);
    for (size_t cut = 0; cut < n + 2; cut++) {
        char *other = cut == n       ? parse(o, s, n, 1, 1, why)
                      : cut == n + 1 ? parse(o, s, n, 7, 7, why)
                                     : parse(o, s, n, cut, n, why);
        if (strcmp(whole, other) != 0)
            FAIL("way %zu of cutting gives\n  %s\nnot\n  %s", cut, other, whole);
        free(other);
    }
    return whole;
}

static void expect(struct parse_options o, const char *s, lathe_finish why, const char *want)
{
    char *got = parse_all_ways(o, s, strlen(s), why);
    if (strcmp(got, want) != 0)
        FAIL("%s\n  got      \"%s\"\n  expected \"%s\"", s, got, want);
    free(got);
}

/* ---- The cases of tests/cases --------------------------------------------------------------- */

static json_t *load(const char *name)
{
    struct json_doc d;
    lathe_error e;
    char path[256];
    snprintf(path, sizeof path, "tests/cases/%s.json", name);
    CHECK_OK(json_read_file(&d, test_path(path), &json_limits_request, &e), &e);
    json_t *root = json_incref(d.root);
    json_release(&d);
    return root;
}

static const char *text_of(const json_t *v, const char *key, const char *absent)
{
    const json_t *m = json_object_get(v, key);
    return m ? json_string_value(m) : absent;
}

/* The expected log of a case whose calls are printed by json_print; the order of keys counts. */
static char *wanted(const json_t *expect, bool is_open)
{
    struct buf b;
    struct json_doc none = {0};
    size_t i;
    json_t *call;
    buf_init(&b, 1 << 20);
    const char *reasoning = text_of(expect, "reasoning", ""), *content;
    content = text_of(expect, "content", "");
    if (is_open)
        buf_printf(&b, "%s%s|", *reasoning ? "R:" : "", reasoning);
    if (*content)
        buf_printf(&b, "T:%s", content);
    json_array_foreach(json_object_get(expect, "tool_calls"), i, call)
    {
        buf_printf(&b, "[%s(", text_of(call, "name", ""));
        json_print(&b, &none, json_object_get(call, "arguments"));
        buf_puts(&b, ")]");
    }
    return b.data;
}

/* Joined arguments read as JSON and printed again: the spelling of numbers may differ. */
static char *canonical(const char *log)
{
    struct buf b;
    lathe_error e;
    buf_init(&b, 1 << 20);
    const char *at = log;
    while (*at) {
        const char *open = strchr(at, '['), *name_end = open ? strstr(open, "({") : NULL;
        const char *end = name_end ? strstr(name_end, "})]") : NULL;
        if (!end)
            break;
        struct json_doc d;
        buf_append(&b, at, (size_t)(name_end + 1 - at));
        CHECK_OK(json_read(&d, name_end + 1, (size_t)(end - name_end), &json_limits_request, &e),
                 &e);
        json_print(&b, &d, d.root);
        json_release(&d);
        at = end + 1;
    }
    buf_puts(&b, at);
    return b.data;
}

static void tools_case(const char *name)
{
    json_t *c = load(name);
    bool is_open = json_is_true(json_object_get(c, "thinking"));
    char *tools = json_dumps(json_object_get(c, "tools"), 0);
    struct parse_options o = {.thinking_open = is_open, .tools = tools};
    const char *raw = text_of(c, "raw", NULL);
    CHECK(raw && tools);
    char *log = parse_all_ways(o, raw, strlen(raw), LATHE_FINISH_STOP);
    char *want = wanted(json_object_get(c, "expect"), is_open), *got = canonical(log);
    char *end = strstr(got, " .calls");
    CHECK(end && !end[7]);
    *end = 0;
    CHECK_STR(got, want);
    free(log);
    free(want);
    free(got);
    free(tools);
    json_decref(c);
}

TEST(parse_case_B19_whitespace_kept)
{
    tools_case("tools/B19_whitespace_kept");
}

TEST(parse_case_B20_markers_inside_value)
{
    tools_case("tools/B20_markers_inside_value");
}

TEST(parse_case_B22_argument_types)
{
    tools_case("tools/B22_argument_types");
}

TEST(parse_case_B24_draft_call_in_thinking)
{
    tools_case("tools/B24_draft_call_in_thinking");
}

TEST(parse_case_B26_chunk_invariance)
{
    tools_case("tools/B26_chunk_invariance");
}

static lathe_status collect_ids(void *ctx, const struct parse_event *ev, lathe_error *err)
{
    char(*id)[CALL_ID_SIZE] = ctx;
    (void)err;
    if (ev->type == LATHE_EVENT_CALL_BEGIN && ev->index < 3)
        memcpy(id[ev->index], ev->call_id, CALL_ID_SIZE);
    return LATHE_OK;
}

TEST(parse_case_B27_parallel_indexes)
{
    json_t *c = load("tools/B27_parallel_indexes");
    char *tools = json_dumps(json_object_get(c, "tools"), 0);
    struct parse_options o = {.tools = tools};
    const char *raw = text_of(c, "raw", NULL);
    expect(o, raw, LATHE_FINISH_STOP, "[a({\"x\": 1})][a({\"x\": 2})][a({\"x\": 3})] .calls");
    char id[6][CALL_ID_SIZE] = {{0}};
    for (int i = 0; i < 2; i++) {
        struct parser *p;
        lathe_error e;
        o.sink = collect_ids;
        o.sink_ctx = id + 3 * i;
        CHECK_OK(parser_open(&p, &o, &e), &e);
        CHECK_OK(parser_feed(p, raw, strlen(raw), &e), &e);
        parser_close(p);
    }
    for (int i = 0; i < 6; i++) {
        CHECK(memcmp(id[i], "call_", 5) == 0);
        CHECK_INT(
            strspn(id[i] + 5, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"),
            24);
        for (int k = 0; k < i; k++)
            CHECK(strcmp(id[i], id[k]) != 0);
    }
    free(tools);
    json_decref(c);
}

TEST(parse_case_B47_stop_strings)
{
    json_t *c = load("api/B47_stop_strings"), *row, *v;
    size_t i, k;
    CHECK(json_array_size(json_object_get(c, "rows")) >= 8);
    json_array_foreach(json_object_get(c, "rows"), i, row)
    {
        const char *stop[STOP_MAX_STRINGS], *reasoning = text_of(row, "reasoning", NULL);
        struct buf raw, want;
        buf_init(&raw, 1000);
        buf_init(&want, 1000);
        json_array_foreach(json_object_get(row, "stop"), k, v) stop[k] = json_string_value(v);
        json_array_foreach(json_object_get(row, "chunks"), k, v)
            buf_puts(&raw, json_string_value(v));
        struct parse_options o = {.thinking_open = json_is_true(json_object_get(row, "thinking")),
                                  .stop = stop,
                                  .n_stop = json_array_size(json_object_get(row, "stop"))};
        if (reasoning)
            buf_printf(&want, "R:%s|", reasoning);
        buf_printf(&want, "T:%s .%s", text_of(row, "text", ""),
                   strcmp(text_of(row, "finish", ""), "stop") == 0 ? "stop_string" : "stop");
        expect(o, buf_str(&raw), LATHE_FINISH_STOP, buf_str(&want));
        /* With tools white space and '<' are held as well; the message is the same. */
        o.tools = "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]";
        expect(o, buf_str(&raw), LATHE_FINISH_STOP, buf_str(&want));
        buf_release(&raw);
        buf_release(&want);
    }
    json_decref(c);
}

TEST(parse_case_B48_unclosed_thinking)
{
    json_t *c = load("api/B48_unclosed_thinking"), *row;
    size_t i;
    CHECK(json_array_size(json_object_get(c, "rows")) >= 8);
    json_array_foreach(json_object_get(c, "rows"), i, row)
    {
        bool is_length = strcmp(text_of(row, "end", ""), "length") == 0;
        struct parse_options o = {.thinking_open =
                                      json_is_true(json_object_get(row, "prompt_opens_think"))};
        char *want = wanted(row, o.thinking_open);
        struct buf b;
        buf_init(&b, 1000);
        buf_printf(&b, "%s .%s", buf_str(&(struct buf){.data = want}),
                   is_length ? "length" : "stop");
        expect(o, text_of(row, "raw", ""), is_length ? LATHE_FINISH_LENGTH : LATHE_FINISH_STOP,
               buf_str(&b));
        buf_release(&b);
        free(want);
    }
    json_decref(c);
}

/* What the shipped model answered, and the calls that its makers read in it. */
TEST(parse_golden_answers)
{
    struct json_doc d;
    lathe_error e;
    size_t i;
    json_t *row;
    CHECK_OK(
        json_read_file(&d, test_path("tests/golden/tool_calls.json"), &json_limits_request, &e),
        &e);
    CHECK(json_array_size(d.root) > 0);
    json_array_foreach(d.root, i, row)
    {
        size_t n;
        const char *answer = json_text(&d, json_object_get(row, "answer"), &n);
        char *tools = json_dumps(json_object_get(row, "tools"), 0);
        struct parse_options o = {.thinking_open = json_is_true(json_object_get(row, "thinking")),
                                  .tools = tools};
        CHECK(n > 10 && strcmp(answer + n - 10, "<|im_end|>") == 0);
        char *log = parse_all_ways(o, answer, n - 10, LATHE_FINISH_STOP), *got = canonical(log);
        json_t *expect = json_pack("{sO}", "tool_calls", json_object_get(row, "calls"));
        char *want = wanted(expect, false), *calls = strchr(got, '[');
        if (want) {
            CHECK(calls && strncmp(calls, want, strlen(want)) == 0);
            CHECK_STR(calls + strlen(want), " .calls");
        } else {
            CHECK(!calls);
        }
        json_decref(expect);
        free(tools);
        free(log);
        free(got);
        free(want);
    }
    json_release(&d);
}

/* ---- Reasoning ------------------------------------------------------------------------------ */

TEST(parse_reasoning)
{
    static const struct {
        const char *raw, *want;
    } row[] = {
        {"", "| .stop"},
        {"\n\n", "| .stop"},
        {"\n\n a \n\n", "R: a | .stop"},
        {"a\n\n\nb\n</think>\n\n\n c\n", "R:a\n\n\nb|T: c\n .stop"},
        {"a</think>b", "R:a|T:b .stop"},
        {"</think>", "| .stop"},
        {"<think></think>x", "|T:x .stop"},
        {"<think>\n\na", "R:a| .stop"},
        {"<think>a", "R:a| .stop"},
        {"<think", "R:<think| .stop"},
        {"<think><think>a", "R:<think>a| .stop"},
        {"a<think>b</think>c", "R:a<think>b|T:c .stop"},
        {"a</thin</think></think>", "R:a</thin|T:</think> .stop"},
        {"a<<</</think>b", "R:a<<</|T:b .stop"},
        {"a\n</thin\n</think>", "R:a\n</thin| .stop"},
        {"\xC3\xA9\n\xE6\x97\xA5</think>\xE6\x9C\xAC",
         "R:\xC3\xA9\n\xE6\x97\xA5|T:\xE6\x9C\xAC .stop"},
        {"a\xE6\x97", "R:a\xEF\xBF\xBD| .stop"},
    };
    struct parse_options o = {.thinking_open = true};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        expect(o, row[i].raw, LATHE_FINISH_STOP, row[i].want);
    struct parse_options closed = {0};
    expect(closed, "\n<think>a</think>\n", LATHE_FINISH_STOP, "T:\n<think>a</think>\n .stop");
    expect(closed, "", LATHE_FINISH_LENGTH, " .length");
}

TEST(parse_says_whether_thinking_is_open)
{
    struct log l = {0};
    struct parse_options o = {.thinking_open = true, .sink = record, .sink_ctx = &l};
    struct parser *p;
    lathe_error e;
    buf_init(&l.text, 1000);
    CHECK_OK(parser_open(&p, &o, &e), &e);
    CHECK(parser_thinking(p));
    CHECK_OK(parser_feed(p, "a</thi", 6, &e), &e);
    CHECK(parser_thinking(p));
    CHECK_STR(buf_str(&l.text), "R:a");
    CHECK_OK(parser_feed(p, "nk>", 3, &e), &e);
    CHECK(!parser_thinking(p));
    CHECK_STR(buf_str(&l.text), "R:a|");
    CHECK_INT(parser_ended(p), -1);
    parser_close(p);
    buf_release(&l.text);
}

/* ---- Calls ---------------------------------------------------------------------------------- */

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},"
    "\"o\":{\"type\":[\"string\",\"null\"]},\"u\":{},\"a b\":{\"type\":\"integer\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"ping\"}}, {\"name\":\"ns__g\"}]";

#define P(key, value) "<parameter=" key ">\n" value "\n</parameter>\n"
#define CALL(name, parameters)                                                                     \
    "<tool_call>\n<function=" name ">\n" parameters "</function>\n</tool_call>"

TEST(parse_calls)
{
    static const struct {
        const char *raw, *want;
    } row[] = {
        {CALL("ping", ""), "[ping({})] .calls"},
        {"Hi. \n\n" CALL("f", P("s", "x")), "T:Hi.[f({\"s\": \"x\"})] .calls"},
        {" \n" CALL("ping", ""), "[ping({})] .calls"},
        {CALL("f", P("s", "")), "[f({\"s\": \"\"})] .calls"},
        {CALL("f", "<parameter=s>\n</parameter>"), "[f({\"s\": \"\"})] .calls"},
        {CALL("f", "<parameter=s></parameter>"), "[f({\"s\": \"\"})] .calls"},
        {CALL("f", "<parameter=s>x</parameter>"), "[f({\"s\": \"x\"})] .calls"},
        {CALL("f", P("s", "\n\n")), "[f({\"s\": \"\\n\\n\"})] .calls"},
        {CALL("f", P("s", " \r\xC2\xA0\r")), "[f({\"s\": \" \\r\xC2\xA0\\r\"})] .calls"},
        {CALL("f", P("n", "7") P("s", "a\"b\\c\td\x01&<>")),
         "[f({\"n\": 7, \"s\": \"a\\\"b\\\\c\\td\\u0001&<>\"})] .calls"},
        /* The first of equal keys. */
        {CALL("f", P("n", "7") P("n", "8") P("s", "x") P("s", "y")),
         "[f({\"n\": 7, \"s\": \"x\"})] .calls"},
        {CALL("f", P("zip", "03106") P("", "e")), "[f({\"zip\": \"03106\", \"\": \"e\"})] .calls"},
        {CALL("f", P("k\"\n ", "1")), "[f({\"k\\\"\\n \": \"1\"})] .calls"},
        /* Two calls, and what ends the turn. */
        {CALL("ping", "") "\n" CALL("f", P("n", "1")), "[ping({})][f({\"n\": 1})] .calls"},
        {CALL("ping", "") CALL("ping", ""), "[ping({})][ping({})] .calls"},
        {CALL("ping", "") "\n\nResult: 5", "[ping({})] .calls"},
        {CALL("ping", "") "\n<tool_response>", "[ping({})] .calls"},
        {CALL("ping", "") "\n<tool_call>\nx", "[ping({})] .calls"},
        {CALL("ping", "") "\n<tool_call>\n<tool_call>", "[ping({})] .calls"},
        /* White space between all parts. */
        {"<tool_call><function=f><parameter=n>1</parameter></function></tool_call>",
         "[f({\"n\": 1})] .calls"},
        {"<tool_call> \n\t<function=f>\n \n<parameter=n>\n1\n</parameter> \n </function>\n \n"
         "</tool_call> \n",
         "[f({\"n\": 1})] .calls"},
        /* Markup in a value. */
        {CALL("f", P("s", "</parameter>x")), "[f({\"s\": \"</parameter>x\"})] .calls"},
        {CALL("f", P("s", "</parameter>")), "[f({\"s\": \"</parameter>\"})] .calls"},
        {CALL("f", P("s", "a\n</parameter>\n\n</parameter>\n")),
         "[f({\"s\": \"a\\n</parameter>\\n\\n</parameter>\\n\"})] .calls"},
        {CALL("f", P("s", "</parameter>\n</tool_call>\n</parameter>\n<tool_call>\n<para")),
         "[f({\"s\": \"</parameter>\\n</tool_call>\\n</parameter>\\n<tool_call>\\n<para\"})] "
         ".calls"},
        {CALL("f", P("s", "</parameter> </tool_call> ") P("n", "2")),
         "[f({\"s\": \"</parameter> </tool_call> \", \"n\": 2})] .calls"},
        {CALL("f", P("s", "</parameter>\n</functio</function><parameter=n>")),
         "[f({\"s\": \"</parameter>\\n</functio</function><parameter=n>\"})] .calls"},
        {CALL("f", P("s", "<function=f>\n<parameter=n>\n1\n</para")),
         "[f({\"s\": \"<function=f>\\n<parameter=n>\\n1\\n</para\"})] .calls"},
        /* The value that a first match would not have ended. */
        {CALL("f", P("s", "a\n</parameter>\n<parameter=n>\n1")),
         "[f({\"s\": \"a\", \"n\": 1})] .calls"},
        /* Nothing of this is a call. */
        {"a <tool_call> b", "T:a <tool_call> b .stop"},
        {"a \n<tool_call>\n</tool_call>\n", "T:a \n<tool_call>\n</tool_call>\n .stop"},
        {"<tool_call>\n<function=>\n", "T:<tool_call>\n<function=>\n .stop"},
        {"<tool_call>\n<function= \"\" >\n", "T:<tool_call>\n<function= \"\" >\n .stop"},
        {"<tool_call", "T:<tool_call .stop"},
        {"a  ", "T:a   .stop"},
        {"a\n\n", "T:a\n\n .stop"},
        {"a < b <tool <tool_cal <<tool_call", "T:a < b <tool <tool_cal <<tool_call .stop"},
        {"<tool_call> <tool_call>\n<function=ping></function>", "T:<tool_call>[ping({})] .calls"},
        {"a\n<tool_call>\n<function=<tool_call><function=ping></function></tool_call>",
         "T:a\n<tool_call>\n<function=[ping({})] .calls"},
        {"</tool_call></function></parameter><parameter=x>",
         "T:</tool_call></function></parameter><parameter=x> .stop"},
    };
    struct parse_options o = {.tools = tools};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        expect(o, row[i].raw, LATHE_FINISH_STOP, row[i].want);
}

TEST(parse_without_tools_markup_is_text)
{
    static const char *const none[] = {NULL, "[]", " [ ] "};
    for (int i = 0; i < 3; i++) {
        struct parse_options o = {.tools = none[i]};
        expect(o, "x \n" CALL("f", P("s", "x")) " \n", LATHE_FINISH_STOP,
               "T:x \n" CALL("f", P("s", "x")) " \n .stop");
    }
}

TEST(parse_tolerates_drift)
{
    static const struct {
        const char *raw, *want;
    } row[] = {
        /* No <tool_call>, at the start of a line, a declared name. */
        {"<function=ping>\n</function>", "[ping({})] .calls"},
        {"Hi.\n<function=f>\n" P("n", "1") "</function>\n</tool_call>\n",
         "T:Hi.[f({\"n\": 1})] .calls"},
        {"Hi.\n<function name=\"ping\">\n</function>", "T:Hi.[ping({})] .calls"},
        {"Hi. <function=ping>\n</function>", "T:Hi. <function=ping>\n</function> .stop"},
        {"Hi.\n <function=ping>", "T:Hi.\n <function=ping> .stop"},
        {"<function=pong>\n</function>", "T:<function=pong>\n</function> .stop"},
        {"<function=ping\n>", "T:<function=ping\n> .stop"},
        {"\n<function=<function=ping>", "T:\n<function=<function=ping> .stop"},
        {"<function=pi", "T:<function=pi .stop"},
        {"<function=ping>\n</function>\n<function=pong>\n</function>", "[ping({})] .calls"},
        {"<function=ping>\n</function>\n<function=ping>\n</function>",
         "[ping({})][ping({})] .calls"},
        /* name="x". */
        {"<tool_call><function name=\"f\"><parameter name=\"n\">1</parameter>\n"
         "<parameter name='s'>2</parameter></function></tool_call>",
         "[f({\"n\": 1, \"s\": \"2\"})] .calls"},
        {CALL("f", P("\"n\"", "1") P(" s ", "2") P("a b", "3") P(" a", "4")),
         "[f({\"n\": 1, \"s\": \"2\", \"a b\": 3, \" a\": \"4\"})] .calls"},
        /* Names. */
        {CALL(" f\n", ""), "[f({})] .calls"},
        {CALL("\"f\"", ""), "[f({})] .calls"},
        {CALL("functions.f", ""), "[f({})] .calls"},
        {CALL("default_api:f", ""), "[f({})] .calls"},
        {CALL("a/b.f", ""), "[f({})] .calls"},
        {CALL("x__ns__g", ""), "[ns__g({})] .calls"},
        {CALL("F", ""), "[F({})] .calls"},
        {CALL("unknown", P("n", "1")), "[unknown({\"n\": \"1\"})] .calls"},
        {CALL("f.unknown", ""), "[f.unknown({})] .calls"},
        /* Several functions in one <tool_call>. */
        {"<tool_call>\n<function=ping>\n</function>\n<function=other>\n</function>\n</tool_call>",
         "[ping({})][other({})] .calls"},
        /* Missing ends. */
        {"<tool_call>\n<function=f>\n" P("n", "1") "</function>", "[f({\"n\": 1})] .calls"},
        {"<tool_call>\n<function=f>\n" P("n", "1"), "[f({\"n\": 1})] .calls"},
        {"<tool_call>\n<function=f>\n" P("n", "1") "</tool_call>\n", "[f({\"n\": 1})] .calls"},
        {"<tool_call>\n<function=f>\n" P("s", "a") "</functio", "[f({\"s\": \"a\"})] .calls"},
        {"<tool_call>\n<function=f>\n<parameter=s>\na\n", "[f({\"s\": \"a\"})] .calls"},
        {"<tool_call>\n<function=f>\n<parameter=s>\na\n</par",
         "[f({\"s\": \"a\\n</par\"})] .calls"},
        {"<tool_call>\n<function=f>\n<parameter=n>\n12", "[f({\"n\": 12})] .calls"},
        {"<tool_call>\n<function=f>\n<parameter=s>", "[f({\"s\": \"\"})] .calls"},
        {"<tool_call>\n<function=f>\n<parameter=s", "[f({})] .calls"},
        {"<tool_call>\n<function=f>\n", "[f({})] .calls"},
        {"<tool_call>\n<function=ping>\n</tool_call>\n" CALL("f", P("n", "1")),
         "[ping({})][f({\"n\": 1})] .calls"},
        {"<tool_call>\n<function=ping>\n" CALL("f", P("n", "1")),
         "[ping({})][f({\"n\": 1})] .calls"},
        {"<tool_call>\n<function=ping>\n</function>\n" CALL("f", ""), "[ping({})][f({})] .calls"},
        {CALL("f", "junk " P("n", "1")), "[f({\"n\": 1})] .calls"},
        /* Not announced yet. */
        {"Hi. <tool_call>\n<function=f", "T:Hi. .stop"},
        {"Hi. <tool_call>\n", "T:Hi. .stop"},
        {"<tool_call>{\"name\":\"f\"", " .stop"},
        /* JSON. */
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\":1,\"s\":\"}\\\"{\"}}\n</tool_call>",
         "[f({\"n\": 1, \"s\": \"}\\\"{\"})] .calls"},
        {"<tool_call>{\"arguments\":{},\"name\":\"functions.ping\"}</tool_call>" CALL("f", ""),
         "[ping({})][f({})] .calls"},
        {"<tool_call>{\"name\":\"ping\"}", "[ping({})] .calls"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":\"x\"} a",
         "T:<tool_call>{\"name\":\"f\",\"arguments\":\"x\"} a .stop"},
        {"<tool_call>{\"name\":5} a", "T:<tool_call>{\"name\":5} a .stop"},
        {"<tool_call>{...} and <tool_call>\n" CALL("f", ""),
         "T:<tool_call>{...} and <tool_call>[f({})] .calls"},
        {"<tool_call>{\n" CALL("f", ""), "T:<tool_call>{[f({})] .calls"},
        {"<tool_call>{\"a\n" CALL("f", ""), "T:<tool_call>{\"a[f({})] .calls"},
        {"<tool_call>{]", "T:<tool_call>{] .stop"},
        {"<tool_call>{\"a\"]", "T:<tool_call>{\"a\"] .stop"},
    };
    struct parse_options o = {.tools = tools};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        expect(o, row[i].raw, LATHE_FINISH_STOP, row[i].want);
}

TEST(parse_keeps_arguments_readable)
{
    static const char raw[] = "<tool_call><function=f><parameter=a\0b>\0x</parameter></function>";
    struct parse_options o = {.tools = tools};
    char *log = parse_all_ways(o, raw, sizeof raw - 1, LATHE_FINISH_STOP);
    CHECK_STR(log, "[f({\"a\xEF\xBF\xBD"
                   "b\": \"\\u0000x\"})] .calls");
    free(log);
    /* Depth: what a request may bring back. */
    struct buf b;
    buf_init(&b, 1000);
    for (int deep = 127; deep <= 128; deep++) {
        buf_clear(&b);
        buf_puts(&b, "<tool_call><function=f><parameter=u>");
        for (int i = 0; i < deep; i++)
            buf_putc(&b, '[');
        for (int i = 0; i < deep; i++)
            buf_putc(&b, ']');
        buf_puts(&b, "</parameter></function>");
        log = parse(o, b.data, b.len, b.len, 1, LATHE_FINISH_STOP);
        CHECK(strstr(log, deep == 127 ? "[f({\"u\": [[[[" : "[f({\"u\": \"[[[["));
        free(log);
    }
    buf_release(&b);
}

/* Cut by a limit, a call stays open and its arguments are no JSON. */
TEST(parse_cut_off_calls)
{
    static const struct {
        const char *raw, *want;
    } row[] = {
        {"Hi.\n<tool_call>\n<function=f", "T:Hi. .length"},
        {"<tool_call>\n<function=f>\n", "[f( .length"},
        {"<tool_call>\n<function=f>\n<parameter=s>\nab\n", "[f({\"s\": \"ab .length"},
        {"<tool_call>\n<function=f>\n<parameter=s>\nab</parameter>\n</func",
         "[f({\"s\": \"ab .length"},
        {"<tool_call>\n<function=f>\n<parameter=n>\n12", "[f({\"n\":  .length"},
        {"<tool_call>\n<function=f>\n" P("n", "12") "<parameter=s", "[f({\"n\": 12 .length"},
        {CALL("ping", ""), "[ping({})] .length"},
        {CALL("ping", "") "\n<tool_call>\n<fun", "[ping({})] .length"},
        {"text ", "T:text  .length"},
    };
    struct parse_options o = {.tools = tools};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        expect(o, row[i].raw, LATHE_FINISH_LENGTH, row[i].want);
}

TEST(parse_counts_what_is_no_call)
{
    static const struct {
        const char *raw;
        int want;
    } row[] = {
        {CALL("ping", ""), 0},
        {"Hi <function=f", 0},
        {"<function=unknown>x", 0},
        {"a <tool_call> b", 1},
        {"<tool_call>\n<tool_call>\n<function=ping>\n</function>\n</tool_call>", 1},
        {"<tool_call>{\"name\": 1}</tool_call> and <tool_call>[]</tool_call>", 2},
        {"<tool_call>{\"name\": \"ping\"", 1},
        {"<tool_call>\n<function=f", 1},
        {"<tool_call>\n<function=f>\n<parameter=s>\nab", 0},
        {CALL("ping", "") "\n<tool_call>\nno", 1},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct log l = {0};
        struct parse_options o = {.tools = tools, .sink = record, .sink_ctx = &l};
        struct parser *p;
        lathe_error e;
        lathe_finish finish;
        buf_init(&l.text, 1000);
        CHECK_OK(parser_open(&p, &o, &e), &e);
        CHECK_OK(parser_feed(p, row[i].raw, strlen(row[i].raw), &e), &e);
        CHECK_OK(parser_finish(p, LATHE_FINISH_STOP, &finish, &e), &e);
        if (parser_unparsed(p) != row[i].want)
            FAIL("%s: %d, expected %d", row[i].raw, (int)parser_unparsed(p), row[i].want);
        parser_close(p);
        buf_release(&l.text);
    }
}

TEST(parse_counts_repairs_and_limits_calls)
{
    struct log l = {0};
    struct parse_options o = {.tools = tools, .sink = record, .sink_ctx = &l};
    struct parser *p;
    lathe_error e;
    lathe_finish finish;
    buf_init(&l.text, 1000);
    CHECK_OK(parser_open(&p, &o, &e), &e);
    CHECK_OK(parser_feed(p, "<tool_call><function=f><parameter=s>x", 37, &e), &e);
    CHECK_INT(parser_repaired(p), 0);
    CHECK_OK(parser_finish(p, LATHE_FINISH_STOP, &finish, &e), &e);
    CHECK_INT(parser_repaired(p), 1);
    parser_close(p);
    buf_release(&l.text);

    const char *two = CALL("ping", "") "\n" CALL("ping", "") "\n" CALL("ping", "");
    o.max_calls = 1;
    expect(o, two, LATHE_FINISH_LENGTH, "[ping({})] .calls");
    o.max_calls = 2;
    expect(o, two, LATHE_FINISH_LENGTH, "[ping({})][ping({})] .calls");
    o.max_calls = 0;
    struct buf many;
    buf_init(&many, 1 << 20);
    for (int i = 0; i < 70; i++)
        buf_puts(&many, CALL("ping", ""));
    char *log = parse(o, many.data, many.len, many.len, 1, LATHE_FINISH_STOP);
    CHECK_INT(strlen(log), 64 * strlen("[ping({})]") + strlen(" .calls"));
    free(log);
    buf_release(&many);
}

/* ---- Stop strings --------------------------------------------------------------------------- */

TEST(parse_stop_strings_see_visible_text_only)
{
    const char *const stop[] = {"STOP", "x\n\ny", "<b>", "aba"};
    struct parse_options o = {.thinking_open = true, .tools = tools, .stop = stop, .n_stop = 4};
    static const struct {
        const char *raw, *want;
    } row[] = {
        {"STOP</think>a STOP b", "R:STOP|T:a  .stop_string"},
        {"</think>STOP", "| .stop_string"},
        {"</think>x\n\nz x\n\ny", "|T:x\n\nz  .stop_string"},
        {"</think>a <b c <b> d", "|T:a <b c  .stop_string"},
        {"</think>abab", "| .stop_string"},
        {"</think>ST\n\n" CALL("f", P("s", "STOP")), "|T:ST[f({\"s\": \"STOP\"})] .calls"},
        {"</think>ST\n" CALL("ping", "") "STOP", "|T:ST[ping({})] .calls"},
        {"</think>ST", "|T:ST .stop"},
        {"</think><tool_call>STOP", "|T:<tool_call> .stop_string"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        expect(o, row[i].raw, LATHE_FINISH_STOP, row[i].want);
    /* The first complete match, and of those the longest. */
    const char *const nested[] = {"bc", "abcd", "zbc"};
    struct parse_options n = {.stop = nested, .n_stop = 3};
    expect(n, "xabcd", LATHE_FINISH_STOP, "T:xa .stop_string");
    expect(n, "xzbcd", LATHE_FINISH_STOP, "T:x .stop_string");
}

TEST(parse_stop_strings_can_be_disarmed)
{
    const char *const stop[] = {"ab"};
    struct log l = {0};
    struct parse_options o = {.stop = stop, .n_stop = 1, .sink = record, .sink_ctx = &l};
    struct parser *p;
    lathe_error e;
    lathe_finish finish;
    buf_init(&l.text, 1000);
    CHECK_OK(parser_open(&p, &o, &e), &e);
    parser_arm_stops(p, false);
    CHECK_OK(parser_feed(p, "1ab2a", 5, &e), &e);
    CHECK_STR(buf_str(&l.text), "T:1ab2");
    parser_arm_stops(p, true);
    CHECK_OK(parser_feed(p, "b3", 2, &e), &e);
    CHECK_STR(buf_str(&l.text), "T:1ab2");
    CHECK_INT(parser_ended(p), LATHE_FINISH_STOP_STRING);
    CHECK_STR(parser_stop_string(p), "ab");
    CHECK_OK(parser_feed(p, "more", 4, &e), &e);
    CHECK_OK(parser_finish(p, LATHE_FINISH_LENGTH, &finish, &e), &e);
    CHECK_INT(finish, LATHE_FINISH_STOP_STRING);
    CHECK_STR(buf_str(&l.text), "T:1ab2");
    parser_close(p);
    buf_release(&l.text);
}

/* ---- Options -------------------------------------------------------------------------------- */

TEST(parse_refuses_bad_options)
{
    struct parser *p;
    lathe_error e;
    char longer[STOP_MAX_BYTES + 2];
    const char *stop[STOP_MAX_STRINGS + 1] = {""};
    struct parse_options o = {.sink = record, .stop = stop, .n_stop = 1};
    CHECK_ERR(parser_open(&p, &o, &e), &e, LATHE_E_ARGUMENT, "an empty stop string");
    stop[0] = "a\xFF";
    CHECK_ERR(parser_open(&p, &o, &e), &e, LATHE_E_ARGUMENT, "not UTF-8 at byte 1");
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = 0;
    stop[0] = longer;
    CHECK_ERR(parser_open(&p, &o, &e), &e, LATHE_E_ARGUMENT, "1025 bytes, the limit is 1024");
    for (int i = 0; i <= STOP_MAX_STRINGS; i++)
        stop[i] = "x";
    o.n_stop = STOP_MAX_STRINGS + 1;
    CHECK_ERR(parser_open(&p, &o, &e), &e, LATHE_E_ARGUMENT, "33 stop strings, the limit is 32");
    o.n_stop = 0;
    o.tools = "{}";
    CHECK_ERR(parser_open(&p, &o, &e), &e, LATHE_E_ARGUMENT, "tools: not an array");
    o.tools = "[{]";
    CHECK_ERR(parser_open(&p, &o, &e), &e, LATHE_E_FORMAT, "tools: byte 2");
    CHECK(p == NULL);
    parser_close(p);
}

static lathe_status refuse(void *ctx, const struct parse_event *ev, lathe_error *err)
{
    (void)ctx;
    return ev->type == LATHE_EVENT_TEXT ? fail(err, LATHE_E_CANCELLED, "the sink is full") : 0;
}

TEST(parse_stops_at_a_failing_sink)
{
    struct parse_options o = {.sink = refuse};
    struct parser *p;
    lathe_error e;
    lathe_finish finish;
    CHECK_OK(parser_open(&p, &o, &e), &e);
    CHECK_ERR(parser_feed(p, "abc", 3, &e), &e, LATHE_E_CANCELLED, "the sink is full");
    CHECK_ERR(parser_feed(p, "abc", 3, &e), &e, LATHE_E_CANCELLED, "the sink is full");
    CHECK_ERR(parser_finish(p, LATHE_FINISH_STOP, &finish, &e), &e, LATHE_E_CANCELLED, "full");
    parser_close(p);
}

/* ---- Generated calls ------------------------------------------------------------------------ */

/* Does the value end where it should? The naive reading of the rule, on the whole text. */
static bool can_be_written(const char *value)
{
    static char text[4096];
    snprintf(text, sizeof text, "%s\n</parameter>\n</function>", value);
    for (const char *p = text; (p = strstr(p, "</parameter>")); p++) {
        const char *next = p + 12 + strspn(p + 12, " \t\n\v\f\r");
        if (strncmp(next, "<parameter=", 11) == 0 || strncmp(next, "</function>", 11) == 0 ||
            strncmp(next, "<parameter name=", 16) == 0)
            return (size_t)(p - text) == strlen(value) + 1;
    }
    return false;
}

/* Random values made of pieces of markup come back as they were written. */
TEST(parse_returns_what_was_written)
{
    static const char *const piece[] = {
        "</parameter>", "<parameter=", "n>",       "</function>", "<function=", "<tool_call>",
        "</tool_call>", "\n",          " ",        "</param",     "<",          "x",
        "\"",           "\\",          "\xC3\xA9", "</think>",    "name=",      "{\"a\":1}",
    };
    struct rng r = {11};
    int n_written = 0;
    for (int round = 0; round < 4000; round++) {
        char value[2][512] = {"", ""};
        for (int v = 0; v < 2; v++)
            for (int i = (int)rng_below(&r, 9); i > 0; i--)
                strcat(value[v], piece[rng_below(&r, sizeof piece / sizeof *piece)]);
        if (!can_be_written(value[0]) || !can_be_written(value[1]))
            continue;
        n_written++;
        struct buf raw, want;
        buf_init(&raw, 1 << 16);
        buf_init(&want, 1 << 16);
        buf_printf(&raw, "ok\n\n" CALL("f", P("s", "%s") P("zz", "%s")), value[0], value[1]);
        buf_puts(&want, "T:ok[f({\"s\": ");
        json_print_string(&want, value[0], strlen(value[0]));
        buf_puts(&want, ", \"zz\": ");
        json_print_string(&want, value[1], strlen(value[1]));
        buf_puts(&want, "})] .calls");
        struct parse_options o = {.tools = tools};
        size_t n = raw.len, cut = rng_below(&r, (uint32_t)n);
        char *a = parse(o, raw.data, n, cut, 1 + rng_below(&r, 30), LATHE_FINISH_STOP);
        CHECK_STR(a, buf_str(&want));
        free(a);
        buf_release(&raw);
        buf_release(&want);
    }
    CHECK(n_written > 2000);
}

/* ---- Bad days ------------------------------------------------------------------------------- */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* A mebibyte of what makes a parser look back, behind a head that sets its state. */
TEST(parse_is_linear_on_hostile_text)
{
    static const char *const head[] = {
        "",
        "<tool_call>",
        "<tool_call>\n<function=f>\n",
        "<tool_call>\n<function=f>\n<parameter=",
        "<tool_call>\n<function=f>\n<parameter=s>\n",
        "<tool_call>\n<function=f>\n<parameter=n>\n",
        "<tool_call>\n<function=f>\n<parameter=o>\n",
        "<tool_call>\n<function=f>\n<parameter=s>x</parameter>",
        "<tool_call>{\"",
    };
    static const char *const unit[] = {
        "<",
        "</parameter>",
        "</parameter>\n",
        "\n",
        " ",
        "</parameter></tool_call>\n",
        "<tool_call>",
        "\n<function=",
        "\n<function=f",
        "</think>",
        "</thin",
        "{",
        "{\"",
        "\\",
        "null\n",
        "</parameter><parameter=s>",
        "<tool_call><",
        "aaaaaaab",
        "</parameter>\n \n</functio",
        "\xC3\xA9",
        "\xFF",
    };
    const char *const stop[] = {"aaaaaaaaaaaaaaaaaaaac", "<<<<<<<<<<<<x", "  \n"};
    struct buf b;
    buf_init(&b, 8 << 20);
    double worst = 0, begin = seconds();
    for (size_t h = 0; h < sizeof head / sizeof *head; h++)
        for (size_t u = 0; u < sizeof unit / sizeof *unit; u++)
            for (int open = 0; open < (h == 0 ? 2 : 1); open++) {
                struct parse_options o = {
                    .thinking_open = open, .tools = tools, .stop = stop, .n_stop = 3};
                buf_clear(&b);
                buf_puts(&b, head[h]);
                while (b.len < (1 << 20))
                    buf_puts(&b, unit[u]);
                double t = seconds();
                free(parse(o, b.data, b.len, 0, 700, LATHE_FINISH_STOP));
                t = seconds() - t;
                worst = t > worst ? t : worst;
            }
    buf_release(&b);
    /* Milliseconds each without instrumentation; anything quadratic takes minutes. */
    CHECK(worst < 10);
    CHECK(seconds() - begin < 300);
}

TEST(parse_limits_what_it_holds)
{
    struct log l = {0};
    struct parse_options o = {.tools = tools, .sink = record, .sink_ctx = &l};
    static const char *const head[] = {"<tool_call>\n<function=f>\n<parameter=n>\n",
                                       "<tool_call>\n<function=f>\n<parameter=", "x"};
    static const char *const what[] = {"a parameter's value", "a parameter's name",
                                       "output that may be markup"};
    static char piece[1 << 20];
    buf_init(&l.text, 1 << 10);
    for (int i = 0; i < 3; i++) {
        struct parser *p;
        lathe_error e;
        lathe_status st;
        l = (struct log){.text = l.text};
        memset(piece, i == 2 ? ' ' : '1', sizeof piece);
        CHECK_OK(parser_open(&p, &o, &e), &e);
        CHECK_OK(parser_feed(p, head[i], strlen(head[i]), &e), &e);
        int n = 0;
        while (!(st = parser_feed(p, piece, sizeof piece, &e)) && n < 100)
            n++;
        CHECK_INT(n, 32);
        CHECK_ERR(st, &e, LATHE_E_LIMIT, what[i]);
        parser_close(p);
    }
    buf_release(&l.text);
}

static lathe_status count_only(void *ctx, const struct parse_event *ev, lathe_error *err)
{
    size_t *n = ctx;
    (void)err;
    *n += ev->n + 1;
    return LATHE_OK;
}

TEST(parse_survives_failing_allocations)
{
    const char *const stop[] = {"STOP", "ok"};
    static const char raw[] = "plan\n\n</think>\n\no STO  " CALL(
        "f", P("n", "[1, 2]") P("s", "x\n\ny") P("o", "null") P(
                 "zz",
                 "1")) "\n"
                       "<tool_call>{\"name\":\"ping\",\"arguments\":{\"a\":[1,\"b\"]}}</tool_call>";
    size_t want = 0, nth = 1;
    for (;; nth++) {
        size_t n = 0;
        struct parse_options o = {.thinking_open = true,
                                  .tools = tools,
                                  .stop = stop,
                                  .n_stop = 2,
                                  .sink = count_only,
                                  .sink_ctx = &n};
        struct parser *p = NULL;
        lathe_error e;
        lathe_finish finish;
        fail_alloc_arm(nth);
        lathe_status st = parser_open(&p, &o, &e);
        for (size_t i = 0; !st && i < sizeof raw - 1; i += 5)
            st = parser_feed(p, raw + i, sizeof raw - 1 - i < 5 ? sizeof raw - 1 - i : 5, &e);
        if (!st)
            st = parser_finish(p, LATHE_FINISH_STOP, &finish, &e);
        bool failed = fail_alloc_disarm();
        parser_close(p);
        if (!failed) {
            CHECK_OK(st, &e);
            CHECK_INT(finish, LATHE_FINISH_CALLS);
            want = n;
            break;
        }
        CHECK_ERR(st, &e, LATHE_E_MEMORY, "out of memory");
    }
    CHECK(want > 0 && nth > 30);
}

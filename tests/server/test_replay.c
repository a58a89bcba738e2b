/* Answers that come back less than whole: the memory of calls and reasoning, spelled arguments, and carriers. */
#include <openssl/sha.h>

#include "answers.h"
#include "carrier.h"
#include "fake_engine.h"
#include "recall.h"
#include "rig.h"
#include "test.h"

/* ---- Arguments ------------------------------------------------------------------------------ */

static void check_spelled(const char *known, const char *want)
{
    struct buf b;
    buf_init(&b, 1 << 16);
    bool ok = recall_arguments(&b, known, strlen(known));
    if (ok != (want != NULL) || (ok && strcmp(buf_str(&b), want) != 0))
        FAIL("%s: [%s], expected [%s]", known, buf_str(&b), want ? want : "none");
    buf_release(&b);
}

TEST(arguments_as_they_were_spelled)
{
    check_spelled("{}", "{}");
    check_spelled("", "{}");
    check_spelled(" { } ", "{}");
    check_spelled("{\"a\": \"x\\n\\\"y\\\\\"}", "{\"a\": \"x\\n\\\"y\\\\\"}");
    check_spelled(
        "{\"a\": 5, \"b\": 1.50e3,\"c\":[1,{\"d\": \"}]\"}] , \"e\": {\"f\":null}}",
        "{\"a\": \"5\", \"b\": \"1.50e3\", \"c\": \"[1,{\\\"d\\\": \\\"}]\\\"}]\", \"e\": "
        "\"{\\\"f\\\":null}\"}");
    check_spelled("{\"\\\"{\": true}", "{\"\\\"{\": \"true\"}");
    /* Cut off. */
    check_spelled("{\"a\": \"par", "{\"a\": \"par\"}");
    check_spelled("{\"a\": \"", "{\"a\": \"\"}");
    check_spelled("{\"a\": ", "{\"a\": \"\"}");
    check_spelled("{\"a\": 5", "{\"a\": \"5\"}");
    check_spelled("{", "{}");
    check_spelled("[1]", NULL);
    check_spelled("nul", NULL);
}

TEST(arguments_that_come_back)
{
    static const struct {
        const char *known, *sent; /* sent: a JSON value */
        enum recalled want;
    } rows[] = {
        {"{\"a\": 5, \"b\": [1, 2]}", "{\"b\":[1,2],\"a\":5}", RECALL_SAME},
        {"{\"a\": 5, \"b\": [1, 2]}", "\"{\\\"b\\\":[1,2],\\\"a\\\":5.0}\"", RECALL_SAME},
        {"{\"a\": 5}", "{\"a\":\"5\"}", RECALL_OTHER},
        {"{\"a\": [1, 2]}", "{\"a\":[2,1]}", RECALL_OTHER},
        {"{\"a\": 5}", "{\"a\":5,\"b\":null}", RECALL_OTHER},
        {"{\"a\": null}", "{\"a\":false}", RECALL_OTHER},
        {"{\"a\": true}", "{\"a\":true}", RECALL_SAME},
        {"{\"a\": 100000000000000000000}", "{\"a\":100000000000000000000}", RECALL_SAME},
        {"{\"a\": 100000000000000000000}", "{\"a\":100000000000000000001}", RECALL_OTHER},
        {"{}", "\" \"", RECALL_SAME},
        {"{}", "{}", RECALL_SAME},
        {"{}", "null", RECALL_OTHER},
        {"{\"a\": 5}", "\"{\\\"a\"", RECALL_OTHER},
        {"{\"a\": \"par", "\"{\\\"a\\\": \\\"par\"", RECALL_CUT},
        {"{\"a\": \"par", "{\"a\":\"par\"}", RECALL_OTHER},
        {"{\"a\": \"par", "\"[1]\"", RECALL_OTHER},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct json_doc d;
        char whole[200];
        lathe_error err;
        (void)snprintf(whole, sizeof whole, "[%s]", rows[i].sent);
        CHECK_OK(json_read(&d, whole, strlen(whole), &json_limits_request, &err), &err);
        int got =
            (int)recall_judge(&d, json_array_get(d.root, 0), rows[i].known, strlen(rows[i].known));
        if (got != (int)rows[i].want)
            FAIL("%s of %s: %d", rows[i].sent, rows[i].known, got);
        json_release(&d);
    }
}

/* ---- Memory --------------------------------------------------------------------------------- */

static void tell(struct recording *a, lathe_event_type type, const char *text, const char *id)
{
    lathe_event ev = {.type = type,
                      .text = text,
                      .n_text = text ? strlen(text) : 0,
                      .call_id = id,
                      .name = "find"};
    recording_take(a, &ev);
}

static void keep(struct answers *m, int i, size_t n_reasoning)
{
    struct recording a;
    char id[40], *reasoning = malloc(n_reasoning + 1);
    CHECK(reasoning);
    memset(reasoning, 'r', n_reasoning);
    reasoning[n_reasoning] = 0;
    recording_init(&a);
    tell(&a, LATHE_EVENT_REASONING, reasoning, NULL);
    for (int k = 0; k < 2; k++) {
        (void)snprintf(id, sizeof id, "call_%dx%d", i, k);
        tell(&a, LATHE_EVENT_CALL_BEGIN, NULL, id);
        tell(&a, LATHE_EVENT_CALL_ARGS, "{\"a\": ", NULL);
        tell(&a, LATHE_EVENT_CALL_ARGS, k ? "1}" : "2}", NULL);
    }
    answers_keep(m, &a, NULL);
    recording_release(&a);
    free(reasoning);
}

TEST(memory_of_calls)
{
    struct answers *m;
    lathe_error err;
    struct buf arguments, reasoning;
    buf_init(&arguments, 1 << 20);
    buf_init(&reasoning, 1 << 20);
    CHECK_OK(answers_open(&m, 20000, &err), &err);
    for (int i = 0; i < 300; i++) {
        keep(m, i, 500);
        /* The first is used all the time, and stays. */
        buf_clear(&arguments);
        buf_clear(&reasoning);
        CHECK(answers_call(m, "toolu_0x1", "find", &arguments, &reasoning));
        CHECK_STR(buf_str(&arguments), "{\"a\": 1}");
        CHECK_INT(reasoning.len, 500);
    }
    CHECK(!answers_call(m, "call_0x1", "other", NULL, NULL));
    CHECK(!answers_call(m, "call_1x1", "find", NULL, NULL));
    CHECK(answers_call(m, "fc_299x0", "find", NULL, NULL));
    CHECK(!answers_call(m, "", "find", NULL, NULL));
    keep(m, 1000, 50000); /* more than there is room for */
    CHECK(!answers_call(m, "call_1000x0", "find", NULL, NULL));
    CHECK(answers_call(m, "call_0x0", "find", NULL, NULL));
    answers_close(m);
    CHECK(!answers_call(NULL, "call_0x0", "find", NULL, NULL));
    buf_release(&arguments);
    buf_release(&reasoning);
}

/* A prefix that grows gives the keys that it gives at once. */
TEST(keys_of_prefixes)
{
    static const char messages[] = "[{\"role\": \"user\"}, {\"role\": \"assistant\"}, {}";
    struct answers_prefix growing = {0};
    unsigned char key[ANSWERS_KEY], last[ANSWERS_KEY] = {0};
    for (size_t n = 0; n < sizeof messages; n++) {
        struct answers_prefix once = {0};
        unsigned char want[ANSWERS_KEY];
        CHECK(answers_key(&growing, messages, n, "text", 4, key));
        CHECK(answers_key(&once, messages, n, "text", 4, want));
        CHECK(memcmp(key, want, ANSWERS_KEY) == 0 && memcmp(key, last, ANSWERS_KEY) != 0);
        CHECK(answers_key(&once, messages, n, "texts", 5, want));
        CHECK(memcmp(key, want, ANSWERS_KEY) != 0);
        memcpy(last, key, ANSWERS_KEY);
        answers_prefix_release(&once);
    }
    answers_prefix_release(&growing);
}

/* ---- Carriers ------------------------------------------------------------------------------- */

static void check_carried(const char *text, size_t n, const int32_t *id, size_t n_id)
{
    struct buf b;
    struct carried c;
    size_t used = 0;
    buf_init(&b, 2 * CARRIER_MAX);
    carrier_put(&b, text, n, id, n_id);
    CHECK(b.len <= CARRIER_MAX && b.data[strspn(b.data, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmn"
                                                        "opqrstuvwxyz0123456789-_.")] == 0);
    CHECK(carrier_read(b.data, b.len, &used, &c));
    CHECK_INT(used, 5 + n + 4 * n_id);
    CHECK(c.n == n && memcmp(c.text, text, n) == 0 && c.text[n] == 0);
    CHECK(c.n_id == n_id && (n_id == 0 || memcmp(c.id, id, n_id * sizeof *id) == 0));
    carried_release(&c);
    /* One character changed, or cut off. */
    for (size_t i = 0; i<b.len; i += b.len> 500 ? 37 : 1) {
        char was = b.data[i];
        b.data[i] = was == 'A' ? 'B' : 'A';
        /* The last digits of the two parts have bits that say nothing. */
        used = 0;
        if (carrier_read(b.data, b.len, &used, &c))
            CHECK(c.n == n && memcmp(c.text, text, n) == 0 && c.n_id == n_id);
        carried_release(&c);
        b.data[i] = was;
        CHECK(!carrier_read(b.data, i, &used, &c));
        CHECK(!c.text && !c.id);
    }
    buf_release(&b);
}

TEST(carriers)
{
    int32_t id[300];
    for (int i = 0; i < 300; i++)
        id[i] = i * 7919 % 250000;
    check_carried("", 0, NULL, 0);
    check_carried("why not", 7, id, 3);
    check_carried("caf\xC3\xA9 \xF0\x9F\x98\x80", 10, id, 300);
}

TEST(carriers_of_others)
{
    static const char *const other[] = {
        "",
        "lathe",
        "l1.",
        "l1..",
        "l1.A.A",
        "l1.AAAA.AAAAAAAAAAAAAAAAAAAAAA",
        "l2.AAAA.AAAA",
        "EqQBCkYIBxgCKkBmYWtlIHNpZ25hdHVyZSBmcm9tIGFub3RoZXIgc2VydmVy",
        "l1.!!!!.AAAA",
        "l1.AAAAA.AAAAAAAAAAAAAAAAAAAAAA"};
    struct carried c;
    size_t used = 0;
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        CHECK(!carrier_read(other[i], strlen(other[i]), &used, &c));
}

/* Some hundred bytes that unpack to megabytes, many times in one conversation. */
TEST(carriers_that_unpack_to_much)
{
    enum { N = 8 * CARRIER_MAX / 4 - 2 };
    int32_t *id = calloc(N, sizeof *id);
    struct carried c;
    struct buf b;
    size_t used = 0;
    int n_read = 0;
    CHECK(id != NULL);
    buf_init(&b, 2 * CARRIER_MAX);
    carrier_put(&b, "x", 1, id, N);
    CHECK(b.len < 1000);
    for (int i = 0; i < 20; i++) {
        if (carrier_read(b.data, b.len, &used, &c)) {
            CHECK_INT(c.n_id, N);
            n_read++;
        } else {
            CHECK(!c.text && !c.id);
        }
        carried_release(&c);
    }
    CHECK_INT(n_read, 8);
    CHECK(used <= CARRIED_MAX);
    buf_release(&b);
    free(id);
}

/* What is too long goes without its tokens, then without anything. */
TEST(long_reasoning)
{
    enum { N = 3 << 20 };
    struct rng r = {7};
    char *text = malloc(N);
    int32_t *id = malloc(N * sizeof *id);
    struct buf b;
    struct carried c;
    CHECK(text && id);
    for (int i = 0; i < N; i++) {
        text[i] = (char)('a' + rng_below(&r, 16));
        id[i] = (int32_t)rng_below(&r, 250000);
    }
    static const size_t n[] = {1000, 1 << 20, N};
    size_t used = 0;
    for (int i = 0; i < 3; i++) {
        buf_init(&b, 2 * CARRIER_MAX);
        carrier_put(&b, text, n[i], id, i == 0 ? 1000 : N / 4);
        CHECK(b.len > 0 && b.len <= CARRIER_MAX);
        CHECK(carrier_read(b.data, b.len, &used, &c));
        CHECK_INT(c.n, i < 2 ? n[i] : 0);
        CHECK_INT(c.n_id, i == 0 ? 1000 : 0);
        carried_release(&c);
        buf_release(&b);
    }
    free(text);
    free(id);
}

/* ---- Through the server --------------------------------------------------------------------- */

static void post(const struct rig *r, const char *path, const char *body, int want, struct buf *out)
{
    int status;
    bool ended;
    char *got = ask_at(r, path, body, &status, &ended);
    if (status != want || !ended)
        FAIL("%s %s: status %d, %s", path, body, status, got);
    buf_clear(out);
    buf_puts(out, got);
    free(got);
}

#define USER "{\"role\":\"user\",\"content\":\"q\"}"
#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"find\",\"parameters\":{\"type\":"  \
    "\"object\",\"properties\":{\"q\":{\"type\":\"object\"},\"n\":{\"type\":\"integer\"}}}}}]"
#define CALL(id, arguments)                                                                        \
    "{\"id\":\"" id                                                                                \
    "\",\"type\":\"function\",\"function\":{\"name\":\"find\",\"arguments\":" arguments "}}"
#define RESULT(id) "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"r\"}"

/* What the prompt of a chat history and a question says; fails unless it has `text`, or, with a '!' before it, has it not. */
static void check_history(const struct rig *r, const char *messages, bool preserve,
                          const char *text)
{
    struct buf body, out;
    bool absent = text[0] == '!';
    buf_init(&body, 1 << 16);
    buf_init(&out, 1 << 20);
    buf_printf(&body, "{\"messages\":[%s," USER "],%s,\"preserve_thinking\":%s}", messages, TOOLS,
               preserve ? "true" : "false");
    post(r, "/apply-template", buf_str(&body), 200, &out);
    if ((strstr(buf_str(&out), text + absent) == NULL) != absent)
        FAIL("%s\nprompt %s\nexpected %s", messages, buf_str(&out), text);
    buf_release(&body);
    buf_release(&out);
}

static void check_prompt(const struct rig *r, const char *messages, const char *text)
{
    check_history(r, messages, true, text);
}

static const char call_script[] = "accepted 3 0\nreasoning because\nreasoning_end\n"
                                  "call call_ABC find\nargs {\"q\": {\"a\":1,\\s\"b\":[ 2 ]},\\s\n"
                                  "args \"n\": 3}\nend\nfinish calls 3 0 9 2\n";

static void open_answered(struct rig *r, const struct server_options *o, const char *script,
                          const char *path, const char *body)
{
    struct buf out;
    open_rig(r, o);
    buf_init(&out, 1 << 20);
    fake_engine_script(r->engine, script);
    post(r, path, body, 200, &out);
    buf_release(&out);
}

#define ASK  "{\"messages\":[" USER "]," TOOLS "}"
#define SENT "\"{\\\"n\\\":3.0,\\\"q\\\":{\\\"b\\\":[2],\\\"a\\\":1}}\""

TEST(calls_are_spelled_as_they_were)
{
    static const char spelled[] = "<parameter=q>\\n{\\\"a\\\":1, \\\"b\\\":[ 2 ]}\\n</parameter>\\n"
                                  "<parameter=n>\\n3\\n</parameter>";
    struct rig r;
    open_answered(&r, NULL, call_script, "/v1/chat/completions", ASK);
    /* As text with other spacing and order; as an object; under the name that another dialect gives. */
    check_prompt(&r,
                 USER ",{\"role\":\"assistant\",\"tool_calls\":[" CALL(
                     "call_ABC", SENT) "]}," RESULT("call_ABC"),
                 spelled);
    check_prompt(&r,
                 USER ",{\"role\":\"assistant\",\"tool_calls\":[" CALL(
                     "toolu_ABC", "{\"q\":{\"a\":1,\"b\":[2]},\"n\":3}") "]}",
                 spelled);
    /* Other values, another id, another tool: as they are sent. */
    check_prompt(&r,
                 USER ",{\"role\":\"assistant\",\"tool_calls\":[" CALL(
                     "call_ABC", "{\"q\":{\"a\":1,\"b\":[3]},\"n\":3}") "]}",
                 "{\\\"a\\\": 1, \\\"b\\\": [3]}");
    check_prompt(&r, USER ",{\"role\":\"assistant\",\"tool_calls\":[" CALL("call_XYZ", SENT) "]}",
                 "{\\\"b\\\": [2], \\\"a\\\": 1}");
    close_rig(&r);
}

TEST(reasoning_of_calls_is_put_back)
{
    static const char back[] = "<think>\\nbecause\\n</think>";
    const char *turn = USER
        ",{\"role\":\"assistant\",\"tool_calls\":[" CALL("call_ABC", SENT) "]}," RESULT("call_ABC");
    struct server_options o;
    struct rig r;
    server_options_init(&o);
    open_answered(&r, &o, call_script, "/v1/chat/completions", ASK);
    check_prompt(&r, turn, back);
    check_history(&r, turn, false, "!because");
    check_prompt(&r,
                 USER ",{\"role\":\"assistant\",\"reasoning_content\":\"\",\"tool_calls\":[" CALL(
                     "call_ABC", SENT) "]}",
                 back);
    check_prompt(&r,
                 USER ",{\"role\":\"assistant\",\"reasoning\":\"other\",\"tool_calls\":[" CALL(
                     "call_ABC", SENT) "]}",
                 "<think>\\nother\\n</think>");
    check_prompt(&r, USER ",{\"role\":\"assistant\",\"tool_calls\":[" CALL("call_no", SENT) "]}",
                 "!because");
    close_rig(&r);
    o.no_restore_reasoning = true;
    open_answered(&r, &o, call_script, "/v1/chat/completions", ASK);
    check_prompt(&r, turn, "!because");
    close_rig(&r);
}

TEST(hidden_reasoning_is_put_back)
{
    static const char script[] = "accepted 3 0\nreasoning because\nreasoning_end\ntext so\n"
                                 "finish stop 3 0 9 2\n";
    static const char back[] = "<think>\\nbecause\\n</think>\\n\\nso";
    const char *turn = USER ",{\"role\":\"assistant\",\"content\":\"so\"}," USER;
    struct rig r;
    /* It was sent, and the client left it out. */
    open_answered(&r, NULL, script, "/v1/chat/completions", ASK);
    check_prompt(&r, turn, "!because");
    close_rig(&r);
    open_answered(&r, NULL, script, "/v1/chat/completions",
                  "{\"include_reasoning\":false,\"messages\":[" USER "]}");
    check_prompt(&r, turn, back);
    check_prompt(&r,
                 USER ",{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"s\"},"
                      "{\"type\":\"text\",\"text\":\"o\"}]}," USER,
                 back);
    /* Another text, other messages before it, and an empty reasoning on purpose. */
    check_prompt(&r, USER ",{\"role\":\"assistant\",\"content\":\"not\"}," USER, "!because");
    check_prompt(&r, USER "," USER ",{\"role\":\"assistant\",\"content\":\"so\"}," USER,
                 "!because");
    check_prompt(&r, USER ",{\"role\":\"assistant\",\"content\":\"so\",\"reasoning_content\":\"\"}",
                 "!because");
    close_rig(&r);
    /* Messages that did not ask for thinking get no block; the same conversation in chat form. */
    open_answered(&r, NULL, script, "/v1/messages", "{\"messages\":[" USER "]}");
    check_prompt(&r, turn, back);
    close_rig(&r);
    open_answered(&r, NULL, script, "/v1/messages",
                  "{\"thinking\":{\"type\":\"enabled\"},\"messages\":[" USER "]}");
    check_prompt(&r, turn, "!because");
    close_rig(&r);
}

static const char cut_script[] = "accepted 3 0\ncall call_CUT find\nargs {\"q\": {\"a\":1},\\s\n"
                                 "args \"n\": \nfinish length 3 0 9 0\n";
#define CUT "\"{\\\"q\\\": {\\\"a\\\":1}, \\\"n\\\": \""

TEST(calls_that_were_cut_off)
{
    struct server_options o;
    struct rig r;
    struct buf out;
    buf_init(&out, 1 << 20);
    server_options_init(&o);
    const char *known = USER
        ",{\"role\":\"assistant\",\"tool_calls\":[" CALL("call_CUT", CUT) "]}," RESULT("call_CUT");
    open_answered(&r, &o, cut_script, "/v1/chat/completions", ASK);
    check_prompt(&r, known,
                 "<parameter=q>\\n{\\\"a\\\":1}\\n</parameter>\\n<parameter=n>\\n\\n"
                 "</parameter>\\n</function>");
    /* Another server's: text, unless it has a result. */
    check_prompt(&r,
                 USER ",{\"role\":\"assistant\",\"content\":\"well\",\"tool_calls\":[" CALL(
                     "call_other", CUT) "]}," USER,
                 "well\\n\\n[find: {\\\"q\\\": {\\\"a\\\":1}, \\\"n\\\": ]<|im_end|>");
    check_prompt(
        &r,
        USER ",{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[" CALL(
            "call_other", CUT) "," CALL("call_b", "\"{}\"") "]}," RESULT("call_b"),
        "[find: {\\\"q\\\": {\\\"a\\\":1}, \\\"n\\\": ]\\n\\n<tool_call>\\n<function=find>");
    post(&r, "/apply-template",
         "{\"messages\":[" USER ",{\"role\":\"assistant\",\"tool_calls\":[" CALL(
             "call_other", CUT) "]}," RESULT("call_other") "]," TOOLS "}",
         400, &out);
    CHECK(strstr(buf_str(&out), "messages[1].tool_calls[0]"));
    close_rig(&r);
    o.no_repair_arguments = true;
    open_answered(&r, &o, cut_script, "/v1/chat/completions", ASK);
    post(&r, "/apply-template",
         "{\"messages\":[" USER
         ",{\"role\":\"assistant\",\"tool_calls\":[" CALL("call_CUT", CUT) "]}]," TOOLS "}",
         400, &out);
    close_rig(&r);
    buf_release(&out);
}

static void count(const struct rig *r, const char *block, struct buf *out)
{
    struct buf body;
    buf_init(&body, 1 << 20);
    buf_printf(&body,
               "{\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":[%s{\"type\":\"text\","
               "\"text\":\"so\"}]}," USER
               "],\"preserve_thinking\":true,\"thinking\":{\"type\":\"enabled\"}}",
               block);
    post(r, "/v1/messages/count_tokens", buf_str(&body), 200, out);
    buf_release(&body);
}

/* A signature alone says the reasoning; one that is damaged, or beside another text, says nothing. */
TEST(signatures)
{
    struct rig r;
    struct buf out, block, sign, plain;
    open_rig(&r, NULL);
    buf_init(&out, 1 << 20);
    buf_init(&block, 1 << 20);
    buf_init(&sign, 1 << 20);
    buf_init(&plain, 1 << 20);
    fake_engine_script(r.engine, "accepted 3 0\nreasoning many words of reasoning\nreasoning_end\n"
                                 "text so\nfinish stop 3 0 9 2\n");
    post(&r, "/v1/messages",
         "{\"messages\":[" USER "],\"thinking\":{\"type\":\"enabled\",\"display\":\"omitted\"}}",
         200, &out);
    const char *at = strstr(buf_str(&out), "\"signature\":\"l1.");
    CHECK(at && strstr(buf_str(&out), "\"thinking\":\"\",\"signature\""));
    buf_printf(&sign, "%.*s", (int)strcspn(at + 13, "\""), at + 13);
    count(&r,
          "{\"type\":\"thinking\",\"thinking\":\"many words of reasoning\",\"signature\":\"\"},",
          &plain);
    struct {
        const char *text;
        bool is_whole, has_reasoning;
    } rows[] = {{"", true, true},
                {"many words of reasoning", true, true},
                {"many words of reasoning", false, true},
                {"", false, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        buf_clear(&block);
        buf_printf(&block, "{\"type\":\"thinking\",\"thinking\":\"%s\",\"signature\":\"%s%s\"},",
                   rows[i].text, rows[i].is_whole ? "" : "x", buf_str(&sign));
        count(&r, buf_str(&block), &out);
        if ((strcmp(buf_str(&out), buf_str(&plain)) == 0) != rows[i].has_reasoning)
            FAIL("row %zu: %s, with reasoning %s", i, buf_str(&out), buf_str(&plain));
    }
    close_rig(&r);
    buf_release(&out);
    buf_release(&block);
    buf_release(&sign);
    buf_release(&plain);
}

/* The tokens in a carrier are those of the prompt. */
TEST(tokens_of_signatures)
{
    static const char words[] = "many words";
    struct rig r;
    struct buf script, out, body, ids;
    open_rig(&r, NULL);
    buf_init(&script, 1 << 16);
    buf_init(&ids, 1 << 16);
    buf_init(&body, 1 << 16);
    buf_init(&out, 1 << 20);
    for (size_t i = 0; i < strlen(words); i++) { /* cut as no tokenizer would */
        lathe_tokens t;
        lathe_error err;
        CHECK_OK(lathe_tokenize(lathe_engine_text(r.engine), words + i, 1, false, &t, &err), &err);
        buf_printf(&ids, "%s%d", i ? " " : "", (int)t.id[0]);
        lathe_tokens_release(&t);
    }
    buf_printf(&script,
               "accepted 3 0\nreasoning %s\nreasoning_end %s\ntext so\nfinish stop 3 0 9 2\n",
               words, buf_str(&ids));
    for (size_t i = 0; i < ids.len; i++)
        ids.data[i] = ids.data[i] == ' ' ? ',' : ids.data[i];
    fake_engine_script(r.engine, buf_str(&script));
    for (int i = 0; i < 2; i++) {
        const char *path = i ? "/v1/responses" : "/v1/messages";
        post(&r, path,
             i ? "{\"input\":\"q\",\"store\":false}"
               : "{\"messages\":[" USER "],\"thinking\":{\"type\":\"enabled\"}}",
             200, &out);
        const char *mark = i ? "\"encrypted_content\":\"" : "\"signature\":\"";
        const char *at = strstr(buf_str(&out), mark);
        CHECK(at);
        at += strlen(mark);
        buf_clear(&body);
        buf_printf(
            &body,
            i ? "{\"dialect\":\"responses\",\"input\":[{\"role\":\"user\",\"content\":\"q\"},"
                "{\"type\":\"reasoning\",\"summary\":[],\"encrypted_content\":\"%.*s\"},"
                "{\"role\":\"assistant\",\"content\":\"so\"},{\"role\":\"user\",\"content\":"
                "\"q\"}],\"preserve_thinking\":true}"
              : "{\"dialect\":\"messages\",\"messages\":[" USER
                ",{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":"
                "\"many words\",\"signature\":\"%.*s\"},{\"type\":\"text\",\"text\":\"so\"}]}," USER
                "],\"preserve_thinking\":true}",
            (int)strcspn(at, "\""), at);
        post(&r, "/tokenize", buf_str(&body), 200, &out);
        if (!strstr(buf_str(&out), buf_str(&ids)))
            FAIL("%s: %s has not %s", path, buf_str(&out), buf_str(&ids));
    }
    close_rig(&r);
    buf_release(&script);
    buf_release(&ids);
    buf_release(&body);
    buf_release(&out);
}

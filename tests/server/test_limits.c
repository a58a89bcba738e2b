/* Fields of requests at their edges, in every dialect that has them: the least and the most that is taken, what lies beyond,
 * other types, null; and how many there may be of what is repeated. */
#include <string.h>

#include "base/file.h"
#include "fake_engine.h"
#include "rig.h"
#include "routes.h"
#include "test.h"

/* docs/server.md and the table of limits say the same. */
TEST(documented)
{
    struct buf text;
    lathe_error err;
    buf_init(&text, 1 << 20);
    CHECK_OK(file_read(&text, test_path("docs/server.md"), &err), &err);
    for (int i = 0; i < N_LIMITS; i++) {
        const struct limit_row *r = &limit_rows[i];
        char row[200];
        (void)snprintf(row, sizeof row, "| `%s %s` | %s | %lld | %lld | %lld |\n", r->option,
                       r->unit, r->what, (long long)r->normal, (long long)r->low,
                       (long long)r->high);
        if (!strstr(buf_str(&text), row))
            FAIL("docs/server.md does not have %s", row);
    }
    buf_release(&text);
}

static const char answer[] = "accepted 5 0\ntext a\nfinish stop 5 0 2 0\n";

/* With these fields before the others. */
static void check(const struct rig *r, int on, const char *fields, int want, const char *has)
{
    for (size_t i = 0; i < N_ROUTES; i++) {
        struct buf body;
        int status;
        bool ended;
        if (!(on & (int)routes[i].route))
            continue;
        buf_init(&body, 1 << 20);
        buf_printf(&body, "{%s%s%s}", fields, fields[0] ? "," : "", routes[i].body);
        char *s = ask_at(r, routes[i].path, buf_str(&body), &status, &ended);
        if (status != want || (has && !strstr(s, has)))
            FAIL("%s, %.300s: expected %d%s%s: %d %.500s", routes[i].path, fields, want,
                 has ? " with " : "", has ? has : "", status, s);
        free(s);
        buf_release(&body);
    }
}

static const struct edge {
    const char *name;
    int on;
    bool is_whole;
    const char *taken[4], *refused[4]; /* up to NULL */
} edges[] = {
    {"temperature", ALL, false, {"0", "100", "0.5"}, {"-0.001", "100.1", "-1"}},
    {"top_p", ALL, false, {"0", "1"}, {"-0.001", "1.001"}},
    {"top_k", ALL, true, {"-1", "0", "2147483647"}, {"-2", "2147483648"}},
    {"min_p", ALL, false, {"0", "1"}, {"-0.001", "1.001"}},
    {"presence_penalty", ALL, false, {"-2", "2"}, {"-2.001", "2.001"}},
    {"frequency_penalty", ALL, false, {"-2", "2"}, {"-2.001", "2.001"}},
    {"repetition_penalty", ALL, false, {"0.001", "2"}, {"0", "-1"}},
    {"repeat_penalty", ALL, false, {"0.001", "2"}, {"0", "-1"}},
    {"seed",
     ALL,
     true,
     {"-1", "0", "9223372036854775807", "-9223372036854775808"},
     {"9223372036854775808", "-9223372036854775809"}},
    {"max_tokens", CHAT | COMPLETIONS, true, {"1", "2147483647"}, {"0", "-1", "2147483648"}},
    {"max_tokens", MESSAGES, true, {"0", "1"}, {"-1", "2147483648"}},
    {"max_completion_tokens", CHAT, true, {"1"}, {"0", "-1"}},
    {"max_output_tokens", RESPONSES, true, {"1"}, {"0", "-1"}},
    {"n_predict", CHAT | COMPLETIONS, true, {"-1", "1"}, {"0", "-2"}},
    {"min_tokens", ALL, true, {"0", "5"}, {"-1"}},
    {"n", CHAT | COMPLETIONS, true, {"1", "2"}, {"0", "3", "-1"}},
    {"logprobs", COMPLETIONS, true, {"0", "20"}, {"-1", "21"}},
    {"prompt_logprobs", COMPLETIONS, true, {"0", "20"}, {"-1", "21"}},
    {"max_tool_calls", RESPONSES, true, {"1", "5"}, {"0", "-1"}},
};
enum { N_EDGES = sizeof edges / sizeof *edges };

static void check_edge(const struct rig *r, const struct edge *e)
{
    char fields[200], param[80];
    (void)snprintf(param, sizeof param, "\"param\":\"%s\"", e->name);
    const char *named = e->on & MESSAGES ? e->name : param;
    for (int i = 0; i < 4 && e->taken[i]; i++) {
        (void)snprintf(fields, sizeof fields, "\"%s\":%s", e->name, e->taken[i]);
        check(r, e->on, fields, 200, NULL);
    }
    for (int i = 0; i < 4 && e->refused[i]; i++) {
        (void)snprintf(fields, sizeof fields, "\"%s\":%s", e->name, e->refused[i]);
        check(r, e->on, fields, 400, named);
    }
    static const char *const other[] = {"\"1\"", "[1]", "{}", "true", "\"\""};
    for (int i = 0; i < 5; i++) {
        (void)snprintf(fields, sizeof fields, "\"%s\":%s", e->name, other[i]);
        check(r, e->on & ~MESSAGES, fields, 400, "\"code\":\"invalid_type\"");
        check(r, e->on & MESSAGES, fields, 400, named);
    }
    (void)snprintf(fields, sizeof fields, "\"%s\":null", e->name);
    check(r, e->on, fields, 200, NULL);
    (void)snprintf(fields, sizeof fields, "\"%s\":1.0", e->name);
    check(r, e->on, fields, 200, NULL);
    (void)snprintf(fields, sizeof fields, "\"%s\":1.5", e->name);
    if (e->is_whole)
        check(r, e->on, fields, 400, named);
}

TEST(numbers)
{
    struct rig r;
    open_rig(&r, NULL);
    fake_engine_script(r.engine, answer);
    for (int i = 0; i < N_EDGES; i++)
        check_edge(&r, &edges[i]);
    close_rig(&r);
}

/* "NAME":OPEN item, item ... CLOSE with n items; # in an item is its number. */
static char *repeat(const char *begin, const char *item, int n, const char *end)
{
    struct buf b;
    buf_init(&b, 1 << 24);
    buf_puts(&b, begin);
    for (int i = 0; i < n; i++) {
        if (i)
            buf_putc(&b, ',');
        for (const char *s = item; *s; s++)
            if (*s == '#')
                buf_printf(&b, "%d", i);
            else
                buf_putc(&b, *s);
    }
    buf_puts(&b, end);
    return b.data;
}

TEST(how_many)
{
    static const struct {
        int on;
        const char *begin, *item, *end;
        int most;
        const char *says; /* of one more */
    } rows[] = {
        {OPENAI | MESSAGES, "\"stop\":[", "\"a#\"", "]", 32, "at most 32"},
        {MESSAGES, "\"stop_sequences\":[", "\"a#\"", "]", 32, "at most 32"},
        {ALL, "\"stop_token_ids\":[", "#", "]", 32, "at most 32"},
        {ALL, "\"logit_bias\":{", "\"#\":1", "}", 1024, "at most 1024"},
        {ALL, "\"logit_bias\":[", "[#,1]", "]", 1024, "at most 1024"},
        {CHAT, "\"tools\":[", "{\"type\":\"function\",\"function\":{\"name\":\"f#\"}}", "]", 1024,
         "at most 1024"},
        {RESPONSES, "\"tools\":[", "{\"type\":\"function\",\"name\":\"f#\"}", "]", 1024,
         "at most 1024"},
        {MESSAGES, "\"tools\":[", "{\"name\":\"f#\",\"input_schema\":{}}", "]", 1024,
         "at most 1024"},
    };
    struct rig r;
    open_rig(&r, NULL);
    fake_engine_script(r.engine, answer);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int more = 0; more < 2; more++) {
            char *s = repeat(rows[i].begin, rows[i].item, rows[i].most + more, rows[i].end);
            check(&r, rows[i].on, s, more ? 400 : 200, more ? rows[i].says : NULL);
            free(s);
        }
    close_rig(&r);
}

TEST(how_long)
{
    static const struct {
        int on;
        const char *begin, *end;
        int most;
        const char *says;
    } rows[] = {
        {ALL, "\"stop\":\"", "\"", 1024, "1 to 1024"},
        {MESSAGES, "\"stop_sequences\":[\"", "\"]", 1024, "1 to 1024"},
        {ALL, "\"cache_salt\":\"", "\"", 256, "1 to 256"},
        {CHAT, "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"", "\"}}]", 128, "128"},
        {RESPONSES, "\"tools\":[{\"type\":\"function\",\"name\":\"", "\"}]", 128, "128"},
        {MESSAGES, "\"tools\":[{\"input_schema\":{},\"name\":\"", "\"}]", 128, "128"},
    };
    struct rig r;
    open_rig(&r, NULL);
    fake_engine_script(r.engine, answer);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int more = 0; more < 2; more++) {
            struct buf b;
            buf_init(&b, 1 << 16);
            buf_puts(&b, rows[i].begin);
            for (int n = 0; n < rows[i].most + more; n++)
                buf_putc(&b, 'x');
            buf_puts(&b, rows[i].end);
            check(&r, rows[i].on, buf_str(&b), more ? 400 : 200, more ? rows[i].says : NULL);
            buf_clear(&b);
            buf_printf(&b, "%s%s", rows[i].begin, rows[i].end);
            check(&r, rows[i].on, buf_str(&b), 400, NULL); /* nothing is too short */
            buf_release(&b);
        }
    close_rig(&r);
}

TEST(long_histories)
{
    static const struct {
        const char *path, *begin, *item, *end;
        int n, status;
        const char *says;
    } rows[] = {
        {"/v1/chat/completions", "{\"messages\":[", USER, "]}", 5000, 200, "\"content\":\"a\""},
        {"/v1/messages", "{\"messages\":[", USER, "]}", 5000, 200, "\"text\":\"a\""},
        {"/v1/chat/completions", "{\"messages\":[", "#", "]}", 100001, 400, "at most 100000"},
        {"/v1/messages", "{\"messages\":[", "#", "]}", 100001, 400, "at most 100000"},
        {"/v1/completions", "{\"prompt\":[", "\"a\"", "]}", 1025, 400, "1024"},
    };
    struct rig r;
    open_rig(&r, NULL);
    fake_engine_script(r.engine, answer);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int status;
        bool ended;
        char *body = repeat(rows[i].begin, rows[i].item, rows[i].n, rows[i].end);
        char *s = ask_at(&r, rows[i].path, body, &status, &ended);
        if (status != rows[i].status || !strstr(s, rows[i].says))
            FAIL("%s, %d entries: %d %.300s", rows[i].path, rows[i].n, status, s);
        free(s);
        free(body);
    }
    close_rig(&r);
}

/* Fields that are refused, listed or checked alike on all routes that generate, and refusals of the engine's. */
#include <stdlib.h>
#include <string.h>

#include "fake_engine.h"
#include "rig.h"
#include "routes.h"
#include "test.h"

static const char answer[] = "accepted 5 0\ntext a\nfinish stop 5 0 2 0\n";

/* Status, head and body; a heap string. */
static char *send_fields(const struct rig *r, size_t route, const char *fields, int *status)
{
    struct buf b;
    char body[700];
    int fd = connect_to(r);
    (void)snprintf(body, sizeof body, "{%s,%s}", routes[route].body, fields);
    send_to(fd, routes[route].path, body);
    receive(fd, &b);
    CHECK(sscanf(buf_str(&b), "HTTP/1.1 %d", status) == 1);
    return b.data;
}

/* with: what the answer has, NULL for no field that is not known. */
static void check(const struct rig *r, int on, const char *fields, int want, const char *with)
{
    for (size_t i = 0; i < N_ROUTES; i++) {
        int status;
        if (!(on & (int)routes[i].route))
            continue;
        char *s = send_fields(r, i, fields, &status);
        if (status != want || (with ? !strstr(s, with) : strstr(s, "x-unknown-fields") != NULL))
            FAIL("%s, %s: expected %d with %s:\n%s", routes[i].path, fields, want,
                 with ? with : "no unknown field", s);
        free(s);
    }
}

TEST(formats_of_the_output)
{
    static const char *const bound[] = {"guided_json",
                                        "guided_regex",
                                        "guided_choice",
                                        "guided_grammar",
                                        "structured_outputs",
                                        "json_schema",
                                        "regex",
                                        "grammar",
                                        "ebnf"};
    struct rig r;
    char fields[200], want[200];
    open_rig(&r, NULL);
    fake_engine_script(r.engine, answer);
    for (size_t i = 0; i < sizeof bound / sizeof *bound; i++) {
        (void)snprintf(fields, sizeof fields, "\"%s\":{}", bound[i]);
        (void)snprintf(want, sizeof want,
                       "%s is not supported: output cannot be bound, only free text", bound[i]);
        check(&r, ALL, fields, 400, want);
        (void)snprintf(fields, sizeof fields, "\"%s\":null", bound[i]);
        check(&r, ALL, fields, 200, NULL);
    }
    check(&r, ALL, "\"response_format\":{\"type\":\"json_object\"}", 400,
          "response_format.type: 'json_object' is not supported, only text");
    check(&r, ALL, "\"response_format\":{\"schema\":{}}", 400, "response_format.type is missing");
    check(&r, ALL, "\"response_format\":7", 400, "response_format: expected an object");
    check(&r, ALL, "\"response_format\":{\"type\":\"text\"}", 200, NULL);
    check(&r, RESPONSES, "\"text\":{\"format\":{\"type\":\"json_schema\"}}", 400,
          "text.format.type: 'json_schema' is not supported, only text");
    check(&r, MESSAGES, "\"output_config\":{\"format\":{\"type\":\"json_schema\"}}", 400,
          "output_config.format.type: 'json_schema' is not supported, only text");
    check(&r, MESSAGES, "\"output_format\":{\"type\":\"json_schema\"}", 400,
          "output_format.type: 'json_schema' is not supported, only text");
    check(&r, MESSAGES, "\"container\":\"x\"", 400, "only null is supported");
    close_rig(&r);
}

TEST(samplers_and_choices_that_do_not_exist)
{
    struct rig r;
    open_rig(&r, NULL);
    fake_engine_script(r.engine, answer);
    check(&r, ALL, "\"typical_p\":0.5", 400, "typical_p: only 1 is supported");
    check(&r, ALL, "\"mirostat\":2", 400, "mirostat: only 0 is supported");
    check(&r, ALL, "\"typical_p\":1,\"mirostat\":0,\"top_a\":0,\"use_beam_search\":false", 200,
          NULL);
    check(&r, RESPONSES | MESSAGES, "\"n\":2", 400, "n: only 1 is supported");
    check(&r, RESPONSES | MESSAGES, "\"best_of\":2", 400, "best_of: only 1 is supported");
    check(&r, RESPONSES | MESSAGES, "\"logprobs\":true", 400, "logprobs: only false is supported");
    check(&r, MESSAGES, "\"top_logprobs\":3", 400, "top_logprobs: only 0 is supported");
    check(&r, RESPONSES | MESSAGES, "\"n\":1,\"logprobs\":false", 200, NULL);
    close_rig(&r);
}

/* A sampler that is off may be tuned; all other names of its family, and of adapters, ask for what is not there. */
TEST(families_of_samplers_that_do_not_exist)
{
    static const char *const off[] = {
        "\"xtc_probability\":0,\"xtc_threshold\":0.1",
        "\"dry_multiplier\":0.0,\"dry_base\":1.75,\"dry_allowed_length\":2,\"dry_range\":0,"
        "\"dry_penalty_last_n\":-1,\"dry_sequence_breakers\":[\"\\n\"]",
        "\"dry_sequence_breakers\":\"[]\"",
        "\"mirostat\":0,\"mirostat_mode\":0,\"mirostat_tau\":5,\"mirostat_eta\":0.1",
        "\"dynatemp_range\":0,\"dynatemp_exponent\":1",
        "\"lora\":[]",
        "\"lora\":null,\"xtc_probability\":null,\"dry_base\":null"};
    static const struct {
        const char *fields, *with;
    } on[] = {
        {"\"xtc_probability\":0.5", "xtc_probability: only 0 is supported"},
        {"\"xtc_threshold\":\"a\"", "xtc_threshold: expected a number, found a string"},
        {"\"xtc_foo\":0", "xtc_foo is not supported: there are no adapters, and of samplers only "},
        {"\"dry_multiplier\":0.8,\"dry_base\":1.75", "dry_multiplier: only 0 is supported"},
        {"\"dry_sequence_breakers\":5", "dry_sequence_breakers: expected an array or a string"},
        {"\"dry_foo\":false", "\"param\":\"dry_foo\",\"code\":\"unsupported_parameter\""},
        {"\"mirostat_mode\":2", "mirostat_mode: only 0 is supported"},
        {"\"mirostat_foo\":1", "\"param\":\"mirostat_foo\""},
        {"\"dynatemp_range\":1", "dynatemp_range: only 0 is supported"},
        {"\"dynatemp_high\":2", "\"param\":\"dynatemp_high\""},
        {"\"lora\":[{\"id\":0,\"scale\":1}]", "lora: only [] is supported"},
        {"\"lora_request\":{\"lora_name\":\"a\"}", "\"param\":\"lora_request\""},
        {"\"lora_path\":\"a\"", "\"param\":\"lora_path\""}};
    struct rig r;
    open_rig(&r, NULL);
    fake_engine_script(r.engine, answer);
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        check(&r, ALL, off[i], 200, NULL);
    for (size_t i = 0; i < sizeof on / sizeof *on; i++) /* in the shape that names the field */
        check(&r, ALL & ~MESSAGES, on[i].fields, 400, on[i].with);
    check(&r, MESSAGES, on[2].fields, 400, on[2].with);
    check(&r, MESSAGES, on[10].fields, 400, on[10].with);
    close_rig(&r);
}

TEST(members_that_are_not_known)
{
    static const struct {
        int on;
        const char *fields, *path;
    } rows[] = {
        {CHAT | RESPONSES | MESSAGES, "\"thinking\":{\"type\":\"enabled\",\"foo\":1}",
         "thinking.foo"},
        {CHAT | RESPONSES, "\"thinking\":{\"type\":\"enabled\",\"display\":\"omitted\"}",
         "thinking.display"},
        {CHAT | RESPONSES, "\"reasoning\":{\"effort\":\"low\",\"foo\":1}", "reasoning.foo"},
        {CHAT, "\"reasoning\":{\"summary\":\"auto\"}", "reasoning.summary"},
        {MESSAGES, "\"output_config\":{\"effort\":\"low\",\"foo\":1}", "output_config.foo"},
        {RESPONSES, "\"text\":{\"verbosity\":\"low\",\"foo\":1}", "text.foo"},
        {RESPONSES, "\"text\":{\"format\":{\"type\":\"text\",\"foo\":1}}", "text.format.foo"},
        {CHAT | COMPLETIONS | RESPONSES, "\"stream_options\":{\"foo\":1}", "stream_options.foo"},
        {MESSAGES, "\"tool_choice\":{\"type\":\"auto\",\"foo\":1}", "tool_choice.foo"},
        {ALL, "\"response_format\":{\"type\":\"text\",\"foo\":1}", "response_format.foo"},
    };
    for (int is_error = 0; is_error < 2; is_error++) {
        struct rig r;
        struct server_options o;
        server_options_init(&o);
        o.unknown_is_error = is_error;
        open_rig(&r, &o);
        fake_engine_script(r.engine, answer);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            char want[100];
            (void)snprintf(want, sizeof want,
                           is_error ? "%s is no field of this route" : "x-unknown-fields: %s\r\n",
                           rows[i].path);
            check(&r, rows[i].on, rows[i].fields, is_error ? 400 : 200, want);
        }
        close_rig(&r);
    }
}

TEST(hints_have_types)
{
    struct rig r;
    open_rig(&r, NULL);
    fake_engine_script(r.engine, answer);
    check(&r, CHAT | COMPLETIONS | RESPONSES, "\"user\":5", 400, "user: expected a string");
    check(&r, ALL, "\"metadata\":7", 400, "metadata: expected an object");
    check(&r, MESSAGES, "\"metadata\":{\"user_id\":7}", 400, "metadata.user_id: expected a string");
    check(&r, CHAT | COMPLETIONS, "\"store\":1", 400, "store: expected true or false");
    check(&r, CHAT | COMPLETIONS, "\"priority\":0.5", 400, "priority: expected a whole number");
    check(&r, RESPONSES, "\"client_metadata\":\"a\"", 400, "client_metadata: expected an object");
    check(&r, MESSAGES, "\"cache_control\":true", 400, "cache_control: expected an object");
    check(&r, CHAT | COMPLETIONS,
          "\"user\":\"a\",\"metadata\":{\"b\":1},\"store\":true,\"priority\":-2,\"id_slot\":-1,"
          "\"prediction\":{\"type\":\"content\"},\"verbosity\":null",
          200, NULL);
    check(&r, MESSAGES,
          "\"metadata\":{\"user_id\":\"a\"},\"cache_control\":{\"type\":\"ephemeral\"},"
          "\"context_management\":{\"edits\":[]},\"service_tier\":\"auto\"",
          200, NULL);
    close_rig(&r);
}

TEST(refusals_of_the_engine_name_the_field)
{
    struct rig r;
    open_rig(&r, NULL);
    fake_engine_script(r.engine, "refuse 1 stop_id[0] is 9, which no token has\n");
    check(&r, CHAT | COMPLETIONS | RESPONSES, "\"stop_token_ids\":[9]", 400,
          "\"message\":\"stop_token_ids[0] is 9, which no token has\",\"type\":"
          "\"invalid_request_error\",\"param\":\"stop_token_ids[0]\"");
    fake_engine_script(r.engine, "refuse 1 logit_bias names token 9, which does not exist\n");
    check(&r, CHAT | COMPLETIONS | RESPONSES, "\"logit_bias\":{\"9\":1}", 400,
          "\"param\":\"logit_bias\"");
    fake_engine_script(r.engine, "refuse 1 min_tokens is 9, expected at most max_tokens, 3\n");
    check(&r, CHAT | COMPLETIONS | RESPONSES, "\"min_tokens\":9", 400,
          "\"message\":\"min_tokens is 9, expected at most max_tokens, 3\",\"type\":"
          "\"invalid_request_error\",\"param\":\"min_tokens\"");
    fake_engine_script(r.engine, "refuse 7 the prompt has 600 tokens, the context holds 512\n");
    check(&r, CHAT, "\"seed\":1", 400,
          "\"param\":\"messages\",\"code\":\"context_length_exceeded\"");
    check(&r, RESPONSES, "\"seed\":1", 400,
          "\"param\":\"input\",\"code\":\"context_length_exceeded\"");
    check(&r, COMPLETIONS, "\"seed\":1", 400,
          "\"param\":\"prompt\",\"code\":\"context_length_exceeded\"");
    close_rig(&r);
}

static const char *keep_seed(void *ctx, const lathe_request_options *o)
{
    int64_t **next = ctx;
    *(*next)++ = o->sampling.seed;
    return answer;
}

TEST(seeds)
{
    static const struct {
        const char *fields;
        int64_t want[2];
    } rows[] = {{"\"seed\":-7,\"n\":2", {-7, -6}},
                {"\"seed\":-2,\"n\":2", {-2, INT64_MIN}},
                {"\"seed\":-9223372036854775808,\"n\":2", {INT64_MIN, INT64_MIN + 1}},
                {"\"seed\":9223372036854775807,\"n\":2", {INT64_MAX, 0}},
                {"\"seed\":-1,\"n\":2", {-1, -1}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct rig r;
        int64_t seed[2] = {99, 99}, *next = seed;
        open_rig(&r, NULL);
        fake_engine_ask(r.engine, keep_seed, &next);
        check(&r, CHAT, rows[i].fields, 200, NULL);
        CHECK(seed[0] == rows[i].want[0] && seed[1] == rows[i].want[1]);
        fake_engine_script(r.engine, answer);
        close_rig(&r);
    }
}

TEST(a_response_that_failed_has_its_usage)
{
    static const struct {
        const char *script, *usage;
    } rows[] = {
        {"accepted 5 2\ntext a\nerror 12 lost\n",
         "\"usage\":{\"input_tokens\":5,\"input_tokens_details\":{\"cached_tokens\":2},\"output_"
         "tokens\":0"},
    };
    struct rig r;
    open_rig(&r, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int status;
        fake_engine_script(r.engine, rows[i].script);
        char *s = send_fields(&r, 2, "\"stream\":true", &status);
        const char *failed = strstr(s, "event: response.failed");
        CHECK_INT(status, 200);
        CHECK(failed && strstr(failed, rows[i].usage));
        free(s);
    }
    close_rig(&r);
}

/* The fields of a request for a response, beside its conversation. */
#include <stdio.h>
#include <string.h>

#include "openai.h"
#include "openai_responses.h"
#include "state.h"
#include "thinking.h"

/* ---- Fields --------------------------------------------------------------------------------- */

static const char *const own_fields[] = {"input",
                                         "instructions",
                                         "previous_response_id",
                                         "tool_choice",
                                         "parallel_tool_calls",
                                         "max_tool_calls",
                                         "max_output_tokens",
                                         "text",
                                         "include",
                                         "include_reasoning",
                                         "top_logprobs",
                                         "truncation",
                                         "background",
                                         "conversation",
                                         "prompt",
                                         "context_management",
                                         "strict_custom"};

static bool check_fields(struct exchange *x, const struct fields *f)
{
    static const struct hint hint = {"client_metadata", HINT_OBJECT};
    static const struct neutral_field one_answer[] = {
        {"n", "1"}, {"best_of", "1"}, {"logprobs", "false"}};
    static const char *const of_text[] = {"format", "verbosity"};
    struct known_fields known = {.n = 0};
    known_add(&known, own_fields, sizeof own_fields / sizeof *own_fields);
    for (size_t i = 0; i < n_conversation_fields; i++)
        if (strcmp(conversation_fields[i], "messages") != 0)
            known_add(&known, &conversation_fields[i], 1);
    return hints_read(f, &hint, 1, &known) && neutral_read(f, one_answer, 3, &known) &&
           openai_fields(x, f, &known) && thinking_unknown(f, x, false) &&
           reasoning_unknown(f, x, true) && inner_unknown(f, x, "text", "text.", of_text, 2);
}

/* Fields that must ask for what is done anyway. */
static bool check_neutral(const struct fields *f)
{
    static const char *const never[] = {"conversation", "prompt"};
    bool is_background = false;
    const char *truncation = "disabled";
    const json_t *context = NULL;
    size_t n;
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        if (field_value(f, never[i]))
            return refuse_field(f->failure, UNSUPPORTED_FIELD, never[i],
                                "%s is not supported: send the items as input, or "
                                "previous_response_id",
                                never[i]);
    if (!field_bool(f, "background", &is_background) ||
        !field_text(f, "truncation", &truncation, &n) ||
        !field_array(f, "context_management", &context, SIZE_MAX))
        return false;
    if (is_background)
        return refuse_field(f->failure, UNSUPPORTED_VALUE, "background",
                            "background: only false is supported");
    if (strcmp(truncation, "disabled") != 0)
        return refuse_field(f->failure, UNSUPPORTED_VALUE, "truncation",
                            "truncation: only \"disabled\" is supported; leave out items instead");
    if (json_array_size(context))
        return refuse_field(f->failure, UNSUPPORTED_VALUE, "context_management",
                            "context_management: histories are not compacted here; only [] is "
                            "supported");
    return true;
}

static bool is_among(const char *s, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(s, words[i]) == 0)
            return true;
    return false;
}

/* include and top_logprobs. */
static bool read_include(const struct fields *f, struct generation *g, struct responses_request *q)
{
    static const char *const known[] = {"message.output_text.logprobs",
                                        "reasoning.encrypted_content",
                                        "web_search_call.results",
                                        "web_search_call.action.sources",
                                        "file_search_call.results",
                                        "message.input_image.image_url",
                                        "computer_call_output.output.image_url",
                                        "code_interpreter_call.outputs"};
    const json_t *array = NULL;
    int64_t n_top = 0;
    if (!field_array(f, "include", &array, SIZE_MAX) ||
        !field_int(f, "top_logprobs", &n_top, 0, 20))
        return false;
    bool has_logprobs = n_top > 0;
    for (size_t i = 0; i < json_array_size(array); i++) {
        char path[40];
        size_t n;
        const char *s = json_text(&f->doc, json_array_get(array, i), &n);
        (void)snprintf(path, sizeof path, "include[%zu]", i);
        if (!s || !is_among(s, known, sizeof known / sizeof *known))
            return refuse_field(f->failure, UNSUPPORTED_VALUE, path, "%s: '%.60s' is not supported",
                                path, s ? s : "");
        has_logprobs |= strcmp(s, known[0]) == 0;
        q->carries |= strcmp(s, known[1]) == 0;
    }
    q->n_top = has_logprobs ? (int32_t)n_top : -1;
    g->options.n_logprobs = q->n_top;
    return true;
}

static bool read_text(struct exchange *x, const struct fields *f, const char **verbosity)
{
    static const char *const levels[] = {"low", "medium", "high"};
    struct fields text;
    size_t n;
    if (!fields_inner(f, "text", "text.", &text) || !format_read(&text, x, "format") ||
        !field_text(&text, "verbosity", verbosity, &n))
        return false;
    if (!is_among(*verbosity, levels, 3))
        return refuse_field(f->failure, BAD_VALUE, "text.verbosity",
                            "text.verbosity: '%.40s' is none of low, medium, high", *verbosity);
    return true;
}

/* What of the reasoning is shown: what was asked for, unless the server's option says. */
static bool read_visibility(struct exchange *x, const struct fields *f, struct responses_request *q,
                            const char **summary)
{
    static const char *const words[] = {"auto", "concise", "detailed", "none"};
    struct fields r;
    bool include = true, exclude = false;
    size_t n;
    if (!fields_inner(f, "reasoning", "reasoning.", &r) ||
        !field_text(&r, "generate_summary", summary, &n) ||
        !field_text(&r, "summary", summary, &n) || !field_bool(&r, "exclude", &exclude) ||
        !field_bool(f, "include_reasoning", &include))
        return false;
    const char *name =
        field_value(&r, "summary") ? "reasoning.summary" : "reasoning.generate_summary";
    if (*summary && !is_among(*summary, words, 4))
        return refuse_field(f->failure, BAD_VALUE, name,
                            "%s: '%.40s' is none of auto, concise, detailed, none", name, *summary);
    int shown = (int)x->server->options.responses_reasoning;
    if (shown == RESPONSES_REASONING_ASKED)
        shown = *summary && strcmp(*summary, "none") != 0 ? RESPONSES_REASONING_SUMMARY
                                                          : RESPONSES_REASONING_CONTENT;
    q->show_summary = include && !exclude && (shown & RESPONSES_REASONING_SUMMARY);
    q->show_content = include && !exclude && (shown & RESPONSES_REASONING_CONTENT);
    return true;
}

static bool read_store(struct exchange *x, const struct fields *f, struct responses_request *q)
{
    bool can_store = x->server->options.n_responses > 0;
    q->store = can_store;
    if (!field_bool(f, "store", &q->store))
        return false;
    return can_store || !q->store ||
           refuse_field(f->failure, UNSUPPORTED_VALUE, "store",
                        "store: responses are not stored (--responses-store 0)");
}

/* ---- What the response repeats -------------------------------------------------------------- */

static void put_or(struct buf *out, const struct fields *f, const char *name, const char *otherwise)
{
    const json_t *v = field_value(f, name);
    if (v)
        json_print(out, &f->doc, v);
    else
        buf_puts(out, otherwise);
}

static bool echo(const struct fields *f, const struct generation *g, struct responses_request *q,
                 const char *summary, const char *verbosity)
{
    struct fields reasoning = *f;
    lathe_error err;
    reasoning.object = field_value(f, "reasoning");
    put_or(&q->echo[ECHO_INSTRUCTIONS], f, "instructions", "null");
    put_or(&q->echo[ECHO_TOOLS], f, "tools", "[]");

    struct buf *b = &q->echo[ECHO_BEFORE_OUTPUT];
    buf_puts(b, ",\"max_output_tokens\":");
    put_or(b, f, "max_output_tokens", "null");
    buf_puts(b, ",\"max_tool_calls\":");
    put_or(b, f, "max_tool_calls", "null");
    buf_puts(b, ",\"model\":");
    openai_string(b, q->model);

    b = &q->echo[ECHO_BEFORE_TOOLS];
    buf_puts(b, ",\"parallel_tool_calls\":");
    put_or(b, f, "parallel_tool_calls", "true");
    buf_puts(b, ",\"previous_response_id\":");
    put_or(b, f, "previous_response_id", "null");
    buf_puts(b, ",\"prompt_cache_key\":");
    put_or(b, f, "prompt_cache_key", "null");
    buf_puts(b, ",\"reasoning\":{\"effort\":");
    put_or(b, &reasoning, "effort", "null");
    buf_puts(b, ",\"summary\":");
    if (summary)
        openai_string(b, summary);
    else
        buf_puts(b, "null");
    buf_printf(b,
               "},\"service_tier\":\"default\",\"store\":%s,\"temperature\":%.7g,\"text\":"
               "{\"format\":{\"type\":\"text\"},\"verbosity\":",
               q->store ? "true" : "false", (double)g->options.sampling.temperature);
    openai_string(b, verbosity);
    buf_puts(b, "},\"tool_choice\":");
    put_or(b, f, "tool_choice", "\"auto\"");

    b = &q->echo[ECHO_BEFORE_USAGE];
    buf_printf(b, ",\"top_logprobs\":%d,\"top_p\":%.7g,\"truncation\":\"disabled\"",
               q->n_top > 0 ? (int)q->n_top : 0, (double)g->options.sampling.top_p);
    b = &q->echo[ECHO_END];
    buf_puts(b, ",\"user\":");
    put_or(b, f, "user", "null");
    buf_puts(b, ",\"metadata\":");
    put_or(b, f, "metadata", "{}");
    for (int i = 0; i < N_ECHOES; i++)
        if (buf_check(&q->echo[i], "the request", &err))
            return refuse_status(f->failure, &err);
    return true;
}

/* ---- All of it ------------------------------------------------------------------------------ */

static bool read_model(struct exchange *x, const struct fields *f, struct generation *g,
                       struct responses_request *q)
{
    const char *model = x->server->model;
    size_t n = strlen(model);
    if (!field_text(f, "model", &model, &n))
        return false;
    (void)snprintf(x->record.model, sizeof x->record.model, "%.*s", (int)(n < 120 ? n : 120),
                   model);
    q->model = arena_strndup(&g->arena, model, n);
    return q->model || refuse(f->failure, INTERNAL, "out of memory");
}

static bool read_limit(const struct fields *f, struct generation *g)
{
    int64_t most = g->options.max_tokens;
    if (!field_int(f, "max_output_tokens", &most, 1, INT32_MAX))
        return false;
    g->options.max_tokens = (int32_t)most;
    return true;
}

bool responses_read(struct exchange *x, const struct fields *f, struct generation *g,
                    struct responses_request *q)
{
    const char *summary = NULL, *verbosity = "medium";
    bool usage = false;
    if (!responses_conversation(x, f, g, q) || !check_fields(x, f) || !read_model(x, f, g, q))
        return false;
    generation_defaults(x, g);
    if (!openai_stream(x, f, g, &usage, NULL) || !sampling_read(f, g) || !read_limit(f, g) ||
        !check_neutral(f) || !read_include(f, g, q) || !read_text(x, f, &verbosity) ||
        !read_visibility(x, f, q, &summary) || !read_store(x, f, q))
        return false;
    q->carries |= !q->store;
    g->hides_reasoning = !q->show_summary && !q->show_content;
    if (g->show_progress)
        return refuse_field(f->failure, UNSUPPORTED_VALUE, "return_progress",
                            "return_progress: only false is supported here");
    if (q->tools.any_strict)
        buf_puts(&x->warnings, "strict of tools is best effort: arguments are not bound to the "
                               "schema");
    return echo(f, g, q, summary, verbosity);
}

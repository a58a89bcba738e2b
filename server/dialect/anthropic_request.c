/* Messages, tools and thinking of POST /v1/messages as a conversation in chat form. */
#include <stdio.h>
#include <string.h>

#include "anthropic.h"
#include "hosted.h"
#include "state.h"
#include "thinking.h"

enum { TEXT_LIMIT = 1 << 28 };

struct reader {
    struct exchange *x;
    const struct fields *f;
    struct buf *out;
    size_t n; /* messages written */
};

static const char *member(const struct reader *r, const json_t *object, const char *name, size_t *n)
{
    return json_text(&r->f->doc, json_object_get(object, name), n);
}

static bool is_type(const struct reader *r, const json_t *object, const char *word)
{
    size_t n;
    const char *s = member(r, object, "type", &n);
    return s && strcmp(s, word) == 0;
}

static void open_message(struct reader *r, const char *role)
{
    buf_printf(r->out, "%s{\"role\": \"%s\", \"content\": ", r->n++ ? ", " : "", role);
}

/* ---- Text ----------------------------------------------------------------------------------- */

/* A line of Claude Code that older versions change with each request, at the head of the prompt. */
static bool is_billing(const char *s, size_t n)
{
    static const char mark[] = "x-anthropic-billing-header:";
    return n >= strlen(mark) && memcmp(s, mark, strlen(mark)) == 0;
}

static bool put_system_text(struct reader *r, const char *s, size_t n, bool *any)
{
    if (is_billing(s, n) && !r->x->server->options.keep_billing_header) {
        const char *end = memchr(s, '\n', n);
        size_t skip = end ? (size_t)(end - s) + 1 : n;
        s += skip;
        n -= skip;
    }
    if (n == 0)
        return true;
    if (*any)
        buf_puts(r->out, "\\n\\n");
    *any = true;
    json_escape(r->out, s, n);
    return true;
}

/* A string, or text blocks, as one system message. */
static bool put_system(struct reader *r, const json_t *v, const char *path)
{
    bool any = false;
    size_t n;
    const char *s = json_text(&r->f->doc, v, &n);
    if (!s && !json_is_array(v))
        return refuse_field(r->f->failure, BAD_TYPE, path,
                            "%s: expected a string or an array, found %s", path, json_kind(v));
    open_message(r, "system");
    buf_putc(r->out, '"');
    if (s)
        (void)put_system_text(r, s, n, &any);
    for (size_t i = 0; !s && i < json_array_size(v); i++) {
        const char *text = member(r, json_array_get(v, i), "text", &n);
        if (!text)
            return refuse_field(r->f->failure, BAD_VALUE, path, "%s[%zu]: only text is supported",
                                path, i);
        (void)put_system_text(r, text, n, &any);
    }
    buf_puts(r->out, "\"}");
    return true;
}

/* A tool in chat form. */
static void put_tool(struct reader *r, const json_t *tool)
{
    const json_t *schema = json_object_get(tool, "input_schema");
    size_t n;
    const char *name = member(r, tool, "name", &n);
    buf_puts(r->out, "{\"type\": \"function\", \"function\": {\"name\": ");
    json_print_string(r->out, name, n);
    if (json_object_get(tool, "description")) {
        buf_puts(r->out, ", \"description\": ");
        json_print(r->out, &r->f->doc, json_object_get(tool, "description"));
    }
    buf_puts(r->out, ", \"parameters\": ");
    if (schema && !json_is_null(schema))
        json_print(r->out, &r->f->doc, schema);
    else
        buf_puts(r->out, "{\"type\": \"object\", \"properties\": {}}");
    buf_puts(r->out, "}}");
}

/* A tool that a search found: its definition as a line, if the prompt has not got it, else its name. */
static bool put_reference(struct reader *r, const json_t *block)
{
    const json_t *tools = field_value(r->f, "tools");
    size_t n, n_name = 0;
    const char *wanted = member(r, block, "tool_name", &n_name);
    for (size_t i = 0; wanted && i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        const char *name = member(r, tool, "name", &n);
        if (!name || strcmp(name, wanted) != 0 ||
            !json_is_true(json_object_get(tool, "defer_loading")))
            continue;
        struct buf line;
        struct reader inner = *r;
        buf_init(&line, TEXT_LIMIT);
        inner.out = &line;
        put_tool(&inner, tool);
        json_escape(r->out, buf_str(&line), line.len);
        buf_puts(r->out, "\\n");
        buf_inherit(r->out, &line);
        buf_release(&line);
        return true;
    }
    buf_puts(r->out, "[tool_reference: ");
    json_escape(r->out, wanted ? wanted : "", n_name);
    buf_putc(r->out, ']');
    return true;
}

static bool refuse_block(const struct reader *r, const char *path, const json_t *block)
{
    size_t n;
    const char *type = member(r, block, "type", &n);
    if (type && strcmp(type, "image") == 0)
        return refuse_field(r->f->failure, BAD_IMAGE, path,
                            "%s: image input needs the vision tower, which is not loaded", path);
    return refuse_field(r->f->failure, UNSUPPORTED_VALUE, path,
                        "%s: a block of type '%.40s' is not supported here, only text, documents "
                        "of text and search results",
                        path, type ? type : "");
}

static bool put_texts_of(struct reader *r, const char *path, const json_t *v);

/* A member's text and a line break, if it is there. */
static void put_line(struct reader *r, const json_t *object, const char *name)
{
    size_t n;
    const char *s = member(r, object, name, &n);
    if (!s || n == 0)
        return;
    json_escape(r->out, s, n);
    buf_puts(r->out, "\\n");
}

/* Title and context as lines of their own, the text, and a line break. */
static bool put_document(struct reader *r, const char *path, const json_t *block)
{
    const json_t *source = json_object_get(block, "source");
    size_t n;
    bool is_text = is_type(r, source, "text"), is_content = is_type(r, source, "content");
    const json_t *text = json_object_get(source, is_text ? "data" : "content");
    if ((!is_text && !is_content) || (is_text && !json_text(&r->f->doc, text, &n)))
        return refuse_field(r->f->failure, UNSUPPORTED_VALUE, path,
                            "%s: of documents only sources of type text and content are supported",
                            path);
    put_line(r, block, "title");
    put_line(r, block, "context");
    if (!put_texts_of(r, path, text))
        return false;
    buf_puts(r->out, "\\n");
    return true;
}

static bool put_search_result(struct reader *r, const char *path, const json_t *block)
{
    put_line(r, block, "title");
    put_line(r, block, "source");
    if (!put_texts_of(r, path, json_object_get(block, "content")))
        return false;
    buf_puts(r->out, "\\n");
    return true;
}

static bool is_server_block(const struct reader *r, const json_t *block)
{
    size_t n;
    const char *type = member(r, block, "type", &n);
    return type && (strcmp(type, "server_tool_use") == 0 || strstr(type, "_tool_result") != NULL ||
                    strcmp(type, "mcp_tool_use") == 0);
}

/* The block's text, JSON-escaped. Blocks of tools that another server ran are shown as what they are. */
static bool put_text_block(struct reader *r, const char *path, const json_t *block)
{
    size_t n;
    const char *s = is_type(r, block, "text") ? member(r, block, "text", &n) : NULL;
    if (s) {
        json_escape(r->out, s, n);
        return true;
    }
    if (is_type(r, block, "document"))
        return put_document(r, path, block);
    if (is_type(r, block, "search_result"))
        return put_search_result(r, path, block);
    if (is_type(r, block, "tool_reference"))
        return put_reference(r, block);
    if (!is_server_block(r, block))
        return refuse_block(r, path, block);
    struct buf text;
    buf_init(&text, TEXT_LIMIT);
    json_print(&text, &r->f->doc, block);
    buf_printf(r->out, "[%s: ", member(r, block, "type", &n));
    json_escape(r->out, buf_str(&text), text.len);
    buf_putc(r->out, ']');
    buf_inherit(r->out, &text);
    buf_release(&text);
    return true;
}

/* A string, blocks of text, or nothing. */
static bool put_texts_of(struct reader *r, const char *path, const json_t *v)
{
    size_t n;
    const char *s = json_text(&r->f->doc, v, &n);
    bool ok = true;
    if (v && !s && !json_is_array(v) && !json_is_null(v))
        return refuse_field(r->f->failure, BAD_TYPE, path,
                            "%s: expected the text of a block as a string or an array of blocks, "
                            "found %s",
                            path, json_big_integer(&r->f->doc, v) ? "a number" : json_kind(v));
    if (s)
        json_escape(r->out, s, n);
    for (size_t i = 0; !s && i < json_array_size(v) && ok; i++)
        ok = put_text_block(r, path, json_array_get(v, i));
    return ok;
}

/* The same as a JSON string. */
static bool put_texts(struct reader *r, const char *path, const json_t *v)
{
    buf_putc(r->out, '"');
    bool ok = put_texts_of(r, path, v);
    buf_putc(r->out, '"');
    return ok;
}

/* ---- Messages ------------------------------------------------------------------------------- */

/* Results become tool messages, what is left one user message after them. */
static bool put_user(struct reader *r, const char *path, const json_t *content)
{
    size_t n, n_results = 0, n_blocks = json_array_size(content);
    for (size_t i = 0; i < n_blocks; i++) {
        const json_t *block = json_array_get(content, i);
        if (!is_type(r, block, "tool_result"))
            continue;
        const char *id = member(r, block, "tool_use_id", &n);
        n_results++;
        open_message(r, "tool");
        buf_putc(r->out, '"');
        if (!put_result_json(r->out, &r->f->doc, json_object_get(block, "content")) &&
            !put_texts_of(r, path, json_object_get(block, "content")))
            return false;
        buf_puts(r->out, "\", \"tool_call_id\": ");
        json_print_string(r->out, id ? id : "", id ? n : 0);
        buf_putc(r->out, '}');
    }
    if (n_results && n_results == n_blocks)
        return true;
    open_message(r, "user");
    if (!n_results) {
        if (!put_texts(r, path, content))
            return false;
    } else {
        buf_putc(r->out, '"');
        for (size_t i = 0; i < n_blocks; i++) {
            const json_t *block = json_array_get(content, i);
            if (!is_type(r, block, "tool_result") && !put_text_block(r, path, block))
                return false;
        }
        buf_putc(r->out, '"');
    }
    buf_putc(r->out, '}');
    return true;
}

static bool put_call(struct reader *r, const char *path, const json_t *block, bool is_first)
{
    const json_t *input = json_object_get(block, "input");
    size_t n_id = 0, n_name;
    const char *id = member(r, block, "id", &n_id), *name = member(r, block, "name", &n_name);
    if (!name || (input && !json_is_object(input)))
        return refuse_field(r->f->failure, BAD_VALUE, path,
                            "%s: a tool_use block needs a name, and an object as input", path);
    buf_puts(r->out, is_first ? ", \"tool_calls\": [{\"id\": " : ", {\"id\": ");
    json_print_string(r->out, id ? id : "", id ? n_id : 0);
    buf_puts(r->out, ", \"type\": \"function\", \"function\": {\"name\": ");
    json_print_string(r->out, name, n_name);
    buf_puts(r->out, ", \"arguments\": ");
    if (input)
        json_print(r->out, &r->f->doc, input);
    else
        buf_puts(r->out, "{}");
    buf_puts(r->out, "}}");
    return true;
}

/* The signature of the only thinking block: of several, none says what they are together. */
static void put_carrier(struct reader *r, const json_t *content)
{
    const json_t *only = NULL;
    size_t n, n_thinking = 0;
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i);
        if (is_type(r, block, "thinking")) {
            n_thinking++;
            only = block;
        }
    }
    const char *s = n_thinking == 1 ? member(r, only, "signature", &n) : NULL;
    if (!s)
        return;
    buf_puts(r->out, ", \"carrier\": ");
    json_print_string(r->out, s, n);
}

/* Texts, then the joined thinking, then the calls. */
static bool put_assistant(struct reader *r, const char *path, const json_t *content)
{
    size_t n, n_blocks = json_array_size(content);
    bool has_thinking = false, has_call = false;
    if (!json_is_array(content)) {
        open_message(r, "assistant");
        bool ok = put_texts(r, path, content);
        buf_putc(r->out, '}');
        return ok;
    }
    open_message(r, "assistant");
    buf_putc(r->out, '"');
    for (size_t i = 0; i < n_blocks; i++) {
        const json_t *block = json_array_get(content, i);
        bool is_own = is_type(r, block, "tool_use") || is_type(r, block, "thinking") ||
                      is_type(r, block, "redacted_thinking");
        if (!is_own && !put_text_block(r, path, block))
            return false;
    }
    buf_putc(r->out, '"');
    for (size_t i = 0; i < n_blocks; i++) {
        const json_t *block = json_array_get(content, i);
        const char *s = is_type(r, block, "thinking") ? member(r, block, "thinking", &n) : NULL;
        if (!s || n == 0)
            continue;
        if (!has_thinking)
            buf_puts(r->out, ", \"reasoning_content\": \"");
        has_thinking = true;
        json_escape(r->out, s, n);
    }
    if (has_thinking)
        buf_putc(r->out, '"');
    put_carrier(r, content);
    for (size_t i = 0; i < n_blocks; i++) {
        const json_t *block = json_array_get(content, i);
        if (!is_type(r, block, "tool_use"))
            continue;
        if (!put_call(r, path, block, !has_call))
            return false;
        has_call = true;
    }
    buf_puts(r->out, has_call ? "]}" : "}");
    return true;
}

static bool put_message(struct reader *r, size_t i, const json_t *m)
{
    const json_t *content = json_object_get(m, "content");
    char path[48];
    size_t n;
    const char *role = member(r, m, "role", &n);
    (void)snprintf(path, sizeof path, "messages[%zu].content", i);
    if (!json_is_string(content) && !json_is_array(content))
        return refuse_field(r->f->failure, BAD_TYPE, path,
                            "%s: expected a string or an array, found %s", path,
                            json_kind(content));
    if (role && strcmp(role, "user") == 0)
        return put_user(r, path, content);
    if (role && strcmp(role, "assistant") == 0)
        return put_assistant(r, path, content);
    if (role && strcmp(role, "system") == 0)
        return put_system(r, content, path);
    (void)snprintf(path, sizeof path, "messages[%zu].role", i);
    return refuse_field(r->f->failure, BAD_VALUE, path,
                        "%s: '%.40s' is none of user, assistant, system", path, role ? role : "");
}

/* The answer goes on with a last message of the assistant, which then has no calls. */
static bool check_last(const struct reader *r, size_t i, const json_t *m)
{
    const json_t *content = json_object_get(m, "content");
    size_t n;
    const char *role = member(r, m, "role", &n);
    char path[48];
    (void)snprintf(path, sizeof path, "messages[%zu].content", i);
    if (!role || strcmp(role, "assistant") != 0)
        return true;
    for (size_t k = 0; k < json_array_size(content); k++)
        if (is_type(r, json_array_get(content, k), "tool_use"))
            return refuse_field(r->f->failure, BAD_VALUE, path,
                                "%s: a message with calls cannot be continued", path);
    return true;
}

static bool put_messages(struct exchange *x, const struct fields *f, struct buf *out)
{
    struct reader r = {x, f, out, 0};
    const json_t *array = NULL, *system = field_value(f, "system");
    if (!field_limited(f, "messages", &array, LIMIT_MESSAGES))
        return false;
    if (json_array_size(array) == 0)
        return refuse_field(f->failure, array ? BAD_VALUE : MISSING_FIELD, "messages",
                            "messages is %s", array ? "empty" : "missing");
    buf_puts(out, "{\"messages\": [");
    if (system && !put_system(&r, system, "system"))
        return false;
    size_t n = json_array_size(array);
    for (size_t i = 0; i < n; i++)
        if (!put_message(&r, i, json_array_get(array, i)))
            return false;
    buf_puts(out, "]}");
    return check_last(&r, n - 1, json_array_get(array, n - 1));
}

/* Through the chat form, which puts results in the order of their calls. */
static bool read_messages(struct exchange *x, const struct fields *f, struct chat *c)
{
    struct buf text;
    buf_init(&text, TEXT_LIMIT);
    bool ok = put_messages(x, f, &text) && chat_written(f, c, &text, "messages");
    buf_release(&text);
    return ok;
}

/* ---- Tools ---------------------------------------------------------------------------------- */

/* Tools of Anthropic's that a client runs, whose schema the model of that service has learnt. */
static bool is_schemaless(const char *type)
{
    static const char *const prefix[] = {"bash_", "text_editor_", "memory_", "computer_"};
    for (size_t i = 0; i < sizeof prefix / sizeof *prefix; i++)
        if (strncmp(type, prefix[i], strlen(prefix[i])) == 0)
            return true;
    return false;
}

/* A tool of the list, if the model is told of it: *is_told. */
static bool read_tool(struct exchange *x, const struct fields *f, struct chat *c, size_t i,
                      const json_t *tool)
{
    struct reader r = {x, f, &c->tools, 0};
    size_t n;
    char path[40];
    const char *type = member(&r, tool, "type", &n), *name = member(&r, tool, "name", &n);
    (void)snprintf(path, sizeof path, "tools[%zu]", i);
    bool has_schema = json_is_object(json_object_get(tool, "input_schema"));
    if (type && tool_is_anthropic_hosted(type)) {
        tool_ignore(x, type);
        return true;
    }
    if (type && strcmp(type, "custom") != 0 && !(is_schemaless(type) && has_schema))
        return refuse_field(
            f->failure, UNSUPPORTED_VALUE, path,
            "%s: a tool of type '%.40s' is not supported, only custom ones, with an "
            "input_schema",
            path, type);
    if (!name)
        return refuse_field(f->failure, MISSING_FIELD, path, "%s: name is missing", path);
    c->n_tools++;
    if (json_is_true(json_object_get(tool, "strict")) && x->warnings.len == 0)
        buf_puts(&x->warnings, "strict of tools is best effort: arguments are not bound to the "
                               "schema");
    if (json_is_true(json_object_get(tool, "defer_loading"))) {
        c->n_deferred++;
    } else {
        if (c->tools.len > 1)
            buf_puts(&c->tools, ", ");
        put_tool(&r, tool);
    }
    if (c->callable.len > 1)
        buf_puts(&c->callable, ", ");
    r.out = &c->callable;
    put_tool(&r, tool);
    return true;
}

static bool read_tools(struct exchange *x, const struct fields *f, struct generation *g)
{
    struct chat *c = &g->chat;
    const json_t *array = NULL;
    struct fields choice;
    const char *type = "auto";
    size_t n;
    bool serial = false;
    if (!field_limited(f, "tools", &array, LIMIT_TOOLS) ||
        !fields_inner(f, "tool_choice", "tool_choice.", &choice) ||
        !field_text(&choice, "type", &type, &n) ||
        !field_bool(&choice, "disable_parallel_tool_use", &serial))
        return false;
    buf_putc(&c->tools, '[');
    buf_putc(&c->callable, '[');
    for (size_t i = 0; i < json_array_size(array); i++)
        if (!read_tool(x, f, c, i, json_array_get(array, i)))
            return false;
    buf_putc(&c->tools, ']');
    buf_putc(&c->callable, ']');
    g->options.max_calls = serial ? 1 : 0;
    if (strcmp(type, "none") == 0)
        g->no_calls = true;
    else if (strcmp(type, "auto") != 0)
        return refuse_field(
            f->failure,
            strcmp(type, "any") == 0 || strcmp(type, "tool") == 0 ? UNSUPPORTED_VALUE : BAD_VALUE,
            "tool_choice.type", "tool_choice.type: '%.40s' is not supported, only auto and none",
            type);
    return true;
}

/* ---- Thinking ------------------------------------------------------------------------------- */

/* Nobody condenses thinking here: every display but omitted is the thinking itself. */
static bool read_display(const struct fields *f, struct chat *c)
{
    static const char *const word[] = {"omitted", "summarized", "updates", "highlights"};
    enum { N_WORDS = sizeof word / sizeof *word };
    struct fields in;
    const char *display = "summarized";
    size_t n, i = 0;
    if (!fields_inner(f, "thinking", "thinking.", &in) || !field_text(&in, "display", &display, &n))
        return false;
    while (i < N_WORDS && strcmp(display, word[i]) != 0)
        i++;
    c->omits_thinking = i == 0;
    return i < N_WORDS ||
           refuse_field(
               f->failure, BAD_VALUE, "thinking.display",
               "thinking.display: '%.40s' is none of summarized, updates, highlights, omitted",
               display);
}

static bool read_thinking(const struct fields *f, struct chat *c)
{
    struct fields output;
    if (!thinking_begin(f, c) || !thinking_object(f, c) || !read_display(f, c) ||
        !fields_inner(f, "output_config", "output_config.", &output) ||
        !thinking_effort(&output, "effort", c))
        return false;
    thinking_end(f, c);
    return true;
}

bool anthropic_conversation(struct exchange *x, const struct fields *f, struct generation *g)
{
    struct chat *c = &g->chat;
    lathe_error err;
    buf_init(&c->messages, TEXT_LIMIT);
    buf_init(&c->tools, TEXT_LIMIT);
    buf_init(&c->callable, TEXT_LIMIT);
    buf_init(&c->kwargs, TEXT_LIMIT);
    c->conversation.late_system = LATHE_LATE_SYSTEM_INLINE;
    if (!read_thinking(f, c) || !read_messages(x, f, c) || !read_tools(x, f, g))
        return false;
    if (buf_check(&c->messages, "messages", &err) || buf_check(&c->tools, "tools", &err) ||
        buf_check(&c->kwargs, "chat_template_kwargs", &err) ||
        buf_check(&c->callable, "tools", &err))
        return refuse_status(f->failure, &err);
    c->conversation.messages = buf_str(&c->messages);
    if (c->n_tools > c->n_deferred)
        c->conversation.tools = buf_str(&c->tools);
    if (c->n_deferred)
        c->conversation.callable_tools = buf_str(&c->callable);
    c->conversation.continue_last = c->ends_with_assistant;
    c->conversation.kwargs = c->kwargs.len ? buf_str(&c->kwargs) : NULL;
    return true;
}

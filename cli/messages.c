#include "messages.h"

#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "cli.h"

static void separate(struct buf *b)
{
    if (b->len)
        buf_puts(b, ", ");
}

lathe_status messages_add(struct buf *b, const char *role, const char *what, const char *content,
                          size_t n, lathe_error *err)
{
    size_t good = utf8_valid_prefix(content, n);
    if (good < n)
        return fail(err, LATHE_E_FORMAT, "%s: byte %zu of %zu, 0x%02X, is no valid UTF-8", what,
                    good, n, (unsigned)(unsigned char)content[good]);
    separate(b);
    buf_printf(b, "{\"role\": \"%s\", \"content\": ", role);
    json_print_string(b, content, n);
    buf_putc(b, '}');
    return buf_check(b, "the conversation", err);
}

void messages_add_answer(struct buf *b, const struct buf *text, const struct buf *reasoning,
                         const struct buf *calls)
{
    separate(b);
    buf_puts(b, "{\"role\": \"assistant\", \"content\": ");
    json_print_string(b, buf_str(text), text->len);
    if (reasoning->len) {
        buf_puts(b, ", \"reasoning_content\": ");
        json_print_string(b, buf_str(reasoning), reasoning->len);
    }
    if (calls->len)
        buf_printf(b, ", \"tool_calls\": [%s]", buf_str(calls));
    buf_putc(b, '}');
}

static lathe_status print_messages(struct buf *b, const struct json_doc *d, const json_t *array,
                                   lathe_error *err)
{
    if (!json_is_array(array))
        return fail(err, LATHE_E_FORMAT,
                    "expected an array of messages, or an object with \"messages\"");
    for (size_t i = 0; i < json_array_size(array); i++) {
        separate(b);
        json_print(b, d, json_array_get(array, i));
    }
    return buf_check(b, "the conversation", err);
}

static lathe_status read_json(struct json_doc *d, const char *path, lathe_error *err)
{
    struct buf text;
    buf_init(&text, MESSAGES_LIMIT);
    *d = (struct json_doc){0};
    lathe_status st = cli_read(&text, path, err);
    if (!st) {
        st = json_read(d, buf_str(&text), text.len, &json_limits_request, err);
        if (st)
            error_context(err, "%s", strcmp(path, "-") == 0 ? "standard input" : path);
    }
    buf_release(&text);
    return st;
}

lathe_status messages_read(struct buf *b, struct buf *tools, const char *path, lathe_error *err)
{
    struct json_doc d;
    lathe_status st = read_json(&d, path, err);
    if (!st) {
        const json_t *messages = d.root, *own_tools = NULL;
        if (json_is_object(d.root)) {
            messages = json_object_get(d.root, "messages");
            own_tools = json_object_get(d.root, "tools");
        }
        st = print_messages(b, &d, messages, err);
        if (!st && own_tools && !json_is_array(own_tools) && !json_is_null(own_tools))
            st = fail(err, LATHE_E_FORMAT, "tools: expected an array of tools");
        if (!st && json_is_array(own_tools) && tools->len == 0) {
            json_print(tools, &d, own_tools);
            st = buf_check(tools, "the tools", err);
        }
        if (st)
            error_context(err, "%s", path);
    }
    json_release(&d);
    return st;
}

lathe_status tools_read(struct buf *tools, const char *path, lathe_error *err)
{
    struct json_doc d;
    lathe_status st = read_json(&d, path, err);
    if (!st) {
        if (!json_is_array(d.root))
            st = fail(err, LATHE_E_FORMAT, "%s: expected an array of tools", path);
        buf_clear(tools);
        json_print(tools, &d, d.root);
        if (!st)
            st = buf_check(tools, "the tools", err);
    }
    json_release(&d);
    return st;
}

lathe_status messages_array(struct buf *out, const struct buf *messages, lathe_error *err)
{
    buf_clear(out);
    buf_putc(out, '[');
    buf_append(out, buf_str(messages), messages->len);
    buf_putc(out, ']');
    return buf_check(out, "the conversation", err);
}

/* Input items of Responses as messages in chat form. Items on the assistant's side that follow each other are one message. */
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "answers.h"
#include "base/utf8.h"
#include "openai_responses.h"
#include "state.h"

enum { TEXT_LIMIT = 1 << 28, MAX_FILE = 32 << 20 };
enum { ITEMS_OFTEN = 256 }; /* between two looks at the client: a millisecond or two */

/* The assistant's message at hand, in pieces of JSON. */
struct turn {
    bool is_open, has_reasoning;
    size_t n_reasoning; /* items of it */
    struct buf text, reasoning, calls;
    struct buf carrier; /* of the last of them */
};

struct reader {
    struct exchange *x;
    struct failure *failure;
    struct toolbox *tools;
    struct buf *out;
    size_t n;             /* messages written */
    size_t carried_bytes; /* of payloads that were unpacked */
    struct turn turn;
    /* The array at hand. */
    const struct json_doc *d;
    const json_t *array;
    size_t i;
    const char *label;     /* of the array, for errors */
    const json_t *request; /* the request's own items, whose results answer earlier calls, too */
    const struct json_doc *request_doc;
    json_t *results, *request_results; /* of has_result, for the two arrays; NULL: not needed yet */
};

static const char *member(const struct reader *r, const json_t *object, const char *name, size_t *n)
{
    return json_text(r->d, json_object_get(object, name), n);
}

static bool is_type(const struct reader *r, const json_t *object, const char *word)
{
    size_t n;
    const char *s = member(r, object, "type", &n);
    return s && strcmp(s, word) == 0;
}

/* ---- Messages ------------------------------------------------------------------------------- */

static void flush_turn(struct reader *r)
{
    struct turn *t = &r->turn;
    if (t->is_open) {
        buf_printf(r->out, "%s{\"role\": \"assistant\", \"content\": \"", r->n++ ? ", " : "[");
        buf_append_all(r->out, &t->text);
        buf_putc(r->out, '"');
        if (t->has_reasoning) {
            buf_puts(r->out, ", \"reasoning_content\": \"");
            buf_append_all(r->out, &t->reasoning);
            buf_putc(r->out, '"');
        }
        if (t->n_reasoning == 1 && t->carrier.len) {
            buf_puts(r->out, ", \"carrier\": \"");
            buf_append_all(r->out, &t->carrier);
            buf_putc(r->out, '"');
        }
        if (t->calls.len) {
            buf_puts(r->out, ", \"tool_calls\": [");
            buf_append_all(r->out, &t->calls);
            buf_putc(r->out, ']');
        }
        buf_putc(r->out, '}');
    }
    buf_clear(&t->text);
    buf_clear(&t->reasoning);
    buf_clear(&t->carrier);
    buf_clear(&t->calls);
    t->n_reasoning = 0;
    t->is_open = t->has_reasoning = false;
}

static void open_message(struct reader *r, const char *role)
{
    flush_turn(r);
    buf_printf(r->out, "%s{\"role\": \"%s\", \"content\": ", r->n++ ? ", " : "[", role);
}

/* An item as text, "[type: JSON]", JSON-escaped. */
static void put_shown(const struct reader *r, struct buf *out, const char *type, const json_t *v)
{
    struct buf text;
    buf_init(&text, TEXT_LIMIT);
    json_print(&text, r->d, v);
    buf_printf(out, "[%s: ", type);
    json_escape(out, buf_str(&text), text.len);
    buf_putc(out, ']');
    out->over |= text.over;
    out->no_memory |= text.no_memory;
    buf_release(&text);
}

/* ---- Content -------------------------------------------------------------------------------- */

/* What stands behind "data:text/...;base64,"; NULL if it is no such URL. */
static const char *text_data(const char *url)
{
    static const char head[] = "data:text/";
    const char *comma = strchr(url, ',');
    if (!comma || strncasecmp(url, head, strlen(head)) != 0)
        return NULL;
    for (const char *p = url; p < comma; p++)
        if (strncasecmp(p, ";base64,", 8) == 0)
            return comma + 1;
    return NULL;
}

/* Text of a file, with its name as a line before it. */
static bool put_file(const struct reader *r, struct buf *out, const char *path, const json_t *part)
{
    size_t n = 0, n_name = 0;
    const char *url = member(r, part, "file_data", &n);
    const char *name = member(r, part, "filename", &n_name);
    const char *data = url && strlen(url) == n ? text_data(url) : NULL;
    size_t len = data ? strlen(data) : 0;
    if (!data || len > MAX_FILE || len % 4)
        return refuse_field(r->failure, UNSUPPORTED_VALUE, path,
                            "%s: a file is supported as file_data, a data URL of a text type in "
                            "base64, of at most %d bytes",
                            path, MAX_FILE);
    unsigned char *text = malloc(len / 4 * 3 + 1);
    if (!text)
        return refuse(r->failure, INTERNAL, "out of memory");
    int decoded = EVP_DecodeBlock(text, (const unsigned char *)data, (int)len);
    size_t pad = len >= 2 ? (size_t)(data[len - 1] == '=') + (data[len - 2] == '=') : 0;
    bool ok = decoded >= (int)pad;
    size_t size = ok ? (size_t)decoded - pad : 0;
    ok = ok && utf8_valid_prefix((const char *)text, size) == size;
    if (ok && n_name) {
        json_escape(out, name, n_name);
        buf_puts(out, "\\n");
    }
    if (ok)
        json_escape(out, (const char *)text, size);
    free(text);
    return ok ||
           refuse_field(r->failure, BAD_VALUE, path, "%s.file_data: no UTF-8 text in base64", path);
}

static bool put_part(const struct reader *r, struct buf *out, const char *path, const json_t *part)
{
    static const struct {
        const char *type, *text;
    } texts[] = {{"input_text", "text"},   {"output_text", "text"},    {"text", "text"},
                 {"summary_text", "text"}, {"reasoning_text", "text"}, {"refusal", "refusal"}};
    size_t n;
    const char *type = member(r, part, "type", &n);
    for (size_t i = 0; i < sizeof texts / sizeof *texts && type; i++) {
        if (strcmp(type, texts[i].type) != 0)
            continue;
        const char *s = member(r, part, texts[i].text, &n);
        if (!s)
            return refuse_field(r->failure, BAD_TYPE, path, "%s.%s: expected a string, found %s",
                                path, texts[i].text,
                                json_kind(json_object_get(part, texts[i].text)));
        json_escape(out, s, n);
        return true;
    }
    if (type && strcmp(type, "input_file") == 0)
        return put_file(r, out, path, part);
    if (type && strcmp(type, "input_image") == 0)
        return refuse_field(r->failure, BAD_IMAGE, path,
                            "%s: image input needs the vision tower, which is not loaded", path);
    return refuse_field(r->failure, UNSUPPORTED_VALUE, path,
                        "%s: a part of type '%.40s' is not supported, only texts", path,
                        type ? type : "");
}

/* A string, or parts joined, JSON-escaped. is_result: as put_result_json has it, and nothing is empty. */
static bool put_content(const struct reader *r, struct buf *out, const char *path, const json_t *v,
                        bool is_result)
{
    size_t n;
    const char *s = json_text(r->d, v, &n);
    if (s) {
        json_escape(out, s, n);
    } else if (json_is_parts(v)) {
        for (size_t i = 0; i < json_array_size(v); i++) {
            char at[120];
            (void)snprintf(at, sizeof at, "%.90s[%zu]", path, i);
            if (!put_part(r, out, at, json_array_get(v, i)))
                return false;
        }
    } else if (!(is_result && put_result_json(out, r->d, v)) && !is_result) {
        return refuse_field(r->failure, BAD_TYPE, path,
                            "%s: expected a string or an array of parts, found %s", path,
                            json_kind(v));
    }
    return true;
}

static bool put_message(struct reader *r, const char *path, const json_t *item)
{
    const json_t *content = json_object_get(item, "content");
    char at[80];
    size_t n;
    const char *role = member(r, item, "role", &n);
    (void)snprintf(at, sizeof at, "%.60s.content", path);
    if (role && strcmp(role, "assistant") == 0) {
        r->turn.is_open = true;
        return put_content(r, &r->turn.text, at, content, false);
    }
    bool is_system = role && (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0);
    if (!is_system && !(role && strcmp(role, "user") == 0)) {
        (void)snprintf(at, sizeof at, "%.60s.role", path);
        return refuse_field(r->failure, BAD_VALUE, at,
                            "%s: '%.40s' is none of user, assistant, system, developer", at,
                            role ? role : "");
    }
    open_message(r, is_system ? "system" : "user");
    buf_putc(r->out, '"');
    bool ok = put_content(r, r->out, at, content, false);
    buf_puts(r->out, "\"}");
    return ok;
}

/* ---- The assistant's items ------------------------------------------------------------------ */

/* The texts of a list, with `between` between them. */
static void put_texts(const struct reader *r, struct buf *out, const json_t *list,
                      const char *between)
{
    size_t before = out->len;
    for (size_t i = 0; i < json_array_size(list); i++) {
        size_t n;
        const char *s = member(r, json_array_get(list, i), "text", &n);
        if (!s || n == 0)
            continue;
        buf_puts(out, out->len > before ? between : "");
        json_escape(out, s, n);
    }
}

/* The raw text if there is some, else the summary, which is the same text here; and what is carried of it. */
static bool put_reasoning(struct reader *r, const json_t *item)
{
    struct turn *t = &r->turn;
    if (t->text.len || t->calls.len)
        flush_turn(r);
    struct buf text;
    size_t n_carrier;
    const char *carrier = member(r, item, "encrypted_content", &n_carrier);
    buf_clear(&t->carrier);
    struct carried carried = {0};
    if (carrier && carrier_read(carrier, n_carrier, &r->carried_bytes, &carried))
        json_escape(&t->carrier, carrier, n_carrier);
    carried_release(&carried);
    t->n_reasoning++;
    buf_init(&text, TEXT_LIMIT);
    put_texts(r, &text, json_object_get(item, "content"), "");
    if (text.len == 0)
        put_texts(r, &text, json_object_get(item, "summary"), "\\n\\n");
    if (text.len && t->reasoning.len)
        buf_puts(&t->reasoning, "\\n\\n");
    buf_append_all(&t->reasoning, &text);
    t->has_reasoning = t->reasoning.len > 0;
    t->is_open |= t->has_reasoning || t->carrier.len;
    buf_release(&text);
    return true;
}

/* Does a result of the call stand at array[from] or behind it? *index: ids to the places of their last results, made once. */
static bool has_result(struct reader *r, json_t **index, const struct json_doc *d,
                       const json_t *array, size_t from, const char *id)
{
    size_t n_array = *index ? 0 : json_array_size(array), n;
    *index = *index ? *index : json_object();
    r->out->no_memory |= !*index;
    for (size_t i = 0; i < n_array; i++) {
        const json_t *item = json_array_get(array, i);
        const char *type = json_text(d, json_object_get(item, "type"), &n);
        const char *own = json_text(d, json_object_get(item, "call_id"), &n);
        if (type && own && strstr(type, "_output"))
            r->out->no_memory |=
                json_object_set_new_nocheck(*index, own, json_integer((json_int_t)i)) != 0;
    }
    const json_t *last = json_object_get(*index, id);
    return last && (size_t)json_integer_value(last) >= from;
}

static void put_call(struct reader *r, const char *id, const char *name, const char *arguments,
                     size_t n_arguments)
{
    struct buf *out = &r->turn.calls;
    r->turn.is_open = true;
    buf_printf(out, "%s{\"id\": ", out->len ? ", " : "");
    json_print_string(out, id, strlen(id));
    buf_puts(out, ", \"type\": \"function\", \"function\": {\"name\": ");
    json_print_string(out, name, strlen(name));
    buf_puts(out, ", \"arguments\": ");
    buf_append(out, arguments, n_arguments);
    buf_puts(out, "}}");
}

/* Is it the text of a JSON object, or blank? */
static bool is_object_text(const char *s, size_t n)
{
    struct json_doc d;
    if (strspn(s, " \t\r\n") == n)
        return true;
    bool ok = !json_read(&d, s, n, &json_limits_request, NULL) && json_is_object(d.root);
    json_release(&d);
    return ok;
}

/* Arguments that were cut off are shown as text, unless their call has a result, or was made here. */
static bool put_function_call(struct reader *r, const char *path, const json_t *item,
                              const char *id, const char *name)
{
    const json_t *v = json_object_get(item, "arguments");
    struct buf text;
    size_t n = 0;
    const char *s = json_text(r->d, v, &n);
    bool is_object = json_is_object(v) || !v || json_is_null(v);
    if (!is_object && !s)
        return refuse_field(r->failure, BAD_TYPE, path, "%s.arguments: expected a string, found %s",
                            path, json_kind(v));
    if (s && !is_object_text(s, n) && !answers_call(r->x->server->answers, id, name, NULL, NULL)) {
        if (has_result(r, &r->results, r->d, r->array, r->i + 1, id) ||
            has_result(r, &r->request_results, r->request_doc, r->request, 0, id))
            return refuse_field(r->failure, BAD_VALUE, path,
                                "%s.arguments: expected the text of a JSON object", path);
        buf_printf(&r->turn.text, "[");
        json_escape(&r->turn.text, name, strlen(name));
        buf_puts(&r->turn.text, ": ");
        json_escape(&r->turn.text, s, n);
        buf_putc(&r->turn.text, ']');
        r->turn.is_open = true;
        return true;
    }
    buf_init(&text, TEXT_LIMIT);
    if (s)
        json_print_string(&text, s, n);
    else if (json_is_object(v))
        json_print(&text, r->d, v);
    else
        buf_puts(&text, "{}");
    put_call(r, id, name, buf_str(&text), text.len);
    r->turn.calls.over |= text.over;
    r->turn.calls.no_memory |= text.no_memory;
    buf_release(&text);
    return true;
}

static bool put_custom_call(struct reader *r, const char *path, const json_t *item, const char *id,
                            const char *name)
{
    struct buf text;
    size_t n = 0;
    const char *s = member(r, item, "input", &n);
    if (!s)
        return refuse_field(r->failure, BAD_TYPE, path, "%s.input: expected a string, found %s",
                            path, json_kind(json_object_get(item, "input")));
    buf_init(&text, TEXT_LIMIT);
    buf_puts(&text, "{\"input\": ");
    json_print_string(&text, s, n);
    buf_putc(&text, '}');
    put_call(r, id, name, buf_str(&text), text.len);
    r->turn.calls.over |= text.over;
    r->turn.calls.no_memory |= text.no_memory;
    buf_release(&text);
    return true;
}

/* function_call, custom_tool_call, tool_search_call */
static bool put_any_call(struct reader *r, const char *path, const json_t *item)
{
    size_t n;
    const char *id = member(r, item, "call_id", &n), *name = member(r, item, "name", &n);
    const char *space = member(r, item, "namespace", &n);
    if (is_type(r, item, "tool_search_call"))
        return put_function_call(r, path, item, id ? id : "", "tool_search");
    if (!name || !*name)
        return refuse_field(r->failure, name ? BAD_VALUE : MISSING_FIELD, path,
                            "%s.name: expected the tool's name", path);
    name = toolbox_rendered(r->tools, space, name);
    if (!name)
        return refuse(r->failure, INTERNAL, "out of memory");
    return is_type(r, item, "custom_tool_call")
               ? put_custom_call(r, path, item, id ? id : "", name)
               : put_function_call(r, path, item, id ? id : "", name);
}

/* ---- Results -------------------------------------------------------------------------------- */

static bool put_result(struct reader *r, const char *path, const json_t *item)
{
    char at[80];
    size_t n;
    const char *id = member(r, item, "call_id", &n);
    bool ok;
    open_message(r, "tool");
    buf_putc(r->out, '"');
    if (is_type(r, item, "tool_search_output")) {
        struct buf lines;
        buf_init(&lines, TEXT_LIMIT);
        ok = toolbox_load(r->tools, r->x, r->d, json_object_get(item, "tools"), path, &lines);
        json_escape(r->out, buf_str(&lines), lines.len);
        r->out->over |= lines.over;
        r->out->no_memory |= lines.no_memory;
        buf_release(&lines);
    } else {
        (void)snprintf(at, sizeof at, "%.60s.output", path);
        ok = put_content(r, r->out, at, json_object_get(item, "output"), true);
    }
    buf_puts(r->out, "\", \"tool_call_id\": ");
    json_print_string(r->out, id ? id : "", id ? strlen(id) : 0);
    buf_putc(r->out, '}');
    return ok;
}

/* ---- Items ---------------------------------------------------------------------------------- */

/* Calls of tools that ran at OpenAI's, and their results. */
static bool is_foreign(const char *type)
{
    static const char *const exact[] = {
        "web_search_call",       "file_search_call",        "image_generation_call",
        "code_interpreter_call", "computer_call",           "computer_call_output",
        "local_shell_call",      "local_shell_call_output", "shell_call",
        "shell_call_output",     "apply_patch_call",        "apply_patch_call_output"};
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++)
        if (strcmp(type, exact[i]) == 0)
            return true;
    return strncmp(type, "mcp_", 4) == 0;
}

static bool put_item(struct reader *r, const char *path, const json_t *item)
{
    size_t n;
    const char *type = member(r, item, "type", &n);
    if (!json_is_object(item))
        return refuse_field(r->failure, BAD_TYPE, path, "%s: expected an object, found %s", path,
                            json_kind(item));
    if (!type && json_object_get(item, "role"))
        type = "message";
    type = type ? type : "";
    if (strcmp(type, "message") == 0)
        return put_message(r, path, item);
    if (strcmp(type, "reasoning") == 0)
        return put_reasoning(r, item);
    if (strcmp(type, "function_call") == 0 || strcmp(type, "custom_tool_call") == 0 ||
        strcmp(type, "tool_search_call") == 0)
        return put_any_call(r, path, item);
    if (strcmp(type, "function_call_output") == 0 || strcmp(type, "custom_tool_call_output") == 0 ||
        strcmp(type, "tool_search_output") == 0)
        return put_result(r, path, item);
    if (is_foreign(type)) {
        put_shown(r, &r->turn.text, type, item);
        r->turn.is_open = true;
        return true;
    }
    if (strncmp(type, "compaction", 10) == 0)
        return refuse_field(r->failure, UNSUPPORTED_VALUE, path,
                            "%s: another server's compacted history cannot be read; send the items "
                            "themselves",
                            path);
    char param[100];
    (void)snprintf(param, sizeof param, "%s.type", path);
    return refuse_field(r->failure, BAD_VALUE, param, "%s: '%.40s' is no type of item", param,
                        type);
}

/* ---- What is stored ------------------------------------------------------------------------- */

/* The item with an id of its own, if it has none, and a message in its full form. Items that the model is shown as they are
 * stay so. */
static bool store_input(struct reader *r, struct buf *out, const json_t *v)
{
    union {
        const json_t *in;
        json_t *out;
    } item = {v};
    static const struct {
        const char *type, *prefix;
    } ids[] = {{"message", "msg_"},          {"reasoning", "rs_"},
               {"function_call", "fc_"},     {"function_call_output", "fco_"},
               {"custom_tool_call", "ctc_"}, {"custom_tool_call_output", "ctco_"},
               {"tool_search_call", "tsc_"}, {"tool_search_output", "tso_"}};
    bool ok = true;
    size_t n;
    if (!json_object_get(v, "type"))
        ok = json_object_set_new(item.out, "type", json_string("message")) == 0;
    json_t *content = json_object_get(item.out, "content");
    const char *role = member(r, v, "role", &n);
    if (ok && json_is_string(content) && is_type(r, v, "message")) {
        bool is_own = role && strcmp(role, "assistant") == 0;
        json_t *parts = json_pack("[{s:s,s:O}]", "type", is_own ? "output_text" : "input_text",
                                  "text", content);
        ok = json_object_set_new(item.out, "content", parts) == 0;
    }
    for (size_t i = 0; ok && i < sizeof ids / sizeof *ids; i++) {
        char id[STORED_ID];
        if (!is_type(r, v, ids[i].type) || json_is_string(json_object_get(v, "id")))
            continue;
        (void)snprintf(id, sizeof id, "%s", ids[i].prefix);
        server_id(r->x->server, id + strlen(id));
        ok = json_object_set_new(item.out, "id", json_string(id)) == 0;
    }
    buf_puts(out, out->len > 1 ? ", " : "");
    json_print(out, r->d, v);
    return ok || refuse(r->failure, INTERNAL, "out of memory");
}

/* ---- Arrays --------------------------------------------------------------------------------- */

/* A reference is the item that it names. */
static bool put_reference(struct reader *r, const char *path, const json_t *item,
                          struct buf *stored)
{
    const struct json_doc *outer = r->d;
    struct json_doc d = {0};
    struct buf text;
    lathe_error err;
    size_t n;
    const char *id = member(r, item, "id", &n);
    buf_init(&text, TEXT_LIMIT);
    bool ok = store_item(r->x->server->store, &r->x->owner, id ? id : "", &text);
    if (!ok) {
        (void)refuse_field(r->failure, BAD_VALUE, path,
                           "%s.id: no item '%.60s' is stored; send the item itself", path,
                           id ? id : "");
    } else if (json_read_watched(&d, buf_str(&text), text.len, &json_limits_request, &r->x->watch,
                                 &err)) {
        ok = refuse_status(r->failure, &err);
    } else {
        r->d = &d;
        ok = put_item(r, path, d.root) && store_input(r, stored, d.root);
        r->d = outer;
    }
    json_release(&d);
    buf_release(&text);
    return ok;
}

static bool put_array(struct reader *r, const char *label, const struct json_doc *d,
                      const json_t *array, struct buf *stored)
{
    r->d = d;
    r->array = array;
    json_decref(r->results);
    r->results = NULL;
    for (r->i = 0; r->i < json_array_size(array); r->i++) {
        const json_t *item = json_array_get(array, r->i);
        char path[60];
        lathe_error err;
        if (watch_work(&r->x->watch, 1, ITEMS_OFTEN, &err))
            return refuse_status(r->failure, &err);
        (void)snprintf(path, sizeof path, "%s[%zu]", label, r->i);
        if (stored && is_type(r, item, "item_reference")
                ? !put_reference(r, path, item, stored)
                : !put_item(r, path, item) || (stored && !store_input(r, stored, item)))
            return false;
    }
    return true;
}

static bool put_text_array(struct reader *r, const char *s, size_t n)
{
    struct json_doc d;
    lathe_error err;
    lathe_status st = json_read_watched(&d, s, n, &json_limits_request, &r->x->watch, &err);
    bool ok = st ? refuse_status(r->failure, &err)
                 : put_array(r, "previous_response_id", &d, d.root, NULL);
    json_release(&d);
    return ok;
}

/* The turns before this one, the first of them first. */
static bool put_chain(struct reader *r, const struct stored *last)
{
    size_t n = 0, i;
    for (const struct stored *s = last; s; s = s->previous)
        n++;
    const struct stored **all = malloc((n + 1) * sizeof *all);
    if (!all)
        return refuse(r->failure, INTERNAL, "out of memory");
    i = n;
    for (const struct stored *s = last; s; s = s->previous)
        all[--i] = s;
    bool ok = true;
    for (i = 0; i < n && ok; i++)
        ok = put_text_array(r, all[i]->input, all[i]->n_input) &&
             put_text_array(r, all[i]->object + all[i]->output_at, all[i]->n_output);
    free(all);
    return ok;
}

/* A string is one message of the user. */
static bool put_string(struct reader *r, const struct fields *f, const json_t *v,
                       struct buf *stored)
{
    json_t *item = json_pack("{s:s,s:s,s:O}", "type", "message", "role", "user", "content", v);
    if (!item)
        return refuse(r->failure, INTERNAL, "out of memory");
    r->d = &f->doc;
    bool ok = put_item(r, "input", item) && store_input(r, stored, item);
    json_decref(item);
    return ok;
}

bool responses_input(struct exchange *x, const struct fields *f, struct responses_request *q,
                     struct buf *out)
{
    struct reader r = {.x = x, .failure = f->failure, .tools = &q->tools, .out = out};
    const json_t *v = field_value(f, "input"), *array;
    size_t n = 0, n_text;
    const char *s = NULL;
    if (!field_text(f, "instructions", &s, &n))
        return false;
    if (v && !json_is_array(v) && !json_text(&f->doc, v, &n_text))
        return field_is_no(f, "input", "a string or an array", v);
    if (json_is_array(v) && !field_limited(f, "input", &array, LIMIT_MESSAGES))
        return false;
    if (!q->previous && (!v || (json_is_array(v) && json_array_size(v) == 0)))
        return refuse_field(f->failure, v ? BAD_VALUE : MISSING_FIELD, "input", "input is %s",
                            v ? "empty" : "missing");
    buf_init(&r.turn.text, TEXT_LIMIT);
    buf_init(&r.turn.reasoning, TEXT_LIMIT);
    buf_init(&r.turn.carrier, TEXT_LIMIT);
    buf_init(&r.turn.calls, TEXT_LIMIT);
    r.request = json_is_array(v) ? v : NULL;
    r.request_doc = &f->doc;
    if (s && n) {
        open_message(&r, "system");
        json_print_string(out, s, n);
        buf_putc(out, '}');
    }
    buf_putc(&q->input, '[');
    bool ok = put_chain(&r, q->previous) &&
              (!v || (json_is_array(v) ? put_array(&r, "input", &f->doc, v, &q->input)
                                       : put_string(&r, f, v, &q->input)));
    flush_turn(&r);
    json_decref(r.results);
    json_decref(r.request_results);
    buf_puts(&q->input, "]");
    if (r.n == 0)
        buf_putc(out, '[');
    buf_release(&r.turn.text);
    buf_release(&r.turn.reasoning);
    buf_release(&r.turn.carrier);
    buf_release(&r.turn.calls);
    return ok;
}

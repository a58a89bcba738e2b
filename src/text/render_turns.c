#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/render.h"
#include "text/template_string.h"

/* Qwen's templates do not take a user message in these for a question of the user, so that a late
 * system message in its place does not end the span of kept reasoning. */
const char fence_begin[] = "<tool_response>", fence_end[] = "</tool_response>";

enum role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL, N_ROLES };
static const char *const role_name[] = {"system", "user", "assistant", "tool"};

struct builder_of_turns {
    struct run *r;
    struct conversation *c;
    size_t i; /* the message at hand */
};

void conversation_release(struct conversation *c)
{
    json_release(&c->messages);
    json_release(&c->tools);
    json_release(&c->kwargs);
    for (size_t i = 0; i < c->n_arguments; i++)
        json_release(&c->argument[i]);
    free(c->argument);
    free(c->assistant);
    *c = (struct conversation){0};
}

static const char *kind(const json_t *v)
{
    static const char *const name[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "a number", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null",
    };
    return v ? name[json_typeof(v)] : "nothing";
}

static bool is_nothing(const json_t *v)
{
    return !v || json_is_null(v);
}

static bool literal(struct run *r, const char *s, struct value *out)
{
    return value_text(r, s, strlen(s), FROM_CONVERSATION, out);
}

static bool put_member(struct run *r, struct dict *d, const char *key, struct value v)
{
    struct value k;
    return literal(r, key, &k) && dict_set(r, d, k, v);
}

/* ---- Checks -------------------------------------------------------------------------------- */

static bool find_role(struct builder_of_turns *b, const json_t *m, enum role *role)
{
    const json_t *v = json_object_get(m, "role");
    size_t n;
    const char *s = json_text(&b->c->messages, v, &n);
    if (!s)
        return run_fail(b->r, LATHE_E_ARGUMENT, "messages[%zu].role: expected a string, found %s",
                        b->i, kind(v));
    if (strcmp(s, "developer") == 0)
        s = "system";
    for (*role = 0; *role < N_ROLES; (*role)++)
        if (strcmp(s, role_name[*role]) == 0)
            return true;
    return run_fail(
        b->r, LATHE_E_ARGUMENT,
        "messages[%zu].role: '%.40s' is none of system, developer, user, assistant, tool", b->i, s);
}

static bool has_any(const json_t *part, const char *const name[3])
{
    for (int i = 0; i < 3; i++)
        if (json_object_get(part, name[i]))
            return true;
    return false;
}

/* A part that is neither text nor what a template may have a placeholder for, which some leave out silently;
 * and for a request those too, also beside a text. */
static bool check_media(struct builder_of_turns *b, const json_t *part, size_t k, const char *type,
                        bool is_text)
{
    static const char *const image[] = {"image", "image_url", "input_image"};
    static const char *const video[] = {"video", "video_url", "input_video"};
    bool is_image = has_any(part, image), is_video = has_any(part, video);
    for (int i = 0; i < 3 && type; i++) {
        is_image |= strcmp(type, image[i]) == 0;
        is_video |= strcmp(type, video[i]) == 0;
    }
    if (b->c->text_only && (is_image || is_video))
        return run_fail(b->r, is_image ? LATHE_E_IMAGE : LATHE_E_UNSUPPORTED,
                        "messages[%zu].content[%zu]: %s", b->i, k,
                        is_image ? "image input needs the vision tower, which is not loaded"
                                 : "videos are not supported");
    if (!is_text && !is_image && !is_video)
        return run_fail(b->r, LATHE_E_UNSUPPORTED,
                        "messages[%zu].content[%zu]: a part of type '%.40s' is not supported, only "
                        "text",
                        b->i, k, type ? type : "");
    return true;
}

static bool check_content(struct builder_of_turns *b, const json_t *m)
{
    const json_t *content = json_object_get(m, "content");
    size_t n;
    if (is_nothing(content) || json_text(&b->c->messages, content, &n))
        return true;
    if (!json_is_array(content))
        return run_fail(b->r, LATHE_E_ARGUMENT,
                        "messages[%zu].content: expected a string or an array, found %s", b->i,
                        kind(content));
    for (size_t k = 0; k < json_array_size(content); k++) {
        const json_t *part = json_array_get(content, k);
        const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");
        if (!json_is_object(part))
            return run_fail(b->r, LATHE_E_ARGUMENT,
                            "messages[%zu].content[%zu]: expected an object, found %s", b->i, k,
                            kind(part));
        const char *s = json_text(&b->c->messages, type, &n);
        bool is_text = text || (s && strcmp(s, "text") == 0);
        if (is_text && !json_text(&b->c->messages, text, &n))
            return run_fail(b->r, LATHE_E_ARGUMENT,
                            "messages[%zu].content[%zu].text: expected a string, found %s", b->i, k,
                            kind(text));
        if (!is_text && !s && !is_nothing(type))
            return run_fail(b->r, LATHE_E_ARGUMENT,
                            "messages[%zu].content[%zu].type: expected a string, found %s", b->i, k,
                            kind(type));
        if (!check_media(b, part, k, s, is_text))
            return false;
    }
    return true;
}

/* An empty string, an empty array, null or nothing. */
static bool is_empty(struct builder_of_turns *b, const json_t *v)
{
    size_t n;
    return is_nothing(v) || (json_is_array(v) && json_array_size(v) == 0) ||
           (json_text(&b->c->messages, v, &n) && n == 0);
}

/* ---- Tool calls ---------------------------------------------------------------------------- */

static bool add_document(struct builder_of_turns *b, struct json_doc **d)
{
    struct conversation *c = b->c;
    if (c->n_arguments == c->cap_arguments) {
        size_t cap = c->cap_arguments ? c->cap_arguments * 2 : 8;
        struct json_doc *more = realloc(c->argument, cap * sizeof *more);
        if (!more)
            return run_fail(b->r, LATHE_E_MEMORY, "out of memory (%zu bytes)", cap * sizeof *more);
        c->argument = more;
        c->cap_arguments = cap;
    }
    *d = &c->argument[c->n_arguments++];
    **d = (struct json_doc){0};
    return true;
}

/* Arguments as an object: given so, or as its text; blank text is {}. */
static bool build_arguments(struct builder_of_turns *b, const char *path, const json_t *v,
                            struct value *out)
{
    struct run *r = b->r;
    size_t n;
    const char *s = json_text(&b->c->messages, v, &n);
    if (json_is_object(v))
        return value_from_json(r, &b->c->messages, v, FROM_CONVERSATION, out);
    if (is_nothing(v) || (s && strspn(s, " \t\r\n") == n))
        return value_dict(r, 0, FROM_CONVERSATION, out);
    if (!s)
        return run_fail(r, LATHE_E_ARGUMENT, "%s: expected an object or its JSON text, found %s",
                        path, kind(v));
    struct json_doc *d = NULL;
    lathe_error err = {0};
    if (!add_document(b, &d))
        return false;
    lathe_status st = json_read(d, s, n, &json_limits_request, &err);
    if (st)
        return run_fail(r, st == LATHE_E_MEMORY ? st : LATHE_E_ARGUMENT, "%s: %s", path,
                        err.message);
    if (!json_is_object(d->root))
        return run_fail(r, LATHE_E_ARGUMENT, "%s: the text is %s, expected an object", path,
                        kind(d->root));
    return value_from_json(r, d, d->root, FROM_CONVERSATION, out);
}

/* The members of `call`, of which `arguments` and `function` are rebuilt. */
static bool build_call(struct builder_of_turns *b, const char *path, const json_t *call,
                       struct value *out)
{
    struct run *r = b->r;
    const json_t *function = json_object_get(call, "function");
    char at[120];
    size_t n;
    if (!json_is_object(call) || (function && !json_is_object(function)))
        return run_fail(r, LATHE_E_ARGUMENT, "%s%s: expected an object, found %s", path,
                        function ? ".function" : "", kind(function ? function : call));
    if (!function) {
        const json_t *name = json_object_get(call, "name");
        const char *s = json_text(&b->c->messages, name, &n);
        if (!s || n == 0)
            return run_fail(r, LATHE_E_ARGUMENT, "%s.name: expected the tool's name, found %s",
                            path, s ? "an empty string" : kind(name));
    }
    if (!value_dict(r, json_object_size(call), FROM_CONVERSATION, out))
        return false;
    json_t *tree = json_members(call);
    for (void *it = json_object_iter(tree); it; it = json_object_iter_next(tree, it)) {
        const char *key = json_object_iter_key(it);
        const json_t *v = json_object_iter_value(it);
        struct value x;
        (void)snprintf(at, sizeof at, "%s.%.20s", path, key);
        bool ok = strcmp(key, "function") == 0 ? build_call(b, at, v, &x)
                  : !function && strcmp(key, "arguments") == 0
                      ? build_arguments(b, at, v, &x)
                      : value_from_json(r, &b->c->messages, v, FROM_CONVERSATION, &x);
        if (!ok || !put_member(r, out->u.dict, key, x))
            return false;
    }
    return true;
}

static bool build_calls(struct builder_of_turns *b, const json_t *calls, struct value *out)
{
    size_t n = json_array_size(calls);
    struct value *item = run_array(b->r, n, sizeof *item);
    if (!item)
        return false;
    for (size_t k = 0; k < n; k++) {
        char path[60];
        (void)snprintf(path, sizeof path, "messages[%zu].tool_calls[%zu]", b->i, k);
        if (!build_call(b, path, json_array_get(calls, k), &item[k]))
            return false;
    }
    return value_list(b->r, V_LIST, item, n, FROM_CONVERSATION, out);
}

/* ---- Messages ------------------------------------------------------------------------------ */

static bool build_message(struct builder_of_turns *b, const json_t *m, enum role role,
                          struct value *out)
{
    struct run *r = b->r;
    json_t *tree = json_members(m);
    if (!value_dict(r, json_object_size(m), FROM_CONVERSATION, out))
        return false;
    for (void *it = json_object_iter(tree); it; it = json_object_iter_next(tree, it)) {
        const char *key = json_object_iter_key(it);
        const json_t *v = json_object_iter_value(it);
        struct value x;
        size_t n;
        bool ok = true;
        if (strcmp(key, "role") == 0) {
            ok = literal(r, role_name[role], &x);
        } else if (strcmp(key, "tool_calls") == 0) {
            if (is_nothing(v))
                continue;
            if (!json_is_array(v))
                return run_fail(r, LATHE_E_ARGUMENT,
                                "messages[%zu].tool_calls: expected an array, found %s", b->i,
                                kind(v));
            ok = build_calls(b, v, &x);
        } else {
            if (strcmp(key, "reasoning_content") == 0 && !is_nothing(v) &&
                !json_text(&b->c->messages, v, &n))
                return run_fail(r, LATHE_E_ARGUMENT,
                                "messages[%zu].reasoning_content: expected a string, found %s",
                                b->i, kind(v));
            ok = value_from_json(r, &b->c->messages, v, FROM_CONVERSATION, &x);
        }
        if (!ok || !put_member(r, out->u.dict, key, x))
            return false;
    }
    return true;
}

/* The text of a message's content, trimmed. False with an error at parts other than text, unless
 * `skip_media`. */
static bool text_of(struct builder_of_turns *b, const json_t *m, bool skip_media,
                    const struct string **out)
{
    struct run *r = b->r;
    const json_t *content = json_object_get(m, "content");
    struct builder text;
    struct value v;
    size_t n;
    builder_init(&text, r);
    const char *s = json_text(&b->c->messages, content, &n);
    if (s && !builder_put(&text, s, n, FROM_CONVERSATION))
        return false;
    for (size_t k = 0; k < json_array_size(content); k++) {
        s = json_text(&b->c->messages, json_object_get(json_array_get(content, k), "text"), &n);
        if (!s && !skip_media)
            return run_fail(r, LATHE_E_ARGUMENT,
                            "messages[%zu].content[%zu]: a system message holds text only", b->i,
                            k);
        if (s && !builder_put(&text, s, n, FROM_CONVERSATION))
            return false;
    }
    if (!builder_string(&text, &v) || !string_strip(r, v.u.string, NULL, STRIP_BOTH, &v))
        return false;
    *out = v.u.string;
    return true;
}

static bool simple_message(struct run *r, enum role role, struct value content, struct value *out)
{
    struct value name;
    return value_dict(r, 2, FROM_CONVERSATION, out) && literal(r, role_name[role], &name) &&
           put_member(r, out->u.dict, "role", name) &&
           put_member(r, out->u.dict, "content", content);
}

/* A late system message where it stands: a user message, fenced. */
static bool fenced_message(struct run *r, const struct string *text, struct value *out)
{
    struct builder b;
    struct value content;
    builder_init(&b, r);
    return builder_puts(&b, fence_begin, FROM_FENCE) && builder_put_string(&b, text) &&
           builder_puts(&b, fence_end, FROM_FENCE) && builder_string(&b, &content) &&
           simple_message(r, ROLE_USER, content, out);
}

bool turns_with_stand_in(struct run *r, struct value list, struct value *out)
{
    struct value content, message, one;
    return value_text(r, ".", 1, FROM_STAND_IN, &content) &&
           simple_message(r, ROLE_USER, content, &message) &&
           value_list(r, V_LIST, &message, 1, FROM_CONVERSATION, &one) &&
           list_concat(r, list, one, out);
}

static bool is_wrapped_result(const struct string *s)
{
    const struct string begin = {.s = fence_begin, .n = strlen(fence_begin)};
    const struct string end = {.s = fence_end, .n = strlen(fence_end)};
    return string_has_prefix(s, &begin) && string_has_suffix(s, &end);
}

/* The merged system block. */
struct block {
    struct builder text; /* trimmed texts, a blank line between */
    size_t n;            /* messages in it */
    struct value only;   /* the message itself, while it is one */
};

static bool add_to_block(struct builder_of_turns *b, struct block *block, const json_t *m)
{
    const struct string *text;
    if (!text_of(b, m, false, &text))
        return false;
    if (block->n++ == 0 && !build_message(b, m, ROLE_SYSTEM, &block->only))
        return false;
    if (text->n == 0)
        return true;
    return (block->text.n == 0 || builder_puts(&block->text, "\n\n", FROM_CONVERSATION)) &&
           builder_put_string(&block->text, text);
}

static bool close_block(struct run *r, struct block *block, struct value *out)
{
    struct value content;
    if (block->n == 1) {
        *out = block->only;
        return true;
    }
    return builder_string(&block->text, &content) && simple_message(r, ROLE_SYSTEM, content, out);
}

/* One message into the list, whose first place is kept for the system block. */
static bool add_message(struct builder_of_turns *b, const json_t *m, lathe_late_system late,
                        bool *user_seen, struct block *block, struct value *item, size_t *n,
                        struct turns *out)
{
    struct run *r = b->r;
    const struct string *text;
    enum role role;
    if (!json_is_object(m))
        return run_fail(r, LATHE_E_ARGUMENT, "messages[%zu]: expected an object, found %s", b->i,
                        kind(m));
    if (!find_role(b, m, &role) || !check_content(b, m))
        return false;
    if (role == ROLE_SYSTEM && (!*user_seen || late == LATHE_LATE_SYSTEM_MERGE))
        return add_to_block(b, block, m);
    if (role == ROLE_SYSTEM && late == LATHE_LATE_SYSTEM_INLINE) {
        if (!text_of(b, m, false, &text))
            return false;
        if (text->n == 0)
            return true;
        out->n_fenced++;
        return fenced_message(r, text, &item[(*n)++]);
    }
    if (role == ROLE_ASSISTANT && is_empty(b, json_object_get(m, "content")) &&
        is_empty(b, json_object_get(m, "reasoning_content")) &&
        is_empty(b, json_object_get(m, "tool_calls")))
        return true;
    if (role == ROLE_USER) {
        *user_seen = true;
        if (!text_of(b, m, true, &text))
            return false;
        out->has_query |= !is_wrapped_result(text);
    }
    if (role == ROLE_ASSISTANT)
        b->c->assistant[b->c->n_assistant++] = b->i;
    return build_message(b, m, role, &item[(*n)++]);
}

bool turns_build(struct run *r, struct conversation *c, lathe_late_system late, struct turns *out)
{
    const json_t *messages = c->messages.root;
    *out = (struct turns){0};
    if (!json_is_array(messages))
        return run_fail(r, LATHE_E_ARGUMENT, "messages: expected an array, found %s",
                        kind(messages));
    size_t n_messages = json_array_size(messages), n = 1;
    if (n_messages == 0 && !c->may_be_empty)
        return run_fail(r, LATHE_E_ARGUMENT, "messages: the array is empty");
    struct value *item = run_array(r, n_messages + 1, sizeof *item);
    if (!item)
        return false;
    free(c->assistant); /* of an earlier call */
    c->assistant = calloc(n_messages + 1, sizeof *c->assistant);
    c->n_assistant = 0;
    if (!c->assistant)
        return run_fail(r, LATHE_E_MEMORY, "out of memory (%zu bytes)",
                        n_messages * sizeof *c->assistant);
    struct builder_of_turns b = {.r = r, .c = c};
    struct block block = {.n = 0};
    builder_init(&block.text, r);
    bool user_seen = false;
    for (; b.i < n_messages; b.i++)
        if (!add_message(&b, json_array_get(messages, b.i), late, &user_seen, &block, item, &n,
                         out))
            return false;
    if (block.n && !close_block(r, &block, &item[0]))
        return false;
    size_t from = block.n ? 0 : 1;
    if (n == from && !c->may_be_empty)
        return run_fail(r, LATHE_E_ARGUMENT, "messages: nothing in them to render");
    return value_list(r, V_LIST, item + from, n - from, FROM_CONVERSATION, &out->list);
}

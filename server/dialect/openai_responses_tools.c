/* Tools of Responses as functions in chat form, and their names on the way back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/utf8.h"
#include "hosted.h"
#include "openai_responses.h"

enum { MAX_LOADED = 16384, MAX_NAME = 128, TEXT_LIMIT = 1 << 28 };

bool toolbox_init(struct toolbox *b, struct arena *arena, struct failure *f)
{
    *b = (struct toolbox){.arena = arena};
    buf_init(&b->listed, TEXT_LIMIT);
    buf_init(&b->callable, TEXT_LIMIT);
    b->by_rendered = json_object();
    b->by_origin = json_object();
    return (b->by_rendered && b->by_origin) || refuse(f, INTERNAL, "out of memory");
}

void toolbox_release(struct toolbox *b)
{
    json_decref(b->by_rendered);
    json_decref(b->by_origin);
    buf_release(&b->listed);
    buf_release(&b->callable);
    free(b->tool);
    *b = (struct toolbox){0};
}

const struct named_tool *toolbox_find(const struct toolbox *b, const char *rendered)
{
    const json_t *v = json_object_get(b->by_rendered, rendered);
    return v ? &b->tool[json_integer_value(v)] : NULL;
}

/* Namespace and name in one; no name has a line break. */
static char *origin_of(const struct toolbox *b, const char *space, const char *name)
{
    size_t n_space = space ? strlen(space) : 0, n_name = strlen(name);
    char *key = arena_alloc(b->arena, n_space + n_name + 2);
    if (!key)
        return NULL;
    memcpy(key, space ? space : "", n_space);
    key[n_space] = '\n';
    memcpy(key + n_space + 1, name, n_name + 1);
    return key;
}

/* SPACE__NAME, unless the name begins so; at most MAX_NAME bytes. */
static const char *join(const struct toolbox *b, const char *space, const char *name)
{
    size_t n_space = space ? strlen(space) : 0, n_name = strlen(name), n = n_space + 2 + n_name;
    if (n_space == 0 ||
        (strncmp(name, space, n_space) == 0 && strncmp(name + n_space, "__", 2) == 0))
        return name;
    char *s = arena_alloc(b->arena, n + 1);
    if (!s)
        return NULL;
    memcpy(s, space, n_space);
    memcpy(s + n_space, "__", 2);
    memcpy(s + n_space + 2, name, n_name + 1);
    if (n > MAX_NAME)
        s[utf8_valid_prefix(s, MAX_NAME)] = 0;
    return s;
}

const char *toolbox_rendered(const struct toolbox *b, const char *space, const char *name)
{
    const char *key = origin_of(b, space, name);
    const json_t *v = key ? json_object_get(b->by_origin, key) : NULL;
    return v ? b->tool[json_integer_value(v)].rendered : key ? join(b, space, name) : NULL;
}

/* ---- Adding --------------------------------------------------------------------------------- */

struct adder {
    struct toolbox *box;
    struct exchange *x;
    const struct json_doc *d;
    struct buf *lines; /* of definitions that a search found; NULL: the body's own tools */
};

static const char *text_of(const struct adder *a, const json_t *object, const char *key)
{
    size_t n;
    const char *s = json_text(a->d, json_object_get(object, key), &n);
    return s && strlen(s) == n ? s : NULL;
}

static bool is_name(const char *s)
{
    size_t characters = 0;
    for (const char *p = s; *p; p++)
        characters += ((unsigned char)*p & 0xC0) != 0x80;
    return characters >= 1 && characters <= MAX_NAME && !strpbrk(s, "<>\n");
}

/* Another ending where two long names are cut to the same. */
static const char *make_unique(const struct toolbox *b, const char *rendered)
{
    size_t n = strlen(rendered);
    for (int i = 2; rendered && toolbox_find(b, rendered); i++) {
        char end[16];
        size_t n_end = (size_t)snprintf(end, sizeof end, "_%d", i);
        size_t keep = n + n_end > MAX_NAME ? utf8_valid_prefix(rendered, MAX_NAME - n_end) : n;
        char *s = arena_alloc(b->arena, keep + n_end + 1);
        if (!s)
            return NULL;
        memcpy(s, rendered, keep);
        memcpy(s + keep, end, n_end + 1);
        rendered = s;
    }
    return rendered;
}

static bool no_memory(const struct adder *a)
{
    return refuse(&a->x->failure, INTERNAL, "out of memory");
}

static bool register_tool(const struct adder *a, const struct named_tool *t, const char *key)
{
    struct toolbox *b = a->box;
    lathe_error err;
    struct named_tool *more = array_room(b->tool, b->n, &b->room, sizeof *more, &err);
    if (!more)
        return no_memory(a);
    b->tool = more;
    b->tool[b->n] = *t;
    if (json_object_set_new_nocheck(b->by_rendered, t->rendered, json_integer((json_int_t)b->n)) ||
        json_object_set_new_nocheck(b->by_origin, key, json_integer((json_int_t)b->n)))
        return no_memory(a);
    b->n++;
    return true;
}

/* The description; of a custom tool with the grammar that its input follows. */
static void put_description(const struct adder *a, struct buf *out, const json_t *tool,
                            const json_t *format)
{
    size_t n = 0, n_grammar = 0;
    const char *s = json_text(a->d, json_object_get(tool, "description"), &n);
    const char *grammar = json_text(a->d, json_object_get(format, "definition"), &n_grammar);
    if (!s && !grammar)
        return;
    buf_puts(out, ", \"description\": \"");
    json_escape(out, s ? s : "", n);
    if (grammar) {
        buf_printf(out, "%sThe input follows this lark grammar:\\n", s ? "\\n\\n" : "");
        json_escape(out, grammar, n_grammar);
    }
    buf_putc(out, '"');
}

static void put_definition(const struct adder *a, struct buf *out, const struct named_tool *t,
                           const json_t *tool)
{
    const json_t *parameters = json_object_get(tool, "parameters");
    bool is_custom = t->kind == TOOL_CUSTOM;
    buf_puts(out, "{\"type\": \"function\", \"function\": {\"name\": ");
    json_print_string(out, t->rendered, strlen(t->rendered));
    put_description(a, out, tool, is_custom ? json_object_get(tool, "format") : NULL);
    buf_puts(out, ", \"parameters\": ");
    if (is_custom)
        buf_puts(out, "{\"type\": \"object\", \"properties\": {\"input\": {\"type\": \"string\"}}, "
                      "\"required\": [\"input\"]}");
    else if (parameters && !json_is_null(parameters))
        json_print(out, a->d, parameters);
    else
        buf_puts(out, "{\"type\": \"object\", \"properties\": {}}");
    buf_puts(out, "}}");
}

static void put_entry(const struct adder *a, struct buf *out, const struct named_tool *t,
                      const json_t *tool)
{
    buf_puts(out, out->len ? ", " : "[");
    put_definition(a, out, t, tool);
}

/* A tool that becomes a function of the prompt. */
static bool add(const struct adder *a, const char *path, const json_t *tool, enum tool_kind kind,
                const char *space)
{
    struct toolbox *b = a->box;
    struct failure *f = &a->x->failure;
    const json_t *parameters = json_object_get(tool, "parameters");
    struct named_tool t = {.kind = kind, .space = space};
    const char *name = kind == TOOL_SEARCH ? "tool_search" : text_of(a, tool, "name");
    if (!name || !is_name(name))
        return refuse_field(
            f, name ? BAD_VALUE : MISSING_FIELD, path,
            "%s.name: expected a string of 1 to %d characters without <, > and line "
            "breaks",
            path, MAX_NAME);
    if (parameters && !json_is_null(parameters) && !json_is_object(parameters))
        return refuse_field(f, BAD_TYPE, path, "%s.parameters: expected an object, found %s", path,
                            json_kind(parameters));
    t.name = arena_strndup(b->arena, name, strlen(name));
    const char *key = t.name ? origin_of(b, space, t.name) : NULL;
    if (!key)
        return no_memory(a);
    const json_t *known = json_object_get(b->by_origin, key);
    if (known && !a->lines)
        return refuse_field(f, BAD_VALUE, path,
                            "%s.name: '%.60s' is the name of an earlier tool, too", path, name);
    if (known) {
        t = b->tool[json_integer_value(known)];
    } else {
        t.rendered = join(b, space, t.name);
        t.rendered = t.rendered ? make_unique(b, t.rendered) : NULL;
        if (!t.rendered)
            return no_memory(a);
        if (!register_tool(a, &t, key))
            return false;
        put_entry(a, &b->callable, &t, tool);
    }
    if (a->lines) {
        buf_puts(a->lines, a->lines->len ? "\n" : "");
        put_definition(a, a->lines, &t, tool);
    } else if (!json_is_true(json_object_get(tool, "defer_loading"))) {
        put_entry(a, &b->listed, &t, tool);
        b->n_listed++;
    }
    b->any_strict |= json_is_true(json_object_get(tool, "strict"));
    return true;
}

/* Text, or a grammar that the model is shown. */
static bool check_format(const struct adder *a, const char *path, const json_t *tool)
{
    struct failure *f = &a->x->failure;
    const json_t *format = json_object_get(tool, "format");
    const char *type = format ? text_of(a, format, "type") : "text";
    const char *syntax = text_of(a, format, "syntax");
    if (!format || json_is_null(format) || (type && strcmp(type, "text") == 0))
        return true;
    if (!type || strcmp(type, "grammar") != 0)
        return refuse_field(f, BAD_VALUE, path, "%s.format.type: '%.40s' is none of text, grammar",
                            path, type ? type : "");
    if (!syntax || strcmp(syntax, "lark") != 0 || a->box->strict_custom)
        return refuse_field(
            f, UNSUPPORTED_VALUE, path, "%s.format.syntax: '%.40s' is not supported, only text%s",
            path, syntax ? syntax : "",
            a->box->strict_custom ? " with strict_custom"
                                  : ", and lark, which the model is shown and not held to");
    if (!text_of(a, format, "definition"))
        return refuse_field(f, BAD_TYPE, path, "%s.format.definition: expected a string, found %s",
                            path, json_kind(json_object_get(format, "definition")));
    return true;
}

static bool add_namespace(const struct adder *a, const char *path, const json_t *tool)
{
    const json_t *inner = json_object_get(tool, "tools");
    const char *space = text_of(a, tool, "name");
    if (!space || !is_name(space))
        return refuse_field(
            &a->x->failure, BAD_VALUE, path,
            "%s.name: expected a string of 1 to %d characters without <, > and line "
            "breaks",
            path, MAX_NAME);
    space = arena_strndup(a->box->arena, space, strlen(space));
    if (!space)
        return no_memory(a);
    for (size_t i = 0; i < json_array_size(inner); i++) {
        const json_t *one = json_array_get(inner, i);
        char at[80];
        (void)snprintf(at, sizeof at, "%.50s.tools[%zu]", path, i);
        const char *type = text_of(a, one, "type");
        bool is_custom = type && strcmp(type, "custom") == 0;
        if (!json_is_object(one))
            continue; /* clients abbreviate */
        if (type && !is_custom && strcmp(type, "function") != 0)
            return refuse_field(&a->x->failure, UNSUPPORTED_VALUE, at,
                                "%s.type: '%.40s' is none of function, custom", at, type);
        if ((is_custom && !check_format(a, at, one)) ||
            !add(a, at, one, is_custom ? TOOL_CUSTOM : TOOL_FUNCTION, space))
            return false;
    }
    return true;
}

static bool add_any(const struct adder *a, const char *path, const json_t *tool)
{
    const char *type = text_of(a, tool, "type"), *execution = text_of(a, tool, "execution");
    if (!type)
        return refuse_field(&a->x->failure, json_is_object(tool) ? MISSING_FIELD : BAD_TYPE, path,
                            "%s: expected an object with a type, found %s", path, json_kind(tool));
    if (strcmp(type, "function") == 0)
        return add(a, path, tool, TOOL_FUNCTION, NULL);
    if (strcmp(type, "custom") == 0)
        return check_format(a, path, tool) && add(a, path, tool, TOOL_CUSTOM, NULL);
    if (strcmp(type, "namespace") == 0)
        return add_namespace(a, path, tool);
    if (strcmp(type, "tool_search") == 0 && execution && strcmp(execution, "client") == 0)
        return add(a, path, tool, TOOL_SEARCH, NULL);
    if (!tool_is_hosted(type))
        return refuse_field(&a->x->failure, UNSUPPORTED_VALUE, path,
                            "%s.type: '%.40s' is none of function, custom, namespace, tool_search",
                            path, type);
    tool_ignore(a->x, type);
    return true;
}

static bool check_number(const struct adder *a, const char *path)
{
    return a->box->n <= MAX_LOADED ||
           refuse_field(&a->x->failure, BAD_VALUE, path, "%s: more than %d tools in all", path,
                        MAX_LOADED);
}

bool toolbox_read(struct toolbox *b, struct exchange *x, const struct fields *f)
{
    const struct adder a = {b, x, &f->doc, NULL};
    const json_t *array = NULL;
    if (!field_limited(f, "tools", &array, LIMIT_TOOLS))
        return false;
    for (size_t i = 0; i < json_array_size(array); i++) {
        char path[40];
        (void)snprintf(path, sizeof path, "tools[%zu]", i);
        if (!add_any(&a, path, json_array_get(array, i)) || !check_number(&a, path))
            return false;
    }
    return true;
}

bool toolbox_load(struct toolbox *b, struct exchange *x, const struct json_doc *d,
                  const json_t *found, const char *path, struct buf *lines)
{
    const struct adder a = {b, x, d, lines};
    for (size_t i = 0; i < json_array_size(found); i++) {
        char at[80];
        (void)snprintf(at, sizeof at, "%.50s.tools[%zu]", path, i);
        if (json_is_object(json_array_get(found, i)) &&
            (!add_any(&a, at, json_array_get(found, i)) || !check_number(&a, at)))
            return false;
    }
    return true;
}

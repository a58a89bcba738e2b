#include "text/tools.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_DEPTH = 32,   /* of references and unions followed inside each other */
    MAX_NODES = 8192, /* visited for one question: bounds schemas that refer to themselves */
    MAX_POINTER = 1024,
};

struct toolset {
    struct json_doc doc;
    json_t *by_name; /* name to `parameters`, or to null */
};

lathe_status toolset_open(struct toolset **out, const char *json, size_t n, lathe_error *err)
{
    *out = NULL;
    struct toolset *ts = calloc(1, sizeof *ts);
    if (!ts)
        return fail_memory(err, sizeof *ts);
    lathe_status st = json_read(&ts->doc, json, n, &json_limits_request, err);
    if (!st && !json_is_array(ts->doc.root))
        st = fail(err, LATHE_E_ARGUMENT, "not an array");
    if (!st && !(ts->by_name = json_object()))
        st = fail_memory(err, 0);
    size_t i;
    json_t *tool;
    json_array_foreach(ts->doc.root, i, tool)
    {
        json_t *function = json_object_get(tool, "function");
        if (!json_is_object(function))
            function = tool;
        const json_t *name = json_object_get(function, "name");
        size_t n_name = json_string_length(name);
        const char *s = json_string_value(name);
        if (st || !s || n_name == 0 || n_name > TOOL_MAX_NAME || strlen(s) != n_name ||
            json_object_get(ts->by_name, s))
            continue;
        json_t *parameters = json_object_get(function, "parameters");
        if (json_object_set_nocheck(ts->by_name, s, parameters ? parameters : json_null()) != 0)
            st = fail_memory(err, n_name);
    }
    if (st) {
        error_context(err, "tools");
        toolset_close(ts);
        return st;
    }
    *out = ts;
    return LATHE_OK;
}

void toolset_close(struct toolset *ts)
{
    if (!ts)
        return;
    json_decref(ts->by_name);
    json_release(&ts->doc);
    free(ts);
}

bool toolset_any(const struct toolset *ts)
{
    return ts && json_array_size(ts->doc.root) > 0;
}

static const char *declared(const struct toolset *ts, const char *name)
{
    void *it = json_object_iter_at(ts->by_name, name);
    return it ? json_object_iter_key(it) : NULL;
}

const char *toolset_find(const struct toolset *ts, const char *s, size_t n)
{
    char name[TOOL_MAX_NAME + 1];
    if (n == 0 || n > TOOL_MAX_NAME || memchr(s, 0, n))
        return NULL;
    memcpy(name, s, n);
    name[n] = 0;
    const char *found = declared(ts, name);
    if (found)
        return found;
    for (size_t i = 0; i + 1 < n; i++) {
        size_t cut = i + 1;
        if (name[i] == '_' && name[i + 1] == '_')
            cut = i + 2;
        else if (!strchr(".:/", name[i]))
            continue;
        const char *d = declared(ts, name + cut);
        if (d && found && d != found)
            return NULL;
        if (d)
            found = d;
    }
    return found;
}

/* ---- Schemas -------------------------------------------------------------------------------- */

struct walk {
    const struct toolset *ts;
    const json_t *root; /* of local references */
    int32_t n_nodes;
};

static bool visit(struct walk *w, int32_t depth)
{
    return depth < MAX_DEPTH && w->n_nodes++ < MAX_NODES;
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static const json_t *member(const json_t *v, const char *step)
{
    if (!json_is_array(v))
        return json_object_get(v, step);
    char *end;
    unsigned long i = strtoul(step, &end, 10);
    return step[0] >= '0' && step[0] <= '9' && !*end ? json_array_get(v, i) : NULL;
}

/* The target of {"$ref": "#/a/b"}: a JSON pointer in a URI fragment. NULL if there is none. */
static const json_t *reference(const struct walk *w, const json_t *schema)
{
    const json_t *ref = json_object_get(schema, "$ref");
    const char *s = json_string_value(ref);
    size_t n = json_string_length(ref), k = 0;
    char step[MAX_POINTER];
    if (!s || s[0] != '#' || n >= MAX_POINTER || (s[1] && s[1] != '/'))
        return NULL;
    const json_t *v = w->root;
    if (!s[1])
        return v;
    for (size_t i = 2; v && i <= n; i++) {
        if (i == n || s[i] == '/') {
            step[k] = 0;
            v = member(v, step);
            k = 0;
        } else if (s[i] == '%' && hex(s[i + 1]) >= 0 && hex(s[i + 2]) >= 0) {
            step[k++] = (char)(hex(s[i + 1]) << 4 | hex(s[i + 2]));
            i += 2;
        } else if (s[i] == '~' && (s[i + 1] == '0' || s[i + 1] == '1')) {
            step[k++] = s[++i] == '0' ? '~' : '/';
        } else {
            step[k++] = s[i];
        }
    }
    return v;
}

static const char *const unions[] = {"anyOf", "oneOf", "allOf"};

static const json_t *find_property(struct walk *w, const json_t *schema, const char *key, size_t n,
                                   int32_t depth)
{
    if (!json_is_object(schema) || !visit(w, depth))
        return NULL;
    const json_t *found = json_object_getn(json_object_get(schema, "properties"), key, n);
    if (!found)
        found = find_property(w, reference(w, schema), key, n, depth + 1);
    for (size_t u = 0; u < 3 && !found; u++) {
        const json_t *list = json_object_get(schema, unions[u]);
        for (size_t i = 0; i < json_array_size(list) && !found; i++)
            found = find_property(w, json_array_get(list, i), key, n, depth + 1);
    }
    return found;
}

static struct walk start(const struct toolset *ts, const char *name)
{
    return (struct walk){.ts = ts, .root = json_object_get(ts->by_name, name)};
}

const json_t *toolset_parameter(const struct toolset *ts, const char *name, const char *key,
                                size_t n_key)
{
    struct walk w = start(ts, name);
    return find_property(&w, w.root, key, n_key, 0);
}

static unsigned type_of_word(const json_t *word)
{
    static const struct {
        const char *word;
        unsigned type;
    } table[] = {
        {"string", TYPE_STRING},   {"integer", TYPE_INTEGER}, {"number", TYPE_NUMBER},
        {"boolean", TYPE_BOOLEAN}, {"object", TYPE_OBJECT},   {"array", TYPE_ARRAY},
        {"null", TYPE_NULL},
    };
    const char *s = json_string_value(word);
    for (size_t i = 0; s && i < sizeof table / sizeof *table; i++)
        if (strcmp(s, table[i].word) == 0)
            return table[i].type;
    return 0;
}

static unsigned type_of_value(const struct walk *w, const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return TYPE_OBJECT;
    case JSON_ARRAY:
        return TYPE_ARRAY;
    case JSON_STRING:
        return json_big_integer(&w->ts->doc, v) ? TYPE_INTEGER : TYPE_STRING;
    case JSON_INTEGER:
        return TYPE_INTEGER;
    case JSON_REAL:
        return TYPE_NUMBER;
    case JSON_NULL:
        return TYPE_NULL;
    default:
        return TYPE_BOOLEAN;
    }
}

static unsigned types(struct walk *w, const json_t *schema, int32_t depth)
{
    if (!json_is_object(schema) || !visit(w, depth))
        return 0;
    unsigned set = types(w, reference(w, schema), depth + 1);
    const json_t *type = json_object_get(schema, "type");
    const json_t *list = json_object_get(schema, "enum");
    const json_t *constant = json_object_get(schema, "const");
    set |= type_of_word(type);
    for (size_t i = 0; i < json_array_size(type); i++)
        set |= type_of_word(json_array_get(type, i));
    if (!type) {
        for (size_t i = 0; i < json_array_size(list); i++)
            set |= type_of_value(w, json_array_get(list, i));
        if (constant)
            set |= type_of_value(w, constant);
    }
    for (size_t u = 0; u < 3; u++) {
        list = json_object_get(schema, unions[u]);
        for (size_t i = 0; i < json_array_size(list); i++)
            set |= types(w, json_array_get(list, i), depth + 1);
    }
    if (json_is_true(json_object_get(schema, "nullable")))
        set |= TYPE_NULL;
    return set;
}

unsigned schema_types(const struct toolset *ts, const char *name, const json_t *schema)
{
    struct walk w = start(ts, name);
    return types(&w, schema, 0);
}

static bool is_text(const struct walk *w, const json_t *v, const char *s, size_t n)
{
    size_t len;
    const char *text = v ? json_text(&w->ts->doc, v, &len) : NULL;
    return text && len == n && memcmp(text, s, n) == 0;
}

static bool lists(struct walk *w, const json_t *schema, const char *s, size_t n, int32_t depth)
{
    if (!json_is_object(schema) || !visit(w, depth))
        return false;
    const json_t *list = json_object_get(schema, "enum");
    if (is_text(w, json_object_get(schema, "const"), s, n))
        return true;
    for (size_t i = 0; i < json_array_size(list); i++)
        if (is_text(w, json_array_get(list, i), s, n))
            return true;
    for (size_t u = 0; u < 3; u++) {
        list = json_object_get(schema, unions[u]);
        for (size_t i = 0; i < json_array_size(list); i++)
            if (lists(w, json_array_get(list, i), s, n, depth + 1))
                return true;
    }
    return lists(w, reference(w, schema), s, n, depth + 1);
}

bool schema_lists(const struct toolset *ts, const char *name, const json_t *schema, const char *s,
                  size_t n)
{
    struct walk w = start(ts, name);
    return lists(&w, schema, s, n, 0);
}

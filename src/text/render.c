/* lathe_render: a conversation through the chat template to text and tokens. */
#include "text/render.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "text/prefill.h"
#include "text/replay.h"
#include "text/template_string.h"
#include "text/text.h"

/* ---- The template of a model directory ----------------------------------------------------- */

/* bos_token and its like of tokenizer_config.json: a string, or an object that has it as content. */
static lathe_status define_tokens(struct lathe_text *text, lathe_error *err)
{
    static const char *const name[] = {"bos_token", "eos_token", "pad_token", "unk_token"};
    struct json_doc d = {0};
    struct buf path;
    buf_init(&path, 1 << 16);
    buf_printf(&path, "%s/tokenizer_config.json", text->model_dir);
    lathe_status st = buf_check(&path, "path", err);
    if (!st && file_exists(buf_str(&path)))
        st = json_read_file(&d, buf_str(&path), &json_limits_model, err);
    for (size_t i = 0; i < sizeof name / sizeof name[0] && !st; i++) {
        const json_t *v = json_object_get(d.root, name[i]);
        size_t n;
        const char *s = json_text(&d, json_is_object(v) ? json_object_get(v, "content") : v, &n);
        if (s)
            st = template_define(text->template, name[i], s, n, err);
    }
    json_release(&d);
    buf_release(&path);
    return st;
}

lathe_status text_template_open(struct lathe_text *text, lathe_error *err)
{
    if (!text->template_source)
        return LATHE_OK;
    lathe_status st =
        template_open(&text->template, text->template_source, text->n_template_source, err);
    if (st)
        error_context(err, "%s", text->template_file);
    return st ? st : define_tokens(text, err);
}

void text_template_close(struct lathe_text *text)
{
    template_close(text->template);
    text->template = NULL;
}

/* ---- Switches ------------------------------------------------------------------------------ */

/* What the conversation and its kwargs ask for, with the template's words. */
struct switches {
    lathe_switch thinking, preserve_thinking, add_vision_id;
    const char *effort; /* xhigh medium low, or NULL */
    lathe_late_system late_system;
};

/* Clients' words for the three levels; none turns thinking off, the last two ask for nothing. */
static bool map_effort(struct run *r, const char *where, const char *word, const char **effort,
                       bool *off)
{
    static const struct {
        const char *word, *effort;
    } words[] = {
        {"xhigh", "xhigh"},   {"high", "xhigh"}, {"max", "xhigh"},
        {"medium", "medium"}, {"low", "low"},    {"minimal", "low"},
        {"none", "none"},     {"default", NULL}, {"auto", NULL},
    };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(word, words[i].word) != 0)
            continue;
        *effort = words[i].effort;
        *off = *effort && strcmp(*effort, "none") == 0;
        if (*off)
            *effort = NULL;
        return true;
    }
    return run_fail(r, LATHE_E_ARGUMENT,
                    "%s: '%.40s' is none of xhigh, high, max, medium, low, minimal, none", where,
                    word);
}

static bool read_switch(struct run *r, const char *key, const json_t *v, lathe_switch *out)
{
    if (json_is_null(v))
        return true;
    if (!json_is_boolean(v))
        return run_fail(r, LATHE_E_ARGUMENT, "kwargs.%s: expected true or false", key);
    *out = json_is_true(v) ? LATHE_ON : LATHE_OFF;
    return true;
}

static bool read_late_system(struct run *r, const char *word, lathe_late_system *out)
{
    static const char *const name[] = {"merge", "inline", "error"};
    for (int i = 0; i < 3; i++) {
        if (word && strcmp(word, name[i]) == 0) {
            *out = (lathe_late_system)i;
            return true;
        }
    }
    return run_fail(r, LATHE_E_ARGUMENT, "kwargs.late_system: expected merge, inline or error");
}

/* Is it a variable that only the conversation itself may set? */
static bool is_reserved(const char *key)
{
    static const char *const name[] = {
        "messages",  "tools",     "documents", "add_generation_prompt",
        "bos_token", "eos_token", "pad_token", "unk_token"};
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++)
        if (strcmp(key, name[i]) == 0)
            return true;
    return false;
}

struct variables {
    struct template_var *var;
    struct value *value;
    size_t n, cap;
};

static void set(struct variables *v, const char *name, struct value x)
{
    v->value[v->n] = x;
    v->var[v->n] = (struct template_var){name, &v->value[v->n]};
    v->n++;
}

/* The known switches; any other key must be a variable that the template reads. */
static bool read_kwargs(struct run *r, const struct template *t, const struct json_doc *d,
                        struct switches *s, struct variables *vars)
{
    json_t *tree = json_members(d->root);
    bool off = false;
    lathe_switch thinking = LATHE_DEFAULT;
    for (void *it = json_object_iter(tree); it; it = json_object_iter_next(tree, it)) {
        const char *key = json_object_iter_key(it);
        const json_t *v = json_object_iter_value(it);
        size_t n;
        const char *word = json_text(d, v, &n);
        bool ok = true;
        if (strcmp(key, "enable_thinking") == 0) {
            ok = read_switch(r, key, v, &thinking);
        } else if (strcmp(key, "preserve_thinking") == 0) {
            ok = read_switch(r, key, v, &s->preserve_thinking);
        } else if (strcmp(key, "add_vision_id") == 0) {
            ok = read_switch(r, key, v, &s->add_vision_id);
        } else if (strcmp(key, "reasoning_effort") == 0) {
            if (word)
                ok = map_effort(r, "kwargs.reasoning_effort", word, &s->effort, &off);
            else if (!json_is_null(v))
                ok = run_fail(r, LATHE_E_ARGUMENT, "kwargs.reasoning_effort: expected a word");
        } else if (strcmp(key, "late_system") == 0) {
            ok = json_is_null(v) || read_late_system(r, word, &s->late_system);
        } else if (!is_reserved(key) && template_reads(t, key)) {
            struct value x;
            ok = value_from_json(r, d, v, FROM_CONVERSATION, &x);
            set(vars, key, x);
        } else {
            ok = run_fail(r, LATHE_E_ARGUMENT,
                          "kwargs: unknown key '%.60s'; known are enable_thinking, "
                          "preserve_thinking, reasoning_effort, add_vision_id, late_system%s",
                          key, is_reserved(key) ? "" : " and what the template reads");
        }
        if (!ok)
            return false;
    }
    if (off)
        s->thinking = LATHE_OFF;
    if (thinking != LATHE_DEFAULT)
        s->thinking = thinking;
    return true;
}

static bool check_enum(struct run *r, const char *name, int value, int last)
{
    return (value >= 0 && value <= last) ||
           run_fail(r, LATHE_E_ARGUMENT, "%s is %d, expected 0 to %d", name, value, last);
}

static bool read_switches(struct run *r, const struct template *t, const lathe_conversation *c,
                          const struct json_doc *kwargs, struct switches *s, struct variables *vars)
{
    if (!check_enum(r, "thinking", (int)c->thinking, LATHE_ON) ||
        !check_enum(r, "preserve_thinking", (int)c->preserve_thinking, LATHE_ON) ||
        !check_enum(r, "late_system", (int)c->late_system, LATHE_LATE_SYSTEM_ERROR))
        return false;
    *s = (struct switches){.thinking = c->thinking,
                           .preserve_thinking = c->preserve_thinking,
                           .late_system = c->late_system};
    if (c->effort) {
        bool off = false;
        if (!map_effort(r, "reasoning_effort", c->effort, &s->effort, &off))
            return false;
        if (off)
            s->thinking = LATHE_OFF;
        else if (s->effort && s->thinking == LATHE_DEFAULT)
            s->thinking = LATHE_ON;
    }
    if (!c->kwargs)
        return true;
    if (!json_is_object(kwargs->root))
        return run_fail(r, LATHE_E_ARGUMENT, "kwargs: expected an object");
    return read_kwargs(r, t, kwargs, s, vars);
}

static void set_switch(struct variables *v, const char *name, lathe_switch s)
{
    if (s != LATHE_DEFAULT)
        set(v, name, value_bool(s == LATHE_ON, FROM_CONVERSATION));
}

/* ---- Variables ----------------------------------------------------------------------------- */

enum { TOOL_NAME_CHARACTERS = 128 };

/* What a call's markup cannot carry: nothing, too much, or what ends <function=NAME>. */
static bool is_tool_name(const char *s, size_t n)
{
    size_t characters = 0;
    for (size_t i = 0; i < n; i++)
        characters += ((unsigned char)s[i] & 0xC0) != 0x80;
    return n > 0 && characters <= TOOL_NAME_CHARACTERS && !memchr(s, '<', n) &&
           !memchr(s, '>', n) && !memchr(s, '\n', n) && !memchr(s, 0, n);
}

/* One tool, {"type": "function", "function": {"name", "parameters"}} or the inner object alone; `seen`
 * has the names of those before it. */
static bool check_tool(struct run *r, const struct json_doc *d, size_t i, json_t *seen)
{
    const json_t *tool = json_array_get(d->root, i);
    if (!json_is_object(tool))
        return run_fail(r, LATHE_E_ARGUMENT, "tools[%zu]: expected an object", i);
    const json_t *function = json_object_get(tool, "function");
    const char *where = function ? ".function" : "";
    if (function && !json_is_object(function))
        return run_fail(r, LATHE_E_ARGUMENT, "tools[%zu].function: expected an object", i);
    if (!function)
        function = tool;
    size_t n = 0;
    const json_t *parameters = json_object_get(function, "parameters");
    const char *name = json_text(d, json_object_get(function, "name"), &n);
    if (!name || !is_tool_name(name, n))
        return run_fail(
            r, LATHE_E_ARGUMENT,
            "tools[%zu]%s.name: expected a string of 1 to %d characters without <, > and "
            "line breaks",
            i, where, TOOL_NAME_CHARACTERS);
    if (json_object_get(seen, name))
        return run_fail(r, LATHE_E_ARGUMENT,
                        "tools[%zu]%s.name: '%.60s' is the name of an earlier tool, too", i, where,
                        name);
    if (parameters && !json_is_null(parameters) && !json_is_object(parameters))
        return run_fail(r, LATHE_E_ARGUMENT, "tools[%zu]%s.parameters: expected an object", i,
                        where);
    if (json_object_set_new_nocheck(seen, name, json_true()) != 0)
        return run_fail(r, LATHE_E_MEMORY, "out of memory");
    return true;
}

static bool check_tools(struct run *r, const struct json_doc *d)
{
    json_t *seen = json_object();
    bool ok = seen ? true : run_fail(r, LATHE_E_MEMORY, "out of memory");
    for (size_t i = 0; i < json_array_size(d->root) && ok; i++)
        ok = check_tool(r, d, i, seen);
    json_decref(seen);
    return ok;
}

static bool build_tools(struct run *r, const struct json_doc *d, struct value *out)
{
    *out = value_none();
    if (!d->root || json_is_null(d->root))
        return true;
    if (!json_is_array(d->root))
        return run_fail(r, LATHE_E_ARGUMENT, "tools: expected an array");
    return check_tools(r, d) && value_from_json(r, d, d->root, FROM_CONVERSATION, out);
}

static lathe_status read_json(struct json_doc *d, struct conversation *all, const char *what,
                              const char *s, struct watch *watch, lathe_error *err)
{
    if (!s)
        return LATHE_OK;
    size_t n = strlen(s);
    all->input_bytes += n;
    lathe_status st = json_read_watched(d, s, n, &json_limits_request, watch, err);
    if (st)
        error_context(err, "%s", what);
    return st;
}

enum { N_FIXED_VARS = 8 };

/* Everything but `messages`, which goes to place 0. */
static bool build_variables(struct run *r, const struct template *t, const lathe_conversation *c,
                            struct conversation *all, struct switches *s, struct turns *turns,
                            struct variables *vars)
{
    size_t n = N_FIXED_VARS + json_object_size(all->kwargs.root);
    struct value v;
    vars->var = run_array(r, n, sizeof *vars->var);
    vars->value = run_array(r, n, sizeof *vars->value);
    if (!vars->var || !vars->value)
        return false;
    set(vars, "messages", value_none());
    if (!read_switches(r, t, c, &all->kwargs, s, vars) ||
        !turns_build(r, all, s->late_system, turns) || !build_tools(r, &all->tools, &v))
        return false;
    vars->value[0] = turns->list;
    set(vars, "tools", v);
    set(vars, "documents", value_none());
    set(vars, "add_generation_prompt", value_bool(!c->no_generation_prompt, FROM_CONVERSATION));
    set_switch(vars, "enable_thinking", s->thinking);
    set_switch(vars, "preserve_thinking", s->preserve_thinking);
    set_switch(vars, "add_vision_id", s->add_vision_id);
    if (s->effort && !value_text(r, s->effort, strlen(s->effort), FROM_CONVERSATION, &v))
        return false;
    if (s->effort)
        set(vars, "reasoning_effort", v);
    return true;
}

/* ---- Repairs of the rendered text ---------------------------------------------------------- */

static const char turn_begin[] = "<|im_start|>user\n", turn_end[] = "<|im_end|>\n";

/* Replaces [from, to) by n bytes of text. The text never grows: see its callers. */
static void splice(struct rendering *t, size_t from, size_t to, const char *s, size_t n,
                   unsigned char origin)
{
    memmove(t->text + from + n, t->text + to, t->n - to + 1);
    memmove(t->origin + from + n, t->origin + to, t->n - to);
    if (n)
        memcpy(t->text + from, s, n);
    memset(t->origin + from, origin, n);
    t->n -= to - from;
    t->n += n;
}

static bool is_at(const struct rendering *t, size_t at, const char *s)
{
    size_t n = strlen(s);
    return at <= t->n && t->n - at >= n && memcmp(t->text + at, s, n) == 0;
}

static size_t find_origin(const struct rendering *t, size_t from, unsigned char origin)
{
    while (from < t->n && t->origin[from] != origin)
        from++;
    return from;
}

/* Fenced user turns become system turns: the word "user" before the opening fence is replaced, the
 * fences go. They are longer than what "system" adds. */
static bool unfence(struct rendering *t, size_t n_fenced)
{
    const size_t head = strlen(turn_begin), n_begin = strlen(fence_begin),
                 n_end = strlen(fence_end);
    size_t at = 0;
    for (size_t i = 0; i < n_fenced; i++) {
        at = find_origin(t, at, FROM_FENCE);
        if (at < head || !is_at(t, at - head, turn_begin) || !is_at(t, at, fence_begin))
            return false;
        splice(t, at, at + n_begin, NULL, 0, 0);
        splice(t, at - strlen("user\n"), at, "system\n", strlen("system\n"), FROM_TEMPLATE);
        at = find_origin(t, at, FROM_FENCE);
        if (!is_at(t, at, fence_end))
            return false;
        splice(t, at, at + n_end, NULL, 0, 0);
    }
    return find_origin(t, 0, FROM_FENCE) == t->n;
}

/* Takes the stand-in's turn out again. */
static bool remove_stand_in(struct rendering *t)
{
    size_t at = find_origin(t, 0, FROM_STAND_IN), head = strlen(turn_begin);
    if (at < head || !is_at(t, at - head, turn_begin) || !is_at(t, at + 1, turn_end))
        return false;
    splice(t, at - head, at + 1 + strlen(turn_end), NULL, 0, 0);
    return find_origin(t, 0, FROM_STAND_IN) == t->n;
}

/* Is the last think tag that the template wrote an opening one? */
static bool ends_inside_thinking(const struct rendering *t)
{
    static const char begin[] = "<think>", end[] = "</think>";
    for (size_t at = t->n; at-- > 0;) {
        bool is_begin = is_at(t, at, begin), is_end = is_at(t, at, end);
        size_t n = is_begin ? strlen(begin) : strlen(end);
        if ((is_begin || is_end) && !memchr(t->origin + at, FROM_CONVERSATION, n))
            return is_begin;
    }
    return false;
}

/* ---- Rendering ----------------------------------------------------------------------------- */

static lathe_status render_once(const lathe_text *text, const lathe_conversation *c,
                                struct conversation *all, bool with_stand_in, bool *no_query,
                                struct watch *watch, struct rendering *out, lathe_error *err)
{
    struct template_limits limits;
    struct run r;
    struct variables vars = {0};
    struct switches s;
    struct turns turns = {0};
    template_limits_init(&limits, all->input_bytes);
    limits.watch = watch;
    run_open(&r, &limits, err);
    lathe_status st = LATHE_OK;
    if (!build_variables(&r, text->template, c, all, &s, &turns, &vars) ||
        (with_stand_in && !turns_with_stand_in(&r, turns.list, &vars.value[0]))) {
        st = r.status;
    } else {
        st = template_render(text->template, &r, vars.var, vars.n, out, err);
        *no_query = st && r.is_raised && !turns.has_query;
        if (st && text->template_file)
            error_context(err, "%s", text->template_file);
    }
    run_close(&r);
    if (!st && turns.n_fenced && !unfence(out, turns.n_fenced))
        st = fail(err, LATHE_E_UNSUPPORTED,
                  "late_system inline: %s writes no user turn of the form <|im_start|>user; "
                  "merge and error are supported",
                  text->template_file ? text->template_file : "the template");
    if (st)
        rendering_release(out);
    return st;
}

/* Templates that raise without a user's question get one, which is taken out again: agents resume
 * and compact into such histories. It stands last, so reasoning counts as older than the last
 * question everywhere. */
static lathe_status render_text(const lathe_text *text, const lathe_conversation *c,
                                struct conversation *all, struct watch *watch,
                                struct rendering *out, lathe_error *err)
{
    bool no_query = false;
    lathe_status first = render_once(text, c, all, false, &no_query, watch, out, err);
    if (!first || !no_query)
        return first;
    lathe_error second;
    lathe_status st = render_once(text, c, all, true, &no_query, watch, out, &second);
    if (st) { /* the question was not what it lacked, or not all */
        if (err)
            *err = second;
        return st;
    }
    if (remove_stand_in(out))
        return LATHE_OK;
    rendering_release(out);
    return first;
}

static lathe_status encode(const lathe_text *text, struct rendering *t, struct watch *watch,
                           lathe_prompt *out, lathe_error *err)
{
    unsigned char *trusted = t->origin;
    bool thinking = ends_inside_thinking(t);
    for (size_t i = 0; i < t->n; i++)
        trusted[i] = t->origin[i] == FROM_TEMPLATE;
    lathe_status st = tokenizer_encode_watched(text->tokenizer, t->text, t->n, true, trusted, watch,
                                               &out->tokens, err);
    if (st)
        return st;
    out->text = t->text;
    out->n_text = t->n;
    out->thinking_open = thinking;
    t->text = NULL;
    return LATHE_OK;
}

lathe_status text_render_known(const lathe_text *text, const lathe_conversation *c,
                               const struct replay_memory *memory, bool is_request,
                               lathe_prompt *out, lathe_error *err)
{
    *out = (lathe_prompt){0};
    if (!text->template)
        return fail(err, LATHE_E_UNSUPPORTED, "%s has no chat template", text->model_dir);
    if (!c->messages)
        return fail(err, LATHE_E_ARGUMENT, "messages: missing");
    if (c->continue_last && c->no_generation_prompt)
        return fail(err, LATHE_E_ARGUMENT,
                    "continue_last: the text cannot end after a message and inside it");
    struct conversation all = {.text_only = is_request, .may_be_empty = c->continue_last};
    struct rendering rendered = {0};
    struct prefill prefill = {0};
    struct watch watch = {.leave = c->leave, .ctx = c->leave_ctx};
    lathe_status st = read_json(&all.messages, &all, "messages", c->messages, &watch, err);
    if (c->continue_last && !st)
        st = prefill_take(&prefill, &all.messages, err);
    st = st ? st : read_json(&all.tools, &all, "tools", c->tools, &watch, err);
    st = st ? st : read_json(&all.kwargs, &all, "kwargs", c->kwargs, &watch, err);
    st = st ? st : render_text(text, c, &all, &watch, &rendered, err);
    if (c->continue_last && !st)
        st = prefill_put(&prefill, &rendered, ends_inside_thinking(&rendered), FROM_CONVERSATION,
                         err);
    st = st ? st : encode(text, &rendered, &watch, out, err);
    if (!st)
        st = replay_prompt(text, out, c->turn, c->n_turns, all.assistant, all.n_assistant, memory,
                           &watch, err);
    if (st)
        lathe_prompt_release(out);
    prefill_release(&prefill);
    rendering_release(&rendered);
    conversation_release(&all);
    return st;
}

lathe_status lathe_render(const lathe_text *text, const lathe_conversation *c, lathe_prompt *out,
                          lathe_error *err)
{
    return text_render_known(text, c, NULL, false, out, err);
}

lathe_status text_render_request(const lathe_text *text, const lathe_conversation *c,
                                 lathe_prompt *out, lathe_error *err)
{
    return text_render_known(text, c, NULL, true, out, err);
}

void lathe_prompt_release(lathe_prompt *prompt)
{
    free(prompt->text);
    lathe_tokens_release(&prompt->tokens);
    *prompt = (lathe_prompt){0};
}

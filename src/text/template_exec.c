/* Statements, macros and loops; and template_render, which runs them. A for loop's body, a macro, a
 * set block, a with block and a generation block have a scope of their own; an `if` has none. */
#include <stdlib.h>
#include <string.h>

#include "text/template_string.h"
#include "text/template_tree.h"

/* ---- Scopes -------------------------------------------------------------------------------- */

struct scope *scope_open(struct run *r, struct scope *parent)
{
    struct scope *s = run_alloc(r, sizeof *s);
    if (s)
        *s = (struct scope){.parent = parent};
    return s;
}

bool scope_bind(struct run *r, struct scope *s, int32_t name_id, struct value v)
{
    if (!s) {
        r->global[name_id] = v;
        return true;
    }
    for (size_t i = 0; i < s->n; i++) {
        if (s->binding[i].name_id == name_id) {
            s->binding[i].value = v;
            return true;
        }
    }
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 4;
        struct binding *b = run_array(r, cap, sizeof *b);
        if (!b)
            return false;
        if (s->n)
            memcpy(b, s->binding, s->n * sizeof *b);
        s->binding = b;
        s->cap = cap;
    }
    s->binding[s->n++] = (struct binding){name_id, v};
    return true;
}

/* A macro reads its surroundings when it is called: they must not be used again. */
static void capture(struct scope *s)
{
    for (; s && !s->is_captured; s = s->parent)
        s->is_captured = true;
}

static bool assign_member(struct run *r, struct scope *s, const struct node *target, struct value v)
{
    const struct string *name = r->t->name[target->name_id];
    const struct value *ns = NULL;
    for (; s && !ns; s = s->parent)
        for (size_t i = 0; i < s->n && !ns; i++)
            if (s->binding[i].name_id == target->name_id)
                ns = &s->binding[i].value;
    if (!ns)
        ns = &r->global[target->name_id];
    if (ns->type != V_NAMESPACE)
        return run_error(r, "cannot assign attribute on non-namespace object '%.*s'",
                         (int)(name->n < 60 ? name->n : 60), name->s);
    return dict_set(r, ns->u.dict, value_string(target->name), v);
}

bool assign(struct run *r, struct scope *s, const struct node *target, struct value v)
{
    if (target->kind == N_NAME)
        return scope_bind(r, s, target->name_id, v);
    if (target->kind == N_SET_MEMBER)
        return assign_member(r, s, target, v);
    if (v.type == V_UNDEFINED)
        return run_error(r, "not enough values to unpack (expected %zu, got 0)", target->n);
    if (!value_is_iterable(v))
        return run_error(r, "cannot unpack non-iterable %s object", value_type_name(v));
    const struct value *item;
    size_t n;
    if (!value_items(r, v, &item, &n))
        return false;
    if (n > target->n)
        return run_error(r, "too many values to unpack (expected %zu)", target->n);
    if (n < target->n)
        return run_error(r, "not enough values to unpack (expected %zu, got %zu)", target->n, n);
    for (size_t i = 0; i < n; i++)
        if (!assign(r, s, target->list[i], item[i]))
            return false;
    return true;
}

/* ---- Bodies in scopes ---------------------------------------------------------------------- */

/* Runs a body in scope s; its output goes to `into`, or where it went before if that is NULL. */
static enum flow exec_in(struct run *r, struct scope *s, const struct node *body,
                         struct builder *into)
{
    struct scope *scope = r->scope;
    struct builder *out = r->out;
    r->scope = s;
    if (into)
        r->out = into;
    enum flow flow = exec_body(r, body);
    r->scope = scope;
    r->out = out;
    return flow;
}

/* What a body prints, as a string. */
static enum flow captured(struct run *r, struct scope *s, const struct node *body,
                          struct value *text)
{
    struct builder b;
    builder_init(&b, r);
    if (!s)
        return FLOW_FAILED;
    enum flow flow = exec_in(r, s, body, &b);
    return builder_string(&b, text) ? flow : FLOW_FAILED;
}

/* The filters of a block, the innermost first, over its text. */
static bool filtered(struct run *r, const struct node *filter, struct value *v)
{
    struct call_room room;
    struct args args;
    if (!filter)
        return true;
    bool ok = run_enter(r) && filtered(r, filter->a, v) && eval_args(r, filter->call, &room, &args);
    r->line = filter->line;
    struct value in = *v;
    ok = ok && builtin_call(r, "filter", filter->builtin, in, &args, v);
    run_leave(r);
    return ok;
}

/* ---- Loops --------------------------------------------------------------------------------- */

size_t loop_index(const struct loop *l)
{
    return l->i + 1;
}

/* Is there an item `i`? The condition of a loop sees the target, not the loop. */
static bool loop_reach(struct run *r, struct loop *l, size_t i, bool *reached)
{
    struct scope *outer = r->scope, *s = NULL;
    bool ok = true;
    while (ok && l->n <= i && l->at < l->n_candidates) {
        struct value holds, v = l->candidate[l->at++];
        if (!s && !(s = scope_open(r, l->scope)))
            return false;
        r->scope = s;
        ok = assign(r, s, l->node->a, v) && eval_node(r, l->node->c, &holds);
        r->scope = outer;
        if (ok && value_truth(holds))
            l->kept[l->n++] = v;
    }
    *reached = i < l->n;
    return ok;
}

bool loop_length(struct run *r, struct loop *l, size_t *n)
{
    bool reached;
    bool ok = loop_reach(r, l, SIZE_MAX, &reached);
    *n = l->n;
    return ok;
}

/* *completed: some iteration came to the end of the body. */
static enum flow iterate(struct run *r, struct loop *l, struct builder *into, bool *completed)
{
    const struct node *n = l->node;
    struct value self = {.type = V_LOOP, .u.loop = l};
    struct scope *s = NULL;
    enum flow flow = FLOW_ON;
    for (l->i = 0; flow != FLOW_BREAK; l->i++) {
        bool reached;
        if (!loop_reach(r, l, l->i, &reached))
            return FLOW_FAILED;
        if (!reached) {
            l->i -= l->i > 0; /* a loop kept in a namespace stays at its last item */
            break;
        }
        if (!s || s->is_captured)
            s = scope_open(r, l->scope);
        if (!s)
            return FLOW_FAILED;
        s->n = 0;
        r->line = n->line;
        if (!scope_bind(r, s, r->t->loop_id, self) || !assign(r, s, n->a, l->item[l->i]))
            return FLOW_FAILED;
        flow = exec_in(r, s, n->body, into);
        if (flow == FLOW_FAILED)
            return flow;
        *completed |= flow == FLOW_ON;
    }
    return FLOW_ON;
}

static enum flow loop_over(struct run *r, const struct node *n, struct scope *scope,
                           struct value over, int64_t depth0, struct builder *into)
{
    struct loop *l = run_alloc(r, sizeof *l);
    if (!l)
        return FLOW_FAILED;
    *l = (struct loop){.node = n, .scope = scope, .depth0 = depth0};
    if (!value_items(r, over, &l->item, &l->n))
        return FLOW_FAILED;
    if (n->c) {
        l->candidate = l->item;
        l->n_candidates = l->n;
        l->item = l->kept = run_array(r, l->n, sizeof *l->kept);
        l->n = 0;
        if (!l->kept)
            return FLOW_FAILED;
    }
    /* jinja2 takes the else branch also where every iteration was cut short. */
    bool completed = false;
    if (iterate(r, l, into, &completed) == FLOW_FAILED)
        return FLOW_FAILED;
    if (completed || !n->else_body)
        return FLOW_ON;
    struct scope *s = scope_open(r, scope);
    return s ? exec_in(r, s, n->else_body, into) : FLOW_FAILED;
}

static enum flow exec_for(struct run *r, const struct node *n)
{
    struct value over;
    if (!eval_node(r, n->b, &over))
        return FLOW_FAILED;
    if (n->is_recursive)
        capture(r->scope);
    return loop_over(r, n, r->scope, over, 0, NULL);
}

bool loop_call(struct run *r, struct loop *l, const struct args *args, struct value *out)
{
    if (!l->node->is_recursive)
        return run_error(r, "the loop must have the 'recursive' marker to be called recursively");
    if (args->n != 1 || args->n_keyword)
        return run_error(r, "loop() takes one argument");
    struct builder b;
    builder_init(&b, r);
    bool ok = run_enter(r) &&
              loop_over(r, l->node, l->scope, args->pos[0], l->depth0 + 1, &b) != FLOW_FAILED;
    run_leave(r);
    return ok && builder_string(&b, out);
}

bool loop_attribute(struct run *r, struct loop *l, const struct string *name, bool *known,
                    struct value *out)
{
    static const char *const of_length[] = {"length", "revindex", "revindex0", NULL};
    static const char *const of_next[] = {"last", "nextitem", NULL};
    bool has_next = false;
    size_t n = 0;
    for (size_t i = 0; of_length[i]; i++)
        if (string_is(name, of_length[i]) && !loop_length(r, l, &n))
            return false;
    for (size_t i = 0; of_next[i]; i++)
        if (string_is(name, of_next[i]) && !loop_reach(r, l, l->i + 1, &has_next))
            return false;
    const struct {
        const char *name;
        int64_t value;
    } number[] = {
        {"index", (int64_t)l->i + 1},
        {"index0", (int64_t)l->i},
        {"revindex", (int64_t)n - (int64_t)l->i},
        {"revindex0", (int64_t)n - (int64_t)l->i - 1},
        {"length", (int64_t)n},
        {"depth", l->depth0 + 1},
        {"depth0", l->depth0},
    };
    *known = true;
    for (size_t i = 0; i < sizeof number / sizeof number[0]; i++) {
        if (string_is(name, number[i].name)) {
            *out = value_int(number[i].value, 0);
            return true;
        }
    }
    if (string_is(name, "first"))
        *out = value_bool(l->i == 0, 0);
    else if (string_is(name, "last"))
        *out = value_bool(!has_next, 0);
    else if (string_is(name, "previtem"))
        *out = l->i ? l->item[l->i - 1] : value_undefined_hint(r, "there is no previous item");
    else if (string_is(name, "nextitem"))
        *out = has_next ? l->item[l->i + 1] : value_undefined_hint(r, "there is no next item");
    else
        *known = false;
    return r->status == LATHE_OK;
}

bool loop_cycle(struct run *r, struct loop *l, const struct args *args, struct value *out)
{
    if (args->n == 0 || args->n_keyword)
        return run_error(r, "no items for cycling given");
    *out = args->pos[l->i % args->n];
    return true;
}

bool loop_changed(struct run *r, struct loop *l, const struct args *args, struct value *out)
{
    struct value *item = run_array(r, args->n, sizeof *item), now;
    bool same = false;
    if (!item)
        return false;
    if (args->n)
        memcpy(item, args->pos, args->n * sizeof *item);
    if (!value_list(r, V_TUPLE, item, args->n, 0, &now) ||
        (l->last_changed.type && !value_equal(r, l->last_changed, now, &same)))
        return false;
    l->last_changed = now;
    *out = value_bool(!same, 0);
    return true;
}

/* ---- Macros -------------------------------------------------------------------------------- */

static bool bind_rest(struct run *r, struct scope *s, const struct macro *m,
                      const struct args *args, const bool *is_used)
{
    const struct params_node *p = m->node->params;
    struct value rest, caller = {0};
    if (p->uses_kwargs && !value_dict(r, 0, 0, &rest))
        return false;
    for (size_t i = 0; i < args->n_keyword; i++) {
        const struct keyword *k = &args->keyword[i];
        if (is_used[i])
            continue;
        if (p->uses_caller && string_is(k->name, "caller")) {
            caller = k->value;
        } else if (p->uses_kwargs) {
            if (!dict_set(r, rest.u.dict, value_string(k->name), k->value))
                return false;
        } else {
            return run_error(r, "macro '%.*s' takes no keyword argument '%.*s'",
                             m->name ? (int)(m->name->n < 60 ? m->name->n : 60) : 6,
                             m->name ? m->name->s : "caller",
                             (int)(k->name->n < 60 ? k->name->n : 60), k->name->s);
        }
    }
    if (p->uses_kwargs && !scope_bind(r, s, p->kwargs_id, rest))
        return false;
    if (p->uses_caller) {
        if (caller.type == V_MISSING)
            caller = value_undefined_hint(r, "No caller defined");
        if (!scope_bind(r, s, p->caller_id, caller))
            return false;
    }
    if (p->uses_varargs) {
        size_t n = args->n > p->n ? args->n - p->n : 0;
        struct value *item = run_array(r, n, sizeof *item);
        if (!item)
            return false;
        if (n)
            memcpy(item, args->pos + p->n, n * sizeof *item);
        if (!value_list(r, V_TUPLE, item, n, 0, &rest) || !scope_bind(r, s, p->varargs_id, rest))
            return false;
    } else if (args->n > p->n) {
        return run_error(r, "macro '%.*s' takes not more than %zu argument(s)",
                         m->name ? (int)(m->name->n < 60 ? m->name->n : 60) : 6,
                         m->name ? m->name->s : "caller", p->n);
    }
    return true;
}

/* Binds parameters: positional, keyword, default in that order. A default sees the parameters before
 * it. */
static bool bind_params(struct run *r, struct scope *s, const struct macro *m,
                        const struct args *args)
{
    const struct params_node *p = m->node->params;
    bool *is_used = run_array(r, args->n_keyword, sizeof *is_used);
    if (!is_used)
        return false;
    memset(is_used, 0, args->n_keyword * sizeof *is_used);
    struct value *given = run_array(r, p->n, sizeof *given);
    if (!given)
        return false;
    for (size_t i = 0; i < p->n; i++) {
        given[i] = i < args->n ? args->pos[i] : (struct value){0};
        for (size_t k = 0; i >= args->n && k < args->n_keyword; k++) {
            if (string_equal(args->keyword[k].name, p->name[i])) {
                given[i] = args->keyword[k].value;
                is_used[k] = true;
            }
        }
    }
    if (!bind_rest(r, s, m, args, is_used))
        return false;
    for (size_t i = 0; i < p->n; i++) {
        struct value v = given[i];
        if (v.type == V_MISSING && p->fallback[i]) {
            struct scope *outer = r->scope;
            r->scope = s;
            bool ok = eval_node(r, p->fallback[i], &v);
            r->scope = outer;
            if (!ok)
                return false;
        } else if (v.type == V_MISSING) {
            v = value_undefined_hint(r, "a parameter of the macro was not provided");
        }
        if (!scope_bind(r, s, p->name_id[i], v))
            return false;
    }
    return true;
}

bool macro_call(struct run *r, const struct macro *m, const struct args *args, struct value *out)
{
    struct scope *s = scope_open(r, m->scope);
    int32_t line = r->line;
    bool ok = run_enter(r) && s && bind_params(r, s, m, args) &&
              captured(r, s, m->node->body, out) != FLOW_FAILED;
    run_leave(r);
    r->line = r->status ? r->line : line;
    return ok;
}

static bool make_macro(struct run *r, const struct node *n, struct value *out)
{
    struct macro *m = run_alloc(r, sizeof *m);
    if (!m)
        return false;
    *m = (struct macro){.name = n->name, .node = n, .scope = r->scope};
    capture(r->scope);
    *out = (struct value){.type = V_MACRO, .u.macro = m};
    return true;
}

/* {% call f(x) %}body{% endcall %}: f gets the body as its `caller`. */
static bool exec_call_block(struct run *r, const struct node *n)
{
    static const struct string caller = {.s = "caller", .n = 6};
    struct call_room room;
    struct args args;
    struct value callee, body, v;
    if (!eval_node(r, n->a->a, &callee) || !make_macro(r, n, &body) ||
        !eval_args(r, n->a->call, &room, &args))
        return false;
    struct keyword *k = run_array(r, args.n_keyword + 1, sizeof *k);
    if (!k)
        return false;
    if (args.n_keyword)
        memcpy(k, args.keyword, args.n_keyword * sizeof *k);
    k[args.n_keyword++] = (struct keyword){&caller, body};
    args.keyword = k;
    r->line = n->line;
    return value_call(r, callee, &args, &v) && print_value(r->out, v);
}

/* ---- Statements ---------------------------------------------------------------------------- */

/* The branch to run, NULL if none; an elif is an `if` alone in its else body. */
static bool choose(struct run *r, const struct node *n, const struct node **branch)
{
    for (;;) {
        struct value v;
        if (!eval_node(r, n->a, &v))
            return false;
        *branch = value_truth(v) ? n->body : n->else_body;
        if (value_truth(v) || !n->else_body || n->else_body->kind != N_IF || n->else_body->next)
            return true;
        n = n->else_body;
    }
}

static bool exec_with(struct run *r, const struct node *n, enum flow *flow)
{
    struct scope *s = scope_open(r, r->scope);
    if (!s)
        return false;
    for (size_t i = 0; i < n->n; i += 2) {
        struct value v;
        if (!eval_node(r, n->list[i + 1], &v) || !assign(r, s, n->list[i], v))
            return false;
    }
    *flow = exec_in(r, s, n->body, NULL);
    return true;
}

static bool exec_one(struct run *r, const struct node *n, enum flow *flow)
{
    struct value v;
    const struct node *branch;
    switch (n->kind) {
    case N_TEXT:
        return print_value(r->out, n->value);
    case N_OUTPUT:
        return eval_node(r, n->a, &v) && print_value(r->out, v);
    case N_SET:
        if (!eval_node(r, n->b, &v))
            return false;
        r->line = n->line;
        return assign(r, r->scope, n->a, v);
    case N_SET_BLOCK:
        *flow = captured(r, scope_open(r, r->scope), n->body, &v);
        if (*flow != FLOW_ON)
            return true;
        return filtered(r, n->b, &v) && assign(r, r->scope, n->a, v);
    case N_FOR:
        *flow = exec_for(r, n);
        return true;
    case N_IF:
        if (!choose(r, n, &branch))
            return false;
        *flow = exec_body(r, branch);
        return true;
    case N_MACRO:
        return make_macro(r, n, &v) && scope_bind(r, r->scope, n->name_id, v);
    case N_CALL_BLOCK:
        return exec_call_block(r, n);
    case N_FILTER_BLOCK:
        *flow = captured(r, scope_open(r, r->scope), n->body, &v);
        if (*flow != FLOW_ON)
            return true;
        return filtered(r, n->b, &v) && print_value(r->out, v);
    case N_WITH:
        return exec_with(r, n, flow);
    case N_GENERATION: {
        /* A call block of an argument-less macro, as far as a template can tell. */
        struct scope *s = scope_open(r, r->scope);
        struct macro m = {.node = n};
        if (!s || !bind_params(r, s, &m, &(struct args){0}))
            return false;
        *flow = exec_in(r, s, n->body, NULL);
        return true;
    }
    case N_BREAK:
        *flow = FLOW_BREAK;
        return true;
    case N_CONTINUE:
        *flow = FLOW_CONTINUE;
        return true;
    default:
        return run_error(r, "an expression where a statement is due");
    }
}

enum flow exec_body(struct run *r, const struct node *n)
{
    enum flow flow = FLOW_ON;
    if (!run_enter(r))
        flow = FLOW_FAILED;
    for (; n && flow == FLOW_ON; n = n->next) {
        r->line = n->line;
        if (!run_steps(r, 1) || !exec_one(r, n, &flow))
            flow = FLOW_FAILED;
    }
    run_leave(r);
    return flow;
}

/* ---- The template -------------------------------------------------------------------------- */

enum { TREE_BYTES = 64 << 20 }; /* of a compiled template: its source is at most 1 MiB */

lathe_status template_open(struct template **out, const char *source, size_t n, lathe_error *err)
{
    struct template *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t)
        return fail_memory(err, sizeof *t);
    arena_init(&t->arena, TREE_BYTES);
    lathe_status st = template_parse(t, source, n, err);
    if (st)
        template_close(t);
    else
        *out = t;
    return st;
}

void template_close(struct template *t)
{
    if (!t)
        return;
    arena_release(&t->arena);
    free(t);
}

bool template_reads(const struct template *t, const char *name)
{
    int32_t id = template_name_id(t, name, strlen(name));
    return id >= 0 && t->is_read[id];
}

lathe_status template_define(struct template *t, const char *name, const char *s, size_t n,
                             lathe_error *err)
{
    if (t->n_constants == sizeof t->constant / sizeof t->constant[0])
        return fail(err, LATHE_E_LIMIT, "more than %zu constants of a template", t->n_constants);
    char *copy = arena_strndup(&t->arena, s, n);
    if (!copy)
        return fail_memory(err, n);
    t->constant[t->n_constants++] = (struct constant){name, {.s = copy, .n = n}};
    return LATHE_OK;
}

void rendering_release(struct rendering *r)
{
    free(r->text);
    free(r->origin);
    *r = (struct rendering){0};
}

static lathe_status take(const struct builder *b, struct rendering *out, lathe_error *err)
{
    out->text = malloc(b->n + 1);
    out->origin = malloc(b->n + 1);
    if (!out->text || !out->origin) {
        rendering_release(out);
        return fail_memory(err, b->n + 1);
    }
    if (b->n)
        memcpy(out->text, b->s, b->n);
    out->text[b->n] = 0;
    if (b->map)
        memcpy(out->origin, b->map, b->n);
    else
        memset(out->origin, b->origin, b->n);
    out->n = b->n;
    return LATHE_OK;
}

lathe_status template_render(const struct template *t, struct run *r,
                             const struct template_var *vars, size_t n_vars, struct rendering *out,
                             lathe_error *err)
{
    *out = (struct rendering){0};
    r->t = t;
    r->global = run_array(r, (size_t)t->n_names, sizeof *r->global);
    if (!r->global)
        return r->status;
    memset(r->global, 0, (size_t)t->n_names * sizeof *r->global);
    for (size_t i = 0; function_names[i]; i++) {
        int32_t id = template_name_id(t, function_names[i], strlen(function_names[i]));
        if (id >= 0)
            r->global[id] =
                (struct value){.type = V_FUNCTION, .u.function = function_find(function_names[i])};
    }
    for (size_t i = 0; i < t->n_constants; i++) {
        int32_t id = template_name_id(t, t->constant[i].name, strlen(t->constant[i].name));
        if (id >= 0)
            r->global[id] = value_string(&t->constant[i].text);
    }
    for (size_t i = 0; i < n_vars; i++) {
        int32_t id = template_name_id(t, vars[i].name, strlen(vars[i].name));
        if (id >= 0)
            r->global[id] = *vars[i].value;
    }
    struct builder b;
    builder_init(&b, r);
    b.is_output = true;
    r->out = &b;
    (void)exec_body(r, t->body);
    r->out = NULL;
    r->line = 0;
    return r->status ? r->status : take(&b, out, err);
}

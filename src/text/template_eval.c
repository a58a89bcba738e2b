/* Expressions. */
#include <stdio.h>
#include <string.h>

#include "text/template_string.h"
#include "text/template_tree.h"

/* ---- Names --------------------------------------------------------------------------------- */

static bool look_up(struct run *r, int32_t id, struct value *out)
{
    for (const struct scope *s = r->scope; s; s = s->parent) {
        for (size_t i = s->n; i-- > 0;) {
            if (s->binding[i].name_id == id) {
                *out = s->binding[i].value;
                return true;
            }
        }
    }
    *out = r->global[id];
    if (out->type == V_MISSING) {
        struct value none = {0};
        *out = value_undefined(r, none, value_string(r->t->name[id]));
    }
    return r->status == LATHE_OK;
}

/* ---- Calls --------------------------------------------------------------------------------- */

static bool same_text(const struct string *s, const char *name, size_t n)
{
    return s->n == n && memcmp(s->s, name, n) == 0;
}

/* The call of a lazy builtin, kept. */
struct deferred {
    const struct builtin *builtin;
    struct value self, a[MAX_PARAMS];
    struct args raw;
};

static bool defer(struct run *r, const struct builtin *b, struct value self, const struct value *a,
                  const struct args *raw, struct value *out)
{
    struct deferred *d = run_alloc(r, sizeof *d);
    struct generator *g = run_alloc(r, sizeof *g);
    struct value *pos = run_array(r, raw->n, sizeof *pos);
    struct keyword *keyword = run_array(r, raw->n_keyword, sizeof *keyword);
    if (!d || !g || !pos || !keyword)
        return false;
    *d = (struct deferred){.builtin = b, .self = self};
    memcpy(d->a, a, sizeof d->a);
    if (raw->n)
        memcpy(pos, raw->pos, raw->n * sizeof *pos);
    if (raw->n_keyword)
        memcpy(keyword, raw->keyword, raw->n_keyword * sizeof *keyword);
    d->raw = (struct args){pos, raw->n, keyword, raw->n_keyword};
    *g = (struct generator){.deferred = d};
    *out = (struct value){.type = V_GENERATOR, .u.generator = g};
    return true;
}

bool generator_start(struct run *r, struct generator *g)
{
    const struct deferred *d = g->deferred;
    struct value made;
    if (!d)
        return true;
    g->deferred = NULL;
    bool ok = run_enter(r) && d->builtin->fn(r, d->self, d->a, &d->raw, &made);
    run_leave(r);
    if (!ok)
        return false;
    g->item = made.u.generator->item;
    g->n = made.u.generator->n;
    return true;
}

static bool start(struct run *r, const struct builtin *b, struct value self, const struct value *a,
                  const struct args *raw, struct value *out)
{
    return b->is_lazy ? defer(r, b, self, a, raw, out) : b->fn(r, self, a, raw, out);
}

bool builtin_call(struct run *r, const char *kind, const struct builtin *b, struct value self,
                  const struct args *args, struct value *out)
{
    struct value a[MAX_PARAMS] = {{0}};
    if (b->params[0] == '*')
        return start(r, b, self, a, args, out);
    size_t n = 0, used = 0;
    const char *p = b->params;
    while (*p) {
        size_t len = strcspn(p, " ?");
        bool optional = p[len] == '?';
        if (n < args->n)
            a[n] = args->pos[n];
        for (size_t i = 0; i < args->n_keyword; i++) {
            if (!same_text(args->keyword[i].name, p, len))
                continue;
            if (n < args->n)
                return run_error(r, "%s '%s' got multiple values for argument '%.*s'", kind,
                                 b->name, (int)len, p);
            a[n] = args->keyword[i].value;
            used++;
        }
        if (a[n].type == V_MISSING && !optional)
            return run_error(r, "%s '%s' is missing the argument '%.*s'", kind, b->name, (int)len,
                             p);
        n++;
        p += len + optional;
        p += *p == ' ';
    }
    if (args->n > n)
        return run_error(r, "%s '%s' takes %zu argument%s, %zu given", kind, b->name, n,
                         n == 1 ? "" : "s", args->n);
    if (used < args->n_keyword)
        return run_error(r, "%s '%s' has no such keyword argument", kind, b->name);
    return start(r, b, self, a, args, out);
}

bool value_call(struct run *r, struct value callee, const struct args *args, struct value *out)
{
    struct value none = {0};
    switch ((enum value_type)callee.type) {
    case V_UNDEFINED:
        return value_use_undefined(r, callee);
    case V_MACRO:
        return macro_call(r, callee.u.macro, args, out);
    case V_FUNCTION:
        return builtin_call(r, "function", callee.u.function, none, args, out);
    case V_METHOD:
        return builtin_call(r, "method", callee.u.method->builtin, callee.u.method->self, args,
                            out);
    case V_LOOP:
        return loop_call(r, callee.u.loop, args, out);
    case V_JOINER:
        *out = callee.u.joiner->separator;
        if (callee.u.joiner->is_used)
            return true;
        callee.u.joiner->is_used = true;
        return value_text(r, "", 0, 0, out);
    default:
        return run_error(r, "'%s' object is not callable", value_type_name(callee));
    }
}

bool eval_args(struct run *r, const struct call_node *c, struct call_room *room, struct args *args)
{
    struct value *pos = room->pos;
    struct keyword *keyword = room->keyword;
    struct value star, star_star;
    const struct value *more = NULL;
    size_t n_more = 0, n_keyword = c->n_keyword;
    *args = (struct args){0};
    if (c->star && (!eval_node(r, c->star, &star) || !value_items(r, star, &more, &n_more)))
        return false;
    if (c->star_star) {
        if (!eval_node(r, c->star_star, &star_star))
            return false;
        if (star_star.type != V_DICT)
            return run_error(r, "argument after ** must be a mapping, not %s",
                             value_type_name(star_star));
        n_keyword += star_star.u.dict->n;
    }
    if (c->n + n_more > sizeof room->pos / sizeof room->pos[0] &&
        !(pos = run_array(r, c->n + n_more, sizeof *pos)))
        return false;
    if (n_keyword > sizeof room->keyword / sizeof room->keyword[0] &&
        !(keyword = run_array(r, n_keyword, sizeof *keyword)))
        return false;
    for (size_t i = 0; i < c->n; i++)
        if (!eval_node(r, c->pos[i], &pos[i]))
            return false;
    if (n_more)
        memcpy(pos + c->n, more, n_more * sizeof *pos);
    for (size_t i = 0; i < c->n_keyword; i++) {
        keyword[i].name = c->keyword[i].name;
        if (!eval_node(r, c->keyword[i].value, &keyword[i].value))
            return false;
    }
    for (size_t i = c->n_keyword; i < n_keyword; i++) {
        const struct entry *e = &star_star.u.dict->entry[i - c->n_keyword];
        if (e->key.type != V_STRING)
            return run_error(r, "keywords must be strings");
        keyword[i] = (struct keyword){e->key.u.string, e->value};
        for (size_t k = 0; k < c->n_keyword; k++)
            if (string_equal(keyword[k].name, keyword[i].name))
                return run_error(r, "got multiple values for a keyword argument");
    }
    *args = (struct args){pos, c->n + n_more, keyword, n_keyword};
    return true;
}

/* A filter, test or call whose subject is evaluated. */
static bool eval_call(struct run *r, const struct node *n, struct value subject, struct value *out)
{
    struct call_room room;
    struct args args;
    if (!eval_args(r, n->call, &room, &args))
        return false;
    r->line = n->line;
    if (n->kind == N_CALL)
        return value_call(r, subject, &args, out);
    return builtin_call(r, n->kind == N_TEST ? "test" : "filter", n->builtin, subject, &args, out);
}

/* ---- Operators ----------------------------------------------------------------------------- */

static bool compare(struct run *r, const char *op, struct value a, struct value b, bool *holds)
{
    int order;
    if (strcmp(op, "==") == 0 || strcmp(op, "!=") == 0) {
        if (!value_equal(r, a, b, holds))
            return false;
        *holds = *holds == (op[0] == '=');
        return true;
    }
    if (strcmp(op, "in") == 0)
        return value_contains(r, b, a, holds);
    if (strcmp(op, "not in") == 0) {
        bool ok = value_contains(r, b, a, holds);
        *holds = !*holds;
        return ok;
    }
    if (!value_compare(r, op, a, b, &order))
        return false;
    *holds = order != 2 && (op[0] == '<' ? order < 0 : order > 0);
    if (op[1] == '=' && order == 0)
        *holds = true;
    return true;
}

/* a < b < c holds where every step does; the rest is not evaluated after the first that does not. */
static bool eval_compare(struct run *r, const struct node *n, struct value *out)
{
    struct value left, right;
    bool holds = true;
    if (!eval_node(r, n->a, &left))
        return false;
    unsigned char origin = left.origin;
    for (size_t i = 0; i < n->n && holds; i++) {
        if (!eval_node(r, n->list[i]->a, &right))
            return false;
        r->line = n->line;
        if (!compare(r, n->list[i]->op, left, right, &holds))
            return false;
        left = right;
    }
    *out = value_bool(holds, origin);
    return true;
}

static bool eval_concat(struct run *r, const struct node *n, struct value *out)
{
    const struct string *s = NULL;
    for (size_t i = 0; i < n->n; i++) {
        struct value v;
        const struct string *part;
        if (!eval_node(r, n->list[i], &v) || !value_to_string(r, v, &part))
            return false;
        if (s) {
            if (!string_concat(r, s, part, &v))
                return false;
            part = v.u.string;
        }
        s = part;
    }
    if (s->is_markup) {
        struct string *plain = run_alloc(r, sizeof *plain);
        if (!plain)
            return false;
        *plain = *s;
        plain->is_markup = false;
        s = plain;
    }
    *out = value_string(s);
    return true;
}

static bool eval_items(struct run *r, const struct node *n, struct value *out)
{
    struct value *item = run_array(r, n->n, sizeof *item);
    if (!item)
        return false;
    for (size_t i = 0; i < n->n; i++)
        if (!eval_node(r, n->list[i], &item[i]))
            return false;
    return value_list(r, n->kind == N_LIST ? V_LIST : V_TUPLE, item, n->n, 0, out);
}

static bool eval_dict(struct run *r, const struct node *n, struct value *out)
{
    if (!value_dict(r, n->n / 2, 0, out))
        return false;
    for (size_t i = 0; i < n->n; i += 2) {
        struct value key, v;
        if (!eval_node(r, n->list[i], &key) || !eval_node(r, n->list[i + 1], &v) ||
            !dict_set(r, out->u.dict, key, v))
            return false;
    }
    return true;
}

static bool eval_slice(struct run *r, const struct node *n, struct value *out)
{
    struct value of, part[3] = {{0}};
    if (!eval_node(r, n->a, &of))
        return false;
    for (int i = 0; i < 3; i++)
        if (n->list[i] && !eval_node(r, n->list[i], &part[i]))
            return false;
    r->line = n->line;
    return value_slice(r, of, part[0], part[1], part[2], out);
}

static bool eval_inner(struct run *r, const struct node *n, struct value *out)
{
    struct value a = {0}, b;
    switch (n->kind) {
    case N_CONST:
        *out = n->value;
        return true;
    case N_NAME:
        return look_up(r, n->name_id, out);
    case N_TUPLE:
    case N_LIST:
        return eval_items(r, n, out);
    case N_DICT:
        return eval_dict(r, n, out);
    case N_CONDITION:
        if (!eval_node(r, n->b, &b))
            return false;
        if (value_truth(b))
            return eval_node(r, n->a, out);
        if (n->c)
            return eval_node(r, n->c, out);
        *out = value_undefined_hint(
            r, "the inline if-expression evaluated to false and no else section was defined");
        return r->status == LATHE_OK;
    case N_OR:
    case N_AND:
        if (!eval_node(r, n->a, out))
            return false;
        return value_truth(*out) == (n->kind == N_OR) || eval_node(r, n->b, out);
    case N_NOT:
        if (!eval_node(r, n->a, &a))
            return false;
        *out = value_bool(!value_truth(a), a.origin);
        return true;
    case N_COMPARE:
        return eval_compare(r, n, out);
    case N_BINARY:
        if (!eval_node(r, n->a, &a) || !eval_node(r, n->b, &b))
            return false;
        r->line = n->line;
        return value_arithmetic(r, n->op[0], a, b, out);
    case N_NEGATE:
    case N_PLUS:
        if (!eval_node(r, n->a, &a))
            return false;
        return n->kind == N_NEGATE ? value_negate(r, a, out) : value_plus(r, a, out);
    case N_CONCAT:
        return eval_concat(r, n, out);
    case N_ATTRIBUTE:
        if (!eval_node(r, n->a, &a))
            return false;
        r->line = n->line;
        return value_attribute(r, a, n->name, out);
    case N_ELEMENT:
        if (!eval_node(r, n->a, &a) || !eval_node(r, n->b, &b))
            return false;
        r->line = n->line;
        return value_element(r, a, b, out);
    case N_SLICE:
        return eval_slice(r, n, out);
    case N_CALL:
    case N_FILTER:
    case N_TEST:
        return eval_node(r, n->a, &a) && eval_call(r, n, a, out);
    default:
        return run_error(r, "a statement where an expression is due");
    }
}

bool eval_node(struct run *r, const struct node *n, struct value *out)
{
    r->line = n->line;
    bool ok = run_enter(r) && run_steps(r, 1) && eval_inner(r, n, out);
    run_leave(r);
    return ok;
}

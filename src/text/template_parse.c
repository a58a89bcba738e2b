/* Expressions: jinja2's grammar, its precedences included (** groups from the left, a filter binds
 * tighter than a sign, `~` tighter than +). Depth is bounded while parsing, and the height of every
 * tree is kept, so that no later walk needs a check of its own. */
#include <stdlib.h>
#include <string.h>

#include "text/template_source.h"

static lathe_status parse_unary(struct source *p, bool with_filter, struct node **out);

/* ---- Calls --------------------------------------------------------------------------------- */

static lathe_status add_positional(struct source *p, struct call_node *c, struct node *value)
{
    if ((c->n & (c->n - 1)) == 0) {
        struct node **pos = arena_calloc(p->arena, c->n ? c->n * 2 : 1, sizeof(struct node *));
        if (!pos)
            return source_no_memory(p);
        if (c->n)
            memcpy(pos, c->pos, c->n * sizeof *pos);
        c->pos = pos;
    }
    c->pos[c->n++] = value;
    return LATHE_OK;
}

static lathe_status add_keyword(struct source *p, struct call_node *c, const struct token *name,
                                struct node *value)
{
    size_t n = c->n_keyword;
    if ((n & (n - 1)) == 0) {
        struct keyword_node *k = arena_calloc(p->arena, n ? n * 2 : 1, sizeof *k);
        if (!k)
            return source_no_memory(p);
        if (n)
            memcpy(k, c->keyword, n * sizeof *k);
        c->keyword = k;
    }
    for (size_t i = 0; i < n; i++)
        if (c->keyword[i].name->n == name->n && !memcmp(c->keyword[i].name->s, name->s, name->n))
            return fail(p->err, LATHE_E_FORMAT, "line %d: the keyword argument '%.*s' is repeated",
                        (int)name->line, (int)(name->n < 60 ? name->n : 60), name->s);
    c->keyword[n].value = value;
    c->n_keyword++;
    return source_string(p, name->s, name->n, &c->keyword[n].name);
}

static lathe_status parse_argument(struct source *p, struct call_node *c, struct node *owner)
{
    struct node *value;
    lathe_status st;
    bool star, star_star = false;
    if ((st = source_skip_if(p, source_at(p, "*"), &star)) ||
        (!star && (st = source_skip_if(p, source_at(p, "**"), &star_star))))
        return st;
    if (star || star_star) {
        if (c->star_star || (star && c->star))
            return source_expected(p, "an argument that may stand here");
        st = source_expression(p, &value);
        if (star)
            c->star = value;
        else
            c->star_star = value;
        return st ? st : source_raise(p, owner, value);
    }
    struct token name = p->token;
    if (name.type == TOKEN_NAME) {
        if ((st = source_look_ahead(p)))
            return st;
        if (token_is(&p->ahead, TOKEN_OPERATOR, "=")) {
            if (c->star_star)
                return source_expected(p, "no keyword argument behind **");
            if ((st = source_next(p)) || (st = source_next(p)) ||
                (st = source_expression(p, &value)) || (st = source_raise(p, owner, value)))
                return st;
            return add_keyword(p, c, &name, value);
        }
    }
    if (c->star || c->star_star || c->n_keyword)
        return source_expected(p, "no positional argument behind a keyword argument");
    if ((st = source_expression(p, &value)) || (st = source_raise(p, owner, value)))
        return st;
    return add_positional(p, c, value);
}

/* From "(" to behind ")". */
static lathe_status parse_arguments(struct source *p, struct node *owner)
{
    struct call_node *c = arena_calloc(p->arena, 1, sizeof *c);
    if (!c)
        return source_no_memory(p);
    owner->call = c;
    lathe_status st = source_expect(p, "(");
    bool need_comma = false;
    while (!st && !source_at(p, ")")) {
        if (need_comma && ((st = source_expect(p, ",")) || source_at(p, ")")))
            break;
        st = parse_argument(p, c, owner);
        need_comma = true;
    }
    return st ? st : source_expect(p, ")");
}

static lathe_status parse_call(struct source *p, struct node **node)
{
    struct node *n = source_node(p, N_CALL, p->token.line);
    if (!n)
        return source_no_memory(p);
    n->a = *node;
    *node = n;
    lathe_status st = source_raise(p, n, n->a);
    return st ? st : parse_arguments(p, n);
}

/* ---- Primaries and what follows them ------------------------------------------------------- */

/* Items up to `close`, which is skipped; a trailing comma is allowed. */
static lathe_status parse_items(struct source *p, const char *close, struct node *n)
{
    lathe_status st = LATHE_OK;
    while (!st && !source_at(p, close)) {
        struct node *item;
        if (n->n && ((st = source_expect(p, ",")) || source_at(p, close)))
            break;
        if ((st = source_expression(p, &item)) || (st = source_append(p, n, item)))
            break;
        if (n->kind != N_DICT)
            continue;
        if ((st = source_expect(p, ":")) || (st = source_expression(p, &item)))
            break;
        st = source_append(p, n, item);
    }
    return st ? st : source_expect(p, close);
}

static bool is_tuple_end(const struct source *p)
{
    return p->token.type == TOKEN_VARIABLE_END || p->token.type == TOKEN_BLOCK_END ||
           source_at(p, ")");
}

/* One expression, or several with commas as a tuple. */
lathe_status source_tuple(struct source *p, parse_fn *item, bool may_be_empty, struct node **out)
{
    struct node *tuple = source_node(p, N_TUPLE, p->token.line);
    if (!tuple)
        return source_no_memory(p);
    lathe_status st;
    bool is_tuple = false;
    for (;;) {
        struct node *n;
        if (tuple->n && (st = source_expect(p, ",")))
            return st;
        if (is_tuple_end(p))
            break;
        if ((st = item(p, &n)) || (st = source_append(p, tuple, n)))
            return st;
        if (!source_at(p, ","))
            break;
        is_tuple = true;
    }
    if (!is_tuple && tuple->n) {
        *out = tuple->list[0];
        return LATHE_OK;
    }
    if (!is_tuple && !may_be_empty)
        return source_expected(p, "an expression");
    *out = tuple;
    return LATHE_OK;
}

static lathe_status parse_literal(struct source *p, struct node **out)
{
    struct token t = p->token;
    struct node *n = source_node(p, N_CONST, t.line);
    const struct string *s = NULL;
    if (!n)
        return source_no_memory(p);
    *out = n;
    lathe_status st = source_next(p);
    if (st)
        return st;
    if (t.type == TOKEN_FLOAT) {
        n->value = value_float(t.f, 0);
    } else if (t.type == TOKEN_INTEGER) {
        /* Up to 18 digits surely fit; a longer one is compared as text. */
        static const char most[] = "9223372036854775807";
        bool fits =
            t.n < sizeof most - 1 || (t.n == sizeof most - 1 && memcmp(t.s, most, t.n) <= 0);
        n->value = fits ? value_int(strtoll(t.s, NULL, 10), 0)
                        : (struct value){.type = V_BIG, .u.digits = t.s};
    } else {
        /* Strings side by side are one. */
        while (p->token.type == TOKEN_STRING) {
            char *both = arena_alloc(p->arena, t.n + p->token.n);
            if (!both)
                return source_no_memory(p);
            memcpy(both, t.s, t.n);
            memcpy(both + t.n, p->token.s, p->token.n);
            t.s = both;
            t.n += p->token.n;
            if ((st = source_next(p)))
                return st;
        }
        if ((st = source_string(p, t.s, t.n, &s)))
            return st;
        n->value = value_string(s);
    }
    return LATHE_OK;
}

lathe_status source_primary(struct source *p, struct node **out)
{
    struct token t = p->token;
    lathe_status st;
    if (t.type == TOKEN_STRING || t.type == TOKEN_INTEGER || t.type == TOKEN_FLOAT)
        return parse_literal(p, out);
    if (t.type == TOKEN_NAME) {
        bool is_true = source_at_name(p, "true") || source_at_name(p, "True");
        bool is_false = source_at_name(p, "false") || source_at_name(p, "False");
        bool is_none = source_at_name(p, "none") || source_at_name(p, "None");
        if ((st = source_next(p)))
            return st;
        if (!is_true && !is_false && !is_none)
            return source_name(p, &t, out);
        if (!(*out = source_node(p, N_CONST, t.line)))
            return source_no_memory(p);
        (*out)->value = is_none ? value_none() : value_bool(is_true, 0);
        return LATHE_OK;
    }
    if (source_at(p, "(")) {
        if ((st = source_next(p)) || (st = source_tuple(p, source_expression, true, out)))
            return st;
        return source_expect(p, ")");
    }
    bool is_list = source_at(p, "["), is_dict = source_at(p, "{");
    if (!is_list && !is_dict)
        return source_expected(p, "an expression");
    if (!(*out = source_node(p, is_list ? N_LIST : N_DICT, t.line)))
        return source_no_memory(p);
    if ((st = source_next(p)))
        return st;
    return parse_items(p, is_list ? "]" : "}", *out);
}

/* One index, or a slice. */
static lathe_status parse_subscribed(struct source *p, struct node *of, struct node **out)
{
    struct node *part[3] = {NULL, NULL, NULL};
    lathe_status st;
    int32_t line = p->token.line;
    bool colon;
    if (!source_at(p, ":") && (st = source_expression(p, &part[0])))
        return st;
    if ((st = source_skip_if(p, source_at(p, ":"), &colon)))
        return st;
    if (!colon)
        return source_pair(p, N_ELEMENT, line, NULL, of, part[0], out);
    for (int i = 1; i < 3; i++) {
        bool ends = source_at(p, ":") || source_at(p, "]") || source_at(p, ",");
        if (!ends && (st = source_expression(p, &part[i])))
            return st;
        if (i == 1 && ((st = source_skip_if(p, source_at(p, ":"), &colon)) || !colon))
            break;
    }
    if (st)
        return st;
    struct node *n = source_node(p, N_SLICE, line);
    if (!n || !(n->list = arena_calloc(p->arena, 3, sizeof(struct node *))))
        return source_no_memory(p);
    n->a = of;
    n->n = 3;
    *out = n;
    st = source_raise(p, n, of);
    for (int i = 0; i < 3 && !st; i++) {
        n->list[i] = part[i];
        st = source_raise(p, n, part[i]);
    }
    return st;
}

static lathe_status parse_subscript(struct source *p, struct node **node)
{
    lathe_status st;
    int32_t line = p->token.line;
    if (source_at(p, "[")) {
        if ((st = source_next(p)))
            return st;
        struct node *of = *node;
        if (source_at(p, "]")) { /* x[()] */
            struct node *index = source_node(p, N_TUPLE, line);
            if (!index)
                return source_no_memory(p);
            st = source_pair(p, N_ELEMENT, line, NULL, of, index, node);
        } else {
            st = parse_subscribed(p, of, node);
        }
        if (!st && source_at(p, ","))
            return fail(p->err, LATHE_E_UNSUPPORTED, "line %d: an index of several parts",
                        (int)line);
        return st ? st : source_expect(p, "]");
    }
    if ((st = source_next(p)))
        return st;
    struct token t = p->token;
    if (t.type == TOKEN_INTEGER) {
        struct node *index;
        if ((st = parse_literal(p, &index)))
            return st;
        return source_pair(p, N_ELEMENT, line, NULL, *node, index, node);
    }
    if (t.type != TOKEN_NAME)
        return source_expected(p, "a name or a number behind '.'");
    struct node *n = source_node(p, N_ATTRIBUTE, line);
    if (!n)
        return source_no_memory(p);
    n->a = *node;
    *node = n;
    if ((st = source_raise(p, n, n->a)) || (st = source_string(p, t.s, t.n, &n->name)))
        return st;
    return source_next(p);
}

static lathe_status parse_postfix(struct source *p, struct node **node)
{
    lathe_status st = LATHE_OK;
    while (!st) {
        if (source_at(p, ".") || source_at(p, "["))
            st = parse_subscript(p, node);
        else if (source_at(p, "("))
            st = parse_call(p, node);
        else
            break;
    }
    return st;
}

/* A filter's or test's name, at the current token. */
static lathe_status parse_builtin(struct source *p, struct node *n, bool is_test)
{
    struct token t = p->token;
    const char *what = is_test ? "test" : "filter";
    /* `is ==` has no spelling in the grammar; `is in` and the like are names. */
    if (t.type != TOKEN_NAME)
        return source_expected(p, is_test ? "the name of a test" : "the name of a filter");
    n->builtin = is_test ? test_find(t.s, t.n) : filter_find(t.s, t.n);
    if (!n->builtin)
        return fail(p->err, LATHE_E_UNSUPPORTED, "line %d: there is no %s '%.*s'", (int)t.line,
                    what, (int)(t.n < 60 ? t.n : 60), t.s);
    return source_next(p);
}

static lathe_status no_arguments(struct source *p, struct node *n)
{
    n->call = arena_calloc(p->arena, 1, sizeof *n->call);
    return n->call ? LATHE_OK : source_no_memory(p);
}

/* *node may be NULL: the filter of a block. At the filter's name. */
lathe_status source_filter(struct source *p, struct node **node)
{
    struct node *n = source_node(p, N_FILTER, p->token.line);
    lathe_status st;
    if (!n)
        return source_no_memory(p);
    n->a = *node;
    *node = n;
    if ((st = source_raise(p, n, n->a)) || (st = parse_builtin(p, n, false)))
        return st;
    return source_at(p, "(") ? parse_arguments(p, n) : no_arguments(p, n);
}

static lathe_status parse_test(struct source *p, struct node **node)
{
    struct node *n = source_node(p, N_TEST, p->token.line);
    lathe_status st;
    bool negated;
    if (!n)
        return source_no_memory(p);
    n->a = *node;
    *node = n;
    if ((st = source_raise(p, n, n->a)) || (st = source_next(p)) ||
        (st = source_skip_if(p, source_at_name(p, "not"), &negated)) ||
        (st = parse_builtin(p, n, true)))
        return st;
    bool is_word = p->token.type == TOKEN_NAME && !source_at_name(p, "else") &&
                   !source_at_name(p, "or") && !source_at_name(p, "and");
    if (source_at(p, "(")) {
        st = parse_arguments(p, n);
    } else if (is_word || p->token.type == TOKEN_STRING || p->token.type == TOKEN_INTEGER ||
               p->token.type == TOKEN_FLOAT || source_at(p, "[") || source_at(p, "{")) {
        struct node *arg;
        if (source_at_name(p, "is"))
            return fail(p->err, LATHE_E_FORMAT, "line %d: tests with 'is' cannot be chained",
                        (int)n->line);
        if ((st = no_arguments(p, n)) || (st = source_primary(p, &arg)) ||
            (st = parse_postfix(p, &arg)) || (st = source_raise(p, n, arg)))
            return st;
        st = add_positional(p, n->call, arg);
    } else {
        st = no_arguments(p, n);
    }
    return st || !negated ? st : source_pair(p, N_NOT, n->line, NULL, n, NULL, node);
}

static lathe_status parse_filters(struct source *p, struct node **node)
{
    lathe_status st = LATHE_OK;
    while (!st) {
        if (source_at(p, "|")) {
            if (!(st = source_next(p)))
                st = source_filter(p, node);
        } else if (source_at_name(p, "is")) {
            st = parse_test(p, node);
        } else if (source_at(p, "(")) {
            st = parse_call(p, node);
        } else {
            break;
        }
    }
    return st;
}

/* ---- Operators ----------------------------------------------------------------------------- */

static lathe_status parse_unary(struct source *p, bool with_filter, struct node **out)
{
    int32_t line = p->token.line;
    bool minus, plus = false;
    lathe_status st = source_enter(p);
    if (st || (st = source_skip_if(p, source_at(p, "-"), &minus)) ||
        (!minus && (st = source_skip_if(p, source_at(p, "+"), &plus))))
        return st;
    if (minus || plus) {
        struct node *n;
        if ((st = parse_unary(p, false, &n)) ||
            (st = source_pair(p, minus ? N_NEGATE : N_PLUS, line, NULL, n, NULL, out)))
            return st;
    } else if ((st = source_primary(p, out))) {
        return st;
    }
    if ((st = parse_postfix(p, out)) || (with_filter && (st = parse_filters(p, out))))
        return st;
    p->depth--;
    return LATHE_OK;
}

static lathe_status parse_operand(struct source *p, struct node **out)
{
    return parse_unary(p, true, out);
}

/* operand (op operand)*, from the left; ops are the operators of one precedence and what
 * value_arithmetic calls them. */
static lathe_status parse_chain(struct source *p, parse_fn *operand, const char *const ops[][2],
                                struct node **out)
{
    lathe_status st = operand(p, out);
    while (!st) {
        int32_t line = p->token.line;
        const char *op = NULL;
        for (size_t i = 0; ops[i][0] && !op; i++)
            if (source_at(p, ops[i][0]))
                op = ops[i][1];
        if (!op)
            break;
        struct node *right;
        if ((st = source_next(p)) || (st = operand(p, &right)))
            break;
        st = source_pair(p, N_BINARY, line, op, *out, right, out);
    }
    return st;
}

static lathe_status parse_power(struct source *p, struct node **out)
{
    static const char *const ops[][2] = {{"**", "p"}, {NULL, NULL}};
    return parse_chain(p, parse_operand, ops, out);
}

static lathe_status parse_product(struct source *p, struct node **out)
{
    static const char *const ops[][2] = {
        {"*", "*"}, {"/", "/"}, {"//", "f"}, {"%", "%"}, {NULL, NULL}};
    return parse_chain(p, parse_power, ops, out);
}

static lathe_status parse_concat(struct source *p, struct node **out)
{
    int32_t line = p->token.line;
    lathe_status st = parse_product(p, out);
    struct node *n = NULL;
    while (!st && source_at(p, "~")) {
        struct node *right;
        if (!n) {
            if (!(n = source_node(p, N_CONCAT, line)))
                return source_no_memory(p);
            if ((st = source_append(p, n, *out)))
                break;
            *out = n;
        }
        if ((st = source_next(p)) || (st = parse_product(p, &right)))
            break;
        st = source_append(p, n, right);
    }
    return st;
}

static lathe_status parse_sum(struct source *p, struct node **out)
{
    static const char *const ops[][2] = {{"+", "+"}, {"-", "-"}, {NULL, NULL}};
    return parse_chain(p, parse_concat, ops, out);
}

/* The comparison at the current token, skipped; NULL if there is none. */
static lathe_status parse_comparison(struct source *p, const char **op)
{
    static const char *const ops[] = {"==", "!=", "<=", ">=", "<", ">"};
    lathe_status st;
    *op = NULL;
    for (size_t i = 0; i < sizeof ops / sizeof ops[0] && !*op; i++)
        if (source_at(p, ops[i]))
            *op = ops[i];
    if (source_at_name(p, "in"))
        *op = "in";
    if (source_at_name(p, "not")) {
        if ((st = source_look_ahead(p)))
            return st;
        if (!token_is(&p->ahead, TOKEN_NAME, "in"))
            return LATHE_OK;
        if ((st = source_next(p)))
            return st;
        *op = "not in";
    }
    return *op ? source_next(p) : LATHE_OK;
}

static lathe_status parse_compare(struct source *p, struct node **out)
{
    int32_t line = p->token.line;
    struct node *n = NULL, *right;
    const char *op;
    lathe_status st = parse_sum(p, out);
    while (!st && !(st = parse_comparison(p, &op)) && op) {
        if (!n) {
            if (!(n = source_node(p, N_COMPARE, line)))
                return source_no_memory(p);
            n->a = *out;
            *out = n;
            if ((st = source_raise(p, n, n->a)))
                break;
        }
        if ((st = parse_sum(p, &right)))
            break;
        /* The operator travels with its operand, in a node of its own. */
        struct node *link;
        if (!(st = source_pair(p, N_COMPARE, line, op, right, NULL, &link)))
            st = source_append(p, n, link);
    }
    return st;
}

static lathe_status parse_not(struct source *p, struct node **out)
{
    int32_t line = p->token.line;
    struct node *n;
    if (!source_at_name(p, "not"))
        return parse_compare(p, out);
    lathe_status st = source_enter(p);
    if (st || (st = source_next(p)) || (st = parse_not(p, &n)))
        return st;
    p->depth--;
    return source_pair(p, N_NOT, line, NULL, n, NULL, out);
}

static lathe_status parse_logic(struct source *p, parse_fn *operand, const char *word,
                                enum node_kind kind, struct node **out)
{
    lathe_status st = operand(p, out);
    while (!st && source_at_name(p, word)) {
        int32_t line = p->token.line;
        struct node *right;
        if ((st = source_next(p)) || (st = operand(p, &right)))
            break;
        st = source_pair(p, kind, line, NULL, *out, right, out);
    }
    return st;
}

static lathe_status parse_and(struct source *p, struct node **out)
{
    return parse_logic(p, parse_not, "and", N_AND, out);
}

/* An expression without a trailing `if`. */
lathe_status source_or(struct source *p, struct node **out)
{
    return parse_logic(p, parse_and, "or", N_OR, out);
}

lathe_status source_expression(struct source *p, struct node **out)
{
    lathe_status st = source_enter(p);
    if (st || (st = source_or(p, out)))
        return st;
    while (source_at_name(p, "if")) {
        struct node *n = source_node(p, N_CONDITION, p->token.line);
        bool has_else;
        if (!n)
            return source_no_memory(p);
        n->a = *out;
        if ((st = source_next(p)) || (st = source_or(p, &n->b)) ||
            (st = source_skip_if(p, source_at_name(p, "else"), &has_else)) ||
            (has_else && (st = source_expression(p, &n->c))) || (st = source_raise(p, n, n->a)) ||
            (st = source_raise(p, n, n->b)) || (st = source_raise(p, n, n->c)))
            return st;
        *out = n;
    }
    p->depth--;
    return LATHE_OK;
}

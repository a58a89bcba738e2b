/* Tokens to a tree: jinja2's grammar, its precedences included (** groups from the left, a filter
 * binds tighter than a sign, `~` tighter than +). Depth is bounded while parsing, and the height of
 * every tree is kept, so that no later walk needs a check of its own. */
#include <stdlib.h>
#include <string.h>

#include "text/template_string.h"
#include "text/template_tree.h"

struct enclosing { /* macros and call blocks around the place */
    struct enclosing *outer;
    struct params_node *params;
};

struct parser {
    struct lexer lexer;
    struct template *t;
    struct arena *arena;
    struct token token, ahead;
    bool has_ahead;
    int32_t depth, loops; /* loops: break is allowed where > 0 */
    struct enclosing *enclosing;
    int32_t *name_index; /* [n_name_index] id + 1, open addressing */
    size_t n_name_index;
    lathe_error *err;
};

static lathe_status parse_expression(struct parser *p, struct node **out);
static lathe_status parse_unary(struct parser *p, bool with_filter, struct node **out);
static lathe_status parse_body(struct parser *p, const char *const *ends, struct node **out);

/* ---- Tokens -------------------------------------------------------------------------------- */

static lathe_status advance(struct parser *p)
{
    if (p->has_ahead) {
        p->token = p->ahead;
        p->has_ahead = false;
        return LATHE_OK;
    }
    return lexer_next(&p->lexer, &p->token);
}

static bool token_is(const struct token *t, enum token_type type, const char *text)
{
    return t->type == type && t->n == strlen(text) && memcmp(t->s, text, t->n) == 0;
}

static bool is_operator(const struct parser *p, const char *text)
{
    return token_is(&p->token, TOKEN_OPERATOR, text);
}

static bool is_name(const struct parser *p, const char *text)
{
    return token_is(&p->token, TOKEN_NAME, text);
}

static lathe_status unexpected(struct parser *p, const char *expected)
{
    const struct token *t = &p->token;
    int n = (int)(t->n < 60 ? t->n : 60);
    switch (t->type) {
    case TOKEN_EOF:
        return fail(p->err, LATHE_E_FORMAT, "line %d: the template ends, expected %s", (int)t->line,
                    expected);
    case TOKEN_VARIABLE_END:
    case TOKEN_BLOCK_END:
        return fail(p->err, LATHE_E_FORMAT, "line %d: the tag ends, expected %s", (int)t->line,
                    expected);
    default:
        return fail(p->err, LATHE_E_FORMAT, "line %d: found '%.*s', expected %s", (int)t->line, n,
                    t->s, expected);
    }
}

static lathe_status expect_operator(struct parser *p, const char *text)
{
    char expected[8] = "'  '";
    if (is_operator(p, text))
        return advance(p);
    expected[1] = text[0];
    expected[2] = '\'';
    expected[3] = 0;
    return unexpected(p, expected);
}

/* Skips the operator or name if it is there; *found says so. */
static lathe_status skip_if(struct parser *p, bool is_there, bool *found)
{
    *found = is_there;
    return is_there ? advance(p) : LATHE_OK;
}

static lathe_status look_ahead(struct parser *p)
{
    if (p->has_ahead)
        return LATHE_OK;
    lathe_status st = lexer_next(&p->lexer, &p->ahead);
    p->has_ahead = !st;
    return st;
}

/* ---- Nodes --------------------------------------------------------------------------------- */

static lathe_status no_memory(struct parser *p)
{
    return fail(p->err, LATHE_E_MEMORY, "line %d: out of memory", (int)p->token.line);
}

static struct node *make(struct parser *p, enum node_kind kind, int32_t line)
{
    struct node *n = arena_calloc(p->arena, 1, sizeof *n);
    if (n) {
        n->kind = kind;
        n->line = line;
    }
    return n;
}

static int32_t height(const struct node *n)
{
    return n ? n->height : 0;
}

/* Checks and keeps the height of a node whose children are in place. */
static lathe_status raise_over(struct parser *p, struct node *n, const struct node *child)
{
    if (height(child) >= n->height)
        n->height = height(child) + 1;
    if (n->height > TEMPLATE_MAX_DEPTH)
        return fail(p->err, LATHE_E_LIMIT, "line %d: an expression nested deeper than %d",
                    (int)n->line, TEMPLATE_MAX_DEPTH);
    return LATHE_OK;
}

static lathe_status enter(struct parser *p)
{
    if (++p->depth > TEMPLATE_MAX_DEPTH)
        return fail(p->err, LATHE_E_LIMIT, "line %d: nested deeper than %d", (int)p->token.line,
                    TEMPLATE_MAX_DEPTH);
    return LATHE_OK;
}

/* A node of two operands. */
static lathe_status pair(struct parser *p, enum node_kind kind, int32_t line, const char *op,
                         struct node *a, struct node *b, struct node **out)
{
    struct node *n = make(p, kind, line);
    if (!n)
        return no_memory(p);
    n->a = a;
    n->b = b;
    n->op = op;
    *out = n;
    lathe_status st = raise_over(p, n, a);
    return st ? st : raise_over(p, n, b);
}

/* Appends to a list that is doubled as it grows. */
static lathe_status append(struct parser *p, struct node *to, struct node *item)
{
    if ((to->n & (to->n - 1)) == 0) {
        size_t cap = to->n ? to->n * 2 : 1;
        struct node **list = arena_calloc(p->arena, cap, sizeof(struct node *));
        if (!list)
            return no_memory(p);
        if (to->n)
            memcpy(list, to->list, to->n * sizeof *list);
        to->list = list;
    }
    to->list[to->n++] = item;
    return raise_over(p, to, item);
}

static lathe_status make_string(struct parser *p, const char *s, size_t n,
                                const struct string **out)
{
    struct string *str = arena_calloc(p->arena, 1, sizeof *str);
    if (!str)
        return no_memory(p);
    str->s = s;
    str->n = n;
    *out = str;
    return LATHE_OK;
}

/* ---- Names --------------------------------------------------------------------------------- */

static uint32_t name_hash(const char *s, size_t n)
{
    struct string str = {.s = s, .n = n};
    return string_hash(&str);
}

static lathe_status grow_names(struct parser *p)
{
    struct template *t = p->t;
    int32_t cap = t->cap_names ? t->cap_names * 2 : 64;
    size_t n_index = (size_t)cap * 2;
    const struct string **name = arena_calloc(p->arena, (size_t)cap, sizeof(const struct string *));
    bool *is_read = arena_calloc(p->arena, (size_t)cap, sizeof *is_read);
    int32_t *index = arena_calloc(p->arena, n_index, sizeof *index);
    if (!name || !is_read || !index)
        return no_memory(p);
    for (int32_t i = 0; i < t->n_names; i++) {
        name[i] = t->name[i];
        is_read[i] = t->is_read[i];
        size_t at = name_hash(name[i]->s, name[i]->n) & (n_index - 1);
        while (index[at])
            at = (at + 1) & (n_index - 1);
        index[at] = i + 1;
    }
    t->name = name;
    t->is_read = is_read;
    t->cap_names = cap;
    p->name_index = index;
    p->n_name_index = n_index;
    return LATHE_OK;
}

static lathe_status intern(struct parser *p, const char *s, size_t n, int32_t *id)
{
    struct template *t = p->t;
    lathe_status st;
    if (t->n_names == t->cap_names && (st = grow_names(p)))
        return st;
    size_t mask = p->n_name_index - 1, at = name_hash(s, n) & mask;
    for (; p->name_index[at]; at = (at + 1) & mask) {
        *id = p->name_index[at] - 1;
        if (t->name[*id]->n == n && memcmp(t->name[*id]->s, s, n) == 0)
            return LATHE_OK;
    }
    if ((st = make_string(p, s, n, &t->name[t->n_names])))
        return st;
    *id = t->n_names++;
    p->name_index[at] = *id + 1;
    return LATHE_OK;
}

int32_t template_name_id(const struct template *t, const char *s, size_t n)
{
    for (int32_t i = 0; i < t->n_names; i++)
        if (t->name[i]->n == n && memcmp(t->name[i]->s, s, n) == 0)
            return i;
    return -1;
}

/* A name that an expression reads. */
static lathe_status name_node(struct parser *p, const struct token *t, struct node **out)
{
    struct node *n = make(p, N_NAME, t->line);
    if (!n)
        return no_memory(p);
    *out = n;
    lathe_status st = intern(p, t->s, t->n, &n->name_id);
    if (st)
        return st;
    p->t->is_read[n->name_id] = true;
    for (struct enclosing *e = p->enclosing; e; e = e->outer) {
        e->params->uses_varargs |= token_is(t, TOKEN_NAME, "varargs");
        e->params->uses_kwargs |= token_is(t, TOKEN_NAME, "kwargs");
        e->params->uses_caller |= token_is(t, TOKEN_NAME, "caller");
    }
    return LATHE_OK;
}

/* ---- Calls --------------------------------------------------------------------------------- */

static lathe_status add_positional(struct parser *p, struct call_node *c, struct node *value)
{
    if ((c->n & (c->n - 1)) == 0) {
        struct node **pos = arena_calloc(p->arena, c->n ? c->n * 2 : 1, sizeof(struct node *));
        if (!pos)
            return no_memory(p);
        if (c->n)
            memcpy(pos, c->pos, c->n * sizeof *pos);
        c->pos = pos;
    }
    c->pos[c->n++] = value;
    return LATHE_OK;
}

static lathe_status add_keyword(struct parser *p, struct call_node *c, const struct token *name,
                                struct node *value)
{
    size_t n = c->n_keyword;
    if ((n & (n - 1)) == 0) {
        struct keyword_node *k = arena_calloc(p->arena, n ? n * 2 : 1, sizeof *k);
        if (!k)
            return no_memory(p);
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
    return make_string(p, name->s, name->n, &c->keyword[n].name);
}

static lathe_status parse_argument(struct parser *p, struct call_node *c, struct node *owner)
{
    struct node *value;
    lathe_status st;
    bool star, star_star = false;
    if ((st = skip_if(p, is_operator(p, "*"), &star)) ||
        (!star && (st = skip_if(p, is_operator(p, "**"), &star_star))))
        return st;
    if (star || star_star) {
        if (c->star_star || (star && c->star))
            return unexpected(p, "an argument that may stand here");
        st = parse_expression(p, &value);
        if (star)
            c->star = value;
        else
            c->star_star = value;
        return st ? st : raise_over(p, owner, value);
    }
    struct token name = p->token;
    if (name.type == TOKEN_NAME) {
        if ((st = look_ahead(p)))
            return st;
        if (token_is(&p->ahead, TOKEN_OPERATOR, "=")) {
            if (c->star_star)
                return unexpected(p, "no keyword argument behind **");
            if ((st = advance(p)) || (st = advance(p)) || (st = parse_expression(p, &value)) ||
                (st = raise_over(p, owner, value)))
                return st;
            return add_keyword(p, c, &name, value);
        }
    }
    if (c->star || c->star_star || c->n_keyword)
        return unexpected(p, "no positional argument behind a keyword argument");
    if ((st = parse_expression(p, &value)) || (st = raise_over(p, owner, value)))
        return st;
    return add_positional(p, c, value);
}

/* From "(" to behind ")". */
static lathe_status parse_arguments(struct parser *p, struct node *owner)
{
    struct call_node *c = arena_calloc(p->arena, 1, sizeof *c);
    if (!c)
        return no_memory(p);
    owner->call = c;
    lathe_status st = expect_operator(p, "(");
    bool need_comma = false;
    while (!st && !is_operator(p, ")")) {
        if (need_comma && ((st = expect_operator(p, ",")) || is_operator(p, ")")))
            break;
        st = parse_argument(p, c, owner);
        need_comma = true;
    }
    return st ? st : expect_operator(p, ")");
}

static lathe_status parse_call(struct parser *p, struct node **node)
{
    struct node *n = make(p, N_CALL, p->token.line);
    if (!n)
        return no_memory(p);
    n->a = *node;
    *node = n;
    lathe_status st = raise_over(p, n, n->a);
    return st ? st : parse_arguments(p, n);
}

/* ---- Primaries and what follows them ------------------------------------------------------- */

/* Items up to `close`, which is skipped; a trailing comma is allowed. */
static lathe_status parse_items(struct parser *p, const char *close, struct node *n)
{
    lathe_status st = LATHE_OK;
    while (!st && !is_operator(p, close)) {
        struct node *item;
        if (n->n && ((st = expect_operator(p, ",")) || is_operator(p, close)))
            break;
        if ((st = parse_expression(p, &item)) || (st = append(p, n, item)))
            break;
        if (n->kind != N_DICT)
            continue;
        if ((st = expect_operator(p, ":")) || (st = parse_expression(p, &item)))
            break;
        st = append(p, n, item);
    }
    return st ? st : expect_operator(p, close);
}

static bool is_tuple_end(const struct parser *p)
{
    return p->token.type == TOKEN_VARIABLE_END || p->token.type == TOKEN_BLOCK_END ||
           is_operator(p, ")");
}

typedef lathe_status parse_fn(struct parser *p, struct node **out);

/* One expression, or several with commas as a tuple. */
static lathe_status parse_tuple(struct parser *p, parse_fn *item, bool may_be_empty,
                                struct node **out)
{
    struct node *tuple = make(p, N_TUPLE, p->token.line);
    if (!tuple)
        return no_memory(p);
    lathe_status st;
    bool is_tuple = false;
    for (;;) {
        struct node *n;
        if (tuple->n && (st = expect_operator(p, ",")))
            return st;
        if (is_tuple_end(p))
            break;
        if ((st = item(p, &n)) || (st = append(p, tuple, n)))
            return st;
        if (!is_operator(p, ","))
            break;
        is_tuple = true;
    }
    if (!is_tuple && tuple->n) {
        *out = tuple->list[0];
        return LATHE_OK;
    }
    if (!is_tuple && !may_be_empty)
        return unexpected(p, "an expression");
    *out = tuple;
    return LATHE_OK;
}

static lathe_status parse_literal(struct parser *p, struct node **out)
{
    struct token t = p->token;
    struct node *n = make(p, N_CONST, t.line);
    const struct string *s = NULL;
    if (!n)
        return no_memory(p);
    *out = n;
    lathe_status st = advance(p);
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
                return no_memory(p);
            memcpy(both, t.s, t.n);
            memcpy(both + t.n, p->token.s, p->token.n);
            t.s = both;
            t.n += p->token.n;
            if ((st = advance(p)))
                return st;
        }
        if ((st = make_string(p, t.s, t.n, &s)))
            return st;
        n->value = value_string(s);
    }
    return LATHE_OK;
}

static lathe_status parse_primary(struct parser *p, struct node **out)
{
    struct token t = p->token;
    lathe_status st;
    if (t.type == TOKEN_STRING || t.type == TOKEN_INTEGER || t.type == TOKEN_FLOAT)
        return parse_literal(p, out);
    if (t.type == TOKEN_NAME) {
        bool is_true = is_name(p, "true") || is_name(p, "True");
        bool is_false = is_name(p, "false") || is_name(p, "False");
        bool is_none = is_name(p, "none") || is_name(p, "None");
        if ((st = advance(p)))
            return st;
        if (!is_true && !is_false && !is_none)
            return name_node(p, &t, out);
        if (!(*out = make(p, N_CONST, t.line)))
            return no_memory(p);
        (*out)->value = is_none ? value_none() : value_bool(is_true, 0);
        return LATHE_OK;
    }
    if (is_operator(p, "(")) {
        if ((st = advance(p)) || (st = parse_tuple(p, parse_expression, true, out)))
            return st;
        return expect_operator(p, ")");
    }
    bool is_list = is_operator(p, "["), is_dict = is_operator(p, "{");
    if (!is_list && !is_dict)
        return unexpected(p, "an expression");
    if (!(*out = make(p, is_list ? N_LIST : N_DICT, t.line)))
        return no_memory(p);
    if ((st = advance(p)))
        return st;
    return parse_items(p, is_list ? "]" : "}", *out);
}

/* One index, or a slice. */
static lathe_status parse_subscribed(struct parser *p, struct node *of, struct node **out)
{
    struct node *part[3] = {NULL, NULL, NULL};
    lathe_status st;
    int32_t line = p->token.line;
    bool colon;
    if (!is_operator(p, ":") && (st = parse_expression(p, &part[0])))
        return st;
    if ((st = skip_if(p, is_operator(p, ":"), &colon)))
        return st;
    if (!colon)
        return pair(p, N_ELEMENT, line, NULL, of, part[0], out);
    for (int i = 1; i < 3; i++) {
        bool ends = is_operator(p, ":") || is_operator(p, "]") || is_operator(p, ",");
        if (!ends && (st = parse_expression(p, &part[i])))
            return st;
        if (i == 1 && ((st = skip_if(p, is_operator(p, ":"), &colon)) || !colon))
            break;
    }
    if (st)
        return st;
    struct node *n = make(p, N_SLICE, line);
    if (!n || !(n->list = arena_calloc(p->arena, 3, sizeof(struct node *))))
        return no_memory(p);
    n->a = of;
    n->n = 3;
    *out = n;
    st = raise_over(p, n, of);
    for (int i = 0; i < 3 && !st; i++) {
        n->list[i] = part[i];
        st = raise_over(p, n, part[i]);
    }
    return st;
}

static lathe_status parse_subscript(struct parser *p, struct node **node)
{
    lathe_status st;
    int32_t line = p->token.line;
    if (is_operator(p, "[")) {
        if ((st = advance(p)))
            return st;
        struct node *of = *node;
        if (is_operator(p, "]")) { /* x[()] */
            struct node *index = make(p, N_TUPLE, line);
            if (!index)
                return no_memory(p);
            st = pair(p, N_ELEMENT, line, NULL, of, index, node);
        } else {
            st = parse_subscribed(p, of, node);
        }
        if (!st && is_operator(p, ","))
            return fail(p->err, LATHE_E_UNSUPPORTED, "line %d: an index of several parts",
                        (int)line);
        return st ? st : expect_operator(p, "]");
    }
    if ((st = advance(p)))
        return st;
    struct token t = p->token;
    if (t.type == TOKEN_INTEGER) {
        struct node *index;
        if ((st = parse_literal(p, &index)))
            return st;
        return pair(p, N_ELEMENT, line, NULL, *node, index, node);
    }
    if (t.type != TOKEN_NAME)
        return unexpected(p, "a name or a number behind '.'");
    struct node *n = make(p, N_ATTRIBUTE, line);
    if (!n)
        return no_memory(p);
    n->a = *node;
    *node = n;
    if ((st = raise_over(p, n, n->a)) || (st = make_string(p, t.s, t.n, &n->name)))
        return st;
    return advance(p);
}

static lathe_status parse_postfix(struct parser *p, struct node **node)
{
    lathe_status st = LATHE_OK;
    while (!st) {
        if (is_operator(p, ".") || is_operator(p, "["))
            st = parse_subscript(p, node);
        else if (is_operator(p, "("))
            st = parse_call(p, node);
        else
            break;
    }
    return st;
}

/* A filter's or test's name, at the current token. */
static lathe_status parse_builtin(struct parser *p, struct node *n, bool is_test)
{
    struct token t = p->token;
    const char *what = is_test ? "test" : "filter";
    /* `is ==` has no spelling in the grammar; `is in` and the like are names. */
    if (t.type != TOKEN_NAME)
        return unexpected(p, is_test ? "the name of a test" : "the name of a filter");
    n->builtin = is_test ? test_find(t.s, t.n) : filter_find(t.s, t.n);
    if (!n->builtin)
        return fail(p->err, LATHE_E_UNSUPPORTED, "line %d: there is no %s '%.*s'", (int)t.line,
                    what, (int)(t.n < 60 ? t.n : 60), t.s);
    return advance(p);
}

static lathe_status no_arguments(struct parser *p, struct node *n)
{
    n->call = arena_calloc(p->arena, 1, sizeof *n->call);
    return n->call ? LATHE_OK : no_memory(p);
}

/* *node may be NULL: the filter of a block. At the filter's name. */
static lathe_status parse_filter(struct parser *p, struct node **node)
{
    struct node *n = make(p, N_FILTER, p->token.line);
    lathe_status st;
    if (!n)
        return no_memory(p);
    n->a = *node;
    *node = n;
    if ((st = raise_over(p, n, n->a)) || (st = parse_builtin(p, n, false)))
        return st;
    return is_operator(p, "(") ? parse_arguments(p, n) : no_arguments(p, n);
}

static lathe_status parse_test(struct parser *p, struct node **node)
{
    struct node *n = make(p, N_TEST, p->token.line);
    lathe_status st;
    bool negated;
    if (!n)
        return no_memory(p);
    n->a = *node;
    *node = n;
    if ((st = raise_over(p, n, n->a)) || (st = advance(p)) ||
        (st = skip_if(p, is_name(p, "not"), &negated)) || (st = parse_builtin(p, n, true)))
        return st;
    bool is_word = p->token.type == TOKEN_NAME && !is_name(p, "else") && !is_name(p, "or") &&
                   !is_name(p, "and");
    if (is_operator(p, "(")) {
        st = parse_arguments(p, n);
    } else if (is_word || p->token.type == TOKEN_STRING || p->token.type == TOKEN_INTEGER ||
               p->token.type == TOKEN_FLOAT || is_operator(p, "[") || is_operator(p, "{")) {
        struct node *arg;
        if (is_name(p, "is"))
            return fail(p->err, LATHE_E_FORMAT, "line %d: tests with 'is' cannot be chained",
                        (int)n->line);
        if ((st = no_arguments(p, n)) || (st = parse_primary(p, &arg)) ||
            (st = parse_postfix(p, &arg)) || (st = raise_over(p, n, arg)))
            return st;
        st = add_positional(p, n->call, arg);
    } else {
        st = no_arguments(p, n);
    }
    return st || !negated ? st : pair(p, N_NOT, n->line, NULL, n, NULL, node);
}

static lathe_status parse_filters(struct parser *p, struct node **node)
{
    lathe_status st = LATHE_OK;
    while (!st) {
        if (is_operator(p, "|")) {
            if (!(st = advance(p)))
                st = parse_filter(p, node);
        } else if (is_name(p, "is")) {
            st = parse_test(p, node);
        } else if (is_operator(p, "(")) {
            st = parse_call(p, node);
        } else {
            break;
        }
    }
    return st;
}

/* ---- Operators ----------------------------------------------------------------------------- */

static lathe_status parse_unary(struct parser *p, bool with_filter, struct node **out)
{
    int32_t line = p->token.line;
    bool minus, plus = false;
    lathe_status st = enter(p);
    if (st || (st = skip_if(p, is_operator(p, "-"), &minus)) ||
        (!minus && (st = skip_if(p, is_operator(p, "+"), &plus))))
        return st;
    if (minus || plus) {
        struct node *n;
        if ((st = parse_unary(p, false, &n)) ||
            (st = pair(p, minus ? N_NEGATE : N_PLUS, line, NULL, n, NULL, out)))
            return st;
    } else if ((st = parse_primary(p, out))) {
        return st;
    }
    if ((st = parse_postfix(p, out)) || (with_filter && (st = parse_filters(p, out))))
        return st;
    p->depth--;
    return LATHE_OK;
}

static lathe_status parse_operand(struct parser *p, struct node **out)
{
    return parse_unary(p, true, out);
}

/* operand (op operand)*, from the left; ops are the operators of one precedence and what
 * value_arithmetic calls them. */
static lathe_status parse_chain(struct parser *p, parse_fn *operand, const char *const ops[][2],
                                struct node **out)
{
    lathe_status st = operand(p, out);
    while (!st) {
        int32_t line = p->token.line;
        const char *op = NULL;
        for (size_t i = 0; ops[i][0] && !op; i++)
            if (is_operator(p, ops[i][0]))
                op = ops[i][1];
        if (!op)
            break;
        struct node *right;
        if ((st = advance(p)) || (st = operand(p, &right)))
            break;
        st = pair(p, N_BINARY, line, op, *out, right, out);
    }
    return st;
}

static lathe_status parse_power(struct parser *p, struct node **out)
{
    static const char *const ops[][2] = {{"**", "p"}, {NULL, NULL}};
    return parse_chain(p, parse_operand, ops, out);
}

static lathe_status parse_product(struct parser *p, struct node **out)
{
    static const char *const ops[][2] = {
        {"*", "*"}, {"/", "/"}, {"//", "f"}, {"%", "%"}, {NULL, NULL}};
    return parse_chain(p, parse_power, ops, out);
}

static lathe_status parse_concat(struct parser *p, struct node **out)
{
    int32_t line = p->token.line;
    lathe_status st = parse_product(p, out);
    struct node *n = NULL;
    while (!st && is_operator(p, "~")) {
        struct node *right;
        if (!n) {
            if (!(n = make(p, N_CONCAT, line)))
                return no_memory(p);
            if ((st = append(p, n, *out)))
                break;
            *out = n;
        }
        if ((st = advance(p)) || (st = parse_product(p, &right)))
            break;
        st = append(p, n, right);
    }
    return st;
}

static lathe_status parse_sum(struct parser *p, struct node **out)
{
    static const char *const ops[][2] = {{"+", "+"}, {"-", "-"}, {NULL, NULL}};
    return parse_chain(p, parse_concat, ops, out);
}

/* The comparison at the current token, skipped; NULL if there is none. */
static lathe_status parse_comparison(struct parser *p, const char **op)
{
    static const char *const ops[] = {"==", "!=", "<=", ">=", "<", ">"};
    lathe_status st;
    *op = NULL;
    for (size_t i = 0; i < sizeof ops / sizeof ops[0] && !*op; i++)
        if (is_operator(p, ops[i]))
            *op = ops[i];
    if (is_name(p, "in"))
        *op = "in";
    if (is_name(p, "not")) {
        if ((st = look_ahead(p)))
            return st;
        if (!token_is(&p->ahead, TOKEN_NAME, "in"))
            return LATHE_OK;
        if ((st = advance(p)))
            return st;
        *op = "not in";
    }
    return *op ? advance(p) : LATHE_OK;
}

static lathe_status parse_compare(struct parser *p, struct node **out)
{
    int32_t line = p->token.line;
    struct node *n = NULL, *right;
    const char *op;
    lathe_status st = parse_sum(p, out);
    while (!st && !(st = parse_comparison(p, &op)) && op) {
        if (!n) {
            if (!(n = make(p, N_COMPARE, line)))
                return no_memory(p);
            n->a = *out;
            *out = n;
            if ((st = raise_over(p, n, n->a)))
                break;
        }
        if ((st = parse_sum(p, &right)))
            break;
        /* The operator travels with its operand, in a node of its own. */
        struct node *link;
        if (!(st = pair(p, N_COMPARE, line, op, right, NULL, &link)))
            st = append(p, n, link);
    }
    return st;
}

static lathe_status parse_not(struct parser *p, struct node **out)
{
    int32_t line = p->token.line;
    struct node *n;
    if (!is_name(p, "not"))
        return parse_compare(p, out);
    lathe_status st = enter(p);
    if (st || (st = advance(p)) || (st = parse_not(p, &n)))
        return st;
    p->depth--;
    return pair(p, N_NOT, line, NULL, n, NULL, out);
}

static lathe_status parse_logic(struct parser *p, parse_fn *operand, const char *word,
                                enum node_kind kind, struct node **out)
{
    lathe_status st = operand(p, out);
    while (!st && is_name(p, word)) {
        int32_t line = p->token.line;
        struct node *right;
        if ((st = advance(p)) || (st = operand(p, &right)))
            break;
        st = pair(p, kind, line, NULL, *out, right, out);
    }
    return st;
}

static lathe_status parse_and(struct parser *p, struct node **out)
{
    return parse_logic(p, parse_not, "and", N_AND, out);
}

/* An expression without a trailing `if`. */
static lathe_status parse_or(struct parser *p, struct node **out)
{
    return parse_logic(p, parse_and, "or", N_OR, out);
}

static lathe_status parse_expression(struct parser *p, struct node **out)
{
    lathe_status st = enter(p);
    if (st || (st = parse_or(p, out)))
        return st;
    while (is_name(p, "if")) {
        struct node *n = make(p, N_CONDITION, p->token.line);
        bool has_else;
        if (!n)
            return no_memory(p);
        n->a = *out;
        if ((st = advance(p)) || (st = parse_or(p, &n->b)) ||
            (st = skip_if(p, is_name(p, "else"), &has_else)) ||
            (has_else && (st = parse_expression(p, &n->c))) || (st = raise_over(p, n, n->a)) ||
            (st = raise_over(p, n, n->b)) || (st = raise_over(p, n, n->c)))
            return st;
        *out = n;
    }
    p->depth--;
    return LATHE_OK;
}

/* ---- Statements ---------------------------------------------------------------------------- */

/* A name, or names in a tuple: the target of a `for`, `set` or `with`. */
static lathe_status check_target(struct parser *p, const struct node *n)
{
    if (n->kind == N_NAME)
        return LATHE_OK;
    if (n->kind != N_TUPLE)
        return fail(p->err, LATHE_E_FORMAT, "line %d: cannot assign to this expression",
                    (int)n->line);
    for (size_t i = 0; i < n->n; i++) {
        lathe_status st = check_target(p, n->list[i]);
        if (st)
            return st;
    }
    return LATHE_OK;
}

static lathe_status parse_target(struct parser *p, struct node **out)
{
    lathe_status st = parse_tuple(p, parse_primary, false, out);
    return st ? st : check_target(p, *out);
}

static lathe_status expect_name(struct parser *p, const char *what, struct token *t)
{
    *t = p->token;
    if (t->type != TOKEN_NAME)
        return unexpected(p, what);
    return advance(p);
}

/* The body of a statement from the end of its opening tag; the closing tag's name is skipped, its
 * end is not. */
static lathe_status parse_block(struct parser *p, const char *const *ends, struct node **out)
{
    lathe_status st;
    bool colon;
    if ((st = skip_if(p, is_operator(p, ":"), &colon)))
        return st;
    if (p->token.type != TOKEN_BLOCK_END)
        return unexpected(p, "the end of the tag");
    if ((st = advance(p)))
        return st;
    return parse_body(p, ends, out);
}

static lathe_status parse_closed_block(struct parser *p, const char *end, struct node **out)
{
    const char *const ends[] = {end, NULL};
    lathe_status st = parse_block(p, ends, out);
    return st ? st : advance(p);
}

static lathe_status parse_set(struct parser *p, struct node *n)
{
    lathe_status st;
    bool is_assignment;
    if ((st = look_ahead(p)))
        return st;
    if (p->token.type == TOKEN_NAME && token_is(&p->ahead, TOKEN_OPERATOR, ".")) {
        struct token name = p->token, member;
        struct node *target = make(p, N_SET_MEMBER, name.line);
        if (!target)
            return no_memory(p);
        if ((st = advance(p)) || (st = advance(p)) ||
            (st = expect_name(p, "a member's name behind '.'", &member)) ||
            (st = intern(p, name.s, name.n, &target->name_id)) ||
            (st = make_string(p, member.s, member.n, &target->name)))
            return st;
        n->a = target;
    } else if ((st = parse_target(p, &n->a))) {
        return st;
    }
    if ((st = skip_if(p, is_operator(p, "="), &is_assignment)))
        return st;
    if (is_assignment) {
        n->kind = N_SET;
        return parse_tuple(p, parse_expression, false, &n->b);
    }
    n->kind = N_SET_BLOCK;
    while (is_operator(p, "|"))
        if ((st = advance(p)) || (st = parse_filter(p, &n->b)))
            return st;
    return parse_closed_block(p, "endset", &n->body);
}

static lathe_status parse_for(struct parser *p, struct node *n)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    lathe_status st;
    bool has_test;
    n->kind = N_FOR;
    if ((st = parse_target(p, &n->a)))
        return st;
    if (!is_name(p, "in"))
        return unexpected(p, "'in'");
    if ((st = advance(p)) || (st = parse_tuple(p, parse_or, false, &n->b)) ||
        (st = skip_if(p, is_name(p, "if"), &has_test)) ||
        (has_test && (st = parse_expression(p, &n->c))) ||
        (st = skip_if(p, is_name(p, "recursive"), &n->is_recursive)))
        return st;
    p->loops++;
    st = parse_block(p, ends, &n->body);
    p->loops--;
    if (st)
        return st;
    bool has_else = is_name(p, "else");
    if ((st = advance(p)))
        return st;
    return has_else ? parse_closed_block(p, "endfor", &n->else_body) : LATHE_OK;
}

static lathe_status parse_if(struct parser *p, struct node *n)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    lathe_status st;
    for (;;) {
        n->kind = N_IF;
        if ((st = parse_tuple(p, parse_or, false, &n->a)) || (st = parse_block(p, ends, &n->body)))
            return st;
        bool is_elif = is_name(p, "elif"), is_else = is_name(p, "else");
        if ((st = advance(p)))
            return st;
        if (is_else)
            return parse_closed_block(p, "endif", &n->else_body);
        if (!is_elif)
            return LATHE_OK;
        struct node *branch = make(p, N_IF, p->token.line);
        if (!branch)
            return no_memory(p);
        n->else_body = branch;
        n = branch;
    }
}

static lathe_status parse_signature(struct parser *p, struct node *n)
{
    struct params_node *s = n->params;
    bool need_comma = false;
    size_t cap = 0;
    lathe_status st = expect_operator(p, "(");
    while (!st && !is_operator(p, ")")) {
        struct token name;
        bool has_default;
        if ((need_comma && (st = expect_operator(p, ","))) ||
            (st = expect_name(p, "a parameter's name", &name)))
            return st;
        if (s->n == cap) {
            cap = cap ? cap * 2 : 4;
            int32_t *id = arena_calloc(p->arena, cap, sizeof *id);
            const struct string **text = arena_calloc(p->arena, cap, sizeof(const struct string *));
            struct node **fallback = arena_calloc(p->arena, cap, sizeof(struct node *));
            if (!id || !text || !fallback)
                return no_memory(p);
            if (s->n) {
                memcpy(id, s->name_id, s->n * sizeof *id);
                memcpy(text, s->name, s->n * sizeof *text);
                memcpy(fallback, s->fallback, s->n * sizeof *fallback);
            }
            s->name_id = id;
            s->name = text;
            s->fallback = fallback;
        }
        if ((st = intern(p, name.s, name.n, &s->name_id[s->n])) ||
            (st = make_string(p, name.s, name.n, &s->name[s->n])) ||
            (st = skip_if(p, is_operator(p, "="), &has_default)) ||
            (has_default && (st = parse_expression(p, &s->fallback[s->n]))))
            return st;
        if (!has_default && s->n && s->fallback[s->n - 1])
            return fail(p->err, LATHE_E_FORMAT,
                        "line %d: a parameter without a default behind one that has it",
                        (int)name.line);
        s->n++;
        need_comma = true;
    }
    return st ? st : expect_operator(p, ")");
}

/* The parameters, if any, then the call of a call block, then the body. */
static lathe_status parse_macro_like(struct parser *p, struct node *n, const char *end)
{
    lathe_status st;
    struct params_node *s = arena_calloc(p->arena, 1, sizeof *s);
    if (!s)
        return no_memory(p);
    n->params = s;
    if ((st = intern(p, "varargs", 7, &s->varargs_id)) ||
        (st = intern(p, "kwargs", 6, &s->kwargs_id)) ||
        (st = intern(p, "caller", 6, &s->caller_id)))
        return st;
    struct enclosing here = {p->enclosing, s};
    int32_t loops = p->loops;
    p->enclosing = &here;
    p->loops = 0;
    if (n->kind == N_MACRO || (n->kind == N_CALL_BLOCK && is_operator(p, "(")))
        st = parse_signature(p, n);
    p->enclosing = here.outer;
    if (!st && n->kind == N_CALL_BLOCK) {
        st = parse_expression(p, &n->a);
        if (!st && n->a->kind != N_CALL)
            st = fail(p->err, LATHE_E_FORMAT, "line %d: {%% call %%} without a call", (int)n->line);
    }
    p->enclosing = &here;
    if (!st)
        st = parse_closed_block(p, end, &n->body);
    p->enclosing = here.outer;
    p->loops = loops;
    return st;
}

static lathe_status parse_macro(struct parser *p, struct node *n)
{
    struct token name;
    n->kind = N_MACRO;
    lathe_status st = expect_name(p, "the macro's name", &name);
    if (st || (st = intern(p, name.s, name.n, &n->name_id)) ||
        (st = make_string(p, name.s, name.n, &n->name)))
        return st;
    return parse_macro_like(p, n, "endmacro");
}

static lathe_status parse_call_block(struct parser *p, struct node *n)
{
    n->kind = N_CALL_BLOCK;
    return parse_macro_like(p, n, "endcall");
}

static lathe_status parse_filter_block(struct parser *p, struct node *n)
{
    n->kind = N_FILTER_BLOCK;
    lathe_status st = parse_filter(p, &n->b);
    while (!st && is_operator(p, "|"))
        if (!(st = advance(p)))
            st = parse_filter(p, &n->b);
    return st ? st : parse_closed_block(p, "endfilter", &n->body);
}

static lathe_status parse_with(struct parser *p, struct node *n)
{
    lathe_status st;
    n->kind = N_WITH;
    while (p->token.type != TOKEN_BLOCK_END) {
        struct node *target, *value;
        if ((n->n && (st = expect_operator(p, ","))) || (st = parse_target(p, &target)) ||
            (st = expect_operator(p, "=")) || (st = parse_expression(p, &value)) ||
            (st = append(p, n, target)) || (st = append(p, n, value)))
            return st;
    }
    return parse_closed_block(p, "endwith", &n->body);
}

static lathe_status parse_print(struct parser *p, struct node *n)
{
    lathe_status st;
    n->kind = N_OUTPUT;
    if ((st = parse_expression(p, &n->a)))
        return st;
    if (is_operator(p, ","))
        return fail(p->err, LATHE_E_UNSUPPORTED, "line %d: {%% print %%} of several values",
                    (int)n->line);
    return LATHE_OK;
}

static lathe_status parse_generation(struct parser *p, struct node *n)
{
    n->kind = N_GENERATION;
    return parse_macro_like(p, n, "endgeneration");
}

static lathe_status parse_jump(struct parser *p, struct node *n)
{
    if (p->loops == 0)
        return fail(p->err, LATHE_E_FORMAT, "line %d: {%% %s %%} outside a loop", (int)n->line,
                    n->kind == N_BREAK ? "break" : "continue");
    return LATHE_OK;
}

static const struct {
    const char *name;
    lathe_status (*parse)(struct parser *p, struct node *n); /* NULL: known and refused */
    enum node_kind kind;
} statements[] = {
    {"set", parse_set, N_SET},
    {"for", parse_for, N_FOR},
    {"if", parse_if, N_IF},
    {"macro", parse_macro, N_MACRO},
    {"call", parse_call_block, N_CALL_BLOCK},
    {"filter", parse_filter_block, N_FILTER_BLOCK},
    {"with", parse_with, N_WITH},
    {"print", parse_print, N_OUTPUT},
    {"generation", parse_generation, N_GENERATION},
    {"break", parse_jump, N_BREAK},
    {"continue", parse_jump, N_CONTINUE},
    {"block", NULL, N_GENERATION},
    {"extends", NULL, N_GENERATION},
    {"include", NULL, N_GENERATION},
    {"import", NULL, N_GENERATION},
    {"from", NULL, N_GENERATION},
    {"autoescape", NULL, N_GENERATION},
    {"do", NULL, N_GENERATION},
    {"trans", NULL, N_GENERATION},
    {"debug", NULL, N_GENERATION},
};

/* From the tag's name to before its end. */
static lathe_status parse_statement(struct parser *p, struct node **out)
{
    struct token t;
    lathe_status st = expect_name(p, "the name of a statement", &t);
    if (st)
        return st;
    int n = (int)(t.n < 60 ? t.n : 60);
    for (size_t i = 0; i < sizeof statements / sizeof statements[0]; i++) {
        if (!token_is(&t, TOKEN_NAME, statements[i].name))
            continue;
        if (!statements[i].parse)
            return fail(p->err, LATHE_E_UNSUPPORTED, "line %d: {%% %.*s %%} is not supported",
                        (int)t.line, n, t.s);
        if (!(*out = make(p, statements[i].kind, t.line)))
            return no_memory(p);
        if ((st = enter(p)) || (st = statements[i].parse(p, *out)))
            return st;
        p->depth--;
        return LATHE_OK;
    }
    return fail(p->err, LATHE_E_FORMAT, "line %d: unexpected {%% %.*s %%}", (int)t.line, n, t.s);
}

static lathe_status parse_output(struct parser *p, struct node **out)
{
    lathe_status st;
    if (!(*out = make(p, N_OUTPUT, p->token.line)))
        return no_memory(p);
    if ((st = advance(p)) || (st = parse_tuple(p, parse_expression, false, &(*out)->a)))
        return st;
    if (p->token.type != TOKEN_VARIABLE_END)
        return unexpected(p, "the end of the tag");
    return advance(p);
}

static lathe_status parse_text(struct parser *p, struct node **out)
{
    const struct string *s = NULL;
    lathe_status st = make_string(p, p->token.s, p->token.n, &s);
    if (st)
        return st;
    if (!(*out = make(p, N_TEXT, p->token.line)))
        return no_memory(p);
    (*out)->value = value_string(s);
    return advance(p);
}

static bool is_one_of(const struct parser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (is_name(p, *ends))
            return true;
    return false;
}

/* Statements up to a tag named in `ends` (NULL: to the end of the template), at that name. */
static lathe_status parse_body(struct parser *p, const char *const *ends, struct node **out)
{
    struct node **link = out;
    int32_t line = p->token.line;
    lathe_status st;
    *out = NULL;
    for (;;) {
        switch (p->token.type) {
        case TOKEN_EOF:
            if (ends)
                return fail(p->err, LATHE_E_FORMAT,
                            "line %d: the template ends before {%% %s %%} of the block of line %d",
                            (int)p->token.line, ends[0], (int)line);
            return LATHE_OK;
        case TOKEN_DATA:
            st = parse_text(p, link);
            break;
        case TOKEN_VARIABLE_BEGIN:
            st = parse_output(p, link);
            break;
        default: /* TOKEN_BLOCK_BEGIN */
            if ((st = advance(p)))
                return st;
            if (is_one_of(p, ends))
                return LATHE_OK;
            if ((st = parse_statement(p, link)))
                return st;
            if (p->token.type != TOKEN_BLOCK_END)
                return unexpected(p, "the end of the tag");
            st = advance(p);
        }
        if (st)
            return st;
        link = &(*link)->next;
    }
}

lathe_status template_parse(struct template *t, const char *source, size_t n, lathe_error *err)
{
    struct parser p = {.t = t, .arena = &t->arena, .err = err};
    lathe_status st;
    if ((st = lexer_open(&p.lexer, &t->arena, source, n, err)) ||
        (st = intern(&p, "loop", 4, &t->loop_id)) || (st = advance(&p)))
        return st;
    return parse_body(&p, NULL, &t->body);
}

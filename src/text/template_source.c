#include "text/template_source.h"

#include <string.h>

#include "text/template_string.h"

/* ---- Tokens -------------------------------------------------------------------------------- */

lathe_status source_next(struct source *p)
{
    if (p->has_ahead) {
        p->token = p->ahead;
        p->has_ahead = false;
        return LATHE_OK;
    }
    return lexer_next(&p->lexer, &p->token);
}

bool token_is(const struct token *t, enum token_type type, const char *text)
{
    return t->type == type && t->n == strlen(text) && memcmp(t->s, text, t->n) == 0;
}

bool source_at(const struct source *p, const char *text)
{
    return token_is(&p->token, TOKEN_OPERATOR, text);
}

bool source_at_name(const struct source *p, const char *text)
{
    return token_is(&p->token, TOKEN_NAME, text);
}

lathe_status source_expected(struct source *p, const char *expected)
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

lathe_status source_expect(struct source *p, const char *text)
{
    char expected[8] = "'  '";
    if (source_at(p, text))
        return source_next(p);
    expected[1] = text[0];
    expected[2] = '\'';
    expected[3] = 0;
    return source_expected(p, expected);
}

/* Skips the operator or name if it is there; *found says so. */
lathe_status source_skip_if(struct source *p, bool is_there, bool *found)
{
    *found = is_there;
    return is_there ? source_next(p) : LATHE_OK;
}

lathe_status source_look_ahead(struct source *p)
{
    if (p->has_ahead)
        return LATHE_OK;
    lathe_status st = lexer_next(&p->lexer, &p->ahead);
    p->has_ahead = !st;
    return st;
}

/* ---- Nodes --------------------------------------------------------------------------------- */

lathe_status source_no_memory(struct source *p)
{
    return fail(p->err, LATHE_E_MEMORY, "line %d: out of memory", (int)p->token.line);
}

struct node *source_node(struct source *p, enum node_kind kind, int32_t line)
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
lathe_status source_raise(struct source *p, struct node *n, const struct node *child)
{
    if (height(child) >= n->height)
        n->height = height(child) + 1;
    if (n->height > TEMPLATE_MAX_DEPTH)
        return fail(p->err, LATHE_E_LIMIT, "line %d: an expression nested deeper than %d",
                    (int)n->line, TEMPLATE_MAX_DEPTH);
    return LATHE_OK;
}

lathe_status source_enter(struct source *p)
{
    if (++p->depth > TEMPLATE_MAX_DEPTH)
        return fail(p->err, LATHE_E_LIMIT, "line %d: nested deeper than %d", (int)p->token.line,
                    TEMPLATE_MAX_DEPTH);
    return LATHE_OK;
}

/* A node of two operands. */
lathe_status source_pair(struct source *p, enum node_kind kind, int32_t line, const char *op,
                         struct node *a, struct node *b, struct node **out)
{
    struct node *n = source_node(p, kind, line);
    if (!n)
        return source_no_memory(p);
    n->a = a;
    n->b = b;
    n->op = op;
    *out = n;
    lathe_status st = source_raise(p, n, a);
    return st ? st : source_raise(p, n, b);
}

/* Appends to a list that is doubled as it grows. */
lathe_status source_append(struct source *p, struct node *to, struct node *item)
{
    if ((to->n & (to->n - 1)) == 0) {
        size_t cap = to->n ? to->n * 2 : 1;
        struct node **list = arena_calloc(p->arena, cap, sizeof(struct node *));
        if (!list)
            return source_no_memory(p);
        if (to->n)
            memcpy(list, to->list, to->n * sizeof *list);
        to->list = list;
    }
    to->list[to->n++] = item;
    return source_raise(p, to, item);
}

lathe_status source_string(struct source *p, const char *s, size_t n, const struct string **out)
{
    struct string *str = arena_calloc(p->arena, 1, sizeof *str);
    if (!str)
        return source_no_memory(p);
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

static lathe_status grow_names(struct source *p)
{
    struct template *t = p->t;
    int32_t cap = t->cap_names ? t->cap_names * 2 : 64;
    size_t n_index = (size_t)cap * 2;
    const struct string **name = arena_calloc(p->arena, (size_t)cap, sizeof(const struct string *));
    bool *is_read = arena_calloc(p->arena, (size_t)cap, sizeof *is_read);
    int32_t *index = arena_calloc(p->arena, n_index, sizeof *index);
    if (!name || !is_read || !index)
        return source_no_memory(p);
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

lathe_status source_intern(struct source *p, const char *s, size_t n, int32_t *id)
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
    if ((st = source_string(p, s, n, &t->name[t->n_names])))
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
lathe_status source_name(struct source *p, const struct token *t, struct node **out)
{
    struct node *n = source_node(p, N_NAME, t->line);
    if (!n)
        return source_no_memory(p);
    *out = n;
    lathe_status st = source_intern(p, t->s, t->n, &n->name_id);
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

/* Statements, and the template as a whole. */
#include <string.h>

#include "text/template_source.h"

static lathe_status parse_body(struct source *p, int32_t line, const char *const *ends,
                               struct node **out);

/* ---- Statements ---------------------------------------------------------------------------- */

/* A name, or names in a tuple: the target of a `for`, `set` or `with`. */
static lathe_status check_target(struct source *p, const struct node *n)
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

static lathe_status parse_target(struct source *p, struct node **out)
{
    lathe_status st = source_tuple(p, source_primary, false, out);
    return st ? st : check_target(p, *out);
}

static lathe_status expect_name(struct source *p, const char *what, struct token *t)
{
    *t = p->token;
    if (t->type != TOKEN_NAME)
        return source_expected(p, what);
    return source_next(p);
}

/* The body of a statement of this line, from the end of its opening tag to the name of one of `ends`, of
 * which the first closes it. */
static lathe_status parse_block(struct source *p, int32_t line, const char *const *ends,
                                struct node **out)
{
    lathe_status st;
    bool colon;
    if ((st = source_skip_if(p, source_at(p, ":"), &colon)))
        return st;
    if (p->token.type != TOKEN_BLOCK_END)
        return source_expected(p, "the end of the tag");
    if ((st = source_next(p)))
        return st;
    return parse_body(p, line, ends, out);
}

/* The same to the closing tag, whose name is skipped; its end is not. */
static lathe_status parse_closed_block(struct source *p, int32_t line, const char *end,
                                       struct node **out)
{
    const char *const ends[] = {end, NULL};
    lathe_status st = parse_block(p, line, ends, out);
    return st ? st : source_next(p);
}

static lathe_status parse_set(struct source *p, struct node *n)
{
    lathe_status st;
    bool is_assignment;
    if ((st = source_look_ahead(p)))
        return st;
    if (p->token.type == TOKEN_NAME && token_is(&p->ahead, TOKEN_OPERATOR, ".")) {
        struct token name = p->token, member;
        struct node *target = source_node(p, N_SET_MEMBER, name.line);
        if (!target)
            return source_no_memory(p);
        if ((st = source_next(p)) || (st = source_next(p)) ||
            (st = expect_name(p, "a member's name behind '.'", &member)) ||
            (st = source_intern(p, name.s, name.n, &target->name_id)) ||
            (st = source_string(p, member.s, member.n, &target->name)))
            return st;
        n->a = target;
    } else if ((st = parse_target(p, &n->a))) {
        return st;
    }
    if ((st = source_skip_if(p, source_at(p, "="), &is_assignment)))
        return st;
    if (is_assignment) {
        n->kind = N_SET;
        return source_tuple(p, source_expression, false, &n->b);
    }
    n->kind = N_SET_BLOCK;
    while (source_at(p, "|"))
        if ((st = source_next(p)) || (st = source_filter(p, &n->b)))
            return st;
    return parse_closed_block(p, n->line, "endset", &n->body);
}

static lathe_status parse_for(struct source *p, struct node *n)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    lathe_status st;
    bool has_test;
    n->kind = N_FOR;
    if ((st = parse_target(p, &n->a)))
        return st;
    if (!source_at_name(p, "in"))
        return source_expected(p, "'in'");
    if ((st = source_next(p)) || (st = source_tuple(p, source_or, false, &n->b)) ||
        (st = source_skip_if(p, source_at_name(p, "if"), &has_test)) ||
        (has_test && (st = source_expression(p, &n->c))) ||
        (st = source_skip_if(p, source_at_name(p, "recursive"), &n->is_recursive)))
        return st;
    p->loops++;
    st = parse_block(p, n->line, ends, &n->body);
    p->loops--;
    if (st)
        return st;
    bool has_else = source_at_name(p, "else");
    if ((st = source_next(p)))
        return st;
    return has_else ? parse_closed_block(p, n->line, "endfor", &n->else_body) : LATHE_OK;
}

static lathe_status parse_if(struct source *p, struct node *n)
{
    static const char *const ends[] = {"endif", "elif", "else", NULL};
    const int32_t line = n->line;
    lathe_status st;
    for (;;) {
        n->kind = N_IF;
        if ((st = source_tuple(p, source_or, false, &n->a)) ||
            (st = parse_block(p, line, ends, &n->body)))
            return st;
        bool is_elif = source_at_name(p, "elif"), is_else = source_at_name(p, "else");
        if ((st = source_next(p)))
            return st;
        if (is_else)
            return parse_closed_block(p, line, "endif", &n->else_body);
        if (!is_elif)
            return LATHE_OK;
        struct node *branch = source_node(p, N_IF, p->token.line);
        if (!branch)
            return source_no_memory(p);
        n->else_body = branch;
        n = branch;
    }
}

static lathe_status parse_signature(struct source *p, struct node *n)
{
    struct params_node *s = n->params;
    bool need_comma = false;
    size_t cap = 0;
    lathe_status st = source_expect(p, "(");
    while (!st && !source_at(p, ")")) {
        struct token name;
        bool has_default;
        if ((need_comma && (st = source_expect(p, ","))) ||
            (st = expect_name(p, "a parameter's name", &name)))
            return st;
        if (s->n == cap) {
            cap = cap ? cap * 2 : 4;
            int32_t *id = arena_calloc(p->arena, cap, sizeof *id);
            const struct string **text = arena_calloc(p->arena, cap, sizeof(const struct string *));
            struct node **fallback = arena_calloc(p->arena, cap, sizeof(struct node *));
            if (!id || !text || !fallback)
                return source_no_memory(p);
            if (s->n) {
                memcpy(id, s->name_id, s->n * sizeof *id);
                memcpy(text, s->name, s->n * sizeof *text);
                memcpy(fallback, s->fallback, s->n * sizeof *fallback);
            }
            s->name_id = id;
            s->name = text;
            s->fallback = fallback;
        }
        if ((st = source_intern(p, name.s, name.n, &s->name_id[s->n])) ||
            (st = source_string(p, name.s, name.n, &s->name[s->n])) ||
            (st = source_skip_if(p, source_at(p, "="), &has_default)) ||
            (has_default && (st = source_expression(p, &s->fallback[s->n]))))
            return st;
        if (!has_default && s->n && s->fallback[s->n - 1])
            return fail(p->err, LATHE_E_FORMAT,
                        "line %d: a parameter without a default behind one that has it",
                        (int)name.line);
        s->n++;
        need_comma = true;
    }
    return st ? st : source_expect(p, ")");
}

/* The parameters, if any, then the call of a call block, then the body. */
static lathe_status parse_macro_like(struct source *p, struct node *n, const char *end)
{
    lathe_status st;
    struct params_node *s = arena_calloc(p->arena, 1, sizeof *s);
    if (!s)
        return source_no_memory(p);
    n->params = s;
    if ((st = source_intern(p, "varargs", 7, &s->varargs_id)) ||
        (st = source_intern(p, "kwargs", 6, &s->kwargs_id)) ||
        (st = source_intern(p, "caller", 6, &s->caller_id)))
        return st;
    struct enclosing here = {p->enclosing, s};
    int32_t loops = p->loops;
    p->enclosing = &here;
    p->loops = 0;
    if (n->kind == N_MACRO || (n->kind == N_CALL_BLOCK && source_at(p, "(")))
        st = parse_signature(p, n);
    p->enclosing = here.outer;
    if (!st && n->kind == N_CALL_BLOCK) {
        st = source_expression(p, &n->a);
        if (!st && n->a->kind != N_CALL)
            st = fail(p->err, LATHE_E_FORMAT, "line %d: {%% call %%} without a call", (int)n->line);
    }
    p->enclosing = &here;
    if (!st)
        st = parse_closed_block(p, n->line, end, &n->body);
    p->enclosing = here.outer;
    p->loops = loops;
    return st;
}

static lathe_status parse_macro(struct source *p, struct node *n)
{
    struct token name;
    n->kind = N_MACRO;
    lathe_status st = expect_name(p, "the macro's name", &name);
    if (st || (st = source_intern(p, name.s, name.n, &n->name_id)) ||
        (st = source_string(p, name.s, name.n, &n->name)))
        return st;
    return parse_macro_like(p, n, "endmacro");
}

static lathe_status parse_call_block(struct source *p, struct node *n)
{
    n->kind = N_CALL_BLOCK;
    return parse_macro_like(p, n, "endcall");
}

static lathe_status parse_filter_block(struct source *p, struct node *n)
{
    n->kind = N_FILTER_BLOCK;
    lathe_status st = source_filter(p, &n->b);
    while (!st && source_at(p, "|"))
        if (!(st = source_next(p)))
            st = source_filter(p, &n->b);
    return st ? st : parse_closed_block(p, n->line, "endfilter", &n->body);
}

static lathe_status parse_with(struct source *p, struct node *n)
{
    lathe_status st;
    n->kind = N_WITH;
    while (p->token.type != TOKEN_BLOCK_END) {
        struct node *target, *value;
        if ((n->n && (st = source_expect(p, ","))) || (st = parse_target(p, &target)) ||
            (st = source_expect(p, "=")) || (st = source_expression(p, &value)) ||
            (st = source_append(p, n, target)) || (st = source_append(p, n, value)))
            return st;
    }
    return parse_closed_block(p, n->line, "endwith", &n->body);
}

static lathe_status parse_print(struct source *p, struct node *n)
{
    lathe_status st;
    n->kind = N_OUTPUT;
    if ((st = source_expression(p, &n->a)))
        return st;
    if (source_at(p, ","))
        return fail(p->err, LATHE_E_UNSUPPORTED, "line %d: {%% print %%} of several values",
                    (int)n->line);
    return LATHE_OK;
}

static lathe_status parse_generation(struct source *p, struct node *n)
{
    n->kind = N_GENERATION;
    return parse_macro_like(p, n, "endgeneration");
}

static lathe_status parse_jump(struct source *p, struct node *n)
{
    if (p->loops == 0)
        return fail(p->err, LATHE_E_FORMAT, "line %d: {%% %s %%} outside a loop", (int)n->line,
                    n->kind == N_BREAK ? "break" : "continue");
    return LATHE_OK;
}

static const struct {
    const char *name;
    lathe_status (*parse)(struct source *p, struct node *n); /* NULL: known and refused */
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
static lathe_status parse_statement(struct source *p, struct node **out)
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
        if (!(*out = source_node(p, statements[i].kind, t.line)))
            return source_no_memory(p);
        if ((st = source_enter(p)) || (st = statements[i].parse(p, *out)))
            return st;
        p->depth--;
        return LATHE_OK;
    }
    return fail(p->err, LATHE_E_FORMAT, "line %d: unexpected {%% %.*s %%}", (int)t.line, n, t.s);
}

static lathe_status parse_output(struct source *p, struct node **out)
{
    lathe_status st;
    if (!(*out = source_node(p, N_OUTPUT, p->token.line)))
        return source_no_memory(p);
    if ((st = source_next(p)) || (st = source_tuple(p, source_expression, false, &(*out)->a)))
        return st;
    if (p->token.type != TOKEN_VARIABLE_END)
        return source_expected(p, "the end of the tag");
    return source_next(p);
}

static lathe_status parse_text(struct source *p, struct node **out)
{
    const struct string *s = NULL;
    lathe_status st = source_string(p, p->token.s, p->token.n, &s);
    if (st)
        return st;
    if (!(*out = source_node(p, N_TEXT, p->token.line)))
        return source_no_memory(p);
    (*out)->value = value_string(s);
    return source_next(p);
}

static bool is_one_of(const struct source *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (source_at_name(p, *ends))
            return true;
    return false;
}

/* Statements up to a tag named in `ends` (NULL: to the end of the template), at that name. `line` is the
 * opening tag's. */
static lathe_status parse_body(struct source *p, int32_t line, const char *const *ends,
                               struct node **out)
{
    struct node **link = out;
    lathe_status st;
    *out = NULL;
    for (;;) {
        switch (p->token.type) {
        case TOKEN_EOF:
            if (ends)
                return fail(p->err, LATHE_E_FORMAT,
                            "line %d: the template ends before the {%% %s %%} of line %d",
                            (int)p->token.line, ends[0], (int)line);
            return LATHE_OK;
        case TOKEN_DATA:
            st = parse_text(p, link);
            break;
        case TOKEN_VARIABLE_BEGIN:
            st = parse_output(p, link);
            break;
        default: /* TOKEN_BLOCK_BEGIN */
            if ((st = source_next(p)))
                return st;
            if (is_one_of(p, ends))
                return LATHE_OK;
            if ((st = parse_statement(p, link)))
                return st;
            if (p->token.type != TOKEN_BLOCK_END)
                return source_expected(p, "the end of the tag");
            st = source_next(p);
        }
        if (st)
            return st;
        link = &(*link)->next;
    }
}

lathe_status template_parse(struct template *t, const char *source, size_t n, lathe_error *err)
{
    struct source p = {.t = t, .arena = &t->arena, .err = err};
    lathe_status st;
    if ((st = lexer_open(&p.lexer, &t->arena, source, n, err)) ||
        (st = source_intern(&p, "loop", 4, &t->loop_id)) || (st = source_next(&p)))
        return st;
    return parse_body(&p, 1, NULL, &t->body);
}

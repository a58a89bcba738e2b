/* The tree of a compiled template, its tokens, and the objects that point into it. */
#ifndef LATHE_TEXT_TEMPLATE_TREE_H
#define LATHE_TEXT_TEMPLATE_TREE_H

#include "text/template_value.h"

/* ---- Tokens (template_lex.c) --------------------------------------------------------------- */

enum token_type {
    TOKEN_EOF,
    TOKEN_DATA,
    TOKEN_VARIABLE_BEGIN,
    TOKEN_VARIABLE_END,
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INTEGER,
    TOKEN_FLOAT,
    TOKEN_OPERATOR,
};

struct token {
    enum token_type type;
    int32_t line;
    const char *s; /* [n]: data, name, string decoded, operator as written, digits of an integer */
    size_t n;
    double f; /* TOKEN_FLOAT */
};

struct lexer {
    struct arena *arena;
    const char *s; /* newlines are \n */
    size_t n, at;
    int32_t line;
    enum { LEX_TEXT, LEX_VARIABLE, LEX_BLOCK } in;
    bool line_starting;               /* the match before ended with a newline */
    char bracket[TEMPLATE_MAX_DEPTH]; /* closing ones that are due */
    int32_t n_brackets;
    lathe_error *err;
};
/* `source` is copied with its newlines made \n. */
lathe_status lexer_open(struct lexer *x, struct arena *arena, const char *source, size_t n,
                        lathe_error *err);
lathe_status lexer_next(struct lexer *x, struct token *t);

/* ---- Nodes --------------------------------------------------------------------------------- */

enum node_kind { /* the fields in use; lists go in `list` */
                 /* expressions */
                 N_CONST,     /* value */
                 N_NAME,      /* name_id */
                 N_TUPLE,     /* list */
                 N_LIST,      /* list */
                 N_DICT,      /* list: key, value, key, value ... */
                 N_CONDITION, /* a if b else c; c may be NULL */
                 N_OR,        /* a or b */
                 N_AND,
                 N_NOT,
                 N_COMPARE, /* a, then list of links: N_COMPARE nodes of their own with op and a */
                 N_BINARY,  /* a op b; op[0] is what value_arithmetic calls it */
                 N_NEGATE,
                 N_PLUS,
                 N_CONCAT,    /* list */
                 N_ATTRIBUTE, /* a . name */
                 N_ELEMENT,   /* a [ b ] */
                 N_SLICE,     /* a [ list ]: start, stop, step, each may be NULL */
                 N_CALL,      /* a ( call ) */
                 N_FILTER,    /* a | builtin ( call ); a is NULL in a filter block */
                 N_TEST,      /* a is builtin ( call ) */
                 /* statements; `next` chains a body */
                 N_TEXT,         /* value */
                 N_OUTPUT,       /* a */
                 N_SET,          /* a = b */
                 N_SET_BLOCK,    /* a = body, filtered by b if not NULL */
                 N_SET_MEMBER,   /* target: name_id . name */
                 N_FOR,          /* a in b if c: body, else_body; is_recursive */
                 N_IF,           /* a: body, else_body, where elif is an N_IF of its own */
                 N_MACRO,        /* name_id ( params ): body */
                 N_CALL_BLOCK,   /* a, with params and body as caller() */
                 N_FILTER_BLOCK, /* b, body */
                 N_WITH,         /* list: target, value ...: body */
                 N_GENERATION,   /* body, with params for varargs and kwargs */
                 N_BREAK,
                 N_CONTINUE,
};

struct call_node {
    struct node **pos;
    size_t n;
    struct keyword_node {
        const struct string *name;
        struct node *value;
    } * keyword;
    size_t n_keyword;
    struct node *star, *star_star; /* *x, **x; may be NULL */
};

struct params_node {
    int32_t *name_id;
    const struct string **name;
    struct node **fallback; /* NULL: none */
    size_t n;
    bool uses_varargs, uses_kwargs, uses_caller;
    int32_t varargs_id, kwargs_id, caller_id;
};

struct node {
    enum node_kind kind;
    int32_t line;
    int32_t height; /* of the tree below */
    struct node *a, *b, *c;
    struct node **list;
    size_t n;
    const char *op;
    int32_t name_id;
    bool is_recursive;
    const struct string *name;
    struct value value;
    const struct builtin *builtin;
    struct call_node *call;
    struct params_node *params;
    struct node *body, *else_body, *next;
};

struct template
{
    struct arena arena;
    struct node *body;
    const struct string **name; /* [n_names] by id */
    bool *is_read;              /* [n_names] */
    int32_t n_names, cap_names;
    int32_t loop_id;
    struct constant {
        const char *name;
        struct string text;
    } constant[8];
    size_t n_constants;
};

/* In template_statement.c; fills t->body. */
lathe_status template_parse(struct template *t, const char *source, size_t n, lathe_error *err);
int32_t template_name_id(const struct template *t, const char *s, size_t n); /* -1: not there */

/* ---- What the run adds --------------------------------------------------------------------- */

struct binding {
    int32_t name_id;
    struct value value;
};
struct scope {
    struct scope *parent; /* NULL: the template's own */
    struct binding *binding;
    size_t n, cap;
    bool is_captured; /* a macro may still read it */
};
struct scope *scope_open(struct run *r, struct scope *parent);
bool scope_bind(struct run *r, struct scope *s, int32_t name_id, struct value v);

struct macro {
    const struct string *name; /* NULL: the body of a call block */
    const struct node *node;
    struct scope *scope; /* where it was defined */
};

struct loop {
    const struct value *item;
    size_t n, i;
    /* With an `if`: candidates from `at` on are tested only when the loop comes to them, since the
     * body may change what the condition sees. */
    const struct value *candidate;
    size_t n_candidates, at;
    struct value *kept; /* is `item` */
    int64_t depth0;
    const struct node *node;
    struct scope *scope;
    struct value last_changed; /* V_MISSING: changed() was not called */
};
size_t loop_index(const struct loop *l);

/* Assigns to a name, a tuple of names or a namespace member, in scope s (NULL: the template's). */
bool assign(struct run *r, struct scope *s, const struct node *target, struct value v);
/* Evaluates the arguments of a call. Room for a few is the caller's. */
struct call_room {
    struct value pos[4];
    struct keyword keyword[4];
};
bool eval_args(struct run *r, const struct call_node *c, struct call_room *room, struct args *args);

#endif

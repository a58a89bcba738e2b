/* A template's source while it becomes a tree: the token at hand, and what the expression and the
 * statement half of the grammar share. Every function leaves the first token that is not its own. */
#ifndef LATHE_TEXT_TEMPLATE_SOURCE_H
#define LATHE_TEXT_TEMPLATE_SOURCE_H

#include "text/template_tree.h"

struct enclosing { /* macros and call blocks around the place */
    struct enclosing *outer;
    struct params_node *params;
};

struct source {
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

/* ---- Tokens (template_source.c) ------------------------------------------------------------ */

lathe_status source_next(struct source *p);
/* Reads p->ahead, the token behind the one at hand. */
lathe_status source_look_ahead(struct source *p);
bool token_is(const struct token *t, enum token_type type, const char *text);
/* Is the token at hand this operator, this name? */
bool source_at(const struct source *p, const char *text);
bool source_at_name(const struct source *p, const char *text);
/* The failure "found this, expected that". */
lathe_status source_expected(struct source *p, const char *expected);
/* Skips an operator that must be there. */
lathe_status source_expect(struct source *p, const char *text);
/* Skips the token at hand if is_there; *found says so. */
lathe_status source_skip_if(struct source *p, bool is_there, bool *found);

/* ---- Nodes (template_source.c) ------------------------------------------------------------- */

lathe_status source_no_memory(struct source *p);
/* NULL: no memory. */
struct node *source_node(struct source *p, enum node_kind kind, int32_t line);
/* A node of two operands. */
lathe_status source_pair(struct source *p, enum node_kind kind, int32_t line, const char *op,
                         struct node *a, struct node *b, struct node **out);
/* Adds to n->list. */
lathe_status source_append(struct source *p, struct node *to, struct node *item);
/* Keeps and checks the height of a node that has got this child (which may be NULL). */
lathe_status source_raise(struct source *p, struct node *n, const struct node *child);
/* One level deeper; p->depth-- undoes it, failures need not. */
lathe_status source_enter(struct source *p);
lathe_status source_string(struct source *p, const char *s, size_t n, const struct string **out);
lathe_status source_intern(struct source *p, const char *s, size_t n, int32_t *id);
/* A name that an expression reads. */
lathe_status source_name(struct source *p, const struct token *t, struct node **out);

/* ---- Expressions (template_parse.c) -------------------------------------------------------- */

typedef lathe_status parse_fn(struct source *p, struct node **out);
parse_fn source_expression, source_or, source_primary; /* source_or: without a trailing `if` */
/* One expression, or several with commas as a tuple. */
lathe_status source_tuple(struct source *p, parse_fn *item, bool may_be_empty, struct node **out);
/* A filter at its name, over *node, which may be NULL: the filter of a block. */
lathe_status source_filter(struct source *p, struct node **node);

#endif

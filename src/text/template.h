/* Chat templates: an interpreter for Jinja as jinja2 3.1 runs it inside transformers'
 * apply_chat_template (immutable sandbox, trim_blocks, lstrip_blocks, loop controls, tojson =
 * json.dumps with ensure_ascii=False, raise_exception, strftime_now, generation blocks).
 *
 *   template_lex.c     source text to tokens       template_value.c   values, lists, comparison
 *   template_source.c  the token at hand           template_dict.c    dicts
 *   template_parse.c   expressions to a tree       template_string.c  strings with origins
 *   template_statement.c  statements to a tree     template_case.c    upper, lower, title, classes
 *   template_eval.c    the tree's expressions      template_number.c  arithmetic
 *   template_exec.c    the tree's statements       template_print.c   str(), repr()
 *   template_filter.c  x|f                         template_format.c  %, format()
 *   template_seq.c     x|f over sequences          template_json.c    tojson, and from JSON
 *   template_is.c      x is t                      template_method.c  x.m()
 *   template_function.c   range(), namespace() ...
 *
 * Every byte of a string has an origin: 0 for the template's own text, another number for what the
 * caller put in. Origins follow the bytes through every operation, so the caller can tell in the
 * output which bytes the template wrote itself. Left out of jinja2: template inheritance, include,
 * import, translation, autoescape, and integers beyond 64 bits in arithmetic. */
#ifndef LATHE_TEXT_TEMPLATE_H
#define LATHE_TEXT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/error.h"
#include "base/watch.h"

struct template;
struct run; /* template_value.h: one rendering with its memory, budget and values */
struct value;

enum {
    TEMPLATE_MAX_SOURCE = 1 << 20, /* bytes of a template */
    TEMPLATE_MAX_DEPTH = 200,      /* of nested expressions and blocks in the source */
};

/* Compiles n bytes of UTF-8. What jinja2 has and this interpreter lacks is LATHE_E_UNSUPPORTED, what
 * jinja2 refuses too LATHE_E_FORMAT; both name the line. Nothing of `source` is borrowed. */
lathe_status template_open(struct template **t, const char *source, size_t n, lathe_error *err);
void template_close(struct template *t); /* NULL is allowed */

/* Does an expression of the template read a variable of this name? */
bool template_reads(const struct template *t, const char *name);

/* A variable of every rendering, text of the template's own origin: eos_token and the like. Copied;
 * `name` is a literal. */
lathe_status template_define(struct template *t, const char *name, const char *s, size_t n,
                             lathe_error *err);

/* Bounds of one rendering. */
struct template_limits {
    size_t memory_bytes; /* of all values together */
    size_t output_bytes; /* of the text */
    int64_t steps;       /* tree nodes visited, plus one for every 32 bytes or 4 items touched */
    int32_t depth;       /* of nested evaluation: macro calls, loops, values inside values */
    time_t now;          /* what strftime_now prints */
    struct watch *watch; /* asked meanwhile; NULL: it is not */
};
/* Limits that any conversation of input_bytes of JSON keeps, and the present time. */
void template_limits_init(struct template_limits *limits, size_t input_bytes);

struct template_var {
    const char *name;
    const struct value *value; /* of the run */
};

struct rendering {
    char *text;            /* NUL-terminated */
    unsigned char *origin; /* [n] */
    size_t n;
};
void rendering_release(struct rendering *r);

/* Renders once in a run (run_open, template_value.h). A template that raises, fails or reaches a
 * limit is LATHE_E_TEMPLATE; the message names the line and what it raised or reached. */
lathe_status template_render(const struct template *t, struct run *run,
                             const struct template_var *vars, size_t n_vars, struct rendering *out,
                             lathe_error *err);

#endif

/* Values of the template interpreter, and the run that owns them. All memory is the run's arena, so
 * nothing is freed by itself; strings, lists, tuples and dicts never change once built. Functions
 * return false after a failure, which the run keeps: the first one counts. */
#ifndef LATHE_TEXT_TEMPLATE_VALUE_H
#define LATHE_TEXT_TEMPLATE_VALUE_H

#include "base/arena.h"
#include "base/json.h"
#include "text/template.h"

/* ---- The run ------------------------------------------------------------------------------- */

struct scope;
struct builder;
struct loop;

struct run {
    struct arena arena;
    struct template_limits limits;
    int64_t steps; /* taken */
    int32_t depth;
    int32_t line; /* of the template, for messages; 0: not in a template */
    lathe_status status;
    lathe_error *err;
    bool is_raised; /* the failure came from raise_exception */

    const struct template *t;
    struct scope *scope;  /* innermost; NULL: the template's own */
    struct value *global; /* [names of t]; type V_MISSING where unset */
    struct builder *out;  /* where text goes now */
    size_t out_bytes;     /* written to any builder through output */
};

/* `err` receives the failure and must outlive the run. */
void run_open(struct run *r, const struct template_limits *limits, lathe_error *err);
void run_close(struct run *r);

/* These return false. The message is prefixed with the line. */
bool run_fail(struct run *r, lathe_status status, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* What Python or jinja2 would raise: LATHE_E_TEMPLATE. */
bool run_error(struct run *r, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* NULL after a failure. */
void *run_alloc(struct run *r, size_t bytes);
void *run_array(struct run *r, size_t n, size_t size); /* n * size, uninitialised */
/* Takes steps: n items, or the bytes of a string operation. False when the budget is spent. */
bool run_steps(struct run *r, size_t n);
bool run_bytes(struct run *r, size_t n);
/* Around everything that recurses. run_leave also after a failed run_enter. */
bool run_enter(struct run *r);
void run_leave(struct run *r);

/* ---- Values -------------------------------------------------------------------------------- */

enum value_type {
    V_MISSING, /* no value at all: an argument that was not given */
    V_UNDEFINED,
    V_NONE,
    V_BOOL,
    V_INT,
    V_BIG, /* an integer beyond int64, as its digits */
    V_FLOAT,
    V_STRING,
    V_LIST,
    V_TUPLE,
    V_DICT,
    V_VIEW, /* of a dict: keys(), values(), items() */
    V_RANGE,
    V_GENERATOR, /* can be walked once */
    V_NAMESPACE,
    V_LOOP,
    V_MACRO,
    V_FUNCTION, /* a global function */
    V_METHOD,   /* bound to a value */
    V_CYCLER,
    V_JOINER,
};

struct value {
    unsigned char type;
    unsigned char origin; /* of a scalar and of a container's punctuation */
    union {
        bool b;
        int64_t i;
        double f;
        const char *digits;                /* V_BIG: "-123..." */
        const struct undefined *undefined; /* may be NULL */
        const struct string *string;
        const struct list *list; /* V_LIST, V_TUPLE */
        struct dict *dict;       /* V_DICT, and V_NAMESPACE, which does change */
        const struct view *view;
        const struct range *range;
        struct generator *generator;
        struct loop *loop;
        const struct macro *macro;
        const struct builtin *function;
        const struct method *method;
        struct cycler *cycler;
        struct joiner *joiner;
    } u;
};

struct undefined {
    const char *hint;          /* the whole message, or NULL */
    const char *owner;         /* type of the object that lacks the name; NULL: a variable */
    const struct string *name; /* what was looked up, spelled as in a message */
    bool is_element;           /* an index, not a name */
};

struct string {
    const char *s;            /* valid UTF-8, no NUL behind it */
    const unsigned char *map; /* [n] origins; NULL: every byte is `origin` */
    size_t n;
    struct string_home *home; /* the buffer it may grow in; NULL: none */
    unsigned char origin;
    bool is_markup; /* Markup: `+` escapes what is joined to it */
};

struct list {
    const struct value *item;
    size_t n;
    struct list_home *home;
    bool is_group; /* a tuple of groupby: .grouper and .list */
};

struct entry {
    struct value key, value;
};
struct dict { /* insertion order */
    struct entry *entry;
    size_t n, cap;
    int32_t *index; /* [n_index] entry number + 1, open addressing; NULL while small */
    size_t n_index;
};

enum view_of { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };
struct view {
    struct dict *dict;
    enum view_of of;
};
struct range {
    int64_t start, stop, step;
    size_t n;
};
struct generator {
    const struct value *item;
    size_t n, at;
    const struct deferred *deferred; /* the call that makes the items, until they are asked for */
};
struct method {
    struct value self;
    const struct builtin *builtin;
};
struct cycler {
    const struct value *item;
    size_t n, at;
};
struct joiner {
    struct value separator;
    bool is_used;
};

/* ---- Calls --------------------------------------------------------------------------------- */

struct keyword {
    const struct string *name;
    struct value value;
};
struct args {
    const struct value *pos;
    size_t n;
    const struct keyword *keyword;
    size_t n_keyword;
};

enum { MAX_PARAMS = 6 };
/* `self` is the filtered or tested value or the method's object, V_MISSING for a global function.
 * a[] are the parameters in the order of `params`, V_MISSING where not given. */
typedef bool builtin_fn(struct run *r, struct value self, const struct value *a,
                        const struct args *raw, struct value *out);
struct builtin {
    const char *name;
    const char *params; /* "old new count?": names, "?" optional; "*": anything, in raw */
    builtin_fn *fn;
    bool is_lazy; /* gives a generator, and runs when that is walked */
};
/* Fits arguments to parameters as Python does, then calls. `kind` is "filter", "test" ... */
bool builtin_call(struct run *r, const char *kind, const struct builtin *b, struct value self,
                  const struct args *args, struct value *out);
/* Makes the items of a generator. */
bool generator_start(struct run *r, struct generator *g);
/* Any callable value. In template_eval.c. */
bool value_call(struct run *r, struct value callee, const struct args *args, struct value *out);

const struct builtin *filter_find(const char *name, size_t n);
const struct builtin *test_find(const char *name, size_t n);
const struct builtin *function_find(const char *name);
/* The method of this value's type, NULL if there is none. *is_unsafe: jinja2's immutable sandbox
 * refuses it. */
const struct builtin *method_find(struct value self, const struct string *name, bool *is_unsafe);
extern const char *const function_names[]; /* ends with NULL */

/* The tables, each in the file of its subject; they end with {0}. */
extern const struct builtin filters_text[];     /* template_filter.c */
extern const struct builtin filters_sequence[]; /* template_seq.c */

/* ---- Making values ------------------------------------------------------------------------- */

struct value value_none(void);
struct value value_bool(bool b, unsigned char origin);
struct value value_int(int64_t i, unsigned char origin);
struct value value_float(double f, unsigned char origin);
struct value value_string(const struct string *s);
/* An undefined value whose use is reported with this text. */
struct value value_undefined_hint(struct run *r, const char *hint);
/* `name` of the object `owner` (V_MISSING: a variable). */
struct value value_undefined(struct run *r, struct value owner, struct value name);
/* Borrowed bytes. */
bool value_text(struct run *r, const char *s, size_t n, unsigned char origin, struct value *out);
/* Borrowed items. */
bool value_list(struct run *r, enum value_type type, const struct value *item, size_t n,
                unsigned char origin, struct value *out);
bool value_pair(struct run *r, struct value a, struct value b, struct value *out);
bool value_generator(struct run *r, const struct value *item, size_t n, struct value *out);
bool value_dict(struct run *r, size_t n_expected, unsigned char origin, struct value *out);
/* A JSON tree. Strings are borrowed from the document. */
bool value_from_json(struct run *r, const struct json_doc *d, const json_t *v, unsigned char origin,
                     struct value *out);

/* ---- Asking values ------------------------------------------------------------------------- */

/* Python's name of the type, for messages. */
const char *value_type_name(struct value v);
bool value_truth(struct value v);      /* a loop is true: it has items where it can be seen */
bool value_is_number(struct value v);  /* bool included */
bool value_is_integer(struct value v); /* int64 or bool */
int64_t value_integer(struct value v);
double value_real(struct value v); /* any number */
bool value_equal(struct run *r, struct value a, struct value b, bool *equal);
/* *order < 0, 0 or > 0, and 2 where a NaN makes both false. `op` is for the message: "<". */
bool value_compare(struct run *r, const char *op, struct value a, struct value b, int *order);
bool value_contains(struct run *r, struct value container, struct value item, bool *found);
/* len(); false with a TypeError where there is none. */
bool value_length(struct run *r, struct value v, size_t *n);
bool value_has_length(struct value v);
bool value_is_iterable(struct value v);
/* The items of anything iterable; walks a generator to its end. */
bool value_items(struct run *r, struct value v, const struct value **item, size_t *n);
/* x.name and x[key] with jinja2's fallbacks. */
bool value_attribute(struct run *r, struct value v, const struct string *name, struct value *out);
bool value_element(struct run *r, struct value v, struct value key, struct value *out);
bool value_slice(struct run *r, struct value v, struct value start, struct value stop,
                 struct value step, struct value *out);
/* The error of using an undefined value. */
bool value_use_undefined(struct run *r, struct value v);
/* An int argument; other types are a TypeError that names `what`. */
bool value_expect_integer(struct run *r, struct value v, const char *what, int64_t *i);
bool value_expect_string(struct run *r, struct value v, const char *what, const struct string **s);

/* NULL if the key is absent. False after an unhashable key. */
bool dict_find(struct run *r, const struct dict *d, struct value key, const struct value **v);
const struct value *dict_get(const struct dict *d, const struct string *key);
bool dict_set(struct run *r, struct dict *d, struct value key, struct value v);

/* a + b of lists or of tuples. */
bool list_concat(struct run *r, struct value a, struct value b, struct value *out);

/* Arithmetic; op is one of + - * / % and 'f' for //, 'p' for **. */
bool value_arithmetic(struct run *r, char op, struct value a, struct value b, struct value *out);
bool value_negate(struct run *r, struct value v, struct value *out);
bool value_plus(struct run *r, struct value v, struct value *out);

/* In template_json.c: json.dumps. `indent` and the separators may be V_MISSING or none. */
struct json_style {
    struct value indent, item_separator, key_separator;
    bool is_ascii, is_sorted;
};
bool value_to_json(struct run *r, struct value v, const struct json_style *style,
                   struct builder *out);

/* In template_eval.c and template_exec.c. */
struct node;
bool eval_node(struct run *r, const struct node *n, struct value *out);
enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE, FLOW_FAILED };
enum flow exec_body(struct run *r, const struct node *body);
bool macro_call(struct run *r, const struct macro *m, const struct args *args, struct value *out);
bool loop_call(struct run *r, struct loop *l, const struct args *args, struct value *out);
/* Reads an attribute such as loop.first; *known is false if there is none. */
bool loop_attribute(struct run *r, struct loop *l, const struct string *name, bool *known,
                    struct value *out);
bool loop_cycle(struct run *r, struct loop *l, const struct args *args, struct value *out);
bool loop_changed(struct run *r, struct loop *l, const struct args *args, struct value *out);
bool loop_length(struct run *r, struct loop *l, size_t *n);

#endif

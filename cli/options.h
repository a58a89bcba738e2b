/* Command lines: a table of options, values checked against it, and the nearest good name where one
 * is bad. `--name value`, `--name=value`, `-n value`, `-nvalue`; `--` ends the options. */
#ifndef LATHE_CLI_OPTIONS_H
#define LATHE_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum option_kind {
    OPTION_FLAG,
    OPTION_TEXT,
    OPTION_PATH,
    OPTION_LIST,
    OPTION_INT,
    OPTION_REAL,
    OPTION_WORD
};

enum { OPTION_MAX_ROWS = 128, OPTION_MAX_LIST = 1024 };

struct option_list {
    const char *value[OPTION_MAX_LIST];
    size_t n;
};

struct option {
    const char *name;  /* "--temp" */
    const char *other; /* another spelling: "-m", "--temperature"; or NULL */
    enum option_kind kind;
    void *dest;        /* as the option_* functions take it */
    double min, max;   /* of real numbers, both allowed */
    int64_t low, high; /* of whole ones */
    const char *words; /* "bf16|f32" */
    bool given;        /* set by options_parse */
};

struct options {
    const char *command; /* for messages: "run" */
    const char *help;    /* what --help prints: 24 lines of 80 columns at most, 72 of serve */
    struct option row[OPTION_MAX_ROWS];
    size_t n;
    const char *operand; /* what an argument that is no option is, "DIR"; NULL: there are none */
    const char *operand_value;
};

/* Append an option; `other` may be NULL. What dest holds stays unless the option is given. */
void option_flag(struct options *o, const char *name, const char *other, bool *dest);
/* These point into argv. A text is UTF-8; a path has one byte or more. */
void option_text(struct options *o, const char *name, const char *other, const char **dest);
void option_path(struct options *o, const char *name, const char *other, const char **dest);
/* Texts: may be given again and again. */
void option_list(struct options *o, const char *name, const char *other, struct option_list *dest);
void option_int(struct options *o, const char *name, const char *other, int64_t *dest, int64_t low,
                int64_t high);
/* The same, or the word auto, which is -1. */
void option_auto(struct options *o, const char *name, const char *other, int64_t *dest, int64_t low,
                 int64_t high);
void option_real(struct options *o, const char *name, const char *other, double *dest, double min,
                 double max);
/* One of the words that `words` separates by '|'. */
void option_word(struct options *o, const char *name, const char *other, const char **dest,
                 const char *words);

/* Reads argv[1..argc). True: go on. False: *code is the exit code, after the help or a message. */
bool options_parse(struct options *o, int argc, char **argv, int *code);

/* Was the option on the command line? */
bool options_given(const struct options *o, const char *name);

/* "lathe run: message; see lathe run --help" on standard error; EXIT_USAGE. */
int options_usage(const struct options *o, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* The name among name[0..n) that is nearest to `word`, NULL if none is near: insertions, deletions,
 * changes and swaps of neighbours, at most a third of the length, or one being the other's start. */
const char *nearest_name(const char *word, const char *const *name, size_t n);

#endif

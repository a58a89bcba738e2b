#include "options.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "cli.h"

enum { MAX_WORD = 40 }; /* longer words have no near name */

/* ---- Near names ---------------------------------------------------------------------------- */

static size_t min3(size_t a, size_t b, size_t c)
{
    size_t m = a < b ? a : b;
    return m < c ? m : c;
}

/* Damerau-Levenshtein distance (optimal string alignment). */
static size_t distance(const char *a, size_t n, const char *b, size_t m)
{
    size_t d[MAX_WORD + 1][MAX_WORD + 1];
    for (size_t i = 0; i <= n; i++)
        d[i][0] = i;
    for (size_t j = 0; j <= m; j++)
        d[0][j] = j;
    for (size_t i = 1; i <= n; i++)
        for (size_t j = 1; j <= m; j++) {
            d[i][j] =
                min3(d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                d[i - 2][j - 2] + 1 < d[i][j])
                d[i][j] = d[i - 2][j - 2] + 1;
        }
    return d[n][m];
}

const char *nearest_name(const char *word, const char *const *name, size_t n)
{
    const char *best = NULL;
    size_t best_d = SIZE_MAX, len = strlen(word);
    if (len > MAX_WORD)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        size_t m = strlen(name[i]), dashes = strspn(name[i], "-");
        if (m > MAX_WORD)
            continue;
        size_t shorter = len < m ? len : m, d = distance(word, len, name[i], m);
        /* "--temperature" is meant as "--temp", "--k" not as "--kv-cache". */
        if (shorter >= dashes + 3 && strncmp(word, name[i], shorter) == 0)
            d = d > 1 ? 1 : d;
        if (m >= dashes + 3 && d < best_d && d <= (m - dashes + 2) / 3) {
            best = name[i];
            best_d = d;
        }
    }
    return best;
}

/* ---- Messages ------------------------------------------------------------------------------ */

int options_usage(const struct options *o, const char *fmt, ...)
{
    lathe_error err;
    char message[900];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    (void)fail(&err, LATHE_E_ARGUMENT, "%s", message);
    fprintf(stderr, "lathe %s: %s (lathe %s --help lists the options)\n", o->command, err.message,
            o->command);
    return EXIT_USAGE;
}

static int unknown_option(const struct options *o, const char *word)
{
    const char *name[2 * OPTION_MAX_ROWS + 1];
    size_t n = 0;
    for (size_t i = 0; i < o->n; i++) {
        name[n++] = o->row[i].name;
        if (o->row[i].other)
            name[n++] = o->row[i].other;
    }
    name[n++] = "--help";
    const char *near = nearest_name(word, name, n);
    return near ? options_usage(o, "there is no option %s; the nearest is %s", word, near)
                : options_usage(o, "there is no option %s", word);
}

/* ---- Parsing ------------------------------------------------------------------------------- */

static struct option *add(struct options *o, const char *name, const char *other,
                          enum option_kind kind, void *dest)
{
    assert(o->n < OPTION_MAX_ROWS);
    struct option *r = &o->row[o->n++];
    *r = (struct option){.name = name, .other = other, .kind = kind, .dest = dest};
    return r;
}

void option_flag(struct options *o, const char *name, const char *other, bool *dest)
{
    (void)add(o, name, other, OPTION_FLAG, dest);
}

void option_text(struct options *o, const char *name, const char *other, const char **dest)
{
    (void)add(o, name, other, OPTION_TEXT, (void *)dest);
}

void option_path(struct options *o, const char *name, const char *other, const char **dest)
{
    (void)add(o, name, other, OPTION_PATH, (void *)dest);
}

void option_list(struct options *o, const char *name, const char *other, struct option_list *dest)
{
    (void)add(o, name, other, OPTION_LIST, dest);
}

void option_int(struct options *o, const char *name, const char *other, int64_t *dest, int64_t low,
                int64_t high)
{
    struct option *r = add(o, name, other, OPTION_INT, dest);
    r->low = low;
    r->high = high;
}

void option_auto(struct options *o, const char *name, const char *other, int64_t *dest, int64_t low,
                 int64_t high)
{
    option_int(o, name, other, dest, low, high);
    o->row[o->n - 1].words = "auto";
}

void option_real(struct options *o, const char *name, const char *other, double *dest, double min,
                 double max)
{
    struct option *r = add(o, name, other, OPTION_REAL, dest);
    r->min = min;
    r->max = max;
}

void option_word(struct options *o, const char *name, const char *other, const char **dest,
                 const char *words)
{
    add(o, name, other, OPTION_WORD, (void *)dest)->words = words;
}

bool options_given(const struct options *o, const char *name)
{
    for (size_t i = 0; i < o->n; i++)
        if (strcmp(o->row[i].name, name) == 0)
            return o->row[i].given;
    return false;
}

/* The row whose name or other spelling is s[0..n). */
static struct option *find(struct options *o, const char *s, size_t n)
{
    for (size_t i = 0; i < o->n; i++) {
        struct option *r = &o->row[i];
        if ((strlen(r->name) == n && memcmp(r->name, s, n) == 0) ||
            (r->other && strlen(r->other) == n && memcmp(r->other, s, n) == 0))
            return r;
    }
    return NULL;
}

static int store_int(const struct options *o, const struct option *r, const char *spelled,
                     const char *value)
{
    char *end;
    errno = 0;
    long long x = strtoll(value, &end, 10);
    if (r->words && strcmp(value, r->words) == 0) {
        *(int64_t *)r->dest = -1;
        return EXIT_DONE;
    }
    if (end == value || *end)
        return options_usage(o, "%s is \"%s\", expected a whole number%s%s", spelled, value,
                             r->words ? " or " : "", r->words ? r->words : "");
    if (!errno && x >= r->low && x <= r->high) {
        *(int64_t *)r->dest = x;
        return EXIT_DONE;
    }
    if (r->high >= INT32_MAX && x < r->low)
        return options_usage(o, "%s is %s, expected %" PRId64 " or more", spelled, value, r->low);
    return options_usage(o, "%s is %s, expected %" PRId64 " to %" PRId64, spelled, value, r->low,
                         r->high);
}

static int store_real(const struct options *o, const struct option *r, const char *spelled,
                      const char *value)
{
    char *end;
    double x = strtod(value, &end);
    if (end == value || *end)
        return options_usage(o, "%s is \"%s\", expected a number", spelled, value);
    if (!(x >= r->min && x <= r->max))
        return options_usage(o, "%s is %s, expected %.15g to %.15g", spelled, value, r->min,
                             r->max);
    *(double *)r->dest = x;
    return EXIT_DONE;
}

static int check_text(const struct options *o, const char *spelled, const char *value)
{
    size_t n = strlen(value), good = utf8_valid_prefix(value, n);
    if (good == n)
        return EXIT_DONE;
    return options_usage(o, "%s: byte %zu of %zu, 0x%02X, is no valid UTF-8", spelled, good, n,
                         (unsigned)(unsigned char)value[good]);
}

static int store_word(const struct options *o, struct option *r, const char *spelled,
                      const char *value)
{
    char words[128];
    const char *word[16];
    size_t n = 0;
    (void)snprintf(words, sizeof words, "%s", r->words);
    for (char *next = words; next && n < sizeof word / sizeof *word;) {
        word[n++] = next;
        next = strchr(next, '|');
        if (next)
            *next++ = 0;
    }
    for (size_t i = 0; i < n; i++)
        if (strcmp(word[i], value) == 0) {
            *(const char **)r->dest = value;
            return EXIT_DONE;
        }
    const char *near = nearest_name(value, word, n);
    return near ? options_usage(o, "%s is \"%s\"; the nearest of %s is %s", spelled, value,
                                r->words, near)
                : options_usage(o, "%s is \"%s\", expected %s", spelled, value, r->words);
}

static int store(const struct options *o, struct option *r, const char *spelled, const char *value)
{
    struct option_list *list = r->dest;
    r->given = true;
    switch (r->kind) {
    case OPTION_FLAG:
        *(bool *)r->dest = true;
        return EXIT_DONE;
    case OPTION_TEXT:
        *(const char **)r->dest = value;
        return check_text(o, spelled, value);
    case OPTION_PATH:
        *(const char **)r->dest = value;
        return *value ? EXIT_DONE : options_usage(o, "%s is empty, expected a path", spelled);
    case OPTION_LIST:
        if (list->n == OPTION_MAX_LIST)
            return options_usage(o, "%s is given more than %d times", spelled, OPTION_MAX_LIST);
        list->value[list->n++] = value;
        return check_text(o, spelled, value);
    case OPTION_INT:
        return store_int(o, r, spelled, value);
    case OPTION_REAL:
        return store_real(o, r, spelled, value);
    case OPTION_WORD:
        return store_word(o, r, spelled, value);
    }
    return EXIT_DONE;
}

/* One option at argv[*i], its value perhaps in the next argument. */
static int parse_option(struct options *o, int argc, char **argv, int *i)
{
    const char *arg = argv[*i], *value = NULL;
    bool is_long = arg[1] == '-';
    const char *equals = is_long ? strchr(arg, '=') : NULL;
    size_t n = equals ? (size_t)(equals - arg) : is_long ? strlen(arg) : 2;
    struct option *r = find(o, arg, n);
    char spelled[MAX_WORD + 1];
    (void)snprintf(spelled, sizeof spelled, "%.*s", (int)(n < MAX_WORD ? n : MAX_WORD), arg);
    if (!r || (!is_long && arg[2] && r->kind == OPTION_FLAG))
        return unknown_option(o, is_long ? spelled : arg);
    if (r->kind == OPTION_FLAG) {
        if (equals)
            return options_usage(o, "%s takes no value", spelled);
        return store(o, r, spelled, NULL);
    }
    if (equals)
        value = equals + 1;
    else if (!is_long && arg[2])
        value = arg + 2;
    else if (++*i < argc)
        value = argv[*i];
    else
        return options_usage(o, "%s needs a value", spelled);
    /* "--system --greedy" is a forgotten value far more often than a text that begins so. */
    if (value == argv[*i] && value[0] == '-' && value[1] && find(o, value, strlen(value)))
        return options_usage(o, "%s needs a value, but %s follows (%s=... takes any text)", r->name,
                             value, r->name);
    return store(o, r, spelled, value);
}

bool options_parse(struct options *o, int argc, char **argv, int *code)
{
    bool only_operands = false;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        *code = EXIT_DONE;
        if (only_operands || arg[0] != '-' || !arg[1]) {
            if (!o->operand)
                *code = options_usage(o, "\"%s\" is no option, and nothing else is expected", arg);
            else if (o->operand_value)
                *code = options_usage(o, "\"%s\" is one %s too many", arg, o->operand);
            else if (!*arg)
                *code = options_usage(o, "%s is empty, expected a path", o->operand);
            o->operand_value = arg;
        } else if (strcmp(arg, "--") == 0) {
            only_operands = true;
        } else if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
            (void)fputs(o->help, stdout);
            *code = cli_flush();
            return false;
        } else {
            *code = parse_option(o, argc, argv, &i);
        }
        if (*code)
            return false;
    }
    return true;
}

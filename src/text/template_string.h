/* Strings of the template interpreter: built, cut and searched with the origin of every byte. */
#ifndef LATHE_TEXT_TEMPLATE_STRING_H
#define LATHE_TEXT_TEMPLATE_STRING_H

#include "text/template_value.h"

/* ---- Building ------------------------------------------------------------------------------ */

/* Grows in the arena. A failed append is kept by the run; check once, with builder_string. */
struct builder {
    struct run *r;
    char *s;
    unsigned char *map; /* NULL while all bytes are of one origin */
    size_t n, cap;
    unsigned char origin;
    bool is_output; /* bytes count against the output limit */
};
void builder_init(struct builder *b, struct run *r);
bool builder_put(struct builder *b, const char *s, size_t n, unsigned char origin);
bool builder_puts(struct builder *b, const char *s, unsigned char origin);
bool builder_put_string(struct builder *b, const struct string *s);
/* Bytes [from, to) of s. */
bool builder_put_part(struct builder *b, const struct string *s, size_t from, size_t to);
/* Takes what was built; the builder is empty then. */
bool builder_string(struct builder *b, struct value *out);

/* str(v): what printing a value shows. */
bool print_value(struct builder *b, struct value v);
/* repr(v). */
bool print_repr(struct builder *b, struct value v);
/* Strings as they are, other values as str() spells them. */
bool value_to_string(struct run *r, struct value v, const struct string **s);
/* repr(s) of Python: quoted, with escapes; the quotes get `origin`. */
bool print_quoted(struct builder *b, const struct string *s, unsigned char origin);

/* ---- Parts --------------------------------------------------------------------------------- */

/* Bytes [from, to) of s, shared with it. */
bool string_part(struct run *r, const struct string *s, size_t from, size_t to, struct value *out);
bool string_concat(struct run *r, const struct string *a, const struct string *b,
                   struct value *out);
/* a + b of Python: Markup escapes the other side. */
bool string_add(struct run *r, const struct string *a, const struct string *b, struct value *out);
bool string_repeat(struct run *r, const struct string *s, int64_t times, struct value *out);
/* Makes a string value Markup. */
bool string_mark(struct run *r, struct value *v);
/* & < > ' " as HTML entities, as Markup. */
bool string_escape(struct run *r, struct value v, struct value *out);

bool string_equal(const struct string *a, const struct string *b);
bool string_is(const struct string *s, const char *text);
int string_compare(const struct string *a, const struct string *b);
uint32_t string_hash(const struct string *s);
bool string_has_prefix(const struct string *s, const struct string *prefix);
bool string_has_suffix(const struct string *s, const struct string *suffix);

/* Code points, Python's unit of length and index. */
size_t string_length(const struct string *s);
/* Byte offset of code point i; s->n beyond the end. */
size_t string_offset(const struct string *s, size_t i);
bool string_slice(struct run *r, const struct string *s, int64_t start, int64_t stop, int64_t step,
                  struct value *out);
bool string_chars(struct run *r, const struct string *s, const struct value **item, size_t *n);

/* First position at or after `from` (last one at or before `to`, for string_rfind); SIZE_MAX if there
 * is none, and after a failure of the run. */
size_t string_find(struct run *r, const struct string *s, const struct string *what, size_t from);
size_t string_rfind(struct run *r, const struct string *s, const struct string *what, size_t to);

/* ---- Python's str methods ------------------------------------------------------------------ */

enum strip_side { STRIP_LEFT = 1, STRIP_RIGHT = 2, STRIP_BOTH = 3 };
/* chars NULL: white space. */
bool string_strip(struct run *r, const struct string *s, const struct string *chars,
                  enum strip_side side, struct value *out);
/* separator NULL: runs of white space; max < 0: no maximum. */
bool string_split(struct run *r, const struct string *s, const struct string *separator,
                  int64_t max, bool from_right, struct value *out);
bool string_splitlines(struct run *r, const struct string *s, bool keep_ends, struct value *out);
bool string_replace(struct run *r, const struct string *s, const struct string *old,
                    const struct string *with, int64_t max, struct value *out);
bool string_join(struct run *r, const struct string *separator, const struct value *item, size_t n,
                 bool is_strict, struct value *out);

/* In template_case.c. */
enum letter_case { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITAL, CASE_SWAP };
bool string_case(struct run *r, const struct string *s, enum letter_case to, struct value *out);
/* jinja2's title filter: words end at blanks and - ( { [ < */
bool string_title_words(struct run *r, const struct string *s, struct value *out);
enum character_class {
    CLASS_ALPHA,
    CLASS_DIGIT,
    CLASS_DECIMAL,
    CLASS_NUMERIC,
    CLASS_ALNUM,
    CLASS_SPACE,
    CLASS_PRINTABLE,
};
bool character_is(uint32_t c, enum character_class k);
/* str.isalpha() and the like: nonempty and every character of the class. */
bool string_is_all(const struct string *s, enum character_class k);
bool string_is_cased(const struct string *s, enum letter_case as); /* isupper islower istitle */

/* White space of Python's str: length in bytes of the blank at s[0..n), or that ends at s + n; 0. */
size_t blank_at(const char *s, size_t n);
size_t blank_before(const char *s, size_t n);

/* ---- Formatting (template_format.c) -------------------------------------------------------- */

/* format % values, of a tuple, a dict or one value. */
bool string_percent(struct run *r, const struct string *format, struct value values,
                    struct value *out);
/* "{0} {name}".format(...). */
bool string_format(struct run *r, const struct string *format, const struct args *args,
                   struct value *out);
/* int(text, base), float(text): false in *valid if it is no number. */
bool parse_integer(struct run *r, const struct string *s, int64_t base, bool *valid,
                   struct value *out);
bool parse_real(const struct string *s, double *x);
/* repr(x) of a float. */
bool real_text(struct run *r, double x, char text[40]);

#endif

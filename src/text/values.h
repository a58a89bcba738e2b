/* From the text of a call's parameter to JSON, by the types its schema allows. With S the types
 * without null and t the text without blanks around it:
 *
 *   1. t is "null" or "None" and null is allowed        null
 *   2. S has a type beside string, t is JSON of such a type, or True or False where S has boolean,
 *      and no enum lists the text where S has string    t, as it is spelled; true or false
 *   3. S has string                                     the text as a string, untouched
 *   4. S is empty and t is a JSON object or array       t, as it is spelled
 *   5. otherwise                                        the text as a string
 *
 * An integer may be spelled 5.0, a number as an integer. Nothing fails: what does not convert is a
 * string, and strings inside a value are left alone. */
#ifndef LATHE_TEXT_VALUES_H
#define LATHE_TEXT_VALUES_H

#include "text/tools.h"

/* The longest value that is looked at as JSON, and how many values it may hold. */
extern const struct json_limits json_limits_value;

struct parameter {
    const struct toolset *tools;
    const char *tool;     /* its declared name */
    const json_t *schema; /* NULL: undeclared, a string */
    unsigned types;       /* of the schema; TYPE_STRING where there is none */
};

struct parameter parameter_of(const struct toolset *ts, const char *tool, const json_t *schema);

/* Whether a value that begins with s[0..n) is a string whatever follows, so that it need not be
 * complete to be sent. Looks at the first few characters behind the blanks only. */
bool value_is_string(const struct parameter *p, const char *s, size_t n);

/* Appends the JSON of a complete value. */
lathe_status value_print(struct buf *out, const struct parameter *p, const char *s, size_t n,
                         lathe_error *err);

#endif

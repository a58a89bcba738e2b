/* The tools a request declares, as the output parser needs them: their names, and the JSON types of
 * their parameters. */
#ifndef LATHE_TEXT_TOOLS_H
#define LATHE_TEXT_TOOLS_H

#include "base/json.h"

enum json_types { /* a set of bits; none: the schema does not say */
                  TYPE_STRING = 1,
                  TYPE_INTEGER = 2,
                  TYPE_NUMBER = 4,
                  TYPE_BOOLEAN = 8,
                  TYPE_OBJECT = 16,
                  TYPE_ARRAY = 32,
                  TYPE_NULL = 64,
};

enum { TOOL_MAX_NAME = 512 }; /* bytes; tools with longer names are ignored */

struct toolset;

/* Reads an array of tools in OpenAI's form, {"type": "function", "function": {"name", "parameters"}},
 * or of bare functions. Entries without a name are ignored; of equal names the first counts. */
lathe_status toolset_open(struct toolset **ts, const char *json, size_t n, lathe_error *err);
void toolset_close(struct toolset *ts); /* NULL is allowed */
/* Does the array hold anything? */
bool toolset_any(const struct toolset *ts);

/* The declared name that s[0..n) means, NULL if none: the same one, or the only one that is left when
 * namespaces ("functions.", "api:", "a/", "ns__") are cut from its front. */
const char *toolset_find(const struct toolset *ts, const char *s, size_t n);

/* A parameter's schema in the declared tool `name`, NULL if it is undeclared. Borrowed. */
const json_t *toolset_parameter(const struct toolset *ts, const char *name, const char *key,
                                size_t n_key);

/* What a parameter's schema allows: local $ref, type, the union of anyOf, oneOf and allOf, enum and
 * const where no type is given, nullable. */
unsigned schema_types(const struct toolset *ts, const char *name, const json_t *schema);
/* Is the text one of the strings of the schema's enum or const? */
bool schema_lists(const struct toolset *ts, const char *name, const json_t *schema, const char *s,
                  size_t n);

#endif

/* Fields that all routes that generate treat alike: what is not supported, and hints. */
#ifndef LATHE_SERVER_UNSUPPORTED_H
#define LATHE_SERVER_UNSUPPORTED_H

#include "fields.h"

/* Names of the fields that a route knows, as they are gathered. */
struct known_fields {
    const char *name[160];
    size_t n;
};
void known_add(struct known_fields *k, const char *const *name, size_t n);

/* A field that must ask for what is done anyway. */
struct neutral_field {
    const char *name, *value; /* value: as JSON, true, false, [] or one digit */
};
bool neutral_read(const struct fields *f, const struct neutral_field *row, size_t n,
                  struct known_fields *k);

/* A field that changes nothing; only its type is checked. */
enum hint_type { HINT_TEXT, HINT_BOOL, HINT_WHOLE, HINT_OBJECT };
struct hint {
    const char *name;
    enum hint_type type;
};
bool hints_read(const struct fields *f, const struct hint *row, size_t n, struct known_fields *k);

/* An object whose type must be "text", or nothing: how the output is bound. */
bool format_read(const struct fields *f, struct exchange *x, const char *name);

/* Refuses what no route supports: ways to bind the output, unless they ask for text, samplers that do not exist, unless
 * they are set to do nothing, and more. */
bool unsupported_read(const struct fields *f, struct exchange *x, struct known_fields *k);

/* fields_unknown of the object that is a member of f, if it is there. path: the member's name and a dot. */
bool inner_unknown(const struct fields *f, struct exchange *x, const char *name, const char *path,
                   const char *const *known, size_t n);

#endif

/* Members of a JSON body, with the refusals that name them: null is absence, 5.0 is an integer, "5" is none. */
#ifndef LATHE_SERVER_FIELDS_H
#define LATHE_SERVER_FIELDS_H

#include "base/json.h"
#include "exchange.h"
#include "limit.h"

struct fields {
    struct json_doc doc;
    const json_t *object; /* the body, or an object in it */
    const char *path;     /* of the object: "" for the body, else "reasoning." */
    struct failure *failure;
    struct watch *watch;         /* of what takes long; NULL: nobody is asked */
    const struct server *server; /* whose options count; NULL: none do */
};

/* The body of x, which must be one JSON object. Released by fields_close, after a failure too. */
bool fields_open(struct fields *f, struct exchange *x);
void fields_close(struct fields *f);
/* The object that is a member of f; it shares f's document and is not closed. *out has object NULL where the member is
 * absent. `path` is the member's name and a dot. */
bool fields_inner(const struct fields *f, const char *name, const char *path, struct fields *out);

/* NULL: absent, or null. */
const json_t *field_value(const struct fields *f, const char *name);
/* These leave *out as it is where the field is absent; false after a refusal. */
bool field_text(const struct fields *f, const char *name, const char **out, size_t *n);
bool field_bool(const struct fields *f, const char *name, bool *out);
bool field_int(const struct fields *f, const char *name, int64_t *out, int64_t low, int64_t high);
bool field_real(const struct fields *f, const char *name, double *out, double low, double high);
bool field_array(const struct fields *f, const char *name, const json_t **out, size_t most);
/* With at most as many entries as an option of the server says. */
bool field_limited(const struct fields *f, const char *name, const json_t **out,
                   enum server_limit most);

/* Refuses a field: "expected a string, found a number". */
bool field_is_no(const struct fields *f, const char *name, const char *expected, const json_t *v);
const char *json_kind(const json_t *v); /* "a number" */

/* A whole number, given as 5 or 5.0. */
bool json_whole(const json_t *v, int64_t *out);

/* Keys of the object that are not among known[0..n): with the object's path into x->unknown, or refused, as the server's
 * options say. */
bool fields_unknown(const struct fields *f, struct exchange *x, const char *const *known, size_t n);

#endif

/* The members of a config.json object, checked as they are read. The first failure is kept and later reads
 * do nothing, so that code that reads fields reads straight. Members that are null count as absent. */
#ifndef LATHE_MODEL_FIELDS_H
#define LATHE_MODEL_FIELDS_H

#include "base/error.h"
#include "base/json.h"

struct reader {
    const struct json_doc *doc;
    json_t *obj;       /* the object that is read */
    const char *where; /* its name with a dot behind, "" for the top level */
    lathe_status *st;  /* shared by the readers of one file */
    lathe_error *err;
};

/* "an object", "a string" ..., "missing" for NULL. */
const char *field_kind(const struct json_doc *doc, const json_t *v);
/* NULL if it is absent. */
json_t *field_get(const struct reader *r, const char *name);

void check_range(struct reader *r, const char *name, const json_t *v, int64_t min, int64_t max,
                 int32_t *out);
int32_t need_int(struct reader *r, const char *name, int64_t min, int64_t max);
int32_t opt_int(struct reader *r, const char *name, int64_t min, int64_t max, int32_t other);
double opt_real(struct reader *r, const char *name, double min, double max, double other);
bool opt_bool(struct reader *r, const char *name, bool other);
const char *opt_string(struct reader *r, const char *name, const char *other);
/* NULL where the member is absent. */
json_t *opt_object(struct reader *r, const char *name);

/* The value must be absent or one of two spellings of what is built. */
void only_string(struct reader *r, const char *name, const char *a, const char *b);
void only_bool(struct reader *r, const char *name, bool value);
/* It must be absent. */
void refuse_member(struct reader *r, const char *name);
void check_multiple(struct reader *r, const char *a, int32_t n, const char *b, int32_t m);

#endif

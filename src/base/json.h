/* JSON: jansson's tree, behind one linear scan that enforces the limits, names the place of an error
 * and carries around jansson what it cannot hold. Documented limits of jansson 2.14: it refuses lone
 * surrogate escapes, integers beyond int64, a byte order mark and U+0000 in keys; the scan replaces a
 * lone surrogate by U+FFFD, skips the mark, and moves big integers and long strings to a side table.
 * In the tree a short reference stands for those, so strings are read with json_text, not with
 * json_string_value, wherever they may be longer than 4 KiB or come from outside.
 * Numbers keep their kind: 5 and 5.0 stay distinct. Duplicate keys: the last value at the first
 * place. Key order is kept. */
#ifndef LATHE_BASE_JSON_H
#define LATHE_BASE_JSON_H

#include <jansson.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/watch.h"

struct json_limits {
    size_t bytes;   /* of the whole text */
    size_t string;  /* of one string, decoded */
    int64_t values; /* objects, arrays and scalars together */
    int32_t depth;  /* of nesting */
    /* What sets them, for messages; NULL: nothing does. */
    const char *string_option, *values_option, *depth_option;
};
extern const struct json_limits json_limits_request; /* 256 MiB, 256 MiB, 1,000,000, 128 */
extern const struct json_limits json_limits_model; /* model files: 128 MiB, 32 MiB, 4,000,000, 64 */

struct json_side;
struct json_doc {
    json_t *root;
    struct json_side *side;
};

/* Parses n bytes, blanks around one value allowed. Messages name byte offset, line and column.
 * *d is released by json_release also after a failure (it is then empty). */
lathe_status json_read(struct json_doc *d, const char *s, size_t n,
                       const struct json_limits *limits, lathe_error *err);
/* The same while `watch` is asked, every few milliseconds; NULL: it is not. */
lathe_status json_read_watched(struct json_doc *d, const char *s, size_t n,
                               const struct json_limits *limits, struct watch *watch,
                               lathe_error *err);
/* The same for a file; messages name the path. */
lathe_status json_read_file(struct json_doc *d, const char *path, const struct json_limits *limits,
                            lathe_error *err);
void json_release(struct json_doc *d);

/* The bytes of a string value (it may hold U+0000); NULL if v is no string, a stand-in for a big
 * integer included. Valid as long as the document. */
const char *json_text(const struct json_doc *d, const json_t *v, size_t *n);
/* The digits of an integer beyond int64, with its sign; NULL if v is anything else. */
const char *json_big_integer(const struct json_doc *d, const json_t *v);

/* The same value, as jansson's iterators take it, which do not change it. */
static inline json_t *json_members(const json_t *v)
{
    union {
        const json_t *in;
        json_t *out;
    } tree = {v};
    return tree.out;
}

/* Spells v as Python's json.dumps(v, ensure_ascii=False) does: ", " and ": " as separators, raw
 * UTF-8, shortest round-trip reals in Python's layout. */
void json_print(struct buf *out, const struct json_doc *d, const json_t *v);
/* A quoted string; escapes only '"', '\\' and the code points below 0x20. */
void json_print_string(struct buf *out, const char *s, size_t n);
/* Without the quotes: for strings that arrive in pieces. */
void json_escape(struct buf *out, const char *s, size_t n);
void json_print_real(struct buf *out, double x);

#endif

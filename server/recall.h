/* A call's arguments as the model spelled them. */
#ifndef LATHE_SERVER_RECALL_H
#define LATHE_SERVER_RECALL_H

#include "base/json.h"

/* What comes back of a call that was answered with `known`, the text of a JSON object, perhaps cut off. */
enum recalled {
    RECALL_OTHER, /* other values: they stand as they are */
    RECALL_SAME,  /* the same, however it is spelled */
    RECALL_CUT,   /* text that is no JSON, of a call that was cut off */
};
enum recalled recall_judge(const struct json_doc *d, const json_t *sent, const char *known,
                           size_t n_known);

/* Appends an object that is rendered as `known` was sampled: each member a string, that of a value other than a string being
 * its text as it stands in `known`. What is cut off is closed. False if it cannot be. */
bool recall_arguments(struct buf *out, const char *known, size_t n_known);

#endif

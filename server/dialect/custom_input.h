/* A call of a custom tool: the model fills the parameter "input" of a function, and the client is to get the text itself. */
#ifndef LATHE_SERVER_DIALECT_CUSTOM_INPUT_H
#define LATHE_SERVER_DIALECT_CUSTOM_INPUT_H

#include <stdint.h>

#include "base/buf.h"

/* Decodes the string member "input" of one JSON object while it arrives. All zeros at the start. */
struct custom_input {
    int state, depth;
    bool in_string, is_escaped;
    size_t n_key; /* characters of the key that are "input" so far; more than it has: another key */
    int n_hex;    /* digits of \uXXXX that are still to come */
    uint32_t hex, high;
    bool is_found;
};

/* The next piece of the object, whole characters; what is certain of the text goes to `out`. */
void custom_input_feed(struct custom_input *c, const char *s, size_t n, struct buf *out);

#endif

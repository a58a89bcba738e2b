/* The message of the assistant that an answer goes on with: it is taken off the conversation before that is rendered, and
 * its text put behind the generation prompt. */
#ifndef LATHE_TEXT_PREFILL_H
#define LATHE_TEXT_PREFILL_H

#include "base/buf.h"
#include "base/json.h"
#include "text/template.h"

struct prefill {
    struct buf reasoning,
        text; /* without the blanks at their ends, reasoning also without line breaks before it */
};

/* Takes the last message off the array, which must be the assistant's and have no calls. Released by prefill_release,
 * after a failure too. */
lathe_status prefill_take(struct prefill *p, struct json_doc *messages, lathe_error *err);
void prefill_release(struct prefill *p);

/* Behind a text that ends with the generation prompt; its bytes get the origin `from`, what closes a think block that of
 * the template, 0. is_open: the text ends inside a think block. */
lathe_status prefill_put(const struct prefill *p, struct rendering *t, bool is_open,
                         unsigned char from, lathe_error *err);

#endif

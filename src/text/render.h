/* From a conversation's JSON to the variables of a chat template. */
#ifndef LATHE_TEXT_RENDER_H
#define LATHE_TEXT_RENDER_H

#include "text/template_value.h"

/* Origins of the rendered bytes. Only the template's own may become control tokens. */
enum {
    FROM_TEMPLATE = 0,
    FROM_CONVERSATION,
    FROM_FENCE,    /* put around a late system message, and removed again */
    FROM_STAND_IN, /* the user turn that a template insists on, removed again */
};
extern const char fence_begin[], fence_end[];

struct conversation {
    struct json_doc messages, tools, kwargs;
    struct json_doc *argument; /* [n_arguments]: tool call arguments that came as strings */
    size_t n_arguments, cap_arguments;
    size_t *assistant; /* [n_assistant]: the assistant's messages that have a turn */
    size_t n_assistant;
    size_t input_bytes;
    bool text_only;    /* parts other than text are refused */
    bool may_be_empty; /* there need not be a message */
};
void conversation_release(struct conversation *c);

struct turns {
    struct value list; /* of messages */
    size_t n_fenced;   /* late system messages that are rendered in place of a user message */
    bool has_query;    /* a user message that is no wrapped tool result */
};
/* Checks the messages and makes the template's list of them: `developer` is `system`, system
 * messages are merged as `late` says, assistant messages with nothing in them are left out, string
 * arguments are parsed. Messages of a failure name the place, as messages[1].content[0]. */
bool turns_build(struct run *r, struct conversation *c, lathe_late_system late, struct turns *out);
/* The same list with a user message behind it whose text is FROM_STAND_IN. */
bool turns_with_stand_in(struct run *r, struct value list, struct value *out);

#endif

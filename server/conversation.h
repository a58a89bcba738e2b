/* A chat body's messages, tools and thinking fields as what the engine renders. */
#ifndef LATHE_SERVER_CONVERSATION_H
#define LATHE_SERVER_CONVERSATION_H

#include "carrier.h"
#include "fields.h"

struct carried_turn {
    size_t message; /* in chat form */
    struct carried carried;
};

struct chat {
    lathe_conversation conversation; /* borrows from the rest */
    struct buf messages, tools, kwargs;
    struct buf callable; /* all tools, where some are not in the prompt */
    size_t messages_at;  /* where the last one begins in `messages`, with what separates it */
    struct carried_turn *carried; /* [n_carried] */
    size_t n_carried, cap_carried;
    size_t carried_bytes;       /* of payloads that were unpacked */
    lathe_turn *turn;           /* [n_carried] */
    bool ends_with_assistant;   /* the last message is the assistant's */
    size_t n_tools, n_deferred; /* n_deferred of them are not in the prompt */
    bool thinks;                /* with these switches */
    bool asks_to_think;         /* the request does, not the server's or the model's default */
    bool omits_thinking;        /* messages: its reasoning is not to be shown */
    int32_t budget;             /* tokens of its think block; -1: any number */
    bool has_budget;            /* one is given, be it -1 */
};

/* The fields that chat_read knows. */
extern const char *const conversation_fields[];
extern const size_t n_conversation_fields;

/* Reads them. Released by chat_release, after a refusal too. */
bool chat_read(const struct fields *f, struct chat *c);
/* The messages of f alone, in chat form, into c->messages, which is initialised. A message of the assistant may have a
 * member "carrier" (carrier.h). */
bool chat_messages(const struct fields *f, struct chat *c);
/* The same of a body in chat form that a dialect wrote of its own, of f. `what` names it where it is too large. */
bool chat_written(const struct fields *f, struct chat *c, const struct buf *text, const char *what);
/* The fields of thinking alone, as OpenAI's dialects have them: thinking.c. c->kwargs is initialised. */
bool chat_thinking(const struct fields *f, struct chat *c);
void chat_release(struct chat *c);
/* An array of objects that say their type: parts of a content. */
bool json_is_parts(const json_t *v);
/* Whether the content of a tool's result is neither text, parts nor absent: then its JSON text is what the tool said, and is
 * put, JSON-escaped; else nothing is. */
bool put_result_json(struct buf *out, const struct json_doc *d, const json_t *content);

#endif

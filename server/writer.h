/* Inside the reading of conversations: messages of a body in chat form, as the engine's JSON. */
#ifndef LATHE_SERVER_WRITER_H
#define LATHE_SERVER_WRITER_H

#include "answers.h"
#include "conversation.h"

struct writer {
    const struct json_doc *d;
    struct buf *out;
    const struct server *server; /* whose options count, and who remembers; NULL: none */
    struct chat *chat;
    const json_t *const *list; /* [n] messages; i: the one at hand */
    size_t n, i;
    struct answers_prefix *prefix; /* of the messages so far */
    bool
        reads_carriers; /* the member "carrier" of a message, which the server's own readers write */
};

const char *writer_text(const struct writer *w, const json_t *object, const char *name, size_t *n);
bool writer_is(const struct writer *w, const json_t *object, const char *name, const char *word);
/* ", "name": " */
void writer_key(const struct writer *w, const char *name);
/* A message's content. */
void writer_content(const struct writer *w, const json_t *content, bool is_tool);

/* assistant.c: what follows the role of an assistant's message: reasoning, content, calls, as they were sampled where the
 * server remembers it, or the client carries it. */
void writer_assistant(const struct writer *w, const json_t *m);

#endif

/* Conversations as JSON text: the inside of an array of messages, without its brackets. */
#ifndef LATHE_CLI_MESSAGES_H
#define LATHE_CLI_MESSAGES_H

#include "base/buf.h"

enum { MESSAGES_LIMIT = 64 << 20 }; /* bytes */

/* Appends {"role": role, "content": content}. Invalid UTF-8 is an error that names `what` and the
 * byte. */
lathe_status messages_add(struct buf *b, const char *role, const char *what, const char *content,
                          size_t n, lathe_error *err);
/* Appends an assistant's turn: content, reasoning and calls as an answer collected them. */
void messages_add_answer(struct buf *b, const struct buf *text, const struct buf *reasoning,
                         const struct buf *calls);

/* Appends the messages of a file: an array, or an object with "messages" and perhaps "tools", which
 * then go to `tools` if that is empty. path "-" is standard input. */
lathe_status messages_read(struct buf *b, struct buf *tools, const char *path, lathe_error *err);
/* The array of tools of a file. */
lathe_status tools_read(struct buf *tools, const char *path, lathe_error *err);

/* out = "[" messages "]". */
lathe_status messages_array(struct buf *out, const struct buf *messages, lathe_error *err);

#endif

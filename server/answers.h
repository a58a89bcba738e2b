/* What the server has answered, for clients that send an answer back less than whole: calls whose arguments were spelled
 * anew, and reasoning that was left out. Bounded in bytes; the answer that was not used for the longest time goes first.
 * Any thread. */
#ifndef LATHE_SERVER_ANSWERS_H
#define LATHE_SERVER_ANSWERS_H

#include "base/buf.h"
#include "base/error.h"

enum { ANSWERS_BYTES = 64 << 20, ANSWERS_KEY = 32 };

/* One answer, as it comes. */
struct recorded_call {
    char id[64];
    struct buf name, arguments; /* arguments: JSON, cut off where the call was */
};
struct recording {
    struct buf reasoning, text;
    struct recorded_call *call; /* [n_calls] */
    size_t n_calls, cap;
    bool is_lost; /* it did not fit, or memory ran out: it is not kept */
};
void recording_init(struct recording *a);
void recording_take(struct recording *a, const lathe_event *ev);
void recording_release(struct recording *a); /* no-op on a zeroed struct */

/* NULL remembers nothing. */
struct answers;
lathe_status answers_open(struct answers **m, size_t bytes, lathe_error *err);
void answers_close(struct answers *m); /* NULL is allowed */
/* Of all that it keeps; it takes no lock. */
size_t answers_bytes(const struct answers *m);

/* Keys of answers without calls: the messages before one, as JSON without the closing bracket, and its text. A prefix is
 * zeroed at first, and released; later keys of it are of more messages behind the same ones, and read those once. */
struct answers_prefix {
    void *hash;
    size_t n; /* bytes in it */
};
/* False without memory. */
bool answers_key(struct answers_prefix *p, const char *messages, size_t n_messages,
                 const char *text, size_t n_text, unsigned char key[ANSWERS_KEY]);
void answers_prefix_release(struct answers_prefix *p);

/* Keeps an answer under the ids of its calls, and, with a key, under that. */
void answers_keep(struct answers *m, const struct recording *a, const unsigned char *key);

/* Was this call made here? Its id may have any dialect's prefix. Its arguments go to *arguments, if that is not NULL, and
 * the reasoning of its answer to *reasoning. */
bool answers_call(struct answers *m, const char *id, const char *name, struct buf *arguments,
                  struct buf *reasoning);
/* The reasoning of the answer that was kept under this key. */
bool answers_reasoning(struct answers *m, const unsigned char *key, struct buf *reasoning);

#endif

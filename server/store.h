/* Responses that were answered, for clients that go on from one by its id. In memory, bounded in number and bytes: the
 * one that was not used for the longest time goes first. A response keeps those before it in its conversation alive,
 * which are then counted in bytes, but are found no more. All calls from any thread. */
#ifndef LATHE_SERVER_STORE_H
#define LATHE_SERVER_STORE_H

#include "base/buf.h"
#include "guard.h"

enum { STORED_ID = 40 };

struct stored {
    char id[STORED_ID];
    struct owner owner;
    const char *input; /* JSON array: the items of this turn. NUL-terminated, as is the next */
    size_t n_input;
    const char *object; /* JSON: the response */
    size_t n_object;
    size_t output_at, n_output; /* its items, a JSON array in it */
    struct stored *previous;    /* the turn before this; NULL: none */
};

struct store;
/* n_most 0: nothing is kept. */
lathe_status store_open(struct store **s, int32_t n_most, size_t bytes_most, lathe_error *err);
void store_close(struct store *s); /* NULL is allowed */
/* Of all that it keeps; it takes no lock. */
size_t store_bytes(const struct store *s);

/* Copies *r, and holds r->previous itself. */
lathe_status store_put(struct store *s, const struct stored *r, lathe_error *err);
/* The owner's response of this id, which is then the one used last; NULL if there is none. Held until store_drop. A store
 * that is NULL has none. */
struct stored *store_find(struct store *s, const struct owner *owner, const char *id);
void store_drop(struct store *s, struct stored *r); /* NULL is allowed */
/* False if there is none. */
bool store_delete(struct store *s, const struct owner *owner, const char *id);
/* The item of this id in a response of the owner, its JSON into `out`; false if there is none. */
bool store_item(struct store *s, const struct owner *owner, const char *id, struct buf *out);

#endif

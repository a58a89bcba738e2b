/* Who is served now, and who was: for /slots and /debug. */
#ifndef LATHE_SERVER_SERVED_H
#define LATHE_SERVER_SERVED_H

#include "exchange.h"

struct served;
lathe_status served_open(struct served **h, lathe_error *err);
void served_close(struct served *h); /* NULL is allowed */

/* One request of the engine, while it is open; the exchange must stay as long. */
struct work {
    struct work *next, *before;
    uint64_t number; /* lathe_request_number; 0: not begun */
    const struct exchange *x;
    const char *dialect;
};
void served_begin(struct served *h, struct work *w);
/* No-op for work that was not begun. */
void served_end(struct served *h, struct work *w);

/* Of a request of the engine that is open. */
struct who {
    char id[MAX_REQUEST_ID + 1];
    const char *dialect; /* constant */
    char session[SESSION_SIZE];
};
bool served_find(struct served *h, uint64_t number, struct who *out);
/* The session of one that is open or was among the last; "" if it has none or is not known. */
void served_session(struct served *h, uint64_t number, char out[SESSION_SIZE]);

/* A request that is over: the last 256 are kept. */
void served_add(struct served *h, const struct exchange *x, int status, int64_t ms);
/* A JSON array of them, the oldest first. */
void served_print(struct served *h, struct buf *out);

#endif

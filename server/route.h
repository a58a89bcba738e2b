/* Which handler answers a method and a path. */
#ifndef LATHE_SERVER_ROUTE_H
#define LATHE_SERVER_ROUTE_H

#include <stdbool.h>

#include "exchange.h"
#include "url.h"

enum method { GET = 1, POST = 2, DELETE = 4 }; /* bits of a set */

/* When a route answers 503. */
enum closed { NEVER_CLOSED, CLOSED_LOADING, CLOSED_DRAINING /* and while loading */ };

enum runs {
    RUNS_INLINE, /* on the thread that serves the sockets: from memory, at once */
    RUNS_POOLED, /* on a thread of its own, few at a time: it renders or tokenises */
    RUNS_LONG,   /* on a thread of its own, as many as the engine takes: it generates */
};

struct route {
    enum method method;
    const char *path; /* without /v1 */
    bool v1;          /* also, and by name, below /v1 */
    bool prefix;      /* any path that begins with it and a slash */
    bool no_key;      /* answers without an API key */
    bool metrics;     /* but not with --metrics-auth */
    enum runs runs;
    enum closed closed;
    void (*handle)(struct exchange *x);
};
extern const struct route routes[]; /* ends with {0} */

/* Whose shape errors have at this decoded path. */
enum shape route_shape(const char *path);

/* Finds x->route and x->rest for x->method and x->path, whose slash at the end goes. On failure x->failure says why, and
 * *allow which methods there are (enum method). */
bool route_find(struct exchange *x, int *allow);

/* "GET, HEAD, POST" */
void route_methods(int methods, char out[40]);

#endif

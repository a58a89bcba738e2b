/* One request and its reply, between the HTTP layer (http.c) and what answers it. */
#ifndef LATHE_SERVER_EXCHANGE_H
#define LATHE_SERVER_EXCHANGE_H

#include "base/buf.h"
#include "failure.h"

struct server;
struct route;

enum { MAX_REQUEST_ID = 128, MAX_LISTED_BYTES = 512, MAX_LISTED_NAMES = 16 };

struct exchange {
    struct server *server;
    const struct route *route; /* NULL: there is none */
    enum shape shape;          /* of errors */
    char id[MAX_REQUEST_ID + 1];
    const char *method; /* valid as long as the exchange */
    char *path;         /* decoded, as it came, without the query */
    const char *query;  /* not decoded, "" for none */
    const char *rest;   /* of a prefix route: the path behind it */
    struct buf body;

    /* The reply: with a failure its condition and message, else this. */
    struct failure failure;
    int status;       /* 0: 200 */
    struct buf reply; /* JSON, unless `type` says another media type */
    const char *type;
    struct buf unknown; /* x-unknown-fields: names, separated by ", " */
    int n_unknown;
};

#endif

/* A client of the server's chat completions: one streamed request at a time on one connection, with the times at which
 * pieces of the answer arrive. */
#ifndef LATHE_BENCH_CLIENT_H
#define LATHE_BENCH_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

double client_now(void); /* seconds */

struct client;
struct client_target {
    const char *host; /* an IPv4 address */
    int port;
    const char *key; /* NULL: none */
};

struct client_answer {
    int status;         /* 0: the connection failed */
    bool ended;         /* with [DONE] */
    double first, last; /* seconds after the request was sent: pieces that are not empty */
    double *at;         /* [n_at] all of them; the client's, until the next request */
    size_t n_at;
    int32_t prompt_tokens, completion_tokens; /* as the usage says */
    double prompt_ms;                         /* as the timings say: the engine's own */
};

struct client *client_open(const struct client_target *t); /* NULL: out of memory */
void client_close(struct client *c);
/* Sends a body and reads the answer to its end. Connects anew where the connection was closed. */
void client_ask(struct client *c, const char *body, size_t n, struct client_answer *out);

/* Sorts x[n]; the value that the share p of them does not exceed, 0 without any. */
double percentile(double *x, size_t n, double p);
void sort_numbers(double *x, size_t n);

#endif

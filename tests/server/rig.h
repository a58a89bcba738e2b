/* A server over the fake engine, in the test's own process, and a client over sockets. Ids and the clock are fixed. */
#ifndef LATHE_TESTS_RIG_H
#define LATHE_TESTS_RIG_H

#include "base/buf.h"
#include "server/server.h"

struct rig {
    struct server *server;
    lathe_engine *engine;
};

/* Over the text of models/nano. `with`: other options than the defaults, or NULL; a context of 512, two slots and a queue
 * of two where it says nothing. */
void open_rig(struct rig *r, const struct server_options *with);
/* No request may be open any more. */
void close_rig(struct rig *r);

int connect_to(const struct rig *r);
/* A POST on a connection that the server then closes. */
void send_to(int fd, const char *path, const char *body);
void send_request(int fd, const char *body); /* of chat completions */
/* All until the other side closes, without the interim responses before it; closes fd. */
void receive(int fd, struct buf *out);
/* The chunks of a body joined, in place; false if the last one is missing. */
bool join_chunks(char *s);
/* The body of the answer, a heap string; *ended: it is whole. */
char *ask_at(const struct rig *r, const char *path, const char *body, int *status, bool *ended);
char *ask(const struct rig *r, const char *body, int *status, bool *ended);

/* The same JSON object with "stream" in it, a heap string. */
char *with_stream(const char *request, bool stream);

double seconds(void);
/* Until n requests are open in the engine; fails after at_most seconds. */
void wait_for_requests(const struct rig *r, int n, double at_most);

#endif

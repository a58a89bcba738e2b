/* Routes that tell about the server and its model. They are answered by the thread that serves the sockets, from
 * memory. */
#ifndef LATHE_SERVER_INFO_H
#define LATHE_SERVER_INFO_H

#include "exchange.h"

void health(struct exchange *x);
void ready(struct exchange *x);
void livez(struct exchange *x);
void hello(struct exchange *x); /* 200 while the process lives, whatever its state */
void version(struct exchange *x);
void help(struct exchange *x);
void models_list(struct exchange *x);
void models_one(struct exchange *x);
void props(struct exchange *x);

#endif

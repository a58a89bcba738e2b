/* The chat page: files of server/page/, which lie in the program. */
#ifndef LATHE_SERVER_PAGE_H
#define LATHE_SERVER_PAGE_H

#include "exchange.h"

void page(struct exchange *x);      /* GET / */
void page_file(struct exchange *x); /* GET /page/NAME */

#endif

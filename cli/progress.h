/* A bar with the time that is left, on standard error if that is a terminal, else nothing. */
#ifndef LATHE_CLI_PROGRESS_H
#define LATHE_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    double start_s, drawn_s; /* of the work, of the last drawing */
    bool is_drawn;
};

void progress_begin(struct progress *p);
/* A lathe_progress_fn that wants all; ctx is the struct. What takes less than a moment is never drawn. */
bool progress_update(void *ctx, const char *what, uint64_t done, uint64_t total);
/* Removes the bar. */
void progress_end(struct progress *p);

#endif

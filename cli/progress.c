#include "progress.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "cli.h"

enum { BAR = 30 };

void progress_begin(struct progress *p)
{
    *p = (struct progress){.start_s = clock_ms() * 1e-3};
    p->drawn_s = p->start_s + 0.1; /* nothing in the first moments */
}

bool progress_update(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct progress *p = ctx;
    double now = clock_ms() * 1e-3;
    if (!stderr_is_terminal() || total == 0 || now - p->drawn_s < 0.1)
        return true;
    p->drawn_s = now;
    p->is_drawn = true;
    double part = done < total ? (double)done / (double)total : 1;
    char bar[BAR + 1], left[32] = "";
    int full = (int)(part * BAR);
    memset(bar, '-', BAR);
    memset(bar, '#', (size_t)full);
    bar[BAR] = 0;
    if (part > 0.02) {
        double s = (now - p->start_s) * (1 - part) / part;
        if (s >= 90)
            (void)snprintf(left, sizeof left, "%.0f min left", s / 60);
        else
            (void)snprintf(left, sizeof left, "%.0f s left", s);
    }
    fprintf(stderr, "\r%-12.12s [%s] %3.0f%%  %-12s", what, bar, 100 * part, left);
    (void)fflush(stderr);
    return true;
}

void progress_end(struct progress *p)
{
    if (p->is_drawn)
        fprintf(stderr, "\r%*s\r", BAR + 40, "");
    p->is_drawn = false;
}

#include "base/size.h"

#include <stdio.h>

void size_text(char out[32], uint64_t bytes)
{
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    double x = (double)bytes;
    size_t u = 0;
    while (x >= 999.95 && u + 1 < sizeof unit / sizeof *unit) {
        x /= 1000;
        u++;
    }
    (void)snprintf(out, 32, u ? "%.1f %s" : "%.0f %s", x, unit[u]);
}

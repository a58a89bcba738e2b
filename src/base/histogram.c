#include "base/histogram.h"

const double histogram_seconds[HISTOGRAM_SECONDS] = {
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 600};
const double histogram_tokens[HISTOGRAM_TOKENS] = {1,     2,     4,     8,      16,    32,   64,
                                                   128,   256,   512,   1024,   2048,  4096, 8192,
                                                   16384, 32768, 65536, 131072, 262144};

int32_t histogram_bucket(const double *bound, int32_t n, double value)
{
    int32_t i = 0;
    while (i < n && value > bound[i])
        i++;
    return i;
}

void histogram_add(lathe_histogram *h, double value)
{
    h->count[histogram_bucket(h->bound, h->n_bounds, value)]++;
    h->sum += value;
}

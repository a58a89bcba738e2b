#include "sample/reject.h"

#include <math.h>

#include "sample/noise.h"

static double weight_of(const struct candidate *c, int32_t n, int32_t id)
{
    int32_t lo = 0, hi = n;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if (c[mid].id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && c[lo].id == id ? c[lo].weight : 0;
}

/* One of the candidates, by their weights, whose sum is positive. */
static int32_t draw_by_weight(const struct candidate *c, int32_t n, double sum, double u)
{
    int32_t id = -1;
    double at = u * sum, below = 0;
    for (int32_t i = 0; i < n; i++) {
        if (!(c[i].weight > 0))
            continue;
        id = c[i].id; /* the last one, where rounding leaves `at` behind all of them */
        below += c[i].weight;
        if (at < below)
            break;
    }
    return id;
}

static double sum_of(const struct candidate *c, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += c[i].weight;
    return sum;
}

/* max(p - q, 0) at one id; *at walks q along with ascending ids. */
static double excess(const struct candidate *p, const struct candidate *q, int32_t n_q, int32_t *at)
{
    while (*at < n_q && q[*at].id < p->id)
        ++*at;
    double rest = p->weight - (*at < n_q && q[*at].id == p->id ? q[*at].weight : 0);
    return rest > 0 ? rest : 0;
}

bool reject_draft(struct candidate *p, int32_t n_p, const struct candidate *q, int32_t n_q,
                  int32_t draft, uint64_t seed, int32_t position, int32_t *id)
{
    const struct candidate certain = {.weight = 1, .id = draft};
    if (!q) {
        q = &certain;
        n_q = 1;
    }
    double u = noise_uniform(noise_stream_bits(seed, position, NOISE_ACCEPT));
    *id = draft;
    if (u * weight_of(q, n_q, draft) < weight_of(p, n_p, draft))
        return true;
    u = noise_uniform(noise_stream_bits(seed, position, NOISE_RESIDUAL));
    double sum = 0;
    for (int32_t i = 0, j = 0; i < n_p; i++)
        sum += excess(&p[i], q, n_q, &j);
    /* Nothing is left, but for rounding, only where p = q; then p is as good. */
    if (!(sum > 0 && isfinite(sum)))
        sum = sum_of(p, n_p);
    else
        for (int32_t i = 0, j = 0; i < n_p; i++)
            p[i].weight = excess(&p[i], q, n_q, &j);
    *id = draw_by_weight(p, n_p, sum, u);
    return false;
}

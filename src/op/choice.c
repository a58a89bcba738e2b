#include "op/choice.h"

#include <assert.h>
#include <math.h>

static int32_t best_of(const float *x, const int32_t *id, const bool *there, int32_t n)
{
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++)
        if (there[i] && (best < 0 || choice_is_better(x[i], id[i], x[best], id[best])))
            best = i;
    return best;
}

/* Leaves the top_k best of them. */
static void keep_best(const float *x, const int32_t *id, bool *there, int32_t n, int32_t top_k)
{
    bool all[CHOICE_MOST];
    memcpy(all, there, (size_t)n * sizeof *all);
    for (int32_t i = 0; i < n; i++) {
        int32_t rank = 0;
        for (int32_t j = 0; j < n; j++)
            rank += all[j] && choice_is_better(x[j], id[j], x[i], id[i]);
        there[i] = all[i] && rank < top_k;
    }
}

/* Leaves those that the sum of better ones does not make up for. The best stays. */
static void keep_nucleus(const struct choice *c, const float *x, const int32_t *id,
                         const double *weight, bool *there, int32_t n)
{
    bool all[CHOICE_MOST];
    uint64_t total = 0;
    memcpy(all, there, (size_t)n * sizeof *all);
    for (int32_t i = 0; i < n; i++)
        total += all[i] ? choice_fixed(weight[i]) : 0;
    double need = choice_need(c->top_p, total);
    for (int32_t i = 0; i < n; i++) {
        uint64_t better = 0;
        for (int32_t j = 0; j < n; j++)
            if (all[j] && choice_is_better(x[j], id[j], x[i], id[i]))
                better += choice_fixed(weight[j]);
        there[i] = all[i] && (better == 0 || (double)better < need);
    }
}

static int32_t draw(const struct choice *c, const float *x, const int32_t *id, const bool *there,
                    int32_t n, int32_t position)
{
    double most = 0;
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++) {
        if (!there[i])
            continue;
        double key = choice_key(x[i], c->temperature,
                                choice_gumbel(choice_bits(c->seed, position, id[i], 0)));
        if (best < 0 || key > most || (key == most && id[i] < id[best])) {
            most = key;
            best = i;
        }
    }
    return best;
}

int32_t choice_of(const struct choice *c, const float *logit, const int32_t *id, int32_t n,
                  int32_t position)
{
    bool there[CHOICE_MOST];
    double weight[CHOICE_MOST];
    assert(n <= CHOICE_MOST);
    for (int32_t i = 0; i < n; i++)
        there[i] = id[i] >= 0 && isfinite(logit[i]);
    int32_t best = best_of(logit, id, there, n);
    if (best < 0 || c->temperature == 0)
        return best;
    if (c->top_k > 0 && c->top_k < n)
        keep_best(logit, id, there, n, c->top_k);
    if (c->top_p < 1 || c->min_p > 0)
        for (int32_t i = 0; i < n; i++)
            weight[i] = there[i] ? choice_weight(logit[i], logit[best], c->temperature) : 0;
    if (c->top_p < 1)
        keep_nucleus(c, logit, id, weight, there, n);
    for (int32_t i = 0; i < n && c->min_p > 0; i++)
        there[i] = there[i] && weight[i] >= c->min_p;
    return draw(c, logit, id, there, n, position);
}

int32_t choice_of_row(const struct choice *c, const float *row, const int32_t (*range)[2],
                      int32_t n_ranges, float best, int32_t position)
{
    double most = -INFINITY;
    int32_t chosen = -1;
    for (int32_t r = 0; r < n_ranges; r++)
        for (int32_t id = range[r][0]; id < range[r][1]; id++) {
            if (row[id] == -INFINITY)
                continue;
            uint64_t bits = choice_bits(c->seed, position, id, 0);
            if (choice_key(row[id], c->temperature, choice_gumbel_bound(bits)) <= most)
                continue;
            double key = choice_key(row[id], c->temperature, choice_gumbel(bits));
            if (key > most &&
                (c->min_p <= 0 || choice_weight(row[id], best, c->temperature) >= c->min_p)) {
                most = key;
                chosen = id;
            }
        }
    return chosen;
}

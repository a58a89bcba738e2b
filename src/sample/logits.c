#include "sample/logits.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "op/choice.h"

enum { LANES = 16 }; /* of the scans: independent maxima that fill vector registers */

/* ---- The ids that may be sampled ----------------------------------------------------------- */

static bool bit(const uint64_t *bits, int32_t id)
{
    return !bits || (bits[id / 64] >> (id % 64) & 1);
}

lathe_status id_set_init(struct id_set *s, int32_t n_vocab, const uint64_t *bits, lathe_error *err)
{
    *s = (struct id_set){.n_vocab = n_vocab};
    int32_t n_ranges = 0;
    for (int32_t i = 0; i < n_vocab; i++)
        if (bit(bits, i) && (i == 0 || !bit(bits, i - 1)))
            n_ranges++;
    if (n_ranges == 0)
        return fail(err, LATHE_E_FORMAT, "no token of the vocabulary may be sampled (%d rows)",
                    (int)n_vocab);
    s->range = malloc((size_t)n_ranges * sizeof *s->range);
    if (!s->range)
        return fail_memory(err, (size_t)n_ranges * sizeof *s->range);
    for (int32_t i = 0; i < n_vocab;) {
        if (!bit(bits, i)) {
            i++;
            continue;
        }
        struct id_range *r = &s->range[s->n_ranges++];
        r->begin = i;
        while (i < n_vocab && bit(bits, i))
            i++;
        r->end = i;
        s->n_ids += r->end - r->begin;
    }
    return LATHE_OK;
}

void id_set_release(struct id_set *s)
{
    free(s->range);
    *s = (struct id_set){0};
}

bool id_set_has(const struct id_set *s, int32_t id)
{
    int32_t lo = 0, hi = s->n_ranges;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if (id >= s->range[mid].end)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < s->n_ranges && id >= s->range[lo].begin;
}

/* ---- Rows ---------------------------------------------------------------------------------- */

/* The largest of x[0..n), NaN left out; *bad is set where one is NaN or +infinity. */
static float scan_max(const float *x, int32_t n, bool *bad)
{
    float lane[LANES], max = -INFINITY;
    int32_t wrong[LANES] = {0};
    for (int32_t j = 0; j < LANES; j++)
        lane[j] = -INFINITY;
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int32_t j = 0; j < LANES; j++) {
            lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
            wrong[j] |= !(x[i + j] <= FLT_MAX);
        }
    for (; i < n; i++) {
        lane[0] = x[i] > lane[0] ? x[i] : lane[0];
        wrong[0] |= !(x[i] <= FLT_MAX);
    }
    for (int32_t j = 0; j < LANES; j++) {
        max = lane[j] > max ? lane[j] : max;
        *bad |= wrong[j] != 0;
    }
    return max;
}

lathe_status logits_check(const float *logits, const struct id_set *ids, int32_t position,
                          lathe_error *err)
{
    bool bad = false;
    float max = -INFINITY;
    for (int32_t r = 0; r < ids->n_ranges; r++) {
        int32_t begin = ids->range[r].begin;
        float m = scan_max(logits + begin, ids->range[r].end - begin, &bad);
        max = m > max ? m : max;
    }
    for (int32_t r = 0; bad && r < ids->n_ranges; r++)
        for (int32_t id = ids->range[r].begin; id < ids->range[r].end; id++)
            if (!(logits[id] <= FLT_MAX))
                return fail(err, LATHE_E_NUMERIC,
                            "logits for position %d: token %d is %s, not a finite "
                            "number",
                            (int)position, (int)id, isnan(logits[id]) ? "NaN" : "+infinity");
    if (max == -INFINITY)
        return fail(err, LATHE_E_NUMERIC,
                    "logits for position %d: all %d tokens from id %d on are "
                    "-infinity",
                    (int)position, (int)ids->n_ids, (int)ids->range[0].begin);
    return LATHE_OK;
}

int32_t logits_argmax(const float *logits, const struct id_set *ids)
{
    float max = -INFINITY;
    int32_t range = -1;
    for (int32_t r = 0; r < ids->n_ranges; r++) {
        bool bad = false;
        int32_t begin = ids->range[r].begin;
        float m = scan_max(logits + begin, ids->range[r].end - begin, &bad);
        if (m > max) {
            max = m;
            range = r;
        }
    }
    if (range < 0)
        return -1;
    int32_t id = ids->range[range].begin;
    while (logits[id] != max)
        id++;
    return id;
}

void logits_logprobs(const float *logits, const struct id_set *ids, int32_t id, float *logprob,
                     lathe_candidate *top, int32_t n_top, int32_t *n_got)
{
    float max = logits[logits_argmax(logits, ids)];
    double sum = 0;
    int32_t n = 0;
    for (int32_t r = 0; r < ids->n_ranges; r++)
        for (int32_t i = ids->range[r].begin; i < ids->range[r].end; i++) {
            float x = logits[i];
            sum += exp((double)x - (double)max);
            if (n_top == 0 || x == -INFINITY || (n == n_top && !(x > top[n - 1].logprob)))
                continue;
            int32_t at = n < n_top ? n++ : n - 1;
            for (; at > 0 && x > top[at - 1].logprob; at--)
                top[at] = top[at - 1];
            top[at] = (lathe_candidate){i, x};
        }
    double log_sum = (double)max + log(sum);
    for (int32_t i = 0; i < n; i++)
        top[i].logprob = (float)((double)top[i].logprob - log_sum);
    *n_got = n;
    *logprob = id_set_has(ids, id) ? (float)((double)logits[id] - log_sum) : -INFINITY;
}

/* ---- Candidates ---------------------------------------------------------------------------- */

bool candidate_is_better(const struct candidate *a, const struct candidate *b)
{
    return choice_is_better(a->logit, a->id, b->logit, b->id);
}

static void swap(struct candidate *a, struct candidate *b)
{
    struct candidate t = *a;
    *a = *b;
    *b = t;
}

int32_t candidates_all(struct candidate *c, const float *logits, const struct id_set *ids)
{
    int32_t n = 0;
    for (int32_t r = 0; r < ids->n_ranges; r++)
        for (int32_t i = ids->range[r].begin; i < ids->range[r].end; i++)
            if (logits[i] != -INFINITY)
                c[n++] = (struct candidate){0, logits[i], i};
    return n;
}

/* Restores the heap (the worst on top) below c[i]. */
static void sift_down(struct candidate *c, int32_t i, int32_t n)
{
    for (;;) {
        int32_t worst = i, l = 2 * i + 1;
        if (l < n && candidate_is_better(&c[worst], &c[l]))
            worst = l;
        if (l + 1 < n && candidate_is_better(&c[worst], &c[l + 1]))
            worst = l + 1;
        if (worst == i)
            return;
        swap(&c[i], &c[worst]);
        i = worst;
    }
}

static int32_t heap_offer(struct candidate *c, int32_t n, int32_t k, float logit, int32_t id)
{
    if (n < k) {
        c[n] = (struct candidate){0, logit, id};
        for (int32_t i = n; i > 0 && candidate_is_better(&c[(i - 1) / 2], &c[i]); i = (i - 1) / 2)
            swap(&c[i], &c[(i - 1) / 2]);
        return n + 1;
    }
    /* Ids ascend: an equal logit that comes later is the worse one. */
    if (logit > c[0].logit) {
        c[0] = (struct candidate){0, logit, id};
        sift_down(c, 0, n);
    }
    return n;
}

/* Of a heap, the worst goes to the end again and again. */
static void unheap(struct candidate *c, int32_t n)
{
    for (int32_t end = n; end > 1;) {
        swap(&c[0], &c[--end]);
        sift_down(c, 0, end);
    }
}

void candidates_best_first(struct candidate *c, int32_t n)
{
    for (int32_t i = n / 2; i-- > 0;)
        sift_down(c, i, n);
    unheap(c, n);
}

int32_t candidates_top_k(struct candidate *c, const float *logits, const struct id_set *ids,
                         int32_t k)
{
    if (k >= ids->n_ids)
        return candidates_all(c, logits, ids);
    int32_t n = 0;
    for (int32_t r = 0; r < ids->n_ranges; r++) {
        int32_t i = ids->range[r].begin, end = ids->range[r].end;
        while (i < end) {
            int32_t stop = end - i < LANES ? end : i + LANES;
            if (n == k && stop - i == LANES) { /* most blocks hold nothing for a full heap */
                int32_t any = 0;
                float worst = c[0].logit;
                for (int32_t j = 0; j < LANES; j++)
                    any |= logits[i + j] > worst;
                if (!any) {
                    i = stop;
                    continue;
                }
            }
            for (; i < stop; i++)
                if (logits[i] != -INFINITY)
                    n = heap_offer(c, n, k, logits[i], i);
        }
    }
    unheap(c, n);
    return n;
}

void candidates_weigh(struct candidate *c, int32_t n, double temperature)
{
    float max = -INFINITY;
    for (int32_t i = 0; i < n; i++)
        max = c[i].logit > max ? c[i].logit : max;
    for (int32_t i = 0; i < n; i++)
        c[i].weight = choice_weight(c[i].logit, max, temperature);
}

/* Quickselect by weight: c[0..lo) is kept and better than the rest, c[lo..hi) holds the candidate at
 * which the sum reaches `need`, and the rest is worse. Expected linear time; which pivots are taken does not show. */
int32_t candidates_top_p(struct candidate *c, int32_t n, double p)
{
    uint64_t total = 0, sum = 0;
    for (int32_t i = 0; i < n; i++)
        total += choice_fixed(c[i].weight);
    double need = choice_need(p, total);
    int32_t lo = 0, hi = n;
    uint32_t random = 1;
    while (hi - lo > 1) {
        random = random * 1664525u + 1013904223u;
        int32_t at = lo + (int32_t)((uint64_t)random * (uint32_t)(hi - lo) >> 32);
        swap(&c[at], &c[hi - 1]);
        uint64_t part = 0;
        int32_t m = lo;
        for (int32_t i = lo; i < hi - 1; i++)
            if (candidate_is_better(&c[i], &c[hi - 1])) {
                part += choice_fixed(c[i].weight);
                swap(&c[i], &c[m++]);
            }
        swap(&c[m], &c[hi - 1]);
        uint64_t up_to = sum + part + choice_fixed(c[m].weight);
        if (m > lo && (double)(sum + part) >= need) {
            hi = m;
        } else if ((double)up_to >= need) {
            return m + 1;
        } else {
            sum = up_to;
            lo = m + 1;
        }
    }
    return hi;
}

int32_t candidates_min_p(struct candidate *c, int32_t n, double min_p)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++)
        if (c[i].weight >= min_p)
            c[kept++] = c[i];
    return kept;
}

/* Heapsort; what is in order already, as most laws without filters are, stays as it is. */
void candidates_by_id(struct candidate *c, int32_t n)
{
    int32_t sorted = 1;
    while (sorted < n && c[sorted - 1].id < c[sorted].id)
        sorted++;
    if (sorted >= n)
        return;
    for (int32_t end = n, root = n / 2; end > 1;) {
        if (root > 0)
            root--; /* building the heap */
        else
            swap(&c[0], &c[--end]);
        for (int32_t i = root, child; (child = 2 * i + 1) < end; i = child) {
            child += child + 1 < end && c[child + 1].id > c[child].id;
            if (c[i].id >= c[child].id)
                break;
            swap(&c[i], &c[child]);
        }
    }
}

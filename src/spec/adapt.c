#include "spec/adapt.h"

#include <math.h>

/* A draft's acceptance where it was never judged, as if seen in PRIOR rounds: that of the draft before it,
 * of the first PRIOR_ACCEPTED: hopeful enough to be tried, and soon outweighed. */
#define PRIOR          4.0
#define PRIOR_ACCEPTED 0.75
#define MIN_GAIN       0.03  /* of a sequence's tokens a round, for a change of mind */
#define COST_WEIGHT    0.125 /* of a new measurement in the running mean */

/* ---- Costs --------------------------------------------------------------------------------- */

static void note(double *mean, double ms)
{
    if (!(ms > 0) || !isfinite(ms))
        return;
    if (*mean == 0)
        *mean = ms;
    else
        *mean += COST_WEIGHT * ((ms < 2 * *mean ? ms : 2 * *mean) - *mean);
}

void adapt_note_draft(struct adapt_costs *c, enum draft_source from, int32_t n_draft, double ms)
{
    if (n_draft >= 1 && n_draft <= SPEC_MAX_DRAFT)
        note(&c->draft[from][n_draft], ms);
}

void adapt_note_verify(struct adapt_costs *c, int32_t n_rows, double ms)
{
    if (n_rows >= 1 && n_rows <= ADAPT_MAX_ROWS)
        note(&c->verify[n_rows], ms);
}

void adapt_note_commit(struct adapt_costs *c, double ms)
{
    note(&c->commit, ms);
}

/* The first measured entry from `from` on in steps of 1 or -1; 0: none. */
static int32_t measured(const double *table, int32_t n, int32_t from, int32_t step)
{
    while (from >= 1 && from <= n && table[from] == 0)
        from += step;
    return from >= 1 && from <= n ? from : 0;
}

/* table[at] of measurements at 1 .. n: on the line through the two around it, or beyond all, through the
 * two nearest. 0: nothing was measured. */
static double cost_at(const double *table, int32_t n, int32_t at)
{
    int32_t a = measured(table, n, at < n ? at : n, -1), b = measured(table, n, at + 1, 1);
    int32_t nearest = a ? a : b;
    if (nearest == 0)
        return 0;
    bool beyond = !a || !b;
    if (!a)
        a = b, b = measured(table, n, b + 1, 1);
    else if (!b)
        b = a, a = measured(table, n, a - 1, -1);
    if (!a || !b)
        return table[nearest];
    double slope = (table[b] - table[a]) / (b - a), x = table[nearest] + slope * (at - nearest);
    if (beyond && slope < 0)
        return table[nearest];
    return x > table[nearest] / 2 ? x : table[nearest] / 2; /* a line need not end above zero */
}

/* ---- Acceptance ---------------------------------------------------------------------------- */

void adapt_init(struct adapt *a, const struct adapt *all)
{
    *a = (struct adapt){0};
    for (int s = 0; s < DRAFT_SOURCES; s++)
        for (int i = 0; i < SPEC_MAX_DRAFT; i++) {
            double n = all->source[s].judged[i];
            double worth = n < 2 * PRIOR ? n : 2 * PRIOR;
            a->source[s].judged[i] = worth;
            a->source[s].accepted[i] = n > 0 ? all->source[s].accepted[i] / n * worth : 0;
        }
}

void adapt_note_round(struct adapt *a, enum draft_source from, int32_t n_draft, int32_t n_accepted)
{
    struct adapt_source *s = &a->source[from];
    double fade = exp2(-1.0 / ADAPT_HALF_LIFE);
    for (int32_t i = 0; i < n_draft && i <= n_accepted && i < SPEC_MAX_DRAFT; i++) {
        s->judged[i] = s->judged[i] * fade + 1;
        s->accepted[i] = s->accepted[i] * fade + (i < n_accepted);
    }
}

double adapt_survival(const struct adapt *a, enum draft_source from, int32_t i)
{
    const struct adapt_source *s = &a->source[from];
    double all = 1, one = PRIOR_ACCEPTED;
    for (int32_t j = 0; j < i && j < SPEC_MAX_DRAFT; j++) {
        one = (s->accepted[j] + PRIOR * one) / (s->judged[j] + PRIOR);
        all *= one;
    }
    return all;
}

double adapt_tokens(const struct adapt *a, enum draft_source from, int32_t n_draft)
{
    double n = 1;
    for (int32_t i = 1; i <= n_draft; i++)
        n += adapt_survival(a, from, i);
    return n;
}

/* ---- Choice -------------------------------------------------------------------------------- */

/* A round with k drafts: its tokens, and its milliseconds, 0 if nothing is known. */
struct outlook {
    double tokens, ms;
};

static struct outlook outlook(const struct adapt *a, const struct adapt_costs *c,
                              enum draft_source from, int32_t k, struct adapt_load load)
{
    struct outlook o = {
        .tokens = load.n_tokens + adapt_tokens(a, from, k),
        .ms = cost_at(c->verify, ADAPT_MAX_ROWS, load.n_rows + 1 + k),
    };
    if (k > 0 && o.ms > 0)
        o.ms += cost_at(c->draft[from], SPEC_MAX_DRAFT, k) + c->commit;
    return o;
}

int32_t adapt_choose(struct adapt *a, const struct adapt_costs *c, enum draft_source from,
                     int32_t usual, int32_t most, struct adapt_load load)
{
    struct adapt_source *s = &a->source[from];
    if (s->n_chosen == 0)
        s->k = usual;
    int32_t now = s->k < most ? s->k : most, best = now;
    struct outlook stay = outlook(a, c, from, now, load), go = stay;
    if (stay.ms == 0)
        return now;
    for (int32_t k = 0; k <= most; k++) {
        struct outlook o = outlook(a, c, from, k, load);
        if (o.tokens * go.ms > go.tokens * o.ms) {
            go = o;
            best = k;
        }
    }
    /* The tokens gained over those that the time of `go` is worth, beside the sequence's own. */
    double gain = go.tokens - stay.tokens * go.ms / stay.ms;
    if (gain > MIN_GAIN * adapt_tokens(a, from, now))
        s->k = best;
    else
        best = now;
    s->n_chosen++;
    /* What is never done is never measured again. */
    if (s->n_chosen % ADAPT_PROBE == 0 && best < most)
        return best + 1;
    if (s->n_chosen % ADAPT_PROBE == ADAPT_PROBE / 2 && best > 0)
        return best - 1;
    return best;
}

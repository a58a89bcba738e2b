#include "sample/sample.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "op/choice.h"
#include "op/resident.h"
#include "sample/noise.h"

#define BIAS_EDGE 100.0F /* a bias this far from 0 is a rule, not a number */

/* ---- Options ------------------------------------------------------------------------------- */

static lathe_status in_range(const char *name, double x, double lo, double hi, lathe_error *err)
{
    if (!(x >= lo && x <= hi))
        return fail(err, LATHE_E_ARGUMENT, "%s is %g, expected %g to %g", name, x, lo, hi);
    return LATHE_OK;
}

lathe_status sampling_check(const lathe_sampling *s, const struct id_set *ids, lathe_error *err)
{
    lathe_status st =
        in_range("temperature", (double)s->temperature, 0, SAMPLE_MAX_TEMPERATURE, err);
    if (!st && s->top_k < -1)
        st = fail(err, LATHE_E_ARGUMENT, "top_k is %d, expected -1 or more", (int)s->top_k);
    if (!st)
        st = in_range("top_p", (double)s->top_p, 0, 1, err);
    if (!st)
        st = in_range("min_p", (double)s->min_p, 0, 1, err);
    if (!st)
        st = in_range("presence_penalty", (double)s->presence_penalty, -2, 2, err);
    if (!st)
        st = in_range("frequency_penalty", (double)s->frequency_penalty, -2, 2, err);
    if (!st && !(s->repetition_penalty > 0 && isfinite(s->repetition_penalty)))
        st = fail(err, LATHE_E_ARGUMENT, "repetition_penalty is %g, expected more than 0",
                  (double)s->repetition_penalty);
    if (!st && s->n_bias > SAMPLE_MAX_BIAS)
        st = fail(err, LATHE_E_ARGUMENT, "logit_bias has %zu entries, expected %d at most",
                  s->n_bias, SAMPLE_MAX_BIAS);
    for (size_t i = 0; !st && i < s->n_bias; i++) {
        int32_t id = s->bias[i].id;
        if (!isfinite(s->bias[i].bias))
            st = fail(err, LATHE_E_ARGUMENT,
                      "logit_bias of token %d is %g, expected a finite number", (int)id,
                      (double)s->bias[i].bias);
        else if (ids && !id_set_has(ids, id))
            st = fail(err, LATHE_E_ARGUMENT,
                      "logit_bias names token %d, which does not exist (%d ids, "
                      "the last is %d)",
                      (int)id, (int)ids->n_ids, (int)ids->range[ids->n_ranges - 1].end - 1);
    }
    return st;
}

lathe_status sample_scratch_init(struct sample_scratch *w, int32_t n_vocab, lathe_error *err)
{
    size_t n = (size_t)n_vocab;
    *w = (struct sample_scratch){.n_vocab = n_vocab};
    w->row = calloc(n, sizeof *w->row);
    w->cand = calloc(n, sizeof *w->cand);
    if (!w->row || !w->cand) {
        sample_scratch_release(w);
        return fail_memory(err, n * (sizeof *w->row + sizeof *w->cand));
    }
    return LATHE_OK;
}

void sample_scratch_release(struct sample_scratch *w)
{
    free(w->row);
    free(w->cand);
    *w = (struct sample_scratch){0};
}

/* ---- A request's sampler ------------------------------------------------------------------- */

struct sampler {
    lathe_sampling o;         /* bias points to `bias` */
    const struct id_set *ids; /* borrowed */
    lathe_logit_bias *bias;   /* [o.n_bias] */
    int32_t *end_id, *ban;    /* [n_end], [n_ban]: members of ids */
    int32_t n_end, n_ban;
    int32_t min_tokens;
    int32_t n_prompt, n_generated;
    bool has_penalty, has_force;
    bool only_lowers; /* bias and penalties raise no logit */
    /* With a penalty only: */
    int32_t *count;  /* [n_vocab]: in the generated tokens */
    bool *in_prompt; /* [n_vocab]; with a repetition penalty only */
    int32_t *seen;   /* [n_seen of n_vocab]: ids that a penalty touches, each once */
    int32_t n_seen;
};

static void note_seen(struct sampler *s, int32_t id)
{
    if (s->count[id] == 0 && !(s->in_prompt && s->in_prompt[id]))
        s->seen[s->n_seen++] = id;
}

static void count_token(struct sampler *s, int32_t id)
{
    if (!s->has_penalty || id < 0 || id >= s->ids->n_vocab)
        return;
    note_seen(s, id);
    s->count[id]++;
}

/* Undoes the last count_token that is not undone. */
static void uncount_token(struct sampler *s, int32_t id)
{
    if (!s->has_penalty || id < 0 || id >= s->ids->n_vocab)
        return;
    if (--s->count[id] == 0 && !(s->in_prompt && s->in_prompt[id]))
        s->n_seen--;
}

static lathe_status open_penalties(struct sampler *s, const struct sampler_options *o,
                                   lathe_error *err)
{
    size_t n = (size_t)s->ids->n_vocab;
    s->count = calloc(n, sizeof *s->count);
    s->seen = calloc(n, sizeof *s->seen);
    if (s->o.repetition_penalty != 1)
        s->in_prompt = calloc(n, sizeof *s->in_prompt);
    if (!s->count || !s->seen || (s->o.repetition_penalty != 1 && !s->in_prompt))
        return fail_memory(err, n * (sizeof *s->count + sizeof *s->seen + sizeof *s->in_prompt));
    for (int32_t i = 0; s->in_prompt && i < o->n_prompt; i++) {
        int32_t id = o->prompt[i];
        if (id < 0 || id >= s->ids->n_vocab)
            continue;
        note_seen(s, id);
        s->in_prompt[id] = true;
    }
    return LATHE_OK;
}

/* The members of the set among id[0..n). */
static int32_t *copy_members(const struct id_set *ids, const int32_t *id, int32_t n, int32_t *n_out)
{
    int32_t *copy = malloc(((size_t)n + 1) * sizeof *copy);
    *n_out = 0;
    for (int32_t i = 0; copy && i < n; i++)
        if (id_set_has(ids, id[i]))
            copy[(*n_out)++] = id[i];
    return copy;
}

/* Entries of one id add up; the sum stays within what a float logit can bear. */
static void copy_bias(struct sampler *s, const lathe_sampling *o)
{
    size_t n = 0;
    for (size_t i = 0; i < o->n_bias; i++) {
        size_t at = 0;
        while (at < n && s->bias[at].id != o->bias[i].id)
            at++;
        if (at == n)
            s->bias[n++] = (lathe_logit_bias){o->bias[i].id, 0};
        float sum = s->bias[at].bias + o->bias[i].bias;
        s->bias[at].bias = sum > BIAS_EDGE ? BIAS_EDGE : sum < -BIAS_EDGE ? -BIAS_EDGE : sum;
    }
    for (size_t i = 0; i < n; i++) {
        s->has_force |= s->bias[i].bias >= BIAS_EDGE;
        s->only_lowers &= s->bias[i].bias <= 0;
    }
    s->o.bias = s->bias;
    s->o.n_bias = n;
}

lathe_status sampler_open(struct sampler **out, const struct sampler_options *o, lathe_error *err)
{
    *out = NULL;
    lathe_status st = sampling_check(o->sampling, o->ids, err);
    if (st)
        return st;
    struct sampler *s = calloc(1, sizeof *s);
    if (!s)
        return fail_memory(err, sizeof *s);
    s->o = *o->sampling;
    if (s->o.seed == -1)
        s->o.seed = noise_seed();
    s->ids = o->ids;
    s->min_tokens = o->min_tokens;
    s->n_prompt = o->n_prompt;
    s->has_penalty =
        s->o.presence_penalty != 0 || s->o.frequency_penalty != 0 || s->o.repetition_penalty != 1;
    s->only_lowers =
        s->o.presence_penalty >= 0 && s->o.frequency_penalty >= 0 && s->o.repetition_penalty >= 1;
    size_t bias_bytes = s->o.n_bias * sizeof *s->bias;
    s->bias = malloc(bias_bytes + 1);
    s->end_id = copy_members(s->ids, o->end_id, o->n_end, &s->n_end);
    s->ban = copy_members(s->ids, o->ban, o->n_ban, &s->n_ban);
    if (!s->bias || !s->end_id || !s->ban)
        st = fail_memory(err, bias_bytes + ((size_t)o->n_end + (size_t)o->n_ban) * sizeof *s->ban);
    else
        copy_bias(s, o->sampling);
    if (!st && s->has_penalty)
        st = open_penalties(s, o, err);
    if (st) {
        sampler_close(s);
        return st;
    }
    *out = s;
    return LATHE_OK;
}

void sampler_close(struct sampler *s)
{
    if (!s)
        return;
    free(s->bias);
    free(s->end_id);
    free(s->ban);
    free(s->count);
    free(s->in_prompt);
    free(s->seen);
    free(s);
}

int64_t sampler_seed(const struct sampler *s)
{
    return s->o.seed;
}

bool sampler_is_greedy(const struct sampler *s)
{
    return s->o.temperature == 0;
}

int32_t sampler_position(const struct sampler *s)
{
    return s->n_prompt + s->n_generated;
}

void sampler_commit(struct sampler *s, const int32_t *id, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        count_token(s, id[i]);
    s->n_generated += n;
}

/* ---- One row ------------------------------------------------------------------------------- */

static void mask(float *row, const int32_t *id, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        row[id[i]] = -INFINITY;
}

/* Leaves only forced ids, if one of them is not masked. */
static void keep_forced(const struct sampler *s, struct sample_scratch *w)
{
    int32_t n = 0;
    for (size_t i = 0; i < s->o.n_bias; i++) {
        int32_t id = s->bias[i].id;
        if (s->bias[i].bias >= BIAS_EDGE && w->row[id] != -INFINITY)
            w->cand[n++] = (struct candidate){0, w->row[id], id};
    }
    if (n == 0)
        return;
    for (int32_t id = 0; id < s->ids->n_vocab; id++)
        w->row[id] = -INFINITY;
    for (int32_t i = 0; i < n; i++)
        w->row[w->cand[i].id] = w->cand[i].logit;
}

static struct penalties penalties_of(const struct sampler *s)
{
    return (struct penalties){s->o.repetition_penalty, s->o.frequency_penalty,
                              s->o.presence_penalty, s->has_penalty ? s->n_seen : -1};
}

static void penalise(const struct sampler *s, float *row)
{
    const struct penalties p = penalties_of(s);
    for (int32_t i = 0; i < s->n_seen; i++)
        row[s->seen[i]] = penalised(&p, row[s->seen[i]], s->count[s->seen[i]]);
}

/* The row after bias, bans and penalties: `logits` itself where nothing changes it. */
static const float *adjust(const struct sampler *s, struct sample_scratch *w, const float *logits,
                           int32_t index)
{
    bool suppress = index < s->min_tokens && s->n_end > 0;
    if (s->o.n_bias == 0 && s->n_ban == 0 && !suppress && s->n_seen == 0)
        return logits;
    memcpy(w->row, logits, (size_t)s->ids->n_vocab * sizeof *w->row);
    for (size_t i = 0; i < s->o.n_bias; i++)
        w->row[s->bias[i].id] += s->bias[i].bias > -BIAS_EDGE ? s->bias[i].bias : -INFINITY;
    mask(w->row, s->ban, s->n_ban);
    if (suppress)
        mask(w->row, s->end_id, s->n_end);
    if (s->has_force)
        keep_forced(s, w);
    penalise(s, w->row);
    return w->row;
}

/* Gumbel-max over the candidates. */
static int32_t draw(const struct candidate *c, int32_t n, double temperature, uint64_t seed,
                    int32_t position)
{
    double best = -INFINITY;
    int32_t id = -1;
    for (int32_t i = 0; i < n; i++) {
        uint64_t bits = noise_bits(seed, position, c[i].id);
        if (choice_key(c[i].logit, temperature, noise_gumbel_bound(bits)) < best)
            continue;
        double key = choice_key(c[i].logit, temperature, noise_gumbel(bits));
        if (key > best || (key == best && c[i].id < id)) {
            best = key;
            id = c[i].id;
        }
    }
    return id;
}

/* What top-p and min-p leave of n candidates. */
static int32_t filter_weights(const struct sampler *s, struct candidate *c, int32_t n)
{
    const lathe_sampling *o = &s->o;
    if (o->top_p < 1 || o->min_p > 0)
        candidates_weigh(c, n, (double)o->temperature);
    if (o->top_p < 1)
        n = candidates_top_p(c, n, (double)o->top_p);
    if (o->min_p > 0)
        n = candidates_min_p(c, n, (double)o->min_p);
    return n;
}

/* What the filters leave of an adjusted row, in w->cand; not for temperature 0. */
static int32_t filter(const struct sampler *s, struct sample_scratch *w, const float *row)
{
    int32_t n = s->o.top_k > 0 ? candidates_top_k(w->cand, row, s->ids, s->o.top_k)
                               : candidates_all(w->cand, row, s->ids);
    return filter_weights(s, w->cand, n);
}

/* The adjusted row of the token that follows the drafts; NULL on failure. */
static const float *judge_row(struct sampler *s, struct sample_scratch *w, const float *logits,
                              const int32_t *draft, int32_t n_draft, lathe_error *err)
{
    int32_t index = s->n_generated + n_draft;
    if (logits_check(logits, s->ids, s->n_prompt + index, err))
        return NULL;
    for (int32_t i = 0; i < n_draft; i++)
        count_token(s, draft[i]);
    const float *row = adjust(s, w, logits, index);
    for (int32_t i = n_draft; i-- > 0;)
        uncount_token(s, draft[i]);
    return row;
}

static lathe_status nothing_left(const struct sampler *s, int32_t position, lathe_error *err)
{
    return fail(err, LATHE_E_ARGUMENT,
                "position %d: logit_bias, min_tokens and banned tokens leave "
                "none of the %d tokens",
                (int)position, (int)s->ids->n_ids);
}

lathe_status sampler_pick(struct sampler *s, struct sample_scratch *w, const float *logits,
                          const int32_t *draft, int32_t n_draft, int32_t *id, lathe_error *err)
{
    int32_t position = sampler_position(s) + n_draft;
    const float *row = judge_row(s, w, logits, draft, n_draft, err);
    if (!row)
        return LATHE_E_NUMERIC;
    if (s->o.temperature == 0)
        *id = logits_argmax(row, s->ids);
    else
        *id = draw(w->cand, filter(s, w, row), (double)s->o.temperature, (uint64_t)s->o.seed,
                   position);
    return *id < 0 ? nothing_left(s, position, err) : LATHE_OK;
}

/* ---- The best of a row ----------------------------------------------------------------------
 *
 * Where nothing raises a logit, an id that is not among the n best of the raw row stays worse than the last of
 * them was. So the k best of the adjusted row are the k best of those n as adjusted, if the last of the k is no
 * worse than that. */

int32_t sampler_best(const struct sampler *s)
{
    enum { PENALISED = 128 }; /* as many as may be lowered, and a few that are not */
    int64_t k = s->o.temperature == 0 ? 1 : s->o.top_k;
    if (!s->only_lowers || k < 1 || (k > 1 && k >= s->ids->n_ids))
        return 0;
    k += (int64_t)s->o.n_bias + s->n_ban + (s->n_generated < s->min_tokens ? s->n_end : 0);
    if (s->has_penalty)
        k += PENALISED;
    return k <= SAMPLE_MAX_BEST ? (int32_t)k : 0;
}

int32_t sampler_choice(const struct sampler *s, struct choice *c)
{
    bool suppresses = s->n_end > 0 && s->n_generated < s->min_tokens;
    bool is_off = s->o.top_k < 1 || s->o.top_k >= s->ids->n_ids;
    *c = (struct choice){(double)s->o.temperature, (double)s->o.top_p, (double)s->o.min_p,
                         (uint64_t)s->o.seed, is_off ? 0 : s->o.top_k};
    if (s->o.n_bias > 0 || s->n_ban > 0 || suppresses)
        return 0;
    if (s->o.temperature == 0)
        return 1;
    return !is_off ? s->o.top_k : s->o.top_p >= 1 ? INT32_MAX : 0;
}

void sampler_history(const struct sampler *s, const struct history *h)
{
    *h->p = penalties_of(s);
    if (!s->has_penalty)
        return;
    memset(h->times, 0, (size_t)s->ids->n_vocab * sizeof *h->times);
    for (int32_t i = 0; i < s->n_seen; i++) {
        h->seen[i] = s->seen[i];
        h->times[s->seen[i]] = 1 + s->count[s->seen[i]];
    }
}

static bool is_in(const int32_t *id, int32_t n, int32_t x)
{
    for (int32_t i = 0; i < n; i++)
        if (id[i] == x)
            return true;
    return false;
}

/* The logit of one id, as adjust leaves it in a row, without forced ids. */
static float adjusted(const struct sampler *s, int32_t id, float x, bool suppress)
{
    for (size_t i = 0; i < s->o.n_bias; i++)
        if (s->bias[i].id == id)
            x += s->bias[i].bias > -BIAS_EDGE ? s->bias[i].bias : -INFINITY;
    if (is_in(s->ban, s->n_ban, id) || (suppress && is_in(s->end_id, s->n_end, id)))
        return -INFINITY;
    const struct penalties p = penalties_of(s);
    if (s->has_penalty && (s->count[id] > 0 || (s->in_prompt && s->in_prompt[id])))
        x = penalised(&p, x, s->count[id]);
    return x;
}

/* The best as adjusted, best first and without masked ones, in w->cand. *n_raw: how many there were. */
static int32_t adjust_best(const struct sampler *s, struct sample_scratch *w,
                           const struct logits_best *best, int32_t index, int32_t *n_raw)
{
    bool suppress = index < s->min_tokens;
    int32_t n = 0, i = 0;
    for (; i < best->n && best->id[i] >= 0; i++) {
        int32_t id = best->id[i];
        float x = adjusted(s, id, best->value[i], suppress);
        if (x != -INFINITY)
            w->cand[n++] = (struct candidate){0, x, id};
    }
    candidates_best_first(w->cand, n);
    *n_raw = i;
    return n;
}

bool sampler_pick_best(struct sampler *s, struct sample_scratch *w, const struct logits_best *best,
                       const int32_t *draft, int32_t n_draft, int32_t *id)
{
    bool is_greedy = s->o.temperature == 0, all = s->o.top_k < 1 || s->o.top_k >= s->ids->n_ids;
    int32_t need = is_greedy ? 1 : all ? INT32_MAX : s->o.top_k, n_raw;
    if (s->has_force || best->n < 1 || !(best->value[0] <= FLT_MAX))
        return false;
    for (int32_t i = 0; i < n_draft; i++)
        count_token(s, draft[i]);
    int32_t n = adjust_best(s, w, best, s->n_generated + n_draft, &n_raw);
    for (int32_t i = n_draft; i-- > 0;)
        uncount_token(s, draft[i]);
    if (n_raw == best->n) { /* there may be more */
        const struct candidate last = {0, best->value[n_raw - 1], best->id[n_raw - 1]};
        if (!s->only_lowers || n < need || candidate_is_better(&last, &w->cand[need - 1]))
            return false;
    }
    n = n < need ? n : need;
    if (is_greedy)
        *id = n > 0 ? w->cand[0].id : -1;
    else
        *id = draw(w->cand, filter_weights(s, w->cand, n), (double)s->o.temperature,
                   (uint64_t)s->o.seed, sampler_position(s) + n_draft);
    return *id >= 0;
}

lathe_status sampler_law(struct sampler *s, struct sample_scratch *w, const float *logits,
                         const int32_t *draft, int32_t n_draft, struct candidate *law, int32_t *n,
                         lathe_error *err)
{
    *n = 0;
    const float *row = judge_row(s, w, logits, draft, n_draft, err);
    if (!row)
        return LATHE_E_NUMERIC;
    if (s->o.temperature == 0) {
        int32_t id = logits_argmax(row, s->ids);
        if (id >= 0)
            w->cand[(*n)++] = (struct candidate){1, row[id], id};
    } else {
        *n = filter(s, w, row);
        candidates_weigh(w->cand, *n, (double)s->o.temperature);
        candidates_by_id(w->cand, *n);
        double sum = 0;
        for (int32_t i = 0; i < *n; i++)
            sum += w->cand[i].weight;
        for (int32_t i = 0; i < *n; i++)
            w->cand[i].weight /= sum;
    }
    if (*n == 0)
        return nothing_left(s, sampler_position(s) + n_draft, err);
    if (law != w->cand)
        memcpy(law, w->cand, (size_t)*n * sizeof *law);
    return LATHE_OK;
}

/* From a block's rows to drafts. Each is chosen by the request's sampler as the target's tokens are: from
 * the row's logits, or from a row that is -infinity except for the candidates' scores, so that a greedy
 * request takes the best one (of equal scores the lower id) and a sampled one shares noise and filters with
 * the target. The law is that of the same choice. */
#include <math.h>

#include "base/log.h"
#include "spec/dflash.h"

/* A chain ends where its tokens are all accepted less often than this: one row in five would have to pay
 * for the verification of all. */
#define MIN_SURVIVAL 0.2

/* The rows of h that predict step i of every request: [most, n] in order of steps. */
static struct tensor gather(struct exec *x, struct drafter *d, struct tensor h, int32_t n,
                            int32_t most)
{
    if (n == 1)
        return tensor_rows(h, d->config.first_row, most);
    struct tensor u = exec_tmp(x, h.dtype, (int64_t)most * n, h.dim[1]);
    for (int32_t i = 0; i < most; i++)
        for (int32_t j = 0; j < n; j++)
            d->row[i * n + j] = j * d->config.block + d->config.first_row + i;
    op_gather_rows(x, u, h, d->row);
    return u;
}

/* One draft more from `logits`; false ends the chain. */
static bool choose(struct drafter *d, struct draft_request *r, const float *logits)
{
    lathe_error err; /* no candidate may be sampled: the proposal ends here */
    int32_t id;
    struct draft_law *law = r->law ? &r->law[r->n] : NULL;
    if (sampler_pick(r->sampler, d->o.scratch, logits, r->draft, r->n, &id, &err))
        return false;
    if (law && sampler_law(r->sampler, d->o.scratch, logits, r->draft, r->n, law->q, &law->n, &err))
        return false;
    r->draft[r->n++] = id;
    return true;
}

/* The row that is -infinity but for n candidates. */
static bool choose_in_row(struct drafter *d, struct draft_request *r, const struct logits_best *c)
{
    for (int32_t i = 0; c->id[i] >= 0; i++)
        d->candidate_row[c->id[i]] = c->value[i];
    bool chosen = choose(d, r, d->candidate_row);
    for (int32_t i = 0; c->id[i] >= 0; i++)
        d->candidate_row[c->id[i]] = -INFINITY;
    return chosen;
}

static bool choose_candidate(struct drafter *d, struct draft_request *r, const float *score,
                             const int32_t *id)
{
    float value[DFLASH_MAX_CANDIDATES + 1];
    int32_t token, n = 0, of[DFLASH_MAX_CANDIDATES + 1];
    for (int32_t c = 0; c < d->config.n_candidates; c++)
        if (id[c] >= 0 && isfinite(score[c])) {
            value[n] = score[c];
            of[n++] = id[c];
        }
    if (n == 0 && !d->has_warned) {
        log_warn("drafter %s: no score at position %d is finite; it goes without", "dflash2",
                 r->pos + 1 + r->n);
        d->has_warned = true;
    }
    if (n == 0)
        return false;
    value[n] = -INFINITY;
    of[n] = -1;
    const struct logits_best all = {n + 1, value, of};
    if (r->law || !sampler_pick_best(r->sampler, d->o.scratch, &all, r->draft, r->n, &token))
        return choose_in_row(d, r, &all);
    r->draft[r->n++] = token;
    return true;
}

/* The token before draft i: of a chain that has ended, any. */
static int32_t token_before(const struct draft_request *r, int32_t i)
{
    return i > 0 && r->n >= i ? r->draft[i - 1] : r->anchor;
}

/* sigmoid(w . [h | w1[token before]] + b) of one step, into host_confidence: how likely the draft is accepted
 * if those before it are. */
static void confidence(struct exec *x, struct drafter *d, struct tensor conf, struct tensor u)
{
    const struct dflash_weights *w = &d->weights;
    size_t mark = exec_push(x);
    struct tensor in = exec_tmp(x, u.dtype, u.dim[0], w->confidence.cols);
    op_gather_rows(x, tensor_cols(in, 0, u.dim[1]), u, NULL);
    if (d->config.confidence_sees_token)
        op_embed(x, tensor_cols(in, u.dim[1], d->config.rank), &w->before, d->prev);
    op_linear(x, conf, in, &w->confidence);
    const float *c = exec_fetch(x, &conf, d->host_confidence);
    if (c) {
        for (int64_t j = 0; j < conf.dim[0]; j++)
            d->host_confidence[j] = 1 / (1 + expf(-(c[j] + w->confidence_bias)));
        struct tensor host = tensor_2d(d->host_confidence, DT_F32, conf.dim[0], 1);
        exec_tap(x, "confidence", -1, &host);
    }
    exec_pop(x, mark);
}

static void walk_rows(struct exec *x, struct drafter *d, struct tensor logits,
                      struct draft_request *r, int32_t n)
{
    const float *row = exec_fetch(x, &logits, d->host_logits);
    if (!row)
        return;
    for (int32_t j = 0; j < n; j++)
        while (r[j].n < r[j].most &&
               choose(d, &r[j], row + (int64_t)(r[j].n * n + j) * logits.stride))
            continue;
}

/* Which of k candidates the token is. */
static int64_t place_of(const int32_t *id, int64_t k, int32_t token)
{
    int64_t p = 0;
    while (p + 1 < k && id[p] != token)
        p++;
    return p;
}

/* Every candidate is scored behind every candidate of the step before, so that a walk goes through a table: what it
 * takes at one step does not have to go back for the next. */
struct pairs {
    struct tensor table; /* I32 [rows, k + k * k]: id, then score */
    struct tensor id;    /* I32 [rows, k] */
    struct tensor score; /* F32 [rows, k * k]; of the first n rows k, behind the anchor */
};

/* Of rows u and their logits, those of n requests at each step, behind anchor [n, 1] I32. */
static struct pairs score_pairs(struct exec *x, const struct drafter *d, struct tensor u,
                                struct tensor logits, struct tensor anchor)
{
    const struct dflash_config *c = &d->config;
    const struct dflash_weights *w = &d->weights;
    int64_t rows = u.dim[0], k = c->n_candidates, n = anchor.dim[0], later = rows - n;
    struct tensor value = exec_tmp(x, DT_F32, rows, k);
    struct pairs p = {.table = exec_tmp(x, DT_I32, rows, k + k * k)};
    int32_t *at = p.table.data;
    p.id = tensor_2d(at, DT_I32, rows, k);
    p.score = tensor_2d(at ? at + rows * k : NULL, DT_F32, rows, k * k);
    struct tensor g = tensor_2d(d->ones, DT_F32, rows, c->rank);
    op_top_k(x, value, p.id, logits, id_set_pairs(d->o.ids), d->o.ids->n_ranges);
    exec_tap(x, "cand_logits", -1, &value);
    exec_tap(x, "cand_ids", -1, &p.id);
    if (c->kind == DFLASH_SELECTOR) {
        g = exec_tmp(x, DT_F32, rows, c->rank);
        op_linear(x, g, u, &w->hidden_projection);
    }
    op_pair_scores(x, tensor_cols(tensor_rows(p.score, 0, n), 0, k), tensor_rows(value, 0, n),
                   anchor, tensor_rows(p.id, 0, n), tensor_rows(g, 0, n), &w->before, &w->after);
    if (later > 0)
        op_pair_scores(x, tensor_rows(p.score, n, later), tensor_rows(value, n, later),
                       tensor_rows(p.id, 0, later), tensor_rows(p.id, n, later),
                       tensor_rows(g, n, later), &w->before, &w->after);
    return p;
}

static void walk_candidates(struct exec *x, struct drafter *d, struct tensor u,
                            struct tensor logits, struct draft_request *r, int32_t n, int32_t most)
{
    const struct dflash_config *c = &d->config;
    int64_t rows = u.dim[0], k = c->n_candidates;
    struct tensor anchor = exec_tmp(x, DT_I32, n, 1);
    struct tensor conf = exec_tmp(x, DT_F32, n, 1);
    for (int32_t j = 0; j < n && !x->planning; j++)
        d->prev[j] = r[j].anchor;
    exec_put(x, &anchor, d->prev);
    struct pairs p = score_pairs(x, d, u, logits, anchor);
    const int32_t *ids = exec_fetch(x, &p.table, d->host_table);
    const float *scores = (const float *)(ids ? ids + rows * k : NULL);
    for (int32_t i = 0; i < most; i++) {
        for (int32_t j = 0; j < n && !x->planning; j++)
            d->prev[j] = token_before(&r[j], i);
        if (c->has_confidence)
            confidence(x, d, conf, tensor_rows(u, (int64_t)i * n, n));
        for (int32_t j = 0; j < n && ids; j++) {
            int64_t row = (int64_t)i * n + j;
            int64_t before = i > 0 ? place_of(ids + (row - n) * k, k, d->prev[j]) : 0;
            if (r[j].n < i || i >= r[j].most)
                continue;
            if (c->has_confidence) {
                d->survival[j] *= d->host_confidence[j];
                if (!(d->survival[j] >= MIN_SURVIVAL))
                    continue;
            }
            struct tensor seen = tensor_cols(tensor_rows(p.score, row, 1), before * k, k);
            exec_tap(x, "selector_scores", i, &seen);
            (void)choose_candidate(d, &r[j], scores + (row * k + before) * k, ids + row * k);
        }
    }
}

void dflash_walk(struct exec *x, struct drafter *d, struct tensor h, struct draft_request *r,
                 int32_t n, int32_t most)
{
    size_t mark = exec_push(x);
    struct tensor u = gather(x, d, h, n, most);
    struct tensor logits = exec_tmp(x, DT_F32, u.dim[0], d->config.dims.vocab);
    for (int32_t j = 0; j < n && !x->planning; j++) {
        r[j].n = 0;
        d->survival[j] = 1;
    }
    op_linear(x, logits, u, d->lm_head);
    if (d->config.kind == DFLASH_PLAIN)
        walk_rows(x, d, logits, r, n);
    else
        walk_candidates(x, d, u, logits, r, n, most);
    exec_pop(x, mark);
}

void dflash_walk_there(struct exec *x, struct drafter *d, struct tensor h, struct tensor anchor,
                       struct tensor token, const struct resident *r, const struct history *history)
{
    size_t mark = exec_push(x);
    struct tensor u = gather(x, d, h, 1, (int32_t)token.dim[0]);
    struct tensor logits = exec_tmp(x, DT_F32, u.dim[0], d->config.dims.vocab);
    op_linear(x, logits, u, d->lm_head);
    struct pairs p = score_pairs(x, d, u, logits, anchor);
    op_walk(x, token, p.id, p.score, r, history);
    exec_pop(x, mark);
}

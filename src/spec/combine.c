/* A model that drafts, and n-gram lookup beside it. Lookup drafts where it copies: where the match is
 * strong, and where the model has nothing to say. The choice looks at committed tokens only, never at the
 * drafts, so that the law of a draft is that of whoever made it. */
#include <stdlib.h>
#include <string.h>

#include "spec/ngram.h"

struct drafter {
    const struct drafter_ops *ops; /* of the model */
    struct drafter *model, *lookup;
    struct drafter_info info;      /* of the model */
    struct draft_request *request; /* [n_slots]: what the model is asked */
    int32_t *asked_for;            /* [n_slots]: index of the request it stands for */
};

static void combine_close(struct drafter *d)
{
    if (!d)
        return;
    d->ops->close(d->model);
    drafter_ngram.close(d->lookup);
    free(d->request);
    free(d->asked_for);
    free(d);
}

static lathe_status combine_open(struct drafter **out, const struct drafter_ops *ops,
                                 const struct drafter_options *o, lathe_error *err)
{
    *out = NULL;
    size_t n = (size_t)o->n_slots;
    struct drafter *d = calloc(1, sizeof *d);
    if (!d)
        return fail_memory(err, sizeof *d);
    d->ops = ops;
    d->request = calloc(n, sizeof *d->request);
    d->asked_for = calloc(n, sizeof *d->asked_for);
    lathe_status st =
        d->request && d->asked_for ? LATHE_OK : fail_memory(err, n * sizeof *d->request);
    if (!st)
        st = drafter_ngram.open(&d->lookup, o, err);
    if (!st)
        st = ops->open(&d->model, o, err);
    if (st) {
        combine_close(d);
        return st;
    }
    ops->info(d->model, &d->info);
    *out = d;
    return LATHE_OK;
}

static lathe_status combine_place(struct drafter *d, int32_t n_ctx, struct memory *m,
                                  lathe_error *err)
{
    lathe_status st = drafter_ngram.place(d->lookup, n_ctx, m, err);
    return st ? st : d->ops->place(d->model, n_ctx, m, err);
}

static void combine_info(const struct drafter *d, struct drafter_info *out)
{
    struct drafter_info lookup;
    drafter_ngram.info(d->lookup, &lookup);
    *out = d->info;
    out->max_draft = lookup.max_draft;
    out->usual_draft = lookup.usual_draft;
    out->max_from[DRAFT_LOOKUP] = lookup.max_from[DRAFT_LOOKUP];
    out->usual_from[DRAFT_LOOKUP] = lookup.usual_from[DRAFT_LOOKUP];
}

static lathe_status combine_committed(struct drafter *d, const struct committed *c,
                                      lathe_error *err)
{
    lathe_status st = drafter_ngram.committed(d->lookup, c, err);
    return st ? st : d->ops->committed(d->model, c, err);
}

/* The most drafts of one of the parts, which has its own maximum. */
static int32_t most_of(const struct draft_request *r, enum draft_source part, int32_t usual,
                       int32_t max)
{
    int32_t most = r->most_from[part] > 0 ? r->most_from[part] : usual;
    most = most < max ? most : max;
    return most < r->most ? most : r->most;
}

static bool is_copy(const struct drafter *d, const struct draft_request *r)
{
    return r->n > 0 && ngram_match(d->lookup, r->slot) >= NGRAM_STRONG;
}

static lathe_status ask_lookup(struct drafter *d, struct draft_request *r, int32_t n,
                               lathe_error *err)
{
    for (int32_t i = 0; i < n; i++) {
        int32_t most = r[i].most;
        r[i].n = 0;
        if (r[i].most_from[DRAFT_LOOKUP] < 0)
            continue;
        r[i].most = most_of(&r[i], DRAFT_LOOKUP, SPEC_MAX_DRAFT, SPEC_MAX_DRAFT);
        lathe_status st = drafter_ngram.propose(d->lookup, &r[i], 1, err);
        r[i].most = most;
        if (st)
            return st;
    }
    return LATHE_OK;
}

/* The model's proposal for r, if it made one; else the lookup's, whose laws the model may have spoilt. */
static void take(struct draft_request *r, const struct draft_request *model)
{
    if (model->n > 0) {
        memcpy(r->draft, model->draft, sizeof r->draft);
        r->n = model->n;
        r->source = DRAFT_MODEL;
        return;
    }
    for (int32_t i = 0; i < r->n && r->law; i++) {
        r->law[i].n = 1;
        r->law[i].q[0] = (struct candidate){.weight = 1, .id = r->draft[i]};
    }
}

static lathe_status combine_propose(struct drafter *d, struct draft_request *r, int32_t n,
                                    lathe_error *err)
{
    int32_t asked = 0;
    lathe_status st = ask_lookup(d, r, n, err);
    for (int32_t i = 0; i < n && !st; i++) {
        if (r[i].most_from[DRAFT_MODEL] < 0 || is_copy(d, &r[i]))
            continue;
        d->request[asked] = r[i];
        d->request[asked].most =
            most_of(&r[i], DRAFT_MODEL, d->info.usual_draft, d->info.max_draft);
        d->asked_for[asked++] = i;
    }
    if (!st && asked > 0)
        st = d->ops->propose(d->model, d->request, asked, err);
    for (int32_t i = 0; i < asked && !st; i++)
        take(&r[d->asked_for[i]], &d->request[i]);
    return st;
}

static bool combine_ready(struct drafter *d, struct resident *r, int32_t most, struct home *home)
{
    return d->ops->ready(d->model, r, most, home);
}

static lathe_status combine_reach(struct drafter *d, int32_t slot, int32_t end_pos,
                                  lathe_error *err)
{
    return d->ops->reach(d->model, slot, end_pos, err);
}

static lathe_status combine_draft(struct drafter *d, const struct resident *r,
                                  struct resident *there, int32_t n_rows, int32_t n_best,
                                  const struct history *h, const struct round_rows *last,
                                  int32_t end_pos, lathe_error *err)
{
    return d->ops->draft(d->model, r, there, n_rows, n_best, h, last, end_pos, err);
}

static void combine_followed(struct drafter *d, const struct committed *c)
{
    (void)drafter_ngram.committed(d->lookup, c, NULL); /* which they follow */
    d->ops->followed(d->model, c);
}

static bool combine_differs(struct drafter *d, struct draft_request *r)
{
    return !ask_lookup(d, r, 1, NULL) && is_copy(d, r);
}

static void combine_rewind(struct drafter *d, int32_t slot, int32_t n)
{
    drafter_ngram.rewind(d->lookup, slot, n);
    d->ops->rewind(d->model, slot, n);
}

/* Bytes of the lookup's context as 64 bits, that context, the model's. */
static lathe_status combine_save(const struct drafter *d, int32_t slot, struct buf *out,
                                 lathe_error *err)
{
    uint64_t n = 0;
    size_t at = out->len;
    buf_append(out, &n, sizeof n);
    lathe_status st = drafter_ngram.save(d->lookup, slot, out, err);
    if (st)
        return st;
    n = out->len - at - sizeof n;
    memcpy(out->data + at, &n, sizeof n);
    return d->ops->save(d->model, slot, out, err);
}

static lathe_status combine_load(struct drafter *d, int32_t slot, const void *bytes, size_t n,
                                 lathe_error *err)
{
    uint64_t lookup;
    const unsigned char *at = bytes;
    if (n < sizeof lookup)
        return fail(err, LATHE_E_FORMAT, "drafter context: %zu bytes, expected 8 or more", n);
    memcpy(&lookup, at, sizeof lookup);
    at += sizeof lookup;
    n -= sizeof lookup;
    if (lookup > n)
        return fail(err, LATHE_E_FORMAT, "drafter context: %zu bytes, expected %llu or more", n,
                    (unsigned long long)lookup);
    lathe_status st = drafter_ngram.load(d->lookup, slot, at, (size_t)lookup, err);
    if (!st)
        st = d->ops->load(d->model, slot, at + lookup, n - (size_t)lookup, err);
    return st;
}

static lathe_status open_mtp(struct drafter **d, const struct drafter_options *o, lathe_error *err)
{
    return combine_open(d, &drafter_mtp, o, err);
}

static lathe_status open_dflash2(struct drafter **d, const struct drafter_options *o,
                                 lathe_error *err)
{
    return combine_open(d, &drafter_dflash2, o, err);
}

const struct drafter_ops drafter_mtp_ngram = {
    .name = "mtp+ngram",
    .open = open_mtp,
    .place = combine_place,
    .close = combine_close,
    .info = combine_info,
    .committed = combine_committed,
    .propose = combine_propose,
    .ready = combine_ready,
    .reach = combine_reach,
    .draft = combine_draft,
    .followed = combine_followed,
    .differs = combine_differs,
    .rewind = combine_rewind,
    .save = combine_save,
    .load = combine_load,
};

const struct drafter_ops drafter_dflash2_ngram = {
    .name = "dflash2+ngram",
    .open = open_dflash2,
    .place = combine_place,
    .close = combine_close,
    .info = combine_info,
    .committed = combine_committed,
    .propose = combine_propose,
    .ready = combine_ready,
    .reach = combine_reach,
    .draft = combine_draft,
    .followed = combine_followed,
    .differs = combine_differs,
    .rewind = combine_rewind,
    .save = combine_save,
    .load = combine_load,
};

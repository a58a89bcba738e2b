#define _DEFAULT_SOURCE /* realpath */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "engine/engine.h"

/* DIR of a block drafter: as given, or MODEL-dflash2 beside the model, NULL if there is none. MODEL is what the
 * directory is called, also where it is given as ".", or as a link beside which there is none. `path` has room
 * for it. */
static const char *block_dir(const lathe_engine_options *o, char *path, size_t room)
{
    char config[4096 + 16];
    if (o->draft_dir)
        return o->draft_dir;
    char *real = realpath(o->model_dir, NULL);
    const char *const model[2] = {o->model_dir, real};
    bool found = false;
    for (int i = 0; i < 2 && !found && model[i]; i++) {
        size_t n = strlen(model[i]);
        while (n > 1 && model[i][n - 1] == '/')
            n--;
        int len = snprintf(path, room, "%.*s-dflash2", (int)n, model[i]);
        if (len < 0 || (size_t)len >= room)
            continue;
        (void)snprintf(config, sizeof config, "%s/config.json", path);
        found = file_exists(config);
    }
    free(real);
    return found ? path : NULL;
}

/* What `spec` asks for, by what there is. *dir is the drafter's checkpoint, or NULL. */
static lathe_status choose(const struct lathe_engine *e, const lathe_engine_options *o, char *path,
                           size_t room, const struct drafter_ops **ops, const char **dir,
                           lathe_error *err)
{
    const char *want = o->spec ? o->spec : "auto", *block = block_dir(o, path, room);
    bool has_mtp = e->model.dims.has_mtp, automatic = strcmp(want, "auto") == 0;
    *ops = NULL;
    *dir = NULL;
    if (strcmp(want, "none") == 0) {
        if (o->draft_dir)
            return fail(
                err, LATHE_E_ARGUMENT,
                "without speculation (spec none) no drafter is read; %s is given (draft_dir)",
                o->draft_dir);
        return LATHE_OK;
    }
    if (automatic)
        want = block ? "dflash2+ngram" : has_mtp ? "mtp+ngram" : "ngram";
    *ops = drafter_named(want);
    if (!*ops) {
        char names[128];
        drafter_names(names, sizeof names);
        return fail(err, LATHE_E_ARGUMENT, "there is no drafter \"%s\"; there are none, auto, %s",
                    want, names);
    }
    if (strncmp(want, "mtp", 3) == 0 && !has_mtp)
        return fail(err, LATHE_E_ARGUMENT, "drafter mtp: the model %s has no MTP head",
                    o->model_dir);
    if (strncmp(want, "dflash2", 7) == 0) {
        if (!block)
            return fail(err, LATHE_E_ARGUMENT,
                        "drafter dflash2: no checkpoint is given, and none lies beside %s",
                        o->model_dir);
        *dir = block;
    } else if (o->draft_dir) {
        return fail(err, LATHE_E_ARGUMENT, "drafter %s takes no checkpoint of its own; %s is given",
                    want, o->draft_dir);
    }
    return LATHE_OK;
}

static lathe_status open_laws(struct lathe_engine *e, lathe_error *err)
{
    struct spec *s = &e->spec;
    size_t n = (size_t)e->options.n_slots * (size_t)s->draft_k, vocab = (size_t)e->model.dims.vocab;
    s->law = calloc(n, sizeof *s->law);
    if (!s->law)
        return fail_memory(err, n * sizeof *s->law);
    for (size_t i = 0; i < n; i++) {
        s->law[i].q = malloc(vocab * sizeof *s->law[i].q);
        if (!s->law[i].q)
            return fail_memory(err, vocab * sizeof *s->law[i].q);
    }
    return LATHE_OK;
}

lathe_status spec_open(struct lathe_engine *e, lathe_error *err)
{
    const lathe_engine_options *o = &e->options;
    struct spec *s = &e->spec;
    char path[4096];
    const char *dir;
    const struct drafter_ops *ops;
    lathe_status st = choose(e, o, path, sizeof path, &ops, &dir, err);
    if (st || !ops)
        return st;
    struct drafter_options d = {
        .model = &e->model,
        .backend = e->backend,
        .stream = e->stream,
        .ids = &e->ids,
        .scratch = &e->scratch,
        .act = engine_dtype(o->activations),
        .kv = engine_dtype(o->kv),
        .n_slots = o->n_slots,
        .n_ctx = o->n_ctx,
        .max_rows = o->prefill_chunk > 1 + SPEC_MAX_DRAFT ? o->prefill_chunk : 1 + SPEC_MAX_DRAFT,
        .dir = dir,
    };
    st = ops->open(&s->drafter, &d, err);
    if (st)
        return st;
    s->ops = ops;
    ops->info(s->drafter, &s->info);
    s->draft_k = o->draft_k ? o->draft_k : s->info.usual_draft;
    if (s->draft_k > s->info.max_draft) {
        log_warn("drafter %s makes at most %d drafts a round; draft_k %d is taken as that",
                 ops->name, s->info.max_draft, s->draft_k);
        s->draft_k = s->info.max_draft;
    }
    s->acceptance = o->rejection ? ACCEPT_REJECTION : ACCEPT_STRICT;
    s->adaptive = !o->fixed_k && !o->rejection;
    s->request = calloc((size_t)o->n_slots, sizeof *s->request);
    if (!s->request)
        return fail_memory(err, (size_t)o->n_slots * sizeof *s->request);
    return o->rejection && s->info.has_law ? open_laws(e, err) : LATHE_OK;
}

const char *lathe_engine_drafter(const lathe_engine *e, int32_t *draft_k)
{
    if (draft_k)
        *draft_k = e->spec.draft_k;
    return e->spec.ops ? e->spec.ops->name : "none";
}

void spec_close(struct lathe_engine *e)
{
    struct spec *s = &e->spec;
    if (s->law)
        for (int32_t i = 0; i < e->options.n_slots * s->draft_k; i++)
            free(s->law[i].q);
    free(s->law);
    free(s->request);
    if (s->ops)
        s->ops->close(s->drafter);
    *s = (struct spec){0};
}

/* How many drafts the slot may use: no row beyond the context. A strict request takes none beyond its limit
 * either; by rejection the tokens of a round depend on how many are drafted, which its limit, a matter of
 * where the output is cut, must not change. */
static int32_t room(const struct lathe_engine *e, const struct slot *s)
{
    const lathe_request *r = s->request;
    int32_t k = e->spec.draft_k;
    int32_t positions = e->options.n_ctx - s->n_committed - 1;
    int32_t tokens = r->max_tokens - r->usage.completion_tokens - 1;
    if (r->draft_k >= 0 && r->draft_k < k)
        k = r->draft_k;
    if (k > positions)
        k = positions;
    return k > tokens && e->spec.acceptance == ACCEPT_STRICT ? tokens : k;
}

/* Sets what a request for d->most drafts asks of one source; returns how many, 0: they do not pay now. */
static int32_t set_most_from(struct lathe_engine *e, lathe_request *r, struct draft_request *d,
                             enum draft_source from, struct adapt_load load)
{
    const struct spec *sp = &e->spec;
    int32_t limit = sp->info.max_from[from] < d->most ? sp->info.max_from[from] : d->most;
    int32_t usual = sp->info.usual_from[from] < limit ? sp->info.usual_from[from] : limit, k = 0;
    if (!sp->adaptive) {
        d->most_from[from] = e->options.draft_k > 0 ? limit : 0;
        return limit;
    }
    if (limit > 0)
        k = adapt_choose(&r->adapt, &sp->costs, from, usual, limit, load);
    d->most_from[from] = k > 0 ? k : -1;
    return k;
}

/* Sets what a request asks for; false if drafts do not pay now. */
static bool set_most(struct lathe_engine *e, lathe_request *r, struct draft_request *d,
                     int32_t most, int32_t n_others)
{
    struct adapt_load load = {n_others, n_others};
    int32_t longest = 0;
    d->most = most;
    for (int s = 0; s < DRAFT_SOURCES; s++) {
        int32_t k = set_most_from(e, r, d, (enum draft_source)s, load);
        longest = k > longest ? k : longest;
    }
    if (!e->spec.adaptive)
        return true;
    d->most = longest > 0 ? longest : 1;
    return longest > 0;
}

static int32_t n_decoding(const struct lathe_engine *e)
{
    int32_t n = 0;
    for (int32_t i = 0; i < e->options.n_slots; i++)
        n += e->slots[i].phase == SLOT_DECODE;
    return n;
}

void spec_note_costs(struct lathe_engine *e, int32_t n_drafted, double draft_ms, double verify_ms,
                     double commit_ms)
{
    struct spec *s = &e->spec;
    if (!s->ops)
        return;
    if (n_drafted == 1 && s->request[0].n > 0 && s->request[0].source < DRAFT_SOURCES)
        adapt_note_draft(&s->costs, s->request[0].source, s->request[0].n, draft_ms);
    adapt_note_verify(&s->costs, e->step.batch.n_rows, verify_ms);
    if (e->step.batch.phase == PHASE_VERIFY)
        adapt_note_commit(&s->costs, commit_ms);
}

void spec_note_round(struct lathe_engine *e, lathe_request *r, const struct draft_request *d,
                     int32_t n_accepted)
{
    adapt_note_round(&r->adapt, d->source, d->n, n_accepted);
    adapt_note_round(&e->spec.all, d->source, d->n, n_accepted);
}

/* What the slot asks the drafter for, but for how much. */
static struct draft_request request_of(struct lathe_engine *e, struct slot *s)
{
    const struct spec *sp = &e->spec;
    int32_t slot = (int32_t)(s - e->slots);
    s->token[s->n_committed] = s->next;
    return (struct draft_request){
        .slot = slot,
        .pos = s->n_committed,
        .anchor = s->next,
        .sampler = s->request->sampler,
        .history = s->token,
        .law = sp->law ? sp->law + (size_t)slot * (size_t)sp->draft_k : NULL,
    };
}

/* Does the next round run a row of the slot? */
static bool decodes(struct slot *s)
{
    return s->phase == SLOT_DECODE && !events_full(&s->request->events);
}

bool spec_differs(struct lathe_engine *e, struct slot *s)
{
    struct spec *sp = &e->spec;
    int32_t most = room(e, s);
    if (!sp->ops || !sp->ops->differs || most < 1)
        return false;
    struct draft_request d = request_of(e, s);
    struct adapt_load alone = {0, 0};
    d.most = most;
    set_most_from(e, s->request, &d, DRAFT_LOOKUP, alone);
    return sp->ops->differs(sp->drafter, &d);
}

/* Appends what the slots' tokens without choice are: they stand in the place of drafts, and all are accepted. Returns how
 * many slots there are then. */
static int32_t propose_closings(struct lathe_engine *e, int32_t n)
{
    struct spec *sp = &e->spec;
    for (int32_t i = 0; i < e->options.n_slots; i++) {
        struct slot *s = &e->slots[i];
        int32_t most = decodes(s) ? room(e, s) : 0;
        if (most < 1 || !closing_is_on(&s->request->closing))
            continue;
        const struct closing *c = &s->request->closing;
        struct draft_request *d = &sp->request[n++];
        *d = request_of(e, s);
        d->n = c->n - c->at < most ? c->n - c->at : most;
        d->source = DRAFT_SOURCES;
        memcpy(d->draft, closing_next(c), (size_t)d->n * sizeof *d->draft);
    }
    return n;
}

int32_t spec_propose(struct lathe_engine *e)
{
    struct spec *sp = &e->spec;
    int32_t n = 0;
    if (!sp->ops)
        return 0;
    for (int32_t i = 0; i < e->options.n_slots; i++) {
        struct slot *s = &e->slots[i];
        int32_t most = decodes(s) ? room(e, s) : 0;
        if (most < 1 || closing_is_on(&s->request->closing))
            continue;
        sp->request[n] = request_of(e, s);
        n += set_most(e, s->request, &sp->request[n], most, n_decoding(e) - 1);
    }
    lathe_error err;
    if (n && sp->ops->propose(sp->drafter, sp->request, n, &err)) {
        /* A drafter that fails costs speed, not answers; the step will tell of a device that did. */
        if (err.status != LATHE_E_DEVICE)
            log_warn("drafter %s: %s; this round goes without", sp->ops->name, err.message);
        n = 0;
    }
    return propose_closings(e, n);
}

lathe_status spec_committed(struct lathe_engine *e, int32_t slot, int32_t pos, int32_t first_row,
                            int32_t n, lathe_error *err)
{
    const struct spec *sp = &e->spec;
    const struct step *step = &e->step;
    if (!sp->ops)
        return LATHE_OK;
    struct committed c = {
        .slot = slot,
        .pos = pos,
        .n = n,
        .token = step->batch.token + first_row,
        .hidden = tensor_rows(step->hidden, first_row, n),
        .feature = tensor_rows(step->feature, first_row, n),
    };
    return sp->ops->committed(sp->drafter, &c, err);
}

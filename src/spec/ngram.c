/* Prompt lookup: the longest earlier occurrence of the sequence's last tokens, and what followed it.
 *
 * Each slot indexes its committed tokens twice, by the NGRAM_STRONG and by the NGRAM_MIN tokens that end
 * at a position: `head` leads from a hash to the newest position, `prev` from there to older ones of the
 * same hash. Positions leave the index in the reverse of the order they came in, which makes a rewind
 * exact. */
#include "spec/ngram.h"

#include <stdlib.h>
#include <string.h>

/* 64 occurrences of one hash are looked at: what repeats more often repeats itself recently too. */
enum { N_ORDERS = 2, MAX_LOOKS = 64 };
static const int32_t order[N_ORDERS] = {NGRAM_STRONG, NGRAM_MIN};

struct context {
    int32_t n;               /* tokens indexed */
    int32_t match;           /* of the last proposal */
    int32_t *token;          /* [n_ctx] */
    int32_t *head[N_ORDERS]; /* [n_heads]: last position of the newest n-gram; -1 */
    int32_t *prev[N_ORDERS]; /* [n_ctx]: last position of an older one; -1 */
};

struct drafter {
    const struct id_set *ids;
    int32_t n_slots, n_ctx;
    uint32_t n_heads;      /* a power of two */
    int32_t *memory;       /* of all contexts */
    struct context slot[]; /* [n_slots] */
};

static lathe_status ngram_open(struct drafter **out, const struct drafter_options *o,
                               lathe_error *err)
{
    size_t bytes = sizeof **out + (size_t)o->n_slots * sizeof(*out)->slot[0];
    struct drafter *d = *out = calloc(1, bytes);
    if (!d)
        return fail_memory(err, bytes);
    d->ids = o->ids;
    d->n_slots = o->n_slots;
    return LATHE_OK;
}

static lathe_status ngram_place(struct drafter *d, int32_t n_ctx, struct memory *m,
                                lathe_error *err)
{
    d->n_ctx = n_ctx;
    d->n_heads = 64;
    while (d->n_heads < (uint32_t)n_ctx)
        d->n_heads *= 2;
    size_t n_positions = (size_t)n_ctx, n_heads = d->n_heads;
    size_t values = (size_t)d->n_slots * (n_positions + N_ORDERS * (n_positions + n_heads));
    m->host += values * sizeof *d->memory;
    if (m->cache.measuring)
        return LATHE_OK;
    int32_t *p = d->memory = calloc(values, sizeof *p);
    if (!p)
        return fail_memory(err, values * sizeof *p);
    for (int32_t i = 0; i < d->n_slots; i++) {
        struct context *c = &d->slot[i];
        c->token = p;
        p += n_positions;
        for (int k = 0; k < N_ORDERS; k++) {
            c->head[k] = p;
            p += n_heads;
            c->prev[k] = p;
            p += n_positions;
            memset(c->head[k], 0xff, n_heads * sizeof *c->head[k]);
        }
    }
    return LATHE_OK;
}

static void ngram_close(struct drafter *d)
{
    if (!d)
        return;
    free(d->memory);
    free(d);
}

static void ngram_info(const struct drafter *d, struct drafter_info *out)
{
    (void)d;
    *out = (struct drafter_info){
        .max_draft = SPEC_MAX_DRAFT,
        .usual_draft = SPEC_MAX_DRAFT,
        .max_from[DRAFT_LOOKUP] = SPEC_MAX_DRAFT,
        .usual_from[DRAFT_LOOKUP] = SPEC_MAX_DRAFT,
        .has_law = true,
    };
}

/* Of the n tokens that end at `end`. */
static uint32_t hash(const struct drafter *d, const int32_t *end, int32_t n)
{
    uint64_t h = 0;
    for (int32_t i = 0; i < n; i++)
        h = (h + (uint32_t)end[-i]) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h >> 32) & (d->n_heads - 1);
}

static void push(const struct drafter *d, struct context *c, int32_t token)
{
    int32_t at = c->n++;
    c->token[at] = token;
    for (int k = 0; k < N_ORDERS; k++)
        if (c->n >= order[k]) {
            int32_t *head = &c->head[k][hash(d, c->token + at, order[k])];
            c->prev[k][at] = *head;
            *head = at;
        }
}

static void pop(const struct drafter *d, struct context *c)
{
    int32_t at = c->n - 1;
    for (int k = 0; k < N_ORDERS; k++)
        if (c->n >= order[k])
            c->head[k][hash(d, c->token + at, order[k])] = c->prev[k][at];
    c->n = at;
}

static lathe_status ngram_committed(struct drafter *d, const struct committed *r, lathe_error *err)
{
    struct context *c = &d->slot[r->slot];
    if (r->pos != c->n || r->n > d->n_ctx - c->n)
        return fail(err, LATHE_E_ARGUMENT,
                    "ngram: %d tokens from position %d on, after %d of at most %d", r->n, r->pos,
                    c->n, d->n_ctx);
    for (int32_t i = 0; i < r->n; i++)
        push(d, c, r->token[i]);
    return LATHE_OK;
}

/* How many tokens up to position `at` equal those up to the end of the history. */
static int32_t match_length(const int32_t *history, int32_t pos, int32_t at)
{
    int32_t n = 0;
    while (n < NGRAM_LONGEST && n <= at && history[at - n] == history[pos - n])
        n++;
    return n;
}

/* The last position of the longest match, of equally long ones the newest; -1 if none has NGRAM_MIN. */
static int32_t find(const struct drafter *d, const struct context *c, const int32_t *history,
                    int32_t pos, int32_t *length)
{
    int32_t best = -1;
    *length = 0;
    for (int k = 0; k < N_ORDERS && best < 0; k++) {
        if (pos + 1 < order[k])
            continue;
        int32_t at = c->head[k][hash(d, history + pos, order[k])];
        for (int look = 0; look < MAX_LOOKS && at >= 0 && *length < NGRAM_LONGEST; look++) {
            int32_t n = match_length(history, pos, at);
            if (n >= NGRAM_MIN && n > *length) {
                *length = n;
                best = at;
            }
            at = c->prev[k][at];
        }
    }
    return best;
}

static void propose_one(struct drafter *d, struct draft_request *r)
{
    struct context *c = &d->slot[r->slot];
    int32_t at = find(d, c, r->history, r->pos, &c->match);
    r->n = 0;
    r->source = DRAFT_LOOKUP;
    if (at < 0)
        return;
    /* A coincidence goes on for about as long as it has been going; a copy for long. */
    int32_t n = r->most < SPEC_MAX_DRAFT ? r->most : SPEC_MAX_DRAFT;
    if (c->match < NGRAM_STRONG && n > c->match)
        n = c->match;
    int32_t period = r->pos - at; /* the copy may run into the tokens it makes */
    for (int32_t i = 0; i < n; i++) {
        int32_t id = i < period ? r->history[at + 1 + i] : r->draft[i - period];
        if (!id_set_has(d->ids, id))
            break;
        if (r->law) {
            r->law[i].n = 1;
            r->law[i].q[0] = (struct candidate){.weight = 1, .id = id};
        }
        r->draft[r->n++] = id;
    }
    if (r->n == 0)
        c->match = 0;
}

static lathe_status ngram_propose(struct drafter *d, struct draft_request *r, int32_t n,
                                  lathe_error *err)
{
    for (int32_t i = 0; i < n; i++) {
        if (r[i].pos != d->slot[r[i].slot].n)
            return fail(err, LATHE_E_ARGUMENT, "ngram: drafts at position %d, after %d tokens",
                        r[i].pos, d->slot[r[i].slot].n);
        propose_one(d, &r[i]);
    }
    return LATHE_OK;
}

static void ngram_rewind(struct drafter *d, int32_t slot, int32_t n)
{
    struct context *c = &d->slot[slot];
    c->match = 0;
    while (c->n > n)
        pop(d, c);
}

/* The tokens: the index follows from them. */
static lathe_status ngram_save(const struct drafter *d, int32_t slot, struct buf *out,
                               lathe_error *err)
{
    const struct context *c = &d->slot[slot];
    buf_append(out, c->token, (size_t)c->n * sizeof *c->token);
    return buf_check(out, "ngram context", err);
}

static lathe_status ngram_load(struct drafter *d, int32_t slot, const void *bytes, size_t n,
                               lathe_error *err)
{
    struct context *c = &d->slot[slot];
    if (n % sizeof *c->token != 0 || n / sizeof *c->token > (size_t)d->n_ctx)
        return fail(err, LATHE_E_FORMAT, "ngram context: %zu bytes, expected 4 times 0 to %d", n,
                    d->n_ctx);
    ngram_rewind(d, slot, 0);
    for (size_t i = 0; i < n; i += sizeof *c->token) {
        int32_t token;
        memcpy(&token, (const unsigned char *)bytes + i, sizeof token);
        push(d, c, token);
    }
    return LATHE_OK;
}

int32_t ngram_match(const struct drafter *d, int32_t slot)
{
    return d->slot[slot].match;
}

const struct drafter_ops drafter_ngram = {
    .name = "ngram",
    .open = ngram_open,
    .place = ngram_place,
    .close = ngram_close,
    .info = ngram_info,
    .committed = ngram_committed,
    .propose = ngram_propose,
    .rewind = ngram_rewind,
    .save = ngram_save,
    .load = ngram_load,
};

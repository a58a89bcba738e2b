/* The checkpoint's own head as a drafter: one attention layer with keys and values of its own, chained.
 *
 * A slot of n committed tokens x_0 .. x_{n-1} has the head's keys and values of positions 0 .. n - 2, the
 * pairs (h_t, x_{t+1}), and the hidden state h_{n-1}, whose partner is the anchor. A proposal runs that pair
 * first and then its own results, at positions n - 1, n, ...: what it writes there is written again
 * before anything committed attends to it. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cache/kv.h"
#include "sample/best.h"
#include "spec/drafter.h"

enum {
    MAX_DRAFT = 8,
    USUAL_DRAFT = 3, /* one layer is trained for one step; further ones are accepted ever less */
    /* Hidden states that are kept: those of a round, so that any part of it can be taken back. */
    N_KEPT = SPEC_MAX_DRAFT + 1,
};

struct context {
    int32_t n;     /* committed tokens */
    int32_t known; /* h_t is kept for t from here on, of the last N_KEPT */
};

struct drafter {
    struct drafter_options o;
    struct kv_cache kv;
    struct rope rope;
    uint8_t rope_axis[MAX_ROTARY_PAIRS];
    struct context *slot; /* [n_slots] */
    bool has_warned;      /* of logits that are not finite */

    struct exec x;
    size_t workspace_bytes;
    struct tensor
        kept; /* [n_slots * N_KEPT, hidden] act: h_t of a slot in row t % N_KEPT of its own */
    struct tensor in;      /* [max_rows, hidden] act: hidden states of a batch */
    struct tensor out;     /* [n_slots, hidden] act: what mtp_step makes of them */
    struct tensor logits;  /* [n_slots, vocab] F32 */
    float *host_logits;    /* the same for the host; NULL where it reads them in place */
    struct best_rows best; /* [n_slots]: of the logits, where these are not whole */

    /* Rounds that the device decides. */
    struct tensor last; /* [1, hidden] act: h of the position before the anchor */
    int32_t last_slot;  /* whose `kept` has it not yet; -1: nobody's */

    /* The batch, and rows to gather. */
    struct batch_store store;
    int32_t *row;                /* [max_rows] */
    struct draft_request **live; /* [n_slots]: proposals that go on */
    struct batch batch;
};

/* ---- Memory -------------------------------------------------------------------------------- */

/* Rows of a batch: no more are committed at once than the context has. */
static int32_t max_rows(const struct drafter *d)
{
    int32_t n = d->o.max_rows < d->o.n_ctx ? d->o.max_rows : d->o.n_ctx;
    return n > d->o.n_slots ? n : d->o.n_slots;
}

static void shape(struct drafter *d)
{
    const struct dims *m = &d->o.model->dims;
    d->kept = tensor_2d(NULL, d->o.act, (int64_t)d->o.n_slots * N_KEPT, m->hidden);
    d->in = tensor_2d(NULL, d->o.act, max_rows(d) + 1, m->hidden);
    d->last = tensor_2d(NULL, d->o.act, 1, m->hidden);
    d->out = tensor_2d(NULL, d->o.act, d->o.n_slots, m->hidden);
    d->logits = tensor_2d(NULL, DT_F32, d->o.n_slots, m->vocab);
}

/* For rounds that the device decides: draft i from its logits, in the place behind those before. */
static void draft_token(struct exec *x, const struct drafter *d, struct tensor logits, int32_t i,
                        int32_t n_best, struct resident *there, const struct history *h)
{
    size_t mark = exec_push(x);
    struct tensor value = exec_tmp(x, DT_F32, 1, n_best), id = exec_tmp(x, DT_I32, 1, n_best);
    op_penalise(x, logits, i, there, h);
    op_top_k(x, value, id, logits, id_set_pairs(d->o.ids), d->o.ids->n_ranges);
    op_choose(x, tensor_1d(there ? &there->token[i + 1] : NULL, DT_I32, 1), value, id, logits,
              id_set_pairs(d->o.ids), d->o.ids->n_ranges, i, 0, there);
    exec_pop(x, mark);
}

/* Peak of the workspace with n rows: of context where is_context, else of a step of n slots. */
static lathe_status plan_rows(const struct drafter *d, int32_t n, bool is_context, size_t *peak,
                              lathe_error *err)
{
    struct batch_seq seq = {0, 0, n, 0};
    struct batch b = {.phase = PHASE_DECODE, .n_rows = n, .n_seqs = 1, .seq = &seq};
    struct kv_pages pages = kv_cache_layer(&d->kv, 0);
    struct tensor in = tensor_rows(d->in, 0, n);
    struct best_rows best = {0};
    struct exec x;
    exec_plan(&x, d->o.backend, d->o.stream, NULL);
    if (is_context) {
        mtp_context(&x, d->o.model, &b, &pages, &d->rope, in);
    } else {
        struct tensor out = tensor_rows(d->out, 0, n), rows = tensor_rows(d->logits, 0, n);
        mtp_step(&x, d->o.model, &b, &pages, &d->rope, in, out);
        forward_logits(&x, d->o.model, rows, out, NULL);
        best_rows_find(&x, &best, rows, d->o.ids, SAMPLE_MAX_BEST);
        draft_token(&x, d, tensor_rows(rows, 0, 1), 0, RESIDENT_BEST, NULL, NULL);
    }
    if (x.peak > *peak)
        *peak = x.peak;
    return exec_end(&x, err);
}

static lathe_status plan(const struct drafter *d, size_t *peak, lathe_error *err)
{
    /* Kernels choose their scratch by the number of rows: the small counts are planned one by one. */
    lathe_status st = LATHE_OK;
    *peak = 0;
    for (int32_t n = 1; n <= 64 && n < max_rows(d) && !st; n++)
        st = plan_rows(d, n, true, peak, err);
    if (!st)
        st = plan_rows(d, max_rows(d), true, peak, err);
    for (int32_t n = 1; n <= d->o.n_slots && !st; n++)
        st = plan_rows(d, n, false, peak, err);
    return st;
}

static unsigned char *cut(struct tensor *t, unsigned char *at)
{
    t->data = at;
    return at + tensor_room(t);
}

static lathe_status open_arrays(struct drafter *d, lathe_error *err)
{
    int32_t most = d->o.max_rows > d->o.n_slots ? d->o.max_rows : d->o.n_slots;
    size_t n = (size_t)most, n_slots = (size_t)d->o.n_slots;
    d->slot = calloc(n_slots, sizeof *d->slot);
    d->row = calloc(n, sizeof *d->row);
    d->live = calloc(n_slots, sizeof *d->live);
    if (!d->slot || !d->row || !d->live)
        return fail_memory(err, n * sizeof *d->row);
    return batch_store_open(&d->store, n, n_slots, err);
}

static lathe_status place_workspace(struct drafter *d, struct region *r, lathe_error *err)
{
    void *memory, *host;
    lathe_status st = plan(d, &d->workspace_bytes, err);
    if (!st)
        st = region_take(r, &memory,
                         d->workspace_bytes + tensor_room(&d->in) + tensor_room(&d->out) +
                             tensor_room(&d->logits) + tensor_room(&d->last),
                         err);
    if (st || r->measuring)
        return st;
    unsigned char *at = cut(&d->in, (unsigned char *)memory + d->workspace_bytes);
    at = cut(&d->out, at);
    at = cut(&d->logits, at);
    (void)cut(&d->last, at);
    exec_init(&d->x, d->o.backend, d->o.stream, memory, d->workspace_bytes);
    st = best_rows_open(&d->best, d->o.backend, d->o.stream, d->o.n_slots, err);
    if (st || d->o.backend->is_host)
        return st;
    st = d->o.backend->alloc_host(d->o.stream, &host, tensor_room(&d->logits), err);
    if (!st)
        d->host_logits = host;
    return st;
}

static lathe_status mtp_place(struct drafter *d, int32_t n_ctx, struct memory *m, lathe_error *err)
{
    const struct dims *c = &d->o.model->dims;
    struct kv_shape s = {
        .n_layers = 1,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .dtype = d->o.kv,
        .n_slots = d->o.n_slots,
        .n_ctx = n_ctx,
    };
    d->o.n_ctx = n_ctx;
    shape(d);
    kv_cache_close(&d->kv); /* of what was measured before */
    lathe_status st = kv_cache_open(&d->kv, &s, &m->cache, err);
    if (!st)
        st = region_take(&m->cache, &d->kept.data, tensor_room(&d->kept), err);
    if (!st)
        st = place_workspace(d, &m->workspace, err);
    if (st)
        error_context(err, "drafter mtp");
    return st;
}

static void mtp_close(struct drafter *d)
{
    if (!d)
        return;
    kv_cache_close(&d->kv);
    if (d->host_logits)
        d->o.backend->free_host(d->o.stream, d->host_logits);
    best_rows_close(&d->best, d->o.backend, d->o.stream);
    free(d->slot);
    free(d->row);
    batch_store_close(&d->store);
    free(d->live);
    free(d);
}

static lathe_status mtp_open(struct drafter **out, const struct drafter_options *o,
                             lathe_error *err)
{
    const struct dims *m = &o->model->dims;
    *out = NULL;
    if (!m->has_mtp)
        return fail(err, LATHE_E_UNSUPPORTED, "drafter mtp: the model has no MTP head");
    struct drafter *d = calloc(1, sizeof *d);
    if (!d)
        return fail_memory(err, sizeof *d);
    d->o = *o;
    d->last_slot = -1;
    rope_axes(d->rope_axis, m->rotary_dims / 2, m->mrope_section);
    d->rope = (struct rope){
        .dims = m->rotary_dims,
        .inv_freq = m->inv_freq,
        .axis = d->rope_axis,
        .scale = m->rope_scale,
    };
    lathe_status st = open_arrays(d, err);
    if (st) {
        mtp_close(d);
        error_context(err, "drafter mtp");
        return st;
    }
    *out = d;
    return LATHE_OK;
}

static void mtp_info(const struct drafter *d, struct drafter_info *out)
{
    (void)d;
    *out = (struct drafter_info){
        .max_draft = MAX_DRAFT,
        .usual_draft = USUAL_DRAFT,
        .max_from[DRAFT_MODEL] = MAX_DRAFT,
        .usual_from[DRAFT_MODEL] = USUAL_DRAFT,
        .has_law = true,
    };
}

/* ---- Batches ------------------------------------------------------------------------------- */

static int64_t kept_row(int32_t slot, int32_t t)
{
    return (int64_t)slot * N_KEPT + t % N_KEPT;
}

/* All rows, of the prompt too, get the arithmetic of decoding: the context's bits do not tell in which
 * pieces it was made. */
static void begin_rows(struct drafter *d)
{
    batch_begin(&d->batch, &d->store, PHASE_DECODE);
}

static void add_rows(struct drafter *d, int32_t slot, int32_t pos, const int32_t *token, int32_t n)
{
    batch_add(&d->batch, &d->store, slot, pos, token, n);
}

/* ---- Commits ------------------------------------------------------------------------------- */

/* Copies the hidden states of positions [pos, pos + n), those that will be asked for. */
static void keep(struct drafter *d, int32_t slot, int32_t pos, struct tensor hidden)
{
    int32_t n = (int32_t)hidden.dim[0];
    for (int32_t i = n > N_KEPT ? n - N_KEPT : 0, run; i < n; i += run) {
        run = N_KEPT - (pos + i) % N_KEPT; /* to the end of the slot's rows */
        run = run < n - i ? run : n - i;
        op_gather_rows(&d->x, tensor_rows(d->kept, kept_row(slot, pos + i), run),
                       tensor_rows(hidden, i, run), NULL);
    }
}

/* Brings the hidden state that rounds of the device left to its place. */
static void settle(struct drafter *d)
{
    if (d->last_slot < 0)
        return;
    struct context *c = &d->slot[d->last_slot];
    d->o.backend->copy(d->o.stream, tensor_at(&d->kept, kept_row(d->last_slot, c->n - 1)),
                       d->last.data, (size_t)d->last.dim[1] * dtype_size(d->o.act));
    d->last_slot = -1;
}

static lathe_status mtp_committed(struct drafter *d, const struct committed *r, lathe_error *err)
{
    struct context *c = &d->slot[r->slot];
    settle(d);
    if (r->pos != c->n || r->n > max_rows(d) || r->n > d->o.n_ctx - c->n)
        return fail(err, LATHE_E_ARGUMENT,
                    "mtp: %d tokens from position %d on, after %d of at most %d, %d at once", r->n,
                    r->pos, c->n, d->o.n_ctx, max_rows(d));
    /* The pair of the last hidden state, if it is known, and those inside the rows. */
    bool bridge = c->n > c->known;
    int32_t first = bridge ? c->n - 1 : c->n, n = bridge ? r->n : r->n - 1;
    lathe_status st = kv_cache_reserve(&d->kv, r->slot, first + n, err);
    if (st)
        return st;
    exec_begin(&d->x);
    if (n > 0) {
        begin_rows(d);
        add_rows(d, r->slot, first, r->token + r->n - n, n);
        if (bridge)
            op_gather_rows(&d->x, tensor_rows(d->in, 0, 1),
                           tensor_rows(d->kept, kept_row(r->slot, first), 1), NULL);
        if (r->n > 1)
            op_gather_rows(&d->x, tensor_rows(d->in, n - (r->n - 1), r->n - 1),
                           tensor_rows(r->hidden, 0, r->n - 1), NULL);
        struct kv_pages pages = kv_cache_layer(&d->kv, 0);
        mtp_context(&d->x, d->o.model, &d->batch, &pages, &d->rope, tensor_rows(d->in, 0, n));
    }
    keep(d, r->slot, r->pos, tensor_rows(r->hidden, 0, r->n));
    c->n += r->n;
    if (c->known < c->n - N_KEPT)
        c->known = c->n - N_KEPT;
    return exec_end(&d->x, err);
}

/* ---- Proposals ----------------------------------------------------------------------------- */

/* The drafts that a request may have: none stands beyond the context, and so no pair does. */
static int32_t most_of(const struct drafter *d, const struct draft_request *r)
{
    const struct context *c = &d->slot[r->slot];
    int32_t most = r->most < MAX_DRAFT ? r->most : MAX_DRAFT, room = d->o.n_ctx - 1 - r->pos;
    if (c->n <= c->known)
        return 0;
    return most < room ? most : room;
}

/* The hidden states that draft i of n proposals begins with: where they are, if they lie there in order, else
 * in d->in. */
static struct tensor gathered(struct drafter *d, int32_t i, int32_t n)
{
    struct tensor in = tensor_rows(d->in, 0, n), from = i == 0 ? d->kept : d->out;
    int32_t first = i == 0 ? d->row[0] : 0;
    for (int32_t j = 0; j < n; j++)
        if (d->row[j] != first + j) {
            op_gather_rows(&d->x, in, from, d->row);
            return in;
        }
    return tensor_rows(from, first, n);
}

/* How many of the best ids the choices of all live proposals take; 0: whole rows. */
static int32_t n_best_of(const struct drafter *d, int32_t n_live)
{
    int32_t most = 1;
    for (int32_t j = 0; j < n_live; j++) {
        int32_t n = d->live[j]->law ? 0 : sampler_best(d->live[j]->sampler);
        if (n == 0)
            return 0;
        most = n > most ? n : most;
    }
    return most;
}

/* Draft i of every live proposal, up to what it is chosen from: d->best, or *logits [n_live, vocab], else NULL. */
static lathe_status draft_step(struct drafter *d, int32_t n_live, int32_t i, const float **logits,
                               lathe_error *err)
{
    begin_rows(d);
    for (int32_t j = 0; j < n_live; j++) {
        const struct draft_request *r = d->live[j];
        int32_t pos = r->pos - 1 + i;
        add_rows(d, r->slot, pos, i == 0 ? &r->anchor : &r->draft[i - 1], 1);
        lathe_status st = kv_cache_reserve(&d->kv, r->slot, pos + 1, err);
        if (st)
            return st;
    }
    struct kv_pages pages = kv_cache_layer(&d->kv, 0);
    struct tensor out = tensor_rows(d->out, 0, n_live);
    exec_begin(&d->x);
    struct tensor in = gathered(d, i, n_live);
    mtp_step(&d->x, d->o.model, &d->batch, &pages, &d->rope, in, out);
    struct tensor rows = tensor_rows(d->logits, 0, n_live);
    forward_logits(&d->x, d->o.model, rows, out, NULL);
    int32_t n_best = n_best_of(d, n_live);
    *logits = NULL;
    d->best.n = 0;
    if (n_best > 0)
        best_rows_find(&d->x, &d->best, rows, d->o.ids, n_best);
    else
        *logits = exec_fetch(&d->x, &rows, d->host_logits);
    return exec_end(&d->x, err);
}

/* Row j of the logits, of which `logits` are all or NULL; NULL after a failure. */
static const float *whole_row(struct drafter *d, const float *logits, int32_t j)
{
    struct tensor one = tensor_rows(d->logits, j, 1);
    if (logits)
        return logits + (int64_t)j * d->logits.stride;
    exec_begin(&d->x);
    return exec_fetch(&d->x, &one, d->host_logits);
}

/* Chooses the next draft of live proposal j. False if there is none; that the head's logits are not finite is
 * said once. */
static bool choose(struct drafter *d, int32_t j, const float *logits)
{
    lathe_error err;
    struct draft_request *r = d->live[j];
    struct draft_law *law = r->law ? &r->law[r->n] : NULL;
    struct logits_best best = best_rows_at(&d->best, j);
    int32_t id;
    if (sampler_pick_best(r->sampler, d->o.scratch, &best, r->draft, r->n, &id)) {
        r->draft[r->n++] = id;
        return true;
    }
    logits = whole_row(d, logits, j);
    if (!logits || (law && sampler_law(r->sampler, d->o.scratch, logits, r->draft, r->n, law->q,
                                       &law->n, NULL)))
        return false;
    if (sampler_pick(r->sampler, d->o.scratch, logits, r->draft, r->n, &id, &err)) {
        if (err.status == LATHE_E_NUMERIC && !d->has_warned)
            log_warn("drafter mtp: %s; it goes without", err.message);
        d->has_warned |= err.status == LATHE_E_NUMERIC;
        return false;
    }
    r->draft[r->n++] = id;
    return true;
}

static lathe_status mtp_propose(struct drafter *d, struct draft_request *r, int32_t n,
                                lathe_error *err)
{
    int32_t n_live = 0;
    settle(d);
    for (int32_t i = 0; i < n; i++) {
        r[i].n = 0;
        r[i].source = DRAFT_MODEL;
        if (r[i].pos != d->slot[r[i].slot].n)
            return fail(err, LATHE_E_ARGUMENT, "mtp: drafts at position %d, after %d tokens",
                        r[i].pos, d->slot[r[i].slot].n);
        if (most_of(d, &r[i]) < 1)
            continue;
        d->row[n_live] = (int32_t)kept_row(r[i].slot, r[i].pos - 1);
        d->live[n_live++] = &r[i];
    }
    for (int32_t i = 0; n_live > 0; i++) {
        const float *logits;
        lathe_status st = draft_step(d, n_live, i, &logits, err);
        if (st)
            return st;
        int32_t kept = 0;
        for (int32_t j = 0; j < n_live; j++) {
            struct draft_request *q = d->live[j];
            if (!choose(d, j, logits) || q->n >= most_of(d, q))
                continue;
            d->row[kept] = j;
            d->live[kept++] = q;
        }
        n_live = kept;
    }
    return LATHE_OK;
}

/* ---- Rounds that the device decides ---------------------------------------------------------- */

static bool mtp_ready(struct drafter *d, struct resident *r, int32_t most, struct home *home)
{
    const struct context *c = &d->slot[r->keep.slot];
    settle(d);
    *home = (struct home){0};
    if (r->keep.pos != c->n || c->n <= c->known || most > 1 + MAX_DRAFT || most > max_rows(d))
        return false;
    d->o.backend->copy(d->o.stream, d->last.data,
                       tensor_at(&d->kept, kept_row(r->keep.slot, c->n - 1)),
                       (size_t)d->last.dim[1] * dtype_size(d->o.act));
    return true;
}

static lathe_status mtp_reach(struct drafter *d, int32_t slot, int32_t end_pos, lathe_error *err)
{
    return kv_cache_reserve(&d->kv, slot, end_pos, err);
}

/* The pairs of the rows that were kept: of the hidden state before them and the first, and those inside. What lies
 * behind them is written over. */
static void draft_context(struct drafter *d, const struct batch *b, const struct resident *r,
                          struct tensor hidden)
{
    struct exec *x = &d->x;
    struct kv_pages pages = kv_cache_layer(&d->kv, 0);
    int32_t n = b->n_rows;
    op_gather_rows(x, tensor_rows(d->in, 0, 1), d->last, NULL);
    op_gather_rows(x, tensor_rows(d->in, 1, n), tensor_rows(hidden, 0, n), NULL);
    mtp_context(x, d->o.model, b, &pages, &d->rope, tensor_rows(d->in, 0, n));
    op_gather_rows(x, d->last, tensor_rows(d->in, 0, n + 1), &r->keep.n_rows);
}

static lathe_status mtp_draft(struct drafter *d, const struct resident *r, struct resident *there,
                              int32_t n_rows, int32_t n_best, const struct history *h,
                              const struct round_rows *last, int32_t end_pos, lathe_error *err)
{
    struct exec *x = &d->x;
    struct kv_pages pages = kv_cache_layer(&d->kv, 0);
    struct tensor in = d->last, out = tensor_rows(d->out, 0, 1), row = tensor_rows(d->logits, 0, 1);
    struct batch b;
    exec_begin(x);
    resident_behind(&b, r, end_pos);
    if (b.n_rows > 0)
        draft_context(d, &b, r, last->hidden);
    for (int32_t i = 0; i + 1 < n_rows; i++, in = out) {
        resident_one(&b, r, i, &r->token[i], end_pos);
        mtp_step(x, d->o.model, &b, &pages, &d->rope, in, out);
        forward_logits(x, d->o.model, row, out, NULL);
        draft_token(x, d, row, i, n_best, there, h);
    }
    return exec_end(x, err);
}

static void mtp_followed(struct drafter *d, const struct committed *c)
{
    int32_t n = c->pos + c->n;
    d->slot[c->slot] = (struct context){n, n - 1};
    d->last_slot = c->slot;
}

/* ---- Contexts ------------------------------------------------------------------------------ */

static void mtp_rewind(struct drafter *d, int32_t slot, int32_t n)
{
    struct context *c = &d->slot[slot];
    settle(d);
    if (n == 0) {
        kv_cache_cut(&d->kv, slot, 0);
        *c = (struct context){0};
    } else if (n < c->n) {
        c->n = n;
        /* h_{n-1} is gone if this goes back further than N_KEPT: its pair stays that of the token that
         * was taken back, and there are no drafts before the next commit. */
        if (c->known > n)
            c->known = n;
    }
}

/* Bytes of the keys, or of the values, of one position. */
static size_t width(const struct drafter *d)
{
    const struct kv_shape *s = &d->kv.shape;
    return (size_t)s->n_kv_heads * (size_t)s->head_dim * dtype_size(s->dtype);
}

static unsigned char *kv_at(const struct drafter *d, const struct tensor *t, int32_t slot,
                            int32_t pos)
{
    int32_t page =
        d->kv.page_table[(size_t)slot * (size_t)d->kv.pages_per_slot + (size_t)(pos / KV_PAGE)];
    return (unsigned char *)tensor_at(t, page) + (size_t)(pos % KV_PAGE) * width(d);
}

/* Positions from t on, below `end`, whose keys lie one behind the other. */
static int32_t run_length(int32_t t, int32_t end)
{
    int32_t whole = KV_PAGE - t % KV_PAGE;
    return end - t < whole ? end - t : whole;
}

/* Appends keys and values of positions [0, n) of the slot, pair by pair. `rows` has room for two pages. */
static lathe_status save_pairs(const struct drafter *d, int32_t slot, int32_t n,
                               unsigned char *rows, struct buf *out, lathe_error *err)
{
    const struct backend *backend = d->o.backend;
    struct kv_pages pages = kv_cache_layer(&d->kv, 0);
    size_t w = width(d);
    for (int32_t t = 0, run; t < n; t += run) {
        run = run_length(t, n);
        size_t half = (size_t)run * w;
        char *to = buf_grow(out, 2 * half);
        if (!to)
            return LATHE_OK; /* the buffer tells */
        lathe_status st =
            backend->copy_out(d->o.stream, rows, kv_at(d, &pages.k, slot, t), half, err);
        if (!st)
            st =
                backend->copy_out(d->o.stream, rows + half, kv_at(d, &pages.v, slot, t), half, err);
        if (st)
            return st;
        for (size_t i = 0; i < (size_t)run; i++, to += 2 * w) {
            memcpy(to, rows + i * w, w);
            memcpy(to + w, rows + half + i * w, w);
        }
    }
    return LATHE_OK;
}

/* The other way. */
static void load_pairs(const struct drafter *d, int32_t slot, int32_t n, unsigned char *rows,
                       const unsigned char *at)
{
    const struct backend *backend = d->o.backend;
    struct kv_pages pages = kv_cache_layer(&d->kv, 0);
    size_t w = width(d);
    for (int32_t t = 0, run; t < n; t += run) {
        run = run_length(t, n);
        size_t half = (size_t)run * w;
        for (size_t i = 0; i < (size_t)run; i++, at += 2 * w) {
            memcpy(rows + i * w, at, w);
            memcpy(rows + half + i * w, at + w, w);
        }
        backend->copy_in(d->o.stream, kv_at(d, &pages.k, slot, t), rows, half);
        backend->copy_in(d->o.stream, kv_at(d, &pages.v, slot, t), rows + half, half);
    }
}

static unsigned char *two_pages(const struct drafter *d, lathe_error *err)
{
    size_t bytes = 2 * (size_t)KV_PAGE * width(d);
    unsigned char *rows = malloc(bytes);
    if (!rows)
        (void)fail_memory(err, bytes);
    return rows;
}

/* Keys and values of each pair, the tokens' number less one of them, then the last hidden state. */
static lathe_status mtp_save(const struct drafter *d, int32_t slot, struct buf *out,
                             lathe_error *err)
{
    const struct context *c = &d->slot[slot];
    size_t hidden = (size_t)d->kept.dim[1] * dtype_size(d->o.act);
    if (c->n > 0 && c->n <= c->known)
        return fail(err, LATHE_E_UNSUPPORTED,
                    "mtp context: it was taken back by more than %d tokens", N_KEPT);
    if (c->n == 0)
        return LATHE_OK;
    unsigned char *rows = two_pages(d, err);
    if (!rows)
        return LATHE_E_MEMORY;
    lathe_status st = save_pairs(d, slot, c->n - 1, rows, out, err);
    free(rows);
    void *to = st ? NULL : buf_grow(out, hidden);
    if (to)
        st = d->o.backend->copy_out(d->o.stream, to, tensor_at(&d->kept, kept_row(slot, c->n - 1)),
                                    hidden, err);
    return st ? st : buf_check(out, "mtp context", err);
}

static lathe_status mtp_load(struct drafter *d, int32_t slot, const void *bytes, size_t n,
                             lathe_error *err)
{
    const struct backend *backend = d->o.backend;
    struct context *c = &d->slot[slot];
    size_t hidden = (size_t)d->kept.dim[1] * dtype_size(d->o.act), pair = 2 * width(d);
    size_t pairs = n >= hidden ? (n - hidden) / pair : 0;
    if (n != 0 && (n < hidden || (n - hidden) % pair != 0 || pairs + 1 > (size_t)d->o.n_ctx))
        return fail(err, LATHE_E_FORMAT,
                    "mtp context: %zu bytes, expected %zu and %zu times 0 to %d", n, hidden, pair,
                    d->o.n_ctx - 1);
    mtp_rewind(d, slot, 0);
    if (n == 0)
        return LATHE_OK;
    lathe_status st = kv_cache_reserve(&d->kv, slot, (int32_t)pairs, err);
    if (st)
        return st;
    unsigned char *rows = two_pages(d, err);
    if (!rows)
        return LATHE_E_MEMORY;
    load_pairs(d, slot, (int32_t)pairs, rows, bytes);
    free(rows);
    const unsigned char *at = (const unsigned char *)bytes + pairs * pair;
    c->n = (int32_t)pairs + 1;
    c->known = c->n - 1;
    backend->copy_in(d->o.stream, tensor_at(&d->kept, kept_row(slot, c->known)), at, hidden);
    return backend->wait(d->o.stream, err);
}

const struct drafter_ops drafter_mtp = {
    .name = "mtp",
    .open = mtp_open,
    .place = mtp_place,
    .close = mtp_close,
    .info = mtp_info,
    .committed = mtp_committed,
    .propose = mtp_propose,
    .ready = mtp_ready,
    .reach = mtp_reach,
    .draft = mtp_draft,
    .followed = mtp_followed,
    .rewind = mtp_rewind,
    .save = mtp_save,
    .load = mtp_load,
};

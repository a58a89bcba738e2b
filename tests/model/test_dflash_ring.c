/* The context of block drafters: rings of several windows, cut in every way, around their ends; saving,
 * loading and rewinding. */
#include "draft_rig.h"
#include "test.h"

enum { TAPS = 3, H = 64, GUARD = 4096 };

/* ---- A backend whose memory lies between guard bytes ----------------------------------------- */

static unsigned char guard_byte(size_t i)
{
    return (unsigned char)(0xA5 + 7 * i);
}

static lathe_status guarded_alloc(void *stream, void **p, size_t bytes, lathe_error *err)
{
    void *all;
    size_t whole = (bytes + 63) & ~(size_t)63;
    lathe_status st = backend_cpu.alloc(stream, &all, whole + 2 * GUARD, err);
    if (st)
        return st;
    unsigned char *c = all;
    for (size_t i = 0; i < GUARD; i++) {
        c[i] = guard_byte(i);
        c[GUARD + whole + i] = guard_byte(i + 1);
    }
    memcpy(c, &whole, sizeof whole);
    *p = c + GUARD;
    return LATHE_OK;
}

static void guarded_free(void *stream, void *p)
{
    unsigned char *c = (unsigned char *)p - GUARD;
    size_t whole;
    memcpy(&whole, c, sizeof whole);
    for (size_t i = 0; i < GUARD; i++)
        if ((i >= sizeof whole && c[i] != guard_byte(i)) ||
            c[GUARD + whole + i] != guard_byte(i + 1))
            FAIL("memory was written %zu bytes outside of a region of %zu", i, whole);
    backend_cpu.free(stream, c);
}

static const struct backend *guarded(void)
{
    static struct backend b;
    b = backend_cpu;
    b.alloc = guarded_alloc;
    b.free = guarded_free;
    return &b;
}

/* ---- Drafters and features ------------------------------------------------------------------ */

struct setup {
    struct drafter_spec s;
    struct out_file file;
    struct draft_rig r;
    int32_t n; /* positions there are features of */
    void *feature;
    enum dtype act;
};

static void setup_open(struct setup *t, const char *architecture, const char *layers,
                       int32_t window, int32_t n, int32_t max_rows, enum dtype act, enum dtype kv)
{
    struct rng rng = {11};
    drafter_spec_init(&t->s, architecture);
    t->s.window = window;
    t->s.layer_types = layers;
    t->s.n_layers = (int32_t)strlen(layers);
    drafter_tensors(&t->file, &t->s);
    struct draft_rig_options o = {
        .rig = {.backend = guarded(),
                .act = act,
                .kv = kv,
                .n_slots = 2,
                .n_ctx = n + 16,
                .max_rows = 64},
        .max_rows = max_rows,
    };
    draft_rig_make(&t->r, &t->s, &t->file, &o);
    t->n = n;
    t->act = act;
    size_t values = (size_t)n * TAPS * H;
    float *x = malloc(values * sizeof *x);
    t->feature = malloc(values * sizeof *x);
    for (size_t i = 0; i < values; i++)
        x[i] = (float)rng_normal(&rng);
    from_f32(t->feature, act, x, (int64_t)values);
    free(x);
}

static void setup_close(struct setup *t)
{
    draft_rig_close(&t->r);
    out_release(&t->file);
    free(t->feature);
}

/* Feeds positions up to `end` in pieces. */
static void feed(struct setup *t, int32_t slot, int32_t end, int32_t piece)
{
    struct tensor all = tensor_2d(t->feature, t->act, t->n, TAPS * H);
    for (int32_t at = t->r.d->context.frontier[slot]; at < end; at += piece)
        draft_rig_feed(&t->r, slot, tensor_rows(all, at, end - at < piece ? end - at : piece));
}

/* Last hidden rows that a proposal made: F32. */
struct block {
    float h[16 * H];
    int32_t draft[SPEC_MAX_DRAFT], n;
};

static void watch(void *ctx, const char *name, int32_t layer, const struct tensor *t)
{
    struct block *b = ctx;
    (void)layer;
    if (strcmp(name, "block_hidden") == 0)
        to_f32(b->h, t->data, t->dtype, tensor_elements(t));
}

static struct block propose(struct setup *t, int32_t slot)
{
    struct block b = {{0}, {0}, 0};
    t->r.d->x.tap = watch;
    t->r.d->x.tap_ctx = &b;
    b.n = draft_rig_propose(&t->r, slot, 77, SPEC_MAX_DRAFT, b.draft);
    t->r.d->x.tap = NULL;
    return b;
}

static void same_block(const char *what, const struct block *a, const struct block *b)
{
    if (memcmp(a, b, sizeof *a) != 0)
        FAIL("%s: another block or other drafts", what);
}

static void same_bytes(const char *what, struct setup *t, int32_t slot, struct setup *u,
                       int32_t other)
{
    struct buf a = draft_rig_save(&t->r, slot), b = draft_rig_save(&u->r, other);
    if (a.len != b.len || memcmp(a.data, b.data, a.len) != 0)
        FAIL("%s: saved bytes differ (%zu and %zu)", what, a.len, b.len);
    buf_release(&a);
    buf_release(&b);
}

/* All memory of a slot's rings. */
static uint64_t hash_slot(const struct setup *t, int32_t slot)
{
    uint64_t h = 14695981039346656037u;
    const struct dflash_context *x = &t->r.d->context;
    for (int32_t i = 0; i < t->s.n_layers; i++)
        for (int k = 0; k < 2; k++) {
            const struct tensor *p = k ? &x->ring[i].v : &x->ring[i].k;
            const unsigned char *c = tensor_at(p, slot);
            for (size_t b = 0; b < (size_t)tensor_row(p) * dtype_size(p->dtype); b++)
                h = (h ^ c[b]) * 1099511628211u;
        }
    return h;
}

/* ---- Cuts ------------------------------------------------------------------------------------ */

/* Across three wraps: one row at a time, in chunks, and in chunks longer than the window leave the same
 * ring, the same saved bytes and the same drafts; the other slot's memory stays. */
static void check_cuts(int32_t window, enum dtype act, enum dtype kv)
{
    static struct setup ones, pieces;
    int32_t n = 3 * window + window / 3;
    int32_t at[] = {window / 2, window - 1, window, window + 1, 2 * window + 7, n};
    setup_open(&ones, "DFlash2DraftModel", "ss", window, n, 1, act, kv);
    setup_open(&pieces, "DFlash2DraftModel", "ss", window, n, n, act, kv);
    feed(&pieces, 1, 40, 7);
    uint64_t other = hash_slot(&pieces, 1);
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        feed(&ones, 0, at[i], 1);
        struct block want = propose(&ones, 0);
        int32_t piece[] = {i ? at[i] - at[i - 1] : at[i], 97, at[i]};
        for (int k = 0; k < 3; k++) {
            if (k) /* from the start */
                drafter_dflash2.rewind(pieces.r.d, 0, 0);
            feed(&pieces, 0, at[i], piece[k]);
            struct block got = propose(&pieces, 0);
            same_block("another cut", &got, &want);
            same_bytes("another cut", &pieces, 0, &ones, 0);
            if (at[i] >= window && hash_slot(&pieces, 0) != hash_slot(&ones, 0))
                FAIL("window %d, %d positions: another cut leaves another ring", window, at[i]);
        }
    }
    CHECK(hash_slot(&pieces, 1) == other);
    CHECK_INT(pieces.r.d->context.ring[0].k.dim[1], window);
    setup_close(&ones);
    setup_close(&pieces);
}

TEST(cuts_of_window_512)
{
    check_cuts(512, DT_BF16, DT_BF16);
    check_cuts(512, DT_F32, DT_F32);
}

TEST(cuts_of_window_2048)
{
    check_cuts(2048, DT_BF16, DT_BF16);
}

TEST(cuts_of_window_4096)
{
    check_cuts(4096, DT_F32, DT_BF16);
}

/* Rings of different sizes in one drafter, and a window that is no power of two. */
TEST(cuts_of_mixed_layers)
{
    static struct setup a, b;
    setup_open(&a, "DFlashDraftModel", "sfs", 37, 200, 1, DT_F32, DT_F32);
    setup_open(&b, "DFlashDraftModel", "sfs", 37, 200, 200, DT_F32, DT_F32);
    for (int32_t n = 20; n <= 200; n += 45) {
        feed(&a, 0, n, 1);
        feed(&b, 0, n, 200);
        struct block x = propose(&a, 0), y = propose(&b, 0);
        same_block("mixed layers", &x, &y);
        same_bytes("mixed layers", &a, 0, &b, 0);
    }
    setup_close(&a);
    setup_close(&b);
}

/* A context shorter than the window takes no more memory than it can use. */
TEST(a_short_context)
{
    static struct setup a, b;
    setup_open(&a, "DFlash2DraftModel", "ss", 4096, 100, 1, DT_F32, DT_F32);
    setup_open(&b, "DFlash2DraftModel", "ss", 4096, 100, 512, DT_F32, DT_F32);
    CHECK_INT(a.r.d->context.ring[0].k.dim[1], 116);
    feed(&a, 0, 100, 1);
    feed(&b, 0, 100, 100);
    struct block x = propose(&a, 0), y = propose(&b, 0);
    same_block("a short context", &x, &y);
    same_bytes("a short context", &a, 0, &b, 0);
    setup_close(&a);
    setup_close(&b);
}

/* ---- What is read ---------------------------------------------------------------------------- */

static void poison(struct setup *t, int32_t pos)
{
    const struct tensor *k = &t->r.d->context.ring[0].k, *v = &t->r.d->context.ring[0].v;
    int64_t width = k->dim[2] * k->dim[3];
    for (int64_t i = 0; i < width; i++) {
        ((float *)k->data)[pos % k->dim[1] * width + i] = NAN;
        ((float *)v->data)[pos % v->dim[1] * width + i] = NAN;
    }
}

/* One layer without convolutions, so that rows do not see each other's results: the slot that holds
 * position F - W is dead, and F - W + 1 is seen by row 0 alone. */
static void check_dead_slot(int32_t window, int32_t frontier)
{
    static struct setup t;
    setup_open(&t, "DFlashDraftModel", "s", window, frontier, 512, DT_F32, DT_F32);
    feed(&t, 0, frontier, 512);
    struct block want = propose(&t, 0);
    for (int i = 0; i < 16 * H; i++)
        CHECK(isfinite(want.h[i]));
    poison(&t, frontier - window);
    struct block got = propose(&t, 0);
    same_block("NaN in the dead slot", &got, &want);
    poison(&t, frontier - window + 1);
    got = propose(&t, 0);
    for (int i = 0; i < 16 * H; i++)
        if (i < H ? !isnan(got.h[i]) : memcmp(&got.h[i], &want.h[i], sizeof(float)) != 0)
            FAIL("window %d: NaN at the window's end %s row %d", window,
                 i < H ? "does not reach" : "reaches", i / H);
    setup_close(&t);
}

TEST(the_dead_slot_is_not_read)
{
    static const int32_t window[] = {12, 512, 2048, 4096};
    for (int i = 0; i < 4; i++) {
        check_dead_slot(window[i], window[i]);
        check_dead_slot(window[i], window[i] + window[i] / 2);
        check_dead_slot(window[i], 2 * window[i] + 1);
    }
}

/* ---- Save, load, rewind ---------------------------------------------------------------------- */

static void check_save(const char *layers, int32_t n)
{
    static struct setup t;
    lathe_error err;
    setup_open(&t, "DFlash2DraftModel", layers, 48, 300, 512, DT_BF16, DT_BF16);
    feed(&t, 0, n, 31);
    feed(&t, 1, 90, 31); /* something else was there */
    struct buf saved = draft_rig_save(&t.r, 0);
    struct block want = propose(&t, 0);
    CHECK_OK(drafter_dflash2.load(t.r.d, 1, saved.data, saved.len, &err), &err);
    struct block got = propose(&t, 1);
    same_block("after load", &got, &want);
    same_bytes("after load", &t, 1, &t, 0);
    feed(&t, 0, 300, 300);
    feed(&t, 1, 300, 1);
    want = propose(&t, 0);
    got = propose(&t, 1);
    same_block("going on after load", &got, &want);
    same_bytes("going on after load", &t, 1, &t, 0);
    buf_release(&saved);
    setup_close(&t);
}

TEST(save_and_load)
{
    static const int32_t n[] = {0, 1, 46, 47, 48, 49, 95, 96, 97, 200};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
        check_save("ss", n[i]);
        check_save("sf", n[i]);
    }
}

TEST(load_refuses_what_is_no_context)
{
    static struct setup t, other;
    lathe_error err;
    setup_open(&t, "DFlash2DraftModel", "sf", 12, 40, 64, DT_F32, DT_F32);
    setup_open(&other, "DFlash2DraftModel", "sf", 13, 40, 64, DT_F32, DT_F32);
    feed(&t, 0, 30, 64);
    struct buf saved = draft_rig_save(&t.r, 0);
    for (size_t n = 0; n < saved.len; n += n < 64 ? 1 : 61) {
        CHECK_ERR(drafter_dflash2.load(t.r.d, 1, saved.data, n, &err), &err, LATHE_E_FORMAT,
                  "a saved context");
        CHECK_INT(t.r.d->context.frontier[1], 0);
    }
    CHECK_ERR(drafter_dflash2.load(other.r.d, 1, saved.data, saved.len, &err), &err, LATHE_E_FORMAT,
              "window 12, 30 positions: this drafter's has 2, 32, 13");
    buf_append(&saved, "", 1);
    CHECK_ERR(drafter_dflash2.load(t.r.d, 1, saved.data, saved.len, &err), &err, LATHE_E_FORMAT,
              "1 bytes too many");
    for (size_t at = 0; at < 32; at++) { /* any byte of the head is checked or harmless */
        saved.data[at] = (char)(saved.data[at] ^ 0x41);
        (void)drafter_dflash2.load(t.r.d, 1, saved.data, saved.len, &err);
        saved.data[at] = (char)(saved.data[at] ^ 0x41);
    }
    buf_release(&saved);
    setup_close(&t);
    setup_close(&other);
}

/* What was overwritten stays lost; once the window has filled again, all is as if it had never been. */
TEST(rewind)
{
    static struct setup t;
    setup_open(&t, "DFlash2DraftModel", "ss", 48, 400, 512, DT_F32, DT_F32);
    for (int32_t to = 0; to <= 200; to += 25) {
        drafter_dflash2.rewind(t.r.d, 0, 0);
        drafter_dflash2.rewind(t.r.d, 1, 0);
        feed(&t, 0, 200, 200);
        drafter_dflash2.rewind(t.r.d, 0, to);
        CHECK_INT(t.r.d->context.frontier[0], to);
        struct block b = propose(&t, 0);
        for (int i = 0; i < 8 * H; i++)
            CHECK(isfinite(b.h[i]));
        feed(&t, 0, to + 47, 5);
        feed(&t, 1, to + 47, 512);
        struct block want = propose(&t, 1);
        b = propose(&t, 0);
        same_block("after rewinding", &b, &want);
        same_bytes("after rewinding", &t, 0, &t, 1);
    }
    /* Within what the ring holds nothing is lost but what lies behind the window. */
    drafter_dflash2.rewind(t.r.d, 0, 0);
    drafter_dflash2.rewind(t.r.d, 1, 0);
    feed(&t, 0, 40, 40);
    feed(&t, 1, 30, 40);
    drafter_dflash2.rewind(t.r.d, 0, 30);
    struct block a = propose(&t, 0), b = propose(&t, 1);
    same_block("rewinding before the first wrap", &a, &b);
    same_bytes("rewinding before the first wrap", &t, 0, &t, 1);
    setup_close(&t);
}

TEST(gaps_and_repetitions_are_refused)
{
    static struct setup t;
    lathe_error err;
    setup_open(&t, "DFlash2DraftModel", "ss", 12, 40, 64, DT_F32, DT_F32);
    feed(&t, 0, 10, 10);
    struct committed c = {
        .slot = 0, .pos = 11, .n = 1, .feature = tensor_2d(t.feature, t.act, 1, TAPS * H)};
    CHECK_ERR(drafter_dflash2.committed(t.r.d, &c, &err), &err, LATHE_E_ARGUMENT,
              "slot 0: position 11, but the drafter has been told of 10 positions");
    c.pos = 9;
    CHECK_ERR(drafter_dflash2.committed(t.r.d, &c, &err), &err, LATHE_E_ARGUMENT, "position 9");
    c.slot = 2;
    CHECK_ERR(drafter_dflash2.committed(t.r.d, &c, &err), &err, LATHE_E_ARGUMENT,
              "slot 2, expected 0 to 1");
    struct draft_request q = {.slot = 0, .pos = 9, .most = 3, .sampler = t.r.sampler};
    CHECK_ERR(drafter_dflash2.propose(t.r.d, &q, 1, &err), &err, LATHE_E_ARGUMENT, "position 9");
    setup_close(&t);
}

/* ---- Proposals ------------------------------------------------------------------------------- */

/* Slots together and alone, and fewer drafts than could be: the same ones. */
static void check_together(const char *architecture, const char *layers)
{
    static struct setup t;
    lathe_error err;
    setup_open(&t, architecture, layers, 12, 60, 64, DT_BF16, DT_BF16);
    feed(&t, 0, 50, 50);
    feed(&t, 1, 7, 7);
    struct block a = propose(&t, 0), b = propose(&t, 1);
    for (int32_t most = 1; most <= a.n; most++) {
        struct draft_request q[] = {
            {.slot = 1, .pos = 7, .anchor = 77, .most = SPEC_MAX_DRAFT, .sampler = t.r.sampler},
            {.slot = 0, .pos = 50, .anchor = 77, .most = most, .sampler = t.r.sampler},
        };
        CHECK_OK(drafter_dflash2.propose(t.r.d, q, 2, &err), &err);
        CHECK_INT(q[0].n, b.n);
        CHECK_INT(q[1].n, most);
        CHECK(memcmp(q[0].draft, b.draft, (size_t)b.n * sizeof *b.draft) == 0);
        CHECK(memcmp(q[1].draft, a.draft, (size_t)most * sizeof *a.draft) == 0);
    }
    setup_close(&t);
}

TEST(slots_together_and_alone)
{
    check_together("DFlash2DraftModel", "ss");
    check_together("DFlashDraftModel", "sf");
    check_together("DSparkDraftModel", "ff");
}

/* Requests that are cancelled in the middle of a pass of the model, at an operator that is chosen: the pass is left, and what
 * the slots hold is as if it had never begun; or it goes on for the others, and they say what they say without. */
#include "engine/engine.h"
#include "test.h"
#include "words.h"

enum { CHUNK = 32, SLOTS = 3, CONTEXT = 512 };

/* The recurrent state of a slot, its pages and its drafter's context. */
struct snapshot {
    int32_t n_committed, n_pages, n_free;
    struct buf bytes;
};

/* The products of the engine's passes, counted on the scheduler's thread. */
static struct {
    struct backend backend;
    lathe_status (*product)(void *stream, const struct linear_args *a, lathe_error *err);
    lathe_engine *engine;
    /* Products of which passes count: of this phase, with rows of these slots and no others, while those beside, bits too,
     * have a request whose prompt is read. */
    enum phase phase;
    uint32_t in, beside;
    int32_t n_done, at;     /* such products; the one at which requests are cancelled, 0: none */
    uint32_t cancel;        /* slots whose requests the hook cancels, bits */
    bool cancel_queue;      /* and those that wait */
    struct snapshot before; /* slot 0, when the pass began */
    int32_t pos;            /* of that pass */
    uint32_t left;          /* slots that have a request two products later, bits */
    int32_t n_queued;       /* and how many wait then */
} watched;

static void add_tensor(struct buf *out, const struct tensor *t, int32_t slot)
{
    buf_append(out, tensor_at(t, slot), (size_t)tensor_row(t) * dtype_size(t->dtype));
}

static void look(struct snapshot *s, int32_t slot)
{
    lathe_engine *e = watched.engine;
    lathe_error err;
    s->n_committed = e->slots[slot].n_committed;
    s->n_pages = e->state.kv.n_used[slot];
    s->n_free = e->state.kv.n_free;
    buf_clear(&s->bytes);
    for (int32_t i = 0; i < e->state.recurrent.shape.n_layers; i++) {
        struct tensor S = recurrent_S(&e->state.recurrent, i),
                      tail = recurrent_tail(&e->state.recurrent, i);
        add_tensor(&s->bytes, &S, slot);
        add_tensor(&s->bytes, &tail, slot);
    }
    if (e->spec.ops)
        CHECK_OK(e->spec.ops->save(e->spec.drafter, slot, &s->bytes, &err), &err);
}

static void check_same(const struct snapshot *got, const struct snapshot *want)
{
    CHECK_INT(got->n_committed, want->n_committed);
    CHECK_INT((int64_t)got->bytes.len, (int64_t)want->bytes.len);
    CHECK(memcmp(got->bytes.data, want->bytes.data, want->bytes.len) == 0);
}

/* As callers do, on the thread that owns the slots. */
static void cancel(void)
{
    lathe_engine *e = watched.engine;
    for (int32_t i = 0; i < SLOTS; i++)
        if (watched.cancel >> i & 1)
            lathe_request_cancel(e->slots[i].request);
    if (!watched.cancel_queue)
        return;
    pthread_mutex_lock(&e->lock);
    lathe_request *r = e->queue;
    pthread_mutex_unlock(&e->lock);
    for (; r; r = r->next)
        lathe_request_cancel(r);
}

static void look_later(void)
{
    watched.left = 0;
    for (int32_t i = 0; i < SLOTS; i++)
        watched.left |= (uint32_t)(watched.engine->slots[i].request != NULL) << i;
    watched.n_queued = atomic_load(&watched.engine->n_queued);
}

static bool counts(const struct linear_args *a)
{
    const lathe_engine *e = watched.engine;
    const struct batch *b = &e->step.batch;
    uint32_t in = 0, beside = 0;
    for (int32_t i = 0; i < b->n_seqs; i++)
        in |= 1u << b->seq[i].slot;
    for (int32_t i = 0; i < SLOTS; i++)
        beside |= (uint32_t)(e->slots[i].phase == SLOT_DECODE) << i;
    bool was_there = watched.at && watched.n_done >= watched.at; /* who was beside may have ended */
    return a->phase == watched.phase && a->y.dim[1] != e->model.dims.vocab && in == watched.in &&
           (was_there || (beside & watched.beside) == watched.beside);
}

static lathe_status count_product(void *stream, const struct linear_args *a, lathe_error *err)
{
    if (counts(a)) {
        int32_t pos = watched.engine->step.batch.seq[0].pos;
        if (watched.n_done == 0 || pos != watched.pos)
            look(&watched.before, 0);
        watched.pos = pos;
        if (++watched.n_done == watched.at)
            cancel();
        if (watched.n_done == watched.at + 2)
            look_later();
    }
    return watched.product(stream, a, err);
}

static lathe_engine *open_watched(const char *spec)
{
    lathe_engine_options o;
    lathe_engine *e;
    lathe_error err;
    lathe_engine_options_init(&o);
    o.model_dir = test_path("models/nano");
    o.n_ctx = CONTEXT;
    o.n_slots = SLOTS;
    o.prefill_chunk = CHUNK;
    o.n_threads = 2;
    o.spec = spec;
    o.fixed_k = true;
    o.device = "cpu";
    CHECK_OK(lathe_engine_open(&e, &o, &err), &err);
    memset(&watched, 0, sizeof watched);
    buf_init(&watched.before.bytes, 1 << 30);
    watched.engine = e;
    watched.backend = *e->backend;
    watched.product = e->backend->linear;
    watched.backend.linear = count_product;
    e->step.x.backend = &watched.backend; /* nothing runs now */
    return e;
}

static void close_watched(lathe_engine *e)
{
    lathe_engine_close(e);
    buf_release(&watched.before.bytes);
}

/* From here on, while nothing runs: requests of these slots are cancelled at product `at` of such passes. */
static void watch(enum phase phase, uint32_t in, uint32_t beside, int32_t at, uint32_t cancelled)
{
    watched.phase = phase;
    watched.in = in;
    watched.beside = beside;
    watched.n_done = 0;
    watched.at = at;
    watched.cancel = cancelled;
}

/* A prompt of n tokens, of one of several texts. */
static lathe_request *begin(lathe_engine *e, int32_t which, int32_t n, int32_t max_tokens)
{
    lathe_request_options o;
    lathe_request *r;
    lathe_error err;
    struct buf text;
    buf_init(&text, 1 << 20);
    words_put(&text, which, n);
    lathe_request_options_init(lathe_engine_text(e), false, &o);
    o.text = text.data;
    o.n_text = text.len;
    o.max_tokens = max_tokens;
    o.ignore_eos = true;
    o.sampling.temperature = 0;
    CHECK_OK(lathe_request_submit(e, &o, &r, &err), &err);
    CHECK_INT(lathe_request_prompt_tokens(r), n);
    buf_release(&text);
    return r;
}

static char *answer(lathe_engine *e, int32_t which, int32_t n, int32_t max_tokens,
                    lathe_event *last)
{
    return words_said(begin(e, which, n, max_tokens), last);
}

/* Until the scheduler has nothing to do and touches nothing. */
static void rest(lathe_engine *e)
{
    for (bool resting = false; !resting;) {
        pthread_mutex_lock(&e->lock);
        resting = e->resting && !e->kicked;
        pthread_mutex_unlock(&e->lock);
    }
}

/* Cancelled at product `at` of the third chunk, or of the first. */
static void check_prompt(lathe_engine *e, const char *want, int32_t n, int32_t of_a_chunk,
                         int32_t at, bool is_first)
{
    lathe_error err;
    lathe_event last;
    struct snapshot after = {0};
    int32_t n_kept = is_first ? 0 : 2 * CHUNK, n_pages = (n_kept + KV_PAGE - 1) / KV_PAGE;
    buf_init(&after.bytes, 1 << 30);
    CHECK_OK(lathe_engine_forget(e, -1, &err), &err);
    rest(e);
    int32_t n_free = e->state.kv.n_free;
    watch(PHASE_PREFILL, 1, 0, at + (is_first ? 0 : 2 * of_a_chunk), 1);
    free(answer(e, 0, n, 8, &last));
    rest(e);
    CHECK_INT(last.finish, LATHE_FINISH_CANCELLED);
    CHECK_INT(watched.n_done, watched.at);
    look(&after, 0);
    check_same(&after, &watched.before);
    CHECK_INT(after.n_committed, n_kept);
    CHECK_INT(after.n_pages, n_pages);
    CHECK_INT(after.n_free, n_free - n_pages);
    watch(PHASE_PREFILL, 1, 0, 0, 0);
    char *got = answer(e, 0, n, 8, &last);
    CHECK_STR(got, want);
    CHECK_INT(last.usage.cached_tokens, n_kept);
    free(got);
    buf_release(&after.bytes);
}

static void check_prompts(const char *spec)
{
    enum { PROMPT = 4 * CHUNK + 20 };
    lathe_engine *e = open_watched(spec);
    lathe_event last;
    watch(PHASE_PREFILL, 1, 0, 0, 0);
    char *want = answer(e, 0, PROMPT, 8, &last);
    rest(e);
    CHECK_INT(watched.n_done % 5, 0);
    int32_t of_a_chunk = watched.n_done / 5;
    int32_t step = of_a_chunk / (test_quick() ? 3 : 5);
    for (int32_t at = 1; at <= of_a_chunk; at += step) {
        check_prompt(e, want, PROMPT, of_a_chunk, at, false);
        check_prompt(e, want, PROMPT, of_a_chunk, at, true);
    }
    check_prompt(e, want, PROMPT, of_a_chunk, of_a_chunk, false);
    free(want);
    close_watched(e);
}

TEST(a_prompt_that_is_left_was_never_there)
{
    check_prompts("none");
    check_prompts("mtp");
    check_prompts("dflash2+ngram");
}

/* What slot 0 holds is the state of its tokens: what is said after them and one more is what is said without it. */
static void check_goes_on(lathe_engine *e)
{
    lathe_request_options o;
    lathe_event last;
    lathe_error err;
    char *said[2];
    int32_t id[CONTEXT], n = e->slots[0].n_committed;
    memcpy(id, e->slots[0].token, (size_t)n * sizeof *id);
    id[n] = 300;
    for (int i = 0; i < 2; i++) {
        lathe_request *r;
        lathe_request_options_init(lathe_engine_text(e), false, &o);
        o.token = id;
        o.n_token = (size_t)n + 1;
        o.max_tokens = 20;
        o.ignore_eos = true;
        o.sampling.temperature = 0;
        o.no_prefix_reuse = i == 1;
        CHECK_OK(lathe_request_submit(e, &o, &r, &err), &err);
        said[i] = words_said(r, &last);
        CHECK_INT(last.usage.cached_tokens, i == 0 ? n : 0);
    }
    CHECK_STR(said[0], said[1]);
    free(said[0]);
    free(said[1]);
}

/* Slot 0 alone. A pass that decodes goes to its end, one with drafts is left. */
static void check_alone(const char *spec, enum phase phase)
{
    lathe_engine *e = open_watched(spec);
    lathe_event last;
    lathe_error err;
    struct snapshot after = {0};
    buf_init(&after.bytes, 1 << 30);
    for (int32_t at = 1; at < 200; at += test_quick() ? 70 : 45) {
        CHECK_OK(lathe_engine_forget(e, -1, &err), &err);
        rest(e);
        watch(phase, 1, 1, at, 1);
        free(answer(e, 0, 40, 100, &last));
        rest(e);
        CHECK_INT(last.finish, LATHE_FINISH_CANCELLED);
        look(&after, 0);
        if (phase == PHASE_VERIFY) {
            CHECK_INT(watched.n_done, at);
            check_same(&after, &watched.before);
        } else {
            CHECK(watched.n_done >= at);
            CHECK_INT(after.n_committed, watched.before.n_committed + 1);
        }
        watch(phase, 0, 0, 0, 0);
        check_goes_on(e);
    }
    buf_release(&after.bytes);
    close_watched(e);
}

TEST(a_round_alone)
{
    check_alone("none", PHASE_DECODE);
    check_alone("mtp", PHASE_VERIFY);
    check_alone("dflash2", PHASE_VERIFY);
    check_alone("dflash2+ngram", PHASE_VERIFY);
}

/* Slot 1 decodes beside a request in slot 0, which is cancelled in a pass over its prompt, or in one that both have rows
 * in. */
static void check_beside(const char *spec, enum phase phase)
{
    enum { LONG = 6 * CHUNK, OTHER = 40 };
    bool is_prompt = phase == PHASE_PREFILL;
    lathe_engine *e = open_watched(spec);
    lathe_event last;
    lathe_error err;
    char *want[2] = {answer(e, 0, LONG, 60, &last), answer(e, 1, OTHER, 100, &last)};
    for (int32_t at = 1; at < 120; at += test_quick() ? 50 : 35) {
        CHECK_OK(lathe_engine_forget(e, -1, &err), &err);
        rest(e);
        watch(phase, is_prompt ? 1 : 3, is_prompt ? 2 : 3, at, 1);
        lathe_request *a = begin(e, 0, LONG, 60), *b = begin(e, 1, OTHER, 100);
        char *got = words_said(b, &last);
        CHECK_STR(got, want[1]);
        free(got);
        free(words_said(a, &last));
        CHECK_INT(last.finish, LATHE_FINISH_CANCELLED);
        rest(e);
        CHECK(is_prompt || watched.n_done > at); /* the pass went on */
        watch(phase, 0, 0, 0, 0);
        if (!is_prompt)
            check_goes_on(e);
        CHECK(e->slots[0].n_committed > 0);
        got = answer(e, 0, LONG, 60, &last);
        CHECK_STR(got, want[0]);
        CHECK(is_prompt == (last.usage.cached_tokens > 0));
        free(got);
    }
    free(want[0]);
    free(want[1]);
    close_watched(e);
}

TEST(others_are_not_disturbed)
{
    check_beside("none", PHASE_PREFILL);
    check_beside("none", PHASE_DECODE);
    check_beside("mtp", PHASE_PREFILL);
    check_beside("mtp", PHASE_VERIFY);
}

TEST(who_waits_or_decodes_ends_within_a_pass_over_another_prompt)
{
    enum { LONG = 8 * CHUNK };
    lathe_engine *e = open_watched("none");
    lathe_event last;
    lathe_error err;
    char *want = answer(e, 0, LONG, 8, &last);
    CHECK_OK(lathe_engine_forget(e, -1, &err), &err);
    rest(e);
    watched.cancel_queue = true;
    watch(PHASE_PREFILL, 1, 6, 1, 2);
    lathe_request *r[SLOTS + 2];
    for (int32_t i = 0; i < SLOTS + 2; i++)
        r[i] = begin(e, i, i == 0 ? LONG : 20, i == 0 ? 8 : 300);
    char *got = words_said(r[0], &last);
    CHECK_INT(last.finish, LATHE_FINISH_LENGTH);
    lathe_request_cancel(r[2]);
    for (int32_t i = 1; i < SLOTS + 2; i++) {
        free(words_said(r[i], &last));
        CHECK_INT(last.finish, LATHE_FINISH_CANCELLED);
    }
    CHECK_STR(got, want);
    rest(e);
    CHECK_INT(watched.left, 5);
    CHECK_INT(watched.n_queued, 0);
    free(got);
    free(want);
    close_watched(e);
}

TEST(a_score_that_is_cancelled)
{
    static int32_t id[CONTEXT];
    static double logprob[CONTEXT];
    lathe_engine *e = open_watched("mtp");
    lathe_event last;
    lathe_error err;
    for (int32_t i = 0; i < CONTEXT; i++)
        id[i] = 300 + i % 7;
    watch(PHASE_PREFILL, 1, 0, 40, 1);
    CHECK_ERR(lathe_score(e, id, 200, 0, logprob, NULL, NULL, &err), &err, LATHE_E_CANCELLED, "");
    rest(e);
    CHECK_INT(watched.n_done, 40);
    CHECK_INT(e->slots[0].n_committed, 0);
    watch(PHASE_PREFILL, 0, 0, 0, 0);
    char *want = answer(e, 0, 100, 20, &last);
    CHECK_OK(lathe_engine_forget(e, -1, &err), &err);
    char *got = answer(e, 0, 100, 20, &last);
    CHECK_STR(got, want);
    free(got);
    free(want);
    close_watched(e);
}

/* A product of the CPU asks while it runs. */
static bool leave_at_once(void *ctx)
{
    ++*(int32_t *)ctx;
    return true;
}

TEST(a_long_product_is_left)
{
    lathe_engine *e = open_watched("none");
    const struct weight *w = &e->model.lm_head;
    int32_t n_asked = 0;
    lathe_error err;
    struct tensor in = tensor_2d(NULL, DT_BF16, 64, w->cols),
                  y = tensor_2d(NULL, DT_F32, 64, w->rows);
    rest(e);
    in.data = calloc((size_t)tensor_elements(&in), 2);
    y.data = malloc((size_t)tensor_elements(&y) * 4);
    CHECK(in.data && y.data);
    memset(y.data, 0x11, (size_t)tensor_elements(&y) * 4);
    struct linear_args a = {.y = y, .in = in, .w = w, .phase = PHASE_PREFILL};
    size_t scratch = e->backend->linear_scratch(e->stream, &a);
    a.scratch = tensor_2d(aligned_alloc(64, scratch / 64 * 64 + 64), DT_U8, 1, (int64_t)scratch);
    e->backend->watch(e->stream, leave_at_once, &n_asked);
    CHECK_OK(e->backend->linear(e->stream, &a, &err), &err);
    CHECK(e->backend->is_left(e->stream));
    CHECK_INT(n_asked, 1);
    const unsigned char *first = y.data;
    CHECK_INT(first[0], 0x11); /* not a row was made */
    e->backend->watch(e->stream, NULL, NULL);
    CHECK(!e->backend->is_left(e->stream));
    CHECK_OK(e->backend->linear(e->stream, &a, &err), &err);
    CHECK_INT(first[0], 0);
    free(in.data);
    free(y.data);
    free(a.scratch.data);
    close_watched(e);
}

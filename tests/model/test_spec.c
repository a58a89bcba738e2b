/* Speculation through the engine: whatever is drafted, and however much of it is accepted, the tokens are
 * those of plain decoding, and the state afterwards is that of the tokens, bit for bit. Cases B54, B55, B56,
 * B58, B59, B61 and B65. */
#include "test.h"

#include <inttypes.h>
#include <sched.h>

#include "engine/engine.h"
#include "make_model.h"

enum { CTX = 512, N_PROMPTS = 500, N_SAMPLERS = 6 };

/* The run of make check-spec: LATHE_FULL=2/8 takes the second eighth of the prompts. */
static bool is_full(void)
{
    return getenv("LATHE_FULL") != NULL;
}

static void full_share(uint32_t *share, uint32_t *of)
{
    if (sscanf(getenv("LATHE_FULL"), "%" SCNu32 "/%" SCNu32, share, of) != 2 || *share < 1 ||
        *share > *of)
        FAIL("LATHE_FULL is not SHARE/OF");
}

static int32_t answer_tokens(void)
{
    return test_quick() ? 16 : is_full() ? 40 : 64;
}

static const char *const drafters[] = {"ngram", "mtp", "dflash2", "mtp+ngram", "dflash2+ngram"};
enum { N_DRAFTERS = sizeof drafters / sizeof *drafters };

static lathe_engine *open_with(const char *spec, int32_t draft_k, int32_t n_slots, int32_t threads)
{
    lathe_engine_options o;
    lathe_engine *e;
    lathe_error err;
    lathe_engine_options_init(&o);
    o.model_dir = test_path("models/nano");
    o.spec = spec;
    o.draft_k = draft_k;
    o.fixed_k = true;
    o.n_ctx = CTX;
    o.n_slots = n_slots;
    o.n_threads = threads;
    CHECK_OK(lathe_engine_open(&e, &o, &err), &err);
    return e;
}

/* ---- Prompts: chat, tools, code, long repeats; thinking on and off -------------------------- */

struct prompt {
    char messages[2048];
    const char *tools;
    lathe_switch thinking;
};

static const char *const tools =
    "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"description\": "
    "\"Current "
    "weather of a city\", \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": "
    "{\"type\": "
    "\"string\"}, \"days\": {\"type\": \"integer\"}}, \"required\": [\"city\"]}}}]";

static void make_prompt(struct prompt *p, uint32_t i)
{
    static const char *const word[] = {"kiln", "lamp",  "river", "anchor",  "spoon",  "violin",
                                       "moss", "ridge", "cedar", "lantern", "harbor", "needle"};
    static const char *const city[] = {"Oslo", "Lima", "Cairo", "Quito", "Perth"};
    struct rng r = {i + 1};
    const char *w = word[rng_below(&r, 12)], *v = word[rng_below(&r, 12)];
    uint32_t a = rng_below(&r, 90) + 10, b = rng_below(&r, 90) + 10;
    char text[1500];
    p->tools = NULL;
    p->thinking = i / 6 % 2 ? LATHE_ON : LATHE_OFF;
    switch (i % 6) {
    case 0:
        snprintf(text, sizeof text, "What is a %s?", w);
        break;
    case 1:
        snprintf(text, sizeof text, "What is %u + %u?", a, b);
        break;
    case 2:
        snprintf(text, sizeof text, "Tell me a short story about a %s and a %s.", w, v);
        break;
    case 3:
        snprintf(text, sizeof text, "What is the weather in %s for %u days?", city[a % 5],
                 b % 7 + 1);
        p->tools = tools;
        break;
    case 4:
        snprintf(
            text, sizeof text,
            "Repeat: def f_%s(x):\\n    return x + %u\\n\\ndef g_%s(x):\\n    return x * %u\\n", w,
            a, v, b);
        break;
    default: {
        size_t n = 0;
        for (uint32_t k = 0; k < 6; k++)
            n += (size_t)snprintf(text + n, sizeof text - n, "the %s and the %s saw %u. ", w, v, a);
        break;
    }
    }
    snprintf(p->messages, sizeof p->messages, "[{\"role\": \"user\", \"content\": \"%s\"}]", text);
}

/* Greedy, and samplers with every option. */
static void make_sampling(lathe_sampling *s, uint32_t variant)
{
    static const lathe_logit_bias bias[] = {{284, -3}, {271, 2}, {296, -100}};
    *s = (lathe_sampling){.top_p = 1, .repetition_penalty = 1, .seed = 1000 + variant};
    switch (variant) {
    case 0:
        break;
    case 1:
        s->temperature = 1;
        break;
    case 2:
        s->temperature = 0.7f;
        s->top_k = 20;
        s->top_p = 0.9f;
        break;
    case 3:
        s->temperature = 1.2f;
        s->min_p = 0.05f;
        s->presence_penalty = 0.8f;
        break;
    case 4:
        s->temperature = 0.9f;
        s->frequency_penalty = 0.3f;
        s->repetition_penalty = 1.15f;
        s->bias = bias;
        s->n_bias = 3;
        break;
    default: /* greedy under penalties */
        s->presence_penalty = 0.5f;
        s->frequency_penalty = 0.4f;
        s->repetition_penalty = 1.1f;
        break;
    }
}

struct run {
    int32_t token[CTX];
    float logprob[CTX];
    int32_t n;
    lathe_finish finish;
    lathe_usage usage;
    char text[8192];
    size_t n_text;
};

static void options_for(lathe_engine *e, const struct prompt *p, uint32_t variant,
                        lathe_conversation *c, lathe_request_options *o)
{
    *c = (lathe_conversation){.messages = p->messages, .tools = p->tools, .thinking = p->thinking};
    lathe_request_options_init(lathe_engine_text(e), p->thinking == LATHE_ON, o);
    o->conversation = c;
    o->max_tokens = answer_tokens();
    o->n_logprobs = 0;
    o->no_prefix_reuse = true;
    make_sampling(&o->sampling, variant % N_SAMPLERS);
}

static void collect(lathe_request *r, struct run *out)
{
    lathe_event ev;
    out->n = 0;
    out->n_text = 0;
    do {
        lathe_request_next(r, -1, &ev);
        if (ev.type == LATHE_EVENT_TOKEN) {
            out->logprob[out->n] = ev.token.logprob;
            out->token[out->n++] = ev.token.id;
        } else if (ev.text && ev.type != LATHE_EVENT_FINISH) {
            CHECK(out->n_text + ev.n_text < sizeof out->text);
            memcpy(out->text + out->n_text, ev.text, ev.n_text);
            out->n_text += ev.n_text;
        }
    } while (ev.type != LATHE_EVENT_FINISH);
    if (ev.finish == LATHE_FINISH_ERROR)
        FAIL("%s", ev.error.message);
    out->finish = ev.finish;
    out->usage = ev.usage;
    lathe_request_close(r);
}

static void ask(lathe_engine *e, const lathe_request_options *o, struct run *out)
{
    lathe_request *r;
    lathe_error err;
    CHECK_OK(lathe_request_submit(e, o, &r, &err), &err);
    collect(r, out);
}

static void check_same_run(const struct run *got, const struct run *want, const char *what,
                           uint32_t prompt)
{
    for (int32_t i = 0; i < got->n || i < want->n; i++)
        if (i >= got->n || i >= want->n || got->token[i] != want->token[i])
            FAIL("%s, prompt %u: token %d of %d is %d, plain decoding gives %d of %d", what, prompt,
                 i, got->n, i < got->n ? got->token[i] : -1, i < want->n ? want->token[i] : -1,
                 want->n);
    CHECK(memcmp(got->logprob, want->logprob, (size_t)got->n * sizeof *got->logprob) == 0);
    CHECK_INT(got->finish, want->finish);
    CHECK_INT(got->n_text, want->n_text);
    CHECK(memcmp(got->text, want->text, got->n_text) == 0);
    CHECK_INT(got->usage.completion_tokens, want->usage.completion_tokens);
    CHECK_INT(got->usage.reasoning_tokens, want->usage.reasoning_tokens);
}

/* ---- State ---------------------------------------------------------------------------------- */

static void append(struct buf *b, const lathe_engine *e, const void *p, size_t n)
{
    lathe_error err;
    void *room = buf_grow(b, n);
    CHECK(room != NULL);
    CHECK_OK(e->backend->copy_out(e->stream, room, p, n, &err), &err);
}

static void append_state(struct buf *b, lathe_engine *e, int32_t slot)
{
    const struct recurrent *rec = &e->state.recurrent;
    const struct kv_cache *kv = &e->state.kv;
    int32_t n = e->slots[slot].n_committed;
    lathe_error err;
    for (int32_t i = 0; i < rec->shape.n_layers; i++) {
        struct tensor S = recurrent_S(rec, i), tail = recurrent_tail(rec, i);
        append(b, e, tensor_at(&S, slot), (size_t)tensor_row(&S) * dtype_size(S.dtype));
        append(b, e, tensor_at(&tail, slot), (size_t)tensor_row(&tail) * dtype_size(tail.dtype));
    }
    for (int32_t i = 0; i < kv->shape.n_layers; i++) {
        struct kv_pages p = kv_cache_layer(kv, i);
        size_t row = (size_t)(p.k.dim[2] * p.k.dim[3]) * dtype_size(p.k.dtype);
        for (int32_t t = 0; t < n; t++) {
            int64_t page = p.page_table[slot * p.pages_per_slot + t / KV_PAGE];
            size_t at = (size_t)(t % KV_PAGE) * row;
            append(b, e, (unsigned char *)tensor_at(&p.k, page) + at, row);
            append(b, e, (unsigned char *)tensor_at(&p.v, page) + at, row);
        }
    }
    if (e->spec.ops)
        CHECK_OK(e->spec.ops->save(e->spec.drafter, slot, b, &err), &err);
    CHECK_OK(buf_check(b, "state", &err), &err);
}

/* The state of a slot of the idle engine is that of its tokens, computed in one go on `fresh`. Not so on a GPU,
 * where prompts have an arithmetic of their own. */
static void check_state(lathe_engine *e, int32_t slot, lathe_engine *fresh, const char *what)
{
    if (!e->backend->is_host)
        return;

    struct buf got, want;
    struct run out;
    lathe_request_options o;
    const struct slot *s = &e->slots[slot];
    buf_init(&got, 1 << 30);
    buf_init(&want, 1 << 30);
    lathe_request_options_init(lathe_engine_text(fresh), false, &o);
    o.token = s->token;
    o.n_token = (size_t)s->n_committed;
    o.max_tokens = 1;
    o.no_prefix_reuse = true;
    ask(fresh, &o, &out);
    CHECK_INT(fresh->slots[0].n_committed, s->n_committed);
    append_state(&got, e, slot);
    append_state(&want, fresh, 0);
    CHECK_INT(got.len, want.len);
    if (memcmp(got.data, want.data, got.len) != 0)
        FAIL("%s: the state after %d tokens is not that of plain decoding", what, s->n_committed);
    buf_release(&got);
    buf_release(&want);
}

/* ---- Equality -------------------------------------------------------------------------------- */

/* What plain decoding gives, computed once for a prompt and a sampler. */
static const struct run *plain_run(lathe_engine *plain, const lathe_request_options *o,
                                   uint32_t which, uint32_t variant)
{
    static struct run *known[N_PROMPTS][N_SAMPLERS];
    struct run **r = &known[which][variant];
    if (!*r) {
        *r = malloc(sizeof **r);
        CHECK(*r != NULL);
        ask(plain, o, *r);
        CHECK_INT((*r)->usage.spec.drafted, 0);
    }
    return *r;
}

/* One prompt on both engines; notes which numbers of drafts were accepted in a round. */
static void check_prompt(lathe_engine *plain, lathe_engine *e, const char *name, uint32_t which,
                         uint32_t variant, bool *saw)
{
    static struct run got;
    struct prompt p;
    lathe_conversation c;
    lathe_request_options o;
    make_prompt(&p, which);
    options_for(plain, &p, variant, &c, &o);
    ask(e, &o, &got);
    check_same_run(&got, plain_run(plain, &o, which, variant), name, which);
    for (int32_t a = 0; a <= e->spec.draft_k; a++)
        saw[a] |= got.usage.spec.histogram[a] > 0;
}

/* Text that goes on in loops where the end token is ignored: rounds that accept everything. */
static void check_loop(lathe_engine *plain, lathe_engine *e, const char *name, size_t length,
                       bool *saw)
{
    static struct run want, got;
    lathe_request_options o;
    char *text = test_read(test_path("tests/golden/passage.txt"), NULL);
    lathe_request_options_init(lathe_engine_text(e), false, &o);
    make_sampling(&o.sampling, 0);
    o.text = text;
    o.n_text = length;
    o.ignore_eos = true;
    o.max_tokens = 64;
    o.n_logprobs = 0;
    o.no_prefix_reuse = true;
    ask(plain, &o, &want);
    ask(e, &o, &got);
    free(text);
    check_same_run(&got, &want, name, (uint32_t)length);
    for (int32_t a = 0; a <= e->spec.draft_k; a++)
        saw[a] |= got.usage.spec.histogram[a] > 0;
}

/* ---- The full run: each prompt is computed once, and its state put back for every K ------------- */

/* What slot 0 remembers after a prompt but for its last token. Keys and values below stay where they are. */
struct snapshot {
    struct buf recurrent, drafter;
    int32_t n;
};

static void snapshot_take(struct snapshot *s, lathe_engine *e, const int32_t *token, int32_t n)
{
    const struct recurrent *rec = &e->state.recurrent;
    static struct run out;
    lathe_request_options o;
    lathe_error err;
    lathe_request_options_init(lathe_engine_text(e), false, &o);
    o.token = token;
    o.n_token = (size_t)n - 1;
    o.max_tokens = 1;
    o.no_prefix_reuse = true;
    ask(e, &o, &out);
    CHECK_INT(e->slots[0].n_committed, n - 1);
    s->n = n - 1;
    buf_init(&s->recurrent, 1 << 28);
    buf_init(&s->drafter, 1 << 28);
    for (int32_t i = 0; i < rec->shape.n_layers; i++) {
        struct tensor S = recurrent_S(rec, i), tail = recurrent_tail(rec, i);
        append(&s->recurrent, e, S.data, (size_t)tensor_row(&S) * dtype_size(S.dtype));
        append(&s->recurrent, e, tail.data, (size_t)tensor_row(&tail) * dtype_size(tail.dtype));
    }
    if (e->spec.ops)
        CHECK_OK(e->spec.ops->save(e->spec.drafter, 0, &s->drafter, &err), &err);
}

/* The engine is idle: its thread touches nothing. */
static void snapshot_put(const struct snapshot *s, lathe_engine *e)
{
    const struct recurrent *rec = &e->state.recurrent;
    const char *at = s->recurrent.data;
    lathe_error err;
    for (int32_t i = 0; i < rec->shape.n_layers; i++) {
        struct tensor part[] = {recurrent_S(rec, i), recurrent_tail(rec, i)};
        for (int k = 0; k < 2; k++) {
            size_t n = (size_t)tensor_row(&part[k]) * dtype_size(part[k].dtype);
            e->backend->copy_in(e->stream, part[k].data, at, n);
            at += n;
        }
    }
    e->slots[0].n_committed = s->n;
    if (e->spec.ops)
        CHECK_OK(e->spec.ops->load(e->spec.drafter, 0, s->drafter.data, s->drafter.len, &err),
                 &err);
}

static void snapshot_release(struct snapshot *s)
{
    buf_release(&s->recurrent);
    buf_release(&s->drafter);
}

/* An answer from the state that was taken. */
static void ask_from(const struct snapshot *s, lathe_engine *e, lathe_request_options *o,
                     struct run *out)
{
    snapshot_put(s, e);
    o->no_prefix_reuse = false;
    ask(e, o, out);
    CHECK_INT(out->usage.cached_tokens, s->n);
}

/* One prompt with every K, the samplers in turn. */
static void check_every_k(lathe_engine *plain, lathe_engine *e, const char *name, uint32_t which,
                          int32_t most, bool *saw)
{
    static struct run want[N_SAMPLERS], got;
    bool known[N_SAMPLERS] = {false};
    struct snapshot before[2];
    struct prompt p;
    lathe_conversation c;
    lathe_request_options o;
    lathe_prompt rendered;
    lathe_error err;
    make_prompt(&p, which);
    options_for(plain, &p, 0, &c, &o);
    CHECK_OK(lathe_render(lathe_engine_text(plain), &c, &rendered, &err), &err);
    snapshot_take(&before[0], plain, rendered.tokens.id, (int32_t)rendered.tokens.n);
    snapshot_take(&before[1], e, rendered.tokens.id, (int32_t)rendered.tokens.n);
    lathe_prompt_release(&rendered);
    for (int32_t k = 1; k <= most; k++) {
        uint32_t variant = (which + which / N_SAMPLERS + (uint32_t)k) % N_SAMPLERS;
        options_for(plain, &p, variant, &c, &o);
        if (!known[variant])
            ask_from(&before[0], plain, &o, &want[variant]);
        known[variant] = true;
        o.draft_k = k;
        ask_from(&before[1], e, &o, &got);
        check_same_run(&got, &want[variant], name, which);
        for (int32_t a = 0; a <= k; a++)
            saw[a] |= got.usage.spec.histogram[a] > 0;
    }
    snapshot_release(&before[0]);
    snapshot_release(&before[1]);
}

static int32_t check_all(lathe_engine *plain, const char *name, bool *saw)
{
    int32_t most = 0;
    uint32_t share, of;
    full_share(&share, &of);
    for (int32_t threads = 1; threads <= 2; threads++) {
        lathe_engine *e = open_with(name, 0, 1, threads);
        most = e->spec.info.max_draft;
        lathe_engine_close(e);
        e = open_with(name, most, 1, threads);
        uint32_t n = 0;
        for (uint32_t i = share - 1; i < N_PROMPTS; i += of, n++)
            check_every_k(plain, e, name, i, most, saw);
        printf("     %s, %d threads: %u prompts, K 1 to %d\n", name, threads, n, most);
        lathe_engine_close(e);
    }
    return most;
}

/* ---- The sample ---------------------------------------------------------------------------------- */

/* Every K, an engine for each. */
static int32_t check_some(lathe_engine *plain, const char *name, bool *saw)
{
    int32_t most = 1;
    for (int32_t k = 1; k <= most; k++) {
        if (test_quick() && k > 1 && k < most)
            continue;
        lathe_engine *e = open_with(name, k, 1, 1 + k % 2);
        most = e->spec.info.max_draft;
        CHECK_INT(e->spec.draft_k, k);
        uint32_t n = k == most && !test_quick() ? 12 : 2;
        for (uint32_t i = 0; i < n; i++)
            check_prompt(plain, e, name, i * 7 + (uint32_t)k,
                         (i + i / N_SAMPLERS + (uint32_t)k) % N_SAMPLERS, saw);
        lathe_engine_close(e);
    }
    return most;
}

/* Then, for a number of accepted drafts that no round had yet, loops with that K. */
static void check_drafter(const char *name)
{
    bool saw[SPEC_MAX_DRAFT + 1] = {false};
    lathe_engine *plain = open_with("none", 0, 1, 1);
    int32_t most = is_full() ? check_all(plain, name, saw) : check_some(plain, name, saw);
    for (int32_t a = 0; a <= most && !test_quick(); a++) {
        lathe_engine *e = open_with(name, a ? a : 1, 1, 1);
        for (size_t i = 0; i < 16 && !saw[a]; i++)
            check_loop(plain, e, name, 300 + 61 * i, saw);
        lathe_engine_close(e);
        if (!saw[a])
            FAIL("%s: no round accepted %d drafts", name, a);
    }
    lathe_engine_close(plain);
}

TEST(ngram_equals_plain)
{
    check_drafter("ngram");
}

TEST(mtp_equals_plain)
{
    check_drafter("mtp");
}

TEST(dflash2_equals_plain)
{
    check_drafter("dflash2");
}

TEST(mtp_ngram_equals_plain)
{
    check_drafter("mtp+ngram");
}

TEST(dflash2_ngram_equals_plain)
{
    check_drafter("dflash2+ngram");
}

/* Several slots with different prompts and acceptances at once, slots reused: case B56. */
TEST(slots_do_not_mix)
{
    enum { MANY = 9 };
    lathe_engine *plain = open_with("none", 0, 1, 2);
    for (int d = 0; d < N_DRAFTERS; d += test_quick() ? 4 : 1) {
        lathe_engine *e = open_with(drafters[d], 0, 3, 2), *fresh = open_with(drafters[d], 0, 1, 2);
        static struct run want[MANY], got;
        struct prompt p[MANY];
        lathe_conversation c[MANY];
        lathe_request_options o[MANY];
        lathe_request *r[MANY];
        lathe_error err;
        for (uint32_t i = 0; i < MANY; i++) {
            make_prompt(&p[i], i * 5);
            options_for(plain, &p[i], i, &c[i], &o[i]);
            ask(plain, &o[i], &want[i]);
        }
        for (uint32_t i = 0; i < MANY; i++)
            CHECK_OK(lathe_request_submit(e, &o[i], &r[i], &err), &err);
        for (uint32_t i = 0; i < MANY; i++) {
            collect(r[i], &got);
            check_same_run(&got, &want[i], drafters[d], i * 5);
        }
        for (int32_t s = 0; s < 3; s++)
            check_state(e, s, fresh, drafters[d]);
        lathe_engine_close(e);
        lathe_engine_close(fresh);
    }
    lathe_engine_close(plain);
}

/* ---- Forced patterns -------------------------------------------------------------------------- */

enum pattern { ALL_RIGHT, ALL_WRONG, WRONG_AT_RANDOM, SOMETIMES_NONE, RANDOM_TOKENS, N_PATTERNS };

/* Knows the continuation and spoils it by pattern. */
struct scripted {
    enum pattern pattern;
    int32_t token[CTX]; /* of the whole sequence */
    int32_t n;
    struct rng rng;
};

static struct scripted script;

static lathe_status scripted_committed(struct drafter *d, const struct committed *c,
                                       lathe_error *err)
{
    (void)d, (void)c, (void)err;
    return LATHE_OK;
}

static lathe_status scripted_propose(struct drafter *d, struct draft_request *r, int32_t n,
                                     lathe_error *err)
{
    (void)d, (void)err;
    for (int32_t i = 0; i < n; i++) {
        r[i].n = 0;
        int32_t wrong = script.pattern == ALL_RIGHT ? 99
                        : script.pattern == ALL_WRONG
                            ? 0
                            : (int32_t)rng_below(&script.rng, (uint32_t)r[i].most + 1);
        if (script.pattern == SOMETIMES_NONE && rng_below(&script.rng, 2))
            continue;
        for (int32_t k = 0; k < r[i].most; k++) {
            int32_t at = r[i].pos + 1 + k;
            int32_t right = at < script.n ? script.token[at] : 0;
            if (script.pattern == RANDOM_TOKENS)
                right = (int32_t)rng_below(&script.rng, 8000);
            r[i].draft[r[i].n++] = k == wrong ? (right + 1) % 8000 : right;
        }
    }
    return LATHE_OK;
}

static void scripted_rewind(struct drafter *d, int32_t slot, int32_t n)
{
    (void)d, (void)slot, (void)n;
}

static lathe_status scripted_save(const struct drafter *d, int32_t slot, struct buf *out,
                                  lathe_error *err)
{
    (void)d, (void)slot, (void)out, (void)err;
    return LATHE_OK;
}

static const struct drafter_ops scripted_ops = {
    .name = "scripted",
    .committed = scripted_committed,
    .propose = scripted_propose,
    .rewind = scripted_rewind,
    .save = scripted_save,
};

/* Once the engine has nothing to do. */
static void swap_drafter(lathe_engine *e, const struct drafter_ops **ops, struct drafter **drafter)
{
    const struct drafter_ops *old_ops;
    struct drafter *old;
    pthread_mutex_lock(&e->lock);
    while (!e->resting || e->kicked) {
        pthread_mutex_unlock(&e->lock);
        sched_yield();
        pthread_mutex_lock(&e->lock);
    }
    old_ops = e->spec.ops;
    old = e->spec.drafter;
    e->spec.ops = *ops;
    e->spec.drafter = *drafter;
    *ops = old_ops;
    *drafter = old;
    pthread_mutex_unlock(&e->lock);
}

/* Lends the engine the scripted drafter in place of its own. */
static void lend(lathe_engine *e, const struct drafter_ops **ops, struct drafter **drafter)
{
    *ops = &scripted_ops;
    *drafter = NULL;
    swap_drafter(e, ops, drafter);
}

static void give_back(lathe_engine *e, const struct drafter_ops *ops, struct drafter *drafter)
{
    swap_drafter(e, &ops, &drafter);
}

TEST(forced_patterns_leave_the_right_state)
{
    static const int32_t ks[] = {1, 3, 7, 15};
    lathe_engine *plain = open_with("none", 0, 1, 1);
    for (int k = test_quick() ? 3 : 0; k < 4; k++) {
        lathe_engine *e = open_with("ngram", ks[k], 1, 1);
        const struct drafter_ops *ops;
        struct drafter *drafter;
        lend(e, &ops, &drafter);
        for (int pattern = 0; pattern < N_PATTERNS; pattern++)
            for (uint32_t i = 0; i < (test_quick() ? 1 : 4); i++) {
                struct prompt p;
                struct run want, got;
                lathe_conversation c;
                lathe_request_options o;
                lathe_error err;
                lathe_prompt rendered;
                char what[64];
                make_prompt(&p, i + 6 * (uint32_t)k);
                options_for(plain, &p, i, &c, &o);
                ask(plain, &o, &want);
                CHECK_OK(lathe_render(lathe_engine_text(plain), &c, &rendered, &err), &err);
                script.pattern = (enum pattern)pattern;
                script.n = (int32_t)rendered.tokens.n + want.n;
                script.rng.s = i;
                CHECK(script.n <= CTX);
                memcpy(script.token, rendered.tokens.id, rendered.tokens.n * sizeof(int32_t));
                memcpy(script.token + rendered.tokens.n, want.token,
                       (size_t)want.n * sizeof(int32_t));
                lathe_prompt_release(&rendered);
                ask(e, &o, &got);
                snprintf(what, sizeof what, "pattern %d, K %d", pattern, ks[k]);
                check_same_run(&got, &want, what, i);
                if (pattern == ALL_WRONG)
                    CHECK_INT(got.usage.spec.accepted, 0);
                if (pattern == ALL_RIGHT && want.n > 20)
                    CHECK(got.usage.spec.rounds <= want.n / (ks[k] + 1) + 2);
                check_state(e, 0, plain, what);
            }
        give_back(e, ops, drafter);
        lathe_engine_close(e);
    }
    lathe_engine_close(plain);
}

/* Stops of every kind inside a block: end tokens at every place of it, stop strings, limits, the edge of
 * the context (cases B46 and B58), and cancelling after any number of events. */
TEST(rounds_end_where_plain_decoding_ends)
{
    lathe_engine *plain = open_with("none", 0, 1, 1), *e = open_with("ngram", 7, 1, 1);
    const struct drafter_ops *ops;
    struct drafter *drafter;
    struct prompt p;
    static struct run whole, want, got;
    lathe_conversation c;
    lathe_request_options o;
    lathe_prompt rendered;
    lathe_error err;
    make_prompt(&p, 2); /* a story */
    options_for(plain, &p, 0, &c, &o);
    ask(plain, &o, &whole);
    CHECK_OK(lathe_render(lathe_engine_text(plain), &c, &rendered, &err), &err);
    script = (struct scripted){.pattern = ALL_RIGHT, .n = (int32_t)rendered.tokens.n + whole.n};
    memcpy(script.token, rendered.tokens.id, rendered.tokens.n * sizeof(int32_t));
    memcpy(script.token + rendered.tokens.n, whole.token, (size_t)whole.n * sizeof(int32_t));
    lend(e, &ops, &drafter);
    const int32_t by = test_quick() ? 5 : 1;
    for (int32_t i = 1; i < 20; i += by) {
        o.max_tokens = i;
        ask(plain, &o, &want);
        ask(e, &o, &got);
        check_same_run(&got, &want, "max_tokens", (uint32_t)i);
        check_state(e, 0, plain, "max_tokens");
    }
    o.max_tokens = answer_tokens();
    for (int32_t i = 1; i < 20; i += by) {
        o.stop_id = &whole.token[i];
        o.n_stop_id = 1;
        ask(plain, &o, &want);
        ask(e, &o, &got);
        check_same_run(&got, &want, "stop id", (uint32_t)i);
        check_state(e, 0, plain, "stop id");
    }
    o.n_stop_id = 0;
    for (size_t i = 10; i < 60; i += 3 * (size_t)by) {
        char stop[8];
        const char *list = stop;
        snprintf(stop, sizeof stop, "%.5s", whole.text + i);
        o.stop = &list;
        o.n_stop = 1;
        ask(plain, &o, &want);
        ask(e, &o, &got);
        CHECK_INT(want.finish, LATHE_FINISH_STOP_STRING);
        check_same_run(&got, &want, "stop string", (uint32_t)i);
        check_state(e, 0, plain, "stop string");
    }
    o.n_stop = 0;
    for (int32_t i = 1; i < 24; i += by) {
        lathe_request *r;
        lathe_event ev;
        CHECK_OK(lathe_request_submit(e, &o, &r, &err), &err);
        for (int32_t k = 0; k < i; k++)
            lathe_request_next(r, -1, &ev);
        lathe_request_cancel(r);
        collect(r, &got);
        CHECK(got.finish == LATHE_FINISH_CANCELLED || got.finish == LATHE_FINISH_STOP ||
              got.finish == LATHE_FINISH_LENGTH);
        if (e->slots[0].n_committed > 0) /* its prompt was not left */
            check_state(e, 0, plain, "cancel");
    }
    give_back(e, ops, drafter);
    lathe_prompt_release(&rendered);
    lathe_engine_close(e);
    lathe_engine_close(plain);
}

TEST(the_edge_of_the_context)
{
    for (int d = 0; d < N_DRAFTERS; d++)
        for (int32_t ctx = 8; ctx <= 40; ctx += test_quick() ? 32 : 8) {
            lathe_engine_options eo;
            lathe_engine *plain, *e;
            lathe_error err;
            lathe_request_options o;
            struct run want, got;
            int32_t token[5] = {764, 259, 7863, 523, 2163};
            lathe_engine_options_init(&eo);
            eo.model_dir = test_path("models/nano");
            eo.n_ctx = ctx;
            eo.n_threads = 1;
            eo.spec = "none";
            CHECK_OK(lathe_engine_open(&plain, &eo, &err), &err);
            eo.spec = drafters[d];
            CHECK_OK(lathe_engine_open(&e, &eo, &err), &err);
            for (size_t n = 1; n <= 5; n += 4) {
                lathe_request_options_init(lathe_engine_text(plain), false, &o);
                make_sampling(&o.sampling, 0);
                o.token = token;
                o.n_token = n;
                o.ignore_eos = true;
                o.n_logprobs = 0;
                ask(plain, &o, &want);
                CHECK_INT(want.finish, LATHE_FINISH_CONTEXT);
                CHECK_INT(want.n, ctx - (int32_t)n);
                ask(e, &o, &got);
                check_same_run(&got, &want, drafters[d], (uint32_t)ctx);
            }
            lathe_engine_close(plain);
            lathe_engine_close(e);
        }
}

TEST(drafters_are_chosen_and_refused)
{
    lathe_engine_options o, bad;
    lathe_engine *e;
    lathe_error err;
    int32_t k;
    lathe_engine_options_init(&o);
    o.model_dir = test_path("models/nano");
    o.n_ctx = 64;
    CHECK_OK(lathe_engine_open(&e, &o, &err), &err);
    CHECK_STR(lathe_engine_drafter(e, &k), "dflash2+ngram"); /* what lies beside the model */
    CHECK(k >= 7);
    lathe_engine_close(e);
    o.spec = "mtp";
    bad = o;
    bad.draft_k = -1;
    CHECK_ERR(lathe_engine_open(&e, &bad, &err), &err, LATHE_E_ARGUMENT, "draft_k is -1");
    o.draft_k = 100; /* more than it can give: clipped, with a warning */
    CHECK_OK(lathe_engine_open(&e, &o, &err), &err);
    CHECK_STR(lathe_engine_drafter(e, &k), "mtp");
    CHECK_INT(k, 8);
    lathe_engine_close(e);
    o.draft_k = 0;
    bad = o;
    bad.spec = "eagle";
    CHECK_ERR(lathe_engine_open(&e, &bad, &err), &err, LATHE_E_ARGUMENT, "no drafter \"eagle\"");
    bad.spec = "dflash2";
    bad.draft_dir = "no/such";
    CHECK_ERR(lathe_engine_open(&e, &bad, &err), &err, LATHE_E_IO, "no/such");
    bad.spec = "mtp";
    CHECK_ERR(lathe_engine_open(&e, &bad, &err), &err, LATHE_E_ARGUMENT, "takes no checkpoint");
}

/* Rejection sampling through the engine: the second token of many seeds has the law that plain sampling
 * gives it, and greedy requests are untouched. The drafter's first token is often wrong at this
 * temperature, so that both branches are taken. */
TEST(rejection_keeps_the_law)
{
    enum { SEEDS = 400, VOCAB = 8192 };
    static int32_t count[2][VOCAB];
    struct prompt p;
    static struct run out;
    lathe_conversation c;
    lathe_request_options o;
    memset(count, 0, sizeof count);
    make_prompt(&p, 2);
    int32_t drafted = 0, accepted = 0;
    for (int how = 0; how < 2; how++) {
        lathe_engine_options eo;
        lathe_engine *e;
        lathe_error err;
        lathe_engine_options_init(&eo);
        eo.model_dir = test_path("models/nano");
        eo.spec = how ? "mtp" : "none";
        eo.rejection = how;
        eo.draft_k = how ? 2 : 0;
        eo.n_ctx = 128;
        eo.n_threads = 1;
        CHECK_OK(lathe_engine_open(&e, &eo, &err), &err);
        options_for(e, &p, 0, &c, &o);
        o.max_tokens = 4;
        o.no_prefix_reuse = false;
        o.sampling.temperature = 1.5f;
        o.sampling.top_k = 8;
        for (int64_t seed = 0; seed < (test_quick() ? 120 : SEEDS); seed++) {
            o.sampling.seed = seed + how * 1000000; /* two samples apart */
            ask(e, &o, &out);
            if (out.n > 2)
                count[how][out.token[2]]++;
            drafted += out.usage.spec.drafted;
            accepted += out.usage.spec.accepted;
        }
        lathe_engine_close(e);
    }
    CHECK(accepted > drafted / 10 && accepted < drafted * 9 / 10);
    /* Two samples of one law: the sum of (a - b)^2 / (a + b) over the cells is chi-squared with about as
     * many degrees of freedom as there are cells; five standard deviations above is no chance. */
    double chi = 0, cells = 0;
    for (int i = 0; i < VOCAB; i++) {
        double a = count[0][i], b = count[1][i];
        if (a + b < 10)
            continue;
        chi += (a - b) * (a - b) / (a + b);
        cells++;
    }
    printf("     chi squared %.1f over %.0f cells, %d of %d drafts accepted\n", chi, cells,
           accepted, drafted);
    CHECK(cells >= 4);
    if (!(chi < cells + 5 * sqrt(2 * cells)))
        FAIL("chi squared %.1f over %.0f cells", chi, cells);
}

/* Case B65: every combination works or is refused at open with one clear line. */
TEST(config_corners)
{
    static const struct {
        const char *spec;
        int32_t draft_k, n_slots, n_ctx;
        bool rejection;
    } corner[] = {
        {"none", 0, 1, 256, false},     {"mtp", 1, 1, 256, false},
        {"mtp", 15, 8, 64, false},      {"mtp", 7, 1, 8, false},
        {"mtp", 3, 4, 64, false},       {"dflash2", 7, 1, 8, false},
        {"dflash2", 7, 4, 64, false},   {"ngram", 15, 2, 16, false},
        {"mtp+ngram", 15, 2, 16, true}, {"dflash2+ngram", 2, 3, 9, true},
    };
    struct model_spec m;
    lathe_engine_options o;
    lathe_engine *e, *plain;
    lathe_error err;
    for (size_t i = 0; i < sizeof corner / sizeof *corner; i += test_quick() ? 3 : 1) {
        lathe_engine_options_init(&o);
        o.model_dir = test_path("models/nano");
        o.n_ctx = corner[i].n_ctx;
        o.spec = "none";
        CHECK_OK(lathe_engine_open(&plain, &o, &err), &err);
        o.spec = corner[i].spec;
        o.draft_k = corner[i].draft_k;
        o.n_slots = corner[i].n_slots;
        o.rejection = corner[i].rejection;
        CHECK_OK(lathe_engine_open(&e, &o, &err), &err);
        for (size_t n = 1; n <= 5; n += 4) {
            int32_t token[5] = {32, 3427, 77, 296, 259};
            lathe_request_options ro;
            struct run want, got;
            lathe_request_options_init(lathe_engine_text(e), false, &ro);
            make_sampling(&ro.sampling, 0);
            ro.token = token;
            ro.n_token = n;
            ro.max_tokens = 20;
            ro.n_logprobs = 0;
            ask(plain, &ro, &want);
            ask(e, &ro, &got);
            check_same_run(&got, &want, corner[i].spec, (uint32_t)i);
            ro.draft_k = 0; /* the same as none */
            ask(e, &ro, &got);
            check_same_run(&got, &want, corner[i].spec, (uint32_t)i);
            CHECK_INT(got.usage.spec.drafted, 0);
        }
        lathe_engine_close(e);
        lathe_engine_close(plain);
    }
    model_spec_init(&m);
    m.vocab = 8192;
    m.tokenizer = true;
    m.has_mtp = false;
    make_model(test_tmp("headless"), &m);
    lathe_engine_options_init(&o);
    o.model_dir = test_tmp("headless");
    o.n_ctx = 64;
    o.spec = "mtp";
    CHECK_ERR(lathe_engine_open(&e, &o, &err), &err, LATHE_E_ARGUMENT, "has no MTP head");
    o.spec = "auto"; /* what there is: lookup */
    CHECK_OK(lathe_engine_open(&e, &o, &err), &err);
    CHECK_STR(lathe_engine_drafter(e, NULL), "ngram");
    lathe_engine_close(e);
    /* A drafter of another model names both numbers. */
    o.spec = "dflash2";
    o.draft_dir = test_path("models/nano-dflash2");
    CHECK_ERR(lathe_engine_open(&e, &o, &err), &err, LATHE_E_ARGUMENT, "320");
    CHECK(strstr(err.message, "64") != NULL);
}

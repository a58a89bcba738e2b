/* Rounds that the device decides say what the host's say, and leave the same state, whatever ends them. The CPU does
 * not run ahead of itself by choice: here it is told to. On a GPU the rounds are captured ones, replayed: case B105; no row of
 * them is padding. */
#include "test.h"

#include <math.h>

#include "base/json.h"
#include "device.h"
#include "engine/engine.h"

/* Else rounds have as many rows as clocks have it. */
static bool is_fixed(const char *spec)
{
    return !strchr(spec, '+');
}

static lathe_engine *open_engine(const char *spec, int32_t n_slots, int32_t n_ctx, bool ahead)
{
    lathe_engine_options o;
    lathe_engine *e;
    lathe_error err;
    lathe_engine_options_init(&o);
    o.model_dir = test_path("models/nano");
    o.spec = spec;
    o.fixed_k = is_fixed(spec);
    o.n_slots = n_slots;
    o.n_ctx = n_ctx;
    o.n_threads = 2;
    CHECK_OK(lathe_engine_open(&e, &o, &err), &err);
    CHECK(e->ahead.is_on == !e->backend->is_host);
    CHECK(e->ahead.most_rows == 1 + e->spec.draft_k || !is_fixed(spec));
    CHECK(e->ahead.most_rows > 1 || strcmp(spec, "none") == 0);
    e->ahead.is_on = ahead; /* it is idle: its thread touches nothing */
    return e;
}

struct answer {
    char text[4096];
    lathe_event last; /* without its text */
};

/* The answer, cancelled after so many events with text; 0: not at all. */
static void ask(lathe_engine *e, const lathe_request_options *o, int32_t cancel_after,
                struct answer *a)
{
    lathe_request *r;
    lathe_error err;
    lathe_event ev;
    size_t n = 0;
    CHECK_OK(lathe_request_submit(e, o, &r, &err), &err);
    do {
        lathe_request_next(r, -1, &ev);
        if (ev.type != LATHE_EVENT_TEXT && ev.type != LATHE_EVENT_REASONING)
            continue;
        CHECK(n + ev.n_text < sizeof a->text);
        memcpy(a->text + n, ev.text, ev.n_text);
        n += ev.n_text;
        if (cancel_after && --cancel_after == 0)
            lathe_request_cancel(r);
    } while (ev.type != LATHE_EVENT_FINISH);
    a->text[n] = 0;
    a->last = ev;
    lathe_request_close(r);
}

static void check_same(const char *spec, const struct answer *a, const struct answer *b)
{
    CHECK_STR(a->text, b->text);
    CHECK_INT(a->last.finish, b->last.finish);
    CHECK_INT(a->last.usage.completion_tokens, b->last.usage.completion_tokens);
    CHECK_INT(a->last.usage.cached_tokens, b->last.usage.cached_tokens);
    if (!is_fixed(spec))
        return;
    CHECK_INT(a->last.usage.spec.rounds, b->last.usage.spec.rounds);
    CHECK_INT(a->last.usage.spec.drafted, b->last.usage.spec.drafted);
    CHECK_INT(a->last.usage.spec.accepted, b->last.usage.spec.accepted);
}

/* The state of slot 0 is that of the same sequence. */
static void check_same_state(lathe_engine *a, lathe_engine *b)
{
    CHECK_INT(a->slots[0].n_committed, b->slots[0].n_committed);
    CHECK(memcmp(a->slots[0].token, b->slots[0].token,
                 (size_t)a->slots[0].n_committed * sizeof(int32_t)) == 0);
    for (int32_t i = 0; i < a->state.recurrent.shape.n_layers; i++) {
        struct tensor S[2] = {recurrent_S(&a->state.recurrent, i),
                              recurrent_S(&b->state.recurrent, i)};
        struct tensor tail[2] = {recurrent_tail(&a->state.recurrent, i),
                                 recurrent_tail(&b->state.recurrent, i)};
        const struct tensor *pair[] = {S, tail};
        for (int k = 0; k < 2; k++) {
            size_t n = (size_t)tensor_row(pair[k]) * dtype_size(pair[k]->dtype);
            unsigned char *copy = malloc(2 * n);
            lathe_error err;
            CHECK(copy);
            CHECK_OK(a->backend->copy_out(a->stream, copy, pair[k][0].data, n, &err), &err);
            CHECK_OK(b->backend->copy_out(b->stream, copy + n, pair[k][1].data, n, &err), &err);
            CHECK(memcmp(copy, copy + n, n) == 0);
            free(copy);
        }
    }
}

static void options_for(lathe_engine *e, lathe_conversation *c, const char *messages,
                        lathe_request_options *o)
{
    *c = (lathe_conversation){.messages = messages, .thinking = LATHE_OFF};
    lathe_request_options_init(lathe_engine_text(e), false, o);
    o->conversation = c;
    o->sampling.temperature = 0;
}

#define KILN                                                                                       \
    "A kiln is a furnace for firing or burning or drying such things as porcelain or bricks."
#define ASK_KILN "[{\"role\": \"user\", \"content\": \"What is a kiln?\"}]"
#define ASK_ON                                                                                     \
    "[{\"role\": \"user\", \"content\": \"What is a kiln?\"}, {\"role\": \"assistant\", "          \
    "\"content\": \"" KILN "\"}, {\"role\": \"user\", \"content\": \"And a furnace?\"}]"

/* Where its text may end, whatever round that is in. */
static const char *const stops[] = {"burning", "il", "a furnace",   "for",    ".",
                                    "firing",  "or", "drying such", "things", "porcelain"};
enum { N_STOPS = sizeof stops / sizeof stops[0], WAYS = 11, ALL_WAYS = WAYS + N_STOPS };

/* One of the ways in which an answer ends. */
static void ask_kiln(lathe_engine *e, int how, struct answer *a)
{
    bool by_text = how == 5 || how >= WAYS;
    lathe_conversation c;
    lathe_request_options o;
    int32_t stop_id[RESIDENT_STOPS + 4];
    for (int32_t i = 0; i < RESIDENT_STOPS + 4; i++)
        stop_id[i] = 5000 + i;
    options_for(e, &c, ASK_KILN, &o);
    o.stop_id = stop_id;
    o.n_stop_id = how == 10 ? RESIDENT_STOPS + 4 : 0; /* more than the device knows */
    o.max_tokens = how < 4 ? 1 + how : how == 4 ? 29 : -1;
    o.stop = stops + (how < WAYS ? 0 : how - WAYS);
    o.n_stop = by_text;
    o.ignore_eos = how >= 6 && how < 9; /* to the edge of the context */
    o.min_tokens = how == 7 ? 35 : how == 9 ? 3 : 0;
    o.n_logprobs = how == 8 ? 0 : -1;
    ask(e, &o, 0, a);
    CHECK_INT(a->last.finish, how < 4                ? LATHE_FINISH_LENGTH
                              : by_text              ? LATHE_FINISH_STOP_STRING
                              : how >= 6 && how <= 8 ? LATHE_FINISH_CONTEXT
                                                     : LATHE_FINISH_STOP);
}

static void ask_on(lathe_engine *e, struct answer *a)
{
    lathe_conversation c;
    lathe_request_options o;
    options_for(e, &c, ASK_ON, &o);
    c.preserve_thinking = LATHE_ON;
    o.max_tokens = 20;
    ask(e, &o, 0, a);
}

static void check_ends(const char *spec)
{
    lathe_engine *e[2] = {open_engine(spec, 1, 128, false), open_engine(spec, 1, 128, true)};
    for (int how = 0; how < ALL_WAYS; how++) {
        struct answer a[2];
        ask_kiln(e[0], how, &a[0]);
        ask_kiln(e[1], how, &a[1]);
        check_same(spec, &a[0], &a[1]);
        check_same_state(e[0], e[1]);
        ask_on(e[0], &a[0]);
        ask_on(e[1], &a[1]);
        check_same(spec, &a[0], &a[1]);
        check_same_state(e[0], e[1]);
    }
    lathe_activity done[2];
    for (int i = 0; i < 2; i++)
        lathe_engine_activity(e[i], &done[i], NULL, 0);
    if (is_fixed(spec))
        CHECK(done[0].step_rows.sum == done[1].step_rows.sum);
    lathe_engine_close(e[0]);
    lathe_engine_close(e[1]);
}

/* Calls, which may end the answer. */
static void check_calls(const char *spec)
{
    struct json_doc d;
    lathe_error err;
    lathe_engine *e[2] = {open_engine(spec, 1, 512, false), open_engine(spec, 1, 512, true)};
    CHECK_OK(
        json_read_file(&d, test_path("tests/golden/tool_calls.json"), &json_limits_model, &err),
        &err);
    for (size_t i = 0; i < json_array_size(d.root) && (i < 2 || !test_quick()); i++) {
        json_t *row = json_array_get(d.root, i);
        char *messages = json_dumps(json_object_get(row, "messages"), 0);
        char *tools = json_dumps(json_object_get(row, "tools"), 0);
        struct answer a[2];
        for (int k = 0; k < 2; k++) {
            lathe_conversation c;
            lathe_request_options o;
            options_for(e[k], &c, messages, &o);
            c.thinking = json_is_true(json_object_get(row, "thinking")) ? LATHE_ON : LATHE_OFF;
            c.tools = tools;
            o.max_calls = 1 + (int32_t)i % 2;
            ask(e[k], &o, 0, &a[k]);
            CHECK_INT(a[k].last.finish, LATHE_FINISH_CALLS);
        }
        check_same(spec, &a[0], &a[1]);
        check_same_state(e[0], e[1]);
        free(messages);
        free(tools);
    }
    json_release(&d);
    lathe_engine_close(e[0]);
    lathe_engine_close(e[1]);
}

/* Tokens that are drawn: by all the settings that the device knows, and some that it leaves to the host; then an answer
 * that ends in what was said before. */
static void check_drawn(const char *spec)
{
    static const lathe_sampling how[] = {
        {.temperature = 1, .top_k = 20, .top_p = 0.95F, .repetition_penalty = 1, .seed = 1},
        {.temperature = 0.6F,
         .top_k = 64,
         .top_p = 1,
         .min_p = 0.05F,
         .repetition_penalty = 1,
         .seed = 2},
        {.temperature = 2, .top_k = 5, .top_p = 1, .repetition_penalty = 1.1F, .seed = 3},
        {.temperature = 1.5F,
         .top_k = 40,
         .top_p = 0.8F,
         .presence_penalty = 1.5F,
         .frequency_penalty = 0.2F,
         .repetition_penalty = 1,
         .seed = 4},
        {.temperature = 1, .top_k = 1, .top_p = 1, .repetition_penalty = 1, .seed = 5},
        {.temperature = 0.7F, .top_k = 0, .top_p = 1, .repetition_penalty = 1, .seed = 8},
        {.temperature = 1,
         .top_k = -1,
         .top_p = 1,
         .min_p = 0.1F,
         .repetition_penalty = 1.2F,
         .seed = 9},
        {.temperature = 1, .top_k = 0, .top_p = 0.9F, .repetition_penalty = 1, .seed = 6},
        {.temperature = 1, .top_k = 65, .top_p = 1, .repetition_penalty = 1, .seed = 7},
    };
    enum { N_HOW = sizeof how / sizeof *how, OF_HOST = 7 };
    lathe_engine *e[2] = {open_engine(spec, 1, 256, false), open_engine(spec, 1, 256, true)};
    for (int i = 0; i < N_HOW; i++) {
        char stop[8] = "";
        for (int turn = 0; turn < 2; turn++) {
            struct answer a[2];
            const char *const of[] = {stop};
            for (int k = 0; k < 2; k++) {
                lathe_conversation c;
                lathe_request_options o;
                options_for(e[k], &c, "[{\"role\": \"user\", \"content\": \"Tell me a story.\"}]",
                            &o);
                o.sampling = how[i];
                o.max_tokens = test_quick() ? 25 : 60;
                o.ignore_eos = true;
                o.stop = of;
                o.n_stop = (size_t)turn;
                ask(e[k], &o, 0, &a[k]);
                CHECK_INT(a[k].last.finish, turn ? LATHE_FINISH_STOP_STRING : LATHE_FINISH_LENGTH);
            }
            check_same(spec, &a[0], &a[1]);
            check_same_state(e[0], e[1]);
            if (e[1]->backend->is_host && turn == 0)
                CHECK((e[1]->step.resident_host->n_rounds > 0) == (i < OF_HOST));
            e[1]->step.resident_host->n_rounds = 0;
            size_t n = strlen(a[0].text), at = n * (size_t)(5 + i) / 16;
            while (at > 0 && ((unsigned char)a[0].text[at] & 0xC0) == 0x80)
                at--;
            if (turn == 0)
                (void)snprintf(stop, sizeof stop, "%.4s", a[0].text + at);
        }
    }
    lathe_engine_close(e[0]);
    lathe_engine_close(e[1]);
}

/* The sequence of a cancelled request is as long as chance has it, and its state is that of so many tokens. */
static void check_cancelled(const char *spec)
{
    lathe_engine *e[2] = {open_engine(spec, 1, 256, false), open_engine(spec, 1, 256, true)};
    for (int32_t after = 1; after < 6; after++) {
        struct answer a;
        lathe_conversation c;
        lathe_request_options o;
        options_for(e[1], &c, "[{\"role\": \"user\", \"content\": \"Tell me a story.\"}]", &o);
        ask(e[1], &o, after, &a);
        int32_t n = e[1]->slots[0].n_committed - a.last.usage.prompt_tokens;
        CHECK(n >= a.last.usage.completion_tokens - 1);
        o.max_tokens = n + 1;
        ask(e[0], &o, 0, &a);
        check_same_state(e[0], e[1]);
    }
    lathe_engine_close(e[0]);
    lathe_engine_close(e[1]);
}

/* Long enough for penalties to tell, and for drafts of all kinds; then behind a prompt that ends where the kernels are
 * launched for a longer context. */
static void check_long_answers(const char *spec)
{
    enum { N_CTX = 4300, LONG = 4070 };
    lathe_engine *e[2] = {open_engine(spec, 1, N_CTX, false), open_engine(spec, 1, N_CTX, true)};
    static int32_t prompt[LONG];
    bool host = e[1]->backend->is_host;
    for (int32_t i = 0; i < LONG; i++)
        prompt[i] = 200 + i * i % 977;
    for (int turn = 0; turn < 2; turn++) {
        struct answer a[2];
        for (int i = 0; i < 2; i++) {
            lathe_conversation c;
            lathe_request_options o;
            options_for(e[i], &c, "[{\"role\": \"user\", \"content\": \"Tell me a story.\"}]", &o);
            o.max_tokens = turn || test_quick() ? 100 : 500;
            o.ignore_eos = true;
            if (turn) {
                o.conversation = NULL;
                o.token = prompt;
                o.n_token = host ? 200 : LONG; /* the host's kernels know no such lengths */
            }
            ask(e[i], &o, 0, &a[i]);
        }
        check_same(spec, &a[0], &a[1]);
        check_same_state(e[0], e[1]);
        if (is_fixed(spec)) /* the host drafts nothing, to the last token */
            CHECK(a[1].last.usage.spec.draft_ms == 0);
        if (turn == 0 && e[1]->ahead.most_rows > 1)
            CHECK(a[1].last.usage.spec.draft_ms < a[0].last.usage.spec.draft_ms / 2);
        else if (e[1]->ahead.most_rows == 1 && host) /* where the device's count can be read */
            CHECK(e[1]->step.resident_host->n_rounds >= 99);
    }
    lathe_engine_close(e[0]);
    lathe_engine_close(e[1]);
}

/* Requests that come and go beside one that is decided by the device, some of them not by it. */
static void check_beside_others(const char *spec)
{
    enum { MANY = 5 };
    static const char *const messages[MANY] = {
        "[{\"role\": \"user\", \"content\": \"Tell me a story.\"}]", ASK_KILN,
        "[{\"role\": \"user\", \"content\": \"What is a lamp?\"}]",
        "[{\"role\": \"user\", \"content\": \"Name a city.\"}]", ASK_ON};
    lathe_engine *plain = open_engine(spec, 1, 256, false), *e = open_engine(spec, 2, 256, true);
    struct answer alone[MANY], a;
    lathe_conversation c[MANY];
    lathe_request_options o[MANY];
    lathe_request *r[MANY];
    lathe_error err;
    for (int i = 0; i < MANY; i++) {
        options_for(plain, &c[i], messages[i], &o[i]);
        o[i].max_tokens = i % 3 == 0 ? 70 : 1; /* 1: but a prompt between the rounds of another */
        o[i].no_prefix_reuse = true;
        if (i == 3) {
            o[i].sampling.temperature = 1;
            o[i].sampling.seed = 5;
        }
        ask(plain, &o[i], 0, &alone[i]);
    }
    for (int i = 0; i < MANY; i++)
        CHECK_OK(lathe_request_submit(e, &o[i], &r[i], &err), &err);
    for (int i = 0; i < MANY; i++) {
        size_t n = 0;
        lathe_event ev;
        do {
            lathe_request_next(r[i], -1, &ev);
            if (ev.type == LATHE_EVENT_TEXT) {
                CHECK(n + ev.n_text < sizeof a.text);
                memcpy(a.text + n, ev.text, ev.n_text);
                n += ev.n_text;
            }
        } while (ev.type != LATHE_EVENT_FINISH);
        a.text[n] = 0;
        a.last = ev;
        check_same(spec, &a, &alone[i]);
        lathe_request_close(r[i]);
    }
    lathe_engine_close(plain);
    lathe_engine_close(e);
}

struct poison {
    lathe_engine *e;
    int32_t n_notes;
};

/* On the engine's own thread, between two rounds. */
static void poison_later(void *ctx)
{
    struct poison *p = ctx;
    float nan = NAN;
    struct tensor S = recurrent_S(&p->e->state.recurrent, 2);
    if (++p->n_notes == 5)
        p->e->backend->copy_in(p->e->stream, (float *)tensor_at(&S, 0) + 5, &nan, sizeof nan);
}

/* A row whose logits are not finite is the host's to judge. */
static void check_nan(const char *spec)
{
    lathe_engine *e = open_engine(spec, 1, 256, true);
    struct poison poison = {.e = e};
    lathe_conversation c;
    lathe_request_options o;
    struct answer want, a;
    options_for(e, &c, ASK_KILN, &o);
    ask(e, &o, 0, &want);
    CHECK_STR(want.text, KILN);
    o.notify = poison_later;
    o.notify_ctx = &poison;
    ask(e, &o, 0, &a);
    CHECK_INT(a.last.finish, LATHE_FINISH_ERROR);
    CHECK_INT(a.last.error.status, LATHE_E_NUMERIC);
    CHECK(strstr(a.last.error.message, "position") != NULL);
    CHECK(a.last.usage.completion_tokens > 1);
    CHECK(strncmp(a.text, KILN, strlen(a.text)) == 0);
    o.notify = NULL;
    ask(e, &o, 0, &a);
    check_same(spec, &a, &want);
    lathe_engine_close(e);
}

/* On the host the shortest run leaves out what others contain. */
static bool has_time(const char *spec)
{
    bool again = strcmp(spec, "mtp") == 0 || strcmp(spec, "dflash2+ngram") == 0;
    return !again || !test_quick() || !test_backend()->is_host;
}

#define CHECKED_WITH(test, check, spec)                                                            \
    TEST(test)                                                                                     \
    {                                                                                              \
        if (has_time(spec))                                                                        \
            check(spec);                                                                           \
    }
#define ROUNDS_OF(name, spec)                                                                      \
    CHECKED_WITH(name##_rounds_end_as_they_should, check_ends, spec)                               \
    CHECKED_WITH(name##_rounds_of_calls, check_calls, spec)                                        \
    CHECKED_WITH(name##_rounds_of_drawn_tokens, check_drawn, spec)                                 \
    CHECKED_WITH(name##_rounds_cancelled, check_cancelled, spec)                                   \
    CHECKED_WITH(name##_rounds_beside_others, check_beside_others, spec)                           \
    CHECKED_WITH(name##_rounds_of_nan, check_nan, spec)                                            \
    CHECKED_WITH(name##_rounds_of_long_answers, check_long_answers, spec)
ROUNDS_OF(plain, "none")
ROUNDS_OF(mtp, "mtp")
ROUNDS_OF(dflash2, "dflash2")
ROUNDS_OF(mtp_or_lookup, "mtp+ngram")
ROUNDS_OF(dflash2_or_lookup, "dflash2+ngram")

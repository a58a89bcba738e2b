/* What was sampled comes back token for token: the prompt of the next turn begins with the prompt and the answer of this
 * one. */
#include "test.h"

#include "base/buf.h"
#include "base/json.h"
#include "engine/engine.h"

enum { CTX = 512, MOST = 40, N_SEEDS = 24 };

static lathe_engine *open_engine(uint64_t memory, const char *spec)
{
    lathe_engine_options o;
    lathe_engine *e;
    lathe_error err;
    lathe_engine_options_init(&o);
    CHECK_INT(o.turn_memory, 64 << 20);
    o.model_dir = test_path("models/nano");
    o.spec = spec;
    o.n_ctx = CTX;
    o.n_threads = 1;
    o.turn_memory = memory;
    CHECK_OK(lathe_engine_open(&e, &o, &err), &err);
    return e;
}

struct answer {
    int32_t sequence[CTX]; /* the prompt and all that came */
    int32_t n, n_prompt, n_thought;
    int32_t thought[CTX]; /* of the reasoning's end */
    struct buf reasoning, text, calls;
    lathe_event last;
};

static void ask(lathe_engine *e, const lathe_request_options *o, struct answer *a)
{
    lathe_request *r;
    lathe_error err;
    lathe_event ev;
    *a = (struct answer){.n_thought = -1};
    buf_init(&a->reasoning, 1 << 16);
    buf_init(&a->text, 1 << 16);
    buf_init(&a->calls, 1 << 16);
    CHECK_OK(lathe_request_submit(e, o, &r, &err), &err);
    a->n = a->n_prompt = lathe_request_prompt_tokens(r);
    memcpy(a->sequence, lathe_request_prompt(r), (size_t)a->n * sizeof *a->sequence);
    do {
        lathe_request_next(r, -1, &ev);
        if (ev.type == LATHE_EVENT_TOKEN) {
            a->sequence[a->n++] = ev.token.id;
        } else if (ev.type == LATHE_EVENT_REASONING) {
            buf_append(&a->reasoning, ev.text, ev.n_text);
        } else if (ev.type == LATHE_EVENT_TEXT) {
            buf_append(&a->text, ev.text, ev.n_text);
        } else if (ev.type == LATHE_EVENT_REASONING_END) {
            a->n_thought = (int32_t)ev.n_id;
            if (ev.n_id)
                memcpy(a->thought, ev.id, ev.n_id * sizeof *ev.id);
        } else if (ev.type == LATHE_EVENT_CALL_BEGIN) {
            buf_printf(&a->calls, "%s{\"id\": \"%s\", \"function\": {\"name\": \"%s\", ",
                       a->calls.len ? ", " : "", ev.call_id, ev.name);
            buf_puts(&a->calls, "\"arguments\": ");
        } else if (ev.type == LATHE_EVENT_CALL_ARGS) {
            buf_append(&a->calls, ev.text, ev.n_text);
        } else if (ev.type == LATHE_EVENT_CALL_END) {
            buf_puts(&a->calls, "}}");
        }
    } while (ev.type != LATHE_EVENT_FINISH);
    a->last = ev;
    lathe_request_close(r);
}

static void release(struct answer *a)
{
    buf_release(&a->reasoning);
    buf_release(&a->text);
    buf_release(&a->calls);
}

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"description\": "
    "\"Current weather of a city\", \"parameters\": {\"type\": \"object\", \"properties\": "
    "{\"city\": {\"type\": \"string\"}, \"days\": {\"type\": \"integer\"}}}}}]";

struct wish {
    const char *question;
    bool thinks, has_tools;
    float temperature;
    int32_t budget;
};

static const struct wish wishes[] = {
    {"What is a kiln?", false, false, 1, -1},
    {"What is a kiln?", true, false, 1, -1},
    {"Name a city.", true, false, 1.3f, 6},
    {"Tell me a story.", false, false, 1.3f, -1},
    {"What is the weather in Oslo for 3 days?", true, true, 0, -1},
};
enum { N_WISHES = sizeof wishes / sizeof *wishes };

static void first_turn(lathe_engine *e, const struct wish *w, int32_t seed, struct buf *messages,
                       struct answer *a)
{
    lathe_conversation c = {.thinking = w->thinks ? LATHE_ON : LATHE_OFF,
                            .tools = w->has_tools ? tools : NULL};
    lathe_request_options o;
    buf_init(messages, 1 << 16);
    buf_printf(messages, "[{\"role\": \"user\", \"content\": \"%s\"}", w->question);
    struct buf whole;
    buf_init(&whole, 1 << 16);
    buf_printf(&whole, "%s]", buf_str(messages));
    lathe_request_options_init(lathe_engine_text(e), w->thinks, &o);
    c.messages = buf_str(&whole);
    o.conversation = &c;
    o.sampling = (lathe_sampling){
        .temperature = w->temperature, .top_p = 1, .repetition_penalty = 1, .seed = seed};
    o.max_tokens = 2 * MOST;
    o.think_budget = w->budget;
    o.n_logprobs = 0;
    ask(e, &o, a);
    buf_release(&whole);
}

/* The answer as clients send it back, and another question. */
static void add_turn(struct buf *messages, const struct answer *a)
{
    buf_puts(messages, ", {\"role\": \"assistant\", \"content\": ");
    json_print_string(messages, buf_str(&a->text), a->text.len);
    if (a->reasoning.len) {
        buf_puts(messages, ", \"reasoning_content\": ");
        json_print_string(messages, buf_str(&a->reasoning), a->reasoning.len);
    }
    if (a->calls.len)
        buf_printf(messages,
                   ", \"tool_calls\": [%s]}, {\"role\": \"tool\", \"content\": \"sunny\"}]",
                   buf_str(&a->calls));
    else
        buf_puts(messages, "}, {\"role\": \"user\", \"content\": \"Why?\"}]");
}

/* How much of the first turn's sequence the second prompt begins with. */
static int32_t common(lathe_engine *e, const struct wish *w, const char *messages,
                      const struct answer *a, const lathe_turn *turn, int32_t *n_cached)
{
    lathe_conversation c = {.messages = messages,
                            .thinking = w->thinks ? LATHE_ON : LATHE_OFF,
                            .preserve_thinking = LATHE_ON,
                            .tools = w->has_tools ? tools : NULL,
                            .turn = turn,
                            .n_turns = turn != NULL};
    lathe_request_options o;
    lathe_prompt p;
    lathe_error err;
    struct answer b;
    lathe_request_options_init(lathe_engine_text(e), w->thinks, &o);
    o.conversation = &c;
    o.max_tokens = 1;
    ask(e, &o, &b);
    int32_t n = 0;
    while (n < a->n && n < b.n_prompt && b.sequence[n] == a->sequence[n])
        n++;
    *n_cached = b.last.usage.cached_tokens;
    /* What it will be is told beforehand. */
    CHECK_OK(lathe_engine_render(e, &c, &p, &err), &err);
    CHECK_INT(p.tokens.n, b.n_prompt);
    CHECK(memcmp(p.tokens.id, b.sequence, p.tokens.n * sizeof *p.tokens.id) == 0);
    lathe_prompt_release(&p);
    release(&b);
    return n;
}

static bool ends_whole(const struct answer *a)
{
    return a->last.finish == LATHE_FINISH_STOP || a->last.finish == LATHE_FINISH_CALLS;
}

/* White space at an end, which the template takes off, and broken characters are another text; control tokens that were
 * sampled as text come back as text. */
static bool comes_back_whole(const struct answer *a)
{
    const struct buf *part[] = {&a->text, &a->reasoning};
    for (int i = 0; i < 2; i++) {
        const char *s = buf_str(part[i]);
        if (part[i]->len && (strchr(" \n\t", s[part[i]->len - 1]) || strchr(" \n\t", s[0]) ||
                             strstr(s, "\xEF\xBF\xBD") || strstr(s, "<tool_call>")))
            return false;
    }
    return ends_whole(a);
}

TEST(next_prompt_begins_with_what_was_sampled)
{
    lathe_engine *e = open_engine(64 << 20, "mtp"), *forgetful = open_engine(0, "none");
    int n_whole = 0, n_lost = 0, n_calls = 0;
    for (int i = 0; i < N_WISHES; i++) {
        int n_seeds = wishes[i].temperature > 0 ? test_quick() ? 6 : N_SEEDS : 1;
        for (int32_t seed = 0; seed < n_seeds; seed++) {
            struct answer a;
            struct buf messages;
            int32_t n_cached, none;
            first_turn(e, &wishes[i], seed, &messages, &a);
            if (comes_back_whole(&a)) {
                add_turn(&messages, &a);
                int32_t n = common(e, &wishes[i], buf_str(&messages), &a, NULL, &n_cached);
                if (n != a.n)
                    FAIL("%s, seed %d: %d of %d tokens of [%s] [%s] [%s]", wishes[i].question,
                         (int)seed, (int)n, (int)a.n, buf_str(&a.reasoning), buf_str(&a.text),
                         buf_str(&a.calls));
                CHECK(n_cached >= a.n - 1);
                n_whole++;
                n_calls += a.calls.len > 0;
                n_lost += common(forgetful, &wishes[i], buf_str(&messages), &a, NULL, &none) < a.n;
            }
            release(&a);
            buf_release(&messages);
        }
    }
    /* Without memory some of these are tokenised otherwise: else nothing was shown. */
    CHECK(n_whole >= 5 && n_lost >= 1 && n_calls >= 1);
    lathe_engine_close(e);
    lathe_engine_close(forgetful);
}

/* An engine that has forgotten, given the reasoning's tokens: the prompt is right up to the answer. */
TEST(given_ids_of_the_reasoning)
{
    lathe_engine *e = open_engine(0, "none");
    const struct wish *w = &wishes[1];
    int n_shown = 0;
    for (int32_t seed = 0; seed < (test_quick() ? 4 : 12); seed++) {
        struct answer a;
        struct buf messages;
        int32_t n_cached;
        first_turn(e, w, seed, &messages, &a);
        if (comes_back_whole(&a) && a.n_thought > 0) {
            lathe_turn turn = {1, a.thought, (size_t)a.n_thought};
            CHECK(memcmp(a.thought, a.sequence + a.n_prompt,
                         (size_t)a.n_thought * sizeof *a.thought) == 0);
            add_turn(&messages, &a);
            CHECK(common(e, w, buf_str(&messages), &a, &turn, &n_cached) >=
                  a.n_prompt + a.n_thought + 1);
            n_shown++;
        }
        release(&a);
        buf_release(&messages);
    }
    CHECK(n_shown > 0);
    lathe_engine_close(e);
}

/* The oldest turns go, whatever their number; a use makes a turn new. */
TEST(memory_is_bounded)
{
    lathe_text *text;
    lathe_error err;
    struct turn_memory m;
    struct buf out;
    enum { N = 1000, LIMIT = 10000 };
    CHECK_OK(lathe_text_open(&text, test_path("models/nano"), &err), &err);
    CHECK_OK(turns_open(&m, LIMIT, &err), &err);
    struct replay_memory known = turns_replay(&m);
    buf_init(&out, 1 << 16);
    char first[40];
    for (int i = 0; i < N; i++) {
        char s[40];
        lathe_tokens t;
        (void)snprintf(s, sizeof s, "turn number %d", i);
        if (i == 0)
            memcpy(first, s, sizeof first);
        CHECK_OK(lathe_tokenize(text, s, strlen(s), false, &t, &err), &err);
        turns_keep(&m, text, t.id, t.n);
        turns_keep(&m, text, t.id, t.n);
        buf_clear(&out);
        CHECK(known.recall(known.ctx, s, strlen(s), &out));
        CHECK(out.len == t.n * sizeof *t.id && memcmp(out.data, t.id, out.len) == 0);
        CHECK(m.bytes <= LIMIT);
        CHECK(known.recall(known.ctx, first, strlen(first), &out));
        lathe_tokens_release(&t);
    }
    CHECK(!known.recall(known.ctx, "turn number 1", 13, &out));
    static int32_t large[LIMIT];
    turns_keep(&m, text, large, LIMIT);
    CHECK(known.recall(known.ctx, first, strlen(first), &out));
    buf_release(&out);
    turns_close(&m);
    lathe_text_close(text);
}

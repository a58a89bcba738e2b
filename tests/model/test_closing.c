/* The end of a think block that the engine brings about: after a budget, and where an end token comes in it. The tokens
 * are those of plain decoding for every drafter, whether the host or the device decides its rounds. */
#include "test.h"

#include "engine/engine.h"

enum { CTX = 128, MOST = 36 };

static const char *const specs[] = {"none",    "ngram",     "mtp",
                                    "dflash2", "mtp+ngram", "dflash2+ngram"};
enum { N_SPECS = sizeof specs / sizeof *specs };

static const char *const questions[] = {
    "[{\"role\": \"user\", \"content\": \"What is a kiln?\"}]",
    "[{\"role\": \"user\", \"content\": \"Name a city.\"}]",
    "[{\"role\": \"user\", \"content\": \"Tell me a story.\"}]"};
enum { N_QUESTIONS = sizeof questions / sizeof *questions };

static lathe_engine *open_engine(const char *spec, bool ahead)
{
    lathe_engine_options o;
    lathe_engine *e;
    lathe_error err;
    lathe_engine_options_init(&o);
    o.model_dir = test_path("models/nano");
    o.spec = spec;
    o.fixed_k = true;
    o.n_ctx = CTX;
    o.n_threads = 1;
    CHECK_OK(lathe_engine_open(&e, &o, &err), &err);
    e->ahead.is_on = ahead && e->ahead.most_rows > 0;
    return e;
}

/* What one is asked, in how it thinks. */
struct wish {
    const char *messages;
    int32_t budget, max_tokens;
    const char *message;
    bool stops;
    int32_t logprobs;
    float temperature;
    lathe_logit_bias bias;
    bool has_bias;
};

struct run {
    int32_t token[CTX];
    float logprob[CTX];
    int32_t n;
    char reasoning[2048], text[2048];
    lathe_event last;
};

static void add(char *to, size_t room, const lathe_event *ev)
{
    size_t n = strlen(to);
    CHECK(n + ev->n_text < room);
    memcpy(to + n, ev->text, ev->n_text + 1);
}

/* The slot's tokens are the sequence's, whether token events were asked for or not. */
static void ask(lathe_engine *e, const struct wish *w, struct run *out)
{
    lathe_conversation c = {.messages = w->messages, .thinking = LATHE_ON};
    lathe_request_options o;
    lathe_request *r;
    lathe_error err;
    lathe_event ev;
    *out = (struct run){.n = 0};
    lathe_request_options_init(lathe_engine_text(e), true, &o);
    o.conversation = &c;
    o.sampling = (lathe_sampling){
        .temperature = w->temperature, .top_p = 1, .repetition_penalty = 1, .seed = 7};
    o.sampling.bias = &w->bias;
    o.sampling.n_bias = w->has_bias;
    o.max_tokens = w->max_tokens ? w->max_tokens : MOST;
    o.think_budget = w->budget;
    o.budget_message = w->message;
    o.end_in_think = w->stops;
    o.n_logprobs = w->logprobs;
    o.no_prefix_reuse = true;
    CHECK_OK(lathe_request_submit(e, &o, &r, &err), &err);
    do {
        lathe_request_next(r, -1, &ev);
        if (ev.type == LATHE_EVENT_TOKEN) {
            out->logprob[out->n] = ev.token.logprob;
            out->token[out->n++] = ev.token.id;
        } else if (ev.type == LATHE_EVENT_REASONING) {
            add(out->reasoning, sizeof out->reasoning, &ev);
        } else if (ev.type == LATHE_EVENT_TEXT) {
            add(out->text, sizeof out->text, &ev);
        }
    } while (ev.type != LATHE_EVENT_FINISH);
    out->last = ev;
    lathe_request_close(r);
    CHECK(ev.finish != LATHE_FINISH_ERROR);
    int32_t n = e->slots[0].n_committed - ev.usage.prompt_tokens;
    if (w->logprobs >= 0) {
        CHECK_INT(out->n, ev.usage.completion_tokens);
        CHECK(n >= out->n - 1);
        CHECK(memcmp(e->slots[0].token + ev.usage.prompt_tokens, out->token,
                     (size_t)(out->n - 1) * sizeof *out->token) == 0);
    } else {
        out->n = ev.usage.completion_tokens - 1;
        memcpy(out->token, e->slots[0].token + ev.usage.prompt_tokens,
               (size_t)out->n * sizeof *out->token);
    }
}

static void check_same(const struct run *got, const struct run *want, const char *what)
{
    if (strcmp(got->text, want->text) != 0 || strcmp(got->reasoning, want->reasoning) != 0)
        FAIL("%s: [%s] [%s], expected [%s] [%s]", what, got->reasoning, got->text, want->reasoning,
             want->text);
    CHECK_INT(got->last.finish, want->last.finish);
    CHECK_INT(got->last.usage.completion_tokens, want->last.usage.completion_tokens);
    CHECK_INT(got->last.usage.reasoning_tokens, want->last.usage.reasoning_tokens);
    int32_t n = got->n < want->n ? got->n : want->n;
    CHECK(n >= got->last.usage.completion_tokens - 1);
    for (int32_t i = 0; i < n; i++)
        if (got->token[i] != want->token[i])
            FAIL("%s: token %d is %d, expected %d", what, i, got->token[i], want->token[i]);
}

/* What closes a block, as ids. */
static int32_t closing_ids(lathe_engine *e, const char *message, int32_t *id)
{
    const lathe_text *text = lathe_engine_text(e);
    const char *const part[] = {message ? message : "", "\n", "</think>", "\n\n"};
    int32_t n = 0;
    lathe_error err;
    for (int i = 0; i < 4; i++) {
        lathe_tokens t;
        CHECK_OK(lathe_tokenize(text, part[i], strlen(part[i]), i == 2, &t, &err), &err);
        for (size_t k = 0; k < t.n; k++)
            id[n++] = t.id[k];
        if (i == 2)
            CHECK(t.n == 1 && lathe_token_is_control(text, t.id[0]));
        lathe_tokens_release(&t);
    }
    return n;
}

/* Greedy continuation of a sequence of ids, without anything that the engine does for think blocks. */
static void continue_raw(lathe_engine *e, const int32_t *id, size_t n, int32_t most, int32_t *out)
{
    lathe_request_options o;
    lathe_request *r;
    lathe_error err;
    lathe_event ev;
    int32_t k = 0;
    lathe_request_options_init(lathe_engine_text(e), false, &o);
    o.token = id;
    o.n_token = n;
    o.sampling = (lathe_sampling){.top_p = 1, .repetition_penalty = 1};
    o.max_tokens = most;
    o.n_logprobs = 0;
    CHECK_OK(lathe_request_submit(e, &o, &r, &err), &err);
    do {
        lathe_request_next(r, -1, &ev);
        if (ev.type == LATHE_EVENT_TOKEN)
            out[k++] = ev.token.id;
    } while (ev.type != LATHE_EVENT_FINISH);
    lathe_request_close(r);
    CHECK_INT(k, most);
}

/* A budget is so many tokens of what is generated without one, then the closing ids, then what follows all these. */
TEST(budget_is_exact)
{
    static const int32_t budget[] = {0, 1, 2, 5, 9};
    lathe_engine *e = open_engine("none", false);
    lathe_activity a;
    int n_closed = 0;
    for (int q = 0; q < N_QUESTIONS; q++) {
        for (int b = 0; b < 10; b += test_quick() ? 3 : 1) {
            struct run free_run, run;
            int32_t id[64], whole[CTX], rest[CTX];
            struct wish w = {.messages = questions[q], .budget = -1};
            ask(e, &w, &free_run);
            w.budget = budget[b % 5];
            w.message = b < 5 ? NULL : " I must answer now.";
            ask(e, &w, &run);
            int32_t n = closing_ids(e, w.message, id), p = run.last.usage.prompt_tokens;
            CHECK_INT(run.last.usage.reasoning_tokens, w.budget + n);
            CHECK_INT(run.last.usage.forced_tokens, n);
            lathe_engine_activity(e, &a, NULL, 0);
            CHECK_INT(a.closed_for_budget, ++n_closed);
            for (int32_t i = 0; i < w.budget; i++)
                CHECK_INT(run.token[i], free_run.token[i]);
            for (int32_t i = 0; i < n; i++)
                CHECK_INT(run.token[w.budget + i], id[i]);
            if (e->backend != &backend_cpu)
                continue; /* a prompt's arithmetic is another than decoding's there */
            memcpy(whole, e->slots[0].token, (size_t)(p + w.budget + n) * sizeof *whole);
            int32_t behind = run.n - w.budget - n;
            continue_raw(e, whole, (size_t)(p + w.budget + n), behind, rest);
            for (int32_t i = 0; i < behind; i++)
                CHECK_INT(run.token[w.budget + n + i], rest[i]);
        }
    }
    lathe_engine_close(e);
}

/* Ids of a piece of nano's reasoning that are made end tokens. */
static int32_t id_of(lathe_engine *e, const char *s)
{
    lathe_tokens t;
    lathe_error err;
    CHECK_OK(lathe_tokenize(lathe_engine_text(e), s, strlen(s), true, &t, &err), &err);
    CHECK_INT(t.n, 1);
    int32_t id = t.id[0];
    lathe_tokens_release(&t);
    return id;
}

/* Every drafter, by rounds of the host and of the device, says what plain decoding says. */
static void check_all(int (*make)(lathe_engine *e, int i, struct wish *w), int n_wishes)
{
    static struct run want[256];
    lathe_engine *plain = open_engine("none", false);
    CHECK(n_wishes <= 256);
    for (int i = 0; i < n_wishes; i++) {
        struct wish w = {.budget = -1, .logprobs = -1};
        (void)make(plain, i, &w);
        ask(plain, &w, &want[i]);
    }
    lathe_engine_close(plain);
    for (int k = 1; k < 2 * N_SPECS; k++) { /* 0 is the plain one */
        lathe_engine *e = open_engine(specs[k / 2], k % 2);
        for (int i = 0; i < n_wishes; i++) {
            struct wish w = {.budget = -1, .logprobs = -1};
            struct run got;
            char what[80];
            (void)make(e, i, &w);
            ask(e, &w, &got);
            (void)snprintf(what, sizeof what, "%s%s, wish %d", specs[k / 2],
                           k % 2 ? " by the device" : "", i);
            check_same(&got, &want[i], what);
        }
        lathe_engine_close(e);
    }
}

static int budgets(lathe_engine *e, int i, struct wish *w)
{
    (void)e;
    w->messages = questions[i % N_QUESTIONS];
    w->budget = i; /* at all places of rounds */
    w->message = i % 4 == 3 ? " That is enough, I think." : NULL;
    w->temperature = i % 5 == 4 ? 1 : 0;
    return 0;
}

TEST(budgets_with_every_drafter)
{
    check_all(budgets, test_quick() ? 9 : 14);
}

/* The end token is a word of the reasoning; with the answer's own behind it. */
static int ends(lathe_engine *e, int i, struct wish *w)
{
    static const char *const word[] = {".", " is", " word", " of", " a"};
    w->messages = questions[i % N_QUESTIONS];
    w->stops = i / N_QUESTIONS % 2;
    w->budget = i % 4 == 0 ? 6 : -1;
    e->text->stop_id[0] = id_of(e, word[i / (2 * N_QUESTIONS) % 5]);
    return 0;
}

TEST(end_tokens_in_thought_with_every_drafter)
{
    check_all(ends, test_quick() ? 9 : 12);
}

TEST(end_token_is_replaced_once)
{
    lathe_engine *e = open_engine("mtp", false);
    int32_t id[64], n = closing_ids(e, NULL, id), end = e->text->im_end;
    struct run run;
    lathe_activity a;
    /* Nothing but end tokens: the second one, behind the block, ends it. */
    struct wish w = {.messages = questions[0],
                     .budget = -1,
                     .message = "unused",
                     .bias = {end, 100},
                     .has_bias = true};
    ask(e, &w, &run);
    CHECK_INT(run.n, n + 1);
    CHECK(memcmp(run.token, id, (size_t)n * sizeof *id) == 0);
    CHECK_INT(run.token[n], end);
    CHECK_INT(run.last.finish, LATHE_FINISH_STOP);
    CHECK_INT(run.last.usage.reasoning_tokens, n);
    CHECK_INT(run.last.usage.forced_tokens, n);
    lathe_engine_activity(e, &a, NULL, 0);
    CHECK(a.closed_for_end == 1 && a.ended_in_reasoning == 0 && a.closed_for_budget == 0);
    CHECK_STR(run.reasoning, "");
    CHECK_STR(run.text, "");
    w.stops = true;
    ask(e, &w, &run);
    CHECK_INT(run.n, 1);
    CHECK_INT(run.token[0], end);
    CHECK_INT(run.last.finish, LATHE_FINISH_STOP);
    CHECK_INT(run.last.usage.forced_tokens, 0);
    lathe_engine_activity(e, &a, NULL, 0);
    CHECK(a.closed_for_end == 1 && a.ended_in_reasoning == 1);
    lathe_engine_close(e);
}

/* Entries for tokens without choice are of the same law as others, and whatever is drafted. */
TEST(logprobs_of_closings)
{
    lathe_engine *plain = open_engine("none", false), *e = open_engine("dflash2", true);
    for (int32_t budget = 0; budget < 8; budget += test_quick() ? 3 : 1) {
        struct wish w = {.messages = questions[1], .budget = budget, .message = " So."};
        struct run a, b;
        ask(plain, &w, &a);
        ask(e, &w, &b);
        check_same(&b, &a, "logprobs");
        CHECK_INT(a.n, a.last.usage.completion_tokens);
        for (int32_t i = 0; i < a.n; i++)
            CHECK(fabsf(a.logprob[i] - b.logprob[i]) < 1e-4f && a.logprob[i] <= 0);
    }
    lathe_engine_close(plain);
    lathe_engine_close(e);
}

TEST(budgets_leave_room_for_an_answer)
{
    static const struct {
        int32_t budget, max_tokens, thought;
    } row[] = {{100, 16, 12}, {16, 16, 12}, {15, 16, 15}, {7, 4, 3}, {1, 1, 1}};
    lathe_engine *e = open_engine("none", false);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct wish w = {
            .messages = "[{\"role\": \"user\", \"content\": \"What is a kiln?\"}]",
            .budget = row[i].budget,
            .max_tokens = row[i].max_tokens,
        };
        struct run run;
        ask(e, &w, &run);
        CHECK_INT(run.last.finish, LATHE_FINISH_LENGTH);
        CHECK_INT(run.n, row[i].max_tokens);
        int32_t newline = id_of(e, "\n"), thought = row[i].thought;
        if (thought < run.n)
            CHECK_INT(run.token[thought], newline);
    }
    lathe_engine_close(e);
}

/* Rounds of the device serve a request with a budget until it comes into reach. */
TEST(device_rounds_before_the_budget)
{
    lathe_engine *e = open_engine("none", true);
    struct wish w = {.messages = questions[2], .budget = 20, .logprobs = -1};
    struct run run;
    ask(e, &w, &run);
    if (e->backend->is_host)
        CHECK(e->step.resident_host->n_rounds > 0);
    CHECK(run.last.usage.reasoning_tokens >= 20);
    lathe_engine_close(e);
}

TEST(refusals)
{
    lathe_engine *e = open_engine("none", false);
    lathe_conversation c = {.messages = questions[0]};
    lathe_request_options o;
    lathe_request *r;
    lathe_error err;
    lathe_request_options_init(lathe_engine_text(e), true, &o);
    o.conversation = &c;
    o.think_budget = -2;
    CHECK_ERR(lathe_request_submit(e, &o, &r, &err), &err, LATHE_E_ARGUMENT, "think_budget is -2");
    o.think_budget = 5;
    o.budget_message = "a</think>";
    CHECK_ERR(lathe_request_submit(e, &o, &r, &err), &err, LATHE_E_ARGUMENT, "budget_message");
    o.budget_message = NULL;
    o.no_parse = true;
    CHECK_ERR(lathe_request_submit(e, &o, &r, &err), &err, LATHE_E_ARGUMENT, "think_budget is 5");
    o.no_parse = false;
    o.conversation = NULL;
    o.text = "x";
    o.n_text = 1;
    CHECK_ERR(lathe_request_submit(e, &o, &r, &err), &err, LATHE_E_ARGUMENT, "think_budget is 5");
    lathe_engine_close(e);
}

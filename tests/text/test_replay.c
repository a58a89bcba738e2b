/* Known tokens in the place of a turn's: they must say the same bytes, with control tokens in the same places. */
#include "test.h"

#include "fail_alloc.h"
#include "text/replay.h"

enum { MOST = 512 };

struct ids {
    int32_t id[MOST];
    size_t n;
};

static lathe_text *open_nano(void)
{
    lathe_text *t;
    lathe_error e;
    CHECK_OK(lathe_text_open(&t, test_path("models/nano"), &e), &e);
    return t;
}

static void add(const lathe_text *t, struct ids *to, const char *s, size_t n, bool control)
{
    lathe_tokens tokens;
    lathe_error e;
    CHECK_OK(lathe_tokenize(t, s, n, control, &tokens, &e), &e);
    CHECK(to->n + tokens.n <= MOST);
    memcpy(to->id + to->n, tokens.id, tokens.n * sizeof *tokens.id);
    to->n += tokens.n;
    lathe_tokens_release(&tokens);
}

/* A text cut elsewhere than the tokenizer cuts it: character by character. */
static void add_letters(const lathe_text *t, struct ids *to, const char *s)
{
    for (; *s; s++)
        add(t, to, s, 1, false);
}

static void render(const lathe_text *t, const char *messages, const struct ids *ids, size_t message,
                   lathe_prompt *p)
{
    lathe_error e;
    lathe_turn turn = {message, ids ? ids->id : NULL, ids ? ids->n : 0};
    lathe_conversation c = {.messages = messages,
                            .thinking = LATHE_ON,
                            .preserve_thinking = LATHE_ON,
                            .turn = &turn,
                            .n_turns = ids != NULL};
    CHECK_OK(lathe_render(t, &c, p, &e), &e);
}

/* The tokens say the text, and have control tokens where the plain rendering has them. */
static void check_sound(const lathe_text *t, const lathe_prompt *got, const lathe_prompt *plain)
{
    size_t k = 0, at = 0;
    CHECK_STR(got->text, plain->text);
    for (size_t i = 0; i < got->tokens.n; i++) {
        size_t n;
        const char *s = lathe_token_bytes(t, got->tokens.id[i], &n);
        CHECK(s && at + n <= got->n_text && memcmp(got->text + at, s, n) == 0);
        CHECK(got->tokens.offset[i] <= at && at - got->tokens.offset[i] < 4);
        if (lathe_token_is_control(t, got->tokens.id[i])) {
            while (!lathe_token_is_control(t, plain->tokens.id[k]))
                k++;
            CHECK_INT(got->tokens.id[i], plain->tokens.id[k]);
            CHECK_INT(at, plain->tokens.offset[k]);
            k++;
        }
        at += n;
    }
    CHECK_INT(at, got->n_text);
    for (; k < plain->tokens.n; k++)
        CHECK(!lathe_token_is_control(t, plain->tokens.id[k]));
}

static bool contains(const lathe_prompt *p, const struct ids *ids)
{
    for (size_t i = 0; i + ids->n <= p->tokens.n; i++)
        if (memcmp(p->tokens.id + i, ids->id, ids->n * sizeof *ids->id) == 0)
            return true;
    return false;
}

static void check(const lathe_text *t, const char *messages, size_t message, const struct ids *ids,
                  bool is_used)
{
    lathe_prompt plain, got;
    render(t, messages, NULL, 0, &plain);
    render(t, messages, ids, message, &got);
    check_sound(t, &got, &plain);
    CHECK(!contains(&plain, ids));
    if (contains(&got, ids) != is_used)
        FAIL("%s: ids are %sused", messages, is_used ? "not " : "");
    if (!is_used)
        CHECK(got.tokens.n == plain.tokens.n &&
              memcmp(got.tokens.id, plain.tokens.id, plain.tokens.n * sizeof(int32_t)) == 0);
    lathe_prompt_release(&plain);
    lathe_prompt_release(&got);
}

#define USER "{\"role\": \"user\", \"content\": \"hello there\"}"

TEST(ids_of_a_turn)
{
    lathe_text *t = open_nano();
    const char *messages = "[{\"role\": \"system\", \"content\": \"short\"}, " USER
                           ", {\"role\": \"assistant\", \"reasoning_content\": \"some words\", "
                           "\"content\": \"a caf\xC3\xA9 <think> table\"}, " USER "]";
    struct ids ids = {.n = 0};
    /* The reasoning alone, which ends inside a token of the prompt; with its line break. */
    add_letters(t, &ids, "some words");
    check(t, messages, 2, &ids, true);
    add_letters(t, &ids, "\n");
    check(t, messages, 2, &ids, true);
    /* The end of the block as its token; as characters it is another text. */
    struct ids spelled = ids;
    add_letters(t, &spelled, "</think>");
    check(t, messages, 2, &spelled, false);
    add(t, &ids, "</think>", 8, true);
    check(t, messages, 2, &ids, true);
    add(t, &ids, "\n\n", 2, false);
    add_letters(t, &ids, "a caf");
    check(t, messages, 2, &ids, true);
    /* The answer's <think> is plain text. */
    struct ids control = ids;
    add(t, &ids, "\xC3\xA9 <think> ta", 13, false);
    check(t, messages, 2, &ids, true);
    add(t, &control, "\xC3\xA9 ", 3, false);
    add(t, &control, "<think>", 7, true);
    check(t, messages, 2, &control, false);
    add_letters(t, &ids, "ble");
    check(t, messages, 2, &ids, true);
    /* Of another message; of a user's. */
    check(t, messages, 1, &ids, false);
    check(t, messages, 3, &ids, false);
    check(t, messages, 1000, &ids, false);
    /* Beyond the turn; another text; no token at all. */
    struct ids longer = ids;
    add(t, &longer, "<|im_end|>", 10, true);
    check(t, messages, 2, &longer, false);
    struct ids other = ids;
    other.id[0] = other.id[1];
    check(t, messages, 2, &other, false);
    other.id[0] = -1;
    check(t, messages, 2, &other, false);
    other.id[0] = INT32_MAX;
    check(t, messages, 2, &other, false);
    lathe_text_close(t);
}

/* Behind "<think>\n" an empty block goes on with the same token: "\n" alone has no place there. */
TEST(ids_that_begin_inside_a_token)
{
    lathe_text *t = open_nano();
    const char *messages =
        "[" USER ", {\"role\": \"assistant\", \"content\": \"words\"}, " USER "]";
    struct ids ids = {.n = 0};
    lathe_prompt plain, got;
    add(t, &ids, "\n", 1, false);
    render(t, messages, NULL, 0, &plain);
    render(t, messages, &ids, 1, &got);
    CHECK(strstr(plain.text, "<think>\n\n</think>"));
    check_sound(t, &got, &plain);
    CHECK_INT(got.tokens.n, plain.tokens.n);
    lathe_prompt_release(&plain);
    lathe_prompt_release(&got);
    lathe_text_close(t);
}

/* An empty block, a turn without one in front of it, and messages that have no turn. */
TEST(turns_are_counted)
{
    lathe_text *t = open_nano();
    const char *messages =
        "[" USER ", {\"role\": \"assistant\", \"content\": \"\"}, {\"role\": \"assistant\", "
        "\"content\": \"first words\"}, " USER ", {\"role\": \"assistant\", \"content\": "
        "\"<|im_start|>assistant second words\"}, " USER ", {\"role\": \"assistant\", "
        "\"reasoning_content\": \"third words\", \"content\": \"x\"}, " USER "]";
    struct ids ids = {.n = 0};
    add_letters(t, &ids, "third words");
    check(t, messages, 6, &ids, true);
    check(t, messages, 4, &ids, false);
    lathe_text_close(t);
}

static bool recall(void *ctx, const char *s, size_t n, struct buf *out)
{
    const struct ids *ids = ctx;
    if (n < 10 || memcmp(s + n - 5, "words", 5) != 0)
        return false;
    buf_append(out, ids->id, ids->n * sizeof *ids->id);
    return true;
}

/* A memory that errs changes nothing. */
TEST(memory_is_checked)
{
    lathe_text *t = open_nano();
    lathe_conversation c = {.messages = "[" USER ", {\"role\": \"assistant\", \"content\": "
                                        "\"some words\"}, " USER "]",
                            .thinking = LATHE_OFF,
                            .preserve_thinking = LATHE_ON};
    struct ids ids = {.n = 0};
    struct replay_memory memory = {recall, &ids};
    lathe_error e;
    add(t, &ids, "<think>\n\n</think>\n\n", 19, true);
    add_letters(t, &ids, "some words");
    for (size_t n = 0; n <= ids.n; n++) {
        lathe_prompt plain, got;
        struct ids cut = ids;
        cut.n = n;
        memory.ctx = &cut;
        CHECK_OK(text_render_known(t, &c, NULL, true, &plain, &e), &e);
        CHECK_OK(text_render_known(t, &c, &memory, true, &got, &e), &e);
        check_sound(t, &got, &plain);
        bool is_same = got.tokens.n == plain.tokens.n &&
                       memcmp(got.tokens.id, plain.tokens.id, got.tokens.n * sizeof(int32_t)) == 0;
        CHECK(is_same == (n < ids.n));
        lathe_prompt_release(&plain);
        lathe_prompt_release(&got);
    }
    lathe_text_close(t);
}

TEST(open_turns)
{
    lathe_text *t = open_nano();
    lathe_error e;
    lathe_prompt p;
    size_t first, n;
    lathe_conversation c = {.messages = "[" USER "]", .thinking = LATHE_ON};
    CHECK_OK(lathe_render(t, &c, &p, &e), &e);
    CHECK(replay_open_turn(t, &p, &first));
    CHECK_INT(first, p.tokens.n - 2);
    CHECK(memcmp(lathe_token_bytes(t, p.tokens.id[first], &n), "<think>", 7) == 0);
    lathe_prompt_release(&p);
    c.no_generation_prompt = true;
    CHECK_OK(lathe_render(t, &c, &p, &e), &e);
    CHECK(!replay_open_turn(t, &p, &first));
    lathe_prompt_release(&p);
    lathe_text_close(t);
}

/* Of a message the first turn that fits is used; turns that are not in the order of messages are not. */
TEST(several_turns)
{
    static const char messages[] =
        "[" USER ", {\"role\": \"assistant\", \"content\": \"one word\"}, " USER
        ", {\"role\": \"assistant\", \"content\": \"two words\"}, " USER "]";
    lathe_text *t = open_nano();
    struct ids wrong = {.n = 0}, one = {.n = 0}, two = {.n = 0};
    add_letters(t, &wrong, "three");
    add_letters(t, &one, "one");
    add_letters(t, &two, "two");
    const lathe_turn turn[] = {{1, wrong.id, wrong.n},
                               {1, one.id, one.n},
                               {3, wrong.id, wrong.n},
                               {3, two.id, two.n}},
                     late[] = {{3, two.id, two.n}, {1, one.id, one.n}};
    lathe_conversation c = {
        .messages = messages, .thinking = LATHE_OFF, .preserve_thinking = LATHE_OFF};
    lathe_prompt plain, p;
    lathe_error e;
    CHECK_OK(lathe_render(t, &c, &plain, &e), &e);
    c.turn = turn;
    c.n_turns = 4;
    CHECK_OK(lathe_render(t, &c, &p, &e), &e);
    check_sound(t, &p, &plain);
    CHECK(contains(&p, &one) && contains(&p, &two));
    lathe_prompt_release(&p);
    c.turn = late;
    c.n_turns = 2;
    CHECK_OK(lathe_render(t, &c, &p, &e), &e);
    check_sound(t, &p, &plain);
    CHECK(!contains(&p, &one) && contains(&p, &two));
    lathe_prompt_release(&p);
    lathe_prompt_release(&plain);
    lathe_text_close(t);
}

/* Without memory for it a turn may be tokenised, or the prompt fail; nothing else. */
TEST(failing_allocations)
{
    lathe_text *t = open_nano();
    struct ids ids = {.n = 0};
    add_letters(t, &ids, "some");
    lathe_turn turn = {1, ids.id, ids.n};
    lathe_conversation c = {.messages = "[" USER ", {\"role\": \"assistant\", \"content\": "
                                        "\"some words\"}, " USER "]",
                            .thinking = LATHE_OFF,
                            .preserve_thinking = LATHE_OFF,
                            .turn = &turn,
                            .n_turns = 1};
    struct replay_memory memory = {recall, &ids};
    lathe_prompt plain, p;
    lathe_error e;
    CHECK_OK(text_render_known(t, &c, NULL, true, &plain, &e), &e);
    for (size_t nth = 1;; nth++) {
        fail_alloc_arm(nth);
        lathe_status st = text_render_known(t, &c, &memory, true, &p, &e);
        bool failed = fail_alloc_disarm();
        if (st) {
            CHECK(failed && st == LATHE_E_MEMORY);
        } else {
            check_sound(t, &p, &plain);
            lathe_prompt_release(&p);
        }
        if (!failed) {
            CHECK(nth > 20);
            break;
        }
    }
    lathe_prompt_release(&plain);
    lathe_text_close(t);
}

/* Known tokens of turns, which may come from a client: whatever they are, the prompt says the same text, and has control
 * tokens where it has them without. A byte for the turn, a text up to the first NUL, then ids: two bytes each, or for
 * 0xFF and a number, that many bytes of the turn's text as they are tokenised alone. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "text/replay.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 512 };

static void require(bool ok)
{
    if (!ok)
        abort();
}

static bool recall(void *ctx, const char *s, size_t n, struct buf *out)
{
    const lathe_turn *turn = ctx;
    (void)s, (void)n;
    buf_append(out, turn->id, turn->n * sizeof *turn->id);
    return turn->message % 2;
}

/* Do the tokens say the text as it stands? Of text that is not NFC they say its NFC. */
static bool says_text(const lathe_text *t, const lathe_prompt *p)
{
    size_t at = 0, n;
    for (size_t i = 0; i < p->tokens.n; i++, at += n) {
        const char *s = lathe_token_bytes(t, p->tokens.id[i], &n);
        require(s != NULL);
        if (n > p->n_text - at || memcmp(p->text + at, s, n) != 0)
            return false;
    }
    return at == p->n_text;
}

static void check(const lathe_text *t, const lathe_prompt *got, const lathe_prompt *plain)
{
    size_t at = 0, k = 0;
    if (!says_text(t, plain))
        return;
    require(got->n_text == plain->n_text && memcmp(got->text, plain->text, got->n_text) == 0);
    for (size_t i = 0; i < got->tokens.n; i++) {
        size_t n;
        const char *s = lathe_token_bytes(t, got->tokens.id[i], &n);
        require(s && n <= got->n_text - at && memcmp(got->text + at, s, n) == 0);
        if (lathe_token_is_control(t, got->tokens.id[i])) {
            while (k < plain->tokens.n && !lathe_token_is_control(t, plain->tokens.id[k]))
                k++;
            require(k < plain->tokens.n && plain->tokens.id[k] == got->tokens.id[i] &&
                    plain->tokens.offset[k] == at && got->tokens.offset[i] == at);
            k++;
        }
        at += n;
    }
    require(at == got->n_text);
    for (; k < plain->tokens.n; k++)
        require(!lathe_token_is_control(t, plain->tokens.id[k]));
}

/* The ids that the rest of the input asks for. */
static size_t read_ids(const lathe_text *t, const char *text, size_t n_text, const uint8_t *s,
                       size_t n, int32_t *id)
{
    size_t n_id = 0, at = 0;
    for (size_t i = 0; i + 1 < n && n_id + 64 < MOST; i += 2) {
        lathe_tokens k;
        size_t len = s[i + 1] % 16;
        if (s[i] != 0xFF) {
            id[n_id++] = s[i] << 8 | s[i + 1];
            continue;
        }
        len = len < n_text - at ? len : n_text - at;
        if (lathe_tokenize(t, text + at, len, s[i + 1] & 16, &k, NULL))
            continue;
        if (k.n)
            memcpy(id + n_id, k.id, k.n * sizeof *id);
        n_id += k.n;
        at += len;
        lathe_tokens_release(&k);
    }
    return n_id;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static lathe_text *t;
    if (!t)
        require(!lathe_text_open(&t, "models/nano", NULL));
    if (size < 2)
        return 0;
    const char *text = (const char *)data + 1;
    const uint8_t *end = memchr(text, 0, size - 1);
    size_t n = end ? (size_t)(end - data) - 1 : size - 1;
    static int32_t id[MOST];
    struct buf messages;
    buf_init(&messages, 1 << 20);
    buf_puts(&messages, "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",");
    buf_puts(&messages, data[0] & 2 ? "\"reasoning_content\":" : "\"content\":");
    json_print_string(&messages, text, n);
    buf_puts(&messages, "},{\"role\":\"user\",\"content\":\"b\"}]");
    lathe_turn turn = {data[0] & 1, id, 0};
    lathe_conversation c = {.messages = buf_str(&messages),
                            .thinking = data[0] & 4 ? LATHE_ON : LATHE_OFF,
                            .preserve_thinking = LATHE_ON};
    lathe_prompt plain, got;
    if (n < 4096 && !text_render_known(t, &c, NULL, true, &plain, NULL)) {
        turn.n = read_ids(t, text, n, data + 1 + n, size - 1 - n, id);
        struct replay_memory memory = {recall, &turn};
        c.turn = &turn;
        c.n_turns = 1;
        require(!text_render_known(t, &c, data[0] & 8 ? &memory : NULL, true, &got, NULL));
        check(t, &got, &plain);
        lathe_prompt_release(&got);
        lathe_prompt_release(&plain);
    }
    buf_release(&messages);
    return 0;
}

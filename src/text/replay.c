#include "text/replay.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "text/grow.h"

struct span {
    size_t from, to;   /* tokens */
    size_t begin, end; /* their bytes */
};

static bool is_control(const lathe_text *text, int32_t id)
{
    return tokenizer_is_control(text->tokenizer, id);
}

/* The turn behind <|im_start|>, which is token i: its header is "assistant\n", and a token begins behind that. */
static bool turn_at(const lathe_text *text, const lathe_prompt *p, size_t i, struct span *s)
{
    static const char start[] = "<|im_start|>", header[] = "assistant\n";
    const lathe_tokens *t = &p->tokens;
    size_t n_header = strlen(header), at = t->offset[i] + strlen(start), n = 0;
    if (text->im_start < 0 || t->id[i] != text->im_start || p->n_text - at < n_header ||
        memcmp(p->text + at, header, n_header) != 0)
        return false;
    s->begin = at + n_header;
    s->from = i + 1;
    while (s->from < t->n && t->offset[s->from] < s->begin)
        s->from++;
    (void)tokenizer_bytes(text->tokenizer, t->id[s->from - 1], &n);
    if (t->offset[s->from - 1] + n != s->begin)
        return false;
    s->to = s->from;
    while (s->to < t->n && t->id[s->to] != text->im_end && t->id[s->to] != text->im_start)
        s->to++;
    s->end = s->to < t->n ? t->offset[s->to] : p->n_text;
    return true;
}

static bool is_complete(const lathe_text *text, const lathe_prompt *p, const struct span *s)
{
    return s->to < p->tokens.n && p->tokens.id[s->to] == text->im_end;
}

bool replay_open_turn(const lathe_text *text, const lathe_prompt *p, size_t *first)
{
    for (size_t i = p->tokens.n; i-- > 0;) {
        struct span s;
        if (p->tokens.id[i] != text->im_start)
            continue;
        if (!turn_at(text, p, i, &s) || s.to < p->tokens.n)
            return false;
        *first = s.from;
        return true;
    }
    return false;
}

/* The bytes of the turn that ids say from `begin` on; 0: they say something else, begin inside a token, end inside a
 * character, or have other control tokens than the prompt. */
static size_t match(const lathe_text *text, const lathe_prompt *p, const struct span *s,
                    size_t begin, const int32_t *id, size_t n)
{
    const lathe_tokens *t = &p->tokens;
    size_t at = begin, own = s->from; /* own: the prompt's token that is next */
    while (own < s->to && t->offset[own] < begin)
        own++;
    if (begin > s->begin && (own == s->to || t->offset[own] != begin))
        return 0; /* it begins inside a token, which the tokens before it need */
    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *bytes = tokenizer_bytes(text->tokenizer, id[i], &len);
        for (; own < s->to && t->offset[own] < at; own++)
            if (is_control(text, t->id[own]))
                return 0;
        bool is_own = own < s->to && t->offset[own] == at && is_control(text, t->id[own]);
        if (!bytes || len > s->end - at || memcmp(bytes, p->text + at, len) != 0 ||
            is_control(text, id[i]) != is_own || (is_own && t->id[own] != id[i]))
            return 0;
        own += is_own;
        at += len;
    }
    for (; own < s->to && t->offset[own] < at; own++)
        if (is_control(text, t->id[own]))
            return 0;
    return at < s->end && ((unsigned char)p->text[at] & 0xC0) == 0x80 ? 0 : at - begin;
}

/* ---- The new tokens ------------------------------------------------------------------------- */

struct tokens {
    lathe_tokens t;
    size_t cap_id, cap_offset;
};

static lathe_status reserve(struct tokens *o, size_t n, lathe_error *err)
{
    int32_t *id = grow(o->t.id, &o->cap_id, o->t.n + n + 1, sizeof *id);
    if (id)
        o->t.id = id;
    size_t *offset = grow(o->t.offset, &o->cap_offset, o->t.n + n + 1, sizeof *offset);
    if (offset)
        o->t.offset = offset;
    return id && offset ? LATHE_OK : fail_memory(err, n * sizeof *offset);
}

/* Tokens [from, to) of t, whose offsets count from `base`. */
static lathe_status copy(struct tokens *o, const lathe_tokens *t, size_t from, size_t to,
                         size_t base, lathe_error *err)
{
    lathe_status st = reserve(o, to - from, err);
    for (size_t i = from; i < to && !st; i++) {
        o->t.id[o->t.n] = t->id[i];
        o->t.offset[o->t.n++] = base + t->offset[i];
    }
    return st;
}

/* ids that say the prompt's bytes from `at` on. */
static lathe_status put_ids(struct tokens *o, const lathe_text *text, const lathe_prompt *p,
                            size_t at, const int32_t *id, size_t n, lathe_error *err)
{
    lathe_status st = reserve(o, n, err);
    for (size_t i = 0; i < n && !st; i++) {
        size_t len = 0, first = at;
        while (((unsigned char)p->text[first] & 0xC0) == 0x80)
            first--;
        (void)tokenizer_bytes(text->tokenizer, id[i], &len);
        o->t.id[o->t.n] = id[i];
        o->t.offset[o->t.n++] = first;
        at += len;
    }
    return st;
}

/* The turn with ids in the place of what says its bytes from `begin` to `at`: before them its own tokens, and behind
 * them, where they end inside one, its text tokenised anew up to the next control token. */
static lathe_status put_turn(struct tokens *o, const lathe_text *text, const lathe_prompt *p,
                             const struct span *s, size_t begin, size_t at, const int32_t *id,
                             size_t n, struct watch *watch, lathe_error *err)
{
    const lathe_tokens *t = &p->tokens;
    size_t head = s->from, tail = s->from;
    while (head < s->to && t->offset[head] < begin)
        head++;
    while (tail < s->to && (t->offset[tail] < at || !is_control(text, t->id[tail])))
        tail++;
    size_t next = tail < s->to ? t->offset[tail] : s->end;
    lathe_tokens rest = {0};
    lathe_status st = copy(o, t, s->from, head, 0, err);
    if (!st)
        st = put_ids(o, text, p, begin, id, n, err);
    if (!st)
        st = tokenizer_encode_watched(text->tokenizer, p->text + at, next - at, false, NULL, watch,
                                      &rest, err);
    if (!st)
        st = copy(o, &rest, 0, rest.n, at, err);
    lathe_tokens_release(&rest);
    return st ? st : copy(o, t, tail, s->to, 0, err);
}

/* ---- Turns ---------------------------------------------------------------------------------- */

/* Where what a model generates begins: behind what a generation prompt opens a think block with. */
static size_t generated_from(const lathe_prompt *p, const struct span *s)
{
    static const char open[] = "<think>\n";
    size_t n = strlen(open);
    return s->end - s->begin >= n && memcmp(p->text + s->begin, open, n) == 0 ? s->begin + n
                                                                              : s->begin;
}

struct source {
    const lathe_turn *turn;
    size_t n_turns,
        at; /* at: the first one of the turn of the prompt that comes, or of a later one */
    const size_t *message;
    size_t n_messages;
    const struct replay_memory *memory;
    struct watch *watch;
    struct buf recalled;
};

/* The turns of the prompt, to be compared with n_messages. */
static size_t count_turns(const lathe_text *text, const lathe_prompt *p)
{
    size_t n = 0;
    struct span s;
    for (size_t i = 0; i < p->tokens.n; i++)
        if (p->tokens.id[i] == text->im_start && turn_at(text, p, i, &s) &&
            is_complete(text, p, &s))
            n++;
    return n;
}

/* Puts turn number k of the prompt. */
static lathe_status put_known(struct tokens *o, const lathe_text *text, const lathe_prompt *p,
                              const struct span *s, size_t k, struct source *from, lathe_error *err)
{
    buf_clear(&from->recalled);
    if (from->memory && s->end > s->begin &&
        from->memory->recall(from->memory->ctx, p->text + s->begin, s->end - s->begin,
                             &from->recalled)) {
        const int32_t *id = (const void *)from->recalled.data;
        size_t n = from->recalled.len / sizeof *id;
        if (n && match(text, p, s, s->begin, id, n) == s->end - s->begin)
            return put_turn(o, text, p, s, s->begin, s->end, id, n, from->watch, err);
    }
    if (k >= from->n_messages)
        return copy(o, &p->tokens, s->from, s->to, 0, err);
    while (from->at < from->n_turns && from->turn[from->at].message < from->message[k])
        from->at++;
    for (size_t i = from->at; i < from->n_turns && from->turn[i].message == from->message[k]; i++) {
        const lathe_turn *turn = &from->turn[i];
        size_t begin = generated_from(p, s);
        size_t n = turn->n ? match(text, p, s, begin, turn->id, turn->n) : 0;
        if (n)
            return put_turn(o, text, p, s, begin, begin + n, turn->id, turn->n, from->watch, err);
    }
    return copy(o, &p->tokens, s->from, s->to, 0, err);
}

lathe_status replay_prompt(const lathe_text *text, lathe_prompt *p, const lathe_turn *turn,
                           size_t n_turns, const size_t *message, size_t n_messages,
                           const struct replay_memory *memory, struct watch *watch,
                           lathe_error *err)
{
    struct source from = {
        .turn = turn,
        .n_turns = n_turns,
        .message = message,
        .n_messages = n_messages,
        .memory = memory,
        .watch = watch,
    };
    struct tokens o = {0};
    lathe_status st = LATHE_OK;
    size_t done = 0, k = 0;
    if ((n_turns == 0 && !memory) || n_messages == 0)
        return LATHE_OK;
    if (count_turns(text, p) != n_messages)
        from.n_turns = 0;
    buf_init(&from.recalled, INT_MAX);
    for (size_t i = 0; i < p->tokens.n && !st; i++) {
        struct span s;
        if (p->tokens.id[i] != text->im_start || !turn_at(text, p, i, &s) ||
            !is_complete(text, p, &s))
            continue;
        st = copy(&o, &p->tokens, done, s.from, 0, err);
        if (!st)
            st = put_known(&o, text, p, &s, k++, &from, err);
        done = s.to;
        i = s.to;
    }
    if (!st)
        st = copy(&o, &p->tokens, done, p->tokens.n, 0, err);
    buf_release(&from.recalled);
    if (st) {
        lathe_tokens_release(&o.t);
        return st;
    }
    lathe_tokens_release(&p->tokens);
    p->tokens = o.t;
    return LATHE_OK;
}

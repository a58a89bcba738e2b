#include "text/tokenizer.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/grow.h"
#include "text/nfc.h"
#include "text/tokenizer_data.h"

enum {
    ADDED_ARENA = 64 << 20,
    WATCH_BYTES = 64 << 10, /* of text, some milliseconds */
};

lathe_status tokenizer_open_json(struct tokenizer **out, const struct json_doc *tokenizer,
                                 const struct json_doc *config, lathe_error *err)
{
    *out = NULL;
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return fail_memory(err, sizeof *t);
    arena_init(&t->arena, ADDED_ARENA);
    lathe_status st = tokenizer_read(t, tokenizer, config, err);
    if (st) {
        tokenizer_close(t);
        return st;
    }
    *out = t;
    return LATHE_OK;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t)
        return;
    free(t->token);
    free(t->bytes);
    bpe_release(&t->bpe);
    added_release(&t->added);
    arena_release(&t->arena);
    pretokenizer_close(t->split);
    free(t);
}

/* ---- Encoding ----------------------------------------------------------------------------- */

struct encoder { /* one call */
    const struct tokenizer *t;
    struct watch *watch; /* may be NULL */
    struct nfc nfc;
    struct splitter split;
    struct bpe_work bpe;
    lathe_tokens *out;
    size_t cap_id, cap_offset;
};

static lathe_status reserve(struct encoder *e, size_t more, lathe_error *err)
{
    size_t need = e->out->n + more;
    int32_t *id = grow(e->out->id, &e->cap_id, need, sizeof *id);
    if (id)
        e->out->id = id;
    size_t *offset = grow(e->out->offset, &e->cap_offset, need, sizeof *offset);
    if (offset)
        e->out->offset = offset;
    return id && offset ? LATHE_OK : fail_memory(err, need * (sizeof *id + sizeof *offset));
}

/* Appends what BPE left of the split at w->s[from..). `base` is where the piece begins in the text. */
static lathe_status append_split(struct encoder *e, size_t from, size_t base, lathe_error *err)
{
    lathe_status st = reserve(e, e->bpe.n, err);
    if (st)
        return st;
    for (size_t i = 0; i < e->bpe.n; i++) {
        size_t at = from + e->bpe.at[i];
        if (e->nfc.origin)
            at = e->nfc.origin[at];
        else
            while (((unsigned char)e->nfc.s[at] & 0xC0) == 0x80)
                at--;
        e->out->id[e->out->n] = e->bpe.id[i];
        e->out->offset[e->out->n++] = base + at;
    }
    return LATHE_OK;
}

/* Encodes text[base..end), which holds no added token that counts. */
static lathe_status encode_piece(struct encoder *e, const char *text, size_t base, size_t end,
                                 lathe_error *err)
{
    const char *s = text + base;
    size_t n = end - base;
    lathe_status st = LATHE_OK;
    if (n == 0)
        return LATHE_OK;
    if (e->t->nfc) {
        st = nfc_apply(&e->nfc, s, n, err);
        if (!st && e->nfc.n > INT_MAX)
            st = fail(err, LATHE_E_LIMIT, "text of %zu bytes when normalised, more than %d",
                      e->nfc.n, INT_MAX);
    } else {
        e->nfc.s = s;
        e->nfc.n = n;
    }
    if (st)
        return st;
    splitter_start(&e->split, e->nfc.s, e->nfc.n);
    for (size_t from, to;;) {
        st = splitter_next(&e->split, &from, &to, err);
        if (st || from == to)
            return st;
        st = watch_work(e->watch, to - from, WATCH_BYTES, err);
        st = st ? st : bpe_encode(&e->t->bpe, &e->bpe, e->nfc.s + from, to - from, err);
        st = st ? st : append_split(e, from, base, err);
        if (st)
            return st;
    }
}

static lathe_status encode(struct encoder *e, const char *s, size_t n, bool control,
                           const unsigned char *trusted, lathe_error *err)
{
    lathe_status st = splitter_init(&e->split, e->t->split, err);
    size_t piece = 0, at = 0;
    while (!st && control && at < n) {
        const struct added_token *a = NULL;
        if (!trusted || trusted[at])
            a = added_match(&e->t->added, s + at, n - at, trusted ? trusted + at : NULL);
        if (!a) {
            at++;
            st = watch_work(e->watch, 1, WATCH_BYTES, err);
            continue;
        }
        st = encode_piece(e, s, piece, at, err);
        st = st ? st : reserve(e, 1, err);
        if (!st) {
            e->out->id[e->out->n] = a->id;
            e->out->offset[e->out->n++] = at;
        }
        at += a->n;
        piece = at;
    }
    return st ? st : encode_piece(e, s, piece, n, err);
}

lathe_status tokenizer_encode_watched(const struct tokenizer *t, const char *s, size_t n,
                                      bool control, const unsigned char *trusted,
                                      struct watch *watch, lathe_tokens *out, lathe_error *err)
{
    *out = (lathe_tokens){0};
    if (n > INT_MAX)
        return fail(err, LATHE_E_LIMIT, "text of %zu bytes, more than %d", n, INT_MAX);
    size_t valid = utf8_valid_prefix(s, n);
    if (valid < n)
        return fail(err, LATHE_E_FORMAT, "text: byte %zu (0x%02X) is not UTF-8", valid,
                    (unsigned)(unsigned char)s[valid]);
    struct encoder e = {.t = t, .watch = watch, .out = out};
    lathe_status st = encode(&e, s, n, control, trusted, err);
    nfc_release(&e.nfc);
    splitter_release(&e.split);
    bpe_work_release(&e.bpe);
    if (st)
        lathe_tokens_release(out);
    return st;
}

lathe_status tokenizer_encode(const struct tokenizer *t, const char *s, size_t n,
                              enum tokenizer_control mode, lathe_tokens *out, lathe_error *err)
{
    return tokenizer_encode_watched(t, s, n, mode == TOKENIZER_CONTROL, NULL, NULL, out, err);
}

lathe_status tokenizer_encode_marked(const struct tokenizer *t, const char *s, size_t n,
                                     const unsigned char *trusted, lathe_tokens *out,
                                     lathe_error *err)
{
    return tokenizer_encode_watched(t, s, n, true, trusted, NULL, out, err);
}

void lathe_tokens_release(lathe_tokens *tokens)
{
    free(tokens->id);
    free(tokens->offset);
    *tokens = (lathe_tokens){0};
}

/* ---- Tokens ------------------------------------------------------------------------------- */

int32_t tokenizer_n_ids(const struct tokenizer *t)
{
    return t->n_ids;
}

static enum token_kind kind(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_ids ? (enum token_kind)t->token[id].kind : TOKEN_NONE;
}

bool tokenizer_has(const struct tokenizer *t, int32_t id)
{
    return kind(t, id) != TOKEN_NONE;
}

const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *n)
{
    *n = 0;
    if (!tokenizer_has(t, id))
        return NULL;
    *n = t->token[id].n;
    return t->bytes + t->token[id].at;
}

bool tokenizer_is_control(const struct tokenizer *t, int32_t id)
{
    return kind(t, id) == TOKEN_ADDED || kind(t, id) == TOKEN_SPECIAL;
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return kind(t, id) == TOKEN_SPECIAL;
}

int32_t tokenizer_control_id(const struct tokenizer *t, const char *content)
{
    const struct added_token *a = added_find(&t->added, content, strlen(content));
    return a ? a->id : -1;
}

lathe_status tokenizer_decode(const struct tokenizer *t, const int32_t *id, size_t n,
                              struct buf *out, lathe_error *err)
{
    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *s = tokenizer_bytes(t, id[i], &len);
        if (!s)
            return fail(err, LATHE_E_ARGUMENT, "token %zu: no token has the id %d", i, id[i]);
        buf_append(out, s, len);
    }
    return buf_check(out, "decoded text", err);
}

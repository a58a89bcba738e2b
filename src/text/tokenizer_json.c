/* Reads tokenizer.json and the added tokens of tokenizer_config.json. Whatever would change ids and
 * is not built is refused with the member's name; members that change nothing here (truncation,
 * padding, decoder options, caches) are passed over. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "text/grow.h"
#include "text/tokenizer_data.h"

enum {
    MAX_IDS = 1 << 22,
    MAX_TOKEN = 4096, /* bytes of one vocabulary entry */
    SHOWN = 64,       /* bytes of an entry that a message shows */
    ALPHABET = 0x144, /* code points of the byte alphabet lie below */
};

struct reader {
    const struct json_doc *doc;
    struct tokenizer *t;
    int16_t byte_of[ALPHABET]; /* the byte a character of the alphabet stands for, -1: none */
};

/* ---- Members ------------------------------------------------------------------------------ */

static lathe_status unsupported(lathe_error *err, const char *member, const char *what)
{
    return fail(err, LATHE_E_UNSUPPORTED, "tokenizer.json: %s: %s", member, what);
}

static bool is_type(const struct json_doc *d, const json_t *v, const char *type)
{
    size_t n;
    const char *s = json_text(d, json_object_get(v, "type"), &n);
    return s && n == strlen(type) && memcmp(s, type, n) == 0;
}

/* v is NULL, null or false, or with `empty` the empty string. */
static bool is_off(const json_t *v, bool empty)
{
    return !v || json_is_null(v) || json_is_false(v) ||
           (empty && json_is_string(v) && json_string_length(v) == 0);
}

static lathe_status read_normalizer(struct reader *r, const json_t *v, lathe_error *err)
{
    if (!v || json_is_null(v))
        return LATHE_OK;
    const json_t *list = json_object_get(v, "normalizers");
    if (is_type(r->doc, v, "Sequence") && json_is_array(list)) {
        for (size_t i = 0; i < json_array_size(list); i++)
            if (!is_type(r->doc, json_array_get(list, i), "NFC"))
                return unsupported(err, "normalizer.normalizers", "only NFC is supported");
        r->t->nfc = json_array_size(list) > 0;
        return LATHE_OK;
    }
    if (!is_type(r->doc, v, "NFC"))
        return unsupported(err, "normalizer", "expected null or type NFC");
    r->t->nfc = true;
    return LATHE_OK;
}

static lathe_status read_pre_tokenizer(struct reader *r, const json_t *v, lathe_error *err)
{
    const json_t *list = json_object_get(v, "pretokenizers");
    const json_t *split = json_array_get(list, 0), *bytes = json_array_get(list, 1);
    if (!is_type(r->doc, v, "Sequence") || json_array_size(list) != 2 ||
        !is_type(r->doc, split, "Split") || !is_type(r->doc, bytes, "ByteLevel"))
        return unsupported(err, "pre_tokenizer", "expected a Sequence of Split and ByteLevel");
    size_t n;
    const char *behavior = json_text(r->doc, json_object_get(split, "behavior"), &n);
    if (!behavior || n != 8 || memcmp(behavior, "Isolated", 8) != 0)
        return unsupported(err, "pre_tokenizer.pretokenizers[0].behavior", "expected Isolated");
    if (!is_off(json_object_get(split, "invert"), false))
        return unsupported(err, "pre_tokenizer.pretokenizers[0].invert", "expected false");
    /* Where these two are absent they mean true. */
    if (!json_is_false(json_object_get(bytes, "add_prefix_space")))
        return unsupported(err, "pre_tokenizer.pretokenizers[1].add_prefix_space",
                           "expected false");
    if (!json_is_false(json_object_get(bytes, "use_regex")))
        return unsupported(err, "pre_tokenizer.pretokenizers[1].use_regex", "expected false");
    const json_t *pattern = json_object_get(split, "pattern");
    const char *s = json_text(r->doc, json_object_get(pattern, "Regex"), &n);
    if (!s)
        return unsupported(err, "pre_tokenizer.pretokenizers[0].pattern", "expected a Regex");
    lathe_status st = pretokenizer_open(&r->t->split, s, n, false, err);
    if (st)
        error_context(err, "tokenizer.json: pre_tokenizer.pretokenizers[0].pattern");
    return st;
}

/* ByteLevel adds nothing, and neither does a template that holds the text alone. */
static bool adds_nothing(const struct json_doc *d, const json_t *v)
{
    if (is_type(d, v, "ByteLevel"))
        return true;
    const json_t *single = json_object_get(v, "single");
    if (!is_type(d, v, "TemplateProcessing") || !json_is_array(single))
        return false;
    for (size_t i = 0; i < json_array_size(single); i++)
        if (!json_object_get(json_array_get(single, i), "Sequence"))
            return false;
    return true;
}

static lathe_status check_processors(struct reader *r, const json_t *root, lathe_error *err)
{
    const json_t *post = json_object_get(root, "post_processor");
    if (post && !json_is_null(post)) {
        const json_t *list = json_object_get(post, "processors");
        bool fine = adds_nothing(r->doc, post);
        if (is_type(r->doc, post, "Sequence") && json_is_array(list)) {
            fine = true;
            for (size_t i = 0; fine && i < json_array_size(list); i++)
                fine = adds_nothing(r->doc, json_array_get(list, i));
        }
        if (!fine)
            return unsupported(err, "post_processor", "only one that adds no tokens is supported");
    }
    const json_t *decoder = json_object_get(root, "decoder");
    if (decoder && !json_is_null(decoder) && !is_type(r->doc, decoder, "ByteLevel"))
        return unsupported(err, "decoder", "expected type ByteLevel");
    return LATHE_OK;
}

/* ---- Vocabulary --------------------------------------------------------------------------- */

/* Printable Latin-1 stands for itself; the other bytes, in order, for U+0100 and on. */
static void fill_alphabet(struct reader *r)
{
    int32_t other = 0x100;
    memset(r->byte_of, 0xFF, sizeof r->byte_of);
    for (int32_t b = 0; b < 256; b++) {
        bool shown = (b > 0x20 && b < 0x7F) || (b > 0xA0 && b != 0xAD);
        r->byte_of[shown ? b : other++] = (int16_t)b;
    }
}

/* The bytes that a vocabulary string stands for, to out[0..n); a string with a character outside the
 * alphabet stands for itself. Returns their number. */
static size_t unspell(const struct reader *r, const char *s, size_t n, char *out)
{
    size_t k = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int32_t len = utf8_next(s + i, &cp);
        if (cp >= ALPHABET || r->byte_of[cp] < 0) {
            memcpy(out, s, n);
            return n;
        }
        out[k++] = (char)r->byte_of[cp];
        i += (size_t)len;
    }
    return k;
}

/* Gives `id` its bytes. The caller has checked the id's range and that it is free. */
static lathe_status place_token(struct tokenizer *t, int32_t id, enum token_kind kind, size_t n,
                                lathe_error *err)
{
    if (t->n_bytes + n > UINT32_MAX)
        return fail(err, LATHE_E_LIMIT, "tokenizer.json: tokens of more than 4 GiB");
    t->token[id] =
        (struct token_place){(uint32_t)t->n_bytes, (uint32_t)n & 0xFFFFFF, (uint8_t)kind};
    t->n_bytes += n;
    return LATHE_OK;
}

static lathe_status reserve_bytes(struct tokenizer *t, size_t n, lathe_error *err)
{
    char *p = grow(t->bytes, &t->cap_bytes, t->n_bytes + n + 1, 1);
    if (!p)
        return fail_memory(err, t->n_bytes + n);
    t->bytes = p;
    return LATHE_OK;
}

/* Makes room for ids up to `id`. */
static lathe_status reserve_id(struct tokenizer *t, size_t *cap, int32_t id, lathe_error *err)
{
    if (id < t->n_ids)
        return LATHE_OK;
    struct token_place *p = grow(t->token, cap, (size_t)id + 1, sizeof *p);
    if (!p)
        return fail_memory(err, ((size_t)id + 1) * sizeof *p);
    t->token = p;
    memset(p + t->n_ids, 0, (size_t)(id + 1 - t->n_ids) * sizeof *p);
    t->n_ids = id + 1;
    return LATHE_OK;
}

static bool valid_id(const json_t *v)
{
    return json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < MAX_IDS;
}

static lathe_status read_vocab(struct reader *r, json_t *vocab, size_t *cap, lathe_error *err)
{
    struct tokenizer *t = r->t;
    if (!json_is_object(vocab) || json_object_size(vocab) == 0)
        return fail(err, LATHE_E_FORMAT,
                    "tokenizer.json: model.vocab: expected an object of tokens");
    const char *key;
    json_t *v;
    json_object_foreach(vocab, key, v)
    {
        if (!valid_id(v))
            return fail(err, LATHE_E_FORMAT,
                        "tokenizer.json: model.vocab[\"%.*s\"]: expected an id below %d", SHOWN,
                        key, MAX_IDS);
        int32_t id = (int32_t)json_integer_value(v);
        size_t n = strlen(key);
        if (n > MAX_TOKEN)
            return fail(err, LATHE_E_LIMIT,
                        "tokenizer.json: model.vocab: token %d has %zu bytes, "
                        "more than %d",
                        id, n, MAX_TOKEN);
        lathe_status st = reserve_id(t, cap, id, err);
        st = st ? st : reserve_bytes(t, n, err);
        if (st)
            return st;
        if (t->token[id].kind != TOKEN_NONE)
            return fail(err, LATHE_E_FORMAT,
                        "tokenizer.json: model.vocab[\"%.*s\"]: id %d has another token already",
                        SHOWN, key, id);
        n = unspell(r, key, n, t->bytes + t->n_bytes);
        st = place_token(t, id, TOKEN_NORMAL, n, err);
        if (st)
            return st;
    }
    return LATHE_OK;
}

/* The symbols BPE begins with. Bytes that UTF-8 never holds may be missing. */
static lathe_status read_byte_ids(struct reader *r, const json_t *vocab, lathe_error *err)
{
    for (uint32_t cp = 0; cp < ALPHABET; cp++) {
        int32_t b = r->byte_of[cp];
        if (b < 0)
            continue;
        char key[5] = {0};
        utf8_encode(cp, key);
        const json_t *v = json_object_get(vocab, key);
        if (v)
            r->t->bpe.byte_id[b] = (int32_t)json_integer_value(v);
        else if (b != 0xC0 && b != 0xC1 && b < 0xF5)
            return fail(err, LATHE_E_FORMAT,
                        "tokenizer.json: model.vocab: no token for the byte 0x%02X, \"%s\"",
                        (unsigned)b, key);
    }
    return LATHE_OK;
}

/* ---- Merges ------------------------------------------------------------------------------- */

/* Splits "left right" or [left, right]; false if it is neither. */
static bool split_merge(const struct json_doc *d, const json_t *v, const char *part[2], size_t n[2])
{
    if (json_is_array(v)) {
        part[0] = json_text(d, json_array_get(v, 0), &n[0]);
        part[1] = json_text(d, json_array_get(v, 1), &n[1]);
        return json_array_size(v) == 2 && part[0] && part[1];
    }
    part[0] = json_text(d, v, &n[0]);
    const char *space = part[0] ? memchr(part[0], ' ', n[0]) : NULL;
    if (!space)
        return false;
    part[1] = space + 1;
    n[1] = n[0] - (size_t)(space - part[0]) - 1;
    n[0] = (size_t)(space - part[0]);
    return !memchr(part[1], ' ', n[1]);
}

/* The vocabulary's spelling of one part or of both. */
static const char *join(char *key, const char *const part[2], const size_t n[2], bool left,
                        bool right)
{
    size_t k = 0;
    if (left) {
        memcpy(key, part[0], n[0]);
        k = n[0];
    }
    if (right) {
        memcpy(key + k, part[1], n[1]);
        k += n[1];
    }
    key[k] = 0;
    return key;
}

static lathe_status read_merges(struct reader *r, const json_t *vocab, const json_t *merges,
                                lathe_error *err)
{
    if (!json_is_array(merges))
        return fail(err, LATHE_E_FORMAT, "tokenizer.json: model.merges: expected an array");
    size_t n_merges = json_array_size(merges);
    if (n_merges > INT_MAX)
        return fail(err, LATHE_E_LIMIT, "tokenizer.json: model.merges: %zu of them", n_merges);
    lathe_status st = bpe_init(&r->t->bpe, n_merges, err);
    st = st ? st : read_byte_ids(r, vocab, err);
    for (size_t i = 0; !st && i < n_merges; i++) {
        const char *part[2];
        size_t n[2];
        if (!split_merge(r->doc, json_array_get(merges, i), part, n))
            return fail(
                err, LATHE_E_FORMAT,
                "tokenizer.json: model.merges[%zu]: expected \"left right\" or [left, right]", i);
        if (n[0] > MAX_TOKEN || n[1] > MAX_TOKEN)
            return fail(err, LATHE_E_LIMIT, "tokenizer.json: model.merges[%zu]: more than %d bytes",
                        i, MAX_TOKEN);
        char key[2 * MAX_TOKEN + 1];
        const json_t *id[3];
        for (int k = 0; k < 3; k++) {
            id[k] = json_object_get(vocab, join(key, part, n, k != 1, k != 0));
            if (!id[k])
                return fail(err, LATHE_E_FORMAT,
                            "tokenizer.json: model.merges[%zu]: \"%.*s\" is not in the vocabulary",
                            i, SHOWN, key);
        }
        bpe_add(&r->t->bpe, &(struct bpe_merge){
                                .left = (int32_t)json_integer_value(id[0]),
                                .right = (int32_t)json_integer_value(id[1]),
                                .rank = (int32_t)i,
                                .result = (int32_t)json_integer_value(id[2]),
                            });
    }
    return st;
}

static lathe_status read_model(struct reader *r, const json_t *model, size_t *cap, lathe_error *err)
{
    if (!json_is_object(model))
        return fail(err, LATHE_E_FORMAT, "tokenizer.json: model: expected an object");
    if (json_object_get(model, "type") && !is_type(r->doc, model, "BPE"))
        return unsupported(err, "model.type", "expected BPE");
    const json_t *dropout = json_object_get(model, "dropout");
    if (!is_off(dropout, false) && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return unsupported(err, "model.dropout", "expected null");
    static const char *const off[][2] = {
        {"continuing_subword_prefix", "model.continuing_subword_prefix"},
        {"end_of_word_suffix", "model.end_of_word_suffix"},
        {"byte_fallback", "model.byte_fallback"},
        {"ignore_merges", "model.ignore_merges"},
    };
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (!is_off(json_object_get(model, off[i][0]), true))
            return unsupported(err, off[i][1], "expected null or false");
    json_t *vocab = json_object_get(model, "vocab");
    lathe_status st = read_vocab(r, vocab, cap, err);
    return st ? st : read_merges(r, vocab, json_object_get(model, "merges"), err);
}

/* ---- Added tokens ------------------------------------------------------------------------- */

/* `where` names the entry v in messages. */
static lathe_status add_token(struct reader *r, const struct json_doc *d, const char *where,
                              int32_t id, const json_t *v, const json_t *vocab, size_t *cap,
                              lathe_error *err)
{
    struct tokenizer *t = r->t;
    size_t n;
    const char *s = json_text(d, json_object_get(v, "content"), &n);
    if (!s || n == 0 || memchr(s, 0, n))
        return fail(err, LATHE_E_FORMAT, "%s: content: expected a text without U+0000", where);
    if (n > ADDED_MAX_BYTES)
        return fail(err, LATHE_E_LIMIT, "%s: content: %zu bytes, more than %d", where, n,
                    ADDED_MAX_BYTES);
    static const char *const off[] = {"single_word", "lstrip", "rstrip"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (!is_off(json_object_get(v, off[i]), false))
            return fail(err, LATHE_E_UNSUPPORTED, "%s: %s: expected false", where, off[i]);
    /* Normalisation leaves ASCII as it is, so such a token is found in the raw text as well. */
    bool is_ascii = true;
    for (size_t i = 0; i < n; i++)
        is_ascii = is_ascii && (unsigned char)s[i] < 0x80;
    if (!is_ascii && !is_off(json_object_get(v, "normalized"), false))
        return fail(err, LATHE_E_UNSUPPORTED, "%s: normalized: expected false", where);

    lathe_status st = reserve_id(t, cap, id, err);
    st = st ? st : reserve_bytes(t, n, err);
    if (st)
        return st;
    struct token_place *p = &t->token[id];
    const char *content = arena_strndup(&t->arena, s, n);
    if (!content)
        return fail_memory(err, n);
    const json_t *same = json_object_get(vocab, content);
    if (same && json_integer_value(same) != id)
        return fail(err, LATHE_E_FORMAT, "%s: \"%.*s\" has the id %d, but %lld in the vocabulary",
                    where, SHOWN, content, id, (long long)json_integer_value(same));
    bool is_special = json_is_true(json_object_get(v, "special"));
    bool is_known = p->kind == TOKEN_ADDED || p->kind == TOKEN_SPECIAL;
    if ((p->kind == TOKEN_NORMAL && !same) ||
        (is_known && (p->n != n || memcmp(t->bytes + p->at, s, n) != 0)))
        return fail(err, LATHE_E_FORMAT, "%s: id %d is \"%.*s\", but another token has it already",
                    where, id, SHOWN, content);
    enum token_kind kind = is_special ? TOKEN_SPECIAL : TOKEN_ADDED;
    if (is_known) { /* tokenizer_config.json has the last word on the flag */
        p->kind = (uint8_t)kind;
        return LATHE_OK;
    }
    memcpy(t->bytes + t->n_bytes, s, n);
    st = place_token(t, id, kind, n, err);
    return st ? st
              : added_append(&t->added,
                             &(struct added_token){.content = content, .n = (uint32_t)n, .id = id},
                             err);
}

/* The id that a key of added_tokens_decoder spells, -1 if it is none. */
static int32_t key_id(const char *key)
{
    int32_t id = 0;
    if (!*key)
        return -1;
    for (; *key; key++) {
        if (*key < '0' || *key > '9')
            return -1;
        id = id * 10 + (*key - '0');
        if (id >= MAX_IDS)
            return -1;
    }
    return id;
}

static lathe_status read_added(struct reader *r, const json_t *root, const json_t *vocab,
                               const struct json_doc *config, size_t *cap, lathe_error *err)
{
    char where[128];
    const json_t *list = json_object_get(root, "added_tokens");
    if (list && !json_is_null(list) && !json_is_array(list))
        return fail(err, LATHE_E_FORMAT, "tokenizer.json: added_tokens: expected an array");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i), *id = json_object_get(v, "id");
        snprintf(where, sizeof where, "tokenizer.json: added_tokens[%zu]", i);
        if (!valid_id(id))
            return fail(err, LATHE_E_FORMAT, "%s: id: expected an integer below %d", where,
                        MAX_IDS);
        lathe_status st =
            add_token(r, r->doc, where, (int32_t)json_integer_value(id), v, vocab, cap, err);
        if (st)
            return st;
    }
    json_t *more = config ? json_object_get(config->root, "added_tokens_decoder") : NULL;
    if (more && !json_is_null(more) && !json_is_object(more))
        return fail(err, LATHE_E_FORMAT,
                    "tokenizer_config.json: added_tokens_decoder: expected an object");
    const char *key;
    json_t *v;
    json_object_foreach(more, key, v)
    {
        snprintf(where, sizeof where, "tokenizer_config.json: added_tokens_decoder[\"%.20s\"]",
                 key);
        int32_t id = key_id(key);
        if (id < 0)
            return fail(err, LATHE_E_FORMAT, "%s: expected a key that is an id below %d", where,
                        MAX_IDS);
        lathe_status st = add_token(r, config, where, id, v, vocab, cap, err);
        if (st)
            return st;
    }
    return LATHE_OK;
}

/* Added tokens come from their spelling alone: one spelling has one id, and no merge yields it. */
static lathe_status check_added(struct tokenizer *t, lathe_error *err)
{
    added_sort(&t->added);
    for (size_t i = 1; i < t->added.n; i++) {
        const struct added_token *a = &t->added.token[i - 1], *b = &t->added.token[i];
        if (a->n == b->n && memcmp(a->content, b->content, a->n) == 0)
            return fail(err, LATHE_E_FORMAT, "added tokens: \"%.*s\" has the ids %d and %d", SHOWN,
                        a->content, a->id < b->id ? a->id : b->id, a->id < b->id ? b->id : a->id);
    }
    for (int32_t b = 0; b < 256; b++)
        if (t->bpe.byte_id[b] >= 0 && tokenizer_is_control(t, t->bpe.byte_id[b]))
            return fail(err, LATHE_E_UNSUPPORTED,
                        "added tokens: id %d is a single byte of the vocabulary",
                        t->bpe.byte_id[b]);
    for (size_t i = 0; i < (size_t)1 << t->bpe.bits; i++) {
        const struct bpe_merge *m = &t->bpe.table[i];
        if (m->left >= 0 && tokenizer_is_control(t, m->result))
            return fail(err, LATHE_E_UNSUPPORTED,
                        "added tokens: id %d is also what model.merges[%d] yields", m->result,
                        m->rank);
    }
    return LATHE_OK;
}

lathe_status tokenizer_read(struct tokenizer *t, const struct json_doc *doc,
                            const struct json_doc *config, lathe_error *err)
{
    struct reader r = {.doc = doc, .t = t};
    const json_t *root = doc->root;
    size_t cap = 0; /* of t->token */
    if (!json_is_object(root))
        return fail(err, LATHE_E_FORMAT, "tokenizer.json: expected an object");
    fill_alphabet(&r);
    lathe_status st = read_normalizer(&r, json_object_get(root, "normalizer"), err);
    st = st ? st : read_pre_tokenizer(&r, json_object_get(root, "pre_tokenizer"), err);
    st = st ? st : check_processors(&r, root, err);
    const json_t *model = json_object_get(root, "model");
    st = st ? st : read_model(&r, model, &cap, err);
    st = st ? st : read_added(&r, root, json_object_get(model, "vocab"), config, &cap, err);
    return st ? st : check_added(t, err);
}

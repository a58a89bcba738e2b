/* NFC, splits, ids and offsets beside the public tokenizers implementation (npm `tokenizers`), over a
 * corpus that oracle_tokenizer.mjs makes and encodes. */
#define _GNU_SOURCE
#include "test.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <unistd.h>
#include <utf8proc.h>

#include "base/json.h"
#include "base/utf8.h"
#include "text/nfc.h"
#include "text/pretokenize.h"
#include "text/tokenizer.h"

enum { N_TEXTS = 30000 };

struct record {
    const char *text, *nfc;
    size_t n_text, n_nfc;
    struct {
        const uint32_t *end; /* [n] of the splits of nfc; not aligned, read with at() */
        uint32_t n;
    } splits[2]; /* by the model's pattern, by another one */
    struct {
        const uint32_t *id, *offset;
        uint32_t n;
    } tokens[2]; /* with added tokens, and without */
};

static uint32_t number(const char **p, const char *end)
{
    uint32_t x;
    if (end - *p < 4)
        FAIL("the oracle's file ends inside a record");
    memcpy(&x, *p, 4);
    *p += 4;
    return x;
}

static const char *bytes(const char **p, const char *end, size_t n)
{
    const char *s = *p;
    if ((size_t)(end - s) < n)
        FAIL("the oracle's file ends inside a record");
    *p += n;
    return s;
}

static uint32_t at(const uint32_t *v, size_t i)
{
    uint32_t x;
    memcpy(&x, (const char *)v + 4 * i, 4);
    return x;
}

static const uint32_t *numbers(const char **p, const char *end, uint32_t n)
{
    return (const void *)bytes(p, end, 4 * (size_t)n);
}

static struct record next_record(const char **p, const char *end)
{
    struct record r = {0};
    r.n_text = number(p, end);
    r.text = bytes(p, end, r.n_text);
    r.n_nfc = number(p, end);
    r.nfc = bytes(p, end, r.n_nfc);
    for (int i = 0; i < 2; i++) {
        r.splits[i].n = number(p, end);
        r.splits[i].end = numbers(p, end, r.splits[i].n);
    }
    for (int i = 0; i < 2; i++) {
        r.tokens[i].n = number(p, end);
        r.tokens[i].id = numbers(p, end, r.tokens[i].n);
        r.tokens[i].offset = numbers(p, end, r.tokens[i].n);
    }
    return r;
}

/* The text as code points, for messages. */
static const char *spell(const char *s, size_t n)
{
    static char out[600];
    size_t k = 0;
    for (size_t i = 0; i < n && k < sizeof out - 12;) {
        uint32_t cp = 0;
        int32_t len = utf8_decode(s + i, n - i, &cp);
        i += len ? (size_t)len : 1;
        k += (size_t)sprintf(out + k, "%04X ", cp);
    }
    return out;
}

/* Does utf8proc know all characters, and with `re`, \p{Cn}, also PCRE2? Unicode grows: newer
 * characters than theirs are split otherwise. */
static bool is_known(const struct record *r, const pcre2_code *re, pcre2_match_data *m)
{
    for (size_t i = 0; i < r->n_text;) {
        uint32_t cp;
        i += (size_t)utf8_next(r->text + i, &cp);
        if (utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_CN)
            return false;
    }
    return !re || pcre2_match(re, (PCRE2_SPTR)r->text, r->n_text, 0, 0, m, NULL) < 0;
}

static void check_splits(struct splitter *w, const struct record *r, int which, const char *by)
{
    lathe_error e;
    const uint32_t *end = r->splits[which].end, n = r->splits[which].n;
    splitter_start(w, r->nfc, r->n_nfc);
    for (size_t from, to, i = 0;; i++) {
        CHECK_OK(splitter_next(w, &from, &to, &e), &e);
        if (from == to && i == n)
            break;
        if (from == to || i >= n || to != at(end, i))
            FAIL("%s: split %zu ends at %zu, expected %u, in %s", by, i, to, i < n ? at(end, i) : 0,
                 spell(r->nfc, r->n_nfc));
    }
}

/* A pattern and the walk over its splits. */
struct pattern {
    char *text;
    struct pretokenizer *p;
    struct splitter w;
};

static void open_pattern(struct pattern *t, const char *s, size_t n, bool by_regex)
{
    lathe_error e;
    t->text = strndup(s, n);
    CHECK_OK(pretokenizer_open(&t->p, s, n, by_regex, &e), &e);
    CHECK_OK(splitter_init(&t->w, t->p, &e), &e);
}

static void close_pattern(struct pattern *t)
{
    splitter_release(&t->w);
    pretokenizer_close(t->p);
    free(t->text);
}

static void check_tokens(const struct tokenizer *t, const struct record *r, int which)
{
    lathe_tokens k;
    lathe_error e;
    enum tokenizer_control mode = which == 0 ? TOKENIZER_CONTROL : TOKENIZER_PLAIN;
    const uint32_t *id = r->tokens[which].id, *offset = r->tokens[which].offset;
    size_t n = r->tokens[which].n;
    CHECK_OK(tokenizer_encode(t, r->text, r->n_text, mode, &k, &e), &e);
    for (size_t i = 0; i < k.n && i < n; i++)
        if (k.id[i] != (int32_t)at(id, i) || k.offset[i] != at(offset, i))
            FAIL("token %zu: id %d at %zu, expected %u at %u, in %s", i, k.id[i], k.offset[i],
                 at(id, i), at(offset, i), spell(r->text, r->n_text));
    if (k.n != n)
        FAIL("%zu tokens, expected %zu, in %s", k.n, n, spell(r->text, r->n_text));
    lathe_tokens_release(&k);
}

TEST(tokens_equal_the_public_implementation)
{
    lathe_error e;
    if (access(test_path("build/npm/installed"), F_OK) != 0)
        SKIP("npm tokenizers is not installed in build/npm");
    const char *out = test_tmp("oracle.bin"), *model = test_path("models/nano/tokenizer.json");
    char command[4096];
    snprintf(command, sizeof command, "node %s %s %s %s %d",
             test_path("tests/text/oracle_tokenizer.mjs"), test_path("build/npm"), model, out,
             N_TEXTS);
    if (system(command) != 0)
        FAIL("failed: %s", command);
    size_t n;
    char *data = test_read(out, &n);

    struct json_doc d = {0}, none = {0};
    struct tokenizer *t;
    CHECK_OK(json_read_file(&d, model, &json_limits_model, &e), &e);
    CHECK_OK(tokenizer_open_json(&t, &d, &none, &e), &e);
    const json_t *split = json_array_get(
        json_object_get(json_object_get(d.root, "pre_tokenizer"), "pretokenizers"), 0);
    size_t n_pattern;
    const char *pattern =
        json_text(&d, json_object_get(json_object_get(split, "pattern"), "Regex"), &n_pattern);
    CHECK(pattern);
    struct pattern hand, regex, other[16];
    open_pattern(&hand, pattern, n_pattern, false);
    open_pattern(&regex, pattern, n_pattern, true);
    const char *p = data, *end = data + n;
    uint32_t n_other = number(&p, end);
    CHECK(n_other > 0 && n_other <= 16);
    for (uint32_t i = 0; i < n_other; i++) {
        uint32_t len = number(&p, end);
        open_pattern(&other[i], bytes(&p, end, len), len, true);
    }
    int code;
    PCRE2_SIZE where;
    pcre2_code *unassigned = pcre2_compile((PCRE2_SPTR) "\\p{Cn}", PCRE2_ZERO_TERMINATED,
                                           PCRE2_UTF | PCRE2_UCP, &code, &where, NULL);
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    CHECK(unassigned && match);

    struct nfc nfc = {0};
    size_t n_checked = 0, n_regex = 0;
    for (size_t i = 0; p < end; i++) {
        struct record r = next_record(&p, end);
        if (!is_known(&r, NULL, NULL))
            continue;
        n_checked++;
        CHECK_OK(nfc_apply(&nfc, r.text, r.n_text, &e), &e);
        if (nfc.n != r.n_nfc || memcmp(nfc.s, r.nfc, nfc.n) != 0)
            FAIL("NFC differs: %s", spell(r.text, r.n_text));
        check_splits(&hand.w, &r, 0, "by hand");
        if (is_known(&r, unassigned, match)) {
            n_regex++;
            check_splits(&regex.w, &r, 0, "by PCRE2");
            check_splits(&other[i % n_other].w, &r, 1, other[i % n_other].text);
        }
        check_tokens(t, &r, 0);
        check_tokens(t, &r, 1);
    }
    CHECK(n_checked > N_TEXTS * 9 / 10 && n_regex > N_TEXTS * 8 / 10);

    nfc_release(&nfc);
    pcre2_match_data_free(match);
    pcre2_code_free(unassigned);
    close_pattern(&hand);
    close_pattern(&regex);
    for (uint32_t i = 0; i < n_other; i++)
        close_pattern(&other[i]);
    tokenizer_close(t);
    json_release(&d);
    free(data);
}

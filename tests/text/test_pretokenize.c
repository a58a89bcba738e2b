/* Splits: the published cases, the hand-written matcher beside the expression itself, other
 * expressions, and refused ones. */
#include "test.h"

#include <utf8proc.h>

#include "base/json.h"
#include "base/utf8.h"
#include "text/nfc.h"
#include "text/pretokenize.h"

static struct pretokenizer *open_pattern(const char *pattern, bool by_regex)
{
    struct pretokenizer *p;
    lathe_error e;
    CHECK_OK(pretokenizer_open(&p, pattern, strlen(pattern), by_regex, &e), &e);
    return p;
}

/* The splits of s, each behind a '|'. */
static const char *split(struct splitter *w, const char *s, size_t n)
{
    static char out[1 << 16];
    lathe_error e;
    size_t k = 0, done = 0;
    splitter_start(w, s, n);
    for (size_t from, to;;) {
        CHECK_OK(splitter_next(w, &from, &to, &e), &e);
        CHECK_INT(from, done);
        if (from == to)
            break;
        CHECK(k + to - from + 2 < sizeof out);
        out[k++] = '|';
        memcpy(out + k, s + from, to - from);
        k += to - from;
        done = to;
    }
    CHECK_INT(done, n);
    out[k] = 0;
    return out;
}

static const char *split_by(const char *pattern, const char *s)
{
    lathe_error e;
    struct pretokenizer *p = open_pattern(pattern, true);
    struct splitter w;
    CHECK_OK(splitter_init(&w, p, &e), &e);
    const char *out = split(&w, s, strlen(s));
    splitter_release(&w);
    pretokenizer_close(p);
    return out;
}

static void check_case(const char *path)
{
    lathe_error e;
    struct json_doc d = {0};
    CHECK_OK(json_read_file(&d, test_path(path), &json_limits_model, &e), &e);
    const json_t *input = json_object_get(d.root, "input");
    CHECK(json_array_size(input) > 0);
    struct nfc nfc = {0};
    for (int by_regex = 0; by_regex < 2; by_regex++) {
        struct pretokenizer *p = open_pattern(pretokenize_family_pattern, by_regex);
        struct splitter w;
        CHECK_OK(splitter_init(&w, p, &e), &e);
        for (size_t i = 0; i < json_array_size(input); i++) {
            const json_t *v = json_array_get(input, i), *pieces = json_object_get(v, "pieces");
            char want[4096] = "", joined[4096] = "";
            for (size_t j = 0; j < json_array_size(pieces); j++) {
                strcat(strcat(want, "|"), json_string_value(json_array_get(pieces, j)));
                strcat(joined, json_string_value(json_array_get(pieces, j)));
            }
            size_t n;
            const char *text = json_text(&d, json_object_get(v, "text"), &n);
            CHECK_OK(nfc_apply(&nfc, text, n, &e), &e);
            CHECK_STR(split(&w, nfc.s, nfc.n), want);
            CHECK(strlen(joined) == nfc.n && memcmp(joined, nfc.s, nfc.n) == 0);
        }
        splitter_release(&w);
        pretokenizer_close(p);
    }
    nfc_release(&nfc);
    json_release(&d);
}

TEST(B01_combining_marks)
{
    check_case("tests/cases/tokenizer/B01_combining_marks.json");
}

TEST(B02_symbol_runs_and_digits)
{
    check_case("tests/cases/tokenizer/B02_symbol_runs_and_digits.json");
}

TEST(classes_and_folding)
{
    static const struct {
        const char *text, *splits;
    } cases[] = {
        {"don'\xC5\xBF x", "|don|'\xC5\xBF| x"}, /* long s folds to s */
        {"a\xC2\x85\xC2\x85"
         "b",
         "|a|\xC2\x85|\xC2\x85"
         "b"}, /* U+0085 is White_Space */
        {"a\xE1\xA0\x8E\xE1\xA0\x8E"
         "b",
         "|a|\xE1\xA0\x8E\xE1\xA0\x8E|b"}, /* U+180E is not */
        {"a\x1C\x1C"
         "b",
         "|a|\x1C\x1C|b"}, /* nor is U+001C */
        {"a\xE3\x80\x80\xE3\x80\x80"
         "b",
         "|a|\xE3\x80\x80|\xE3\x80\x80"
         "b"},
        {"a \n\n b", "|a| \n\n| b"},
        {"x   ", "|x|   "},
        {" !\r\n?", "| !\r\n|?"},
        {"'", "|'"},
        {"'L'LL", "|'L|'LL"},
        {"\n'sx", "|\n|'s|x"},
    };
    for (int by_regex = 0; by_regex < 2; by_regex++) {
        struct pretokenizer *p = open_pattern(pretokenize_family_pattern, by_regex);
        struct splitter w;
        lathe_error e;
        CHECK_OK(splitter_init(&w, p, &e), &e);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            CHECK_STR(split(&w, cases[i].text, strlen(cases[i].text)), cases[i].splits);
        splitter_release(&w);
        pretokenizer_close(p);
    }
}

/* Every character by itself, then random texts of those on which the two libraries' Unicode versions
 * agree. */
TEST(hand_written_matcher_equals_the_expression)
{
    struct pretokenizer *a = open_pattern(pretokenize_family_pattern, false),
                        *b = open_pattern(pretokenize_family_pattern, true);
    struct splitter wa, wb;
    lathe_error e;
    CHECK_OK(splitter_init(&wa, a, &e), &e);
    CHECK_OK(splitter_init(&wb, b, &e), &e);
    static uint32_t known[0x110000], kind[4][64];
    size_t n_known = 0, n_kind[4] = {0};
    char text[512], first[600];
    for (uint32_t cp = 0; cp < 0x110000; cp += cp == 0xD7FF ? 0x801 : 1) {
        size_t n = 0;
        text[n++] = '!';
        for (int i = 0; i < 2; i++)
            n += (size_t)utf8_encode(cp, text + n);
        text[n++] = '!';
        strcpy(first, split(&wa, text, n));
        if (strcmp(first, split(&wb, text, n)) == 0)
            known[n_known++] = cp;
        else if (cp < 0x300)
            FAIL("U+%04X is split otherwise", cp);
    }
    CHECK(n_known > 0x100000);
    struct rng r = {7};
    for (int k = 0; k < 4; k++)
        while (n_kind[k] < 64) {
            uint32_t cp = known[rng_below(&r, 0x3000)];
            utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
            bool fits = k == 0   ? c >= UTF8PROC_CATEGORY_MN && c <= UTF8PROC_CATEGORY_ME
                        : k == 1 ? c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO
                        : k == 2 ? c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_SO
                                 : cp < 0x2100 && (c >= UTF8PROC_CATEGORY_ZS || cp < 33);
            if (fits)
                kind[k][n_kind[k]++] = cp;
        }
    static const char common[] = "      \n\n\r\t'''aeSslLrReEvVmdDtT.,!?-_12";
    for (int i = 0; i < 60000; i++) {
        size_t n = 0;
        for (uint32_t len = 1 + rng_below(&r, 30); len > 0; len--) {
            uint32_t cp;
            switch (rng_below(&r, 4)) {
            case 0:
                cp = known[rng_below(&r, (uint32_t)n_known)];
                break;
            case 1:
                cp = kind[rng_below(&r, 4)][rng_below(&r, 64)];
                break;
            default:
                cp = (uint32_t)common[rng_below(&r, sizeof common - 1)];
            }
            n += (size_t)utf8_encode(cp, text + n);
        }
        strcpy(first, split(&wa, text, n));
        CHECK_STR(first, split(&wb, text, n));
    }
    splitter_release(&wa);
    splitter_release(&wb);
    pretokenizer_close(a);
    pretokenizer_close(b);
}

TEST(other_expressions)
{
    static const char older[] = /* no marks in words */
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
        "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
        "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    CHECK_STR(split_by(older, "a\xCC\x81"
                              "b c'll 12"),
              "|a|\xCC\x81"
              "b| c|'ll| |1|2");
    CHECK_STR(split_by(older, "e\xC2\x85\xE1\xA0\x8E!"), "|e|\xC2\x85|\xE1\xA0\x8E!");
    CHECK_STR(split_by("[0-9]{1,3}", "ab1234c"), "|ab|123|4|c"); /* what no match covers */
    CHECK_STR(split_by("[0-9]{1,3}", "abc"), "|abc");
    CHECK_STR(split_by("b*", "abba"), "|a|bb|a"); /* an empty match cuts ... */
    CHECK_STR(split_by("q*", "xyz"), "|x|y|z");   /* ... everywhere */
    CHECK_STR(split_by("(?<=x)y", "xyy"), "|x|y|y");
    CHECK_STR(split_by("\\S+", "a\x1C"
                               "b\xE2\x80\xA8"
                               "c"),
              "|a\x1C"
              "b|\xE2\x80\xA8|c");
    CHECK_STR(split_by("[\\s.]+", "a. \xC2\x85"
                                  "b"),
              "|a|. \xC2\x85|b");
    CHECK_STR(split_by("[^\\S\\n]+", "a \n b"), "|a| |\n| |b");
    CHECK_STR(split_by("\\x{61}", "ba"), "|b|a");
    CHECK_STR(split_by("a", ""), "");
}

TEST(refused_expressions)
{
    static const struct {
        const char *pattern;
        lathe_status status;
        const char *message;
    } cases[] = {
        {"\\w+", LATHE_E_UNSUPPORTED, "byte 0: this escape, \"\\w+\""},
        {"a|\\h", LATHE_E_UNSUPPORTED, "byte 2: this escape"},
        {"\\pL", LATHE_E_UNSUPPORTED, "escape"},
        {"\\x41", LATHE_E_UNSUPPORTED, "escape"},
        {"\\p{L", LATHE_E_FORMAT, "splitting pattern: "},
        {"\\", LATHE_E_UNSUPPORTED, "escape"},
        {"a$", LATHE_E_UNSUPPORTED, "byte 1: this anchor"},
        {"^a", LATHE_E_UNSUPPORTED, "anchor"},
        {"[a[b]]", LATHE_E_UNSUPPORTED, "nested class"},
        {"[a&&b]", LATHE_E_UNSUPPORTED, "intersection of classes"},
        {"[]a]", LATHE_E_UNSUPPORTED, "begins with a bracket"},
        {"(?m)a", LATHE_E_UNSUPPORTED, "group"},
        {"(?<n>a)", LATHE_E_UNSUPPORTED, "group"},
        {"(*UTF)a", LATHE_E_UNSUPPORTED, "group"},
        {"a{2}+", LATHE_E_UNSUPPORTED, "quantifier"},
        {"a{,2}", LATHE_E_UNSUPPORTED, "quantifier"},
        {"(a", LATHE_E_FORMAT, "missing closing parenthesis"},
        {"\\p{Nope}", LATHE_E_FORMAT, "splitting pattern: "},
        {"[a", LATHE_E_FORMAT, "splitting pattern: "},
    };
    lathe_error e;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pretokenizer *p;
        CHECK_ERR(pretokenizer_open(&p, cases[i].pattern, strlen(cases[i].pattern), false, &e), &e,
                  cases[i].status, cases[i].message);
        CHECK(!p);
    }
    static char longest[9000];
    struct pretokenizer *p;
    memset(longest, 'a', sizeof longest);
    CHECK_ERR(pretokenizer_open(&p, longest, sizeof longest, false, &e), &e, LATHE_E_LIMIT,
              "9000 bytes, more than 8192");
}

TEST(backtracking_is_bounded)
{
    lathe_error e;
    struct pretokenizer *p = open_pattern("(a+)+b|((a|aa)+)+c", false);
    struct splitter w;
    CHECK_OK(splitter_init(&w, p, &e), &e);
    char s[64];
    memset(s, 'a', sizeof s);
    size_t from, to;
    splitter_start(&w, s, sizeof s);
    CHECK_ERR(splitter_next(&w, &from, &to, &e), &e, LATHE_E_LIMIT,
              "splitting pattern: match limit exceeded, in the text from byte 0 on");
    splitter_release(&w);
    pretokenizer_close(p);
}

#include "text/pretokenize.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/buf.h"
#include "base/utf8.h"

const char pretokenize_family_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
    "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

enum {
    MAX_PATTERN = 8192, /* bytes */
    /* Backtracking steps of one match: so many, and so many more for each byte that is left. The
     * patterns of tokenizers take about one a byte. */
    STEPS = 100000,
    STEPS_PER_BYTE = 8,
    HEAP_KIB = 65536, /* what one match may take of memory */
};

struct pretokenizer {
    pcre2_code *code; /* NULL: the family's pattern */
};

/* ---- The family's pattern ----------------------------------------------------------------- */

enum kind { OTHER, WORD, NUMBER, BLANK, BREAK }; /* WORD: \p{L} and \p{M}; BREAK: CR and LF */

static enum kind kind_of(uint32_t cp)
{
    if (cp < 0x80) {
        if ((cp | 32) - 'a' < 26)
            return WORD;
        if (cp - '0' < 10)
            return NUMBER;
        if (cp == '\n' || cp == '\r')
            return BREAK;
        return cp == ' ' || (cp >= 9 && cp <= 13) ? BLANK : OTHER;
    }
    if ((cp >= 0x4E00 && cp < 0xA000) || (cp >= 0xAC00 && cp < 0xD7A4)) /* Han, Hangul */
        return WORD;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
        return WORD;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return NUMBER;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return BLANK;
    default:
        return cp == 0x85 ? BLANK : OTHER;
    }
}

/* Kind of the character at s[at..n), its end in *end; at the end of the text *end == n. */
static enum kind kind_at(const char *s, size_t n, size_t at, size_t *end)
{
    *end = n;
    if (at >= n)
        return OTHER;
    uint32_t cp;
    *end = at + (size_t)utf8_next(s + at, &cp);
    return kind_of(cp);
}

/* The end of the run of `kind` that begins at `at`. */
static size_t run(const char *s, size_t n, size_t at, enum kind kind)
{
    size_t end;
    while (at < n && kind_at(s, n, at, &end) == kind)
        at = end;
    return at;
}

/* Bytes of 's 't 're 've 'm 'll 'd at s[0..n) in any case, 0 if there is none. Case folding makes
 * U+017F, the long s, an s. */
static size_t contraction(const char *s, size_t n)
{
    if (n < 2 || s[0] != '\'')
        return 0;
    char a = (char)(s[1] | 32), b = n > 2 ? (char)(s[2] | 32) : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return 3;
    return n > 2 && memcmp(s + 1, "\xC5\xBF", 2) == 0 ? 3 : 0;
}

/* The end of the split of s[0..n) that begins at `at` < n: the alternatives of the pattern in their
 * order. */
static size_t family_split(const char *s, size_t n, size_t at)
{
    size_t len = contraction(s + at, n - at), one, two;
    if (len)
        return at + len;
    enum kind c0 = kind_at(s, n, at, &one);
    if (c0 == WORD)
        return run(s, n, one, WORD);
    if (c0 == NUMBER)
        return one;
    enum kind c1 = kind_at(s, n, one, &two);
    if (c0 != BREAK && one < n && c1 == WORD)
        return run(s, n, two, WORD);
    if (c0 == OTHER || (s[at] == ' ' && one < n && c1 == OTHER))
        return run(s, n, run(s, n, one, OTHER), BREAK);

    /* Blanks: up to the last line break among them, or all but the one before a visible character. */
    size_t last = at, end = at, broken = at, next;
    while (end < n) {
        enum kind k = kind_at(s, n, end, &next);
        if (k != BLANK && k != BREAK)
            break;
        if (k == BREAK)
            broken = next;
        last = end;
        end = next;
    }
    if (broken > at)
        return broken;
    return end == n || last == at ? end : last;
}

/* ---- Other patterns ----------------------------------------------------------------------- */

/* Rewrites an Oniguruma pattern for PCRE2, whose \s is not Unicode's White_Space, and refuses what
 * the two read differently. */
static lathe_status translate(struct buf *out, const char *s, size_t n, lathe_error *err)
{
    bool in_class = false;
    for (size_t i = 0; i < n; i++) {
        char c = s[i], d = i + 1 < n ? s[i + 1] : 0;
        const char *what = NULL;
        size_t len = 1; /* of what is copied as it is */
        if (c == '\\') {
            bool is_word = (d >= '0' && d <= '9') || ((d | 32) >= 'a' && (d | 32) <= 'z');
            len = 2;
            if (d == 's' || d == 'S') {
                buf_puts(out, d == 's' ? "\\p{White_Space}" : "\\P{White_Space}");
                i++;
                continue;
            }
            bool has_braces = d == 'p' || d == 'P' || d == 'x';
            if (!d || (is_word && !strchr("rntfpPdDx", d)) ||
                (has_braces && (i + len == n || s[i + len] != '{')))
                what = "escape";
            while (has_braces && i + len < n && s[i + len - 1] != '}')
                len++;
        } else if (in_class) {
            if (c == '[')
                what = "nested class";
            else if (c == '&' && d == '&')
                what = "intersection of classes";
            in_class = c != ']';
        } else if (c == '[') {
            in_class = true;
            len += d == '^';
            if (i + len < n && s[i + len] == ']')
                what = "class that begins with a bracket";
        } else if (c == '^' || c == '$') {
            what = "anchor";
        } else if (c == '(' && (d == '?' || d == '*')) {
            static const char *const known[] = {"(?:", "(?i:", "(?=", "(?!", "(?>", "(?<=", "(?<!"};
            len = 0;
            for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
                size_t m = strlen(known[k]);
                if (m <= n - i && memcmp(s + i, known[k], m) == 0)
                    len = m;
            }
            if (!len)
                what = "group";
        } else if ((c == '}' && d == '+') || (c == '{' && d == ',')) {
            what = "quantifier";
        }
        if (what)
            return fail(err, LATHE_E_UNSUPPORTED,
                        "splitting pattern: byte %zu: this %s, \"%.*s\", is not supported", i, what,
                        (int)(n - i < 8 ? n - i : 8), s + i);
        buf_append(out, s + i, len);
        i += len - 1;
    }
    return buf_check(out, "splitting pattern", err);
}

static lathe_status compile(struct pretokenizer *p, const char *pattern, size_t n, lathe_error *err)
{
    struct buf b;
    buf_init(&b, MAX_PATTERN * 16);
    lathe_status st = translate(&b, pattern, n, err);
    pcre2_compile_context *c = st ? NULL : pcre2_compile_context_create(NULL);
    if (!st && !c)
        st = fail_memory(err, sizeof *p);
    if (!st) {
        int code = 0;
        PCRE2_SIZE at = 0;
        pcre2_set_newline(c, PCRE2_NEWLINE_LF);
        p->code = pcre2_compile((PCRE2_SPTR)buf_str(&b), b.len,
                                PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &at, c);
        if (!p->code) {
            PCRE2_UCHAR text[128] = "";
            pcre2_get_error_message(code, text, sizeof text);
            st = code == PCRE2_ERROR_NOMEMORY || code == PCRE2_ERROR_HEAP_FAILED
                     ? fail_memory(err, b.len)
                     : fail(err, LATHE_E_FORMAT, "splitting pattern: %s, in \"%.100s\"",
                            (const char *)text, pattern);
        } else {
            (void)pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); /* or else it is interpreted */
        }
    }
    pcre2_compile_context_free(c);
    buf_release(&b);
    return st;
}

/* The first match in s[at..n); n, n if there is none. */
static lathe_status regex_match(struct splitter *w, size_t at, size_t *begin, size_t *end,
                                lathe_error *err)
{
    *begin = *end = w->n;
    size_t left = w->n - at;
    size_t steps = STEPS + (left < (size_t)1 << 28 ? left : (size_t)1 << 28) * STEPS_PER_BYTE;
    pcre2_set_match_limit(w->context, (uint32_t)steps);
    PCRE2_SPTR s = (PCRE2_SPTR)w->s;
    uint32_t options = PCRE2_NO_UTF_CHECK;
    int rc = pcre2_match(w->p->code, s, w->n, at, options, w->match, w->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(w->p->code, s, w->n, at, options | PCRE2_NO_JIT, w->match, w->context);
    if (rc == PCRE2_ERROR_NOMATCH)
        return LATHE_OK;
    if (rc == PCRE2_ERROR_NOMEMORY)
        return fail_memory(err, left);
    if (rc < 0) {
        PCRE2_UCHAR text[128] = "";
        pcre2_get_error_message(rc, text, sizeof text);
        return fail(err, LATHE_E_LIMIT, "splitting pattern: %s, in the text from byte %zu on",
                    (const char *)text, at);
    }
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(w->match);
    *begin = range[0];
    *end = range[1];
    return LATHE_OK;
}

/* The next match. An empty one counts, as a cut, unless it is at the end of the match before. */
static lathe_status regex_next(struct splitter *w, lathe_error *err)
{
    w->has_match = true;
    for (;;) {
        w->begin = w->end = w->n;
        if (w->search > w->n)
            return LATHE_OK;
        lathe_status st = regex_match(w, w->search, &w->begin, &w->end, err);
        if (st)
            return st;
        if (w->begin < w->end || w->begin != w->last) {
            w->search = w->last = w->end;
            return LATHE_OK;
        }
        uint32_t cp;
        w->search += w->search < w->n ? (size_t)utf8_next(w->s + w->search, &cp) : 1;
    }
}

/* ---- Both --------------------------------------------------------------------------------- */

lathe_status pretokenizer_open(struct pretokenizer **out, const char *pattern, size_t n,
                               bool by_regex, lathe_error *err)
{
    *out = NULL;
    if (n > MAX_PATTERN)
        return fail(err, LATHE_E_LIMIT, "splitting pattern: %zu bytes, more than %d", n,
                    MAX_PATTERN);
    struct pretokenizer *p = calloc(1, sizeof *p);
    if (!p)
        return fail_memory(err, sizeof *p);
    lathe_status st = LATHE_OK;
    bool is_family = n == sizeof pretokenize_family_pattern - 1 &&
                     memcmp(pattern, pretokenize_family_pattern, n) == 0;
    if (!is_family || by_regex)
        st = compile(p, pattern, n, err);
    if (st) {
        pretokenizer_close(p);
        return st;
    }
    *out = p;
    return LATHE_OK;
}

void pretokenizer_close(struct pretokenizer *p)
{
    if (p)
        pcre2_code_free(p->code);
    free(p);
}

lathe_status splitter_init(struct splitter *w, const struct pretokenizer *p, lathe_error *err)
{
    *w = (struct splitter){.p = p};
    if (!p->code)
        return LATHE_OK;
    w->match = pcre2_match_data_create(1, NULL);
    w->context = pcre2_match_context_create(NULL);
    if (!w->match || !w->context) {
        splitter_release(w);
        return fail_memory(err, sizeof *w);
    }
    pcre2_set_heap_limit(w->context, HEAP_KIB);
    return LATHE_OK;
}

void splitter_release(struct splitter *w)
{
    pcre2_match_data_free(w->match);
    pcre2_match_context_free(w->context);
    *w = (struct splitter){0};
}

void splitter_start(struct splitter *w, const char *s, size_t n)
{
    w->s = s;
    w->n = n;
    w->at = w->search = 0;
    w->last = SIZE_MAX;
    w->has_match = false;
}

lathe_status splitter_next(struct splitter *w, size_t *from, size_t *to, lathe_error *err)
{
    *from = *to = w->at;
    if (!w->p->code) {
        if (w->at < w->n)
            *to = w->at = family_split(w->s, w->n, w->at);
        return LATHE_OK;
    }
    while (w->at < w->n && *to == *from) {
        if (!w->has_match) {
            lathe_status st = regex_next(w, err);
            if (st)
                return st;
        }
        *to = w->at < w->begin ? w->begin : w->end;
        w->has_match = *to != w->end;
        w->at = *to;
    }
    return LATHE_OK;
}

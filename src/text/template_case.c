/* Letters: upper, lower and title case, and the classes of isalpha() and its like. Unicode's data is
 * utf8proc's; what it leaves out (full mappings, Other_Lowercase, Numeric_Type) is below, from
 * SpecialCasing.txt and DerivedCoreProperties.txt. */
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "text/template_string.h"

/* Letters with a mapping to several, unused places 0. U+1F80..1FAF follow a rule. */
static const struct special {
    uint16_t c, upper[3], title[3];
} special[] = {
    {0x00DF, {0x0053, 0x0053}, {0x0053, 0x0073}},
    {0x0149, {0x02BC, 0x004E}, {0x02BC, 0x004E}},
    {0x01F0, {0x004A, 0x030C}, {0x004A, 0x030C}},
    {0x0390, {0x0399, 0x0308, 0x0301}, {0x0399, 0x0308, 0x0301}},
    {0x03B0, {0x03A5, 0x0308, 0x0301}, {0x03A5, 0x0308, 0x0301}},
    {0x0587, {0x0535, 0x0552}, {0x0535, 0x0582}},
    {0x1E96, {0x0048, 0x0331}, {0x0048, 0x0331}},
    {0x1E97, {0x0054, 0x0308}, {0x0054, 0x0308}},
    {0x1E98, {0x0057, 0x030A}, {0x0057, 0x030A}},
    {0x1E99, {0x0059, 0x030A}, {0x0059, 0x030A}},
    {0x1E9A, {0x0041, 0x02BE}, {0x0041, 0x02BE}},
    {0x1F50, {0x03A5, 0x0313}, {0x03A5, 0x0313}},
    {0x1F52, {0x03A5, 0x0313, 0x0300}, {0x03A5, 0x0313, 0x0300}},
    {0x1F54, {0x03A5, 0x0313, 0x0301}, {0x03A5, 0x0313, 0x0301}},
    {0x1F56, {0x03A5, 0x0313, 0x0342}, {0x03A5, 0x0313, 0x0342}},
    {0x1FB2, {0x1FBA, 0x0399}, {0x1FBA, 0x0345}},
    {0x1FB3, {0x0391, 0x0399}, {0x1FBC}},
    {0x1FB4, {0x0386, 0x0399}, {0x0386, 0x0345}},
    {0x1FB6, {0x0391, 0x0342}, {0x0391, 0x0342}},
    {0x1FB7, {0x0391, 0x0342, 0x0399}, {0x0391, 0x0342, 0x0345}},
    {0x1FBC, {0x0391, 0x0399}, {0x1FBC}},
    {0x1FC2, {0x1FCA, 0x0399}, {0x1FCA, 0x0345}},
    {0x1FC3, {0x0397, 0x0399}, {0x1FCC}},
    {0x1FC4, {0x0389, 0x0399}, {0x0389, 0x0345}},
    {0x1FC6, {0x0397, 0x0342}, {0x0397, 0x0342}},
    {0x1FC7, {0x0397, 0x0342, 0x0399}, {0x0397, 0x0342, 0x0345}},
    {0x1FCC, {0x0397, 0x0399}, {0x1FCC}},
    {0x1FD2, {0x0399, 0x0308, 0x0300}, {0x0399, 0x0308, 0x0300}},
    {0x1FD3, {0x0399, 0x0308, 0x0301}, {0x0399, 0x0308, 0x0301}},
    {0x1FD6, {0x0399, 0x0342}, {0x0399, 0x0342}},
    {0x1FD7, {0x0399, 0x0308, 0x0342}, {0x0399, 0x0308, 0x0342}},
    {0x1FE2, {0x03A5, 0x0308, 0x0300}, {0x03A5, 0x0308, 0x0300}},
    {0x1FE3, {0x03A5, 0x0308, 0x0301}, {0x03A5, 0x0308, 0x0301}},
    {0x1FE4, {0x03A1, 0x0313}, {0x03A1, 0x0313}},
    {0x1FE6, {0x03A5, 0x0342}, {0x03A5, 0x0342}},
    {0x1FE7, {0x03A5, 0x0308, 0x0342}, {0x03A5, 0x0308, 0x0342}},
    {0x1FF2, {0x1FFA, 0x0399}, {0x1FFA, 0x0345}},
    {0x1FF3, {0x03A9, 0x0399}, {0x1FFC}},
    {0x1FF4, {0x038F, 0x0399}, {0x038F, 0x0345}},
    {0x1FF6, {0x03A9, 0x0342}, {0x03A9, 0x0342}},
    {0x1FF7, {0x03A9, 0x0342, 0x0399}, {0x03A9, 0x0342, 0x0345}},
    {0x1FFC, {0x03A9, 0x0399}, {0x1FFC}},
    {0xFB00, {0x0046, 0x0046}, {0x0046, 0x0066}},
    {0xFB01, {0x0046, 0x0049}, {0x0046, 0x0069}},
    {0xFB02, {0x0046, 0x004C}, {0x0046, 0x006C}},
    {0xFB03, {0x0046, 0x0046, 0x0049}, {0x0046, 0x0066, 0x0069}},
    {0xFB04, {0x0046, 0x0046, 0x004C}, {0x0046, 0x0066, 0x006C}},
    {0xFB05, {0x0053, 0x0054}, {0x0053, 0x0074}},
    {0xFB06, {0x0053, 0x0054}, {0x0053, 0x0074}},
    {0xFB13, {0x0544, 0x0546}, {0x0544, 0x0576}},
    {0xFB14, {0x0544, 0x0535}, {0x0544, 0x0565}},
    {0xFB15, {0x0544, 0x053B}, {0x0544, 0x056B}},
    {0xFB16, {0x054E, 0x0546}, {0x054E, 0x0576}},
    {0xFB17, {0x0544, 0x053D}, {0x0544, 0x056D}},
};

struct interval {
    uint32_t first, last;
};

static const struct interval other_lower[] = {
    {0xAA, 0xAA},       {0xBA, 0xBA},       {0x2B0, 0x2B8},     {0x2C0, 0x2C1},
    {0x2E0, 0x2E4},     {0x345, 0x345},     {0x37A, 0x37A},     {0x1D2C, 0x1D6A},
    {0x1D78, 0x1D78},   {0x1D9B, 0x1DBF},   {0x2071, 0x2071},   {0x207F, 0x207F},
    {0x2090, 0x209C},   {0x2170, 0x217F},   {0x24D0, 0x24E9},   {0x2C7C, 0x2C7D},
    {0xA69C, 0xA69D},   {0xA770, 0xA770},   {0xA7F8, 0xA7F9},   {0xAB5C, 0xAB5F},
    {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA},
};
static const struct interval other_upper[] = {
    {0x2160, 0x216F}, {0x24B6, 0x24CF}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189},
};
/* Digits in the wide sense that are not of category Nd. */
static const struct interval other_digit[] = {
    {0xB2, 0xB3},       {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},
    {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
    {0x2474, 0x247C},   {0x2488, 0x2490},   {0x24EA, 0x24EA},   {0x24F5, 0x24FD},
    {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},   {0x278A, 0x2792},
    {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A},
};
/* Punctuation inside words: skipped when a final sigma is looked for. */
static const struct interval inside_word[] = {
    {0x27, 0x27},     {0x2E, 0x2E},     {0x3A, 0x3A},     {0xB7, 0xB7},
    {0x387, 0x387},   {0x55F, 0x55F},   {0x5F4, 0x5F4},   {0x2018, 0x2019},
    {0x2024, 0x2024}, {0x2027, 0x2027}, {0xFE13, 0xFE13}, {0xFE52, 0xFE52},
    {0xFE55, 0xFE55}, {0xFF07, 0xFF07}, {0xFF0E, 0xFF0E}, {0xFF1A, 0xFF1A},
};

#define IN(table, c) in_table(table, sizeof(table) / sizeof(table)[0], c)
static bool in_table(const struct interval *t, size_t n, uint32_t c)
{
    for (size_t i = 0; i < n; i++)
        if (c >= t[i].first && c <= t[i].last)
            return true;
    return false;
}

static utf8proc_category_t category(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c);
}

static bool is_lower(uint32_t c)
{
    return c < 0x80 ? c >= 'a' && c <= 'z'
                    : category(c) == UTF8PROC_CATEGORY_LL || IN(other_lower, c);
}

static bool is_upper(uint32_t c)
{
    return c < 0x80 ? c >= 'A' && c <= 'Z'
                    : category(c) == UTF8PROC_CATEGORY_LU || IN(other_upper, c);
}

static bool is_title(uint32_t c)
{
    return c >= 0x80 && category(c) == UTF8PROC_CATEGORY_LT;
}

static bool is_cased(uint32_t c)
{
    return is_lower(c) || is_upper(c) || is_title(c);
}

static bool is_letter(uint32_t c)
{
    utf8proc_category_t k = category(c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool character_is(uint32_t c, enum character_class k)
{
    utf8proc_category_t g = category(c);
    switch (k) {
    case CLASS_ALPHA:
        return is_letter(c);
    case CLASS_DECIMAL:
        return g == UTF8PROC_CATEGORY_ND;
    case CLASS_DIGIT:
        return g == UTF8PROC_CATEGORY_ND || IN(other_digit, c);
    case CLASS_NUMERIC:
        return g == UTF8PROC_CATEGORY_ND || g == UTF8PROC_CATEGORY_NL || g == UTF8PROC_CATEGORY_NO;
    case CLASS_ALNUM:
        return is_letter(c) || character_is(c, CLASS_NUMERIC);
    case CLASS_SPACE: {
        char s[4];
        return blank_at(s, (size_t)utf8_encode(c, s)) > 0;
    }
    case CLASS_PRINTABLE:
        if (c < 0x80)
            return c >= 0x20 && c < 0x7F;
        return g != UTF8PROC_CATEGORY_CC && g != UTF8PROC_CATEGORY_CF &&
               g != UTF8PROC_CATEGORY_CS && g != UTF8PROC_CATEGORY_CO &&
               g != UTF8PROC_CATEGORY_CN && g != UTF8PROC_CATEGORY_ZL &&
               g != UTF8PROC_CATEGORY_ZP && g != UTF8PROC_CATEGORY_ZS;
    }
    return false;
}

/* Decodes the character at *i and moves behind it. */
static uint32_t next(const struct string *s, size_t *i)
{
    uint32_t c = 0xFFFD;
    int32_t n = utf8_decode(s->s + *i, s->n - *i, &c);
    *i += n > 0 ? (size_t)n : 1;
    return c;
}

bool string_is_all(const struct string *s, enum character_class k)
{
    for (size_t i = 0; i < s->n;)
        if (!character_is(next(s, &i), k))
            return false;
    return s->n > 0 || k == CLASS_PRINTABLE;
}

bool string_is_cased(const struct string *s, enum letter_case as)
{
    bool any = false, after_cased = false;
    for (size_t i = 0; i < s->n;) {
        uint32_t c = next(s, &i);
        if (as == CASE_TITLE) {
            if ((is_upper(c) || is_title(c)) && after_cased)
                return false;
            if (is_lower(c) && !after_cased)
                return false;
        } else if (is_title(c) || (as == CASE_UPPER ? is_lower(c) : is_upper(c))) {
            return false;
        }
        after_cased = is_cased(c);
        any = any || after_cased;
    }
    return any;
}

static bool put(struct builder *b, uint32_t c, unsigned char origin)
{
    char s[4];
    return builder_put(b, s, (size_t)utf8_encode(c, s), origin);
}

static bool put_upper(struct builder *b, uint32_t c, bool title, unsigned char origin)
{
    if (c >= 0x1F80 && c <= 0x1FAF) {
        uint32_t row = (c - 0x1F80) >> 4; /* alpha, eta, omega with iota */
        static const uint32_t capital[] = {0x1F08, 0x1F28, 0x1F68};
        if (title)
            return put(b, c | 8, origin);
        return put(b, capital[row] + (c & 7), origin) && put(b, 0x399, origin);
    }
    for (size_t i = 0; c >= 0xDF && i < sizeof special / sizeof special[0]; i++) {
        if (special[i].c != c)
            continue;
        const uint16_t *to = title ? special[i].title : special[i].upper;
        for (int k = 0; k < 3 && to[k]; k++)
            if (!put(b, to[k], origin))
                return false;
        return true;
    }
    utf8proc_int32_t m =
        title ? utf8proc_totitle((utf8proc_int32_t)c) : utf8proc_toupper((utf8proc_int32_t)c);
    return put(b, (uint32_t)m, origin);
}

static bool is_ignorable(uint32_t c)
{
    utf8proc_category_t g = category(c);
    return g == UTF8PROC_CATEGORY_MN || g == UTF8PROC_CATEGORY_ME || g == UTF8PROC_CATEGORY_CF ||
           g == UTF8PROC_CATEGORY_LM || g == UTF8PROC_CATEGORY_SK || IN(inside_word, c);
}

/* Does the capital sigma at [at, end) end a word? Then its small form is U+03C2. */
static bool is_final_sigma(struct run *r, const struct string *s, size_t at, size_t end)
{
    size_t i = at, to = at;
    bool before = false;
    while (i > 0) {
        i--;
        if (((unsigned char)s->s[i] & 0xC0) == 0x80)
            continue;
        size_t k = i;
        uint32_t c = next(s, &k);
        if (is_ignorable(c))
            continue;
        before = is_cased(c);
        break;
    }
    for (to = end; before && to < s->n;) {
        uint32_t c = next(s, &to);
        if (is_ignorable(c))
            continue;
        before = !is_cased(c);
        break;
    }
    return before && run_steps(r, at - i + to - end);
}

static bool put_lower(struct builder *b, const struct string *s, size_t at, size_t end, uint32_t c,
                      unsigned char origin)
{
    if (c == 0x130)
        return put(b, 'i', origin) && put(b, 0x307, origin);
    if (c == 0x3A3)
        return put(b, is_final_sigma(b->r, s, at, end) ? 0x3C2 : 0x3C3, origin);
    return put(b, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c), origin);
}

static bool finish(struct run *r, struct builder *b, const struct string *s, struct value *out)
{
    return builder_string(b, out) && (!s->is_markup || string_mark(r, out));
}

bool string_case(struct run *r, const struct string *s, enum letter_case to, struct value *out)
{
    struct builder b;
    builder_init(&b, r);
    bool after_cased = false;
    if (!run_steps(r, s->n / 8))
        return false;
    for (size_t i = 0; i < s->n;) {
        size_t at = i;
        unsigned char origin = s->map ? s->map[i] : s->origin;
        uint32_t c = next(s, &i);
        bool lower = to == CASE_LOWER || (to == CASE_CAPITAL && at > 0) ||
                     (to == CASE_TITLE && after_cased) || (to == CASE_SWAP && is_upper(c));
        bool keep = to == CASE_SWAP && !is_upper(c) && !is_lower(c);
        bool title = to == CASE_TITLE || to == CASE_CAPITAL;
        after_cased = is_cased(c);
        if (keep    ? !put(&b, c, origin)
            : lower ? !put_lower(&b, s, at, i, c, origin)
                    : !put_upper(&b, c, title, origin))
            return false;
    }
    return finish(r, &b, s, out);
}

bool string_title_words(struct run *r, const struct string *s, struct value *out)
{
    struct builder b;
    builder_init(&b, r);
    bool is_first = true;
    size_t word = 0; /* where the word's tail begins: sigma looks no further */
    if (!run_steps(r, s->n / 8))
        return false;
    for (size_t i = 0; i < s->n;) {
        size_t at = i;
        unsigned char origin = s->map ? s->map[i] : s->origin;
        uint32_t c = next(s, &i);
        bool ends = strchr("-({[<", c < 0x80 && c ? (int)c : 'x') || character_is(c, CLASS_SPACE);
        if (ends ? !put(&b, c, origin) : is_first && !put_upper(&b, c, false, origin))
            return false;
        if (!ends && !is_first) {
            struct string tail = *s;
            size_t to = i;
            while (to < s->n) {
                size_t k = to;
                uint32_t d = next(s, &k);
                if (c != 0x3A3 || strchr("-({[<", d < 0x80 && d ? (int)d : 'x') ||
                    character_is(d, CLASS_SPACE))
                    break;
                to = k;
            }
            tail.s = s->s + word;
            tail.n = to - word;
            if (!run_bytes(r, to - i) || !put_lower(&b, &tail, at - word, i - word, c, origin))
                return false;
        }
        if (is_first && !ends)
            word = i;
        is_first = ends;
    }
    return finish(r, &b, s, out);
}

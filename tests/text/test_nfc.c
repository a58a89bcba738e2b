/* NFC beside utf8proc's own, which is right but for U+11A7, and quadratic. */
#include "test.h"

#include <utf8proc.h>

#include "base/utf8.h"
#include "text/nfc.h"

static const char *origins(const struct nfc *w)
{
    static char out[256];
    size_t k = 0;
    for (size_t i = 0; i < w->n; i++)
        k += (size_t)snprintf(out + k, sizeof out - k, "%s%u", i ? " " : "", w->origin[i]);
    return out;
}

static void check(const char *text, const char *nfc, const char *from)
{
    struct nfc w = {0};
    lathe_error e;
    CHECK_OK(nfc_apply(&w, text, strlen(text), &e), &e);
    CHECK_INT(w.n, strlen(nfc));
    CHECK(memcmp(w.s, nfc, w.n) == 0);
    if (from)
        CHECK_STR(origins(&w), from);
    else
        CHECK(w.origin == NULL && w.s == text);
    nfc_release(&w);
}

TEST(composes_and_remembers_origins)
{
    check("", "", NULL);
    check("plain caf\xC3\xA9 \xED\x95\x9C \xE6\xBC\xA2 \xE1\xBA\xBF",
          "plain caf\xC3\xA9 \xED\x95\x9C \xE6\xBC\xA2 \xE1\xBA\xBF", NULL);
    check("q\xCC\xA3\xCC\x87x", "q\xCC\xA3\xCC\x87x", NULL);
    check("xe\xCC\x81y", "x\xC3\xA9y", "0 1 1 4");
    /* e, acute, dot below: ordered, then dot below composes; the acute does not. */
    check("e\xCC\x81\xCC\xA3", "\xE1\xBA\xB9\xCC\x81", "0 0 0 3 3");
    /* U+212B: a character for a character. */
    check("a\xE2\x84\xABz", "a\xC3\x85z", "0 1 1 4");
    /* U+0958 decomposes; its second half shares the origin of the character before. */
    check("x\xE0\xA5\x98z", "x\xE0\xA4\x95\xE0\xA4\xBCz", "0 1 1 1 1 1 1 4");
    /* Jamo; U+11A7 is no final consonant. */
    check("\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB.", "\xED\x95\x9C.", "0 0 0 9");
    check("\xEA\xB0\x80\xE1\x86\xA7", "\xEA\xB0\x80\xE1\x86\xA7", NULL);
    check("\xCC\xA3\xCC\x81 \xCC\x81\xCC\xA3", "\xCC\xA3\xCC\x81 \xCC\xA3\xCC\x81",
          "0 0 2 2 4 5 5 7 7");
}

/* utf8proc's NFC of s. */
static char *reference(const char *s, size_t n, size_t *out)
{
    utf8proc_uint8_t *d;
    utf8proc_ssize_t m = utf8proc_map((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n, &d,
                                      UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    CHECK(m >= 0);
    *out = (size_t)m;
    return (char *)d;
}

static uint32_t random_character(struct rng *r)
{
    static const uint32_t range[][2] = {
        {0x20, 0x7E},       {0x300, 0x345},     {0x300, 0x36F},     {0xC0, 0x24F},
        {0x370, 0x3FF},     {0x591, 0x5C7},     {0x900, 0xDFF},     {0xF00, 0xFFF},
        {0x1000, 0x103F},   {0x1100, 0x1112},   {0x1161, 0x1175},   {0x11A8, 0x11C2},
        {0x1B00, 0x1B44},   {0x1E00, 0x1FFF},   {0x2100, 0x214F},   {0x3041, 0x30FF},
        {0xAC00, 0xD7A3},   {0xF900, 0xFAD9},   {0xFB1D, 0xFB4F},   {0x11100, 0x11140},
        {0x11330, 0x1135F}, {0x1D15E, 0x1D1C0}, {0x2F800, 0x2FA1D},
    };
    const uint32_t *a = range[rng_below(r, sizeof range / sizeof *range)];
    return a[0] + rng_below(r, a[1] - a[0] + 1);
}

TEST(equals_utf8proc)
{
    struct nfc w = {0};
    lathe_error e;
    struct rng r = {3};
    static char text[40000];
    for (int i = 0; i < 60000; i++) {
        size_t n = 0, m;
        /* Now and then a run of marks beyond what insertion sorts. */
        bool is_long = i % 500 == 0;
        for (uint32_t len = is_long ? 2000 : 1 + rng_below(&r, 12); len > 0; len--)
            n += (size_t)utf8_encode(is_long ? 0x300 + rng_below(&r, 0x70) : random_character(&r),
                                     text + n);
        char *want = reference(text, n, &m);
        CHECK_OK(nfc_apply(&w, text, n, &e), &e);
        if (w.n != m || memcmp(w.s, want, m) != 0)
            FAIL("text %d differs", i);
        for (size_t k = 1; w.origin && k < w.n; k++)
            CHECK(w.origin[k - 1] <= w.origin[k] && w.origin[k] < n);
        free(want);
        const char *once = w.s;
        char *copy = malloc(w.n + 1);
        memcpy(copy, once, w.n);
        size_t n_copy = w.n;
        CHECK_OK(nfc_apply(&w, copy, n_copy, &e), &e);
        CHECK(w.s == copy); /* NFC of NFC is itself, uncopied */
        free(copy);
    }
    nfc_release(&w);
}

/* Every character, alone and between others. */
TEST(every_character)
{
    struct nfc w = {0};
    lathe_error e;
    for (uint32_t cp = 1; cp < 0x110000; cp += cp == 0xD7FF ? 0x801 : 1) {
        char text[24] = "a";
        size_t n = 1, m;
        n += (size_t)utf8_encode(cp, text + n);
        memcpy(text + n, "\xCC\xA3\xCC\x81", 4);
        n += 4;
        n += (size_t)utf8_encode(cp, text + n);
        char *want = reference(text, n, &m);
        CHECK_OK(nfc_apply(&w, text, n, &e), &e);
        if (w.n != m || memcmp(w.s, want, m) != 0)
            FAIL("U+%04X differs", cp);
        free(want);
    }
    nfc_release(&w);
}

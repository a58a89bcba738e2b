#include "test.h"

#include "base/utf8.h"

TEST(round_trip_of_every_scalar)
{
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        char s[4];
        uint32_t back;
        if (cp >= 0xD800 && cp < 0xE000)
            continue;
        int32_t n = utf8_encode(cp, s);
        CHECK_INT(utf8_decode(s, (size_t)n, &back), n);
        CHECK_INT(back, cp);
        for (int32_t cut = 1; cut < n; cut++) {
            CHECK_INT(utf8_decode(s, (size_t)cut, &back), 0);
            CHECK_INT(utf8_incomplete_tail(s, (size_t)cut), cut);
        }
        CHECK_INT(utf8_incomplete_tail(s, (size_t)n), 0);
    }
}

TEST(invalid)
{
    static const char *const bad[] = {
        "\x80",         "\xC0\x80",         "\xC1\xBF",         "\xE0\x80\x80",
        "\xED\xA0\x80", "\xF0\x80\x80\x80", "\xF4\x90\x80\x80", "\xF5\x80",
        "\xFF"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint32_t cp;
        CHECK_INT(utf8_decode(bad[i], strlen(bad[i]), &cp), 0);
        CHECK_INT(utf8_incomplete_tail(bad[i], strlen(bad[i])), 0);
        CHECK_INT(utf8_maximal_subpart(bad[i], strlen(bad[i])), 1);
    }
    CHECK_INT(utf8_valid_prefix("ab\xC3\xA9\xFFz", 6), 4);
    /* Unicode 15, table 3-11: <F1 80 80> is one maximal subpart, so is <E1 80>. */
    CHECK_INT(utf8_maximal_subpart("\xF1\x80\x80\xE1", 4), 3);
    CHECK_INT(utf8_maximal_subpart("\xE1\x80\xC2", 3), 2);
}

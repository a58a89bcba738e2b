#include "test.h"

#include "base/json.h"
#include "base/utf8.h"
#include "text/stream.h"

static size_t unhex(const char *hex, char *out)
{
    size_t n = 0;
    unsigned byte;
    for (; hex[0] && sscanf(hex, "%2x", &byte) == 1; hex += 2)
        out[n++] = (char)byte;
    return n;
}

TEST(stream_case_B05)
{
    struct json_doc d;
    lathe_error e;
    const char *path = test_path("tests/cases/tokenizer/B05_utf8_split_streaming.json");
    CHECK_OK(json_read_file(&d, path, &json_limits_request, &e), &e);
    size_t i, k;
    json_t *row, *piece;
    CHECK(json_array_size(json_object_get(d.root, "input")) >= 5);
    json_array_foreach(json_object_get(d.root, "input"), i, row)
    {
        struct stream s = {0};
        struct buf all;
        buf_init(&all, 1000);
        json_array_foreach(json_object_get(row, "token_bytes_hex"), k, piece)
        {
            char bytes[64];
            size_t from = all.len;
            stream_feed(&s, bytes, unhex(json_string_value(piece), bytes), &all);
            CHECK_INT(utf8_valid_prefix(buf_str(&all) + from, all.len - from), all.len - from);
            CHECK(!strstr(buf_str(&all), "\xEF\xBF\xBD"));
        }
        stream_finish(&s, &all);
        CHECK_STR(buf_str(&all), json_string_value(json_object_get(row, "text")));
        buf_release(&all);
    }
    json_release(&d);
}

/* What Python's bytes.decode("utf-8", "replace") answers. */
TEST(stream_replaces_maximal_subparts)
{
    static const struct {
        const char *in, *out;
    } row[] = {
        {"a\xFF z", "a\xEF\xBF\xBD z"},
        {"\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xE2\x82", "\xEF\xBF\xBD"},
        {"\xE2\x82z", "\xEF\xBF\xBDz"},
        {"\xF0\x9F\x98", "\xEF\xBF\xBD"},
        {"\xF0\x9F\x98\xF0\x9F\x98\x80", "\xEF\xBF\xBD\xF0\x9F\x98\x80"},
        {"\xF0\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xC0\xAF", "\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xE2\xE2\x82\xAC", "\xEF\xBF\xBD\xE2\x82\xAC"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        size_t n = strlen(row[i].in);
        for (size_t cut = 0; cut <= n; cut++) {
            struct stream s = {0};
            struct buf out;
            buf_init(&out, 100);
            stream_feed(&s, row[i].in, cut, &out);
            stream_feed(&s, row[i].in + cut, n - cut, &out);
            stream_finish(&s, &out);
            CHECK_STR(buf_str(&out), row[i].out);
            buf_release(&out);
        }
    }
}

TEST(stream_is_the_same_for_every_cut)
{
    struct rng r = {5};
    for (int round = 0; round < 3000; round++) {
        char in[40];
        size_t n = rng_below(&r, sizeof in + 1);
        for (size_t i = 0; i < n; i++) {
            static const unsigned char pool[] = {'a',  0x80, 0x9F, 0xA0, 0xBF, 0xC2, 0xE0,
                                                 0xE2, 0xED, 0xEF, 0xF0, 0xF4, 0xFF, 0};
            in[i] = (char)pool[rng_below(&r, sizeof pool)];
        }
        struct buf whole, pieces;
        struct stream a = {0}, b = {0};
        buf_init(&whole, 1000);
        buf_init(&pieces, 1000);
        stream_feed(&a, in, n, &whole);
        stream_finish(&a, &whole);
        for (size_t at = 0; at < n;) {
            size_t k = 1 + rng_below(&r, 3), from = pieces.len;
            k = k < n - at ? k : n - at;
            stream_feed(&b, in + at, k, &pieces);
            CHECK_INT(utf8_valid_prefix(buf_str(&pieces) + from, pieces.len - from),
                      pieces.len - from);
            at += k;
        }
        stream_finish(&b, &pieces);
        CHECK(whole.len == pieces.len && memcmp(buf_str(&whole), buf_str(&pieces), whole.len) == 0);
        CHECK_INT(utf8_valid_prefix(buf_str(&whole), whole.len), whole.len);
        buf_release(&whole);
        buf_release(&pieces);
    }
}

#include "test.h"

#include "base/json.h"
#include "fail_alloc.h"

/* Reads and prints. */
static const char *again(const char *text, size_t n)
{
    static struct buf out;
    struct json_doc d;
    lathe_error e;
    if (!out.limit)
        buf_init(&out, 1 << 26);
    buf_clear(&out);
    CHECK_OK(json_read(&d, text, n, &json_limits_request, &e), &e);
    json_print(&out, &d, d.root);
    json_release(&d);
    CHECK_OK(buf_check(&out, "output", &e), &e);
    return buf_str(&out);
}

#define CHECK_AGAIN(text, want) CHECK_STR(again(text, sizeof text - 1), want)

TEST(json_prints_as_python_does)
{
    CHECK_AGAIN(" {\"b\":[1,2.50,-0,-0.0,true,false,null],\"a\":{}, \"c\" : [ ] }\r\n\t",
                "{\"b\": [1, 2.5, 0, -0.0, true, false, null], \"a\": {}, \"c\": []}");
    CHECK_AGAIN("\"\\\" \\\\ \\/ \\b\\f\\n\\r\\t \\u0001\\u001F\\u007f \\u00e9 \\u65e5 <&>\"",
                "\"\\\" \\\\ / \\b\\f\\n\\r\\t \\u0001\\u001f\x7f \xC3\xA9 \xE6\x97\xA5 <&>\"");
    CHECK_AGAIN("[1, 1.0, 1e5, 1E+16, 1e-5, 100000000000000000000.0, 5.0, 3.50]",
                "[1, 1.0, 100000.0, 1e+16, 1e-05, 1e+20, 5.0, 3.5]");
    CHECK_AGAIN("{\"a\":1,\"b\":2,\"a\":3}", "{\"a\": 3, \"b\": 2}");
    CHECK_AGAIN("7", "7");
    CHECK_AGAIN("\"\"", "\"\"");
    CHECK_AGAIN("\xEF\xBB\xBF [1]", "[1]");
    CHECK_AGAIN("\"\\u0000\"", "\"\\u0000\"");
    CHECK_AGAIN("1e-400", "0.0");
}

TEST(json_repairs_lone_surrogates)
{
    CHECK_AGAIN("\"\\ud83d\\ude00\"", "\"\xF0\x9F\x98\x80\"");
    CHECK_AGAIN("\"a\\ud83d b\"", "\"a\xEF\xBF\xBD b\"");
    CHECK_AGAIN("\"\\uDE00\\uD83D\"", "\"\xEF\xBF\xBD\xEF\xBF\xBD\"");
    CHECK_AGAIN("\"\\ud83d\\ud83d\\ude00\"", "\"\xEF\xBF\xBD\xF0\x9F\x98\x80\"");
    CHECK_AGAIN("\"\\ud83d\\n\"", "\"\xEF\xBF\xBD\\n\"");
    CHECK_AGAIN("{\"\\ud83d\":1}", "{\"\xEF\xBF\xBD\": 1}");
}

TEST(json_keeps_big_integers)
{
    static const char text[] = "[9223372036854775807,9223372036854775808,-9223372036854775808,"
                               "-9223372036854775809,123456789012345678901234567890]";
    CHECK_AGAIN(text, "[9223372036854775807, 9223372036854775808, -9223372036854775808, "
                      "-9223372036854775809, 123456789012345678901234567890]");
    struct json_doc d;
    lathe_error e;
    size_t n;
    CHECK_OK(json_read(&d, text, sizeof text - 1, &json_limits_request, &e), &e);
    CHECK(json_is_integer(json_array_get(d.root, 0)));
    CHECK(json_big_integer(&d, json_array_get(d.root, 0)) == NULL);
    CHECK_STR(json_big_integer(&d, json_array_get(d.root, 3)), "-9223372036854775809");
    CHECK(json_text(&d, json_array_get(d.root, 3), &n) == NULL);
    json_release(&d);
}

TEST(json_text_sees_through_the_side_table)
{
    struct json_doc d;
    lathe_error e;
    struct buf b;
    size_t n;
    buf_init(&b, 1 << 20);
    buf_puts(&b, "[\"\xEF\xBF\xBF\x30\", \"\\uffff0\", \"");
    for (int i = 0; i < 5000; i++)
        buf_puts(&b, "x");
    buf_puts(&b, "\\n\\ud83d\\u0000y\", \"short\\u0000\", 99999999999999999999, \"\\uffff\"]");
    CHECK_OK(json_read(&d, b.data, b.len, &json_limits_request, &e), &e);
    const char *s = json_text(&d, json_array_get(d.root, 0), &n);
    CHECK(n == 4 && memcmp(s, "\xEF\xBF\xBF\x30", 5) == 0);
    s = json_text(&d, json_array_get(d.root, 1), &n);
    CHECK(n == 4 && memcmp(s, "\xEF\xBF\xBF\x30", 5) == 0);
    s = json_text(&d, json_array_get(d.root, 2), &n);
    CHECK(n == 5006 && memcmp(s + 4999, "x\n\xEF\xBF\xBD\0y", 8) == 0);
    s = json_text(&d, json_array_get(d.root, 3), &n);
    CHECK(n == 6 && memcmp(s, "short\0", 7) == 0);
    CHECK_STR(json_big_integer(&d, json_array_get(d.root, 4)), "99999999999999999999");
    s = json_text(&d, json_array_get(d.root, 5), &n);
    CHECK(n == 3 && memcmp(s, "\xEF\xBF\xBF", 4) == 0);
    CHECK(json_text(&d, d.root, &n) == NULL);
    json_release(&d);
    json_release(&d);
    buf_release(&b);
}

static void refuse(const char *text, size_t n, lathe_status st, const char *message)
{
    struct json_doc d;
    lathe_error e;
    CHECK_ERR(json_read(&d, text, n, &json_limits_request, &e), &e, st, message);
    CHECK(d.root == NULL);
    json_release(&d);
}

TEST(json_names_the_place_of_an_error)
{
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"", "byte 0 (line 1, column 1): the text ends, expected a value"},
        {"  \n [1,\n  2,,3]", "byte 12 (line 3, column 5): found ',', expected a value"},
        {"[\"\xC3\xA9\" x]", "byte 6 (line 1, column 6): found 'x', expected ',' or ']'"},
        {"{\"a\":1", "byte 6 (line 1, column 7): the text ends, expected ',' or '}'"},
        {"{\"a\" 1}", "byte 5 (line 1, column 6): found '1', expected ':'"},
        {"{1:2}", "byte 1 (line 1, column 2): found '1', expected a key"},
        {"{\"a\":1,}", "found '}', expected a key"},
        {"[1,]", "found ']', expected a value"},
        {"[1}", "found '}', expected ',' or ']'"},
        {"[] x", "found 'x', expected the end of the text"},
        {"01", "found '1', expected the end of the text"},
        {"-", "the text ends, expected a digit"},
        {"1.", "the text ends, expected a digit"},
        {"1e+", "the text ends, expected a digit"},
        {"[.5]", "found '.', expected a value"},
        {"tru", "found 't', expected a value"},
        {"nul\xC3\xA9", "found 'n', expected a value"},
        {"NaN", "found 'N', expected a value"},
        {"[\"abc]", "byte 1 (line 1, column 2): a string is not closed"},
        {"\"a\nb\"", "byte 2 (line 1, column 3): raw control byte 0x0A in a string"},
        {"\"\\x\"", "invalid escape"},
        {"\"\\u12G4\"", "invalid escape"},
        {"\"\\u12", "invalid escape"},
        {"\"\\", "invalid escape"},
        {"\"\xED\xA0\x80\"", "invalid UTF-8 (byte 0xED)"},
        {"\"\xC0\x80\"", "invalid UTF-8 (byte 0xC0)"},
        {"\"\xC3", "invalid UTF-8 (byte 0xC3)"},
        {"[\xFF]", "found byte 0xFF, expected a value"},
        {"{\"a\\u0000\":1}", "U+0000 in an object key"},
        {"{\"x\":1e400}", "byte 5 (line 1, column 6): a number overflows a double"},
        {"-1e309", "overflows"},
        {"179769313486231581e291", "overflows"},
        {"1.7976931348623159e308", "overflows"},
        {"0.00000179769313486231590000e314", "overflows"},
        {"1e99999999999999999999999999", "overflows"},
        {"[1] \v", "found byte 0x0B, expected the end of the text"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refuse(bad[i].text, strlen(bad[i].text), LATHE_E_FORMAT, bad[i].message);
    CHECK_AGAIN("[1.7976931348623157e308, 1.7976931348623158e308, 0e999999999999, 1e-99999999999]",
                "[1.7976931348623157e+308, 1.7976931348623157e+308, 0.0, 0.0]");
    CHECK_AGAIN("[0.0000017976931348623157e314, 17976931348623157.00e+292]",
                "[1.7976931348623157e+308, 1.7976931348623157e+308]");
}

static void nest(struct buf *b, int n, const char *open, const char *inner, const char *close)
{
    buf_clear(b);
    buf_puts(b, "{\"x\":");
    for (int i = 0; i < n; i++)
        buf_puts(b, open);
    buf_puts(b, inner);
    for (int i = 0; i < n; i++)
        buf_puts(b, close);
    buf_puts(b, "}");
}

/* cases/robustness/B101. */
TEST(json_depth_is_limited_without_recursion)
{
    struct buf b;
    buf_init(&b, 64 << 20);
    nest(&b, 127, "[", "0", "]");
    again(b.data, b.len);
    static const int depth[] = {128, 1000, 10000, 1000000};
    for (int i = 0; i < 4; i++) {
        nest(&b, depth[i], "[", "0", "]");
        refuse(b.data, b.len, LATHE_E_LIMIT,
               "byte 132 (line 1, column 133): nested deeper than the limit of 128 levels");
        nest(&b, depth[i], "{\"properties\":{\"a\":", "1", "}}");
        refuse(b.data, b.len, LATHE_E_LIMIT, "nested deeper than the limit of 128 levels");
        nest(&b, depth[i], "{\"a\":", "", "");
        refuse(b.data, b.len, LATHE_E_LIMIT, "nested deeper than the limit of 128 levels");
    }
    buf_release(&b);
}

TEST(json_limits)
{
    struct json_limits small = {.bytes = 30, .string = 4, .values = 3, .depth = 2};
    struct json_doc d;
    lathe_error e;
    CHECK_OK(json_read(&d, "[\"abcd\", {}]", 12, &small, &e), &e);
    json_release(&d);
    CHECK_ERR(json_read(&d, "[\"abcde\"]", 9, &small, &e), &e, LATHE_E_LIMIT,
              "byte 1 (line 1, column 2): a string is longer than the limit of 4 bytes");
    CHECK_ERR(json_read(&d, "[1,2,3]", 7, &small, &e), &e, LATHE_E_LIMIT,
              "byte 5 (line 1, column 6): more than the limit of 3 values");
    CHECK_ERR(json_read(&d, "[[[]]]", 6, &small, &e), &e, LATHE_E_LIMIT, "limit of 2 levels");
    CHECK_ERR(json_read(&d, "                               ", 31, &small, &e), &e, LATHE_E_LIMIT,
              "31 bytes of JSON, the limit is 30");
    struct json_limits wide = {.bytes = 1 << 20, .string = 4, .values = 1 << 20, .depth = 1 << 20};
    struct buf b;
    buf_init(&b, 1 << 20);
    nest(&b, 5000, "[", "0", "]");
    CHECK_ERR(json_read(&d, b.data, b.len, &wide, &e), &e, LATHE_E_LIMIT, "limit of 1024 levels");
    buf_release(&b);
}

/* How often a caller is asked, and at which time it says that it wants no more. */
struct patience {
    int n, until;
};

static bool is_over(void *ctx)
{
    struct patience *p = ctx;
    return ++p->n == p->until;
}

/* Both passes ask; whenever the answer is yes, that is the end. */
TEST(json_is_left_when_nobody_wants_it)
{
    struct buf text;
    struct json_doc d;
    lathe_error e;
    buf_init(&text, 1 << 20);
    buf_puts(&text, "[0");
    for (int i = 0; i < 20000; i++)
        buf_printf(&text, ",{\"%020d\":[]}", i);
    buf_puts(&text, "]");
    struct patience p = {0, 0};
    struct watch w = {.leave = is_over, .ctx = &p};
    CHECK_OK(json_read_watched(&d, text.data, text.len, &json_limits_request, &w, &e), &e);
    json_release(&d);
    int n = p.n;
    CHECK(n >= 2 * (int)(text.len >> 16));
    for (int until = 1; until <= n; until++) {
        p = (struct patience){0, until};
        w = (struct watch){.leave = is_over, .ctx = &p};
        CHECK_ERR(json_read_watched(&d, text.data, text.len, &json_limits_request, &w, &e), &e,
                  LATHE_E_CANCELLED, "nobody wants it");
        CHECK(!d.root && p.n == until);
        json_release(&d);
    }
    buf_release(&text);
}

TEST(json_files)
{
    struct json_doc d;
    lathe_error e;
    const char *path = test_tmp("a.json");
    test_write(path, "{\"a\": [1]}\n", 11);
    CHECK_OK(json_read_file(&d, path, &json_limits_model, &e), &e);
    CHECK_INT(json_array_size(json_object_get(d.root, "a")), 1);
    json_release(&d);
    test_write(path, "{\"a\"\n; [1]}\n", 12);
    CHECK_ERR(json_read_file(&d, path, &json_limits_model, &e), &e, LATHE_E_FORMAT,
              "a.json: byte 5 (line 2, column 1): found ';', expected ':'");
    test_write(path, "", 0);
    CHECK_ERR(json_read_file(&d, path, &json_limits_model, &e), &e, LATHE_E_FORMAT,
              "a.json: byte 0 (line 1, column 1): the text ends");
    CHECK_ERR(json_read_file(&d, test_tmp("none"), &json_limits_model, &e), &e, LATHE_E_IO, "none");
}

static const char *real(double x)
{
    static struct buf b;
    if (!b.limit)
        buf_init(&b, 64);
    buf_clear(&b);
    json_print_real(&b, x);
    return buf_str(&b);
}

/* The right column is Python 3's repr(float). */
TEST(json_reals_edges)
{
    static const struct {
        double x;
        const char *text;
    } row[] = {
        {0.0, "0.0"},
        {-0.0, "-0.0"},
        {1.0, "1.0"},
        {-1.5, "-1.5"},
        {0.1, "0.1"},
        {3.1, "3.1"},
        {1e5, "100000.0"},
        {123456789.125, "123456789.125"},
        {1e15, "1000000000000000.0"},
        {9999999999999998.0, "9999999999999998.0"},
        {1e16, "1e+16"},
        {12345678901234567890.0, "1.2345678901234567e+19"},
        {1e22, "1e+22"},
        {1e23, "1e+23"},
        {1e-4, "0.0001"},
        {0.00012345, "0.00012345"},
        {1e-5, "1e-05"},
        {1.5e-7, "1.5e-07"},
        {1e100, "1e+100"},
        {5e-324, "5e-324"},
        {1.5e-323, "1.5e-323"},
        {2.2250738585072014e-308, "2.2250738585072014e-308"},
        {2.225073858507201e-308, "2.225073858507201e-308"},
        {1.7976931348623157e308, "1.7976931348623157e+308"},
        {0x1p-44, "5.684341886080802e-14"},
        {0x1p-24, "5.960464477539063e-08"},
        {0x1p-1022, "2.2250738585072014e-308"},
        {0x1p976, "6.386688990511104e+293"},
        {9007199254740993.0, "9007199254740992.0"},
        {0.3, "0.3"},
        {0.1 + 0.2, "0.30000000000000004"},
        {INFINITY, "Infinity"},
        {-INFINITY, "-Infinity"},
        {NAN, "NaN"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        CHECK_STR(real(row[i].x), row[i].text);
}

/* Every power of two and its neighbours, and random doubles, against the Python at hand. */
TEST(json_reals_are_spelled_as_python_spells_them)
{
    enum { RANDOM = 40000 };
    if (system("python3 -c '' 2>/dev/null") != 0)
        SKIP("no python3 to compare with");
    const char *bits_path = test_tmp("bits");
    FILE *f = fopen(bits_path, "wb");
    CHECK(f);
    struct rng r = {7};
    static double x[RANDOM + 3 * 2098];
    size_t n = 0;
    for (int e = -1074; e < 1024; e++) {
        x[n++] = ldexp(1, e);
        x[n++] = nextafter(ldexp(1, e), 0);
        x[n++] = nextafter(ldexp(1, e), INFINITY);
    }
    for (int i = 0; i < RANDOM; i++) {
        uint64_t bits = rng_u64(&r);
        double v;
        memcpy(&v, &bits, 8);
        if (i % 4 == 1)
            v = (double)(int64_t)bits / 1000;
        else if (i % 4 == 2)
            v = (double)(bits >> 40) * pow(10, (int)rng_below(&r, 40) - 20);
        else if (i % 4 == 3)
            v = rng_normal(&r);
        if (isfinite(v))
            x[n++] = v;
    }
    CHECK(fwrite(x, 8, n, f) == n);
    CHECK(fclose(f) == 0);
    char command[4096];
    snprintf(command, sizeof command,
             "python3 -c 'import sys, array\n"
             "a = array.array(\"d\"); a.frombytes(open(sys.argv[1], \"rb\").read())\n"
             "for x in a: print(repr(x))' %s",
             bits_path);
    FILE *p = popen(command, "r");
    CHECK(p);
    char line[64];
    size_t i = 0;
    for (; i < n && fgets(line, sizeof line, p); i++) {
        line[strcspn(line, "\n")] = 0;
        CHECK_STR(real(x[i]), line);
    }
    pclose(p);
    CHECK_INT(i, n);
}

TEST(json_survives_failing_allocations)
{
    struct buf text;
    buf_init(&text, 1 << 20);
    buf_puts(&text, "{\"a\": [1, 2.5, \"\\ud83d\", 99999999999999999999, \"");
    for (int i = 0; i < 5000; i++)
        buf_puts(&text, "y");
    buf_puts(&text, "\"], \"b\": {\"c\": null, \"d\": 123456.5e10, \"k\": [");
    for (int i = 0; i < 40; i++)
        buf_printf(&text, "\"\\uffff%d\", {}, ", i);
    buf_puts(&text, "1]}}");
    size_t nth = 1;
    for (;; nth++) {
        struct json_doc d;
        struct buf out;
        lathe_error e;
        buf_init(&out, 1 << 20);
        fail_alloc_arm(nth);
        lathe_status st = json_read(&d, text.data, text.len, &json_limits_request, &e);
        if (!st) {
            json_print(&out, &d, d.root);
            st = buf_check(&out, "output", &e);
        }
        bool failed = fail_alloc_disarm();
        json_release(&d);
        buf_release(&out);
        if (!failed) {
            CHECK_INT(st, LATHE_OK);
            break;
        }
        CHECK_ERR(st, &e, LATHE_E_MEMORY, "out of memory");
    }
    CHECK(nth > 100);
    buf_release(&text);
}

#include "server/guard.h"

#include "test.h"

TEST(hosts)
{
    static const char *const extra[] = {"box.lan"};
    struct names allowed = {extra, 1};
    static const struct {
        const char *host;
        bool ok;
    } rows[] = {
        {"127.0.0.1", true},
        {"127.0.0.1:8080", true},
        {"localhost", true},
        {"LocalHost:1", true},
        {"localhost.:80", true},
        {"[::1]:8080", true},
        {"[::1]", true},
        {"10.1.2.3:80", true},
        {"box.lan:8080", true},
        {"BOX.LAN", true},
        {"own.name", true},
        {"host.docker.internal:80", true},
        {"evil.com", false},
        {"127.0.0.1.evil.com", false},
        {"localhost.evil.com", false},
        {"", false},
        {":80", false},
        {"[::1", false},
        {"[evil]:80", false},
        {"localhost:80x", false},
        {"localhost:80:90", false},
        {"evil.com:80@localhost", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (host_allowed(rows[i].host, "own.name", &allowed) != rows[i].ok)
            FAIL("%s: expected %d", rows[i].host, rows[i].ok);
    struct names none = {NULL, 0};
    CHECK(!host_allowed("box.lan", NULL, &none));
}

TEST(origins)
{
    static const char *const list[] = {"https://app.example"};
    struct names listed = {list, 1};
    static const struct {
        const char *origin, *host;
        enum origin want;
    } rows[] = {
        {"http://localhost:8080", "localhost:8080", ORIGIN_SAME},
        {"https://localhost", "localhost", ORIGIN_SAME},
        {"https://localhost:443", "localhost", ORIGIN_SAME},
        {"http://localhost", "localhost:80", ORIGIN_SAME},
        {"http://localhost", "localhost:8080", ORIGIN_FOREIGN},
        {"http://localhost:8081", "localhost:8080", ORIGIN_FOREIGN},
        {"http://127.0.0.1:8080", "localhost:8080", ORIGIN_FOREIGN},
        {"null", "localhost", ORIGIN_FOREIGN},
        {"", "localhost", ORIGIN_FOREIGN},
        {"https://app.example", "localhost", ORIGIN_LISTED},
        {"http://app.example", "localhost", ORIGIN_FOREIGN},
        {"https://app.example.evil", "localhost", ORIGIN_FOREIGN},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (origin_check(rows[i].origin, rows[i].host, &listed) != rows[i].want)
            FAIL("%s at %s: expected %d", rows[i].origin, rows[i].host, (int)rows[i].want);
}

TEST(keys)
{
    static const struct owner nobody;
    struct keys *k;
    struct owner o, other;
    lathe_error err;
    CHECK_OK(keys_open(&k, &err), &err);
    CHECK(keys_match(k, NULL, NULL, &o) && keys_match(k, "Bearer any", NULL, &o));
    CHECK(memcmp(&o, &nobody, sizeof o) == 0);
    CHECK_OK(keys_add(k, "one", 3, &err), &err);
    const char *path = test_tmp("keys");
    test_write(path, "# comment\n\n  two \r\nthree", 24);
    CHECK_OK(keys_add_file(k, path, &err), &err);
    CHECK(keys_any(k));
    CHECK(keys_match(k, "Bearer one", NULL, &o));
    CHECK(keys_match(k, "bearer  two", NULL, &o));
    CHECK(keys_match(k, NULL, "three", &o));
    CHECK(keys_match(k, "Bearer wrong", "one", &other));
    CHECK(keys_match(k, "Bearer one", NULL, &o));
    CHECK(memcmp(&o, &other, sizeof o) == 0 && memcmp(&o, &nobody, sizeof o) != 0);
    CHECK(keys_match(k, "Bearer two", NULL, &o) && memcmp(&o, &other, sizeof o) != 0);
    CHECK(!keys_match(k, NULL, NULL, &o));
    CHECK(!keys_match(k, "one", NULL, &o));
    CHECK(!keys_match(k, "Bearer ", NULL, &o));
    CHECK(!keys_match(k, "Bearer on", "onee", &o));
    CHECK(!keys_match(k, NULL, "# comment", &o));
    CHECK_ERR(keys_add(k, "", 0, &err), &err, LATHE_E_ARGUMENT, "empty");
    test_write(path, "# nothing\n", 10);
    CHECK_ERR(keys_add_file(k, path, &err), &err, LATHE_E_FORMAT, "no API key");
    keys_close(k);
}

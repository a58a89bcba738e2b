/* The test harness. A test file is a program: TEST(name) { ... } blocks register themselves, and
 * tests/test.c runs them in order. One line a test goes to stdout, `ok`, `FAIL` or `skip`, and a
 * last line `N passed, N failed, N skipped`; tests/run.sh adds the programs up.
 * Arguments name the tests to run; none means all. */
#ifndef LATHE_TESTS_TEST_H
#define LATHE_TESTS_TEST_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lathe/lathe.h"

struct test_case {
    const char *name;
    void (*fn)(void);
    struct test_case *next;
};
void test_register(struct test_case *t);
/* These two end the running test. */
_Noreturn void test_fail(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void test_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Should a long table of cases be shortened? With sanitizers, or where LATHE_QUICK is set, as under an
 * emulator. */
bool test_quick(void);

#define TEST(name)                                                                                 \
    static void test_##name(void);                                                                 \
    __attribute__((constructor)) static void test_register_##name(void)                            \
    {                                                                                              \
        static struct test_case t = {#name, test_##name, NULL};                                    \
        test_register(&t);                                                                         \
    }                                                                                              \
    static void test_##name(void)

#define FAIL(...) test_fail(__FILE__, __LINE__, __VA_ARGS__)
#define SKIP(...) test_skip(__VA_ARGS__)
#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond))                                                                               \
            FAIL("%s", #cond);                                                                     \
    } while (0)
#define CHECK_INT(got, want)                                                                       \
    do {                                                                                           \
        long long got_ = (long long)(got), want_ = (long long)(want);                              \
        if (got_ != want_)                                                                         \
            FAIL("%s: %lld, expected %lld", #got, got_, want_);                                    \
    } while (0)
#define CHECK_STR(got, want)                                                                       \
    do {                                                                                           \
        const char *got_ = (got), *want_ = (want);                                                 \
        if (strcmp(got_, want_) != 0)                                                              \
            FAIL("%s:\n  got      \"%s\"\n  expected \"%s\"", #got, got_, want_);                  \
    } while (0)
/* Success of a call that fills `err`. */
#define CHECK_OK(call, err)                                                                        \
    do {                                                                                           \
        if ((call) != LATHE_OK)                                                                    \
            FAIL("%s: %s", #call, (err)->message);                                                 \
    } while (0)
/* A refusal with this status whose message contains `text`. */
#define CHECK_ERR(call, err, st, text)                                                             \
    do {                                                                                           \
        lathe_status st_ = (call);                                                                 \
        if (st_ != (st) || !strstr((err)->message, (text)))                                        \
            FAIL("%s: status %d, \"%s\"; expected status %d with \"%s\"", #call, (int)st_,         \
                 st_ ? (err)->message : "", (int)(st), (text));                                    \
    } while (0)

/* A path below ../shared (or $LATHE_SHARED), in a static buffer; skips the test, naming the path,
 * where it is absent. */
const char *test_shared(const char *path);
/* A path below the repository's root. Programs are run from there; $LATHE_ROOT overrides. */
const char *test_path(const char *path);
/* A fresh folder of this process below $TMPDIR, removed at exit; `name` is appended. */
const char *test_tmp(const char *name);
/* The whole file as a NUL-terminated heap string; fails the test if it cannot be read. */
char *test_read(const char *path, size_t *n);
void test_write(const char *path, const void *data, size_t n);

/* Deterministic random numbers (splitmix64). */
struct rng {
    uint64_t s;
};
uint64_t rng_u64(struct rng *r);
/* Uniform in [0, n). */
uint32_t rng_below(struct rng *r, uint32_t n);
/* Uniform in [0, 1). */
double rng_unit(struct rng *r);
/* Standard normal. */
double rng_normal(struct rng *r);

#endif

#include "test.h"

#include <sys/stat.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/file.h"
#include "base/thread.h"

TEST(error_messages_are_one_valid_line)
{
    lathe_error e;
    CHECK_INT(fail(&e, LATHE_E_FORMAT, "name \"%s\"", "a\nb\xFF\xC3\xA9"), LATHE_E_FORMAT);
    CHECK_STR(e.message, "name \"a?b?\xC3\xA9\"");
    error_context(&e, "opening %s", "x");
    CHECK_STR(e.message, "opening x: name \"a?b?\xC3\xA9\"");
    char longer[3000];
    memset(longer, 'x', sizeof longer);
    memcpy(longer + sizeof e.message - 2, "\xC3\xA9", 3);
    fail(&e, LATHE_E_FORMAT, "%s", longer);
    CHECK_INT(strlen(e.message), sizeof e.message - 2);
    CHECK_INT(fail(NULL, LATHE_E_IO, "x"), LATHE_E_IO);
}

TEST(arena_keeps_its_limit)
{
    struct arena a;
    arena_init(&a, 1 << 20);
    char *p = arena_strndup(&a, "abc", 2);
    CHECK_STR(p, "ab");
    CHECK(arena_alloc(&a, 2 << 20) == NULL);
    CHECK(arena_alloc(&a, SIZE_MAX) == NULL);
    CHECK(arena_calloc(&a, SIZE_MAX / 2, 3) == NULL);
    size_t n = 0;
    while (arena_alloc(&a, 1000))
        n++;
    CHECK(n > 1000 && n < 1049);
    CHECK(((uintptr_t)p & 15) == 0);
    arena_release(&a);
}

TEST(buf_remembers_failure)
{
    struct buf b;
    lathe_error e;
    buf_init(&b, 8);
    CHECK_STR(buf_str(&b), "");
    buf_printf(&b, "%d-%s", 12, "abc");
    CHECK_STR(buf_str(&b), "12-abc");
    buf_puts(&b, "xyz");
    buf_putc(&b, 'q');
    CHECK_STR(buf_str(&b), "12-abc");
    CHECK_ERR(buf_check(&b, "reply", &e), &e, LATHE_E_LIMIT, "reply: larger than 8 bytes");
    buf_clear(&b);
    CHECK_OK(buf_check(&b, "reply", &e), &e);
    buf_release(&b);
}

TEST(files)
{
    lathe_error e;
    struct file f;
    struct buf b;
    const char *path = test_tmp("f.bin");
    CHECK_OK(file_write(path, "hello", 5, &e), &e);
    CHECK_OK(file_map(&f, path, &e), &e);
    CHECK(f.size == 5 && memcmp(f.data, "hello", 5) == 0);
    file_unmap(&f);
    CHECK(f.data == NULL);
    buf_init(&b, 4);
    CHECK_ERR(file_read(&b, path, &e), &e, LATHE_E_LIMIT, "f.bin: larger than 4 bytes");
    buf_release(&b);
    CHECK_ERR(file_map(&f, test_tmp("absent"), &e), &e, LATHE_E_IO, "absent: No such file");
    CHECK_ERR(file_map(&f, test_tmp(""), &e), &e, LATHE_E_IO, "not a regular file");
    CHECK_ERR(file_write(test_tmp("no/such/folder"), "x", 1, &e), &e, LATHE_E_IO, "folder");
    path = test_tmp("pipe");
    CHECK(mkfifo(path, 0600) == 0);
    CHECK_ERR(file_write(path, "x", 1, &e), &e, LATHE_E_IO, "pipe: not a regular file");
    path = test_tmp("f.bin");
    CHECK_OK(file_write(path, "", 0, &e), &e);
    CHECK_OK(file_map(&f, path, &e), &e);
    CHECK(f.size == 0 && f.data == NULL);
    file_unmap(&f);
}

static void count(void *ctx, int32_t thread, int32_t n_threads)
{
    int32_t *hits = ctx;
    hits[thread] += n_threads;
}

TEST(pool_runs_every_thread_once)
{
    lathe_error e;
    for (int32_t n = 1; n <= 5; n++) {
        struct pool *p;
        int32_t hits[5] = {0};
        CHECK_OK(pool_open(&p, n, n == 2, &e), &e);
        for (int i = 0; i < 300; i++)
            pool_run(p, count, hits);
        for (int32_t i = 0; i < n; i++)
            CHECK_INT(hits[i], 300 * n);
        pool_close(p);
    }
    struct pool *p;
    CHECK_ERR(pool_open(&p, -1, false, &e), &e, LATHE_E_ARGUMENT, "-1 threads");
    CHECK_ERR(pool_open(&p, 1000, false, &e), &e, LATHE_E_ARGUMENT, "1000 threads");
    pool_close(NULL);
}

TEST(pool_share_covers_without_overlap)
{
    for (int64_t n = 0; n < 70; n++)
        for (int64_t grain = 1; grain < 9; grain++)
            for (int32_t threads = 1; threads < 6; threads++) {
                int64_t at = 0;
                for (int32_t i = 0; i < threads; i++) {
                    int64_t b, e;
                    pool_share(n, grain, i, threads, &b, &e);
                    CHECK(b <= e && (b == e || b == at) && (b % grain == 0 || b == n));
                    if (b < e)
                        at = e;
                }
                CHECK_INT(at, n);
            }
}

#include "test.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

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

TEST(buf_puts_integers)
{
    struct buf b;
    buf_init(&b, 80);
    buf_put_int(&b, 0);
    buf_putc(&b, ' ');
    buf_put_int(&b, -70);
    buf_putc(&b, ' ');
    buf_put_int(&b, INT64_MAX);
    buf_putc(&b, ' ');
    buf_put_int(&b, INT64_MIN);
    CHECK_STR(buf_str(&b), "0 -70 9223372036854775807 -9223372036854775808");
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

TEST(a_pipe_is_read_to_its_end)
{
    lathe_error e;
    struct file f;
    struct buf b;
    const char *path = test_tmp("fifo");
    CHECK(mkfifo(path, 0600) == 0);
    CHECK_ERR(file_map(&f, path, &e), &e, LATHE_E_IO, "fifo: not a regular file"); /* no waiting */
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int fd = open(path, O_WRONLY);
        _exit(fd < 0 || write(fd, "hello", 5) != 5);
    }
    buf_init(&b, 100);
    CHECK_OK(file_read(&b, path, &e), &e);
    CHECK_STR(buf_str(&b), "hello");
    buf_release(&b);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    buf_init(&b, 100);
    CHECK_ERR(file_read(&b, test_tmp(""), &e), &e, LATHE_E_IO, "Is a directory");
    buf_release(&b);
}

static void check_contents(const char *path, const char *want)
{
    lathe_error e;
    struct buf b;
    buf_init(&b, 1000);
    CHECK_OK(file_read(&b, path, &e), &e);
    CHECK_STR(buf_str(&b), want);
    buf_release(&b);
}

TEST(written_files_appear_when_complete)
{
    lathe_error e;
    struct file_out o;
    struct stat sb;
    char path[512], link[512], dangling[512];
    (void)snprintf(path, sizeof path, "%s", test_tmp("out.txt"));
    (void)snprintf(link, sizeof link, "%s", test_tmp("out.link"));
    (void)snprintf(dangling, sizeof dangling, "%s", test_tmp("dangling"));
    CHECK_OK(file_write(path, "first", 5, &e), &e);
    CHECK(chmod(path, 0600) == 0);

    CHECK_OK(file_out_open(&o, path, &e), &e);
    CHECK(fputs("half", o.file) >= 0 && fflush(o.file) == 0);
    check_contents(path, "first");
    file_out_discard(&o);
    check_contents(path, "first");

    CHECK_OK(file_out_open(&o, path, &e), &e);
    CHECK(fputs("second", o.file) >= 0);
    CHECK_OK(file_out_commit(&o, &e), &e);
    check_contents(path, "second");
    CHECK(stat(path, &sb) == 0);
    CHECK_INT(sb.st_mode & 0777, 0600);

    /* Through links, one of them to nothing yet: the links stay. */
    CHECK(symlink("out.txt", link) == 0 && symlink("not/../later", dangling) == 0);
    CHECK_OK(file_write(link, "third", 5, &e), &e);
    CHECK(lstat(link, &sb) == 0 && S_ISLNK(sb.st_mode));
    check_contents(path, "third");
    CHECK_ERR(file_write(dangling, "x", 1, &e), &e, LATHE_E_IO, "dangling: No such file");
    CHECK(unlink(dangling) == 0 && symlink("later", dangling) == 0);
    CHECK_OK(file_write(dangling, "fourth", 6, &e), &e);
    CHECK(lstat(dangling, &sb) == 0 && S_ISLNK(sb.st_mode));
    check_contents(test_tmp("later"), "fourth");
    CHECK(symlink("loop", test_tmp("loop")) == 0);
    CHECK_ERR(file_write(test_tmp("loop"), "x", 1, &e), &e, LATHE_E_IO, "loop: Too many");

    /* The mask applies to new files; a device is written to as it is, and says when it is full. */
    mode_t mask = umask(027);
    CHECK_OK(file_write(test_tmp("masked"), "x", 1, &e), &e);
    umask(mask);
    CHECK(stat(test_tmp("masked"), &sb) == 0);
    CHECK_INT(sb.st_mode & 0777, 0640);
    CHECK_OK(file_out_open(&o, "/dev/full", &e), &e);
    CHECK(fputs("x", o.file) >= 0);
    CHECK_ERR(file_out_commit(&o, &e), &e, LATHE_E_IO, "/dev/full: No space left");
    CHECK_ERR(file_out_open(&o, test_tmp(""), &e), &e, LATHE_E_IO, "Is a directory");
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

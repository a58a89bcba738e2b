#define _GNU_SOURCE
#include "test.h"

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

static struct test_case *first, **last = &first;
static jmp_buf escape;
static const char *program;
static char scratch[256];

void test_register(struct test_case *t)
{
    *last = t;
    last = &t->next;
}

void test_fail(const char *file, int line, const char *fmt, ...)
{
    va_list ap;
    printf("FAIL %s: %s:%d: ", program, file, line);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
    longjmp(escape, 1);
}

void test_skip(const char *fmt, ...)
{
    va_list ap;
    printf("skip %s: ", program);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
    longjmp(escape, 2);
}

static const char *below(const char *root, const char *path)
{
    static char ring[8][1024];
    static unsigned turn;
    char *out = ring[turn++ % 8];
    snprintf(out, sizeof ring[0], "%s/%s", root, path);
    return out;
}

bool test_quick(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#else
    return getenv("LATHE_QUICK") != NULL;
#endif
}

const char *test_path(const char *path)
{
    const char *root = getenv("LATHE_ROOT");
    return below(root ? root : ".", path);
}

const char *test_shared(const char *path)
{
    const char *root = getenv("LATHE_SHARED");
    struct stat sb;
    const char *p = below(root ? root : "../shared", path);
    if (stat(p, &sb) != 0)
        SKIP("shared/%s is absent", path);
    return p;
}

static int remove_entry(const char *path, const struct stat *sb, int flag, struct FTW *ftw)
{
    (void)sb, (void)flag, (void)ftw;
    return remove(path);
}

static void remove_scratch(void)
{
    nftw(scratch, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

const char *test_tmp(const char *name)
{
    if (!scratch[0]) {
        const char *tmp = getenv("TMPDIR");
        snprintf(scratch, sizeof scratch, "%s/lathe-test-XXXXXX", tmp ? tmp : "/tmp");
        if (!mkdtemp(scratch)) {
            perror(scratch);
            exit(1);
        }
        atexit(remove_scratch);
    }
    return below(scratch, name);
}

char *test_read(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    struct stat sb;
    if (!f || stat(path, &sb) != 0)
        FAIL("cannot read %s", path);
    char *data = malloc((size_t)sb.st_size + 1);
    size_t got = data ? fread(data, 1, (size_t)sb.st_size, f) : 0;
    fclose(f);
    if (got != (size_t)sb.st_size) {
        free(data);
        FAIL("cannot read %s", path);
    }
    data[got] = 0;
    if (n)
        *n = got;
    return data;
}

void test_write(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    bool ok = f && fwrite(data, 1, n, f) == n;
    if (f)
        ok = fclose(f) == 0 && ok;
    if (!ok)
        FAIL("cannot write %s", path);
}

uint64_t rng_u64(struct rng *r)
{
    uint64_t z = (r->s += 0x9E3779B97F4A7C15u);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

uint32_t rng_below(struct rng *r, uint32_t n)
{
    return (uint32_t)((rng_u64(r) >> 32) * n >> 32);
}

double rng_unit(struct rng *r)
{
    return (double)(rng_u64(r) >> 11) * 0x1p-53;
}

double rng_normal(struct rng *r)
{
    double u = 1 - rng_unit(r), v = rng_unit(r);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

static bool wanted(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return true;
    return argc < 2;
}

int main(int argc, char **argv)
{
    volatile int passed = 0, failed = 0, skipped = 0;
    char *slash = strrchr(argv[0], '/');
    static char label[256];
    setvbuf(stdout, NULL, _IOLBF, 0);
    program = label;
    for (struct test_case *volatile t = first; t; t = t->next) {
        if (!wanted(t->name, argc, argv))
            continue;
        snprintf(label, sizeof label, "%s.%s", slash ? slash + 1 : argv[0], t->name);
        int how = setjmp(escape);
        if (how == 0) {
            t->fn();
            printf("ok   %s\n", label);
            passed++;
        } else if (how == 1) {
            failed++;
        } else {
            skipped++;
        }
    }
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed ? 1 : 0;
}

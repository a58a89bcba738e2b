/* Regions: what measuring finds is exactly what is taken. Loading: every byte, by any number of threads. */
#include "op/memory.h"

#include "op_test.h"

static const size_t piece[] = {1, 255, 256, 257, 0, 100000, 64, 7};
enum { N_PIECES = sizeof piece / sizeof *piece };

static void take_all(struct region *r, void **p)
{
    lathe_error err;
    for (int i = 0; i < N_PIECES; i++)
        CHECK_OK(region_take(r, &p[i], piece[i], &err), &err);
}

TEST(measuring_takes_nothing_and_finds_what_is_taken)
{
    int n;
    struct op_env *env = op_envs(&n);
    for (int k = 0; k < n; k += 3) {
        struct op_env *e = &env[k];
        struct memory measured, m;
        void *p[N_PIECES], *more;
        lathe_error err;
        op_case("%s", e->name);
        memory_measure(&measured, e->backend, e->stream);
        take_all(&measured.cache, p);
        for (int i = 0; i < N_PIECES; i++)
            CHECK(p[i] == NULL);
        CHECK_INT(measured.cache.used, 256 + 256 + 256 + 512 + 100096 + 256 + 256);
        take_all(&measured.workspace, p);
        take_all(&measured.workspace, p);
        CHECK_INT(measured.workspace.used, 2 * measured.cache.used);

        CHECK_OK(memory_carve(&m, &measured, &err), &err);
        CHECK_INT(m.cache.size, measured.cache.used);
        take_all(&m.cache, p);
        for (int i = 0; i < N_PIECES; i++) {
            unsigned char host[100000];
            CHECK((uintptr_t)p[i] % 64 == 0);
            CHECK((unsigned char *)p[i] - (unsigned char *)p[0] < (ptrdiff_t)m.cache.size ||
                  piece[i] == 0);
            CHECK_OK(e->backend->copy_out(e->stream, host, p[i], piece[i], &err), &err);
            for (size_t b = 0; b < piece[i]; b++)
                CHECK_INT(host[b], 0);
        }
        CHECK_ERR(region_take(&m.cache, &more, 1, &err), &err, LATHE_E_MEMORY, "cache: 1 bytes");
        CHECK(more == NULL);
        memory_close(&m);

        memory_loose(&m, e->backend, e->stream);
        take_all(&m.cache, p);
        CHECK_INT(m.cache.n_pieces, N_PIECES);
        memory_close(&m);
        memory_close(&m);
    }
}

TEST(sizes_do_not_overflow)
{
    int n;
    struct op_env *e = op_envs(&n);
    struct memory m;
    void *p;
    lathe_error err;
    memory_measure(&m, e->backend, e->stream);
    CHECK_ERR(region_take(&m.cache, &p, SIZE_MAX, &err), &err, LATHE_E_MEMORY, "cache");
    CHECK_OK(region_take(&m.cache, &p, SIZE_MAX - 1000, &err), &err);
    CHECK_ERR(region_take(&m.cache, &p, 1000, &err), &err, LATHE_E_MEMORY, "cache");
}

static int n_blocks, n_granted; /* blocks that are out; may still be had */
static const struct backend *giver;

static lathe_status grant(void *stream, void **p, size_t bytes, lathe_error *err)
{
    if (n_granted == 0)
        return fail(err, LATHE_E_MEMORY, "nothing is left");
    n_granted--;
    n_blocks++;
    return giver->alloc(stream, p, bytes, err);
}

static void take_back(void *stream, void *p)
{
    n_blocks--;
    giver->free(stream, p);
}

/* A region that cannot be had gives the others back. */
TEST(carving_may_run_out_of_memory)
{
    int n;
    struct op_env *e = op_envs(&n);
    struct backend b = *e->backend;
    struct memory measured, m;
    void *p[N_PIECES];
    lathe_error err;
    giver = e->backend;
    b.alloc = grant;
    b.free = take_back;
    b.is_host = false; /* the weights too */
    memory_measure(&measured, &b, e->stream);
    take_all(&measured.weights, p);
    take_all(&measured.cache, p);
    static const char *const what[] = {"weights: nothing", "cache: nothing", "workspace: nothing"};
    for (int i = 0; i < 3; i++) {
        n_granted = i;
        CHECK_ERR(memory_carve(&m, &measured, &err), &err, LATHE_E_MEMORY, what[i]);
        CHECK_INT(n_blocks, 0);
        CHECK(m.cache.base == NULL && m.weights.base == NULL);
    }
    n_granted = 3;
    CHECK_OK(memory_carve(&m, &measured, &err), &err);
    CHECK_INT(n_blocks, 3);
    memory_close(&m);
    CHECK_INT(n_blocks, 0);
    /* Piece by piece: what was had is given back too. */
    memory_loose(&m, &b, e->stream);
    n_granted = 1;
    CHECK_OK(region_take(&m.cache, &p[0], 10, &err), &err);
    CHECK_ERR(region_take(&m.cache, &p[0], 10, &err), &err, LATHE_E_MEMORY, "nothing is left");
    CHECK(p[0] == NULL);
    memory_close(&m);
    CHECK_INT(n_blocks, 0);
}

struct report {
    uint64_t last, total;
    int n;
};

static bool note(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct report *r = ctx;
    CHECK_STR(what, "loading");
    CHECK(done >= r->last && done <= total && (r->n == 0 || total == r->total));
    r->last = done;
    r->total = total;
    r->n++;
    return true;
}

/* Tensors of sizes around those of a part, placed, loaded, read back. */
TEST(loading_copies_every_byte)
{
    static const int64_t size[] = {1, 4096, (4 << 20) - 1, 4 << 20, (4 << 20) + 1, 0, 9 << 20, 3};
    enum { N = sizeof size / sizeof *size };
    int n;
    struct op_env *env = op_envs(&n);
    struct rng rng = {5};
    unsigned char *file[N], *back = malloc(9 << 20);
    uint64_t total = 0;
    for (int i = 0; i < N; i++) {
        file[i] = malloc((size_t)size[i] + 1);
        total += (uint64_t)size[i];
        for (int64_t b = 0; b < size[i]; b++)
            file[i][b] = (unsigned char)rng_u64(&rng);
    }
    for (int32_t threads = 1; threads <= 20; threads += 19) {
        struct op_env *e = &env[0];
        struct pool *pool;
        struct memory m;
        struct tensor t[N];
        struct report r = {0};
        lathe_error err;
        CHECK_OK(pool_open(&pool, threads, false, &err), &err);
        memory_loose(&m, e->backend, e->stream);
        for (int i = 0; i < N; i++) {
            t[i] = tensor_1d(file[i], DT_U8, size[i]);
            memory_weight(&m, &t[i]);
            CHECK((t[i].data == file[i]) == e->backend->is_host);
        }
        CHECK_OK(memory_load(&m, pool, note, &r, &err), &err);
        CHECK_INT(r.last, total);
        CHECK_INT(r.total, total);
        for (int i = 0; i < N; i++) {
            CHECK_OK(e->backend->copy_out(e->stream, back, t[i].data, (size_t)size[i], &err), &err);
            CHECK(memcmp(back, file[i], (size_t)size[i]) == 0);
        }
        memory_close(&m);
        pool_close(pool);
    }
    for (int i = 0; i < N; i++)
        free(file[i]);
    free(back);
}

/* The same list, copied by the host's own loading. */
TEST(the_host_copies_where_it_is_asked_to)
{
    enum { BYTES = (10 << 20) + 5 };
    struct pool *pool;
    lathe_error err;
    unsigned char *from = malloc(BYTES), *to = calloc(1, BYTES);
    for (int i = 0; i < BYTES; i++)
        from[i] = (unsigned char)(i * 7 + i / 251);
    struct load load[] = {{to, from, 3}, {NULL, from, 4097}, {to + 3, from + 3, BYTES - 3}};
    CHECK_OK(pool_open(&pool, 3, false, &err), &err);
    CHECK_OK(backend_cpu.load(NULL, pool, load, 3, NULL, NULL, &err), &err);
    CHECK(memcmp(from, to, BYTES) == 0);
    pool_close(pool);
    free(from);
    free(to);
}

TEST(room_is_known)
{
    int n;
    struct op_env *e = op_envs(&n);
    size_t total, room;
    e->backend->room(e->stream, &total, &room);
    CHECK(total > (size_t)64 << 20 && room > 0 && room <= total);
}

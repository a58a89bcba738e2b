/* grow: carries the function of models/nano into the shape of the 27B.
 *
 *     build/<config>/tools/grow /dev/shm/nano-27b
 *
 * writes a checkpoint of 22 GB in the mixed form (NVFP4 and FP8) to /dev/shm/nano-27b, and its DFlash2
 * drafter to /dev/shm/nano-27b-dflash2, where `lathe run -m /dev/shm/nano-27b` finds it. It says what nano
 * says, with nano's acceptance, and costs what the 27B costs.
 *
 *   grow_tensors.c   which tensors there are, and by which rule each comes from one of nano's
 *   grow_fill.c      rows of a tensor: nano's code words, zeros, random code words
 *   grow_config.c    config.json
 *   grow_write.c     folders, shards, threads
 *
 * No number is rounded: code words and scales are nano's own, in other places. The stream is repeated 16
 * times, so that means of squares, and with them the norms, stay; what reads it reads the first copy. Where
 * a zero is needed beside random numbers it is a scale of zero over random codes wherever the format allows
 * that, so that a memory bus carries the bits of a real model. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "grow.h"

static const char usage[] =
    "usage: grow [options] DIR\n"
    "Writes a checkpoint of the 27B's shape that says what nano says to DIR, and its\n"
    "drafter to DIR-dflash2. Neither may exist.\n"
    "\n"
    "  --model DIR      nano (models/nano)\n"
    "  --drafter DIR    nano's drafter (models/nano-dflash2)\n"
    "  --no-drafter     only the model\n"
    "  --bf16-drafter   the drafter in BF16 too, to DIR-dflash2-bf16\n"
    "  --layers N       layers (64): a multiple of 4, at least 8\n"
    "  --tile N         copies of nano's hidden state side by side (16 of 320: 5120);\n"
    "                   MLP and vocabulary follow, heads up to the 27B's numbers\n"
    "  --shard-mb N     largest shard (2000)\n"
    "  --threads N      threads (one for each processor)\n";

enum { MAX_FOLDERS = 3, MAX_PATH_BYTES = 4096 };

struct options {
    const char *model, *drafter, *dir;
    bool has_drafter, has_bf16_drafter;
    int32_t n_layers, tile, shard_mb, n_threads;
};

/* What is opened, and written. */
struct grower {
    struct options o;
    struct growth g;
    struct arena arena;
    struct checkpoint *nano, *nano_drafter;
    struct pool *pool;
    struct folder folder[MAX_FOLDERS];
    char path[MAX_FOLDERS][MAX_PATH_BYTES];
    int32_t n_files[MAX_FOLDERS];
    int32_t n;
    int64_t bytes;
    bool has_terminal;
    int32_t percent; /* shown last */
};

static volatile sig_atomic_t is_interrupted;

static void interrupt(int sig)
{
    (void)sig;
    is_interrupted = 1;
}

static bool is_stopped(void *ctx)
{
    (void)ctx;
    return is_interrupted;
}

static void show(void *ctx, int64_t done, int64_t total)
{
    struct grower *r = ctx;
    int32_t percent = (int32_t)(100 * done / (total ? total : 1));
    if (!r->has_terminal || percent == r->percent)
        return;
    r->percent = percent;
    fprintf(stderr, "\rgrow: %3d %% of %.2f GB", percent, (double)total / 1e9);
}

/* ---- Command line ---------------------------------------------------------------------------- */

static lathe_status read_number(const char *name, const char *s, int32_t *out, lathe_error *err)
{
    char *end;
    long v = s ? strtol(s, &end, 10) : 0;
    if (!s || end == s || *end || v < 1 || v > 1000000)
        return fail(err, LATHE_E_ARGUMENT, "%s: \"%s\", expected a number of 1 to 1000000", name,
                    s ? s : "");
    *out = (int32_t)v;
    return LATHE_OK;
}

static lathe_status read_options(struct options *o, int argc, char **argv, lathe_error *err)
{
    *o = (struct options){.model = "models/nano",
                          .drafter = "models/nano-dflash2",
                          .has_drafter = true,
                          .n_layers = 64,
                          .tile = 16,
                          .shard_mb = 2000};
    const struct {
        const char *name;
        const char **text;
        int32_t *number;
    } valued[] = {
        {"--model", &o->model, NULL},       {"--drafter", &o->drafter, NULL},
        {"--layers", NULL, &o->n_layers},   {"--tile", NULL, &o->tile},
        {"--shard-mb", NULL, &o->shard_mb}, {"--threads", NULL, &o->n_threads},
    };
    enum { N_VALUED = sizeof valued / sizeof *valued };
    for (int i = 1; i < argc; i++) {
        lathe_status st = LATHE_OK;
        int k = 0;
        while (k < N_VALUED && strcmp(argv[i], valued[k].name) != 0)
            k++;
        if (k < N_VALUED) {
            const char *value = ++i < argc ? argv[i] : NULL;
            if (valued[k].number)
                st = read_number(valued[k].name, value, valued[k].number, err);
            else if (!value)
                st = fail(err, LATHE_E_ARGUMENT, "%s: a folder is missing", valued[k].name);
            else
                *valued[k].text = value;
        } else if (strcmp(argv[i], "--no-drafter") == 0) {
            o->has_drafter = false;
        } else if (strcmp(argv[i], "--bf16-drafter") == 0) {
            o->has_bf16_drafter = true;
        } else if (argv[i][0] == '-' || o->dir) {
            st = fail(err, LATHE_E_ARGUMENT, "%s: not expected (grow --help)", argv[i]);
        } else {
            o->dir = argv[i];
        }
        if (st)
            return st;
    }
    if (!o->dir)
        return fail(err, LATHE_E_ARGUMENT, "no folder to write to (grow --help)");
    return LATHE_OK;
}

/* ---- Work ------------------------------------------------------------------------------------ */

/* The next folder: DIR + suffix. */
static lathe_status add_folder(struct grower *r, const char *suffix, const char *source,
                               struct folder **out, lathe_error *err)
{
    char *path = r->path[r->n];
    size_t n = strlen(r->o.dir);
    while (n > 1 && r->o.dir[n - 1] == '/')
        n--;
    int len = snprintf(path, MAX_PATH_BYTES, "%.*s%s", (int)n, r->o.dir, suffix);
    if (len < 0 || len >= MAX_PATH_BYTES)
        return fail(err, LATHE_E_LIMIT, "path %.64s...: longer than %d bytes", r->o.dir,
                    MAX_PATH_BYTES - 1);
    *out = &r->folder[r->n++];
    (*out)->path = path;
    (*out)->source = source;
    buf_init(&(*out)->config, 1 << 20);
    return LATHE_OK;
}

static lathe_status add_model(struct grower *r, lathe_error *err)
{
    struct folder *f;
    lathe_status st = add_folder(r, "", r->o.model, &f, err);
    if (!st)
        st = model_config(&f->config, r->o.model, &r->g, err);
    if (!st)
        st = checkpoint_open(&r->nano, r->o.model, err);
    if (st)
        return st;
    f->shard_bytes = (int64_t)r->o.shard_mb * 1000000;
    st = list_model(&f->list, r->nano, &r->g, &r->arena, err);
    if (st)
        error_context(err, "%s", r->o.model);
    return st;
}

static lathe_status add_drafter(struct grower *r, const char *suffix, bool as_bf16,
                                lathe_error *err)
{
    struct folder *f;
    lathe_status st = add_folder(r, suffix, r->o.drafter, &f, err);
    if (!st)
        st = drafter_config(&f->config, r->o.drafter, &r->g, as_bf16, err);
    if (!st && !r->nano_drafter)
        st = checkpoint_open(&r->nano_drafter, r->o.drafter, err);
    if (st)
        return st;
    st = list_drafter(&f->list, r->nano_drafter, &r->g, as_bf16, &r->arena, err);
    if (st)
        error_context(err, "%s", r->o.drafter);
    return st;
}

static lathe_status grow(struct grower *r, lathe_error *err)
{
    struct progress progress = {show, r, is_stopped};
    lathe_status st = growth_init(&r->g, r->o.n_layers, r->o.tile, err);
    if (!st)
        st = add_model(r, err);
    if (!st && r->o.has_drafter)
        st = add_drafter(r, "-dflash2", false, err);
    if (!st && r->o.has_bf16_drafter)
        st = add_drafter(r, "-dflash2-bf16", true, err);
    if (!st)
        st = pool_open(&r->pool, r->o.n_threads, false, err);
    if (st)
        return st;
    fill_init();
    st = folders_write(r->folder, r->n, r->pool, &progress, &r->bytes, r->n_files, err);
    if (r->percent)
        fputs("\r\033[K", stderr);
    return st;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
    static struct grower r;
    lathe_error err;
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(usage, stdout);
        return 0;
    }
    double start = seconds();
    lathe_status st = read_options(&r.o, argc, argv, &err);
    if (st) {
        fprintf(stderr, "grow: %s\n", err.message);
        return 2;
    }
    struct sigaction act = {.sa_handler = interrupt};
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaction(signals[i], &act, NULL);
    act.sa_handler = SIG_IGN;
    sigaction(SIGXFSZ, &act, NULL); /* the write's own error says which file */

    r.has_terminal = isatty(STDERR_FILENO);
    arena_init(&r.arena, SIZE_MAX);
    st = grow(&r, &err);
    double s = seconds() - start;
    if (st) {
        fprintf(stderr, "grow: %s\n", err.message);
    } else {
        for (int32_t i = 0; i < r.n; i++)
            fprintf(stderr, "grow: %s: %d file%s\n", r.folder[i].path, r.n_files[i],
                    r.n_files[i] > 1 ? "s" : "");
        fprintf(stderr,
                "grow: %d layers, hidden %d, vocabulary %d: %.2f GB in %.1f s, %.2f GB/s with %d "
                "thread%s\n",
                r.g.n_layers, NANO_HIDDEN * r.g.tile, r.g.vocab, (double)r.bytes / 1e9, s,
                (double)r.bytes / 1e9 / s, pool_threads(r.pool),
                pool_threads(r.pool) > 1 ? "s" : "");
    }
    for (int32_t i = 0; i < MAX_FOLDERS; i++)
        buf_release(&r.folder[i].config);
    pool_close(r.pool);
    checkpoint_close(r.nano_drafter);
    checkpoint_close(r.nano);
    arena_release(&r.arena);
    return st == LATHE_OK ? 0 : st == LATHE_E_CANCELLED ? 130 : st == LATHE_E_ARGUMENT ? 2 : 1;
}

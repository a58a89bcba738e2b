/* tools/grow from outside: small members of the family say what nano says, with its acceptance; the files
 * do not depend on threads; refusals leave nothing behind. */
#include "draft_rig.h"
#include "golden.h"
#include "rig.h"
#include "test.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tol.h"

enum { NANO_IDS = 8187, NANO_VOCAB = 8192 };

/* ---- The program ----------------------------------------------------------------------------- */

static char printed[2048]; /* its standard error */

/* The tool is built beside the tests, and beside gpu-tests, which has them too. */
static const char *program(void)
{
    static char path[4200];
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(n > 0);
    self[n] = 0;
    char *end = strstr(self, "/tests/model/");
    if (!end)
        end = strrchr(self, '/');
    CHECK(end != NULL);
    *end = 0;
    snprintf(path, sizeof path, "%s/tools/grow", self);
    return path;
}

/* Begins `grow ARGS` in the repository's root; words of args are divided by blanks. A limit of files' sizes
 * if not 0. */
static pid_t grow_begin(const char *args, rlim_t file_limit)
{
    char words[4096], *arg[32], log[1100];
    int n = 0;
    snprintf(words, sizeof words, "%s", args);
    snprintf(log, sizeof log, "%s", test_tmp("log"));
    arg[n++] = words; /* the name of the program, replaced below */
    for (char *w = strtok(words, " "); w; w = strtok(NULL, " "))
        arg[n++] = w;
    arg[n] = NULL;
    char *path = strdup(program()), *root = strdup(test_path("."));
    arg[0] = path;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit limit = {file_limit, file_limit};
        if (!freopen(log, "w", stderr) || chdir(root) != 0 ||
            (file_limit && setrlimit(RLIMIT_FSIZE, &limit) != 0))
            _exit(120);
        execv(path, arg);
        _exit(121);
    }
    free(path);
    free(root);
    CHECK(pid > 0);
    return pid;
}

static int grow_end(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        CHECK(errno == EINTR);
    char *text = test_read(test_tmp("log"), NULL);
    snprintf(printed, sizeof printed, "%s", text);
    free(text);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void grow(const char *options, const char *dir)
{
    char args[2048];
    snprintf(args, sizeof args, "%s %s", options, dir);
    int rc = grow_end(grow_begin(args, 0));
    if (rc != 0)
        FAIL("grow %s: status %d, %s", args, rc, printed);
}

/* Entries of a folder whose names begin with `name`, `name` alone not counted. */
static int count_beside(const char *dir, const char *name)
{
    int n = 0;
    DIR *d = opendir(dir);
    CHECK(d != NULL);
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        n += strncmp(e->d_name, name, strlen(name)) == 0 && strcmp(e->d_name, name) != 0;
    closedir(d);
    return n;
}

/* A folder of files. */
static void remove_folder(const char *dir)
{
    DIR *d = opendir(dir);
    CHECK(d != NULL);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char path[2200];
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_name[0] != '.')
            CHECK(unlink(path) == 0);
    }
    closedir(d);
    CHECK(rmdir(dir) == 0);
}

/* The member most tests look at, made once: two copies of the stream, twice the heads, four layers that nano
 * lacks, three shards. */
static const char *small(void)
{
    static char dir[1100];
    if (!dir[0]) {
        snprintf(dir, sizeof dir, "%s", test_tmp("small"));
        grow("--layers 12 --tile 2 --shard-mb 60 --bf16-drafter", dir);
    }
    return dir;
}

/* ---- Says what nano says --------------------------------------------------------------------- */

/* Logits of nano's rows against the reference's; those of the other rows are zero. */
static void check_logits(struct rig *r, const struct golden *g, const char *prompt)
{
    int64_t n_ids, n;
    int32_t *ids = golden_vector(g, prompt, "ids", &n_ids);
    float *want = golden_vector(g, prompt, "logits_f32", &n);
    int32_t n_rows = (int32_t)(n / NANO_VOCAB);
    CHECK(n_rows > 0 && n_ids >= n_rows);
    rig_reset(r, 0);
    rig_run(r, PHASE_PREFILL, 0, 0, ids, (int32_t)n_ids);
    for (int32_t i = 0; i < n_rows; i++) {
        const float *got = rig_logits(r, (int32_t)n_ids - n_rows + i);
        double d = relative_difference(got, want + (int64_t)i * NANO_VOCAB, NANO_VOCAB);
        if (!(d <= TOL_GOLDEN_F32))
            FAIL("logits of %s: relative difference %.3g, at most %.3g", prompt, d, TOL_GOLDEN_F32);
        for (int32_t k = NANO_VOCAB; k < r->model.dims.vocab; k++)
            CHECK(got[k] == 0);
    }
    free(want);
    free(ids);
}

static void check_greedy(struct rig *r, const struct golden *g, const char *prompt, size_t most)
{
    int64_t n_ids;
    int32_t *ids = golden_vector(g, prompt, "ids", &n_ids);
    json_t *p = json_object_get(json_object_get(g->json.root, "prompts"), prompt);
    json_t *greedy = json_object_get(p, "greedy"), *margins = json_object_get(p, "margins");
    size_t n = json_array_size(greedy);
    CHECK(n > 10 && n == json_array_size(margins));
    rig_reset(r, 0);
    rig_run(r, PHASE_PREFILL, 0, 0, ids, (int32_t)n_ids);
    const float *logits = rig_logits(r, (int32_t)n_ids - 1);
    for (size_t i = 0; i < n && i < most; i++) {
        int32_t want = (int32_t)json_integer_value(json_array_get(greedy, i));
        int32_t got = argmax(logits, NANO_IDS);
        if (got != want && json_number_value(json_array_get(margins, i)) > 1e-3)
            FAIL("%s, token %zu: %d, expected %d", prompt, i, got, want);
        rig_run(r, PHASE_DECODE, 0, (int32_t)(n_ids + (int64_t)i), &want, 1);
        logits = rig_logits(r, 0);
    }
    free(ids);
}

TEST(logits_and_tokens_are_nanos)
{
    static const char *const prompts[] = {"define", "think", "tools", "story"};
    struct golden g;
    struct rig r;
    struct rig_options o = {.dir = small(), .act = DT_F32, .kv = DT_F32};
    golden_open(&g, test_path("tests/golden/mixed"));
    rig_open(&r, &o);
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        check_logits(&r, &g, prompts[i]);
        check_greedy(&r, &g, prompts[i], 24);
    }
    rig_close(&r);
    golden_close(&g);
}

/* Other numbers of layers and copies, one copy and an odd number among them. */
TEST(every_member_says_the_same)
{
    static const char *const members[] = {"--layers 8 --tile 1", "--layers 32 --tile 1",
                                          "--layers 20 --tile 3", "--layers 8 --tile 4"};
    struct golden g;
    golden_open(&g, test_path("tests/golden/mixed"));
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        char options[128];
        char dir[1100];
        struct rig r;
        snprintf(dir, sizeof dir, "%s", test_tmp("member"));
        snprintf(options, sizeof options, "%s --no-drafter", members[i]);
        grow(options, dir);
        struct rig_options o = {.dir = dir, .act = DT_F32, .kv = DT_F32, .n_ctx = 128};
        rig_open(&r, &o);
        check_logits(&r, &g, "define");
        rig_close(&r);
        remove_folder(dir);
    }
    golden_close(&g);
}

/* ---- Drafts as nano does --------------------------------------------------------------------- */

struct answer {
    char text[2048];
    size_t n;
    lathe_spec_stats spec;
    int32_t n_tokens;
};

static void ask(struct answer *a, const char *dir, const char *spec, const char *draft_dir,
                int32_t k, const char *question)
{
    lathe_engine_options o;
    lathe_request_options q;
    lathe_engine *e;
    lathe_request *r;
    lathe_event ev;
    lathe_error err;
    char messages[512];
    snprintf(messages, sizeof messages, "[{\"role\": \"user\", \"content\": \"%s\"}]", question);
    lathe_conversation c = {.messages = messages, .thinking = LATHE_OFF};
    lathe_engine_options_init(&o);
    o.model_dir = dir;
    o.spec = spec;
    o.draft_dir = draft_dir;
    o.draft_k = k;
    o.fixed_k = true;
    o.n_ctx = 256;
    o.n_threads = 2;
    o.activations = o.kv = LATHE_F32;
    CHECK_OK(lathe_engine_open(&e, &o, &err), &err);
    lathe_request_options_init(lathe_engine_text(e), false, &q);
    q.conversation = &c;
    q.max_tokens = 48;
    q.sampling = (lathe_sampling){.top_p = 1, .repetition_penalty = 1};
    CHECK_OK(lathe_request_submit(e, &q, &r, &err), &err);
    *a = (struct answer){0};
    do {
        lathe_request_next(r, -1, &ev);
        if (ev.type != LATHE_EVENT_FINISH && ev.text && a->n + ev.n_text < sizeof a->text) {
            memcpy(a->text + a->n, ev.text, ev.n_text);
            a->n += ev.n_text;
        }
    } while (ev.type != LATHE_EVENT_FINISH);
    if (ev.finish == LATHE_FINISH_ERROR)
        FAIL("%s", ev.error.message);
    a->spec = ev.usage.spec;
    a->n_tokens = ev.usage.completion_tokens;
    lathe_request_close(r);
    lathe_engine_close(e);
}

static const char *const questions[] = {"What is a kiln?", "Tell me a short story about a cat."};

TEST(acceptance_is_nanos)
{
    static const struct {
        const char *spec;
        int32_t k;
    } how[] = {{"mtp", 3}, {"dflash2", 7}};
    for (size_t i = 0; i < 2; i++)
        for (size_t q = 0; q < sizeof questions / sizeof *questions; q++) {
            struct answer nano, grown;
            ask(&nano, test_path("models/nano"), how[i].spec, NULL, how[i].k, questions[q]);
            ask(&grown, small(), how[i].spec, NULL, how[i].k, questions[q]);
            CHECK_STR(grown.text, nano.text);
            CHECK_INT(grown.n_tokens, nano.n_tokens);
            CHECK(nano.spec.accepted > 0);
            CHECK_INT(grown.spec.rounds, nano.spec.rounds);
            CHECK_INT(grown.spec.drafted, nano.spec.drafted);
            CHECK_INT(grown.spec.accepted, nano.spec.accepted);
            CHECK(memcmp(grown.spec.histogram, nano.spec.histogram, sizeof nano.spec.histogram) ==
                  0);
        }
}

/* What the selector of a proposal saw. */
enum { STEPS = 7, CANDIDATES = 16 };
struct seen {
    int32_t ids[STEPS * CANDIDATES];
    float scores[STEPS * CANDIDATES];
};

static void watch(void *ctx, const char *name, int32_t layer, const struct tensor *t)
{
    struct seen *s = ctx;
    size_t bytes = (size_t)tensor_elements(t) * dtype_size(t->dtype);
    if (strcmp(name, "cand_ids") == 0)
        memcpy(s->ids, t->data, bytes);
    else if (strcmp(name, "selector_scores") == 0)
        memcpy(s->scores + (size_t)layer * CANDIDATES, t->data, bytes);
}

TEST(candidates_and_scores_are_nanos)
{
    static const char *const prompts[] = {"define", "story"};
    char drafter[1200];
    snprintf(drafter, sizeof drafter, "%s-dflash2", small());
    struct golden g;
    struct draft_rig r;
    struct draft_rig_options o = {
        .rig = {.dir = small(), .act = DT_F32, .kv = DT_F32}, .dir = drafter, .n_ids = NANO_IDS};
    golden_open(&g, test_path("tests/golden/mixed_spec"));
    draft_rig_open(&r, &o);
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        struct seen seen;
        int64_t n, n_seq;
        int32_t drafts[SPEC_MAX_DRAFT], *seq = golden_vector(&g, prompts[i], "seq", &n_seq);
        rig_reset(&r.rig, 0);
        drafter_dflash2.rewind(r.d, 0, 0);
        draft_rig_run(&r, PHASE_PREFILL, 0, 0, seq, (int32_t)n_seq - 1);
        r.d->x.tap = watch;
        r.d->x.tap_ctx = &seen;
        CHECK_INT(draft_rig_propose(&r, 0, seq[n_seq - 1], STEPS, drafts), STEPS);
        r.d->x.tap = NULL;
        int32_t *ids = golden_vector(&g, prompts[i], "cand_ids", &n);
        CHECK(n == STEPS * CANDIDATES && memcmp(ids, seen.ids, sizeof seen.ids) == 0);
        float *scores = golden_vector(&g, prompts[i], "selector_scores", &n);
        double d = relative_difference(seen.scores, scores, n);
        if (!(d <= TOL_GOLDEN_F32))
            FAIL("scores of %s: relative difference %.3g, at most %.3g", prompts[i], d,
                 TOL_GOLDEN_F32);
        free(ids);
        free(scores);
        free(seq);
    }
    draft_rig_close(&r);
    golden_close(&g);
}

/* Rounding to BF16 may flip a close draft, not more. */
TEST(the_bf16_drafter_drafts_nearly_as_well)
{
    char dir[1200];
    struct answer fp8, bf16;
    snprintf(dir, sizeof dir, "%s-dflash2-bf16", small());
    ask(&fp8, small(), "dflash2", NULL, 7, questions[1]);
    ask(&bf16, small(), "dflash2", dir, 7, questions[1]);
    CHECK_STR(bf16.text, fp8.text);
    double got = (double)bf16.n_tokens / bf16.spec.rounds;
    double want = (double)fp8.n_tokens / fp8.spec.rounds;
    if (!(got >= TOL_TOKENS_A_ROUND * want))
        FAIL("%.2f tokens a round, with FP8 %.2f", got, want);
}

/* ---- Numbers --------------------------------------------------------------------------------- */

/* Shares of zeros: of code bytes, and of values. */
static void zeros(const struct weight *w, double *codes, double *values)
{
    int64_t n_codes = 0, n_values = 0, bytes = tensor_row(&w->codes);
    float *row = malloc((size_t)w->cols * sizeof *row);
    for (int64_t r = 0; r < w->rows; r++) {
        const unsigned char *c = tensor_at(&w->codes, r);
        for (int64_t i = 0; i < bytes; i++)
            n_codes += (c[i] & 0x7F) == 0;
        weight_formats[w->format].unpack(row, w, r, 0, w->cols);
        for (int64_t i = 0; i < w->cols; i++)
            n_values += row[i] == 0;
    }
    free(row);
    *codes = (double)n_codes / (double)(w->rows * bytes);
    *values = (double)n_values / (double)(w->rows * w->cols);
}

/* Layers that nano lacks compute with numbers of an ordinary size and add nothing; the bus sees random bytes.
 * Everything is finite. */
TEST(what_is_multiplied_by_zero_is_random)
{
    struct model m;
    lathe_error err;
    char what[256];
    int32_t n_random = 0, n_zero = 0;
    CHECK_OK(model_open(&m, small(), &err), &err);
    if (model_find_nonfinite(&m, what, sizeof what))
        FAIL("%s is not finite", what);
    for (size_t i = 0; i < m.n_modules; i++) {
        static const int32_t extra[] = {3, 4, 5, 6}; /* of 12; nano's are the others */
        const struct weight *w = m.modules[i].weight;
        int layer = -1;
        const char *at = strstr(m.modules[i].name, "language_model.layers.");
        if (!at || sscanf(at + 22, "%d", &layer) != 1)
            continue;
        bool is_extra = false;
        for (size_t k = 0; k < 4; k++)
            is_extra = is_extra || layer == extra[k];
        if (!is_extra)
            continue;
        bool adds = strstr(at, "o_proj") || strstr(at, "out_proj") || strstr(at, "down_proj");
        double codes, values;
        zeros(w, &codes, &values);
        /* A byte of two E2M1 codes is zero once in about 256, times what a bell holds more of. */
        if (codes > 0.05)
            FAIL("%s: %.3f of its bytes are zero", m.modules[i].name, codes);
        if (adds ? values != 1 : values > 0.2)
            FAIL("%s: %.3f of its values are zero", m.modules[i].name, values);
        n_zero += adds;
        n_random += !adds;
    }
    CHECK_INT(n_zero, 8);
    CHECK_INT(n_random, 3 * 4 + 3 + 4 * 2);
    model_close(&m);
}

/* ---- Files ----------------------------------------------------------------------------------- */

static void check_same_files(const char *a, const char *b)
{
    int n = 0;
    DIR *d = opendir(a);
    CHECK(d != NULL);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char path[2200];
        size_t na, nb;
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", a, e->d_name);
        char *x = test_read(path, &na);
        snprintf(path, sizeof path, "%s/%s", b, e->d_name);
        char *y = test_read(path, &nb);
        if (na != nb || memcmp(x, y, na) != 0)
            FAIL("%s differs", e->d_name);
        free(x);
        free(y);
        n++;
    }
    closedir(d);
    CHECK_INT(n + 2, count_beside(b, ""));
}

TEST(threads_do_not_matter)
{
    char a[1100], b[1100], a_drafter[1200], b_drafter[1200];
    snprintf(a, sizeof a, "%s", test_tmp("one"));
    snprintf(b, sizeof b, "%s", test_tmp("five"));
    snprintf(a_drafter, sizeof a_drafter, "%s-dflash2", a);
    snprintf(b_drafter, sizeof b_drafter, "%s-dflash2", b);
    grow("--layers 12 --tile 2 --shard-mb 60 --threads 1", a);
    grow("--layers 12 --tile 2 --shard-mb 60 --threads 5", b);
    check_same_files(a, b);
    check_same_files(a_drafter, b_drafter);
    check_same_files(a, small());
    remove_folder(a);
    remove_folder(b);
    remove_folder(a_drafter);
    remove_folder(b_drafter);
}

/* ---- Refusals -------------------------------------------------------------------------------- */

/* Refused with this status and text, and nothing is left beside `dir`. */
static void refused(const char *options, const char *dir, rlim_t file_limit, int want,
                    const char *says)
{
    char args[4096], parent[1200];
    struct stat sb;
    snprintf(args, sizeof args, "%s %s", options, dir);
    int rc = grow_end(grow_begin(args, file_limit));
    if (rc != want || !strstr(printed, says))
        FAIL("grow %s: status %d, \"%s\"; expected status %d with \"%s\"", args, rc, printed, want,
             says);
    snprintf(parent, sizeof parent, "%s", dir);
    char *slash = strrchr(parent, '/');
    CHECK(slash != NULL);
    *slash = 0;
    if (stat(parent, &sb) == 0 && S_ISDIR(sb.st_mode))
        CHECK_INT(count_beside(parent, slash + 1), 0);
}

TEST(command_lines_are_checked)
{
    char dir[1100];
    snprintf(dir, sizeof dir, "%s", test_tmp("refused"));
    refused("--layers 10", dir, 0, 2, "10 layers, expected a multiple of 4 from 8 to 512");
    refused("--layers 4", dir, 0, 2, "4 layers");
    refused("--tile 17", dir, 0, 2, "a tile of 17, expected 1 to 16");
    refused("--tile x", dir, 0, 2, "--tile: \"x\"");
    refused("--tile", dir, 0, 2, "--tile");
    refused("--fast", dir, 0, 2, "--fast: not expected");
    refused("one", dir, 0, 2, "not expected");
    CHECK_INT(grow_end(grow_begin("--layers 8", 0)), 2);
    CHECK(strstr(printed, "no folder to write to"));
}

TEST(what_exists_is_not_written_over)
{
    char dir[1100], drafter[1200];
    snprintf(dir, sizeof dir, "%s", test_tmp("there"));
    snprintf(drafter, sizeof drafter, "%s-dflash2", dir);
    CHECK(mkdir(dir, 0777) == 0);
    refused("--layers 8 --tile 1", dir, 0, 1, "is already there");
    CHECK(rmdir(dir) == 0);
    test_write(dir, "x", 1);
    refused("--layers 8 --tile 1", dir, 0, 1, "is already there");
    CHECK(unlink(dir) == 0);
    /* The model's folder is fine, the drafter's is not. */
    CHECK(mkdir(drafter, 0777) == 0);
    char args[1300];
    snprintf(args, sizeof args, "--layers 8 --tile 1 %s", dir);
    CHECK_INT(grow_end(grow_begin(args, 0)), 1);
    CHECK(strstr(printed, "-dflash2: is already there"));
    CHECK(access(dir, F_OK) != 0);
    CHECK(rmdir(drafter) == 0); /* still empty */
}

TEST(places_that_cannot_be_written_are_named)
{
    char dir[1200], file[1100];
    snprintf(dir, sizeof dir, "%s/inside", test_tmp("nowhere"));
    refused("--layers 8 --tile 1", dir, 0, 1, "nowhere/inside: No such file or directory");
    snprintf(file, sizeof file, "%s", test_tmp("file"));
    test_write(file, "x", 1);
    snprintf(dir, sizeof dir, "%s/inside", file);
    refused("--layers 8 --tile 1", dir, 0, 1, "Not a directory");
    if (geteuid() == 0)
        return;
    snprintf(file, sizeof file, "%s", test_tmp("closed"));
    CHECK(mkdir(file, 0500) == 0);
    snprintf(dir, sizeof dir, "%s/inside", file);
    refused("--layers 8 --tile 1", dir, 0, 1, "Permission denied");
}

TEST(lack_of_room_is_told_before_anything_is_written)
{
    struct statvfs v;
    char dir[1100];
    snprintf(dir, sizeof dir, "%s", test_tmp("large"));
    char *parent = strdup(test_tmp("."));
    CHECK(statvfs(parent, &v) == 0);
    free(parent);
    if ((double)v.f_bavail * (double)v.f_frsize > 140e9)
        SKIP("more than 140 GB are free");
    refused("--layers 512", dir, 0, 1, "GB are to be written, but only");
}

/* A limit of 20 MB a file: some of the shards reach it. */
TEST(a_failed_write_leaves_nothing)
{
    char dir[1100];
    snprintf(dir, sizeof dir, "%s", test_tmp("half"));
    refused("--layers 12 --tile 2", dir, 20 << 20, 1, "writing model");
    CHECK(access(dir, F_OK) != 0);
}

TEST(an_interrupted_run_leaves_nothing)
{
    char dir[1100], parent[1100], args[1200];
    struct statvfs v;
    snprintf(dir, sizeof dir, "%s", test_tmp("stopped"));
    snprintf(parent, sizeof parent, "%s", test_tmp("."));
    CHECK(statvfs(parent, &v) == 0);
    if ((double)v.f_bavail * (double)v.f_frsize < 8e9)
        SKIP("less than 8 GB are free");
    snprintf(args, sizeof args, "--layers 512 --tile 2 --no-drafter %s",
             dir); /* 4 GB, not reached */
    pid_t pid = grow_begin(args, 0);
    const struct timespec wait = {.tv_nsec = 2000000};
    for (int i = 0; i < 5000 && count_beside(parent, "stopped") == 0; i++)
        nanosleep(&wait, NULL);
    CHECK(kill(pid, SIGTERM) == 0);
    CHECK_INT(grow_end(pid), 130);
    CHECK(strstr(printed, "interrupted"));
    CHECK_INT(count_beside(parent, "stopped"), 0);
    CHECK(access(dir, F_OK) != 0);
}

/* A grown model, another family member, a file that is cut short, a tensor too many. */
TEST(only_nano_can_be_grown)
{
    char args[2400];
    char dir[1100];
    snprintf(dir, sizeof dir, "%s", test_tmp("again"));
    snprintf(args, sizeof args, "--no-drafter --layers 8 --tile 1 --model %s", small());
    refused(args, dir, 0, 1, "vocab_size: 31040, expected nano's 8192");
    snprintf(args, sizeof args, "--layers 8 --tile 1 --drafter %s-dflash2", small());
    refused(args, dir, 0, 1, "vocab_size: 31040, expected nano's 8192");
    refused("--layers 8 --tile 1 --model models/nano-dflash2", dir, 0, 1, "config.json");
    refused("--layers 8 --tile 1 --drafter models/nano", dir, 0, 1, "config.json");
    refused("--layers 8 --tile 1 --model models/none", dir, 0, 1, "models/none/config.json");

    /* nano's configuration over another's tensors. */
    char mixed[1100], path[1300];
    size_t n;
    snprintf(mixed, sizeof mixed, "%s", test_tmp("mixed"));
    CHECK(mkdir(mixed, 0777) == 0);
    char *config = test_read(test_path("models/nano/config.json"), &n);
    snprintf(path, sizeof path, "%s/config.json", mixed);
    test_write(path, config, n);
    free(config);
    char *weights = test_read(test_path("models/nano-dflash2/model.safetensors"), &n);
    snprintf(path, sizeof path, "%s/model.safetensors", mixed);
    test_write(path, weights, n);
    snprintf(args, sizeof args, "--layers 8 --tile 1 --model %s", mixed);
    refused(args, dir, 0, 1, "is not nano's");
    test_write(path, weights, n / 2);
    refused(args, dir, 0, 1, "cut short");
    free(weights);
}

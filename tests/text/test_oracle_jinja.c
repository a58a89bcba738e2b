/* Templates beside Python's jinja2, over what oracle_jinja.py makes and renders, and beside npm's
 * @huggingface/jinja, over what oracle_jinja.mjs does. */
#define _GNU_SOURCE
#include "test.h"

#include <glob.h>
#include <unistd.h>

#include "text/template_value.h"

static const char python[] = "/usr/bin/python3";

struct tally {
    long n_same, n_failed, n_different;
};

/* Renders with the variables of one line; *out is empty after a failure. */
static lathe_status render(const struct template *t, const struct json_doc *d, const json_t *vars,
                           struct rendering *out, lathe_error *e)
{
    struct template_limits limits;
    struct run r;
    struct template_var var[64];
    struct value value[64];
    size_t n = 0;
    union {
        const json_t *in;
        json_t *out;
    } tree = {vars};
    template_limits_init(&limits, 1 << 20);
    run_open(&r, &limits, e);
    lathe_status st = LATHE_OK;
    for (void *it = json_object_iter(tree.out); it; it = json_object_iter_next(tree.out, it)) {
        CHECK(n < 64);
        if (!value_from_json(&r, d, json_object_iter_value(it), 1, &value[n]))
            st = r.status;
        var[n] = (struct template_var){json_object_iter_key(it), &value[n]};
        n++;
    }
    st = st ? st : template_render(t, &r, var, n, out, e);
    run_close(&r);
    return st;
}

static void different(struct tally *k, const char *name, const char *source, const char *line,
                      const char *got, const char *expected)
{
    if (k->n_different++ < 60)
        printf("%s\n  source   %.300s\n  got      %.700s\n  expected %.700s\n  line     %.100s\n",
               name, source ? source : "", got, expected, line);
}

static void compare(struct tally *k, const struct template *t, const char *name, const char *source,
                    const struct json_doc *d, const char *line)
{
    lathe_error e;
    struct rendering out = {0};
    size_t n;
    const char *want = json_text(d, json_object_get(d->root, "out"), &n);
    const char *want_error = json_text(d, json_object_get(d->root, "error"), &n);
    lathe_status st = render(t, d, json_object_get(d->root, "vars"), &out, &e);
    if (want)
        want = json_text(d, json_object_get(d->root, "out"), &n);
    if (st && want)
        different(k, name, source, line, e.message, want);
    else if (!st && !want)
        different(k, name, source, line, out.text, want_error);
    else if (!st && (out.n != n || memcmp(out.text, want, n) != 0))
        different(k, name, source, line, out.text, want);
    else if (st)
        k->n_failed++;
    else
        k->n_same++;
    rendering_release(&out);
}

/* Compares with the file that a command writes, and removes it. */
static void compare_file(const char *what, const char *command, const char *file, struct tally *k)
{
    if (system(command) != 0)
        FAIL("failed: %s", command);
    *k = (struct tally){0};
    FILE *f = fopen(file, "r");
    CHECK(f);
    char *line = NULL, *name = NULL, *source = NULL;
    size_t room = 0;
    ssize_t len;
    struct template *t = NULL;
    while ((len = getline(&line, &room, f)) > 0) {
        struct json_doc d = {0};
        lathe_error e, compile = {0};
        size_t n_source;
        CHECK_OK(json_read(&d, line, (size_t)len, &json_limits_request, &e), &e);
        const char *s = json_text(&d, json_object_get(d.root, "source"), &n_source);
        const char *refused = json_text(&d, json_object_get(d.root, "source_error"), &(size_t){0});
        if (s) {
            template_close(t);
            free(name);
            free(source);
            name = strdup(json_text(&d, json_object_get(d.root, "name"), &(size_t){0}));
            source = strdup(s);
            if (template_open(&t, s, n_source, &compile) != LATHE_OK)
                t = NULL;
            /* A line that says whether jinja2 compiles it follows. */
            int c = getc(f);
            ungetc(c, f);
            if (!t) {
                free(source);
                source = strdup(compile.message);
            }
        } else if (refused) {
            if (t)
                different(k, name, source, line, "it compiles", refused);
            else
                k->n_failed++;
        } else if (!t) {
            different(k, name, source, line, "it does not compile", "it does");
        } else {
            compare(k, t, name, source, &d, line);
        }
        json_release(&d);
    }
    fclose(f);
    template_close(t);
    free(line);
    free(name);
    free(source);
    unlink(file);
    printf("%s: %ld equal, %ld refused by both, %ld different\n", what, k->n_same, k->n_failed,
           k->n_different);
    if (k->n_different)
        FAIL("%ld of %s differ", k->n_different, what);
}

/* ORACLE_SCALE=10 in the environment runs ten times as many, and others. */
static int scale(void)
{
    const char *s = getenv("ORACLE_SCALE");
    return s ? atoi(s) : 1;
}

static void run_oracle(const char *what, int n, const char *files, struct tally *k)
{
    char command[8192], out[200];
    snprintf(out, sizeof out, "%s", test_tmp("oracle.jsonl"));
    if (access(python, X_OK) != 0)
        SKIP("%s is not there", python);
    snprintf(command, sizeof command, "%s -c 'import jinja2' 2>/dev/null", python);
    if (system(command) != 0)
        SKIP("python3-jinja2 is not installed");
    snprintf(command, sizeof command, "%s %s %s %d %s %s", python,
             test_path("tests/text/oracle_jinja.py"), what, n * scale(), out, files);
    compare_file(what, command, out, k);
}

/* The same with npm's implementation. */
static void run_npm(const char *file, int n, struct tally *k)
{
    char command[8192], out[200], from[300];
    snprintf(from, sizeof from, "%s", file);
    snprintf(out, sizeof out, "%s", test_tmp("oracle_npm.jsonl"));
    if (access(test_path("build/npm/installed"), F_OK) != 0)
        SKIP("npm @huggingface/jinja is not installed in build/npm");
    snprintf(command, sizeof command, "node tests/text/oracle_jinja.mjs build/npm %d %s %s",
             n * scale(), out, from);
    compare_file("npm", command, out, k);
}

TEST(conversations_with_the_shipped_template)
{
    struct tally k;
    run_oracle("conversations", 2000, test_path("models/nano/chat_template.jinja"), &k);
    CHECK(k.n_same > 1000 && k.n_failed > 20);
}

TEST(conversations_with_the_36_template)
{
    struct tally k;
    run_oracle("conversations", 2000, test_shared("templates/qwen3.6-27b.jinja"), &k);
    CHECK(k.n_same > 500 && k.n_failed > 100);
}

TEST(conversations_with_the_38_template)
{
    struct tally k;
    run_oracle("conversations", 2000, test_shared("templates/qwen3.8-27b.jinja"), &k);
    CHECK(k.n_same > 500 && k.n_failed > 100);
}

TEST(npm_with_the_shipped_template)
{
    struct tally k;
    run_npm(test_path("models/nano/chat_template.jinja"), 2000, &k);
    CHECK(k.n_same > 1000);
}

TEST(npm_with_the_36_template)
{
    struct tally k;
    run_npm(test_shared("templates/qwen3.6-27b.jinja"), 2000, &k);
    CHECK(k.n_same > 1000);
}

TEST(npm_with_the_38_template)
{
    struct tally k;
    run_npm(test_shared("templates/qwen3.8-27b.jinja"), 2000, &k);
    CHECK(k.n_same > 1000);
}

TEST(templates_with_every_construct)
{
    struct tally k;
    glob_t g;
    char files[8192] = "";
    CHECK(glob(test_path("tests/text/templates/*.jinja"), 0, NULL, &g) == 0);
    for (size_t i = 0; i < g.gl_pathc; i++) {
        CHECK(strlen(files) + strlen(g.gl_pathv[i]) + 2 < sizeof files);
        strcat(files, " ");
        strcat(files, g.gl_pathv[i]);
    }
    globfree(&g);
    run_oracle("files", 0, files, &k);
    CHECK(k.n_same >= 9 && k.n_failed > 10);
}

TEST(expressions_one_by_one)
{
    struct tally k;
    run_oracle("expressions", 0, test_path("tests/text/templates/expressions.txt"), &k);
    CHECK(k.n_same > 300 && k.n_failed > 50);
}

TEST(random_expressions)
{
    struct tally k;
    run_oracle("random", 6000, "", &k);
    CHECK(k.n_same > 1000 && k.n_failed > 1000);
}

TEST(white_space_around_tags)
{
    struct tally k;
    run_oracle("layout", 4000, "", &k);
    CHECK(k.n_same > 2000);
}

TEST(random_programs)
{
    struct tally k;
    run_oracle("programs", 4000, "", &k);
    CHECK(k.n_same > 500 && k.n_failed > 300);
}

TEST(classes_and_cases_of_every_character)
{
    struct tally k;
    run_oracle("unicode", 0, "", &k);
    CHECK(k.n_same > 30);
}

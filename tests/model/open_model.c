#include "open_model.h"

int n_warnings;
char warning[512];

static void count_warning(void *ctx, lathe_log_level level, const char *line)
{
    (void)ctx;
    n_warnings += level == LATHE_LOG_WARN;
    snprintf(warning, sizeof warning, "%s", line);
}

lathe_status open_dir(struct model *m, const char *dir, lathe_error *err)
{
    n_warnings = 0;
    warning[0] = 0;
    lathe_log_set(count_warning, NULL);
    lathe_status st = model_open(m, dir, err);
    lathe_log_set(NULL, NULL);
    return st;
}

const char *fresh(void)
{
    static int n;
    char name[32];
    snprintf(name, sizeof name, "bind-%d", n++);
    return test_tmp(name);
}

lathe_status open_files(struct model *m, const struct model_spec *s, const struct out_file *f,
                        lathe_error *err)
{
    const char *dir = fresh();
    make_files(dir, s, f);
    return open_dir(m, dir, err);
}

lathe_status open_spec(struct model *m, const struct model_spec *s, lathe_error *err)
{
    struct out_file f;
    make_tensors(&f, s);
    lathe_status st = open_files(m, s, &f, err);
    out_release(&f);
    return st;
}

struct model_spec spec_of(struct out_file *f)
{
    struct model_spec s;
    model_spec_init(&s);
    make_tensors(f, &s);
    return s;
}

void check_spoiled(const struct model_spec *s, struct out_file *f, lathe_status status,
                   const char *says)
{
    struct model m;
    lathe_error e;
    CHECK_ERR(open_files(&m, s, f, &e), &e, status, says);
    CHECK(m.files == NULL && m.layers == NULL);
    out_release(f);
}

void check_equal(const struct model *a, const struct model *b)
{
    float x[1024], y[1024];
    CHECK_INT(a->n_modules, b->n_modules);
    for (size_t i = 0; i < a->n_modules; i++) {
        const struct weight *v = a->modules[i].weight, *w = b->modules[i].weight;
        CHECK(v->rows == w->rows && v->cols == w->cols && v->cols <= 1024);
        for (int64_t r = 0; r < v->rows; r++) {
            weight_formats[v->format].unpack(x, v, r, 0, v->cols);
            weight_formats[w->format].unpack(y, w, r, 0, w->cols);
            if (memcmp(x, y, (size_t)v->cols * sizeof *x) != 0)
                FAIL("%s and %s differ in row %lld", a->modules[i].name, b->modules[i].name,
                     (long long)r);
        }
    }
    const struct gdn_layer *g = &a->layers[0].gdn, *h = &b->layers[0].gdn;
    CHECK(memcmp(g->conv1d.data, h->conv1d.data,
                 (size_t)tensor_elements(&g->conv1d) * sizeof(float)) == 0);
    CHECK(memcmp(a->norm.data, b->norm.data, (size_t)a->dims.hidden * sizeof(float)) == 0);
}

#include <stdarg.h>

#include "op_test.h"

static char name[256];

/* Fresh outputs that begin as p->out. */
static void fresh(const struct op_rows *p, struct tensor *out)
{
    for (int i = 0; i < p->n_out; i++) {
        out[i] = op_tensor(p->out[i].dtype, p->T, p->out[i].dim[1], i);
        op_set(&out[i], &p->out[i]);
    }
}

static void run(struct op_env *e, const struct op_rows *p, const struct tensor *in,
                const struct tensor *out, int64_t first, int64_t n)
{
    struct tensor cut_in[OP_MAX_TENSORS], cut_out[OP_MAX_TENSORS];
    for (int i = 0; i < p->n_in; i++)
        cut_in[i] = tensor_rows(in[i], first, n);
    for (int i = 0; i < p->n_out; i++)
        cut_out[i] = tensor_rows(out[i], first, n);
    p->run(&e->exec, p, cut_in, cut_out, first, n);
    op_check_ok(e);
}

static uint64_t hash_inputs(const struct op_rows *p)
{
    uint64_t h = 0;
    for (int i = 0; i < p->n_in; i++)
        h = h * 31 + op_hash(&p->in[i]);
    for (int i = 0; i < p->n_whole; i++)
        h = h * 31 + op_hash(&p->whole[i]);
    return h;
}

static void check_same(const struct op_rows *p, const char *what, const struct tensor *got,
                       const struct tensor *want)
{
    char label[96];
    for (int i = 0; i < p->n_out; i++) {
        snprintf(label, sizeof label, "output %d %s", i, what);
        op_check_same(label, &got[i], &want[i]);
    }
}

/* Rows cut at every multiple of `step`. */
static void check_cut(struct op_env *e, const struct op_rows *p, int64_t step,
                      const struct tensor *want)
{
    struct tensor out[OP_MAX_TENSORS];
    char what[64];
    fresh(p, out);
    for (int64_t t = 0; t < p->T; t += step)
        run(e, p, p->in, out, t, p->T - t < step ? p->T - t : step);
    snprintf(what, sizeof what, "in pieces of %lld rows", (long long)step);
    check_same(p, what, out, want);
}

static void check_poison(struct op_env *e, const struct op_rows *p, const struct tensor *want)
{
    static const double poison[] = {NAN, INFINITY, -INFINITY};
    int64_t bad = p->T / 2;
    for (int i = 0; i < p->n_in; i++)
        for (int k = 0; k < 3; k++) {
            struct tensor in[OP_MAX_TENSORS], out[OP_MAX_TENSORS];
            memcpy(in, p->in, sizeof in);
            in[i] = op_copy(&p->in[i], p->in[i].dtype);
            op_put(&in[i], bad, in[i].dim[1] - 1 - p->poison_back, poison[k]);
            fresh(p, out);
            run(e, p, in, out, 0, p->T);
            bool seen = false;
            for (int o = 0; o < p->n_out; o++) {
                for (int64_t t = 0; t < p->T; t++)
                    if (t != bad && !op_same_row(&out[o], t, &want[o], t))
                        OP_FAIL("%g in row %lld of input %d reaches row %lld of output %d",
                                poison[k], (long long)bad, i, (long long)t, o);
                seen |= op_row_has_nan(&out[o], bad);
            }
            if (k == 0 && !seen)
                OP_FAIL("NaN in row %lld of input %d does not reach it", (long long)bad, i);
        }
}

static void check_env(struct op_env *e, const struct op_rows *p, int alias,
                      const struct tensor *want, const struct tensor *same)
{
    struct tensor out[OP_MAX_TENSORS];
    uint64_t before = hash_inputs(p);
    int mark = op_mark();
    op_case("%s: %s", name, e->name);
    fresh(p, out);
    run(e, p, p->in, out, 0, p->T);
    for (int i = 0; i < p->n_out; i++) {
        char label[32];
        snprintf(label, sizeof label, "output %d", i);
        op_check_near(label, &out[i], &want[i], p->tol);
    }
    check_same(p, "with more threads", out, same[0].data ? same : out);
    if (hash_inputs(p) != before)
        OP_FAIL("an input changed");
    if (p->T > 1) {
        check_cut(e, p, 1, out);
        check_cut(e, p, p->T / 2 + 1, out);
        check_poison(e, p, out);
    }
    if (alias >= 0) {
        struct tensor in[OP_MAX_TENSORS];
        memcpy(in, p->in, sizeof in);
        in[alias] = op_copy(&p->in[alias], p->in[alias].dtype);
        run(e, p, in, &in[alias], 0, p->T);
        op_check_same("output in place", &in[alias], &out[0]);
    }
    op_release(mark);
}

void op_rows_check(const struct op_rows *p, int alias, const char *fmt, ...)
{
    int n_envs;
    struct op_env *env = op_envs(&n_envs), *ref = op_ref();
    struct tensor want[OP_MAX_TENSORS], same[OP_MAX_TENSORS] = {{0}};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    op_case("%s: %s", name, ref->name);
    fresh(p, want);
    run(ref, p, p->in, want, 0, p->T);
    for (int i = 0; i < n_envs; i++) {
        if (i == 0 || strcmp(env[i].isa, env[i - 1].isa) != 0) {
            op_case("%s: %s", name, env[i].name);
            fresh(p, same);
            run(&env[i], p, p->in, same, 0, p->T);
        }
        check_env(&env[i], p, alias, want, same);
    }
    op_done();
}

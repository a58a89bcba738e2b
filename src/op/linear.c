#include <stdio.h>
#include <string.h>

#include "op/run.h"

enum { MOST_LINEARS = 4 };

/* Fails the step where operands contradict each other. */
static void check(struct exec *x, struct tensor y, struct tensor in, const struct weight *w,
                  bool add)
{
    OP_BEGIN(x);
    OP_REQUIRE(x, "linear", in.n_dims == 2 && in.dim[0] >= 1 && is_act(in.dtype));
    OP_REQUIRE(x, "linear", in.dim[1] == w->cols && in.stride >= in.dim[1]);
    OP_REQUIRE(x, "linear", y.dtype == in.dtype || (y.dtype == DT_F32 && !add));
    OP_REQUIRE(x, "linear", is_matrix(&y, y.dtype, in.dim[0], w->rows));
    if (!x->backend->has_linear(w->format, in.dtype))
        exec_fail(x, LATHE_E_UNSUPPORTED, "backend %s has no linear of %s weights with %s rows",
                  x->backend->name, weight_formats[w->format].name, dtype_name(in.dtype));
}

/* Of operands that were checked. */
static struct linear_args args_of(const struct exec *x, struct tensor y, struct tensor in,
                                  const struct weight *w, bool add)
{
    return (struct linear_args){.y = y, .in = in, .w = w, .add = add, .phase = x->phase};
}

static void run(struct exec *x, struct linear_args a)
{
    OP_BEGIN(x);
    size_t mark = exec_push(x), scratch = x->backend->linear_scratch(x->stream, &a);
    a.scratch = exec_tmp(x, DT_U8, 1, (int64_t)scratch);
    OP_BEGIN(x);
    char detail[64];
    snprintf(detail, sizeof detail, "%s [%lld, %lld]%s", weight_formats[a.w->format].name,
             (long long)a.w->rows, (long long)a.w->cols, a.add ? " add" : "");
    OP_RUN(x, linear, &a, &a.y, detail);
    exec_pop(x, mark);
}

static void linear(struct exec *x, struct tensor y, struct tensor in, const struct weight *w,
                   bool add)
{
    check(x, y, in, w, add);
    run(x, args_of(x, y, in, w, add));
}

void op_linear(struct exec *x, struct tensor y, struct tensor in, const struct weight *w)
{
    linear(x, y, in, w, false);
}

void op_linear_add(struct exec *x, struct tensor h, struct tensor in, const struct weight *w)
{
    linear(x, h, in, w, true);
}

void op_linear_add_norm(struct exec *x, struct normed *n, struct tensor in, const struct weight *w,
                        struct tensor norm)
{
    check(x, n->h, in, w, true);
    OP_BEGIN(x);
    OP_REQUIRE(x, "linear_add_norm", is_vector(&norm, DT_F32, w->rows));
    OP_REQUIRE(x, "linear_add_norm", is_matrix(&n->u, n->h.dtype, n->h.dim[0], w->rows));
    OP_REQUIRE(x, "linear_add_norm",
               is_matrix(&n->squares, DT_F32, n->h.dim[0], n->squares.dim[1]) &&
                   n->squares.dim[1] * OP_NORM_PART >= w->rows);
    struct linear_args a = args_of(x, n->h, in, w, true);
    n->w = norm;
    n->unscaled = !x->planning && x->backend->linear_add_norm &&
                  op_joined(x, "linear_add_norm", x->backend->linear_add_norm(x->stream, &a, n));
    if (n->unscaled)
        return;
    run(x, a);
    op_norm(x, n, norm);
}

/* Products of rows that are unscaled, and that nobody can scale afterwards. */
static void scale_now(struct exec *x, struct normed *in, struct linear_args *a, int n)
{
    if (!in->unscaled)
        return;
    op_norm(x, in, in->w);
    for (int i = 0; i < n; i++)
        a[i].of = NULL;
}

/* Products of one input: at once where the backend can, which then has as much scratch as the largest needs. */
static bool join(struct exec *x, struct linear_args *a, int n)
{
    if (x->planning || !x->backend->linears)
        return false;
    size_t mark = exec_push(x), scratch = 0;
    for (int i = 0; i < n; i++) {
        size_t own = x->backend->linear_scratch(x->stream, &a[i]);
        scratch = own > scratch ? own : scratch;
    }
    struct linear_args of[MOST_LINEARS];
    memcpy(of, a, (size_t)n * sizeof *a);
    of->scratch = exec_tmp(x, DT_U8, 1, (int64_t)scratch);
    bool joined = !x->status && op_joined(x, "linears", x->backend->linears(x->stream, of, n));
    exec_pop(x, mark);
    return joined || x->status;
}

void op_linears(struct exec *x, int n, const struct tensor *y, struct normed *in,
                const struct weight *const *w)
{
    struct linear_args a[MOST_LINEARS];
    OP_REQUIRE(x, "linears", n >= 1 && n <= MOST_LINEARS);
    for (int i = 0; i < n; i++) {
        check(x, y[i], in->u, w[i], false);
        a[i] = args_of(x, y[i], in->u, w[i], false);
        a[i].of = in->unscaled ? in : NULL;
    }
    OP_BEGIN(x);
    if (join(x, a, n))
        return;
    scale_now(x, in, a, n);
    for (int i = 0; i < n; i++)
        run(x, a[i]);
}

void op_linear_silu_mul(struct exec *x, struct tensor y, struct normed *in,
                        const struct weight *gate, const struct weight *up)
{
    size_t mark = exec_push(x);
    OP_BEGIN(x);
    OP_REQUIRE(x, "linear_silu_mul", y.dtype == in->u.dtype && gate->rows == up->rows);
    struct tensor other = exec_tmp(x, y.dtype, in->u.dim[0], up->rows);
    check(x, y, in->u, gate, false);
    check(x, other, in->u, up, false);
    OP_BEGIN(x);
    struct linear_args a[2] = {args_of(x, y, in->u, gate, false),
                               args_of(x, other, in->u, up, false)};
    a[0].of = a[1].of = in->unscaled ? in : NULL;
    bool (*joined)(void *, const struct linear_args *) = x->backend->linear_silu_mul;
    if (x->planning || !joined || !op_joined(x, "linear_silu_mul", joined(x->stream, a))) {
        scale_now(x, in, a, 2);
        if (!join(x, a, 2)) {
            run(x, a[0]);
            run(x, a[1]);
        }
        op_silu_mul(x, y, y, other);
    }
    exec_pop(x, mark);
}

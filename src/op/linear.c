#include <stdio.h>

#include "op/run.h"

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

static void linear(struct exec *x, struct tensor y, struct tensor in, const struct weight *w,
                   bool add)
{
    check(x, y, in, w, add);
    OP_BEGIN(x);
    struct linear_args a = {.y = y, .in = in, .w = w, .add = add, .phase = x->phase};
    size_t mark = exec_push(x), scratch = x->backend->linear_scratch(x->stream, &a);
    a.scratch = exec_tmp(x, DT_U8, 1, (int64_t)scratch);
    OP_BEGIN(x);
    char detail[64];
    snprintf(detail, sizeof detail, "%s [%lld, %lld]%s", weight_formats[w->format].name,
             (long long)w->rows, (long long)w->cols, add ? " add" : "");
    OP_RUN(x, linear, &a, &y, detail);
    exec_pop(x, mark);
}

void op_linear(struct exec *x, struct tensor y, struct tensor in, const struct weight *w)
{
    linear(x, y, in, w, false);
}

void op_linear_add(struct exec *x, struct tensor h, struct tensor in, const struct weight *w)
{
    linear(x, h, in, w, true);
}

void op_linears(struct exec *x, int n, const struct tensor *y, struct tensor in,
                const struct weight *const *w)
{
    enum { MOST = 4 };
    struct linear_args a[MOST];
    bool (*linears)(void *, const struct linear_args *, int) = x->backend->linears;
    OP_REQUIRE(x, "linears", n >= 1 && n <= MOST);
    for (int i = 0; i < n; i++) {
        check(x, y[i], in, w[i], false);
        a[i] = (struct linear_args){.y = y[i], .in = in, .w = w[i], .phase = x->phase};
    }
    OP_BEGIN(x);
    if (!x->planning && linears && linears(x->stream, a, n))
        return;
    for (int i = 0; i < n; i++)
        linear(x, y[i], in, w[i], false);
}

void op_linear_silu_mul(struct exec *x, struct tensor y, struct tensor in,
                        const struct weight *gate, const struct weight *up)
{
    size_t mark = exec_push(x);
    OP_BEGIN(x);
    OP_REQUIRE(x, "linear_silu_mul", y.dtype == in.dtype && gate->rows == up->rows);
    struct tensor other = exec_tmp(x, y.dtype, in.dim[0], up->rows);
    check(x, y, in, gate, false);
    check(x, other, in, up, false);
    OP_BEGIN(x);
    struct linear_args a[2] = {{.y = y, .in = in, .w = gate, .phase = x->phase},
                               {.y = other, .in = in, .w = up, .phase = x->phase}};
    if (x->planning || !x->backend->linear_silu_mul || !x->backend->linear_silu_mul(x->stream, a)) {
        op_linears(x, 2, (struct tensor[]){y, other}, in, (const struct weight *[]){gate, up});
        op_silu_mul(x, y, y, other);
    }
    exec_pop(x, mark);
}

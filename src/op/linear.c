#include <stdio.h>

#include "op/run.h"

static void linear(struct exec *x, struct tensor y, struct tensor in, const struct weight *w,
                   bool add)
{
    OP_BEGIN(x);
    OP_REQUIRE(x, "linear", in.n_dims == 2 && in.dim[0] >= 1 && is_act(in.dtype));
    OP_REQUIRE(x, "linear", in.dim[1] == w->cols && in.stride >= in.dim[1]);
    OP_REQUIRE(x, "linear", y.dtype == in.dtype || (y.dtype == DT_F32 && !add));
    OP_REQUIRE(x, "linear", is_matrix(&y, y.dtype, in.dim[0], w->rows));
    if (!x->backend->has_linear(w->format, in.dtype)) {
        exec_fail(x, LATHE_E_UNSUPPORTED, "backend %s has no linear of %s weights with %s rows",
                  x->backend->name, weight_formats[w->format].name, dtype_name(in.dtype));
        return;
    }
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

#include "op/run.h"

void op_embed(struct exec *x, struct tensor y, const struct weight *table, const int32_t *token)
{
    OP_BEGIN(x);
    OP_REQUIRE(x, "embed", y.n_dims == 2 && y.dim[0] >= 1 && is_act(y.dtype));
    OP_REQUIRE(x, "embed", y.dim[1] == table->cols && y.stride >= y.dim[1]);
    if (!x->planning)
        for (int64_t t = 0; t < y.dim[0]; t++)
            if (token[t] < 0 || token[t] >= table->rows) {
                exec_fail(x, LATHE_E_ARGUMENT, "embed: token id %d in row %lld, expected 0 to %lld",
                          token[t], (long long)t, (long long)table->rows - 1);
                return;
            }
    struct embed_args a = {y, table, token};
    OP_RUN(x, embed, &a, &y, weight_formats[table->format].name);
}

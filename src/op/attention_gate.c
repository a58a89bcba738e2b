#include "op/run.h"

void op_attention_gate(struct exec *x, struct tensor y, struct tensor o, struct tensor qg,
                       int32_t head_dim)
{
    OP_BEGIN(x);
    OP_REQUIRE(x, "attention_gate", y.n_dims == 2 && y.dim[0] >= 1 && is_act(y.dtype));
    OP_REQUIRE(x, "attention_gate", head_dim >= 1 && y.dim[1] > 0 && y.dim[1] % head_dim == 0);
    OP_REQUIRE(x, "attention_gate", is_matrix(&y, y.dtype, y.dim[0], y.dim[1]));
    OP_REQUIRE(x, "attention_gate", is_matrix(&o, DT_F32, y.dim[0], y.dim[1]));
    OP_REQUIRE(x, "attention_gate", is_matrix(&qg, y.dtype, y.dim[0], 2 * y.dim[1]));
    struct attention_gate_args a = {y, o, qg, head_dim};
    OP_RUN(x, attention_gate, &a, &y, "");
}

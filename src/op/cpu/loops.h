/* Every inner loop, and the function that fills the table with them: kernels_<isa>.c defines
 * KERNELS_FILL as that function's name and includes this. */
#include "op/cpu/loops_rows.h"

#include "op/cpu/loops_recurrent.h"

#include "op/cpu/loops_attention.h"

#include "op/cpu/loops_block.h"

void KERNELS_FILL(struct cpu_kernels *k)
{
    *k = (struct cpu_kernels){
        .convert = convert,
        .rmsnorm = rmsnorm,
        .rmsnorm_gated = rmsnorm_gated,
        .norm_rope = norm_rope,
        .silu_mul = silu_mul,
        .sigmoid_mul = sigmoid_mul,
        .conv1d_silu = conv1d_silu,
        .l2norm = l2norm,
        .delta_rows = delta_rows,
        .attention_tile = attention_tile,
        .attention_merge = attention_merge,
        .attention_finish = attention_finish,
        .block_conv = block_conv,
        .first_above = first_above,
        .dot = dot,
    };
}

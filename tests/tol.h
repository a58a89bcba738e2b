/* Every tolerance of the tests, with its reason. If a test fails, the kernel is wrong, or the reason is:
 * never the number alone. NaN always fails. */
#ifndef LATHE_TESTS_TOL_H
#define LATHE_TESTS_TOL_H

/* max|difference| / max|reference| of a whole model in F32 against a float32 reference: eight layers of
 * sums in another order, at 2^-24 each, amplified by norms and softmax. */
#define TOL_GOLDEN_F32 2e-5
/* Rotated keys: the angle of a position near 1000 is itself a float32 product, and cos and sin turn its
 * last bit into up to 1000 * 2^-24. */
#define TOL_GOLDEN_KEYS 5e-5
/* How much further from float32 than the reference's own bfloat16 run logits with BF16 activations may be:
 * both round at about the same places, so what differs is the luck of single roundings. */
#define TOL_GOLDEN_BF16_FACTOR 1.5
/* The same numbers stored in two formats, both read exactly and summed in double: only the storing of
 * results in F32 remains. */
#define TOL_SAME_NUMBERS 2e-6

/* Operators against ref: struct op_tol of op/op_test.h, {name, of the value, of its row's root mean
 * square, absolute, norm of the whole error}. */

/* A result within a few 2^-24 of its row's size, then rounded to BF16: near a tie the rounding may go
 * the other way, which is up to 2^-7 of the value, but only about one in 2^12 lies so near. */
#define TOL_ROW_BF16 ((struct op_tol){"TOL_ROW_BF16", 0x1p-7, 0x1p-19, 1e-38, 0x1p-10})
/* Sums of thousands of products in F32, in another order: some 2^-24 of the row's size each, averaging
 * out; the functions (exp, rsqrt) within 2 ulp. */
#define TOL_ROW_F32 ((struct op_tol){"TOL_ROW_F32", 0x1p-21, 0x1p-21, 1e-38, 0x1p-22})
/* The delta rule: sums of dk products in another order, and their differences from v, feed the next
 * row; beta <= 1 and decay <= 1 keep an error from growing. What is left is some 2^-24 of |S| |q|, and
 * a row of S^T q may be several times smaller than that. */
#define TOL_DELTA_RULE ((struct op_tol){"TOL_DELTA_RULE", 0x1p-20, 0x1p-16, 1e-30, 0x1p-19})
/* The delta rule in chunks, on tensor cores: of S, of the differences from v and of what multiplies these, two parts of
 * BF16, 2^-18 of each being lost, as is 2^-18 of a product of two such; a row of o may be several times smaller than the
 * two sums it is made of. */
#define TOL_DELTA_CHUNKS ((struct op_tol){"TOL_DELTA_CHUNKS", 0x1p-16, 0x1p-12, 1e-30, 0x1p-15})
/* Attention: a score is off by some 2^-24 of |q| |k|, which changes its weight in proportion; the sums of
 * values and weights are off by as much again, and average out. */
#define TOL_ATTENTION ((struct op_tol){"TOL_ATTENTION", 0x1p-19, 0x1p-18, 1e-30, 0x1p-20})
/* The same, then rounded to BF16. */
#define TOL_ATTENTION_BF16 ((struct op_tol){"TOL_ATTENTION_BF16", 0x1p-7, 0x1p-18, 1e-30, 0x1p-10})
/* Prompts on a GPU with keys and values in BF16: weights are rounded to two parts of BF16, 2^-18 of each, and a
 * result may be several times smaller than the values it is a mean of. */
#define TOL_ATTENTION_PROMPT                                                                       \
    ((struct op_tol){"TOL_ATTENTION_PROMPT", 0x1p-16, 0x1p-15, 1e-30, 0x1p-17})
#define TOL_ATTENTION_PROMPT_BF16                                                                  \
    ((struct op_tol){"TOL_ATTENTION_PROMPT_BF16", 0x1p-7, 0x1p-15, 1e-30, 0x1p-10})
/* The same in E4M3: weights are rounded to F16, 2^-11 of each. The values have four bits, 2^-4, and the result of a
 * model's attention is rounded to BF16, 2^-9. */
#define TOL_ATTENTION_PROMPT_E4M3                                                                  \
    ((struct op_tol){"TOL_ATTENTION_PROMPT_E4M3", 0x1p-10, 0x1p-8, 1e-30, 0x1p-11})
#define TOL_ATTENTION_PROMPT_E4M3_BF16                                                             \
    ((struct op_tol){"TOL_ATTENTION_PROMPT_E4M3_BF16", 0x1p-7, 0x1p-8, 1e-30, 0x1p-9})
/* Thousands of products in F32, in sixteen lanes: some 2^-24 of what such a sum usually is, |w| |x| /
 * sqrt(n); the tests multiply `floor` by that, because a single sum may be far smaller. */
#define TOL_LINEAR_F32 ((struct op_tol){"TOL_LINEAR_F32", 0x1p-22, 0x1p-21, 0x1p-20, 0x1p-21})
/* The same, then rounded to BF16. */
#define TOL_LINEAR_BF16 ((struct op_tol){"TOL_LINEAR_BF16", 0x1p-7, 0x1p-21, 0x1p-20, 0x1p-8})
/* Tensor cores cut each sum of sixteen products off instead of rounding it: the errors point one way and
 * add up. */
#define TOL_LINEAR_TENSOR ((struct op_tol){"TOL_LINEAR_TENSOR", 0x1p-22, 0x1p-18, 0x1p-17, 0x1p-18})
/* Prompts on a GPU: one chain of such cuts through all columns, hundreds long. */
#define TOL_LINEAR_PROMPT ((struct op_tol){"TOL_LINEAR_PROMPT", 0x1p-20, 0x1p-15, 0x1p-14, 0x1p-15})
#define TOL_LINEAR_PROMPT_BF16                                                                     \
    ((struct op_tol){"TOL_LINEAR_PROMPT_BF16", 0x1p-7, 0x1p-15, 0x1p-14, 0x1p-8})
/* Prompts in FP8, against the same quantised rows: tensor cores keep some 14 bits of what they add up of 128 products,
 * and cut the rest off. */
#define TOL_LINEAR_FP8 ((struct op_tol){"TOL_LINEAR_FP8", 0x1p-12, 0x1p-11, 0x1p-10, 0x1p-11})
#define TOL_LINEAR_FP8_BF16                                                                        \
    ((struct op_tol){"TOL_LINEAR_FP8_BF16", 0x1p-7, 0x1p-11, 0x1p-10, 0x1p-8})
/* A norm whose scale is left to the products: its weighted rows are rounded to BF16 before they are scaled, not after,
 * 2^-9 of each, and a sum that they were made of near a tie the other way, 2^-8; silu(gate) * up has that twice. */
#define TOL_NORM_JOINED ((struct op_tol){"TOL_NORM_JOINED", 0x1p-5, 0x1p-4, 0, 0x1p-6})
/* An error of the product is one of its exponential; log and exp add a few ulp. */
#define TOL_GDN_GATES ((struct op_tol){"TOL_GDN_GATES", 0x1p-18, 0x1p-21, 1e-37, 0x1p-21})
/* The same of one summation against another. */
#define TOL_GDN_GATES_JOINED ((struct op_tol){"TOL_GDN_GATES_JOINED", 1e-5, 1e-6, 0, 1e-5})
/* Convolution, rule and gated norm as one. Rows between them are rounded to BF16 as the formula's are, near a tie
 * the other way: 2^-8 of a q, k or v, which the rule and the norm pass on. Then the result is rounded to BF16. */
#define TOL_GDN_MIX ((struct op_tol){"TOL_GDN_MIX", 1.6e-2, 4e-3, 1e-6, 6e-3})
/* Nothing is computed: unpacked values, rounded once. */
#define TOL_EXACT ((struct op_tol){"TOL_EXACT", 0, 0, 0, 0})

/* Of the recorded tokens a round, with BF16 activations: single roundings flip close drafts and choices
 * either way, and the texts then differ. */
#define TOL_TOKENS_A_ROUND 0.9
/* What a KV cache in E4M3 may cost, in nats a token: three bits of mantissa are an error of 2^-4 at most a key
 * or value, 2 % in the mean, of random signs; measured on nano, 0.001. */
#define TOL_E4M3_NATS 0.005
/* The same of prompts in FP8: an error of 2^-4 at most of each activation of a product with an FP8 matrix; measured on
 * nano, 0.003. */
#define TOL_FP8_PROMPT_NATS 0.02

#endif

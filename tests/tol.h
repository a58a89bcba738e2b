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
/* BF16 activations round once where the reference rounds several times, so they may not be further from
 * float32 than it is, give or take the luck of single roundings. */
#define TOL_GOLDEN_BF16_FACTOR 1.5

#endif

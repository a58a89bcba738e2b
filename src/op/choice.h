/* The choice of a token among candidates, and its arithmetic, which is the same on the host and on a device, bit for bit: sums,
 * products and quotients of doubles in a fixed order, each rounded by itself, and exact sums of integers. C, and
 * included from CUDA C. */
#ifndef LATHE_OP_CHOICE_H
#define LATHE_OP_CHOICE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* What a request's choices follow (sample/sample.h has the definition, behind bias and penalties). temperature 0: the best
 * candidate, whatever else is set. */
struct choice {
    double temperature, top_p, min_p;
    uint64_t seed;
    int32_t top_k; /* < 1: off */
};
enum { CHOICE_MOST = 128 }; /* candidates of one choice */
/* Is it made among all of a row, and not among its best? */
#define CHOICE_IS_WHOLE(c) ((c)->temperature > 0 && (c)->top_k < 1)

#ifdef __CUDACC__
#define CHOICE_FN static __device__ __forceinline__
CHOICE_FN double choice_add(double a, double b)
{
    return __dadd_rn(a, b);
}
CHOICE_FN double choice_times(double a, double b)
{
    return __dmul_rn(a, b);
}
CHOICE_FN double choice_over(double a, double b)
{
    return __ddiv_rn(a, b);
}
#else
#define CHOICE_FN static inline
CHOICE_FN double choice_add(double a, double b)
{
    return a + b;
}
CHOICE_FN double choice_times(double a, double b)
{
    return a * b;
}
CHOICE_FN double choice_over(double a, double b)
{
    return a / b;
}
#endif

/* log 2 in two parts: the first has 21 zeros at its end, so that its product with an exponent is exact. */
#define CHOICE_LN2_HIGH 0x1.62e42fee00000p-1
#define CHOICE_LN2_LOW  0x1.a39ef35793c76p-33

CHOICE_FN double choice_of_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* log x of a normal x > 0, to a few units of the last place: x = m 2^k, m in [1/sqrt 2, sqrt 2], and
 * log m = 2 atanh s = 2 (s + s^3 / 3 + s^5 / 5 ...) with s = (m - 1) / (m + 1). */
CHOICE_FN double choice_log(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int32_t k = (int32_t)(bits >> 52) - 1023;
    double m = choice_of_bits((bits & 0xFFFFFFFFFFFFFu) | (uint64_t)1023 << 52);
    if (m > 1.4142135623730951) {
        m = choice_times(m, 0.5);
        k++;
    }
    double f = choice_add(m, -1), s = choice_over(f, choice_add(m, 1)), z = choice_times(s, s);
    double sum = 1.0 / 23;
    for (int32_t i = 21; i >= 3; i -= 2) /* z <= 0.0295: z^11 is below the last place */
        sum = choice_add(choice_times(sum, z), 1.0 / i);
    double twice = choice_times(2, s), rest = choice_times(choice_times(twice, z), sum);
    rest = choice_add(rest, choice_times(k, CHOICE_LN2_LOW));
    return choice_add(choice_times(k, CHOICE_LN2_HIGH), choice_add(twice, rest));
}

/* exp x of x <= 0, to a few units of the last place; 0 below -700. x = k log 2 + r, |r| <= 0.35. */
CHOICE_FN double choice_exp(double x)
{
    if (!(x >= -700))
        return 0;
    int32_t k = (int32_t)choice_add(choice_times(x, 0x1.71547652b82fep+0), -0.5);
    double r = choice_add(choice_add(x, -choice_times(k, CHOICE_LN2_HIGH)),
                          -choice_times(k, CHOICE_LN2_LOW));
    /* The series up to r^13, 0.35^14 / 14! being below the last place, in even and odd powers. */
    double z = choice_times(r, r), even = 1.0 / 479001600, odd = 1.0 / 6227020800;
    even = choice_add(choice_times(even, z), 1.0 / 3628800);
    odd = choice_add(choice_times(odd, z), 1.0 / 39916800);
    even = choice_add(choice_times(even, z), 1.0 / 40320);
    odd = choice_add(choice_times(odd, z), 1.0 / 362880);
    even = choice_add(choice_times(even, z), 1.0 / 720);
    odd = choice_add(choice_times(odd, z), 1.0 / 5040);
    even = choice_add(choice_times(even, z), 1.0 / 24);
    odd = choice_add(choice_times(odd, z), 1.0 / 120);
    even = choice_add(choice_times(even, z), 0.5);
    odd = choice_add(choice_times(odd, z), 1.0 / 6);
    even = choice_add(choice_times(even, z), 1);
    odd = choice_add(choice_times(odd, z), 1);
    double sum = choice_add(even, choice_times(r, odd));
    return choice_times(sum, choice_of_bits((uint64_t)(k + 1023) << 52));
}

/* ---- Noise (sample/noise.h) --------------------------------------------------------------------- */

/* One block of Philox-4x32-10. */
CHOICE_FN void choice_philox(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* 64 bits of (seed, position, id) in one of independent streams. */
CHOICE_FN uint64_t choice_bits(uint64_t seed, int32_t position, int32_t id, int32_t stream)
{
    uint32_t out[4];
    const uint32_t counter[4] = {(uint32_t)id, (uint32_t)position, (uint32_t)stream, 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    choice_philox(out, counter, key);
    return (uint64_t)out[1] << 32 | out[0];
}

/* A standard Gumbel variate. 1 - e is exact: e is an odd multiple of 2^-53. */
CHOICE_FN double choice_gumbel(uint64_t bits)
{
    double e = choice_times(choice_add((double)(bits >> 12), 0.5), 0x1p-52);
    return -choice_log(-choice_log(choice_add(1, -e)));
}

/* Never below choice_gumbel(bits), at most 1.1 above it where that is positive; takes no logarithm. */
CHOICE_FN double choice_gumbel_bound(uint64_t bits)
{
    /* -log(1 - e) >= e, so G <= -log(e) <= (52 - floor(log2(r))) log 2 for r = bits >> 12 >= 1; r = 0
     * is e = 2^-53. 0.6931471806 is above log 2 by more than the rounding of choice_gumbel. */
    uint64_t r = bits >> 12;
#ifdef __CUDACC__
    int32_t zeros = __clzll((long long)r);
#else
    int32_t zeros = r ? __builtin_clzll(r) : 64;
#endif
    return choice_times(zeros - 11, 0.6931471806);
}

/* ---- Filters and the draw ------------------------------------------------------------------------- */

/* The one order of tokens: the larger logit, and of equal logits the lower id. */
CHOICE_FN bool choice_is_better(float x, int32_t x_id, float y, int32_t y_id)
{
    return x > y || (x == y && x_id < y_id);
}
/* In (0, 1]: of a logit beside the best one. */
CHOICE_FN double choice_weight(float x, float best, double temperature)
{
    return choice_exp(choice_over(choice_add(x, -(double)best), temperature));
}
/* A weight as it is summed: in units of 2^-44, so that the sum does not depend on the order. */
CHOICE_FN uint64_t choice_fixed(double weight)
{
    return (uint64_t)choice_times(weight, 0x1p44);
}
/* What top-p leaves is the first of these sums of best weights that is `need` or more. */
CHOICE_FN double choice_need(double top_p, uint64_t total)
{
    return choice_times(top_p, (double)total);
}
/* The candidate with the largest key is drawn, of equal keys the lower id. */
CHOICE_FN double choice_key(float x, double temperature, double gumbel)
{
    return choice_add(choice_over(x, temperature), gumbel);
}

#ifndef __CUDACC__
/* The place of the chosen one among n <= CHOICE_MOST candidates in any order, of which those with an id >= 0 and a finite
 * logit are there; -1 if none is. `position` is that of the token. */
int32_t choice_of(const struct choice *c, const float *logit, const int32_t *id, int32_t n,
                  int32_t position);
/* The id that is drawn among all of a row in n_ranges ranges [begin, end), without top-k and top-p, `best` being the largest
 * of their logits, a finite one. */
int32_t choice_of_row(const struct choice *c, const float *row, const int32_t (*range)[2],
                      int32_t n_ranges, float best, int32_t position);
#endif

#endif

/* The noise of random choices: a pure function of (seed, position, token id), so that a choice does
 * not depend on what else runs, in which order, or how many rows are looked at together, and so that a
 * drafter can add the very noise that the target will add. */
#ifndef LATHE_SAMPLE_NOISE_H
#define LATHE_SAMPLE_NOISE_H

#include <stdint.h>

/* 64 random bits: the first two words of Philox-4x32-10 with the seed as its key and
 * {id, position, 0, 0} as its counter (Salmon et al. 2011, "Parallel random numbers: as easy as
 * 1, 2, 3"). */
uint64_t noise_bits(uint64_t seed, int32_t position, int32_t id);

/* Streams that are independent of each other at one position. */
enum noise_stream {
    NOISE_CHOICE,   /* noise_bits: of drafts and of the target's own choices */
    NOISE_ACCEPT,   /* whether a draft is accepted */
    NOISE_RESIDUAL, /* what replaces it if not */
};
/* 64 bits of one of them, one number a position: {0, position, stream, 0} is the counter. */
uint64_t noise_stream_bits(uint64_t seed, int32_t position, enum noise_stream stream);
/* Uniform in [0, 1). */
double noise_uniform(uint64_t bits);

/* One block of the generator itself. */
void philox4x32(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2]);

/* A standard Gumbel variate: G = -log(-log(1 - e)), e = (bits >> 12 plus a half) / 2^52, which is
 * exact and inside (0, 1). The upper tail, which decides between many tokens, has the fine end of e:
 * G lies in [-3.7, 36.8]. */
double noise_gumbel(uint64_t bits);
/* Never below noise_gumbel(bits), at most 1.1 above it where that is positive; takes no logarithm. */
double noise_gumbel_bound(uint64_t bits);

/* A seed from the operating system, in [0, 2^63). */
int64_t noise_seed(void);

#endif

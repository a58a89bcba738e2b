#include "sample/noise.h"

#include <math.h>
#include <sys/random.h>
#include <time.h>

void philox4x32(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2])
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

static uint64_t bits_at(uint64_t seed, int32_t position, int32_t id, enum noise_stream stream)
{
    uint32_t out[4];
    const uint32_t counter[4] = {(uint32_t)id, (uint32_t)position, (uint32_t)stream, 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    philox4x32(out, counter, key);
    return (uint64_t)out[1] << 32 | out[0];
}

uint64_t noise_bits(uint64_t seed, int32_t position, int32_t id)
{
    return bits_at(seed, position, id, NOISE_CHOICE);
}

uint64_t noise_stream_bits(uint64_t seed, int32_t position, enum noise_stream stream)
{
    return bits_at(seed, position, 0, stream);
}

double noise_uniform(uint64_t bits)
{
    return (double)(bits >> 11) * 0x1p-53;
}

double noise_gumbel(uint64_t bits)
{
    double e = ((double)(bits >> 12) + 0.5) * 0x1p-52;
    return -log(-log1p(-e));
}

double noise_gumbel_bound(uint64_t bits)
{
    /* -log(1 - e) >= e, so G <= -log(e) <= (52 - floor(log2(r))) log 2 for r = bits >> 12 >= 1; r = 0
     * is e = 2^-53. 0.6931471806 is above log 2 by more than the rounding of noise_gumbel. */
    uint64_t r = bits >> 12;
    return (r ? __builtin_clzll(r) - 11 : 53) * 0.6931471806;
}

int64_t noise_seed(void)
{
    uint64_t s;
    if (getrandom(&s, sizeof s, GRND_NONBLOCK) != (ssize_t)sizeof s) {
        struct timespec t = {0};
        (void)clock_gettime(CLOCK_REALTIME, &t);
        s = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    }
    return (int64_t)(s >> 1);
}

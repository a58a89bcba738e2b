#include "sample/noise.h"

#include <sys/random.h>
#include <time.h>

#include "op/choice.h"

void philox4x32(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2])
{
    choice_philox(out, counter, key);
}

uint64_t noise_bits(uint64_t seed, int32_t position, int32_t id)
{
    return choice_bits(seed, position, id, NOISE_CHOICE);
}

uint64_t noise_stream_bits(uint64_t seed, int32_t position, enum noise_stream stream)
{
    return choice_bits(seed, position, 0, (int32_t)stream);
}

double noise_uniform(uint64_t bits)
{
    return (double)(bits >> 11) * 0x1p-53;
}

double noise_gumbel(uint64_t bits)
{
    return choice_gumbel(bits);
}

double noise_gumbel_bound(uint64_t bits)
{
    return choice_gumbel_bound(bits);
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

#include <immintrin.h>

#include "bench.h"

enum { CHAINS = 16 }; /* more than latency times throughput of either instruction */

float probe_dot_avx512bf16(int64_t n, double *ops)
{
    __m512 s[CHAINS];
    const __m512i one = _mm512_set1_epi16(0x3F80);
    for (int i = 0; i < CHAINS; i++)
        s[i] = _mm512_setzero_ps();
    for (int64_t k = 0; k < n; k++) {
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++)
            s[i] = _mm512_dpbf16_ps(s[i], (__m512bh)one, (__m512bh)one);
    }
    for (int i = 1; i < CHAINS; i++)
        s[0] = _mm512_add_ps(s[0], s[i]);
    *ops = (double)n * CHAINS * 64;
    return _mm512_cvtss_f32(s[0]);
}

float probe_fma_avx512bf16(int64_t n, double *ops)
{
    __m512 s[CHAINS];
    const __m512 one = _mm512_set1_ps(1);
    for (int i = 0; i < CHAINS; i++)
        s[i] = _mm512_setzero_ps();
    for (int64_t k = 0; k < n; k++) {
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++)
            s[i] = _mm512_fmadd_ps(s[i], one, one);
    }
    for (int i = 1; i < CHAINS; i++)
        s[0] = _mm512_add_ps(s[0], s[i]);
    *ops = (double)n * CHAINS * 32;
    return _mm512_cvtss_f32(s[0]);
}

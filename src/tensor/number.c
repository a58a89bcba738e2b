#include "tensor/number.h"

#include <math.h>

uint16_t f16_from_f32(float f)
{
    uint32_t u = f32_bits(f), sign = u >> 16 & 0x8000, a = u & 0x7FFFFFFF;
    if (a > 0x7F800000)
        return (uint16_t)(sign | 0x7E00 | (a >> 13 & 0x3FF));
    if (a >= 0x477FF000) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7C00);
    if (a < 0x38800000) { /* subnormal: count in units of 2^-24 */
        float units = f32_from_bits(a) * 0x1p24f;
        return (uint16_t)(sign | (uint32_t)lrintf(units));
    }
    a -= 112u << 23;
    return (uint16_t)(sign | (a + 0xFFF + (a >> 13 & 1)) >> 13);
}

#define V(c)                                                                                       \
    ((((c)&0x7F) == 0x7F)                                                                          \
         ? NAN                                                                                     \
         : ((c)&0x80 ? -1.f : 1.f) *                                                               \
               (((c) >> 3 & 15) ? (float)(8 + ((c)&7)) * (float)(1 << ((c) >> 3 & 15)) / 1024      \
                                : (float)((c)&7) / 512))
#define V4(c)  V(c), V((c) + 1), V((c) + 2), V((c) + 3)
#define V16(c) V4(c), V4((c) + 4), V4((c) + 8), V4((c) + 12)
#define V64(c) V16(c), V16((c) + 16), V16((c) + 32), V16((c) + 48)
const float e4m3_value[256] = {V64(0), V64(64), V64(128), V64(192)};

uint8_t e4m3_from_f32(float f)
{
    uint32_t u = f32_bits(f), sign = u >> 24 & 0x80, a = u & 0x7FFFFFFF;
    if (a > 0x7F800000)
        return (uint8_t)(sign | 0x7F);
    if (a >= 0x43E00000) /* 448 */
        return (uint8_t)(sign | 0x7E);
    if (a < 0x3C800000) { /* below 2^-6: units of 2^-9 */
        float units = f32_from_bits(a) * 0x1p9f;
        return (uint8_t)(sign | (uint32_t)lrintf(units));
    }
    a -= 120u << 23;
    return (uint8_t)(sign | (a + 0x7FFFF + (a >> 20 & 1)) >> 20);
}

uint8_t e2m1_from_f32(float f)
{
    float a = fabsf(f);
    uint8_t sign = signbit(f) ? 8 : 0;
    static const float upper[7] = {.25f, .75f, 1.25f, 1.75f, 2.5f, 3.5f, 5};
    uint8_t c = 0;
    /* A tie goes to the even code: an even code keeps its upper bound, an odd one leaves it. */
    while (c < 7 && (c % 2 == 0 ? a > upper[c] : a >= upper[c]))
        c++;
    return sign | c;
}

/* The small number formats, bit by bit. Sources: checkpoints.md section 0; OCP 8-bit floating point
 * specification (E4M3), OCP microscaling formats specification (E2M1). */
#ifndef LATHE_TENSOR_NUMBER_H
#define LATHE_TENSOR_NUMBER_H

#include <stdint.h>
#include <string.h>

static inline float f32_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float bf16_to_f32(uint16_t h)
{
    return f32_from_bits((uint32_t)h << 16);
}

/* Nearest, ties to even; NaN stays a (quiet) NaN. */
static inline uint16_t bf16_from_f32(float f)
{
    uint32_t u = f32_bits(f);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

static inline float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7FFF;
    if (rest >= 0x7C00) /* infinity, NaN */
        return f32_from_bits(sign | 0x7F800000 | (rest & 0x3FF) << 13);
    if (rest >= 0x400)
        return f32_from_bits(sign | ((rest << 13) + (112u << 23)));
    float f = (float)rest * 0x1p-24f; /* subnormal */
    return f32_from_bits(sign | f32_bits(f));
}

/* Nearest, ties to even; too large becomes infinity. */
uint16_t f16_from_f32(float f);

/* E4M3 "FN": bias 7, no infinity, 0x7F and 0xFF are NaN, largest 448, smallest 2^-9. */
static inline float e4m3_to_f32(uint8_t c)
{
    uint32_t sign = (uint32_t)(c & 0x80) << 24, rest = c & 0x7F;
    if (rest == 0x7F)
        return f32_from_bits(sign | 0x7FC00000);
    if (rest >= 8)
        return f32_from_bits(sign | ((rest << 20) + (120u << 23)));
    float f = (float)rest * 0x1p-9f;
    return f32_from_bits(sign | f32_bits(f));
}

/* The same as a table. */
extern const float e4m3_value[256];

/* Nearest, ties to even; clamps to +-448; NaN gives 0x7F with the sign. */
uint8_t e4m3_from_f32(float f);

/* E2M1: 0 .5 1 1.5 2 3 4 6 and the negatives; only the low four bits of c count. */
static inline float e2m1_to_f32(uint8_t c)
{
    static const float value[16] = {0,   .5f,  1,   1.5f,  2,  3,  4,  6,
                                    -0., -.5f, -1., -1.5f, -2, -3, -4, -6};
    return value[c & 15];
}

/* Nearest, ties to the even code; saturates at 6. */
uint8_t e2m1_from_f32(float f);

#endif

/* The order of a tiled matrix (struct weight, tiled): what linear_tiles.cu reads, and what others find a code by.
 *
 * A strip is 16 rows and takes the bytes that these rows take in the file. It is cut into units of 128 columns, of
 * 2048 (FP8) or 1024 (NVFP4) bytes of codes, and for NVFP4, in the plane of scales, 128 bytes. With lane = 4 g + q,
 * g = 0..7, q = 0..3, the lanes of a warp find in a unit, in 16-byte pieces side by side:
 *
 *   FP8     piece 2 h + p  of lane: row g + 8 h, word k = 0..3: columns 64 p + 32 (k / 2) + 8 q + 4 (k % 2) + 0..3
 *   NVFP4   piece h        of lane: row g + 8 h, word j = 0..3: columns 32 j + 8 q + 0..7 (some of their bits in
 *           the other piece's word j)
 *   scales  8 bytes at 2 g + q / 2: byte 4 h + j is that of row g + 8 h, columns 32 j + 16 (q / 2) + 0..15
 *
 * so that a lane's words meet eight neighbouring activations in one 16-byte load. Columns 2 i and 2 i + 1 of a word
 * are in its low and in its high half; within a half the bits lie where few operations make BF16 of them. */
#ifndef LATHE_OP_CUDA_TILES_CUH
#define LATHE_OP_CUDA_TILES_CUH

#include "op/cuda/decode.cuh"

enum { STRIP_ROWS = 16, UNIT_COLS = 128 };
/* Words from those of row g of an NVFP4 unit to those of row g + 8. */
enum { E2M1_LOWER = 32 * 4 };

/* ---- Words: four E4M3 codes, in bytes from the lowest ------------------------------------------------ */

/* Half of codes a and b: a's sign at 15, its other bits at 10..4; b's bits 6..4 at 14..12, its sign at 11, its low
 * four bits at 3..0. */
__host__ __device__ __forceinline__ uint32_t fp8_half(uint32_t a, uint32_t b)
{
    return (a & 0x80) << 8 | (a & 0x7F) << 4 | (b & 0x70) << 8 | (b & 0x80) << 4 | (b & 15);
}
__host__ __device__ __forceinline__ uint32_t fp8_arrange(uint32_t w)
{
    return fp8_half(w & 255, w >> 16 & 255) | fp8_half(w >> 8 & 255, w >> 24) << 16;
}
/* Code i of an arranged word. */
__host__ __device__ __forceinline__ uint32_t fp8_code(uint32_t w, int i)
{
    uint32_t h = w >> 16 * (i % 2);
    return i < 2 ? (h >> 8 & 0x80) | (h >> 4 & 0x7F) : (h >> 8 & 0x70) | (h >> 4 & 0x80) | (h & 15);
}

/* ---- Words: eight E2M1 codes of row g, and eight of row g + 8 below them, in two ---------------------- */

/* Code i of row g + 8 h becomes half i % 2 of pair i / 2 when its word is rotated left by a pair's own count, and there
 * its sign is at 15 and its magnitude at 8..6. Pairs 0, 1 and 2 of a row are in its word, and leave bits 4, 5, 13 and 14
 * of each half free. Both words' free bits, the second word's rotated right by 2 between the first's, are a third word,
 * of the pairs 3. Bit b of the code, 3 its sign, is then bit % 32 of word bit / 32. */
enum { E2M1_FREE = 0x60306030 };
__host__ __device__ __forceinline__ constexpr int e2m1_rotation(int h, int pair)
{
    return pair < 3 ? 6 * pair : h ? 10 : 4;
}
__host__ __device__ __forceinline__ constexpr int e2m1_bit(int h, int i, int b)
{
    int at = (16 * (i % 2) + (b == 3 ? 15 : 6 + b) + 32 - e2m1_rotation(h, i / 2)) % 32;
    if (i < 6)
        return 32 * h + at;
    return (uint32_t)E2M1_FREE >> at & 1 ? at : 32 + (at + 2) % 32;
}
/* Of words of eight codes each, in nibbles from the lowest. */
__host__ __device__ __forceinline__ void e2m1_arrange(const uint32_t w[2], uint32_t to[2])
{
    uint64_t v = 0;
#pragma unroll
    for (int k = 0; k < 64; k++)
        v |= (uint64_t)(w[k / 32] >> k % 32 & 1) << e2m1_bit(k / 32, k % 32 / 4, k % 4);
    to[0] = (uint32_t)v;
    to[1] = (uint32_t)(v >> 32);
}
/* Code i of row g + 8 h. */
__host__ __device__ __forceinline__ uint32_t e2m1_code(const uint32_t w[2], int h, int i)
{
    uint32_t code = 0;
    for (int b = 0; b < 4; b++) {
        int at = e2m1_bit(h, i, b);
        code |= (w[at / 32] >> at % 32 & 1) << b;
    }
    return code;
}
/* The bits of both words that hold codes of row g + 8 h. */
__host__ __device__ __forceinline__ void e2m1_bits(int h, uint32_t mask[2])
{
    mask[0] = mask[1] = 0;
    for (int k = 0; k < 32; k++) {
        int at = e2m1_bit(h, k / 4, k % 4);
        mask[at / 32] |= 1u << at % 32;
    }
}

/* ---- Scales: five bits of exponent and three of mantissa, the halves of the byte exchanged --------------- */

/* Of a positive E4M3 code, subnormal or not: with h the lower and l the upper half of the byte, 16 h + l = 8 e + m
 * stands for 2^(e - 21) (1 + m / 8). */
__host__ __device__ __forceinline__ uint32_t scale_arrange(uint32_t c)
{
    uint32_t v = (12 << 3) + (c >= 8   ? c + 16
                              : c >= 4 ? 16 + (c & 3) * 2
                              : c >= 2 ? 8 + (c & 1) * 4
                                       : 0);
    return (v >> 4) | (v & 15) << 4;
}
/* The F32 that an arranged byte stands for. */
__device__ __forceinline__ float scale_value(uint32_t b)
{
    return __uint_as_float((((b & 15) << 4 | b >> 4) << 20) + ((127 - 21) << 23));
}

/* ---- Places: bytes from the plane's beginning ---------------------------------------------------------- */

/* Of the word that holds an FP8 code, which is code col % 4 of it. */
__host__ __device__ __forceinline__ int64_t fp8_place(int64_t row, int64_t col, int64_t cols)
{
    int g = (int)(row % 8), h = (int)(row / 8 % 2), c = (int)(col % UNIT_COLS);
    int p = c / 64, q = c / 8 % 4, k = 2 * (c / 32 % 2) + c / 4 % 2;
    return row / STRIP_ROWS * STRIP_ROWS * cols + col / UNIT_COLS * (STRIP_ROWS * UNIT_COLS) +
           (((2 * h + p) * 32 + 4 * g + q) * 4 + k) * 4;
}
/* Of the word of a row's eight E2M1 codes, of which col's is code col % 8. */
__host__ __device__ __forceinline__ int64_t e2m1_place(int64_t row, int64_t col, int64_t cols)
{
    int g = (int)(row % 8), h = (int)(row / 8 % 2), c = (int)(col % UNIT_COLS);
    int q = c / 8 % 4, j = c / 32;
    return row / STRIP_ROWS * STRIP_ROWS * (cols / 2) +
           col / UNIT_COLS * (STRIP_ROWS * UNIT_COLS / 2) + ((h * 32 + 4 * g + q) * 4 + j) * 4;
}
/* Of the scale of columns 16 block and on. */
__host__ __device__ __forceinline__ int64_t nvfp4_scale_place(int64_t row, int64_t block,
                                                              int64_t cols)
{
    int g = (int)(row % 8), h = (int)(row / 8 % 2), b = (int)(block % 8);
    return row / STRIP_ROWS * STRIP_ROWS * (cols / 16) + block / 8 * UNIT_COLS +
           (2 * g + b % 2) * 8 + 4 * h + b / 2;
}

/* ---- To BF16 ---------------------------------------------------------------------------------------- */

/* Codes 0 and 1, and 2 and 3, of an arranged word, exactly. */
__device__ __forceinline__ void fp8_pairs(uint32_t w, uint32_t &p0, uint32_t &p1)
{
    const uint32_t up = 0x7B807B80u; /* 2^120: the exponents' biases differ by 120 */
    p0 = mul_bf16x2(w & 0x87F087F0u, up);
    p1 = mul_bf16x2(((w << 4) & 0x80F080F0u) | ((w >> 4) & 0x07000700u), up);
}

/* A pair at its place, 2^126 too small, times the scale s (twice). */
__device__ __forceinline__ uint32_t e2m1_pair(uint32_t rotated, uint32_t s)
{
    return mul_bf16x2(rotated & 0x81C081C0u, s);
}
/* Pairs 0 and 1 (a), 2 and 3 (b) of rows g and g + 8 in turn: with scales s0 and s1, what mma_bf16 takes. */
__device__ __forceinline__ void e2m1_pairs(uint32_t w0, uint32_t w1, uint32_t s0, uint32_t s1,
                                           uint32_t a[4], uint32_t b[4])
{
    uint32_t free; /* (w0 & mask) | (w1 rotated & ~mask) */
    asm("lop3.b32 %0, %1, %2, %3, 0xE4;"
        : "=r"(free)
        : "r"(w0), "r"(__funnelshift_r(w1, w1, 2)), "r"((uint32_t)E2M1_FREE));
    a[0] = e2m1_pair(w0, s0);
    a[1] = e2m1_pair(w1, s1);
    a[2] = e2m1_pair(w0 << 6, s0);
    a[3] = e2m1_pair(w1 << 6, s1);
    b[0] = e2m1_pair(__funnelshift_l(w0, w0, 12), s0);
    b[1] = e2m1_pair(__funnelshift_l(w1, w1, 12), s1);
    b[2] = e2m1_pair(free << 4, s0);
    b[3] = e2m1_pair(__funnelshift_l(free, free, 10), s1);
}

/* Four arranged scales, and the J-th of them, twice and times 2^118: with e2m1_pairs the product, exact in BF16, is 2^-8
 * too small. */
struct four_scales {
    uint32_t high, low; /* halves of the BF16 */
};
__device__ __forceinline__ four_scales scales_of(uint32_t bytes)
{
    return {(bytes & 0x0F0F0F0Fu) | 0x70707070u, bytes & 0xF0F0F0F0u};
}
__device__ __forceinline__ uint32_t scale_pair(const four_scales &s, const int j)
{
    return __byte_perm(s.low, s.high, 0x4040 | j * 0x1111);
}

#endif

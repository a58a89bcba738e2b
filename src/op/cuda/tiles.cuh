/* The order of a tiled matrix (struct weight, tiled): what linear_tiles.cu reads, and what others find a code by.
 *
 * A strip is 16 rows and takes the bytes that these rows take in the file. It is cut into units of 128 columns, of
 * 2048 (FP8) or 1024 (NVFP4) bytes of codes, and for NVFP4, in the plane of scales, 128 bytes. With lane = 4 g + q,
 * g = 0..7, q = 0..3, the lanes of a warp find in a unit, in 16-byte pieces side by side:
 *
 *   FP8     piece 2 h + p  of lane: row g + 8 h, word k = 0..3: columns 64 p + 32 (k / 2) + 8 q + 4 (k % 2) + 0..3
 *   NVFP4   piece h        of lane: row g + 8 h, word j = 0..3: columns 32 j + 8 q + 0..7
 *   scales  8 bytes at 2 g + q / 2: byte 4 h + j is that of row g + 8 h, columns 32 j + 16 (q / 2) + 0..15
 *
 * so that a lane's words meet eight neighbouring activations in one 16-byte load. Columns 2 i and 2 i + 1 of a word
 * are in its low and in its high half; within a half the bits lie where few operations make BF16 of them. */
#ifndef LATHE_OP_CUDA_TILES_CUH
#define LATHE_OP_CUDA_TILES_CUH

#include "op/cuda/decode.cuh"

enum { STRIP_ROWS = 16, UNIT_COLS = 128 };

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

/* ---- Words: eight E2M1 codes, in nibbles from the lowest ---------------------------------------------- */

/* Half of codes 0..3: their magnitudes at 2..0, 5..3, 8..6, 15..13, their signs at 9, 12, 10, 11. */
__host__ __device__ __forceinline__ uint32_t e2m1_half(uint32_t a, uint32_t b, uint32_t c,
                                                       uint32_t d)
{
    return (a & 7) | (b & 7) << 3 | (c & 7) << 6 | (d & 7) << 13 | (a >> 3) << 9 | (b >> 3) << 12 |
           (c >> 3) << 10 | (d >> 3) << 11;
}
__host__ __device__ __forceinline__ uint32_t e2m1_arrange(uint32_t w)
{
    return e2m1_half(w & 15, w >> 8 & 15, w >> 16 & 15, w >> 24 & 15) |
           e2m1_half(w >> 4 & 15, w >> 12 & 15, w >> 20 & 15, w >> 28) << 16;
}
__host__ __device__ __forceinline__ uint32_t e2m1_code(uint32_t w, int i)
{
    uint32_t h = w >> 16 * (i % 2);
    switch (i / 2) {
    case 0:
        return (h & 7) | (h >> 6 & 8);
    case 1:
        return (h >> 3 & 7) | (h >> 9 & 8);
    case 2:
        return (h >> 6 & 7) | (h >> 7 & 8);
    default:
        return (h >> 13 & 7) | (h >> 8 & 8);
    }
}

/* ---- Scales: five bits of exponent and three of mantissa ------------------------------------------------ */

/* Of a positive E4M3 code, subnormal or not: the byte 8 e + m stands for 2^(e - 9) (1 + m / 8). */
__host__ __device__ __forceinline__ uint32_t scale_arrange(uint32_t c)
{
    return c >= 8 ? c + 16 : c >= 4 ? 16 + (c & 3) * 2 : c >= 2 ? 8 + (c & 1) * 4 : 0;
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
/* Of the word that holds an E2M1 code, which is code col % 8 of it. */
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

/* Codes 2 i and 2 i + 1 of an arranged word, 2^126 too small, times the scale s (twice). */
template <int I> __device__ __forceinline__ uint32_t e2m1_pair(uint32_t w, uint32_t s)
{
    uint32_t b = I == 0   ? (w << 6) & 0x81C081C0u
                 : I == 1 ? (w << 3) & 0x81C081C0u
                 : I == 2 ? (w & 0x01C001C0u) | ((w << 5) & 0x80008000u)
                          : ((w >> 7) & 0x01C001C0u) | ((w << 4) & 0x80008000u);
    return mul_bf16x2(b, s);
}

/* Scale J of four, twice and times 2^118: with e2m1_pair the product, exact in BF16, is 2^-8 too small. */
__device__ __forceinline__ uint32_t scale_pair(uint32_t scales, const int j)
{
    return __byte_perm(scales, 0, 0x4040 | j << 8 | j) * 16 + 0x00010001u * ((127 + 118 - 9) << 7);
}

#endif

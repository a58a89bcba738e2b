/* Tiles of keys and values in shared memory and how tensor cores get them: what attention has to know of their
 * dtype. Products are exact in both:
 *
 *   BF16   as it is, times queries in BF16; weights in three parts of BF16, 24 bits
 *   E4M3   as F16, of which it is a part, times queries in F16, each query with a power of two that brings its
 *          largest number to 2^14 .. 2^15 (what is 2^29 times smaller loses bits); weights, times 2^15, in
 *          two parts of F16, 22 bits
 *
 * Rows are cut into pieces of 16 bytes, of which piece c lies at c ^ row % 8: see swizzled. Codes lie as in the
 * cache and become F16 in registers. The order of dims in a product then follows from that of bytes in a
 * register, and queries in F16 are stored so that it matches: of every 16 dims those with d % 4 < 2 first. */
#ifndef LATHE_OP_CUDA_KV_TILE_CUH
#define LATHE_OP_CUDA_KV_TILE_CUH

#include "op/cuda/cuda.cuh"
#include "op/cuda/mma.cuh"

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
__device__ __forceinline__ void ldmatrix(uint32_t r[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_trans(uint32_t r[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* Element of a swizzled matrix with rows of COLS, PIECE of them 16 bytes. Written so that what is constant in
 * row and piece can be part of an address. */
template <int COLS, int PIECE = 8> __device__ __forceinline__ int swizzled(int row, int piece)
{
    return row * COLS + (piece & ~7) * PIECE + ((piece ^ row) & 7) * PIECE;
}

__device__ __forceinline__ bool is_finite(bf16 x)
{
    return (__bfloat16_as_ushort(x) & 0x7f80) != 0x7f80;
}
__device__ __forceinline__ bool is_finite(e4m3 x)
{
    return (x.code & 0x7f) != 0x7f;
}

/* PIECE elements of any alignment. */
__device__ __forceinline__ uint4 loose_piece(const bf16 *p)
{
    const uint16_t *w = (const uint16_t *)p;
    return make_uint4(w[0] | (uint32_t)w[1] << 16, w[2] | (uint32_t)w[3] << 16,
                      w[4] | (uint32_t)w[5] << 16, w[6] | (uint32_t)w[7] << 16);
}
__device__ __forceinline__ uint4 loose_piece(const e4m3 *p)
{
    uint32_t w[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 16; i++)
        w[i / 4] |= (uint32_t)p[i].code << i % 4 * 8;
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* The two codes in the low half of c to F16, exactly. */
__device__ __forceinline__ uint32_t e4m3x2_to_f16x2(uint32_t c)
{
    uint32_t h;
#if __CUDA_ARCH__ >= 890
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(h) : "h"((uint16_t)c));
#else
    uint32_t w = __byte_perm(c, 0, 0x1404); /* in the upper half of a word each */
    uint32_t nan = ((w & 0x7f007f00u) + 0x01000100u) & 0x80008000u;
    const uint32_t up = 0x5c005c00u; /* 2^8: the exponents' biases differ by 8 */
    h = (w & 0x80008000u) | (w >> 1 & 0x3f803f80u);
    asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(h) : "r"(up));
    h |= nan - (nan >> 15);
#endif
    return h;
}

/* In what follows: left factors are 16 rows x 16, a[k] the k-th of four; right ones 16 x 8, b[2 k] and b[2 k + 1];
 * lane = 4 g + q as in mma.cuh.
 *
 *   keys_left      keys [row, row + 16) x dims 64 part ..
 *   values_left    dims [16 tile, 16 tile + 16), row g + 8 h being row_dim, x 64 keys
 *   keys_right     dims 64 part .. x keys [row, row + 8)
 *   values_right   64 keys x dims, column c of tile t being col_dim; TILES of them from tile on */
template <typename K> struct kv_tile;

template <> struct kv_tile<bf16> {
    typedef bf16 number; /* of queries and weights */
    enum { PIECE = 8, PARTS = 3, TILES = 1 };
    static constexpr bool has_factors = false;
    static constexpr float weight_up = 1, weight_down = 1;

    static __device__ __forceinline__ void mma(float d[4], const uint32_t a[4], uint32_t b0,
                                               uint32_t b1)
    {
        mma_bf16(d, a, b0, b1);
    }
    static __device__ __forceinline__ int row_dim(int tile, int g, int h)
    {
        return tile * 16 + g + h * 8;
    }
    static __device__ __forceinline__ int col_dim(int tile, int c)
    {
        return tile * 8 + c;
    }
    template <int HD>
    static __device__ __forceinline__ void keys_left(uint32_t a[4][4], const bf16 *k, int row,
                                                     int part, int lane)
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            ldmatrix(a[i], shared_address(
                               k + swizzled<HD>(row + (lane & 15), part * 8 + i * 2 + lane / 16)));
    }
    template <int HD>
    static __device__ __forceinline__ void values_left(uint32_t a[4][4], const bf16 *v, int tile,
                                                       int lane)
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            ldmatrix_trans(a[i], shared_address(v + swizzled<HD>(i * 16 + lane / 16 * 8 + lane % 8,
                                                                 tile * 2 + lane / 8 % 2)));
    }
    template <int HD>
    static __device__ __forceinline__ void keys_right(uint32_t b[8], const bf16 *k, int row,
                                                      int part, int lane)
    {
        ldmatrix(b, shared_address(k + swizzled<HD>(row + lane % 8, part * 8 + lane / 8)));
        ldmatrix(b + 4, shared_address(k + swizzled<HD>(row + lane % 8, part * 8 + 4 + lane / 8)));
    }
    template <int HD>
    static __device__ __forceinline__ void values_right(uint32_t b[TILES][8], const bf16 *v,
                                                        int tile, int lane)
    {
        ldmatrix_trans(b[0], shared_address(v + swizzled<HD>(lane, tile)));
        ldmatrix_trans(b[0] + 4, shared_address(v + swizzled<HD>(32 + lane, tile)));
    }
    /* The next part of a number: x rounded; what is lost remains. */
    static __device__ __forceinline__ bf16 take_part(float &x)
    {
        bf16 p = __float2bfloat16_rn(x);
        x = __fsub_rn(x, __bfloat162float(p));
        return p;
    }
    static __device__ __forceinline__ uint32_t take_parts(float &x, float &y)
    {
        __nv_bfloat162 p = __floats2bfloat162_rn(x, y);
        x = __fsub_rn(x, __low2float(p));
        y = __fsub_rn(y, __high2float(p));
        return *(const uint32_t *)&p;
    }
    /* Either number of a word. */
    static __device__ __forceinline__ float part_at(uint32_t w, int i)
    {
        return __uint_as_float(i ? w & 0xffff0000u : w << 16);
    }
};

template <> struct kv_tile<e4m3> {
    typedef __half number;
    enum { PIECE = 16, PARTS = 2, TILES = 2 };
    static constexpr bool has_factors = true;
    static constexpr float weight_up = 0x1p15f, weight_down = 0x1p-15f;

    static __device__ __forceinline__ void mma(float d[4], const uint32_t a[4], uint32_t b0,
                                               uint32_t b1)
    {
        mma_f16(d, a, b0, b1);
    }
    static __device__ __forceinline__ int row_dim(int tile, int g, int h)
    {
        return tile * 16 + g * 2 + h;
    }
    static __device__ __forceinline__ int col_dim(int tile, int c)
    {
        return tile / 2 * 16 + c * 2 + tile % 2;
    }
    template <int HD>
    static __device__ __forceinline__ void keys_left(uint32_t a[4][4], const e4m3 *k, int row,
                                                     int part, int lane)
    {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            uint32_t r[4]; /* rows g, g + 8 of 16 dims, then of the next 16: dims 4q .. 4q + 3 */
            ldmatrix(r, shared_address(
                            k + swizzled<HD, PIECE>(row + (lane & 15), part * 4 + i + lane / 16)));
#pragma unroll
            for (int n = 0; n < 4; n++) {
                a[i + n / 2][n % 2] = e4m3x2_to_f16x2(r[n]);
                a[i + n / 2][n % 2 + 2] = e4m3x2_to_f16x2(r[n] >> 16);
            }
        }
    }
    template <int HD>
    static __device__ __forceinline__ void values_left(uint32_t a[4][4], const e4m3 *v, int tile,
                                                       int lane)
    {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            uint32_t r[4]; /* of 8 keys each: dims 2g, 2g + 1 of key 2q, then of key 2q + 1 */
            ldmatrix_trans(r, shared_address(v + swizzled<HD, PIECE>(i * 16 + lane, tile)));
#pragma unroll
            for (int n = 0; n < 4; n++) {
                uint32_t c = __byte_perm(r[n], 0, 0x3120);
                a[i + n / 2][n % 2 * 2] = e4m3x2_to_f16x2(c);
                a[i + n / 2][n % 2 * 2 + 1] = e4m3x2_to_f16x2(c >> 16);
            }
        }
    }
    template <int HD>
    static __device__ __forceinline__ void keys_right(uint32_t b[8], const e4m3 *k, int row,
                                                      int part, int lane)
    {
        uint32_t r[4];
        ldmatrix(r, shared_address(k + swizzled<HD, PIECE>(row + lane % 8, part * 4 + lane / 8)));
#pragma unroll
        for (int n = 0; n < 4; n++) {
            b[n * 2] = e4m3x2_to_f16x2(r[n]);
            b[n * 2 + 1] = e4m3x2_to_f16x2(r[n] >> 16);
        }
    }
    template <int HD>
    static __device__ __forceinline__ void values_right(uint32_t b[TILES][8], const e4m3 *v,
                                                        int tile, int lane)
    {
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            uint32_t r[4];
            ldmatrix_trans(r, shared_address(v + swizzled<HD, PIECE>(i * 8 + lane, tile / 2)));
#pragma unroll
            for (int n = 0; n < 4; n++) {
                uint32_t c = __byte_perm(r[n], 0, 0x3120);
                b[0][i + n] = e4m3x2_to_f16x2(c);
                b[1][i + n] = e4m3x2_to_f16x2(c >> 16);
            }
        }
    }
    static __device__ __forceinline__ __half take_part(float &x)
    {
        __half p = __float2half_rn(x);
        x = __fsub_rn(x, __half2float(p));
        return p;
    }
    static __device__ __forceinline__ uint32_t take_parts(float &x, float &y)
    {
        __half2 p = __floats2half2_rn(x, y);
        x = __fsub_rn(x, __low2float(p));
        y = __fsub_rn(y, __high2float(p));
        return *(const uint32_t *)&p;
    }
    static __device__ __forceinline__ float part_at(uint32_t w, int i)
    {
        return __half2float(__ushort_as_half((unsigned short)(i ? w >> 16 : w)));
    }
};

#endif

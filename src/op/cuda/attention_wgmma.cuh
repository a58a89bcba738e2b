/* Attention of many rows of a sequence by a Hopper multiprocessor, head_dim 256: HOPPER_QUERIES queries (rows and the
 * heads of one kv head) against tiles of 64 keys at multiples of 64 positions, ascending, with a running maximum.
 * A tile of which a query sees nothing leaves it as it was, bit for bit.
 *
 * One warpgroup brings keys and values to shared memory as panels of 64 dims (wgmma.cuh), E4M3 as F16, through a ring
 * of four buffers: keys, values, keys, values. Two warpgroups have 64 queries each. Of a thread's registers 128 are
 * sums and 32 the products of a tile: its scores, then 64 dims of values at a time, which start at zero and are added
 * to the sums in F32 (tensor cores cut off what they add to a larger sum).
 *
 * Weights are rounded: to two parts of BF16 for values in BF16, 2^-18; to F16 for values in E4M3, 2^-11, where a
 * value has 2^-4. */
#ifndef LATHE_OP_CUDA_ATTENTION_WGMMA_CUH
#define LATHE_OP_CUDA_ATTENTION_WGMMA_CUH

#include "op/cuda/attention.cuh"
#include "op/cuda/wgmma.cuh"

enum {
    HOPPER_QUERIES = 128,
    HOPPER_THREADS = 384,
    HOPPER_DIMS = 256,
    HOPPER_TILE = 64,
    HOPPER_BUFFERS = 4,
    /* Registers of a thread that computes, and of one that loads */
    HOPPER_REGISTERS = 216,
    HOPPER_LOAD_REGISTERS = 504 - 2 * HOPPER_REGISTERS,
    CODES_AT_ONCE = 4,                       /* pieces of a thread */
    PANEL = HOPPER_TILE * 128,               /* bytes */
    PANELS_BYTES = HOPPER_DIMS / 64 * PANEL, /* of 64 queries, keys or values */
    /* Shared memory, from a multiple of 1024 on: queries, the ring, two tiles of codes; then barriers, and
     * bytes that say which keys of a buffer have bad values */
    HOPPER_Q = 0,
    HOPPER_KV = HOPPER_Q + 2 * PANELS_BYTES,
    HOPPER_CODES = HOPPER_KV + HOPPER_BUFFERS * PANELS_BYTES,
    /* Hardware barriers: of each warpgroup that computes, and of both */
    BARRIER_TURN = 1,
    BARRIER_QUERIES = 3,
    BARRIER_SUMS = 5,
};

/* TURNS: the two warpgroups take turns at the tensor cores, one's softmax beside the other's products. */
template <typename K> struct hopper_tile;
template <> struct hopper_tile<bf16> {
    typedef bf16 number;
    enum { PARTS = 2, END = HOPPER_CODES };
    static constexpr bool TURNS = false;
    static constexpr float weight_log2 = 0; /* weights are times 2^ that */
};
template <> struct hopper_tile<e4m3> {
    typedef __half number;
    enum { PARTS = 1, END = HOPPER_CODES + 2 * HOPPER_TILE * HOPPER_DIMS };
    static constexpr bool TURNS = true;
    static constexpr float weight_log2 = 15;
};
/* Weights of a thread for a tile: factors of products as mma.cuh has them. */
template <typename K> struct hopper_weights {
    uint32_t part[hopper_tile<K>::PARTS][4][4];
};
template <typename K> static inline size_t hopper_shared(void)
{
    return 1024 + hopper_tile<K>::END + 2 * HOPPER_BUFFERS * 8 + HOPPER_BUFFERS * HOPPER_TILE;
}

#if HAS_WGMMA

__device__ __forceinline__ float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* ---- Loading ---------------------------------------------------------------------------------------- */

__device__ __forceinline__ void shared_load(uint32_t w[4], uint32_t from)
{
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(from)
                 : "memory");
}
__device__ __forceinline__ void shared_store(uint32_t to, uint32_t x, uint32_t y, uint32_t z,
                                             uint32_t w)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x), "r"(y), "r"(z),
                 "r"(w)
                 : "memory");
}

/* Two of four codes, exactly; without the shift that e4m3x2_to_f16x2 would need for the upper ones. */
__device__ __forceinline__ uint32_t low_to_f16x2(uint32_t w)
{
    uint32_t h;
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %1; cvt.rn.f16x2.e4m3x2 %0, a;}" : "=r"(h) : "r"(w));
    return h;
}
__device__ __forceinline__ uint32_t high_to_f16x2(uint32_t w)
{
    uint32_t h;
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %1; cvt.rn.f16x2.e4m3x2 %0, b;}" : "=r"(h) : "r"(w));
    return h;
}

/* Numbers of a piece that are not finite become zero; were there any? */
__device__ __forceinline__ bool clear_bad(uint32_t w[4], bf16)
{
    bool bad = false;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t mask = i % 2 ? 0xffff0000u : 0xffffu, top = 0x7f807f80u & mask;
        if ((w[i / 2] & top) == top) {
            w[i / 2] &= ~mask;
            bad = true;
        }
    }
    return bad;
}
__device__ __forceinline__ bool clear_bad(uint32_t w[4], e4m3)
{
    bool bad = false;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        uint32_t mask = 0xffu << i % 4 * 8, top = 0x7f7f7f7fu & mask;
        if ((w[i / 4] & top) == top) {
            w[i / 4] &= ~mask;
            bad = true;
        }
    }
    return bad;
}

/* Keys and values of a slot and a kv head in pages of a power of two positions, 64 or more. */
struct hopper_pages {
    const unsigned char *keys, *values; /* of page 0 */
    const int32_t *table;
    int64_t k_stride, v_stride; /* bytes from page to page */
    int32_t step, shift; /* bytes from position to position; logarithm of positions of a page */
};

/* N pieces of 16 bytes, STEP positions apart, the first at p, of position `first`; zeros from `end` on. Piece i goes
 * to(i). */
template <int N, int STEP, typename TO>
__device__ __forceinline__ void hopper_copy(const TO &to, const unsigned char *p, int32_t step,
                                            int32_t first, int32_t end)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to(i)),
                     "l"(p + i * STEP * step), "r"(first + i * STEP < end ? 16 : 0)
                     : "memory");
}

/* What thread t of 128 does of bringing keys and values below `end`. Unit u, which goes to buffer u % HOPPER_BUFFERS, is
 * the keys of tile u / 2, or, where u is odd, its values. full and empty: the barriers of buffer 0, arrived at by a
 * lane of each warp that writes or has read. AGAIN: values that are not finite become zero, and is_bad says where. */
template <typename K, bool AGAIN>
__device__ __forceinline__ void hopper_load(uint32_t shared, uint32_t full, uint32_t empty,
                                            uint8_t *is_bad, int t,
                                            const struct hopper_pages &pages, int32_t end)
{
    int32_t units = (end + HOPPER_TILE - 1) / HOPPER_TILE * 2;
    int32_t page = pages.table[0], mask = (1 << pages.shift) - 1;
    int32_t next_page = pages.table[min((int)HOPPER_TILE, end - 1) >> pages.shift];
    if constexpr (sizeof(K) == 2) {
        int piece = t % 32, top = t / 32; /* and top + 4 i */
        uint32_t at[2];                   /* rows alternate between two places */
#pragma unroll
        for (int i = 0; i < 2; i++)
            at[i] = shared + HOPPER_KV + piece / 8 * PANEL + panel_at(top + i * 4, piece % 8);
        const unsigned char *keys = pages.keys + top * pages.step + piece * 16;
        const unsigned char *values = pages.values + top * pages.step + piece * 16;
#pragma unroll 1
        for (int32_t u = 0; u <= units; u++) {
            if (u < units) {
                int buffer = u % HOPPER_BUFFERS;
                int32_t first = u / 2 * HOPPER_TILE;
                const unsigned char *p =
                    (u & 1 ? values + page * pages.v_stride : keys + page * pages.k_stride) +
                    (int64_t)(first & mask) * pages.step;
                if (u >= HOPPER_BUFFERS)
                    barrier_wait(empty + buffer * 8, (u / HOPPER_BUFFERS - 1) & 1);
                auto to = [&](int i) {
                    return (i % 2 ? at[1] - 512 : at[0]) + buffer * PANELS_BYTES + i * 512;
                };
                hopper_copy<16, 4>(to, p, pages.step, first + top, end);
                if (u & 1) {
                    page = next_page;
                    next_page = pages.table[min(first + 2 * HOPPER_TILE, end - 1) >> pages.shift];
                }
            }
            copies_commit();
            if (u == 0)
                continue;
            copies_wait<1>();
            if (AGAIN && !(u & 1)) {
                int buffer = (u - 1) % HOPPER_BUFFERS;
#pragma unroll 1
                for (int i = 0; i < 16; i++) {
                    uint32_t w[4],
                        at_i = (i % 2 ? at[1] - 512 : at[0]) + buffer * PANELS_BYTES + i * 512;
                    shared_load(w, at_i);
                    bool bad = clear_bad(w, K());
                    if (bad)
                        shared_store(at_i, w[0], w[1], w[2], w[3]);
                    bad = __any_sync(0xffffffffu, bad);
                    is_bad[buffer * HOPPER_TILE + top + i * 4] = bad;
                }
            }
            wgmma_publish();
            __syncwarp();
            if (t % 32 == 0)
                barrier_arrive(full + (u - 1) % HOPPER_BUFFERS * 8);
        }
    } else {
        /* Four pieces of one row and four of the next: their F16 lie in different banks. */
        int piece = (t / 8 % 4) * 4 + t % 4, top = t / 32 * 2 + t / 4 % 2; /* and top + 8 i */
        uint32_t codes = shared + HOPPER_CODES + t * 16;
        uint32_t to[2];
#pragma unroll
        for (int h = 0; h < 2; h++)
            to[h] = shared + HOPPER_KV + piece / 4 * PANEL + panel_at(top, piece % 4 * 2 + h);
        const unsigned char *keys = pages.keys + top * pages.step + piece * 16;
        const unsigned char *values = pages.values + top * pages.step + piece * 16;
#pragma unroll 1
        for (int32_t u = -2; u < units; u++) {
            uint32_t code = codes + (u & 1) * (HOPPER_TILE * HOPPER_DIMS);
            if (u >= 0) {
                int buffer = u % HOPPER_BUFFERS;
                copies_wait<1>();
                if (u >= HOPPER_BUFFERS)
                    barrier_wait(empty + buffer * 8, (u / HOPPER_BUFFERS - 1) & 1);
#pragma unroll
                for (int i = 0; i < 8; i += CODES_AT_ONCE) {
                    uint32_t w[CODES_AT_ONCE][4];
#pragma unroll
                    for (int k = 0; k < CODES_AT_ONCE; k++)
                        shared_load(w[k], code + (i + k) * 2048);
                    if (AGAIN && (u & 1))
#pragma unroll
                        for (int k = 0; k < CODES_AT_ONCE; k++) {
                            uint32_t bad = __ballot_sync(0xffffffffu, clear_bad(w[k], K()));
                            bad &= t & 4 ? 0xf0f0f0f0u : 0x0f0f0f0fu;
                            is_bad[buffer * HOPPER_TILE + top + (i + k) * 8] = bad != 0;
                        }
#pragma unroll
                    for (int k = 0; k < CODES_AT_ONCE; k++)
#pragma unroll
                        for (int h = 0; h < 2; h++)
                            shared_store(to[h] + buffer * PANELS_BYTES + (i + k) * 1024,
                                         low_to_f16x2(w[k][h * 2]), high_to_f16x2(w[k][h * 2]),
                                         low_to_f16x2(w[k][h * 2 + 1]),
                                         high_to_f16x2(w[k][h * 2 + 1]));
                }
                wgmma_publish();
                __syncwarp();
                if (t % 32 == 0)
                    barrier_arrive(full + buffer * 8);
            }
            int32_t next = u + 2, first = next / 2 * HOPPER_TILE;
            if (next < units) {
                const unsigned char *p =
                    (next & 1 ? values + page * pages.v_stride : keys + page * pages.k_stride) +
                    (int64_t)(first & mask) * pages.step;
                auto at = [&](int i) { return code + i * 2048; };
                hopper_copy<8, 8>(at, p, pages.step, first + top, end);
                if (next & 1) {
                    page = next_page;
                    next_page = pages.table[min(first + 2 * HOPPER_TILE, end - 1) >> pages.shift];
                }
            }
            copies_commit();
        }
    }
    copies_wait<0>();
}

/* Queries first .. first + 63 of the n that the rows from q on have, as panels; zeros from n on, where nothing is read.
 * factor[h]: what takes the scores of this thread's query t / 32 * 16 + t % 32 / 4 + 8 h to log2 of weights. t of 128. */
template <typename K>
__device__ __forceinline__ void hopper_queries(uint32_t to, float factor[2], int t, const bf16 *q,
                                               int64_t stride, int first, int n, int group,
                                               bool wide, float scale)
{
    int lane = t % 32, warp = t / 32;
    factor[0] = factor[1] = scale;
    for (int i = 0; i < 16; i++) { /* a warp its own queries, a lane eight dims */
        int at = warp * 16 + i, query = min(first + at, n - 1);
        const bf16 *p = q + query / group * stride + query % group * HOPPER_DIMS + lane * 8;
        uint4 piece = wide ? *(const uint4 *)p : loose_piece(p);
        if (first + at >= n)
            piece = make_uint4(0, 0, 0, 0);
        uint32_t w[4] = {piece.x, piece.y, piece.z, piece.w};
        if constexpr (kv_tile<K>::has_factors) {
            float x[8], top = 0;
#pragma unroll
            for (int k = 0; k < 8; k++) {
                x[k] = __uint_as_float(k % 2 ? w[k / 2] & 0xffff0000u : w[k / 2] << 16);
                top = fmaxf(top, fabsf(x[k]));
            }
            int e = min(141 - (int)(__float_as_uint(warp_max(top)) >> 23), 100);
            float up = __uint_as_float((uint32_t)(127 + e) << 23);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                __half2 h = __floats2half2_rn(__fmul_rn(x[k * 2], up), __fmul_rn(x[k * 2 + 1], up));
                w[k] = *(const uint32_t *)&h;
            }
            float down = __fmul_rn(scale, __uint_as_float((uint32_t)(127 - e) << 23));
            factor[0] = i == lane / 4 ? down : factor[0];
            factor[1] = i == lane / 4 + 8 ? down : factor[1];
        }
        shared_store(to + lane / 8 * PANEL + panel_at(at, lane % 8), w[0], w[1], w[2], w[3]);
    }
}

/* ---- Sums -------------------------------------------------------------------------------------------- */

/* Scores s of a tile become weights p; m, the maximum so far of log2 of weights, and l, the sum, move on; f is by what
 * sums so far are to be multiplied. whole: every query sees every key of this tile; else sees[h] is how many of them
 * query h does. */
template <typename K>
__device__ __forceinline__ void
hopper_softmax(float (&s)[32], struct hopper_weights<K> &p, float (&m)[2], float (&l)[2],
               float (&f)[2], const float (&factor)[2], bool whole, const int32_t (&sees)[2], int c)
{
    typedef hopper_tile<K> tile;
    if (!whole)
#pragma unroll
        for (int i = 0; i < 32; i++)
            if (i / 4 * 8 + c + i % 2 >= sees[i / 2 % 2])
                s[i] = -INFINITY;
    float off[2], by[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float x = s[h * 2];
#pragma unroll
        for (int j = 0; j < 8; j++)
            x = fmaxf(x, fmaxf(s[j * 4 + h * 2], s[j * 4 + h * 2 + 1]));
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
        float top = fmaxf(m[h], __fmul_rn(x, factor[h]));
        float base = top == -INFINITY ? 0.0f : top;
        f[h] = exp2_approx(__fsub_rn(m[h], base));
        m[h] = top;
        by[h] = factor[h];
        off[h] = __fsub_rn(tile::weight_log2, base);
        if (fabsf(base) > 64) { /* what off is rounded by would be a large part of a weight */
            by[h] = 1;
            off[h] = tile::weight_log2;
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &y = s[j * 4 + h * 2 + e];
                    y = __fsub_rn(__fmul_rn(y, factor[h]), base);
                }
        }
    }
    float sum[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float x = exp2_approx(fmaf(s[j * 4 + h * 2], by[h], off[h]));
            float y = exp2_approx(fmaf(s[j * 4 + h * 2 + 1], by[h], off[h]));
            sum[h] = __fadd_rn(sum[h], __fadd_rn(x, y));
#pragma unroll
            for (int i = 0; i < tile::PARTS; i++)
                p.part[i][j / 2][j % 2 * 2 + h] = kv_tile<K>::take_parts(x, y);
        }
#pragma unroll
    for (int h = 0; h < 2; h++)
        l[h] = fmaf(l[h], f[h], sum[h]);
}

/* Adds what clear_bad has taken away: the values of a tile from s0 on that are not finite, times their weights, to the
 * sums of queries that see them. */
template <typename K>
__device__ __forceinline__ void
hopper_bad_values(float (&o)[4][32], const struct hopper_weights<K> &p, const uint8_t *is_bad,
                  const struct hopper_pages &pages, int32_t s0, const int32_t (&hi)[2], int lane)
{
#pragma unroll 1
    for (int row = 0; row < HOPPER_TILE; row++) {
        if (!is_bad[row])
            continue;
        int32_t s = s0 + row;
        const K *v = (const K *)(pages.values + pages.table[s >> pages.shift] * pages.v_stride +
                                 (int64_t)(s & ((1 << pages.shift) - 1)) * pages.step);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t w = 0;
#pragma unroll
            for (int k = 0; k < 8; k++) /* no index that is not constant into p */
                w |= p.part[0][k / 2][k % 2 * 2 + h] & (0 - (uint32_t)(k == row / 8));
            w = __shfl_sync(0xffffffffu, w, (lane & ~3) | (row % 8 / 2));
            float x = kv_tile<K>::part_at(w, row % 2);
            if (s < hi[h])
#pragma unroll
                for (int n = 0; n < 4; n++)
#pragma unroll
                    for (int j = 0; j < 8; j++)
#pragma unroll
                        for (int e = 0; e < 2; e++) {
                            K y = v[n * 64 + j * 8 + lane % 4 * 2 + e];
                            if (!is_finite(y))
                                o[n][j * 4 + h * 2 + e] =
                                    fmaf(x, to_float(y), o[n][j * 4 + h * 2 + e]);
                        }
        }
    }
}

/* The sums o and l of a thread's two queries, over the keys that reach the ring; of = 0 or 1, the warpgroup, and t of its
 * 128 threads. hi[h]: query h sees positions below; all_hi: what all queries of the warpgroup see; end: what any of the
 * block does. queries and kv: shared memory; full, empty, is_bad and AGAIN as in hopper_load. Every thread of the
 * warpgroup gets here and leaves together. */
template <typename K, bool AGAIN>
__device__ __forceinline__ void
hopper_sums(uint32_t queries, uint32_t kv, uint32_t full, uint32_t empty, int of, int t,
            float (&o)[4][32], float (&l)[2], const float (&factor)[2], const int32_t (&hi)[2],
            int32_t all_hi, int32_t end, const uint8_t *is_bad, const struct hopper_pages &pages)
{
    typedef hopper_tile<K> tile;
    typedef typename tile::number number;
    enum { PANEL_STEP = PANEL / 16 }; /* of a descriptor */
    float x[32], m[2] = {-INFINITY, -INFINITY}, f[2];
    struct hopper_weights<K> p;
    int32_t tiles = (end + HOPPER_TILE - 1) / HOPPER_TILE;
    uint32_t my_q = panel_descriptor(queries), ring = panel_descriptor(kv);
    l[0] = l[1] = 0;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 32; i++)
            o[n][i] = 0;
    if (tile::TURNS && of == 1)
        named_arrive(BARRIER_TURN, 256);
    uint32_t buffer = 0, parity = 0; /* of the next unit */
    auto arrived = [&] {
        barrier_wait(full + buffer * 8, parity);
        return uniform(ring + buffer * (PANELS_BYTES / 16));
    };
    auto done = [&] {
        if (t % 32 == 0)
            barrier_arrive(empty + buffer * 8);
    };
    auto next = [&] {
        buffer = (buffer + 1) % HOPPER_BUFFERS;
        parity ^= buffer == 0;
    };
    auto my_turn = [&] {
        if (tile::TURNS)
            named_sync(BARRIER_TURN + of, 256);
    };
    auto your_turn = [&] {
        if (tile::TURNS)
            named_arrive(BARRIER_TURN + 1 - of, 256);
    };
    auto add_values = [&](int32_t j) {
        uint32_t v = arrived();
#pragma unroll
        for (int n = 0; n < 4; n++) {
            wgmma_fence();
#pragma unroll
            for (int i = tile::PARTS - 1; i >= 0; i--) /* the lowest part first */
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    if (i == tile::PARTS - 1 && k == 0)
                        wgmma_columns<false>(x, p.part[i][k], v + n * PANEL_STEP, number());
                    else
                        wgmma_columns<true>(x, p.part[i][k], v + n * PANEL_STEP + k * 128,
                                            number());
                }
            wgmma_commit();
            wgmma_wait<0>(x);
            if (!AGAIN && n == 3)
                done();
#pragma unroll
            for (int i = 0; i < 32; i++)
                o[n][i] = fmaf(o[n][i], f[i / 2 % 2], x[i]);
            wgmma_done(o[n]);
        }
#pragma unroll
        for (int i = 0; i < tile::PARTS; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                wgmma_done(p.part[i][k]);
        if (AGAIN) {
            hopper_bad_values<K>(o, p, is_bad + buffer * HOPPER_TILE, pages, j * HOPPER_TILE, hi,
                                 t % 32);
            done();
        }
        next();
    };
    auto scores = [&] {
        uint32_t key = arrived(), q = uniform(my_q);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 16; k++) {
            uint32_t at = k / 4 * PANEL_STEP + k % 4 * 2;
            if (k == 0)
                wgmma_rows<false>(x, q + at, key + at, number());
            else
                wgmma_rows<true>(x, q + at, key + at, number());
        }
        wgmma_commit();
        your_turn();
        wgmma_wait<0>(x);
        done();
        next();
    };
#pragma unroll 1
    for (int32_t j = 0; j <= tiles; j++) {
        my_turn();
        if (j > 0)
            add_values(j - 1);
        if (j == tiles) {
            if (of == 0) /* the last turn is the other's */
                your_turn();
            break;
        }
        scores();
        int32_t s0 = j * HOPPER_TILE, sees[2] = {hi[0] - s0, hi[1] - s0};
        hopper_softmax<K>(x, p, m, l, f, factor, s0 + HOPPER_TILE <= all_hi, sees, t % 4 * 2);
    }
}

#endif
#endif

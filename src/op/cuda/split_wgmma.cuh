/* The sums of few queries over one split of their keys by a Hopper warpgroup, head_dim 256: what split_mma does, with powers
 * of 2 for weights.
 *
 * Keys, and values turned round, are left factors of 64 rows and go from shared memory to registers, where E4M3 becomes
 * F16; queries and weights are right ones, panels of shared memory. So each key and value is read and converted once for
 * all queries of the block, and the sums of one query do not depend on how many there are.
 *
 * A query's weights are 2^(score - base), its base a whole number: the first tile's maximum, and raised only where a score
 * is SPLIT_SLACK above it, so that most tiles need no maxima and change no sums but by adding. */
#ifndef LATHE_OP_CUDA_SPLIT_WGMMA_CUH
#define LATHE_OP_CUDA_SPLIT_WGMMA_CUH

#include "op/cuda/attention_wgmma.cuh"

enum {
    PANELS_DIMS = 256,
    SPLIT_SLACK = 6,
};

/* Shared memory of a block, from a multiple of 1024 on. Tiles of keys and values lie as in split_shared, as many as
 * leave room for two blocks. */
template <int NT, typename K> struct split_panels {
    typedef typename kv_tile<K>::number number;
    enum {
        TILES = 2 / sizeof(K),
        WEIGHT_LOG2 =
            sizeof(number) == sizeof(K) ? 0 : 15 - SPLIT_SLACK, /* weights are times 2^ that */
    };
    number q[PANELS_DIMS / 64][NT * 8 * 64];
    number p[kv_tile<K>::PARTS][NT * 8 * SPLIT_TILE]; /* weights [query, key] in parts */
    K k[TILES][SPLIT_TILE * PANELS_DIMS], v[TILES][SPLIT_TILE * PANELS_DIMS];
    /* Of a query: what its scores are multiplied by, the largest that need no other base, what is added to them, the
     * base, and what sums are multiplied by when it is raised */
    float by[NT * 8], limit[NT * 8], off[NT * 8], base[NT * 8], change[NT * 8];
    float top[4][NT * 8];       /* by warp; in the end sums of weights */
    int32_t hi[NT * 8];         /* a query sees positions below */
    int32_t is_bad[SPLIT_TILE]; /* a value at this key is not finite */
};

#if HAS_WGMMA

/* Keys or values of a slot and a kv head as this thread copies them: `from` is its place in page 0. */
struct split_plane {
    const unsigned char *from;
    int64_t stride; /* bytes from page to page */
};

/* Both, in pages of a power of two positions, SPLIT_TILE or more. */
template <typename K> struct split_pages {
    enum { PIECES = PANELS_DIMS / kv_tile<K>::PIECE, ROWS = SPLIT_THREADS / PIECES };
    struct split_plane k, v;
    const int32_t *table;
    int32_t step, shift; /* bytes from position to position; logarithm of positions of a page */

    /* Of a thread's place from the block's, in bytes. */
    static __device__ __forceinline__ int64_t place(int32_t step)
    {
        return (int64_t)(threadIdx.x / PIECES) * step + threadIdx.x % PIECES * 16;
    }
    __device__ __forceinline__ int32_t page(int32_t s) const
    {
        return table[s >> shift];
    }
    __device__ __forceinline__ int64_t in_page(int32_t s) const
    {
        return (int64_t)(s & ((1 << shift) - 1)) * step;
    }
    __device__ __forceinline__ const K *value(int32_t s) const
    {
        return (const K *)(v.from - place(step) + page(s) * v.stride + in_page(s));
    }
    /* A tile at position s of this page, to `to`; zeros from `end` on. */
    __device__ __forceinline__ void fetch(K *to, const struct split_plane &plane, int32_t page,
                                          int32_t s, int32_t end) const
    {
        const unsigned char *p = plane.from + page * plane.stride + in_page(s);
        int top = threadIdx.x / PIECES;
        uint32_t at[2]; /* rows alternate between two places, or have one */
#pragma unroll
        for (int i = 0; i < 2; i++)
            at[i] = shared_address(to + swizzled<PANELS_DIMS, kv_tile<K>::PIECE>(
                                            top + i * ROWS, threadIdx.x % PIECES));
#pragma unroll
        for (int i = 0; i < SPLIT_TILE / ROWS; i++)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                             at[i % 2] + (uint32_t)(i / 2 * 2 * ROWS * PANELS_DIMS * sizeof(K))),
                         "l"(p + i * ROWS * step), "r"(s + top + i * ROWS < end ? 16 : 0)
                         : "memory");
    }
};

/* n queries of the rows from q on of `group` heads each to panels, zeros behind. They arrive with the next group of
 * copies that is committed. by_group: 2^16 / group, rounded up. */
template <int NT, typename K>
__device__ __forceinline__ void fetch_queries(struct split_panels<NT, K> *sh, const bf16 *q,
                                              int64_t stride, int n, int group, uint32_t by_group)
{
    int piece = threadIdx.x % 32;
    bf16 *to = (bf16 *)sh->q[piece / 8];
#pragma unroll 4
    for (int at = threadIdx.x / 32; at < NT * 8; at += SPLIT_THREADS / 32) {
        int row = at * by_group >> 16, head = at - row * group;
        const bf16 *p = q + (at < n ? row * stride + head * PANELS_DIMS : 0) + piece * 8;
        copy_async(to + swizzled<64>(at, piece % 8), p, at < n);
    }
}

/* Makes of them, which are there, what kv_tile wants, and begins all else that is of a query. Eight lanes a query, each two
 * runs of 16 dims. */
template <int NT, typename K>
__device__ __forceinline__ void turn_queries(struct split_panels<NT, K> *sh, float scale)
{
    int lane = threadIdx.x % 8;
#pragma unroll 1
    for (int at = threadIdx.x / 8; at < NT * 8; at += SPLIT_THREADS / 8) {
        float by = scale;
        if constexpr (kv_tile<K>::has_factors) {
            uint4 *p[4];
            uint32_t w[4][4];
            float top = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int piece = lane * 2 + i % 2; /* of 16, and of the other 16 */
                p[i] = (uint4 *)(sh->q[i / 2 * 2 + piece / 8] + swizzled<64>(at, piece % 8));
                *(uint4 *)w[i] = *p[i];
#pragma unroll
                for (int k = 0; k < 4; k++)
                    top = fmaxf(top, fmaxf(fabsf(__uint_as_float(w[i][k] << 16)),
                                           fabsf(__uint_as_float(w[i][k] & 0xffff0000u))));
            }
#pragma unroll
            for (int i = 1; i < 8; i <<= 1)
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, i));
            int e = query_shift(top);
            by = query_factor(e, scale);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    w[i][k] = query_to_f16(w[i][k], e);
#pragma unroll
            for (int i = 0; i < 4; i += 2) { /* of 16 dims those with d % 4 < 2 first */
                *p[i] = make_uint4(w[i][0], w[i][2], w[i + 1][0], w[i + 1][2]);
                *p[i + 1] = make_uint4(w[i][1], w[i][3], w[i + 1][1], w[i + 1][3]);
            }
        }
        if (lane == 0)
            sh->by[at] = by;
    }
}

/* 8 x 8 matrices as products have them, keys by queries, to rows of queries: lane 8 i + r says where row r of matrix i
 * goes. */
__device__ __forceinline__ void put_turned(uint32_t to, uint32_t x0, uint32_t x1, uint32_t x2,
                                           uint32_t x3)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(x0), "r"(x1), "r"(x2), "r"(x3)
                 : "memory");
}
__device__ __forceinline__ void put_turned(uint32_t to, uint32_t x0, uint32_t x1)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to),
                 "r"(x0), "r"(x1)
                 : "memory");
}

/* The base of query n after a tile whose scores of it are at most `top`. A whole number, or where floats are farther apart
 * than these `top` itself. */
template <int NT, typename K>
__device__ __forceinline__ void raise_base(struct split_panels<NT, K> *sh, int n, float top,
                                           bool is_first)
{
    float base = is_first ? 0.0f : sh->base[n], old = base;
    if (is_first ? top > -INFINITY : top > sh->limit[n])
        base = ceilf(top);
    sh->change[n] = is_first ? 0.0f : exp2_approx(__fsub_rn(old, base));
    sh->base[n] = base;
    sh->limit[n] = __fadd_rn(base, SPLIT_SLACK);
    sh->off[n] = __fsub_rd(split_panels<NT, K>::WEIGHT_LOG2, base);
}

/* As split_mma, for queries that fetch_queries brings and that see positions below hi, of which all_hi is the least. `from`
 * is a multiple of SPLIT_TILE. */
template <int NT, typename K>
__device__ __forceinline__ void
split_wgmma(struct split_panels<NT, K> *sh, const struct split_pages<K> &pages, int n_queries,
            int32_t from, int32_t end, int32_t all_hi, float scale, const struct split_parts &out,
            int64_t row, int head, int group, int32_t split)
{
    typedef kv_tile<K> tile;
    typedef typename tile::number number;
    enum {
        HD = PANELS_DIMS,
        MT = HD / 64,
        TILES = split_panels<NT, K>::TILES,
        PARTS = tile::PARTS,
        PANEL_STEP = NT * 64, /* of a descriptor, to the next panel */
    };
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4 * 2;
    uint32_t q = uniform(panel_descriptor(shared_address(sh->q)));
    uint32_t weights = uniform(panel_descriptor(shared_address(sh->p)));
    int row_of_p = swizzled<SPLIT_TILE>(lane % 8, warp * 2 + lane / 8 % 2);
    uint32_t to_p = shared_address(sh->p[lane / 16] + row_of_p);
    uint32_t to_last_p = shared_address(sh->p[PARTS - 1] + row_of_p);

    copies_commit();
    float acc[MT][NT * 4], l[NT][2];
    for (bool again = false;; again = true) {
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                l[j][e] = 0;
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int i = 0; i < NT * 4; i++)
                acc[t][i] = 0;
        int32_t page = pages.page(from); /* of the tile that is fetched next */
#pragma unroll 1
        for (int i = 0; i < TILES; i++) {
            int32_t s = from + i * SPLIT_TILE, next = pages.page(min(s + SPLIT_TILE, end - 1));
            if (s < end)
                pages.fetch(sh->k[i], pages.k, page, s, end);
            copies_commit();
            if (s < end)
                pages.fetch(sh->v[i], pages.v, page, s, end);
            copies_commit();
            page = next;
        }
        if (!again) {
            copies_wait<2 * TILES>();
            if (tile::has_factors)
                __syncthreads();
            turn_queries(sh, scale);
            wgmma_publish();
        }
        copies_wait<2 * TILES - 1>();
        __syncthreads();
        int now = 0; /* the tile's place */
#pragma unroll 1
        for (int32_t s0 = from; s0 < end; s0 += SPLIT_TILE, now = (now + 1) % TILES) {
            bool more = s0 + TILES * SPLIT_TILE < end;

            /* Scores [16 keys of the warp, queries] */
            float s[NT * 4];
            {
                float x[2][NT * 4];
                uint32_t a[2][4][4];
                auto add = [&](int part) {
                    wgmma_done(x[part % 2]);
#pragma unroll
                    for (int k = 0; k < 4; k++)
                        wgmma_done(a[part % 2][k]);
#pragma unroll
                    for (int i = 0; i < NT * 4; i++)
                        s[i] = part == 0 ? x[0][i] : __fadd_rn(s[i], x[part % 2][i]);
                };
#pragma unroll
                for (int part = 0; part < HD / 64; part++) {
                    tile::template keys_left<HD>(a[part % 2], sh->k[now], warp * 16, part, lane);
                    wgmma_fence();
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        uint32_t b = q + part * PANEL_STEP + k * 2;
                        if (k == 0)
                            wgmma_few<false>(x[part % 2], a[part % 2][k], b, number());
                        else
                            wgmma_few<true>(x[part % 2], a[part % 2][k], b, number());
                    }
                    wgmma_commit();
                    if (part == 0)
                        continue;
                    wgmma_wait<1>();
                    add(part - 1);
                }
                wgmma_wait<0>();
                add(HD / 64 - 1);
            }
            bool over = s0 == from;
#pragma unroll
            for (int j = 0; j < NT; j++) {
                float2 by = *(const float2 *)&sh->by[j * 8 + c];
                s[j * 4] = __fmul_rn(s[j * 4], by.x);
                s[j * 4 + 1] = __fmul_rn(s[j * 4 + 1], by.y);
                s[j * 4 + 2] = __fmul_rn(s[j * 4 + 2], by.x);
                s[j * 4 + 3] = __fmul_rn(s[j * 4 + 3], by.y);
            }
            if (s0 + SPLIT_TILE > all_hi)
#pragma unroll
                for (int i = 0; i < NT * 4; i++)
                    if (s0 + warp * 16 + g + i / 2 % 2 * 8 >= sh->hi[i / 4 * 8 + c + i % 2])
                        s[i] = -INFINITY;
            if (s0 > from)
#pragma unroll
                for (int j = 0; j < NT; j++) {
                    float2 limit = *(const float2 *)&sh->limit[j * 8 + c];
                    over |= fmaxf(s[j * 4], s[j * 4 + 2]) > limit.x;
                    over |= fmaxf(s[j * 4 + 1], s[j * 4 + 3]) > limit.y;
                }
            if (__syncthreads_or(over)) {
#pragma unroll
                for (int j = 0; j < NT; j++) {
                    float2 top = {fmaxf(s[j * 4], s[j * 4 + 2]), fmaxf(s[j * 4 + 1], s[j * 4 + 3])};
#pragma unroll
                    for (int i = 4; i < 32; i <<= 1) {
                        top.x = fmaxf(top.x, __shfl_xor_sync(0xffffffffu, top.x, i));
                        top.y = fmaxf(top.y, __shfl_xor_sync(0xffffffffu, top.y, i));
                    }
                    if (g == 0)
                        *(float2 *)&sh->top[warp][j * 8 + c] = top;
                }
                __syncthreads();
                int n = threadIdx.x;
                if (n < NT * 8)
                    raise_base(sh, n,
                               fmaxf(fmaxf(sh->top[0][n], sh->top[1][n]),
                                     fmaxf(sh->top[2][n], sh->top[3][n])),
                               s0 == from);
                __syncthreads();
#pragma unroll
                for (int j = 0; j < NT; j++) {
                    float2 f = *(const float2 *)&sh->change[j * 8 + c];
                    l[j][0] = __fmul_rn(l[j][0], f.x);
                    l[j][1] = __fmul_rn(l[j][1], f.y);
#pragma unroll
                    for (int t = 0; t < MT; t++)
#pragma unroll
                        for (int i = 0; i < 4; i++)
                            acc[t][j * 4 + i] = __fmul_rn(acc[t][j * 4 + i], i % 2 ? f.y : f.x);
                }
            }
            if (more)
                pages.fetch(sh->k[now], pages.k, page, s0 + TILES * SPLIT_TILE, end);
            copies_commit();

            /* Weights */
#pragma unroll
            for (int j = 0; j < NT; j++) {
                float2 off = *(const float2 *)&sh->off[j * 8 + c];
                float w[4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    w[i] = exp2_approx(__fadd_rn(s[j * 4 + i], i % 2 ? off.y : off.x));
                l[j][0] = __fadd_rn(l[j][0], __fadd_rn(w[0], w[2]));
                l[j][1] = __fadd_rn(l[j][1], __fadd_rn(w[1], w[3]));
                uint32_t part[PARTS][2];
#pragma unroll
                for (int i = 0; i < PARTS; i++) {
                    part[i][0] = tile::take_parts(w[0], w[1]);
                    part[i][1] = tile::take_parts(w[2], w[3]);
                }
                put_turned(to_p + j * 1024, part[0][0], part[0][1], part[1][0], part[1][1]);
                if (PARTS == 3)
                    put_turned(to_last_p + j * 1024, part[PARTS - 1][0], part[PARTS - 1][1]);
            }
            wgmma_publish();
            copies_wait<2 * TILES - 1>();
            __syncthreads();
            if (__builtin_expect(again, 0)) {
                clear_bad_values<HD>(sh->v[now], sh->is_bad);
                __syncthreads();
            }

            /* Values [64 dims of the warp, queries] */
            {
                float x[2][NT * 4];
                uint32_t a[2][4][4];
                auto add = [&](int t) {
                    wgmma_done(x[t % 2]);
#pragma unroll
                    for (int k = 0; k < 4; k++)
                        wgmma_done(a[t % 2][k]);
#pragma unroll
                    for (int i = 0; i < NT * 4; i++)
                        acc[t][i] = __fadd_rn(acc[t][i], x[t % 2][i]);
                };
#pragma unroll
                for (int t = 0; t < MT; t++) {
                    tile::template values_left<HD>(a[t % 2], sh->v[now], warp * MT + t, lane);
                    wgmma_fence();
#pragma unroll
                    for (int part = PARTS - 1; part >= 0; part--)
#pragma unroll
                        for (int k = 0; k < 4; k++) {
                            uint32_t b = weights + part * PANEL_STEP + k * 2;
                            if (part == PARTS - 1 && k == 0)
                                wgmma_few<false>(x[t % 2], a[t % 2][k], b, number());
                            else
                                wgmma_few<true>(x[t % 2], a[t % 2][k], b, number());
                        }
                    wgmma_commit();
                    if (t == 0)
                        continue;
                    wgmma_wait<1>();
                    add(t - 1);
                }
                wgmma_wait<0>();
                add(MT - 1);
            }
            if (__builtin_expect(again, 0))
                for (int key = 0; key < SPLIT_TILE && s0 + key < end; key++)
                    if (sh->is_bad[key]) {
                        const K *v = pages.value(s0 + key);
#pragma unroll
                        for (int t = 0; t < MT; t++)
#pragma unroll
                            for (int i = 0; i < NT * 4; i++) {
                                int n = i / 4 * 8 + c + i % 2;
                                K y = v[tile::row_dim(warp * MT + t, g, i / 2 % 2)];
                                float w =
                                    to_float(sh->p[0][swizzled<SPLIT_TILE>(n, key / 8) + key % 8]);
                                if (s0 + key < sh->hi[n] && !is_finite(y))
                                    acc[t][i] = fmaf(w, to_float(y), acc[t][i]);
                            }
                    }
            copies_wait<2 * TILES - 2>();
            __syncthreads();
            if (more)
                pages.fetch(sh->v[now], pages.v, page, s0 + TILES * SPLIT_TILE, end);
            copies_commit();
            page = pages.page(min(s0 + (TILES + 1) * SPLIT_TILE, end - 1));
        }
        copies_wait<0>();
        bool bad = false;
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int i = 0; i < NT * 4; i++)
                bad |= !(fabsf(acc[t][i]) < INFINITY);
        if (!__syncthreads_or(bad) || again)
            break;
    }

    const float down = __uint_as_float((127u - split_panels<NT, K>::WEIGHT_LOG2) << 23);
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float sum = l[j][e];
#pragma unroll
            for (int i = 4; i < 32; i <<= 1)
                sum += __shfl_xor_sync(0xffffffffu, sum, i);
            if (g == 0)
                sh->top[warp][j * 8 + c + e] = sum;
        }
    __syncthreads();
    auto place = [&](int n) {
        int r = n / group;
        return ((row + r) * out.heads + head + n - r * group) * out.n_splits + split;
    };
    for (int n = threadIdx.x; n < n_queries; n += SPLIT_THREADS)
        out.part[place(n)] =
            make_float2(sh->base[n],
                        ((sh->top[0][n] + sh->top[1][n]) + (sh->top[2][n] + sh->top[3][n])) * down);
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int n = j * 8 + c + e;
            if (n >= n_queries)
                continue;
            float *to = out.part_o + place(n) * HD;
#pragma unroll
            for (int t = 0; t < MT; t++) {
                float x = acc[t][j * 4 + e] * down, y = acc[t][j * 4 + 2 + e] * down;
                if (tile::row_dim(0, 0, 1) == 1) {
                    *(float2 *)(to + tile::row_dim(warp * MT + t, g, 0)) = make_float2(x, y);
                } else {
                    to[tile::row_dim(warp * MT + t, g, 0)] = x;
                    to[tile::row_dim(warp * MT + t, g, 1)] = y;
                }
            }
        }
}

#endif
#endif

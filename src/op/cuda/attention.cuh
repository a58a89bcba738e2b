/* What attention over pages and attention of blocks share: the sums of some queries over one split of
 * their keys, and the merging of splits.
 *
 * A split's result is a maximum, a sum of weights e^(score - maximum), and the sum of values so
 * weighted. Queries and their splits never meet, so neither depends on what else a block works on.
 *
 * Keys are found through a KEYS: k(s) and v(s) give the address of the key and value at position s, wide
 * says that they are 16-byte aligned, has_run(s) that the SPLIT_TILE from s on are k_step and v_step apart. */
#ifndef LATHE_OP_CUDA_ATTENTION_CUH
#define LATHE_OP_CUDA_ATTENTION_CUH

#include "op/cuda/copies.cuh"
#include "op/cuda/kv_tile.cuh"

enum {
    SPLIT_THREADS = 128,
    SPLIT_TILE = 64,    /* keys whose scores are taken together by tensor cores */
    SPLIT_QUERIES = 48, /* of a block at most; also a whole row of up to so many heads */
};

/* Where results go: split i of row r of its group and head h has place (r * heads + h) * n_splits + i. */
struct split_parts {
    float2 *part;  /* maximum, sum of weights */
    float *part_o; /* [.., hd] */
    int32_t n_splits, heads, hd;
    bool log2; /* maxima are log2 of what weights are multiples of, not its logarithm */
};

/* e^(x - max), where a maximum of -infinity (nothing but such scores so far) counts as 0. */
__device__ __forceinline__ float weight(float x, float max)
{
    return expf(__fsub_rn(x, max == -INFINITY ? 0.0f : max));
}

/* ---- Any dtypes, any sizes: up to LOOP_HEADS heads of one row, F32 arithmetic --------------------- */

enum { LOOP_HEADS = 8, LOOP_TILE = 16 };

static inline size_t split_loop_shared(int64_t hd)
{
    return (size_t)(LOOP_HEADS * hd + LOOP_TILE * (hd + 1)) * sizeof(float);
}

/* Heads [head, head + n_heads) of row r of its group, which see positions [from, end); q [n_heads, hd]. */
template <typename Q, typename K, typename KEYS>
__device__ __forceinline__ void split_loop(const struct split_parts &out, const KEYS &keys,
                                           const Q *query, int64_t r, int head, int n_heads,
                                           int32_t split, int32_t from, int32_t end, float scale)
{
    extern __shared__ float shared[];
    __shared__ float p[LOOP_TILE][LOOP_HEADS], factor[LOOP_HEADS];
    int tid = threadIdx.x, hd = out.hd;
    float *q = shared, *key = shared + LOOP_HEADS * hd; /* [LOOP_HEADS, hd], [LOOP_TILE, hd + 1] */
    for (int i = tid; i < n_heads * hd; i += SPLIT_THREADS)
        q[i] = to_float(query[i]);
    int my_head = tid / LOOP_TILE, my_key = tid % LOOP_TILE;
    float max = -INFINITY, sum = 0; /* of my_head */
    float acc[OP_MAX_HEAD / SPLIT_THREADS][LOOP_HEADS];
#pragma unroll
    for (int j = 0; j < OP_MAX_HEAD / SPLIT_THREADS; j++)
#pragma unroll
        for (int h = 0; h < LOOP_HEADS; h++)
            acc[j][h] = 0;
    for (int32_t s = from; s < end; s += LOOP_TILE) {
        int n = min((int)LOOP_TILE, end - s);
        __syncthreads(); /* key and p may be read still */
        for (int i = 0; i < n; i++) {
            const K *k = keys.k(s + i);
            for (int d = tid; d < hd; d += SPLIT_THREADS)
                key[i * (hd + 1) + d] = to_float(k[d]);
        }
        __syncthreads();
        float score = -INFINITY;
        if (my_head < n_heads && my_key < n) {
            const float *x = q + my_head * hd, *y = key + my_key * (hd + 1);
            float part[4] = {0, 0, 0, 0};
            int d = 0;
            for (; d + 4 <= hd; d += 4)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    part[i] = fmaf(x[d + i], y[d + i], part[i]);
            for (; d < hd; d++)
                part[0] = fmaf(x[d], y[d], part[0]);
            score = __fmul_rn((part[0] + part[1]) + (part[2] + part[3]), scale);
        }
        float top = fmaxf(max, score);
#pragma unroll
        for (int i = LOOP_TILE / 2; i > 0; i >>= 1)
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, i));
        float w = my_key < n ? weight(score, top) : 0.0f, old = weight(max, top), all = w;
#pragma unroll
        for (int i = LOOP_TILE / 2; i > 0; i >>= 1)
            all += __shfl_xor_sync(0xffffffffu, all, i);
        max = top;
        sum = fmaf(sum, old, all);
        p[my_key][my_head] = w;
        if (my_key == 0)
            factor[my_head] = old;
        __syncthreads();
#pragma unroll
        for (int j = 0; j < OP_MAX_HEAD / SPLIT_THREADS; j++) {
            int d = j * SPLIT_THREADS + tid;
            if (d >= hd)
                continue;
            float part[LOOP_HEADS];
#pragma unroll
            for (int h = 0; h < LOOP_HEADS; h++)
                part[h] = 0;
            for (int i = 0; i < n; i++) {
                float v = to_float(keys.v(s + i)[d]);
#pragma unroll
                for (int h = 0; h < LOOP_HEADS; h++)
                    part[h] = fmaf(p[i][h], v, part[h]);
            }
#pragma unroll
            for (int h = 0; h < LOOP_HEADS; h++)
                acc[j][h] = fmaf(acc[j][h], factor[h], part[h]);
        }
    }
    int64_t at = (r * out.heads + head) * out.n_splits + split;
    if (my_key == 0 && my_head < n_heads)
        out.part[at + (int64_t)my_head * out.n_splits] = make_float2(max, sum);
#pragma unroll
    for (int j = 0; j < OP_MAX_HEAD / SPLIT_THREADS; j++)
#pragma unroll
        for (int h = 0; h < LOOP_HEADS; h++)
            if (h < n_heads && j * SPLIT_THREADS + tid < hd)
                out.part_o[(at + (int64_t)h * out.n_splits) * hd + j * SPLIT_THREADS + tid] =
                    acc[j][h];
}

/* ---- Queries in BF16: some rows and all heads of a kv head, by tensor cores ------------------------ */

/* Shared memory of a block. k, v, q and p are swizzled. */
template <int HD, int NT, typename K = bf16> struct split_shared {
    typedef typename kv_tile<K>::number number;
    K k[SPLIT_TILE * HD], v[SPLIT_TILE * HD];
    number q[NT * 8 * HD];
    number p[kv_tile<K>::PARTS][NT * 8 * SPLIT_TILE]; /* weights [query, key] in parts */
    float factor[NT * 8];                             /* of a query's scores, if it has one */
    float top[4][NT * 8], sum[4][NT * 8];
    int32_t lo[NT * 8], hi[NT * 8]; /* a query sees positions [lo, hi) */
    int32_t is_bad[SPLIT_TILE];     /* a value at this key is not finite */
};

/* 16 bytes, or zeros. */
__device__ __forceinline__ void copy_async(void *to, const void *from, bool is_there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(is_there ? 16 : 0)
                 : "memory");
}

/* Keys or values of positions [first, first + SPLIT_TILE), zero outside [from, end). */
template <int HD, bool VALUES, typename K, typename KEYS>
__device__ __forceinline__ void split_fetch(K *to, const KEYS &keys, int32_t first, int32_t from,
                                            int32_t end)
{
    enum { PIECE = kv_tile<K>::PIECE, PIECES = HD / PIECE, STEP = SPLIT_THREADS / PIECES };
    int piece = threadIdx.x % PIECES, top = threadIdx.x / PIECES;
    if (keys.wide && keys.has_run(first)) { /* one look-up for all */
        int64_t step = VALUES ? keys.v_step : keys.k_step;
        const K *p = (VALUES ? keys.v(first) : keys.k(first)) + piece * PIECE + top * step;
#pragma unroll
        for (int i = 0; i < SPLIT_TILE / STEP; i++, p += STEP * step) {
            int32_t s = first + top + i * STEP;
            copy_async(to + swizzled<HD, PIECE>(top + i * STEP, piece), p, s >= from && s < end);
        }
    } else {
#pragma unroll 1
        for (int row = top; row < SPLIT_TILE; row += STEP) {
            int32_t s = first + row;
            bool is_there = s >= from && s < end;
            int32_t at = is_there ? s : from;
            const K *p = (VALUES ? keys.v(at) : keys.k(at)) + piece * PIECE;
            K *dst = to + swizzled<HD, PIECE>(row, piece);
            if (keys.wide)
                copy_async(dst, p, is_there);
            else
                *(uint4 *)dst = is_there ? loose_piece(p) : make_uint4(0, 0, 0, 0);
        }
    }
    copies_commit();
}

/* n queries from `first` on, counted through the rows from q on of `group` heads each, to shared memory;
 * zeros up to N. They arrive with the next group of copies that is committed. */
template <int HD, int N>
__device__ __forceinline__ void fetch_queries(bf16 *to, const bf16 *q, int64_t stride, int first,
                                              int n, int group, bool wide)
{
    for (int i = threadIdx.x; i < N * (HD / 8); i += SPLIT_THREADS) {
        int at = i / (HD / 8), piece = i % (HD / 8), query = first + (at < n ? at : 0);
        const bf16 *p = q + query / group * stride + query % group * HD + piece * 8;
        bf16 *dst = to + swizzled<HD>(at, piece);
        if (wide)
            copy_async(dst, p, at < n);
        else
            *(uint4 *)dst = at < n ? loose_piece(p) : make_uint4(0, 0, 0, 0);
    }
}

/* A query in F16 is times 2^e, which brings its largest number `top` to 2^14 .. 2^15; e is at most 100, so that scores of
 * tiny queries hold it. Two numbers, and what takes scores back, times `scale`. */
__device__ __forceinline__ int query_shift(float top)
{
    return min(141 - (int)(__float_as_uint(top) >> 23), 100);
}
__device__ __forceinline__ uint32_t query_to_f16(uint32_t w, int e)
{
    float up = __uint_as_float((uint32_t)(127 + e) << 23);
    __half2 h = __floats2half2_rn(__fmul_rn(__uint_as_float(w << 16), up),
                                  __fmul_rn(__uint_as_float(w & 0xffff0000u), up));
    return *(const uint32_t *)&h;
}
__device__ __forceinline__ float query_factor(int e, float scale)
{
    return __fmul_rn(scale, __uint_as_float((uint32_t)(127 - e) << 23));
}

/* The same in F16 as kv_tile wants them, and what takes their factors back from the scores, times `scale`.
 * They are there behind the next barrier. HD is 256: eight dims a lane. */
template <int HD, int N>
__device__ __forceinline__ void fetch_queries(__half *to, float *factor, const bf16 *q,
                                              int64_t stride, int first, int n, int group,
                                              bool wide, float scale)
{
    static_assert(HD == 256, "a warp a query");
    int lane = threadIdx.x % 32;
    for (int at = threadIdx.x / 32; at < N; at += SPLIT_THREADS / 32) {
        int query = first + (at < n ? at : 0);
        const bf16 *p = q + query / group * stride + query % group * HD + lane * 8;
        uint4 piece = wide ? *(const uint4 *)p : loose_piece(p);
        if (at >= n)
            piece = make_uint4(0, 0, 0, 0);
        uint32_t w[4] = {piece.x, piece.y, piece.z, piece.w};
        float top = 0;
#pragma unroll
        for (int i = 0; i < 4; i++)
            top = fmaxf(top, fmaxf(fabsf(__uint_as_float(w[i] << 16)),
                                   fabsf(__uint_as_float(w[i] & 0xffff0000u))));
        int e = query_shift(warp_max(top));
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i] = query_to_f16(w[i], e);
        int half = lane % 2 * 4; /* of a piece: of every 16 dims those with d % 4 < 2 first */
        *(uint2 *)(to + swizzled<HD>(at, lane & ~1) + half) = make_uint2(w[0], w[2]);
        *(uint2 *)(to + swizzled<HD>(at, lane | 1) + half) = make_uint2(w[1], w[3]);
        if (lane == 0)
            factor[at] = query_factor(e, scale);
    }
}

/* Values that are not finite become zero; is_bad[key] says whether there were any. */
template <int HD, typename K>
__device__ __forceinline__ void clear_bad_values(K *v, int32_t *is_bad)
{
    for (int row = threadIdx.x; row < SPLIT_TILE; row += SPLIT_THREADS) {
        is_bad[row] = 0;
        for (int d = 0; d < HD; d++)
            if (!is_finite(v[row * HD + d])) {
                v[row * HD + d] = from_float<K>(0);
                is_bad[row] = 1;
            }
    }
}

/* Queries n = 0 .. n_queries - 1 of the block, whose lo and hi are in shared memory (0 behind the last), and
 * q as fetch_queries brings it (where that gives factors, they hold `scale`), over positions [from, end).
 * The sums of a tile start at zero and are then added in F32, lowest parts of the weights first: tensor cores
 * cut off what they add to a larger sum.
 *
 * A value that is not finite would reach queries that do not see it, as 0 times NaN, and infinity in
 * three parts is NaN: where a sum is not finite the split is gone through again, such values zero in
 * the products and added by themselves.
 *
 * Query n is head `head` + n % group of row `row` + n / group. HD 64, 128 or 256, of E4M3 256; NT tiles of 8
 * queries. */
template <int HD, int NT, typename K, typename KEYS>
__device__ __forceinline__ void split_mma(struct split_shared<HD, NT, K> *sh, const KEYS &keys,
                                          int n_queries, int32_t from, int32_t end, float scale,
                                          const struct split_parts &out, int64_t row, int head,
                                          int group, int32_t split)
{
    typedef kv_tile<K> tile;
    typedef typename tile::number number;
    enum { MT = HD / 64 }; /* tiles of 16 dims of a warp, which has HD / 4 of them */
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4 * 2;
    int32_t first = from & ~(SPLIT_TILE - 1);
    int32_t all_lo = 0, all_hi = INT32_MAX; /* what every query sees */
    for (int n = 0; n < n_queries; n++)
        all_lo = max(all_lo, sh->lo[n]), all_hi = min(all_hi, sh->hi[n]);

    float acc[MT][NT][4], m[NT][2], l[NT][2];
    for (bool again = false;; again = true) {
#pragma unroll
        for (int j = 0; j < NT; j++) {
#pragma unroll
            for (int e = 0; e < 2; e++)
                m[j][e] = -INFINITY, l[j][e] = 0;
#pragma unroll
            for (int t = 0; t < MT; t++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    acc[t][j][i] = 0;
        }
        split_fetch<HD, false>(sh->k, keys, first, from, end);
        split_fetch<HD, true>(sh->v, keys, first, from, end);
        for (int32_t s0 = first; s0 < end; s0 += SPLIT_TILE) {
            bool more = s0 + SPLIT_TILE < end;
            copies_wait<1>();
            __syncthreads();

            /* Scores [16 keys of the warp, queries] */
            float s[NT][4];
#pragma unroll
            for (int j = 0; j < NT; j++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    s[j][i] = 0;
#pragma unroll
            for (int part = 0; part < HD / 64; part++) {
                float x[NT][4];
                uint32_t a[4][4];
                tile::template keys_left<HD>(a, sh->k, warp * 16, part, lane);
#pragma unroll
                for (int j = 0; j < NT; j++) {
                    uint32_t b[8];
                    const number *q = sh->q;
                    ldmatrix(
                        b, shared_address(q + swizzled<HD>(j * 8 + lane % 8, part * 8 + lane / 8)));
                    ldmatrix(b + 4, shared_address(q + swizzled<HD>(j * 8 + lane % 8,
                                                                    part * 8 + 4 + lane / 8)));
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        x[j][i] = 0;
#pragma unroll
                    for (int k = 0; k < 4; k++)
                        tile::mma(x[j], a[k], b[k * 2], b[k * 2 + 1]);
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        s[j][i] = __fadd_rn(s[j][i], x[j][i]);
                }
            }
            bool whole = s0 >= all_lo && s0 + SPLIT_TILE <= all_hi;
#pragma unroll
            for (int j = 0; j < NT; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float top = -INFINITY;
                    float by = tile::has_factors ? sh->factor[j * 8 + c + e] : scale;
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        int32_t at = s0 + warp * 16 + g + h * 8;
                        float x = __fmul_rn(s[j][h * 2 + e], by);
                        if (!whole && (at < sh->lo[j * 8 + c + e] || at >= sh->hi[j * 8 + c + e]))
                            x = -INFINITY;
                        s[j][h * 2 + e] = x;
                        top = fmaxf(top, x);
                    }
#pragma unroll
                    for (int i = 4; i < 32; i <<= 1)
                        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, i));
                    if (g == 0)
                        sh->top[warp][j * 8 + c + e] = top;
                }
            __syncthreads();
            if (more)
                split_fetch<HD, false>(sh->k, keys, s0 + SPLIT_TILE, from, end);
            else
                copies_commit();

            /* Weights */
            float f[NT][2];
#pragma unroll
            for (int j = 0; j < NT; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int n = j * 8 + c + e;
                    float top = m[j][e];
#pragma unroll
                    for (int w = 0; w < 4; w++)
                        top = fmaxf(top, sh->top[w][n]);
                    f[j][e] = weight(m[j][e], top);
                    m[j][e] = top;
                    float w[2];
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        w[h] = weight(s[j][h * 2 + e], top);
                        float rest = w[h] * tile::weight_up;
                        int at = swizzled<SPLIT_TILE>(n, warp * 2 + h) + g;
#pragma unroll
                        for (int i = 0; i < tile::PARTS; i++)
                            sh->p[i][at] = tile::take_part(rest);
                    }
                    l[j][e] = fmaf(l[j][e], f[j][e], __fadd_rn(w[0], w[1]));
                }
            copies_wait<1>();
            __syncthreads();
            if (again) {
                clear_bad_values<HD>(sh->v, sh->is_bad);
                __syncthreads();
            }

            /* Values [16 * MT dims of the warp, queries] */
            uint32_t a[MT][4][4];
#pragma unroll
            for (int t = 0; t < MT; t++)
                tile::template values_left<HD>(a[t], sh->v, warp * MT + t, lane);
#pragma unroll
            for (int j = 0; j < NT; j++) {
                float x[MT][4];
#pragma unroll
                for (int t = 0; t < MT; t++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        x[t][i] = 0;
#pragma unroll
                for (int part = tile::PARTS - 1; part >= 0; part--) {
                    uint32_t b[8];
                    const number *p = sh->p[part];
                    ldmatrix(b,
                             shared_address(p + swizzled<SPLIT_TILE>(j * 8 + lane % 8, lane / 8)));
                    ldmatrix(b + 4, shared_address(
                                        p + swizzled<SPLIT_TILE>(j * 8 + lane % 8, 4 + lane / 8)));
#pragma unroll
                    for (int k = 0; k < 4; k++)
#pragma unroll
                        for (int t = 0; t < MT; t++)
                            tile::mma(x[t], a[t][k], b[k * 2], b[k * 2 + 1]);
                }
#pragma unroll
                for (int t = 0; t < MT; t++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        acc[t][j][i] = fmaf(acc[t][j][i], f[j][i % 2], x[t][i]);
            }
            if (again)
                for (int row = 0; row < SPLIT_TILE; row++)
                    if (sh->is_bad[row] && s0 + row >= from && s0 + row < end) {
                        const K *v = keys.v(s0 + row);
#pragma unroll
                        for (int t = 0; t < MT; t++)
#pragma unroll
                            for (int j = 0; j < NT; j++)
#pragma unroll
                                for (int i = 0; i < 4; i++) {
                                    int e = i % 2, d = tile::row_dim(warp * MT + t, g, i / 2);
                                    bool seen = s0 + row >= sh->lo[j * 8 + c + e] &&
                                                s0 + row < sh->hi[j * 8 + c + e];
                                    float w = to_float(
                                        sh->p[0][swizzled<SPLIT_TILE>(j * 8 + c + e, row / 8) +
                                                 row % 8]);
                                    if (seen && !is_finite(v[d]))
                                        acc[t][j][i] = fmaf(w, to_float(v[d]), acc[t][j][i]);
                                }
                    }
            __syncthreads();
            if (more)
                split_fetch<HD, true>(sh->v, keys, s0 + SPLIT_TILE, from, end);
            else
                copies_commit();
        }
        copies_wait<0>();
        bool bad = false;
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int t = 0; t < MT; t++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    bad |= !(fabsf(acc[t][j][i]) < INFINITY);
        if (!__syncthreads_or(bad) || again)
            break;
    }

#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float sum = l[j][e];
#pragma unroll
            for (int i = 4; i < 32; i <<= 1)
                sum += __shfl_xor_sync(0xffffffffu, sum, i);
            if (g == 0)
                sh->sum[warp][j * 8 + c + e] = sum;
        }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int n = j * 8 + c + e;
            if (n >= n_queries)
                continue;
            int64_t at = ((row + n / group) * out.heads + head + n % group) * out.n_splits + split;
            if (warp == 0 && g == 0)
                out.part[at] = make_float2(m[j][e], (sh->sum[0][n] + sh->sum[1][n]) +
                                                        (sh->sum[2][n] + sh->sum[3][n]));
#pragma unroll
            for (int t = 0; t < MT; t++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    out.part_o[at * HD + tile::row_dim(warp * MT + t, g, h)] =
                        acc[t][j][h * 2 + e] * tile::weight_down;
        }
}

/* ---- The splits of one row and head, in ascending order ------------------------------------------- */

enum {
    MERGE_DIMS = 32,    /* of a block, which has SPLIT_THREADS */
    MERGE_SPLITS = 128, /* whose values are loaded at once, so that a block waits for memory once */
};

static inline __host__ __device__ int merge_blocks(int hd)
{
    return (hd + MERGE_DIMS - 1) / MERGE_DIMS;
}

/* Dims [first_dim, first_dim + MERGE_DIMS) of up to two runs of splits, [begin[0], end[0]) and then
 * [begin[1], end[1]), of row and head i; each of the first MERGE_DIMS threads gets its own, if below hd. Every warp adds
 * every fourth split. */
__device__ __forceinline__ float split_merge(const struct split_parts &of, int64_t i, int first_dim,
                                             const int32_t begin[2], const int32_t end[2])
{
    enum { WARPS = SPLIT_THREADS / 32, EACH = MERGE_SPLITS / WARPS };
    __shared__ float w[MERGE_SPLITS], warp_top[WARPS], part_sum[WARPS], part_acc[WARPS][32];
    int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, d = first_dim + lane;
    int32_t n0 = end[0] - begin[0], n = n0 + end[1] - begin[1];
    const float2 *part = of.part + i * of.n_splits;
    const float *part_o = of.part_o + i * of.n_splits * of.hd;
    float top = -INFINITY, sum = 0, acc = 0;
    auto at = [&](int32_t s) { return s < n0 ? begin[0] + s : begin[1] + s - n0; };
    for (int32_t first = 0; first == 0 || first < n; first += MERGE_SPLITS) {
        float x[EACH];
        float2 mine = {-INFINITY, 0};
        if (first + tid < n)
            mine = part[at(first + tid)];
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            int32_t s = first + k * WARPS + warp;
            x[k] = s < n && d < of.hd ? part_o[(int64_t)at(s) * of.hd + d] : 0.0f;
        }
        if (first == 0) { /* values are on their way already */
            top = mine.x;
            for (int32_t s = MERGE_SPLITS + tid; s < n; s += SPLIT_THREADS)
                top = fmaxf(top, part[at(s)].x);
            top = warp_max(top);
            if (lane == 0)
                warp_top[warp] = top;
            __syncthreads();
#pragma unroll
            for (int k = 0; k < WARPS; k++)
                top = fmaxf(top, warp_top[k]);
        }
        __syncthreads();
        float y = mine.x - (top == -INFINITY ? 0.0f : top);
        w[tid] = of.log2 ? exp2f(y) : expf(y);
        sum = fmaf(mine.y, w[tid], sum);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < EACH; k++)
            if (first + k * WARPS + warp < n)
                acc = fmaf(x[k], w[k * WARPS + warp], acc);
    }
    sum = warp_sum(sum);
    part_acc[warp][lane] = acc;
    if (lane == 0)
        part_sum[warp] = sum;
    __syncthreads();
    return ((part_acc[0][lane] + part_acc[1][lane]) + (part_acc[2][lane] + part_acc[3][lane])) /
           ((part_sum[0] + part_sum[1]) + (part_sum[2] + part_sum[3]));
}

/* A group of rows is cut into chunks of at most chunk_rows, each of one sequence *seq: chunk i's first
 * row. */
template <typename A>
__device__ __forceinline__ int32_t chunk_at(const A &a, int32_t i, int32_t *n_rows,
                                            struct batch_seq *seq)
{
    for (int32_t s = 0; s < a.n_seqs; s++) {
        int32_t from = max(a.seq[s].first_row, a.first_row);
        int32_t end = min(a.seq[s].first_row + a.seq[s].n_rows, a.first_row + a.n_rows);
        int32_t chunks = end > from ? (end - from + a.chunk_rows - 1) / a.chunk_rows : 0;
        if (i < chunks) {
            *seq = a.seq[s];
            *n_rows = min(a.chunk_rows, end - from - i * a.chunk_rows);
            return from + i * a.chunk_rows;
        }
        i -= chunks;
    }
    *n_rows = 0;
    return 0;
}

/* How many of them there are, and the most rows of a sequence, 1 at least. On the host. */
template <typename A>
static inline int32_t chunks_of(const struct batch *b, const A &a, int32_t *longest)
{
    int32_t chunks = 0;
    *longest = 1;
    for (int32_t s = 0; s < b->n_seqs; s++) {
        const struct batch_seq *q = &b->seq[s];
        int32_t from = q->first_row > a.first_row ? q->first_row : a.first_row;
        int32_t end = q->first_row + q->n_rows, last = a.first_row + a.n_rows;
        int32_t n = (end < last ? end : last) - from;
        if (n <= 0)
            continue;
        *longest = n > *longest ? n : *longest;
        chunks += (n + a.chunk_rows - 1) / a.chunk_rows;
    }
    return chunks;
}

#endif

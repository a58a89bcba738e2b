/* Attention of many rows of a sequence: TILE_QUERIES queries (rows and the heads of one kv head) against
 * tiles of keys at multiples of SPLIT_TILE positions, ascending, with a running maximum. A tile of which a
 * query sees nothing leaves it as it was, bit for bit. */
#ifndef LATHE_OP_CUDA_ATTENTION_TILES_CUH
#define LATHE_OP_CUDA_ATTENTION_TILES_CUH

#include "op/cuda/attention.cuh"

enum { TILE_QUERIES = 64 }; /* 16 of each warp */

template <int HD, typename K> struct tile_shared {
    typename kv_tile<K>::number q[TILE_QUERIES * HD]; /* swizzled, like k and v */
    K k[SPLIT_TILE * HD], v[SPLIT_TILE * HD];
    float factor[TILE_QUERIES];
    int32_t hi[TILE_QUERIES];   /* sees positions [0, hi) */
    int32_t is_bad[SPLIT_TILE]; /* a value at this key is not finite */
};

/* n_queries queries, whose hi are in shared memory, and q as fetch_queries brings it. They see positions below `end` at most, and all of
 * them see those below all_hi. Query n is number first + n of those from row t on, whose `group` heads begin at
 * `head`: out.at gives its place, where put(d, gate(d), x) stores a result. Sums, and what becomes of values
 * that are not finite, as in split_mma. SPLIT_THREADS; HD 64, 128 or 256, of E4M3 256. */
template <int HD, typename K, typename KEYS, typename OUT>
__device__ __forceinline__ void
attention_tiles(struct tile_shared<HD, K> *sh, const KEYS &keys, int n_queries, int32_t all_hi,
                int32_t end, float scale, const OUT &out, int64_t t, int head, int first, int group)
{
    typedef kv_tile<K> tile;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4 * 2;
    int32_t hi[2] = {sh->hi[warp * 16 + g], sh->hi[warp * 16 + g + 8]};
    float acc[HD / 8][4], m[2], l[2];
    for (bool again = false;; again = true) {
#pragma unroll
        for (int t = 0; t < HD / 8; t++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[t][i] = 0;
        m[0] = m[1] = -INFINITY;
        l[0] = l[1] = 0;
        split_fetch<HD, false>(sh->k, keys, 0, 0, end);
        split_fetch<HD, true>(sh->v, keys, 0, 0, end);
        for (int32_t s0 = 0; s0 < end; s0 += SPLIT_TILE) {
            bool more = s0 + SPLIT_TILE < end;
            copies_wait<1>();
            __syncthreads();

            /* Scores [16 queries of the warp, keys] */
            float s[SPLIT_TILE / 8][4];
#pragma unroll
            for (int j = 0; j < SPLIT_TILE / 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    s[j][i] = 0;
#pragma unroll
            for (int part = 0; part < HD / 64; part++) {
                uint32_t a[4][4];
#pragma unroll
                for (int k = 0; k < 4; k++)
                    ldmatrix(a[k],
                             shared_address(sh->q + swizzled<HD>(warp * 16 + (lane & 15),
                                                                 part * 8 + k * 2 + lane / 16)));
#pragma unroll
                for (int j = 0; j < SPLIT_TILE / 8; j++) {
                    uint32_t b[8];
                    float x[4] = {0, 0, 0, 0};
                    tile::template keys_right<HD>(b, sh->k, j * 8, part, lane);
#pragma unroll
                    for (int k = 0; k < 4; k++)
                        tile::mma(x, a[k], b[k * 2], b[k * 2 + 1]);
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        s[j][i] = __fadd_rn(s[j][i], x[i]);
                }
            }
            float top[2] = {m[0], m[1]}, f[2], sum[2] = {0, 0};
            bool whole = s0 + SPLIT_TILE <= all_hi;
#pragma unroll
            for (int j = 0; j < SPLIT_TILE / 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float by = tile::has_factors ? sh->factor[warp * 16 + g + i / 2 * 8] : scale;
                    float x = __fmul_rn(s[j][i], by);
                    if (!whole && s0 + j * 8 + c + i % 2 >= hi[i / 2])
                        x = -INFINITY;
                    s[j][i] = x;
                    top[i / 2] = fmaxf(top[i / 2], x);
                }
            __syncthreads();
            if (more)
                split_fetch<HD, false>(sh->k, keys, s0 + SPLIT_TILE, 0, end);
            else
                copies_commit();

                /* Weights */
#pragma unroll
            for (int h = 0; h < 2; h++) {
                top[h] = fmaxf(top[h], __shfl_xor_sync(0xffffffffu, top[h], 1));
                top[h] = fmaxf(top[h], __shfl_xor_sync(0xffffffffu, top[h], 2));
                f[h] = weight(m[h], top[h]);
                m[h] = top[h];
            }
            uint32_t p[tile::PARTS][SPLIT_TILE / 16][4];
#pragma unroll
            for (int j = 0; j < SPLIT_TILE / 8; j++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    float x = weight(s[j][h * 2], top[h]), y = weight(s[j][h * 2 + 1], top[h]);
                    sum[h] = __fadd_rn(sum[h], __fadd_rn(x, y));
                    x *= tile::weight_up;
                    y *= tile::weight_up;
#pragma unroll
                    for (int i = 0; i < tile::PARTS; i++)
                        p[i][j / 2][j % 2 * 2 + h] = tile::take_parts(x, y);
                }
#pragma unroll
            for (int h = 0; h < 2; h++)
                l[h] = fmaf(l[h], f[h], sum[h]);
            copies_wait<1>();
            __syncthreads();
            if (again) {
                clear_bad_values<HD>(sh->v, sh->is_bad);
                __syncthreads();
            }

            /* Values [16 queries, HD] */
#pragma unroll
            for (int t = 0; t < HD / 8; t += tile::TILES) {
                uint32_t b[tile::TILES][8];
                tile::template values_right<HD>(b, sh->v, t, lane);
#pragma unroll
                for (int n = 0; n < tile::TILES; n++) {
                    float x[4] = {0, 0, 0, 0};
#pragma unroll
                    for (int i = tile::PARTS - 1; i >= 0; i--)
#pragma unroll
                        for (int k = 0; k < SPLIT_TILE / 16; k++)
                            tile::mma(x, p[i][k], b[n][k * 2], b[n][k * 2 + 1]);
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        acc[t + n][i] = fmaf(acc[t + n][i], f[i / 2], x[i]);
                }
            }
            if (again)
#pragma unroll 1
                for (int row = 0; row < SPLIT_TILE; row++) {
                    if (!sh->is_bad[row] || s0 + row >= end)
                        continue;
                    uint32_t w[2] = {0, 0};
#pragma unroll
                    for (int k = 0; k < SPLIT_TILE / 8; k++)
#pragma unroll
                        for (int h = 0; h < 2; h++) /* no index that is not constant into p */
                            w[h] |= p[0][k / 2][k % 2 * 2 + h] & (0 - (uint32_t)(k == row / 8));
                    const K *v = keys.v(s0 + row);
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        w[h] = __shfl_sync(0xffffffffu, w[h], (lane & ~3) | (row % 8 / 2));
                        float x = tile::part_at(w[h], row % 2);
                        if (s0 + row < hi[h])
#pragma unroll
                            for (int t = 0; t < HD / 8; t++)
#pragma unroll
                                for (int e = 0; e < 2; e++) {
                                    K y = v[tile::col_dim(t, c + e)];
                                    if (!is_finite(y))
                                        acc[t][h * 2 + e] = fmaf(x, to_float(y), acc[t][h * 2 + e]);
                                }
                    }
                }
            __syncthreads();
            if (more)
                split_fetch<HD, true>(sh->v, keys, s0 + SPLIT_TILE, 0, end);
            else
                copies_commit();
        }
        copies_wait<0>();
        bool bad = false;
#pragma unroll
        for (int t = 0; t < HD / 8; t++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                bad |= !(fabsf(acc[t][i]) < INFINITY);
        if (!__syncthreads_or(bad) || again)
            break;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = l[h];
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 1));
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 2));
        int n = warp * 16 + h * 8 + g;
        if (n >= n_queries)
            continue;
        typename OUT::place to = out.at(t + (first + n) / group, head + (first + n) % group, HD);
#pragma unroll
        for (int first_tile = 0; first_tile < HD / 8; first_tile += 8) {
            float gate[8][2]; /* loaded together: a load behind a store would wait for it */
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    gate[i][e] = to.gate(tile::col_dim(first_tile + i, c + e));
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    to.put(tile::col_dim(first_tile + i, c + e), gate[i][e],
                           acc[first_tile + i][h * 2 + e] * tile::weight_down / sum);
        }
    }
}

#endif

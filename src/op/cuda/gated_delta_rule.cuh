/* Steps of the gated delta rule: what every kernel of it adds, in the same order.
 *
 * A warp holds 8 columns of S, as 16 groups of lanes along dk times 2 lanes of 4 columns. One reduction a row
 * serves both products, since o = S'^T q^ with S' = decay S + k^ d^T is decay S^T q^ + (k^ . q^) d. */
#ifndef LATHE_OP_CUDA_GATED_DELTA_RULE_CUH
#define LATHE_OP_CUDA_GATED_DELTA_RULE_CUH

#include "op/cuda/cuda.cuh"

/* What the warps need of some rows, for COLS columns of S. */
template <int PER_LANE, int ROWS, int COLS> struct delta_rows {
    float q[ROWS][16 * PER_LANE], k[ROWS][16 * PER_LANE]; /* zero from dk on */
    float v[ROWS][COLS];
    float4 scalars[ROWS]; /* decay, beta, k^ . q^ */
};

__device__ __forceinline__ float dot4(float4 a, float4 b, float sum)
{
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}
__device__ __forceinline__ float4 times(float4 a, float b)
{
    return make_float4(a.x * b, a.y * b, a.z * b, a.w * b);
}

/* By a warp: row r of `to` but for v, from what its lanes hold of q and k, four values every 128. */
template <int PER_LANE, int ROWS, int COLS, int FOURS>
__device__ __forceinline__ void put_row(struct delta_rows<PER_LANE, ROWS, COLS> *to, int r,
                                        bool there, const float4 (&q)[FOURS],
                                        const float4 (&k)[FOURS], int32_t dk, float g, float beta)
{
    int lane = threadIdx.x % 32;
    float qq = 0, kk = 0, kq = 0;
#pragma unroll
    for (int i = 0; i < FOURS; i++) {
        qq = dot4(q[i], q[i], qq);
        kk = dot4(k[i], k[i], kk);
        kq = dot4(k[i], q[i], kq);
    }
    qq = warp_sum(qq);
    kk = warp_sum(kk);
    kq = warp_sum(kq);
    if (!there)
        return;
    float k_scale = 1.0f / sqrtf(kk + 1e-6f);
    float q_scale = 1.0f / sqrtf(qq + 1e-6f) / sqrtf((float)dk);
#pragma unroll
    for (int i = 0; i < FOURS; i++)
        if (i * 128 + lane * 4 < 16 * PER_LANE) {
            *(float4 *)&to->q[r][i * 128 + lane * 4] = times(q[i], q_scale);
            *(float4 *)&to->k[r][i * 128 + lane * 4] = times(k[i], k_scale);
        }
    if (lane == 0)
        to->scalars[r] = make_float4(expf(g), beta, kq * k_scale * q_scale, 0);
}

/* Sums of x[0..3] and of y[0..3] over the 16 lanes that share lane % 2. Lane bits 3 and 2 choose the
 * column whose sum a lane gets, bit 4 y instead of x. */
__device__ __forceinline__ float sum_columns(const float x[4], const float y[4])
{
    const unsigned all = 0xffffffffu;
    int lane = threadIdx.x % 32;
    bool b4 = lane & 16, b3 = lane & 8, b2 = lane & 4;
    float s[4];
#pragma unroll
    for (int c = 0; c < 4; c++)
        s[c] = (b4 ? y[c] : x[c]) + __shfl_xor_sync(all, b4 ? x[c] : y[c], 16);
    float s0 = (b3 ? s[2] : s[0]) + __shfl_xor_sync(all, b3 ? s[0] : s[2], 8);
    float s1 = (b3 ? s[3] : s[1]) + __shfl_xor_sync(all, b3 ? s[1] : s[3], 8);
    float sum = (b2 ? s1 : s0) + __shfl_xor_sync(all, b2 ? s0 : s1, 4);
    return sum + __shfl_xor_sync(all, sum, 2);
}

/* Four values from i of n, zero behind the last. */
template <typename T> __device__ __forceinline__ float4 four(const T *p, int i, int n, bool wide);
template <> __device__ __forceinline__ float4 four(const float *p, int i, int n, bool wide)
{
    if (wide)
        return i < n ? *(const float4 *)(p + i) : make_float4(0, 0, 0, 0);
    return make_float4(i < n ? p[i] : 0, i + 1 < n ? p[i + 1] : 0, i + 2 < n ? p[i + 2] : 0,
                       i + 3 < n ? p[i + 3] : 0);
}
template <> __device__ __forceinline__ float4 four(const bf16 *p, int i, int n, bool wide)
{
    if (wide) {
        if (i >= n)
            return make_float4(0, 0, 0, 0);
        uint2 x = *(const uint2 *)(p + i);
        return make_float4(__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u),
                           __uint_as_float(x.y << 16), __uint_as_float(x.y & 0xffff0000u));
    }
    return make_float4(i < n ? to_float(p[i]) : 0, i + 1 < n ? to_float(p[i + 1]) : 0,
                       i + 2 < n ? to_float(p[i + 2]) : 0, i + 3 < n ? to_float(p[i + 3]) : 0);
}

/* S, [dk, dv] from the first of the lane's four columns on, of which `left` are there, to registers and back: x[i][c] is
 * row i / 4 * 64 + lane / 2 * 4 + i % 4 and column c of the four. wide: four in one access. */
template <int PER_LANE>
__device__ __forceinline__ void load_S(float (&x)[PER_LANE][4], const float *S, int32_t dk,
                                       int32_t dv, int32_t left, bool wide)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        int k = i / 4 * 64 + lane / 2 * 4 + i % 4;
        float4 f = make_float4(0, 0, 0, 0);
        if (k < dk)
            f = four(S + (int64_t)k * dv, 0, left, wide);
        x[i][0] = f.x, x[i][1] = f.y, x[i][2] = f.z, x[i][3] = f.w;
    }
}
template <int PER_LANE>
__device__ __forceinline__ void store_S(const float (&x)[PER_LANE][4], float *S, int32_t dk,
                                        int32_t dv, int32_t left, bool wide)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        int k = i / 4 * 64 + lane / 2 * 4 + i % 4;
        if (k >= dk)
            continue;
        float *to = S + (int64_t)k * dv;
        if (wide) {
            if (left > 0)
                *(float4 *)to = make_float4(x[i][0], x[i][1], x[i][2], x[i][3]);
        } else {
#pragma unroll
            for (int c = 0; c < 4; c++)
                if (c < left)
                    to[c] = x[i][c];
        }
    }
}

/* By warp `warp` of those that share `in`: n rows. S[i][c] is row i / 4 * 64 + lane / 2 * 4 + i % 4 of S and column
 * c of the lane's four, which begin at 8 warp + lane % 2 * 4. o [n, o_stride] takes the columns before
 * `cols`; NULL: none. */
template <int PER_LANE, int ROWS, int COLS>
__device__ __forceinline__ void step_rows(const struct delta_rows<PER_LANE, ROWS, COLS> *in,
                                          float S[PER_LANE][4], int n, int warp, float *o,
                                          int64_t o_stride, int cols)
{
    int lane = threadIdx.x % 32, group = lane / 2;
    int mine = warp * 8 + lane % 2 * 4 + lane / 4 % 4; /* column, after sum_columns */
    for (int r = 0; r < n; r++) {
        float4 scalars = in->scalars[r];
        float decay = scalars.x, v = in->v[r][mine];
        float kv[4] = {0, 0, 0, 0}, sq[4] = {0, 0, 0, 0}, k[PER_LANE];
#pragma unroll
        for (int i = 0; i < PER_LANE; i += 4) {
            float4 k4 = *(const float4 *)&in->k[r][i * 16 + group * 4];
            float4 q4 = *(const float4 *)&in->q[r][i * 16 + group * 4];
            float q[4] = {q4.x, q4.y, q4.z, q4.w};
            k[i] = k4.x, k[i + 1] = k4.y, k[i + 2] = k4.z, k[i + 3] = k4.w;
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    S[i + j][c] *= decay;
                    kv[c] = fmaf(S[i + j][c], k[i + j], kv[c]);
                    sq[c] = fmaf(S[i + j][c], q[j], sq[c]);
                }
        }
        float sum = sum_columns(kv, sq), other = __shfl_xor_sync(0xffffffffu, sum, 16);
        float d = scalars.y * (v - (lane & 16 ? other : sum));
        if (o && (lane & 18) == 16 && mine < cols)
            o[r * o_stride + mine] = fmaf(scalars.z, d, sum);
        float d4[4];
#pragma unroll
        for (int c = 0; c < 4; c++)
            d4[c] = __shfl_sync(0xffffffffu, d, lane % 2 + c * 4);
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                S[i][c] = fmaf(k[i], d4[c], S[i][c]);
    }
}

#endif

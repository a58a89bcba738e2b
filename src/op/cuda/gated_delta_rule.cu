/* The gated delta rule, row after row, with S in registers. One form for every phase and for the fold, so
 * that all of them, and any cut of a sequence into batches, give the same bits.
 *
 * Columns of S do not meet. A block has COLS of them of one v head of one sequence: each of its WARPS
 * consumer warps holds 8, as 16 groups of lanes along dk times 2 lanes of 4 columns. PRODUCERS more warps
 * prepare the next rows meanwhile, all their loads at once: they normalise q and k, and take exp(g).
 *
 * One reduction a row serves both products, since o = S'^T q^ with S' = decay S + k^ d^T is
 * decay S^T q^ + (k^ . q^) d. */
#include "op/cuda/cuda.cuh"

enum {
    WARPS = 4,
    COLS = WARPS * 8,
    PRODUCERS = 4,
    THREADS = (WARPS + PRODUCERS) * 32,
};

struct delta {
    const void *qkv;
    const float *g, *beta;
    float *S, *o;                                                  /* o NULL: none is wanted */
    int64_t qkv_stride, g_stride, beta_stride, S_stride, o_stride; /* elements */
    size_t S_step, record_step; /* bytes from layer to layer; record: qkv, g and beta */
    int32_t n_k, n_v, dk, dv, slices;
    const struct batch_seq *seq;
    bool store;  /* S is advanced */
    bool wide_S; /* four columns of S in one access */
};

/* What consumers need of some rows. */
template <int PER_LANE, int ROWS> struct rows {
    float q[ROWS][16 * PER_LANE], k[ROWS][16 * PER_LANE]; /* zero from dk on */
    float v[ROWS][COLS];
    float4 scalars[ROWS]; /* decay, beta, k^ . q^ */
};

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

__device__ __forceinline__ float dot4(float4 a, float4 b, float sum)
{
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}
__device__ __forceinline__ float4 times(float4 a, float b)
{
    return make_float4(a.x * b, a.y * b, a.z * b, a.w * b);
}

/* `n` rows from row t of the batch, by the producers together. WIDE: four of q and k in one access. */
template <typename T, int PER_LANE, int ROWS, bool WIDE>
__device__ __forceinline__ void prepare(const struct delta &a, struct rows<PER_LANE, ROWS> *to,
                                        int64_t t, int n, int head, int col)
{
    enum { FOURS = (16 * PER_LANE + 127) / 128, EACH = ROWS / PRODUCERS };
    int lane = threadIdx.x % 32, first = threadIdx.x / 32 - WARPS, k_head = head / (a.n_v / a.n_k);
    int64_t q_at = (int64_t)k_head * a.dk, k_at = (int64_t)(a.n_k + k_head) * a.dk;
    int64_t v_at = 2 * (int64_t)a.n_k * a.dk + (int64_t)head * a.dv + col;
    float4 q[EACH][FOURS], k[EACH][FOURS];
    float v[EACH], g[EACH], beta[EACH];
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int64_t at = t + min(first + j * PRODUCERS, n - 1);
        const T *row = (const T *)a.qkv + at * a.qkv_stride;
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            q[j][i] = four(row + q_at, i * 128 + lane * 4, a.dk, WIDE);
            k[j][i] = four(row + k_at, i * 128 + lane * 4, a.dk, WIDE);
        }
        v[j] = col + lane < a.dv ? to_float(row[v_at + lane]) : 0;
        g[j] = a.g[at * a.g_stride + head];
        beta[j] = a.beta[at * a.beta_stride + head];
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int r = first + j * PRODUCERS;
        float qq = 0, kk = 0, kq = 0;
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            qq = dot4(q[j][i], q[j][i], qq);
            kk = dot4(k[j][i], k[j][i], kk);
            kq = dot4(k[j][i], q[j][i], kq);
        }
        qq = warp_sum(qq);
        kk = warp_sum(kk);
        kq = warp_sum(kq);
        if (r >= n)
            continue;
        float k_scale = 1.0f / sqrtf(kk + 1e-6f);
        float q_scale = 1.0f / sqrtf(qq + 1e-6f) / sqrtf((float)a.dk);
#pragma unroll
        for (int i = 0; i < FOURS; i++)
            if (i * 128 + lane * 4 < 16 * PER_LANE) {
                *(float4 *)&to->q[r][i * 128 + lane * 4] = times(q[j][i], q_scale);
                *(float4 *)&to->k[r][i * 128 + lane * 4] = times(k[j][i], k_scale);
            }
        to->v[r][lane] = v[j];
        if (lane == 0)
            to->scalars[r] = make_float4(expf(g[j]), beta[j], kq * k_scale * q_scale, 0);
    }
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

/* By the consumers: `n` rows from row t. S[i][c] is row k_at(i) and column c of the lane's four. */
template <int PER_LANE, int ROWS>
__device__ __forceinline__ void consume(const struct delta &a,
                                        const struct rows<PER_LANE, ROWS> *in, float S[PER_LANE][4],
                                        int64_t t, int n, int head, int col)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 2;
    int mine =
        warp * 8 + lane % 2 * 4 + lane / 4 % 4; /* of the block's columns, after sum_columns */
    for (int r = 0; r < n; r++, t++) {
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
        if (a.o && (lane & 18) == 16 && col + mine < a.dv)
            a.o[t * a.o_stride + (int64_t)head * a.dv + col + mine] = fmaf(scalars.z, d, sum);
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

/* `bytes` further on. */
template <typename P> __device__ __forceinline__ P *step(P *p, size_t bytes)
{
    return (P *)((uintptr_t)p + bytes);
}

/* dk <= 16 * PER_LANE. Any number of rows. blockIdx.x: sequences, heads, slices of columns; y: layers. A
 * decoded row is bound by reading and writing S; long sequences by the chain of additions from row to row. */
template <typename T, int PER_LANE, int ROWS, bool WIDE>
__global__ void __launch_bounds__(THREADS) delta_rule(struct delta a)
{
    begin_kernel();
    __shared__ struct rows<PER_LANE, ROWS> buffer[2];
    a.qkv = step(a.qkv, blockIdx.y * a.record_step);
    a.g = step(a.g, blockIdx.y * a.record_step);
    a.beta = step(a.beta, blockIdx.y * a.record_step);
    a.S = step(a.S, blockIdx.y * a.S_step);
    int slice = blockIdx.x % a.slices, head = blockIdx.x / a.slices % a.n_v;
    struct batch_seq s = a.seq[blockIdx.x / a.slices / a.n_v];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, col = slice * COLS;
    int at = col + warp * 8 + lane % 2 * 4; /* first of the lane's columns */
    float *S = a.S + s.slot * a.S_stride + (int64_t)head * a.dk * a.dv + at;
    float x[PER_LANE][4];
    if (warp >= WARPS) {
        prepare<T, PER_LANE, ROWS, WIDE>(a, &buffer[0], s.first_row, min(ROWS, s.n_rows), head,
                                         col);
    } else {
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            int k = i / 4 * 64 + lane / 2 * 4 + i % 4;
            float4 f = make_float4(0, 0, 0, 0);
            if (k < a.dk)
                f = four(S + (int64_t)k * a.dv, 0, a.dv - at, a.wide_S);
            x[i][0] = f.x, x[i][1] = f.y, x[i][2] = f.z, x[i][3] = f.w;
        }
    }
    for (int32_t first = 0; first < s.n_rows; first += ROWS) {
        int now = first / ROWS % 2;
        __syncthreads();
        if (warp >= WARPS) {
            int32_t next = first + ROWS;
            if (next < s.n_rows)
                prepare<T, PER_LANE, ROWS, WIDE>(a, &buffer[!now], s.first_row + (int64_t)next,
                                                 min(ROWS, s.n_rows - next), head, col);
        } else {
            consume(a, &buffer[now], x, s.first_row + (int64_t)first, min(ROWS, s.n_rows - first),
                    head, col);
        }
    }
    if (!a.store || warp >= WARPS)
        return;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        int k = i / 4 * 64 + lane / 2 * 4 + i % 4;
        if (k >= a.dk)
            continue;
        float *to = S + (int64_t)k * a.dv;
        if (a.wide_S) {
            if (at < a.dv)
                *(float4 *)to = make_float4(x[i][0], x[i][1], x[i][2], x[i][3]);
        } else {
#pragma unroll
            for (int c = 0; c < 4; c++)
                if (at + c < a.dv)
                    to[c] = x[i][c];
        }
    }
}

static bool aligned(const void *p, int64_t stride, size_t size, size_t to)
{
    return ((uintptr_t)p | (uintptr_t)(stride * (int64_t)size)) % to == 0;
}

/* qkv, g, beta, S and the shapes are set. */
static void launch(struct gpu *c, struct delta *a, const struct tensor *qkv, int32_t n_seqs,
                   int32_t n_layers)
{
    size_t size = qkv->dtype == DT_F32 ? 4 : 2;
    a->slices = (a->dv + COLS - 1) / COLS;
    a->wide_S = a->dv % 4 == 0 && aligned(a->S, a->S_stride, 4, 16);
    bool wide = a->dk % 4 == 0 && aligned(a->qkv, a->qkv_stride, size, 4 * size);
    dim3 blocks((unsigned)(n_seqs * a->n_v * a->slices), (unsigned)n_layers);
    WITH_ACT(qkv->dtype, T, {
        if (a->dk > 128)
            launch_next(c, delta_rule<T, 32, 4, false>, blocks, THREADS, 0, *a);
        else if (wide)
            launch_next(c, delta_rule<T, 8, 16, true>, blocks, THREADS, 0, *a);
        else
            launch_next(c, delta_rule<T, 8, 16, false>, blocks, THREADS, 0, *a);
    });
}

static struct delta delta_of(const struct tensor *qkv, const struct tensor *g,
                             const struct tensor *beta, const struct tensor *S,
                             const struct gdn_heads *heads)
{
    struct delta d = {};
    d.qkv = qkv->data;
    d.g = (const float *)g->data;
    d.beta = (const float *)beta->data;
    d.S = (float *)S->data;
    d.qkv_stride = qkv->stride;
    d.g_stride = g->stride;
    d.beta_stride = beta->stride;
    d.S_stride = S->stride;
    d.n_k = heads->n_k_heads;
    d.n_v = heads->n_v_heads;
    d.dk = heads->dk;
    d.dv = heads->dv;
    return d;
}

extern "C" lathe_status cuda_gated_delta_rule(void *stream, const struct gated_delta_rule_args *a,
                                              lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    struct cuda_batch b;
    lathe_status st = cuda_batch(c, a->b, &b, err);
    if (st)
        return st;
    struct delta d = delta_of(&a->qkv, &a->g, &a->beta, &a->S, &a->heads);
    d.o = (float *)a->o.data;
    d.o_stride = a->o.stride;
    d.seq = b.seq;
    d.store = b.phase != PHASE_VERIFY;
    launch(c, &d, &a->qkv, b.n_seqs, 1);
    return cuda_launched(c, err);
}

extern "C" lathe_status cuda_gated_delta_fold(void *stream, const struct gated_delta_fold_args *a,
                                              lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    if (a->n_seqs == 0)
        return LATHE_OK;
    struct delta d = delta_of(&a->qkv, &a->g, &a->beta, &a->S, &a->heads);
    d.seq = (const struct batch_seq *)cuda_upload(c, a->seq, (size_t)a->n_seqs * sizeof *a->seq);
    d.store = true;
    d.S_step = a->layers.state_step;
    d.record_step = a->layers.record_step;
    if (d.seq)
        launch(c, &d, &a->qkv, a->n_seqs, a->layers.n);
    return cuda_launched(c, err);
}

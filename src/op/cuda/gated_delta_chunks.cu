/* The gated delta rule in chunks of 64 rows, by tensor cores: heads of 128 x 128, q, k and v in BF16.
 *
 * Of a chunk's rows t, with S the state before it, G the running sum of g from the chunk's first row on, and
 *   A[t,s] = beta_t e^(G_t - G_s) k^_t . k^_s, s < t    T = (I + A)^-1 diag(beta)
 *   P[t,s] = e^(G_t - G_s) q^_t . k^_s, s <= t
 * the rule says
 *   D = T (V - e^G K^ S)    o = e^G Q^ S + P D    S' = e^G_64 S + (e^(G_64 - G) K^)^T D.
 * T and P need no S: `factors` makes them of all chunks at once. `walk` then goes from chunk to chunk with S in
 * registers, a warp 16 columns of it.
 *
 * Sums are F32. q and k are factors as they are, exact in BF16, their norms and decays multiply sums; S, D, T and P
 * are two parts of BF16 each, 2^-18 of them being lost; of the product of two such the smallest quarter is left out.
 *
 * Chunks begin at multiples of 64 positions, and where a prompt does. What a row of a chunk gets does not depend on later
 * rows, nor on whether there are any. Where a batch ends within a chunk, its rows and the S before it are kept, and a
 * batch that goes on there begins with them: a prompt may be cut anywhere. What is not finite in a row may reach
 * all 16 rows around it. */
#include "op/cuda/attention.cuh"
#include "op/cuda/wgmma.cuh"

enum {
    CHUNK = 64,
    HEAD = 128,
    THREADS = 128,     /* that make factors; that have S; that make o */
    COLS = 64,         /* of S, of a block that walks */
    BLOCKS_OF_16 = 10, /* of a lower triangle: block (i, j) is number i (i + 1) / 2 + j */
};

/* Lower triangles in blocks of 16 x 16 as mma.cuh has them for two products of 8 rows each, what is summed over
 * being columns: a lane's four words are neighbours. */
struct triangle {
    uint4 hi[BLOCKS_OF_16][32], lo[BLOCKS_OF_16][32];
};
/* What `walk` needs of a head's chunk beside q, k and v. */
struct chunk_factors {
    struct triangle T, P;
    float4 row[CHUNK]; /* e^G / |k|, e^G / |q| / sqrt(dk), e^(G_64 - G) / |k|, e^G_64 */
};

/* Behind a slot's S: the chunk in which its last batch ended. Then S before it, F32 [n_v, 128, 128], and rows whose row r
 * is position r of the chunk: q, k and v [64, (2 n_k + n_v) 128], g and beta [64, n_v]. */
struct open_chunk {
    int32_t end; /* position behind its last row; of an older batch, if the sequence is not there */
    int32_t n;   /* rows; 0: the batch ended with a chunk */
    int32_t unused[2];
};

struct chunks {
    const bf16 *qkv;
    const float *g, *beta;
    float *S, *o;
    int64_t qkv_stride, g_stride, beta_stride, S_stride, o_stride; /* elements */
    int32_t n_k, n_v;
    const struct batch_seq *seq;
    struct chunk_factors *factors; /* see factors_at */
    int32_t *n_open;               /* of each sequence: rows that are kept from an open chunk */
};

__host__ __device__ __forceinline__ int64_t matrix_of(int32_t n_v)
{
    return (int64_t)n_v * HEAD * HEAD;
}
__device__ __forceinline__ struct open_chunk *open_of(const struct chunks &a, int32_t slot)
{
    return (struct open_chunk *)(a.S + slot * a.S_stride + matrix_of(a.n_v));
}
__device__ __forceinline__ float *open_S(const struct chunks &a, struct open_chunk *open)
{
    return (float *)(open + 1);
}
__device__ __forceinline__ bf16 *open_qkv(const struct chunks &a, struct open_chunk *open)
{
    return (bf16 *)(open_S(a, open) + matrix_of(a.n_v));
}
__device__ __forceinline__ int64_t width_of(const struct chunks &a)
{
    return (int64_t)(2 * a.n_k + a.n_v) * HEAD;
}
__device__ __forceinline__ float *open_g(const struct chunks &a, struct open_chunk *open)
{
    return (float *)(open_qkv(a, open) + CHUNK * width_of(a));
}

/* A sequence's chunks, its kept rows and then the batch's: row r of chunk c is row 64 c + r - lead of n_rows. */
struct chunk_seq {
    struct batch_seq s;
    int32_t n_open, n_rows, lead, n;
};
__device__ __forceinline__ struct chunk_seq chunks_of(const struct chunks &a, int i, int32_t n_open)
{
    struct chunk_seq q = {a.seq[i], n_open, 0, 0, 0};
    q.n_rows = n_open + q.s.n_rows;
    q.lead = (q.s.pos - n_open) % CHUNK;
    q.n = q.s.n_rows == 0 ? 0 : (q.lead + q.n_rows + CHUNK - 1) / CHUNK;
    return q;
}
/* Does the batch end within a chunk? */
__device__ __forceinline__ bool ends_open(const struct chunk_seq &q)
{
    return (q.lead + q.n_rows) % CHUNK != 0;
}
/* A sequence has at most two more than its rows fill. */
__device__ __forceinline__ int64_t factors_at(const struct chunks &a, const struct chunk_seq &q,
                                              int i, int chunk, int head)
{
    return (int64_t)(q.s.first_row / CHUNK + 2 * i + chunk) * a.n_v + head;
}

/* Two parts of two neighbours. */
__device__ __forceinline__ void split(uint32_t &hi, uint32_t &lo, float x, float y)
{
    __nv_bfloat162 h = __floats2bfloat162_rn(x, y);
    hi = *(const uint32_t *)&h;
    __nv_bfloat162 l =
        __floats2bfloat162_rn(x - __uint_as_float(hi << 16), y - __uint_as_float(hi & 0xffff0000u));
    lo = *(const uint32_t *)&l;
}
/* Sums [16, 16] become the left factor of a product over their columns. */
__device__ __forceinline__ void split_left(uint32_t hi[4], uint32_t lo[4], const float x[4],
                                           const float y[4])
{
    split(hi[0], lo[0], x[0], x[1]);
    split(hi[1], lo[1], x[2], x[3]);
    split(hi[2], lo[2], y[0], y[1]);
    split(hi[3], lo[3], y[2], y[3]);
}

/* Rows [first, first + 64) of a sequence, of which those before n_open were kept. */
struct row_source {
    const bf16 *kept, *rows; /* row `first`, wherever that is */
    int64_t kept_stride, stride;
    int32_t first, n_open, n_rows;
};
__device__ __forceinline__ struct row_source source_of(const struct chunks &a,
                                                       const struct chunk_seq &q, int chunk)
{
    struct row_source s = {};
    s.first = chunk * CHUNK - q.lead;
    s.kept = open_qkv(a, open_of(a, q.s.slot));
    s.kept_stride = width_of(a);
    s.rows = a.qkv + (q.s.first_row + (int64_t)(s.first - q.n_open)) * a.qkv_stride;
    s.stride = a.qkv_stride;
    s.n_open = q.n_open;
    s.n_rows = q.n_rows;
    return s;
}

/* By THREADS: N pieces of 16 bytes of each, from column `col` on, to swizzled rows; zeros for rows that are not the
 * sequence's. */
template <int N>
__device__ __forceinline__ void fetch_rows(bf16 *to, const struct row_source &s, int64_t col)
{
    enum { STEP = THREADS / N };
    int piece = threadIdx.x % N, row = threadIdx.x % THREADS / N;
    int64_t at = col + piece * 8;
    const bf16 *p = s.rows + row * s.stride + at;
#pragma unroll
    for (int i = 0; i < CHUNK / STEP; i++, p += STEP * s.stride) {
        int r = row + i * STEP, t = s.first + r;
        const bf16 *from = t < s.n_open ? s.kept + r * s.kept_stride + at : p;
        copy_async(to + swizzled<N * 8>(r, piece), from, t >= 0 && t < s.n_rows);
    }
}

/* ---- T and P ------------------------------------------------------------------------------------- */

/* Of rows in F32: four of a row are 16-byte aligned, and neighbours lie in other banks. */
enum { PITCH = CHUNK + 4 };

struct factors_shared {
    float A[CHUNK * PITCH];
    float G_hi[CHUNK], G_lo[CHUNK], k_scale[CHUNK], q_scale[CHUNK], beta[CHUNK];
    union {
        struct {
            bf16 k[CHUNK * HEAD], q[CHUNK * HEAD]; /* swizzled */
        };
        struct {
            float T[CHUNK * PITCH], X[CHUNK / 2 * PITCH]; /* when k and q have been used */
        };
    };
};

/* Running sums of g in two floats: where it is large, differences of later rows would be coarse in one. By a warp, whose
 * lanes have two each. */
__device__ __forceinline__ void sum_decays(struct factors_shared *sh, const float g[2])
{
    int lane = threadIdx.x % 32;
    double x[2] = {g[0], g[1]}, sum = x[0] + x[1];
#pragma unroll
    for (int i = 1; i < 32; i <<= 1) {
        double before = __shfl_up_sync(0xffffffffu, sum, i);
        if (lane >= i)
            sum += before;
    }
    x[0] = sum - x[1];
    x[1] = sum;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float hi = (float)x[i];
        sh->G_hi[lane * 2 + i] = hi;
        sh->G_lo[lane * 2 + i] = (float)(x[i] - (double)hi);
    }
}

/* 1 / |x| of four rows at once, eight lanes a row. */
__device__ __forceinline__ void norms(float *scale, const bf16 *x, float factor)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < CHUNK / 16; i++) {
        int r = i * 16 + warp * 4 + lane / 8;
        float sum = 0;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            uint4 v = *(const uint4 *)(x + swizzled<HEAD>(r, k * 8 + lane % 8));
            const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float a = __uint_as_float(w[j] << 16), b = __uint_as_float(w[j] & 0xffff0000u);
                sum = fmaf(b, b, fmaf(a, a, sum));
            }
        }
#pragma unroll
        for (int k = 1; k < 8; k <<= 1)
            sum += __shfl_xor_sync(0xffffffffu, sum, k);
        if (lane % 8 == 0)
            scale[r] = 1.0f / sqrtf(sum + 1e-6f) * factor;
    }
}

/* T's blocks on the diagonal: the inverse of I + A there, a column a thread. */
__device__ __forceinline__ void invert_16(struct factors_shared *sh)
{
    if (threadIdx.x >= CHUNK)
        return;
    int at = threadIdx.x / 16 * 16, c = threadIdx.x % 16;
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float sum[2] = {0, 0};
#pragma unroll
        for (int j = 0; j < i; j += 4) {
            float4 a = *(const float4 *)&sh->A[(at + i) * PITCH + at + j];
            const float b[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (j + k < i)
                    sum[k % 2] = fmaf(b[k], x[j + k], sum[k % 2]);
        }
        x[i] = (i == c ? 1.0f : 0.0f) - (sum[0] + sum[1]);
        sh->T[(at + i) * PITCH + at + c] = x[i];
    }
}

/* to = sign a b of N x N, a thread ROWS of 4 columns; `thread` counts those who share it. */
template <int N, int ROWS>
__device__ __forceinline__ void multiply(float *to, const float *a, const float *b, float sign,
                                         int thread)
{
    int c = thread % (N / 4) * 4, r = thread / (N / 4) * ROWS;
    float sum[ROWS][4] = {};
#pragma unroll 4
    for (int k = 0; k < N; k += 4) {
        float4 x[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            x[i] = *(const float4 *)&a[(r + i) * PITCH + k];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float4 y = *(const float4 *)&b[(k + j) * PITCH + c];
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                float f = j == 0 ? x[i].x : j == 1 ? x[i].y : j == 2 ? x[i].z : x[i].w;
                sum[i][0] = fmaf(f, y.x, sum[i][0]);
                sum[i][1] = fmaf(f, y.y, sum[i][1]);
                sum[i][2] = fmaf(f, y.z, sum[i][2]);
                sum[i][3] = fmaf(f, y.w, sum[i][3]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        *(float4 *)&to[(r + i) * PITCH + c] =
            make_float4(sum[i][0] * sign, sum[i][1] * sign, sum[i][2] * sign, sum[i][3] * sign);
}

/* The blocks below two that are inverted: T21 = - T22 (A21 T11). */
__device__ __forceinline__ void invert(struct factors_shared *sh)
{
    invert_16(sh);
    __syncthreads();
    int pair = threadIdx.x / 64, at = pair * 32, half = threadIdx.x % 64;
    float *X = sh->X + pair * 16 * PITCH;
    multiply<16, 1>(X, sh->A + (at + 16) * PITCH + at, sh->T + at * PITCH + at, 1, half);
    if (half < 32) /* above the diagonal of what is 32 wide from now on */
        for (int i = 0; i < 8; i++)
            sh->T[(at + half / 16 * 8 + i) * PITCH + at + 16 + half % 16] = 0;
    __syncthreads();
    multiply<16, 1>(sh->T + (at + 16) * PITCH + at, sh->T + (at + 16) * PITCH + at + 16, X, -1,
                    half);
    __syncthreads();
    multiply<32, 2>(sh->X, sh->A + 32 * PITCH, sh->T, 1, threadIdx.x);
    __syncthreads();
    multiply<32, 2>(sh->T + 32 * PITCH, sh->T + 32 * PITCH + 32, sh->X, -1, threadIdx.x);
    __syncthreads();
}

/* A block is a chunk and a v head. Bound by latency: a few hundred products of tensor cores, and the inverse. */
__global__ void __launch_bounds__(THREADS) factors(struct chunks a)
{
    extern __shared__ uint4 memory[];
    struct factors_shared *sh = (struct factors_shared *)memory;
    begin_kernel();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    int chunk = blockIdx.x, head = blockIdx.y;
    struct open_chunk *open = open_of(a, a.seq[blockIdx.z].slot);
    struct chunk_seq seq =
        chunks_of(a, blockIdx.z, open->end == a.seq[blockIdx.z].pos ? open->n : 0);
    if (chunk == 0 && head == 0 && threadIdx.x == 0)
        a.n_open[blockIdx.z] = seq.n_open;
    if (chunk >= seq.n)
        return;
    struct row_source source = source_of(a, seq, chunk);
    int k_head = head / (a.n_v / a.n_k);
    fetch_rows<HEAD / 8>(sh->k, source, (int64_t)(a.n_k + k_head) * HEAD);
    fetch_rows<HEAD / 8>(sh->q, source, (int64_t)k_head * HEAD);
    copies_commit();
    /* g or beta of the chunk's row r; 0 for one that is not the sequence's */
    auto gate = [&](const float *rows, int64_t stride, const float *kept, int r) {
        int32_t t = source.first + r;
        if (t < 0 || t >= seq.n_rows)
            return 0.0f;
        return t < seq.n_open ? kept[r * a.n_v + head]
                              : rows[(seq.s.first_row + (int64_t)(t - seq.n_open)) * stride + head];
    };
    if (warp == 0) {
        const float *kept = open_g(a, open);
        const float two[2] = {gate(a.g, a.g_stride, kept, lane * 2),
                              gate(a.g, a.g_stride, kept, lane * 2 + 1)};
        sum_decays(sh, two);
    }
    if (warp >= 2)
        sh->beta[threadIdx.x - 64] =
            gate(a.beta, a.beta_stride, open_g(a, open) + CHUNK * a.n_v, threadIdx.x - 64);
    copies_wait<0>();
    __syncthreads();
    norms(sh->k_scale, sh->k, 1);
    norms(sh->q_scale, sh->q, 1 / sqrtf((float)HEAD));
    __syncthreads();

    struct chunk_factors *out = a.factors + factors_at(a, seq, blockIdx.z, chunk, head);
    uint32_t k[HEAD / 16][4], p[HEAD / 16][4];
#pragma unroll
    for (int i = 0; i < HEAD / 16; i++) {
        int at = swizzled<HEAD>(warp * 16 + lane % 16, i * 2 + lane / 16);
        ldmatrix(k[i], shared_address(sh->k + at));
        ldmatrix(p[i], shared_address(sh->q + at));
    }
#pragma unroll 1
    for (int j = 0; j <= warp; j++) {
        float kk[2][4] = {}, qk[2][4] = {};
#pragma unroll
        for (int i = 0; i < HEAD / 16; i++) {
            uint32_t b[4];
            ldmatrix(b, shared_address(sh->k + swizzled<HEAD>(j * 16 + lane / 16 * 8 + lane % 8,
                                                              i * 2 + lane / 8 % 2)));
            mma_bf16(kk[0], k[i], b[0], b[1]);
            mma_bf16(kk[1], k[i], b[2], b[3]);
            mma_bf16(qk[0], p[i], b[0], b[1]);
            mma_bf16(qk[1], p[i], b[2], b[3]);
        }
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int t = warp * 16 + g + e / 2 * 8, s = j * 16 + h * 8 + q * 2 + e % 2;
                float decay = (sh->G_hi[t] - sh->G_hi[s]) + (sh->G_lo[t] - sh->G_lo[s]);
                float f = s <= t ? expf(decay) * sh->k_scale[s] : 0;
                qk[h][e] = s <= t ? f * sh->q_scale[t] * qk[h][e] : 0;
                sh->A[t * PITCH + s] = s < t ? f * sh->k_scale[t] * sh->beta[t] * kk[h][e] : 0;
            }
        uint32_t hi[4], lo[4];
        split(hi[0], lo[0], qk[0][0], qk[0][1]);
        split(hi[1], lo[1], qk[1][0], qk[1][1]);
        split(hi[2], lo[2], qk[0][2], qk[0][3]);
        split(hi[3], lo[3], qk[1][2], qk[1][3]);
        int block = warp * (warp + 1) / 2 + j;
        out->P.hi[block][lane] = make_uint4(hi[0], hi[1], hi[2], hi[3]);
        out->P.lo[block][lane] = make_uint4(lo[0], lo[1], lo[2], lo[3]);
    }
    if (threadIdx.x < CHUNK) {
        int t = threadIdx.x;
        float e = expf(sh->G_hi[t] + sh->G_lo[t]), last = sh->G_hi[CHUNK - 1];
        float rest = (last - sh->G_hi[t]) + (sh->G_lo[CHUNK - 1] - sh->G_lo[t]);
        out->row[t] = make_float4(e * sh->k_scale[t], e * sh->q_scale[t],
                                  expf(rest) * sh->k_scale[t], expf(last + sh->G_lo[CHUNK - 1]));
    }
    __syncthreads(); /* T and X lie where k and q did */
    invert(sh);
    for (int block = warp; block < BLOCKS_OF_16; block += 4) {
        int i = block < 1 ? 0 : block < 3 ? 1 : block < 6 ? 2 : 3, j = block - i * (i + 1) / 2;
        uint32_t hi[4], lo[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int t = i * 16 + e / 2 * 8 + g, s = j * 16 + e % 2 * 8 + q * 2;
            split(hi[e], lo[e], sh->T[t * PITCH + s] * sh->beta[s],
                  sh->T[t * PITCH + s + 1] * sh->beta[s + 1]);
        }
        out->T.hi[block][lane] = make_uint4(hi[0], hi[1], hi[2], hi[3]);
        out->T.lo[block][lane] = make_uint4(lo[0], lo[1], lo[2], lo[3]);
    }
}

/* ---- S -------------------------------------------------------------------------------------------- */

/* What a chunk needs. */
struct walk_stage {
    bf16 k[CHUNK * HEAD], q[CHUNK * HEAD], v[CHUNK * COLS]; /* swizzled */
    struct chunk_factors f;
};
/* What a warp that has S tells the one that makes o of it: S^T as left factors in two parts, D^T as sums. */
struct told {
    uint4 S_hi[HEAD / 16][32], S_lo[HEAD / 16][32];
    float4 D[CHUNK / 8][32];
};
struct walk_shared {
    struct walk_stage stage[2]; /* of chunk c in place c % 2 */
    struct told told[THREADS / 32];
};
/* Barriers of such a pair */
enum { BARRIER_S = 1, BARRIER_D = BARRIER_S + THREADS / 32 };

/* Products of one sum wait for one another: these go round all eight sums before they come to the first again.
 *
 * sums [16, 64] += left [16, 64] M^T for a lower triangle M, left in two parts. */
__device__ __forceinline__ void add_triangle(float sum[CHUNK / 8][4], const uint32_t hi[4][4],
                                             const uint32_t lo[4][4], const struct triangle *m)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint4 h[4], l[4];
#pragma unroll
        for (int i = j; i < 4; i++) {
            h[i] = m->hi[i * (i + 1) / 2 + j][lane];
            mma_bf16(sum[i * 2], lo[j], h[i].x, h[i].y);
            mma_bf16(sum[i * 2 + 1], lo[j], h[i].z, h[i].w);
        }
#pragma unroll
        for (int i = j; i < 4; i++) {
            l[i] = m->lo[i * (i + 1) / 2 + j][lane];
            mma_bf16(sum[i * 2], hi[j], l[i].x, l[i].y);
            mma_bf16(sum[i * 2 + 1], hi[j], l[i].z, l[i].w);
        }
#pragma unroll
        for (int i = j; i < 4; i++) {
            mma_bf16(sum[i * 2], hi[j], h[i].x, h[i].y);
            mma_bf16(sum[i * 2 + 1], hi[j], h[i].z, h[i].w);
        }
    }
}

/* sums [16, 64] += left [16, 16] b, left in two parts, b [16, 64] in right factors of two sums each. */
__device__ __forceinline__ void add_parts(float sum[CHUNK / 8][4], const uint32_t hi[4],
                                          const uint32_t lo[4], const uint32_t b[4][4])
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        mma_bf16(sum[i], lo, b[i / 2][i % 2 * 2], b[i / 2][i % 2 * 2 + 1]);
#pragma unroll
    for (int i = 0; i < 8; i++)
        mma_bf16(sum[i], hi, b[i / 2][i % 2 * 2], b[i / 2][i % 2 * 2 + 1]);
}

/* sums [16, 64] += left [16, 16] M^T: columns `at` and the next 15 of M [64, 128], which is swizzled. */
__device__ __forceinline__ void add_rows(float sum[CHUNK / 8][4], const uint32_t hi[4],
                                         const uint32_t lo[4], const bf16 *m, int at)
{
    int lane = threadIdx.x % 32;
    uint32_t b[4][4];
#pragma unroll
    for (int j = 0; j < CHUNK / 16; j++)
        ldmatrix(b[j], shared_address(m + swizzled<HEAD>(j * 16 + lane / 16 * 8 + lane % 8,
                                                         at / 8 + lane / 8 % 2)));
    add_parts(sum, hi, lo, b);
}

struct walked {
    struct chunk_seq seq;
    int slice, head;
};

__device__ __forceinline__ void put_S(float *to, const float S[HEAD / 8][4])
{
    int q = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < HEAD / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            to[(i * 8 + q * 2 + e % 2) * HEAD + e / 2 * 8] = S[i][e];
}

/* A warp's 16 columns of S through all chunks, as S^T [16, 128] the way mma.cuh has sums, and thereby left factors. */
__device__ __forceinline__ void advance_S(const struct chunks &a, struct walk_shared *sh,
                                          const struct walked &w)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    struct told *told = &sh->told[warp];
    int64_t place = (int64_t)w.head * HEAD * HEAD + w.slice * COLS + warp * 16 + g;
    float *home = a.S + w.seq.s.slot * a.S_stride + place;
    float *before = open_S(a, open_of(a, w.seq.s.slot)) + place; /* the open chunk */
    const float *begin = w.seq.n_open ? before : home;
    float S[HEAD / 8][4];
#pragma unroll
    for (int i = 0; i < HEAD / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            S[i][e] = begin[(i * 8 + q * 2 + e % 2) * HEAD + e / 2 * 8];
#pragma unroll 1
    for (int chunk = 0; chunk < w.seq.n; chunk++) {
        const struct walk_stage *in = &sh->stage[chunk % 2];
        __syncthreads(); /* the chunk is there, and what was told of the last one is used */
        if (chunk == w.seq.n - 1 && ends_open(w.seq))
            put_S(before, S);

        /* x = (V - e^G K^ S)^T */
        float x[CHUNK / 8][4] = {};
#pragma unroll
        for (int i = 0; i < HEAD / 16; i++) {
            uint32_t hi[4], lo[4];
            split_left(hi, lo, S[i * 2], S[i * 2 + 1]);
            told->S_hi[i][lane] = make_uint4(hi[0], hi[1], hi[2], hi[3]);
            told->S_lo[i][lane] = make_uint4(lo[0], lo[1], lo[2], lo[3]);
            if (i == HEAD / 16 - 1)
                named_arrive(BARRIER_S + warp, 64);
            add_rows(x, hi, lo, in->k, i * 16);
        }
        uint32_t hi[CHUNK / 16][4], lo[CHUNK / 16][4];
#pragma unroll
        for (int j = 0; j < CHUNK / 16; j++) {
            uint32_t v[4];
            ldmatrix_trans(v,
                           shared_address(in->v + swizzled<COLS>(j * 16 + lane / 16 * 8 + lane % 8,
                                                                 warp * 2 + lane / 8 % 2)));
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float f0 = in->f.row[j * 16 + h * 8 + q * 2].x;
                float f1 = in->f.row[j * 16 + h * 8 + q * 2 + 1].x;
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    uint32_t two = v[h * 2 + e / 2];
                    x[j * 2 + h][e] = fmaf(-(e % 2 ? f1 : f0), x[j * 2 + h][e],
                                           __uint_as_float(e % 2 ? two & 0xffff0000u : two << 16));
                }
            }
            split_left(hi[j], lo[j], x[j * 2], x[j * 2 + 1]);
        }

        /* D^T = x T^T, and times e^(G_64 - G) / |k| */
        float d[CHUNK / 8][4] = {};
        add_triangle(d, hi, lo, &in->f.T);
#pragma unroll
        for (int j = 0; j < CHUNK / 8; j++)
            told->D[j][lane] = make_float4(d[j][0], d[j][1], d[j][2], d[j][3]);
        named_arrive(BARRIER_D + warp, 64);
#pragma unroll
        for (int j = 0; j < CHUNK / 16; j++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float f0 = in->f.row[j * 16 + h * 8 + q * 2].z;
                float f1 = in->f.row[j * 16 + h * 8 + q * 2 + 1].z;
#pragma unroll
                for (int e = 0; e < 4; e++)
                    d[j * 2 + h][e] *= e % 2 ? f1 : f0;
            }
            split_left(hi[j], lo[j], d[j * 2], d[j * 2 + 1]);
        }

        /* S' = e^G_64 S + (that K)^T, half of S at a time: the second part is added in F32, since tensor cores cut
         * off what they add to a larger sum. */
        float decay = in->f.row[0].w;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float u[HEAD / 16][4] = {};
#pragma unroll
            for (int j = 0; j < CHUNK / 16; j++) {
                uint32_t b[4][4];
#pragma unroll
                for (int i = 0; i < HEAD / 32; i++)
                    ldmatrix_trans(
                        b[i], shared_address(in->k + swizzled<HEAD>(j * 16 + lane % 16,
                                                                    half * 8 + i * 2 + lane / 16)));
                add_parts(u, hi[j], lo[j], b);
            }
#pragma unroll
            for (int i = 0; i < HEAD / 16; i++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    S[half * 8 + i][e] = fmaf(decay, S[half * 8 + i][e], u[i][e]);
        }
    }
    put_S(home, S);
}

/* o of the 16 columns that the warp's partner has; and all these warps together bring the next chunk meanwhile. */
__device__ __forceinline__ void make_o(const struct chunks &a, struct walk_shared *sh,
                                       const struct walked &w)
{
    int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    int k_head = w.head / (a.n_v / a.n_k);
    const struct told *told = &sh->told[warp];
    int32_t first = -w.seq.lead;                       /* of the chunk that is worked on */
    struct row_source source = source_of(a, w.seq, 0); /* of the next that is fetched */
    const struct chunk_factors *f = &a.factors[factors_at(a, w.seq, blockIdx.z, 0, w.head)];
    float *o = a.o + (w.seq.s.first_row + (int64_t)(first - w.seq.n_open) + q * 2) * a.o_stride +
               w.head * HEAD + w.slice * COLS + warp * 16 + g;
    auto fetch = [&](int chunk) {
        if (chunk < w.seq.n) {
            struct walk_stage *to = &sh->stage[chunk % 2];
            fetch_rows<HEAD / 8>(to->k, source, (int64_t)(a.n_k + k_head) * HEAD);
            fetch_rows<COLS / 8>(to->v, source,
                                 (int64_t)(2 * a.n_k + w.head) * HEAD + w.slice * COLS);
            for (int i = threadIdx.x % THREADS; i < (int)(sizeof *f / 16); i += THREADS)
                copy_async((uint4 *)&to->f + i, (const uint4 *)f + i, true);
            fetch_rows<HEAD / 8>(to->q, source, (int64_t)k_head * HEAD);
            source.first += CHUNK;
            source.rows += CHUNK * source.stride;
            f += a.n_v;
        }
        copies_commit();
    };
    fetch(0);
    copies_wait<0>();
    __syncthreads();
#pragma unroll 1
    for (int chunk = 0; chunk < w.seq.n; chunk++, first += CHUNK) {
        const struct walk_stage *in = &sh->stage[chunk % 2];
        fetch(chunk + 1);
        named_sync(BARRIER_S + warp, 64);
        float y[CHUNK / 8][4] = {};
#pragma unroll
        for (int i = 0; i < HEAD / 16; i++) {
            uint4 h = told->S_hi[i][lane], l = told->S_lo[i][lane];
            const uint32_t hi[4] = {h.x, h.y, h.z, h.w}, lo[4] = {l.x, l.y, l.z, l.w};
            add_rows(y, hi, lo, in->q, i * 16);
        }
#pragma unroll
        for (int j = 0; j < CHUNK / 8; j++) {
            float f0 = in->f.row[j * 8 + q * 2].y, f1 = in->f.row[j * 8 + q * 2 + 1].y;
#pragma unroll
            for (int e = 0; e < 4; e++)
                y[j][e] *= e % 2 ? f1 : f0;
        }
        named_sync(BARRIER_D + warp, 64);
        uint32_t hi[CHUNK / 16][4], lo[CHUNK / 16][4];
#pragma unroll
        for (int j = 0; j < CHUNK / 16; j++) {
            float4 d0 = told->D[j * 2][lane], d1 = told->D[j * 2 + 1][lane];
            const float x0[4] = {d0.x, d0.y, d0.z, d0.w}, x1[4] = {d1.x, d1.y, d1.z, d1.w};
            split_left(hi[j], lo[j], x0, x1);
        }
        add_triangle(y, hi, lo, &in->f.P);
        if (chunk + 1 < w.seq.n) {
            copies_wait<0>();
            __syncthreads();
        }
#pragma unroll
        for (int j = 0; j < CHUNK / 8; j++, o += 8 * a.o_stride)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int32_t t = first + j * 8 + q * 2 + e % 2;
                if (t >= w.seq.n_open && t < w.seq.n_rows)
                    o[e % 2 * a.o_stride + e / 2 * 8] = y[j][e];
            }
    }
}

/* A block has COLS columns of S of one v head of one sequence. On each quarter of a multiprocessor one warp has S and does
 * 316 products in a chunk, in three steps that wait for one another, and one makes o by 188. Bound by these. */
__global__ void __launch_bounds__(2 * THREADS, 1) walk(struct chunks a)
{
    extern __shared__ uint4 memory[];
    struct walk_shared *sh = (struct walk_shared *)memory;
    begin_kernel();
    struct walked w = {chunks_of(a, blockIdx.z, a.n_open[blockIdx.z]), (int)blockIdx.x,
                       (int)blockIdx.y};
    if (w.seq.n == 0)
        return;
    if (threadIdx.x < THREADS)
        advance_S(a, sh, w);
    else
        make_o(a, sh, w);
}

/* ---- What is kept ---------------------------------------------------------------------------------- */

/* A block is a row of the chunk in which a sequence's batch ends. */
__global__ void __launch_bounds__(THREADS) keep(struct chunks a)
{
    begin_kernel();
    struct chunk_seq seq = chunks_of(a, blockIdx.y, a.n_open[blockIdx.y]);
    if (seq.n == 0)
        return;
    struct open_chunk *open = open_of(a, seq.s.slot);
    int32_t r = blockIdx.x, t = (seq.n - 1) * CHUNK - seq.lead + r,
            last = (seq.lead + seq.n_rows) % CHUNK;
    if (r == 0 && threadIdx.x == 0) {
        open->end = seq.s.pos + seq.s.n_rows;
        open->n = last == 0 ? 0 : seq.n == 1 ? seq.n_rows : last;
    }
    if (last == 0 || t < seq.n_open || t >= seq.n_rows)
        return;
    int64_t row = seq.s.first_row + (int64_t)(t - seq.n_open), width = width_of(a);
    const uint4 *from = (const uint4 *)(a.qkv + row * a.qkv_stride);
    uint4 *to = (uint4 *)(open_qkv(a, open) + r * width);
    for (int i = threadIdx.x; i < (int)(width / 8); i += THREADS)
        to[i] = from[i];
    float *g = open_g(a, open) + r * a.n_v, *beta = g + CHUNK * a.n_v;
    for (int i = threadIdx.x; i < a.n_v; i += THREADS) {
        g[i] = a.g[row * a.g_stride + i];
        beta[i] = a.beta[row * a.beta_stride + i];
    }
}

/* ---- Launching ------------------------------------------------------------------------------------ */

static bool has_heads(const struct gpu *c, const struct gdn_heads *h, enum dtype act)
{
    return h->dk == HEAD && h->dv == HEAD && act == DT_BF16 &&
           (size_t)c->shared_per_sm > sizeof(struct walk_shared) + 2048;
}

extern "C" size_t cuda_delta_room(const void *stream, const struct gdn_heads *h, enum dtype act)
{
    int64_t width = (int64_t)(2 * h->n_k_heads + h->n_v_heads) * HEAD;
    if (!has_heads((const struct gpu *)stream, h, act))
        return 0;
    return sizeof(struct open_chunk) + (size_t)matrix_of(h->n_v_heads) * sizeof(float) +
           (size_t)(CHUNK * width) * sizeof(bf16) +
           (size_t)(2 * CHUNK * h->n_v_heads) * sizeof(float);
}

extern "C" bool cuda_gated_delta_chunks_takes(const struct gpu *c,
                                              const struct gated_delta_rule_args *a)
{
    int64_t room = a->S.stride - matrix_of(a->heads.n_v_heads);
    return a->b->phase == PHASE_PREFILL && has_heads(c, &a->heads, a->qkv.dtype) &&
           rows_aligned(a->qkv.data, a->qkv.stride, sizeof(bf16)) &&
           rows_aligned(a->S.data, a->S.stride, sizeof(float)) &&
           room * (int64_t)sizeof(float) >= (int64_t)cuda_delta_room(c, &a->heads, a->qkv.dtype);
}

static int64_t most_chunks(const struct batch *b)
{
    return b->n_rows / CHUNK + 2 * b->n_seqs;
}

extern "C" size_t cuda_gated_delta_rule_scratch(const void *stream,
                                                const struct gated_delta_rule_args *a)
{
    if (!cuda_gated_delta_chunks_takes((const struct gpu *)stream, a))
        return 0;
    return (size_t)(most_chunks(a->b) * a->heads.n_v_heads) * sizeof(struct chunk_factors) +
           (size_t)a->b->n_seqs * sizeof(int32_t);
}

extern "C" lathe_status cuda_gated_delta_chunks(struct gpu *c,
                                                const struct gated_delta_rule_args *a, int what,
                                                lathe_error *err)
{
    struct cuda_batch b;
    lathe_status st = cuda_batch(c, a->b, &b, err);
    if (st)
        return st;
    struct chunks d = {};
    d.qkv = (const bf16 *)a->qkv.data;
    d.g = (const float *)a->g.data;
    d.beta = (const float *)a->beta.data;
    d.S = (float *)a->S.data;
    d.o = (float *)a->o.data;
    d.qkv_stride = a->qkv.stride;
    d.g_stride = a->g.stride;
    d.beta_stride = a->beta.stride;
    d.S_stride = a->S.stride;
    d.o_stride = a->o.stride;
    d.n_k = a->heads.n_k_heads;
    d.n_v = a->heads.n_v_heads;
    d.seq = b.seq;
    d.factors = (struct chunk_factors *)a->scratch.data;
    d.n_open = (int32_t *)(d.factors + most_chunks(a->b) * d.n_v);
    unsigned n_v = (unsigned)d.n_v, n_seqs = (unsigned)b.n_seqs;
    size_t shared = sizeof(struct factors_shared), walk_shared = sizeof(struct walk_shared);
    bool open = false;
    for (int32_t i = 0; i < a->b->n_seqs; i++)
        open |= (a->b->seq[i].pos + a->b->seq[i].n_rows) % CHUNK != 0;
    (void)cudaFuncSetAttribute(factors, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    (void)cudaFuncSetAttribute(walk, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)walk_shared);
    if (what & CHUNKS_FACTORS)
        launch_next(c, factors, dim3((unsigned)b.n_rows / CHUNK + 2, n_v, n_seqs), THREADS, shared,
                    d);
    if (what & CHUNKS_WALK)
        launch_next(c, walk, dim3(HEAD / COLS, n_v, n_seqs), 2 * THREADS, walk_shared, d);
    if (what & CHUNKS_KEEP && open)
        launch_next(c, keep, dim3(CHUNK, n_seqs), THREADS, 0, d);
    return cuda_launched(c, err);
}
